//! Runs in Slurm: an array of exclusive allocations, with one element per run in the order of the plan. Only the
//! process that submits the array writes the index.

use super::one_run::record_of;
use super::{Driver, END_PATIENCE, Request};
use crate::error::ExperimentError;
use crate::experiment::Experiment;
use crate::folder::{Folder, State};
use crate::node::address::NodeAddress;
use crate::node::slurm::{TIME_LIMIT, asked, constraint};
use crate::plan::PlannedRun;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taut_bench::benchmark::Observer;
use taut_results::{LeftOut, write_whole};

/// Slurm's names of the states in which a job has ended.
const OVER: [&str; 9] = [
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
];
/// State that is assumed for a job that Slurm no longer lists.
const FORGOTTEN: &str = "forgotten";
/// Initial and maximum interval between two queries to Slurm.
const POLL: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(5));
/// Time of a run in addition to its commands: for setup, file transfers, and ending its steps.
const AROUND: Duration = Duration::from_secs(60);
/// Time after which an unchanged status of the jobs is reported to the user again.
const TELL: Duration = Duration::from_secs(30);
/// Timeout for cancelled jobs to exit.
const CANCEL: Duration = Duration::from_secs(90);

impl Experiment {
    /// Returns true if Slurm allocates all nodes of the experiment.
    pub(crate) fn is_on_slurm(&self) -> bool {
        self.nodes
            .values()
            .all(|role| role.address == NodeAddress::Slurm)
    }
}

/// Makes one run inside an allocation; returns the reason if it failed.
///
/// # Errors
/// Results cannot be written, or the allocation does not fit the experiment.
pub fn run_allocated(
    request: &Request,
    id: &str,
    stop: &AtomicBool,
) -> Result<Option<String>, ExperimentError> {
    let planned = PlannedRun::of_id(id)
        .filter(|run| run.variant < request.experiment.variants.len())
        .ok_or_else(|| ExperimentError::results(request.folder.path(), format!("no run `{id}`")))?;
    let slurm = Slurm::of(&request.folder)?;
    let made = Driver::of_allocation(request, &mut Quiet, stop)
        .and_then(|mut driver| driver.attempts(&planned));
    let failure = match &made {
        Ok(failure) => failure.clone(),
        Err(e) => Some(e.to_string()),
    };
    if let Some(reason) = failure {
        write_whole(&slurm.failure(id), reason.as_bytes())?;
    }
    made
}

/// An observer that ignores all reports of progress.
struct Quiet;

impl Observer for Quiet {
    fn progress(&mut self, _: Duration, _: Duration, _: &str) {}
    fn left_out(&mut self, _: &LeftOut) {}
    fn note(&mut self, _: &str) {}
}

/// The folder `DIR/slurm`, which contains the files of a submission until it has ended.
struct Slurm {
    dir: PathBuf,
    folder: PathBuf,
}

/// A job array that was submitted to Slurm.
struct Submitted {
    job: String,
    runs: Vec<String>,
}

/// The jobs of an array while this process waits for their end.
struct Jobs<'a> {
    /// Runs whose jobs have not ended, by index in the array.
    open: BTreeMap<usize, &'a String>,
    /// Indices of the jobs that Slurm has listed as ended although they have not reported.
    over: Vec<usize>,
    /// Runs whose jobs exited without a report.
    died: Vec<String>,
}

impl Slurm {
    fn of(folder: &Folder) -> Result<Self, ExperimentError> {
        // Jobs start in another directory, so their paths must be absolute.
        let dir = fs::canonicalize(folder.path()).map_err(ExperimentError::io(folder.path()))?;
        Ok(Self {
            folder: dir.join("slurm"),
            dir,
        })
    }

    /// Returns the path of the file into which the job of a run writes the reason of its failure.
    fn failure(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.failed"))
    }

    /// Returns the job array that an earlier call submitted without waiting for its end; `None` if there is none.
    fn left(&self) -> Option<Submitted> {
        let job = fs::read_to_string(self.folder.join("job")).ok()?;
        let runs = fs::read_to_string(self.folder.join("runs")).ok()?;
        Some(Submitted {
            job: job.trim().to_owned(),
            runs: runs.lines().map(ToOwned::to_owned).collect(),
        })
    }

