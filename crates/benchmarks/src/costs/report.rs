//! The report of a results folder of this benchmark.

use super::evaluate::{Evaluation, PortModel, TermRow};
use super::prediction::Asked;
use super::{Results, figures, page};
use schemars::JsonSchema;
use serde::Serialize;
use std::path::{Path, PathBuf};
use taut_bench::benchmark::tables::{self, Table, disturbed_lines, marked, plain};
use taut_bench::benchmark::{Warned, highest, publish};
use taut_bench::report::ReportError;
use taut_measure::quantity::{rate, share, three_digits};
use taut_results::{InsidePath, ResultsError, busy, write_whole};

/// The contents of `summary.json`.
#[derive(Serialize, JsonSchema)]
pub struct Summary<'a> {
    tsc_hz: f64,
    ports: &'a [PortModel],
    left_out: &'a [taut_results::LeftOut],
    problems: &'a [String],
    #[serde(flatten)]
    machine: Warned,
}

/// Writes the report into the results folder `dir`.
///
/// # Errors
/// Returns an error if the folder cannot be written.
pub(super) fn write(dir: &Path, results: &Results) -> Result<PathBuf, ReportError> {
    let evaluation = Evaluation::of(results);
    let summary = Summary {
        tsc_hz: results.head.tsc_hz,
        ports: &evaluation.ports,
        left_out: &results.head.manifest.left_out,
        problems: &results.problems,
        machine: Warned::of(&results.head.manifest.noise),
    };
    write_models(dir, &evaluation.ports)?;
    write_whole(&dir.join("runs.csv"), runs(results).as_bytes())?;
    let asked = Asked::of(&evaluation);
    let figures = figures::draw(&evaluation, asked.as_ref());
    let page = page::render(&evaluation, asked, &all_tables(&evaluation), &figures)?;
    publish(dir, &summary, &figures, &page)
}

/// Returns the tables for a terminal.
pub(super) fn text(results: &Results, width: Option<usize>) -> String {
    let evaluation = Evaluation::of(results);
    let mut text = tables::text(&all_tables(&evaluation), width);
    for line in disturbed(&evaluation) {
        text += &format!("{line}\n");
    }
    text
}

/// Returns the measured runs in the format of `taut model fit`, in the order of their points.
fn runs(results: &Results) -> String {
    let mut trials: Vec<_> = results.outcomes.iter().collect();
    trials.sort_by(|a, b| (&a.port, a.number).cmp(&(&b.port, b.number)));
    let mut text =
        "ports,load_cycles,functions,frame_bytes,batch,line_cycles,cycles,pps\n".to_owned();
    for trial in trials {
        let point = trial.point;
        text += &format!(
            "{},{},{},{},{},{},{},{}\n",
            trial.port,
            point.load_cycles,
            point.functions,
            point.frame_bytes,
            trial.batch,
            trial.line().map_or(String::new(), |line| line.to_string()),
            trial.cycles,
            trial.rate_pps
        );
    }
    text
}

/// Writes each fitted model as `models/PORT.toml`.
fn write_models(dir: &Path, ports: &[PortModel]) -> Result<(), ReportError> {
    for port in ports {
        if let Some(text) = port.model.as_ref().and_then(|m| toml::to_string(m).ok()) {
            // The id is checked without the extension, because with the extension even `..` would be a valid file name.
            let name = InsidePath::one(&port.port)
                .and_then(|name| InsidePath::new(&format!("models/{name}.toml")))
                .map_err(|source| ResultsError::NotInside {
                    path: dir.to_owned(),
                    source,
                })?;
            name.write(dir, text.as_bytes())?;
        }
    }
    Ok(())
}

fn all_tables(evaluation: &Evaluation<'_>) -> Vec<Table> {
    vec![errors_table(evaluation), terms_table(evaluation)]
}

/// Returns the fraction of the time that other programs took from the worker of a port, 0..1. On a quiet machine it is
/// 0: interruptions are then work of the kernel for the measured packets.
fn taken(evaluation: &Evaluation<'_>, port: &PortModel) -> f64 {
    match busy(&evaluation.results.head.manifest.noise) {
        Some(_) => port.interrupted,
        None => 0.0,
    }
}

/// Returns a warning for each kind of port whose worker lost too much time to other programs.
fn disturbed(evaluation: &Evaluation<'_>) -> Vec<String> {
    let ports = evaluation.ports.iter();
    disturbed_lines(ports.map(|port| (port.port.as_str(), taken(evaluation, port))))
}

