//! The service time of a packet as a distribution: constant, exponential, or measured. Measured histograms are sampled
//! by the alias method (Walker 1977, in the form of Vose 1991).

use fastrand::Rng;
use taut_measure::LatencyHistogram;

use super::exponential::exponential_ns;
use super::moments::ServiceMoments;
use super::{QueueingError, at_least_one};
use crate::estimate::{not_negative, positive, share};

/// The time that a core needs per packet, drawn independently for each packet.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceTime {
    shape: Shape,
    moments: ServiceMoments,
}

#[derive(Debug, Clone, PartialEq)]
enum Shape {
    Constant(f64),
    Exponential(f64),
    Samples(Box<[f64]>),
    Bins(Box<[Bin]>),
}

/// A bin with uniformly distributed times, and its entry in the alias table.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bin {
    low_ns: f64,
    width_ns: f64,
    weight: f64,
    /// Probability that a draw of this bin stays in it, and is not redirected to the bin's alias.
    stays: f64,
    alias: u32,
}

impl ServiceTime {
    /// Returns a constant time of `ns`.
    ///
    /// # Errors
    /// `ns` is negative or not finite.
    pub fn constant(ns: f64) -> Result<Self, QueueingError> {
        not_negative("a service time", ns)?;
        Ok(Self {
            shape: Shape::Constant(ns),
            moments: ServiceMoments::constant(ns),
        })
    }

    /// Returns an exponentially distributed time with mean `mean_ns`.
    ///
    /// # Errors
    /// `mean_ns` is not a finite number above zero.
    pub fn exponential(mean_ns: f64) -> Result<Self, QueueingError> {
        let mean = positive("a mean service time", mean_ns)?;
        Ok(Self {
            shape: Shape::Exponential(mean),
            moments: ServiceMoments {
                mean_ns: mean,
                second_ns2: 2.0 * mean * mean,
                third_ns3: 6.0 * mean * mean * mean,
            },
        })
    }

    /// Returns a time that takes the value of each of `samples_ns` with equal probability.
    ///
    /// # Errors
    /// There is no sample, or one is negative or not finite.
    pub fn from_samples(samples_ns: &[f64]) -> Result<Self, QueueingError> {
        at_least_one("service time samples", samples_ns.len())?;
        for &sample in samples_ns {
            not_negative("a service time", sample)?;
        }
        let each = |&ns: &f64| (1.0, ServiceMoments::constant(ns));
        Ok(Self {
            moments: ServiceMoments::weighted(samples_ns.iter().map(each)),
            shape: Shape::Samples(samples_ns.into()),
        })
    }

    /// Returns the time described by `bins`, each a lower bound, an upper bound (ns) and a weight. Times are uniformly
    /// distributed within a bin.
    ///
    /// # Errors
    /// There is no bin, one ends before it begins, a value is negative or not finite, or all weights are zero.
    pub fn from_bins(bins: &[(f64, f64, f64)]) -> Result<Self, QueueingError> {
        for (index, &(low, high, weight)) in bins.iter().enumerate() {
            not_negative("a bin's lower end", low)?;
            not_negative("a bin's upper end", high)?;
            not_negative("a bin's weight", weight)?;
            if high < low {
                return Err(QueueingError::Unordered {
                    what: "the ends of a bin",
                    index,
                });
            }
        }
        let total: f64 = bins.iter().map(|bin| bin.2).sum();
        if bins.is_empty() || total <= 0.0 {
            return Err(QueueingError::Empty {
                what: "bins with a weight",
            });
        }
        let parts = bins
            .iter()
            .map(|&(low, high, weight)| (weight, ServiceMoments::uniform(low, high)));
        Ok(Self {
            moments: ServiceMoments::weighted(parts),
            shape: Shape::Bins(aliased(bins, total)),
        })
    }

    /// Returns the time with the distribution of a measured histogram.
    ///
    /// # Errors
    /// The histogram is empty.
    pub fn from_histogram(histogram: &LatencyHistogram) -> Result<Self, QueueingError> {
        let bins: Vec<_> = histogram
            .iter()
            .map(|bin| (bin.low_ns as f64, bin.high_ns as f64, bin.count as f64))
            .collect();
        Self::from_bins(&bins)
    }

