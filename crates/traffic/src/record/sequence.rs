//! A record of the sequence statistics only.

use super::{Account, Record, WithLive, compiled_here};
use taut_measure::SequenceTracker;

/// A record of the sequence statistics only. It is for rate searches, whose loop must not spend time on other
/// statistics.
#[derive(Debug)]
pub struct Sequence(pub SequenceTracker);

impl Account for Sequence {
    compiled_here!(run_watched, WithLive<'_, Self>);

    #[inline(always)]
    fn seen(&self) -> &SequenceTracker {
        &self.0
    }
}

impl Record for Sequence {
    compiled_here!(run, Self);

    #[inline(always)]
    fn sent(&mut self, _: u64, _: u64, _: u64) {}

    #[inline(always)]
    fn refused(&mut self, _: u64) {}

    #[inline(always)]
    fn received(&mut self, sequence: u64, _: u64, _: u64) {
        self.0.record(sequence);
    }

    fn received_unique(&self) -> Option<u64> {
        Some(self.0.received_unique())
    }
}
