//! Makes the runs of an experiment, each from a known state and with a complete record.

mod attempt;
mod clocks;
pub(crate) mod cluster;
mod commands;
#[cfg(test)]
mod fake;
mod links;
mod one_run;
mod order;
#[cfg(test)]
mod perturbed;
mod ready;
mod template;
mod time;

pub use cluster::run_allocated;
pub(crate) use ready::{check_wants, enough_room};

use crate::agent::{Held, STEPS_END};
use crate::duration::now;
use crate::error::ExperimentError;
use crate::experiment::Experiment;
use crate::folder::{Folder, IndexedRun, State};
use crate::node::address::NodeAddress;
use crate::node::slurm::of_allocation;
use crate::node::{Node, of_roles, take_this_machine};
use crate::secrets::Secrets;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taut_bench::benchmark::Observer;
use taut_results::Completion;
use time::Time;

/// Timeout for the agent to end a step; the agent is killed when it expires.
const END_PATIENCE: Duration = STEPS_END.saturating_add(Duration::from_secs(5));

/// A request to run an experiment.
#[derive(Debug)]
pub struct Request {
    /// The experiment to run.
    pub experiment: Experiment,
    /// Results folder, which is new or already contains some of the runs.
    pub folder: Folder,
    /// Path of the file of this program, which is also run on nodes.
    pub program: PathBuf,
    /// True if the caller has already reserved this machine for experiments.
    pub holds_machine: bool,
    /// Time after which no further run begins; `None` for no limit.
    pub at_most: Option<Duration>,
}

/// Makes all missing runs. Returns early when `stop` is set; complete runs remain. A failed run does not end the
/// experiment: it is counted, moved to `failed/`, and retried by the next call.
///
/// # Errors
/// A node is permanently unusable, the program of the other build is missing, or results cannot be written.
pub fn run(
    request: &Request,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<State, ExperimentError> {
    if let Some(base) = &request.experiment.against {
        base.check()?;
    }
    let _alone = request.folder.claim()?;
    let state = request.folder.state()?;
    Driver::new(request, observer, stop)?.run(state)
}

/// Reason why a run is not complete.
enum Failed {
    /// The run was stopped by the user.
    Stopped,
    /// The run failed; the value is the reason. A further attempt may succeed.
    Run(String),
    /// The experiment cannot continue: results cannot be written.
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

/// The state that all runs of an experiment share, and the functions that make the runs.
struct Driver<'a> {
    request: &'a Request,
    observer: &'a mut dyn Observer,
    stop: &'a AtomicBool,
    time: Time,
    /// Time at which the first run began.
    began: Instant,
    nodes: Vec<Box<dyn Node>>,
    /// Boot id of each node, by role, when its commands of `setup_once` were run.
    set_up: BTreeMap<String, String>,
    /// Reservation of this machine, which is released when the driver is dropped. `None` if no node is local, or if the
    /// machine was reserved before.
    _held: Option<Held>,
    /// True if this process makes one run of a Slurm array; the process that submitted the array writes the index.
    allocated: bool,
    done: Vec<IndexedRun>,
    failed: BTreeSet<String>,
    notes: Vec<String>,
    secrets: Secrets,
}

impl<'a> Driver<'a> {
    /// Connects to the nodes of the experiment and reserves them.
    fn new(
        request: &'a Request,
        observer: &'a mut dyn Observer,
        stop: &'a AtomicBool,
    ) -> Result<Self, ExperimentError> {
        let experiment = &request.experiment;
        let local = experiment
            .nodes
            .values()
            .any(|node| matches!(node.address, NodeAddress::Local | NodeAddress::Vm));
        let held = if local && !request.holds_machine {
            Some(take_this_machine()?)
        } else {
            None
        };
        let here = experiment
            .nodes
            .iter()
            .filter(|_| !experiment.is_on_slurm());
        let mut nodes = of_roles(here, &request.program)?;
        for node in &mut nodes {
            node.take(stop)?;
        }
        Ok(Self {
            done: request.folder.rebuild_index()?,
            _held: held,
            ..Self::on(nodes, request, observer, stop)?
        })
    }

    /// Makes a driver for one run, on the machines that Slurm allocated to this process.
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

    /// Makes a driver that uses the given nodes, and that has made no run.
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
            began: Instant::now(),
            nodes,
            set_up: BTreeMap::new(),
            _held: None,
            allocated: false,
            done: Vec::new(),
            failed: BTreeSet::new(),
            notes: Vec::new(),
            secrets: request.experiment.secrets_to_run()?,
        })
    }

    /// Makes all missing runs, and writes `state.json`.
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
        ended?;
        if !stopped && state.done > 0 && !self.request.experiment.definition.evaluate.is_empty() {
            crate::evaluate::evaluate(folder.path())?;
            self.request
                .experiment
                .run_evaluation_steps(folder, self.stop)?;
        }
        Ok(state)
    }
}
