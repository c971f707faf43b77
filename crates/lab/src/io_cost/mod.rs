//! What input and output of a packet cost in each framework: the load per packet is raised until the
//! throughput declines; batches and lists of many sizes are tried beside it. (Gallenmüller 2021,
//! sections 4 and 5.1.)

mod evaluate;
mod framework;
mod knee;
mod lengths;
mod report;
mod results;
mod session;
mod trial;

pub(crate) use evaluate::Estimate;
pub use evaluate::{CHECKED_LOAD, Evaluation, Row, render_text_table};
pub use framework::{Framework, Program, Transport};
pub use knee::{Knee, KneeSearch, KneeSettings};
pub use lengths::Lengths;
pub use report::{is_io_cost, write as write_report};
pub use results::{HardwareCounters, Head, Results};
pub use session::{Events, Own, Work};
pub use trial::{Part, Series, Trial};

use crate::comparison::{self, Observer, scratch};
use crate::results::{LeftOut, Mode, PartsFolder, ResultsError, Stage};
use session::{Place, Session, SessionError};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use taut_function::burn::{BurnError, measure_error};
use taut_host::{CorePlan, Machine, Snapshot, choose_cores};
use taut_sys::Clock;

/// What to run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How long and how often.
    pub mode: Mode,
    /// Order of the frameworks in each repetition.
    pub seed: u64,
    /// The results folder, which must not hold an experiment yet.
    pub folder: PathBuf,
    /// The `taut` program, run as the forwarder.
    pub program: PathBuf,
    /// The command that repeats all this.
    pub command_line: String,
    /// Ids of the frameworks to measure; all that are possible if empty.
    pub only: Vec<String>,
    /// Length of each trial, if not the mode's.
    pub trial: Option<Duration>,
}

