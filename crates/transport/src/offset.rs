//! Estimates the difference between two clocks: each packet narrows its bounds, and time widens them.
//!
//! A packet cannot arrive before it was sent. Its arrival time minus its send time therefore bounds the difference
//! `own - other` from above. The packet also echoes the last packet in the other direction, which bounds the
//! difference from below. This is as in NTP (RFC 5905 section 8), but does not assume that both directions have the
//! same delay. Both bounds widen with time, as clocks drift.

use crate::Clocks;

/// A bound of the difference between two clocks, and the local time at which the bound was valid.
#[derive(Debug, Clone, Copy)]
struct Bound {
    ns: i64,
    at_ns: u64,
}

/// Bounds of the difference between our clock and the peer's.
#[derive(Debug, Clone)]
pub(crate) struct Offset {
    drift_ppm: i64,
    is_shared: bool,
    lower: Option<Bound>,
    upper: Option<Bound>,
    jumps: u64,
}

impl Offset {
    pub(crate) fn new(clocks: Clocks, drift_ppm: u32) -> Self {
        let bound = |ns| Some(Bound { ns, at_ns: 0 });
        let (lower, upper) = match clocks {
            Clocks::Own => (None, None),
            Clocks::Shared(error_ns) => {
                let error = i64::try_from(error_ns).unwrap_or(i64::MAX / 4);
                (bound(-error), bound(error))
            }
        };
        Self {
            drift_ppm: i64::from(drift_ppm),
            is_shared: matches!(clocks, Clocks::Shared(_)),
            lower,
            upper,
            jumps: 0,
        }
    }

    /// Returns how far the clocks may have drifted apart between two local times, ns.
    fn drift_ns(&self, from_ns: u64, to_ns: u64) -> i64 {
        let passed = to_ns.abs_diff(from_ns).min(i64::MAX as u64 / 1_000_000) as i64;
        // The drift is rounded up, so that the bound remains valid.
        (passed / 1_000 * self.drift_ppm) / 1_000 + 1
    }

    fn lower_ns(&self, now_ns: u64) -> Option<i64> {
        let bound = self.lower?;
        Some(if self.is_shared {
            bound.ns
        } else {
            bound.ns.saturating_sub(self.drift_ns(bound.at_ns, now_ns))
        })
    }

    fn upper_ns(&self, now_ns: u64) -> Option<i64> {
        let bound = self.upper?;
        Some(if self.is_shared {
            bound.ns
        } else {
            bound.ns.saturating_add(self.drift_ns(bound.at_ns, now_ns))
        })
    }

    /// Processes a packet that the peer sent at `sent_ns` of its clock and that arrived at `now_ns`. `echo` is the send
    /// time of one of our packets, and the time from its arrival at the peer to `sent_ns`. Returns the round trip, if
    /// it is known.
    pub(crate) fn heard(
        &mut self,
        now_ns: u64,
        sent_ns: u64,
        echo: Option<(u64, u32)>,
    ) -> Option<u64> {
        let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let upper = signed(now_ns).saturating_sub(signed(sent_ns));
        // An echo of a future time is invalid: this side cannot have sent that packet yet.
        let echo = echo.filter(|(own_ns, held)| {
            own_ns
                .checked_add(u64::from(*held))
                .is_some_and(|ns| ns <= now_ns)
        });
        let lower = echo.map(|(own_ns, held)| {
            let there_ns = signed(sent_ns).saturating_sub(i64::from(held));
            (signed(own_ns).saturating_sub(there_ns), own_ns)
        });
        if !self.is_shared {
            let contradicts = self.lower_ns(now_ns).is_some_and(|it| upper < it)
                || lower.is_some_and(|(it, at_ns)| {
                    self.upper_ns(at_ns).is_some_and(|upper| it > upper)
                });
            if contradicts {
                // One of the clocks was set, so the old bounds are invalid.
                self.jumps += 1;
                (self.lower, self.upper) = (None, None);
            }
            if self.upper_ns(now_ns).is_none_or(|it| upper <= it) {
                self.upper = Some(Bound {
                    ns: upper,
                    at_ns: now_ns,
                });
            }
            if let Some((ns, at_ns)) = lower {
                let drift = self.drift_ns(at_ns, now_ns);
                if self.lower_ns(now_ns).is_none_or(|it| ns - drift >= it) {
                    self.lower = Some(Bound { ns, at_ns });
                }
            }
        }
        echo.map(|(own_ns, held)| now_ns - own_ns - u64::from(held))
    }

