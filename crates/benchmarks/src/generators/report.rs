//! The report of this benchmark's results folder: a self-contained page, an SVG file per figure with its data, and the
//! summary in JSON. All are made from the folder alone.

use super::evaluate::{
    CANNOT_PACE, Comparison, Evaluation, RateRow, Row, disturbed, render_text_table, signed,
};
use super::facts::Results;
use askama::Template;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::{Path, PathBuf};
use taut_bench::benchmark::{Estimate, Shell, Warned, publish};
use taut_bench::framework::Transport;
use taut_bench::report::{Drawn, ReportError};
use taut_figure::bars::{self, Figure, Item};
use taut_figure::{Column, Series, Style, gaps};
use taut_measure::precision::BINS_PER_GAP;
use taut_measure::quantity::{Quantity, count, power, rate, ratio, share, time};

/// The contents of `summary.json`.
#[derive(Serialize, JsonSchema)]
pub struct Summary<'a> {
    tsc_hz: f64,
    tsc_error_ppm: f64,
    rates: &'a [super::facts::Rates],
    generators: &'a [Row],
    comparisons: &'a [Comparison],
    left_out: &'a [taut_results::LeftOut],
    problems: &'a [String],
    #[serde(flatten)]
    machine: Warned,
}

#[derive(Template)]
#[template(path = "generators/generators.html")]
struct Page<'a> {
    shell: Shell<'a>,
    bandwidth: Vec<Cells>,
    precision: Vec<Cells>,
    disturbed: Vec<String>,
    comparisons: Vec<[String; 5]>,
    rates: Vec<String>,
    generators: Vec<[String; 2]>,
    core_plan: &'a str,
    few: bool,
}

struct Cells {
    colour: &'static str,
    label: String,
    over: &'static str,
    /// Pairs of a value and its confidence interval; the interval may be empty.
    cells: Vec<[String; 2]>,
}

/// Writes the report into the results folder `dir`.
///
/// # Errors
/// Returns an error if the folder cannot be written.
pub(super) fn write(dir: &Path, results: &Results) -> Result<PathBuf, ReportError> {
    let evaluation = Evaluation::of(results);
    let head = &results.head;
    let summary = Summary {
        tsc_hz: head.tsc_hz,
        tsc_error_ppm: head.tsc_error_ppm,
        rates: &head.own.rates,
        generators: &evaluation.rows,
        comparisons: &evaluation.comparisons,
        left_out: &head.manifest.left_out,
        problems: &results.problems,
        machine: Warned::of(&head.manifest.noise),
    };
    let figures = draw(&evaluation);
    let page = page(&evaluation, &figures).render()?;
    publish(dir, &summary, &figures, &page)
}

/// Returns the tables and the result for a terminal.
pub(super) fn text(results: &Results, width: Option<usize>) -> String {
    let evaluation = Evaluation::of(results);
    let mut text = render_text_table(&evaluation, width);
    for line in disturbed(&evaluation.rows) {
        text += &format!("{line}\n");
    }
    for c in &evaluation.comparisons {
        text += &format!(
            "{}: {} {:.2} times as good as {} ({})\n",
            c.what,
            c.taut,
            c.ratio.median.point,
            c.peer,
            c.ratio.median.words(|value| format!("{value:.2}"))
        );
    }
    for rates in &results.head.own.rates {
        text += &format!("rates over {}: {}\n", rates.transport.name(), rates.why);
    }
    text
}

fn page<'a>(evaluation: &'a Evaluation<'a>, figures: &'a [Drawn]) -> Page<'a> {
    let results = evaluation.results;
    let head = &results.head;
    let rows = || evaluation.rows.iter().enumerate();
    Page {
        shell: Shell {
            finding: finding(&evaluation.comparisons),
            ..Shell::of_benchmark(results, figures)
        },
        bandwidth: rows().map(bandwidth_cells).collect(),
        precision: rows().flat_map(precision_cells).collect(),
        disturbed: disturbed(&evaluation.rows),
        comparisons: evaluation.comparisons.iter().map(compared).collect(),
        rates: head
            .own
            .rates
            .iter()
            .map(|rates| {
                let all: Vec<String> = rates.pps.iter().map(|pps| rate(*pps)).collect();
                format!(
                    "{}: {} ({})",
                    rates.transport.name(),
                    all.join(", "),
                    rates.why
                )
            })
            .collect(),
        generators: head
            .own
            .generators
            .iter()
            .map(|g| {
                let over = format!("over {}", g.transport.name());
                [
                    g.label.clone(),
                    if g.note.is_empty() {
                        over
                    } else {
                        format!("{over}; {}", g.note)
                    },
                ]
            })
            .collect(),
        core_plan: &head.manifest.core_plan,
        few: head.repetitions < 6,
    }
}

