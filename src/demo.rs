//! `taut demo`: runs the reference experiment `demo` and shows the results on a page of its own.

use crate::bench::comparison::Load;
use crate::exit::{self, Failure};
use crate::report;
use crate::terminal::print;
use crate::terminal::{Alone, Bar};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use taut_bench::benchmark::{Observer, fresh_folder};
use taut_bench::device::{self, Choice, Device};
use taut_comparison::Whole;
use taut_experiment::folder::Folder;
use taut_experiment::{Changes, Experiment, Request, compare_devices};
use taut_host::private::EXPERIMENT;
use taut_results::{Completion, LeftOut, Mode, Settings, refuse_results};

/// The name of the reference experiment that `taut demo` runs.
const NAME: &str = "demo";

/// Devices that the first sentence of the results compares. With `--quick` their runs come first.
const FIRST: [&str; 2] = ["memif-full", "memif-each"];

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut demo                 less than two minutes
  taut demo --quick         under a minute, the first result after some seconds
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
    #[command(flatten)]
    load: Load,
    /// Results folder, which must not hold an experiment yet (default: a new one under ./results)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Seed of the order in which devices are interleaved
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Repetitions of all devices, 1 to 1000 (default: 6, the fewest with a 95 % interval; --quick 3; --full 10)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: Option<u32>,
    /// Devices, in the order of the report: ids of --list-devices, also with options as in `taut generate --device`,
    /// or `all` (default: those with `by_default` in --list-devices --json)
    #[arg(long, value_name = "IDS", value_parser = Choice::parse)]
    devices: Option<Choice>,
    /// List the devices, whether this machine can run them, and what is missing; measure nothing
    #[arg(long, conflicts_with_all = ["quick", "full", "out", "seed", "devices", "rate", "seconds", "repetitions"])]
    list_devices: bool,
    /// Print summary.json instead of the table; with --list-devices the list
    #[arg(long)]
    json: bool,
}

/// The experiment to run, after changes by the options, with the devices to measure and the skipped devices.
struct Asked {
    experiment: Experiment,
    changes: Changes,
    settings: Settings,
    devices: Vec<Device>,
    left_out: Vec<LeftOut>,
}

impl Arguments {
    /// Returns the experiment, modified by the options.
    fn asked(&self) -> Result<Asked, Failure> {
        let of_one = self.load.settings(self.seed)?;
        let usual = usual_devices()?;
        let choice = match &self.devices {
            Some(devices) => devices.clone(),
            None => Choice::parse(&usual.join(",")).map_err(Failure::Input)?,
        };
        let (devices, left_out) = device::chosen(&choice);
        if let (true, Some(missing)) = (devices.is_empty(), left_out.first()) {
            return Err(nothing(format!(
                "{}: {} ({})",
                missing.what, missing.why, missing.how
            )));
        }
        let mut changes = Changes {
            repetitions: self.repetitions,
            seed: Some(self.seed),
            ..Changes::default()
        };
        let mut set = |name: &str, value: String| changes.set.push((name.to_string(), value));
        let specs: Vec<&str> = devices.iter().map(|device| device.spec.as_str()).collect();
        if specs != usual {
            set("device", serde_json::to_string(&specs).unwrap_or_default());
        }
        if self.load.rate.is_some() {
            set("rate", of_one.rate_pps.to_string());
        }
        let (mode, usual_repetitions) = match of_one.mode {
            Mode::Quick => ("quick", Some(3)),
            Mode::Full => ("full", Some(10)),
            Mode::Default => ("default", None),
        };
        if of_one.mode != Mode::Default {
            set("mode", mode.to_string());
        }
        if of_one.mode != Mode::Default || self.load.seconds.is_some() {
            set("seconds", of_one.cbr_seconds.to_string());
            // The timeout is the usual 120 s, plus time for repeated trials and for devices that start slowly.
            let seconds = 120.0 + 2.0 * of_one.cbr_seconds + 100.0 * of_one.trial_seconds;
            changes.limit = Some(format!("{seconds:.0}s"));
        }
        if of_one.mode == Mode::Quick {
            changes.first = first_of(&specs);
        }
        changes.repetitions = changes.repetitions.or(usual_repetitions);
        let experiment = taut_experiment::open(NAME, &changes)?;
        Ok(Asked {
            settings: Settings {
                repetitions: experiment.definition().plan.repetitions,
                ..of_one
            },
            experiment,
            changes,
            devices,
            left_out,
        })
    }
}