    /// Returns the earliest local time at which the peer's clock can show a given time; none before the first packet.
    pub(crate) fn earliest(&self, other_ns: u64, now_ns: u64) -> Option<u64> {
        let lower = self.lower_ns(now_ns)?;
        Some(other_ns.saturating_add_signed(lower))
    }

    /// Returns how often a clock was set.
    pub(crate) fn jumps(&self) -> u64 {
        self.jumps
    }

    /// Returns the distance between the two bounds, ns; none if one of them is unknown.
    #[cfg(test)]
    pub(crate) fn width_ns(&self, now_ns: u64) -> Option<u64> {
        let (lower, upper) = (self.lower_ns(now_ns)?, self.upper_ns(now_ns)?);
        u64::try_from(upper - lower).ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_known_clock_offset_is_used_unchanged() {
        let mut offset = Offset::new(Clocks::Shared(500), 200);
        assert_eq!(offset.earliest(10_000, 77), Some(9_500));
        assert_eq!(
            offset.heard(9_000, 8_000, Some((5_000, 1_000))),
            Some(3_000)
        );
        assert_eq!(offset.earliest(10_000, 9_000), Some(9_500));
        assert_eq!(offset.width_ns(9_000), Some(1_000));
    }

    #[test]
    fn a_clock_jump_is_detected_and_the_offset_relearned() {
        let mut offset = Offset::new(Clocks::Own, 200);
        // The peer's clock is 1,000,000 ns behind; the delay is 1,000 ns in each direction.
        let first = offset.heard(5_003_000, 4_002_000, Some((5_000_000, 1_000)));
        assert_eq!((first, offset.jumps()), (Some(2_000), 0));
        assert!(offset.earliest(4_002_000, 5_003_000).unwrap() <= 5_002_000);
        // The clock was set forward by a second: the packet arrives before it was sent.
        offset.heard(6_003_000, 1_005_002_000, Some((6_000_000, 1_000)));
        assert_eq!(offset.jumps(), 1);
        let earliest = offset.earliest(1_005_002_000, 6_003_000).unwrap();
        assert!((6_000_000..=6_003_000).contains(&earliest), "{earliest}");
    }

    #[test]
    fn an_echo_from_the_future_yields_no_offset() {
        let mut offset = Offset::new(Clocks::Own, 200);
        assert_eq!(offset.heard(1_000, 500, Some((900, 101))), None);
        assert_eq!(offset.heard(1_000, 500, Some((u64::MAX, 5))), None);
        assert_eq!(offset.earliest(1, 1_000), None);
    }

    proptest! {
        /// Checks that no send time of the peer is estimated later than it was, for any delays and any drift within the
        /// bound.
        #[test]
        fn the_peers_send_times_are_never_estimated_too_late(
            start in -1_000_000_000_i64..1_000_000_000,
            ppm in -200_i64..200,
            steps in proptest::collection::vec((1_u64..50_000_000, 1_u64..3_000_000, 1_u64..3_000_000), 1..60),
        ) {
            let mut offset = Offset::new(Clocks::Own, 200);
            // True time is our clock; the peer's is slower or faster.
            let other = |ns: u64| (10_000_000_000 + ns as i64 + start + ns as i64 * ppm / 1_000_000) as u64;
            let mut now = 10_000_000_000_u64;
            for (pause, there, back) in steps {
                now += pause;
                let own_sent = now;
                let there_at = own_sent + there;
                let held = 1_000;
                let sent_back = there_at + held;
                let arrived = sent_back + back;
                let held_there = (other(sent_back) - other(there_at)) as u32;
                let rtt = offset.heard(arrived, other(sent_back), Some((own_sent, held_there)));
                prop_assert!(rtt.unwrap().abs_diff(there + back) < 3);
                let earliest = offset.earliest(other(arrived), arrived).unwrap();
                prop_assert!(earliest <= arrived + 2, "{earliest} {arrived}");
                // The earliest time may only differ by the one-way delay and drift.
                prop_assert!(arrived - earliest.min(arrived) <= there + 30_000, "{earliest} {arrived} {there}");
                now = arrived;
            }
            prop_assert_eq!(offset.jumps(), 0);
        }
    }
}
