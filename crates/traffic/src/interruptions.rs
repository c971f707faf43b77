//! Interruptions of a busy loop by the kernel, the hypervisor and other tasks: noise that is part of every tail latency
//! measured on this machine.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_sys::{Clock, Interruption, RoundWatch, ticks};

/// A gap between two clock readings that is longer than this is an interruption: an iteration of the loop takes some
/// nanoseconds.
const SHORTEST_NS: f64 = 1_000.0;

/// Statistics of the interruptions of a loop that only reads the clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Interruptions {
    /// Duration of the observation, s.
    pub seconds: f64,
    /// Number of gaps longer than 1 µs.
    pub over_1_us: u64,
    /// Number of gaps longer than 10 µs.
    pub over_10_us: u64,
    /// Number of gaps longer than 100 µs.
    pub over_100_us: u64,
    /// Number of gaps longer than 1 ms.
    pub over_1_ms: u64,
    /// Longest gap, ns.
    pub longest_ns: f64,
    /// Total length of the gaps longer than 1 µs, as a fraction of the observation, 0 to 1.
    pub share: f64,
}

/// Result of an observation.
#[derive(Debug, Clone)]
pub struct Watched {
    /// Statistics of all interruptions, stored or not.
    pub found: Interruptions,
    /// The first interruptions in order of time, as many as the memory stores.
    pub each: Vec<Interruption>,
    /// Number of interruptions that did not fit into `each`.
    pub unkept: u64,
    /// Fraction of the time that the loop spent on storing interruptions, 0 to 1.
    pub own_share: f64,
    /// First and last reading of the clock, ticks.
    pub span_ticks: (u64, u64),
}

/// Observes the calling thread's core for `duration` with a busy loop.
pub fn interruptions(clock: &Clock, duration: Duration) -> Interruptions {
    watch_interruptions(clock, duration, 0, &AtomicBool::new(false)).found
}

/// Observes like [`interruptions`], and stores up to `room` interruptions; the observation ends early when `stop` is
/// set.
pub fn watch_interruptions(
    clock: &Clock,
    duration: Duration,
    room: usize,
    stop: &AtomicBool,
) -> Watched {
    const UNTOUCHED: Interruption = Interruption {
        start_ticks: u64::MAX,
        length_ticks: 0,
    };
    let mut found = Interruptions::default();
    // The memory is written now, because a page fault is an interruption too.
    let mut each = vec![UNTOUCHED; room];
    let (mut kept, mut unkept) = (0, 0);
    let shortest_ticks = clock.to_ticks(SHORTEST_NS) as u64;
    let start = ticks();
    let end = start + clock.to_ticks(duration.as_nanos() as f64) as u64;
    let (mut last, mut lost_ns, mut own_ticks) = (start, 0.0, 0);
    while last < end && !stop.load(Ordering::Relaxed) {
        let now = ticks();
        if now - last > shortest_ticks {
            match each.get_mut(kept) {
                Some(place) => {
                    *place = Interruption {
                        start_ticks: last,
                        length_ticks: now - last,
                    };
                    kept += 1;
                }
                None => unkept += 1,
            }
            let gap_ns = clock.to_ns(now - last);
            lost_ns += gap_ns;
            found.over_1_us += 1;
            found.over_10_us += u64::from(gap_ns > 1e4);
            found.over_100_us += u64::from(gap_ns > 1e5);
            found.over_1_ms += u64::from(gap_ns > 1e6);
            found.longest_ns = found.longest_ns.max(gap_ns);
            // An interruption of this code is part of the next gap. It is therefore not missed, and does not count as
            // the loop's own time.
            own_ticks += (ticks() - now).min(shortest_ticks);
        }
        last = now;
    }
    let whole_ns = clock.to_ns(last - start).max(1.0);
    found.seconds = whole_ns / 1e9;
    found.share = lost_ns / whole_ns;
    each.truncate(kept);
    Watched {
        found,
        each,
        unkept,
        own_share: clock.to_ns(own_ticks) / whole_ns,
        span_ticks: (start, last),
    }
}

/// Limit on the stored interruptions of a trial: half a minute at 2000 per second. They take 1 MiB of memory.
const KEPT: usize = 1 << 16;

/// Time after which the loop updates its mean iteration time, ns.
const ADAPT_NS: f64 = 1e7;

/// The interruptions of a loop that also does other work.
#[derive(Debug)]
pub struct LoopInterruptions {
    watch: RoundWatch,
    rounds: [u64; 2],
    spent_ticks: [u64; 2],
    adapt_at: u64,
    adapt_ticks: u64,
    start_ticks: u64,
    each: Vec<Interruption>,
    unkept: u64,
}

