//! The results folder of an experiment. A run's folder has its name only when the run is whole; the index holds
//! one line per whole run, so that thousands are listed at once.
//!
//! ```text
//! DIR/experiment.toml, files it names     what was asked for
//! DIR/state.json                          how far it is, on which nodes, by which version
//! DIR/runs.jsonl                          one line per whole run: variables, metrics, checksum of its run.json
//! DIR/runs/v1-r1/run.json                 commands, exit codes, times, variables, checksums of all files
//! DIR/runs/v1-r1/logs/                    what each command printed
//! DIR/runs/v1-r1/ROLE/                    the run's folder on that node
//! DIR/failed/v1-r1-1/                     a run that failed, never counted
//! DIR/nodes/HASH.json                     facts about a node
//! ```

use crate::agent::{Facts, checksum, files_below};
use crate::changes::Changes;
use crate::error::ExperimentError;
use crate::plan::hex;
use crate::variables::Values;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use taut_lab::results::{read_json, write_json, write_whole};

/// How far an experiment came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Under way, or ended without a word (killed, power lost).
    Running,
    /// Stopped by the user; whole runs are there, others are missing.
    Interrupted,
    /// Some runs failed.
    Incomplete,
    /// All that was planned is there.
    Finished,
}

/// `state.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    /// Layout of the folder.
    pub schema: u32,
    /// One line that names the experiment.
    pub title: String,
    /// The name it was asked for by.
    pub name: String,
    /// Version that ran it.
    pub taut_version: String,
    /// When it began, RFC 3339.
    pub started: String,
    /// When it last ended, RFC 3339.
    pub ended: Option<String>,
    /// The command that repeats it.
    pub command_line: String,
    /// How far it came.
    pub stage: Stage,
    /// Of the plan: the same file and seed have the same.
    pub fingerprint: String,
    /// Runs that are to be made, warm-up included; it grows where runs are added until a metric is known.
    pub planned: usize,
    /// Whole runs.
    pub done: usize,
    /// Runs that failed at their last attempt.
    pub failed: usize,
    /// What a reader should know: clocks that differ, repeated attempts.
    pub notes: Vec<String>,
    /// The published results that it replicates.
    pub replicates: Option<String>,
    /// What was asked for other than the file says.
    #[serde(default)]
    pub changes: Changes,
    /// How it was published; `None` for results as they were made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<Publication>,
}

/// How results were published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publication {
    /// When, RFC 3339.
    pub at: String,
    /// Runs are missing.
    pub partial: bool,
    /// Names and addresses were replaced.
    pub pseudonyms: bool,
}

impl State {
    /// The layout that this program reads and writes.
    pub const SCHEMA: u32 = 1;
}

/// `run.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunRecord {
    /// Its name.
    pub id: String,
    /// The combination, from 1.
    pub variant: usize,
    /// The repetition, from 1.
    pub repetition: u32,
    /// Not counted.
    pub warm_up: bool,
    /// The loop variables alone.
    pub loops: Values,
    /// All variables, filled in.
    pub variables: Values,
    /// When it began, RFC 3339.
    pub started: String,
    /// How long it took, set-up included.
    pub seconds: f64,
    /// Which attempt this was, from 1.
    pub attempt: u32,
    /// Why it failed; `None` for a whole run.
    pub failure: Option<String>,
    /// The commands in their order.
    pub commands: Vec<CommandRecord>,
    /// Name of the file with facts about each node, by role.
    pub nodes: BTreeMap<String, String>,
    /// What was measured.
    pub metrics: BTreeMap<String, f64>,
    /// What a reader should know.
    pub notes: Vec<String>,
    /// SHA-256 of every other file of the run.
    pub files: BTreeMap<String, String>,
}

/// A command of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CommandRecord {
    /// Its name.
    pub name: String,
    /// The role of its node.
    pub node: String,
    /// What the shell there was given.
    pub script: String,
    /// Its exit code; of one in the background, after it was told to end.
    pub exit_code: Option<i32>,
    /// When it began, s after the run did.
    pub begun_s: f64,
    /// How long it ran.
    pub seconds: f64,
}

/// A line of the index.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct IndexedRun {
    /// Its name.
    pub id: String,
    /// The combination, from 1.
    pub variant: usize,
    /// The repetition, from 1.
    pub repetition: u32,
    /// Not counted.
    pub warm_up: bool,
    /// How long it took.
    pub seconds: f64,
    /// The loop variables alone.
    pub variables: Values,
    /// What was measured.
    pub metrics: BTreeMap<String, f64>,
    /// SHA-256 of its `run.json`.
    pub checksum: String,
}

