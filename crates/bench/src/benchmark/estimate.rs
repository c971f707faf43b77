//! The median of a value over the repetitions of a benchmark.

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use taut_measure::{Interval, IntervalMethod, median_interval};

/// Confidence of the interval of a median over at least six repetitions.
const CONFIDENCE: f64 = 0.95;

/// The median of a value over the repetitions, with its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, JsonSchema)]
#[schemars(with = "Written")]
pub struct Estimate(Interval);

/// The form of an [`Estimate`] in results files.
#[derive(Serialize, JsonSchema)]
struct Written {
    median: f64,
    low: f64,
    high: f64,
    count: u64,
    coverage: f64,
    method: IntervalMethod,
}

impl Estimate {
    /// Estimates the median of `values`, one per repetition; none if `values` is empty.
    pub fn of(values: &[f64]) -> Option<Self> {
        median_interval(values, CONFIDENCE).map(Self)
    }
}

impl std::ops::Deref for Estimate {
    type Target = Interval;

    fn deref(&self) -> &Interval {
        &self.0
    }
}

impl Serialize for Estimate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let written = Written {
            median: self.point,
            low: self.low,
            high: self.high,
            count: self.count,
            coverage: self.confidence,
            method: self.method,
        };
        written.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn estimates_contain_the_median_and_range_of_the_measured_values() {
        let estimate = Estimate::of(&[90.0, 100.0, 95.0, 102.0, 91.0]).unwrap();
        assert_eq!((estimate.point, estimate.count), (95.0, 5));
        assert_eq!((estimate.low, estimate.high), (90.0, 102.0));
        let written = serde_json::to_value(estimate).unwrap();
        assert_eq!(
            (&written["coverage"], &written["method"]),
            (&0.9375.into(), &"range".into())
        );
        let alone = Estimate::of(&[7.0]).unwrap();
        assert_eq!((alone.low, alone.high), (7.0, 7.0));
        assert_eq!(Estimate::of(&[]), None);
    }
}
