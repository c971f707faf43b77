//! The replication report: results of all reference experiments compared with published figures, on one page.

use crate::changes::Changes;
use crate::claim::Origin;
use crate::error::ExperimentError;
use crate::evaluate::evaluation::Evaluation;
use crate::evaluate::table::csv_line;
use crate::evaluate::verdict::{Verdict, VerdictKind};
use crate::folder::{Folder, nodes_of};
use crate::open::{open_reference, reference};
use askama::Template;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use taut_results::{Completion, instant, write_json, write_whole};

/// Inconsistencies in the published documents, one line of Markdown each.
const INCONSISTENCIES: &str = include_str!("../../../experiments/published/inconsistencies.txt");

/// Systems that the documents describe, one per line: name, location of each description, experiments.
const SYSTEMS: &str = include_str!("../../../experiments/published/systems.csv");

/// The results of all reference experiments, gathered from a folder that contains one results folder per experiment.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ReplicationReport {
    /// Version of the layout of `replication.json`.
    pub schema: u32,
    /// Time at which the report was made, RFC 3339.
    pub made: String,
    /// Version of taut that made the report.
    pub taut_version: String,
    /// Description of the machine, from the records of the runs.
    pub machine: String,
    /// The experiments, by name.
    pub experiments: Vec<Replicated>,
}

/// The results of one reference experiment.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Replicated {
    /// Name of the experiment.
    pub name: String,
    /// Title of the experiment.
    pub title: String,
    /// Time at which the runs of the experiment began, RFC 3339; empty if there are no runs.
    pub started: String,
    /// Number of complete runs.
    pub done: usize,
    /// Number of planned runs.
    pub planned: usize,
    /// Reason why results are missing or incomplete; empty if they are complete.
    pub missing: String,
    /// Verdicts on the claims of the experiment.
    pub verdicts: Vec<Verdict>,
}

/// A row of the report: a claim with a published figure.
struct Row<'a> {
    verdict: &'a Verdict,
    name: &'a str,
    published: String,
    here: String,
    class: &'static str,
}

/// The claims about one figure, table or section of a document.
struct Place<'a> {
    place: String,
    rows: Vec<Row<'a>>,
}

/// The claims about one document.
struct Document<'a> {
    name: String,
    anchor: String,
    places: Vec<Place<'a>>,
}

/// A system that one or more published documents describe.
struct System<'a> {
    name: &'a str,
    published: &'a str,
    experiments: Vec<&'a str>,
    /// Counts of the verdicts on the system's published results, as text.
    verdicts: String,
}

#[derive(Template)]
#[template(path = "replication.html")]
struct Page<'a> {
    report: &'a ReplicationReport,
    lead: String,
    systems: Vec<System<'a>>,
    documents: Vec<Document<'a>>,
    own: Vec<(&'a Replicated, Vec<&'a Verdict>)>,
    missing: Vec<&'a Replicated>,
    inconsistencies: Vec<&'static str>,
}

/// The documents in the order of the report.
const DOCUMENTS: [&str; 4] = [
    "Stylianopoulos 2020",
    "Lange 2015",
    "Xiang 2019",
    "Gallenmüller 2021",
];

impl ReplicationReport {
    /// Version of the layout of `replication.json` that this program reads and writes.
    pub const SCHEMA: u32 = 1;

    /// Gathers the results of reference experiments from the folders in `dir`, each with the name of its experiment. If
    /// the results of an experiment are missing, its entry is copied from the earlier report in `dir`. Unreadable
    /// results count as missing; the entry contains the reason.
    ///
    /// # Errors
    /// A reference experiment of this program has an error.
    pub fn gather(dir: &Path) -> Result<Self, ExperimentError> {
        let mut experiments = Vec::new();
        let (mut machine, mut earlier) = Self::earlier(dir);
        for name in reference() {
            let folder = dir.join(name);
            let read = || -> Result<_, ExperimentError> {
                let folder = Folder::open(&folder)?;
                Ok((machine_of(&folder), Replicated::of(name, &folder)?))
            };
            let missing = match folder.is_dir().then(read) {
                Some(Ok((on, results))) => {
                    if machine.is_empty() {
                        machine = on;
                    }
                    experiments.push(results);
                    continue;
                }
                Some(Err(e)) => format!("its results cannot be read: {e}"),
                None => {
                    if let Some(before) = earlier.remove(name) {
                        experiments.push(before);
                        continue;
                    }
                    "not run".to_owned()
                }
            };
            let experiment = open_reference(name, &Changes::default())?;
            experiments.push(Replicated {
                name: name.to_owned(),
                title: experiment.definition.title.clone(),
                started: String::new(),
                done: 0,
                planned: experiment.plan().len(),
                missing,
                verdicts: Vec::new(),
            });
        }
        Ok(Self {
            schema: Self::SCHEMA,
            made: instant(SystemTime::now()),
            taut_version: env!("CARGO_PKG_VERSION").to_owned(),
            machine,
            experiments,
        })
    }

