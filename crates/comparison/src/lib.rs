//! The comparison of forwarders. A run measures one device once: at a constant rate with every packet recorded, then in
//! a sweep up to saturation. Each run has a results folder of its own. `taut bench comparison` is one run; an
//! experiment such as that of `taut demo` consists of many. (The reference is Stylianopoulos et al., DEBS 2020, Figures
//! 2 to 4.)

#![forbid(unsafe_code)]

pub mod evaluate;
mod lengths;
pub mod report;
mod run;
mod whole;

#[cfg(test)]
#[path = "../../bench/testing/strangers.rs"]
mod strangers;
#[cfg(test)]
mod synthetic;

pub use whole::{Whole, sum_up};

pub use report::show;
pub use taut_results::COMPARISON_HEAD as HEAD;

use lengths::Lengths;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use taut_bench::benchmark::Surroundings;
use taut_bench::device::{Device, RunError};
use taut_host::{CorePlan, choose_cores};
use taut_results::{
    Clock as ClockFacts, DeviceInfo, Experiment, Folder, Manifest, Mode, PingPong as PingPongFacts,
    ResultsError, Settings,
};
use taut_sys::Clock;
use taut_traffic::{Rate, ping_pong};

/// Frame size in bytes, frame check sequence included, as in Stylianopoulos et al., DEBS 2020.
const FRAME_SIZE_BYTES: u32 = 64;
/// Default constant rate in packets per second, as in Stylianopoulos et al., DEBS 2020.
const USUAL_PPS: f64 = 100e3;
/// Maximum number of packets at the constant rate. Each stays in memory until it is written.
const MOST_PACKETS: f64 = 20e6;
/// Number of blocks of 64 round trips of a cache line in a run. An experiment combines the blocks of all its runs.
const PING_PONG_BLOCKS: usize = 400;

/// The device to compare, and how to measure it.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Lengths and rates, as returned by [`settings`].
    pub settings: Settings,
    /// The device to compare.
    pub device: Device,
    /// The results folder, which must not contain results yet.
    pub folder: PathBuf,
    /// The `taut` program, run as the device under test.
    pub program: PathBuf,
    /// The command that repeats this run.
    pub command_line: String,
}

/// The reason why the comparison has no result.
#[derive(Debug, thiserror::Error)]
pub enum ComparisonError {
    /// The requested measurement is impossible.
    #[error("{0}")]
    Asked(String),
    /// The results cannot be written.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// The device under test could not be measured.
    #[error("{device}: {why}")]
    Device {
        /// The name of the device.
        device: String,
        /// The requirement that the machine lacks, or the error of the measurement.
        why: String,
    },
    /// A core cannot be used.
    #[error(transparent)]
    Affinity(#[from] taut_host::AffinityError),
}

/// Returns the settings of one repetition. A missing rate or duration is replaced by the default rate and the mode's
/// duration.
///
/// # Errors
/// Returns an error if the rate is invalid, or gives no packet or too many to store.
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
            "{packets:.0} packets at the constant rate: expected 1 to {MOST_PACKETS:.0}, since each one is \
            recorded; change --rate or --seconds"
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

/// Measures the device once, and returns the results folder. If `stop` is set during the measurement, the folder is
/// marked as interrupted and contains no run.
///
/// # Errors
/// Returns an error if results cannot be written (a full disk), or the device cannot be measured.
pub fn run(plan: &Plan, stop: &AtomicBool) -> Result<PathBuf, ComparisonError> {
    taut_host::process::sweep_left_behind();
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

/// Returns the manifest of a folder before the measurement.
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

/// Measures the round trip of a cache line between both cores. It uses threads of its own, so that the caller's
/// affinity does not change.
fn measure_ping_pong(clock: &Clock, cores: &CorePlan) -> Result<PingPongFacts, ComparisonError> {
    let (generator, device) = (cores.generator, cores.device);
    let measured = std::thread::scope(|scope| {
        scope
            .spawn(move || {
                taut_host::pin_current_thread(generator)?;
                Ok(ping_pong(clock, PING_PONG_BLOCKS, move || {
                    // An error is ignored here. If the core is unavailable, either the generator's thread has reported
                    // the same error, or both threads share the generator's core.
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
