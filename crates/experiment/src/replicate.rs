//! Published results run again: whether the same came out, and on what grounds. The stages are those of the ACM
//! ("Artifact Review and Badging", version 1.1): repeated on the same set-up, replicated on another one. Whether the
//! same people did it, a program cannot know.

use crate::changes::Changes;
use crate::compare::{Comparisons, Difference, Loaded, Wanted, compare_loaded, machines_differ};
use crate::copied::copy;
use crate::error::ExperimentError;
use crate::evaluate::formula::Formulas;
use crate::evaluate::verdict::{Verdict, verdict};
use crate::experiment::Experiment;
use crate::folder::{Folder, PUBLISHED, run_folder};
use crate::publish::archive;
use crate::publish::sums::{SUMS, check_sums};
use serde::Serialize;
use std::path::{Path, PathBuf};
use taut_measure::Finding;
use taut_measure::quantity::plain;
use taut_results::InsidePath;

/// Results that somebody made, in a folder or unpacked from an archive for as long as this lives.
#[derive(Debug)]
pub struct Results {
    /// Folder of the results.
    pub folder: PathBuf,
    shown: String,
    _unpacked: Option<tempfile::TempDir>,
}

impl Results {
    /// Opens a results folder, a published folder or an archive; `None` if `what` is nothing of these.
    ///
    /// # Errors
    /// An archive that cannot be unpacked, or what is published is not what it was.
    pub fn open(what: &str) -> Result<Option<Self>, ExperimentError> {
        let path = Path::new(what);
        let results = if path.join("state.json").is_file() {
            Self {
                folder: path.to_owned(),
                shown: what.to_owned(),
                _unpacked: None,
            }
        } else if path.is_file() && archive::is_archive(path) {
            let place =
                taut_host::private::scratch().map_err(ExperimentError::io(std::env::temp_dir()))?;
            Self {
                folder: archive::unpack(path, place.path())?,
                shown: what.to_owned(),
                _unpacked: Some(place),
            }
        } else {
            return Ok(None);
        };
        if results.folder.join(SUMS).is_file() {
            check_sums(&results.folder)?;
        }
        Folder::open(&results.folder)?.state()?;
        Ok(Some(results))
    }

    /// The experiment, which must have the plan that it had.
    ///
    /// # Errors
    /// The file is wrong or of another plan, or files of runs are not what they were.
    pub fn experiment(&self) -> Result<Experiment, ExperimentError> {
        let folder = Folder::open(&self.folder)?;
        let experiment = folder.experiment()?;
        let state = folder.state()?;
        if experiment.fingerprint() != state.fingerprint {
            return Err(ExperimentError::results(
                &self.shown,
                format!(
                    "its file has another plan ({}) than its runs ({}, made with taut {}): it cannot be replicated",
                    experiment.fingerprint(),
                    state.fingerprint,
                    state.taut_version
                ),
            ));
        }
        for run in folder.index()? {
            if let Some(damaged) = folder.damaged(&run)?.first() {
                return Err(ExperimentError::results(
                    &self.shown,
                    format!("damaged: {damaged}"),
                ));
            }
        }
        Ok(experiment)
    }

    /// The name that the experiment was run by, and what was asked for other than its file says.
    ///
    /// # Errors
    /// Its state cannot be read.
    pub fn name_and_changes(&self) -> Result<(String, Changes), ExperimentError> {
        let state = Folder::open(&self.folder)?.state()?;
        Ok((crate::name_of(&state.name), state.changes))
    }

    /// Keeps what a comparison needs of these results in the folder of those that replicate them.
    ///
    /// # Errors
    /// It cannot be copied.
    pub fn keep_in(&self, folder: &Folder) -> Result<(), ExperimentError> {
        let to = folder.path().join(PUBLISHED);
        let from = Folder::open(&self.folder)?;
        let mut files = from.experiment()?.named_files()?;
        for name in ["experiment.toml", "state.json", "runs.jsonl"] {
            files.insert(InsidePath::new(name)?);
        }
        files.extend(from.all_facts()?);
        if let Some(last) = from.index()?.last() {
            files.insert(run_folder(&last.id)?.join(&InsidePath::new("run.json")?)?);
        }
        for file in files {
            let (from, target) = (file.in_folder(&self.folder), file.in_folder(&to));
            let mut read = file
                .open(&self.folder)
                .map_err(ExperimentError::io(&from))?;
            let mut out = file.create(&to).map_err(ExperimentError::io(&target))?;
            copy(&mut read, &mut out).map_err(|e| e.of(&from, &target))?;
        }
        let mut state = folder.state()?;
        state.replicates = Some(self.shown.clone());
        folder.write_state(&state)
    }
}

