//! A trial that also tells those who watch, where somebody does.

use std::sync::atomic::AtomicBool;
use taut_measure::SequenceTracker;
use taut_traffic::{Instrument, Live, Record, Tally, Trial};

/// A record that keeps the sequence's account.
pub(super) trait Account: Record {
    /// Which packets came back so far.
    fn seen(&self) -> &SequenceTracker;
}

struct Watched<'a, R> {
    record: &'a mut R,
    live: &'a mut Live,
}

impl<R: Account> Record for Watched<'_, R> {
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

/// Runs `trial`; without a watcher exactly as [`Instrument::run`] does.
pub(super) fn run<R: Account>(
    instrument: &mut Instrument,
    live: Option<&mut Live>,
    trial: Trial,
    record: &mut R,
    stop: &AtomicBool,
) -> Tally {
    let Some(live) = live else {
        return instrument.run(trial, record, stop);
    };
    live.next_trial(trial.rate_pps);
    instrument.run(trial, &mut Watched { record, live }, stop)
}
