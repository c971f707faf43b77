//! Queues with a closed form: M/M/1, M/G/1 with and without vacations and batches, M/M/c, M/M/1/K; and a bound for
//! G/G/1. Kleinrock, Queueing Systems, volumes 1 and 2; vacations after Fuhrmann and Cooper 1985; M/D/1 is in
//! `crommelin.rs`.
//!
//! Waiting time ends when service begins; latency (sojourn time) is waiting time plus service time. For queues without
//! a steady state, that is at a utilisation of one or more, functions return an error.

use super::moments::ServiceMoments;
use super::service::ServiceTime;
use super::vacations::Vacations;
use super::{NS_PER_S, QueueingError, at_least_one, stable};
use crate::estimate::{not_negative, positive, probability};

/// Returns the utilisation: arrival rate times mean service time.
///
/// # Errors
/// The rate is not a finite number above zero.
pub fn utilisation(rate_pps: f64, service: &ServiceMoments) -> Result<f64, QueueingError> {
    Ok(positive("a rate", rate_pps)? * service.mean_ns / NS_PER_S)
}

/// Returns the mean waiting time of packets of a Poisson process at one server, ns (M/G/1; Pollaczek and Khinchine).
///
/// # Errors
/// There is no steady state, or the rate is invalid.
pub fn mean_wait_ns(rate_pps: f64, service: &ServiceTime) -> Result<f64, QueueingError> {
    let moments = service.moments();
    let load = stable(utilisation(rate_pps, &moments)?)?;
    Ok(rate_pps / NS_PER_S * moments.second_ns2 / (2.0 * (1.0 - load)))
}

/// Returns the mean square of the waiting time of M/G/1, ns^2 (Takács 1962), from which its standard deviation follows.
///
/// # Errors
/// There is no steady state, or the rate is invalid.
pub fn second_moment_of_wait_ns2(
    rate_pps: f64,
    service: &ServiceTime,
) -> Result<f64, QueueingError> {
    let mean = mean_wait_ns(rate_pps, service)?;
    let moments = service.moments();
    let load = utilisation(rate_pps, &moments)?;
    Ok(2.0 * mean * mean + rate_pps / NS_PER_S * moments.third_ns3 / (3.0 * (1.0 - load)))
}

/// Returns the mean waiting time, ns, of packets that arrive in batches of `packets`. The batches are a Poisson process
/// with `rate_pps` packets per second on average (M^X/G/1; Burke 1975).
///
/// # Errors
/// There is no steady state, no packet, or the rate is invalid.
pub fn mean_wait_of_batches_ns(
    rate_pps: f64,
    packets: usize,
    service: &ServiceTime,
) -> Result<f64, QueueingError> {
    at_least_one("packets in a batch", packets)?;
    let load = stable(utilisation(rate_pps, &service.moments())?)?;
    let batch = service.moments().times(packets);
    let batches_per_ns = rate_pps / NS_PER_S / packets as f64;
    let of_the_batch = batches_per_ns * batch.second_ns2 / (2.0 * (1.0 - load));
    Ok(of_the_batch + (packets - 1) as f64 / 2.0 * service.mean_ns())
}

/// Returns the mean waiting time of M/G/1, ns, if the server takes one vacation after another while the queue is empty,
/// like a core that polls. It is the mean waiting time of M/G/1 plus the mean residual vacation (decomposition of
/// Fuhrmann and Cooper).
///
/// # Errors
/// There is no steady state, or the rate is invalid.
pub fn mean_wait_with_idle_vacations_ns(
    rate_pps: f64,
    service: &ServiceTime,
    vacation: &ServiceTime,
) -> Result<f64, QueueingError> {
    let wait = mean_wait_ns(rate_pps, service)?;
    let vacation = vacation.moments();
    let mean = positive("the mean of a vacation", vacation.mean_ns)?;
    Ok(wait + vacation.second_ns2 / (2.0 * mean))
}

