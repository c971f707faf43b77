//! The values of one series as a distribution, in memory whose size is independent of the number of packets.

use super::Series;
use taut_measure::LatencyHistogram;
use taut_measure::rank::nearest_rank;

/// The values of a distribution, as a histogram or one by one.
#[derive(Debug, Clone, Copy)]
pub enum Distribution<'a> {
    /// Latencies of packets, ns.
    Latency(&'a LatencyHistogram),
    /// One finite value per run, or per other counted item, sorted ascending.
    Sorted(&'a [f64]),
}

/// A series and its values.
#[derive(Debug, Clone)]
pub struct Item<'a> {
    /// Label and style of the series.
    pub series: Series,
    /// The values of the series, as a distribution.
    pub values: Distribution<'a>,
}

/// A group of `count` values between `low` and `high`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Step {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) count: u64,
}

impl<'a> Distribution<'a> {
    /// Returns the number of values of the distribution.
    pub fn count(&self) -> u64 {
        match self {
            Distribution::Latency(latency) => latency.count(),
            Distribution::Sorted(values) => values.len() as u64,
        }
    }

    /// Returns the value at quantile `q` by nearest rank; `None` without values.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        match self {
            Distribution::Latency(latency) => latency.quantile(q).map(|ns| ns as f64),
            Distribution::Sorted(values) => {
                let rank = nearest_rank(values.len() as u64, q)?;
                values.get(usize::try_from(rank).ok()?).copied()
            }
        }
    }

    /// Returns the arithmetic mean of the values; `None` without values.
    pub fn mean(&self) -> Option<f64> {
        match self {
            Distribution::Latency(latency) => latency.mean_ns(),
            Distribution::Sorted([]) => None,
            Distribution::Sorted(values) => Some(values.iter().sum::<f64>() / values.len() as f64),
        }
    }

    /// Returns the smallest and the largest value; nothing without values.
    pub(super) fn ends(&self) -> impl Iterator<Item = f64> + use<> {
        [self.quantile(0.0), self.quantile(1.0)]
            .into_iter()
            .flatten()
    }

    /// Returns the values in increasing order, grouped by bucket of the histogram, or by equal value.
    pub(super) fn steps(&self) -> Box<dyn Iterator<Item = Step> + 'a> {
        match *self {
            Distribution::Latency(latency) => {
                let max = latency.max_ns().unwrap_or(u64::MAX);
                Box::new(latency.iter().map(move |bucket| Step {
                    low: bucket.low_ns as f64,
                    high: bucket.high_ns.min(max) as f64,
                    count: bucket.count,
                }))
            }
            Distribution::Sorted(values) => {
                Box::new(values.chunk_by(|a, b| a == b).map(|equal| Step {
                    low: equal[0],
                    high: equal[0],
                    count: equal.len() as u64,
                }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn histogram_and_sorted_values_give_equal_statistics() {
        let sorted: Vec<f64> = (1..=400).map(f64::from).collect();
        let mut latency = LatencyHistogram::new();
        (1..=400).for_each(|ns| latency.record(ns));
        let (a, b) = (
            Distribution::Latency(&latency),
            Distribution::Sorted(&sorted),
        );
        for q in [0.0, 0.01, 0.5, 0.75, 1.0] {
            assert_eq!(a.quantile(q), b.quantile(q));
        }
        assert_eq!(a.mean(), b.mean());
        assert!(a.steps().eq(b.steps()));
        assert_eq!(a.steps().map(|step| step.count).sum::<u64>(), a.count());
    }

    #[test]
    fn an_empty_distribution_has_no_bounds_and_no_mean() {
        let nothing = Distribution::Sorted(&[]);
        assert_eq!((nothing.mean(), nothing.ends().count()), (None, 0));
    }
}