    /// Returns the time described by `quantiles`, pairs of a fraction of packets and the time that this fraction takes
    /// at most, ns. Times are uniformly distributed between two quantiles. Packets below the first quantile take the
    /// time of the first quantile; packets above the last quantile take the time of the last quantile.
    ///
    /// # Errors
    /// There is no quantile, the fractions or the times do not ascend, or a value is out of range.
    pub fn from_quantiles(quantiles: &[(f64, f64)]) -> Result<Self, QueueingError> {
        let (Some(first), Some(last)) = (quantiles.first(), quantiles.last()) else {
            return Err(QueueingError::Empty {
                what: "quantiles of a service time",
            });
        };
        for value in [first.0, last.0] {
            share("a quantile's share", value)?;
        }
        let mut bins = vec![(first.1, first.1, first.0)];
        for (index, pair) in quantiles.windows(2).enumerate() {
            let share = pair[1].0 - pair[0].0;
            // The comparison is written so that NaN is an error as well.
            if !(share >= 0.0 && pair[1].1 >= pair[0].1) {
                return Err(QueueingError::Unordered {
                    what: "quantiles",
                    index: index + 1,
                });
            }
            bins.push((pair[0].1, pair[1].1, share));
        }
        bins.push((last.1, last.1, 1.0 - last.0));
        Self::from_bins(&bins)
    }

    /// Returns this time plus `by_ns`, which may be negative; sums below zero become zero.
    ///
    /// # Errors
    /// `by_ns` is not finite.
    pub fn shifted(&self, by_ns: f64) -> Result<Self, QueueingError> {
        not_negative("the size of a shift", by_ns.abs())?;
        let moved = |ns: f64| (ns + by_ns).max(0.0);
        match &self.shape {
            Shape::Constant(ns) => Self::constant(moved(*ns)),
            Shape::Exponential(mean) => {
                // 64 bins of equal weight approximate the exponential distribution, which a shift does not preserve.
                const BINS: u32 = 64;
                let at = |k: u32| -(-f64::from(k) / f64::from(BINS)).ln_1p() * mean;
                let ends = |k: u32| {
                    if k + 1 < BINS {
                        (at(k), at(k + 1))
                    } else {
                        (at(k), at(k) + 2.0 * mean)
                    }
                };
                let bins: Vec<_> = (0..BINS)
                    .map(ends)
                    .map(|(a, b)| (moved(a), moved(b), 1.0))
                    .collect();
                Self::from_bins(&bins)
            }
            Shape::Samples(samples) => {
                let samples: Vec<f64> = samples.iter().map(|&ns| moved(ns)).collect();
                Self::from_samples(&samples)
            }
            Shape::Bins(bins) => {
                let bins: Vec<_> = bins
                    .iter()
                    .map(|bin| {
                        (
                            moved(bin.low_ns),
                            moved(bin.low_ns + bin.width_ns),
                            bin.weight,
                        )
                    })
                    .collect();
                Self::from_bins(&bins)
            }
        }
    }

    /// Returns the moments of the service time.
    pub fn moments(&self) -> ServiceMoments {
        self.moments
    }

    /// Returns the mean of the service time, ns.
    pub fn mean_ns(&self) -> f64 {
        self.moments.mean_ns
    }

    /// Draws a service time, ns.
    #[inline]
    pub fn sample_ns(&self, rng: &mut Rng) -> f64 {
        match &self.shape {
            Shape::Constant(ns) => *ns,
            Shape::Exponential(mean) => exponential_ns(rng, *mean),
            Shape::Samples(samples) => samples[rng.usize(..samples.len())],
            Shape::Bins(bins) => {
                let place = rng.f64() * bins.len() as f64;
                let index = (place as usize).min(bins.len() - 1);
                let own = bins[index];
                let within = place - index as f64;
                let bin = if within <= own.stays {
                    own
                } else {
                    bins[own.alias as usize]
                };
                // A second random number is faster than the division that would reuse the first.
                bin.low_ns + rng.f64() * bin.width_ns
            }
        }
    }
}

