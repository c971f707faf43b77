//! The results folder of an experiment. A run's folder gets its final name when the run is complete. The index has one
//! line per complete run, so thousands of runs are listed without reading their folders.
//!
//! ```text
//! DIR/experiment.toml, files it names     the requested experiment
//! DIR/state.json                          progress, nodes, and version of taut
//! DIR/runs.jsonl                          one line per complete run: variables, metrics, checksum of its run.json
//! DIR/runs/v1-r1/run.json                 commands, exit codes, times, variables, checksums of all files
//! DIR/runs/v1-r1/logs/                    what each command printed
//! DIR/runs/v1-r1/ROLE/                    the run's folder on that node
//! DIR/failed/v1-r1-1/                     a run that failed, never counted
//! DIR/nodes/HASH.json                     facts about a node
//! ```

use crate::agent::{Facts, checksum, checksum_of};
use crate::changes::Changes;
use crate::clock::ClockRecord;
use crate::error::ExperimentError;
use crate::links::ProvenLink;
use crate::name::is_plain_name;
use crate::plan::{MOST_RUNS, PlannedRun};
use crate::variables::Values;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use taut_results::{
    Completion, InsidePath, NotInside, ResultsError, files_below, hex, write_json, write_whole,
};
use taut_sys::Locked;

/// Maximum size of a JSON record such as `run.json`, bytes.
const MOST_RECORD_BYTES: u64 = 64 << 20;
/// Maximum length of a line in the index of runs or in a list of checksums, bytes.
const MOST_LINE_BYTES: u64 = 4 << 20;
/// Maximum size of the index of runs or of a list of checksums, bytes.
pub(crate) const MOST_LIST_BYTES: u64 = 1 << 30;
/// Folder of the outputs and records of evaluation steps, in the results folder.
pub(crate) const EVALUATION: &str = "evaluation";
/// Names of files and folders that taut reserves in a results folder.
const OWN: [&str; 21] = [
    "experiment.toml",
    taut_results::COMPARISON_HEAD,
    "state.json",
    "runs.jsonl",
    "runs",
    "failed",
    "nodes",
    "published",
    "tables",
    "figures",
    "summary.json",
    "metrics.csv",
    "metrics.parquet",
    "report.html",
    "index.html",
    "setup.html",
    "SHA256SUMS",
    EVALUATION,
    "robustness.json",
    "robustness.csv",
    "robustness.md",
];

/// Folder with the published data, in results that replicate published results.
pub(crate) const PUBLISHED: &str = "published";

/// Contents of `state.json`, the state of an experiment in its results folder.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct State {
    /// Version of the results folder's layout.
    pub schema: u32,
    /// Title of the experiment, one line.
    pub title: String,
    /// Name of the experiment: the name of its file without the extension, or of the reference experiment.
    pub name: String,
    /// Version of taut that ran the experiment.
    pub taut_version: String,
    /// Commit of the sources of the taut that ran the experiment; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taut_commit: Option<String>,
    /// Time at which the experiment began, RFC 3339.
    pub started: String,
    /// Time at which the last execution of the experiment ended, RFC 3339; `None` before the first one has ended.
    pub ended: Option<String>,
    /// The command that repeats the experiment.
    pub command_line: String,
    /// State of the experiment: running, interrupted, incomplete or finished.
    #[serde(rename = "stage")]
    pub completion: Completion,
    /// Fingerprint of the plan; equal for equal files and seeds.
    pub fingerprint: String,
    /// Number of planned runs, including warm-up runs. It grows when `plan.until` adds runs.
    pub planned: usize,
    /// Number of complete runs.
    pub done: usize,
    /// Number of runs whose last attempt failed.
    pub failed: usize,
    /// Notes for the user, such as clocks that differ and repeated attempts.
    pub notes: Vec<String>,
    /// Name of the published results that the experiment replicates; `None` if it replicates none.
    pub replicates: Option<String>,
    /// Requested changes to the experiment file.
    #[serde(default)]
    pub changes: Changes,
    /// Details of the publication; `None` for results that were not published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<Publication>,
}

