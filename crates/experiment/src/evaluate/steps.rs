//! Evaluation steps of the user's own: programs that run after the runs, in the results folder, with a record of their
//! environment.

use crate::agent::{checksum, link_to, search_path};
use crate::definition::EvaluationStep;
use crate::duration::now;
use crate::error::ExperimentError;
use crate::experiment::Experiment;
use crate::folder::{EVALUATION, Folder};
use rustix::process::Pid;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taut_host::process::end_group;
use taut_results::{InsidePath, write_json};
use tempfile::TempDir;

/// Interval between two checks whether a step has ended.
const POLL: Duration = Duration::from_millis(20);
/// Timeout for a program to print its version.
const VERSION_PATIENCE: Duration = Duration::from_secs(5);
/// Number of bytes of a program's output that are searched for its version.
const VERSION_BYTES: u64 = 4_096;
/// Maximum size of the record of an evaluation step, bytes.
const MOST_RECORD_BYTES: u64 = 1 << 20;

/// Record of an evaluation step.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct StepRecord {
    /// Name of the step.
    pub name: String,
    /// Shell command of the step.
    pub run: String,
    /// Path of the program that the command begins with; empty if it is a command of the shell.
    pub program: String,
    /// First line that the program prints with `--version`; empty if it prints none.
    pub version: String,
    /// SHA-256 of the files that the step needs, by file name.
    pub files: BTreeMap<String, String>,
    /// Time at which the step began, RFC 3339.
    pub started: String,
    /// Duration of the step, s.
    pub seconds: f64,
    /// Exit code of the step; 124 if it exceeded its time limit.
    pub exit_code: i32,
    /// Last line of standard error, or else of standard output, if the step failed; empty if it did not fail.
    pub failure: String,
    /// SHA-256 of the files that the step wrote, by file name.
    pub outputs: BTreeMap<String, String>,
}

impl StepRecord {
    /// Returns the duration of the step as text.
    pub fn took(&self) -> String {
        format!("{:.1}", self.seconds)
    }
}

impl Experiment {
    /// Runs the evaluation steps of the experiment file in the results folder, and stores their records there. A step
    /// that fails does not prevent the next one.
    ///
    /// # Errors
    /// The results folder cannot be written.
    pub(crate) fn run_evaluation_steps(
        &self,
        folder: &Folder,
        stop: &AtomicBool,
    ) -> Result<(), ExperimentError> {
        for step in &self.definition.evaluate {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let record = self.run_evaluation_step(folder, step, stop)?;
            let path = folder
                .path()
                .join(EVALUATION)
                .join(format!("{}.json", step.name));
            write_json(&path, &record)?;
        }
        Ok(())
    }

