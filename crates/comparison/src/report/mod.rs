//! The report: a self-contained page, an SVG file per figure, and the summary in JSON. All are made from the results
//! folder alone.

mod causes;
mod figures;
mod files;
mod finding;
mod headline;
mod page;

pub use headline::Headline;

use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;
use taut_bench::benchmark::publish;
use taut_bench::report::{ReportError, Shown};

use crate::evaluate::{Evaluation, Ratio, Row, disturbed_rows, ratios, render_text_table, rows};
use taut_results::Results;

/// The contents of `summary.json`: the table and the ratios.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Summary<'a> {
    /// One row per device.
    pub devices: &'a [Row],
    /// Ratios between devices.
    pub ratios: &'a [Ratio],
    /// The files that are missing or unreadable, one sentence each.
    pub problems: &'a [String],
}

/// Writes the report of a comparison's results folder, and returns the text for a terminal with `width` columns.
///
/// # Errors
/// Returns an error if the folder cannot be read or written.
pub fn show(dir: &Path, width: Option<usize>) -> Result<Shown, ReportError> {
    show_comparison(&Results::load(dir)?, width)
}

/// Writes `summary.json`, `figures/*.svg` and `report.html` of a comparison into its folder, and returns the text for a
/// terminal with `width` columns. Earlier files are replaced.
///
/// The report states whether the experiment was interrupted, and marks devices without data.
///
/// # Errors
/// Returns an error if the folder cannot be written.
pub fn show_comparison(results: &Results, width: Option<usize>) -> Result<Shown, ReportError> {
    let evaluation = Evaluation::of(results);
    let rows = rows(&evaluation.devices);
    let ratios = ratios(&evaluation.devices);
    let summary = Summary {
        devices: &rows,
        ratios: &ratios,
        problems: &evaluation.problems,
    };
    let figures = figures::draw(&evaluation);
    let page = page::render(results, &evaluation, &rows, &ratios, &figures)?;
    let page = publish(&results.dir, &summary, &figures, &page)?;
    let mut text = render_text_table(&rows, width);
    for sentence in finding::sentences(&results.experiment, &evaluation, &ratios) {
        text += &format!("{sentence}\n");
    }
    for line in disturbed_rows(&rows) {
        text += &format!("{line}\n");
    }
    let (stated, withheld): (Vec<&Ratio>, Vec<&Ratio>) =
        ratios.iter().partition(|ratio| ratio.withheld.is_none());
    for ratio in stated.into_iter().chain(withheld) {
        text += &format!("{ratio}\n");
    }
    text += "as an experiment, to change and to publish: taut experiment run demo\n";
    Ok(Shown {
        text,
        problems: evaluation.problems,
        completion: results.experiment.manifest.completion,
        left_out: results.experiment.manifest.left_out.clone(),
        ..Shown::page(page)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::synthetic::{self, Plan, SMALL};
    use std::fs;
    use std::path::PathBuf;

    fn write(dir: &Path) -> Result<PathBuf, ReportError> {
        Ok(show(dir, None)?.page)
    }

    fn made_up() -> (tempfile::TempDir, PathBuf) {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("made-up");
        synthetic::write(&dir, &SMALL);
        (parent, dir)
    }

    /// Returns the name and content of every file that the report wrote.
    fn written(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files = vec![dir.join("report.html"), dir.join("summary.json")];
        files.extend(
            fs::read_dir(dir.join("figures"))
                .unwrap()
                .map(|entry| entry.unwrap().path()),
        );
        files.sort();
        files
            .into_iter()
            .map(|path| (path.clone(), fs::read(path).unwrap()))
            .collect()
    }

    #[test]
    fn reports_never_read_or_write_files_outside_the_results_folder() {
        let (_parent, dir) = made_up();
        crate::strangers::check(&dir, write);
    }

    #[test]
    fn sentences_follow_the_table_and_withheld_ratios_come_last() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("made-up");
        let plan = Plan {
            repetitions: 3,
            ..SMALL
        };
        synthetic::write(&dir, &plan);
        let mut results = Results::load(&dir).unwrap();
        for run in &mut results.runs {
            // Means and rates of this device are not comparable, but its median is.
            run.taken = (run.device_id == "memif-idle").then_some(0.1);
        }
        let text = show_comparison(&results, None).unwrap().text;
        let heading = 2 + results.experiment.devices.len();
        let lines: Vec<&str> = text.lines().skip(heading).collect();
        assert!(lines[0].starts_with("At 100 kpkt/s"), "{text}");
        let star = lines.iter().position(|line| line.starts_with("* memif"));
        assert_eq!(star, Some(3), "{text}");
        let ratios = &lines[4..lines.len() - 1];
        let reason =
            "memif-idle over memif-full: not stated, as 10.0 % of a core went to other programs";
        assert!(ratios.iter().any(|line| line.contains(reason)), "{text}");
        let is_withheld = |line: &&str| line.contains(": not stated, as ");
        assert!(ratios.is_sorted_by_key(is_withheld), "{text}");
    }

    #[test]
    fn the_report_of_a_folder_is_reproducible_byte_for_byte() {
        let (_parent, dir) = made_up();
        write(&dir).unwrap();
        let first = written(&dir);
        assert!(
            first.len() >= 8,
            "a page, a summary and the figures: {}",
            first.len()
        );
        write(&dir).unwrap();
        assert!(first == written(&dir));
    }

    #[test]
    fn folders_with_outside_paths_or_excessive_run_counts_are_refused() {
        for (word, with, part) in [
            ("\"id\": \"", "\"id\": \"../../", "device id"),
            (
                "\"repetitions\": ",
                "\"repetitions\": 40000000",
                "more than 100000 runs",
            ),
        ] {
            let (_parent, dir) = made_up();
            let path = dir.join("experiment.json");
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains(word));
            fs::write(&path, text.replacen(word, with, 1)).unwrap();
            let message = write(&dir).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
        let (_parent, dir) = made_up();
        fs::remove_file(dir.join("experiment.json")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", dir.join("experiment.json")).unwrap();
        let message = write(&dir).unwrap_err().to_string();
        assert!(message.contains("is a link"), "{message}");
    }

    #[test]
    fn the_page_is_self_contained_and_smaller_than_five_megabytes() {
        let (_parent, dir) = made_up();
        let page = fs::read_to_string(write(&dir).unwrap()).unwrap();
        assert!(page.len() < 5_000_000, "{} bytes", page.len());
        for load in [
            "src=\"http",
            "href=\"http",
            "url(http",
            "@import",
            "<link",
            "<script src",
        ] {
            let loads: Vec<_> = page
                .match_indices(load)
                .filter(|(at, _)| !page[*at..].starts_with("href=\"https://doi.org/"))
                .collect();
            assert!(loads.is_empty(), "{load}: {} times", loads.len());
        }
    }

    #[test]
    fn every_svg_figure_is_complete_with_title_and_description() {
        let (_parent, dir) = made_up();
        write(&dir).unwrap();
        for (path, bytes) in written(&dir) {
            if path.extension().is_some_and(|e| e == "svg") {
                let text = String::from_utf8(bytes).unwrap();
                assert!(
                    text.contains("<title") && text.contains("<desc"),
                    "{}",
                    path.display()
                );
                assert!(text.trim_end().ends_with("</svg>"), "{}", path.display());
                assert!(
                    !text.contains("NaN") && !text.contains("inf"),
                    "{}",
                    path.display()
                );
            }
        }
    }

    #[test]
    fn the_report_of_an_incomplete_experiment_marks_it_as_interrupted() {
        let (_parent, dir) = made_up();
        let mut experiment = synthetic::experiment(&SMALL);
        experiment.manifest.completion = taut_results::Completion::Interrupted;
        let device = experiment.devices[0].id.clone();
        let text = serde_json::to_vec(&experiment).unwrap();
        fs::write(dir.join("experiment.json"), text).unwrap();
        fs::remove_dir_all(dir.join("runs").join(&device).join("2")).unwrap();
        fs::remove_dir_all(dir.join("runs").join(&experiment.devices[1].id)).unwrap();
        let page = fs::read_to_string(write(&dir).unwrap()).unwrap();
        assert!(page.to_lowercase().contains("interrupted"));
        let results = Results::load(&dir).unwrap();
        let table = rows(&Evaluation::of(&results).devices);
        assert_eq!((table[0].repetitions, table[0].planned), (1, 2));
        assert!(
            table[1].latency.is_none(),
            "nothing is made up for a device without data"
        );
    }

    #[test]
    fn damaged_result_files_are_named_in_problems_and_errors() {
        let (_parent, dir) = made_up();
        let id = synthetic::experiment(&SMALL).devices[0].id.clone();
        let run = dir.join("runs").join(id).join("1");
        fs::write(run.join("cbr.json"), "{\"sent\": ").unwrap();
        let results = Results::load(&dir).unwrap();
        let problems = Evaluation::of(&results).problems.join("\n");
        assert!(problems.contains("cbr.json"), "{problems}");
        fs::write(dir.join("experiment.json"), "{").unwrap();
        assert!(
            write(&dir)
                .unwrap_err()
                .to_string()
                .contains("experiment.json")
        );
    }

    #[test]
    #[ignore = "writes a report to look at: cargo test -p taut-comparison -- --ignored look"]
    fn a_synthetic_report_is_written_for_manual_inspection() {
        // The folder is kept after the test, so that a person can look at the report.
        let dir = taut_host::private::scratch().unwrap().keep().join("report");
        synthetic::write(
            &dir,
            &Plan {
                repetitions: 3,
                packets: 300_000,
                seed: 7,
            },
        );
        println!("{}", write(&dir).unwrap().display());
        let results = Results::load(&dir).unwrap();
        println!(
            "{}",
            render_text_table(&rows(&Evaluation::of(&results).devices), None)
        );
    }
}
