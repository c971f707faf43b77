//! The website of a publication: the report as its first page, and a page for each run, node, table and figure.

use crate::check::{Check, PlannedCommand};
use crate::error::ExperimentError;
use crate::evaluate::evaluation::Evaluation;
use crate::evaluate::table::quantity_of;
use crate::experiment::Experiment;
use crate::folder::{Folder, RunRecord, nodes_of, run_folder};
use crate::page;
use crate::variables::text_of;
use askama::Template;
use std::io::Read;
use std::path::Path;
use taut_bench::report::flatten;
use taut_results::{InsidePath, write_whole};

/// Maximum number of lines of a CSV file that a page shows.
const MOST_LINES: usize = 200;
/// Maximum number of bytes of a log that a page shows.
const MOST_LOG: u64 = 16 << 10;

/// The parts that every page of the website has: title, warning, path to the top folder, heading, subtitle.
struct Frame<'a> {
    title: &'a str,
    alert: Option<String>,
    up: &'a str,
    heading: String,
    subtitle: String,
}

#[derive(Template)]
#[template(path = "site/node.html")]
struct NodePage<'a> {
    frame: Frame<'a>,
    facts: Vec<(String, String)>,
}

#[derive(Template)]
#[template(path = "site/setup.html")]
struct SetupPage<'a> {
    frame: Frame<'a>,
    schedule: String,
    fingerprint: &'a str,
    order: Vec<String>,
    commands: Vec<PlannedCommand>,
    file: &'a str,
    more: Vec<&'a str>,
}

#[derive(Template)]
#[template(path = "site/run.html")]
struct RunPage<'a> {
    frame: Frame<'a>,
    record: &'a RunRecord,
    variables: Vec<(&'a str, String)>,
    commands: Vec<ShownCommand<'a>>,
    metrics: Vec<(&'a str, f64, String)>,
}

struct ShownCommand<'a> {
    name: &'a str,
    node: &'a str,
    script: &'a str,
    exit_code: String,
    seconds: String,
    begun_s: String,
    logs: Vec<(String, String)>,
}

/// The page of a figure or a table.
#[derive(Template)]
#[template(path = "site/shown.html")]
struct ShownPage<'a> {
    frame: Frame<'a>,
    svg: &'a str,
    caption: &'a str,
    links: Vec<String>,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
    more: usize,
    archive: &'a str,
    runs: &'a [String],
}

/// Writes all pages of the website into the folder.
pub(super) fn write(
    experiment: &Experiment,
    folder: &Folder,
    evaluation: &Evaluation,
    name: &str,
) -> Result<(), ExperimentError> {
    page::write_index(experiment, folder, evaluation, name)?;
    let site = Site {
        experiment,
        folder,
        evaluation,
        name,
    };
    site.write_nodes()?;
    site.write_setup()?;
    site.write_figures()?;
    site.write_tables()?;
    site.write_runs()
}

/// The data of all pages.
struct Site<'a> {
    experiment: &'a Experiment,
    folder: &'a Folder,
    evaluation: &'a Evaluation,
    /// Name of the publication.
    name: &'a str,
}

