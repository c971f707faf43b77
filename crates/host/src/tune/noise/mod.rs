//! The machine's own noise on a CPU: the interruptions of a busy loop, their frequency, length and cause.
//!
//! A loop on each CPU reads the time-stamp counter, and stores every gap: a time in which the loop did not run. The
//! kernel's trace points, on the same clock, show the kernel's activity; a gap without such activity is caused below
//! the kernel. Without root only the kernel's counters before and after the measurement are available, and the causes
//! of single gaps remain unknown.

mod causes;
mod peers;
mod trace;

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use taut_sys::{Clock, ClockReading, StampClock};
use taut_traffic::{Interruptions, Watched, watch_interruptions};

pub use causes::{Bin, Cause, Explained, Gap};
pub use peers::{Peer, PeerFigures, peers};

use crate::affinity::{AffinityError, pin_current_thread, set_realtime};
use crate::noise::{Snapshot, SystemActivity};
use causes::Causes;
use trace::{Event, Trace};

/// The maximum number of interruptions that are stored per CPU (16 MB): one minute at 17,000 per second.
const ROOM: usize = 1 << 20;
/// The interval at which the trace of kernel events is read.
const PAUSE: Duration = Duration::from_millis(50);

/// The settings of a noise measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The CPUs to measure.
    pub cpus: BTreeSet<usize>,
    /// The duration of the measurement.
    pub duration: Duration,
    /// The priority of the measuring loops under SCHED_FIFO, 1 to 99; `None` runs them as ordinary tasks.
    pub fifo: Option<u8>,
    /// True to trace the kernel's activity. Tracing takes about 200 ns per kernel event, which lengthens the gap that
    /// the event causes.
    pub trace: bool,
}

/// The result of a noise measurement.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Heard {
    /// The noise of each CPU.
    pub cpus: Vec<CpuNoise>,
    /// The changes of the kernel's counters during the measurement.
    pub counted: SystemActivity,
    /// The reason why the causes of gaps are unknown; `None` if the kernel was traced.
    pub untraced: Option<String>,
    /// True if the measurement was stopped early.
    pub stopped: bool,
}

/// The noise on one CPU.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CpuNoise {
    /// The number of the CPU.
    pub cpu: usize,
    /// Statistics over all interruptions (gaps) of the loop on this CPU.
    pub interruptions: Interruptions,
    /// The gaps by length: powers of two from 1 µs on.
    pub histogram: Vec<Bin>,
    /// The causes of the gaps, the largest fraction of lost time first.
    pub causes: Vec<Cause>,
    /// The fractions of the lost time and of the number of gaps that have a known cause, 0 to 1.
    pub explained: Explained,
    /// The fraction of the CPU's time that the loop spent on storing gaps, 0 to 1.
    pub own_share: f64,
    /// The number of gaps that were counted but not stored, because the memory was full; they have no cause.
    pub unkept: u64,
    /// The gaps that were stored.
    #[serde(skip)]
    pub gaps: Vec<Gap>,
}

/// The reason why noise could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum NoiseError {
    /// A CPU is unavailable.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
}

/// Measures noise as planned. `stop` ends it early, with the results up to that time.
///
/// # Errors
/// [`NoiseError`].
pub fn listen(plan: &Plan, stop: &AtomicBool) -> Result<Heard, NoiseError> {
    let cpus: Vec<usize> = plan.cpus.iter().copied().collect();
    keep_off(&plan.cpus);
    let clock = Clock::calibrate(Duration::from_millis(100));
    let (mut trace, mut untraced) = start_trace(plan, &cpus);
    let mut events: Vec<Vec<Event>> = vec![Vec::new(); cpus.len()];
    let before = Snapshot::take();
    let start = ClockReading::now(StampClock::Monotonic);
    let watched = watch_all(&cpus, plan, &clock, stop, || {
        take(&mut trace, &cpus, &mut events, &mut untraced);
    })?;
    let end = ClockReading::now(StampClock::Monotonic);
    if let Some(trace) = &trace {
        trace.stop();
    }
    take(&mut trace, &cpus, &mut events, &mut untraced);
    let counted = Snapshot::difference(&before, &Snapshot::take(), &cpus);
    let below = below_the_kernel();
    let noise = cpus
        .iter()
        .zip(watched)
        .zip(&events)
        .map(|((&cpu, watched), events)| {
            let events = untraced.is_none().then_some(events.as_slice());
            evaluate(cpu, &watched, events, &clock, &below, (start, end))
        });
    Ok(Heard {
        cpus: noise.collect(),
        counted,
        untraced,
        stopped: stop.load(Ordering::Relaxed),
    })
}