    fn submit(
        &self,
        experiment: &Experiment,
        program: &Path,
        runs: &[String],
    ) -> Result<Submitted, ExperimentError> {
        fs::create_dir_all(&self.folder).map_err(ExperimentError::io(&self.folder))?;
        // The jobs run this version, from the shared file system.
        let own = self.folder.join("taut");
        let partial = self.folder.join("taut.partial");
        fs::copy(program, &partial)
            .and_then(|_| fs::rename(&partial, &own))
            .map_err(ExperimentError::io(&own))?;
        write_whole(
            &self.folder.join("runs"),
            (runs.join("\n") + "\n").as_bytes(),
        )?;
        let script = format!(
            "#!/bin/sh\nrun=$(sed -n \"$((SLURM_ARRAY_TASK_ID + 1))p\" {})\nexec {} node run --folder {} --run \"$run\"\n",
            quote(&self.folder.join("runs")),
            quote(&own),
            quote(&self.dir),
        );
        let path = self.folder.join("job.sh");
        write_whole(&path, script.as_bytes())?;
        let log = self.folder.join("%A_%a.log").display().to_string();
        let own = [
            "--parsable".to_owned(),
            format!("--array=0-{}", runs.len() - 1),
            format!("--output={log}"),
            path.display().to_string(),
        ];
        let printed = ask_for(experiment, own)?;
        // Slurm prints the job number, followed by a semicolon and the cluster.
        let job = printed.trim().split(';').next().unwrap_or("").to_owned();
        write_whole(&self.folder.join("job"), job.as_bytes())?;
        Ok(Submitted {
            job,
            runs: runs.to_vec(),
        })
    }

    /// Returns Slurm's state and reason of each job in an array, by the job's index; `None` if Slurm does not reply.
    fn states(&self, submitted: &Submitted) -> Option<BTreeMap<usize, (String, String)>> {
        let format = "--format=%K|%T|%r";
        let asked = asked(
            "squeue",
            &[
                "--noheader",
                "--array",
                "--states=all",
                format,
                "--jobs",
                &submitted.job,
            ],
        );
        let forgotten = || (FORGOTTEN.to_owned(), String::new());
        let mut states: BTreeMap<_, _> = (0..submitted.runs.len())
            .map(|index| (index, forgotten()))
            .collect();
        match asked {
            Ok(lines) => {
                for line in lines.lines() {
                    let mut words = line.split('|').map(str::trim);
                    let (Some(index), Some(state), Some(reason)) =
                        (words.next(), words.next(), words.next())
                    else {
                        continue;
                    };
                    if let Ok(index) = index.parse() {
                        states.insert(index, (state.to_owned(), reason.to_owned()));
                    }
                }
                Some(states)
            }
            Err(reason) if reason.contains("Invalid job id") => Some(states),
            Err(_) => None,
        }
    }

    /// Cancels a job array, and waits until none of its jobs runs.
    fn cancel(&self, submitted: &Submitted) {
        let _ = asked("scancel", &[&submitted.job]);
        let deadline = Instant::now() + CANCEL;
        while Instant::now() < deadline {
            let running = asked("squeue", &["--noheader", "--jobs", &submitted.job]);
            if running.map_or_else(
                |e| e.contains("Invalid job id"),
                |left| left.trim().is_empty(),
            ) {
                return;
            }
            std::thread::sleep(POLL.0);
        }
    }

    /// Returns the reason why a job of an array ended without a report.
    fn why(&self, submitted: &Submitted, index: usize, state: &str, reason: &str) -> String {
        let log = self.folder.join(format!("{}_{index}.log", submitted.job));
        let said = fs::read_to_string(&log);
        let last = said
            .as_deref()
            .unwrap_or("")
            .trim()
            .lines()
            .last()
            .unwrap_or("");
        match state {
            "TIMEOUT" | "DEADLINE" => TIME_LIMIT.to_owned(),
            "NODE_FAIL" | "BOOT_FAIL" => {
                "node failure: a machine went away, or did not come back from its boot within Slurm's ResumeTimeout; `scontrol show node` says more".to_owned()
            }
            "CANCELLED" => format!("its job was cancelled ({reason})"),
            "OUT_OF_MEMORY" => "its job ran out of memory".to_owned(),
            _ if said.is_err() => format!(
                "its machine has written nothing into {}: results must be on a file system that all machines share (--out)",
                self.dir.display()
            ),
            _ if last.is_empty() => format!("its job ended with the state {state} ({reason})"),
            _ => format!("its job ended with the state {state}: {last}"),
        }
    }