    /// Returns the machine and the experiments with runs from the earlier report in `dir`; both are empty if there is
    /// no readable report.
    fn earlier(dir: &Path) -> (String, BTreeMap<String, Replicated>) {
        let read = std::fs::read(dir.join("replication.json")).ok();
        let report = read.and_then(|it| serde_json::from_slice::<Self>(&it).ok());
        let Some(report) = report.filter(|it| it.schema == Self::SCHEMA) else {
            return Default::default();
        };
        let run = report.experiments.into_iter().filter(|it| it.done > 0);
        let experiments = run.map(|it| (it.name.clone(), it)).collect();
        (report.machine, experiments)
    }

    /// Writes `replication.json`, `replication.md`, `verdicts.csv`, `claims.csv` and `index.html` into `dir`; returns the path of
    /// `index.html`.
    ///
    /// # Errors
    /// The files cannot be written.
    pub fn write(&self, dir: &Path) -> Result<PathBuf, ExperimentError> {
        write_json(&dir.join("replication.json"), self)?;
        write_whole(&dir.join("replication.md"), self.markdown().as_bytes())?;
        write_whole(&dir.join("verdicts.csv"), self.verdicts().as_bytes())?;
        write_whole(&dir.join("claims.csv"), self.claims().as_bytes())?;
        let page = Page {
            report: self,
            lead: self.lead(),
            systems: self.systems(),
            documents: self.documents(),
            own: self.own(),
            missing: self.missing(),
            inconsistencies: inconsistencies().collect(),
        };
        let path = dir.join("index.html");
        let text = page
            .render()
            .map_err(|e| ExperimentError::results(&path, e.to_string()))?;
        write_whole(&path, text.as_bytes())?;
        Ok(path)
    }

    /// Returns the counts of all verdicts, as a sentence.
    pub fn lead(&self) -> String {
        let mut published: BTreeMap<&str, usize> = BTreeMap::new();
        let mut own: BTreeMap<&str, usize> = BTreeMap::new();
        for verdict in self.experiments.iter().flat_map(|it| &it.verdicts) {
            let counts = match verdict.figure {
                Some(_) => &mut published,
                None => &mut own,
            };
            *counts.entry(verdict.verdict.name()).or_default() += 1;
        }
        use VerdictKind::{
            Fails, Holds, NoData, NotMeasured, Opposite, Same, SameDirection, Unclear,
        };
        let words = |counts: &BTreeMap<&str, usize>, kinds: &[VerdictKind]| {
            let all = kinds.iter().filter_map(|kind| {
                let count = counts.get(kind.name()).copied().unwrap_or(0);
                // Most results have no disturbed runs.
                let is_listed = count > 0 || *kind != NotMeasured;
                is_listed.then(|| format!("{count} {}", kind.name()))
            });
            all.collect::<Vec<String>>().join(", ")
        };
        format!(
            "Published figures ({}): {}. Claims of our own ({}): {}.",
            published.values().sum::<usize>(),
            words(
                &published,
                &[Same, SameDirection, Opposite, Unclear, NoData, NotMeasured]
            ),
            own.values().sum::<usize>(),
            words(&own, &[Holds, Fails, Unclear, NoData, NotMeasured]),
        )
    }

    /// Returns whether an experiment has results in this report.
    fn was_run(&self, name: &str) -> bool {
        let mut all = self.experiments.iter();
        all.any(|it| it.name == name && !it.started.is_empty())
    }

