//! The effects of the settings of `taut tune`: each is switched on and off by itself, and all together in a screening
//! design. The effects on tail latency, longest interruption and energy show which settings matter on this machine.
//!
//! A *case* is a set of settings that are on in a trial; all others have the values from before the benchmark.
//! `cases.rs` contains the cases and the reasons why settings cannot be switched, `effects.rs` the statistics (no I/O),
//! and `report.rs` the page.

mod cases;
mod effects;
mod report;

pub use cases::{Case, Fixed, Settings as Switched, switchable};
pub use effects::{Measure, Outcome, Row, Verdict, WayEffect, judge};
pub use report::Summary;

use crate::tail::{self, Load};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use taut_bench::benchmark::{
    Benchmark, BenchmarkError, Described, Description, Failed, Plan, Rig, Settings, Unit,
};
use taut_bench::device::Device;
use taut_bench::report::ReportError;
use taut_host::tune::{self, Profile, Root};
use taut_measure::screening;
use taut_results::{LeftOut, Mode};

/// A results folder that was read back.
pub type Results = taut_bench::benchmark::Results<Ablation>;

/// Estimated duration of the set-up and removal of a device, and of changing settings.
const AROUND: Duration = Duration::from_millis(1_500);
/// Length of a trial, first in a usual run and then in a quick run.
const TRIAL: [Duration; 2] = [Duration::from_secs(5), Duration::from_millis(500)];
/// Number of repetitions of a quick run: too few for statements, enough to check that everything works.
const QUICK: u32 = 2;

/// The fields of the manifest that only this benchmark has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// The name of the device under test.
    pub device: String,
    /// The offered rate, packets per second.
    pub rate_pps: f64,
    /// The CPUs on which the settings are to reduce noise.
    pub cpus: String,
    /// The profile whose value of a setting counts as on.
    pub profile: Option<Profile>,
    /// The settings that are switched, with their values off and on.
    pub settings: Vec<Switched>,
    /// The settings that cannot be switched.
    pub fixed: Vec<Fixed>,
    /// The cases, in the order of the report.
    pub cases: Vec<Case>,
}

/// The benchmark `taut tune ablate`.
#[derive(Debug)]
pub struct Ablation {
    device: Device,
    rate_pps: f64,
    profile: Profile,
    /// CPUs on which to reduce noise; none for the device's core.
    cpus: Option<BTreeSet<usize>>,
    /// Requested number of repetitions; none for the number that statements need.
    asked_repetitions: Option<u32>,
    repetitions: u32,
    trial: Duration,
    /// CPUs on which this run reduces noise.
    quiet: BTreeSet<usize>,
    facts: Facts,
}

impl Ablation {
    /// Makes the benchmark of `device` at `rate_pps` packets per second. `cpus` are the CPUs on which the settings are
    /// to reduce noise (none: the device's). `repetitions` is the number of repetitions (none: the number that
    /// statements need).
    pub fn new(
        device: Device,
        rate_pps: f64,
        profile: Profile,
        cpus: Option<BTreeSet<usize>>,
        repetitions: Option<u32>,
    ) -> Self {
        Self {
            device,
            rate_pps,
            profile,
            cpus,
            asked_repetitions: repetitions,
            repetitions: 1,
            trial: TRIAL[0],
            quiet: BTreeSet::new(),
            facts: Facts::default(),
        }
    }
}

impl Benchmark for Ablation {
    type Part = ();
    type Outcome = Outcome;
    type Facts = Facts;

    const DESCRIPTION: Description = Description {
        command: "tune ablate",
        title: "Effects of the machine's settings on the tail",
        head: "ablation.json",
        schema: 1,
        outcomes: "trials",
        subject: "case",
        advice: "see what taut tune apply says to these settings",
        phases: 1,
    };

