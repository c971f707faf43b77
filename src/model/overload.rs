//! `taut model overload`: the rate at which a core with a function is overloaded, from two measurements.

use super::{predict, taken_away};
use crate::exit::Failure;
use crate::terminal::{print, quantity};
use crate::tune::aliasing::Ticking;
use std::path::PathBuf;
use taut_forecast::{Latencies, TippingPoint, tipping_point};
use taut_measure::quantity::share;
use taut_model::estimate::{Estimate, Prediction};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut generate --device memif --rate 10k --seconds 10 --out plain
  taut generate --device 'memif,function=burn(cycles=30000)' --rate 10k --seconds 10 --out function
  taut model overload --from plain function
  taut model overload --from plain1 function1 --from plain2 function2
  taut generate --device 'memif,function=burn(cycles=30000)' --rate 60k --seconds 10 --out busy
  taut model overload --from plain function --busy busy
  taut generate --device 'memif,function=burn(cycles=30000)' --rate 10k --pattern 'burst(32, 0ns)' --seconds 10 --out bursts
  taut model overload --from plain function --bursts bursts

Intervals are of runs: six of each give one of 95 %, one has none. The function takes a core as much longer than the plain forwarder as packets take through it, by the medians; interruptions are
those that the forwarder's core noted. The rate has to be one at which packets do not wait for each other. A busy core often takes
less: --busy finds how long from the median at a higher rate, which it has to carry; --bursts from what the worker itself took for
packets in full batches, as they come under overload: the nearest, and it needs no high rate.")]
pub struct Arguments {
    /// Folders of `taut generate --out`: of a plain forwarder, and of the function between the same ports; once for
    /// each run
    #[arg(long, num_args = 2, value_names = ["FORWARDER", "FUNCTION"], required = true)]
    from: Vec<PathBuf>,
    /// Folder of the function at a higher rate that it carried: adds R_max by the queue; once for each run
    #[arg(long, value_name = "FOLDER")]
    busy: Vec<PathBuf>,
    /// Folder of the function with bursts of 32 at a rate that it carries easily: adds R_max by the worker's own
    /// time; once for each run
    #[arg(long, value_name = "FOLDER")]
    bursts: Vec<PathBuf>,
    /// Interrupts of the core and their length, such as 250/s:6us, instead of the recorded ones; may be repeated
    #[arg(long, value_name = "RATE/s:TIME")]
    interrupt: Vec<Ticking>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let of = |place: usize| {
        let folders: Vec<&PathBuf> = arguments.from.iter().skip(place).step_by(2).collect();
        Latencies::of_runs(&folders)
    };
    let if_any = |folders: &[PathBuf]| match folders {
        [] => Ok(None),
        folders => Latencies::of_runs(folders).map(Some),
    };
    let (busy, bursts) = (if_any(&arguments.busy)?, if_any(&arguments.bursts)?);
    let given = taken_away(&arguments.interrupt);
    let found = tipping_point(of(0)?, of(1)?, busy, bursts.as_ref(), &given)?;
    if arguments.json {
        print::json(&found);
    } else {
        show(&found);
    }
    Ok(())
}

/// Formats an estimate, with its confidence interval if it has one.
fn with_interval(estimate: &Estimate, told: impl Fn(f64) -> String) -> String {
    let Estimate {
        value,
        low,
        high,
        confidence,
    } = *estimate;
    match confidence > 0.0 {
        true => format!(
            "{} ({} to {}, {:.0} %)",
            told(value),
            told(low),
            told(high),
            confidence * 100.0
        ),
        false => told(value),
    }
}

fn show(found: &TippingPoint) {
    let us = |us: f64| quantity::time(us * 1e3);
    show_highest("R_max", &found.highest);
    if let Some(queue) = &found.queue {
        show_highest("R_max by the queue", &queue.highest);
        print::line(format!(
            "a busy core needs {} per packet: median {} of {} packets at {}",
            with_interval(&queue.cpu_us, us),
            us(queue.measured.median_us.value),
            queue.measured.packets,
            quantity::rate(queue.measured.sent_pps)
        ));
    }
    if let Some(work) = &found.work {
        print::line(format!(
            "R_max by the worker's time {}: {} per packet, {:.1} packets per batch",
            quantity::rate(work.highest_pps),
            us(work.cpu_us),
            work.batch
        ));
    }
    print::line(format!(
        "t_CPU {}; interruptions take {} of a core",
        with_interval(&found.cpu_us, us),
        share(found.interrupted_us_per_s / 1e6)
    ));
    for (name, measured) in ["forwarder", "function"].iter().zip(&found.measured) {
        print::line(format!(
            "{name:<9} median {} of {} packets at {}{}",
            with_interval(&measured.median_us, us),
            measured.packets,
            quantity::rate(measured.sent_pps),
            match measured.runs {
                1 => String::new(),
                runs => format!(", {runs} runs"),
            }
        ));
    }
    for note in &found.notes {
        print::line(format!("note: {note}"));
    }
}

fn show_highest(name: &str, highest: &Prediction) {
    let told = with_interval(&highest.estimate, quantity::rate);
    print::line(format!("{name} {told}"));
    if let Some(errors) = &highest.errors {
        print::line(format!("error     {}", predict::words(errors)));
    }
}