fn errors_table(evaluation: &Evaluation<'_>) -> Table {
    let row = |port: &PortModel| {
        let error = |of: fn(&taut_model::Errors) -> f64| {
            plain(
                port.held_out
                    .as_ref()
                    .map_or("–".to_owned(), |e| share(of(e))),
            )
        };
        let moved = match port.moved {
            0 => String::new(),
            count => format!("{count} left out: a core was moved"),
        };
        vec![
            plain(marked(&port.port, taken(evaluation, port))),
            [port.runs.to_string(), moved],
            plain(port.generator_bound.to_string()),
            plain(highest::in_table(
                &rate(port.highest_pps),
                port.highest_limited_by,
            )),
            plain(share(port.interrupted)),
            error(|e| e.median),
            error(|e| e.p95),
            plain(format!("≤ {}", share(port.goal))),
            plain(match (port.meets_goal, &port.no_model) {
                (Some(true), _) => "met".to_owned(),
                (Some(false), _) => "missed".to_owned(),
                (None, Some(why)) => format!("no model: {why}"),
                (None, None) => "nothing held out".to_owned(),
            }),
        ]
    };
    Table {
        title: "Errors on held-out runs".to_owned(),
        caption: disturbed(evaluation).join("; "),
        head: [
            "port",
            "runs",
            "generator-bound",
            "highest rate",
            "interrupted",
            "median error",
            "p95",
            "goal",
            "verdict",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows: evaluation.ports.iter().map(row).collect(),
        least_important: vec![4, 3, 2],
        ..Table::default()
    }
}

fn terms_table(evaluation: &Evaluation<'_>) -> Table {
    let of_port = |port: &PortModel| {
        let id = port.port.clone();
        let row = move |term: &TermRow| {
            vec![
                plain(id.clone()),
                plain(term.name.clone()),
                [
                    short(term.value),
                    format!("{} to {}", short(term.low), short(term.high)),
                ],
                plain(term.unit.clone()),
            ]
        };
        port.terms.iter().map(row).collect::<Vec<_>>()
    };
    Table {
        title: "Models".to_owned(),
        head: ["port", "term", "cycles", "unit"]
            .map(str::to_owned)
            .to_vec(),
        rows: evaluation.ports.iter().flat_map(of_port).collect(),
        ..Table::default()
    }
}

/// Formats a coefficient. Coefficients per byte get more digits, because they are small.
fn short(value: f64) -> String {
    match value.abs() {
        size if size > 0.0 && size < 0.01 => format!("{value:.1e}"),
        _ => three_digits(value),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{Costs, made_up};
    use taut_bench::benchmark::{Benchmark, show};
    use taut_results::{Noise, write_json};

    fn made_up_noise() -> Noise {
        Noise {
            name: "made up".to_owned(),
            detail: String::new(),
            taken: Some(0.12),
            programs: vec!["cc1".to_owned()],
        }
    }

    #[test]
    fn ports_of_interrupted_workers_are_marked() {
        let mut results = made_up::results();
        let outcomes = results.outcomes.iter_mut();
        for trial in outcomes.filter(|trial| trial.port == "pair") {
            trial.interrupted = 0.05;
        }
        let quiet = super::text(&results, None);
        assert!(!quiet.contains("pair *"), "{quiet}");
        results.head.manifest.noise = vec![made_up_noise()];
        let text = super::text(&results, None);
        let line = "\n* pair: 5.0 % of a core went to other programs\n";
        assert!(text.contains("pair *") && text.contains(line), "{text}");
        assert!(!text.contains("null *"), "{text}");
    }

    #[test]
    fn a_busy_machine_is_reported_in_notes_summary_and_page() {
        let folder = tempfile::tempdir().unwrap();
        made_up::write(folder.path());
        let mut head = made_up::results().head;
        head.manifest.noise = vec![made_up_noise()];
        write_json(&folder.path().join(Costs::DESCRIPTION.head), &head).unwrap();
        let shown = show::<Costs>(folder.path(), None).unwrap();
        let reason = "12.0 % of a core went to other programs (most: cc1)";
        assert!(shown.problems[0].contains(reason), "{:?}", shown.problems);
        let summary = std::fs::read_to_string(folder.path().join("summary.json")).unwrap();
        let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
        assert_eq!(summary["warnings"][0], shown.problems[0]);
        assert_eq!(summary["taken_share"], 0.12);
        assert_eq!(summary["taken_by"][0], "cc1");
        let page = std::fs::read_to_string(&shown.page).unwrap();
        assert!(page.contains(reason));
    }

    #[test]
    fn a_results_folder_becomes_a_page_with_figures_and_checks() {
        let folder = tempfile::tempdir().unwrap();
        made_up::write(folder.path());
        let shown = show::<Costs>(folder.path(), None).unwrap();
        assert!(
            shown.text.contains("line_byte") && shown.text.contains("met"),
            "{}",
            shown.text
        );
        let page = std::fs::read_to_string(&shown.page).unwrap();
        let checks = taut_model::published::checks().unwrap().len();
        for part in [
            "miss the cycles of the other half",
            "Ask the models",
            "id=\"models\"",
            "data-port=\"pair\"",
            "What binds over the load",
            "Snort-fwd, VM: highest rate seen",
            &format!("All {checks} figures"),
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert!(!page.contains("NaN"), "a number that is none");
        // The script finds elements by their ids.
        let ids: Vec<&str> = page
            .split(" id=\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .collect();
        let distinct: std::collections::BTreeSet<&str> = ids.iter().copied().collect();
        assert_eq!(ids.len(), distinct.len(), "{ids:?}");
        for figure in [
            "predicted",
            "residuals",
            "binding",
            "shares-null",
            "shares-pair",
        ] {
            assert!(
                folder
                    .path()
                    .join(format!("figures/{figure}.svg"))
                    .is_file(),
                "{figure}"
            );
        }
        for port in ["null", "pair"] {
            assert!(folder.path().join(format!("models/{port}.toml")).is_file());
        }
        let runs = std::fs::read_to_string(folder.path().join("runs.csv")).unwrap();
        assert!(
            runs.starts_with(
                "ports,load_cycles,functions,frame_bytes,batch,line_cycles,cycles,pps\n"
            )
        );
        assert_eq!(runs.lines().count(), 1 + 2 * made_up::POINTS);
        // The same folder must give the same page.
        show::<Costs>(folder.path(), None).unwrap();
        assert_eq!(page, std::fs::read_to_string(&shown.page).unwrap());
    }

    #[test]
    fn reports_never_read_or_write_files_outside_the_results_folder() {
        let folder = tempfile::tempdir().unwrap();
        made_up::write(folder.path());
        crate::strangers::check(folder.path(), |dir| {
            show::<Costs>(dir, None).map(|it| it.page)
        });
        let outside = tempfile::tempdir().unwrap();
        let precious = outside.path().join("x.toml");
        let head = folder.path().join(Costs::DESCRIPTION.head);
        let text = std::fs::read_to_string(&head).unwrap();
        let points = folder.path().join("points");
        let names = [
            format!("{}/x", outside.path().display()),
            format!("../../../../../../..{}/x", outside.path().display()),
            "below/x".to_owned(),
            "..".to_owned(),
            String::new(),
        ];
        for name in names {
            std::fs::write(&precious, "precious = 1").unwrap();
            let with = |text: &str| text.replace("\"null\"", &format!("{name:?}"));
            assert_ne!(with(&text), text);
            std::fs::write(&head, with(&text)).unwrap();
            let place = tempfile::tempdir().unwrap();
            made_up::write(place.path());
            for entry in std::fs::read_dir(&points).unwrap() {
                let path = entry.unwrap().path();
                let point = std::fs::read_to_string(&path).unwrap();
                let to = place.path().join("points").join(path.file_name().unwrap());
                std::fs::write(to, with(&point)).unwrap();
            }
            std::fs::copy(&head, place.path().join(Costs::DESCRIPTION.head)).unwrap();
            let refused = show::<Costs>(place.path(), None).unwrap_err().to_string();
            assert!(
                refused.contains("cannot be the name of a file in the folder"),
                "{refused}"
            );
            let kept = std::fs::read_to_string(&precious).unwrap();
            assert_eq!(kept, "precious = 1", "{name}");
        }
    }

    #[test]
    fn a_folder_without_complete_runs_yields_a_page_without_models() {
        let folder = tempfile::tempdir().unwrap();
        made_up::write(folder.path());
        std::fs::remove_dir_all(folder.path().join("points")).unwrap();
        std::fs::create_dir(folder.path().join("points")).unwrap();
        let shown = show::<Costs>(folder.path(), None).unwrap();
        let page = std::fs::read_to_string(&shown.page).unwrap();
        assert!(
            page.contains("no model that could be held to runs")
                && !page.contains("Ask the models")
        );
    }

    #[test]
    #[ignore = "writes a page to look at: cargo test -p taut-benchmarks -- --ignored look"]
    fn a_synthetic_page_is_written_for_manual_inspection() {
        let folder = taut_host::private::scratch().unwrap().keep();
        made_up::write(&folder);
        println!("{}", show::<Costs>(&folder, None).unwrap().page.display());
    }
}