/// Returns the bins as an alias table, from which a draw takes one comparison.
fn aliased(bins: &[(f64, f64, f64)], total: f64) -> Box<[Bin]> {
    let count = bins.len() as f64;
    let mut table: Vec<Bin> = bins
        .iter()
        .enumerate()
        .map(|(index, &(low, high, weight))| Bin {
            low_ns: low,
            width_ns: high - low,
            weight,
            stays: weight / total * count,
            alias: index as u32,
        })
        .collect();
    let (mut small, mut large): (Vec<usize>, Vec<usize>) =
        (0..table.len()).partition(|&i| table[i].stays < 1.0);
    while let (Some(poor), Some(&rich)) = (small.last().copied(), large.last()) {
        small.pop();
        table[poor].alias = rich as u32;
        table[rich].stays -= 1.0 - table[poor].stays;
        if table[rich].stays < 1.0 {
            large.pop();
            small.push(rich);
        }
    }
    // The weights of the remaining bins differ from one only by rounding errors, so these bins need no alias.
    for index in small.into_iter().chain(large) {
        table[index].stays = 1.0;
    }
    table.into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn drawn(time: &ServiceTime) -> ServiceMoments {
        let mut rng = Rng::with_seed(7);
        let draws = (0..400_000).map(|_| (1.0, ServiceMoments::constant(time.sample_ns(&mut rng))));
        ServiceMoments::weighted(draws)
    }

    #[test]
    fn drawn_service_times_have_the_declared_moments() {
        for time in [
            ServiceTime::constant(120.0).unwrap(),
            ServiceTime::exponential(80.0).unwrap(),
            ServiceTime::from_samples(&[10.0, 20.0, 90.0]).unwrap(),
            ServiceTime::from_bins(&[(10.0, 20.0, 5.0), (100.0, 140.0, 1.0), (30.0, 30.0, 0.0)])
                .unwrap(),
            ServiceTime::from_quantiles(&[(0.5, 100.0), (0.9, 120.0), (0.99, 400.0)]).unwrap(),
        ] {
            let (promised, found) = (time.moments(), drawn(&time));
            assert!(
                (found.mean_ns / promised.mean_ns - 1.0).abs() < 0.01,
                "{time:?} {found:?}"
            );
            assert!(
                (found.second_ns2 / promised.second_ns2 - 1.0).abs() < 0.02,
                "{time:?} {found:?}"
            );
            assert!(
                (found.third_ns3 / promised.third_ns3 - 1.0).abs() < 0.04,
                "{time:?} {found:?}"
            );
        }
    }

    #[test]
    fn a_shift_changes_the_mean_but_not_the_variance() {
        let time = ServiceTime::from_bins(&[(100.0, 120.0, 3.0), (200.0, 300.0, 1.0)]).unwrap();
        let moved = time.shifted(-40.0).unwrap();
        assert!((moved.mean_ns() - time.mean_ns() + 40.0).abs() < 1e-9);
        assert!((moved.moments().variance_ns2() - time.moments().variance_ns2()).abs() < 1e-6);
        let exponential = ServiceTime::exponential(50.0)
            .unwrap()
            .shifted(30.0)
            .unwrap();
        assert!(
            (exponential.mean_ns() - 80.0).abs() < 0.5,
            "{}",
            exponential.mean_ns()
        );
    }

    #[test]
    fn invalid_service_times_are_refused() {
        for bad in [f64::NAN, f64::INFINITY, -1.0] {
            assert!(ServiceTime::constant(bad).is_err());
            assert!(ServiceTime::exponential(bad).is_err());
            assert!(ServiceTime::from_samples(&[1.0, bad]).is_err());
            assert!(ServiceTime::from_bins(&[(0.0, bad, 1.0)]).is_err());
            assert!(ServiceTime::from_bins(&[(0.0, 1.0, bad)]).is_err());
            assert!(ServiceTime::from_quantiles(&[(0.5, 1.0), (0.9, bad)]).is_err());
            assert!(ServiceTime::from_quantiles(&[(bad, 1.0)]).is_err());
        }
        assert!(ServiceTime::from_samples(&[]).is_err());
        assert!(ServiceTime::from_bins(&[]).is_err());
        assert!(ServiceTime::from_quantiles(&[]).is_err());
        assert!(ServiceTime::from_quantiles(&[(0.9, 1.0), (0.5, 2.0)]).is_err());
        assert!(ServiceTime::from_histogram(&LatencyHistogram::new()).is_err());
    }
}