/// Returns the mean latency of M/G/1, ns, if the server is interrupted at random moments, also during service. The
/// interruptions are customers of a higher priority class, with preemptive resume (Kleinrock, volume 2, chapter 3). For
/// periodic interruptions the result is an upper bound, because periodic ones do not cluster.
///
/// # Errors
/// There is no steady state, or the rate is invalid.
pub fn mean_latency_with_interruptions_ns(
    rate_pps: f64,
    service: &ServiceTime,
    vacations: &Vacations,
) -> Result<f64, QueueingError> {
    let moments = service.moments();
    let load = utilisation(rate_pps, &moments)?;
    let there = vacations.availability();
    stable(load / there)?;
    let interrupting = vacations
        .moments()
        .map_or(0.0, |of| vacations.per_second() * of.second_ns2);
    let rest = (interrupting + rate_pps * moments.second_ns2) / NS_PER_S / 2.0;
    Ok(moments.mean_ns / there + rest / (there * (there - load)))
}

/// Returns quantile `q` of the latency of M/M/1, ns; the latency is exponentially distributed.
///
/// # Errors
/// There is no steady state, or a value is out of range.
pub fn latency_quantile_mm1_ns(
    rate_pps: f64,
    mean_service_ns: f64,
    q: f64,
) -> Result<f64, QueueingError> {
    let service = positive("a mean service time", mean_service_ns)?;
    let load = stable(positive("a rate", rate_pps)? * service / NS_PER_S)?;
    Ok(-(-probability("a quantile", q)?).ln_1p() * service / (1.0 - load))
}

/// Returns quantile `q` of the waiting time of M/M/1, ns. Packets that find the server free wait zero.
///
/// # Errors
/// There is no steady state, or a value is out of range.
pub fn wait_quantile_mm1_ns(
    rate_pps: f64,
    mean_service_ns: f64,
    q: f64,
) -> Result<f64, QueueingError> {
    wait_quantile_mmc_ns(rate_pps, mean_service_ns, 1, q)
}

/// Returns the probability that a packet has to wait because all of `servers` are busy (Erlang's C formula).
///
/// # Errors
/// There is no steady state, no server, or a value is out of range.
pub fn probability_of_waiting(
    rate_pps: f64,
    mean_service_ns: f64,
    servers: usize,
) -> Result<f64, QueueingError> {
    at_least_one("servers", servers)?;
    let offered = positive("a rate", rate_pps)? * positive("a mean service time", mean_service_ns)?
        / NS_PER_S;
    let load = stable(offered / servers as f64)?;
    // Erlang's B formula by its recurrence, which avoids large numbers.
    let blocked = (1..=servers).fold(1.0, |blocked, n| {
        offered * blocked / (n as f64 + offered * blocked)
    });
    Ok(blocked / (1.0 - load * (1.0 - blocked)))
}

/// Returns the mean waiting time of packets at a queue with `servers`, ns (M/M/c).
///
/// # Errors
/// There is no steady state, no server, or a value is out of range.
pub fn mean_wait_mmc_ns(
    rate_pps: f64,
    mean_service_ns: f64,
    servers: usize,
) -> Result<f64, QueueingError> {
    let waiting = probability_of_waiting(rate_pps, mean_service_ns, servers)?;
    Ok(waiting / (servers as f64 / mean_service_ns - rate_pps / NS_PER_S))
}

/// Returns quantile `q` of the waiting time of M/M/c, ns.
///
/// # Errors
/// There is no steady state, no server, or a value is out of range.
pub fn wait_quantile_mmc_ns(
    rate_pps: f64,
    mean_service_ns: f64,
    servers: usize,
    q: f64,
) -> Result<f64, QueueingError> {
    let waiting = probability_of_waiting(rate_pps, mean_service_ns, servers)?;
    let beyond = 1.0 - probability("a quantile", q)?;
    let drain = servers as f64 / mean_service_ns - rate_pps / NS_PER_S;
    Ok(((waiting / beyond).ln() / drain).max(0.0))
}