/// Starts to trace the kernel if the plan requests it. Returns the trace, or the reason why there is none.
fn start_trace(plan: &Plan, cpus: &[usize]) -> (Option<Trace>, Option<String>) {
    match plan.trace {
        false => (None, Some("not asked for (--no-trace)".to_owned())),
        true => match Trace::start(cpus) {
            Ok(trace) => (Some(trace), None),
            Err(e) => (None, Some(untraceable(&e))),
        },
    }
}

/// Runs the measuring loops on all CPUs until they end or `stop` is set, and calls `meanwhile` at intervals.
fn watch_all(
    cpus: &[usize],
    plan: &Plan,
    clock: &Clock,
    stop: &AtomicBool,
    mut meanwhile: impl FnMut(),
) -> Result<Vec<Watched>, NoiseError> {
    let end_loops = AtomicBool::new(false);
    thread::scope(|scope| {
        let loops: Vec<_> = cpus
            .iter()
            .map(|&cpu| {
                let end = &end_loops;
                thread::Builder::new()
                    .name("taut-noise".to_owned())
                    .spawn_scoped(scope, move || watch(cpu, plan, clock, end))
            })
            .collect();
        let running = |loops: &[io::Result<thread::ScopedJoinHandle<_>>]| {
            loops.iter().flatten().any(|handle| !handle.is_finished())
        };
        while running(&loops) {
            thread::sleep(PAUSE);
            if stop.load(Ordering::Relaxed) {
                end_loops.store(true, Ordering::Relaxed);
            }
            meanwhile();
        }
        let join =
            |handle: io::Result<thread::ScopedJoinHandle<Result<Watched, AffinityError>>>| {
                match handle?.join() {
                    Ok(watched) => Ok(watched?),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            };
        loops
            .into_iter()
            .map(join)
            .collect::<Result<Vec<Watched>, NoiseError>>()
    })
}

/// Runs the measuring loop on one CPU.
fn watch(
    cpu: usize,
    plan: &Plan,
    clock: &Clock,
    end: &AtomicBool,
) -> Result<Watched, AffinityError> {
    let ready = pin_current_thread(cpu).and_then(|()| plan.fifo.map_or(Ok(()), set_realtime));
    if let Err(e) = ready {
        end.store(true, Ordering::Relaxed);
        return Err(e);
    }
    Ok(watch_interruptions(clock, plan.duration, ROOM, end))
}

/// Moves the calling thread, which reads the kernel's trace, to CPUs that are not measured, if there are any.
fn keep_off(cpus: &BTreeSet<usize>) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(mut set) = sched_getaffinity(None) else {
        return;
    };
    for cpu in cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU) {
        set.unset(*cpu);
    }
    if set.count() > 0 {
        // A failure only makes the measurement noisier.
        let _ = sched_setaffinity(None, &set);
    }
}

fn take(
    trace: &mut Option<Trace>,
    cpus: &[usize],
    events: &mut [Vec<Event>],
    untraced: &mut Option<String>,
) {
    let Some(running) = trace else { return };
    let taken = running.take(|cpu, event| {
        if let Some(at) = cpus.iter().position(|watched| *watched == cpu) {
            events[at].push(event);
        }
    });
    if let Err(e) = taken {
        *untraced = Some(untraceable(&e));
        *trace = None;
    }
}

fn untraceable(e: &io::Error) -> String {
    match e.kind() {
        io::ErrorKind::PermissionDenied => {
            "needs root: which gap came from what is seen by the kernel's trace points".to_owned()
        }
        _ => format!("no trace of the kernel: {e}"),
    }
}

/// Returns the name of the level below the kernel (hypervisor or firmware), which can take a CPU without a kernel
/// event.
fn below_the_kernel() -> String {
    match crate::Machine::read().hypervisor {
        Some(_) => "hypervisor".to_owned(),
        None => "firmware or hardware".to_owned(),
    }
}

fn evaluate(
    cpu: usize,
    watched: &Watched,
    events: Option<&[Event]>,
    clock: &Clock,
    below: &str,
    readings: (Option<ClockReading>, Option<ClockReading>),
) -> CpuNoise {
    let mut causes = Causes::new(events, below);
    let to_monotonic = |ticks: u64| match readings {
        // The time is interpolated between two readings, because the clock's rate is corrected.
        (Some(a), Some(b)) if b.ticks > a.ticks => {
            let share = (ticks as f64 - a.ticks as f64) / (b.ticks - a.ticks) as f64;
            (a.ns as f64 + share * (b.ns - a.ns) as f64) as u64
        }
        _ => 0,
    };
    let gaps = watched
        .each
        .iter()
        .map(|gap| Gap {
            start_ns: to_monotonic(gap.start_ticks),
            length_ns: clock.to_ns(gap.length_ticks),
            cause: causes.of(gap, clock),
        })
        .collect();
    CpuNoise::of(cpu, watched.found, gaps, watched.own_share, watched.unkept)
}

