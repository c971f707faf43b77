//! Counts of numbered packets: lost, duplicated, reordered, or too late to classify. A packet is reordered if its
//! number is below the next expected one (RFC 4737 section 3.3, type-P-reordered).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The kind of a received sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The next expected number or a higher number.
    InOrder,
    /// A new number that is lower than a number received before.
    Reordered,
    /// A number that was received before.
    Duplicate,
    /// A number too far below the highest received number for the window to show whether it was received before.
    Late,
}

/// A tracker of the sequence numbers of one flow, in a fixed bitmap of the most recent ones.
///
/// The flow counts up from 0. Memory is one bit per number of the window, allocated once.
///
/// ```
/// use taut_measure::{Arrival, SequenceTracker};
/// let mut tracker = SequenceTracker::new();
/// assert_eq!(tracker.record(0), Arrival::InOrder);
/// assert_eq!(tracker.record(2), Arrival::InOrder);
/// assert_eq!(tracker.record(1), Arrival::Reordered);
/// assert_eq!(tracker.record(1), Arrival::Duplicate);
/// assert_eq!(tracker.finish(4).lost, 1);
/// ```
#[derive(Debug, Clone)]
pub struct SequenceTracker {
    /// One bit for each number in `next_expected - window..next_expected`, at the index `number % window`: set if the
    /// number was received.
    seen: Box<[u64]>,
    /// Highest received number plus one.
    next_expected: u64,
    received_unique: u64,
    duplicate: u64,
    reordered: u64,
    max_reorder_extent: u64,
    outside_window: u64,
}

/// The counts of one flow. All fields but `max_reorder_extent` count packets; `exact` is a flag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SequenceReport {
    /// Packets sent, as reported by the sender.
    pub sent: u64,
    /// Number of different sequence numbers received, without those outside the window.
    pub received_unique: u64,
    /// `sent - received_unique`. If `exact` is false, it is an upper bound: up to `outside_window` of the packets
    /// counted as lost did arrive.
    pub lost: u64,
    /// Packets with a number that was received before.
    pub duplicate: u64,
    /// Packets received after a higher number (RFC 4737), without duplicates.
    pub reordered: u64,
    /// Largest distance, in sequence numbers, from a reordered packet to the highest number received before it. RFC
    /// 4737 section 4.2 counts this distance in arrivals, which needs the history of all arrivals. Without loss, both
    /// distances agree for a single displaced packet.
    pub max_reorder_extent: u64,
    /// Packets that arrived too late for the window to show whether they are duplicates.
    pub outside_window: u64,
    /// True if no packet was outside the window, and none has a number that was never sent.
    pub exact: bool,
}

impl Default for SequenceTracker {
    fn default() -> Self {
        Self::new()
    }
}

impl SequenceTracker {
    /// Default window in sequence numbers: 2^20 (128 KiB), 50 ms at 20 million packets per second.
    pub const DEFAULT_WINDOW: usize = 1 << 20;

    /// Creates a tracker with the default window.
    pub fn new() -> Self {
        Self::with_window(Self::DEFAULT_WINDOW)
    }

    /// Creates a tracker with a window of `window` numbers, rounded up to a power of two from 64 to 2^30.
    pub fn with_window(window: usize) -> Self {
        // Capped at 128 MiB: an absurd number must not allocate all memory.
        let bits = window.clamp(64, 1 << 30).next_power_of_two();
        SequenceTracker {
            seen: vec![0; bits / 64].into_boxed_slice(),
            next_expected: 0,
            received_unique: 0,
            duplicate: 0,
            reordered: 0,
            max_reorder_extent: 0,
            outside_window: 0,
        }
    }

    /// Records the next received number. Never allocates, never fails.
    #[inline]
    pub fn record(&mut self, sequence: u64) -> Arrival {
        if sequence != self.next_expected {
            return self.record_unexpected(sequence);
        }
        self.accept_highest(sequence)
    }

    #[inline]
    fn accept_highest(&mut self, sequence: u64) -> Arrival {
        let (word, bit) = self.position(sequence);
        // The bit may still be set from the number one window ago, which shares it; setting it again is enough.
        self.seen[word] |= bit;
        self.next_expected = sequence.saturating_add(1);
        self.received_unique += 1;
        Arrival::InOrder
    }

