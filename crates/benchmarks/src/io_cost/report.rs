//! The report of this benchmark's results folder: a self-contained page, an SVG file per figure with its data, and the
//! summary in JSON. All are made from the folder alone.

use super::evaluate::{
    CHECKED_LOAD, Evaluation, Points, Row, Spread, Walk, counted_events, render_text_table,
};
use super::facts::{HardwareCounters, Results};
use super::level::{Level, PUBLISHED_STEPS, levels};
use super::machine_file::{self, MachineFile};
use super::trial::Trial;
use askama::Template;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use taut_bench::benchmark::{Estimate, Shell, Warned, publish};
use taut_bench::framework::{Program, Transport};
use taut_bench::report::{Drawn, ReportError};
use taut_figure::curves::{self, Curve, Extent, Figure, Part as PanelPart, Point};
use taut_figure::{Chart, Scale, Series, Style};
use taut_functions::burn::BurnError;
use taut_measure::quantity::{Quantity, bytes, rate, three_digits, time};
use taut_results::write_whole;
use taut_sys::Event;

/// The contents of `summary.json`.
#[derive(Serialize, JsonSchema)]
pub struct Summary<'a> {
    tsc_hz: f64,
    frameworks: &'a [Row],
    access: &'a [Level],
    burn_errors: &'a [BurnError],
    walks: &'a [Walk],
    hardware_counters: &'a HardwareCounters,
    problems: &'a [String],
    #[serde(flatten)]
    machine: Warned,
}

#[derive(Template)]
#[template(path = "io_cost/io_cost.html")]
struct Page<'a> {
    shell: Shell<'a>,
    rows: Vec<RowCells>,
    checks: Vec<[String; 4]>,
    levels: Vec<[String; 4]>,
    burns: BurnTable,
    counted: String,
    event_labels: Vec<&'static str>,
    counts: Vec<Vec<String>>,
    core_plan: &'a str,
    frameworks: Vec<[String; 3]>,
    few: bool,
}

/// A table of the differences between burnt and requested cycles per packet. It has a row for each requested number of
/// cycles, and a column for each batch size.
struct BurnTable {
    batches: Vec<usize>,
    /// Rows of the table: the requested cycles, and for each batch size the deviation of the burnt from the requested
    /// cycles.
    rows: Vec<(u32, Vec<BurnCell>)>,
    blocks: String,
}

struct BurnCell {
    mean: String,
    interval: String,
    is_within_bounds: bool,
}

struct RowCells {
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
    let levels = levels(&evaluation);
    let walks = walks(&evaluation);
    let summary = Summary {
        tsc_hz: results.head.tsc_hz,
        frameworks: &evaluation.rows,
        access: &levels,
        burn_errors: &results.head.own.burn_errors,
        walks: &walks,
        hardware_counters: &results.head.own.hardware_counters,
        problems: &results.problems,
        machine: Warned::of(&results.head.manifest.noise),
    };
    let figures = draw(&evaluation, &levels);
    let page = page(&evaluation, &levels, &walks, &figures).render()?;
    let machine = MachineFile::of(&evaluation, &levels);
    if let Ok(text) = toml::to_string(&machine) {
        write_whole(&dir.join(machine_file::NAME), text.as_bytes())?;
    }
    publish(dir, &summary, &figures, &page)
}

/// Returns the table and the result for a terminal.
pub(super) fn text(results: &Results, width: Option<usize>) -> String {
    let rows = Evaluation::of(results).rows;
    let mut text = render_text_table(&rows, width);
    for row in &rows {
        if let Some([predicted, measured]) = row.check_pps {
            text += &format!(
                "{}: {} predicted with {CHECKED_LOAD} cycles of load, {} measured (published: 7.3 and 7.1 Mpkt/s)\n",
                row.label,
                rate(predicted),
                rate(measured)
            );
        }
    }
    text +=
        "published c_IO: DPDK about 100 cycles, PF_RING ZC close, netmap more, Linux about 900\n";
    let facts = &results.head.own;
    for error in facts.burn_errors.iter().filter(|e| !e.is_within_bounds()) {
        text += &format!(
            "note: a burn of {} cycles was off by {:+.1} cycles on average at batches of {}\n",
            error.cycles, error.mean_cycles, error.batch
        );
    }
    text += &format!(
        "for taut model and taut chain plan (--machine): {} in that folder\n",
        machine_file::NAME
    );
    text + &format!(
        "hardware counters: {}\n",
        facts.hardware_counters.in_words()
    )
}

