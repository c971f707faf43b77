//! Who sends the packets and takes them back, on a core of its own: where that core is interrupted, what was to be sent is sent
//! late, and what has come back is seen late.
//!
//! It sends as the instrument of `taut generate` does (`crates/traffic/src/instrument/running.rs`): what a stall held up follows
//! spaced out, not all at once. Latency counts from sending.

use super::vacations::{VacationStream, Vacations};
use super::{NS_PER_S, QueueingError};
use crate::estimate::positive;

/// Lateness that makes nothing follow spaced out, ns.
const SLACK_NS: f64 = 2_000.0;
/// Distance at which packets follow after a stall, as a share of the average one, and the widest, ns.
const CATCH_UP: f64 = 0.75;
const WIDEST_CATCH_UP_NS: f64 = 20_000.0;

/// A sender and receiver on one core.
#[derive(Debug, Clone, PartialEq)]
pub struct Observer {
    vacations: Vacations,
    spacing_ns: f64,
}

impl Observer {
    /// Returns one whose core is interrupted, and which sends at once whatever an interruption has held up, as in patterns that
    /// are bursts on purpose.
    pub fn new(vacations: Vacations) -> Self {
        Self {
            vacations,
            spacing_ns: 0.0,
        }
    }

    /// Returns the same, which sends what an interruption has held up spaced out as the instrument does, for a stream of
    /// `rate_pps` on average.
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

    /// Returns both halves: they share a core, and so its interruptions.
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

/// When packets are sent that are due at some time.
#[derive(Debug)]
pub(super) struct Sending {
    vacations: VacationStream,
    spacing_ns: f64,
    /// When it may send again after a stall.
    free_ns: f64,
    /// When the last one was sent.
    last_ns: f64,
}

impl Sending {
    /// Returns when the next packet is sent; they come in the order in which they are due.
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

/// When packets are seen that have come back at some time.
#[derive(Debug)]
pub(super) struct Receiving {
    vacations: VacationStream,
    /// What was the first to come back in the last interruption, and the end of that, ns.
    away_ns: (f64, f64),
}

impl Receiving {
    /// Returns when a packet is seen that came back at `back_ns`, about in the order of coming back.
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

    /// Away from 10 to 110 us of each ms.
    fn away() -> Observer {
        let pauses = [(10_000.0, 100_000.0)];
        Observer::new(Vacations::none().with_recorded(&pauses, 1e6).unwrap())
    }

    #[test]
    fn what_was_due_meanwhile_follows_spaced_out_until_nothing_is_late() {
        let (mut sending, _) = away().spaced(1e6).unwrap().halves(1, 0.0);
        let sent: Vec<f64> = (0..800)
            .map(|n| sending.sent_ns(f64::from(n) * 1e3))
            .collect();
        // Those due in the first 2 us that count as late go together, then one each 750 ns.
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
        // A pattern of bursts has no distance.
        let (mut sending, _) = away().halves(1, 0.0);
        let sent: Vec<f64> = (0..200)
            .map(|n| sending.sent_ns(f64::from(n) * 1e3))
            .collect();
        assert!(sent[10..=110].iter().all(|ns| *ns == 110e3) && sent[111] == 111e3);
    }

    #[test]
    fn what_comes_back_meanwhile_is_seen_when_it_ends() {
        let (_, mut receiving) = away().halves(1, 0.0);
        let back = [5e3, 12e3, 11.9e3, 60e3, 109e3, 110e3, 200e3, 1_015e3];
        let seen = back.map(|ns| receiving.seen_ns(ns));
        assert_eq!(seen[..2], [5e3, 110e3]);
        assert_eq!(seen[3..], [110e3, 110e3, 110e3, 200e3, 1_110e3]);
    }

    #[test]
    fn rates_that_cannot_be_are_refused() {
        for wrong in [0.0, -1.0, f64::NAN] {
            assert!(
                Observer::new(Vacations::none()).spaced(wrong).is_err(),
                "{wrong}"
            );
        }
    }
}
