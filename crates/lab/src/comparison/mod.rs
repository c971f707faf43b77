//! The comparison of forwarders, one device once: at a constant rate with every packet kept, then swept up to saturation, into a
//! results folder of its own. `taut bench comparison` is this; many such runs make an experiment, such as that of `taut demo`.
//! (Stylianopoulos et al., DEBS 2020, Figures 2 to 4.)

mod lengths;
mod run;
mod whole;

pub use whole::{Whole, sum_up};

pub(crate) use crate::report::show;
pub(crate) use taut_results::COMPARISON_HEAD as HEAD;

use crate::benchmark::surroundings::Surroundings;
use crate::device::{Device, RunError, scratch};
use lengths::Lengths;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;
use taut_host::{CorePlan, choose_cores};
use taut_results::{
    Clock as ClockFacts, DeviceInfo, Experiment, Folder, Manifest, Mode, PingPong as PingPongFacts,
    ResultsError, Settings,
};
use taut_sys::Clock;
use taut_traffic::{Rate, ping_pong};

/// Frame size in bytes, frame check sequence included: the reference's.
const FRAME_SIZE_BYTES: u32 = 64;
/// Constant rate unless told, packets per second: the reference's.
const USUAL_PPS: f64 = 100e3;
/// Packets at the constant rate at most: each is kept in memory until it is written.
const MOST_PACKETS: f64 = 20e6;
/// Round trips of a cache line in a run, in blocks of 64. The runs of an experiment have many times as many together.
const PING_PONG_BLOCKS: usize = 400;

/// What to run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How long and how hard: those of [`settings`].
    pub settings: Settings,
    /// The device.
    pub device: Device,
    /// The results folder, which must not hold results yet.
    pub folder: PathBuf,
    /// The `taut` program, run as the device under test.
    pub program: PathBuf,
    /// The command that repeats all this.
    pub command_line: String,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum ComparisonError {
    /// What is asked for cannot be measured.
    #[error("{0}")]
    Asked(String),
    /// The results cannot be written.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// The device could not be measured.
    #[error("{device}: {why}")]
    Device {
        /// Its name.
        device: String,
        /// What it lacks, or what went wrong.
        why: String,
    },
    /// A core cannot be used.
    #[error(transparent)]
    Affinity(#[from] taut_host::AffinityError),
}

/// Returns the settings of one repetition, with the usual rate and the seconds of the mode unless told.
///
/// # Errors
/// When the rate is none, or gives no packet or too many to keep.
pub fn settings(
    mode: Mode,
    rate: Option<Rate>,
    seconds: Option<f64>,
    seed: u64,
) -> Result<Settings, ComparisonError> {
    let lengths = Lengths::of(mode);
    let rate_pps = rate.map_or(Ok(USUAL_PPS), |rate| {
        rate.packets_per_second(f64::from(FRAME_SIZE_BYTES))
            .map_err(|e| ComparisonError::Asked(format!("--rate: {e}")))
    })?;
    let cbr_seconds = seconds.unwrap_or(lengths.constant_rate.as_secs_f64());
    let packets = rate_pps * cbr_seconds;
    if !(1.0..=MOST_PACKETS).contains(&packets) {
        return Err(ComparisonError::Asked(format!(
            "{packets:.0} packets at the constant rate: want 1 to {MOST_PACKETS:.0}, since each one is recorded; change --rate or --seconds"
        )));
    }
    Ok(Settings {
        mode,
        frame_size_bytes: FRAME_SIZE_BYTES,
        rate_pps,
        cbr_seconds,
        trial_seconds: lengths.trial.as_secs_f64(),
        repetitions: 1,
        seed,
    })
}

/// Measures the device once, and returns the results folder. When `stop` is set meanwhile, the folder is marked as interrupted
/// and has no run.
///
/// # Errors
/// When results cannot be written (a full disk), or the device cannot be measured.
pub fn run(plan: &Plan, stop: &AtomicBool) -> Result<PathBuf, ComparisonError> {
    scratch::sweep_left_behind();
    let cores = choose_cores();
    let lengths = Lengths::of(plan.settings.mode);
    let clock = Clock::calibrate(lengths.before);
    let devices = vec![plan.device.info()];
    let mut head = describe(&plan.settings, &plan.command_line, &cores, &clock, devices);
    head.ping_pong = Some(measure_ping_pong(&clock, &cores)?);
    let surroundings = Surroundings::look(&mut head.manifest, &clock, &cores, lengths.before)?;
    let folder = Folder::create(&plan.folder, &head)?;
    let context = run::RunContext {
        plan,
        lengths: &lengths,
        cores: &cores,
        clock,
        folder: &folder,
    };
    let measured = run::measure(&context, stop);
    surroundings.look_again(&mut head.manifest, stop);
    folder.update(&head)?;
    match measured {
        Ok(()) | Err(RunError::Stopped) => Ok(folder.path().to_path_buf()),
        Err(RunError::Results(e)) => Err(e.into()),
        Err(failed) => Err(ComparisonError::Device {
            device: plan.device.full_name(),
            why: failed.to_string(),
        }),
    }
}

/// The head of a folder of results that are to be measured.
fn describe(
    settings: &Settings,
    command_line: &str,
    cores: &CorePlan,
    clock: &Clock,
    devices: Vec<DeviceInfo>,
) -> Experiment {
    let title = "Packet forwarding with and without buffering".to_string();
    let schema = Experiment::SCHEMA;
    let mut manifest = Manifest::begin((schema, title), command_line, cores, Vec::new());
    manifest.core_plan = format!(
        "the generator sends and receives in one loop; {}",
        cores.note
    );
    Experiment {
        manifest,
        settings: settings.clone(),
        devices,
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
pub fn fresh_folder(parent: &Path, name: &str) -> PathBuf {
    let now = humantime::format_rfc3339_seconds(SystemTime::now())
        .to_string()
        .replace(':', "-");
    let path = |n: u32| {
        parent.join(if n == 1 {
            format!("{name}-{now}")
        } else {
            format!("{name}-{now}-{n}")
        })
    };
    (1..)
        .map(path)
        .find(|p| !p.exists())
        .unwrap_or_else(|| path(1))
}