    /// Removes the files of the submission after its jobs have ended, except for logs.
    fn forget(&self) {
        for name in ["job", "runs", "job.sh", "taut"] {
            let _ = fs::remove_file(self.folder.join(name));
        }
        for log in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            // A run without output leaves an empty log.
            if log.metadata().is_ok_and(|about| about.len() == 0) {
                let _ = fs::remove_file(log.path());
            }
        }
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Submits a request for the machines of a run with `sbatch`, with the caller's options and script. Returns the output
/// of `sbatch`.
fn ask_for(
    experiment: &Experiment,
    own: impl IntoIterator<Item = String>,
) -> Result<String, ExperimentError> {
    let attempts = experiment.definition.plan.attempts;
    let longest = (experiment.limit + END_PATIENCE + AROUND) * attempts;
    let minutes = longest.as_secs().div_ceil(60);
    let count = experiment.nodes.len();
    let mut arguments = vec![
        "--exclusive".to_owned(),
        "--mem=0".to_owned(),
        "--no-requeue".to_owned(),
        format!("--nodes={count}"),
        "--ntasks-per-node=1".to_owned(),
        format!("--time={minutes}"),
        "--job-name=taut".to_owned(),
    ];
    let constraint = wanted(experiment);
    arguments.extend(constraint.iter().map(|it| format!("--constraint={it}")));
    arguments.extend(own);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    asked("sbatch", &arguments).map_err(|reason| {
        let no_such = reason.contains("feature") || reason.contains("not available");
        let reason = match constraint.filter(|_| no_such) {
            Some(constraint) => format!(
                "{reason}: {count} machines with `{constraint}`; `sinfo -o '%N %f'` lists the features there are"
            ),
            None => reason,
        };
        ExperimentError::node("slurm", reason)
    })
}

/// Returns the argument of `sbatch --constraint` that requests the features of the experiment's nodes; `None` if no
/// node needs any.
fn wanted(experiment: &Experiment) -> Option<String> {
    let roles = experiment.nodes.values();
    let wanted: Vec<Option<&str>> = roles
        .map(|role| role.definition.features.as_deref())
        .collect();
    constraint(&wanted)
}

/// Queries whether Slurm would accept a run of the experiment, without submitting the run. Returns a description of the
/// machines that Slurm would allocate.
pub(crate) fn would_take(experiment: &Experiment) -> Result<String, ExperimentError> {
    ask_for(
        experiment,
        ["--test-only", "--output=/dev/null", "--wrap=true"].map(ToOwned::to_owned),
    )?;
    let with = wanted(experiment).map_or_else(String::new, |it| format!(" with `{it}`"));
    Ok(format!(
        "slurm: it has {} machines{with} for a run",
        experiment.nodes.len()
    ))
}

/// Returns Slurm's maximum number of elements in an array.
fn largest_array() -> usize {
    asked("scontrol", &["show", "config"])
        .ok()
        .and_then(|config| {
            let line = config
                .lines()
                .find(|line| line.starts_with("MaxArraySize"))?
                .to_owned();
            line.split('=').nth(1)?.trim().parse::<usize>().ok()
        })
        .filter(|largest| *largest > 1)
        .unwrap_or(1000)
        .min(1000)
}

fn quote(path: &Path) -> String {
    taut_host::ssh::quote(&path.display().to_string())
}

/// Describes the states of an array's jobs in a few words.
fn describe(states: Option<&BTreeMap<usize, (String, String)>>) -> String {
    let Some(states) = states else {
        return "Slurm does not answer".to_owned();
    };
    let count = |wanted: &str| states.values().filter(|(state, _)| state == wanted).count();
    let waiting = count("PENDING");
    let mut reasons = states.values().filter(|(state, _)| state == "PENDING");
    match (count("RUNNING"), reasons.next()) {
        (0, Some((_, reason))) => format!("{waiting} runs wait in Slurm's queue ({reason})"),
        (running, _) => format!("{running} runs at once, {waiting} wait"),
    }
}

impl Driver<'_> {
    /// Makes the runs in `missing` in allocations of Slurm.
    pub(super) fn on_slurm(
        &mut self,
        missing: &[&PlannedRun],
        state: &mut State,
    ) -> Result<(), ExperimentError> {
        let request = self.request;
        let slurm = Slurm::of(&request.folder)?;
        let begun = Instant::now();
        let mut watch = |driver: &mut Self, submitted: &Submitted| {
            let died = driver.watch(&slurm, submitted, state, begun);
            slurm.forget();
            died
        };
        if let Some(left) = slurm.left() {
            watch(self, &left)?;
        }
        let mut to_do: Vec<String> = missing.iter().map(|run| run.id.clone()).collect();
        for _ in 0..request.experiment.definition.plan.attempts {
            to_do.retain(|id| !self.done.iter().any(|run| run.id == *id));
            let mut again = Vec::new();
            for part in to_do.chunks(largest_array()) {
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let submitted = slurm.submit(&request.experiment, &request.program, part);
                let submitted = submitted.inspect_err(|_| slurm.forget())?;
                again.extend(watch(self, &submitted)?);
            }
            to_do = again;
        }
        Ok(())
    }

