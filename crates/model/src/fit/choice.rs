//! Selection of a model's terms: the set with the smallest BIC, among the sets whose coefficients the runs determine.
//! (Schwarz, Estimating the dimension of a model, 1978; Gallenmüller 2021, section 4, names AIC and BIC for this.)

use super::{Criteria, Design, FitError, LinearFit, least_squares};

/// A set of terms that was tried.
#[derive(Debug, Clone, PartialEq)]
pub struct Tried {
    /// Names of the set's terms.
    pub terms: Vec<String>,
    /// Criteria of the fit, or the reason why the set cannot be fitted.
    pub outcome: Result<Criteria, FitError>,
}

/// The best of several sets of terms, with its fit.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Fit of the best set.
    pub fit: LinearFit,
    /// Terms of the best set, as column indices of the design.
    pub terms: Vec<usize>,
    /// All sets that were tried, in the order given.
    pub tried: Vec<Tried>,
}

/// Fits every set of terms, given as column indices of `design`, and returns the set with the smallest BIC. Terms are
/// costs and times, so a term whose coefficient is below 0 only offsets another term and has no predictive value; it is
/// dropped from its set.
///
/// A set needs at least three more runs than terms. With fewer, residuals become small by chance, and any criterion
/// prefers the most terms.
///
/// # Errors
/// If no set can be fitted, the error of the set with the fewest terms.
pub fn choose(design: &Design, sets: &[Vec<usize>], confidence: f64) -> Result<Choice, FitError> {
    let mut tried = Vec::new();
    let mut best: Option<(f64, LinearFit, Vec<usize>)> = None;
    for set in sets {
        let only = design.only(set)?;
        let mut terms = only.names().to_vec();
        let outcome = carried(&only).and_then(|()| {
            let least_squares = |design: &Design| least_squares(design, confidence);
            let (fit, left) = not_below_0(design, set, least_squares)?;
            let criteria = fit.criteria.ok_or(FitError::TooFewRows {
                rows: design.rows(),
                terms: left.len(),
            })?;
            terms = fit.coefficients.iter().map(|it| it.name.clone()).collect();
            if best.as_ref().is_none_or(|(bic, ..)| criteria.bic < *bic) {
                best = Some((criteria.bic, fit, left));
            }
            Ok(criteria)
        });
        tried.push(Tried { terms, outcome });
    }
    if let Some((_, fit, terms)) = best {
        return Ok(Choice { fit, terms, tried });
    }
    let smallest = tried.into_iter().min_by_key(|tried| tried.terms.len());
    let nothing = FitError::WrongShape {
        what: "sets of terms to choose from",
        found: 0,
        needed: 1,
    };
    Err(smallest
        .and_then(|tried| tried.outcome.err())
        .unwrap_or(nothing))
}

/// Fits a set of terms without those whose coefficients are below 0. Terms are dropped one by one, each time the term
/// that is furthest below 0 in standard errors. Returns the fit and the remaining terms.
///
/// # Errors
/// The errors of `fit`, and [`FitError::Below0`] if no term remains.
pub(crate) fn not_below_0(
    design: &Design,
    set: &[usize],
    fit: impl Fn(&Design) -> Result<LinearFit, FitError>,
) -> Result<(LinearFit, Vec<usize>), FitError> {
    let mut left = set.to_vec();
    loop {
        let found = fit(&design.only(&left)?)?;
        let below = found
            .coefficients
            .iter()
            .map(|it| it.value / it.standard_error)
            .enumerate();
        let below = below.filter(|(_, errors)| *errors < 0.0);
        let Some((place, _)) = below.min_by(|a, b| a.1.total_cmp(&b.1)) else {
            return Ok((found, left));
        };
        left.remove(place);
        if left.is_empty() {
            let terms = design.only(set)?.names().join(", ");
            return Err(FitError::Below0 { terms });
        }
    }
}

fn carried(design: &Design) -> Result<(), FitError> {
    let (rows, terms) = (design.rows(), design.names().len());
    if rows < terms + 3 {
        return Err(FitError::TooFewToChoose { rows, terms });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fit::{Spread, robust};

    /// Returns runs of `y = 100 + 2 x + noise`, with an unrelated second term.
    fn runs(count: usize, seed: u64) -> Design {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut noise = move || (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        let mut rows = Vec::new();
        let mut y = Vec::new();
        for x in 0..count {
            rows.push(vec![1.0, x as f64, noise()]);
            y.push(100.0 + 2.0 * x as f64 + noise());
        }
        Design::new(&["base", "x", "nothing"], &rows, &y, Spread::Absolute).unwrap()
    }

    #[test]
    fn real_terms_are_selected_and_superfluous_terms_are_omitted() {
        let sets = [vec![0], vec![0, 1], vec![0, 1, 2]];
        let right = (0..100).filter(|seed| {
            let choice = choose(&runs(40, *seed), &sets, 0.95).unwrap();
            choice.terms == [0, 1]
        });
        // With 40 runs, BIC selects a superfluous term with probability P(chi2(1) > ln 40) = 5.5 %.
        assert!(right.count() >= 85);
    }

    #[test]
    fn negative_costs_are_excluded_and_the_other_terms_are_refitted() {
        // The best fit to these runs would be y = -2 + 1.1 x; the design also has a third column that offsets x.
        let mut random = fastrand::Rng::with_seed(3);
        let (mut rows, mut y) = (Vec::new(), Vec::new());
        for x in 1..=30 {
            let x = f64::from(x);
            rows.push(vec![1.0, x, x + random.f64()]);
            y.push((1.1 * x - 2.0 + 0.1 * random.f64()).max(0.1));
        }
        let design = Design::new(&["io", "x", "z"], &rows, &y, Spread::Absolute).unwrap();
        let choice = choose(&design, &[vec![0, 1], vec![0, 1, 2]], 0.95).unwrap();
        assert!(
            choice.fit.coefficients.iter().all(|it| it.value >= 0.0),
            "{choice:?}"
        );
        assert!(!choice.terms.contains(&0), "{choice:?}");
        assert_eq!(choice.tried[0].terms, ["x"]);
        // Robust regression chooses its own weights, and gives the same result.
        let by_robust = |design: &Design| robust(design, 0.95);
        let (fit, left) = not_below_0(&design, &[0, 1], by_robust).unwrap();
        assert!(left == [1] && fit.coefficients[0].value > 0.9, "{fit:?}");
        // No term remains if all are below 0.
        let below = Design::new(
            &["x"],
            &[vec![-1.0], vec![-2.0], vec![-3.0], vec![-4.0]],
            &[1.0, 2.0, 3.0, 4.0],
            Spread::Absolute,
        );
        let refused = choose(&below.unwrap(), &[vec![0]], 0.95).unwrap_err();
        assert_eq!(
            refused,
            FitError::Below0 {
                terms: "x".to_owned()
            }
        );
    }

    #[test]
    fn models_with_too_many_terms_for_the_runs_are_refused() {
        let choice = choose(&runs(5, 1), &[vec![0, 1], vec![0, 1, 2]], 0.95).unwrap();
        assert_eq!(choice.terms, [0, 1]);
        let refused = choice.tried[1].outcome.clone().unwrap_err().to_string();
        assert!(
            refused.contains("5 runs are too few for 3 terms"),
            "{refused}"
        );
        assert!(choose(&runs(3, 1), &[vec![0, 1]], 0.95).is_err());
        assert!(choose(&runs(9, 1), &[], 0.95).is_err());
    }
}
