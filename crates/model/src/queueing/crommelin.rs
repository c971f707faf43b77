//! Packets of a Poisson process with constant service time (M/D/1): their waiting times, and the loss of a short ring.
//! Crommelin 1932, in the form of Franx, "A simple solution for the M/D/c waiting time distribution", 2001.
//!
//! The classic series alternates in sign and is numerically useless beyond some ten service times. Franx' form and the
//! recursion for the number of packets (Tijms, A First Course in Stochastic Models, chapter 9) add positive terms only.

use super::{NS_PER_S, QueueingError, at_least_one, stable};
use crate::estimate::{positive, probability};

/// Maximum number of stored terms, after which the distribution of the packet count is treated as geometric. At this
/// number it has long been geometric to full precision.
const MOST_TERMS: usize = 4_096;

/// An M/D/1 queue in its steady state.
#[derive(Debug, Clone, PartialEq)]
pub struct ConstantService {
    service_ns: f64,
    load: f64,
    packets: Packets,
}

impl ConstantService {
    /// Returns the queue for packets of a Poisson process with `rate_pps`, each of which takes `service_ns`.
    ///
    /// # Errors
    /// There is no steady state, or a value is not a finite number above zero.
    pub fn new(rate_pps: f64, service_ns: f64) -> Result<Self, QueueingError> {
        let load = load(rate_pps, service_ns)?;
        stable(load)?;
        Ok(Self {
            service_ns,
            load,
            packets: Packets::new(load),
        })
    }

    /// Returns the probability that a packet waits at most `wait_ns`; it is 0 for negative times.
    pub fn waits_at_most(&self, wait_ns: f64) -> f64 {
        if wait_ns.is_nan() || wait_ns < 0.0 {
            return 0.0;
        }
        let services = (wait_ns / self.service_ns).floor() + 1.0;
        let rest = self.load * (services - wait_ns / self.service_ns);
        let waiting = services as usize - 1;
        let mut term = (-rest).exp();
        let mut sum = 0.0;
        for j in 0..=waiting {
            sum += term * (1.0 - self.packets.more_than(waiting - j + 1));
            term *= rest / (j + 1) as f64;
            if term < 1e-18 {
                break;
            }
        }
        sum.clamp(0.0, 1.0)
    }

    /// Returns quantile `q` of the waiting time, ns.
    ///
    /// # Errors
    /// `q` is not between 0 and 1.
    pub fn wait_quantile_ns(&self, q: f64) -> Result<f64, QueueingError> {
        let q = probability("a quantile", q)?;
        if self.waits_at_most(0.0) >= q {
            return Ok(0.0);
        }
        let (mut low, mut high) = (0.0, self.service_ns);
        while self.waits_at_most(high) < q {
            low = high;
            high *= 2.0;
        }
        for _ in 0..100 {
            let middle = (low + high) / 2.0;
            if self.waits_at_most(middle) < q {
                low = middle;
            } else {
                high = middle;
            }
        }
        Ok(high)
    }

    /// Returns quantile `q` of the latency, ns: waiting time plus service time.
    ///
    /// # Errors
    /// `q` is not between 0 and 1.
    pub fn latency_quantile_ns(&self, q: f64) -> Result<f64, QueueingError> {
        Ok(self.wait_quantile_ns(q)? + self.service_ns)
    }
}

/// Returns the fraction of packets that M/D/1/K loses: a queue with at most `places` packets, including the one in
/// service. A steady state exists at any load. (Tijms, chapter 9: the probabilities of packet counts are proportional
/// to those of the unlimited queue.)
///
/// # Errors
/// `places` is 0, or a value is out of range.
pub fn loss_md1k(rate_pps: f64, service_ns: f64, places: usize) -> Result<f64, QueueingError> {
    let load = load(rate_pps, service_ns)?;
    at_least_one("places for packets", places)?;
    if load < 1.0 {
        // The loss is computed from the probability that the unlimited queue holds `places` packets or more, because
        // this small number is known to full precision.
        let beyond = Packets::new(load).more_than(places - 1);
        return Ok((1.0 - load) * beyond / (1.0 - load * beyond));
    }
    // Weights relative to the empty queue grow without bound at a load of one or more, so they are scaled step by step.
    let tail = poisson_tail(load);
    let mut weights = vec![1.0];
    let mut empty = 1.0;
    let mut sum = 1.0;
    for n in 1..places {
        let next = following(&weights, empty, &tail, load);
        weights.push(next);
        sum += next;
        if sum > 1e200 {
            // The loss has reached its limit for this load.
            let scale = 1.0 / sum;
            weights.iter_mut().for_each(|weight| *weight *= scale);
            empty *= scale;
            sum = 1.0;
        }
        debug_assert!(weights.len() == n + 1);
    }
    let ratio = sum / empty;
    Ok(1.0 - 1.0 / (1.0 / ratio + load))
}