/// Details of the publication of results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Publication {
    /// Time at which the results were published, RFC 3339.
    pub at: String,
    /// True if some planned runs are missing.
    pub partial: bool,
    /// True if names and addresses were replaced by pseudonyms.
    pub pseudonyms: bool,
}

impl State {
    /// Version of the results folder's layout that this program reads and writes.
    pub const SCHEMA: u32 = 1;
}

/// Contents of `run.json`, the record of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunRecord {
    /// Name of the run.
    pub id: String,
    /// Number of the combination of loop variables, from 1.
    pub variant: usize,
    /// Number of the repetition, from 1.
    pub repetition: u32,
    /// True if the run is a warm-up and not counted.
    pub warm_up: bool,
    /// Values of the loop variables.
    pub loops: Values,
    /// Values of all variables of the run, with references to other variables replaced.
    pub variables: Values,
    /// Time at which the run began, RFC 3339.
    pub started: String,
    /// Duration of the run including its preparation, s.
    pub seconds: f64,
    /// Number of the attempt at this run, from 1.
    pub attempt: u32,
    /// Reason why the run failed; `None` for a complete run.
    pub failure: Option<String>,
    /// The commands of the run, in the order in which they started.
    pub commands: Vec<CommandRecord>,
    /// Name of the file with facts about the node of each role.
    pub nodes: BTreeMap<String, InsidePath>,
    /// Measured metrics, by name.
    pub metrics: BTreeMap<String, f64>,
    /// Names of the other programs that used the most processor time during the measurements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<String>,
    /// The cables that were tested successfully before the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<ProvenLink>,
    /// The clocks that were synchronised during the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clocks: Vec<ClockRecord>,
    /// Notes about the run for the user.
    pub notes: Vec<String>,
    /// SHA-256 of every file of the run except `run.json`.
    pub files: BTreeMap<InsidePath, String>,
}

/// A command of a run, as recorded in `run.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CommandRecord {
    /// Name of the command.
    pub name: String,
    /// Role of the node on which the command ran.
    pub node: String,
    /// Text passed to the shell on the node.
    pub script: String,
    /// Exit code of the command; for a background command, its exit code after the request to end. `None` if the record
    /// has no end of the command.
    pub exit_code: Option<i32>,
    /// Start of the command, seconds after the start of the run.
    pub begun_s: f64,
    /// Running time of the command, s.
    pub seconds: f64,
}

/// A line of the index of a results folder, which describes one complete run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct IndexedRun {
    /// Name of the run.
    pub id: String,
    /// Number of the combination of loop variables, from 1.
    pub variant: usize,
    /// Number of the repetition, from 1.
    pub repetition: u32,
    /// True if the run is a warm-up and not counted.
    pub warm_up: bool,
    /// Duration of the run, s.
    pub seconds: f64,
    /// Values of the loop variables.
    pub variables: Values,
    /// Measured metrics, by name.
    pub metrics: BTreeMap<String, f64>,
    /// Names of the other programs that used the most processor time during the measurements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<String>,
    /// SHA-256 of the run's `run.json`.
    pub checksum: String,
}

/// A results folder.
#[derive(Debug, Clone)]
pub struct Folder {
    dir: PathBuf,
}

impl Folder {
    /// Makes a results folder for a new experiment.
    ///
    /// # Errors
    /// The folder is not empty.
    pub fn create(dir: &Path) -> Result<Self, ExperimentError> {
        let taken = fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
        if taken {
            return Err(ExperimentError::results(
                dir,
                "this folder is not empty; choose another one with --out, or resume the experiment in it",
            ));
        }
        fs::create_dir_all(dir.join("runs")).map_err(ResultsError::io(dir))?;
        Ok(Self {
            dir: dir.to_owned(),
        })
    }