/// A results folder.
#[derive(Debug, Clone)]
pub struct Folder {
    dir: PathBuf,
}

impl Folder {
    /// Makes a folder for a new experiment.
    ///
    /// # Errors
    /// There is something in it already.
    pub fn create(dir: &Path) -> Result<Self, ExperimentError> {
        let taken = fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
        if taken {
            return Err(ExperimentError::results(
                dir,
                "there is something in this folder already; choose another one with --out, or resume what is there",
            ));
        }
        fs::create_dir_all(dir.join("runs")).map_err(ExperimentError::io(dir))?;
        Ok(Self {
            dir: dir.to_owned(),
        })
    }

    /// A folder that holds an experiment.
    ///
    /// # Errors
    /// There is none in it.
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

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The experiment file in it.
    pub fn experiment_file(&self) -> PathBuf {
        self.dir.join("experiment.toml")
    }

    /// Its `state.json`.
    ///
    /// # Errors
    /// It is damaged, or of another layout.
    pub fn state(&self) -> Result<State, ExperimentError> {
        let path = self.dir.join("state.json");
        let value: serde_json::Value = read_json(&path)?;
        match value["schema"].as_u64() {
            Some(schema) if schema == u64::from(State::SCHEMA) => Ok(read_json(&path)?),
            other => Err(ExperimentError::results(
                path,
                format!(
                    "layout {}, this taut reads {}; use the taut that wrote it",
                    other.unwrap_or(0),
                    State::SCHEMA
                ),
            )),
        }
    }

    /// Replaces `state.json`.
    pub(crate) fn write_state(&self, state: &State) -> Result<(), ExperimentError> {
        Ok(write_json(&self.dir.join("state.json"), state)?)
    }

