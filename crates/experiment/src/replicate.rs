//! Replication of published results: compares new results with published results, and assesses the setup on which both
//! were measured. The names are those of the ACM ("Artifact Review and Badging", version 1.1): repeated on the same
//! setup, replicated on another setup. A program cannot know whether the same people measured both.

use crate::changes::Changes;
use crate::compare::{Comparisons, Difference, Loaded, Wanted, compare_loaded, machines_differ};
use crate::copying::copy;
use crate::error::ExperimentError;
use crate::evaluate::formula::ClaimFormulas;
use crate::evaluate::verdict::{Verdict, verdict};
use crate::experiment::Experiment;
use crate::folder::{Folder, PUBLISHED, run_folder};
use crate::publish::archive;
use crate::publish::sums::{SUMS, check_sums};
use crate::robust::Robustness;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::{Path, PathBuf};
use taut_measure::Finding;
use taut_measure::quantity::plain;
use taut_results::InsidePath;

/// Published results in a folder; a folder unpacked from an archive is removed when this value is dropped.
#[derive(Debug)]
pub struct Results {
    /// Folder of the results.
    pub folder: PathBuf,
    shown: String,
    _unpacked: Option<tempfile::TempDir>,
}

impl Results {
    /// Opens a results folder, a published folder or an archive; returns `None` if `what` is none of these.
    ///
    /// # Errors
    /// The archive cannot be unpacked, or the publication has changed.
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

    /// Returns true if the results have runs under perturbations.
    pub fn is_robust(&self) -> bool {
        let state = Folder::open(&self.folder).and_then(|folder| folder.state());
        state.is_ok_and(|state| state.changes.robust.is_some())
    }

    /// Returns the experiment of the results, after a check that its plan and the files of its runs are unchanged.
    ///
    /// # Errors
    /// The experiment file has an error or another plan, or files of runs have changed.
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

    /// Returns the name under which the experiment was run, and the changes to its file that the user requested.
    ///
    /// # Errors
    /// The state of the experiment cannot be read.
    pub fn name_and_changes(&self) -> Result<(String, Changes), ExperimentError> {
        let state = Folder::open(&self.folder)?.state()?;
        Ok((crate::name_of(&state.name), state.changes))
    }

    /// Copies the data that a comparison needs into the folder of the replicating results.
    ///
    /// # Errors
    /// The data cannot be copied.
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

/// Result of a replication: whether the new results agree with the published ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reached {
    /// The published and the new results agree, and were measured on the same machines.
    Repeated,
    /// The published and the new results agree, and were measured on different machines.
    Replicated,
    /// The published and the new results disagree.
    Contradicted,
    /// The data are insufficient: there are no claims, or runs are missing.
    Open,
}

/// A claim with two verdicts: the published one, and the one on the new results.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Claimed {
    /// Verdict as published.
    pub published: Verdict,
    /// Verdict on the new results.
    pub here: Verdict,
}

impl Claimed {
    /// Returns whether the two verdicts agree; `None` if one of them is inconclusive.
    pub fn agree(&self) -> Option<bool> {
        let told = |verdict: &Verdict| verdict.verdict.is_told();
        (told(&self.published) && told(&self.here))
            .then_some(self.published.verdict == self.here.verdict)
    }

    /// Returns value and verdict as text: first those that were published, then those of the new results.
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

/// Comparison of published results with the results that replicate them.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Replication {
    /// Name of the published results that are replicated.
    pub of: String,
    /// Outcome of the replication.
    pub reached: Reached,
    /// Outcome of the replication as a sentence.
    pub text: String,
    /// Differences between the machines of the published and the new results.
    pub machines: Vec<Difference>,
    /// Claims with the verdicts on the published and the new results.
    pub claims: Vec<Claimed>,
    /// Comparison of the metrics of the published and the new results.
    pub comparisons: Comparisons,
    /// For results with perturbations: the number of outcomes (a claim under a perturbation) that are equal in both
    /// results, and the number of outcomes that both have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcomes: Option<[usize; 2]>,
}

impl Replication {
    /// Compares the results in `dir` with the published results that they replicate; `None` if they replicate no
    /// results.
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
        let (reached, mut text) = judged(&claims, &machines, &comparisons, &of);
        let robustness = |it: &Loaded| Robustness::of(&it.experiment, &it.runs);
        let outcomes = robustness(&here).zip(robustness(&there));
        let outcomes = outcomes.map(|(here, there)| here.agreement(&there));
        if let Some([same, known]) = outcomes {
            text += &format!(" Under perturbations {same} of {known} outcomes are the same.");
        }
        Ok(Some(Self {
            outcomes,
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
        [there, here].map(|loaded| ClaimFormulas::new(&loaded.runs, &loaded.experiment));
    here.experiment
        .definition
        .claim
        .iter()
        .map(|claim| Claimed {
            published: verdict(there.of(claim.value.get_ref()), claim),
            here: verdict(of_here.of(claim.value.get_ref()), claim),
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
            format!(
                "Undecided: no claim has a verdict both here and in {of}; {metrics}, on {where_to}."
            ),
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
