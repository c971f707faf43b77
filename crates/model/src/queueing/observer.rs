//! The sender and receiver of the packets, on a core of its own. While that core is interrupted, packets are sent after
//! their intended send time, and returned packets are received late.
//!
//! The observer sends like the load generator of `taut generate` (`crates/traffic/src/instrument/running.rs`): packets
//! that an interruption delayed are sent with gaps, not all together. Latency counts from the actual send time.

use super::vacations::{VacationStream, Vacations};
use super::{NS_PER_S, QueueingError};
use crate::estimate::positive;

/// Send delay up to which packets are sent without gaps after an interruption, ns.
const SLACK_NS: f64 = 2_000.0;
/// Interval at which delayed packets are sent after an interruption, as a share of the stream's average interval
/// between packets. `WIDEST_CATCH_UP_NS` is the upper limit of the resulting interval, ns.
const CATCH_UP: f64 = 0.75;
const WIDEST_CATCH_UP_NS: f64 = 20_000.0;

/// A sender and receiver on one core.
#[derive(Debug, Clone, PartialEq)]
pub struct Observer {
    vacations: Vacations,
    spacing_ns: f64,
}

impl Observer {
    /// Returns an observer on a core with the given interruptions. After an interruption it sends all delayed packets
    /// immediately. The load generator does so for patterns with intended bursts; for other patterns see
    /// [`Observer::spaced`].
    pub fn new(vacations: Vacations) -> Self {
        Self {
            vacations,
            spacing_ns: 0.0,
        }
    }

    /// Returns the observer that spaces out delayed packets as the load generator does; `rate_pps` is the average rate
    /// of the stream.
    ///
    /// # Errors
    /// The rate is not above zero.
    pub fn spaced(self, rate_pps: f64) -> Result<Self, QueueingError> {
        let spacing_ns = CATCH_UP * NS_PER_S / positive("a rate", rate_pps)?;
        Ok(Self {
            spacing_ns: spacing_ns.min(WIDEST_CATCH_UP_NS),
            ..self
        })
    }

    /// Returns the sender and the receiver of the observer; both share a core, so both have the same interruptions.
    pub(super) fn halves(&self, seed: u64, phase: f64) -> (Sending, Receiving) {
        let vacations = self.vacations.stream_from(seed, phase);
        let sending = Sending {
            vacations: vacations.clone(),
            spacing_ns: self.spacing_ns,
            free_ns: 0.0,
            last_ns: 0.0,
        };
        let receiving = Receiving {
            vacations,
            away_ns: (0.0, 0.0),
        };
        (sending, receiving)
    }
}

/// The sender of an [`Observer`], which computes send times from intended send times and interruptions.
#[derive(Debug)]
pub(super) struct Sending {
    vacations: VacationStream,
    spacing_ns: f64,
    /// Earliest send time of the next packet after an interruption, ns.
    free_ns: f64,
    /// Send time of the last packet, ns.
    last_ns: f64,
}

impl Sending {
    /// Returns the send time of the next packet, ns; calls must be in the order of intended send times.
    #[inline]
    pub fn sent_ns(&mut self, due_ns: f64) -> f64 {
        let ready_ns = due_ns.max(self.free_ns).max(self.last_ns);
        self.last_ns = self.vacations.available_ns(ready_ns);
        if self.last_ns - due_ns > SLACK_NS {
            self.free_ns = self.free_ns.max(self.last_ns - SLACK_NS) + self.spacing_ns;
        }
        self.last_ns
    }
}

/// The receiver of an [`Observer`], which computes receive times from return times and interruptions.
#[derive(Debug)]
pub(super) struct Receiving {
    vacations: VacationStream,
    /// The first packet that returned during the last interruption: its return time, and the end of the interruption,
    /// ns. Packets that return between these times are received at the end.
    away_ns: (f64, f64),
}

impl Receiving {
    /// Returns the time at which the observer receives a packet that came back at `back_ns`. During an interruption,
    /// the packet is received at the end of the interruption, otherwise at `back_ns`. Successive calls must be roughly
    /// in the order of return times.
    #[inline]
    pub fn seen_ns(&mut self, back_ns: f64) -> f64 {
        let (from_ns, to_ns) = self.away_ns;
        if (from_ns..to_ns).contains(&back_ns) {
            return to_ns;
        }
        let seen_ns = self.vacations.available_ns(back_ns);
        if seen_ns > back_ns {
            self.away_ns = (back_ns, seen_ns);
        }
        seen_ns
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Returns an observer that is interrupted from 10 to 110 us of each ms.
    fn away() -> Observer {
        let pauses = [(10_000.0, 100_000.0)];
        Observer::new(Vacations::none().with_recorded(&pauses, 1e6).unwrap())
    }

    #[test]
    fn delayed_packets_are_paced_until_the_backlog_is_empty() {
        let (mut sending, _) = away().spaced(1e6).unwrap().halves(1, 0.0);
        let sent: Vec<f64> = (0..800)
            .map(|n| sending.sent_ns(f64::from(n) * 1e3))
            .collect();
        // After the interruption, packets are sent together until 2 us of delay are used up, then one every 750 ns.
        assert_eq!(
            &sent[..10],
            &[0.0, 1e3, 2e3, 3e3, 4e3, 5e3, 6e3, 7e3, 8e3, 9e3]
        );
        assert_eq!(&sent[10..13], &[110e3; 3]);
        assert!(
            (sent[100] - 110e3 - 87.0 * 750.0).abs() < 2_000.0,
            "{}",
            sent[100]
        );
        assert!(sent.is_sorted() && sent[799] == 799e3);
        // A pattern of bursts is not spaced out.
        let (mut sending, _) = away().halves(1, 0.0);
        let sent: Vec<f64> = (0..200)
            .map(|n| sending.sent_ns(f64::from(n) * 1e3))
            .collect();
        assert!(sent[10..=110].iter().all(|ns| *ns == 110e3) && sent[111] == 111e3);
    }

    #[test]
    fn packets_returning_in_an_interruption_are_received_at_its_end() {
        let (_, mut receiving) = away().halves(1, 0.0);
        let back = [5e3, 12e3, 11.9e3, 60e3, 109e3, 110e3, 200e3, 1_015e3];
        let seen = back.map(|ns| receiving.seen_ns(ns));
        assert_eq!(seen[..2], [5e3, 110e3]);
        assert_eq!(seen[3..], [110e3, 110e3, 110e3, 200e3, 1_110e3]);
    }

    #[test]
    fn non_positive_and_nan_rates_are_refused() {
        for wrong in [0.0, -1.0, f64::NAN] {
            assert!(
                Observer::new(Vacations::none()).spaced(wrong).is_err(),
                "{wrong}"
            );
        }
    }
}
