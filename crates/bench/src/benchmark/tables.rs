//! The page and the terminal text of benchmarks that need only tables and figures, both made from the same tables.

use super::definition::{Benchmark, Results};
use super::shell::{Shell, publish};
use crate::report::drawn::Drawn;
use crate::report::error::ReportError;
use askama::Template;
use serde::Serialize;
use std::path::{Path, PathBuf};
use taut_figure::table;
use taut_results::{MOST_TAKEN, taken_text};

/// A cell of a table: a value, and the text in small type after it, such as its interval. The text is empty if there is
/// none.
pub type Cell = [String; 2];

/// Returns a cell with only a value.
pub fn plain(figure: impl Into<String>) -> Cell {
    [figure.into(), String::new()]
}

/// Returns the label of a row. It has a star if the fraction `taken` of a core, which other programs took while the row
/// was measured, is so large that the row is unreliable.
pub fn marked(label: &str, taken: f64) -> String {
    let star = if taken > MOST_TAKEN { " *" } else { "" };
    format!("{label}{star}")
}

/// Returns a line for each row that [`marked`] gives a star, with the reason. A row is its label and the fraction of a
/// core that other programs took.
pub fn disturbed_lines<'a>(rows: impl Iterator<Item = (&'a str, f64)>) -> Vec<String> {
    rows.filter(|(_, taken)| *taken > MOST_TAKEN)
        .map(|(label, taken)| format!("* {label}: {}", taken_text(taken, &[])))
        .collect()
}

/// A table of a report.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Heading above the table; empty for none.
    pub title: String,
    /// Notes for the reader of the page; empty for none.
    pub caption: String,
    /// Headings of the table's columns.
    pub head: Vec<String>,
    /// Rows of cells in the table. A table without rows is not shown.
    pub rows: Vec<Vec<Cell>>,
    /// Indices of the columns with sentences, which the page aligns on the left and breaks into lines.
    pub sentences: Vec<usize>,
    /// Indices of the columns that a narrow terminal omits, the first one first.
    pub least_important: Vec<usize>,
    /// Index of the first column without small text on a terminal; none if a terminal shows the small text in all
    /// columns.
    pub brief_from: Option<usize>,
}

#[derive(Template)]
#[template(path = "benchmark.html")]
struct Page<'a> {
    shell: Shell<'a>,
    tables: &'a [Table],
    how: &'a str,
    core_plan: &'a str,
    head: &'static str,
    outcomes: &'static str,
}

/// Writes the report of a benchmark with tables and figures only. `finding` is the result in one or two sentences,
/// `how` describes the measurement.
///
/// # Errors
/// Returns an error if the folder cannot be written.
pub fn report<B: Benchmark>(
    dir: &Path,
    results: &Results<B>,
    summary: &impl Serialize,
    (finding, how): (&str, &str),
    tables: &[Table],
    figures: &[Drawn],
) -> Result<PathBuf, ReportError> {
    let page = Page {
        shell: Shell {
            finding: finding.to_string(),
            ..Shell::of_benchmark(results, figures)
        },
        tables,
        how,
        core_plan: &results.head.manifest.core_plan,
        head: B::DESCRIPTION.head,
        outcomes: B::DESCRIPTION.outcomes,
    };
    publish(dir, summary, figures, &page.render()?)
}

/// Returns tables as text for a terminal with `width` columns.
pub fn text(tables: &[Table], width: Option<usize>) -> String {
    let shown = tables.iter().filter(|table| !table.rows.is_empty());
    let texts = shown.map(|of| {
        let mut made = table::plain();
        made.set_header(&of.head);
        let brief_from = of.brief_from.unwrap_or(usize::MAX);
        let cell = |(column, [figure, beside]): (usize, &Cell)| match beside.as_str() {
            beside if column < brief_from && !beside.is_empty() => format!("{figure} ({beside})"),
            _ => figure.clone(),
        };
        for row in &of.rows {
            made.add_row(row.iter().enumerate().map(cell));
        }
        table::set_columns(&mut made, Some(1));
        let least_important = of.least_important.iter();
        let order: Vec<(usize, &str)> = least_important
            .map(|column| (*column, of.head[*column].as_str()))
            .collect();
        table::text(made, &order, width)
    });
    texts.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disturbed_rows_are_marked_and_explained() {
        assert_eq!(marked("memif", 0.001), "memif");
        assert_eq!(marked("pair", 0.125), "pair *");
        let lines = disturbed_lines([("memif", 0.001), ("pair", 0.125)].into_iter());
        assert_eq!(lines, ["* pair: 12.5 % of a core went to other programs"]);
    }
}
