//! The folder of a gate: `gate.json`, `pairs.csv`, `junit.xml`, `summary.md`, and a figure for each metric.

use super::{MetricOutcome, Outcome, Pair, Stopped, Verdict};
use crate::error::ExperimentError;
use crate::limit::rounded;
use askama::Template;
use std::fmt::Write;
use std::path::Path;
use taut_figure::lines::{self, Line};
use taut_figure::{Chart, Scale, Series, Style};
use taut_measure::quantity::{Quantity, counted};
use taut_results::{write_json, write_whole};

/// Minimum number of pairs for a prediction of the number of necessary pairs.
const FEWEST_TO_FORESEE: usize = 4;

/// The JUnit report, which CI servers read.
#[derive(Template)]
#[template(path = "gate.xml")]
struct Junit<'a> {
    cases: Vec<Case<'a>>,
    failures: usize,
    errors: usize,
    skipped: usize,
    seconds: f64,
    started: &'a str,
}

/// One metric as a test case of the JUnit report.
struct Case<'a> {
    name: &'a str,
    end: End,
    text: String,
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    Passed,
    Failed,
    Error,
    Skipped,
}

impl Outcome {
    /// Describes the result for one metric in a line.
    pub fn sentence(&self, metric: &MetricOutcome) -> String {
        let range = metric.interval.map_or_else(String::new, |interval| {
            let bounds = interval.ends(|value| format!("{value:.3}"));
            format!(" ({bounds}, {} at every look)", interval.claim())
        });
        let verdict = match metric.verdict {
            Verdict::Worse => "worse than",
            Verdict::Within => "within",
            Verdict::CannotTell | Verdict::Stopped => "cannot be told from",
        };
        format!(
            "{}: head / base {:.3}{range}: {verdict} the limit of {}",
            metric.metric, metric.ratio, self.limit
        )
    }

    /// Describes the medians of a metric, and the number and duration of the pairs.
    pub fn medians(&self, metric: &MetricOutcome) -> String {
        let unit = if metric.metric == "time" { " s" } else { "" };
        format!(
            "base {}{unit}, head {}{unit}: medians of {} pairs in {}, in random order",
            number(metric.base),
            number(metric.head),
            self.pairs.len(),
            minutes(self.seconds)
        )
    }

    /// Describes the precision of the result for one metric: the smallest change that the pairs of this gate detect,
    /// and the number of pairs that a decision would need.
    pub fn precision(&self, metric: &MetricOutcome) -> String {
        let pairs = self.pairs.len();
        let percent = (self.power * 100.0).round();
        let most = if self.limit.less_is_worse {
            "halving"
        } else {
            "doubling"
        };
        let mut text = match metric.smallest_detectable {
            Some(share) => format!(
                "{pairs} pairs find a change of {} % beyond the limit in {percent} % of cases",
                rounded(share * 100.0)
            ),
            None => format!("{pairs} pairs do not find even a {most} in {percent} % of cases"),
        };
        if metric.verdict == Verdict::CannotTell {
            let more = match metric.pairs_needed {
                _ if pairs < FEWEST_TO_FORESEE => {
                    "; too few pairs to foresee how many would decide".to_owned()
                }
                Some(needed) => format!(
                    "; the ratio seen so far would be decided after about {needed} pairs ({})",
                    minutes(needed as f64 * self.seconds_per_pair())
                ),
                None => {
                    "; the ratio seen so far is too close to the limit for 2,000 pairs".to_owned()
                }
            };
            text.push_str(&more);
        }
        text
    }
}

/// Returns a ratio as a change in percent, with its sign: `+3.1 %`.
fn change(ratio: f64) -> String {
    format!("{} %", change_percent(ratio))
}

fn change_percent(ratio: f64) -> String {
    let percent = rounded((ratio - 1.0) * 100.0);
    match percent.as_str() {
        "-0" => "0".to_owned(),
        _ if ratio > 1.0 && percent != "0" => format!("+{percent}"),
        _ => percent,
    }
}

/// Returns a duration in seconds as text, such as `35 s` or `12 min`.
fn minutes(seconds: f64) -> String {
    if seconds < 100.0 {
        format!("{} s", rounded(seconds))
    } else {
        format!("{:.0} min", (seconds / 60.0).ceil())
    }
}

