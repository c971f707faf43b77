//! Quantiles and ratios of devices on a machine on which other programs run.
//!
//! If a fraction `e` of the packets was disturbed in an unknown way, the values are a mixture: `1 - e` of the
//! undisturbed distribution, and `e` of any other one (Huber 1964, "Robust estimation of a location parameter"). The
//! undisturbed quantile `q` then lies between the quantiles `q (1 - e)` and `q (1 - e) + e` of the mixture. Medians
//! hardly move; bounds of high percentiles reach the largest value as soon as `e` is more than their distance from 1.

use crate::interval::{Interval, IntervalMethod, inside_unit, median_interval};
use crate::latency::LatencyHistogram;
use crate::rank::median;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// Ratio of the fraction of disturbed packets to the fraction of stolen time: after an interruption, the packets that
/// waited delay those that follow them.
const AFTERMATH: f64 = 2.0;

/// Returns the largest fraction of the packets whose latency may be wrong or unknown, 0..1. Other programs took the
/// fraction `taken` of a core, and the fraction `missing` of the packets did not come back.
pub fn disturbed_share(taken: f64, missing: f64) -> f64 {
    (AFTERMATH * taken + missing).min(1.0)
}

/// A value of which only bounds are known, because something disturbed its measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounded {
    /// Lower bound of the value.
    pub low: f64,
    /// The value as measured.
    pub point: f64,
    /// Upper bound of the value.
    pub high: f64,
}

impl Bounded {
    /// Returns a value whose measurement was not disturbed: both bounds are the value itself.
    pub fn exact(value: f64) -> Self {
        Self {
            low: value,
            point: value,
            high: value,
        }
    }

    /// Returns quantile `q` of latencies, ns, of which the fraction `disturbed` was disturbed in an unknown way.
    /// Returns `None` for an empty histogram, or if a parameter is outside 0..1.
    pub fn quantile(latency: &LatencyHistogram, q: f64, disturbed: f64) -> Option<Self> {
        if !(0.0..=1.0).contains(&disturbed) || !inside_unit(q) {
            return None;
        }
        let low = q * (1.0 - disturbed);
        Some(Self {
            low: latency.quantile(low)? as f64,
            point: latency.quantile(q)? as f64,
            high: latency.quantile((low + disturbed).min(1.0))? as f64,
        })
    }

    /// Returns the ratio of two values; `None` unless all bounds are above zero.
    pub fn over(self, other: Self) -> Option<Self> {
        let all = [
            self.low,
            self.point,
            self.high,
            other.low,
            other.point,
            other.high,
        ];
        all.iter().all(|value| *value > 0.0).then(|| Self {
            low: self.low / other.high,
            point: self.point / other.point,
            high: self.high / other.low,
        })
    }
}

/// Returns the interval of the ratio between two devices, from one bounded ratio for each pair of repetitions; all
/// bounds must be above zero.
///
/// From six pairs on, the bounds are order statistics of the pairs' lower and upper bounds, as in
/// [`median_interval`]. With two to five pairs, for which no such interval reaches 95 %, the bounds are Student's for
/// the logarithms of the ratios, with half of the permitted error. The other half is for logarithms that are not
/// normally distributed, and for narrow intervals by chance, which are stated more often than wide ones
/// (`tests/statements.rs`). Returns `None` with fewer than two pairs.
pub fn bounded_ratio_interval(pairs: &[Bounded], confidence: f64) -> Option<Interval> {
    let of = |value: fn(&Bounded) -> f64| pairs.iter().map(value).collect::<Vec<f64>>();
    let (lows, points, highs) = (of(|it| it.low), of(|it| it.point), of(|it| it.high));
    let is_valid = lows.iter().all(|low| *low > 0.0) && highs.iter().all(|it| it.is_finite());
    if pairs.len() < 2 || !is_valid || !inside_unit(confidence) {
        return None;
    }
    let by_order = [&lows, &highs].map(|bounds| median_interval(bounds, confidence));
    if let [Some(below), Some(above)] = by_order
        && below.method == IntervalMethod::OrderStatistics
    {
        return Some(Interval {
            low: below.low,
            point: median(&points)?,
            high: above.high,
            ..below
        });
    }
    Some(Interval {
        low: log_bound(&lows, f64::midpoint(confidence, 1.0), -1.0)?,
        point: log_mean(&points).exp(),
        high: log_bound(&highs, f64::midpoint(confidence, 1.0), 1.0)?,
        confidence,
        count: pairs.len() as u64,
        method: IntervalMethod::Student,
    })
}

