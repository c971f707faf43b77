//! A line of limited rate behind the receiving port, where a port itself has none: over shared memory whoever receives is as fast as
//! its processor. So a device's port can be overloaded at a rate that is known.

use std::collections::VecDeque;
use std::time::Duration;
use taut_port::{Batch, Packet};
use taut_sys::Clock;

/// Packets that a line which was looked at late makes good for, at most.
const MOST_BEHIND: u64 = 4;

/// Line that takes packets no faster than its rate allows, and keeps the last ones, so that the ring that they lie in has so much
/// less room.
pub(super) struct ReturnLine {
    interval_ticks: u64,
    /// When the line is free again.
    free_at: u64,
    kept: VecDeque<Packet>,
    keep: usize,
}

impl ReturnLine {
    pub(super) fn new(pps: f64, keep: usize, clock: &Clock) -> Self {
        let interval = Duration::from_secs_f64(1.0 / pps);
        Self {
            interval_ticks: (clock.to_ticks(interval.as_nanos() as f64) as u64).max(1),
            free_at: 0,
            kept: VecDeque::with_capacity(keep + MOST_BEHIND as usize),
            keep,
        }
    }

    /// Packets that the line takes now.
    #[inline(always)]
    pub(super) fn room(&self, now: u64) -> usize {
        match now.checked_sub(self.free_at) {
            Some(late) => (late / self.interval_ticks + 1).min(MOST_BEHIND) as usize,
            None => 0,
        }
    }

    /// Takes the packets of a batch that were received at this time, and lets go of those that it has had for longest.
    pub(super) fn take(&mut self, now: u64, arrived: &mut Batch) {
        let behind = (MOST_BEHIND - 1) * self.interval_ticks;
        let since = self.free_at.max(now.saturating_sub(behind));
        self.free_at = since + arrived.len() as u64 * self.interval_ticks;
        arrived.take_front(arrived.len(), |packet| self.kept.push_back(packet));
        while self.kept.len() > self.keep {
            self.kept.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::wire::{Harm, TRIAL, instrument};
    use super::*;
    use crate::Summaries;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn packets_come_no_faster_than_the_line_carries_them_and_none_is_lost() {
        let mut instrument = instrument(256, |_, _| Harm::None);
        // A fifth of what is sent: the last ones come long after they were sent.
        instrument.set_return_line(Some((20_000.0, 4)));
        let mut record = Summaries::new(instrument.clock());
        let tally = instrument.run(TRIAL, &mut record, &AtomicBool::new(false));
        assert_eq!(tally.received, tally.sent, "{tally:?}");
        let longest = record.latency.max_ns().unwrap();
        // 256 wait at most, at 50 µs each; of those that were sent the last one waits at least as long as the line is behind.
        assert!(longest >= 10_000_000, "{longest}");
        instrument.set_return_line(None);
        let tally = instrument.run(TRIAL, &mut record, &AtomicBool::new(false));
        assert_eq!(tally.received, tally.sent, "{tally:?}");
    }

    #[test]
    fn a_line_keeps_as_many_packets_as_it_is_told() {
        let clock = Clock::calibrate(Duration::from_millis(2));
        let mut line = ReturnLine::new(1e6, 2, &clock);
        let pool = taut_port::PoolHandle::new(8, false).unwrap();
        let mut batch = Batch::limited(1);
        for number in 1..=4_usize {
            pool.fill(&mut batch, 1, 60);
            line.take(1_000_000 * number as u64, &mut batch);
            assert_eq!(pool.outstanding(), number.min(2));
        }
    }

    #[test]
    fn a_line_that_was_looked_at_late_makes_good_for_a_few_packets_and_no_more() {
        let clock = Clock::calibrate(Duration::from_millis(2));
        let mut line = ReturnLine::new(1e6, 0, &clock);
        let pool = taut_port::PoolHandle::new(8, false).unwrap();
        let (interval, late) = (line.interval_ticks, 1_000_000_000);
        assert_eq!(line.room(late), MOST_BEHIND as usize);
        let mut batch = Batch::new();
        pool.fill(&mut batch, MOST_BEHIND as usize, 60);
        line.take(late, &mut batch);
        assert_eq!(line.room(late + interval - 1), 0);
        assert_eq!(line.room(late + interval), 1);
        assert_eq!(line.room(late + 2 * interval), 2);
    }
}