    fn systems(&self) -> Vec<System<'static>> {
        let system = |(name, published, experiments): (_, _, &'static str)| {
            let experiments: Vec<&str> = experiments.split(' ').collect();
            let of_system = self
                .experiments
                .iter()
                .filter(|it| experiments.contains(&&*it.name));
            let verdicts = of_system.flat_map(|it| &it.verdicts);
            System {
                name,
                published,
                verdicts: counts(verdicts.filter(|it| it.figure.is_some())),
                experiments,
            }
        };
        systems().map(system).collect()
    }

    fn documents(&self) -> Vec<Document<'_>> {
        let mut documents: Vec<Document<'_>> = Vec::new();
        let rows = self
            .experiments
            .iter()
            .flat_map(|it| it.verdicts.iter().map(move |verdict| (it, verdict)));
        for (experiment, verdict) in rows {
            let Some(figure) = &verdict.figure else {
                continue;
            };
            let (document, place) = figure
                .source
                .split_once(", ")
                .unwrap_or((&figure.source, ""));
            let document = match documents.iter().position(|it| it.name == document) {
                Some(at) => &mut documents[at],
                None => {
                    documents.push(Document {
                        name: document.to_owned(),
                        anchor: anchor(document),
                        places: Vec::new(),
                    });
                    let last = documents.len() - 1;
                    &mut documents[last]
                }
            };
            let row = row(&experiment.name, verdict);
            match document.places.iter_mut().find(|it| it.place == place) {
                Some(found) => found.rows.push(row),
                None => document.places.push(Place {
                    place: place.to_owned(),
                    rows: vec![row],
                }),
            }
        }
        documents.sort_by_key(|it| {
            DOCUMENTS
                .iter()
                .position(|name| *name == it.name)
                .unwrap_or(DOCUMENTS.len())
        });
        for document in &mut documents {
            document.places.sort_by_key(|it| order(&it.place));
        }
        documents
    }

    /// Returns the verdicts on the claims that are the experiments' own, not published ones, by experiment.
    fn own(&self) -> Vec<(&Replicated, Vec<&Verdict>)> {
        let mut own = Vec::new();
        for experiment in &self.experiments {
            let verdicts = experiment.verdicts.iter();
            let verdicts: Vec<&Verdict> = verdicts.filter(|it| it.figure.is_none()).collect();
            if !verdicts.is_empty() {
                own.push((experiment, verdicts));
            }
        }
        own
    }

    fn missing(&self) -> Vec<&Replicated> {
        let all = self.experiments.iter();
        all.filter(|it| !it.missing.is_empty()).collect()
    }

    /// Returns the summary of the report as Markdown; [`claims`](Self::claims) has the figures.
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "# Replication\n\nPublished results and those measured here: made by `taut experiment replicate-all`, taut {}, {}, on {}. {}\n\n\
             *Same*: in the published direction, and the interval meets the published figure within its tolerance (a factor of 1.25 unless \
             the experiment says another). *Same direction, × N*: N times the published figure. *Opposite*: in the other direction. n: repetitions; \
             with fewer than six, no interval reaches 95 %, and the verdict holds for the range of all of them. \
             *Printed*, *read off* or *computed*: taken from the text, from a figure, or computed from printed figures. \
             [All verdicts](reference/experiment-file.md#claims). `taut experiment run EXPERIMENT` repeats a row.\n",
            self.taut_version,
            self.made,
            if self.machine.is_empty() {
                "an unknown machine"
            } else {
                &self.machine
            },
            self.lead(),
        );
        self.write_systems(&mut text);
        Self::write_experiments(&mut text);
        self.write_missing(&mut text);
        text.push_str("\n## Inconsistencies of the documents\n\n");
        text.push_str(INCONSISTENCIES);
        text
    }

    /// Writes the table of systems.
    fn write_systems(&self, text: &mut String) {
        text.push_str("\n## The systems\n\n| System | Published | Verdicts of published figures | Experiments |\n|---|---|---|---|\n");
        for it in self.systems() {
            let experiments: Vec<String> =
                it.experiments.iter().map(|it| format!("`{it}`")).collect();
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} |",
                it.name,
                it.published,
                it.verdicts,
                experiments.join(" ")
            );
        }
    }

    /// Writes the links to the verdicts of all experiments and to all claims.
    fn write_experiments(text: &mut String) {
        text.push_str(
            "\n## The experiments\n\n[Runs](runs/README.md) of each are in `runs/EXPERIMENT.parquet`.\n\n\
             [All experiments](runs/verdicts.csv)\n\
             \n## The claims\n\nEach claim with what was published and what was measured; `runs/replication.json` has formulas and notes.\n\n\
             [All claims](runs/claims.csv)\n",
        );
    }

    /// Returns the experiments that have runs, with the counts of their verdicts, as CSV.
    pub fn verdicts(&self) -> String {
        let heading = ["Experiment", "Published figures", "Claims of our own"];
        let mut text = csv_line(heading.map(ToOwned::to_owned));
        for it in self.experiments.iter().filter(|it| it.done > 0) {
            let published = counts(it.verdicts.iter().filter(|it| it.figure.is_some()));
            let own = counts(it.verdicts.iter().filter(|it| it.figure.is_none()));
            text.push_str(&csv_line([it.name.clone(), published, own]));
        }
        text
    }

    /// Returns all claims as CSV: first those with published figures, by document and place, then the experiments' own.
    pub fn claims(&self) -> String {
        let heading = [
            "Experiment",
            "Place",
            "Claim",
            "Published, or condition",
            "Here",
            "Verdict",
            "n",
        ];
        let mut text = csv_line(heading.map(ToOwned::to_owned));
        let mut line = |place: String, row: Row<'_>| {
            let verdict = row.verdict;
            let limit = match verdict.figure {
                Some(_) => short_origin(&row.published),
                None => verdict.condition.clone(),
            };
            text += &csv_line([
                row.name.to_owned(),
                place,
                verdict.text.clone(),
                limit,
                row.here,
                verdict.brief(),
                verdict.repetitions.to_string(),
            ]);
        };
        for document in self.documents() {
            for place in document.places {
                for row in place.rows {
                    line(format!("{}, {}", document.name, place.place), row);
                }
            }
        }
        for (experiment, verdicts) in self.own() {
            for verdict in verdicts {
                line(String::new(), row(&experiment.name, verdict));
            }
        }
        text
    }

    /// Writes the list of experiments with missing runs.
    fn write_missing(&self, text: &mut String) {
        text.push_str("\n## Missing runs\n\n");
        for it in self.missing() {
            let _ = writeln!(
                text,
                "- `{}` ({}): {} of {} runs. {}",
                it.name, it.title, it.done, it.planned, it.missing
            );
        }
    }
}

