//! A page and terminal text from the same tables, for benchmarks whose results need no more.

use super::{Benchmark, Results, Shell, publish};
use crate::report::{Drawn, ReportError};
use askama::Template;
use comfy_table::CellAlignment;
use serde::Serialize;
use std::path::{Path, PathBuf};
use taut_figure::table;

/// A table of a report.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Heading above it; empty for none.
    pub title: String,
    /// What a reader has to know of it; empty for nothing.
    pub caption: String,
    /// Names of the columns.
    pub head: Vec<String>,
    /// Rows of cells: a figure, and its interval where there is one.
    pub rows: Vec<Vec<[String; 2]>>,
    /// Columns (number and name) in the order in which a narrow terminal goes without them.
    pub least_important: Vec<(usize, String)>,
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
    let texts = tables.iter().map(|of| {
        let mut made = table::plain();
        made.set_header(&of.head);
        for row in &of.rows {
            made.add_row(
                row.iter()
                    .map(|[figure, interval]| match interval.as_str() {
                        "" => figure.clone(),
                        interval => format!("{figure} ({interval})"),
                    }),
            );
        }
        for column in made.column_iter_mut() {
            column.set_padding((0, 2));
            if column.index >= 1 {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let order: Vec<(usize, &str)> = of
            .least_important
            .iter()
            .map(|(index, name)| (*index, name.as_str()))
            .collect();
        table::text(made, &order, width)
    });
    texts.collect::<Vec<_>>().join("\n")
}
