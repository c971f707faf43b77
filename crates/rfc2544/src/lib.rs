//! The benchmarks of RFC 2544 on one device: throughput, latency, loss, back-to-back frames and a soak, all in one
//! results folder. (RFC 2544 section 26, RFC 9004.)

#![forbid(unsafe_code)]

mod course;
mod evaluate;
mod lengths;
#[cfg(test)]
mod made_up;
#[cfg(test)]
#[path = "../../bench/testing/manifest.rs"]
mod manifest;
mod report;
mod results;
mod session;
mod soak;
#[cfg(test)]
#[path = "../../bench/testing/strangers.rs"]
mod strangers;
mod tables;

pub use lengths::Lengths;
pub use report::Summary;
pub use report::show;
pub use results::HEAD;
pub use results::{Head, Limits, Part, Results, Settings};

use results::Folder;
use session::{Progress, Session};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use taut_bench::benchmark::{Observer, Surroundings, watched};
use taut_bench::device::{DeviceUnderTest, Notes, RunError, Site};
use taut_host::{CorePlan, choose_cores};
use taut_results::{Completion, LeftOut, Manifest, ResultsError};
use taut_sys::Clock;
use taut_traffic::{Live, Sizes, Traffic};

/// The settings of a run of the benchmarks.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The device to measure.
    pub device: DeviceUnderTest,
    /// Frame sizes, each of which is measured separately.
    pub sizes: Vec<Sizes>,
    /// Fields that differ from the default frame, as in a traffic file.
    pub fields: Vec<(String, String)>,
    /// The parts to measure, and their lengths.
    pub settings: Settings,
    /// The results folder, which must not contain an experiment yet.
    pub folder: PathBuf,
    /// The `taut` program, run as the forwarder.
    pub program: PathBuf,
    /// The clock of the timestamps.
    pub clock: Clock,
    /// The command that repeats this run.
    pub command_line: String,
    /// The generator's core; none lets taut choose a core.
    pub core: Option<usize>,
    /// Timeout until the peers of the ports are connected.
    pub patience: Duration,
    /// File in which a `taut forward` that is connected to the ports logs the interruptions of its core; none unless
    /// the user named the file.
    pub device_log: Option<PathBuf>,
}

/// The reason why there is no result at all.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The results cannot be written.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// The cores are unavailable.
    #[error(transparent)]
    Affinity(#[from] taut_host::AffinityError),
    /// The settings are invalid.
    #[error("{0}")]
    Input(String),
    /// The device did not start, or forwarded no packet.
    #[error("{0}")]
    Device(String),
}

/// Measures all parts, and reports every packet to `live` if there is a live view. Setting `stop` ends the run early:
/// complete parts remain in the folder, which is marked as interrupted.
///
/// # Errors
/// Returns an error if results cannot be written, or nothing could be measured.
pub fn run(
    plan: &Plan,
    observer: &mut (dyn Observer + Send),
    live: Option<Live>,
    stop: &AtomicBool,
) -> Result<PathBuf, BenchError> {
    // Invalid sizes and fields are reported before anything is set up.
    let traffics = traffics(plan)?;
    let first = traffics
        .first()
        .ok_or_else(|| BenchError::Input("no frame size: give at least one".to_string()))?;
    let tapped = tapped_interfaces(plan)?;
    let notes = notes(plan)?;
    let device_log = notes.as_ref().map(Notes::path);
    let device_log: Option<&Path> = device_log.or(plan.device_log.as_deref());
    let cores = choose_cores().with_generator(plan.core);
    let clock = plan.clock;
    let mut head = begin_head(plan, &cores);
    let mut progress = Progress::new(observer, &plan.settings, plan.sizes.len());
    // An unusable folder is reported before any measurement takes time.
    let folder = Folder::create(&plan.folder, &head)?;
    let before = watched(progress.total());
    let surroundings = Surroundings::look(&mut head.manifest, &clock, &cores, before)?;
    folder.update(&head)?;
    let site = Site {
        program: &plan.program,
        generator_core: Some(cores.generator),
        device_core: cores.device,
        clock,
        tapped: plan.settings.tap,
        interruptions: device_log,
    };
    let measured = plan
        .device
        .measure(&site, first, plan.patience, stop, |instrument| {
            if let Some(seed) = plan.settings.seed {
                instrument.set_seed(seed);
            }
            Session {
                instrument,
                settings: &plan.settings,
                sizes: &plan.sizes,
                traffics: &traffics,
                folder: &folder,
                progress: &mut progress,
                stop,
                live,
                tapped: &tapped,
                device_log,
                fastest_pps: vec![None; plan.sizes.len()],
                found_pps: vec![Vec::new(); plan.sizes.len()],
            }
            .all()
        });
    surroundings.look_again(&mut head.manifest, stop);
    let failed = failure(measured)?;
    conclude(&folder, &mut head, failed)
}