/// Why there is no result at all.
#[derive(Debug, thiserror::Error)]
pub enum IoCostError {
    /// The results cannot be written.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// A framework was asked for that is not there.
    #[error("no framework \"{asked}\" here; there are {there}")]
    Unknown {
        /// What was asked for.
        asked: String,
        /// What there is.
        there: String,
    },
    /// Nothing could be measured.
    #[error("no framework could be measured; the first said: {0}")]
    Nothing(String),
    /// A core cannot be used.
    #[error(transparent)]
    Affinity(#[from] taut_host::AffinityError),
    /// The machine lacks something that all of it needs.
    #[error(transparent)]
    Port(#[from] taut_port::PortError),
}

/// Burns whose error is stated, cycles per packet, and the batches it is measured in.
const CHECKED_BURNS: [u32; 9] = [10, 30, 50, 75, 100, 350, 1_000, 3_000, 10_000];
const CHECKED_BATCHES: [usize; 4] = [1, 2, 8, 32];

/// A part of one framework in one repetition, still to be measured.
struct Unit {
    framework: usize,
    part: Part,
    repetition: u32,
}

/// Measures everything. Ends early, with complete series kept and the folder marked as interrupted, when
/// `stop` is set.
///
/// # Errors
/// When results cannot be written, or nothing could be measured. A framework that fails is left out with
/// its reason instead.
pub fn run(
    plan: &Plan,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<PathBuf, IoCostError> {
    scratch::sweep_stale();
    let cores = choose_cores();
    let clock = Clock::calibrate(Duration::from_millis(200));
    let machine = Machine::read();
    let mut lengths = Lengths::of(plan.mode, machine.memory_bytes.as_ref().map(|m| m.value));
    lengths.trial = plan.trial.unwrap_or(lengths.trial);
    let (frameworks, left_out) = choose(&plan.only)?;
    for missing in &left_out {
        observer.left_out(missing);
    }
    let mut head = Head {
        schema: Head::SCHEMA,
        title: "What input and output of a packet cost".to_string(),
        taut_version: env!("CARGO_PKG_VERSION").to_string(),
        started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        command_line: plan.command_line.clone(),
        stage: Stage::Running,
        mode: plan.mode,
        seed: plan.seed,
        repetitions: lengths.repetitions,
        trial_seconds: lengths.trial.as_secs_f64(),
        steps: lengths.steps,
        frame_size_bytes: session::FRAME_SIZE_BYTES as u32,
        caches: machine.caches.clone(),
        machine: serde_json::to_value(&machine).unwrap_or_default(),
        core_plan: cores.note.clone(),
        noise: comparison::noise(&cores, None),
        left_out,
        frameworks,
        tsc_hz: clock.hz,
        tsc_error_ppm: clock.error_ppm,
        burn_errors: measure_burns(&cores)?,
        hardware_counters: HardwareCounters::probe(),
    };
    let taken = comparison::measure_interruptions(&clock, &cores)?;
    head.noise.extend(taken.clone());
    let folder = PartsFolder::create(&plan.folder, (results::HEAD, &head), results::PARTS)?;
    let before = Snapshot::take();
    let place = Place {
        program: &plan.program,
        cores: &cores,
        clock,
    };
    let mut units = plan_units(&head, &lengths, plan.seed);
    let estimate = |unit: &Unit| lengths.estimate(&head.frameworks[unit.framework], unit.part);
    let mut total: Duration = units.iter().map(estimate).sum();
    let mut done = Duration::ZERO;
    let (mut measured, mut first_failure) = (0, None);
    let mut failures = Vec::new();
    while let Some(unit) = units.pop() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let framework = &head.frameworks[unit.framework];
        let what = format!("{} {}", framework.label, unit.part.name());
        observer.progress(done, total, &what);
        let measure = || measure_unit(place, framework, &unit, &lengths, stop);
        // A stall of a shared machine spoils one attempt, what is broken both.
        let result = match measure() {
            Err(SessionError::Broken(_)) => measure(),
            other => other,
        };
        match result {
            Ok(series) => {
                folder.write(&series.name(), &series)?;
                measured += 1;
            }
            Err(SessionError::Stopped) => break,
            Err(SessionError::Broken(why)) => {
                let missing = LeftOut {
                    what: format!("{what}, from repetition {} on", unit.repetition),
                    why: in_short(&why),
                    how: "taut ports says what each port needs".to_string(),
                };
                observer.left_out(&missing);
                failures.push(missing);
                first_failure.get_or_insert(why);
                // The same part would fail again.
                units.retain(|other| {
                    let same = other.framework == unit.framework && other.part == unit.part;
                    if same {
                        total = total.saturating_sub(estimate(other));
                    }
                    !same
                });
            }
        }
        done += estimate(&unit);
    }
    head.left_out.extend(failures);
    let activity =
        Snapshot::difference(&before, &Snapshot::take(), &[cores.generator, cores.device]);
    head.noise = comparison::noise(&cores, Some(&activity));
    head.noise.extend(taken);
    head.stage = if stop.load(Ordering::Relaxed) {
        Stage::Interrupted
    } else {
        Stage::Finished
    };
    folder.update(&head)?;
    match first_failure {
        Some(why) if measured == 0 => Err(IoCostError::Nothing(why)),
        _ => Ok(plan.folder.clone()),
    }
}

/// The first line of a message and, of a longer one, the last: a program's last words.
pub(crate) fn in_short(message: &str) -> String {
    let lines: Vec<&str> = message.trim().lines().map(str::trim).collect();
    match lines.as_slice() {
        [first, .., last] => format!("{first} {last}"),
        _ => lines.concat(),
    }
}

fn choose(only: &[String]) -> Result<(Vec<Framework>, Vec<LeftOut>), IoCostError> {
    let (mut frameworks, left_out) = framework::possible();
    if only.is_empty() {
        return Ok((frameworks, left_out));
    }
    if let Some(asked) = only
        .iter()
        .find(|id| !frameworks.iter().any(|f| f.id == **id))
    {
        let there: Vec<_> = frameworks.iter().map(|f| f.id.as_str()).collect();
        return Err(IoCostError::Unknown {
            asked: asked.clone(),
            there: there.join(", "),
        });
    }
    frameworks.retain(|f| only.contains(&f.id));
    Ok((frameworks, Vec::new()))
}

/// All units, the last one first: frameworks take turns in each repetition, in an order of its own.
fn plan_units(head: &Head, lengths: &Lengths, seed: u64) -> Vec<Unit> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut units = Vec::new();
    for repetition in 1..=head.repetitions {
        let mut order: Vec<usize> = (0..head.frameworks.len()).collect();
        random.shuffle(&mut order);
        for part in [Part::Load, Part::Batch, Part::Walk] {
            for framework in &order {
                let of = &head.frameworks[*framework];
                let walks =
                    of.program == Program::Taut && ["null", "memif"].contains(&of.id.as_str());
                if lengths.has_part(part, repetition) && (part != Part::Walk || walks) {
                    units.push(Unit {
                        framework: *framework,
                        part,
                        repetition,
                    });
                }
            }
        }
    }
    units.reverse();
    units
}

/// On a thread of its own, which is pinned and may enter a namespace.
fn measure_unit(
    place: Place<'_>,
    framework: &Framework,
    unit: &Unit,
    lengths: &Lengths,
    stop: &AtomicBool,
) -> Result<Series, SessionError> {
    let measure = || {
        let mut series = Series {
            framework: framework.id.clone(),
            part: unit.part,
            repetition: unit.repetition,
            capacity_pps: None,
            knee: None,
            trials: Vec::new(),
        };
        let mut session = Session::open(place, framework)?;
        trial::measure(&mut session, &mut series, lengths, stop)?;
        Ok(series)
    };
    std::thread::scope(|scope| scope.spawn(measure).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// How exactly the load is what it says, on the core where it will be.
fn measure_burns(cores: &CorePlan) -> Result<Vec<BurnError>, IoCostError> {
    let core = cores.device;
    let measured = std::thread::scope(|scope| {
        let watch = move || {
            taut_host::pin_current_thread(core)?;
            let errors = CHECKED_BURNS
                .iter()
                .flat_map(|cycles| CHECKED_BATCHES.map(|batch| measure_error(*cycles, batch)));
            Ok(errors.collect::<Result<_, _>>()?)
        };
        scope.spawn(watch).join()
    });
    measured.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::in_short;

    #[test]
    fn a_long_message_keeps_its_beginning_and_its_end() {
        assert_eq!(in_short("one\n"), "one");
        assert_eq!(
            in_short("died; its last words:\na\nb\n c"),
            "died; its last words: c"
        );
        assert_eq!(in_short(""), "");
    }
}
