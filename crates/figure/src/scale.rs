//! Maps values to positions on an axis and chooses its ticks: linear, logarithmic and "nines".

use super::svg::text_width;
use taut_measure::quantity::Quantity;

/// The spacing of values along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spacing {
    /// Equal differences are equally far apart.
    Linear,
    /// Equal ratios are equally far apart; values at or below the lower end are drawn at that end.
    Log,
    /// Quantiles by their nines: 0, 0.9, 0.99, 0.999 are equally far apart.
    Nines,
}

/// An axis: a range of values and their spacing.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// The quantity of the axis's values.
    pub quantity: Quantity,
    /// The spacing of the axis's values.
    pub spacing: Spacing,
    /// Smallest value that the axis shows.
    pub min: f64,
    /// Largest value that the axis shows.
    pub max: f64,
}

/// A tick of an axis, labelled or minor.
#[derive(Debug, Clone, PartialEq)]
pub struct Tick {
    /// The value at the tick.
    pub value: f64,
    /// Label of the tick; `None` for a minor tick.
    pub label: Option<String>,
}

const MAX_NINES: f64 = 9.0;
/// Largest absolute value that an axis displays; the smallest positive value on a logarithmic axis is its reciprocal. A
/// value outside of these limits is drawn at the end of the axis. The limit keeps differences, ratios and steps of
/// displayed values finite.
const LARGEST: f64 = 1e100;

/// Returns the value clamped to the limits of a linear axis; `None` if it is not a number.
fn on_linear(value: f64) -> Option<f64> {
    value.is_finite().then(|| value.clamp(-LARGEST, LARGEST))
}

/// Returns the value clamped to the limits of a logarithmic axis; `None` unless it is finite and above zero.
fn on_log(value: f64) -> Option<f64> {
    (value.is_finite() && value > 0.0).then(|| value.clamp(1.0 / LARGEST, LARGEST))
}

impl Scale {
    /// Returns a linear axis from zero to a round number at or above the largest value.
    pub fn linear_from_zero(quantity: Quantity, values: impl IntoIterator<Item = f64>) -> Scale {
        let largest = values.into_iter().filter_map(on_linear).fold(0.0, f64::max);
        let max = if largest > 0.0 {
            let step = round_step(largest / 4.0);
            (largest / step - 1e-9).ceil() * step
        } else {
            1.0
        };
        Scale {
            quantity,
            spacing: Spacing::Linear,
            min: 0.0,
            max,
        }
    }

    /// Returns a linear axis over exactly `min..=max`.
    pub fn linear(quantity: Quantity, min: f64, max: f64) -> Scale {
        let [min, max] = [min, max].map(|end| on_linear(end).unwrap_or(0.0));
        Scale {
            quantity,
            spacing: Spacing::Linear,
            min,
            max: if max > min { max } else { min + 1.0 },
        }
    }

