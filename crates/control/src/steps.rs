//! Exact discretisation: solves x' = A x + B u for constant u over any whole number of nanoseconds.
//!
//! The matrix exponential of [A B; 0 0] t contains both matrices of a step of length t (Van Loan, Computing integrals
//! involving the matrix exponential, 1978). Steps of 2^k ns are computed once; any other step is composed of them.

use nalgebra::{DMatrix, DVector};

/// Number of powers of two: the longest single step is below 2^36 ns, 68 s; longer times take several steps.
const POWERS: usize = 36;

/// The discretised steps of a plant.
#[derive(Debug, Clone)]
pub struct Steps {
    a: DMatrix<f64>,
    b: DMatrix<f64>,
    powers: Vec<(DMatrix<f64>, DMatrix<f64>)>,
}

impl Steps {
    /// Makes the steps of a plant.
    pub fn new(a: &DMatrix<f64>, b: &DMatrix<f64>) -> Self {
        let powers = (0..POWERS).map(|power| discrete(a, b, (1_u64 << power) as f64 * 1e-9));
        Self {
            a: a.clone(),
            b: b.clone(),
            powers: powers.collect(),
        }
    }

    /// Advances the states by `ns` while the inputs stay constant.
    pub fn advance(&self, x: &mut DVector<f64>, inputs: &[f64], ns: u64) {
        let mut next = x.clone();
        let inputs = DVector::from_column_slice(&inputs[..self.b.ncols()]);
        for (power, (ad, bd)) in self.powers.iter().enumerate() {
            if ns >> power & 1 == 1 {
                next.gemv(1.0, ad, x, 0.0);
                next.gemv(1.0, bd, &inputs, 1.0);
                std::mem::swap(x, &mut next);
            }
        }
        for _ in 0..ns >> POWERS {
            let half = 1 << (POWERS - 1);
            self.advance(x, inputs.as_slice(), half);
            self.advance(x, inputs.as_slice(), half);
        }
    }

    /// Returns the matrices of the states and of the inputs for a step of `ns`.
    pub fn matrices(&self, ns: u64) -> (DMatrix<f64>, DMatrix<f64>) {
        discrete(&self.a, &self.b, ns as f64 * 1e-9)
    }
}

/// Returns the matrices of the states and of the inputs for a step of `seconds`.
pub(crate) fn discrete(
    a: &DMatrix<f64>,
    b: &DMatrix<f64>,
    seconds: f64,
) -> (DMatrix<f64>, DMatrix<f64>) {
    let (states, inputs) = (a.nrows(), b.ncols());
    let both = with_inputs(a, b) * seconds;
    let step = both.exp();
    (
        step.view((0, 0), (states, states)).into_owned(),
        step.view((0, states), (states, inputs)).into_owned(),
    )
}

/// Returns the block matrix [A B; 0 0].
pub(crate) fn with_inputs(a: &DMatrix<f64>, b: &DMatrix<f64>) -> DMatrix<f64> {
    let (states, inputs) = (a.nrows(), b.ncols());
    let mut both = DMatrix::zeros(states + inputs, states + inputs);
    both.view_mut((0, 0), (states, states)).copy_from(a);
    both.view_mut((0, states), (states, inputs)).copy_from(b);
    both
}

/// Returns the greatest magnitude of the eigenvalues: a discrete system is stable below 1. Returns infinity if the
/// eigenvalues cannot be found.
pub fn spectral_radius(matrix: &DMatrix<f64>) -> f64 {
    let values = eigenvalues(matrix);
    values.map_or(f64::INFINITY, |values| {
        let magnitudes = values.iter().map(|[re, im]| re.hypot(*im));
        magnitudes.fold(0.0, f64::max)
    })
}

/// Limit on the iterations for eigenvalues; a matrix takes a few for each row.
const ITERATIONS: usize = 10_000;

/// Returns the eigenvalues as pairs of real and imaginary part; those of A are the poles of a plant, 1/s. Returns
/// `None` if they cannot be found.
pub fn eigenvalues(matrix: &DMatrix<f64>) -> Option<Vec<[f64; 2]>> {
    if matrix.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let schur = nalgebra::linalg::Schur::try_new(matrix.clone(), 1e-13, ITERATIONS)?;
    let values = schur.complex_eigenvalues();
    Some(values.iter().map(|value| [value.re, value.im]).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Returns the steps of a double integrator: x += v t + u t²/2, v += u t.
    fn integrator() -> Steps {
        Steps::new(
            &DMatrix::from_row_slice(2, 2, &[0.0, 1.0, 0.0, 0.0]),
            &DMatrix::from_row_slice(2, 1, &[0.0, 1.0]),
        )
    }

    #[test]
    fn an_integration_step_of_any_length_is_exact() {
        let steps = integrator();
        for ns in [1, 999, 35_000_000, 1_234_567_891, (1 << 36) + 5] {
            let mut x = DVector::from_vec(vec![1.0, 2.0]);
            steps.advance(&mut x, &[3.0, 0.0], ns);
            let t = ns as f64 * 1e-9;
            let wanted = [1.0 + 2.0 * t + 1.5 * t * t, 2.0 + 3.0 * t];
            for (found, wanted) in x.iter().zip(wanted) {
                assert!(
                    (found / wanted - 1.0).abs() < 1e-12,
                    "{ns}: {found} {wanted}"
                );
            }
        }
    }

    #[test]
    fn two_partial_integration_steps_equal_one_complete_step() {
        let steps = integrator();
        let (mut one, mut two) = (
            DVector::from_vec(vec![1.0, 2.0]),
            DVector::from_vec(vec![1.0, 2.0]),
        );
        steps.advance(&mut one, &[-1.0], 35_000_000);
        steps.advance(&mut two, &[-1.0], 12_345_678);
        steps.advance(&mut two, &[-1.0], 35_000_000 - 12_345_678);
        assert!((one - two).norm() < 1e-13);
    }

    #[test]
    fn the_spectral_radius_of_a_rotation_is_its_magnitude() {
        let turn = DMatrix::from_row_slice(2, 2, &[0.0, -0.5, 0.5, 0.0]);
        assert!((spectral_radius(&turn) - 0.5).abs() < 1e-12);
        assert!(spectral_radius(&DMatrix::from_element(1, 1, f64::NAN)).is_infinite());
    }
}
