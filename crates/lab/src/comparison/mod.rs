//! The comparison of forwarders that `taut demo` runs: devices in interleaved repetitions, each
//! measured at a constant rate and swept up to saturation, into one results folder.
//! (Stylianopoulos et al., DEBS 2020, Figures 2 to 4.)

mod devices;
mod lengths;
pub(crate) mod run;
pub(crate) mod scratch;
mod variant;

pub(crate) use devices::chosen;
pub use devices::{Choice, Device, Offer, Way, offers};
pub use lengths::Lengths;
pub use run::{RunError, Site, flow_through, ports_to};
pub use scratch::Notes;

use crate::quantity::three_digits;
use crate::results::{
    Clock as ClockFacts, Experiment, Folder, LeftOut, Mode, Noise, PingPong as PingPongFacts,
    ResultsError, Settings, Stage,
};
use run::Place;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use taut_host::{CorePlan, Machine, Snapshot, choose_cores, noise_sources};
use taut_sys::Clock;
use taut_traffic::{interruptions, ping_pong};

/// Frame size in bytes, frame check sequence included: the reference's.
pub const FRAME_SIZE_BYTES: u32 = 64;

/// Round trips of a cache line, in blocks of 64.
const PING_PONG_BLOCKS: usize = 4_000;

/// How long both cores are watched for what the machine takes from them.
const WATCHED: Duration = Duration::from_secs(1);

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

/// Told how far it is, between measurements and never during one.
pub trait Observer {
    /// `done` of `total` seconds' worth of work is over; `what` comes next.
    fn progress(&mut self, done: Duration, total: Duration, what: &str);
    /// A device cannot be measured.
    fn left_out(&mut self, left_out: &LeftOut);
    /// Something that a person at the terminal wants to know at once.
    fn note(&mut self, text: &str);
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
    let taken = measure_interruptions(&clock, &cores)?;
    experiment.noise.extend(taken.clone());
    let folder = Folder::create(&plan.folder, &experiment)?;

    let before = Snapshot::take();
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
                    experiment.left_out.push(missing);
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
    let activity =
        Snapshot::difference(&before, &Snapshot::take(), &[cores.generator, cores.device]);
    experiment.noise = noise(&cores, Some(&activity));
    experiment.noise.extend(taken);
    experiment.stage = if stop.load(Ordering::Relaxed) {
        Stage::Interrupted
    } else {
        Stage::Finished
    };
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
    Experiment {
        schema: Experiment::SCHEMA,
        title: "Packet forwarding with and without buffering".to_string(),
        taut_version: env!("CARGO_PKG_VERSION").to_string(),
        started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        command_line: plan.command_line.clone(),
        stage: Stage::Running,
        settings: Settings {
            mode: plan.mode,
            frame_size_bytes: FRAME_SIZE_BYTES,
            rate_pps: plan.rate_pps,
            cbr_seconds: lengths.constant_rate.as_secs_f64(),
            trial_seconds: lengths.trial.as_secs_f64(),
            repetitions: lengths.repetitions,
            seed: plan.seed,
        },
        machine: serde_json::to_value(Machine::read()).unwrap_or_default(),
        core_plan: format!(
            "the generator sends and receives in one loop; {}",
            cores.note
        ),
        noise: noise(cores, None),
        left_out,
        devices: Vec::new(),
        clock: ClockFacts {
            source: "time-stamp counter against CLOCK_MONOTONIC_RAW".to_string(),
            hz: clock.hz,
            error_ppm: clock.error_ppm,
        },
        ping_pong: None,
    }
}

pub(crate) fn noise(cores: &CorePlan, activity: Option<&taut_host::SystemActivity>) -> Vec<Noise> {
    noise_sources(&Machine::read(), &[cores.generator, cores.device], activity)
        .into_iter()
        .map(|s| Noise {
            name: s.name,
            detail: format!("{}: {}", s.detail, s.evidence),
            taken: None,
        })
        .collect()
}

/// What the machine takes from busy loops on both cores at once, as during every measurement.
pub(crate) fn measure_interruptions(
    clock: &Clock,
    cores: &CorePlan,
) -> Result<Vec<Noise>, taut_host::AffinityError> {
    let watch = |cpu: usize| {
        taut_host::pin_current_thread(cpu)?;
        Ok((cpu, interruptions(clock, WATCHED)))
    };
    let found: Vec<Result<_, taut_host::AffinityError>> = std::thread::scope(|scope| {
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