    /// Opens the results folder of an experiment.
    ///
    /// # Errors
    /// The folder contains no experiment.
    pub fn open(dir: &Path) -> Result<Self, ExperimentError> {
        if !dir.join("state.json").is_file() {
            return Err(ExperimentError::results(
                dir,
                "no experiment here (it would have a state.json); `taut experiment list` shows those there are",
            ));
        }
        Ok(Self {
            dir: dir.to_owned(),
        })
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of the experiment file in the folder.
    pub fn experiment_file(&self) -> PathBuf {
        self.dir.join("experiment.toml")
    }

    /// Reads `state.json` of the folder.
    ///
    /// # Errors
    /// The file is damaged, or has another version of the layout.
    pub fn state(&self) -> Result<State, ExperimentError> {
        let path = self.dir.join("state.json");
        let value: serde_json::Value = self.read_json(&InsidePath::new("state.json")?)?;
        let schema = value["schema"].as_u64().unwrap_or(0);
        if schema != u64::from(State::SCHEMA) {
            return Err(ExperimentError::results(
                path,
                format!(
                    "layout {schema}, this taut reads {}; use the taut that wrote it",
                    State::SCHEMA
                ),
            ));
        }
        let state: State = serde_json::from_value(value).map_err(|source| ResultsError::Json {
            path: path.clone(),
            source,
        })?;
        let lines = [&state.title, &state.name, &state.started];
        if lines.iter().any(|line| line.contains(char::is_control)) {
            return Err(ExperimentError::results(
                path,
                "damaged: title, name and time are one line each",
            ));
        }
        Ok(state)
    }

    /// Reads a JSON record in this folder.
    fn read_json<T: DeserializeOwned>(&self, name: &InsidePath) -> Result<T, ExperimentError> {
        let path = name.in_folder(&self.dir);
        let bytes = name
            .read(&self.dir, MOST_RECORD_BYTES)
            .map_err(ExperimentError::io(&path))?;
        Ok(serde_json::from_slice(&bytes).map_err(|source| ResultsError::Json { path, source })?)
    }

    /// Replaces the contents of `state.json`.
    pub(crate) fn write_state(&self, state: &State) -> Result<(), ExperimentError> {
        Ok(write_json(&self.dir.join("state.json"), state)?)
    }

    /// Returns the complete runs, in the order in which they were completed. A complete run that is missing in the
    /// index, because a process died before it could add the run, is added by this call.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn index(&self) -> Result<Vec<IndexedRun>, ExperimentError> {
        let path = self.dir.join("runs.jsonl");
        let mut runs = Vec::new();
        let file = match InsidePath::new("runs.jsonl")?.open(&self.dir) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(runs),
            Err(e) => return Err(ExperimentError::io(path)(e)),
        };
        let mut ids = BTreeSet::new();
        each_line(&path, file, |number, line| {
            let damaged = |why: &dyn std::fmt::Display| {
                ExperimentError::results(
                    &path,
                    format!(
                        "line {number} is damaged ({why}); `taut experiment resume` rebuilds the index"
                    ),
                )
            };
            let run: IndexedRun = serde_json::from_slice(line).map_err(|e| damaged(&e))?;
            run_folder(&run.id).map_err(|_| damaged(&"no run has such a name"))?;
            if !ids.insert(run.id.clone()) {
                return Err(damaged(&"duplicate run"));
            }
            if runs.len() == MOST_RUNS {
                return Err(damaged(&format_args!(
                    "there are more than {MOST_RUNS} runs"
                )));
            }
            runs.push(run);
            Ok(())
        })?;
        Ok(runs)
    }

    /// Rebuilds the index from the folders of the runs; the files of each run are compared with its checksums.
    pub(crate) fn rebuild_index(&self) -> Result<Vec<IndexedRun>, ExperimentError> {
        let entered = self.index().unwrap_or_default();
        let known: BTreeMap<&str, &IndexedRun> =
            entered.iter().map(|run| (run.id.as_str(), run)).collect();
        let mut runs = Vec::new();
        let runs_dir = self.dir.join("runs");
        for entry in fs::read_dir(&runs_dir)
            .map_err(ExperimentError::io(&runs_dir))?
            .flatten()
        {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".partial") {
                continue;
            }
            let path = entry.path().join("run.json");
            let sum = run_folder(&name)
                .map_err(|_| {
                    ExperimentError::results(
                        entry.path(),
                        "no run has such a name: move it elsewhere",
                    )
                })?
                .join(&InsidePath::new("run.json")?)?
                .open(&self.dir)
                .and_then(checksum_of)
                .map_err(ExperimentError::io(&path))?;
            match known.get(name.as_str()) {
                Some(run) if run.checksum == sum => runs.push((*run).clone()),
                _ => {
                    runs.push(Self::entry(&self.run(&name)?, sum));
                }
            }
        }
        let places: BTreeMap<&str, usize> = entered
            .iter()
            .enumerate()
            .map(|(place, run)| (run.id.as_str(), place))
            .collect();
        let place = |run: &IndexedRun| places.get(run.id.as_str()).copied().unwrap_or(usize::MAX);
        runs.sort_by_cached_key(|run| (place(run), run.id.clone()));
        let mut text = Vec::new();
        for run in &runs {
            serde_json::to_writer(&mut text, run)
                .map_err(|e| ExperimentError::results(&self.dir, e.to_string()))?;
            text.push(b'\n');
        }
        write_whole(&self.dir.join("runs.jsonl"), &text)?;
        Ok(runs)
    }

    pub(crate) fn entry(record: &RunRecord, checksum: String) -> IndexedRun {
        IndexedRun {
            id: record.id.clone(),
            variant: record.variant,
            repetition: record.repetition,
            warm_up: record.warm_up,
            seconds: record.seconds,
            variables: record.loops.clone(),
            metrics: record.metrics.clone(),
            programs: record.programs.clone(),
            checksum,
        }
    }

    /// Returns the temporary folder in which a run is made until it is complete.
    pub(crate) fn partial(&self, id: &str) -> Result<PathBuf, ExperimentError> {
        let path = self.dir.join("runs").join(format!("{id}.partial"));
        match fs::remove_dir_all(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(ExperimentError::io(path)(e));
            }
            _ => fs::create_dir_all(path.join("logs")).map_err(ExperimentError::io(&path))?,
        }
        Ok(path)
    }

    /// Completes a run: writes the checksums into `run.json`, then renames the run's folder. The index is updated after
    /// that.
    pub(crate) fn finish(
        &self,
        partial: &Path,
        mut record: RunRecord,
    ) -> Result<IndexedRun, ExperimentError> {
        add_checksums(partial, &mut record)?;
        let path = partial.join("run.json");
        write_json(&path, &record)?;
        let sum = checksum(&path).map_err(ExperimentError::io(&path))?;
        let whole = self.dir.join("runs").join(&record.id);
        fs::rename(partial, &whole).map_err(ExperimentError::io(whole))?;
        Ok(Self::entry(&record, sum))
    }

    /// Adds to the index a run that another process has completed, and returns the new line of the index.
    pub(crate) fn enter(&self, id: &str) -> Result<IndexedRun, ExperimentError> {
        let path = self.run_folder(id).join("run.json");
        let sum = checksum(&path).map_err(ExperimentError::io(&path))?;
        let entry = Self::entry(&self.run(id)?, sum);
        self.append(&entry)?;
        Ok(entry)
    }

    /// Adds a complete run to the index.
    pub(crate) fn append(&self, entry: &IndexedRun) -> Result<(), ExperimentError> {
        let mut line = serde_json::to_vec(entry)
            .map_err(|e| ExperimentError::results(&self.dir, e.to_string()))?;
        line.push(b'\n');
        let path = self.dir.join("runs.jsonl");
        fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(&line))
            .map_err(ExperimentError::io(path))
    }

    /// Locks the folder, so that no other process makes runs in it until the lock is dropped. Returns `None` if the
    /// file system does not support locks, and an error if another process has the lock.
    pub(crate) fn claim(&self) -> Result<Option<Locked>, ExperimentError> {
        let file = fs::File::open(&self.dir).map_err(ExperimentError::io(&self.dir))?;
        match Locked::exclusive(file) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(ExperimentError::results(
                &self.dir,
                "another taut experiment writes runs into this folder: wait for it to end",
            )),
            // Some file systems do not support locks.
            locked => Ok(locked.ok()),
        }
    }

    /// Moves the folder of a failed run to `failed/`.
    pub(crate) fn put_aside(
        &self,
        partial: &Path,
        mut record: RunRecord,
    ) -> Result<(), ExperimentError> {
        add_checksums(partial, &mut record)?;
        write_json(&partial.join("run.json"), &record)?;
        let failed = self.dir.join("failed");
        fs::create_dir_all(&failed).map_err(ExperimentError::io(&failed))?;
        let mut number = 1;
        let free = loop {
            let path = failed.join(format!("{}-{number}", record.id));
            if !path.exists() {
                break path;
            }
            number += 1;
        };
        fs::rename(partial, &free).map_err(ExperimentError::io(free))
    }

    /// Reads the records of all failed runs.
    ///
    /// # Errors
    /// A record is damaged.
    pub(crate) fn failures(&self) -> Result<Vec<RunRecord>, ExperimentError> {
        let files = self.files(&InsidePath::new("failed")?)?;
        let is_record = |name: &&InsidePath| {
            let parts: Vec<&str> = name.as_str().split('/').collect();
            matches!(parts[..], [_, _, "run.json"])
        };
        let records = files.iter().filter(is_record);
        records.map(|name| self.read_json(name)).collect()
    }

    /// Returns the identifier of the failed run that began last, and why it failed.
    ///
    /// # Errors
    /// A record is damaged.
    pub fn last_failure(&self) -> Result<Option<(String, String)>, ExperimentError> {
        let last = self
            .failures()?
            .into_iter()
            .max_by(|a, b| a.started.cmp(&b.started));
        Ok(last.and_then(|record| Some((record.id, record.failure?))))
    }

    /// Reads a complete run's record.
    ///
    /// # Errors
    /// The record does not exist or is damaged.
    pub fn run(&self, id: &str) -> Result<RunRecord, ExperimentError> {
        let name = run_folder(id)?.join(&InsidePath::new("run.json")?)?;
        let record: RunRecord = self.read_json(&name)?;
        let wrong = |reason: &str| Err(ExperimentError::results(name.in_folder(&self.dir), reason));
        if record.id != id {
            return wrong("damaged: this is the record of another run");
        }
        if !record.nodes.keys().all(|role| is_plain_name(role)) {
            return wrong("damaged: invalid name of a node");
        }
        Ok(record)
    }

    /// Returns the folder of a complete run.
    pub fn run_folder(&self, id: &str) -> PathBuf {
        self.dir.join("runs").join(id)
    }

    /// Returns a sentence for each file of the run that has changed since the run was completed.
    ///
    /// # Errors
    /// The run's record cannot be read.
    pub fn damaged(&self, run: &IndexedRun) -> Result<Vec<String>, ExperimentError> {
        let changed = |name: &InsidePath, expected: &str| {
            let path = name.in_folder(&self.dir);
            match name.open(&self.dir).and_then(checksum_of) {
                Ok(sum) if sum == expected => None,
                Ok(_) => Some(format!("{}: changed since the run", path.display())),
                Err(e) => Some(format!("{}: {e}", path.display())),
            }
        };
        let folder = run_folder(&run.id)?;
        let own = folder.join(&InsidePath::new("run.json")?)?;
        let record = own
            .read(&self.dir, MOST_RECORD_BYTES)
            .map_err(ExperimentError::io(own.in_folder(&self.dir)))?;
        if hex(&Sha256::digest(&record)) != run.checksum {
            let path = own.in_folder(&self.dir);
            return Ok(vec![format!("{}: changed since the run", path.display())]);
        }
        let mut damaged = Vec::new();
        for (name, expected) in &self.run(&run.id)?.files {
            damaged.extend(changed(&folder.join(name)?, expected));
        }
        Ok(damaged)
    }

    /// Removes the folders of interrupted and failed runs, and returns the number of removed folders.
    ///
    /// # Errors
    /// A folder cannot be removed, or the experiment is running.
    pub fn clean(&self) -> Result<usize, ExperimentError> {
        // A link is not followed, because its target does not belong to the experiment.
        let is_own = |name: &str| InsidePath::new(name).is_ok_and(|it| it.is_folder(&self.dir));
        let below = |name: &str| -> Vec<PathBuf> {
            if !is_own(name) {
                return Vec::new();
            }
            let entries = fs::read_dir(self.dir.join(name))
                .into_iter()
                .flatten()
                .flatten();
            entries.map(|entry| entry.path()).collect()
        };
        let partial = |path: &PathBuf| path.extension().is_some_and(|end| end == "partial");
        let left: Vec<PathBuf> = below("runs")
            .into_iter()
            .filter(partial)
            .chain(below("failed"))
            .collect();
        for path in &left {
            fs::remove_dir_all(path).map_err(ExperimentError::io(path))?;
        }
        let _ = fs::remove_dir(self.dir.join("failed"));
        Ok(left.len())
    }

    /// Removes the results folder if no run was made in it.
    pub fn forget_if_empty(&self) {
        let empty = |name: &str| {
            fs::read_dir(self.dir.join(name)).map_or(true, |mut entries| entries.next().is_none())
        };
        if empty("runs") && empty("failed") {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }

    /// Stores facts about a node, and returns the name of the file.
    pub(crate) fn keep_facts(&self, facts: &Facts) -> Result<InsidePath, ExperimentError> {
        let text = serde_json::to_vec(facts).unwrap_or_default();
        let name = format!("{}.json", hex(&Sha256::digest(&text)[..8]));
        let folder = self.dir.join("nodes");
        let path = folder.join(&name);
        // Concurrent runs store the same facts, and must not use the same temporary name.
        static TURN: Mutex<()> = Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        if !path.exists() {
            fs::create_dir_all(&folder).map_err(ExperimentError::io(&folder))?;
            write_json(&path, facts)?;
        }
        Ok(InsidePath::new(&name)?)
    }

    /// Reads the facts about a node from the file `name`, as listed in the record of a run.
    ///
    /// # Errors
    /// The facts do not exist or are damaged.
    pub fn facts(&self, name: &InsidePath) -> Result<Facts, ExperimentError> {
        self.facts_at(&InsidePath::new("nodes")?.join(name)?)
    }

    /// Reads facts about a node from the file with the given name in the results folder.
    pub(crate) fn facts_at(&self, name: &InsidePath) -> Result<Facts, ExperimentError> {
        self.read_json(name)
    }

    /// Returns the names of the files with facts about nodes.
    pub(crate) fn all_facts(&self) -> Result<Vec<InsidePath>, ExperimentError> {
        self.files(&InsidePath::new("nodes")?)
    }

    /// Returns the names of all files in a folder and below, relative to the results folder.
    pub(crate) fn files(&self, below: &InsidePath) -> Result<Vec<InsidePath>, ExperimentError> {
        let path = below.in_folder(&self.dir);
        below.files(&self.dir).map_err(ExperimentError::io(path))
    }

    /// Makes a folder with the given name in the results folder, for files derived from the runs.
    pub(crate) fn made(&self, name: &str) -> Result<PathBuf, ExperimentError> {
        InsidePath::new(name)?
            .make_folder(&self.dir)
            .map_err(ExperimentError::io(self.dir.join(name)))
    }
}

