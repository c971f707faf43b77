//! The levels of the memory hierarchy, and the measured and published costs of one memory access at each level.

use super::evaluate::Evaluation;
use schemars::JsonSchema;
use serde::Serialize;

/// Published cycles of a random memory access, as pairs of the largest list size in bytes for which they hold, and
/// cycles (Gallenmüller 2021, section 5.1).
pub(super) const PUBLISHED_STEPS: [(f64, f64); 4] = [
    (32.0 * 1024.0, 10.0),
    (256.0 * 1024.0, 20.0),
    (8.0 * 1024.0 * 1024.0, 60.0),
    (f64::INFINITY, 250.0),
];

/// Fraction of a cache that a list can fill without misses.
const USABLE: f64 = 0.85;

/// A level of the memory hierarchy, and the cost of one access to it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(super) struct Level {
    pub(super) name: String,
    pub(super) size_bytes: Option<u64>,
    pub(super) measured_cycles: Option<f64>,
    pub(super) published_cycles: f64,
}

/// Returns the levels (the caches of this machine, then its memory) with the cost of one access to each.
pub(super) fn levels(evaluation: &Evaluation<'_>) -> Vec<Level> {
    let access = evaluation.access_cycles("null");
    let mut caches: Vec<(u8, u64)> = evaluation
        .results
        .head
        .own
        .caches
        .iter()
        .filter(|cache| cache.kind != "Instruction")
        .map(|cache| (cache.level, cache.size_bytes))
        .collect();
    caches.sort_unstable();
    let mut before = 0;
    let mut levels = Vec::new();
    let within = |from: f64, to: f64| {
        let inside = access
            .iter()
            .filter(|(bytes, _)| (*bytes as f64) > from && (*bytes as f64) <= to);
        taut_measure::median(&inside.map(|(_, spread)| spread[1]).collect::<Vec<_>>())
    };
    for ((level, size), published) in caches.iter().zip(PUBLISHED_STEPS) {
        levels.push(Level {
            name: format!("L{level}"),
            size_bytes: Some(*size),
            measured_cycles: within(before as f64, *size as f64 * USABLE),
            published_cycles: published.1,
        });
        before = *size;
    }
    levels.push(Level {
        name: "memory".to_string(),
        size_bytes: None,
        // The list is much larger than the last cache, which therefore rarely helps.
        measured_cycles: within(before as f64 * 4.0, f64::INFINITY),
        published_cycles: PUBLISHED_STEPS[3].1,
    });
    levels
}
