//! `taut tune aliasing`: the effect of periodic interrupts on periodic packets, by simulation.

use crate::exit::Failure;
use crate::terminal::{print, quantity};
use schemars::JsonSchema;
use serde::Serialize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use taut_figure::{Axis, Chart, Series, Style, scatter};
use taut_measure::quantity::Quantity;
use taut_model::{Beat, Interrupt, Scene};
use taut_results::write_whole;
use taut_traffic::Rate;

/// Number of equal parts of the simulated time; the highest latency of each part is printed.
const BINS: usize = 100;

/// The largest number of simulated interrupts, and the largest number of delayed packets.
const MOST: f64 = 2e6;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut tune aliasing --rate 10k --interrupt 83.3325/s:8.2us --interrupt 83.3325/s:5.5us@4ms --interrupt 83.3325/s:5.5us@8ms --for 30s -o ticks.svg
  taut tune aliasing --rate 100k --interrupt 250/s:6us --latency 3us --json

An interrupt is RATE/s:TIME, with @TIME for when the first one comes. Packets at a constant rate meet interrupts at a
constant rate in a beat of both; two clocks are never quite the same, which is what 83.3325 stands for: the first example
has a tick of 249.9975 a second, and every third one costs more.")]
pub struct Arguments {
    /// Packets per second, such as 10k
    #[arg(long)]
    rate: Rate,
    /// Rate and length of an interrupt, and when the first one comes, such as 250/s:6us or 250/s:6us@4ms; may be
    /// repeated
    #[arg(long, value_name = "RATE/s:TIME[@TIME]", required = true)]
    interrupt: Vec<Ticking>,
    /// Simulated time; it ends at two million interrupts or delayed packets
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = quantity::duration)]
    duration: Duration,
    /// Latency of a packet that nothing delays
    #[arg(long, value_name = "TIME", default_value = "0us", value_parser = quantity::duration)]
    latency: Duration,
    /// Draw the delayed packets in this file
    #[arg(short, long, value_name = "FILE.svg")]
    output: Option<PathBuf>,
    /// Print JSON, with the highest latency of each hundredth of the time
    #[arg(long)]
    json: bool,
}

/// A periodic interrupt in the syntax of the option.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticking(pub(crate) Interrupt);

impl FromStr for Ticking {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || "expected RATE/s:TIME or RATE/s:TIME@TIME, such as 250/s:6us".to_owned();
        let (rate, cost) = text.split_once("/s:").ok_or_else(wanted)?;
        let (cost, phase) = cost.split_once('@').unwrap_or((cost, "0s"));
        let per_second: f64 = rate.parse().map_err(|_| wanted())?;
        if !(1e-3..=1e6).contains(&per_second) {
            return Err("expected 0.001 to 1000000 interrupts a second".to_owned());
        }
        let ns = |text: &str| quantity::duration(text).map(|time| time.as_nanos() as f64);
        Ok(Self(Interrupt {
            per_second,
            cost_ns: ns(cost)?,
            phase_ns: ns(phase)?,
        }))
    }
}

/// Builds the simulation from the arguments; an error says which argument makes it impossible or too long.
fn scene(arguments: &Arguments) -> Result<Scene, Failure> {
    let input = |text: &str| Failure::Input(text.to_owned());
    let Rate::Packets(rate_pps) = arguments.rate else {
        return Err(input("--rate: expected packets per second, such as 10k"));
    };
    let scene = Scene {
        rate_pps,
        undisturbed_ns: arguments.latency.as_nanos() as f64,
        seconds: arguments.duration.as_secs_f64(),
        interrupts: arguments.interrupt.iter().map(|one| one.0).collect(),
    };
    let each = || scene.interrupts.iter();
    let taken: f64 = each().map(|i| i.per_second * i.cost_ns / 1e9).sum();
    if taken >= 1.0 {
        return Err(input(
            "--interrupt: all interrupts together take more than 100 % of the time",
        ));
    }
    if scene.seconds <= 0.0 || rate_pps <= 0.0 {
        return Err(input("--for and --rate: expected more than 0"));
    }
    let interrupts: f64 = each().map(|i| i.per_second * scene.seconds).sum();
    let exposed = each().map(|i| i.per_second * (i.cost_ns + scene.undisturbed_ns) / 1e9);
    let hits = exposed.sum::<f64>() * rate_pps * scene.seconds;
    if interrupts.max(hits) > MOST {
        return Err(input(
            "--for: more than two million interrupts or delayed packets; give a shorter time",
        ));
    }
    Ok(scene)
}

