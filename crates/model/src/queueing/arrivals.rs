//! Arrival patterns: packets at a constant rate, as a Poisson process, in bursts at line rate, or in batches of
//! simultaneous packets. The bursts are those of Gallenmüller's dissertation, section 5.4, figure 5.14.

use fastrand::Rng;

use super::exponential::exponential_ns;
use super::{NS_PER_S, QueueingError, at_least_one};
use crate::estimate::{not_negative, positive};

/// A pattern of packet arrivals, with its average rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrivals {
    rate_pps: f64,
    pattern: Pattern,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Pattern {
    Constant,
    Poisson,
    Bursts { packets: u32, gap_ns: f64 },
    Batches { packets: u32 },
}

impl Arrivals {
    /// Returns the pattern of packets at equal intervals.
    ///
    /// # Errors
    /// The rate is not a finite number above zero.
    pub fn constant(rate_pps: f64) -> Result<Self, QueueingError> {
        Self::of(rate_pps, Pattern::Constant)
    }

    /// Returns the pattern of packets that arrive independently of each other (a Poisson process).
    ///
    /// # Errors
    /// The rate is not a finite number above zero.
    pub fn poisson(rate_pps: f64) -> Result<Self, QueueingError> {
        Self::of(rate_pps, Pattern::Poisson)
    }

    /// Returns the pattern of bursts of `packets` packets each, with `gap_ns` from one packet to the next. Bursts start
    /// at equal intervals such that the average rate is `rate_pps`.
    ///
    /// # Errors
    /// The rate is not above zero, there are no packets, or the gap is negative or too long for the rate.
    pub fn bursts(rate_pps: f64, packets: u32, gap_ns: f64) -> Result<Self, QueueingError> {
        not_negative("the gap within a burst", gap_ns)?;
        let room = NS_PER_S / positive("a rate", rate_pps)? - gap_ns;
        not_negative("the time that gaps within bursts leave per packet", room)?;
        Self::of(
            rate_pps,
            Pattern::Bursts {
                packets: at_least_one("packets in a burst", packets)?,
                gap_ns,
            },
        )
    }

    /// Returns the pattern of batches of `packets` packets that arrive at the same time. The batches arrive
    /// independently of each other (a compound Poisson process).
    ///
    /// # Errors
    /// The rate is not above zero, or there are no packets.
    pub fn batches(rate_pps: f64, packets: u32) -> Result<Self, QueueingError> {
        Self::of(
            rate_pps,
            Pattern::Batches {
                packets: at_least_one("packets in a burst", packets)?,
            },
        )
    }

    /// Returns this pattern at another average rate.
    ///
    /// # Errors
    /// The rate is not above zero, or too high for the gaps within bursts.
    pub fn at_rate(&self, rate_pps: f64) -> Result<Self, QueueingError> {
        match self.pattern {
            Pattern::Bursts { packets, gap_ns } => Self::bursts(rate_pps, packets, gap_ns),
            pattern => Self::of(rate_pps, pattern),
        }
    }

    /// Returns the average rate, packets per second.
    pub fn rate_pps(&self) -> f64 {
        self.rate_pps
    }

    /// Returns the arrival times for `seed`, ascending. The first packet arrives at a random moment of the pattern's
    /// period, so times depend on the seed even for constant intervals.
    pub fn stream(&self, seed: u64) -> ArrivalStream {
        let mut rng = Rng::with_seed(seed);
        let packet_ns = NS_PER_S / self.rate_pps;
        let (between_ns, packets, gap_ns) = match self.pattern {
            Pattern::Constant | Pattern::Poisson => (packet_ns, 1, 0.0),
            Pattern::Bursts { packets, gap_ns } => {
                (packet_ns * f64::from(packets), packets, gap_ns)
            }
            Pattern::Batches { packets } => (packet_ns * f64::from(packets), packets, 0.0),
        };
        let start_ns = rng.f64() * between_ns;
        ArrivalStream {
            rng,
            start_ns,
            between_ns,
            random: matches!(self.pattern, Pattern::Poisson | Pattern::Batches { .. }),
            packets,
            gap_ns,
            number: 0,
        }
    }

    fn of(rate_pps: f64, pattern: Pattern) -> Result<Self, QueueingError> {
        Ok(Self {
            rate_pps: positive("a rate", rate_pps)?,
            pattern,
        })
    }
}

/// An iterator-like source of arrival times.
#[derive(Debug, Clone)]
pub struct ArrivalStream {
    rng: Rng,
    /// Start of the current burst, ns.
    start_ns: f64,
    /// Mean interval between the starts of two bursts, ns.
    between_ns: f64,
    random: bool,
    packets: u32,
    gap_ns: f64,
    /// Number of packets of the current burst that have arrived.
    number: u32,
}

impl ArrivalStream {
    /// Returns the next time of arrival, ns.
    #[inline]
    pub fn next_ns(&mut self) -> f64 {
        let now = self.start_ns + f64::from(self.number) * self.gap_ns;
        self.number += 1;
        if self.number == self.packets {
            self.number = 0;
            self.start_ns += if self.random {
                exponential_ns(&mut self.rng, self.between_ns)
            } else {
                self.between_ns
            };
        }
        now
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn times(arrivals: Arrivals, seed: u64, count: usize) -> Vec<f64> {
        let mut stream = arrivals.stream(seed);
        (0..count).map(|_| stream.next_ns()).collect()
    }

    #[test]
    fn every_arrival_pattern_has_the_configured_rate_and_ascending_times() {
        for arrivals in [
            Arrivals::constant(1e6).unwrap(),
            Arrivals::poisson(1e6).unwrap(),
            Arrivals::bursts(1e6, 32, 67.2).unwrap(),
            Arrivals::batches(1e6, 8).unwrap(),
        ] {
            let times = times(arrivals, 3, 320_001);
            assert!(times.is_sorted());
            let rate = 320_000.0 / (times[320_000] - times[0]) * 1e9;
            assert!((rate / 1e6 - 1.0).abs() < 0.02, "{arrivals:?} {rate}");
        }
    }

    #[test]
    fn arrivals_are_reproducible_from_the_seed() {
        let arrivals = Arrivals::poisson(1e6).unwrap();
        assert_eq!(times(arrivals, 5, 100), times(arrivals, 5, 100));
        assert_ne!(times(arrivals, 5, 100), times(arrivals, 6, 100));
        let constant = Arrivals::constant(1e6).unwrap();
        assert_ne!(times(constant, 5, 1), times(constant, 6, 1));
    }

    #[test]
    fn bursts_arrive_at_line_rate_and_are_followed_by_pauses() {
        let found = times(Arrivals::bursts(10_000.0, 4, 67.2).unwrap(), 1, 8);
        let gaps: Vec<f64> = found.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!((gaps[0] - 67.2).abs() < 1e-6 && (gaps[2] - 67.2).abs() < 1e-6);
        assert!(
            (gaps[3] - (400_000.0 - 3.0 * 67.2)).abs() < 1e-6,
            "{gaps:?}"
        );
    }

    #[test]
    fn invalid_arrival_patterns_are_refused() {
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Arrivals::constant(bad).is_err());
            assert!(Arrivals::poisson(bad).is_err());
            assert!(Arrivals::batches(bad, 2).is_err());
        }
        assert!(Arrivals::bursts(1e6, 0, 10.0).is_err());
        assert!(Arrivals::bursts(1e6, 4, f64::NAN).is_err());
        assert!(Arrivals::bursts(1e6, 4, 1_001.0).is_err());
    }
}
