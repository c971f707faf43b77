//! Statistics of trials that last hours, per interval, in constant memory.
//!
//! The loop fills two intervals: the current interval, and the previous interval for packets that are still in flight.
//! It passes complete intervals through a bounded channel on which neither side waits.

use super::{Account, Record, WithLive, compiled_here};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use taut_measure::{Arrival, LatencyHistogram, SequenceTracker};

/// The packets that were due in one interval.
#[derive(Debug, Clone)]
pub struct SoakedInterval {
    /// Index of the interval, from 0; none for the placeholder before the first interval.
    pub number: Option<u64>,
    /// Packets that were passed to the port, including refused ones.
    pub sent: u64,
    /// Packets that did not fit into the port's ring.
    pub refused: u64,
    /// Packets that came back.
    pub received: u64,
    /// Latencies of the packets that came back, ns.
    pub latency: LatencyHistogram,
}

impl SoakedInterval {
    fn new(number: Option<u64>) -> Self {
        Self {
            number,
            sent: 0,
            refused: 0,
            received: 0,
            latency: LatencyHistogram::new(),
        }
    }

    fn begin(&mut self, number: u64) {
        self.number = Some(number);
        (self.sent, self.refused, self.received) = (0, 0, 0);
        self.latency.clear();
    }
}

/// Assigns packets to intervals by sequence number: a packet belongs to the interval of its intended send time, no
/// matter when it comes back.
#[derive(Debug)]
pub struct Soaking {
    ns_per_tick: f64,
    packets_per_interval: u64,
    before: Box<SoakedInterval>,
    present: Box<SoakedInterval>,
    /// First sequence numbers of the previous, the current and the next interval: `before_from`, `present_from`,
    /// `next_from`.
    before_from: u64,
    present_from: u64,
    next_from: u64,
    finished: SyncSender<Box<SoakedInterval>>,
    spare: Receiver<Box<SoakedInterval>>,
    sequence: SequenceTracker,
    late: u64,
    skipped: u64,
}

/// The data that the record still contains at the end of a trial.
#[derive(Debug)]
pub struct Soaked {
    /// The previous and the current interval at the end of the trial.
    pub last: [Box<SoakedInterval>; 2],
    /// Loss, duplicates and reordering of the whole trial.
    pub sequence: SequenceTracker,
    /// Packets that came back after their interval had been passed to the reader.
    pub late: u64,
    /// Intervals that were skipped because the reader was behind.
    pub skipped: u64,
}

impl Soaking {
    /// Makes the record, with `spares` intervals in circulation between the loop and the reader. Also returns the
    /// channel of complete intervals, of which the first is the placeholder, and the channel by which the reader
    /// returns intervals.
    pub fn new(
        ns_per_tick: f64,
        packets_per_interval: u64,
        spares: usize,
    ) -> (
        Self,
        Receiver<Box<SoakedInterval>>,
        SyncSender<Box<SoakedInterval>>,
    ) {
        let (finished, is_finished) = sync_channel(spares);
        let (give_back, spare) = sync_channel(spares + 2);
        for _ in 0..spares {
            let _ = give_back.try_send(Box::new(SoakedInterval::new(None)));
        }
        let soaking = Self {
            ns_per_tick,
            packets_per_interval,
            before: Box::new(SoakedInterval::new(None)),
            present: Box::new(SoakedInterval::new(Some(0))),
            before_from: 0,
            present_from: 0,
            next_from: packets_per_interval,
            finished,
            spare,
            sequence: SequenceTracker::new(),
            late: 0,
            skipped: 0,
        };
        (soaking, is_finished, give_back)
    }

    /// Ends the record, and closes the channel of complete intervals.
    pub fn finish(self) -> Soaked {
        Soaked {
            last: [self.before, self.present],
            sequence: self.sequence,
            late: self.late,
            skipped: self.skipped,
        }
    }