impl Replicated {
    fn of(name: &str, folder: &Folder) -> Result<Self, ExperimentError> {
        let evaluation = Evaluation::of(&folder.experiment()?, folder)?;
        let state = evaluation.state;
        let missing = match state.completion {
            Completion::Finished => String::new(),
            _ if state.done == 0 => "no run came to its end".to_owned(),
            Completion::Incomplete => format!("{} runs failed", state.failed),
            Completion::Interrupted | Completion::Running => "interrupted".to_owned(),
        };
        Ok(Self {
            name: name.to_owned(),
            title: state.title,
            started: state.started,
            done: state.done,
            planned: state.planned,
            missing,
            verdicts: evaluation.verdicts,
        })
    }
}

fn row<'a>(name: &'a str, verdict: &'a Verdict) -> Row<'a> {
    let published = verdict.figure.as_ref().map(|figure| {
        let mut figure = figure.clone();
        // The heading above already names the source.
        figure.source.clear();
        let text = figure.to_string();
        text.replace(" (, ", " (")
    });
    Row {
        verdict,
        name,
        published: published.unwrap_or_default(),
        here: verdict.here(),
        class: verdict.verdict.class(),
    }
}

/// Returns how many of the verdicts are of each kind: `3 same, 1 opposite`.
fn counts<'a>(verdicts: impl Iterator<Item = &'a Verdict>) -> String {
    let mut counts: BTreeMap<VerdictKind, usize> = BTreeMap::new();
    for verdict in verdicts {
        *counts.entry(verdict.verdict).or_default() += 1;
    }
    let counts = counts
        .iter()
        .map(|(kind, count)| format!("{count} {}", kind.name()));
    counts.collect::<Vec<String>>().join(", ")
}

