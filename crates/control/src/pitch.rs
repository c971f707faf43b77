//! The pitch of a recorded run from its gyroscope, for evaluation: the dissertation uses a filter that it does not publish.
//!
//! A gyroscope's integral drifts: that of NCSbench's recording is ten degrees off on average. A robot that balances is upright on
//! average over any few seconds, so what is left when the mean over [`HALF_NS`] before and after is taken off is its pitch. This looks
//! into the future, so it is of no use to a controller. The sum over the recording, 948 degrees, is 1 % above the published one.

/// How far the mean reaches to either side, ns.
pub const HALF_NS: u64 = 1_000_000_000;

/// Pitch at each reading, in degrees, from readings of the gyroscope in degrees/s and when they were read, in ns.
///
/// Near both ends the mean reaches as far to either side as there are readings.
pub fn pitch_of(read_ns: &[u64], rates: &[f64]) -> Vec<f64> {
    let mut angles = Vec::with_capacity(rates.len());
    let mut sums = vec![0.0];
    let (mut angle, mut sum) = (0.0, 0.0);
    for number in 0..rates.len().min(read_ns.len()) {
        if number > 0 {
            let elapsed_s = read_ns[number].saturating_sub(read_ns[number - 1]) as f64 * 1e-9;
            angle += (rates[number] + rates[number - 1]) / 2.0 * elapsed_s;
        }
        angles.push(angle);
        sum += angle;
        sums.push(sum);
    }
    let read_ns = &read_ns[..angles.len()];
    let upright = angles.iter().enumerate().map(|(number, angle)| {
        let now_ns = read_ns[number];
        let from = read_ns.partition_point(|ns| *ns < now_ns.saturating_sub(HALF_NS));
        let to = read_ns.partition_point(|ns| *ns <= now_ns.saturating_add(HALF_NS));
        // Stamps that go backwards could put `number` outside.
        let reach = number
            .saturating_sub(from)
            .min(to.saturating_sub(number + 1));
        let (from, to) = (number - reach, number + reach + 1);
        angle - (sums[to] - sums[from]) / (to - from) as f64
    });
    upright.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swing_is_found_below_an_offset_that_drifts_away() {
        // Two swings a second of one degree, and an offset of half a degree per second.
        let turn = std::f64::consts::TAU * 2.0;
        let read_ns: Vec<u64> = (0..1000).map(|number| number * 35_000_000).collect();
        let at = |ns: &u64| *ns as f64 * 1e-9;
        let rates: Vec<f64> = read_ns
            .iter()
            .map(|ns| turn * (turn * at(ns)).cos() + 0.5)
            .collect();
        let found = pitch_of(&read_ns, &rates);
        for (ns, pitch) in read_ns.iter().zip(&found).skip(40).take(900) {
            let wanted = (turn * at(ns)).sin();
            assert!((pitch - wanted).abs() < 0.06, "{ns}: {pitch} {wanted}");
        }
    }

    #[test]
    fn stamps_that_go_backwards_and_lists_that_end_early_are_no_trouble() {
        assert_eq!(pitch_of(&[5, 3, 9], &[1.0, 1.0]).len(), 2);
        assert!(pitch_of(&[], &[1.0]).is_empty());
        let found = pitch_of(&[u64::MAX, 0, u64::MAX, 0], &[1.0; 4]);
        assert_eq!(found.len(), 4);
    }
}
