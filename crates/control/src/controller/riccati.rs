//! Solves the discrete algebraic Riccati equation by structured doubling, and derives controllers from the solution.
//!
//! The doubling follows Chu, Fan, Lin and Wang, Structure-preserving algorithms for periodic discrete-time algebraic
//! Riccati equations (International Journal of Control 77, 2004). The sampled cost follows Van Loan (1978), as MATLAB's
//! `lqrd` does.

use crate::steps::{discrete, spectral_radius, with_inputs};
use nalgebra::{DMatrix, LU};

/// Limit on the iterations. Each one squares the error, so a solution that converges takes about ten.
const ITERATIONS: usize = 60;

/// Returns the smallest X >= 0 with `X = A' X A - A' X B (R + B' X B)^-1 B' X A + Q`; `None` if the iterations do not
/// converge.
pub fn riccati(
    a: &DMatrix<f64>,
    b: &DMatrix<f64>,
    q: &DMatrix<f64>,
    r: &DMatrix<f64>,
) -> Option<DMatrix<f64>> {
    let identity = DMatrix::identity(a.nrows(), a.nrows());
    let mut a = a.clone();
    let mut g = b * LU::new(r.clone()).solve(&b.transpose())?;
    let mut h = q.clone();
    for _ in 0..ITERATIONS {
        let w = LU::new(&identity + &g * &h);
        let w_a = w.solve(&a)?;
        let w_g = w.solve(&g)?;
        let added = a.transpose() * &h * &w_a;
        g = symmetric(&g + &a * w_g * a.transpose());
        a = &a * w_a;
        let next = symmetric(&h + &added);
        let scale = next.norm();
        if !scale.is_finite() {
            return None;
        }
        let done = added.norm() <= 1e-13 * scale;
        h = next;
        if done {
            return Some(h);
        }
    }
    None
}

fn symmetric(matrix: DMatrix<f64>) -> DMatrix<f64> {
    (&matrix + matrix.transpose()) * 0.5
}

/// A cost of states and inputs over one period: x' Q x + 2 x' S u + u' R u.
#[derive(Debug, Clone, PartialEq)]
pub struct Cost {
    /// Weights of the states.
    pub q: DMatrix<f64>,
    /// Weights of products of states and inputs.
    pub s: DMatrix<f64>,
    /// Weights of the inputs.
    pub r: DMatrix<f64>,
}

impl Cost {
    /// Returns the cost over one period with constant inputs, for a continuous plant with weights of its states and of
    /// each input.
    pub fn sampled(
        a: &DMatrix<f64>,
        b: &DMatrix<f64>,
        weights: &[f64],
        input_weight: f64,
        period_s: f64,
    ) -> Self {
        let (states, inputs) = (a.nrows(), b.ncols());
        let size = states + inputs;
        let both = with_inputs(a, b);
        let weight = DMatrix::from_fn(size, size, |row, column| match (row == column, row) {
            (false, _) => 0.0,
            (true, row) if row < states => weights[row],
            (true, _) => input_weight,
        });
        let mut block = DMatrix::zeros(2 * size, 2 * size);
        block
            .view_mut((0, 0), (size, size))
            .copy_from(&-both.transpose());
        block.view_mut((0, size), (size, size)).copy_from(&weight);
        block.view_mut((size, size), (size, size)).copy_from(&both);
        let step = (block * period_s).exp();
        let cost =
            step.view((size, size), (size, size)).transpose() * step.view((0, size), (size, size));
        let cost = symmetric(cost);
        Self {
            q: cost.view((0, 0), (states, states)).into_owned(),
            s: cost.view((0, states), (states, inputs)).into_owned(),
            r: cost.view((states, states), (inputs, inputs)).into_owned(),
        }
    }
}

/// Returns the gain K of u = -K x that minimises `cost`; `None` if no gain makes the plant stable.
pub fn gain(a: &DMatrix<f64>, b: &DMatrix<f64>, cost: &Cost) -> Option<DMatrix<f64>> {
    let r = LU::new(cost.r.clone());
    let crossed = r.solve(&cost.s.transpose())?;
    let x = riccati(
        &(a - b * &crossed),
        b,
        &symmetric(&cost.q - &cost.s * &crossed),
        &cost.r,
    )?;
    let b_x = b.transpose() * x;
    let gain = LU::new(&cost.r + &b_x * b).solve(&(&b_x * a + cost.s.transpose()))?;
    (spectral_radius(&(a - b * &gain)) < 1.0).then_some(gain)
}

