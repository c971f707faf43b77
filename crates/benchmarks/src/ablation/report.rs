//! The page, the figure and the summary of an ablation.

use super::cases::Fixed;
use super::effects::{Measure, Row, Verdict, WayEffect, as_found, judge, percentile};
use super::{Results, Switched};
use crate::tail::Percentile;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::{Path, PathBuf};
use taut_bench::benchmark::Warned;
use taut_bench::benchmark::tables::{self, Cell, Table, plain};
use taut_bench::report::{Drawn, ReportError};
use taut_figure::effects::{self, Item};
use taut_figure::{Chart, Column, Series, Style};
use taut_measure::Interval;
use taut_measure::quantity::{count, counted, time};

/// The contents of `summary.json`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Summary<'a> {
    /// The name of the device under test.
    device: &'a str,
    /// The offered rate, packets per second.
    rate_pps: f64,
    /// The CPUs on which the settings are to reduce noise.
    cpus: &'a str,
    /// The percentile that counts as the tail: the highest for which all trials have enough packets, up to p99.999;
    /// none without a trial.
    tail: Option<&'static str>,
    /// Smallest number of packets that came back in a trial.
    least_packets: u64,
    /// Number of packets, in all trials, that did not come back; no percentile includes them.
    missing_packets: u64,
    /// Number of repetitions of the plan.
    repetitions: u32,
    /// Highest probability, for each measure, that a setting without an effect is stated to have one.
    level: f64,
    /// The settings that were switched, with their values off and on.
    settings: &'a [Switched],
    /// The value of each measure when no setting is on.
    as_found: Vec<AsFound>,
    /// The effect of each setting on each measure.
    effects: Vec<Row>,
    /// The settings that cannot be switched on this machine, with the reason.
    fixed: &'a [Fixed],
    /// The files that cannot be read, one sentence each.
    problems: &'a [String],
    #[serde(flatten)]
    machine: Warned,
}

/// The value of a measure when no setting is on.
#[derive(Debug, Serialize, JsonSchema)]
struct AsFound {
    /// The quantity that is measured.
    measure: Measure,
    /// Median of the measure over the repetitions in ns or J; none without data.
    median: Option<Interval>,
    /// The reason why the measure has no data; none if it has data.
    no_data: Option<String>,
}

/// Writes the report of an ablation, and returns the path of its page and its text.
///
/// # Errors
/// The results folder cannot be written.
pub(super) fn write(
    dir: &Path,
    results: &Results,
    width: Option<usize>,
) -> Result<(PathBuf, String), ReportError> {
    let facts = &results.head.own;
    let at = percentile(&results.outcomes);
    let summary = summary(results, at);
    let finding = finding(&summary);
    let tables = [effects_table(&summary), fixed_table(facts.fixed.as_slice())];
    let figures = [figure(&summary)];
    let how = how(results, &summary);
    let page = tables::report(dir, results, &summary, (&finding, &how), &tables, &figures)?;
    let text = format!("{}\n{finding}\n", tables::text(&tables, width));
    Ok((page, text))
}

fn summary(results: &Results, at: Option<Percentile>) -> Summary<'_> {
    let facts = &results.head.own;
    let names: Vec<String> = facts.settings.iter().map(|it| it.name.clone()).collect();
    let outcomes = &results.outcomes;
    let measures = at.into_iter().flat_map(|at| Measure::ALL.map(|m| (m, at)));
    let packets = outcomes.iter().map(|it| it.tail.received);
    Summary {
        device: &facts.device,
        rate_pps: facts.rate_pps,
        cpus: &facts.cpus,
        tail: at.map(|at| at.name),
        least_packets: packets.min().unwrap_or(0),
        missing_packets: outcomes.iter().map(|it| it.tail.missing()).sum(),
        repetitions: results.head.repetitions,
        level: super::effects::LEVEL,
        settings: &facts.settings,
        as_found: measures
            .clone()
            .map(|(measure, at)| {
                let median = as_found(outcomes, measure, at);
                AsFound {
                    no_data: median.is_none().then(|| no_data(results, measure)),
                    measure,
                    median,
                }
            })
            .collect(),
        effects: measures
            .flat_map(|(measure, at)| judge(&names, outcomes, measure, at))
            .collect(),
        fixed: &facts.fixed,
        problems: &results.problems,
        machine: Warned::of(&results.head.manifest.noise),
    }
}

