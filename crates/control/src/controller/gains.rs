//! Computes controller gains: the published gains, gains for other sampling periods, and gains for a delay between
//! reading the sensors and applying the inputs.
//!
//! NCSbench has a table of gains for 5 to 50 ms in steps of 0.5 ms (`controller_params.py`). It is the sampled
//! linear-quadratic regulator of the published model for weights that are not published; the weights in
//! `plant/robot.rs` reproduce the table.

use super::riccati::{Cost, gain, sampled_gain};
use crate::model::{Model, ModelError};
use crate::steps::discrete;
use nalgebra::DMatrix;

/// Returns the gain K of u = -K x for the model's sampling period. If the model has an integral, it is the first state.
///
/// # Errors
/// No gain makes the loop stable.
pub fn gain_of(model: &Model) -> Result<DMatrix<f64>, ModelError> {
    let (a, b) = model.with_integral();
    let parts = model.parts();
    let period_s = parts.period_ns as f64 * 1e-9;
    sampled_gain(&a, &b, &parts.weights, parts.input_weight, period_s).ok_or_else(|| {
        ModelError::NotControllable {
            plant: model.name().to_owned(),
        }
    })
}

/// Returns the gain for inputs that are applied `delay_ns`, less than a period, after the reading. Its columns are for
/// the states, followed by the inputs that are in force until the new inputs are applied.
///
/// # Errors
/// No gain makes the plant stable.
pub fn gain_for_delay(model: &Model, delay_ns: u64) -> Result<DMatrix<f64>, ModelError> {
    let (a, b) = model.with_integral();
    let parts = model.parts();
    let (states, inputs) = (a.nrows(), b.ncols());
    let before_s = delay_ns.min(parts.period_ns - 1) as f64 * 1e-9;
    let after_s = parts.period_ns as f64 * 1e-9 - before_s;
    let (a_before, b_before) = discrete(&a, &b, before_s);
    let (a_after, b_after) = discrete(&a, &b, after_s);
    // The augmented states are z = [x, previous u]; the new inputs become the previous ones of the next period.
    let held = states + inputs;
    let mut az = DMatrix::zeros(held, held);
    az.view_mut((0, 0), (states, states))
        .copy_from(&(&a_after * &a_before));
    az.view_mut((0, states), (states, inputs))
        .copy_from(&(&a_after * &b_before));
    let mut bz = DMatrix::zeros(held, inputs);
    bz.view_mut((0, 0), (states, inputs)).copy_from(&b_after);
    bz.view_mut((states, 0), (inputs, inputs))
        .fill_with_identity();
    // The sum of the costs before and after the inputs change within the period, in terms of [x, u before, u after].
    let all = held + inputs;
    let mut first = DMatrix::zeros(held, all);
    first.view_mut((0, 0), (held, held)).fill_with_identity();
    let mut second = DMatrix::zeros(held, all);
    second
        .view_mut((0, 0), (states, states))
        .copy_from(&a_before);
    second
        .view_mut((0, states), (states, inputs))
        .copy_from(&b_before);
    second
        .view_mut((states, held), (inputs, inputs))
        .fill_with_identity();
    let mut whole = DMatrix::zeros(all, all);
    for (part, seconds) in [(first, before_s), (second, after_s)] {
        let cost = Cost::sampled(&a, &b, &parts.weights, parts.input_weight, seconds);
        let mut both = DMatrix::zeros(held, held);
        both.view_mut((0, 0), (states, states)).copy_from(&cost.q);
        both.view_mut((0, states), (states, inputs))
            .copy_from(&cost.s);
        both.view_mut((states, 0), (inputs, states))
            .copy_from(&cost.s.transpose());
        both.view_mut((states, states), (inputs, inputs))
            .copy_from(&cost.r);
        whole += part.transpose() * both * part;
    }
    let cost = Cost {
        q: whole.view((0, 0), (held, held)).into_owned(),
        s: whole.view((0, held), (held, inputs)).into_owned(),
        r: whole.view((held, held), (inputs, inputs)).into_owned(),
    };
    gain(&az, &bz, &cost).ok_or_else(|| ModelError::NotControllable {
        plant: model.name().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::plant::{model, robot};
    use crate::steps::{Steps, spectral_radius};

    /// Rows of NCSbench's table of gains (MIT), period in ms first, and the gain of its controller.py for 35 ms last.
    #[rustfmt::skip]
    const PUBLISHED: [[f64; 8]; 12] = [
        [5.0, -0.193962, -0.5105947, -62.35514, -1.186364, -9.88879, -6.926352, -0.05060725],
        [10.0, -0.1881083, -0.4956695, -61.36607, -1.167361, -9.730694, -6.785336, -0.04984694],
        [15.0, -0.1824323, -0.4811921, -60.40649, -1.148922, -9.577316, -6.648323, -0.0490206],
        [20.0, -0.1769282, -0.4671474, -59.47533, -1.131028, -9.428484, -6.515409, -0.04816403],
        [25.0, -0.1715904, -0.4535217, -58.57166, -1.113662, -9.284045, -6.386569, -0.04729849],
        [30.0, -0.1664139, -0.4403017, -57.69457, -1.096805, -9.143858, -6.26172, -0.04643663],
        [34.5, -0.1618888, -0.4287404, -56.92723, -1.082058, -9.021214, -6.152671, -0.04567039],
        [35.0, -0.1613936, -0.4274751, -56.84323, -1.080444, -9.007788, -6.140744, -0.04558597],
        [35.5, -0.1609, -0.4262136, -56.75949, -1.078834, -8.994403, -6.128854, -0.04550171],
        [40.0, -0.1565249, -0.4150296, -56.01685, -1.064562, -8.875708, -6.023507, -0.04475093],
        [50.0, -0.1472238, -0.3912363, -54.43587, -1.034177, -8.623024, -5.799698, -0.04313661],
        [35.0, -0.161394, -0.427475, -56.843234, -1.080444, -9.007788, -6.140744, -0.045586],
    ];

    #[test]
    fn our_solver_reproduces_the_published_gains() {
        for [period_ms, gains @ ..] in PUBLISHED {
            let model = robot().with_period_ns((period_ms * 1e6) as u64).unwrap();
            let found = gain_of(&model).unwrap();
            for (state, wanted) in gains.into_iter().enumerate() {
                // Precision as printed: seven digits, and six after the decimal point for the last row.
                let error = (found[(0, state)] - wanted).abs();
                assert!(
                    error < 1e-6 * wanted.abs() + 5e-7,
                    "{period_ms} ms: {found} against {wanted}"
                );
                let mirrored = if state < 5 { wanted } else { -wanted };
                assert!((found[(1, state)] - mirrored).abs() < 1e-6 * wanted.abs() + 5e-7);
            }
        }
    }

    /// Returns the greatest magnitude of the eigenvalues of a loop that has a delay but uses the gains for no delay.
    /// The loop has no quantisation, noise or limits.
    fn radius_with_delay(delay_ns: u64) -> f64 {
        let model = robot();
        let (a, b) = model.with_integral();
        let gain = gain_of(&model).unwrap();
        let steps = Steps::new(&a, &b);
        let (whole, rest) = (delay_ns / model.period_ns(), delay_ns % model.period_ns());
        let depth = whole as usize + 1;
        let (a_all, _) = steps.matrices(model.period_ns());
        let (_, b_rest) = steps.matrices(rest);
        let (a_after, b_after) = steps.matrices(model.period_ns() - rest);
        let states = a.nrows();
        let size = states + 2 * depth;
        let mut next = DMatrix::zeros(size, size);
        next.view_mut((0, 0), (states, states)).copy_from(&a_all);
        // The augmented state is z = [x; u of one period ago; u of two periods ago; ...].
        let mut put = |back: usize, b: DMatrix<f64>| match back {
            0 => {
                let mut view = next.view_mut((0, 0), (states, states));
                view -= b * &gain;
            }
            back => {
                let mut view = next.view_mut((0, states + 2 * (back - 1)), (states, 2));
                view += b;
            }
        };
        put(whole as usize + 1, a_after * b_rest);
        put(whole as usize, b_after);
        next.view_mut((states, 0), (2, states)).copy_from(&-gain);
        for back in 1..depth {
            next.view_mut((states + 2 * back, states + 2 * (back - 1)), (2, 2))
                .fill_with_identity();
        }
        spectral_radius(&next)
    }

    #[test]
    fn fixed_gains_become_unstable_between_80_and_90_ms_delay() {
        assert!((radius_with_delay(0) - 0.985).abs() < 1e-3);
        for ms in [10, 35, 50, 80] {
            let radius = radius_with_delay(ms * 1_000_000);
            assert!(radius < 1.0, "{ms} ms: {radius}");
        }
        assert!(radius_with_delay(90_000_000) > 1.0);
    }

    #[test]
    fn the_gain_for_zero_delay_equals_the_fixed_gain() {
        let model = robot();
        let (fixed, delayed) = (gain_of(&model).unwrap(), gain_for_delay(&model, 0).unwrap());
        assert!((delayed.columns(0, 8) - fixed).norm() < 1e-6);
        assert!(delayed.columns(8, 2).norm() < 1e-9);
    }

    #[test]
    fn every_plant_has_gains_for_any_delay_within_a_period() {
        for name in crate::plant::NAMES {
            let model = model(name).unwrap();
            for share in [0, 1, 5, 9] {
                gain_for_delay(&model, model.period_ns() * share / 10).unwrap();
            }
        }
    }

    #[test]
    fn the_error_for_an_uncontrollable_plant_names_the_plant() {
        let mut parts = robot().parts().clone();
        for row in &mut parts.b {
            row.fill(0.0);
        }
        let refused = gain_of(&Model::new(parts).unwrap()).unwrap_err();
        assert!(refused.to_string().contains("robot"), "{refused}");
    }
}