fn log_mean(values: &[f64]) -> f64 {
    values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64
}

/// Returns a bound of Student's interval for the geometric mean of the values: the upper bound if `sign` is 1, the
/// lower bound if it is -1.
fn log_bound(values: &[f64], confidence: f64, sign: f64) -> Option<f64> {
    let freedom = values.len() as f64 - 1.0;
    let mean = log_mean(values);
    let squares = values.iter().map(|value| (value.ln() - mean).powi(2));
    let error = (squares.sum::<f64>() / freedom / values.len() as f64).sqrt();
    let student = StudentsT::new(0.0, 1.0, freedom).ok()?;
    let reach = student.inverse_cdf(f64::midpoint(confidence, 1.0));
    Some((mean + sign * reach * error).exp())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn histogram(values: impl IntoIterator<Item = f64>) -> LatencyHistogram {
        let mut latency = LatencyHistogram::new();
        for value in values {
            latency.record(value as u64);
        }
        latency
    }

    #[test]
    fn disturbed_packets_widen_the_bounds_of_a_quantile() {
        let latency = histogram((1..=1_000).map(|it| f64::from(it) * 1e3));
        let near = |value: f64, wanted: f64| (value / wanted - 1.0).abs() < 0.02;
        let p50 = Bounded::quantile(&latency, 0.5, 0.02).unwrap();
        assert!(
            near(p50.low, 490e3) && near(p50.point, 500e3) && near(p50.high, 510e3),
            "{p50:?}"
        );
        let p99 = Bounded::quantile(&latency, 0.99, 0.02).unwrap();
        assert!(near(p99.high, 990e3) && near(p99.low, 970e3), "{p99:?}");
        let none = Bounded::quantile(&latency, 0.9, 0.0).unwrap();
        assert_eq!((none.low, none.high), (none.point, none.point));
        let unknown = Bounded::quantile(&latency, 0.5, 1.0).unwrap();
        assert!(
            near(unknown.low, 1e3) && near(unknown.high, 1_000e3),
            "{unknown:?}"
        );
        assert_eq!(Bounded::quantile(&latency, 0.5, 1.1), None);
        assert_eq!(Bounded::quantile(&LatencyHistogram::new(), 0.5, 0.0), None);
    }

    #[test]
    fn few_pairs_get_a_student_interval_of_their_log_ratios() {
        let pairs = [4.0, 4.4].map(Bounded::exact);
        let found = bounded_ratio_interval(&pairs, 0.95).unwrap();
        // The mean is 1.43395, its standard error 0.047655, and t of 97.5 % 25.4517: 0.22105 to 2.64685.
        assert_eq!(found.method, IntervalMethod::Student);
        assert!((found.low.ln() - 0.221_05).abs() < 1e-3, "{found:?}");
        assert!((found.high.ln() - 2.646_85).abs() < 1e-3, "{found:?}");
        assert!(!found.says_something(), "two pairs are too few");
        let three = [4.0, 4.4, 4.2].map(Bounded::exact);
        let found = bounded_ratio_interval(&three, 0.95).unwrap();
        assert!(found.says_something() && found.confidence == 0.95);
        assert_eq!(bounded_ratio_interval(&pairs[..1], 0.95), None);
        let six = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0].map(Bounded::exact);
        let found = bounded_ratio_interval(&six, 0.95).unwrap();
        assert_eq!((found.low, found.point, found.high), (1.0, 3.5, 6.0));
        let zero = Bounded {
            low: 0.0,
            point: 1.0,
            high: 1.0,
        };
        assert_eq!(bounded_ratio_interval(&[zero; 3], 0.95), None);
        assert_eq!(zero.over(Bounded::exact(1.0)), None);
    }
}
