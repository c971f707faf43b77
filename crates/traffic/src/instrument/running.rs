//! State of the streams in a trial: when each may send, and which stream sends next.

use super::trial::Trial;
use crate::pattern::{Pattern, Schedule};
use crate::traffic::Traffic;
use std::time::Duration;
use taut_sys::Clock;

/// Gap between late packets of a stream after a stall, as a fraction of the stream's mean gap. Late packets are not
/// sent back to back: such a burst would measure the generator's stall, not the device.
const CATCH_UP: f64 = 0.75;

/// Upper limit of the gap between late packets, so that slow streams catch up soon. No device sees packets this far
/// apart as a burst.
const WIDEST_CATCH_UP: Duration = Duration::from_micros(20);

/// State of one stream in a trial.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) schedule: Schedule,
    /// Time at which the stream may send its next late packet, ticks.
    free_at: u64,
    /// Minimum gap between late packets, ticks; 0 for patterns with intended bursts.
    spacing: u64,
    /// Index plus one of the last packet that was counted as starved: due while no buffer was free.
    starved_until: u64,
    priority: u8,
}

impl Running {
    #[cfg(test)]
    pub(crate) fn of(schedule: Schedule) -> Self {
        Self {
            schedule,
            free_at: 0,
            spacing: 0,
            starved_until: 0,
            priority: 0,
        }
    }

    #[inline(always)]
    fn may_send(&self, now: u64) -> bool {
        self.schedule.due_ticks() <= now && self.free_at <= now
    }

    /// Advances to the next packet, after a packet was sent `late` ticks after its intended send time.
    #[inline(always)]
    pub(super) fn sent(&mut self, now: u64, late: u64, slack: u64) {
        if late > slack {
            self.free_at = self.free_at.max(now - slack) + self.spacing;
        }
        self.schedule.advance();
    }

    /// Records that there is no memory for the due packet, which stays due. Returns 1 at the first attempt for this
    /// packet, 0 at each retry.
    #[cold]
    pub(super) fn starve(&mut self) -> u64 {
        let until = self.schedule.next() + 1;
        let before = std::mem::replace(&mut self.starved_until, until);
        u64::from(before < until)
    }
}

/// Returns the index of the stream that sends next; none if no packet is due. Streams with due packets send by
/// priority, and at equal priority in the order of their intended send times.
#[inline(always)]
pub(crate) fn choose(running: &[Running], now: u64) -> Option<usize> {
    if let [only] = running {
        return only.may_send(now).then_some(0);
    }
    let due = running.iter().enumerate().filter(|(_, r)| r.may_send(now));
    due.min_by_key(|(_, r)| (u8::MAX - r.priority, r.schedule.due_ticks()))
        .map(|(index, _)| index)
}

/// Returns the seed of a stream's intended send times. The seed is distinct for each run, stream and trial, and
/// reproducible.
fn arrivals_seed(run: u64, stream: u64, trial: u64, index: usize) -> u64 {
    let parts = [stream, trial, index as u64];
    let mixed = parts.into_iter().fold(run, |seed, part| {
        fastrand::Rng::with_seed(seed).u64(..) ^ part.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    fastrand::Rng::with_seed(mixed).u64(..)
}

/// Makes the schedules of a trial that begins at `start`, in ticks, one for each stream of the traffic. `seed` is the
/// run's seed, `number` is the index of the trial in the run.
pub(super) fn schedules(
    traffic: &Traffic,
    trial: Trial,
    clock: &Clock,
    (seed, number): (u64, u64),
    start: u64,
) -> Vec<Running> {
    let rates = traffic.rates_pps(trial.rate_pps);
    let streams = traffic.streams().iter().zip(rates).enumerate();
    streams
        .map(|(index, (stream, rate_pps))| {
            let pattern = stream.pattern();
            let spacing = match pattern {
                Pattern::Burst { .. } | Pattern::Trace(_) => 0.0,
                _ => (CATCH_UP / rate_pps).min(WIDEST_CATCH_UP.as_secs_f64()) * clock.hz,
            };
            let seed = arrivals_seed(seed, stream.seed(), number, index);
            let (duration, hz) = (trial.duration, clock.hz);
            Running {
                schedule: Schedule::new(pattern, rate_pps, duration, start, hz, seed),
                free_at: 0,
                spacing: spacing as u64,
                starved_until: 0,
                priority: stream.priority(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn packets_delayed_by_a_stall_leave_with_spacing() {
        let pattern = Pattern::Constant;
        let schedule = Schedule::new(&pattern, 1e6, Duration::from_millis(1), 0, 1e9, 0);
        let mut running = Running {
            schedule,
            free_at: 0,
            spacing: 750,
            starved_until: 0,
            priority: 0,
        };
        // 100 packets are due at the same time: they leave in pairs at first, then 750 ns apart, until none is late.
        let mut sent = Vec::new();
        let mut now = 100_000;
        while running.schedule.next() < 600 {
            while running.may_send(now) {
                sent.push(now);
                let late = now - running.schedule.due_ticks();
                running.sent(now, late, 2_000);
            }
            now += 50;
        }
        let most_together = sent.chunk_by(|a, b| a == b).map(<[u64]>::len).max();
        assert!(most_together.unwrap() <= 4, "{most_together:?}");
        assert!(sent[99] > 100_000 + 95 * 750);
        assert_eq!(*sent.last().unwrap(), 599_000);
    }

    #[test]
    fn each_run_stream_and_trial_has_a_unique_repeatable_seed() {
        let mut seeds = Vec::new();
        for run in 0..4 {
            for stream in 1..4 {
                for trial in 1..5 {
                    seeds.extend((0..3).map(|index| arrivals_seed(run, stream, trial, index)));
                }
            }
        }
        let all = seeds.len();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), all);
        assert_eq!(arrivals_seed(3, 1, 2, 0), arrivals_seed(3, 1, 2, 0));
    }

    #[test]
    fn streams_send_by_priority_and_then_by_longest_wait() {
        let running = |rate_pps: f64, skip: u64, priority| {
            let duration = Duration::from_secs(1);
            let mut schedule = Schedule::new(&Pattern::Constant, rate_pps, duration, 0, 1e9, 0);
            (0..skip).for_each(|_| schedule.advance());
            Running {
                schedule,
                free_at: 0,
                spacing: 0,
                starved_until: 0,
                priority,
            }
        };
        let streams = [running(1e6, 5, 0), running(1e6, 3, 0), running(1e6, 9, 1)];
        assert_eq!(choose(&streams, 2_999), None);
        assert_eq!(choose(&streams, 8_000), Some(1));
        assert_eq!(choose(&streams, 9_000), Some(2));
    }
}
