//! The report of a folder of `taut control run --out`. It has the results next to published ones, an animation of the
//! plant, balance and inputs over time, and the stages of each sampling period.

use super::shown::{PUBLISHED, is_published, outcome, rows, runs};
use super::{ControlReport, ROUNDS};
use askama::Template;
use std::path::{Path, PathBuf};
use taut_bench::benchmark::{Shell, write_page};
use taut_bench::report::{Drawn, ReportError};
use taut_control::plant::WHEEL_RADIUS_M;
use taut_control::station::Outcome;
use taut_control::{Record, Stage};
use taut_figure::animation::{self, Frame};
use taut_figure::lines::{self, Line};
use taut_figure::{Axis, Chart, Distribution, Item, Scale, Series, Style, histogram};
use taut_measure::quantity::Quantity;
use taut_traffic::control::End;

/// Length in seconds of the animated part of a run, with the largest balance deviation in the middle if possible.
const PLAYED_S: f64 = 10.0;
/// Maximum number of points in the figure of stacked stages.
const POINTS: usize = 250;

#[derive(Template)]
#[template(path = "control_loop/controlled.html")]
struct Page<'a> {
    shell: Shell<'a>,
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    published: Option<&'static str>,
    facts: Vec<(&'static str, String)>,
}

/// Returns true if a folder was written by `taut control run --out`.
pub fn is_controlled(dir: &Path) -> bool {
    taut_results::has(dir, ROUNDS) && ControlReport::read(dir).is_ok()
}

/// Writes `figures/` and `report.html` into the folder `dir` of `taut control run --out`, made from the files there.
/// Returns the path of the page; earlier files are replaced.
///
/// # Errors
/// Returns an error if the folder cannot be read or written.
pub fn write_report(dir: &Path) -> Result<PathBuf, ReportError> {
    let report = ControlReport::read(dir)?;
    let mut problems = Vec::new();
    let records = ControlReport::read_records(dir).unwrap_or_else(|e| {
        problems.push(e.to_string());
        Vec::new()
    });
    let figures = draw(&report, &records);
    let page = page(&report, &figures, &problems).render()?;
    write_page(dir, &figures, &page)
}

fn page<'a>(report: &'a ControlReport, figures: &'a [Drawn], problems: &'a [String]) -> Page<'a> {
    let (head, rows) = rows(report, true);
    let kpis = &report.kpis;
    let time = if report.is_virtual { "virtual" } else { "real" };
    let mut facts = vec![(
        "greatest deviation",
        format!("{:.2} {}", kpis.most_balance, report.units[0]),
    )];
    if let Some(it) = &kpis.in_flight {
        let text = format!("{:.2} on average, at most {}", it.mean, it.most);
        facts.push(("packets in the network", text));
    }
    if let Some(parts) = &report.scenario {
        facts.extend(parts.named().map(|(name, text)| (name, text.to_owned())));
    }
    if let Some(runs) = runs(report) {
        facts.push(("late or lost in a row", runs));
    }
    if report.missed > 0 {
        facts.push(("periods without a reading", report.missed.to_string()));
    }
    Page {
        shell: Shell {
            title: format!("Control of {} over a network", report.plant),
            subtitle: format!("{} · {time} time", report.started),
            state: (report.end != End::Periods)
                .then(|| "The run did not go through all its periods.".to_owned()),
            busy: None,
            finding: format!("{}.", outcome(report)),
            figures,
            noise: &[],
            left_out: &[],
            failed_attempts: &[],
            problems,
            machine: Vec::new(),
            command_line: &report.command_line,
        },
        head,
        rows,
        published: is_published(report).then_some(PUBLISHED),
        facts,
    }
}

/// Returns the sampling periods with the times of their readings, in seconds since the first reading.
fn timed(records: &[Record]) -> Vec<(f64, &Record)> {
    let first_ns = records.iter().find_map(|it| it.stamps.at(Stage::Read));
    let first_ns = first_ns.unwrap_or(0);
    let each = records.iter().filter_map(|it| {
        let ns = it.stamps.at(Stage::Read)?.checked_sub(first_ns)?;
        Some((ns as f64 / 1e9, it))
    });
    each.collect()
}

