//! The page, the figure and the summary of a search for the most bulk load.

use super::decide::{Answer, Held, LEVELS, Level, Limit, answer};
use super::{Facts, Results, levels};
use schemars::JsonSchema;
use serde::Serialize;
use std::path::{Path, PathBuf};
use taut_bench::benchmark::Warned;
use taut_bench::benchmark::tables::{self, Cell, Table, plain};
use taut_bench::report::{Drawn, ReportError};
use taut_figure::bars::{self, Figure, Item};
use taut_figure::{Column, Series, Style};
use taut_host::tune::bulk::Way;
use taut_measure::Interval;
use taut_measure::quantity::{Quantity, share, three_digits, time};

/// The contents of `summary.json`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Summary<'a> {
    /// The name of the latency-critical device.
    device: &'a str,
    /// The offered rate, packets per second.
    rate_pps: f64,
    /// The name of the requested latency percentile.
    asked: &'a str,
    /// The name of the percentile that is compared with the bound: the requested one, or the highest for which the
    /// trials have enough packets.
    percentile: &'a str,
    /// The bound on the latency percentile, ns.
    bound_ns: f64,
    /// The command line of the bulk load.
    bulk: &'a [String],
    /// The method of confinement with the most bulk load within the bound; none if the bound is never kept.
    best: Option<Way>,
    /// The search for each method of confinement.
    ways: Vec<OfWay>,
    /// The files that cannot be read, one sentence each.
    problems: &'a [String],
    #[serde(flatten)]
    machine: Warned,
}

/// The search for one method of confining bulk load.
#[derive(Debug, Serialize, JsonSchema)]
struct OfWay {
    /// The method that confines the bulk load.
    way: Way,
    /// The highest level of bulk load within the bound, 0 to 8, where 8 has no limit on its processor time; none if
    /// there is none.
    held_level: Option<u32>,
    /// The lowest level of bulk load that is not shown to be within the bound; none if all are.
    not_held_level: Option<u32>,
    /// Processor time of the bulk load at the highest level within the bound, CPUs; none if no level is.
    bulk_cpus: Option<Interval>,
    /// The reason why no more bulk load fits.
    limit: Limit,
    /// Upper bound on the probability that any of these levels is wrongly called within or above the bound, 0 to 1.
    error: f64,
    /// The measured levels of bulk load.
    levels: Vec<OfLevel>,
}

/// The results of a measured level of bulk load.
#[derive(Debug, Serialize, JsonSchema)]
struct OfLevel {
    /// The level of bulk load, 0 to 8.
    level: u32,
    /// Median over the trials of the latency at the percentile, ns; packets that did not come back count as 1e13 ns
    /// late.
    latency_ns: Interval,
    /// Median of the bulk load's processor time, CPUs.
    bulk_cpus: Interval,
    /// The statement whether the latency is within the bound.
    held: Held,
}

impl OfWay {
    fn of(facts: &Facts, levels: &[Level], way: Way) -> Self {
        let Answer {
            held,
            not_held,
            limit,
            error,
        } = answer(levels, facts.bound_ns);
        let measured = levels.iter().filter_map(|level| {
            Some(OfLevel {
                level: level.level,
                latency_ns: level.latency()?,
                bulk_cpus: level.bulk_cpus()?,
                held: level.held(facts.bound_ns),
            })
        });
        Self {
            way,
            held_level: held.map(|it| it.level),
            not_held_level: not_held.map(|it| it.level),
            bulk_cpus: held.and_then(Level::bulk_cpus),
            limit,
            error,
            levels: measured.collect(),
        }
    }
}

