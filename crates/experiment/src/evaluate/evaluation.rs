//! An evaluation of a results folder: the contents of the report, and the files that are written with it.

use super::disturbance::{is_behind, programs, taken};
use super::draw::{Figure, draw};
use super::formula::ClaimFormulas;
use super::selection::Runs;
use super::steps::{self, StepRecord};
use super::table::{Table, make_table};
use super::tidy;
use super::verdict::{Verdict, verdict};
use crate::compare::Builds;
use crate::error::ExperimentError;
use crate::experiment::Experiment;
use crate::folder::{Folder, IndexedRun, State};
use crate::replicate::Replication;
use crate::robust::Robustness;
use schemars::JsonSchema;
use serde::Serialize;
use taut_measure::quantity::share;
use taut_results::{MOST_TAKEN, taken_text, write_json, write_whole};

/// The contents of an experiment's report.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Evaluation {
    /// Title of the experiment, one line.
    pub title: String,
    /// State of the experiment.
    pub state: State,
    /// Verdicts on the published claims.
    pub verdicts: Vec<Verdict>,
    /// Tables of the report, with the values of the runs.
    pub tables: Vec<Table>,
    /// Drawn figures of the report.
    pub figures: Vec<Figure>,
    /// Reasons why parts of the report could not be evaluated, one sentence each.
    pub problems: Vec<String>,
    /// Note about runs in which the load generator sent less than requested, with their number and the remedy; `None`
    /// if there are no such runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind: Option<String>,
    /// Warning that other work took too much time of a measured core in some runs; `None` if there are no such runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy: Option<String>,
    /// Comparison with the published results that the experiment replicates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replication: Option<Replication>,
    /// Comparison of the two builds of an experiment with `--against`; `None` without another build.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub builds: Option<Builds>,
    /// The claims under each perturbation; `None` without perturbations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub robustness: Option<Robustness>,
    /// Records of the evaluation steps that the experiment file defines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepRecord>,
    /// The runs that were evaluated.
    #[serde(skip)]
    runs: Runs,
}

impl Evaluation {
    /// Evaluates the contents of a results folder.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn of(experiment: &Experiment, folder: &Folder) -> Result<Self, ExperimentError> {
        let state = folder.state()?;
        let runs = Runs::load(folder)?;
        let mut problems = Vec::new();
        if runs.is_empty() {
            problems.push("no run is complete yet: there is nothing to evaluate".to_owned());
        }
        let definition = &experiment.definition;
        let verdicts = if runs.is_empty() {
            Vec::new()
        } else {
            let formulas = ClaimFormulas::new(&runs, experiment);
            let claims = definition.claim.iter();
            claims
                .map(|claim| verdict(formulas.of(claim.value.get_ref()), claim))
                .collect()
        };
        // Tables and figures describe the experiment as it is; those under perturbations would be many.
        let is_shown = experiment.robust.is_none();
        let tables = definition
            .table
            .iter()
            .filter(|_| is_shown)
            .map(|table| make_table(experiment, table, &runs, &mut problems))
            .collect();
        let mut figures = Vec::new();
        for figure in definition.figure.iter().filter(|_| is_shown) {
            match draw(experiment, figure, &runs) {
                Ok(drawn) => figures.push(drawn),
                Err(reason) => problems.push(format!("figure {}: {reason}", figure.name)),
            }
        }
        Ok(Self {
            title: definition.title.clone(),
            state,
            verdicts,
            tables,
            figures,
            problems,
            behind: behind(&runs),
            busy: busy(&runs),
            replication: if runs.is_empty() {
                None
            } else {
                Replication::of(folder.path())?
            },
            builds: Builds::of(experiment, &runs),
            robustness: Robustness::of(experiment, &runs),
            steps: steps::records(experiment, folder),
            runs,
        })
    }

    /// Writes `summary.json`, `metrics.csv`, `metrics.parquet`, `tables/` and `figures/` into the folder.
    ///
    /// # Errors
    /// The files cannot be written.
    pub fn write(&self, folder: &Folder) -> Result<(), ExperimentError> {
        let dir = folder.path();
        tidy::write(dir, &self.runs)?;
        write_json(&dir.join("summary.json"), self)?;
        if let Some(robustness) = &self.robustness {
            robustness.write(folder)?;
        }
        if !self.tables.is_empty() {
            let tables = folder.made("tables")?;
            for table in &self.tables {
                write_whole(
                    &tables.join(format!("{}.csv", table.name)),
                    table.csv().as_bytes(),
                )?;
            }
        }
        if !self.figures.is_empty() {
            let figures = folder.made("figures")?;
            for figure in &self.figures {
                write_whole(
                    &figures.join(format!("{}.svg", figure.name)),
                    figure.svg.as_bytes(),
                )?;
                write_whole(
                    &figures.join(format!("{}.csv", figure.name)),
                    figure.data.as_bytes(),
                )?;
            }
        }
        Ok(())
    }
}

fn busy(runs: &Runs) -> Option<String> {
    let shares = runs.runs.iter().map(|run| (taken(run), run));
    let (shares, busy): (Vec<f64>, Vec<&IndexedRun>) =
        shares.filter(|(share, _)| *share > MOST_TAKEN).unzip();
    let (most, worst) = shares.iter().zip(&busy).max_by(|a, b| a.0.total_cmp(b.0))?;
    Some(format!(
        "In {} of {} runs other programs took more than {} of a measured core: {} in {}. Means, high percentiles, maxima, losses \
         and rates of these runs include that. `taut tune noise` lists what runs there.",
        busy.len(),
        runs.runs.len(),
        share(MOST_TAKEN),
        taken_text(*most, &programs(&busy)),
        worst.id
    ))
}

fn behind(runs: &Runs) -> Option<String> {
    let count = runs.runs.iter().filter(|run| is_behind(run)).count();
    (count > 0).then(|| {
        format!(
            "In {count} of {} runs less than 97 % of the asked rate was sent: the machine kept the generator from its core, or no \
             generator here is as fast. What these runs say of the device is not to be trusted, nor what is concluded from them. Stop \
             what else runs, or ask for less, and make them again.",
            runs.runs.len()
        )
    })
}