fn page<'a>(
    evaluation: &Evaluation<'a>,
    levels: &[Level],
    walks: &[Walk],
    figures: &'a [Drawn],
) -> Page<'a> {
    let results = evaluation.results;
    let head = &results.head;
    let facts = &head.own;
    let (event_labels, counts) = counts(&evaluation.rows, walks);
    let text = |value: Option<f64>| value.map_or("–".to_string(), three_digits);
    let shell = Shell::of_benchmark(results, figures);
    Page {
        shell: Shell {
            subtitle: format!(
                "{} · {}-byte frames",
                shell.subtitle, facts.frame_size_bytes
            ),
            finding: finding(&evaluation.rows),
            ..shell
        },
        rows: evaluation.rows.iter().enumerate().map(row_cells).collect(),
        checks: evaluation.rows.iter().filter_map(check_cells).collect(),
        levels: levels
            .iter()
            .map(|level| {
                [
                    level.name.clone(),
                    level
                        .size_bytes
                        .map_or("–".to_string(), |b| bytes(b as f64)),
                    text(level.measured_cycles),
                    three_digits(level.published_cycles),
                ]
            })
            .collect(),
        burns: burn_table(&facts.burn_errors),
        counted: facts.hardware_counters.in_words(),
        event_labels,
        counts,
        core_plan: &head.manifest.core_plan,
        frameworks: facts
            .frameworks
            .iter()
            .map(|f| [f.label.clone(), f.ports.join("  "), f.note.clone()])
            .collect(),
        few: head.repetitions < 6,
    }
}

fn burn_table(errors: &[BurnError]) -> BurnTable {
    let batches: BTreeSet<usize> = errors.iter().map(|e| e.batch).collect();
    let asked: BTreeSet<u32> = errors.iter().map(|e| e.cycles).collect();
    let cell = |cycles: u32, batch: usize| {
        let found = errors
            .iter()
            .find(|e| (e.cycles, e.batch) == (cycles, batch));
        BurnCell {
            mean: found.map_or("–".to_string(), |e| format!("{:+.2}", e.mean_cycles)),
            interval: found
                .and_then(|e| e.interval)
                .map_or(String::new(), |i| i.short(|cycles| format!("{cycles:+.2}"))),
            is_within_bounds: found.is_none_or(BurnError::is_within_bounds),
        }
    };
    let (blocks, disturbed) = errors
        .iter()
        .fold((0, 0), |(n, d), e| (n + e.count, d + e.disturbed));
    BurnTable {
        rows: asked
            .iter()
            .map(|c| (*c, batches.iter().map(|b| cell(*c, *b)).collect()))
            .collect(),
        batches: batches.into_iter().collect(),
        blocks: format!("{blocks} ({disturbed} left out)"),
    }
}

fn walks(evaluation: &Evaluation<'_>) -> Vec<Walk> {
    let rows = evaluation.rows.iter();
    rows.flat_map(|row| evaluation.walked(&row.id)).collect()
}

/// Returns the hardware events per packet: their names, and a row for each framework at saturation and for each list.
/// Both are empty if nothing was counted.
fn counts(rows: &[Row], walks: &[Walk]) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let of_rows = rows.iter().flat_map(|row| row.events_saturated.keys());
    let of_walks = walks.iter().flat_map(|walk| walk.events.keys());
    let events = counted_events(of_rows.chain(of_walks));
    let line = |name: String, count: &dyn Fn(&Event) -> Option<f64>| {
        let counts = events
            .iter()
            .map(|e| count(e).map_or("–".to_string(), three_digits));
        std::iter::once(name).chain(counts).collect()
    };
    let mut lines = Vec::new();
    for row in rows.iter().filter(|row| !row.events_saturated.is_empty()) {
        let count = |e: &Event| Some(row.events_saturated.get(e)?.point);
        lines.push(line(format!("{}, saturated", row.label), &count));
    }
    for walk in walks.iter().filter(|walk| !walk.events.is_empty()) {
        let list = bytes(walk.list_bytes as f64);
        let name = format!("{}, {} steps through {list}", walk.framework, walk.steps);
        lines.push(line(name, &|e| walk.events.get(e).copied()));
    }
    (events.iter().map(|e| e.label()).collect(), lines)
}