impl CpuNoise {
    fn of(cpu: usize, found: Interruptions, gaps: Vec<Gap>, own_share: f64, unkept: u64) -> Self {
        Self {
            cpu,
            interruptions: found,
            histogram: causes::histogram(&gaps),
            causes: causes::sum_up(&gaps, found.seconds),
            explained: causes::explained(&gaps),
            own_share,
            unkept,
            gaps,
        }
    }

    fn join(self, other: Self) -> Self {
        let (a, b) = (self.interruptions, other.interruptions);
        let seconds = a.seconds + b.seconds;
        let weighed = |x: f64, y: f64| (x * a.seconds + y * b.seconds) / seconds.max(1e-9);
        let found = Interruptions {
            seconds,
            over_1_us: a.over_1_us + b.over_1_us,
            over_10_us: a.over_10_us + b.over_10_us,
            over_100_us: a.over_100_us + b.over_100_us,
            over_1_ms: a.over_1_ms + b.over_1_ms,
            longest_ns: a.longest_ns.max(b.longest_ns),
            share: weighed(a.share, b.share),
        };
        let own_share = weighed(self.own_share, other.own_share);
        let unkept = self.unkept + other.unkept;
        let gaps = [self.gaps, other.gaps].concat();
        Self::of(self.cpu, found, gaps, own_share, unkept)
    }
}

impl Heard {
    /// Returns the sum of this noise measurement and a later one of the same CPUs.
    #[must_use]
    pub fn join(self, later: Self) -> Self {
        let pairs = self.cpus.into_iter().zip(later.cpus);
        Self {
            cpus: pairs.map(|(a, b)| a.join(b)).collect(),
            counted: self.counted.join(later.counted),
            untraced: self.untraced.or(later.untraced),
            stopped: self.stopped || later.stopped,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn plan(millis: u64) -> Plan {
        Plan {
            cpus: BTreeSet::from([crate::choose_cores().device]),
            duration: Duration::from_millis(millis),
            fifo: None,
            trace: true,
        }
    }

    #[test]
    fn gap_counts_by_cause_and_length_agree_with_the_total() {
        let never = AtomicBool::new(false);
        // A separate thread measures, because it must not run on the measured CPU.
        let heard = thread::spawn(move || {
            let mut heard = listen(&plan(200), &never).unwrap();
            // If other programs keep the CPU busy, all interrupts hit those programs. The measurement is therefore
            // repeated until the loop itself has run for some time.
            let own_seconds = |heard: &Heard| {
                let it = &heard.cpus[0].interruptions;
                it.seconds * (1.0 - it.share)
            };
            while own_seconds(&heard) < 0.1 && heard.cpus[0].interruptions.seconds < 30.0 {
                heard = heard.join(listen(&plan(200), &never).unwrap());
            }
            heard
        })
        .join()
        .unwrap();
        let noise = &heard.cpus[0];
        assert_eq!(noise.gaps.len() as u64, noise.interruptions.over_1_us);
        let by_cause: u64 = noise.causes.iter().map(|cause| cause.count).sum();
        let by_length: u64 = noise.histogram.iter().map(|bin| bin.count).sum();
        assert_eq!(
            (by_cause, by_length),
            (noise.gaps.len() as u64, noise.gaps.len() as u64)
        );
        if let Some(why) = &heard.untraced {
            return println!("skipped: {why}");
        }
        // The CPU is busy and has a tick of at least 100 a second.
        assert!(
            noise
                .causes
                .iter()
                .any(|cause| cause.name.contains("interrupt")),
            "{heard:?}"
        );
        assert!(noise.explained.share_of_gaps > 0.5, "{heard:?}");
    }

    #[test]
    fn two_noise_measurements_are_merged_into_one() {
        let never = AtomicBool::new(false);
        let (a, b) = thread::spawn(move || {
            let plan = Plan {
                trace: false,
                ..plan(50)
            };
            (
                listen(&plan, &never).unwrap(),
                listen(&plan, &never).unwrap(),
            )
        })
        .join()
        .unwrap();
        let count = a.cpus[0].gaps.len() + b.cpus[0].gaps.len();
        let longest_ns = a.cpus[0]
            .interruptions
            .longest_ns
            .max(b.cpus[0].interruptions.longest_ns);
        let both = a.join(b);
        assert_eq!(both.cpus[0].interruptions.over_1_us as usize, count);
        assert_eq!(both.cpus[0].interruptions.longest_ns, longest_ns);
        assert!(both.untraced.is_some());
    }

    #[test]
    fn a_nonexistent_cpu_is_refused() {
        let plan = Plan {
            cpus: BTreeSet::from([1023]),
            ..plan(60_000)
        };
        let never = AtomicBool::new(false);
        let refused = thread::spawn(move || listen(&plan, &never)).join().unwrap();
        assert!(
            matches!(refused, Err(NoiseError::Affinity(_))),
            "{refused:?}"
        );
    }
}
