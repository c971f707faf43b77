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

/// A value of which only bounds are known, because something disturbed its measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounded {
    /// Lower bound.
    pub low: f64,
    /// The value as measured.
    pub point: f64,
    /// Upper bound.
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
        if !(0.0..1.0).contains(&disturbed) || !inside_unit(q) {
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
/// [`median_interval`]. With two to five pairs, for which no such interval reaches 95 %, the logarithms of the ratios
/// are taken as normally distributed (Student's t). Returns `None` with fewer than two pairs.
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
        low: log_bound(&lows, confidence, -1.0)?,
        point: log_mean(&points).exp(),
        high: log_bound(&highs, confidence, 1.0)?,
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
    use fastrand::Rng;

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
        assert_eq!(Bounded::quantile(&latency, 0.5, 1.0), None);
        assert_eq!(Bounded::quantile(&LatencyHistogram::new(), 0.5, 0.0), None);
    }

    #[test]
    fn few_pairs_have_a_students_interval_of_logarithms() {
        let pairs = [4.0, 4.4].map(Bounded::exact);
        let found = bounded_ratio_interval(&pairs, 0.95).unwrap();
        // The mean is 1.43395, its standard error 0.047655, and t 12.7062: 0.82843 to 2.03947.
        assert_eq!(found.method, IntervalMethod::Student);
        assert!((found.low.ln() - 0.828_43).abs() < 1e-3, "{found:?}");
        assert!((found.high.ln() - 2.039_47).abs() < 1e-3, "{found:?}");
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

    /// Returns the latencies of a device in one repetition: `median` times noise, of which the fraction `stolen` waited
    /// for a core that another program had taken.
    fn repetition(random: &mut Rng, median: f64, stolen: f64) -> LatencyHistogram {
        let drift = 1.0 + 0.03 * (random.f64() - 0.5);
        histogram((0..400).map(|_| {
            let normal: f64 = (0..6).map(|_| random.f64()).sum::<f64>() - 3.0;
            let alone = median * drift * (0.3 * normal).exp();
            let waited = random.f64() < stolen;
            alone + if waited { 2e6 * random.f64() } else { 0.0 }
        }))
    }

    #[test]
    fn stated_ratios_of_disturbed_devices_are_rarely_wrong() {
        // 1,000 machines with 0 to 5 % of stolen time, measured as half to one and a half of it; twice that is assumed.
        let mut random = Rng::with_seed(11);
        let (mut stated, mut wrong, mut withheld_needlessly, mut clear) = (0, 0, 0, 0);
        for _ in 0..1_000 {
            let stolen = 0.05 * random.f64();
            let ratio = [1.0, 1.05, 1.3, 2.0, 50.0][random.usize(..5)];
            let pairs = [2, 3, 6, 10][random.usize(..4)];
            let pairs: Vec<Bounded> = (0..pairs)
                .map(|_| {
                    let known = 2.0 * stolen * (0.5 + random.f64());
                    let [over, under] =
                        [ratio, 1.0].map(|it| repetition(&mut random, it * 1e4, stolen));
                    let [over, under] =
                        [over, under].map(|it| Bounded::quantile(&it, 0.5, known).unwrap());
                    over.over(under).unwrap()
                })
                .collect();
            let found = bounded_ratio_interval(&pairs, 0.95).unwrap();
            let is_stated = found.says_something();
            stated += u32::from(is_stated);
            wrong += u32::from(is_stated && !(found.low..=found.high).contains(&ratio));
            if stolen < 0.03 && ratio >= 2.0 && pairs.len() >= 6 {
                clear += 1;
                withheld_needlessly += u32::from(!is_stated);
            }
        }
        assert!(
            f64::from(wrong) <= 0.05 * f64::from(stated),
            "{wrong} of {stated}"
        );
        assert!(stated > 300 && clear > 50, "{stated} {clear}");
        assert!(
            f64::from(withheld_needlessly) <= 0.2 * f64::from(clear),
            "{withheld_needlessly} of {clear}"
        );
    }
}