fn draw(report: &ControlReport, records: &[Record]) -> Vec<Drawn> {
    let timed = timed(records);
    if timed.len() < 2 {
        return Vec::new();
    }
    let mut figures: Vec<Drawn> = played(report, &timed).into_iter().collect();
    let balance = timed.iter().map(|(s, it)| (*s, it.balance)).collect();
    figures.push(over_time(
        ("balance", "What has to stay small"),
        &format!("balance ({})", report.units[0]),
        vec![("balance".to_owned(), balance)],
    ));
    let travel = timed.iter().map(|(s, it)| (*s, it.travel)).collect();
    figures.push(over_time(
        ("travel", "Distance from the start"),
        &format!("travel ({})", report.units[1]),
        vec![("travel".to_owned(), travel)],
    ));
    let inputs = (0..2).filter(|input| timed.iter().any(|(_, it)| it.inputs[*input] != 0.0));
    let inputs = inputs.map(|input| {
        let points = timed.iter().map(|(s, it)| (*s, it.inputs[input]));
        (format!("input {}", input + 1), points.collect())
    });
    figures.push(over_time(
        ("inputs", "Inputs that were applied"),
        "input",
        inputs.collect(),
    ));
    figures.extend(stages(&timed));
    figures.extend(
        STAGES
            .iter()
            .filter_map(|stage| histogram_of(stage, &timed)),
    );
    figures.extend(whole_times(&timed));
    figures
}

/// A stage of a sampling period: the name of its figure, its title, and a function that returns its length in ns.
type StageOf = (&'static str, &'static str, fn(&Record) -> Option<u64>);

/// The stages of a sampling period that are drawn as histograms (Gallenmüller's dissertation, figures 6.7 and 6.8).
const STAGES: [StageOf; 6] = [
    ("histogram-sensing", "Sensing", |it| {
        it.stamps.between(Stage::Read, Stage::ReportSent)
    }),
    ("histogram-network", "Network, half of both ways", |it| {
        let both = it
            .stamps
            .between(Stage::ReportSent, Stage::CommandReceived)?;
        let controller = it
            .stamps
            .between(Stage::ReportReceived, Stage::CommandSent)?;
        Some(both.checked_sub(controller)? / 2)
    }),
    ("histogram-controller", "Controller", |it| {
        it.stamps.between(Stage::ReportReceived, Stage::CommandSent)
    }),
    ("histogram-actuating", "Actuating", |it| {
        it.stamps.between(Stage::CommandReceived, Stage::Applied)
    }),
    (
        "histogram-round-trip",
        "Round trip, from reading to receiving",
        |it| it.stamps.between(Stage::Read, Stage::CommandReceived),
    ),
    (
        "histogram-period",
        "Period, from reading to applying",
        |it| it.stamps.between(Stage::Read, Stage::Applied),
    ),
];

/// Draws the histogram of a stage's lengths over all sampling periods; none if the stage's length is never known.
fn histogram_of(&(name, title, length): &StageOf, timed: &[(f64, &Record)]) -> Option<Drawn> {
    let mut lengths: Vec<f64> = timed
        .iter()
        .filter_map(|(_, it)| Some(length(it)? as f64))
        .collect();
    if lengths.is_empty() {
        return None;
    }
    lengths.sort_by(f64::total_cmp);
    let caption = format!("Share of {} rounds.", lengths.len());
    let chart = Chart::new(name, title, &caption);
    let item = Item {
        series: Series {
            label: title.to_owned(),
            style: Style::of(0).solid(),
        },
        values: Distribution::Sorted(&lengths),
    };
    let axis = Axis {
        title: "time",
        quantity: Quantity::TimeNs,
        log: false,
    };
    let svg = histogram::chart(&chart, axis, "rounds", &[item]);
    Some(Drawn {
        name,
        title,
        caption: caption.clone(),
        svg,
        data: None,
    })
}