fn load(rate_pps: f64, service_ns: f64) -> Result<f64, QueueingError> {
    Ok(positive("a rate", rate_pps)? * positive("a service time", service_ns)? / NS_PER_S)
}

/// Probabilities of the number of packets in the queue, including the one in service; beyond the stored terms they are
/// geometric.
#[derive(Debug, Clone, PartialEq)]
struct Packets {
    /// Entry `n` is the probability of more than `n` packets.
    more_than: Vec<f64>,
    /// Ratio of successive probabilities beyond the last stored term.
    ratio: f64,
}

impl Packets {
    fn new(load: f64) -> Self {
        let tail = poisson_tail(load);
        let mut exactly = vec![1.0 - load];
        let mut ratio = 0.0;
        let mut alike = 0;
        while exactly.len() < MOST_TERMS && alike < 4 {
            let next = following(&exactly, 1.0 - load, &tail, load);
            let last = exactly[exactly.len() - 1];
            let now = next / last;
            alike = if (now - ratio).abs() <= 1e-13 * now {
                alike + 1
            } else {
                0
            };
            ratio = now;
            exactly.push(next);
        }
        // Summing from the far end keeps small probabilities at full precision.
        let last = exactly[exactly.len() - 1];
        let mut beyond = last * ratio / (1.0 - ratio);
        let mut more_than = vec![0.0; exactly.len()];
        for (n, share) in exactly.iter().enumerate().rev() {
            more_than[n] = beyond;
            beyond += share;
        }
        Self { more_than, ratio }
    }

    fn more_than(&self, packets: usize) -> f64 {
        match self.more_than.get(packets) {
            Some(&share) => share,
            None => {
                let further = packets + 1 - self.more_than.len();
                self.more_than[self.more_than.len() - 1] * self.ratio.powf(further as f64)
            }
        }
    }
}

/// Returns the weight of the packet count that follows the last one in `weights`. It is computed from `weights` and
/// from `empty`, the weight of the empty queue.
fn following(weights: &[f64], empty: f64, tail: &[f64], load: f64) -> f64 {
    let n = weights.len();
    let tail_of = |k: usize| tail.get(k).copied().unwrap_or(0.0);
    let mut sum = empty * tail_of(n - 1);
    let first = (n + 1).saturating_sub(tail.len()).max(1);
    for (k, weight) in weights.iter().enumerate().skip(first) {
        sum += weight * tail_of(n - k);
    }
    sum * load.exp()
}

