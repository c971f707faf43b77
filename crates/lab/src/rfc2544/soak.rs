//! The soak: one rate for hours in constant memory, every interval written as soon as it is over.
//!
//! The hot loop fills two intervals (the present one, and the one before for what is still under way) and
//! hands finished ones over through a bounded channel that neither side waits for.

use super::results::{Part, Soak, SoakInterval};
use super::session::{Session, counts};
use super::watched::{self, Account};
use crate::device::RunError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;
use taut_measure::quantity::rate;
use taut_measure::{LatencyHistogram, SequenceTracker, Summary};
use taut_results::ResultsError;
use taut_traffic::{Record, Trial};

/// Intervals under way between both threads: enough for a disk that takes its time.
const SPARE: usize = 6;

/// How often the writer looks for finished intervals.
const LOOK: Duration = Duration::from_millis(50);

/// The number of an interval that none is.
const NONE: u64 = u64::MAX;

/// An interval being filled.
#[derive(Debug, Clone)]
struct Interval {
    number: u64,
    sent: u64,
    refused: u64,
    received: u64,
    latency: LatencyHistogram,
}

impl Interval {
    fn new(number: u64) -> Self {
        Self {
            number,
            sent: 0,
            refused: 0,
            received: 0,
            latency: LatencyHistogram::new(),
        }
    }

    fn begin(&mut self, number: u64) {
        self.number = number;
        (self.sent, self.refused, self.received) = (0, 0, 0);
        self.latency.clear();
    }

    fn finished(&self, interval_seconds: f64, seconds: f64) -> SoakInterval {
        SoakInterval {
            start_seconds: self.number as f64 * interval_seconds,
            seconds,
            sent: self.sent.saturating_sub(self.refused),
            received: self.received,
            refused: self.refused,
            latency: Summary::from_histogram(&self.latency),
        }
    }
}

/// Fills intervals by the sequence numbers of their packets, so that a packet belongs to the interval in
/// which it was due, whenever it comes back.
struct Soaking {
    ns_per_tick: f64,
    packets_per_interval: u64,
    before: Box<Interval>,
    present: Box<Interval>,
    /// First sequence numbers of the interval before and of the present and of the next one.
    before_from: u64,
    present_from: u64,
    next_from: u64,
    finished: SyncSender<Box<Interval>>,
    spare: Receiver<Box<Interval>>,
    sequence: SequenceTracker,
    late: u64,
    skipped: u64,
}