/// Returns the result in one or two sentences.
fn finding(rows: &[Row]) -> String {
    let mut costs: Vec<(&str, f64)> = rows
        .iter()
        .filter_map(|row| Some((row.label.as_str(), row.io_cycles?.point)))
        .collect();
    costs.sort_by(|a, b| a.1.total_cmp(&b.1));
    let said: Vec<String> = costs
        .iter()
        .map(|(label, cost)| format!("{label} {}", three_digits(*cost)))
        .collect();
    if said.is_empty() {
        "No framework's cost could be determined.".to_string()
    } else {
        format!(
            "Input and output of a packet cost, in cycles of the time-stamp counter: {}.",
            said.join(", ")
        )
    }
}

fn row_cells((index, row): (usize, &Row)) -> RowCells {
    let pps = |value: Option<f64>| value.map_or("–".to_string(), rate);
    let plain = |text: String| [text, String::new()];
    let estimate = |e: Option<&Estimate>| match e {
        None => plain("–".to_string()),
        Some(e) => [three_digits(e.point), e.short(three_digits)],
    };
    RowCells {
        colour: Style::of(index).colour,
        label: row.label.clone(),
        over: row.transport.name(),
        cells: vec![
            plain(pps(row.offered_pps)),
            plain(pps(row.throughput_pps)),
            estimate(row.knee_cycles.as_ref()),
            estimate(row.io_cycles.as_ref()),
            estimate(row.busy_wait_cycles.as_ref()),
            estimate(row.slope.as_ref()),
            estimate(row.own_cycles.as_ref()),
            estimate(row.own_saturated_cycles.as_ref()),
            plain(pps(row.saturated_pps.map(|e| e.point))),
            plain(
                row.latency_avg_ns
                    .map_or("–".to_string(), |e| time(e.point)),
            ),
        ],
    }
}

fn check_cells(row: &Row) -> Option<[String; 4]> {
    let [predicted, measured] = row.check_pps?;
    Some([
        row.label.clone(),
        format!("{} + {CHECKED_LOAD}", three_digits(row.io_cycles?.point)),
        rate(predicted),
        rate(measured),
    ])
}

fn draw(evaluation: &Evaluation<'_>, levels: &[Level]) -> Vec<Drawn> {
    vec![
        draw_loads(evaluation),
        draw_bursts(evaluation),
        draw_latency(evaluation),
        draw_walks(evaluation, levels),
    ]
}

fn series(index: usize, row: &Row) -> Series {
    Series {
        label: row.label.clone(),
        style: Style::of(index),
    }
}

/// Returns the series of a model or a published result, drawn as a thin grey line.
fn grey(label: &str) -> Series {
    Series {
        label: label.to_string(),
        style: Style::reference(),
    }
}

fn points<K: Ord + Copy>(
    from: &Points<'_, K>,
    x: impl Fn(K) -> f64,
    figure: impl Fn(&Trial) -> Option<f64>,
    tip: impl Fn(f64, &Spread) -> String,
) -> Vec<Point> {
    from.spread(figure)
        .into_iter()
        .map(|(key, y)| Point {
            x: x(key),
            y,
            tip: tip(x(key), &y),
        })
        .collect()
}

/// Returns the data of a figure as JSON.
fn data(parts: &[PanelPart], x: &str) -> serde_json::Value {
    let curve = |curve: &Curve| {
        serde_json::json!({
            "label": curve.series.label,
            "points": curve.points.iter().map(|p| serde_json::json!({
                "x": p.x, "min": p.y[0], "median": p.y[1], "max": p.y[2]
            })).collect::<Vec<_>>()
        })
    };
    let parts: Vec<_> = parts
        .iter()
        .map(|part| {
            serde_json::json!({
                "y": part.title,
                "curves": part.curves.iter().map(curve).collect::<Vec<_>>(),
                "models": part.models.iter().map(curve).collect::<Vec<_>>()
            })
        })
        .collect();
    serde_json::json!({"x": x, "panels": parts})
}

