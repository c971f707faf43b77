//! Fake node that runs steps in virtual time, as its test defines. It starts no processes and never waits.

#![allow(clippy::unwrap_used)]

use super::time::made_up::{pass, passed, time};
use super::{Driver, Request};
use crate::agent::{Facts, Moment, STOPPED};
use crate::changes::Changes;
use crate::error::ExperimentError;
use crate::experiment::Experiment;
use crate::folder::{Folder, State};
use crate::node::parcel::RunFile;
use crate::node::{Node, Site, Step, StepUnderWay};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use taut_bench::benchmark::Observer;
use taut_results::LeftOut;

/// A step that the driver of runs requests from a fake node.
pub(super) struct Asked<'a> {
    pub(super) run: &'a str,
    /// Number of the attempt at the run, from 1.
    pub(super) attempt: usize,
    pub(super) script: &'a str,
}

/// Course of a step: how long the step runs, what it prints, and how it ends.
#[derive(Clone)]
pub(super) struct Course {
    /// Duration of the step; `None` if it runs until the driver requests its end.
    pub(super) takes: Option<Duration>,
    pub(super) code: i32,
    /// Time after the step's start at which it prints, and the printed text.
    pub(super) prints: (Duration, String),
    /// True if the step ignores the request to end, so that it must be killed.
    pub(super) deaf: bool,
}

impl Course {
    /// Makes a course that ends after `seconds` with exit code `code`.
    pub(super) fn ends(seconds: u64, code: i32) -> Self {
        Self {
            takes: Some(Duration::from_secs(seconds)),
            code,
            prints: (Duration::ZERO, String::new()),
            deaf: false,
        }
    }

    /// Makes a course that runs until the step is requested to end.
    pub(super) fn goes_on() -> Self {
        Self {
            takes: None,
            ..Self::ends(0, STOPPED)
        }
    }

    pub(super) fn prints(self, after: Duration, text: &str) -> Self {
        Self {
            prints: (after, text.to_owned()),
            ..self
        }
    }
}