    fn prepare(&mut self, plan: &Plan, rig: &Rig<'_>) -> Result<Vec<LeftOut>, BenchmarkError> {
        let quick = plan.mode == Mode::Quick;
        self.trial = plan.trial.unwrap_or(TRIAL[usize::from(quick)]);
        let of_device = || BTreeSet::from([rig.cores.device]);
        self.quiet = self.cpus.clone().unwrap_or_else(of_device);
        let root = Root::machine();
        let missing = |e: tune::TuneError| BenchmarkError::Missing(e.to_string());
        if tune::is_in_force(&root).map_err(missing)? {
            return Err(BenchmarkError::Missing(
                "settings of taut tune apply are in force, so nothing can be compared with them; run: taut tune revert"
                    .to_string(),
            ));
        }
        let known: Vec<&str> = tune::settings().map(|setting| setting.name).collect();
        if let Some(asked) = plan
            .only
            .iter()
            .find(|name| !known.contains(&name.as_str()))
        {
            return Err(BenchmarkError::Unknown {
                what: "setting",
                asked: asked.clone(),
                there: known.join(", "),
            });
        }
        let found = switchable(&root, &self.quiet, self.profile, &plan.only).map_err(missing)?;
        let (settings, fixed) = found;
        let names: Vec<String> = settings.iter().map(|it| it.name.clone()).collect();
        let Some(cases) = Case::all(&names) else {
            let why = fixed.iter().map(|it| format!("{} ({})", it.name, it.why));
            return Err(BenchmarkError::Missing(format!(
                "no setting can be switched here: {}",
                why.collect::<Vec<_>>().join("; ")
            )));
        };
        let needed = screening::pairs_needed(names.len(), effects::LEVEL / 2.0);
        self.repetitions = match self.asked_repetitions {
            Some(asked) => asked,
            None if quick => QUICK,
            None => u32::try_from(needed).unwrap_or(u32::MAX),
        };
        self.facts = Facts {
            device: self.device.full_name(),
            rate_pps: self.rate_pps,
            cpus: list(&self.quiet),
            profile: Some(self.profile),
            settings,
            fixed,
            cases,
        };
        Ok(Vec::new())
    }

    fn settings(&self) -> Settings<Facts> {
        Settings {
            repetitions: self.repetitions,
            trial: self.trial,
            facts: self.facts.clone(),
        }
    }

    fn turns(&self, _: u32, _: u32) -> Vec<(usize, ())> {
        (0..self.facts.cases.len()).map(|case| (case, ())).collect()
    }

    fn describe(&self, subject: usize, (): ()) -> Described {
        let case = &self.facts.cases[subject];
        Described {
            file_name: case.name.clone(),
            label: case.name.clone(),
            estimate: self.trial + AROUND,
        }
    }

    fn measure(
        &self,
        rig: &Rig<'_>,
        unit: &Unit<()>,
        stop: &AtomicBool,
    ) -> Result<Outcome, Failed> {
        let case = &self.facts.cases[unit.subject];
        let names: Vec<&str> = case.on.iter().map(String::as_str).collect();
        let load = Load {
            device: self.device.clone(),
            rate_pps: self.rate_pps,
            trial: self.trial,
        };
        let trial = || tail::measure(rig, &load, stop);
        let tail = with_settings(&Root::machine(), &self.quiet, self.profile, &names, trial)?;
        Ok(Outcome {
            case: case.name.clone(),
            repetition: unit.repetition,
            tail,
        })
    }

    fn report(
        dir: &Path,
        results: &Results,
        width: Option<usize>,
    ) -> Result<(PathBuf, String), ReportError> {
        report::write(dir, results, width)
    }
}

fn list(cpus: &BTreeSet<usize>) -> String {
    let numbers: Vec<String> = cpus.iter().map(usize::to_string).collect();
    numbers.join(",")
}

/// Applies settings, calls `measure`, and reverts the settings however `measure` ends. Without settings, no setting is
/// changed.
fn with_settings<T>(
    root: &Root,
    cpus: &BTreeSet<usize>,
    profile: Profile,
    names: &[&str],
    measure: impl FnOnce() -> Result<T, Failed>,
) -> Result<T, Failed> {
    if names.is_empty() {
        return measure();
    }
    let broken = |e: tune::TuneError| Failed::Broken(e.to_string());
    let reverted = tune::Reverting::new(root);
    let applied = tune::apply_only(root, cpus, profile, names).map_err(broken)?;
    for (_, outcome) in &applied.groups {
        if let tune::Outcome::Refused(why) = outcome {
            return Err(Failed::Broken(format!("not changed: {why}")));
        }
    }
    let measured = measure()?;
    reverted.end().map_err(broken)?;
    Ok(measured)
}

#[cfg(test)]
mod tests;

/// Returns synthetic results of a trial with the given tail latency, for tests of `ablation` and `fit`.
#[cfg(test)]
pub(crate) fn made_up_tail(tail_ns: f64, packets: u64) -> tail::Tail {
    let late = packets / 50_000;
    tail::Tail {
        owed: packets,
        received: packets,
        latency: vec![(5_000, packets - late), (tail_ns.round() as u64, late)],
        longest_gap_ns: Some((tail_ns / 2.0).round() as u64),
        generator_gap_ns: 1_000,
        joules: None,
        energy_source: "no data (no RAPL here)".to_string(),
    }
}