/// Returns the probabilities that more than 0, 1, 2 ... packets arrive within a service time; the list ends where they
/// become negligible.
fn poisson_tail(load: f64) -> Vec<f64> {
    let most = 32 + (load + 12.0 * load.sqrt()) as usize;
    let mut exactly = Vec::with_capacity(most);
    let mut term = (-load).exp();
    for k in 0..most {
        exactly.push(term);
        term *= load / (k + 1) as f64;
    }
    let mut beyond = term;
    for share in exactly.iter_mut().rev() {
        let own = *share;
        *share = beyond;
        beyond += own;
    }
    exactly
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::queueing::ServiceTime;
    use crate::queueing::closed_form::{mean_wait_ns, second_moment_of_wait_ns2};

    /// Returns the probability that a packet waits at most `services` service times, by the classic alternating series
    /// (Erlang 1909). The series is accurate while it has few terms.
    fn erlang(load: f64, services: f64) -> f64 {
        let mut sum = 0.0;
        for k in 0..=services as usize {
            let away = load * (services - k as f64);
            let factorial: f64 = (1..=k).map(|i| i as f64).product();
            sum += (-away).powi(k as i32) / factorial * away.exp();
        }
        (1.0 - load) * sum
    }

    #[test]
    fn the_stable_form_agrees_with_erlangs_series() {
        for load in [0.1, 0.5, 0.8, 0.95] {
            let queue = ConstantService::new(load * 1e7, 100.0).unwrap();
            for services in [0.0, 0.3, 1.0, 1.5, 2.7, 6.0, 9.9] {
                let (found, wanted) = (
                    queue.waits_at_most(services * 100.0),
                    erlang(load, services),
                );
                assert!(
                    (found - wanted).abs() < 1e-9,
                    "{load} {services}: {found} {wanted}"
                );
            }
        }
    }

    #[test]
    fn the_wait_distribution_has_the_pollaczek_khinchine_moments() {
        for load in [0.2, 0.7, 0.9, 0.99] {
            let queue = ConstantService::new(load * 1e7, 100.0).unwrap();
            let (mut mean, mut square) = (0.0, 0.0);
            let step = 2.0;
            let mut at = step / 2.0;
            loop {
                let beyond = 1.0 - queue.waits_at_most(at);
                mean += beyond * step;
                square += 2.0 * at * beyond * step;
                at += step;
                if beyond < 1e-10 {
                    break;
                }
            }
            let service = ServiceTime::constant(100.0).unwrap();
            let wanted = mean_wait_ns(load * 1e7, &service).unwrap();
            assert!(
                (mean / wanted - 1.0).abs() < 1e-4,
                "{load}: {mean} {wanted}"
            );
            let wanted = second_moment_of_wait_ns2(load * 1e7, &service).unwrap();
            assert!(
                (square / wanted - 1.0).abs() < 3e-4,
                "{load}: {square} {wanted}"
            );
        }
    }

    #[test]
    fn wait_quantiles_are_inverse_to_the_wait_distribution() {
        for load in [0.3, 0.9, 0.999, 0.99999] {
            let queue = ConstantService::new(load * 1e7, 100.0).unwrap();
            for q in [0.1, 0.5, 0.99, 0.9999, 0.999999] {
                let wait = queue.wait_quantile_ns(q).unwrap();
                assert!(queue.waits_at_most(wait) >= q - 1e-12, "{load} {q}");
                assert!(
                    wait == 0.0 || queue.waits_at_most(wait * 0.999) < q,
                    "{load} {q}"
                );
            }
        }
        let queue = ConstantService::new(5e6, 100.0).unwrap();
        assert_eq!(queue.wait_quantile_ns(0.4), Ok(0.0));
        assert_eq!(queue.latency_quantile_ns(0.4), Ok(100.0));
    }

    #[test]
    fn loss_ratios_agree_with_hand_calculated_values() {
        // With one place, packets that arrive while it is in use are lost: the loss is rho / (1 + rho) for any
        // distribution (Erlang's B formula).
        for load in [0.5, 1.0, 2.0] {
            let loss = loss_md1k(load * 1e7, 100.0, 1).unwrap();
            assert!((loss - load / (1.0 + load)).abs() < 1e-12, "{loss}");
        }
        // With two places, p1 = p0 (e^rho - 1) and the sum is e^rho p0, so the loss is 1 - e^rho / (1 + rho e^rho).
        for load in [0.5f64, 1.0, 2.0] {
            let loss = loss_md1k(load * 1e7, 100.0, 2).unwrap();
            let wanted = 1.0 - load.exp() / (1.0 + load * load.exp());
            assert!((loss - wanted).abs() < 1e-12, "{loss} {wanted}");
        }
        // At twice the capacity, a long queue loses half of the packets.
        assert!((loss_md1k(2e7, 100.0, 3_000).unwrap() - 0.5).abs() < 1e-9);
        assert!(loss_md1k(5e6, 100.0, 50).unwrap() < 1e-20);
    }

    #[test]
    fn unstable_queues_and_invalid_values_are_refused() {
        assert!(ConstantService::new(1e7, 100.0).is_err());
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(ConstantService::new(bad, 100.0).is_err());
            assert!(ConstantService::new(1e6, bad).is_err());
            assert!(loss_md1k(1e6, bad, 3).is_err());
            assert!(
                ConstantService::new(1e6, 100.0)
                    .unwrap()
                    .wait_quantile_ns(bad)
                    .is_err()
            );
        }
        assert!(loss_md1k(1e6, 100.0, 0).is_err());
        assert_eq!(
            ConstantService::new(1e6, 100.0)
                .unwrap()
                .waits_at_most(f64::NAN),
            0.0
        );
    }
}
