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
use taut_measure::quantity::share;
use taut_results::{MOST_TAKEN, write_json, write_whole};

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
    /// Warning that other work took too much time of a measured core in some runs; `None` if there are no such runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy: Option<String>,
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
            busy: busy(&runs),
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

/// Returns the largest fraction of a measured core's time that others took in a run. The metrics of the run show it as
/// interruptions that the device logged, or as steal time.
fn taken(run: &IndexedRun) -> f64 {
    let of = |(name, value): (&String, &f64)| {
        if name.ends_with("device_interruptions.share") {
            return Some(*value);
        }
        // Such as `activity.cores.0.steal_ms`.
        let (before, _) = name.strip_suffix(".steal_ms")?.rsplit_once("cores.")?;
        let duration_ms = run.metrics.get(&format!("{before}duration_ms"))?;
        (*duration_ms > 0.0).then(|| value / duration_ms)
    };
    run.metrics.iter().filter_map(of).fold(0.0, f64::max)
}

fn busy(runs: &Runs) -> Option<String> {
    let shares = runs.runs.iter().map(|run| (taken(run), &run.id));
    let busy: Vec<(f64, &String)> = shares.filter(|(share, _)| *share > MOST_TAKEN).collect();
    let (most, id) = busy.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(format!(
        "In {} of {} runs others took more than {} of a measured core, at most {} (in {id}): means, high percentiles and maxima of \
         these runs include that. `taut tune noise` names what runs there.",
        busy.len(),
        runs.runs.len(),
        share(MOST_TAKEN),
        share(*most)
    ))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_and_interrupted_time_is_found_in_metrics() {
        let run = |metrics: &[(&str, f64)]| {
            let metrics = metrics.iter();
            taken(&IndexedRun {
                id: "v1-r1".to_owned(),
                variant: 1,
                repetition: 1,
                warm_up: false,
                seconds: 1.0,
                variables: crate::variables::Values::default(),
                metrics: metrics
                    .map(|(name, value)| ((*name).to_owned(), *value))
                    .collect(),
                checksum: String::new(),
            })
        };
        assert_eq!(run(&[("lost", 3.0)]), 0.0);
        assert_eq!(
            run(&[
                ("device_interruptions.share", 0.01),
                ("x.device_interruptions.share", 0.04)
            ]),
            0.04
        );
        let stolen = [
            ("t.activity.duration_ms", 1_000.0),
            ("t.activity.cores.1.steal_ms", 50.0),
        ];
        assert_eq!(run(&stolen), 0.05);
        assert_eq!(run(&stolen[1..]), 0.0);
    }
}