    /// The whole runs, in the order in which they were made. A run that was whole when the process died before
    /// it could be entered is entered now.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn index(&self) -> Result<Vec<IndexedRun>, ExperimentError> {
        let path = self.dir.join("runs.jsonl");
        let mut runs = Vec::new();
        let file = match fs::File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(runs),
            Err(e) => return Err(ExperimentError::io(path)(e)),
        };
        for (number, line) in BufReader::new(file).lines().enumerate() {
            let line = line.map_err(ExperimentError::io(&path))?;
            match serde_json::from_str::<IndexedRun>(&line) {
                Ok(run) => runs.push(run),
                Err(e) => {
                    return Err(ExperimentError::results(
                        &path,
                        format!(
                            "line {} is damaged ({e}); `taut experiment resume` makes the index anew",
                            number + 1
                        ),
                    ));
                }
            }
        }
        Ok(runs)
    }

    /// Makes the index anew out of the runs' own files, in which each is checked against its checksums.
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
            let sum = checksum(&path).map_err(ExperimentError::io(&path))?;
            match known.get(name.as_str()) {
                Some(run) if run.checksum == sum => runs.push((*run).clone()),
                _ => {
                    let record: RunRecord = read_json(&path)?;
                    runs.push(Self::entry(&record, sum));
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
            checksum,
        }
    }

    /// The folder in which a run is made.
    pub(crate) fn partial(&self, id: &str) -> Result<PathBuf, ExperimentError> {
        let path = self.dir.join("runs").join(format!("{id}.partial"));
        match fs::remove_dir_all(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(ExperimentError::io(path)(e));
            }
            _ => fs::create_dir_all(path.join("logs")).map_err(ExperimentError::io(&path))?,
        }
        Ok(path)
    }

    /// Declares a run whole: checksums, `run.json`, its name, in this order. The index comes after that.
    pub(crate) fn finish(
        &self,
        partial: &Path,
        mut record: RunRecord,
    ) -> Result<IndexedRun, ExperimentError> {
        record.files = checksums(partial)?;
        let path = partial.join("run.json");
        write_json(&path, &record)?;
        let sum = checksum(&path).map_err(ExperimentError::io(&path))?;
        let whole = self.dir.join("runs").join(&record.id);
        fs::rename(partial, &whole).map_err(ExperimentError::io(whole))?;
        Ok(Self::entry(&record, sum))
    }

    /// Enters a run that was made whole by another process.
    pub(crate) fn enter(&self, id: &str) -> Result<IndexedRun, ExperimentError> {
        let path = self.run_folder(id).join("run.json");
        let sum = checksum(&path).map_err(ExperimentError::io(&path))?;
        let entry = Self::entry(&read_json(&path)?, sum);
        self.append(&entry)?;
        Ok(entry)
    }

    /// Adds a whole run to the index.
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

    /// Takes the folder for one process that makes runs, until the file is closed.
    pub(crate) fn claim(&self) -> Result<fs::File, ExperimentError> {
        let file = fs::File::open(&self.dir).map_err(ExperimentError::io(&self.dir))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Err(ExperimentError::results(
                &self.dir,
                "another taut experiment makes runs into this folder: wait for it to end",
            )),
            // Not every file system can.
            _ => Ok(file),
        }
    }

    /// Puts a run that failed aside.
    pub(crate) fn put_aside(
        &self,
        partial: &Path,
        mut record: RunRecord,
    ) -> Result<(), ExperimentError> {
        record.files = checksums(partial)?;
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

    /// Reads a whole run's record.
    ///
    /// # Errors
    /// It is not there or damaged.
    pub fn run(&self, id: &str) -> Result<RunRecord, ExperimentError> {
        Ok(read_json(&self.run_folder(id).join("run.json"))?)
    }

    /// The folder of a whole run.
    pub fn run_folder(&self, id: &str) -> PathBuf {
        self.dir.join("runs").join(id)
    }

    /// Files of a run that are not what they were when it was made: one sentence each.
    ///
    /// # Errors
    /// The run's record cannot be read.
    pub fn damaged(&self, run: &IndexedRun) -> Result<Vec<String>, ExperimentError> {
        let folder = self.run_folder(&run.id);
        let path = folder.join("run.json");
        if checksum(&path).map_err(ExperimentError::io(&path))? != run.checksum {
            return Ok(vec![format!("{}: changed since the run", path.display())]);
        }
        let record = self.run(&run.id)?;
        Ok(record
            .files
            .iter()
            .filter_map(|(name, expected)| {
                let path = folder.join(name);
                match checksum(&path) {
                    Ok(sum) if sum == *expected => None,
                    Ok(_) => Some(format!("{}: changed since the run", path.display())),
                    Err(e) => Some(format!("{}: {e}", path.display())),
                }
            })
            .collect())
    }

    /// Removes the folders of interrupted and failed runs. Returns how many there were.
    ///
    /// # Errors
    /// They cannot be removed, or the experiment is running.
    pub fn clean(&self) -> Result<usize, ExperimentError> {
        let below = |name: &str| -> Vec<PathBuf> {
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

    /// Removes a folder in which no run was made.
    pub fn forget_if_empty(&self) {
        let empty = |name: &str| {
            fs::read_dir(self.dir.join(name)).map_or(true, |mut entries| entries.next().is_none())
        };
        if empty("runs") && empty("failed") {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }

    /// Keeps the facts of a node and names their file.
    pub(crate) fn keep_facts(&self, facts: &Facts) -> Result<String, ExperimentError> {
        let text = serde_json::to_vec(facts).unwrap_or_default();
        let name = format!("{}.json", hex(&Sha256::digest(&text)[..8]));
        let folder = self.dir.join("nodes");
        let path = folder.join(&name);
        if !path.exists() {
            fs::create_dir_all(&folder).map_err(ExperimentError::io(&folder))?;
            // Runs that are made at once may write the same.
            match write_json(&path, facts) {
                Err(e) if !path.exists() => return Err(e.into()),
                _ => {}
            }
        }
        Ok(name)
    }

    /// Reads facts that were kept.
    ///
    /// # Errors
    /// They are not there or damaged.
    pub fn facts(&self, name: &str) -> Result<Facts, ExperimentError> {
        Ok(read_json(&self.dir.join("nodes").join(name))?)
    }
}

/// A results folder among others.
#[derive(Debug, Serialize)]
pub struct Found {
    /// Where it is.
    pub folder: PathBuf,
    /// How far it is.
    pub state: State,
}

/// The experiments below a folder, by when they began.
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

fn checksums(folder: &Path) -> Result<BTreeMap<String, String>, ExperimentError> {
    let mut sums = BTreeMap::new();
    for file in files_below(folder).map_err(ExperimentError::io(folder))? {
        let path = folder.join(&file);
        let sum = checksum(&path).map_err(ExperimentError::io(&path))?;
        sums.insert(file.display().to_string(), sum);
    }
    sums.remove("run.json");
    Ok(sums)
}
