//! `taut demo`: compares packet forwarders on this machine and writes a report with plots.

use crate::exit::{self, Failure};
use crate::terminal::measure_alone;
use crate::terminal::print;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use taut_experiment::{Changes, Experiment, Variant};
use taut_lab::comparison::{self, ComparisonError, FRAME_SIZE_BYTES, Lengths, Plan};
use taut_lab::device::{self, Choice};
use taut_results::Mode;
use taut_traffic::Rate;

/// The reference experiment that says what is measured unless told otherwise.
const EXPERIMENT: &str = "demo";

/// At the constant rate in one repetition: each is kept in memory until it is written.
const MOST_PACKETS: f64 = 20e6;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut demo                 about two and a half minutes
  taut demo --quick         under 40 seconds
  taut demo --full --out results/night
  taut demo --list-devices
  taut demo --devices memif-idle,memif-testpmd-io
  taut demo --devices memif-idle --rate 500k --seconds 10 --repetitions 5
  taut experiment run demo  the same runs as an experiment to change, compare and publish

Over memif shared memory: taut forward with flush full(32, 100us), every(50us), each and idle(32).
Over veth in network namespaces (as root): the Linux bridge, taut forward on AF_PACKET and AF_XDP and
in the kernel (XDP).
Each gets 64-byte frames at 100 kpkt/s, every packet measured, then a sweep up to saturation; devices
take turns in each repetition. Ends with a table, report.html and the figures as SVG.")]
pub struct Arguments {
    /// Shortened: see that it works
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Ten repetitions of a minute at the constant rate: hours
    #[arg(long)]
    full: bool,
    /// Results folder (default: a new one under ./results)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Seed of the order in which devices take turns
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Constant rate, as in taut generate (default: 100k)
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// Seconds at the constant rate, in each repetition (default: 0.6)
    #[arg(long, value_name = "S", value_parser = measured_seconds)]
    seconds: Option<f64>,
    /// Repetitions (default: 6, the fewest with a 95 % interval)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: Option<u32>,
    /// Devices to measure: ids of --list-devices separated by commas, also with options as in taut generate --device, or
    /// `all`
    #[arg(long, value_name = "IDS", value_parser = Choice::parse)]
    devices: Option<Choice>,
    /// Say which devices there are, whether this machine can have them, and why not where not
    #[arg(long, conflicts_with_all = ["quick", "full", "out", "seed", "devices", "rate", "seconds", "repetitions"])]
    list_devices: bool,
    /// Print the summary as JSON instead of the table
    #[arg(long)]
    json: bool,
}

/// A repetition without a packet has no latency.
fn measured_seconds(text: &str) -> Result<f64, String> {
    crate::terminal::quantity::seconds(text)
        .ok()
        .filter(|seconds| (0.01..=3600.0).contains(seconds))
        .ok_or_else(|| "want 0.01 to 3600 seconds, such as 10 or 0.5".to_string())
}

/// What is measured unless told otherwise, as the reference experiment says.
struct Usual {
    devices: Vec<String>,
    rate: Rate,
    seconds: f64,
    repetitions: u32,
}

impl Usual {
    fn read() -> Result<Self, Failure> {
        let experiment = taut_experiment::open(EXPERIMENT, &Changes::default())?;
        Self::of(&experiment).ok_or_else(|| {
            Failure::Input("the experiment demo has no device, rate or seconds".to_string())
        })
    }

    fn of(experiment: &Experiment) -> Option<Self> {
        let text = |variant: &Variant, name: &str| match variant.variables.get(name)? {
            serde_json::Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        };
        let first = experiment.variants().first()?;
        let devices = experiment.variants().iter().map(|it| text(it, "device"));
        Some(Self {
            devices: devices.collect::<Option<_>>()?,
            rate: text(first, "rate")?.parse().ok()?,
            seconds: text(first, "seconds")?.parse().ok()?,
            repetitions: experiment.definition().plan.repetitions,
        })
    }
}

impl Arguments {
    fn plan(&self, program: PathBuf) -> Result<Plan, Failure> {
        let usual = Usual::read()?;
        let mode = match (self.quick, self.full) {
            (true, _) => Mode::Quick,
            (_, true) => Mode::Full,
            _ => Mode::Default,
        };
        let mut lengths = Lengths::of(
            mode,
            usual.repetitions,
            Duration::from_secs_f64(usual.seconds),
        );
        if let Some(seconds) = self.seconds {
            lengths.constant_rate = Duration::from_secs_f64(seconds);
        }
        if let Some(repetitions) = self.repetitions {
            lengths.repetitions = repetitions;
        }
        let rate = self.rate.unwrap_or(usual.rate);
        let rate_pps = rate
            .packets_per_second(f64::from(FRAME_SIZE_BYTES))
            .map_err(|e| Failure::Input(format!("--rate: {e}")))?;
        let packets = rate_pps * lengths.constant_rate.as_secs_f64();
        if !(1.0..=MOST_PACKETS).contains(&packets) {
            return Err(Failure::Input(format!(
                "{packets:.0} packets at the constant rate: want 1 to {MOST_PACKETS:.0}, since each one is recorded; change --rate or --seconds"
            )));
        }
        Ok(Plan {
            mode,
            lengths,
            rate_pps,
            seed: self.seed,
            folder: self
                .out
                .clone()
                .unwrap_or_else(|| comparison::fresh_folder(Path::new("results"))),
            devices: match &self.devices {
                Some(devices) => devices.clone(),
                None => Choice::parse(&usual.devices.join(",")).map_err(Failure::Input)?,
            },
            program,
            command_line: std::env::args().collect::<Vec<_>>().join(" "),
        })
    }
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.list_devices {
        return list_devices(arguments.json);
    }
    let plan = arguments.plan(exit::own_program()?)?;
    measure_alone(arguments.json, |bar, stop| {
        comparison::run(&plan, bar, stop)
    })
}

