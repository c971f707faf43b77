//! Robust regression: outliers get less weight, by Huber's weights. (Huber, Robust Statistics, 1981, section 7; scale
//! by the median of absolute residuals, constant 1.345 for 95 % efficiency where errors are normal.)

use super::linear::{LinearFit, Solved};
use super::{Design, FitError};
use nalgebra::DVector;

/// Residuals beyond this number of standard deviations get less weight.
const HUBER: f64 = 1.345;
/// Median of |x| for a normal x with standard deviation 1.
const NORMAL_MEDIAN: f64 = 0.674_489_750_196_081_7;
/// Maximum number of iterations; they end when the residuals change by less than `SETTLED` of their length.
const MOST_ROUNDS: usize = 100;
const SETTLED: f64 = 1e-9;
/// Smallest scale, as a share of the responses: smaller residuals are rounding errors.
const ROUNDING: f64 = 1e-13;

/// Fits by robust regression. A run whose residual is within 1.345 standard deviations has the weight 1; beyond that,
/// the weight falls as 1 / residual.
///
/// Intervals are Huber's asymptotic ones with a correction for few runs (1981, eq. 7.6.18); there are no criteria.
/// Leave-one-out errors use the weights of the fit to all runs.
///
/// # Errors
/// The errors of [`super::least_squares`].
pub fn robust(design: &Design, confidence: f64) -> Result<LinearFit, FitError> {
    let base = design.scales();
    let least_squares = Solved::new(design, &base)?;
    let rounding = ROUNDING * base.component_mul(design.responses()).norm();
    let mut residuals = least_squares.scaled_residuals.clone();
    let mut deviation = scale(&residuals, rounding);
    let mut solved = Solved { ..least_squares };
    let unweighted_inverse = solved.inverse.clone();
    for _ in 0..MOST_ROUNDS {
        deviation = scale(&residuals, rounding);
        let scales = base.zip_map(&residuals, |base, residual| {
            base * weight(residual / deviation).sqrt()
        });
        solved = Solved::new(design, &scales)?;
        let predicted = design.columns() * &solved.coefficients;
        let new = (design.responses() - predicted).component_mul(&base);
        let change = (&new - &residuals).norm();
        let settled = change <= SETTLED * residuals.norm().max(rounding);
        residuals = new;
        if settled {
            break;
        }
    }
    let (rows, terms) = (design.rows() as f64, design.names().len() as f64);
    let squares: f64 = residuals
        .iter()
        .map(|r| (r * weight(r / deviation)).powi(2))
        .sum();
    let inside = |residual: f64| f64::from(u8::from((residual / deviation).abs() <= HUBER));
    let slope = (residuals
        .iter()
        .map(|residual| inside(*residual))
        .sum::<f64>()
        / rows)
        .max(1.0 / rows);
    let correction = 1.0 + terms / rows * (1.0 - slope) / slope;
    let variance = squares / (rows - terms) * (correction / slope).powi(2);
    let covariance = unweighted_inverse * variance;
    solved.fit(design, &base, confidence, deviation, &covariance, None)
}

fn weight(deviations: f64) -> f64 {
    (HUBER / deviations.abs()).min(1.0)
}

