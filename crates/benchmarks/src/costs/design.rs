//! The design of the experiment: points that cover the ranges of all variables jointly, drawn from a seed. (McKay,
//! Beckman and Conover, Technometrics 1979: Latin hypercubes.)

use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// Range of the cycles burnt per packet at points with a load, log-spaced.
pub const LOADS_CYCLES: RangeInclusive<f64> = 10.0..=10_000.0;
/// Range of the number of functions that forward a packet unchanged.
pub const FUNCTIONS: RangeInclusive<u32> = 1..=10;
/// Range of the frame sizes in bytes, check sequence included.
pub const FRAMES_BYTES: RangeInclusive<u32> = 64..=1518;
/// Range of the maximum number of packets per receive call, log-spaced.
pub const BURSTS: RangeInclusive<u32> = 1..=256;

/// Fraction of the design points at which packets cause no cycles of load.
const UNLOADED: f64 = 0.15;

/// A point of the design: the settings of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// Cycles burnt per packet by the load.
    pub load_cycles: u32,
    /// Number of functions that forward a packet unchanged.
    pub functions: u32,
    /// Frame size in bytes, check sequence included.
    pub frame_bytes: u32,
    /// Maximum number of packets per receive call.
    pub burst: u32,
}

impl Point {
    /// Returns the point at the given positions in the ranges of the variables, each from 0 (inclusive) to 1
    /// (exclusive).
    fn at([load, functions, frame, burst]: [f64; 4]) -> Self {
        let between = |range: RangeInclusive<u32>, place: f64| {
            let (first, last) = (*range.start(), *range.end());
            first + (place * f64::from(last - first + 1)) as u32
        };
        let log = |low: f64, high: f64, place: f64| (low * (high / low).powf(place)).round() as u32;
        let loaded = (load - UNLOADED) / (1.0 - UNLOADED);
        Self {
            load_cycles: if loaded < 0.0 {
                0
            } else {
                log(*LOADS_CYCLES.start(), *LOADS_CYCLES.end(), loaded)
            },
            functions: between(FUNCTIONS, functions),
            frame_bytes: between(FRAMES_BYTES, frame),
            burst: log(
                f64::from(*BURSTS.start()),
                f64::from(*BURSTS.end()),
                // The range is 3 % wider at each end, so that after rounding the smallest and the largest burst are
                // drawn as often as the bursts between them.
                burst * 1.06 - 0.03,
            )
            .clamp(*BURSTS.start(), *BURSTS.end()),
        }
    }
}

/// Returns `count` points for the kind of port with index `port`. The range of each variable is divided into `count`
/// equal parts, and each part contains one point.
pub fn draw(count: usize, seed: u64, port: usize) -> Vec<Point> {
    let mut random =
        fastrand::Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ port as u64);
    let mut places = vec![[0.0; 4]; count];
    for variable in 0..4 {
        let mut strata: Vec<usize> = (0..count).collect();
        random.shuffle(&mut strata);
        for (place, stratum) in places.iter_mut().zip(strata) {
            place[variable] = (stratum as f64 + random.f64()) / count as f64;
        }
    }
    places.into_iter().map(Point::at).collect()
}

/// Returns true if models are fitted to the point with the given index; all other points check the fitted models. The
/// order of the points is random, so every second point is a representative half.
pub fn is_fitted(number: usize) -> bool {
    number.is_multiple_of(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_cover_the_ranges_and_are_reproducible_from_the_seed() {
        for seed in 0..20 {
            let points = draw(40, seed, 1);
            assert_eq!(points, draw(40, seed, 1));
            assert_ne!(points, draw(40, seed, 2));
            assert_ne!(points, draw(40, seed + 1, 1));
            let span = |of: fn(&Point) -> u32| {
                let values = || points.iter().map(of);
                (values().min(), values().max())
            };
            let (unloaded, loaded): (Vec<&Point>, Vec<&Point>) =
                points.iter().partition(|point| point.load_cycles == 0);
            assert_eq!(unloaded.len(), 6);
            assert!(
                loaded
                    .iter()
                    .all(|point| (10..=10_000).contains(&point.load_cycles))
            );
            assert!(span(|p| p.load_cycles).1 > Some(8_000));
            assert_eq!(span(|p| p.functions), (Some(1), Some(10)));
            let (shortest, longest) = span(|p| p.frame_bytes);
            assert!(shortest < Some(64 + 37) && longest > Some(1518 - 37) && longest <= Some(1518));
            assert_eq!(span(|p| p.burst), (Some(1), Some(256)));
        }
    }

    #[test]
    fn fitted_and_held_out_halves_contain_small_and_large_loads() {
        let points = draw(40, 1, 0);
        for half in [true, false] {
            let loads = || {
                let of_half = points
                    .iter()
                    .enumerate()
                    .filter(|(n, _)| is_fitted(*n) == half);
                of_half.map(|(_, point)| point.load_cycles)
            };
            assert_eq!(loads().count(), 20);
            assert!(loads().min() < Some(100) && loads().max() > Some(3_000));
        }
    }
}