    #[cold]
    #[inline(never)]
    fn record_unexpected(&mut self, sequence: u64) -> Arrival {
        if sequence > self.next_expected {
            self.forget_skipped(sequence);
            return self.accept_highest(sequence);
        }
        let behind = self.next_expected - sequence;
        if behind > self.window() {
            self.outside_window += 1;
            return Arrival::Late;
        }
        let (word, bit) = self.position(sequence);
        if self.seen[word] & bit != 0 {
            self.duplicate += 1;
            return Arrival::Duplicate;
        }
        self.seen[word] |= bit;
        self.received_unique += 1;
        self.reordered += 1;
        self.max_reorder_extent = self.max_reorder_extent.max(behind - 1);
        Arrival::Reordered
    }

    /// Clears the bits of the numbers from the next expected one up to `sequence`, exclusive.
    fn forget_skipped(&mut self, sequence: u64) {
        let skipped = sequence - self.next_expected;
        if skipped >= self.window() {
            self.seen.fill(0);
            return;
        }
        let mut from = self.next_expected;
        while from < sequence {
            let (word, _) = self.position(from);
            let first = from % 64;
            let span = (64 - first).min(sequence - from);
            // Bits are cleared a word at a time, because a long burst of loss must not stall the receiver.
            self.seen[word] &= !((u64::MAX >> (64 - span)) << first);
            from += span;
        }
    }

    #[inline]
    fn position(&self, sequence: u64) -> (usize, u64) {
        let word = (sequence / 64) as usize & (self.seen.len() - 1);
        (word, 1 << (sequence % 64))
    }

    fn window(&self) -> u64 {
        self.seen.len() as u64 * 64
    }

    /// Returns the number of different sequence numbers received.
    pub fn received_unique(&self) -> u64 {
        self.received_unique
    }

    /// Returns how many sequence numbers below the highest received one have not been received yet.
    pub fn missing_below_highest(&self) -> u64 {
        self.next_expected.saturating_sub(self.received_unique)
    }

