//! The access model compared with this machine. The function `walk` measures random accesses to linked lists of many
//! sizes; the ideal and the fitted model predict them, with the error of both in each level of memory. (Gallenmüller
//! 2021, sections 4.1.3 and 5.2.2, Fig. 5.6.)

use crate::{Described, ForecastError};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use taut_deploy::{AccessCost, access_costs};
use taut_host::choose_cores;
use taut_model::access::{Hierarchy, Inclusion, Level, Point, fit};

const CONFIDENCE: f64 = 0.95;
/// Minimum size of the linked list that `walk` traverses, bytes.
const LEAST_BYTES: f64 = 4096.0;
/// Number of list sizes that are measured per doubling of the size.
const TO_A_DOUBLING: f64 = 2.0;
/// Maximum size of the linked list, in multiples of the last-level cache. At this size, nearly every access goes to
/// memory.
const BEYOND_CACHES: f64 = 8.0;
/// Maximum size of the linked list, bytes, unless twice the last-level cache is larger. `walk` links each cache line of
/// the list, which takes about a second at this size.
const MOST_BYTES: f64 = 512.0 * 1024.0 * 1024.0;

/// The costs of memory accesses on this machine, measured and predicted.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Accesses {
    /// The costs for each list size, ascending.
    pub points: Vec<Access>,
    /// Errors of both models by memory level: `L1`, ..., `memory`.
    pub levels: BTreeMap<String, LevelError>,
    /// For each model, the largest of its median errors in the levels of memory.
    pub worst: LevelError,
    /// The cost at the additional list size; `None` if no additional size was requested.
    pub at: Option<Access>,
    /// The parameters of each level, fitted to all points.
    pub fitted: Vec<Fitted>,
}

/// The cost of one access to a list of one size, in cycles.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Access {
    /// Size of the linked list, bytes.
    pub bytes: u64,
    /// The smallest level of memory that holds the list completely.
    pub level: String,
    /// Measured cycles of one access.
    pub measured: f64,
    /// Relative difference between the fastest block of measurements and the lower quartile of the blocks.
    pub scatter: f64,
    /// Cycles predicted by the ideal model. In this model, each level has the cost measured with lists well inside it,
    /// a list gets all of each cache, and accesses are independent.
    pub ideal: f64,
    /// Cycles predicted by a model that was fitted to lists of other sizes.
    pub fitted: f64,
}

/// Errors of both models, as fractions of the measured cycles.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct LevelError {
    /// Number of list sizes for which the errors were computed.
    pub count: usize,
    /// Median error of the ideal model in this level of memory.
    pub ideal: f64,
    /// Median error of the fitted model, on sizes that were not used in the fit.
    pub fitted: f64,
    /// Largest error of the ideal model in this level of memory.
    pub ideal_most: f64,
    /// Largest error of the fitted model in this level of memory.
    pub fitted_most: f64,
}

/// A level of memory with its fitted parameters.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Fitted {
    /// Name of the level of memory.
    pub level: String,
    /// Cycles of one access that finds its data in this level.
    pub cycles: f64,
    /// Fraction of the cache that the list gets; `None` for memory.
    pub share: Option<f64>,
    /// Steepness of the step where lists become larger than the cache: 1 for independent accesses.
    pub steepness: Option<f64>,
}

/// Measures this machine's accesses at each size for the duration `each`, and compares the models with them. `at` is an
/// additional size of a list, in bytes.
///
/// # Errors
/// Returns an error if the caches are unknown, memory is short, or the sizes do not distinguish the levels.
pub fn accesses(
    machine: &Described,
    at: Option<u64>,
    each: Duration,
) -> Result<Accesses, ForecastError> {
    let known = machine.hierarchy()?.ok_or_else(|| {
        ForecastError::Wrong(
            "the caches are unknown: give them in a machine file (--machine)".to_owned(),
        )
    })?;
    let sizes = sizes(&known, at);
    let measured = access_costs(&sizes, choose_cores().device, each)?;
    held(&known, &measured, at)
}

