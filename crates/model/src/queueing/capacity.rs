//! Capacity of a processor: its saturation, and the highest rate at which a latency bound is met. Saturation of one
//! core: equation 5.10 of Gallenmüller's dissertation, R_max = (1 s - interrupt time) / t_CPU.

use super::processor::Processor;
use super::simulate::simulate;
use super::{QueueingError, at_least_one};
use crate::estimate::{positive, probability};

/// A bound on the latency of packets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatencyBound {
    quantile: f64,
    latency_ns: f64,
    loss: f64,
}

impl LatencyBound {
    /// Returns the bound that a fraction `quantile` of the packets takes at most `latency_ns`, and that no packet is
    /// lost.
    ///
    /// # Errors
    /// The quantile is not between 0 and 1, or the time is not above zero.
    pub fn new(quantile: f64, latency_ns: f64) -> Result<Self, QueueingError> {
        Ok(Self {
            quantile: probability("a quantile", quantile)?,
            latency_ns: positive("a latency bound", latency_ns)?,
            loss: 0.0,
        })
    }

    /// Returns the same bound, but allows that the fraction `share` of the packets is lost.
    ///
    /// # Errors
    /// The share is not between 0 and 1.
    pub fn with_loss(self, share: f64) -> Result<Self, QueueingError> {
        Ok(Self {
            loss: probability("a share of lost packets", share)?,
            ..self
        })
    }
}

/// The number and length of the simulations that a search runs for each rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Effort {
    /// Number of arrivals in each run.
    pub packets: u64,
    /// Number of runs with different seeds at each rate; the run with the median result decides.
    pub runs: u64,
    /// Seed of the first run.
    pub seed: u64,
}

impl Default for Effort {
    /// Returns one run of a million packets.
    fn default() -> Self {
        Self {
            packets: 1_000_000,
            runs: 1,
            seed: 1,
        }
    }
}

/// The highest rate that meets a bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HighestRate {
    /// The highest simulated rate at which the bound was met, packets per second.
    pub kept_pps: f64,
    /// The lowest simulated rate at which the bound was violated, packets per second.
    pub broken_pps: f64,
    /// Latency at the bound's quantile for `kept_pps`, ns.
    pub latency_ns: f64,
}

/// Finds the highest rate at which `processor` meets `bound`, to a relative `tolerance`, by bisection. All rates use
/// the same packets with scaled intervals (common random numbers), so that latency grows with the rate.
///
/// Under some flush policies (`full`, `every`) latency falls as the rate rises, so low rates may violate the bound as
/// well. If half of the saturation rate meets the bound, the result is nevertheless the upper limit of the rates that
/// meet it.
///
/// # Errors
/// The bound is violated even at a thousandth of the saturation, or the tolerance is not between 0 and 1.
pub fn highest_rate(
    processor: &Processor,
    bound: &LatencyBound,
    tolerance: f64,
    effort: Effort,
) -> Result<HighestRate, QueueingError> {
    probability("the tolerance of a search", tolerance)?;
    let saturation = processor.saturation_pps();
    let mut broken_pps = saturation;
    let mut kept = None;
    for share in [0.5, 0.1, 0.01, 0.001] {
        let latency_ns = trial(processor, bound, share * saturation, effort)?;
        if latency_ns <= bound.latency_ns {
            kept = Some((share * saturation, latency_ns));
            break;
        }
        broken_pps = share * saturation;
    }
    let Some((mut kept_pps, mut kept_ns)) = kept else {
        let what = "the highest rate that keeps the bound, in packets per second";
        return Err(QueueingError::OutOfReach {
            what,
            low: 0.001 * saturation,
            high: saturation,
        });
    };
    while broken_pps - kept_pps > tolerance * broken_pps {
        let middle = (kept_pps + broken_pps) / 2.0;
        let latency_ns = trial(processor, bound, middle, effort)?;
        if latency_ns <= bound.latency_ns {
            (kept_pps, kept_ns) = (middle, latency_ns);
        } else {
            broken_pps = middle;
        }
    }
    Ok(HighestRate {
        kept_pps,
        broken_pps,
        latency_ns: kept_ns,
    })
}