    /// Returns the counts of a flow of which numbers `0..sent` were sent. The tracker can record further packets
    /// afterwards.
    pub fn finish(&self, sent: u64) -> SequenceReport {
        SequenceReport {
            sent,
            received_unique: self.received_unique,
            lost: sent.saturating_sub(self.received_unique),
            duplicate: self.duplicate,
            reordered: self.reordered,
            max_reorder_extent: self.max_reorder_extent,
            outside_window: self.outside_window,
            exact: self.outside_window == 0 && self.next_expected <= sent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn tracked(window: usize, arrivals: &[u64]) -> SequenceTracker {
        let mut tracker = SequenceTracker::with_window(window);
        for &sequence in arrivals {
            tracker.record(sequence);
        }
        tracker
    }

    /// Computes the same counts with unbounded memory.
    fn naive(arrivals: &[u64], sent: u64) -> SequenceReport {
        let mut seen = HashSet::new();
        let mut report = SequenceReport {
            sent,
            received_unique: 0,
            lost: 0,
            duplicate: 0,
            reordered: 0,
            max_reorder_extent: 0,
            outside_window: 0,
            exact: true,
        };
        let mut highest = None;
        for &sequence in arrivals {
            if !seen.insert(sequence) {
                report.duplicate += 1;
                continue;
            }
            match highest {
                Some(highest) if sequence < highest => {
                    report.reordered += 1;
                    report.max_reorder_extent = report.max_reorder_extent.max(highest - sequence);
                }
                _ => highest = Some(sequence),
            }
        }
        report.received_unique = seen.len() as u64;
        report.lost = sent - report.received_unique;
        report
    }

    #[test]
    fn a_complete_flow_in_order_reports_no_loss_or_reordering() {
        let arrivals: Vec<u64> = (0..1000).collect();
        let report = tracked(64, &arrivals).finish(1000);
        assert_eq!(report, naive(&arrivals, 1000));
        assert_eq!((report.lost, report.reordered, report.duplicate), (0, 0, 0));
        assert!(report.exact);
    }

    #[test]
    fn losses_before_first_and_after_last_arrival_are_counted() {
        let report = tracked(64, &[2, 3, 4]).finish(8);
        assert_eq!((report.lost, report.reordered), (5, 0));
    }

    #[test]
    fn all_packets_count_as_lost_when_none_is_received() {
        let report = SequenceTracker::new().finish(10);
        assert_eq!((report.lost, report.received_unique), (10, 0));
        assert!(report.exact);
    }

    #[test]
    fn packets_before_the_window_count_as_late_and_not_reordered() {
        let mut tracker = SequenceTracker::with_window(64);
        tracker.record(64);
        assert_eq!(tracker.record(1), Arrival::Reordered);
        assert_eq!(tracker.record(0), Arrival::Late);
        let report = tracker.finish(65);
        assert!(!report.exact);
        assert_eq!((report.outside_window, report.max_reorder_extent), (1, 63));
    }

    #[test]
    fn sequence_numbers_one_window_apart_do_not_count_as_duplicates() {
        let mut tracker = SequenceTracker::with_window(64);
        (0..64).for_each(|sequence| assert_eq!(tracker.record(sequence), Arrival::InOrder));
        tracker.record(100);
        for sequence in 64..100 {
            assert_eq!(tracker.record(sequence), Arrival::Reordered, "{sequence}");
            assert_eq!(tracker.record(sequence), Arrival::Duplicate, "{sequence}");
        }
    }

    #[test]
    fn a_jump_beyond_the_window_clears_the_window() {
        let mut tracker = SequenceTracker::with_window(64);
        (0..64).for_each(|sequence| assert_eq!(tracker.record(sequence), Arrival::InOrder));
        tracker.record(10_000);
        assert_eq!(tracker.record(9_999), Arrival::Reordered);
        assert_eq!(tracker.record(63), Arrival::Late);
    }

    #[test]
    fn an_unsent_sequence_number_makes_the_report_inexact() {
        assert!(!tracked(64, &[0, 1, 500]).finish(3).exact);
        assert!(tracked(64, &[0, 1, 2]).finish(3).exact);
    }

    #[test]
    fn extreme_sequence_numbers_and_an_empty_window_do_not_panic() {
        let mut tracker = SequenceTracker::with_window(0);
        for sequence in [u64::MAX, u64::MAX, u64::MAX - 1, 0, 1] {
            tracker.record(sequence);
        }
        assert!(!tracker.finish(5).exact);
    }

    /// Returns the arrivals of a flow with random loss, duplication and displacement up to `reach` positions.
    fn disturbed(seed: u64, sent: u64, loss: f64, copies: f64, reach: f64) -> Vec<u64> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut placed = Vec::new();
        for sequence in 0..sent {
            if random.f64() < loss {
                continue;
            }
            placed.push((sequence as f64 + random.f64() * reach, sequence));
            if random.f64() < copies {
                placed.push((sequence as f64 + random.f64() * reach, sequence));
            }
        }
        placed.sort_by(|a, b| a.0.total_cmp(&b.0));
        placed.into_iter().map(|(_, sequence)| sequence).collect()
    }

    proptest! {
        #[test]
        fn reports_are_exact_if_reordering_stays_inside_the_window(
            seed: u64, sent in 0u64..3000, loss in 0.0..0.9f64, copies in 0.0..0.5f64, reach in 0.0..250.0f64,
        ) {
            let arrivals = disturbed(seed, sent, loss, copies, reach);
            let report = tracked(256, &arrivals).finish(sent);
            prop_assert_eq!(report, naive(&arrivals, sent));
        }

        #[test]
        fn reported_bounds_contain_the_true_loss_outside_the_window(
            seed: u64, sent in 0u64..3000, loss in 0.0..0.5f64, copies in 0.0..0.5f64,
        ) {
            let arrivals = disturbed(seed, sent, loss, copies, 1000.0);
            let report = tracked(64, &arrivals).finish(sent);
            let truth = naive(&arrivals, sent);
            prop_assert!(report.lost >= truth.lost);
            prop_assert!(report.lost.saturating_sub(report.outside_window) <= truth.lost);
            prop_assert_eq!(report.exact, report.outside_window == 0);
            if report.exact {
                prop_assert_eq!(report, truth);
            }
        }

        #[test]
        fn every_arrival_is_counted_exactly_once(arrivals in prop::collection::vec(any::<u64>(), 0..200)) {
            let report = tracked(64, &arrivals).finish(1000);
            let counted = report.received_unique + report.duplicate + report.outside_window;
            prop_assert_eq!(counted, arrivals.len() as u64);
        }
    }
}