/// Returns list sizes in bytes, ascending by a constant factor from less than the first cache to far more than the
/// last. The size `at` is added if it is given.
fn sizes(known: &Hierarchy, at: Option<u64>) -> Vec<u64> {
    let last = known
        .levels()
        .last()
        .map_or(LEAST_BYTES, |it| it.size_bytes);
    let most = (BEYOND_CACHES * last).min(MOST_BYTES.max(2.0 * last));
    let doublings = (most / LEAST_BYTES).log2();
    let count = (doublings * TO_A_DOUBLING).floor() as i32;
    let size = |place: i32| LEAST_BYTES * 2f64.powf(f64::from(place) / TO_A_DOUBLING);
    // Sizes are multiples of a cache line.
    let mut sizes: Vec<u64> = (0..=count)
        .map(|place| size(place) as u64 / 64 * 64)
        .collect();
    sizes.extend(at);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn held(
    known: &Hierarchy,
    measured: &[AccessCost],
    at: Option<u64>,
) -> Result<Accesses, ForecastError> {
    let point = |cost: &AccessCost| Point {
        bytes: cost.bytes as f64,
        cycles: cost.cycles,
        scatter: Some(cost.scatter),
    };
    let ideal = ideal(known, measured)?;
    let whole: Vec<Point> = measured.iter().map(point).collect();
    // The points are split alternately into two halves, and each half is predicted by a fit to the other.
    let half = |odd: usize| -> Result<Hierarchy, ForecastError> {
        let points = whole.iter().skip(odd).step_by(2).copied();
        Ok(fit(known, &points.collect::<Vec<_>>(), CONFIDENCE)?.hierarchy)
    };
    let halves = [half(1)?, half(0)?];
    let mut points = Vec::new();
    for (place, cost) in measured.iter().enumerate() {
        let bytes = cost.bytes as f64;
        points.push(Access {
            bytes: cost.bytes,
            level: level(known, bytes),
            measured: cost.cycles,
            scatter: cost.scatter,
            ideal: ideal.cycles(bytes)?,
            fitted: halves[place % 2].cycles(bytes)?,
        });
    }
    let levels = errors_of_levels(&points);
    let most = |of: fn(&LevelError) -> f64| levels.values().map(of).fold(0.0, f64::max);
    let found = fit(known, &whole, CONFIDENCE)?.hierarchy;
    Ok(Accesses {
        worst: LevelError {
            count: points.len(),
            ideal: most(|it| it.ideal),
            fitted: most(|it| it.fitted),
            ideal_most: most(|it| it.ideal_most),
            fitted_most: most(|it| it.fitted_most),
        },
        at: points.iter().find(|point| Some(point.bytes) == at).cloned(),
        fitted: fitted_levels(&found),
        points,
        levels,
    })
}

/// Returns the errors of both models in each level of memory.
fn errors_of_levels(points: &[Access]) -> BTreeMap<String, LevelError> {
    let mut levels = BTreeMap::new();
    for point in points {
        levels
            .entry(point.level.clone())
            .or_insert_with(Vec::new)
            .push(point);
    }
    levels
        .into_iter()
        .map(|(level, points)| (level, errors(&points)))
        .collect()
}

/// Returns the parameters of all levels of memory.
fn fitted_levels(found: &Hierarchy) -> Vec<Fitted> {
    let caches = found.levels().iter().map(|level| Fitted {
        level: level.name.clone(),
        cycles: level.latency_cycles,
        share: Some(level.share),
        steepness: Some(level.steepness),
    });
    let memory = Fitted {
        level: "memory".to_owned(),
        cycles: found.memory_cycles(),
        share: None,
        steepness: None,
    };
    caches.chain([memory]).collect()
}

/// Returns the name of the cache that holds a list of the given size completely, or `memory`.
fn level(known: &Hierarchy, bytes: f64) -> String {
    let holds = known
        .levels()
        .iter()
        .find(|level| bytes <= level.size_bytes);
    holds.map_or_else(|| "memory".to_owned(), |level| level.name.clone())
}

fn errors(points: &[&Access]) -> LevelError {
    let all = |predicted: fn(&Access) -> f64| -> Vec<f64> {
        let error = |point: &&Access| (predicted(point) / point.measured - 1.0).abs();
        points.iter().map(error).collect()
    };
    let (ideal, fitted) = (all(|it| it.ideal), all(|it| it.fitted));
    let median = |errors: &[f64]| taut_measure::median(errors).unwrap_or_default();
    let most = |errors: &[f64]| errors.iter().copied().fold(0.0, f64::max);
    LevelError {
        count: points.len(),
        ideal: median(&ideal),
        fitted: median(&fitted),
        ideal_most: most(&ideal),
        fitted_most: most(&fitted),
    }
}

/// Returns the ideal model. A cache has the measured cost of the list whose size is nearest to the geometric mean of
/// its own size and that of the smaller cache. Memory has the cost of the largest list.
fn ideal(known: &Hierarchy, measured: &[AccessCost]) -> Result<Hierarchy, ForecastError> {
    let cost = |bytes: f64| {
        let distance = |cost: &&AccessCost| (cost.bytes as f64 / bytes).ln().abs();
        let nearest = measured
            .iter()
            .min_by(|a, b| distance(a).total_cmp(&distance(b)));
        nearest.map_or(0.0, |cost| cost.cycles)
    };
    let mut before = LEAST_BYTES;
    let mut levels = Vec::new();
    for level in known.levels() {
        let middle = (before * level.size_bytes).sqrt();
        levels.push(Level::whole(&level.name, level.size_bytes, cost(middle)));
        before = level.size_bytes;
    }
    let memory = cost(f64::MAX.sqrt());
    Ok(Hierarchy::new(levels, memory, Inclusion::Inclusive)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn known() -> Hierarchy {
        Hierarchy::published(1.0).unwrap()
    }

    #[test]
    fn working_set_sizes_cover_caches_memory_and_the_requested_size() {
        let sizes = sizes(&known(), Some(100_000));
        assert_eq!((sizes[0], *sizes.last().unwrap()), (4096, 64 << 20));
        assert!(sizes.contains(&100_000) && sizes.is_sorted());
        assert_eq!(sizes.len(), 30);
    }

    #[test]
    fn the_fit_recovers_cache_fractions_that_violate_the_ideal_model() {
        let truth = Hierarchy::published(0.6).unwrap();
        let cost = |bytes: u64| AccessCost {
            bytes,
            cycles: truth.cycles(bytes as f64).unwrap(),
            scatter: 0.01,
            blocks: 8,
        };
        let measured: Vec<AccessCost> = sizes(&known(), Some(3 << 20))
            .into_iter()
            .map(cost)
            .collect();
        let found = held(&known(), &measured, Some(3 << 20)).unwrap();
        assert_eq!(
            found.levels.keys().collect::<Vec<_>>(),
            ["L1", "L2", "L3", "memory"]
        );
        assert!(found.worst.fitted < 0.02, "{:?}", found.levels);
        assert!(found.worst.ideal > 0.05, "{:?}", found.levels);
        let at = found.at.unwrap();
        assert_eq!((at.bytes, at.level.as_str()), (3 << 20, "L3"));
        assert!((at.fitted / at.measured - 1.0).abs() < 0.02, "{at:?}");
        let shares: Vec<f64> = found.fitted.iter().filter_map(|it| it.share).collect();
        assert!(
            shares.iter().all(|share| (share / 0.6 - 1.0).abs() < 0.05),
            "{shares:?}"
        );
    }
}