fn no_data(results: &Results, measure: Measure) -> String {
    match (measure, results.outcomes.first()) {
        (Measure::Energy, Some(first)) => first.tail.energy_source.clone(),
        (Measure::LongestGap, Some(_)) => {
            "no data: this device does not record its interruptions".to_string()
        }
        _ => "no data: no complete trial as found".to_string(),
    }
}

impl Summary<'_> {
    fn name(&self, measure: Measure) -> String {
        match measure {
            Measure::Tail => self.tail.unwrap_or("tail").to_string(),
            Measure::LongestGap => "longest gap".to_string(),
            Measure::Energy => "energy".to_string(),
        }
    }

    fn rows(&self, measure: Measure) -> impl Iterator<Item = &Row> {
        self.effects
            .iter()
            .filter(move |row| row.measure == measure)
    }

    fn row(&self, setting: &str, measure: Measure) -> Option<&Row> {
        self.rows(measure).find(|row| row.setting == setting)
    }

    fn missing(&self, measure: Measure) -> Option<&str> {
        let found = self.as_found.iter().find(|it| it.measure == measure)?;
        found.no_data.as_deref()
    }
}

/// Returns the result in a few sentences: the settings with a significant effect, and the settings without one.
fn finding(summary: &Summary<'_>) -> String {
    let mut said = Vec::new();
    for measure in Measure::ALL {
        let name = summary.name(measure);
        if let Some(why) = summary.missing(measure) {
            said.push(format!("{name}: {why}."));
            continue;
        }
        let mut matters: Vec<&Row> = summary
            .rows(measure)
            .filter(|row| {
                matches!(
                    row.verdict,
                    Verdict::Lowers | Verdict::Raises | Verdict::Depends
                )
            })
            .collect();
        let size = |row: &Row| row.shown().map_or(0.0, |it| it.ratio.point.ln().abs());
        matters.sort_by(|a, b| size(b).total_cmp(&size(a)));
        let few = summary
            .rows(measure)
            .any(|row| row.verdict == Verdict::TooFew);
        let parts: Vec<String> = matters.iter().map(|row| effect_in_words(row)).collect();
        said.push(match (parts.as_slice(), few) {
            ([], true) => format!("{name}: too few repetitions for a statement."),
            ([], false) => format!("{name}: no setting has an effect that these runs show."),
            (parts, _) => format!("{name}: {}.", parts.join("; ")),
        });
    }
    said.join(" ")
}

fn effect_in_words(row: &Row) -> String {
    let verb = match row.verdict {
        Verdict::Lowers => "lowers it",
        Verdict::Raises => "raises it",
        _ => "lowers or raises it, by the other settings",
    };
    let stated = [&row.in_design, &row.alone];
    let stated = stated.into_iter().flatten().find(|it| it.stated);
    stated.map_or_else(String::new, |effect| {
        let ratio = &effect.ratio;
        format!(
            "{} {verb} to {:.2} ({})",
            row.setting,
            ratio.point,
            words(ratio)
        )
    })
}

fn words(ratio: &Interval) -> String {
    ratio.words(|value| format!("{value:.2}"))
}

fn effects_table(summary: &Summary<'_>) -> Table {
    let cell = |effect: Option<&WayEffect>| -> Cell {
        effect.map_or_else(
            || plain("–"),
            |effect| {
                let star = if effect.stated { " *" } else { "" };
                [
                    format!("{:.2}{star}", effect.ratio.point),
                    words(&effect.ratio),
                ]
            },
        )
    };
    let row = |setting: &Switched| {
        let of = |measure| summary.row(&setting.name, measure);
        let mut cells = vec![
            plain(setting.name.clone()),
            [setting.off.clone(), format!("on: {}", setting.on)],
        ];
        for measure in Measure::ALL {
            cells.push(cell(of(measure).and_then(|row| row.alone.as_ref())));
            cells.push(cell(of(measure).and_then(|row| row.in_design.as_ref())));
        }
        cells
    };
    let mut head = vec!["setting".to_string(), "off".to_string()];
    for measure in Measure::ALL {
        let name = summary.name(measure);
        head.extend([format!("{name} alone"), format!("{name} in design")]);
    }
    Table {
        title: "Effects: on / off".to_string(),
        caption: "Below 1: the setting lowers the measure. Alone: all other settings as found, median of the ratios of pairs. In design: all \
                  settings change at once, geometric mean over their combinations. * an effect is stated. Intervals are each for themselves; \
                  statements are corrected for the number of settings."
            .to_string(),
        head,
        rows: summary.settings.iter().map(row).collect(),
        sentences: Vec::new(),
        least_important: vec![1, 6, 7, 4, 5],
        brief_from: Some(1),
    }
}