/// Writes the report, and returns the path of its page and its text.
///
/// # Errors
/// The folder cannot be written.
pub(super) fn write(
    dir: &Path,
    results: &Results,
    width: Option<usize>,
) -> Result<(PathBuf, String), ReportError> {
    let facts = &results.head.own;
    let of_way = |way: &Way| OfWay::of(facts, &levels(facts, &results.outcomes, *way), *way);
    let ways: Vec<OfWay> = facts.ways.iter().map(of_way).collect();
    let cpus = |way: &&OfWay| way.bulk_cpus.filter(|_| way.held_level > Some(0));
    let with_load = ways.iter().filter(|way| cpus(way).is_some());
    let best = with_load.max_by(|a, b| {
        let point = |way: &&OfWay| cpus(way).map_or(0.0, |it| it.point);
        point(a).total_cmp(&point(b))
    });
    let summary = Summary {
        device: &facts.device,
        rate_pps: facts.rate_pps,
        asked: &facts.asked,
        percentile: &facts.percentile,
        bound_ns: facts.bound_ns,
        bulk: &facts.bulk,
        best: best.map(|it| it.way),
        problems: &results.problems,
        machine: Warned::of(&results.head.manifest.noise),
        ways,
    };
    let finding = finding(&summary);
    let tables = [answers(&summary), of_levels(&summary)];
    let figures = [figure(&summary)];
    let how = how(results);
    let page = tables::report(dir, results, &summary, (&finding, &how), &tables, &figures)?;
    let text = format!("{}\n{finding}\n", tables::text(&tables, width));
    Ok((page, text))
}

fn cpus(interval: &Interval) -> String {
    format!(
        "{} CPU ({})",
        three_digits(interval.point),
        interval.words(three_digits)
    )
}

/// Returns the result in a few sentences.
fn finding(summary: &Summary<'_>) -> String {
    let bound = format!("{} within {}", summary.percentile, time(summary.bound_ns));
    let reach = match summary.asked == summary.percentile {
        true => String::new(),
        false => format!(
            " The trials are too short for {}: they reach {}, which is held to the bound in its place.",
            summary.asked, summary.percentile
        ),
    };
    let best = summary
        .ways
        .iter()
        .find(|way| Some(way.way) == summary.best);
    let said = match (best, summary.ways.first()) {
        (Some(best), _) => {
            let used = best.bulk_cpus.as_ref().map(cpus).unwrap_or_default();
            format!(
                "{bound}: the most bulk load is {used}, {} ({}). Limit: {}.",
                best.way.description(),
                between(best),
                limit_in_words(best.limit)
            )
        }
        (None, Some(first)) if first.held_level.is_none() => format!(
            "{bound}: not held without any bulk load ({}); see taut tune audit.",
            limit_in_words(first.limit)
        ),
        _ => format!("{bound}: no way holds it beside any bulk load that was tried."),
    };
    format!("{said}{reach}")
}

/// Returns, as text, the levels of bulk load between which the result of the search lies.
fn between(way: &OfWay) -> String {
    let part = |level: u32| share(f64::from(level) / f64::from(LEVELS));
    match (way.held_level, way.not_held_level) {
        (Some(LEVELS), _) => "all of it is held".to_string(),
        (Some(held), Some(not)) => {
            format!("{} of its CPUs is held, {} is not", part(held), part(not))
        }
        (Some(held), None) => format!("{} of its CPUs is held, more was not tried", part(held)),
        (None, _) => "nothing is held".to_string(),
    }
}

fn limit_in_words(limit: Limit) -> &'static str {
    match limit {
        Limit::Nothing => "nothing, all of the load fits",
        Limit::Machine => "the machine misses the bound without it",
        Limit::Loss => "packets are lost",
        Limit::ForwarderCore => "the load takes the forwarder's CPU for longer than the bound",
        Limit::Measurement => {
            "the load takes the generator's CPU for longer than the bound, so the measurement limits, not the forwarder: give the load other CPUs"
        }
        Limit::BothCores => {
            "the load takes the CPUs of forwarder and generator for longer than the bound"
        }
        Limit::CacheOrMemory => {
            "cache or memory: neither CPU is taken for longer than the bound, and packets take longer"
        }
        Limit::Undecided => "the trials do not decide the next level; more --repetitions may",
        Limit::Unfinished => "the search did not come to its end",
    }
}

