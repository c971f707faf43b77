//! The gallery of the documentation: each experiment has a figure, and a row with the commit of the measurement.

use crate::support::names;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const PAGE: &str = "docs/gallery.md";
const FIGURES: &str = "docs/gallery";
const RUNS: &str = "docs/runs/experiments.csv";
/// The largest figure on the page, bytes.
const MOST_BYTES: usize = 40_000;

/// Returns the text under each heading of an experiment.
fn shown(page: &str) -> BTreeMap<String, String> {
    let mut figures = BTreeMap::new();
    for part in page.split("\n### ").skip(1) {
        let (name, text) = part.split_once('\n').unwrap();
        let text = text.split("\n## ").next().unwrap_or_default();
        let before = figures.insert(name.trim().to_owned(), text.to_owned());
        assert_eq!(before, None, "{name} twice");
    }
    figures
}

#[test]
fn every_experiment_has_a_figure_and_a_row() {
    let page = fs::read_to_string(PAGE).unwrap();
    let figures = shown(&page);
    let experiments = names(Path::new("experiments")).into_iter();
    let experiments: BTreeSet<String> = experiments
        .filter_map(|file| file.strip_suffix(".toml").map(str::to_owned))
        .collect();
    let mut unmeasured = experiments.clone();
    let named: BTreeSet<String> = figures.keys().cloned().collect();
    let missing: Vec<_> = experiments.difference(&named).collect();
    let unknown: Vec<_> = named.difference(&experiments).collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "{PAGE} lacks {missing:?} and names {unknown:?}, which there are not"
    );
    let mut rows = csv::Reader::from_path(RUNS).unwrap();
    for row in rows.records().map(Result::unwrap) {
        let (name, commit) = (&row[0], &row[row.len() - 1]);
        let is_commit = commit.len() >= 7 && commit.bytes().all(|it| it.is_ascii_hexdigit());
        assert!(is_commit, "{RUNS}: {name}: {commit}");
        assert!(unmeasured.remove(name), "{RUNS}: {name}");
        let samples = format!("docs/runs/{name}.parquet");
        assert!(Path::new(&samples).is_file(), "no {samples}");
    }
    assert!(unmeasured.is_empty(), "{RUNS} lacks {unmeasured:?}");
    let mut drawn = BTreeSet::new();
    for (name, text) in &figures {
        let title = fs::read_to_string(format!("experiments/{name}.toml")).unwrap();
        let title: toml::Table = title.parse().unwrap();
        assert!(
            text.contains(title["title"].as_str().unwrap()),
            "{name}: title"
        );
        let file = format!("{name}.svg");
        assert!(
            text.contains(&format!("](gallery/{file})")),
            "{name}: no figure"
        );
        let path = Path::new(FIGURES).join(&file);
        let svg = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(
            svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"),
            "{file}"
        );
        assert!(svg.len() <= MOST_BYTES, "{file}: {} bytes", svg.len());
        assert!(!svg.contains("<script"), "{file}");
        drawn.insert(file);
    }
    assert_eq!(
        names(Path::new(FIGURES)),
        drawn,
        "figures that the page does not show"
    );
}