/// Returns a published figure with the short name of its origin, which the head of the Markdown report explains.
fn short_origin(published: &str) -> String {
    let computed = published.replace(Origin::Computed.words(), "computed");
    computed.replace(Origin::ReadOff.words(), "read off")
}

/// Returns a name as an anchor for links on the page.
fn anchor(name: &str) -> String {
    let word = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    name.chars().map(word).collect()
}

/// Returns a sort key that compares numbers in a source by value, so that Fig. 5.14 sorts after Fig. 5.9.
fn order(place: &str) -> Vec<(u64, String)> {
    place
        .split(|c: char| !c.is_alphanumeric())
        .filter(|part| !part.is_empty())
        .map(|part| {
            let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
            (digits.parse().unwrap_or(0), part.to_owned())
        })
        .collect()
}

/// Returns the lines of [`SYSTEMS`]: name, location of the description, and names of the experiments.
fn systems() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    SYSTEMS.lines().filter_map(|line| {
        let (name, rest) = line.split_once(",\"")?;
        let (published, experiments) = rest.split_once("\",")?;
        Some((name, published, experiments))
    })
}

fn inconsistencies() -> impl Iterator<Item = &'static str> {
    INCONSISTENCIES
        .lines()
        .filter_map(|line| line.strip_prefix("- "))
}