fn values(curves: &[Curve]) -> impl Iterator<Item = f64> {
    curves.iter().flat_map(|c| &c.points).flat_map(|p| p.y)
}

fn xs(curves: &[Curve]) -> impl Iterator<Item = f64> {
    curves.iter().flat_map(|c| &c.points).map(|p| p.x)
}

fn rate_tip(unit: &'static str) -> impl Fn(f64, &Spread) -> String {
    move |x, y| {
        format!(
            "{} {unit}|{}|{} to {} over the repetitions",
            three_digits(x),
            rate(y[1]),
            rate(y[0]),
            rate(y[2])
        )
    }
}

/// Returns the throughput that the model expects of each framework over the load, for the range of the axis `x`.
fn modelled_loads(evaluation: &Evaluation<'_>, x: &Scale) -> Vec<Curve> {
    let hz = evaluation.results.head.tsc_hz;
    let rows = evaluation.rows.iter().enumerate();
    let curves = rows.filter_map(|(index, row)| {
        let (io, plateau) = (row.io_cycles?.point, row.throughput_pps?);
        let at = |load: f64| Point {
            x: load,
            y: [plateau.min(hz / (io + load)); 3],
            tip: String::new(),
        };
        (row.program != Program::Testpmd).then(|| Curve {
            series: Series {
                label: "model: f / (c_IO + load)".to_string(),
                style: Style::model(index),
            },
            points: (0..=300)
                .map(|i| at(x.min * (x.max / x.min).powf(f64::from(i) / 300.0)))
                .collect(),
        })
    });
    curves.collect()
}

fn draw_loads(evaluation: &Evaluation<'_>) -> Drawn {
    let rows = evaluation.rows.iter().enumerate();
    let curves: Vec<Curve> = rows
        .filter(|(_, row)| row.program != Program::Testpmd)
        .map(|(index, row)| Curve {
            series: series(index, row),
            points: points(
                &evaluation.loads(&row.id),
                f64::from,
                |t| Some(t.throughput_pps),
                rate_tip("cycles of load"),
            ),
        })
        .collect();
    // The logarithmic axis begins at the lowest load of some tens of cycles. The point without load is on its left
    // edge.
    let x = Scale::log(Quantity::Cycles, xs(&curves));
    let models = modelled_loads(evaluation, &x);
    let parts = vec![PanelPart {
        title: "throughput (packets/s)",
        y: Scale::log(Quantity::RatePps, values(&curves)),
        curves,
        models,
    }];
    let figure = Figure {
        chart: Chart::new(
            "load",
            "Throughput over the load per packet",
            "Throughput of each framework over the cycles that each packet is made to cost.",
        ),
        x_title: "load (cycles of the time-stamp counter per packet)",
        x,
        parts,
        extent: Extent::Band,
        verticals: Vec::new(),
        note:
            "marks: medians · shaded: smallest to largest over the repetitions · left edge: no load"
                .to_string(),
    };
    Drawn {
        name: "load",
        title: "Throughput over the load per packet",
        caption: "As long as the processor has cycles left, a load takes them and the throughput stays. Beyond the knee none is left: \
                  there cycles per packet less the load are what input and output cost. After Gallenmüller 2021, Fig. 5.2, where DPDK has its \
                  knee at 150 cycles and netmap at 50."
            .to_string(),
        data: Some(data(&figure.parts, "cycles of load per packet")),
        svg: curves::draw(&figure),
    }
}

/// Returns a result of each framework over the batch size at saturation, as curves.
fn burst_curves(
    evaluation: &Evaluation<'_>,
    figure: fn(&Trial) -> Option<f64>,
    tip: impl Fn(f64, &Spread) -> String,
) -> Vec<Curve> {
    let curve = |(index, row): (usize, &Row)| Curve {
        series: series(index, row),
        points: points(
            &evaluation.bursts(&row.id, false),
            |n| n as f64,
            figure,
            &tip,
        ),
    };
    evaluation.rows.iter().enumerate().map(curve).collect()
}

