//! An evaluation of a results folder: the contents of the report, and the files that are written with it.

use super::draw::{Figure, draw};
use super::formula::Formulas;
use super::selection::Runs;
use super::table::{Table, make_table};
use super::tidy;
use super::verdict::{Verdict, verdict};
use crate::error::ExperimentError;
use crate::experiment::Experiment;
use crate::folder::{Folder, IndexedRun, State};
use crate::replicate::Replication;
use serde::Serialize;
use taut_lab::report::LEAST_SENT;
use taut_results::{write_json, write_whole};

/// The contents of a report.
#[derive(Debug, Serialize)]
pub struct Evaluation {
    /// Title of the experiment, one line.
    pub title: String,
    /// State of the experiment.
    pub state: State,
    /// Verdicts on the published claims.
    pub verdicts: Vec<Verdict>,
    /// Tables of the report.
    pub tables: Vec<Table>,
    /// Figures of the report.
    pub figures: Vec<Figure>,
    /// Reasons why parts of the report could not be evaluated, one sentence each.
    pub problems: Vec<String>,
    /// Note about runs in which the load generator sent less than requested, with their number and the remedy; `None`
    /// if there are no such runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind: Option<String>,
    /// Comparison with the published results that the experiment replicates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replication: Option<Replication>,
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
            let formulas = Formulas::new(&runs, experiment);
            definition
                .claim
                .iter()
                .map(|claim| verdict(&formulas, claim))
                .collect()
        };
        let tables = definition
            .table
            .iter()
            .map(|table| make_table(experiment, table, &runs, &mut problems))
            .collect();
        let mut figures = Vec::new();
        for figure in &definition.figure {
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
            replication: if runs.is_empty() {
                None
            } else {
                Replication::of(folder.path())?
            },
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

fn behind(runs: &Runs) -> Option<String> {
    let is_behind = |run: &&IndexedRun| {
        run.metrics.iter().any(|(name, asked)| {
            let prefix = name.strip_suffix("asked_pps");
            let sent = prefix.and_then(|prefix| run.metrics.get(&format!("{prefix}sent_pps")));
            sent.is_some_and(|sent| *sent < LEAST_SENT * asked)
        })
    };
    let count = runs.runs.iter().filter(is_behind).count();
    (count > 0).then(|| {
        format!(
            "In {count} of {} runs less than 97 % of the asked rate was sent: the machine kept the generator from its core, or no \
             generator here is as fast. What these runs say of the device is not to be trusted, nor what is concluded from them. Stop \
             what else runs, or ask for less, and make them again.",
            runs.runs.len()
        )
    })
}