    fn run_evaluation_step(
        &self,
        folder: &Folder,
        step: &EvaluationStep,
        stop: &AtomicBool,
    ) -> Result<StepRecord, ExperimentError> {
        let dir = folder.path();
        let failed = || ExperimentError::io(dir.join(EVALUATION));
        let out = folder.made(EVALUATION)?.join(&step.name);
        match fs::remove_dir_all(&out) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed()(e)),
            _ => fs::create_dir_all(&out).map_err(failed())?,
        }
        let mut files = BTreeMap::new();
        for file in &step.files {
            let name = InsidePath::new(file.get_ref())?;
            let path = name.in_folder(dir);
            let sum = checksum(&path).map_err(ExperimentError::io(&path))?;
            files.insert(name.to_string(), sum);
        }
        let program = program_of(step.run.get_ref(), dir);
        let started = now();
        let began = Instant::now();
        let limit = self.limit_of(step)?;
        let code = self
            .start_evaluation(dir, step)
            .map(|(child, _programs)| wait(child, limit, stop));
        let (exit_code, failure) = match code {
            Ok(0) => (0, String::new()),
            Ok(code) => (code, last_line(dir, &step.name)),
            Err(e) => (127, e.to_string()),
        };
        Ok(StepRecord {
            name: step.name.clone(),
            run: step.run.get_ref().clone(),
            version: program.as_deref().map(version_of).unwrap_or_default(),
            program: program.map_or_else(String::new, |path| path.display().to_string()),
            files,
            started,
            seconds: began.elapsed().as_secs_f64(),
            exit_code,
            failure,
            outputs: outputs_of(folder, &step.name)?,
        })
    }

    /// Starts a step in the results folder. Its outputs belong into `$TAUT_OUT`; it gets no secrets. The folder with the
    /// program `taut` is needed as long as the step runs.
    fn start_evaluation(&self, dir: &Path, step: &EvaluationStep) -> io::Result<(Child, TempDir)> {
        let place = Path::new(EVALUATION).join(&step.name);
        let log =
            |kind: &str| File::create(dir.join(EVALUATION).join(format!("{}.{kind}", step.name)));
        let programs = link_to(&std::env::current_exe()?)?;
        let mut command = Command::new("sh");
        for secret in &self.definition.secrets {
            command.env_remove(secret.get_ref());
        }
        let child = command
            .arg("-c")
            .arg(step.run.get_ref())
            .current_dir(dir)
            .env("TAUT_OUT", place)
            .env("PATH", search_path(programs.path())?)
            .stdin(Stdio::null())
            .stdout(log("out")?)
            .stderr(log("err")?)
            .process_group(0)
            .spawn()?;
        Ok((child, programs))
    }

    fn limit_of(&self, step: &EvaluationStep) -> Result<Duration, ExperimentError> {
        crate::duration::time(&self.source, "evaluate.limit", &step.limit)
    }
}

/// Waits for a step to end, and ends it when its time is over or a stop is requested. Returns its exit code.
fn wait(mut child: Child, limit: Duration, stop: &AtomicBool) -> i32 {
    let deadline = Instant::now() + limit;
    let group = Pid::from_child(&child);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.code().unwrap_or(128 + status.signal().unwrap_or(0)),
            Err(_) => return 1,
            Ok(None) => {}
        }
        let stopped = stop.load(Ordering::Relaxed);
        if stopped || Instant::now() > deadline {
            end_group(group, || matches!(child.try_wait(), Ok(Some(_))));
            return if stopped {
                crate::agent::STOPPED
            } else {
                crate::agent::TIMED_OUT
            };
        }
        std::thread::sleep(POLL);
    }
}

/// Returns the path of the program with which a shell command begins; `None` if that is a command of the shell. A path
/// is relative to the folder in which the command runs.
fn program_of(run: &str, folder: &Path) -> Option<PathBuf> {
    let word = run.split_whitespace().next()?;
    let is_plain = word
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "-_./+".contains(c));
    if !is_plain {
        return None;
    }
    let candidates = match word.contains('/') {
        true => vec![folder.join(word)],
        false => std::env::split_paths(&std::env::var_os("PATH")?)
            .map(|folder| folder.join(word))
            .collect(),
    };
    let mut candidates = candidates.into_iter();
    candidates
        .find(|path| path.is_file())
        .and_then(|path| fs::canonicalize(path).ok())
}

/// Returns the first line that a program prints with `--version`; empty if it prints none in time.
fn version_of(program: &Path) -> String {
    let child = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
    let Ok(mut child) = child else {
        return String::new();
    };
    let output = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut printed = Vec::new();
        let read = output.map(|it| it.take(VERSION_BYTES).read_to_end(&mut printed));
        (printed, read.is_some())
    });
    let deadline = Instant::now() + VERSION_PATIENCE;
    while !reader.is_finished() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    end_group(Pid::from_child(&child), || {
        matches!(child.try_wait(), Ok(Some(_)))
    });
    let printed = reader
        .join()
        .map(|(printed, _)| printed)
        .unwrap_or_default();
    let text = String::from_utf8_lossy(&printed).into_owned();
    let line = text.lines().next().unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(200).collect()
}