/// The output of `taut tune aliasing --json`.
#[derive(Serialize, JsonSchema)]
pub struct Simulated<'a> {
    scene: &'a Scene,
    beats: &'a [Beat],
    packets: u64,
    held_up: usize,
    share_held_up: f64,
    worst_ns: f64,
    /// The longest latency in each hundredth of the time.
    worst_ns_by_hundredth: Vec<f64>,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let scene = scene(arguments)?;
    let hits = scene.hits();
    let packets = (scene.rate_pps * scene.seconds).floor().max(1.0);
    let worst_ns = hits
        .iter()
        .map(|hit| hit.latency_ns)
        .fold(scene.undisturbed_ns, f64::max);
    if let Some(path) = &arguments.output {
        let points: Vec<(f64, f64)> = hits.iter().map(|hit| (hit.at_s, hit.latency_ns)).collect();
        write_whole(path, draw(&points).as_bytes())?;
    }
    let beats: Vec<Beat> = scene.interrupts.iter().map(|i| scene.beat(i)).collect();
    let share = hits.len() as f64 / packets;
    if arguments.json {
        print::json(&Simulated {
            scene: &scene,
            beats: &beats,
            packets: packets as u64,
            held_up: hits.len(),
            share_held_up: share,
            worst_ns,
            worst_ns_by_hundredth: scene.worst_ns(BINS),
        });
        return Ok(());
    }
    print::line(format!(
        "{} for {} s: {} of {packets} packets delayed ({:.3} %), the longest latency is {}",
        quantity::rate(scene.rate_pps),
        scene.seconds,
        hits.len(),
        share * 100.0,
        quantity::time(worst_ns)
    ));
    for (interrupt, beat) in scene.interrupts.iter().zip(&beats) {
        let lines = match (beat.line_s, beat.recurs_s) {
            (Some(line_s), Some(recurs_s)) => format!(
                "hits packets {} {} each time: draws lines of {line_s:.3} s, one every {recurs_s:.3} s",
                quantity::time(beat.drift_ns.abs()),
                if beat.drift_ns > 0.0 {
                    "later"
                } else {
                    "earlier"
                },
            ),
            _ => {
                "is in step with the packets: delays the same packets each time, or none".to_owned()
            }
        };
        print::line(format!(
            "{} per second of {}: {lines}",
            interrupt.per_second,
            quantity::time(interrupt.cost_ns)
        ));
    }
    Ok(())
}

fn draw(points: &[(f64, f64)]) -> String {
    let chart = Chart::new(
        "aliasing",
        "Packets delayed by periodic interrupts",
        "Expected latency over time of the packets that periodic interrupts delay.",
    );
    let axis = |title, quantity| Axis {
        title,
        quantity,
        log: false,
    };
    let series = Series {
        label: "expected".to_owned(),
        style: Style::of(1),
    };
    scatter::chart(
        &chart,
        axis("time (s)", Quantity::Seconds),
        axis("latency", Quantity::TimeNs),
        &[scatter::Item { series, points }],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupt_periods_are_parsed_with_and_without_a_phase() {
        let read = |text: &str| text.parse::<Ticking>().map(|t| t.0);
        let expected = Interrupt {
            per_second: 250.0,
            cost_ns: 5_500.0,
            phase_ns: 2e6,
        };
        assert_eq!(read("250/s:5.5us@2ms"), Ok(expected));
        assert_eq!(read("250/s:5.5us").map(|i| i.phase_ns), Ok(0.0));
        for wrong in [
            "250",
            "250/s",
            "x/s:6us",
            "250/s:6",
            "-1/s:6us",
            "0/s:6us",
            "nan/s:6us",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
