//! Runs a trial with an optional live view.

use super::Record;
use crate::instrument::{Instrument, Tally, Trial};
use crate::live::Live;
use std::sync::atomic::AtomicBool;
use taut_measure::SequenceTracker;

/// A record with sequence statistics.
pub trait Account: Record {
    /// Returns the sequence statistics of the packets that have come back.
    fn seen(&self) -> &SequenceTracker;

    /// Runs a trial with records of this type and a live view.
    fn run_watched(
        instrument: &mut Instrument,
        trial: Trial,
        records: &mut [WithLive<'_, Self>],
        stop: &AtomicBool,
    ) -> Vec<Tally>;
}

/// A record and its live view.
pub struct WithLive<'a, R> {
    record: &'a mut R,
    live: &'a mut Live,
}

impl<R: Account> Record for WithLive<'_, R> {
    fn run(
        instrument: &mut Instrument,
        trial: Trial,
        records: &mut [Self],
        stop: &AtomicBool,
    ) -> Vec<Tally> {
        R::run_watched(instrument, trial, records, stop)
    }

    #[inline(always)]
    fn sent(&mut self, sequence: u64, due_ticks: u64, send_delay_ticks: u64) {
        self.record.sent(sequence, due_ticks, send_delay_ticks);
        let seen = self.record.seen();
        self.live.sent(sequence, due_ticks, send_delay_ticks, seen);
    }

    #[inline(always)]
    fn refused(&mut self, sequence: u64) {
        self.record.refused(sequence);
        self.live.refused();
    }

    #[inline(always)]
    fn received(&mut self, sequence: u64, latency_ticks: u64, seen_ticks: u64) {
        self.record.received(sequence, latency_ticks, seen_ticks);
        self.live.received(sequence, latency_ticks, seen_ticks);
    }

    fn received_unique(&self) -> Option<u64> {
        self.record.received_unique()
    }

    fn corrupt(&mut self, sequence: u64) {
        self.record.corrupt(sequence);
        self.live.corrupt();
    }
}

impl Instrument {
    /// Runs a trial like [`Instrument::run`], with an optional live view.
    pub fn run_watched<R: Account>(
        &mut self,
        trial: Trial,
        record: &mut R,
        live: Option<&mut Live>,
        stop: &AtomicBool,
    ) -> Tally {
        let Some(live) = live else {
            return self.run(trial, record, stop);
        };
        live.next_trial(trial.rate_pps);
        self.run(trial, &mut WithLive { record, live }, stop)
    }
}