fn last_line(dir: &Path, name: &str) -> String {
    let read = |kind: &str| {
        let path = dir.join(EVALUATION).join(format!("{name}.{kind}"));
        let text = fs::read(path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        text.trim()
            .lines()
            .next_back()
            .unwrap_or_default()
            .to_owned()
    };
    let errors = read("err");
    if errors.is_empty() {
        read("out")
    } else {
        errors
    }
}

/// Returns the checksums of the files in the folder of a step's outputs.
fn outputs_of(folder: &Folder, name: &str) -> Result<BTreeMap<String, String>, ExperimentError> {
    let below = InsidePath::new(EVALUATION)?.join(&InsidePath::new(name)?)?;
    let mut sums = BTreeMap::new();
    for file in folder.files(&below)? {
        let path = file.in_folder(folder.path());
        let sum = checksum(&path).map_err(ExperimentError::io(&path))?;
        sums.insert(file.to_string(), sum);
    }
    Ok(sums)
}

/// Returns the records of the evaluation steps in a results folder, in the order of the file.
pub(crate) fn records(experiment: &Experiment, folder: &Folder) -> Vec<StepRecord> {
    let read = |step: &EvaluationStep| {
        let name = InsidePath::new(&format!("{EVALUATION}/{}.json", step.name)).ok()?;
        let bytes = name.read(folder.path(), MOST_RECORD_BYTES).ok()?;
        serde_json::from_slice(&bytes).ok()
    };
    experiment
        .definition
        .evaluate
        .iter()
        .filter_map(read)
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Changes;

    const FILE: &str = r#"
title = "t"
[[step]]
run = "true"
[[evaluate]]
name = "fit"
run = "sh fit.sh > $TAUT_OUT/fit.txt"
files = ["fit.sh"]
[[evaluate]]
name = "bad"
run = "echo no data >&2; exit 3"
[[evaluate]]
name = "slow"
run = "sleep 30"
limit = "50ms"
[[evaluate]]
name = "last"
run = "cat state.json"
"#;

    #[test]
    fn evaluation_steps_are_recorded_and_failures_do_not_end_them() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("fit.sh"), "echo fitted").unwrap();
        let changes = Changes::default();
        let experiment = Experiment::parse(FILE, "e.toml", place.path(), &changes).unwrap();
        let dir = place.path().join("out");
        let folder = Folder::begin(&dir, &experiment, "e", "taut", &changes).unwrap();
        let experiment = folder.experiment().unwrap();
        let going_on = AtomicBool::new(false);
        experiment.run_evaluation_steps(&folder, &going_on).unwrap();
        let records = records(&experiment, &folder);
        let codes: Vec<i32> = records.iter().map(|it| it.exit_code).collect();
        assert_eq!(codes, [0, 3, crate::agent::TIMED_OUT, 0]);
        let fit = &records[0];
        assert!(
            fit.program.starts_with('/') && fit.files["fit.sh"].len() == 64,
            "{fit:?}"
        );
        assert!(
            fit.outputs.contains_key("evaluation/fit/fit.txt"),
            "{fit:?}"
        );
        let text = fs::read_to_string(dir.join("evaluation/fit/fit.txt")).unwrap();
        assert_eq!(text, "fitted\n");
        assert_eq!(records[1].failure, "no data");
        // Without its script the step cannot begin.
        fs::remove_file(dir.join("fit.sh")).unwrap();
        let error = experiment
            .run_evaluation_steps(&folder, &going_on)
            .unwrap_err();
        assert!(error.to_string().contains("fit.sh"), "{error}");
    }

    #[test]
    fn programs_are_found_by_their_first_word() {
        let folder = tempfile::tempdir().unwrap();
        let program_of = |run| program_of(run, folder.path());
        fs::write(folder.path().join("own"), "").unwrap();
        assert!(program_of("sh -c true").unwrap().is_absolute());
        assert!(program_of("./own --fast").unwrap().ends_with("own"));
        for of_shell in ["", "X=1 sh", "(sh)", "no-such-program-of-anybody"] {
            assert_eq!(program_of(of_shell), None, "{of_shell}");
        }
    }
}
