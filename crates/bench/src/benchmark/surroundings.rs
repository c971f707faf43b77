//! The surroundings of every measurement: the noise on the cores of generator and device, and the other tasks that ran
//! during it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_host::{AffinityError, CorePlan, Snapshot};
use taut_measure::quantity::three_digits;
use taut_results::{Completion, Manifest, Noise, noise};
use taut_sys::Clock;
use taut_traffic::interruptions;

/// Returns how long the cores of generator and device are watched for noise before a benchmark of duration `measures`:
/// a twentieth of that duration, between 0.1 s and 1 s.
pub fn watched(measures: Duration) -> Duration {
    (measures / 20).clamp(Duration::from_millis(100), Duration::from_secs(1))
}

/// The state of the machine before a measurement: the activity of other tasks, and the cores of generator and device.
pub struct Surroundings {
    before: Snapshot,
    taken: Vec<Noise>,
    cores: CorePlan,
}

impl Surroundings {
    /// Takes a snapshot of the machine's activity without a measurement of noise.
    pub fn of(cores: &CorePlan) -> Self {
        Self {
            before: Snapshot::take(),
            taken: Vec::new(),
            cores: cores.clone(),
        }
    }

    /// Watches the cores of generator and device for noise, writes the result into the manifest, and takes a snapshot
    /// of the machine's activity.
    ///
    /// # Errors
    /// Returns an error if a core cannot be used.
    pub fn look(
        manifest: &mut Manifest,
        clock: &Clock,
        cores: &CorePlan,
        watched: Duration,
    ) -> Result<Self, AffinityError> {
        let taken = measure_interruptions(clock, cores, watched)?;
        manifest.noise.extend(taken.clone());
        Ok(Self {
            taken,
            ..Self::of(cores)
        })
    }

    /// Writes two facts into the manifest: the activity of other tasks since the snapshot, and whether the measurement
    /// was interrupted (`stop` is set).
    pub fn look_again(self, manifest: &mut Manifest, stop: &AtomicBool) {
        let cores = [self.cores.generator, self.cores.device];
        let activity = Snapshot::difference(&self.before, &Snapshot::take(), &cores);
        manifest.noise = noise(&self.cores, Some(&activity));
        manifest.noise.extend(self.taken);
        manifest.completion = if stop.load(Ordering::Relaxed) {
            Completion::Interrupted
        } else {
            Completion::Finished
        };
    }
}

/// Runs busy loops on the cores of generator and device at the same time, and measures how they are interrupted. Both
/// cores are busy in every measurement, too.
fn measure_interruptions(
    clock: &Clock,
    cores: &CorePlan,
    watched: Duration,
) -> Result<Vec<Noise>, AffinityError> {
    let watch = |cpu: usize| {
        taut_host::pin_current_thread(cpu)?;
        Ok((cpu, interruptions(clock, watched)))
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
                programs: Vec::new(),
            })
        })
        .collect()
}