/// Returns the JUnit report. A metric without a decision is a skipped test, or an error if a command failed.
pub fn junit(outcome: &Outcome) -> String {
    let stopped = outcome.stopped.as_ref();
    let undecided = match stopped {
        Some(stopped) if stopped.command.is_some() => End::Error,
        _ => End::Skipped,
    };
    let reason = stopped.map(|stopped| reason_in_words(stopped, "\n"));
    let of = |metric: &MetricOutcome| match metric.verdict {
        Verdict::Within => End::Passed,
        Verdict::Worse => End::Failed,
        Verdict::CannotTell | Verdict::Stopped => undecided,
    };
    let metrics = outcome.metrics.iter().map(|metric| {
        let text = [outcome.sentence(metric), outcome.precision(metric)].join("; ");
        let reason = reason.as_ref().filter(|_| of(metric) == undecided);
        Case {
            name: &metric.metric,
            end: of(metric),
            text: match reason {
                Some(reason) => format!("{reason}\n{text}"),
                None => text,
            },
        }
    });
    let mut cases: Vec<Case<'_>> = metrics.collect();
    if let Some(reason) = reason.as_ref().filter(|_| cases.is_empty()) {
        cases.push(Case {
            name: "runs",
            end: undecided,
            text: reason.clone(),
        });
    }
    let count = |wanted: End| cases.iter().filter(|it| it.end == wanted).count();
    let junit = Junit {
        failures: count(End::Failed),
        errors: count(End::Error),
        skipped: count(End::Skipped),
        cases,
        seconds: outcome.seconds,
        started: &outcome.started,
    };
    // Rendering fails only if writing to memory fails.
    junit.render().unwrap_or_default()
}

/// Describes why a gate was stopped, with the last lines that the failed command printed, joined by `between`.
fn reason_in_words(stopped: &Stopped, between: &str) -> String {
    let lines = std::iter::once(&stopped.text).chain(&stopped.printed);
    let plain: Vec<String> = lines.map(|line| without_controls(line)).collect();
    plain.join(between)
}

/// Returns the summary in Markdown, with links to the figures in the gate's folder.
pub fn markdown(outcome: &Outcome) -> String {
    let mut text = String::new();
    let verdict = match (&outcome.stopped, outcome.verdict) {
        (Some(stopped), _) => without_controls(&stopped.text),
        (None, Verdict::Worse) => "worse".to_owned(),
        (None, Verdict::Within) => "not worse".to_owned(),
        (None, Verdict::CannotTell | Verdict::Stopped) => "cannot tell".to_owned(),
    };
    let _ = writeln!(text, "## taut gate: {verdict}\n");
    let printed = outcome.stopped.iter().flat_map(|it| &it.printed);
    for line in printed {
        // Markdown shows an indented line without formatting.
        let _ = writeln!(text, "    {}", without_controls(line));
    }
    if outcome
        .stopped
        .as_ref()
        .is_some_and(|it| !it.printed.is_empty())
    {
        text.push('\n');
    }
    if !outcome.metrics.is_empty() {
        add_table(&mut text, outcome);
    }
    for (name, line) in [("base", &outcome.base), ("head", &outcome.head)] {
        let _ = writeln!(
            text,
            "- {name}: `{}`",
            without_controls(line).replace('`', "'")
        );
    }
    text
}

/// Adds the table of the metrics to a summary in Markdown, and then the precision of the result for each metric.
fn add_table(text: &mut String, outcome: &Outcome) {
    let _ = writeln!(
        text,
        "| metric | base | head | change | 95 % at every look | limit | verdict |"
    );
    let _ = writeln!(text, "|---|--:|--:|--:|--:|--:|---|");
    for metric in &outcome.metrics {
        let interval = metric.interval.map_or_else(
            || "not known yet".to_owned(),
            |interval| {
                let [low, high] = [interval.low, interval.high].map(change_percent);
                format!("{low} to {high} %")
            },
        );
        let verdict = match metric.verdict {
            Verdict::Worse => "**worse**",
            Verdict::Within => "within",
            Verdict::CannotTell | Verdict::Stopped => "cannot tell",
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {interval} | {} | {verdict} |",
            cell(&metric.metric),
            number(metric.base),
            number(metric.head),
            change(metric.ratio),
            outcome.limit
        );
    }
    let _ = writeln!(
        text,
        "\n{} in {}, in random order; a wrong verdict has a probability of at most {} %.",
        counted(outcome.pairs.len(), "pair"),
        minutes(outcome.seconds),
        rounded(outcome.level * 100.0)
    );
    for (index, metric) in outcome.metrics.iter().enumerate() {
        let _ = writeln!(
            text,
            "{}: {}.",
            cell(&metric.metric),
            outcome.precision(metric)
        );
        let _ = writeln!(text, "\n![ratio of each pair]({})\n", figure_name(index));
    }
}