fn draw_bursts(evaluation: &Evaluation<'_>) -> Drawn {
    let throughput = burst_curves(
        evaluation,
        |t| Some(t.throughput_pps),
        rate_tip("packets per call"),
    );
    let cost = burst_curves(
        evaluation,
        |t| t.own.busy_cycles,
        |x, y| {
            format!(
                "{} packets at a time|{} cycles per packet|{} to {} over the repetitions",
                three_digits(x),
                three_digits(y[1]),
                three_digits(y[0]),
                three_digits(y[2])
            )
        },
    );
    let x = Scale::doublings(Quantity::Packets, xs(&throughput));
    let parts = vec![
        PanelPart {
            title: "throughput (packets/s)",
            y: Scale::log(Quantity::RatePps, values(&throughput)),
            curves: throughput,
            models: Vec::new(),
        },
        PanelPart {
            title: "busy cycles per packet",
            y: Scale::log(Quantity::Cycles, values(&cost)),
            curves: cost,
            models: Vec::new(),
        },
    ];
    let figure = Figure {
        chart: Chart::new(
            "batch",
            "Throughput and cost over the batch size",
            "Throughput at saturation and busy cycles per packet over the packets taken from a port at a time.",
        ),
        x_title: "packets taken at a time at most",
        x,
        parts,
        extent: Extent::Band,
        verticals: Vec::new(),
        note: String::new(),
    };
    Drawn {
        name: "batch",
        title: "Throughput and cost over the batch size",
        caption: "At saturation; cycles by the forwarder's own count. A batch of taut holds 64 packets (the bits of a mask): 128 and 256 are two and four of \
                  them that go through every stage together. After Gallenmüller 2021, Fig. 5.4, where DPDK and PF_RING are at their best with 32 and netmap with 256."
            .to_string(),
        data: Some(data(&figure.parts, "packets taken at a time")),
        svg: curves::draw(&figure),
    }
}

/// Returns the average latency of each framework over the batch size just below saturation.
fn latency_curves(evaluation: &Evaluation<'_>) -> Vec<Curve> {
    evaluation
        .rows
        .iter()
        .enumerate()
        .map(|(index, row)| Curve {
            series: series(index, row),
            points: points(
                &evaluation.bursts(&row.id, true),
                |n| n as f64,
                |t| t.latency.as_ref().map(|l| l.avg_ns),
                |x, y| {
                    format!(
                        "{} packets at a time|average latency {}|{} to {} over the repetitions",
                        three_digits(x),
                        time(y[1]),
                        time(y[0]),
                        time(y[2])
                    )
                },
            ),
        })
        .filter(|curve| !curve.points.is_empty())
        .collect()
}

fn draw_latency(evaluation: &Evaluation<'_>) -> Drawn {
    let curves = latency_curves(evaluation);
    let behind = evaluation
        .results
        .outcomes
        .iter()
        .flat_map(|s| &s.trials)
        .any(|t| t.latency.is_some() && t.generator_behind);
    let parts = vec![PanelPart {
        title: "average latency",
        y: Scale::log(Quantity::TimeNs, values(&curves)),
        curves,
        models: Vec::new(),
    }];
    let figure = Figure {
        chart: Chart::new(
            "latency",
            "Average latency over the batch size",
            "Average round trip at 95 % of the throughput at saturation over the packets taken from a port at a time.",
        ),
        x_title: "packets taken at a time at most",
        x: Scale::doublings(Quantity::Packets, xs(&parts[0].curves)),
        parts,
        extent: Extent::Band,
        verticals: Vec::new(),
        note: String::new(),
    };
    let generator = if behind {
        " Where the generator, which stamps and checks every packet, could not offer that much, at 95 % of what it could."
    } else {
        ""
    };
    Drawn {
        name: "latency",
        title: "Average latency over the batch size, just below saturation",
        caption: format!(
            "At 95 % of the throughput found for each batch size.{generator} After Gallenmüller 2021, Fig. 5.5: 9 µs at a batch of 16 and 99 % of line rate \
             there, growing with the batch."
        ),
        data: Some(data(&figure.parts, "packets taken at a time")),
        svg: curves::draw(&figure),
    }
}

/// Returns the throughput of each framework by size of the list, as curves.
fn walk_throughputs(evaluation: &Evaluation<'_>) -> Vec<Curve> {
    let mut throughput = Vec::new();
    for (index, row) in evaluation.rows.iter().enumerate() {
        let through = points(
            &evaluation.walks(&row.id),
            |b| b as f64,
            |t| Some(t.throughput_pps),
            |x, y| {
                format!(
                    "list of {}|{}|{} to {} over the repetitions",
                    bytes(x),
                    rate(y[1]),
                    rate(y[0]),
                    rate(y[2])
                )
            },
        );
        if !through.is_empty() {
            throughput.push(Curve {
                series: series(index, row),
                points: through,
            });
        }
    }
    throughput
}