/// Returns the identifiers of the devices that are measured by default.
fn usual_devices() -> Result<Vec<String>, Failure> {
    let experiment = taut_experiment::open(NAME, &Changes::default())?;
    let ids = experiment.variants().iter();
    let ids = ids.filter_map(|variant| Some(variant.loops.get("device")?.as_str()?.to_string()));
    Ok(ids.collect())
}

/// Returns the values of `plan.first` with which the runs of [`FIRST`] come first; none if one of these devices is not
/// measured.
fn first_of(specs: &[&str]) -> BTreeMap<String, Vec<String>> {
    if !FIRST.iter().all(|id| specs.contains(id)) {
        return BTreeMap::new();
    }
    let ids = FIRST.map(str::to_string).to_vec();
    BTreeMap::from([("device".to_string(), ids)])
}

fn nothing(why: impl std::fmt::Display) -> Failure {
    Failure::Missing(format!("no device could be measured: {why}"))
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.list_devices {
        return list_devices(arguments.json);
    }
    let stop = exit::stop_flag()?;
    let asked = arguments.asked()?;
    let fresh = || fresh_folder(Path::new("results"), NAME);
    let dir = arguments.out.clone().unwrap_or_else(fresh);
    refuse_results(&dir)?;
    let _alone = Alone::claim_for(EXPERIMENT)?;
    let command_line = std::env::args().collect::<Vec<_>>().join(" ");
    let folder = Folder::begin(&dir, &asked.experiment, NAME, &command_line, &asked.changes)?;
    folder.record_commit(env!("TAUT_COMMIT"))?;
    let request = Request {
        folder,
        experiment: asked.experiment,
        program: exit::own_program()?,
        holds_machine: true,
        at_most: None,
    };
    let mut bar = Bar::new().with_findings(!arguments.json);
    for missing in &asked.left_out {
        bar.left_out(missing);
    }
    let whole = Whole::begin(
        &asked.settings,
        &command_line,
        &asked.devices,
        asked.left_out,
    );
    let made = compare_devices(&request, whole, &mut bar, stop);
    bar.clear();
    if made.is_err() {
        request.folder.forget_if_empty();
    }
    let results = made?;
    let manifest = &results.experiment.manifest;
    if let (true, Completion::Finished, Some(failed)) = (
        results.runs.is_empty(),
        manifest.completion,
        manifest.left_out.last(),
    ) {
        return Err(nothing(&failed.why));
    }
    report::show_comparison(&results, arguments.json)?;
    if stop.load(Ordering::Relaxed) {
        return Err(Failure::Interrupted(format!(
            "interrupted: only complete results are shown; continue with: taut experiment resume {}",
            dir.display()
        )));
    }
    Ok(())
}

#[derive(Serialize, JsonSchema)]
pub struct OfferRow {
    id: String,
    name: String,
    available: bool,
    by_default: bool,
    detail: String,
    note: String,
    command: String,
}