/// Returns the traffic of each frame size.
fn traffics(plan: &Plan) -> Result<Vec<Traffic>, BenchError> {
    plan.sizes
        .iter()
        .map(|size| plan.device.traffic(size, &plan.fields))
        .collect::<Result<Vec<_>, _>>()
        .map_err(BenchError::Input)
}

/// Returns the interfaces that a wiretap observes; the list is empty without a wiretap.
fn tapped_interfaces(plan: &Plan) -> Result<Vec<String>, BenchError> {
    if plan.settings.tap {
        plan.device.wires().map_err(BenchError::Input)
    } else {
        Ok(Vec::new())
    }
}

/// Returns the log of the device's interruptions; none for a device that does not write one.
fn notes(plan: &Plan) -> Result<Option<Notes>, BenchError> {
    let notes = plan.device.notes();
    notes.map_err(|e| BenchError::Device(e.to_string()))
}

/// Returns the manifest as it is before the measurement.
fn begin_head(plan: &Plan, cores: &CorePlan) -> Head {
    let title = format!("Benchmarks of {}", plan.device.name());
    Head {
        manifest: Manifest::begin((Head::SCHEMA, title), &plan.command_line, cores, Vec::new()),
        settings: plan.settings.clone(),
        device: plan.device.name(),
        device_note: plan.device.note(),
        sizes: plan.sizes.iter().map(ToString::to_string).collect(),
        average_bytes: plan.sizes.iter().map(Sizes::average_bytes).collect(),
    }
}

/// Returns the reason why the measurement ended early; none if it is complete, or if the user stopped it.
///
/// # Errors
/// Returns an error if results cannot be written.
fn failure(measured: Result<(), RunError>) -> Result<Option<String>, BenchError> {
    match measured {
        Ok(()) | Err(RunError::Stopped) => Ok(None),
        // This error ends the run immediately, but results that were written earlier stay readable.
        Err(RunError::Results(e)) => Err(e.into()),
        Err(failed @ (RunError::Device(_) | RunError::Core(_) | RunError::Instrument(_))) => {
            Ok(Some(failed.to_string()))
        }
    }
}

/// Writes the state of completion into the folder, and returns the folder's path.
///
/// # Errors
/// Returns an error if results cannot be written, or the measurement `failed` before the first result.
fn conclude(
    folder: &Folder,
    head: &mut Head,
    failed: Option<String>,
) -> Result<PathBuf, BenchError> {
    if let Some(why) = &failed {
        head.manifest.completion = Completion::Interrupted;
        head.manifest.left_out.push(LeftOut {
            what: "all that follows".to_string(),
            why: why.clone(),
            how: "check that the device is still running, and repeat the measurement".to_string(),
        });
    }
    folder.update(head)?;
    match failed {
        Some(why) if folder.is_empty() => Err(BenchError::Device(why)),
        _ => Ok(folder.path().to_path_buf()),
    }
}
