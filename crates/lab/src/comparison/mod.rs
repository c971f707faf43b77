//! The comparison of forwarders that `taut demo` runs: devices in interleaved repetitions, each
//! measured at a constant rate and swept up to saturation, into one results folder.
//! (Stylianopoulos et al., DEBS 2020, Figures 2 to 4.)

mod lengths;
mod run;

pub use lengths::Lengths;

pub(crate) use crate::report::show;
pub(crate) use taut_results::COMPARISON_HEAD as HEAD;

use crate::benchmark::{Observer, Surroundings};
use crate::device::{Choice, Device, RunError, chosen, scratch};
use run::Place;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use taut_host::{CorePlan, choose_cores};
use taut_results::{
    Clock as ClockFacts, Experiment, Folder, LeftOut, Manifest, Mode, PingPong as PingPongFacts,
    ResultsError, Settings,
};
use taut_sys::Clock;
use taut_traffic::ping_pong;

/// Frame size in bytes, frame check sequence included: the reference's.
pub const FRAME_SIZE_BYTES: u32 = 64;

/// Round trips of a cache line, in blocks of 64.
const PING_PONG_BLOCKS: usize = 4_000;

/// What to run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How hard, in words.
    pub mode: Mode,
    /// How long and how often.
    pub lengths: Lengths,
    /// The constant rate, packets per second.
    pub rate_pps: f64,
    /// Order of the devices in each repetition.
    pub seed: u64,
    /// The results folder, which must not hold an experiment yet.
    pub folder: PathBuf,
    /// Which devices.
    pub devices: Choice,
    /// The `taut` program, run as the device under test.
    pub program: PathBuf,
    /// The command that repeats all this.
    pub command_line: String,
}

/// Why there is no comparison at all.
#[derive(Debug, thiserror::Error)]
pub enum ComparisonError {
    /// The results cannot be written.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// Not one device could be measured, or none of those chosen is here.
    #[error("no device could be measured: {0}")]
    Nothing(String),
    /// The generator's core cannot be used.
    #[error(transparent)]
    Affinity(#[from] taut_host::AffinityError),
}

/// Runs the comparison. Ends early, with complete runs kept and the folder marked as interrupted, when
/// `stop` is set.
///
/// # Errors
/// When results cannot be written (a full disk), or nothing could be measured. A device that fails is
/// left out with its reason instead.
pub fn run(
    plan: &Plan,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<PathBuf, ComparisonError> {
    scratch::sweep_stale();
    let lengths = &plan.lengths;
    let cores = choose_cores();
    let clock = Clock::calibrate(Duration::from_millis(200));
    let (mut devices, left_out) = chosen(&plan.devices);
    if devices.is_empty()
        && let Some(missing) = left_out.first()
    {
        return Err(ComparisonError::Nothing(format!(
            "{}: {} ({})",
            missing.what, missing.why, missing.how
        )));
    }
    for missing in &left_out {
        observer.left_out(missing);
    }
    let mut experiment = describe(plan, &cores, &clock, left_out);
    experiment.devices = devices.iter().map(Device::info).collect();
    experiment.ping_pong = Some(measure_ping_pong(&clock, &cores)?);
    let surroundings = Surroundings::look(&mut experiment.manifest, &clock, &cores)?;
    let folder = Folder::create(&plan.folder, &experiment)?;
    let mut seed = fastrand::Rng::with_seed(plan.seed);
    let mut clockwork = Clockwork::new(lengths, &devices);
    let mut first_failure = None;
    'repetitions: for repetition in 1..=lengths.repetitions {
        let mut order: Vec<usize> = (0..devices.len()).collect();
        seed.shuffle(&mut order);
        // Failing devices are removed after the repetition, so that the order stays what the seed says.
        let mut failed = Vec::new();
        for index in order {
            let device = &devices[index];
            if stop.load(Ordering::Relaxed) {
                break 'repetitions;
            }
            observer.progress(clockwork.done, clockwork.total, &device.full_name());
            let place = Place {
                plan,
                cores: &cores,
                clock,
                folder: &folder,
                repetition,
            };
            match run::measure(&place, device, stop) {
                Ok(()) => {}
                Err(RunError::Results(e)) => return Err(e.into()),
                Err(RunError::Stopped) => break 'repetitions,
                Err(
                    failed_with @ (RunError::Device(_)
                    | RunError::Core(_)
                    | RunError::Instrument(_)),
                ) => {
                    let why = failed_with.to_string();
                    let missing = LeftOut {
                        what: format!("{}, from repetition {repetition} on", device.full_name()),
                        why: why.clone(),
                        how: format!("run it by itself to see more: {}", device.by_itself()),
                    };
                    observer.left_out(&missing);
                    experiment.manifest.left_out.push(missing);
                    first_failure.get_or_insert(why);
                    failed.push(index);
                }
            }
            clockwork.did(device, lengths);
        }
        failed.sort_unstable();
        for index in failed.into_iter().rev() {
            clockwork.forget(&devices.remove(index), lengths, repetition);
        }
    }
    surroundings.look_again(&mut experiment.manifest, stop);
    folder.update(&experiment)?;
    match first_failure {
        Some(why) if devices.is_empty() => Err(ComparisonError::Nothing(why)),
        _ => Ok(folder.path().to_path_buf()),
    }
}

/// How long everything takes, for the progress bar.
struct Clockwork {
    done: Duration,
    total: Duration,
}

impl Clockwork {
    fn new(lengths: &Lengths, devices: &[Device]) -> Self {
        let round: Duration = devices.iter().map(|d| lengths.estimate(d)).sum();
        Self {
            done: Duration::ZERO,
            total: round * lengths.repetitions,
        }
    }