/// A results folder that [`list`] found.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Found {
    /// Path of the folder.
    pub folder: PathBuf,
    /// State of the experiment whose results the folder contains.
    pub state: State,
}

/// Returns the experiments in a folder, ordered by the time at which they began.
///
/// # Errors
/// The folder cannot be read.
pub fn list(results: &Path) -> Result<Vec<Found>, ExperimentError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(results)
        .map_err(ExperimentError::io(results))?
        .flatten()
    {
        let path = entry.path();
        // Folders of other measurements have no state.json.
        if let Ok(folder) = Folder::open(&path)
            && let Ok(state) = folder.state()
        {
            found.push(Found {
                folder: path,
                state,
            });
        }
    }
    found.sort_by(|a, b| (&a.state.started, &a.folder).cmp(&(&b.state.started, &b.folder)));
    Ok(found)
}

/// Adds the checksums of all files in a run's folder to the run's record. A file with an unprintable name gets a note
/// instead.
fn add_checksums(folder: &Path, record: &mut RunRecord) -> Result<(), ExperimentError> {
    record.files.clear();
    for file in files_below(folder).map_err(ExperimentError::io(folder))? {
        let path = folder.join(&file);
        match InsidePath::of(&file) {
            Ok(name) if name.as_str() == "run.json" => {}
            Ok(name) => {
                let sum = checksum(&path).map_err(ExperimentError::io(&path))?;
                record.files.insert(name, sum);
            }
            Err(e) => record
                .notes
                .push(format!("a file has no checksum and is not published: {e}")),
        }
    }
    Ok(())
}

