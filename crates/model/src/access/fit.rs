//! Fit of the access model to measured costs: the latency of each level, and the share of each cache that the structure
//! really gets. (Gallenmüller 2021, section 5.2.2, sets one share of 85 % by hand.)
//!
//! For given shares the model is linear in the latencies, so a search goes over shares and steepness only, and least
//! squares finds the latencies of each (see `trial.rs`). Which shares are free, whether the steps are steeper than
//! those of independent accesses, and whether missed translations are a term, BIC decides.

use super::trial::{Free, Trial};
use super::{Hierarchy, STRUCTURE};
use crate::estimate::{ErrorBasis, Errors, WrongValue, not_negative, positive};
use crate::fit::{Coefficient, FitError, Spread};
use crate::model_file::{Fitting, Kind, Method, Run, Variable};

/// A measured cost of random accesses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Size of the structure, bytes.
    pub bytes: f64,
    /// Cycles of one access, with the loop around it.
    pub cycles: f64,
    /// Standard deviation of repeated measurements, as a share of the cycles: memory scatters more than caches do, and
    /// without this it hides their steps. None if not repeated: then relative errors of all points count equally, as
    /// they do if any point has none.
    pub scatter: Option<f64>,
}

/// A fitted access model.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessFit {
    /// Caches with their fitted shares and latencies. The loop around an access is part of the latencies. A cache that
    /// the points do not show is not among them.
    pub hierarchy: Hierarchy,
    /// Latency of each cache, of memory and, where BIC found them to belong, of missed translations, cycles.
    pub latencies: Vec<Coefficient>,
    /// Shares of caches that were fitted, by name of the cache; one of all is called `caches`. Empty if the nominal
    /// shares do.
    pub shares: Vec<Coefficient>,
    /// Steepness of the steps at the sizes of caches, by name of the cache as of shares. Empty if it is 1.
    pub steepness: Vec<Coefficient>,
    /// BIC of the fit, shares and steepness counted.
    pub bic: f64,
    /// Errors by level, on the points that it was fitted to.
    pub errors: Vec<LevelErrors>,
}

impl AccessFit {
    /// Returns how to fit the latencies once more, with the shares that were found, to a model that a file can hold.
    /// Its intervals take the shares as known: those of this fit do not.
    pub fn fitting(&self, confidence: f64) -> Fitting {
        let variable = |name: &str, unit: &str| Variable {
            name: name.to_owned(),
            unit: unit.to_owned(),
        };
        Fitting {
            kind: Kind::Access,
            response: variable("cycles", "cycles/access"),
            variables: vec![variable(STRUCTURE, "bytes")],
            sets: vec![self.hierarchy.shapes()],
            method: Method::LeastSquares,
            spread: Spread::Relative,
            confidence,
        }
    }
}

impl From<Point> for Run {
    fn from(point: Point) -> Self {
        Self {
            variables: [(STRUCTURE.to_owned(), point.bytes)].into(),
            response: point.cycles,
        }
    }
}

/// Errors of a model on the sizes that end in one level.
#[derive(Debug, Clone, PartialEq)]
pub struct LevelErrors {
    /// Name of the cache whose nominal size is the first to hold them, or `memory`.
    pub level: String,
    /// The errors.
    pub errors: Errors,
}

/// Fits latencies and shares to measured points by their relative errors. Sizes of caches, their inclusion and
/// the reach of translation buffers are those of `nominal`; its shares, latencies and steepness do not count.
///
/// Where the points do not tell the levels apart, as where other machines use up a shared cache, the fit leaves out the
/// one without which it is best.
///
/// # Errors
/// [`FitError::TooFewToChoose`] with too few points for the levels, [`FitError::Singular`] if the sizes tell no two
/// levels apart, [`FitError::Value`] for points that cannot be.
pub fn fit(nominal: &Hierarchy, points: &[Point], confidence: f64) -> Result<AccessFit, FitError> {
    for point in points {
        positive("a structure (bytes)", point.bytes)?;
        positive("cycles of an access", point.cycles)?;
        not_negative("scatter of an access", point.scatter.unwrap_or_default())?;
    }
    let mut nominal = nominal.clone();
    for level in &mut nominal.levels {
        (level.share, level.steepness) = (1.0, 1.0);
    }
    best(&nominal, points, &weights(points), confidence)
}

/// Scatter below which a point counts no more: the model itself is not better.
const LEAST_SCATTER: f64 = 0.01;

/// Returns how much the square of each point's relative error counts.
fn weights(points: &[Point]) -> Vec<f64> {
    let scatter = points.iter().map(|point| point.scatter);
    let weight = |scatter: f64| scatter.max(LEAST_SCATTER).powi(-2);
    let weights = scatter
        .map(|scatter| scatter.map(weight))
        .collect::<Option<Vec<f64>>>();
    weights.unwrap_or_else(|| vec![1.0; points.len()])
}

fn best(
    nominal: &Hierarchy,
    points: &[Point],
    weights: &[f64],
    confidence: f64,
) -> Result<AccessFit, FitError> {
    let mut fits = Vec::new();
    let mut refused = None;
    let mut keep = |tried: Result<AccessFit, FitError>| match tried {
        Ok(fit) => fits.push(fit),
        Err(error) => refused = refused.take().or(Some(error)),
    };
    let with_translations = !nominal.translations.is_empty();
    for translations in [false, true]
        .into_iter()
        .filter(|with| !with || with_translations)
    {
        for shares in Free::CHOICES {
            for steepness in Free::CHOICES {
                let trial = Trial {
                    nominal,
                    points,
                    weights,
                    shares,
                    steepness,
                    translations,
                };
                keep(trial.fit(confidence));
            }
        }
    }
    if fits.is_empty() && matches!(refused, Some(FitError::Singular { .. })) {
        let without = |index: usize| {
            let mut fewer = nominal.clone();
            fewer.levels.remove(index);
            fewer
        };
        let fewer = (0..nominal.levels.len())
            .map(without)
            .filter(|fewer| !fewer.levels.is_empty());
        fits.extend(fewer.filter_map(|fewer| best(&fewer, points, weights, confidence).ok()));
    }
    let best = fits.into_iter().min_by(|a, b| a.bic.total_cmp(&b.bic));
    best.ok_or_else(|| {
        refused.unwrap_or(FitError::TooFewRows {
            rows: points.len(),
            terms: 1,
        })
    })
}

/// Returns the errors of a model by level of the hierarchy, as far as there are points of it.
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

#[cfg(test)]
mod tests;