/// Returns processor and kernel of the machine on which a folder's runs were made; empty if unknown.
fn machine_of(folder: &Folder) -> String {
    let nodes = nodes_of(folder);
    let Some(facts) = nodes.values().next() else {
        return String::new();
    };
    let fact = |pointer: &str| {
        let found = facts.machine.pointer(pointer)?;
        Some(found.get("value").unwrap_or(found).as_str()?.to_owned())
    };
    let parts = [
        fact("/cpu/model"),
        fact("/cpu_model"),
        fact("/kernel"),
        fact("/kernel/release"),
    ];
    let known: Vec<String> = parts
        .into_iter()
        .flatten()
        .filter(|it| it.len() < 100)
        .collect();
    match known.is_empty() {
        true => facts.system.clone(),
        false => format!("{}, {}", known.join(", "), facts.system),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::claim::PublishedFigure;

    fn verdict(source: Option<&str>, kind: VerdictKind) -> Verdict {
        let figure = source.map(|source| PublishedFigure {
            value: Some(2.0),
            range: None,
            at_least: None,
            at_most: None,
            unit: "times".to_owned(),
            source: source.to_owned(),
            origin: Origin::Printed,
            text: String::new(),
        });
        let value = serde_json::json!({
            "text": "it is | so", "published": "", "formula": "", "value": 4.0, "interval": [3.0, 5.0], "coverage": 0.96,
            "repetitions": 6, "condition": "value > 1", "verdict": kind, "note": "", "figure": figure, "factor": 2.0,
            "same": [1.6, 2.5],
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn results_and_reports_that_cannot_be_read_count_as_missing() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("demo")).unwrap();
        std::fs::write(dir.path().join("replication.json"), "{").unwrap();
        let report = ReplicationReport::gather(dir.path()).unwrap();
        let of = |name: &str| {
            report
                .experiments
                .iter()
                .find(|it| it.name == name)
                .unwrap()
        };
        assert!(
            of("demo").missing.contains("cannot be read: "),
            "{}",
            of("demo").missing
        );
        assert_eq!(of("scale").missing, "not run");
        assert!(report.experiments.iter().all(|it| it.done == 0));
    }

    #[test]
    fn every_replicated_system_refers_to_existing_experiments() {
        let all: Vec<_> = systems().collect();
        assert_eq!(all.len(), 21);
        for (name, _, experiments) in all {
            for experiment in experiments.split(' ') {
                assert!(
                    reference().any(|it| it == experiment),
                    "{name}: {experiment}"
                );
            }
        }
    }

    #[test]
    fn published_figures_are_listed_by_document_and_missing_runs_reported() {
        let experiment = |name: &str, verdicts, missing: &str| Replicated {
            name: name.to_owned(),
            title: "t".to_owned(),
            started: String::new(),
            done: 1,
            planned: 2,
            missing: missing.to_owned(),
            verdicts,
        };
        use VerdictKind::{Fails, Holds, NoData, NotMeasured, Opposite, SameDirection};
        let report = ReplicationReport {
            schema: 1,
            made: "2026-01-01T00:00:00Z".to_owned(),
            taut_version: "0".to_owned(),
            machine: String::new(),
            experiments: vec![
                experiment(
                    "a",
                    vec![
                        verdict(Some("Gallenmüller 2021, 5.4.3, Fig. 5.14"), SameDirection),
                        verdict(Some("Gallenmüller 2021, 5.3, Fig. 5.9"), Opposite),
                        verdict(None, Fails),
                        verdict(None, Holds),
                    ],
                    "",
                ),
                experiment(
                    "b",
                    vec![
                        verdict(Some("Lange 2015, III.D"), NoData),
                        verdict(None, NotMeasured),
                    ],
                    "3 runs failed",
                ),
            ],
        };
        let claims: Vec<String> = report.claims().lines().map(str::to_owned).collect();
        let want = [
            "Experiment,Place,Claim,\"Published, or condition\",Here,Verdict,n",
            "b,\"Lange 2015, III.D\",it is | so,2 times (printed),4 (96 % 3 to 5),no data,6",
            "a,\"Gallenmüller 2021, 5.3, Fig. 5.9\",it is | so,2 times (printed),4 (96 % 3 to 5),opposite,6",
            "a,\"Gallenmüller 2021, 5.4.3, Fig. 5.14\",it is | so,2 times (printed),4 (96 % 3 to 5),\"same direction, × 2\",6",
            "a,,it is | so,value > 1,4 (96 % 3 to 5),fails,6",
            "a,,it is | so,value > 1,4 (96 % 3 to 5),holds,6",
            "b,,it is | so,value > 1,4 (96 % 3 to 5),not measured,6",
        ];
        assert_eq!(claims, want);
        let text = report.markdown();
        let row = "| `a` | 1 same direction, 1 opposite | 1 holds, 1 fails |\n";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("- `b` (t): 1 of 2 runs. 3 runs failed"));
        assert_eq!(
            report.lead(),
            "Published figures (3): 0 same, 1 same direction, 1 opposite, 0 unclear, 1 no data. Claims of our own (3): 1 holds, 1 fails, 0 unclear, 0 no data, 1 not measured."
        );
        let folder = tempfile::tempdir().unwrap();
        let page = std::fs::read_to_string(report.write(folder.path()).unwrap()).unwrap();
        assert!(
            page.contains("a/report.html") && page.contains("it is"),
            "{page}"
        );
        let read = std::fs::read(folder.path().join("replication.json")).unwrap();
        let read: ReplicationReport = serde_json::from_slice(&read).unwrap();
        assert_eq!(read.experiments.len(), 2);
    }

    #[test]
    fn the_documentation_matches_the_stored_report() {
        let docs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"));
        let report = std::fs::read(docs.join("runs/replication.json")).unwrap();
        let report: ReplicationReport = serde_json::from_slice(&report).unwrap();
        for (name, text) in [
            ("replication.md", report.markdown()),
            ("runs/verdicts.csv", report.verdicts()),
            ("runs/claims.csv", report.claims()),
        ] {
            let file = docs.join(name);
            if std::env::var_os("TAUT_WRITE_REFERENCE").is_some() {
                std::fs::write(&file, &text).unwrap();
            }
            let is_current = std::fs::read_to_string(&file).is_ok_and(|found| found == text);
            assert!(
                is_current,
                "TAUT_WRITE_REFERENCE=1 cargo test -p taut-experiment --lib replication writes {name}"
            );
        }
    }

    #[test]
    fn earlier_verdicts_stay_in_the_report_after_results_are_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let mut report = ReplicationReport::gather(dir.path()).unwrap();
        // The folder contains no results.
        assert_eq!(report.experiments.len(), reference().count());
        assert!(report.experiments.iter().all(|it| it.missing == "not run"));
        report.machine = "m".to_owned();
        report.experiments[0].done = 3;
        report.write(dir.path()).unwrap();
        let again = ReplicationReport::gather(dir.path()).unwrap();
        assert_eq!(
            (again.machine.as_str(), again.experiments[0].done),
            ("m", 3)
        );
        assert_eq!(again.experiments[1].missing, "not run");
    }
}
