//! Exact count, minimum, maximum, mean and standard deviation of integers, one value at a time.

/// Running integer sums: nothing is rounded before a mean or deviation is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moments {
    pub(crate) count: u64,
    pub(crate) min: u64,
    pub(crate) max: u64,
    sum: u128,
    /// Sum of the squares modulo 2^128: the variance is correct even if the sum wraps.
    sum_of_squares: u128,
}

impl Moments {
    pub(crate) const EMPTY: Moments = Moments {
        count: 0,
        min: u64::MAX,
        max: 0,
        sum: 0,
        sum_of_squares: 0,
    };

    #[inline]
    pub(crate) fn record(&mut self, value: u64) {
        let wide = u128::from(value);
        self.count = self.count.saturating_add(1);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.sum = self.sum.wrapping_add(wide);
        self.sum_of_squares = self.sum_of_squares.wrapping_add(wide.wrapping_mul(wide));
    }

    pub(crate) fn record_many(&mut self, value: u64, count: u64) {
        if count == 0 {
            return;
        }
        let wide = u128::from(value);
        let times = u128::from(count);
        self.merge(&Moments {
            count,
            min: value,
            max: value,
            sum: wide.wrapping_mul(times),
            sum_of_squares: wide.wrapping_mul(wide).wrapping_mul(times),
        });
    }

    pub(crate) fn merge(&mut self, other: &Moments) {
        self.count = self.count.saturating_add(other.count);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.sum = self.sum.wrapping_add(other.sum);
        self.sum_of_squares = self.sum_of_squares.wrapping_add(other.sum_of_squares);
    }

    pub(crate) fn mean(&self) -> Option<f64> {
        if self.count == 0 {
            return None;
        }
        let count = u128::from(self.count);
        // Quotient and remainder are separate to keep sub-unit precision for large sums.
        Some((self.sum / count) as f64 + (self.sum % count) as f64 / self.count as f64)
    }

    /// Returns the population variance: the mean squared distance from the mean; `None` without values.
    pub(crate) fn variance(&self) -> Option<f64> {
        if self.count == 0 {
            return None;
        }
        let count = u128::from(self.count);
        let (whole, rest) = (self.sum / count, self.sum % count);
        // The sum of (x - whole)^2 is computed in integers, so no digits cancel, and the wrapping of the sum of squares
        // is undone.
        let shifted = self
            .sum_of_squares
            .wrapping_sub(whole.wrapping_mul(self.sum).wrapping_mul(2))
            .wrapping_add(count.wrapping_mul(whole).wrapping_mul(whole));
        let offset = rest as f64 / self.count as f64;
        Some((shifted as f64 / self.count as f64 - offset * offset).max(0.0))
    }

    pub(crate) fn standard_deviation(&self) -> Option<f64> {
        self.variance().map(f64::sqrt)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn of(values: &[u64]) -> Moments {
        let mut moments = Moments::EMPTY;
        values.iter().for_each(|&value| moments.record(value));
        moments
    }

    #[test]
    fn empty_moments_have_no_mean_or_variance() {
        assert_eq!(Moments::EMPTY.mean(), None);
        assert_eq!(Moments::EMPTY.variance(), None);
    }

    #[test]
    fn small_variance_of_large_values_is_exact() {
        // A float sum of squares would lose all of this variance: 2^60 squared has 120 bits.
        let far = 1u64 << 60;
        let moments = of(&[far, far + 2, far + 4, far + 6]);
        assert_eq!(moments.variance().unwrap(), 5.0);
    }

    #[test]
    fn variance_is_computed_around_the_fractional_mean() {
        let moments = of(&[1, 2, 2, 2]);
        assert_eq!(moments.mean().unwrap(), 1.75);
        assert_eq!(moments.variance().unwrap(), 0.1875);
    }

    #[test]
    fn variance_of_the_largest_values_is_computed_without_overflow() {
        let moments = of(&[u64::MAX; 1000]);
        assert_eq!(moments.variance().unwrap(), 0.0);
        assert_eq!(moments.mean().unwrap(), u64::MAX as f64);
    }

    #[test]
    fn recording_repeated_values_at_once_equals_recording_each_value() {
        let mut many = Moments::EMPTY;
        many.record_many(77, 3);
        many.record_many(5, 2);
        many.record_many(1, 0);
        assert_eq!(many, of(&[77, 77, 77, 5, 5]));
    }
}