    /// Returns a linear axis around the values, in round steps. It includes zero unless the value nearest to zero is at
    /// least 0.6 times the farthest one.
    pub fn linear_around(quantity: Quantity, values: impl IntoIterator<Item = f64>) -> Scale {
        let finite = values.into_iter().filter_map(on_linear);
        let (mut min, mut max) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |ends, value| {
            (ends.0.min(value), ends.1.max(value))
        });
        if min > max {
            (min, max) = (0.0, 1.0);
        }
        if min > 0.0 && min < 0.6 * max {
            min = 0.0;
        }
        if max < 0.0 && max > 0.6 * min {
            max = 0.0;
        }
        // Equal values still need an axis, wider than the rounding error of a float.
        let room = if min == 0.0 { 1.0 } else { min.abs() * 0.1 };
        if max - min <= max.abs().max(min.abs()) * 1e-9 {
            (min, max) = (min - room, max + room);
        }
        let step = round_step((max - min) / 10.0);
        Scale {
            quantity,
            spacing: Spacing::Linear,
            min: (min / step + 1e-9).floor() * step,
            max: (max / step - 1e-9).ceil() * step,
        }
    }

    /// Returns a logarithmic axis around the positive values. Its ends are 1, 2 or 5 times a power of ten.
    pub fn log(quantity: Quantity, values: impl IntoIterator<Item = f64>) -> Scale {
        let mut least = f64::INFINITY;
        let mut largest = 0.0_f64;
        for value in values.into_iter().filter_map(on_log) {
            least = least.min(value);
            largest = largest.max(value);
        }
        if largest == 0.0 {
            (least, largest) = (1.0, 10.0);
        }
        let mut min = round_down(least);
        let mut max = round_up(largest);
        // A single value, or several nearly equal ones, still need an axis.
        if max / min < 4.0 {
            min = round_down(min * 0.6);
            max = round_up(max * 1.6);
        }
        Scale {
            quantity,
            spacing: Spacing::Log,
            min,
            max,
        }
    }

    /// Returns a logarithmic axis from the smallest to the largest positive value, with ticks at powers of two: for
    /// sizes that double from one to the next.
    pub fn doublings(quantity: Quantity, values: impl IntoIterator<Item = f64>) -> Scale {
        let positive = values.into_iter().filter_map(on_log);
        let (min, max) = positive.fold((f64::INFINITY, 0.0_f64), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        let (min, max) = if max > min {
            (min, max)
        } else if max > 0.0 {
            (max / 2.0, max * 2.0)
        } else {
            (1.0, 2.0)
        };
        Scale {
            quantity,
            spacing: Spacing::Log,
            min,
            max,
        }
    }

    /// Returns a percentile axis for `samples` samples, from the 0th to the highest percentile that they can show.
    pub fn nines(samples: u64) -> Scale {
        let nines = (samples.max(10) as f64).log10().clamp(1.0, MAX_NINES);
        Scale {
            quantity: Quantity::Quantile,
            spacing: Spacing::Nines,
            min: 0.0,
            max: 1.0 - 10_f64.powf(-nines),
        }
    }

    /// Returns the position of `value` on the axis, from 0 (`min`) to 1 (`max`); a value outside is clamped to the
    /// nearer end.
    pub fn place(&self, value: f64) -> f64 {
        let place = match self.spacing {
            Spacing::Linear => (value - self.min) / (self.max - self.min),
            Spacing::Log if value <= self.min => 0.0,
            Spacing::Log => (value / self.min).ln() / (self.max / self.min).ln(),
            Spacing::Nines => nines(value) / nines(self.max),
        };
        if place.is_nan() {
            0.0
        } else {
            place.clamp(0.0, 1.0)
        }
    }

    /// Returns the value at `place`, 0 to 1: the inverse of [`Scale::place`].
    pub fn value_at(&self, place: f64) -> f64 {
        match self.spacing {
            Spacing::Linear => self.min + place * (self.max - self.min),
            Spacing::Log => self.min * (self.max / self.min).powf(place),
            Spacing::Nines => 1.0 - 10_f64.powf(-place * nines(self.max)),
        }
    }

    /// Returns the largest number of labelled ticks, up to `most`, whose labels do not overlap on an axis `width` px
    /// long.
    pub fn ticks_along(&self, width: f64, most: usize) -> usize {
        let fits = |wanted: &usize| {
            let mut end = f64::NEG_INFINITY;
            self.ticks(*wanted).iter().all(|tick| {
                let Some(label) = &tick.label else {
                    return true;
                };
                let half = text_width(label, 11.0) / 2.0;
                let middle = width * self.place(tick.value);
                let clear = middle - half >= end;
                end = middle + half + 8.0;
                clear
            })
        };
        (1..=most.max(1)).rev().find(fits).unwrap_or(1)
    }

    /// Returns the axis's ticks in rising order, about `wanted` of them labelled.
    pub fn ticks(&self, wanted: usize) -> Vec<Tick> {
        match self.spacing {
            Spacing::Linear => self.linear_ticks(wanted),
            Spacing::Log if matches!(self.quantity, Quantity::Bytes | Quantity::Packets) => {
                self.doubling_ticks(wanted)
            }
            Spacing::Log => self.log_ticks(wanted),
            Spacing::Nines => self.nines_ticks(),
        }
    }

    fn tick(&self, value: f64, labelled: bool) -> Tick {
        Tick {
            value,
            label: labelled.then(|| self.quantity.tick(value)),
        }
    }

    fn linear_ticks(&self, wanted: usize) -> Vec<Tick> {
        let step = round_step((self.max - self.min) / wanted.max(1) as f64);
        let first = (self.min / step - 1e-9).ceil() as i64;
        let last = (self.max / step + 1e-9).floor() as i64;
        (first..=last)
            .map(|index| self.tick(index as f64 * step, true))
            .collect()
    }

    fn log_ticks(&self, wanted: usize) -> Vec<Tick> {
        let first = self.min.log10().floor() as i32;
        let last = self.max.log10().ceil() as i32;
        let decades = (self.max / self.min).log10();
        let (every, inner): (i32, &[u32]) = if decades * 3.0 <= wanted as f64 {
            (1, &[1, 2, 5])
        } else {
            ((decades / wanted.max(1) as f64).ceil() as i32, &[1])
        };
        let mut ticks = Vec::new();
        for exponent in first..=last {
            for digit in 1..10 {
                let value = f64::from(digit) * 10_f64.powi(exponent);
                if value < self.min * (1.0 - 1e-9) || value > self.max * (1.0 + 1e-9) {
                    continue;
                }
                let labelled = inner.contains(&digit) && exponent.rem_euclid(every) == 0;
                ticks.push(self.tick(value, labelled));
            }
        }
        ticks
    }

    fn doubling_ticks(&self, wanted: usize) -> Vec<Tick> {
        let first = (self.min.log2() - 1e-9).ceil() as i32;
        let last = (self.max.log2() + 1e-9).floor() as i32;
        let every = ((last - first) / wanted.max(1) as i32 + 1).max(1);
        (first..=last)
            .map(|power| self.tick(2_f64.powi(power), (power - first) % every == 0))
            .collect()
    }

    fn nines_ticks(&self) -> Vec<Tick> {
        let mut ticks = vec![self.tick(0.0, true), self.tick(0.5, true)];
        let mut rest = 0.1;
        while 1.0 - rest <= self.max + 1e-12 && rest > 1e-10 {
            ticks.push(self.tick(1.0 - rest, true));
            rest /= 10.0;
        }
        ticks
    }
}