/// Returns the fraction of packets that M/M/1/K loses: a queue with at most `places` packets, including the one in
/// service. A steady state exists at any load.
///
/// # Errors
/// `places` is 0, or a value is out of range.
pub fn loss_mm1k(rate_pps: f64, mean_service_ns: f64, places: usize) -> Result<f64, QueueingError> {
    at_least_one("places for packets", places)?;
    let load = positive("a rate", rate_pps)? * positive("a mean service time", mean_service_ns)?
        / NS_PER_S;
    // The sum runs over all states; packets are lost only in the last one. Summing from the last state avoids an
    // overflow of powers.
    let states = (0..=places).fold(0.0, |sum, _| 1.0 + sum / load);
    Ok(1.0 / states)
}

/// Returns an upper bound for the mean waiting time of G/G/1, ns, from mean and variance of the times between arrivals
/// and of the service times (Kingman 1962). It becomes exact as the load approaches one.
///
/// # Errors
/// There is no steady state, or a value is out of range.
pub fn kingman_bound_ns(
    mean_gap_ns: f64,
    variance_of_gap_ns2: f64,
    service: &ServiceTime,
) -> Result<f64, QueueingError> {
    let gap = positive("a mean time between arrivals", mean_gap_ns)?;
    not_negative("a variance", variance_of_gap_ns2)?;
    let load = stable(service.mean_ns() / gap)?;
    Ok((variance_of_gap_ns2 + service.moments().variance_ns2()) / (2.0 * gap * (1.0 - load)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn constant(ns: f64) -> ServiceTime {
        ServiceTime::constant(ns).unwrap()
    }

    fn exponential(ns: f64) -> ServiceTime {
        ServiceTime::exponential(ns).unwrap()
    }

    #[track_caller]
    fn near(found: f64, wanted: f64) {
        assert!(
            (found / wanted - 1.0).abs() < 1e-9,
            "{found} instead of {wanted}"
        );
    }

    #[test]
    fn constant_service_time_halves_the_wait_of_exponential_service() {
        // 8 Mpkt/s with 100 ns each are a utilisation of 0.8. Packets of M/M/1 wait rho / (1 - rho) service times,
        // packets of M/D/1 half of that.
        near(mean_wait_ns(8e6, &exponential(100.0)).unwrap(), 400.0);
        near(mean_wait_ns(8e6, &constant(100.0)).unwrap(), 200.0);
        // In M/M/1, the wait is 0 with probability 0.2, otherwise exponential with a mean of 500 ns, so its mean square
        // is 0.8 x 2 x 500^2.
        near(
            second_moment_of_wait_ns2(8e6, &exponential(100.0)).unwrap(),
            400_000.0,
        );
        near(
            latency_quantile_mm1_ns(8e6, 100.0, 0.99).unwrap(),
            500.0 * 100f64.ln(),
        );
        near(
            wait_quantile_mm1_ns(8e6, 100.0, 0.99).unwrap(),
            500.0 * 80f64.ln(),
        );
        assert_eq!(wait_quantile_mm1_ns(1e6, 100.0, 0.5), Ok(0.0));
    }

    #[test]
    fn the_waiting_probability_agrees_with_erlangs_formula() {
        // The expected value for ten erlang and 14 servers is computed by the sum of Erlang's formula.
        let terms = (0..14).scan(1.0, |term, n| {
            let now = *term;
            *term *= 10.0 / (f64::from(n) + 1.0);
            Some(now)
        });
        let terms: Vec<f64> = terms.collect();
        let all_busy = terms[13] * 10.0 / 14.0 * 14.0 / 4.0;
        let sum: f64 = terms.iter().sum();
        near(
            probability_of_waiting(10e6, 1_000.0, 14).unwrap(),
            all_busy / (sum + all_busy),
        );
        near(probability_of_waiting(8e6, 100.0, 1).unwrap(), 0.8);
        near(mean_wait_mmc_ns(8e6, 100.0, 1).unwrap(), 400.0);
        // For two servers at a load of rho each, the probability is 2 rho^2 / (1 + rho).
        near(
            probability_of_waiting(16e6, 100.0, 2).unwrap(),
            2.0 * 0.64 / 1.8,
        );
    }

    #[test]
    fn packets_wait_for_earlier_batches_and_for_their_own_batch() {
        near(
            mean_wait_of_batches_ns(8e6, 1, &constant(100.0)).unwrap(),
            200.0,
        );
        // A batch of four is a customer with a service time of 400 ns, which waits 0.8 / 0.2 x 200 ns. Its packets wait
        // another 150 ns on average within the batch.
        near(
            mean_wait_of_batches_ns(8e6, 4, &constant(100.0)).unwrap(),
            800.0 + 150.0,
        );
    }

    #[test]
    fn server_vacations_add_to_the_waiting_time() {
        let polled = mean_wait_with_idle_vacations_ns(8e6, &constant(100.0), &constant(30.0));
        near(polled.unwrap(), 215.0);
        let never = mean_latency_with_interruptions_ns(8e6, &constant(100.0), &Vacations::none());
        near(never.unwrap(), 300.0);
        // Both classes have exponential times of 100 ns, with loads of 0.2 and 0.6: the latency is (100 + (0.8 x 100) /
        // 0.2) / 0.8.
        let often = Vacations::none()
            .with_random(2e6, exponential(100.0))
            .unwrap();
        let found = mean_latency_with_interruptions_ns(6e6, &exponential(100.0), &often);
        near(found.unwrap(), 625.0);
    }

    #[test]
    fn a_short_queue_loses_packets_at_any_load() {
        near(loss_mm1k(8e6, 100.0, 1).unwrap(), 0.8 / 1.8);
        near(
            loss_mm1k(8e6, 100.0, 3).unwrap(),
            0.2 * 0.512 / (1.0 - 0.4096),
        );
        near(loss_mm1k(10e6, 100.0, 4).unwrap(), 0.2);
        near(loss_mm1k(20e6, 100.0, 10_000).unwrap(), 0.5);
        assert_eq!(loss_mm1k(1e6, 100.0, 2_000), Ok(0.0));
    }

    #[test]
    fn kingmans_bound_is_at_least_the_exact_mean_wait() {
        let bound = kingman_bound_ns(125.0, 125.0 * 125.0, &exponential(100.0)).unwrap();
        assert!(bound >= mean_wait_ns(8e6, &exponential(100.0)).unwrap());
        assert_eq!(kingman_bound_ns(125.0, 0.0, &constant(100.0)), Ok(0.0));
    }

    #[test]
    fn unstable_queues_and_invalid_values_are_refused() {
        let full = QueueingError::Unstable { utilisation: 1.0 };
        assert_eq!(mean_wait_ns(10e6, &constant(100.0)), Err(full.clone()));
        assert_eq!(latency_quantile_mm1_ns(10e6, 100.0, 0.5), Err(full.clone()));
        assert_eq!(probability_of_waiting(20e6, 100.0, 2), Err(full.clone()));
        assert_eq!(
            kingman_bound_ns(100.0, 0.0, &constant(100.0)),
            Err(full.clone())
        );
        assert_eq!(
            mean_wait_of_batches_ns(10e6, 4, &constant(100.0)),
            Err(full)
        );
        let often = Vacations::none().with_random(5e6, constant(100.0)).unwrap();
        assert!(mean_latency_with_interruptions_ns(5e6, &constant(100.0), &often).is_err());
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(mean_wait_ns(bad, &constant(100.0)).is_err());
            assert!(loss_mm1k(bad, 100.0, 2).is_err());
            assert!(probability_of_waiting(1e6, bad, 2).is_err());
            assert!(latency_quantile_mm1_ns(1e6, 100.0, bad).is_err());
        }
    }
}