type Answer = Box<dyn Fn(&Asked<'_>) -> Course + Send + Sync>;

/// Environment of the fake nodes of an experiment: the courses of their steps, and disturbances.
pub(super) struct World {
    pub(super) stop: AtomicBool,
    /// Virtual time at which the user stops the experiment; `None` if the user never does.
    pub(super) ctrl_c_at: Option<Duration>,
    /// Virtual time until which another process measures on the nodes.
    pub(super) measuring_until: Duration,
    pub(super) free_bytes: u64,
    /// Time by which the clock of the nodes is ahead of this machine's clock, ns.
    pub(super) clock_ahead_ns: u64,
    /// Virtual time from which the nodes are unavailable, and the reason; `None` if they stay available.
    pub(super) lost: Option<(Duration, String)>,
    /// Settings of the nodes' firmware.
    pub(super) firmware: BTreeMap<String, String>,
    /// Number of runs after which the nodes reboot.
    pub(super) boots_after: usize,
    pub(super) answer: Answer,
    happened: Mutex<Vec<String>>,
}

impl World {
    pub(super) fn new(answer: impl Fn(&Asked<'_>) -> Course + Send + Sync + 'static) -> Self {
        Self {
            stop: AtomicBool::new(false),
            ctrl_c_at: None,
            measuring_until: Duration::ZERO,
            free_bytes: u64::MAX,
            clock_ahead_ns: 0,
            lost: None,
            firmware: BTreeMap::new(),
            boots_after: usize::MAX,
            answer: Box::new(answer),
            happened: Mutex::new(Vec::new()),
        }
    }

    fn note(&self, what: String) {
        self.happened.lock().unwrap().push(what);
    }

    fn press_what_is_due(&self) {
        if self.ctrl_c_at.is_some_and(|at| passed() >= at) {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

struct FakeNode {
    role: String,
    run: String,
    attempts: BTreeMap<String, usize>,
    world: Arc<World>,
}

impl Node for FakeNode {
    fn role(&self) -> &str {
        &self.role
    }

    fn take(&mut self, _stop: &AtomicBool) -> Result<(), ExperimentError> {
        Ok(())
    }

    fn begin(
        &mut self,
        run: &Site<'_>,
        _files: &[RunFile],
    ) -> Result<Vec<String>, ExperimentError> {
        self.run = run.id.to_owned();
        *self.attempts.entry(run.id.to_owned()).or_default() += 1;
        self.world.note(format!("begin {}", run.id));
        Ok(Vec::new())
    }

    fn boot_id(&self) -> &str {
        match self.attempts.len() > self.world.boots_after {
            true => "second",
            false => "first",
        }
    }

    fn start(&self, step: Step<'_>) -> Result<Box<dyn StepUnderWay>, ExperimentError> {
        let by = step
            .program
            .map_or_else(String::new, |it| format!(" by {it}"));
        self.world.note(format!("{}{by}", step.script));
        let course = (self.world.answer)(&Asked {
            run: &self.run,
            attempt: self.attempts[&self.run],
            script: step.script,
        });
        let [log, _] = step.logs;
        let now = passed();
        let step = FakeStep {
            script: step.script.to_owned(),
            prints_at: Some(now + course.prints.0),
            ends_at: course.takes.map(|takes| now + takes),
            course,
            log,
            world: Arc::clone(&self.world),
        };
        Ok(Box::new(step))
    }

    fn lost(&self) -> Option<String> {
        let (from, reason) = self.world.lost.as_ref()?;
        (passed() >= *from).then(|| reason.clone())
    }

    fn facts(&mut self) -> Result<Facts, ExperimentError> {
        Ok(Facts {
            taut_version: "0".to_owned(),
            architecture: "none".to_owned(),
            system: "made up".to_owned(),
            host_name: self.role.clone(),
            machine: serde_json::Value::Null,
            firmware: self.world.firmware.clone(),
            interrupt_affinity: BTreeMap::new(),
        })
    }

    fn moment(&mut self) -> Result<Moment, ExperimentError> {
        self.world.press_what_is_due();
        let measures = passed() < self.world.measuring_until;
        let since = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap();
        Ok(Moment {
            time_ns: since.as_nanos() as u64 + self.world.clock_ahead_ns,
            free_bytes: self.world.free_bytes,
            halts: None,
            measuring: measures.then(|| "process 7".to_owned()),
        })
    }

    fn collect(&mut self, _into: &Path) -> Result<(), ExperimentError> {
        self.world.note(format!("collect {}", self.run));
        Ok(())
    }
}

struct FakeStep {
    script: String,
    course: Course,
    prints_at: Option<Duration>,
    ends_at: Option<Duration>,
    log: File,
    world: Arc<World>,
}

impl StepUnderWay for FakeStep {
    fn wait(&mut self, at_most: Duration) -> Option<i32> {
        let until = passed() + at_most;
        let ends = self.ends_at.filter(|ends| *ends <= until);
        pass(ends.unwrap_or(until).saturating_sub(passed()));
        if self.prints_at.is_some_and(|at| at <= passed()) {
            self.prints_at = None;
            writeln!(self.log, "{}", self.course.prints.1).unwrap();
        }
        self.world.press_what_is_due();
        // The step reports its end only once.
        self.ends_at = self.ends_at.filter(|_| ends.is_none());
        ends.map(|_| self.course.code)
    }

    fn close(&mut self) {
        self.world.note(format!("end {}", self.script));
        if !self.course.deaf {
            self.course.code = STOPPED;
            self.ends_at = Some(passed());
        }
    }

    fn kill(&mut self) {
        self.world.note(format!("kill {}", self.script));
    }
}

/// The messages that an experiment on fake nodes shows to the user.
#[derive(Default)]
pub(super) struct Told {
    pub(super) progress: Vec<(Duration, Duration, String)>,
    pub(super) notes: Vec<String>,
}

impl Observer for Told {
    fn progress(&mut self, done: Duration, total: Duration, what: &str) {
        self.progress.push((done, total, what.to_owned()));
    }

    fn left_out(&mut self, _: &LeftOut) {}

    fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }
}

/// An experiment on a fake node, with its results folder.
pub(super) struct Trial {
    pub(super) request: Request,
    _place: tempfile::TempDir,
}

/// The result of running an experiment on fake nodes.
pub(super) struct Came {
    pub(super) state: State,
    /// Steps, and other actions of nodes, in the order in which they happened.
    pub(super) happened: Vec<String>,
    pub(super) told: Told,
    /// Virtual time that the experiment took.
    pub(super) took: Duration,
}

impl Trial {
    /// Makes a trial from the text of an experiment file.
    pub(super) fn new(text: &str) -> Self {
        Self::with(text, Changes::default())
    }

    /// Makes a trial from the text of an experiment file with changes.
    pub(super) fn with(text: &str, changes: Changes) -> Self {
        let place = tempfile::tempdir().unwrap();
        let experiment = Experiment::parse(text, "e.toml", Path::new("."), &changes).unwrap();
        let dir = place.path().join("results");
        let folder = Folder::begin(&dir, &experiment, "e", "taut", &changes).unwrap();
        Self {
            request: Request {
                experiment,
                folder,
                program: PathBuf::new(),
                holds_machine: true,
                at_most: None,
            },
            _place: place,
        }
    }

    pub(super) fn folder(&self) -> &Folder {
        &self.request.folder
    }

    /// Returns the names of the runs in the order of the plan.
    pub(super) fn planned(&self) -> Vec<String> {
        let plan = self.request.experiment.plan();
        plan.into_iter().map(|run| run.id).collect()
    }

    /// Makes the missing runs of the experiment in the given environment.
    pub(super) fn run(&self, world: World) -> Came {
        let began = passed();
        let world = Arc::new(world);
        let experiment = &self.request.experiment;
        let nodes = experiment.nodes.keys().map(|role| {
            Box::new(FakeNode {
                role: role.clone(),
                run: String::new(),
                attempts: BTreeMap::new(),
                world: Arc::clone(&world),
            }) as Box<dyn Node>
        });
        let mut told = Told::default();
        let folder = &self.request.folder;
        let driver = Driver {
            done: folder.rebuild_index().unwrap(),
            time: time(),
            ..Driver::on(nodes.collect(), &self.request, &mut told, &world.stop).unwrap()
        };
        let state = driver.run(folder.state().unwrap()).unwrap();
        let happened = world.happened.lock().unwrap().clone();
        Came {
            state,
            happened,
            told,
            took: passed() - began,
        }
    }
}

/// Returns the runs that began, in order.
pub(super) fn begun(happened: &[String]) -> Vec<&str> {
    let begun = happened.iter().map(|what| what.strip_prefix("begin "));
    begun.flatten().collect()
}