/// Draws the lengths of round trip and period over time; none if neither length is known in two or more sampling
/// periods.
fn whole_times(timed: &[(f64, &Record)]) -> Option<Drawn> {
    let of = [("round trip", STAGES[4].2), ("period", STAGES[5].2)];
    let of = of.map(|(label, length)| {
        let points = timed
            .iter()
            .filter_map(|(s, it)| Some((*s, length(it)? as f64 / 1e6)));
        (label.to_owned(), points.collect::<Vec<_>>())
    });
    let is_known = of.iter().any(|(_, points)| points.len() > 1);
    is_known.then(|| {
        over_time(
            ("times", "Round trip and period"),
            "time from the reading (ms)",
            of.into(),
        )
    })
}

fn over_time(
    (name, title): (&'static str, &'static str),
    axis: &str,
    of: Vec<(String, Vec<(f64, f64)>)>,
) -> Drawn {
    let all = || of.iter().flat_map(|(_, points)| points);
    let x = Scale::linear_around(Quantity::Seconds, all().map(|point| point.0));
    let y = Scale::linear_around(Quantity::Number, all().map(|point| point.1));
    let each = of.iter().enumerate().map(|(index, (label, points))| Line {
        series: Series {
            label: label.clone(),
            style: Style::of(index).solid(),
        },
        points: points.clone(),
    });
    let lines: Vec<Line> = each.collect();
    let chart = Chart::new(name, title, "Over the time of the readings.");
    Drawn {
        name,
        title,
        caption: "Over the time of the readings.".to_owned(),
        svg: lines::draw(&chart, (x, "time"), (y, axis), &lines, &[]),
        data: None,
    }
}

/// Draws an animation of the plant around its largest balance deviation; none unless the plant is a body on wheels, or
/// if there are no readings.
fn played(report: &ControlReport, timed: &[(f64, &Record)]) -> Option<Drawn> {
    // The number of metres in a unit of travel.
    let metres = match (report.plant.as_str(), &report.units) {
        ("robot", _) => 1_f64.to_radians() * WHEEL_RADIUS_M,
        (_, [balance, travel]) if balance == "degrees" && travel == "m" => 1.0,
        _ => return None,
    };
    let worst = timed
        .iter()
        .max_by(|one, other| one.1.balance.abs().total_cmp(&other.1.balance.abs()))?;
    let last = timed.last()?.0;
    let from = (worst.0 - PLAYED_S / 2.0).clamp(0.0, (last - PLAYED_S).max(0.0));
    let within: Vec<&(f64, &Record)> = timed
        .iter()
        .filter(|(s, _)| (from..=from + PLAYED_S).contains(s))
        .collect();
    let frames: Vec<Frame> = within
        .iter()
        .map(|(_, it)| Frame {
            angle: it.balance,
            position_m: it.travel * metres,
            lamp: it.outcome != Outcome::InTime,
        })
        .collect();
    let (begin, end) = (within.first()?.0, within.last()?.0);
    let chart = Chart::new(
        "motion",
        "The plant as it moved",
        "A body on wheels, played at its own speed.",
    );
    Some(Drawn {
        name: "motion",
        title: "The plant as it moved",
        caption: format!(
            "From {begin:.1} to {end:.1} s, around its greatest deviation, over and over at its own speed."
        ),
        svg: animation::draw(
            &chart,
            &frames,
            (end - begin).max(0.1),
            "no command in time",
        ),
        data: None,
    })
}

/// Returns the time of each reading, and the lengths in ns of sensing, network (both ways), controller and actuating;
/// only for those periods in which all stages are known.
fn stage_lengths(timed: &[(f64, &Record)]) -> Vec<(f64, [u64; 4])> {
    let known = timed.iter().filter_map(|(s, it)| {
        let between = |from, to| it.stamps.between(from, to);
        let sensing = between(Stage::Read, Stage::ReportSent)?;
        let controller = between(Stage::ReportReceived, Stage::CommandSent)?;
        let both_ways = between(Stage::ReportSent, Stage::CommandReceived)?;
        let network = both_ways.checked_sub(controller)?;
        let actuating = between(Stage::CommandReceived, Stage::Applied)?;
        Some((*s, [sensing, network, controller, actuating]))
    });
    known.collect()
}