    /// Waits for the end of a job array, and adds its complete runs to the index. Returns the runs whose jobs exited
    /// without a report.
    fn watch(
        &mut self,
        slurm: &Slurm,
        submitted: &Submitted,
        state: &mut State,
        begun: Instant,
    ) -> Result<Vec<String>, ExperimentError> {
        let mut jobs = Jobs {
            open: submitted.runs.iter().enumerate().collect(),
            over: Vec::new(),
            died: Vec::new(),
        };
        let mut pause = POLL.0;
        let mut told: Option<(String, Instant)> = None;
        let before = self.done.len();
        loop {
            let stopped = self.stop.load(Ordering::Relaxed);
            if stopped {
                slurm.cancel(submitted);
            }
            let states = slurm.states(submitted);
            let left = jobs.open.len();
            self.close_ended(slurm, submitted, states.as_ref(), &mut jobs, stopped)?;
            if jobs.open.len() < left {
                pause = POLL.0;
                state.done = self.done.len();
                state.failed = self.failed.len();
                self.request.folder.write_state(state)?;
            }
            if stopped {
                for id in jobs.open.values() {
                    let _ = fs::remove_dir_all(self.request.folder.partial(id)?);
                }
                return Ok(jobs.died);
            }
            if jobs.open.is_empty() {
                return Ok(jobs.died);
            }
            let what = describe(states.as_ref());
            if told
                .as_ref()
                .is_none_or(|(last, at)| *last != what || at.elapsed() > TELL)
            {
                self.tell_of_array(&what, before, jobs.open.len(), begun);
                told = Some((what, Instant::now()));
            }
            let until = Instant::now() + pause;
            while Instant::now() < until && !self.stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
            }
            pause = (pause * 3 / 2).min(POLL.1);
        }
    }

    /// Closes the jobs that have ended. A job without a report counts as dead when a second query lists it as ended,
    /// because its last writes may be visible late.
    fn close_ended(
        &mut self,
        slurm: &Slurm,
        submitted: &Submitted,
        states: Option<&BTreeMap<usize, (String, String)>>,
        jobs: &mut Jobs<'_>,
        stopped: bool,
    ) -> Result<(), ExperimentError> {
        for (index, id) in jobs.open.clone() {
            if self.settled(slurm, id)? {
                jobs.open.remove(&index);
                continue;
            }
            let Some((state, reason)) = states.and_then(|states| states.get(&index)) else {
                continue;
            };
            if state != FORGOTTEN && !OVER.contains(&state.as_str()) {
                continue;
            }
            // The last writes of the job's machine may take a moment to become visible on this machine.
            if jobs.over.contains(&index) && !stopped {
                let reason = slurm.why(submitted, index, state, reason);
                self.died(id, reason)?;
                jobs.died.push(id.clone());
                jobs.open.remove(&index);
            } else {
                jobs.over.push(index);
            }
        }
        Ok(())
    }

    fn tell_of_array(&mut self, what: &str, before: usize, open: usize, begun: Instant) {
        let elapsed = begun.elapsed();
        let made = self.done.len() - before;
        let total = if made == 0 {
            self.request.experiment.limit * u32::try_from(open).unwrap_or(u32::MAX)
        } else {
            elapsed.mul_f64((made + open) as f64 / made as f64)
        };
        self.observer.progress(elapsed, total, what);
    }

    /// Returns true if a run has ended. A complete run is added to the index; the reason of a failed run is
    /// reported to the user.
    fn settled(&mut self, slurm: &Slurm, id: &str) -> Result<bool, ExperimentError> {
        let folder = &self.request.folder;
        if folder.run_folder(id).join("run.json").is_file() {
            if !self.done.iter().any(|run| run.id == id) {
                self.done.push(folder.enter(id)?);
            }
            self.failed.remove(id);
            return Ok(true);
        }
        let path = slurm.failure(id);
        let Ok(reason) = fs::read_to_string(&path) else {
            return Ok(false);
        };
        fs::remove_file(&path).map_err(ExperimentError::io(path))?;
        self.observer.note(&format!("{id}: {reason}"));
        self.failed.insert(id.to_owned());
        Ok(true)
    }

    /// Moves a run whose job exited without a report to `failed/`.
    fn died(&mut self, id: &str, reason: String) -> Result<(), ExperimentError> {
        self.observer.note(&format!("{id}: {reason}"));
        self.failed.insert(id.to_owned());
        let Some(planned) = PlannedRun::of_id(id) else {
            return Ok(());
        };
        let folder = &self.request.folder;
        let partial = folder.path().join("runs").join(format!("{id}.partial"));
        if !partial.is_dir() {
            folder.partial(id)?;
        }
        let mut record = record_of(&self.request.experiment, &planned, 1);
        record.failure = Some(reason);
        folder.put_aside(&partial, record)
    }
}