/// Returns the result in one or two sentences.
fn finding(comparisons: &[Comparison]) -> String {
    let said: Vec<String> = comparisons
        .iter()
        .map(|c| {
            format!(
                "{}: {} {} of {}",
                c.what,
                c.taut,
                ratio(c.ratio.median.point),
                c.peer
            )
        })
        .collect();
    if said.is_empty() {
        "Nothing to compare: a generator of taut and one of the others are needed.".to_string()
    } else {
        format!(
            "Taut against the others, above 1 where taut is better: {}.",
            said.join("; ")
        )
    }
}

fn compared(c: &Comparison) -> [String; 5] {
    [
        c.what.clone(),
        c.taut.clone(),
        c.peer.clone(),
        ratio(c.ratio.median.point),
        c.ratio.median.short(ratio),
    ]
}

fn cell(estimate: Option<Estimate>, text: fn(f64) -> String) -> [String; 2] {
    match estimate {
        None => ["–".to_string(), String::new()],
        Some(e) => [text(e.point), e.short(text)],
    }
}

fn plain(text: String) -> [String; 2] {
    [text, String::new()]
}

fn bandwidth_cells((index, row): (usize, &Row)) -> Cells {
    Cells {
        colour: Style::of(index).colour,
        label: row.marked(),
        over: row.transport.name(),
        cells: vec![
            cell(row.unpaced_pps, rate),
            match row.no_rates {
                Some(why) => plain(why.to_string()),
                None => cell(row.paced_pps, rate),
            },
            plain(
                row.frame_size_bytes
                    .map_or("–".to_string(), |b| format!("{b:.0}")),
            ),
        ],
    }
}

fn precision_cells((index, row): (usize, &Row)) -> Vec<Cells> {
    let cells = |at: &RateRow| {
        vec![
            plain(rate(at.asked_pps)),
            cell(Some(at.pps), rate),
            cell(Some(at.rate_error), signed),
            cell(Some(at.median_absolute_error_ns), time),
            cell(Some(at.p99_absolute_error_ns), time),
            cell(Some(at.mean_squared_error_ns2), power),
            cell(Some(at.trimmed_squared_error_ns2), power),
            cell(Some(at.all_mean_squared_error_ns2), power),
            cell(Some(at.bunched_share), share),
            plain(count(at.pauses)),
            plain(format!(
                "{} of {}",
                count(at.interrupted_gaps),
                count(at.gaps + at.interrupted_gaps)
            )),
            plain(count(at.overrun)),
        ]
    };
    let row_of = |cells| Cells {
        colour: Style::of(index).colour,
        label: row.marked(),
        over: row.transport.name(),
        cells,
    };
    match row.no_rates {
        Some(why) => vec![row_of(vec![plain(why.to_string())])],
        None => row.rates.iter().map(|at| row_of(cells(at))).collect(),
    }
}

fn series(index: usize, row: &Row) -> Series {
    Series {
        label: row.label.clone(),
        style: Style::of(index),
    }
}

fn draw(evaluation: &Evaluation<'_>) -> Vec<Drawn> {
    let mut all = vec![draw_bandwidth(evaluation)];
    for rates in &evaluation.results.head.own.rates {
        all.push(draw_gaps(evaluation, rates.transport, &rates.pps));
    }
    all.push(draw_errors(evaluation));
    all
}

/// Returns the rows of the generators that send over `transport`, each with its index in the report.
fn over<'a>(evaluation: &'a Evaluation<'_>, transport: Transport) -> Vec<(usize, &'a Row)> {
    let rows = evaluation.rows.iter().enumerate();
    rows.filter(|(_, row)| row.transport == transport).collect()
}

fn spread(estimate: &Estimate) -> [f64; 3] {
    [estimate.low, estimate.point, estimate.high]
}

/// Returns the data of a bar figure as JSON.
fn data(groups: &[Column<Item>]) -> serde_json::Value {
    let groups = groups.iter().map(|group| {
        let items = group.items.iter().map(|item| match &item.spread {
            Ok([low, median, high]) => {
                serde_json::json!({"generator": item.series.label, "low": low,
                "median": median, "high": high})
            }
            Err(why) => serde_json::json!({"generator": item.series.label, "no_data": why}),
        });
        serde_json::json!({"group": group.heading, "items": items.collect::<Vec<_>>()})
    });
    groups.collect()
}