/// Returns the folder of a complete run, relative to the results folder. The name must have the form that plans use:
/// `v2-r1`, `v2-w1`.
pub(crate) fn run_folder(id: &str) -> Result<InsidePath, NotInside> {
    if PlannedRun::of_id(id).is_none_or(|run| run.id != id) {
        return Err(NotInside::of(id));
    }
    InsidePath::new(&format!("runs/{id}"))
}

/// Returns whether a name is reserved in results folders; files that an experiment names must not have such a name.
pub(crate) fn is_own(name: &InsidePath) -> bool {
    let first = name.as_str().split('/').next().unwrap_or_default();
    OWN.contains(&first)
}

/// Returns facts about the node of each role, from the latest run that recorded them.
pub(crate) fn nodes_of(folder: &Folder) -> BTreeMap<String, Facts> {
    let Some(run) = folder.index().ok().and_then(|mut runs| runs.pop()) else {
        return BTreeMap::new();
    };
    let Ok(record) = folder.run(&run.id) else {
        return BTreeMap::new();
    };
    record
        .nodes
        .iter()
        .filter_map(|(role, name)| Some((role.clone(), folder.facts(name).ok()?)))
        .collect()
}

/// Calls `take` with each line of a file: its number, from 1, and its bytes.
///
/// # Errors
/// `take` returns an error; or a line or the file is too long, or the file cannot be read.
pub(crate) fn each_line(
    path: &Path,
    file: fs::File,
    mut take: impl FnMut(u64, &[u8]) -> Result<(), ExperimentError>,
) -> Result<(), ExperimentError> {
    let mut lines = BufReader::new(file.take(MOST_LIST_BYTES + 1));
    let mut line = Vec::new();
    let mut all = 0;
    for number in 1.. {
        line.clear();
        let read = (&mut lines)
            .take(MOST_LINE_BYTES + 1)
            .read_until(b'\n', &mut line)
            .map_err(ExperimentError::io(path))? as u64;
        all += read;
        if read == 0 {
            break;
        }
        if read > MOST_LINE_BYTES || all > MOST_LIST_BYTES {
            return Err(ExperimentError::results(
                path,
                format!(
                    "line {number}: larger than the maximum of {MOST_LINE_BYTES} bytes per line, {MOST_LIST_BYTES} in total"
                ),
            ));
        }
        take(number, line.strip_suffix(b"\n").unwrap_or(&line))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn concurrently_stored_machine_facts_are_complete() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = Folder::create(&scratch.path().join("out")).unwrap();
        let mut facts = crate::agent::facts();
        // The facts are large, so that writes overlap.
        facts.machine = serde_json::Value::String("x".repeat(1 << 20));
        let all = std::thread::scope(|scope| {
            let keep = || folder.keep_facts(&facts).unwrap();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(keep)).collect();
            let kept: Vec<_> = threads.into_iter().map(|it| it.join().unwrap()).collect();
            kept
        });
        for name in &all {
            assert_eq!(folder.facts(name).unwrap().machine, facts.machine);
        }
    }
}
