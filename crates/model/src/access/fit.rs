//! Fit of the access model to measured costs: the latency of each level, and the share of each cache that the structure
//! really gets. (Gallenmüller 2021, section 5.2.2, sets one share of 85 % by hand.)
//!
//! For given shares the model is linear in the latencies. A search therefore varies only shares and steepness, and
//! least squares finds the latencies for each candidate (see `trial.rs`). BIC decides which shares are free, whether
//! the steps are steeper than for independent accesses, and whether translation misses are a term.

use super::Hierarchy;
use super::point::Point;
use super::trial::{AccessFit, Free, Trial};
use crate::estimate::{not_negative, positive};
use crate::fit::FitError;

/// Fits latencies and shares to measured points by their relative errors. Sizes of caches, their inclusion and the
/// reach of translation buffers come from `nominal`; its shares, latencies and steepness are ignored.
///
/// If the points do not distinguish the levels, for example because other programs fill a shared cache, the fit omits
/// the level whose omission gives the best fit.
///
/// # Errors
/// [`FitError::TooFewToChoose`] with too few points for the levels, [`FitError::Singular`] if the sizes distinguish no
/// two levels, [`FitError::Value`] for invalid points.
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

/// Smallest relative scatter from which weights are computed. The model itself is not more accurate than this, so
/// points with less scatter get no higher weight.
const LEAST_SCATTER: f64 = 0.01;

/// Returns the weight of each point's squared relative error.
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

#[cfg(test)]
mod tests;