impl Soaking {
    #[cold]
    fn next_interval(&mut self) {
        let number = self.present.number + 1;
        let over = match self.spare.try_recv() {
            Ok(mut fresh) => {
                std::mem::swap(&mut fresh, &mut self.present);
                std::mem::swap(&mut fresh, &mut self.before);
                Some(fresh)
            }
            Err(_) => {
                // The writer is behind: the oldest interval makes room for the new one.
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
    #[inline(always)]
    fn seen(&self) -> &SequenceTracker {
        &self.sequence
    }
}

impl Record for Soaking {
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
        self.sequence.record(sequence);
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

/// Soaks at `rate_pps`. A stop request ends it with everything so far complete.
pub(super) fn run(session: &mut Session<'_, '_>, rate_pps: f64) -> Result<(), RunError> {
    let interval_seconds = session.settings.soak_interval_seconds;
    let per_interval = (rate_pps * interval_seconds).round().max(1.0);
    let (finished, is_finished) = sync_channel(SPARE);
    let (give_back, spare) = sync_channel(SPARE + 2);
    for _ in 0..SPARE {
        let _ = give_back.try_send(Box::new(Interval::new(0)));
    }
    let mut record = Soaking {
        ns_per_tick: session.instrument.clock().to_ns(1),
        packets_per_interval: per_interval as u64,
        before: Box::new(Interval::new(NONE)),
        present: Box::new(Interval::new(0)),
        before_from: 0,
        present_from: 0,
        next_from: per_interval as u64,
        finished,
        spare,
        sequence: SequenceTracker::new(),
        late: 0,
        skipped: 0,
    };
    let trial = Trial {
        rate_pps,
        duration: Duration::from_secs_f64(session.settings.soak_seconds),
    };
    let mut file = session.folder.begin_soak()?;
    let what = format!(
        "{} {}: {}",
        session.sizes[0],
        Part::Soak.name(),
        rate(rate_pps)
    );
    let halt = AtomicBool::new(false);
    let (stop, progress) = (session.stop, &mut *session.progress);
    let live = session.live.as_mut();
    let instrument = &mut *session.instrument;
    let (tally, written) = std::thread::scope(|scope| {
        let (halt, file, what) = (&halt, &mut file, &what);
        let writer = scope.spawn(move || -> Result<LatencyHistogram, ResultsError> {
            let mut whole = LatencyHistogram::new();
            loop {
                if stop.load(Ordering::Relaxed) {
                    halt.store(true, Ordering::Relaxed);
                }
                match is_finished.try_recv() {
                    Ok(interval) => {
                        let interval: Box<Interval> = interval;
                        // Before the first one there is none.
                        if interval.number != NONE {
                            whole.merge(&interval.latency);
                            let line = interval.finished(interval_seconds, interval_seconds);
                            if let Err(e) = file.push(&line) {
                                // Nothing that is measured now could be kept.
                                halt.store(true, Ordering::Relaxed);
                                return Err(e);
                            }
                        }
                        let _ = give_back.try_send(interval);
                        progress.tell(what);
                    }
                    Err(TryRecvError::Empty) => std::thread::sleep(LOOK),
                    Err(TryRecvError::Disconnected) => return Ok(whole),
                }
            }
        });
        let tally = watched::run(instrument, live, trial, &mut record, halt);
        // The channel closes with its sender, so that the writer ends.
        let Soaking {
            before,
            present,
            sequence,
            late,
            skipped,
            finished,
            ..
        } = record;
        drop(finished);
        let written = writer
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (
            tally,
            written.map(|whole| (whole, before, present, sequence, late, skipped)),
        )
    });
    let (mut whole, before, present, sequence, late, skipped) = written?;
    if before.number != NONE {
        whole.merge(&before.latency);
        file.push(&before.finished(interval_seconds, interval_seconds))?;
    }
    if present.sent > 0 {
        whole.merge(&present.latency);
        let seconds = present.sent as f64 / rate_pps;
        file.push(&present.finished(interval_seconds, seconds.min(interval_seconds)))?;
    }
    let account = sequence.finish(tally.sent + tally.refused);
    session.folder.write_soak(&Soak {
        size: session.sizes[0].to_string(),
        counts: counts(rate_pps, &tally, &account),
        latency: Summary::from_histogram(&whole),
        late,
        skipped_intervals: skipped,
    })?;
    if tally.stopped {
        return Err(RunError::Stopped);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn soaking(spares: usize) -> (Soaking, Receiver<Box<Interval>>, SyncSender<Box<Interval>>) {
        let (finished, is_finished) = sync_channel(SPARE);
        let (give_back, spare) = sync_channel(SPARE + 2);
        for _ in 0..spares {
            give_back.send(Box::new(Interval::new(0))).unwrap();
        }
        let soaking = Soaking {
            ns_per_tick: 1.0,
            packets_per_interval: 10,
            before: Box::new(Interval::new(NONE)),
            present: Box::new(Interval::new(0)),
            before_from: 0,
            present_from: 0,
            next_from: 10,
            finished,
            spare,
            sequence: SequenceTracker::new(),
            late: 0,
            skipped: 0,
        };
        (soaking, is_finished, give_back)
    }

    #[test]
    fn a_packet_belongs_to_the_interval_in_which_it_was_due() {
        let (mut soaking, is_finished, _spares) = soaking(4);
        for sequence in 0..30 {
            soaking.sent(sequence, 0, 0);
            // Each comes back five packets later; number 7 is lost, number 12 was refused.
            if sequence >= 5 && sequence != 12 && sequence != 17 {
                soaking.received(sequence - 5, 100, 0);
            }
            if sequence == 12 {
                soaking.refused(12);
            }
        }
        assert_eq!(is_finished.try_recv().unwrap().number, NONE);
        let first = is_finished.try_recv().unwrap().finished(1.0, 1.0);
        assert_eq!(
            (first.start_seconds, first.sent, first.received),
            (0.0, 10, 9)
        );
        assert!(
            is_finished.try_recv().is_err(),
            "the second may still get packets"
        );
        assert_eq!((soaking.before.number, soaking.before.sent), (1, 10));
        assert_eq!((soaking.before.refused, soaking.before.received), (1, 9));
        assert_eq!((soaking.late, soaking.skipped), (0, 0));
        soaking.received(3, 100, 0);
        assert_eq!(soaking.late, 1);
    }

    #[test]
    fn a_writer_that_is_behind_costs_intervals_that_are_counted_and_never_blocks() {
        let (mut soaking, is_finished, _spares) = soaking(2);
        for sequence in 0..100 {
            soaking.sent(sequence, 0, 0);
        }
        // None, and the first.
        assert_eq!(is_finished.try_iter().count(), 2);
        assert_eq!(soaking.skipped, 7);
        assert_eq!((soaking.present.number, soaking.present.sent), (9, 10));
    }
}