fn draw_bandwidth(evaluation: &Evaluation<'_>) -> Drawn {
    let mut groups = Vec::new();
    for transport in [Transport::Memif, Transport::Veth] {
        let items: Vec<Item> = over(evaluation, transport)
            .into_iter()
            .map(|(index, row)| Item {
                series: series(index, row),
                spread: row
                    .unpaced_pps
                    .as_ref()
                    .map(spread)
                    .ok_or_else(|| "no data".to_string()),
                at_least: false,
            })
            .collect();
        if !items.is_empty() {
            groups.push(Column {
                heading: transport.name().to_string(),
                items,
            });
        }
    }
    let figure = Figure {
        name: "bandwidth",
        title: "Most packets per second",
        x_title: "64-byte frames at most (packets/s)",
        quantity: Quantity::RatePps,
        logarithmic: true,
        text: rate,
    };
    Drawn {
        name: "bandwidth",
        title: "Most packets per second of each generator",
        caption: "64-byte frames, without pacing, from one core, as counted by the receiver. Whiskers: interval of the median, or with fewer than six repetitions their range."
            .to_string(),
        data: Some(data(&groups)),
        svg: bars::draw(&figure, &groups),
    }
}

fn draw_errors(evaluation: &Evaluation<'_>) -> Drawn {
    let mut groups = Vec::new();
    for rates in &evaluation.results.head.own.rates {
        for pps in &rates.pps {
            let item = |(index, row): (usize, &Row)| Item {
                series: series(index, row),
                spread: match row.rates.iter().find(|at| at.asked_pps == *pps) {
                    Some(at) => Ok(spread(&at.mean_squared_error_ns2)),
                    None if row.no_rates.is_some() => Err(CANNOT_PACE.to_string()),
                    None => Err("no data".to_string()),
                },
                at_least: false,
            };
            groups.push(Column {
                heading: format!("{} over {}", rate(*pps), rates.transport.name()),
                items: over(evaluation, rates.transport)
                    .into_iter()
                    .map(item)
                    .collect(),
            });
        }
    }
    let figure = Figure {
        name: "errors",
        title: "Mean squared error of the gaps",
        x_title: "mean squared error against the requested gap (ns²)",
        quantity: Quantity::SquaredNs,
        logarithmic: true,
        text: |value| format!("{} ns²", power(value)),
    };
    Drawn {
        name: "errors",
        title: "Mean squared error of the gaps between packets",
        caption: "Outside the receiver's own interruptions; those of the sender's core count. Whiskers: interval of the median, or with fewer \
                  than six repetitions their range. After Gallenmüller 2021, Tables 3.3b and 3.4: at 2 Mpkt/s MoonGen's software pacing has \
                  29 318 ns² with the processor at 1.6 GHz, and less the faster it is."
            .to_string(),
        data: Some(data(&groups)),
        svg: bars::draw(&figure, &groups),
    }
}

fn draw_gaps(evaluation: &Evaluation<'_>, transport: Transport, pps: &[f64]) -> Drawn {
    let paced: Vec<(usize, &Row)> = over(evaluation, transport)
        .into_iter()
        .filter(|(_, row)| row.no_rates.is_none())
        .collect();
    let item = |(index, row): (usize, &Row), pps: f64| {
        let at = row.rates.iter().find(|at| at.asked_pps == pps);
        gaps::Item {
            series: series(index, row),
            asked_ns: 1e9 / pps,
            shares: at.map(|at| at.shares.clone()).unwrap_or_default(),
            note: at.map_or(String::new(), |at| format!("n = {}", count(at.gaps))),
        }
    };
    let columns: Vec<Column<gaps::Item>> = pps
        .iter()
        .map(|pps| Column {
            heading: rate(*pps),
            items: paced.iter().map(|row| item(*row, *pps)).collect(),
        })
        .collect();
    let data: Vec<_> = columns
        .iter()
        .flat_map(|column| &column.items)
        .map(|item| {
            serde_json::json!({"generator": item.series.label, "asked_ns": item.asked_ns,
                "bin_ns": item.asked_ns / BINS_PER_GAP as f64, "shares": item.shares})
        })
        .collect();
    let name = match transport {
        Transport::Memif => "gaps-memif",
        _ => "gaps-veth",
    };
    Drawn {
        svg: gaps::draw(name, BINS_PER_GAP, &columns),
        name,
        title: "Gaps between packets",
        caption: format!(
            "128-byte frames over {}, at the receiver, outside its interruptions; bins of a fiftieth of the requested gap (dashed). \
             After Gallenmüller 2021, Fig. 3.3.",
            transport.name()
        ),
        data: Some(data.into()),
    }
}