/// Returns the latency at the bound's quantile for a rate, ns; infinity if more packets are lost than the bound allows.
fn trial(
    processor: &Processor,
    bound: &LatencyBound,
    rate_pps: f64,
    effort: Effort,
) -> Result<f64, QueueingError> {
    let processor = processor.at_rate(rate_pps)?;
    middle_of_runs(&processor, bound.quantile, bound.loss, effort)
}

/// Returns the median over the runs of quantile `q` of the latency, ns. A run that loses more than the fraction `loss`
/// counts as infinite latency.
pub(crate) fn middle_of_runs(
    processor: &Processor,
    q: f64,
    loss: f64,
    effort: Effort,
) -> Result<f64, QueueingError> {
    at_least_one("runs of a search", effort.runs)?;
    let mut found = Vec::new();
    for run in 0..effort.runs {
        let run = simulate(processor, effort.packets, effort.seed.wrapping_add(run))?;
        let latency = run.latency.quantile(q).filter(|_| run.loss() <= loss);
        found.push(latency.map_or(f64::INFINITY, |ns| ns as f64));
    }
    found.sort_by(f64::total_cmp);
    Ok(found[found.len() / 2])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::queueing::closed_form::latency_quantile_mm1_ns;
    use crate::queueing::{Arrivals, ServiceTime, Vacations};

    fn exponential() -> Processor {
        Processor::new(
            Arrivals::poisson(1e6).unwrap(),
            ServiceTime::exponential(100.0).unwrap(),
        )
    }

    #[test]
    fn the_highest_rate_equals_the_closed_form_solution() {
        // For M/M/1, the highest rate lambda solves ln(1 / (1 - q)) / (mu - lambda) = bound.
        let bound = LatencyBound::new(0.99, 1_500.0).unwrap();
        let found = highest_rate(&exponential(), &bound, 0.002, Effort::default()).unwrap();
        let wanted = 1e7 - 100f64.ln() / 1_500e-9;
        assert!((latency_quantile_mm1_ns(wanted, 100.0, 0.99).unwrap() - 1_500.0).abs() < 1e-6);
        assert!(
            (found.kept_pps / wanted - 1.0).abs() < 0.01,
            "{found:?} {wanted}"
        );
        assert!(found.kept_pps < found.broken_pps && found.latency_ns <= 1_500.0);
    }

    #[test]
    fn interruptions_and_loss_limits_lower_the_highest_rate() {
        let bound = LatencyBound::new(0.99, 1_500.0).unwrap();
        let free = highest_rate(&exponential(), &bound, 0.01, Effort::default()).unwrap();
        let away = Vacations::none().with_periodic(10_000.0, 1_000.0).unwrap();
        let interrupted = exponential().with_vacations(away);
        let found = highest_rate(&interrupted, &bound, 0.01, Effort::default()).unwrap();
        assert!(found.broken_pps < free.kept_pps, "{found:?} {free:?}");
        // A ring of eight loses packets before any packet waits for long.
        let short = exponential().with_ring(8).unwrap();
        let lossless = highest_rate(&short, &bound, 0.01, Effort::default()).unwrap();
        let lossy = highest_rate(
            &short,
            &bound.with_loss(0.01).unwrap(),
            0.01,
            Effort::default(),
        )
        .unwrap();
        assert!(
            lossless.broken_pps < lossy.kept_pps,
            "{lossless:?} {lossy:?}"
        );
    }

    #[test]
    fn a_latency_bound_below_the_service_time_is_unreachable() {
        let bound = LatencyBound::new(0.99, 90.0).unwrap();
        let found = highest_rate(&exponential(), &bound, 0.01, Effort::default());
        assert!(
            matches!(found, Err(QueueingError::OutOfReach { .. })),
            "{found:?}"
        );
        assert!(LatencyBound::new(1.0, 90.0).is_err());
        assert!(LatencyBound::new(0.5, f64::NAN).is_err());
        assert!(highest_rate(&exponential(), &bound, f64::NAN, Effort::default()).is_err());
    }
}
