//! Errors of an access model by level of the hierarchy.

use super::Hierarchy;
use super::point::Point;
use crate::estimate::{ErrorBasis, Errors, WrongValue};

/// Errors of a model for the structure sizes that belong to one memory level.
#[derive(Debug, Clone, PartialEq)]
pub struct LevelErrors {
    /// Name of the smallest cache whose nominal size holds structures of these sizes, or `memory`.
    pub level: String,
    /// The errors of the model for structures of these sizes.
    pub errors: Errors,
}

/// Returns the errors of a model by level of the hierarchy, for the levels with points.
///
/// # Errors
/// [`WrongValue`] for sizes that are not above 0.
pub fn errors_by_level(
    hierarchy: &Hierarchy,
    points: &[Point],
    basis: ErrorBasis,
) -> Result<Vec<LevelErrors>, WrongValue> {
    let mut all = Vec::new();
    let mut from = 0.0;
    let memory = ("memory", f64::INFINITY);
    let caches = hierarchy
        .levels
        .iter()
        .map(|level| (level.name.as_str(), level.size_bytes));
    for (name, to) in caches.chain([memory]) {
        let here = points
            .iter()
            .filter(|point| point.bytes > from && point.bytes <= to);
        let mut pairs = Vec::new();
        for point in here {
            pairs.push((hierarchy.cycles(point.bytes)?, point.cycles));
        }
        let level = name.to_owned();
        all.extend(Errors::of(basis, pairs).map(|errors| LevelErrors { level, errors }));
        from = to;
    }
    Ok(all)
}
