//! A page and terminal text from the same tables, for benchmarks whose results need no more.

use super::definition::{Benchmark, Results};
use super::shell::{Shell, publish};
use crate::report::drawn::Drawn;
use crate::report::error::ReportError;
use askama::Template;
use serde::Serialize;
use std::path::{Path, PathBuf};
use taut_figure::table;

/// A figure, and what stands small beside it, such as its interval; empty for nothing.
pub type Cell = [String; 2];

/// Returns a cell with nothing beside its figure.
pub fn plain(figure: impl Into<String>) -> Cell {
    [figure.into(), String::new()]
}

/// A table of a report.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Heading above it; empty for none.
    pub title: String,
    /// What a reader of the page has to know of it; empty for nothing.
    pub caption: String,
    /// Names of the columns.
    pub head: Vec<String>,
    /// Rows of cells; a table without any is not shown.
    pub rows: Vec<Vec<Cell>>,
    /// Numbers of columns in the order in which a narrow terminal goes without them.
    pub least_important: Vec<usize>,
    /// Number of the column from which on a terminal shows figures only; none if it shows all there is.
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

/// Writes the report of a benchmark whose results are tables and figures. `finding` is the outcome in a sentence or two,
/// `how` says how it was measured.
///
/// # Errors
/// When the folder cannot be written.
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
        head: B::HEAD,
        outcomes: B::OUTCOMES,
    };
    publish(dir, summary, figures, &page.render()?)
}

/// Returns tables as text for a terminal of so many columns.
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
