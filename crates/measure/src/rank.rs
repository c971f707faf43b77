//! The nearest-rank rule that every quantile in this crate uses, and the median of a few values. Hyndman and Fan 1996,
//! definition 1: the smallest value for which at least a fraction `q` of the values is at or below it.

/// Returns the 0-based position of quantile `q` in `count` sorted values, or `None` without values or with `q` outside
/// 0..=1.
///
/// ```
/// assert_eq!(taut_measure::rank::nearest_rank(100, 0.99), Some(98));
/// assert_eq!(taut_measure::rank::nearest_rank(0, 0.5), None);
/// ```
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rank is at most the count"
)]
pub fn nearest_rank(count: u64, q: f64) -> Option<u64> {
    if count == 0 || !(0.0..=1.0).contains(&q) {
        return None;
    }
    // Large counts have no exact float, so the results for 0 and 1 are computed without floats.
    if q == 1.0 {
        return Some(count - 1);
    }
    // 0.07 * 100 is 7.000000000000001 in binary: without the slack, rank 7 would become 8.
    let share = q * count as f64;
    let rank = (share - share * 4.0 * f64::EPSILON).ceil() as u64;
    Some(rank.clamp(1, count) - 1)
}

/// Returns the median of values in any order; of an even number of values it is the mean of the middle two. Returns
/// `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    median_of(&mut values.to_vec())
}

/// Returns the median as [`median`] does, in O(n) and without a copy: it reorders `values`.
pub(crate) fn median_of(values: &mut [f64]) -> Option<f64> {
    let half = values.len() / 2;
    let even = values.len().is_multiple_of(2);
    if values.is_empty() {
        return None;
    }
    let (below, &mut upper, _) = values.select_nth_unstable_by(half, f64::total_cmp);
    let lower = below.iter().copied().max_by(f64::total_cmp);
    Some(match lower {
        Some(lower) if even => f64::midpoint(lower, upper),
        _ => upper,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_quantiles_have_exact_ranks_despite_floating_point_rounding() {
        for percent in 1..=100u64 {
            let q = percent as f64 / 100.0;
            assert_eq!(nearest_rank(100, q), Some(percent - 1), "q = {q}");
            assert_eq!(nearest_rank(100_000, q), Some(percent * 1000 - 1));
        }
        assert_eq!(nearest_rank(1_000_000, 0.99999), Some(999_989));
    }

    #[test]
    fn a_fractional_rank_rounds_up_to_the_next_value() {
        assert_eq!(nearest_rank(10, 0.91), Some(9));
        assert_eq!(nearest_rank(3, 0.5), Some(1));
    }

    #[test]
    fn quantiles_0_and_1_are_the_first_and_last_value() {
        assert_eq!(nearest_rank(7, 0.0), Some(0));
        assert_eq!(nearest_rank(7, 1.0), Some(6));
        assert_eq!(nearest_rank(u64::MAX, 1.0), Some(u64::MAX - 1));
    }

    #[test]
    fn median_averages_the_two_middle_values_of_an_even_count() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[4.0]), Some(4.0));
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[9.0, 1.0, 5.0, 2.0]), Some(3.5));
        assert_eq!(median(&[f64::MAX, f64::MAX]), Some(f64::MAX));
    }

    #[test]
    fn quantiles_outside_zero_to_one_have_no_rank() {
        for q in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert_eq!(nearest_rank(10, q), None);
        }
    }
}
