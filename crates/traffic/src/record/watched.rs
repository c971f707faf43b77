//! A trial that also tells those who watch, where somebody does.

use super::Record;
use crate::hand::NoHand;
use crate::instrument::{Instrument, Tally, Trial};
use crate::live::Live;
use std::slice::from_mut;
use std::sync::atomic::AtomicBool;
use taut_measure::SequenceTracker;

/// Has the loop of a record that is watched compiled in this crate: for `impl Account`.
macro_rules! watched_here {
    () => {
        #[inline(never)]
        fn run_watched(
            instrument: &mut Instrument,
            trial: Trial,
            watched: &mut WithLive<'_, Self>,
            stop: &AtomicBool,
        ) -> Vec<Tally> {
            instrument.run_with(trial, std::slice::from_mut(watched), &mut NoHand, stop)
        }
    };
}
pub(super) use watched_here;

/// A record that keeps the sequence's account.
pub trait Account: Record {
    /// Which packets came back so far.
    fn seen(&self) -> &SequenceTracker;

    /// Runs a trial with a record of this kind that is watched.
    fn run_watched(
        instrument: &mut Instrument,
        trial: Trial,
        watched: &mut WithLive<'_, Self>,
        stop: &AtomicBool,
    ) -> Vec<Tally> {
        instrument.run_with(trial, from_mut(watched), &mut NoHand, stop)
    }
}

/// A record and those who watch.
pub struct WithLive<'a, R> {
    record: &'a mut R,
    live: &'a mut Live,
}

impl<R: Account> Record for WithLive<'_, R> {
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
    /// Runs a trial as [`Instrument::run`] does, and tells those who watch, where somebody does.
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
        let tallies = R::run_watched(self, trial, &mut WithLive { record, live }, stop);
        tallies.into_iter().next().unwrap_or_default()
    }
}
