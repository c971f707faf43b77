//! A line of limited rate after the receiving port, for ports without a line rate: over shared memory the receiver is
//! as fast as its processor. The line allows a trial to overload a device's port at a known rate.

use std::collections::VecDeque;
use std::time::Duration;
use taut_port::{Batch, Packet};
use taut_sys::Clock;

/// Largest number of packets that the line catches up on when it is polled late.
const MOST_BEHIND: u64 = 4;

/// A line that receives packets no faster than its rate. It retains the last packets, so that the ring in which their
/// buffers are has fewer free slots.
pub(super) struct ReturnLine {
    interval_ticks: u64,
    /// Time at which the line can accept the next packet, ticks.
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

    /// Returns the number of packets that the line accepts now.
    #[inline(always)]
    pub(super) fn room(&self, now: u64) -> usize {
        match now.checked_sub(self.free_at) {
            Some(late) => (late / self.interval_ticks + 1).min(MOST_BEHIND) as usize,
            None => 0,
        }
    }

    /// Accepts the packets of a batch that were received at `now`, and releases the oldest retained packets.
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
    fn the_return_line_limits_the_rate_and_loses_no_packet() {
        let mut instrument = instrument(256, |_, _| Harm::None);
        // The rate is a fifth of what is sent, so the last packets arrive long after they were sent.
        instrument.set_return_line(Some((20_000.0, 4)));
        let mut record = Summaries::new(instrument.clock());
        let tally = instrument.run(TRIAL, &mut record, &AtomicBool::new(false));
        assert_eq!(tally.received, tally.sent, "{tally:?}");
        let longest = record.latency.max_ns().unwrap();
        // At most 256 packets wait, at 50 µs each; the last one waits at least as long as the line is late.
        assert!(longest >= 10_000_000, "{longest}");
        instrument.set_return_line(None);
        let tally = instrument.run(TRIAL, &mut record, &AtomicBool::new(false));
        assert_eq!(tally.received, tally.sent, "{tally:?}");
    }

    #[test]
    fn a_return_line_buffers_packets_up_to_its_limit() {
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
    fn a_late_return_line_releases_a_limited_number_of_packets() {
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
