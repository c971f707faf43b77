//! Makes the runs of an experiment, each from a known state, and records all of it.

mod attempt;
pub(crate) mod cluster;
mod commands;
#[cfg(test)]
mod fake;
mod filled;
mod one_run;
mod order;
mod ready;
mod time;

pub use cluster::run_allocated;
pub(crate) use ready::enough_room;

use crate::agent::{Held, STEPS_END};
use crate::error::ExperimentError;
use crate::experiment::Experiment;
use crate::folder::{Folder, IndexedRun, State};
use crate::node::address::NodeAddress;
use crate::node::slurm::of_allocation;
use crate::node::{Node, of_role, take_this_machine};
use crate::secrets::Secrets;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use taut_lab::benchmark::Observer;
use taut_results::Completion;
use time::Time;

/// Time that the agent may take to end a step before it is given up.
const END_PATIENCE: Duration = STEPS_END.saturating_add(Duration::from_secs(5));

/// Request of what to run.
#[derive(Debug)]
pub struct Request {
    /// The experiment.
    pub experiment: Experiment,
    /// Folder in which the results are, or are to be.
    pub folder: Folder,
    /// Path of this program, which is run on nodes.
    pub program: PathBuf,
    /// Whether the caller holds this machine's claim for experiments already.
    pub holds_machine: bool,
}

/// Makes all runs that are missing. Ends early, with whole runs kept, when `stop` is set. Failed runs do not end
/// the experiment: they are counted, put aside, and tried again by the next call.
///
/// # Errors
/// A node cannot be used at all, or results cannot be written.
pub fn run(
    request: &Request,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<State, ExperimentError> {
    let _alone = request.folder.claim()?;
    let state = request.folder.state()?;
    Driver::new(request, observer, stop)?.run(state)
}

/// The moment, RFC 3339.
pub(crate) fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

/// Way in which a run ended that did not become a result.
enum Failed {
    /// The run was told to stop.
    Stopped,
    /// The run failed; the next one may do better.
    Run(String),
    /// Nothing can go on: results cannot be written.
    Fatal(ExperimentError),
}

impl From<ExperimentError> for Failed {
    fn from(e: ExperimentError) -> Self {
        match e {
            ExperimentError::Node { .. } => Self::Run(e.to_string()),
            other => Self::Fatal(other),
        }
    }
}

/// Driver of an experiment: what its runs share.
struct Driver<'a> {
    request: &'a Request,
    observer: &'a mut dyn Observer,
    stop: &'a AtomicBool,
    time: Time,
    nodes: Vec<Box<dyn Node>>,
    /// Hold of this machine, which is ours as long as this lives.
    _held: Option<Held>,
    /// Makes one run of an array; who submitted the array keeps the index.
    allocated: bool,
    done: Vec<IndexedRun>,
    failed: BTreeSet<String>,
    notes: Vec<String>,
    secrets: Secrets,
}

impl<'a> Driver<'a> {
    /// Takes the nodes of the experiment.
    fn new(
        request: &'a Request,
        observer: &'a mut dyn Observer,
        stop: &'a AtomicBool,
    ) -> Result<Self, ExperimentError> {
        let experiment = &request.experiment;
        let local = experiment
            .nodes
            .values()
            .any(|node| node.address == NodeAddress::Local);
        let held = if local && !request.holds_machine {
            Some(take_this_machine()?)
        } else {
            None
        };
        let mut nodes = Vec::new();
        let here = experiment
            .nodes
            .iter()
            .filter(|_| !experiment.is_on_slurm());
        for (name, role) in here {
            let mut node = of_role(name, role, &request.program)?;
            node.take(stop)?;
            nodes.push(node);
        }
        Ok(Self {
            done: request.folder.rebuild_index()?,
            _held: held,
            ..Self::on(nodes, request, observer, stop)?
        })
    }

    /// Makes a driver of one run, on the machines that this process was given by Slurm.
    fn of_allocation(
        request: &'a Request,
        observer: &'a mut dyn Observer,
        stop: &'a AtomicBool,
    ) -> Result<Self, ExperimentError> {
        let nodes = of_allocation(&request.experiment, &request.program)?;
        Ok(Self {
            allocated: true,
            ..Self::on(nodes, request, observer, stop)?
        })
    }

    /// Makes a driver that has made nothing yet, on these nodes.
    fn on(
        nodes: Vec<Box<dyn Node>>,
        request: &'a Request,
        observer: &'a mut dyn Observer,
        stop: &'a AtomicBool,
    ) -> Result<Self, ExperimentError> {
        Ok(Self {
            request,
            observer,
            stop,
            time: Time::default(),
            nodes,
            _held: None,
            allocated: false,
            done: Vec::new(),
            failed: BTreeSet::new(),
            notes: Vec::new(),
            secrets: request.experiment.secrets_to_run()?,
        })
    }

    /// Makes all runs that are missing, and writes how far it came.
    fn run(mut self, mut state: State) -> Result<State, ExperimentError> {
        let folder = &self.request.folder;
        state.completion = Completion::Running;
        state.ended = None;
        folder.write_state(&state)?;
        let ended = self.all_runs(&mut state);
        state.notes.append(&mut self.notes);
        state.notes.dedup();
        state.done = self.done.len();
        state.failed = self.failed.len();
        let stopped = self.stop.load(Ordering::Relaxed);
        state.completion = match &ended {
            Err(_) => Completion::Incomplete,
            Ok(()) if stopped && state.done < state.planned => Completion::Interrupted,
            Ok(()) if state.done < state.planned => Completion::Incomplete,
            Ok(()) => Completion::Finished,
        };
        state.ended = Some(now());
        folder.write_state(&state)?;
        ended.map(|()| state)
    }
}