/// Returns a text with characters escaped that would end a cell of a Markdown table.
fn cell(text: &str) -> String {
    without_controls(text).replace('|', "\\|")
}

fn without_controls(text: &str) -> String {
    text.replace(|c: char| c.is_control(), " ")
}

/// Returns a value as text with four significant digits.
fn number(value: f64) -> String {
    if !value.is_finite() || value == 0.0 {
        return "-".to_owned();
    }
    let digits = 3 - value.abs().log10().floor() as i32;
    match usize::try_from(digits) {
        Ok(decimals) if decimals <= 9 => format!("{value:.decimals$}"),
        Ok(_) => format!("{value:.3e}"),
        Err(_) => format!("{value:.0}"),
    }
}

fn figure_name(index: usize) -> String {
    match index {
        0 => "ratio.svg".to_owned(),
        _ => format!("ratio-{}.svg", index + 1),
    }
}

/// Draws a figure with the head/base ratio of each pair, for the metric with index `index`.
fn figure(outcome: &Outcome, index: usize) -> String {
    let metric = &outcome.metrics[index];
    let pairs = outcome.pairs.iter().enumerate();
    let ratio = |pair: &Pair| pair.head[index] / pair.base[index];
    let points: Vec<(f64, f64)> = pairs
        .map(|(at, pair)| ((at + 1) as f64, ratio(pair)))
        .collect();
    let limit = outcome.limit.ratio();
    let values = points.iter().map(|point| point.1).chain([1.0, limit]);
    let (low, high) = values.fold((f64::MAX, f64::MIN), |ends, value| {
        (ends.0.min(value), ends.1.max(value))
    });
    let margin = 0.05 * (high - low).max(0.01);
    let title = format!("{}: ratio head / base of each pair", metric.metric);
    let line = Line {
        series: Series {
            label: "head / base".to_owned(),
            style: Style::of(1),
        },
        points,
    };
    let mut levels = vec![
        (1.0, "equal".to_owned()),
        (limit, format!("limit {}", outcome.limit)),
    ];
    if let Some(interval) = metric.interval {
        levels.push((interval.low, "lower bound".to_owned()));
        levels.push((interval.high, "upper bound".to_owned()));
    }
    lines::draw(
        &Chart::new("gate", &title, &outcome.sentence(metric)),
        (
            Scale::linear(Quantity::Number, 1.0, outcome.pairs.len().max(2) as f64),
            "pair",
        ),
        (
            Scale::linear(Quantity::Number, low - margin, high + margin),
            "head / base",
        ),
        &[line],
        &levels,
    )
}

/// Writes the files of a gate to a folder, which exists.
///
/// # Errors
/// A file cannot be written.
pub fn write(outcome: &Outcome, folder: &Path) -> Result<(), ExperimentError> {
    let mut pairs = csv::Writer::from_writer(Vec::new());
    let of_csv = |e: csv::Error| ExperimentError::io(folder.join("pairs.csv"))(e.into());
    let head = ["pair", "first", "metric", "base", "head"];
    pairs.write_record(head).map_err(of_csv)?;
    for (at, pair) in outcome.pairs.iter().enumerate() {
        for (index, metric) in outcome.metrics.iter().enumerate() {
            let row = (
                at + 1,
                pair.first,
                &metric.metric,
                pair.base[index],
                pair.head[index],
            );
            pairs.serialize(row).map_err(of_csv)?;
        }
    }
    let pairs = pairs
        .into_inner()
        .map_err(|e| ExperimentError::io(folder.join("pairs.csv"))(e.into_error()))?;
    write_whole(&folder.join("pairs.csv"), &pairs)?;
    for index in 0..outcome.metrics.len() {
        let svg = figure(outcome, index);
        write_whole(&folder.join(figure_name(index)), svg.as_bytes())?;
    }
    write_whole(&folder.join("junit.xml"), junit(outcome).as_bytes())?;
    write_whole(&folder.join("summary.md"), markdown(outcome).as_bytes())?;
    write_json(&folder.join("gate.json"), outcome)?;
    Ok(())
}