    fn did(&mut self, device: &Device, lengths: &Lengths) {
        self.done += lengths.estimate(device);
    }

    /// The device will not be measured in the repetitions after this one.
    fn forget(&mut self, device: &Device, lengths: &Lengths, repetition: u32) {
        self.total -= lengths.estimate(device) * (lengths.repetitions - repetition);
    }
}

fn describe(plan: &Plan, cores: &CorePlan, clock: &Clock, left_out: Vec<LeftOut>) -> Experiment {
    let lengths = &plan.lengths;
    let title = "Packet forwarding with and without buffering".to_string();
    let schema = Experiment::SCHEMA;
    let mut manifest = Manifest::begin((schema, title), &plan.command_line, cores, left_out);
    manifest.core_plan = format!(
        "the generator sends and receives in one loop; {}",
        cores.note
    );
    Experiment {
        manifest,
        settings: Settings {
            mode: plan.mode,
            frame_size_bytes: FRAME_SIZE_BYTES,
            rate_pps: plan.rate_pps,
            cbr_seconds: lengths.constant_rate.as_secs_f64(),
            trial_seconds: lengths.trial.as_secs_f64(),
            repetitions: lengths.repetitions,
            seed: plan.seed,
        },
        devices: Vec::new(),
        clock: ClockFacts {
            source: "time-stamp counter against CLOCK_MONOTONIC_RAW".to_string(),
            hz: clock.hz,
            error_ppm: clock.error_ppm,
        },
        ping_pong: None,
    }
}

/// Measured by threads of their own, so that the caller's affinity stays as it is.
fn measure_ping_pong(clock: &Clock, cores: &CorePlan) -> Result<PingPongFacts, ComparisonError> {
    let (generator, device) = (cores.generator, cores.device);
    let measured = std::thread::scope(|scope| {
        scope
            .spawn(move || {
                taut_host::pin_current_thread(generator)?;
                Ok(ping_pong(clock, PING_PONG_BLOCKS, move || {
                    // A core that cannot be had was already refused to the generator or is the same one.
                    let _ = taut_host::pin_current_thread(device);
                }))
            })
            .join()
    });
    match measured {
        Ok(result) => result
            .map(|p| PingPongFacts {
                p50_ns: p.p50_ns,
                count: p.count,
            })
            .map_err(ComparisonError::Affinity),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// A results folder of today under `parent` that does not exist yet: `demo-2026-11-21T08-15-00Z`.
pub fn fresh_folder(parent: &Path) -> PathBuf {
    fresh_folder_for(parent, "demo")
}

/// As [`fresh_folder`], for another experiment: `io-2026-11-21T08-15-00Z`.
pub fn fresh_folder_for(parent: &Path, experiment: &str) -> PathBuf {
    let now = humantime::format_rfc3339_seconds(SystemTime::now())
        .to_string()
        .replace(':', "-");
    let name = |n: u32| {
        parent.join(if n == 1 {
            format!("{experiment}-{now}")
        } else {
            format!("{experiment}-{now}-{n}")
        })
    };
    (1..)
        .map(name)
        .find(|p| !p.exists())
        .unwrap_or_else(|| name(1))
}