/// Returns the cycles per memory access by size of the list, as curves, for the frameworks without a generator.
fn access_costs(evaluation: &Evaluation<'_>) -> Vec<Curve> {
    let mut cost = Vec::new();
    for (index, row) in evaluation.rows.iter().enumerate() {
        if row.transport != Transport::Nothing {
            continue;
        }
        let access = evaluation.access_cycles(&row.id).into_iter();
        let access: Vec<Point> = access
            .map(|(size, y)| Point {
                x: size as f64,
                y,
                tip: format!(
                    "list of {}|{} cycles per access|{} to {} over the repetitions",
                    bytes(size as f64),
                    three_digits(y[1]),
                    three_digits(y[0]),
                    three_digits(y[2])
                ),
            })
            .collect();
        if !access.is_empty() {
            cost.push(Curve {
                series: series(index, row),
                points: access,
            });
        }
    }
    cost
}

/// Returns a curve of horizontal steps along the axis `x`. Each step is given by its right end and its height.
fn staircase(label: &str, x: &Scale, steps: &[(f64, f64)]) -> Curve {
    let mut from = x.min;
    let mut line = Vec::new();
    for (to, height) in steps {
        let to = to.min(x.max);
        if to > from {
            line.extend([from, to].map(|x| Point {
                x,
                y: [*height; 3],
                tip: String::new(),
            }));
            from = to;
        }
    }
    Curve {
        series: grey(label),
        points: line,
    }
}

/// Returns two curves of the cycles per memory access, with a step at each cache size: measured and published.
fn cache_steps(levels: &[Level], x: &Scale) -> Vec<Curve> {
    let here: Vec<(f64, f64)> = levels
        .iter()
        .filter_map(|level| {
            let size = level.size_bytes.map_or(f64::INFINITY, |b| b as f64);
            Some((size, level.measured_cycles?))
        })
        .collect();
    let mut published = staircase("published steps (another machine)", x, &PUBLISHED_STEPS);
    published.series.style.dash = "6 3";
    vec![
        staircase("steps at the caches of this machine", x, &here),
        published,
    ]
}

fn draw_walks(evaluation: &Evaluation<'_>, levels: &[Level]) -> Drawn {
    let head = &evaluation.results.head;
    let throughput = walk_throughputs(evaluation);
    let cost = access_costs(evaluation);
    let x = Scale::doublings(Quantity::Bytes, xs(&throughput));
    let models = cache_steps(levels, &x);
    let parts = vec![
        PanelPart {
            title: "throughput (packets/s)",
            y: Scale::log(Quantity::RatePps, values(&throughput)),
            curves: throughput,
            models: Vec::new(),
        },
        PanelPart {
            title: "cycles per access",
            y: Scale::log(
                Quantity::Cycles,
                values(&cost).chain(values(&models)).map(|v| v.max(1.0)),
            ),
            curves: cost,
            models,
        },
    ];
    let figure = Figure {
        chart: Chart::new(
            "walk",
            "Throughput and cost over the size of the list",
            "Throughput and cycles per access over the size of the list that packets walk through, with the caches of this machine.",
        ),
        x_title: "size of the list",
        x,
        parts,
        extent: Extent::Band,
        verticals: levels
            .iter()
            .filter_map(|level| Some((level.size_bytes? as f64, level.name.clone())))
            .collect(),
        note: String::new(),
    };
    Drawn {
        name: "walk",
        title: "Throughput and cost over the size of the list",
        caption: format!(
            "Each packet takes {} steps through a randomly permuted list, one cache line per element; each step waits for the one before. Verticals: the \
             caches of this machine. Grey: random access as steps, measured here (median of lists up to 85 % of each cache) and published (10, 20, 60 and 250 cycles). \
             After Gallenmüller 2021, Fig. 5.3.",
            head.own.steps
        ),
        data: Some(data(&figure.parts, "bytes of the list")),
        svg: curves::draw(&figure),
    }
}
