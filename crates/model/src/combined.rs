//! The model of a combined system: a fast front, such as a switch, handles packets alone and passes a share of them to
//! a slower server. (Gallenmüller 2021, section 7.2, leaves such a model to future work.)
//!
//! The front sees every packet, the server its share, so `T = min(T_front, T_server / share)`. If one core does the
//! work of both, their times add: `1 / T = 1 / T_front + share / T_server`. Latency is a mixture: a packet takes the time of
//! the front or that of the way through the server, each with the probability of its way.

use crate::estimate::{Estimate, WrongValue, positive, share as checked_share};
use crate::queueing::{Arrivals, Processor, QueueingError, ServiceTime, replicate};
use schemars::JsonSchema;
use serde::Serialize;
use taut_measure::LatencyHistogram;

const NS_PER_S: f64 = 1e9;

/// A front, the server behind it, and the share of the packets that the server gets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Combined {
    front_pps: Estimate,
    server_pps: Estimate,
    share: f64,
    one_core: bool,
}

/// The part of a combined system that limits its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// The front, which every packet passes.
    Front,
    /// The server.
    Server,
    /// The core that does the work of both.
    Core,
}

/// The size of the simulations of queues.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Number of packets in each run of the simulation.
    pub packets: u64,
    /// Number of runs of the simulation, with seeds from `seed` on.
    pub runs: u64,
    /// Seed of the first run.
    pub seed: u64,
}

impl Combined {
    /// Makes the model from the highest rates of front and server, each alone, packets per second. `share` is the share
    /// of the packets that the server gets, 0 to 1. `one_core` is true if one core does the work of both.
    ///
    /// # Errors
    /// [`WrongValue`] if a rate is not above 0, or the share is outside [0, 1].
    pub fn new(
        front_pps: Estimate,
        server_pps: Estimate,
        share: f64,
        one_core: bool,
    ) -> Result<Self, WrongValue> {
        positive("the rate of the front (packets/s)", front_pps.low)?;
        positive("the rate of the server (packets/s)", server_pps.low)?;
        Ok(Self {
            front_pps,
            server_pps,
            share: checked_share("the share of the server", share)?,
            one_core,
        })
    }

    /// Returns the highest rate of the system, packets per second, and what limits it.
    pub fn highest(&self) -> (Estimate, Limit) {
        let (front, server, share) = (self.front_pps, self.server_pps, self.share);
        let both = |front: f64, server: f64| match self.one_core {
            true => 1.0 / (1.0 / front + share / server),
            false => front.min(server / share),
        };
        let missing = (1.0 - front.confidence) + (1.0 - server.confidence);
        let highest = Estimate {
            value: both(front.value, server.value),
            low: both(front.low, server.low),
            high: both(front.high, server.high),
            confidence: (1.0 - missing).max(0.0),
        };
        let limit = match self.one_core {
            true => Limit::Core,
            false if share * front.value > server.value => Limit::Server,
            false => Limit::Front,
        };
        (highest, limit)
    }

    /// Returns the share at which front and server are both busy, 0 to 1. With a smaller share the front is the limit.
    pub fn balanced_share(&self) -> f64 {
        (self.server_pps.value / self.front_pps.value).min(1.0)
    }

    /// Simulates the front at `rate_pps`, with packets that arrive at constant intervals, and returns their latency. A
    /// packet takes `transfer_ns` without a queue.
    ///
    /// # Errors
    /// [`QueueingError::Unstable`] if the front cannot carry the rate; the errors of [`replicate`].
    pub fn front_latency(
        &self,
        rate_pps: f64,
        transfer_ns: f64,
        effort: Effort,
    ) -> Result<LatencyHistogram, QueueingError> {
        let arrivals = Arrivals::constant(rate_pps)?;
        latency(arrivals, self.front_pps.value, transfer_ns, effort)
    }

    /// Simulates the server at its share of `rate_pps` and returns the latency of its packets. The server's packets are
    /// chosen at random, so their arrivals are modelled as a Poisson process, which is exact for small shares. A packet
    /// takes `transfer_ns` without a queue.
    ///
    /// # Errors
    /// [`QueueingError::Unstable`] if the server cannot carry its share; the errors of [`replicate`].
    pub fn server_latency(
        &self,
        rate_pps: f64,
        transfer_ns: f64,
        effort: Effort,
    ) -> Result<LatencyHistogram, QueueingError> {
        let arrivals = Arrivals::poisson(rate_pps * self.share)?;
        latency(arrivals, self.server_pps.value, transfer_ns, effort)
    }
}

/// Returns the latencies at one server with a constant service time.
fn latency(
    arrivals: Arrivals,
    highest_pps: f64,
    transfer_ns: f64,
    effort: Effort,
) -> Result<LatencyHistogram, QueueingError> {
    let utilisation = arrivals.rate_pps() / highest_pps;
    if utilisation >= 1.0 {
        return Err(QueueingError::Unstable { utilisation });
    }
    // The transfer time includes the service of a packet that does not wait.
    let service_ns = NS_PER_S / highest_pps;
    let service = ServiceTime::constant(service_ns)?;
    let way_ns = (transfer_ns - service_ns).max(0.0);
    let processor = Processor::new(arrivals, service).with_transfer(way_ns)?;
    Ok(replicate(&processor, effort.packets, effort.runs, effort.seed)?.latency)
}