    #[cold]
    fn next_interval(&mut self) {
        let number = self.present.number.map_or(0, |number| number + 1);
        let over = match self.spare.try_recv() {
            Ok(mut fresh) => {
                std::mem::swap(&mut fresh, &mut self.present);
                std::mem::swap(&mut fresh, &mut self.before);
                Some(fresh)
            }
            Err(_) => {
                // The reader of complete intervals is behind: the new interval replaces the oldest one.
                std::mem::swap(&mut self.present, &mut self.before);
                self.skipped += 1;
                None
            }
        };
        if let Some(over) = over
            && self.finished.try_send(over).is_err()
        {
            self.skipped += 1;
        }
        self.present.begin(number);
        self.before_from = self.present_from;
        self.present_from = self.next_from;
        self.next_from += self.packets_per_interval;
    }
}

impl Account for Soaking {
    compiled_here!(run_watched, WithLive<'_, Self>);

    #[inline(always)]
    fn seen(&self) -> &SequenceTracker {
        &self.sequence
    }
}

impl Record for Soaking {
    compiled_here!(run, Self);

    #[inline(always)]
    fn sent(&mut self, sequence: u64, _: u64, _: u64) {
        if sequence >= self.next_from {
            self.next_interval();
        }
        self.present.sent += 1;
    }

    #[inline(always)]
    fn refused(&mut self, sequence: u64) {
        if sequence >= self.present_from {
            self.present.refused += 1;
        } else {
            self.before.refused += 1;
        }
    }

    #[inline(always)]
    fn received(&mut self, sequence: u64, latency_ticks: u64, _: u64) {
        if self.sequence.record(sequence) == Arrival::Duplicate {
            return;
        }
        let interval = if sequence >= self.present_from {
            &mut self.present
        } else if sequence >= self.before_from {
            &mut self.before
        } else {
            self.late += 1;
            return;
        };
        interval.received += 1;
        let latency_ns = (latency_ticks as f64 * self.ns_per_tick) as u64;
        interval.latency.record(latency_ns);
    }

    fn received_unique(&self) -> Option<u64> {
        Some(self.sequence.received_unique())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn packets_count_in_the_interval_of_their_intended_send_time() {
        let (mut soaking, is_finished, _spares) = Soaking::new(1.0, 10, 4);
        for sequence in 0..30 {
            soaking.sent(sequence, 0, 0);
            // Each packet comes back five packets later; number 7 is lost, number 12 was refused.
            if sequence >= 5 && sequence != 12 && sequence != 17 {
                soaking.received(sequence - 5, 100, 0);
            }
            if sequence == 12 {
                soaking.refused(12);
            }
        }
        assert_eq!(is_finished.try_recv().unwrap().number, None);
        let first = is_finished.try_recv().unwrap();
        assert_eq!(
            (first.number, first.sent, first.refused, first.received),
            (Some(0), 10, 0, 9)
        );
        assert!(
            is_finished.try_recv().is_err(),
            "the second may still get packets"
        );
        // The packet with number 7, which was lost, arrives after all; duplicates do not count.
        soaking.received(7, 100, 0);
        soaking.received(3, 100, 0);
        soaking.received(14, 100, 0);
        let soaked = soaking.finish();
        let [before, _] = &soaked.last;
        assert_eq!((before.number, before.sent), (Some(1), 10));
        assert_eq!((before.refused, before.received), (1, 9));
        assert_eq!((soaked.late, soaked.skipped), (1, 0));
    }

    #[test]
    fn a_slow_writer_skips_and_counts_intervals_and_never_blocks() {
        let (mut soaking, is_finished, _spares) = Soaking::new(1.0, 10, 2);
        for sequence in 0..100 {
            soaking.sent(sequence, 0, 0);
        }
        // The placeholder and the first interval are finished.
        assert_eq!(is_finished.try_iter().count(), 2);
        let soaked = soaking.finish();
        assert_eq!(soaked.skipped, 7);
        let [_, present] = &soaked.last;
        assert_eq!((present.number, present.sent), (Some(9), 10));
    }
}