fn fixed_table(fixed: &[Fixed]) -> Table {
    Table {
        title: "Not switched".to_string(),
        head: ["setting", "reason"].map(str::to_string).to_vec(),
        rows: fixed
            .iter()
            .map(|it| vec![plain(it.name.clone()), plain(it.why.clone())])
            .collect(),
        sentences: vec![1],
        ..Table::default()
    }
}

fn figure(summary: &Summary<'_>) -> Drawn {
    let item = |row: &Row, way: &str, style: usize, effect: Option<&WayEffect>| Item {
        series: Series {
            label: format!("{}, {way}", row.setting),
            style: Style::of(style),
        },
        ratio: match effect {
            Some(effect) => Ok([effect.ratio.low, effect.ratio.point, effect.ratio.high]),
            None => Err("no data".to_string()),
        },
        stated: effect.is_some_and(|effect| effect.stated),
    };
    let group = |measure| {
        let mut rows: Vec<&Row> = summary.rows(measure).collect();
        let point = |row: &Row| row.shown().map_or(1.0, |it| it.ratio.point);
        rows.sort_by(|a, b| point(a).total_cmp(&point(b)));
        let heading = match summary.missing(measure) {
            Some(why) => format!("{}: {why}", summary.name(measure)),
            None => summary.name(measure),
        };
        let items = match summary.missing(measure) {
            Some(_) => Vec::new(),
            None => rows
                .iter()
                .flat_map(|row| {
                    [
                        item(row, "alone", 1, row.alone.as_ref()),
                        item(row, "in design", 0, row.in_design.as_ref()),
                    ]
                })
                .collect(),
        };
        Column { heading, items }
    };
    let groups = Measure::ALL.map(group);
    let description = "Ratio of each measure with a setting on to that with it off, with its interval; 1 is no effect.";
    let chart = Chart::new("effects", "Effects of settings", description);
    Drawn {
        name: "effects",
        title: "Which settings matter on this machine",
        caption: "On / off, logarithmic; whiskers: interval of the ratio. Filled: an effect is stated. Empty: no effect is shown, and the \
                  interval has its possible size."
            .to_string(),
        svg: effects::chart(&chart, "on / off (ratio)", &groups),
        data: Some(serde_json::json!(summary.effects)),
    }
}

fn how(results: &Results, summary: &Summary<'_>) -> String {
    let facts = &results.head.own;
    let runs = facts
        .cases
        .iter()
        .filter(|it| it.name.starts_with("design"));
    let reach = match summary.tail {
        Some("p99.999") => String::new(),
        Some(name) => format!(
            " The trials reach {name} and no further: p99.999 needs {} packets in each.",
            count(crate::tail::PERCENTILES[0].packets_needed())
        ),
        None => " No trial is complete.".to_string(),
    };
    let as_found = summary.as_found.iter().filter_map(|it| {
        let median = it.median?;
        let text = |value: f64| match it.measure {
            Measure::Energy => format!("{value:.3} J"),
            _ => time(value),
        };
        let name = summary.name(it.measure);
        Some(format!(
            "{name} {} ({})",
            text(median.point),
            median.words(text)
        ))
    });
    format!(
        "{} at {:.0} packets/s, quiet CPU {}. Each of the {} has the machine as found, each setting alone, and {} runs of a folded \
         Plackett-Burman design, in an order drawn by seed {}; a trial has its own device and at least {} packets. {} did not come back and \
         {} in no percentile.{reach} As found: {}. For each measure, the probability of any false statement is at most {:.0} % (Holm; half \
         for each way).",
        facts.device,
        facts.rate_pps,
        facts.cpus,
        counted(results.head.repetitions, "repetition"),
        runs.count(),
        results.head.seed,
        count(summary.least_packets),
        counted(summary.missing_packets, "packet"),
        if summary.missing_packets == 1 {
            "is"
        } else {
            "are"
        },
        as_found.collect::<Vec<_>>().join(", "),
        summary.level * 100.0,
    )
}