fn nines(quantile: f64) -> f64 {
    -(1.0 - quantile.min(1.0))
        .max(10_f64.powf(-MAX_NINES))
        .log10()
}

/// Returns the smallest of 1, 2, 5 times a power of ten that is at least `step`.
fn round_step(step: f64) -> f64 {
    if step.is_finite() && step > 1.0 / LARGEST {
        round_up(step)
    } else {
        1.0
    }
}

fn round_up(value: f64) -> f64 {
    let power = 10_f64.powi(value.log10().floor() as i32);
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|digit| digit * power)
        .find(|round| *round >= value * (1.0 - 1e-9))
        .unwrap_or(10.0 * power)
}

fn round_down(value: f64) -> f64 {
    let power = 10_f64.powi(value.log10().floor() as i32);
    [5.0, 2.0, 1.0]
        .into_iter()
        .map(|digit| digit * power)
        .find(|round| *round <= value * (1.0 + 1e-9))
        .unwrap_or(power)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(scale: &Scale, wanted: usize) -> Vec<String> {
        scale
            .ticks(wanted)
            .into_iter()
            .filter_map(|tick| tick.label)
            .collect()
    }

    #[test]
    fn axes_of_any_numbers_have_few_ticks() {
        let extremes = [
            0.0,
            -0.0,
            5e-324,
            1e-310,
            1e-300,
            1.0,
            1e15,
            1e300,
            f64::MAX,
            -1e300,
            f64::MIN,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
        ];
        for a in extremes {
            for b in extremes {
                for scale in [
                    Scale::linear(Quantity::Number, a, b),
                    Scale::linear_around(Quantity::Number, [a, b]),
                    Scale::linear_from_zero(Quantity::TimeNs, [a, b]),
                    Scale::log(Quantity::TimeNs, [a, b]),
                    Scale::log(Quantity::Bytes, [a, b]),
                    Scale::doublings(Quantity::Bytes, [a, b]),
                ] {
                    for wanted in [1, 10] {
                        let count = scale.ticks(wanted).len();
                        assert!(count < 3000, "{a} {b}: {count} ticks of {scale:?}");
                    }
                    assert!((0.0..=1.0).contains(&scale.place(a)) && scale.place(b).is_finite());
                }
            }
        }
    }

    #[test]
    fn a_log_axis_ends_on_round_values_and_labels_decades() {
        let scale = Scale::log(Quantity::TimeNs, [730.0, 117_000.0]);
        assert_eq!((scale.min, scale.max), (500.0, 200_000.0));
        assert_eq!(labels(&scale, 5), ["1 µs", "10 µs", "100 µs"]);
        assert_eq!(
            labels(&scale, 9),
            [
                "500 ns", "1 µs", "2 µs", "5 µs", "10 µs", "20 µs", "50 µs", "100 µs", "200 µs"
            ]
        );
    }

    #[test]
    fn base_2_log_axes_are_labelled_at_powers_of_two() {
        let scale = Scale::doublings(Quantity::Packets, [64.0, 1.0, 8.0]);
        assert_eq!(labels(&scale, 7), ["1", "2", "4", "8", "16", "32", "64"]);
        let scale = Scale::doublings(Quantity::Bytes, [4096.0, 65536.0]);
        assert_eq!(labels(&scale, 2), ["4 kB", "32 kB"]);
        assert_eq!(scale.place(16_384.0), 0.5);
        assert!(!labels(&Scale::doublings(Quantity::Bytes, []), 5).is_empty());
    }

    #[test]
    fn a_log_axis_draws_zero_at_its_lower_end() {
        let scale = Scale::log(Quantity::TimeNs, [0.0, 0.0]);
        assert_eq!(scale.place(0.0), 0.0);
        assert!(scale.max > scale.min);
    }

    #[test]
    fn a_linear_axis_covers_the_values_with_round_steps() {
        let scale = Scale::linear_from_zero(Quantity::RatePps, [6_300_000.0]);
        assert_eq!(scale.max, 8_000_000.0);
        assert_eq!(labels(&scale, 4), ["0", "2M", "4M", "6M", "8M"]);
    }

    #[test]
    fn a_percentile_axis_spaces_90_99_and_999_equally() {
        let scale = Scale::nines(1_000_000);
        assert_eq!(
            labels(&scale, 0),
            ["0", "50", "90", "99", "99.9", "99.99", "99.999", "99.9999"]
        );
        let gap = scale.place(0.99) - scale.place(0.9);
        assert!((scale.place(0.999) - scale.place(0.99) - gap).abs() < 1e-9);
        assert_eq!(scale.place(1.0), 1.0);
    }

    #[test]
    fn an_axis_for_values_far_from_zero_excludes_zero() {
        let scale = Scale::linear_around(Quantity::Number, [101.0, 109.0]);
        assert_eq!((scale.min, scale.max), (101.0, 109.0));
        let scale = Scale::linear_around(Quantity::Number, [10.0, 109.0]);
        assert_eq!((scale.min, scale.max), (0.0, 120.0));
        let scale = Scale::linear_around(Quantity::Number, [-3.0, 4.0]);
        assert_eq!((scale.min, scale.max), (-3.0, 4.0));
        for lonely in [0.0, 5.0, -5.0, 1e15] {
            let scale = Scale::linear_around(Quantity::Number, [lonely]);
            assert!(scale.min < lonely && lonely < scale.max, "{scale:?}");
        }
    }

    proptest! {
        #[test]
        fn tick_labels_do_not_overlap_at_any_axis_width(
            values in prop::collection::vec(1.0..1e12_f64, 1..20),
            width in 200.0..1000.0_f64,
        ) {
            for quantity in [Quantity::TimeNs, Quantity::Number, Quantity::RatePps] {
                for scale in [Scale::log(quantity, values.clone()), Scale::linear_around(quantity, values.clone())] {
                    let ticks = scale.ticks(scale.ticks_along(width, 12));
                    let spans: Vec<(f64, f64)> = ticks
                        .iter()
                        .filter_map(|tick| {
                            let half = text_width(tick.label.as_ref()?, 11.0) / 2.0;
                            let middle = width * scale.place(tick.value);
                            Some((middle - half, middle + half))
                        })
                        .collect();
                    prop_assert!(!spans.is_empty());
                    prop_assert!(spans.windows(2).all(|pair| pair[0].1 < pair[1].0), "{scale:?} {width}");
                }
            }
        }

        #[test]
        fn axis_positions_convert_to_values_and_back(values in prop::collection::vec(1.0..1e12_f64, 2..9), place in 0.0..=1.0_f64) {
            for scale in [
                Scale::log(Quantity::TimeNs, values.clone()),
                Scale::linear_around(Quantity::TimeNs, values.clone()),
                Scale::nines(1_000_000),
            ] {
                prop_assert!((scale.place(scale.value_at(place)) - place).abs() < 1e-6);
            }
        }

        #[test]
        fn every_axis_contains_its_values_and_has_labels(
            values in prop::collection::vec(0.0..1e18_f64, 0..20),
        ) {
            let scales = [
                Scale::log(Quantity::TimeNs, values.clone()),
                Scale::linear_from_zero(Quantity::TimeNs, values.clone()),
                Scale::linear_around(Quantity::TimeNs, values.clone()),
            ];
            for scale in scales {
                for value in &values {
                    prop_assert!((0.0..=1.0).contains(&scale.place(*value)));
                    prop_assert!(*value <= scale.max * (1.0 + 1e-6));
                }
                let labelled = scale.ticks(5).iter().filter(|tick| tick.label.is_some()).count();
                prop_assert!((1..=14).contains(&labelled), "{labelled} labels on {scale:?}");
            }
        }
    }
}