fn list_devices(json: bool) -> Result<(), Failure> {
    let usual = usual_devices()?;
    let rows: Vec<OfferRow> = device::offers()
        .into_iter()
        .map(|offer| {
            let info = offer.device.info();
            OfferRow {
                id: offer.device.id.clone(),
                name: offer.device.full_name(),
                available: offer.here.is_ok(),
                by_default: usual.contains(&offer.device.id),
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
            if row.by_default { "" } else { " (on request)" }
        ));
        print::line(format!("    {}", row.detail));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::bench::comparison;
    use clap::Parser;
    use std::time::Duration;

    #[derive(Parser)]
    struct Demo {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[derive(Parser)]
    struct OneRun {
        #[command(flatten)]
        arguments: comparison::Arguments,
    }

    fn asked(words: &[&str]) -> Result<Asked, Failure> {
        let demo = Demo::try_parse_from([&["demo"], words].concat()).unwrap();
        demo.arguments.asked()
    }

    #[test]
    fn each_demo_run_is_a_command_with_the_requested_settings() {
        for words in [
            &[][..],
            &["--quick"],
            &["--full"],
            &["--rate", "250k", "--seconds", "0.5", "--seed", "7"],
        ] {
            let device = ["--devices", "memif,flush=full(8, 1ms)"];
            let asked = asked(&[&device, words].concat()).unwrap();
            let commands = asked.experiment.check().unwrap().commands;
            let [command] = &commands[..] else {
                panic!("{commands:?}");
            };
            let (command, device) = (&command.script, "'memif,flush=full(8, 1ms)'");
            let rest = command.strip_prefix(&format!("taut bench comparison --device {device} "));
            let words = rest.unwrap().split_whitespace();
            let one =
                OneRun::parse_from(["comparison", "--device", device].into_iter().chain(words));
            let of_one = one.arguments.load.settings(asked.settings.seed).unwrap();
            let repetitions = asked.settings.repetitions;
            assert_eq!(
                Settings {
                    repetitions,
                    ..of_one
                },
                asked.settings,
                "{command}"
            );
        }
    }

    #[test]
    fn explicit_options_override_the_defaults() {
        let usual = usual_devices().unwrap();
        assert!(usual.len() > 10, "{usual:?}");
        let plan = |words: &[&str]| {
            let asked = asked(&[&["--devices", "memif-idle,memif-each"], words].concat()).unwrap();
            let schedule = &asked.experiment.definition().plan;
            assert_eq!(schedule.repetitions, asked.settings.repetitions);
            assert_eq!(schedule.seed, asked.settings.seed);
            let limit = taut_settings::duration(&schedule.limit).unwrap();
            // A search for the loss-free rate may take a minute and more in addition to the constant rate.
            assert!(limit > Duration::from_secs_f64(asked.settings.cbr_seconds + 100.0));
            let runs = asked.experiment.plan().len();
            (runs, asked.settings.cbr_seconds, limit.as_secs())
        };
        assert_eq!(plan(&[]), (12, 0.4, 120));
        assert_eq!(plan(&["--quick"]), (6, 0.3, 123));
        assert_eq!(plan(&["--full"]), (20, 60.0, 740));
        assert_eq!(
            plan(&["--quick", "--repetitions", "7", "--seed", "9"]).0,
            14
        );
        assert_eq!(
            plan(&["--seconds", "200", "--rate", "1k"]),
            (12, 200.0, 522)
        );
    }

    #[test]
    fn the_quick_demo_measures_the_devices_of_its_headline_first() {
        let order = |words: &[&str]| {
            let experiment = asked(words).unwrap().experiment;
            let device = |variant: usize| experiment.variants()[variant].loops["device"].clone();
            let plan = experiment.plan().into_iter();
            plan.map(|run| device(run.variant)).collect::<Vec<_>>()
        };
        let is_first = |device: &serde_json::Value| {
            let id = device.as_str();
            id.is_some_and(|id| FIRST.contains(&id))
        };
        let quick = order(&["--quick"]);
        let (first, others) = quick.split_at(3 * FIRST.len());
        assert!(first.iter().all(is_first), "{quick:?}");
        assert!(!others.iter().any(is_first), "{quick:?}");
        assert!(!order(&[])[..12].iter().all(is_first));
    }

    #[test]
    fn rates_and_durations_that_cannot_be_measured_are_refused() {
        let refused = asked(&["--rate", "10M", "--seconds", "60"]);
        assert!(matches!(refused, Err(Failure::Input(why)) if why.contains("--seconds")));
        for wrong in ["0", "-1", "1e9", "x"] {
            assert!(Demo::try_parse_from(["demo", "--seconds", wrong]).is_err());
        }
    }
}