/// Returns the standard deviation of normal residuals whose absolute values have this median; at least `least`.
fn scale(residuals: &DVector<f64>, least: f64) -> f64 {
    let mut sizes: Vec<f64> = residuals.iter().map(|residual| residual.abs()).collect();
    sizes.sort_by(f64::total_cmp);
    let middle = sizes.len() / 2;
    let median = match sizes.len() % 2 {
        0 => (sizes[middle - 1] + sizes[middle]) / 2.0,
        _ => sizes[middle],
    };
    (median / NORMAL_MEDIAN).max(least).max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fit::{Spread, least_squares};

    /// Brownlee's stack loss data: air flow, water temperature, acid, loss.
    const STACK_LOSS: [[f64; 4]; 21] = [
        [80.0, 27.0, 89.0, 42.0],
        [80.0, 27.0, 88.0, 37.0],
        [75.0, 25.0, 90.0, 37.0],
        [62.0, 24.0, 87.0, 28.0],
        [62.0, 22.0, 87.0, 18.0],
        [62.0, 23.0, 87.0, 18.0],
        [62.0, 24.0, 93.0, 19.0],
        [62.0, 24.0, 93.0, 20.0],
        [58.0, 23.0, 87.0, 15.0],
        [58.0, 18.0, 80.0, 14.0],
        [58.0, 18.0, 89.0, 14.0],
        [58.0, 17.0, 88.0, 13.0],
        [58.0, 18.0, 82.0, 11.0],
        [58.0, 19.0, 93.0, 12.0],
        [50.0, 18.0, 89.0, 8.0],
        [50.0, 18.0, 86.0, 7.0],
        [50.0, 19.0, 72.0, 8.0],
        [50.0, 19.0, 79.0, 8.0],
        [50.0, 20.0, 80.0, 9.0],
        [56.0, 20.0, 82.0, 15.0],
        [70.0, 20.0, 91.0, 15.0],
    ];

    #[test]
    fn the_stackloss_data_fit_agrees_with_published_coefficients() {
        // The expected values are those of Venables and Ripley, Modern Applied Statistics with S, 2002, section 6.5
        // (Huber's weights).
        let rows: Vec<Vec<f64>> = STACK_LOSS
            .iter()
            .map(|r| vec![1.0, r[0], r[1], r[2]])
            .collect();
        let loss: Vec<f64> = STACK_LOSS.iter().map(|r| r[3]).collect();
        let names = ["1", "air", "water", "acid"];
        let design = Design::new(&names, &rows, &loss, Spread::Absolute).unwrap();
        let fit = robust(&design, 0.95).unwrap();
        let published = [
            (-41.027, 9.807),
            (0.829, 0.111),
            (0.926, 0.303),
            (-0.128, 0.129),
        ];
        for (found, (value, standard_error)) in fit.coefficients.iter().zip(published) {
            assert!((found.value - value).abs() < 2e-3, "{found:?}");
            assert!(
                (found.standard_error / standard_error - 1.0).abs() < 0.01,
                "{found:?}"
            );
        }
        assert!(
            (fit.residual_std - 2.441).abs() < 2e-3,
            "{}",
            fit.residual_std
        );
        assert_eq!(fit.criteria, None);
    }

    #[test]
    fn one_outlier_run_hardly_changes_the_robust_fit() {
        let rows: Vec<Vec<f64>> = (0..20).map(|x| vec![1.0, f64::from(x)]).collect();
        let noise = |x: u32| if x.is_multiple_of(2) { 0.1 } else { -0.1 };
        let mut y: Vec<f64> = (0..20)
            .map(|x| 100.0 + 5.0 * f64::from(x) + noise(x))
            .collect();
        y[17] = 1_000.0;
        let design = Design::new(&["base", "slope"], &rows, &y, Spread::Absolute).unwrap();
        let slope = |fit: LinearFit| fit.coefficients[1].value;
        assert!((slope(robust(&design, 0.95).unwrap()) - 5.0).abs() < 0.02);
        assert!((slope(least_squares(&design, 0.95).unwrap()) - 5.0).abs() > 1.0);
    }

    #[test]
    fn runs_without_noise_yield_the_exact_coefficients() {
        let rows: Vec<Vec<f64>> = (1..9).map(|x| vec![1.0, f64::from(x)]).collect();
        let y: Vec<f64> = (1..9).map(|x| 3.0 + 2.0 * f64::from(x)).collect();
        let design = Design::new(&["a", "b"], &rows, &y, Spread::Relative).unwrap();
        let fit = robust(&design, 0.95).unwrap();
        assert!((fit.coefficients[0].value - 3.0).abs() < 1e-9, "{fit:?}");
        assert!((fit.coefficients[1].value - 2.0).abs() < 1e-9, "{fit:?}");
    }
}