/// Returns quantile `q` of a mixture of latencies, ns: a packet is one of `server` with probability `share`, else one of
/// `front`. `None` if `q` or `share` is outside [0, 1], or a part with packets has no latencies.
pub fn quantile_of_mixture(
    front: &LatencyHistogram,
    server: &LatencyHistogram,
    share: f64,
    q: f64,
) -> Option<u64> {
    if !(0.0..=1.0).contains(&q) || !(0.0..=1.0).contains(&share) {
        return None;
    }
    let mut buckets: Vec<(u64, f64)> = Vec::new();
    for (part, weight) in [(front, 1.0 - share), (server, share)] {
        if weight <= 0.0 {
            continue;
        }
        let each = weight / Some(part.count()).filter(|count| *count > 0)? as f64;
        buckets.extend(part.iter().map(|bucket| {
            let middle = bucket.low_ns.midpoint(bucket.high_ns);
            (middle, each * bucket.count as f64)
        }));
    }
    buckets.sort_unstable_by_key(|(ns, _)| *ns);
    // The sum of the weights differs from 1 by rounding.
    let wanted = q * (1.0 - 1e-12);
    let mut below = 0.0;
    let found = buckets.iter().find(|(_, weight)| {
        below += weight;
        below >= wanted
    });
    found.or(buckets.last()).map(|(ns, _)| *ns)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const EFFORT: Effort = Effort {
        packets: 20_000,
        runs: 3,
        seed: 1,
    };

    fn combined(front: f64, server: f64, share: f64, one_core: bool) -> Combined {
        let [front, server] = [front, server].map(|pps| Estimate::given(pps).unwrap());
        Combined::new(front, server, share, one_core).unwrap()
    }

    #[test]
    fn the_slower_of_front_and_server_limits_the_rate() {
        for (share, pps, limit) in [
            (0.0, 10e6, Limit::Front),
            (0.05, 10e6, Limit::Front),
            (0.1, 10e6, Limit::Front),
            (0.25, 4e6, Limit::Server),
            (1.0, 1e6, Limit::Server),
        ] {
            let (highest, by) = combined(10e6, 1e6, share, false).highest();
            assert!((highest.value / pps - 1.0).abs() < 1e-9, "{highest:?}");
            assert_eq!(by, limit, "{share}");
        }
        assert!((combined(10e6, 1e6, 0.5, false).balanced_share() - 0.1).abs() < 1e-12);
    }

    #[test]
    fn times_add_if_one_core_does_both() {
        let (highest, by) = combined(2e6, 1e6, 0.5, true).highest();
        assert!((highest.value - 1e6).abs() < 1e-3, "{highest:?}");
        assert_eq!(by, Limit::Core);
        let (alone, _) = combined(2e6, 1e6, 0.0, true).highest();
        assert!((alone.value - 2e6).abs() < 1e-3, "{alone:?}");
    }

    #[test]
    fn the_interval_of_the_rate_is_that_of_its_limit() {
        let uncertain = Estimate::new(1e6, 0.9e6, 1.2e6, 0.95).unwrap();
        let front = Estimate::given(10e6).unwrap();
        let system = Combined::new(front, uncertain, 0.5, false).unwrap();
        let (highest, _) = system.highest();
        assert_eq!((highest.low, highest.high), (1.8e6, 2.4e6));
        assert!((highest.confidence - 0.95).abs() < 1e-12);
    }

    #[test]
    fn wrong_rates_and_shares_are_refused() {
        let given = |pps| Estimate::given(pps).unwrap();
        for (front, server, share) in [(0.0, 1.0, 0.5), (1.0, 0.0, 0.5), (1.0, 1.0, 1.5)] {
            assert!(Combined::new(given(front), given(server), share, false).is_err());
        }
    }

    #[test]
    fn a_mixture_has_the_quantiles_of_both_ways() {
        let [mut front, mut server] = [LatencyHistogram::new(), LatencyHistogram::new()];
        // The numbers of packets that were measured on each way do not matter.
        front.record_many(100, 50);
        server.record_many(400, 1_000_000);
        let at = |share, q| quantile_of_mixture(&front, &server, share, q);
        assert_eq!(
            (at(0.1, 0.5), at(0.1, 0.9), at(0.1, 0.91)),
            (Some(100), Some(100), Some(400))
        );
        assert_eq!((at(0.0, 1.0), at(1.0, 0.0)), (Some(100), Some(400)));
        assert_eq!((at(0.1, 1.1), at(2.0, 0.5)), (None, None));
        let none = LatencyHistogram::new();
        assert_eq!(quantile_of_mixture(&front, &none, 0.0, 0.5), Some(100));
        assert_eq!(quantile_of_mixture(&front, &none, 0.5, 0.5), None);
    }

    #[test]
    fn packets_of_a_busy_server_wait() {
        let system = combined(10e6, 1e6, 0.5, false);
        let front = system.front_latency(1.6e6, 2_000.0, EFFORT).unwrap();
        assert_eq!(front.quantile(0.99).map(|ns| ns / 10), Some(200));
        let server = system.server_latency(1.6e6, 5_000.0, EFFORT).unwrap();
        // For M/D/1 with a load of 0.8 and a service time of 1 us, the mean wait is 2 us.
        let mean = server.mean_ns().unwrap();
        assert!((6_600.0..7_400.0).contains(&mean), "{mean}");
        let over = system.server_latency(2.4e6, 5_000.0, EFFORT);
        assert!(matches!(over, Err(QueueingError::Unstable { .. })));
    }
}