impl<'a> Site<'a> {
    /// Returns the parts of a page that every page of the website has; `up` is the relative path to the top folder.
    fn frame(&self, up: &'static str, heading: String, subtitle: String) -> Frame<'a> {
        Frame {
            title: &self.experiment.definition.title,
            alert: page::alert(&self.evaluation.state),
            up,
            heading,
            subtitle,
        }
    }

    /// Writes one page for each node.
    fn write_nodes(&self) -> Result<(), ExperimentError> {
        let dir = self.folder.path();
        for (role, facts) in nodes_of(self.folder) {
            let subtitle = format!(
                "{} · {} · taut {}",
                facts.system, facts.architecture, facts.taut_version
            );
            let page = NodePage {
                facts: flatten(&serde_json::to_value(&facts).unwrap_or_default()),
                frame: self.frame("", format!("Node {role}"), subtitle),
            };
            save(&dir.join(format!("node-{role}.html")), &page)?;
        }
        Ok(())
    }

    /// Writes the page about the setup of the experiment.
    fn write_setup(&self) -> Result<(), ExperimentError> {
        let check = self.experiment.check()?;
        let from = self
            .experiment
            .definition
            .file
            .iter()
            .filter_map(|file| file.from.as_ref());
        let setup = SetupPage {
            frame: self.frame("", "Set-up".to_owned(), self.extent(&check)),
            schedule: page::schedule(self.experiment),
            fingerprint: &check.fingerprint,
            order: check.order,
            commands: check.commands,
            file: self.experiment.text(),
            more: from.map(|from| from.get_ref().as_str()).collect(),
        };
        save(&self.folder.path().join("setup.html"), &setup)
    }

    /// Returns text with the number of runs, and the changes to the experiment file that the user requested.
    fn extent(&self, check: &Check) -> String {
        let changes = &self.evaluation.state.changes;
        let asked: Vec<String> = changes
            .set
            .iter()
            .map(|(name, value)| format!("{name} = {value}"))
            .chain(
                changes
                    .repetitions
                    .map(|count| format!("{count} repetitions")),
            )
            .chain(
                changes
                    .against
                    .iter()
                    .map(|base| format!("against {}", base.version)),
            )
            .collect();
        format!(
            "{} runs of {} combinations{}{}",
            check.order.len(),
            check.variants.len(),
            if asked.is_empty() {
                ""
            } else {
                "; other than the file says: "
            },
            asked.join(", ")
        )
    }

    /// Writes one page for each figure.
    fn write_figures(&self) -> Result<(), ExperimentError> {
        let below = self.folder.path().join("figures");
        for (index, figure) in self.evaluation.figures.iter().enumerate() {
            let heading = format!("Figure {}. {}", index + 1, figure.title);
            let subtitle = format!("{} runs", figure.runs.len());
            let (head, rows, more) = lines(&figure.data);
            let page = ShownPage {
                frame: self.frame("../", heading, subtitle),
                svg: &figure.svg,
                caption: &figure.caption,
                links: ["csv", "svg"]
                    .map(|end| format!("{}.{end}", figure.name))
                    .into(),
                head,
                rows,
                more,
                archive: self.name,
                runs: &figure.runs,
            };
            save(&below.join(format!("{}.html", figure.name)), &page)?;
        }
        Ok(())
    }

    /// Writes one page for each table.
    fn write_tables(&self) -> Result<(), ExperimentError> {
        let below = self.folder.path().join("tables");
        for table in &self.evaluation.tables {
            let title = if table.title.is_empty() {
                &table.name
            } else {
                &table.title
            };
            let runs: Vec<String> = table.rows.iter().flat_map(|row| row.runs.clone()).collect();
            let subtitle = format!("{} runs", runs.len());
            let (head, rows, more) = lines(&table.csv());
            let page = ShownPage {
                frame: self.frame("../", title.clone(), subtitle),
                svg: "",
                caption: "",
                links: vec![format!("{}.csv", table.name)],
                head,
                rows,
                more,
                archive: self.name,
                runs: &runs,
            };
            save(&below.join(format!("{}.html", table.name)), &page)?;
        }
        Ok(())
    }

    /// Writes one page for each run.
    fn write_runs(&self) -> Result<(), ExperimentError> {
        let dir = self.folder.path();
        for run in self.folder.index()? {
            let record = self.folder.run(&run.id)?;
            let below = run_folder(&run.id)?;
            let subtitle = format!(
                "{} · {:.1} s · attempt {}",
                record.started, record.seconds, record.attempt
            );
            save(
                &below.in_folder(dir).join("index.html"),
                &run_page(
                    self.frame("../../", format!("Run {}", run.id), subtitle),
                    &record,
                    |log: &str| beginning(dir, &below.join(&InsidePath::new(log).ok()?).ok()?),
                ),
            )?;
        }
        Ok(())
    }
}

fn run_page<'a>(
    frame: Frame<'a>,
    record: &'a RunRecord,
    log: impl Fn(&str) -> Option<String>,
) -> RunPage<'a> {
    let commands = record.commands.iter().map(|command| ShownCommand {
        name: &command.name,
        node: &command.node,
        script: command.script.trim_end(),
        exit_code: command
            .exit_code
            .map_or_else(|| "none".to_owned(), |code| code.to_string()),
        seconds: format!("{:.3}", command.seconds),
        begun_s: format!("{:.3}", command.begun_s),
        logs: ["out", "err"]
            .map(|kind| format!("logs/{}.{kind}", command.name))
            .into_iter()
            .filter_map(|link| {
                let text = log(&link)?;
                (!text.is_empty()).then_some((link, text))
            })
            .collect(),
    });
    RunPage {
        frame,
        record,
        commands: commands.collect(),
        variables: record
            .variables
            .iter()
            .map(|(name, value)| (name.as_str(), text_of(value)))
            .collect(),
        metrics: record
            .metrics
            .iter()
            .map(|(name, value)| (name.as_str(), *value, quantity_of(name).text(*value)))
            .collect(),
    }
}

/// Returns the beginning of a run's log file.
fn beginning(folder: &Path, log: &InsidePath) -> Option<String> {
    let mut text = Vec::new();
    let file = log.open(folder).ok()?;
    let long = file.metadata().ok()?.len() > MOST_LOG;
    file.take(MOST_LOG).read_to_end(&mut text).ok()?;
    let mut text = String::from_utf8_lossy(&text).into_owned();
    if long {
        text += "\n… more in the file";
    }
    Some(text)
}

/// Returns the header and the first lines of a CSV file that taut wrote, and the number of further lines.
fn lines(csv: &str) -> (Vec<String>, Vec<Vec<String>>, usize) {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .from_reader(csv.as_bytes());
    let records = reader.records().map_while(Result::ok);
    let mut all = records.map(|record| record.iter().map(ToOwned::to_owned).collect::<Vec<_>>());
    let head = all.next().unwrap_or_default();
    let rows = all.by_ref().take(MOST_LINES).collect();
    (head, rows, all.count())
}

fn save(path: &Path, page: &impl Template) -> Result<(), ExperimentError> {
    let text = page
        .render()
        .map_err(|e| ExperimentError::results(path, e.to_string()))?;
    Ok(write_whole(path, text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_csv_fields_may_contain_separators_and_line_breaks() {
        let (head, rows, more) = lines("a,b\nc,\"d,\n\"\"e\"\n");
        assert_eq!((head, more), (vec!["a".to_owned(), "b".to_owned()], 0));
        assert_eq!(rows, [["c", "d,\n\"e"]]);
    }
}