/// Returns the gain for a continuous plant that is sampled with the period `period_s`; none if no gain makes it stable.
pub fn sampled_gain(
    a: &DMatrix<f64>,
    b: &DMatrix<f64>,
    weights: &[f64],
    input_weight: f64,
    period_s: f64,
) -> Option<DMatrix<f64>> {
    let (ad, bd) = discrete(a, b, period_s);
    gain(
        &ad,
        &bd,
        &Cost::sampled(a, b, weights, input_weight, period_s),
    )
}

/// Returns the gain L of a steady-state Kalman filter, x += L (y - C x). The covariance of the states' disturbance in a
/// step is `q`, that of the readings is `r`.
pub fn filter_gain(
    a: &DMatrix<f64>,
    c: &DMatrix<f64>,
    q: &DMatrix<f64>,
    r: &DMatrix<f64>,
) -> Option<DMatrix<f64>> {
    let p = riccati(&a.transpose(), &c.transpose(), q, r)?;
    let innovation = c * &p * c.transpose() + r;
    let gain = LU::new(innovation).solve(&(c * &p))?.transpose();
    let left = (DMatrix::identity(a.nrows(), a.nrows()) - &gain * c) * a;
    (spectral_radius(&left) < 1.0).then_some(gain)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_solver_finds_the_closed_form_solution_of_scalar_equations() {
        // x = a²x - (abx)²/(r + b²x) + q with a = 2, b = q = r = 1: x² - 4x - 1 = 0.
        let one = DMatrix::from_element(1, 1, 1.0);
        let x = riccati(&(&one * 2.0), &one, &one, &one).unwrap();
        assert!((x[(0, 0)] - (2.0 + 5.0_f64.sqrt())).abs() < 1e-12);
    }

    /// The expected values are those of `scipy.linalg.solve_discrete_are` (SciPy 1.17.1) for these matrices.
    #[test]
    fn a_matrix_equation_has_the_solution_that_scipy_finds() {
        let a = DMatrix::from_row_slice(3, 3, &[1.1, 0.2, 0.0, -0.3, 0.9, 0.5, 0.0, 0.1, 1.3]);
        let b = DMatrix::from_row_slice(3, 2, &[0.0, 0.1, 1.0, 0.0, 0.3, 0.7]);
        let q = DMatrix::from_diagonal(&nalgebra::DVector::from_vec(vec![1.0, 2.0, 0.5]));
        let r = DMatrix::from_row_slice(2, 2, &[1.0, 0.2, 0.2, 2.0]);
        let x = riccati(&a, &b, &q, &r).unwrap();
        #[rustfmt::skip]
        let scipy = [
            22.314153696, 5.17766724979, -3.64173414838,
            5.17766724979, 3.9479572961, -0.684110104251,
            -3.64173414838, -0.684110104251, 3.94926038271,
        ];
        for (found, wanted) in x.transpose().iter().zip(scipy) {
            assert!((found - wanted).abs() < 1e-9, "{x}");
        }
    }

    #[test]
    fn a_plant_with_an_unreachable_unstable_state_has_no_gain() {
        let a = DMatrix::from_row_slice(2, 2, &[2.0, 0.0, 0.0, 0.5]);
        let b = DMatrix::from_row_slice(2, 1, &[0.0, 1.0]);
        let cost = Cost {
            q: DMatrix::identity(2, 2),
            s: DMatrix::zeros(2, 1),
            r: DMatrix::identity(1, 1),
        };
        assert_eq!(gain(&a, &b, &cost), None);
    }

    proptest! {
        #[test]
        fn computed_solutions_satisfy_the_riccati_equation(values in proptest::collection::vec(-1.5_f64..1.5, 12)) {
            let a = DMatrix::from_row_slice(3, 3, &values[..9]);
            let b = DMatrix::from_row_slice(3, 1, &values[9..]);
            let (q, r) = (DMatrix::identity(3, 3), DMatrix::identity(1, 1));
            if let Some(x) = riccati(&a, &b, &q, &r) && x.norm() < 1e6 {
                let b_x = b.transpose() * &x;
                let inner = LU::new(&r + &b_x * &b).solve(&(&b_x * &a)).unwrap();
                let again = a.transpose() * &x * &a - (&b_x * &a).transpose() * inner + q;
                prop_assert!((again - &x).norm() <= 1e-6 * x.norm(), "{x}");
            }
        }
    }
}
