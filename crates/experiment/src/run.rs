//! Makes the runs of an experiment, each from a known state, and records all of it.

pub(crate) mod cluster;

pub use cluster::run_allocated;

use crate::agent::{Moment, STEPS_END, STOPPED, TIMED_OUT};
use crate::compare::words;
use crate::error::ExperimentError;
use crate::experiment::Experiment;
use crate::folder::{CommandRecord, Folder, IndexedRun, RunRecord, Stage, State};
use crate::measurement::Task;
use crate::metrics;
use crate::node::slurm::of_allocation;
use crate::node::{Node, Place, RunFile, Site, kill_group, of_role, take_this_machine};
use crate::plan::PlannedRun;
use crate::role::end_of;
use crate::secrets::Secrets;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime};
use taut_host::Wiring;
use taut_host::private::MEASURING_PATIENCE;
use taut_lab::benchmark::Observer;
use taut_measure::{Progress, StopRule};

/// Space that a node must have free before a run.
const LEAST_FREE_BYTES: u64 = 64 << 20;
/// Clocks of two nodes that differ by more are worth a note, ns.
const CLOCKS_DIFFER_NS: i128 = 100_000_000;
/// Time between two questions to a node whether another measurement has ended.
const MEASUREMENT_POLL: Duration = Duration::from_millis(300);
/// Time that a background command may take until it is ready.
const READY_PATIENCE: Duration = Duration::from_secs(20);
/// Exit code of `ssh` when the connection breaks.
const CONNECTION_BROKE: i32 = 255;
/// Time until a connection that broke is known to have.
const LOSS_SHOWS: Duration = Duration::from_millis(500);
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
    let mut state = request.folder.state()?;
    let mut driver = Driver::new(request, observer, stop)?;
    state.stage = Stage::Running;
    state.ended = None;
    request.folder.write_state(&state)?;
    let ended = driver.all_runs(&mut state);
    state.notes.append(&mut driver.notes);
    state.notes.dedup();
    state.done = driver.done.len();
    state.failed = driver.failed.len();
    state.stage = match &ended {
        Err(_) => Stage::Incomplete,
        Ok(()) if stop.load(Ordering::Relaxed) && state.done < state.planned => Stage::Interrupted,
        Ok(()) if state.done < state.planned => Stage::Incomplete,
        Ok(()) => Stage::Finished,
    };
    state.ended = Some(now());
    request.folder.write_state(&state)?;
    ended.map(|()| state)
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

struct Driver<'a> {
    request: &'a Request,
    observer: &'a mut dyn Observer,
    stop: &'a AtomicBool,
    nodes: Vec<Box<dyn Node>>,
    /// Hold of this machine, which is ours as long as this lives.
    _held: Option<crate::agent::Held>,
    /// Makes one run of an array; who submitted the array keeps the index.
    allocated: bool,
    done: Vec<IndexedRun>,
    failed: BTreeSet<String>,
    notes: Vec<String>,
    secrets: Secrets,
}