impl LoopInterruptions {
    pub(crate) fn new(clock: &Clock) -> Self {
        // The memory is written now, so that no page fault interrupts a trial.
        let untouched = Interruption {
            start_ticks: u64::MAX,
            length_ticks: 0,
        };
        let mut each = vec![untouched; KEPT];
        each.clear();
        Self {
            watch: RoundWatch::new(clock),
            rounds: [0; 2],
            spent_ticks: [0; 2],
            adapt_at: 0,
            adapt_ticks: clock.to_ticks(ADAPT_NS) as u64,
            start_ticks: 0,
            each,
            unkept: 0,
        }
    }

    /// Begins a trial; the mean iteration time of earlier trials stays in use.
    pub(crate) fn begin(&mut self, start_ticks: u64) {
        self.start_ticks = start_ticks;
        self.each.clear();
        self.unkept = 0;
    }

    /// Processes an iteration that has ended; `worked` is false for an idle iteration.
    #[inline(always)]
    pub(crate) fn round(&mut self, worked: bool, start_ticks: u64, length_ticks: u64) {
        self.rounds[usize::from(worked)] += 1;
        self.spent_ticks[usize::from(worked)] += length_ticks;
        if self.watch.is_interrupted(worked, length_ticks) {
            self.note(start_ticks, length_ticks);
        }
        if start_ticks >= self.adapt_at {
            self.watch.adapt(self.rounds, self.spent_ticks);
            self.adapt_at = start_ticks + self.adapt_ticks;
        }
    }

    #[cold]
    fn note(&mut self, start_ticks: u64, length_ticks: u64) {
        if self.each.len() < KEPT {
            self.each.push(Interruption {
                start_ticks,
                length_ticks,
            });
        } else {
            self.unkept += 1;
        }
    }

    /// Returns the start of the trial, ticks: the intended send time of the trial's first packet.
    pub fn start_ticks(&self) -> u64 {
        self.start_ticks
    }

    /// Returns the first interruptions of the trial in order of time, as many as the memory stores.
    pub fn each(&self) -> &[Interruption] {
        &self.each
    }

    /// Returns the number of the trial's interruptions that did not fit into the memory.
    pub fn unkept(&self) -> u64 {
        self.unkept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_above_a_length_include_all_longer_interruptions() {
        let clock = Clock::calibrate(Duration::from_millis(2));
        let found = interruptions(&clock, Duration::from_millis(20));
        assert!(found.over_1_us >= found.over_10_us && found.over_10_us >= found.over_100_us);
        assert!(found.over_100_us >= found.over_1_ms);
        assert!((0.0..=1.0).contains(&found.share));
        assert_eq!(found.over_1_us == 0, found.longest_ns == 0.0);
    }

    #[test]
    fn stored_interruptions_add_up_to_their_totals() {
        let clock = Clock::calibrate(Duration::from_millis(2));
        let never = AtomicBool::new(false);
        let watched = watch_interruptions(&clock, Duration::from_millis(50), 1_000_000, &never);
        assert_eq!(watched.unkept, 0);
        assert_eq!(watched.each.len() as u64, watched.found.over_1_us);
        let (start, end) = watched.span_ticks;
        let mut free_from = start;
        for one in &watched.each {
            assert!(one.start_ticks >= free_from);
            free_from = one.start_ticks + one.length_ticks;
        }
        assert!(free_from <= end);
        let few = watch_interruptions(&clock, Duration::from_millis(50), 1, &never);
        assert_eq!(few.each.len() as u64 + few.unkept, few.found.over_1_us);
    }

    #[test]
    fn a_loop_records_interruptions_longer_than_usual_iterations() {
        let clock = Clock {
            hz: 1e9,
            error_ppm: 0.0,
        };
        let mut own = LoopInterruptions::new(&clock);
        own.begin(5);
        for round in 0..100_u64 {
            own.round(false, round * 50, 50);
        }
        own.round(false, 5_000, 8_200);
        assert_eq!((own.start_ticks(), own.each().len()), (5, 1));
        assert_eq!(own.each()[0].length_ticks, 8_200);
        (0..KEPT as u64).for_each(|n| own.round(false, 20_000 + n, 5_000));
        assert_eq!((own.each().len(), own.unkept()), (KEPT, 1));
        own.begin(9);
        assert_eq!((own.each().len(), own.unkept()), (0, 0));
    }

    #[test]
    fn interruption_detection_ends_immediately_when_stopped() {
        let clock = Clock::calibrate(Duration::from_millis(2));
        let watched =
            watch_interruptions(&clock, Duration::from_secs(600), 0, &AtomicBool::new(true));
        assert!(watched.found.seconds < 1.0);
    }
}