fn answers(summary: &Summary<'_>) -> Table {
    let row = |way: &OfWay| {
        let used: Cell = way.bulk_cpus.as_ref().map_or_else(
            || plain("–"),
            |it| [three_digits(it.point), it.words(three_digits)],
        );
        vec![
            [way.way.id().to_string(), way.way.description().to_string()],
            used,
            plain(between(way)),
            plain(limit_in_words(way.limit)),
        ]
    };
    Table {
        title: "The most bulk load, by the way that confines it".to_string(),
        caption: format!(
            "Processor time of the bulk load at the highest level whose {} stays within {}.",
            summary.percentile,
            time(summary.bound_ns)
        ),
        head: ["way", "bulk load (CPUs)", "levels", "limit"]
            .map(str::to_string)
            .to_vec(),
        rows: summary.ways.iter().map(row).collect(),
        sentences: Vec::new(),
        least_important: vec![3],
        brief_from: Some(2),
    }
}

fn of_levels(summary: &Summary<'_>) -> Table {
    let rows = summary.ways.iter().flat_map(|way| {
        way.levels.iter().map(|level| {
            let held = match level.held {
                Held::Held => "held",
                Held::Missed => "missed",
                Held::Undecided => "undecided",
            };
            vec![
                plain(way.way.id()),
                plain(share(f64::from(level.level) / f64::from(LEVELS))),
                [three_digits(level.bulk_cpus.point), String::new()],
                [late(level.latency_ns.point), level.latency_ns.words(late)],
                plain(held),
            ]
        })
    });
    let percentile = summary.percentile.to_string();
    Table {
        title: "Measured levels".to_string(),
        head: ["way", "level", "CPUs used"]
            .map(str::to_string)
            .into_iter()
            .chain([percentile, "bound".to_string()])
            .collect(),
        rows: rows.collect(),
        least_important: vec![2],
        ..Table::default()
    }
}

/// Returns a latency as text; for packets that did not come back the text has no number.
fn late(ns: f64) -> String {
    match ns < super::decide::NEVER_NS {
        true => time(ns),
        false => "not back".to_string(),
    }
}

fn figure(summary: &Summary<'_>) -> Drawn {
    let item = |(index, way): (usize, &OfWay)| Item {
        series: Series {
            label: way.way.id().to_string(),
            style: Style::of(index),
        },
        spread: way.bulk_cpus.map_or_else(
            || Err(limit_in_words(way.limit).to_string()),
            |it| Ok([it.low, it.point, it.high]),
        ),
        at_least: way.not_held_level.is_none(),
    };
    let groups = [Column {
        heading: String::new(),
        items: summary.ways.iter().enumerate().map(item).collect(),
    }];
    let figure = Figure {
        name: "bulk",
        title: "Most bulk load within the bound",
        x_title: "processor time of the bulk load (CPUs)",
        quantity: Quantity::Number,
        logarithmic: false,
        text: three_digits,
    };
    Drawn {
        name: "bulk",
        title: "Most bulk load within the bound",
        caption: "By the way that confines it; whiskers: interval of the median over the trials."
            .to_string(),
        data: Some(serde_json::json!(summary.ways)),
        svg: bars::draw(&figure, &groups),
    }
}

fn how(results: &Results) -> String {
    let facts = &results.head.own;
    let list: Vec<String> = facts.cpus.iter().map(usize::to_string).collect();
    format!(
        "{} at {:.0} packets/s on CPU {}, bulk load `{}` on CPUs {}. A level is a quota of processor time in periods of 10 ms, the highest \
         has none. A level is held if the interval of the median over its trials is at or below the bound; packets that do not come back \
         are later than any bound. The search bisects the levels of each way, ways taking turns, in an order drawn by seed {}.",
        facts.device,
        facts.rate_pps,
        facts.forwarder_cpu,
        facts.bulk.join(" "),
        list.join(","),
        results.head.seed,
    )
}
