//! What every results folder says of itself, and what surrounds every measurement.

use crate::quantity::three_digits;
use crate::results::{LeftOut, Noise, Stage};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use taut_host::{AffinityError, CorePlan, Machine, Snapshot, noise_sources};
use taut_sys::Clock;
use taut_traffic::interruptions;

/// How long both cores are watched for what the machine takes from them.
const WATCHED: Duration = Duration::from_secs(1);

/// What the head of every results folder says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Layout version of the folder.
    pub schema: u32,
    /// One line that names the experiment.
    pub title: String,
    /// Version of taut that ran it.
    pub taut_version: String,
    /// When it began, RFC 3339.
    pub started: String,
    /// The command that repeats it.
    pub command_line: String,
    /// How far it came.
    pub stage: Stage,
    /// Facts about the machine, as an object of names and values; nested objects are sections.
    pub machine: serde_json::Value,
    /// Which core did what, in one or two sentences.
    pub core_plan: String,
    /// Known sources of noise.
    pub noise: Vec<Noise>,
    /// What could not be measured here.
    pub left_out: Vec<LeftOut>,
}

impl Manifest {
    /// Makes the manifest of a measurement that begins now.
    pub(crate) fn begin(
        (schema, title): (u32, String),
        command_line: &str,
        cores: &CorePlan,
        left_out: Vec<LeftOut>,
    ) -> Self {
        let machine = Machine::read();
        Self {
            schema,
            title,
            taut_version: env!("CARGO_PKG_VERSION").to_string(),
            started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            command_line: command_line.to_string(),
            stage: Stage::Running,
            machine: serde_json::to_value(&machine).unwrap_or_default(),
            core_plan: cores.note.clone(),
            noise: noise(cores, None),
            left_out,
        }
    }

    /// A manifest that says nothing, for tests.
    #[cfg(test)]
    pub(crate) fn made_up(schema: u32) -> Self {
        Self {
            schema,
            title: "made up".to_string(),
            taut_version: "0.0.0".to_string(),
            started: "2026-01-01T00:00:00Z".to_string(),
            command_line: "taut bench".to_string(),
            stage: Stage::Finished,
            machine: serde_json::Value::Null,
            core_plan: String::new(),
            noise: Vec::new(),
            left_out: Vec::new(),
        }
    }
}

/// What is looked at before and after every measurement: what the machine takes from both cores, and what else ran meanwhile.
pub(crate) struct Surroundings {
    before: Snapshot,
    taken: Vec<Noise>,
    cores: CorePlan,
}

impl Surroundings {
    /// Watches both cores, writes what it sees into the manifest, and takes a snapshot of the machine's activity.
    ///
    /// # Errors
    /// When a core cannot be used.
    pub(crate) fn look(
        manifest: &mut Manifest,
        clock: &Clock,
        cores: &CorePlan,
    ) -> Result<Self, AffinityError> {
        let taken = measure_interruptions(clock, cores)?;
        manifest.noise.extend(taken.clone());
        Ok(Self {
            before: Snapshot::take(),
            taken,
            cores: cores.clone(),
        })
    }

    /// Writes into the manifest what ran meanwhile, and whether the measurement came to its end.
    pub(crate) fn look_again(self, manifest: &mut Manifest, stop: &AtomicBool) {
        let cores = [self.cores.generator, self.cores.device];
        let activity = Snapshot::difference(&self.before, &Snapshot::take(), &cores);
        manifest.noise = noise(&self.cores, Some(&activity));
        manifest.noise.extend(self.taken);
        manifest.stage = if stop.load(Ordering::Relaxed) {
            Stage::Interrupted
        } else {
            Stage::Finished
        };
    }
}

/// Known sources of noise on both cores.
pub fn noise(cores: &CorePlan, activity: Option<&taut_host::SystemActivity>) -> Vec<Noise> {
    noise_sources(&Machine::read(), &[cores.generator, cores.device], activity)
        .into_iter()
        .map(|s| Noise {
            name: s.name,
            detail: format!("{}: {}", s.detail, s.evidence),
            taken: None,
        })
        .collect()
}

/// Measures what the machine takes from busy loops on both cores at once, as during every measurement.
fn measure_interruptions(clock: &Clock, cores: &CorePlan) -> Result<Vec<Noise>, AffinityError> {
    let watch = |cpu: usize| {
        taut_host::pin_current_thread(cpu)?;
        Ok((cpu, interruptions(clock, WATCHED)))
    };
    let found: Vec<Result<_, AffinityError>> = std::thread::scope(|scope| {
        let watches = [cores.generator, cores.device].map(|cpu| scope.spawn(move || watch(cpu)));
        watches
            .map(|w| {
                w.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .into()
    });
    found
        .into_iter()
        .map(|watched| {
            let (cpu, i) = watched?;
            let each_second = |n: u64| (n as f64 / i.seconds).round();
            Ok(Noise {
                name: format!("taken from a busy loop on CPU {cpu}"),
                detail: format!(
                    "{:.1} % of the time with both CPUs busy; gaps a second: {} over 10 µs, {} over 100 µs, {} over 1 ms; longest {:.0} µs (watched for {} s)",
                    i.share * 100.0,
                    each_second(i.over_10_us),
                    each_second(i.over_100_us),
                    each_second(i.over_1_ms),
                    i.longest_ns / 1e3,
                    three_digits(i.seconds)
                ),
                taken: Some(i.share),
            })
        })
        .collect()
}