#[derive(Serialize)]
struct OfferRow {
    id: String,
    name: String,
    available: bool,
    by_default: bool,
    detail: String,
    note: String,
    command: String,
}

fn list_devices(json: bool) -> Result<(), Failure> {
    let usual = Usual::read()?;
    let rows: Vec<OfferRow> = device::offers()
        .into_iter()
        .map(|offer| {
            let info = offer.device.info();
            OfferRow {
                id: offer.device.id.clone(),
                name: offer.device.full_name(),
                available: offer.here.is_ok(),
                by_default: usual.devices.contains(&offer.device.id),
                detail: offer.here.unwrap_or_else(|missing| missing.to_string()),
                note: info.note,
                command: info.command.join(" "),
            }
        })
        .collect();
    if json {
        print::line(serde_json::to_string_pretty(&rows).unwrap_or_default());
        return Ok(());
    }
    for row in rows {
        print::line(format!(
            "{:<4}{:<24}{}{}",
            if row.available { "yes" } else { "no" },
            row.id,
            row.name,
            if row.by_default {
                ""
            } else {
                " (when asked for)"
            }
        ));
        print::line(format!("    {}", row.detail));
    }
    Ok(())
}

impl From<ComparisonError> for Failure {
    fn from(e: ComparisonError) -> Self {
        match e {
            ComparisonError::Nothing(_) => Self::Missing(e.to_string()),
            ComparisonError::Results(e) => e.into(),
            ComparisonError::Affinity(_) => Self::Input(e.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn plan(words: &[&str]) -> Plan {
        let command = Command::try_parse_from([&["demo"], words].concat()).unwrap();
        command.arguments.plan(PathBuf::from("taut")).unwrap()
    }

    fn ids(choice: &Choice) -> Vec<String> {
        match choice {
            Choice::Named(devices) => devices.iter().map(|it| it.id.clone()).collect(),
            Choice::All => panic!("all"),
        }
    }

    /// The words of a command that has no quotes inside words.
    fn words(script: &str) -> Vec<String> {
        script.split(' ').map(|it| it.replace('\'', "")).collect()
    }

    #[test]
    fn the_demo_and_the_experiment_ask_the_devices_the_same() {
        let usual = plan(&[]);
        let experiment = taut_experiment::open(EXPERIMENT, &Changes::default()).unwrap();
        let mut measured = Vec::new();
        for variant in experiment.variants() {
            let device = variant.loops["device"].as_str().unwrap();
            let changes = Changes {
                set: vec![("device".to_string(), format!("{device:?}"))],
                ..Changes::default()
            };
            let one = taut_experiment::open(EXPERIMENT, &changes).unwrap();
            let commands = one.check().unwrap().commands;
            assert_eq!(commands.len(), 1);
            let words = words(&commands[0].script);
            assert_eq!(words[..2], ["taut", "demo"]);
            let words: Vec<&str> = words[2..].iter().map(String::as_str).collect();
            let plan = plan(&words);
            assert_eq!(plan.rate_pps, usual.rate_pps);
            // The experiment repeats.
            assert_eq!(plan.lengths.repetitions, 1);
            let mut lengths = plan.lengths.clone();
            lengths.repetitions = usual.lengths.repetitions;
            assert_eq!(lengths, usual.lengths);
            measured.extend(ids(&plan.devices));
        }
        assert_eq!(measured, ids(&usual.devices));
        let repetitions = experiment.definition().plan.repetitions;
        assert_eq!(repetitions, usual.lengths.repetitions);
    }

    #[test]
    fn what_is_asked_for_goes_before_what_is_usual() {
        let asked = plan(&["--quick", "--rate", "250k", "--repetitions", "7"]);
        assert_eq!((asked.rate_pps, asked.lengths.repetitions), (250e3, 7));
        assert_eq!(asked.lengths.constant_rate, Duration::from_millis(300));
        let asked = plan(&["--seconds", "0.5", "--devices", "memif-idle"]);
        assert_eq!(asked.lengths.constant_rate, Duration::from_millis(500));
        assert_eq!(ids(&asked.devices), ["memif-idle"]);
        let many = Command::try_parse_from(["demo", "--rate", "10M", "--seconds", "60"]).unwrap();
        let refused = many.arguments.plan(PathBuf::new());
        assert!(matches!(refused, Err(Failure::Input(why)) if why.contains("--seconds")));
        for wrong in ["0", "-1", "1e9", "x"] {
            assert!(Command::try_parse_from(["demo", "--seconds", wrong]).is_err());
        }
    }
}