/// Draws the stages of each sampling period, from reading to applying, for those periods in which all stages are known;
/// none if fewer than two such periods exist.
fn stages(timed: &[(f64, &Record)]) -> Option<Drawn> {
    let known = stage_lengths(timed);
    let every = known.len().div_ceil(POINTS).max(1);
    let means: Vec<(f64, [f64; 4])> = known
        .chunks(every)
        .map(|chunk| {
            let mean = |stage: usize| {
                let sum: f64 = chunk.iter().map(|(_, ns)| ns[stage] as f64).sum();
                sum / chunk.len() as f64
            };
            (chunk[0].0, std::array::from_fn(mean))
        })
        .collect();
    if means.len() < 2 {
        return None;
    }
    let names = ["sensing", "network, both ways", "controller", "actuating"];
    let areas = names.iter().enumerate().map(|(stage, label)| Line {
        series: Series {
            label: (*label).to_owned(),
            style: Style::of(stage).solid(),
        },
        points: means.iter().map(|(s, ns)| (*s, ns[stage])).collect(),
    });
    let areas: Vec<Line> = areas.collect();
    let sums = means.iter().map(|(_, ns)| ns.iter().sum::<f64>());
    let of = match every {
        1 => String::new(),
        every => format!(" Each point is the mean of {every} rounds."),
    };
    Some(Drawn {
        name: "stages",
        title: "Where the time of a round goes",
        caption: format!(
            "From reading sensors to applying the command that came of it, of rounds whose command was applied.{of}"
        ),
        svg: lines::stacked(
            &Chart::new(
                "stages",
                "Where the time of a round goes",
                "Times of the stages on each other, over the time of the readings.",
            ),
            (
                Scale::linear_around(Quantity::Seconds, means.iter().map(|point| point.0)),
                "time",
            ),
            (
                Scale::linear_from_zero(Quantity::TimeNs, sums),
                "since the reading",
            ),
            &areas,
        ),
        data: None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::control_loop::HEAD;
    use taut_control::{Kpis, Scenario, plant, simulate};

    fn folder(name: &str, dir: &Path) -> String {
        let model = plant::model(name).unwrap();
        let mut scenario = Scenario::new(model.clone());
        scenario.station.periods = 300;
        scenario.link.loss = 0.1;
        let found = simulate(&scenario).unwrap();
        let mut report = ControlReport::new("taut control run <x>".to_owned(), &model);
        report.kpis = Kpis::of(&found.records, model.inputs(), true, found.fallen_ns);
        report.end = End::Periods;
        report.write(dir, &found.records).unwrap();
        std::fs::read_to_string(write_report(dir).unwrap()).unwrap()
    }

    #[test]
    fn reports_never_read_or_write_files_outside_the_results_folder() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("out");
        folder("robot", &dir);
        crate::strangers::check(&dir, write_report);
    }

    #[test]
    fn every_plant_has_a_page_and_only_wheeled_plants_move() {
        for (name, moves) in [("robot", true), ("pendulum", true), ("conveyor", false)] {
            let dir = tempfile::tempdir().unwrap();
            let dir = dir.path().join("out");
            let page = folder(name, &dir);
            assert!(page.contains("taut control run &#60;x&#62;"), "{name}");
            assert!(page.contains("300 rounds, 0 late"), "{name}");
            assert_eq!(page.contains("animateTransform"), moves, "{name}");
            assert_eq!(page.contains("A wireless"), name == "robot");
            let made = ["travel", "histogram-network", "histogram-period", "times"];
            for figure in ["balance", "inputs", "stages"].into_iter().chain(made) {
                assert!(dir.join(format!("figures/{figure}.svg")).is_file());
            }
            assert!(is_controlled(&dir));
        }
    }

    #[test]
    fn a_damaged_rounds_file_is_named_on_the_page() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("out");
        folder("robot", &dir);
        std::fs::write(dir.join(ROUNDS), "nonsense").unwrap();
        let page = std::fs::read_to_string(write_report(&dir).unwrap()).unwrap();
        assert!(page.contains("rounds.csv: line 1"), "{page}");
        std::fs::write(dir.join(HEAD), "{}").unwrap();
        assert!(write_report(&dir).is_err());
    }
}