/// Outcome of a replication: how far it got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reached {
    /// The same came out on the same machines.
    Repeated,
    /// The same came out on other machines.
    Replicated,
    /// Something else came out.
    Contradicted,
    /// Too little is known: no claims, or runs are missing.
    Open,
}

/// A claim there and here.
#[derive(Debug, Clone, Serialize)]
pub struct Claimed {
    /// Verdict as published.
    pub published: Verdict,
    /// Verdict here.
    pub here: Verdict,
}

impl Claimed {
    /// Whether both say the same; `None` where one of them says nothing.
    pub fn agree(&self) -> Option<bool> {
        let told = |verdict: &Verdict| verdict.verdict.is_told();
        (told(&self.published) && told(&self.here))
            .then_some(self.published.verdict == self.here.verdict)
    }

    /// Value and verdict, as people read them.
    pub fn cells(&self) -> [String; 2] {
        [&self.published, &self.here].map(|verdict| {
            let value = verdict.value.map(plain);
            let interval = verdict.spread().map_or_else(String::new, |interval| {
                format!(" ({})", interval.short(plain))
            });
            format!(
                "{}{interval}, {}",
                value.unwrap_or_default(),
                verdict.words()
            )
        })
    }
}

/// Published results and those that replicate them.
#[derive(Debug, Serialize)]
pub struct Replication {
    /// Name of what was replicated.
    pub of: String,
    /// How far the replication got.
    pub reached: Reached,
    /// Outcome in a sentence.
    pub text: String,
    /// Differences between the machines.
    pub machines: Vec<Difference>,
    /// Claims there and here.
    pub claims: Vec<Claimed>,
    /// Comparison of the metrics.
    pub comparisons: Comparisons,
}

impl Replication {
    /// Compares the results in `dir` with those that they replicate; `None` if they replicate none.
    pub(crate) fn of(dir: &Path) -> Result<Option<Self>, ExperimentError> {
        let folder = Folder::open(dir)?;
        let state = folder.state()?;
        let Some(of) = state.replicates.clone() else {
            return Ok(None);
        };
        let (there, here) = (
            Loaded::read(&dir.join(PUBLISHED), false)?,
            Loaded::read(dir, false)?,
        );
        let comparisons = compare_loaded(&there, &here, &Wanted::default(), false)?;
        let pseudonyms = Folder::open(&dir.join(PUBLISHED))?
            .state()?
            .published
            .is_some_and(|published| published.pseudonyms);
        let machines: Vec<Difference> = machines_differ(&comparisons.environment, pseudonyms)
            .into_iter()
            .cloned()
            .collect();
        let claims = claims(&there, &here);
        let (reached, text) = judged(&claims, &machines, &comparisons, &of);
        Ok(Some(Self {
            of,
            reached,
            text,
            machines,
            claims,
            comparisons,
        }))
    }
}

fn claims(there: &Loaded, here: &Loaded) -> Vec<Claimed> {
    if there.runs.is_empty() || here.runs.is_empty() {
        return Vec::new();
    }
    let [there, of_here] =
        [there, here].map(|loaded| Formulas::new(&loaded.runs, &loaded.experiment));
    here.experiment
        .definition
        .claim
        .iter()
        .map(|claim| Claimed {
            published: verdict(&there, claim),
            here: verdict(&of_here, claim),
        })
        .collect()
}

fn judged(
    claims: &[Claimed],
    machines: &[Difference],
    comparisons: &Comparisons,
    of: &str,
) -> (Reached, String) {
    let agree = claims
        .iter()
        .filter(|claim| claim.agree() == Some(true))
        .count();
    let otherwise = claims
        .iter()
        .filter(|claim| claim.agree() == Some(false))
        .count();
    let differ = comparisons
        .metrics
        .iter()
        .filter(|one| one.finding == Finding::Differs)
        .count();
    let where_to = if machines.is_empty() {
        "the same machines".to_owned()
    } else {
        format!("other machines ({} facts differ)", machines.len())
    };
    let metrics = format!("{differ} of {} metrics differ", comparisons.metrics.len());
    let counted = format!("{agree} of {} claims come out as in {of}", claims.len());
    match (agree, otherwise, machines.is_empty()) {
        (0, 0, _) => (
            Reached::Open,
            format!("Open: no claim can be held against {of}; {metrics}, on {where_to}."),
        ),
        (_, 0, true) => (
            Reached::Repeated,
            format!("Repeated: {counted}, on {where_to}; {metrics}."),
        ),
        (_, 0, false) => (
            Reached::Replicated,
            format!("Replicated: {counted}, on {where_to}; {metrics}."),
        ),
        _ => (
            Reached::Contradicted,
            format!(
                "Not replicated: {otherwise} of {} claims come out otherwise than in {of}, on {where_to}; {metrics}.",
                claims.len()
            ),
        ),
    }
}
