//! Back-to-back frames: the longest burst that a device forwards without loss, and the buffer size derived from it.
//!
//! RFC 2544 section 26.4 as updated by RFC 9004: the search runs over burst lengths (section 6.2 of RFC 9004), and the
//! result is the average over repetitions (6.3). The buffer time is corrected by the packets that leave during the
//! burst (6.4).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The search for the longest burst without loss: doubling from `first`, then bisection. The caller sends the bursts. A
/// burst fails only if its repetition fails too, because a stall of a shared machine looks like a full buffer. This is
/// binary search with loss verification (TST 009 clause 12.3.3), as RFC 9004 section 6.2 requests.
#[derive(Debug, Clone)]
pub struct BurstSearch {
    longest: u64,
    next: u64,
    passed: Option<u64>,
    failed: Option<u64>,
    repeating: bool,
    done: bool,
}

/// Precision of the search as a fraction of the failing length: RFC 9004's minimum step size (section 6.2), which the
/// report states.
pub const BURST_PRECISION: f64 = 0.005;

impl BurstSearch {
    /// Creates a search over bursts of `first` packets up to `longest`.
    pub fn new(first: u64, longest: u64) -> Self {
        let longest = longest.max(1);
        Self {
            longest,
            next: first.clamp(1, longest),
            passed: None,
            failed: None,
            repeating: false,
            done: false,
        }
    }

    /// Returns the length of the next burst in packets; `None` when the search is over.
    pub fn next_length(&self) -> Option<u64> {
        (!self.done).then_some(self.next)
    }

    /// Records the result of the current burst; `loss_free` is true if all its packets arrived.
    pub fn report(&mut self, loss_free: bool) {
        if self.done {
            return;
        }
        if loss_free {
            self.passed = self.passed.max(Some(self.next));
        } else if !self.repeating {
            self.repeating = true;
            return;
        } else {
            self.failed = Some(self.next);
        }
        self.repeating = false;
        match (self.passed, self.failed) {
            (Some(passed), None) if passed >= self.longest => self.done = true,
            (Some(passed), None) => self.next = (passed * 2).min(self.longest),
            (None, Some(1)) => self.done = true,
            (None, Some(failed)) => self.next = failed / 2,
            (Some(passed), Some(failed)) => {
                let close = (failed as f64 * BURST_PRECISION).max(1.0);
                self.done = (failed - passed) as f64 <= close;
                self.next = passed + (failed - passed) / 2;
            }
            (None, None) => {}
        }
    }

    /// Returns the length of the longest burst without loss, packets; 0 if not even one packet arrived.
    pub fn length(&self) -> u64 {
        self.passed.unwrap_or(0)
    }

    /// Returns true if no burst up to the longest allowed length failed: the buffer of the device never overflowed.
    pub fn is_unlimited(&self) -> bool {
        self.failed.is_none()
    }
}

/// The size of the device's buffer derived from bursts (RFC 9004 section 6.4).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BufferTime {
    /// Duration of the average burst, s: its length in packets divided by the rate at which it was sent.
    pub implied_seconds: f64,
    /// `implied_seconds` without the part for packets that the device forwarded during the burst, s. It is the buffer
    /// size as a time: how long the link needs to carry a full buffer at the burst's rate.
    pub corrected_seconds: f64,
    /// Number of packets that the buffer holds when the burst ends.
    pub corrected_packets: f64,
}

impl BufferTime {
    /// Returns the buffer time from an average burst of `packets` at `burst_pps`, for a device with a throughput of
    /// `throughput_pps`, measured without loss (RFC 9004 section 5). RFC 9004 takes the link's Max Theoretical Frame
    /// Rate for `burst_pps`; without a physical link, it is the rate at which the burst was sent.
    ///
    /// Returns `None` for a device that forwards as fast as bursts arrive, so that its buffer never fills (RFC 9004
    /// section 6.1).
    pub fn of(packets: f64, burst_pps: f64, throughput_pps: f64) -> Option<Self> {
        let sensible = packets > 0.0 && burst_pps.is_finite() && throughput_pps >= 0.0;
        if !sensible || burst_pps <= throughput_pps {
            return None;
        }
        let implied_seconds = packets / burst_pps;
        let stays = 1.0 - throughput_pps / burst_pps;
        Some(Self {
            implied_seconds,
            corrected_seconds: implied_seconds * stays,
            corrected_packets: packets * stays,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn search(first: u64, longest: u64, mut passes: impl FnMut(u64) -> bool) -> BurstSearch {
        let mut search = BurstSearch::new(first, longest);
        let mut bursts = 0;
        while let Some(length) = search.next_length() {
            assert!((1..=longest).contains(&length), "{length}");
            search.report(passes(length));
            bursts += 1;
            assert!(bursts < 200);
        }
        search
    }

    #[test]
    fn the_buffer_size_is_found_within_half_a_per_cent() {
        for buffer in [1_u64, 2, 63, 64, 65, 1_000, 12_345, 999_999] {
            let found = search(64, 1_000_000, |length| length <= buffer);
            assert!(found.length() <= buffer, "{buffer}");
            assert!(
                buffer - found.length() <= 1 + buffer / 190,
                "{buffer}: {}",
                found.length()
            );
            assert!(!found.is_unlimited());
        }
    }

    #[test]
    fn a_burst_search_without_loss_reports_an_unlimited_buffer() {
        let found = search(64, 5_000, |_| true);
        assert_eq!((found.length(), found.is_unlimited()), (5_000, true));
        assert_eq!(search(64, 5_000, |_| false).length(), 0);
    }

    #[test]
    fn one_burst_with_loss_does_not_end_the_search() {
        let mut bursts = 0;
        let found = search(64, 10_000, |length| {
            bursts += 1;
            bursts != 3 && length <= 4_000
        });
        assert!(
            (3_980..=4_000).contains(&found.length()),
            "{}",
            found.length()
        );
    }

    #[test]
    fn packets_forwarded_during_the_burst_do_not_count_as_buffered() {
        // Computed by hand for 26 000 frames of 64 bytes at 10 Gbit/s and a device that forwards 11 153 000 frames a
        // second: 1.7472 ms - 1.7472 ms x 11 153 000 / 14 880 952 = 0.4377 ms.
        let time = BufferTime::of(26_000.0, 14_880_952.0, 11_153_000.0).unwrap();
        assert!((time.implied_seconds - 1.7472e-3).abs() < 1e-7, "{time:?}");
        assert!(
            (time.corrected_seconds - 0.4377e-3).abs() < 1e-7,
            "{time:?}"
        );
        assert!((time.corrected_packets - 6_513.3).abs() < 1.0, "{time:?}");
        assert_eq!(BufferTime::of(100.0, 1e6, 1e6), None);
        assert_eq!(BufferTime::of(0.0, 1e6, 1e5), None);
    }
}
