//! `taut control challenge`: the highest delay, jitter and loss that a control loop tolerates.

use super::options::{LinkOptions, LoopOptions, choice};
use crate::exit::{self, Failure};
use crate::terminal::{Bar, print};
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::atomic::Ordering;
use std::time::Instant;
use taut_bench::benchmark::Observer;
use taut_control::challenge::{Axis, Found, largest};
use taut_control::{LinkSettings, Scenario, controller, station};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut control challenge
  taut control challenge --axis delay --apply arrival --strategy fixed
  taut control challenge --filter original --faults all --axis burst --seeds 20

In virtual time. Each seed gets a search of its own; the interval is of the median over seeds. With --apply deadline, no delay beyond
the bound is survived (29 ms of a period of 35 ms).")]
pub struct Arguments {
    #[command(flatten)]
    options: LoopOptions,
    #[command(flatten)]
    link: LinkOptions,
    /// Disturbance to increase: delay, jitter, loss, burst, push; may be repeated (default: all)
    #[arg(long, value_name = "NAME", value_parser = choice::<Axis>)]
    axis: Vec<Axis>,
    /// Number of seeds, each with a search of its own, 1 to 10000
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: u32,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The output of `taut control challenge --json`.
#[derive(Serialize, JsonSchema)]
pub struct Limits<'a> {
    plant: &'a str,
    controller: controller::Settings,
    station: station::Settings,
    link: &'a LinkSettings,
    found: &'a [Found],
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let of = arguments.options.of_loop(true)?;
    let scenario = Scenario {
        controller: of.controller,
        station: of.station,
        link: arguments.link.settings()?,
        ..Scenario::new(of.model)
    };
    let axes = match arguments.axis[..] {
        [] => Axis::ALL.to_vec(),
        _ => arguments.axis.clone(),
    };
    let stop = exit::stop_flag()?;
    let mut bar = Bar::new();
    let (mut all, seeds) = (Vec::new(), arguments.seeds);
    let (begun, searches) = (Instant::now(), axes.len() as u32 * seeds);
    let mut done = 0;
    for axis in axes {
        // Each call has one seed, so that Ctrl-C works and progress is shown.
        let mut given = Vec::new();
        for seed in 0..seeds {
            let elapsed = begun.elapsed();
            // The remaining searches are assumed to take as long as the mean of the completed ones.
            let whole = elapsed * searches / done.max(1);
            let name = format!("{axis:?}").to_lowercase();
            bar.progress(elapsed, whole, &format!("{name}, seed {}", seed + 1));
            if stop.load(Ordering::Relaxed) {
                bar.clear();
                return Err(Failure::Interrupted(
                    "stopped before all limits were found".to_owned(),
                ));
            }
            let seed = of.seed.wrapping_add(u64::from(seed));
            given.push(largest(&scenario, axis, &[seed])?);
            done += 1;
        }
        all.extend(given.into_iter().reduce(Found::with));
    }
    bar.clear();
    if arguments.json {
        print::json(&Limits {
            plant: scenario.model.name(),
            controller: scenario.controller,
            station: scenario.station,
            link: &scenario.link,
            found: &all,
        });
    } else {
        for found in &all {
            show(found, &scenario.model.parts().units[0]);
        }
    }
    if all.iter().any(|found| found.values.contains(&-1.0)) {
        return Err(Failure::Limit(format!(
            "{} falls even without any disturbance",
            scenario.model.name()
        )));
    }
    Ok(())
}

fn show(found: &Found, unit: &str) {
    let Some(largest) = &found.largest else {
        return;
    };
    let plain = |value: f64| format!("{value}");
    let unit = match found.axis {
        Axis::Push => format!("{unit} {}", found.unit),
        _ => found.unit.clone(),
    };
    let least = if found.at_least { "at least " } else { "" };
    let name = format!("{:?}", found.axis).to_lowercase();
    let words = largest.words(plain);
    print::line(format!(
        "{name:<8}{least}{} {unit} ({words})",
        largest.point
    ));
    if !found.recovery_s.is_empty() {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        print::line(format!(
            "        recovery from half of that takes {:.2} s and {:.1} units\u{b2} s of input (means of {})",
            mean(&found.recovery_s),
            mean(&found.recovery_energy),
            found.recovery_s.len()
        ));
    }
}