impl<'a> Driver<'a> {
    fn new(
        request: &'a Request,
        observer: &'a mut dyn Observer,
        stop: &'a AtomicBool,
    ) -> Result<Self, ExperimentError> {
        let experiment = &request.experiment;
        let local = experiment
            .nodes
            .values()
            .any(|node| node.place == Place::Local);
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
            request,
            observer,
            stop,
            nodes,
            _held: held,
            allocated: false,
            failed: BTreeSet::new(),
            notes: Vec::new(),
            secrets: request.experiment.secrets_to_run()?,
        })
    }

    /// Makes a driver of one run, on the machines that this process was given by Slurm.
    fn of_allocation(
        request: &'a Request,
        observer: &'a mut dyn Observer,
        stop: &'a AtomicBool,
    ) -> Result<Self, ExperimentError> {
        Ok(Self {
            nodes: of_allocation(&request.experiment, &request.program)?,
            request,
            observer,
            stop,
            _held: None,
            allocated: true,
            done: Vec::new(),
            failed: BTreeSet::new(),
            notes: Vec::new(),
            secrets: request.experiment.secrets_to_run()?,
        })
    }

    fn all_runs(&mut self, state: &mut State) -> Result<(), ExperimentError> {
        let experiment = &self.request.experiment;
        let mut planned = experiment.plan();
        let mut repetition = experiment.definition.plan.repetitions;
        loop {
            state.planned = planned.len();
            let made: BTreeSet<String> = self.done.iter().map(|run| run.id.clone()).collect();
            let missing: Vec<&PlannedRun> = planned
                .iter()
                .filter(|run| !made.contains(&run.id))
                .collect();
            if experiment.is_on_slurm() {
                self.on_slurm(&missing, state)?;
            } else {
                self.here(&missing, state)?;
            }
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            repetition += 1;
            let more = self.until(repetition);
            if more.is_empty() {
                return Ok(());
            }
            planned.extend(more);
        }
    }

    /// Makes these runs one after the other.
    fn here(&mut self, missing: &[&PlannedRun], state: &mut State) -> Result<(), ExperimentError> {
        for (index, run) in missing.iter().enumerate() {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.tell(run, missing.len() - index);
            self.attempts(run)?;
            state.done = self.done.len();
            state.failed = self.failed.len();
            self.request.folder.write_state(state)?;
        }
        Ok(())
    }

    /// Runs of the next repetition for combinations whose metric is not known well enough yet.
    fn until(&self, repetition: u32) -> Vec<PlannedRun> {
        let experiment = &self.request.experiment;
        let Some(until) = &experiment.definition.plan.until else {
            return Vec::new();
        };
        if repetition > until.at_most {
            return Vec::new();
        }
        let wanted = |run: &PlannedRun| {
            let values: Vec<f64> = self
                .done
                .iter()
                .filter(|done| done.variant == run.variant + 1 && !done.warm_up)
                .filter_map(|done| done.metrics.get(&until.metric).copied())
                .collect();
            let rule = StopRule {
                within: until.within,
                confidence: 0.95,
                min_runs: u64::from(experiment.definition.plan.repetitions),
                max_runs: u64::from(until.at_most),
            };
            matches!(rule.judge(&values), Progress::GoOn(_))
        };
        experiment
            .round(repetition, false)
            .into_iter()
            .filter(wanted)
            .collect()
    }

    /// Tells how far it is, by what runs have taken so far.
    fn tell(&mut self, next: &PlannedRun, left: usize) {
        let took: f64 = self.done.iter().map(|run| run.seconds).sum();
        let each = if self.done.is_empty() {
            self.request
                .experiment
                .expected()
                .unwrap_or(Duration::from_secs(1))
                .as_secs_f64()
        } else {
            took / self.done.len() as f64
        };
        let variant = &self.request.experiment.variants[next.variant];
        let what = format!("{}  {}", next.id, words(&variant.loops));
        let total = took + each * left as f64;
        self.observer.progress(
            Duration::from_secs_f64(took),
            Duration::from_secs_f64(total),
            &what,
        );
    }

    /// Makes a run, more than once if need be; why it failed, if it did.
    fn attempts(&mut self, planned: &PlannedRun) -> Result<Option<String>, ExperimentError> {
        let mut failure = None;
        let attempts = self.request.experiment.definition.plan.attempts;
        for attempt in 1..=attempts {
            let mut making = self.begin(planned, attempt)?;
            let mut outcome = self.one_run(planned, &mut making);
            if outcome.is_err() && self.stop.load(Ordering::Relaxed) {
                outcome = Err(Failed::Stopped);
            }
            // Whatever happened: nothing of the run goes on.
            let ended = self.end(&mut making, &outcome);
            for file in self.secrets.scrub(&making.folder)? {
                making
                    .record
                    .notes
                    .push(format!("a secret was taken out of {file}"));
            }
            let outcome = outcome
                .and(ended)
                .and_then(|()| self.gather(&mut making).map_err(Failed::Run));
            making.record.seconds = making.began.elapsed().as_secs_f64();
            match outcome {
                Ok(()) => {
                    let entry = self.request.folder.finish(&making.folder, making.record)?;
                    if !self.allocated {
                        self.request.folder.append(&entry)?;
                    }
                    self.failed.remove(&planned.id);
                    self.done.push(entry);
                    return Ok(None);
                }
                Err(Failed::Stopped) => {
                    let _ = fs::remove_dir_all(&making.folder);
                    return Ok(failure);
                }
                Err(Failed::Fatal(e)) => return Err(e),
                Err(Failed::Run(reason)) => {
                    let reason = self.secrets.text(&reason);
                    self.observer.note(&format!("{}: {reason}", planned.id));
                    failure = Some(reason.clone());
                    making.record.failure = Some(reason);
                    self.failed.insert(planned.id.clone());
                    self.request
                        .folder
                        .put_aside(&making.folder, making.record)?;
                }
            }
        }
        Ok(failure)
    }

    fn begin(&self, planned: &PlannedRun, attempt: u32) -> Result<Making, ExperimentError> {
        Ok(Making {
            folder: self.request.folder.partial(&planned.id)?,
            began: Instant::now(),
            deadline: Instant::now(),
            wiring: None,
            background: Vec::new(),
            outputs: Vec::new(),
            awake: false,
            record: record_of(&self.request.experiment, planned, attempt),
        })
    }

    fn one_run(&mut self, planned: &PlannedRun, making: &mut Making) -> Result<(), Failed> {
        let request = self.request;
        let experiment = &request.experiment;
        let variant = &experiment.variants[planned.variant];
        let context =
            |role: Option<&str>| experiment.context(variant, role, &planned.id, planned.repetition);
        making.awake = experiment.keeps_awake(&context(None))?;
        self.begin_nodes(planned, making, &context(None))?;
        making.deadline = Instant::now() + experiment.limit;
        for role in experiment.nodes.keys() {
            let values = context(Some(role));
            for (index, command) in experiment.nodes[role].definition.setup.iter().enumerate() {
                let script = experiment.fill(command, &values)?;
                let name = format!("setup-{role}-{}", index + 1);
                self.foreground(making, &name, role, &script, &[])?;
            }
        }
        for task in &experiment.tasks {
            let role = experiment.role_of(task.node.as_ref())?;
            let values = context(Some(role));
            let script = experiment.fill(&task.run, &values)?;
            if task.background {
                let ready = match &task.ready {
                    Some(ready) => Some(experiment.fill(ready, &values)?),
                    None => None,
                };
                self.background(making, &task.name, role, &script, ready.as_deref())?;
            } else {
                self.foreground(making, &task.name, role, &script, &task.allowed)?;
                let mut patterns = Vec::new();
                for (name, pattern) in &task.extract {
                    patterns.push((name.clone(), experiment.fill(pattern, &values)?));
                }
                making.outputs.push((task.clone(), patterns));
            }
        }
        Ok(())
    }

    fn begin_nodes(
        &mut self,
        planned: &PlannedRun,
        making: &mut Making,
        values: &Value,
    ) -> Result<(), Failed> {
        let experiment = &self.request.experiment;
        let files = experiment.files(values)?;
        let local: Vec<&str> = experiment.local_roles();
        if !experiment.definition.link.is_empty() {
            let number = |role: &str| local.iter().position(|name| *name == role).unwrap_or(0);
            let mut cables = Vec::new();
            for link in &experiment.definition.link {
                let [(near, near_interface), (far, far_interface)] = [
                    end_of(&experiment.source, &link.between[0])?,
                    end_of(&experiment.source, &link.between[1])?,
                ];
                cables.push([(number(near), near_interface), (number(far), far_interface)]);
            }
            let wiring =
                Wiring::build(local.len(), &cables).map_err(|e| Failed::Run(e.to_string()))?;
            making.wiring = Some(wiring);
        }
        let sites = self.nodes.iter().map(|node| Site {
            id: &planned.id,
            folder: &making.folder,
            namespace: making.wiring.as_ref().and_then(|wiring| {
                Some(wiring.namespace(local.iter().position(|name| *name == node.role())?))
            }),
            stop: self.stop,
        });
        let sites: Vec<Site<'_>> = sites.collect();
        // All at once: they may have to boot.
        let begun: Vec<_> = std::thread::scope(|scope| {
            let files = &files;
            let mut threads = Vec::new();
            for (node, site) in self.nodes.iter_mut().zip(sites) {
                threads.push(scope.spawn(move || node.begin(&site, files)));
            }
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.filter_map(Result::ok).collect()
        });
        for notes in begun {
            making.record.notes.extend(notes?);
        }
        let mut moments = Vec::new();
        let mut halting = BTreeMap::new();
        for node in &mut self.nodes {
            let role = node.role().to_owned();
            let waited = wait_for_measurement(&mut **node, self.observer, self.stop)?;
            making.began += waited;
            let asked = crate::agent::moment(&making.folder);
            let moment = node.moment()?;
            let answered = crate::agent::moment(&making.folder);
            enough_room(&role, &moment)?;
            let middle = i128::from(asked.time_ns) / 2 + i128::from(answered.time_ns) / 2;
            // When in between it looked at its clock is not known.
            let unsure_ns = i128::from(answered.time_ns.saturating_sub(asked.time_ns)) / 2;
            let ahead_ns = i128::from(moment.time_ns) - middle;
            moments.push((role.clone(), ahead_ns, unsure_ns));
            if let Some(why) = moment.halts.filter(|_| making.awake) {
                halting
                    .entry(why)
                    .or_insert_with(Vec::new)
                    .push(role.clone());
            }
            let facts = node.facts()?;
            making
                .record
                .nodes
                .insert(role, self.request.folder.keep_facts(&facts)?);
        }
        for (why, roles) in halting {
            let roles = roles.join(", ");
            let note = format!("cores cannot be kept awake on {roles}, and halt when idle: {why}");
            self.note(making, note);
        }
        for (role, ahead_ns, unsure_ns) in moments {
            if ahead_ns.abs() > CLOCKS_DIFFER_NS + unsure_ns {
                let note = format!(
                    "the clock of node {role} is {:+.1} s from this machine's: times in its logs differ",
                    ahead_ns as f64 / 1e9
                );
                self.note(making, note);
            }
        }
        Ok(())
    }

    /// Notes something about a run, and once about the experiment.
    fn note(&mut self, making: &mut Making, note: String) {
        if !self.notes.contains(&note) && self.notes.len() < 20 {
            self.notes.push(note.clone());
        }
        making.record.notes.push(note);
    }

    /// Returns why a node is not there any more, if it is not; that shows a moment after its commands have ended.
    fn lost(&self, role: &str, code: i32) -> Option<String> {
        // Slurm ends commands by a signal.
        let taken = code == CONNECTION_BROKE || (self.allocated && code == STOPPED);
        let node = self.node(role).ok().filter(|_| taken)?;
        let deadline = Instant::now() + LOSS_SHOWS;
        loop {
            let lost = node.lost();
            if lost.is_some() || Instant::now() > deadline {
                return lost;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn node(&self, role: &str) -> Result<&dyn Node, Failed> {
        let node = self.nodes.iter().find(|node| node.role() == role);
        node.map(|node| &**node)
            .ok_or_else(|| Failed::Run(format!("there is no node {role}")))
    }

    fn start(
        &self,
        making: &mut Making,
        name: &str,
        role: &str,
        script: &str,
    ) -> Result<Running, Failed> {
        let left = making.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failed::Run(self.too_long()));
        }
        let seconds = left.as_secs_f64().to_string();
        let node = self.node(role)?;
        let mut words = vec!["--name", name, "--limit", &seconds];
        words.extend((!self.secrets.is_empty()).then_some("--secrets"));
        words.extend(making.awake.then_some("--awake"));
        words.extend(["--", script]);
        let mut command = node.agent("step", &words);
        let log = |kind: &str| making.folder.join("logs").join(format!("{name}.{kind}"));
        let create = |path: PathBuf| File::create(&path).map_err(ExperimentError::io(path));
        let logs = [create(log("out"))?, create(log("err"))?];
        let mut scrubbed = None;
        let [out, err] = if self.secrets.is_empty() {
            logs.map(Stdio::from)
        } else {
            scrubbed = Some(logs);
            [Stdio::piped(), Stdio::piped()]
        };
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(out)
            .stderr(err)
            .process_group(0)
            .spawn()
            .map_err(|e| Failed::Run(format!("node {role}: cannot start a command there: {e}")))?;
        making.record.commands.push(CommandRecord {
            name: name.to_owned(),
            node: role.to_owned(),
            script: script.to_owned(),
            exit_code: None,
            begun_s: making.began.elapsed().as_secs_f64(),
            seconds: 0.0,
        });
        let mut stdin = child.stdin.take();
        if let Some(stdin) = stdin.as_mut().filter(|_| !self.secrets.is_empty()) {
            // What has ended already says so by its exit code.
            let _ = stdin.write_all(&self.secrets.line());
        }
        let pid = child.id();
        let mut copies = Vec::new();
        if let Some([out, err]) = scrubbed {
            copies.extend(child.stdout.take().map(|from| self.scrub(from, out)));
            copies.extend(child.stderr.take().map(|from| self.scrub(from, err)));
        }
        let (ended, end) = channel();
        std::thread::spawn(move || {
            let code = child.wait().map_or(1, |status| {
                status.code().unwrap_or(128 + status.signal().unwrap_or(0))
            });
            // Logs are whole before the command counts as ended.
            for copy in copies {
                let _ = copy.join();
            }
            let _ = ended.send(code);
        });
        Ok(Running {
            name: name.to_owned(),
            pid,
            stdin,
            end,
            began: Instant::now(),
            command: making.record.commands.len() - 1,
        })
    }

    /// Writes what a command prints to its log, without secrets.
    fn scrub(
        &self,
        from: impl std::io::Read + Send + 'static,
        log: File,
    ) -> std::thread::JoinHandle<()> {
        let secrets = self.secrets.clone();
        std::thread::spawn(move || {
            let _ = secrets.copy(from, log);
        })
    }

    /// Runs a command to its end.
    fn foreground(
        &self,
        making: &mut Making,
        name: &str,
        role: &str,
        script: &str,
        allowed: &[i32],
    ) -> Result<(), Failed> {
        let running = self.start(making, name, role, script)?;
        let deadline = making.deadline + END_PATIENCE;
        let code = loop {
            // Woken rarely: this process may sit on a core that is being measured.
            match running.end.recv_timeout(Duration::from_millis(250)) {
                Ok(code) => break code,
                Err(_) if self.stop.load(Ordering::Relaxed) => {
                    running.stop(making);
                    return Err(Failed::Stopped);
                }
                Err(_) if Instant::now() > deadline => {
                    running.stop(making);
                    return Err(Failed::Run(self.too_long()));
                }
                Err(_) => {}
            }
        };
        running.note_end(making, code);
        let last = last_line(making, name);
        match code {
            0 => Ok(()),
            TIMED_OUT => Err(Failed::Run(self.too_long())),
            code if allowed.contains(&code) => {
                making.record.notes.push(format!("{name}: {last}"));
                Ok(())
            }
            _ if self.stop.load(Ordering::Relaxed) => Err(Failed::Stopped),
            code => Err(Failed::Run(match self.lost(role, code) {
                Some(reason) => format!("node {role}: {reason} (during {name})"),
                None => format!("{name} on node {role} ended with code {code}: {last}"),
            })),
        }
    }

    fn too_long(&self) -> String {
        format!(
            "took longer than plan.limit allows ({})",
            self.request.experiment.definition.plan.limit
        )
    }

    /// Starts a command and waits until it is ready.
    fn background(
        &self,
        making: &mut Making,
        name: &str,
        role: &str,
        script: &str,
        ready: Option<&str>,
    ) -> Result<(), Failed> {
        let running = self.start(making, name, role, script)?;
        let output = making.folder.join("logs").join(format!("{name}.out"));
        let errors = making.folder.join("logs").join(format!("{name}.err"));
        let deadline = Instant::now() + READY_PATIENCE;
        let mut failure = None;
        while let Some(ready) = ready {
            let said =
                |path: &Path| fs::read_to_string(path).is_ok_and(|text| text.contains(ready));
            if said(&output) || said(&errors) {
                break;
            }
            if let Ok(code) = running.end.try_recv() {
                running.note_end(making, code);
                let last = last_line(making, name);
                return Err(Failed::Run(format!(
                    "{name} on node {role} ended before it was ready (code {code}): {last}"
                )));
            }
            if self.stop.load(Ordering::Relaxed) {
                failure = Some(Failed::Stopped);
                break;
            }
            if Instant::now() > deadline {
                failure = Some(Failed::Run(format!(
                    "{name} on node {role} did not say `{ready}` within {} s",
                    READY_PATIENCE.as_secs()
                )));
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        making.background.push(running);
        failure.map_or(Ok(()), Err)
    }

    /// Ends what is in the background, last started first, and brings files back.
    fn end(&mut self, making: &mut Making, outcome: &Result<(), Failed>) -> Result<(), Failed> {
        let well = outcome.is_ok();
        let mut died = None;
        while let Some(running) = making.background.pop() {
            if let Ok(code) = running.end.try_recv() {
                running.note_end(making, code);
                let last = last_line(making, &running.name);
                if code != 0 && well {
                    died = Some(format!(
                        "{} ended during the run with code {code}: {last}",
                        running.name
                    ));
                }
            } else {
                running.stop(making);
            }
        }
        let mut collected = Ok(());
        for node in &mut self.nodes {
            // Of a run that was stopped nothing is kept.
            if !matches!(outcome, Err(Failed::Stopped)) {
                collected = collected.and(node.collect(&making.folder.join(node.role())));
            }
        }
        making.wiring = None;
        if well {
            collected?;
        }
        died.map_or(Ok(()), |reason| Err(Failed::Run(reason)))
    }

    /// Reads the metrics out of what the commands have printed.
    fn gather(&self, making: &mut Making) -> Result<(), String> {
        for (task, patterns) in std::mem::take(&mut making.outputs) {
            let read = |kind: &str| {
                let path = making
                    .folder
                    .join("logs")
                    .join(format!("{}.{kind}", task.name));
                let text = fs::read(path).unwrap_or_default();
                String::from_utf8_lossy(&text).into_owned()
            };
            let output = read("out");
            if task.json {
                let found = metrics::of_json(&output)
                    .ok_or_else(|| format!("{}: no JSON object in its output", task.name))?;
                let named = found
                    .into_iter()
                    .map(|(name, value)| (format!("{}{name}", task.prefix), value));
                making.record.metrics.extend(named);
            }
            for (name, pattern) in patterns {
                let value = metrics::of_pattern(&pattern, &(output.clone() + &read("err")))
                    .map_err(|reason| format!("{}: {name}: {reason}", task.name))?;
                making.record.metrics.insert(name, value);
            }
        }
        Ok(())
    }
}

/// Waits until nobody else measures on a node: what is measured beside another measurement is neither's. How long that was.
fn wait_for_measurement(
    node: &mut dyn Node,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<Duration, Failed> {
    let began = Instant::now();
    let mut told = false;
    while let Some(held) = node.moment()?.measuring {
        let role = node.role();
        let minutes = MEASURING_PATIENCE.as_secs() / 60;
        if stop.load(Ordering::Relaxed) {
            return Err(Failed::Stopped);
        }
        if began.elapsed() > MEASURING_PATIENCE {
            return Err(Failed::Run(format!(
                "another taut still measures on node {role} after {minutes} minutes ({held})"
            )));
        }
        if !told {
            observer.note(&format!(
                "another taut measures on node {role} ({held}): waiting for it to end, {minutes} minutes at most"
            ));
            told = true;
        }
        std::thread::sleep(MEASUREMENT_POLL);
    }
    Ok(began.elapsed())
}

/// Checks that a node has room for a run.
pub(crate) fn enough_room(role: &str, moment: &Moment) -> Result<(), ExperimentError> {
    if moment.free_bytes >= LEAST_FREE_BYTES {
        return Ok(());
    }
    Err(ExperimentError::node(
        role,
        format!(
            "{} MiB are free where runs are, {} MiB are needed: make room there",
            moment.free_bytes >> 20,
            LEAST_FREE_BYTES >> 20
        ),
    ))
}

/// The record of a run that begins.
fn record_of(experiment: &Experiment, planned: &PlannedRun, attempt: u32) -> RunRecord {
    let variant = &experiment.variants[planned.variant];
    RunRecord {
        id: planned.id.clone(),
        variant: planned.variant + 1,
        repetition: planned.repetition,
        warm_up: planned.warm_up,
        loops: variant.loops.clone(),
        variables: variant.variables.clone(),
        started: now(),
        seconds: 0.0,
        attempt,
        failure: None,
        commands: Vec::new(),
        nodes: BTreeMap::new(),
        metrics: BTreeMap::new(),
        notes: Vec::new(),
        files: BTreeMap::new(),
    }
}

/// A run being made.
struct Making {
    folder: PathBuf,
    began: Instant,
    /// Time at which `plan.limit` is over, which counts from when the nodes are in their known state.
    deadline: Instant,
    wiring: Option<Wiring>,
    background: Vec<Running>,
    /// Tasks that have printed what metrics are made of, with their patterns.
    outputs: Vec<(Task, Vec<(String, String)>)>,
    /// Whether no core is to halt.
    awake: bool,
    record: RunRecord,
}

/// A command on a node.
struct Running {
    name: String,
    pid: u32,
    stdin: Option<ChildStdin>,
    end: Receiver<i32>,
    began: Instant,
    command: usize,
}

impl Running {
    /// Ends it: by closing its input, and by force if that does not help.
    fn stop(mut self, making: &mut Making) {
        drop(self.stdin.take());
        let code = self.end.recv_timeout(END_PATIENCE).unwrap_or_else(|_| {
            kill_group(self.pid);
            STOPPED
        });
        self.note_end(making, code);
    }

    fn note_end(&self, making: &mut Making, code: i32) {
        if let Some(record) = making.record.commands.get_mut(self.command) {
            record.exit_code = Some(code);
            record.seconds = self.began.elapsed().as_secs_f64();
        }
    }
}

/// Returns what a command said last, for a message.
fn last_line(making: &Making, name: &str) -> String {
    let read = |kind: &str| {
        let text =
            fs::read(making.folder.join("logs").join(format!("{name}.{kind}"))).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    };
    let errors = reason_of(&read("err"));
    if errors.is_empty() {
        reason_of(&read("out"))
    } else {
        errors
    }
}

/// The line of an output that says why a command failed: the first that says that it does, such as `error: ...`, behind which
/// many programs print how they are used; else the last.
fn reason_of(output: &str) -> String {
    let mut lines = output.trim().lines().map(str::trim);
    let says_so = |line: &&str| line.starts_with("error:") || line.starts_with("Error:");
    let last = lines.clone().next_back().unwrap_or_default();
    lines.find(says_so).unwrap_or(last).to_owned()
}

/// A value as people read it.
pub(crate) fn text_of(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), ToOwned::to_owned)
}

impl Experiment {
    /// The roles that are on this machine.
    fn local_roles(&self) -> Vec<&str> {
        let local = self
            .nodes
            .iter()
            .filter(|(_, role)| role.place == Place::Local);
        local.map(|(name, _)| name.as_str()).collect()
    }

    fn fill(&self, text: &toml::Spanned<String>, values: &Value) -> Result<String, Failed> {
        self.templates
            .fill(text.get_ref(), values)
            .map_err(|reason| Failed::Fatal(self.source.wrong(text.span(), reason)))
    }

    /// Returns whether no core is to halt in a run.
    pub(crate) fn keeps_awake(&self, values: &Value) -> Result<bool, ExperimentError> {
        let Some(awake) = &self.definition.awake else {
            return Ok(false);
        };
        let text = crate::measurement::text_of(awake);
        let filled = self.templates.fill(&text, values);
        let filled = filled.map_err(|reason| self.source.wrong(awake.span(), reason))?;
        // The templates write True and False.
        filled.to_lowercase().parse().map_err(|_| {
            let reason = format!("awake is `{filled}`: want true or false");
            self.source.wrong(awake.span(), reason)
        })
    }

    /// The files of a run, filled in.
    fn files(&self, values: &Value) -> Result<Vec<RunFile>, ExperimentError> {
        let mut files = Vec::new();
        for file in &self.definition.file {
            let text = match (&file.text, &file.from) {
                (Some(text), _) => text.get_ref().clone(),
                (None, Some(from)) => self.attachments.read(from.get_ref())?,
                (None, None) => continue,
            };
            let text = self.templates.fill(&text, values).map_err(|reason| {
                self.source
                    .wrong_somewhere(format!("file {}: {reason}", file.name))
            })?;
            files.push(RunFile {
                name: file.name.clone(),
                text,
            });
        }
        Ok(files)
    }

    /// Returns how long a run probably takes, where the traffic says so.
    pub fn expected(&self) -> Option<Duration> {
        let traffic = self.definition.traffic.as_ref()?;
        let seconds = match traffic.seconds.as_ref()?.get_ref() {
            toml::Value::Integer(seconds) => *seconds as f64,
            toml::Value::Float(seconds) => *seconds,
            toml::Value::String(text) => {
                let values = self.context(&self.variants[0], None, "v1-r1", 1);
                self.templates.fill(text, &values).ok()?.parse().ok()?
            }
            _ => return None,
        };
        (seconds >= 0.0).then(|| Duration::from_secs_f64(seconds.min(1e9) + 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_a_failure_is_the_line_that_says_so() {
        let usage = "error: unexpected argument '--sied' found\n\nUsage: taut generate\n\nFor more information, try '--help'.\n";
        assert_eq!(
            reason_of(usage),
            "error: unexpected argument '--sied' found"
        );
        assert_eq!(
            reason_of("1 %\n99 %\ntaut: no such port\n"),
            "taut: no such port"
        );
        assert_eq!(reason_of("\n"), "");
    }
}
