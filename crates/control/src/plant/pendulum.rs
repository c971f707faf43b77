//! The pendulum on a cart, simulated as a non-linear body: a cart moved by a force, and a rod that may fall.
//!
//! Xiang et al. (CALVIN, JSAC 2019), Fig. 1, balance a pendulum over delays of 1, 40 and 50 ms and inter-packet times
//! of 1, 5 and 10 ms. The paper does not specify the pendulum's parameters; the parameters here are taut's own. The
//! equations of motion are those of Åström and Furuta (Automatica 36, 2000).

use super::Plant;
use super::linear::Sensors;
use super::robot::whole;
use crate::model::{Inputs, MOST_INPUTS, Model, Parts, Readings, Sensor};
use nalgebra::DVector;

/// Name of the plant.
pub(super) const NAME: &str = "pendulum";
/// Name of the plant that hangs down at first.
pub(super) const HANGING: &str = "pendulum-hanging";

const CART_KG: f64 = 0.5;
const ROD_KG: f64 = 0.2;
/// Distance from the pivot to the middle of the rod, which is 0.6 m long.
const ROD_M: f64 = 0.3;
/// Friction of the cart, N s/m.
const FRICTION: f64 = 0.1;
const GRAVITY: f64 = 9.81;
/// Longest step of the fourth-order Runge-Kutta method; the error of each step is below 1e-9 of a degree.
const STEP_NS: u64 = 500_000;

/// Returns the pendulum near its upright position, with position (m), angle (rad) and their rates as states. The force
/// is at most 20 N; the sensors resolve the position to 0.1 mm and the angle to a tenth of a degree.
pub fn pendulum() -> Model {
    // The model is linear about the upright position; the rod's inertia about its middle is m l²/3.
    let inertia = ROD_KG * ROD_M * ROD_M / 3.0;
    let turned = inertia + ROD_KG * ROD_M * ROD_M;
    let d = (CART_KG + ROD_KG) * turned - (ROD_KG * ROD_M).powi(2);
    let coupling = ROD_KG * ROD_M;
    let weight = coupling * GRAVITY;
    let a = vec![
        vec![0.0, 0.0, 1.0, 0.0],
        vec![0.0, 0.0, 0.0, 1.0],
        vec![0.0, -coupling * weight / d, -turned * FRICTION / d, 0.0],
        vec![
            0.0,
            (CART_KG + ROD_KG) * weight / d,
            coupling * FRICTION / d,
            0.0,
        ],
    ];
    let b = vec![vec![0.0], vec![0.0], vec![turned / d], vec![-coupling / d]];
    let sensor = |name: &str, row: [f64; 4], resolution| Sensor {
        name: name.to_owned(),
        row: row.to_vec(),
        resolution,
        noise: 0.0,
        bias: 0.0,
    };
    whole(Parts {
        name: NAME.to_owned(),
        states: ["position", "angle", "speed", "angular rate"]
            .map(str::to_owned)
            .to_vec(),
        a,
        b,
        sensors: vec![
            sensor("position", [1.0, 0.0, 0.0, 0.0], 1e-4),
            sensor("angle", [0.0, 1_f64.to_degrees(), 0.0, 0.0], 0.1),
        ],
        integral: None,
        balance: 1,
        bound: 45_f64.to_radians(),
        travel: 0,
        scale: [1_f64.to_degrees(), 1.0],
        units: ["degrees".to_owned(), "m".to_owned()],
        start: vec![0.0, 5_f64.to_radians(), 0.0, 0.0],
        limit: 20.0,
        step: 0.0,
        period_ns: 5_000_000,
        weights: vec![10.0, 100.0, 1.0, 1.0],
        input_weight: 0.1,
    })
}

/// Returns the pendulum hanging down. The cart can do more than swing it up: 20 N accelerate it by 2.9 g.
pub(super) fn hanging() -> Model {
    let mut parts = pendulum().parts().clone();
    parts.name = HANGING.to_owned();
    parts.start = vec![0.0, std::f64::consts::PI, 0.0, 0.0];
    whole(parts)
}

/// Energy of the rod, J: 0 if it stands still upright.
pub(crate) fn rod_energy(angle: f64, rate: f64) -> f64 {
    let turned = ROD_KG * ROD_M * ROD_M * 4.0 / 3.0;
    0.5 * turned * rate * rate + ROD_KG * GRAVITY * ROD_M * (angle.cos() - 1.0)
}

/// Returns the force, N, that accelerates the cart by `acceleration`, m/s², in the given states.
pub(crate) fn force_for(x: &[f64], acceleration: f64) -> f64 {
    let (angle, speed, rate) = (x[1], x[2], x[3]);
    let (sine, cosine) = angle.sin_cos();
    let coupling = ROD_KG * ROD_M;
    let turned = coupling * ROD_M * 4.0 / 3.0;
    // The second equation of `cart_rates` gives the rod's acceleration, the first the force.
    let angular = (coupling * GRAVITY * sine - coupling * cosine * acceleration) / turned;
    (CART_KG + ROD_KG) * acceleration + coupling * cosine * angular - coupling * rate * rate * sine
        + FRICTION * speed
}

/// Returns the time derivatives of position, angle and their rates with a force on the cart, N.
pub(super) fn cart_rates(x: &[f64; 4], force: f64) -> [f64; 4] {
    let [_, angle, speed, rate] = *x;
    let (sine, cosine) = angle.sin_cos();
    let coupling = ROD_KG * ROD_M;
    let inertia = ROD_KG * ROD_M * ROD_M / 3.0;
    let turned = inertia + coupling * ROD_M;
    // (M+m) x'' + m l cos(q) q'' = F - c x' + m l q'^2 sin(q);  m l cos(q) x'' + (I + m l²) q'' = m g l sin(q)
    let force = force - FRICTION * speed + coupling * rate * rate * sine;
    let torque = coupling * GRAVITY * sine;
    let (mass, cross) = (CART_KG + ROD_KG, coupling * cosine);
    let d = mass * turned - cross * cross;
    [
        speed,
        rate,
        (turned * force - cross * torque) / d,
        (mass * torque - cross * force) / d,
    ]
}

/// The pendulum as a non-linear body.
#[derive(Debug, Clone)]
pub struct CartPendulum {
    model: Model,
    sensors: Sensors,
    x: DVector<f64>,
    inputs: Inputs,
}

impl CartPendulum {
    /// Makes a pendulum in the initial state of `model`.
    pub fn new(model: &Model, seed: u64) -> Self {
        Self {
            sensors: Sensors::new(model, seed),
            x: model.start(),
            inputs: [0.0; MOST_INPUTS],
            model: model.clone(),
        }
    }

    /// Returns the time derivatives of the states.
    fn rates(&self, x: &[f64; 4]) -> [f64; 4] {
        cart_rates(x, self.inputs[0])
    }

    fn step(&mut self, seconds: f64) {
        let x = [self.x[0], self.x[1], self.x[2], self.x[3]];
        let along = |rates: [f64; 4], share: f64| {
            std::array::from_fn(|state| x[state] + rates[state] * seconds * share)
        };
        let first = self.rates(&x);
        let second = self.rates(&along(first, 0.5));
        let third = self.rates(&along(second, 0.5));
        let fourth = self.rates(&along(third, 1.0));
        for state in 0..4 {
            let sum = first[state] + 2.0 * (second[state] + third[state]) + fourth[state];
            self.x[state] += sum * seconds / 6.0;
        }
    }
}

impl Plant for CartPendulum {
    fn model(&self) -> &Model {
        &self.model
    }

    fn advance(&mut self, mut ns: u64) {
        // A fallen pendulum is not simulated any further, because its angle only grows.
        while ns > 0 && !self.has_fallen() {
            let step_ns = ns.min(STEP_NS);
            self.step(step_ns as f64 * 1e-9);
            ns -= step_ns;
        }
    }

    fn apply(&mut self, inputs: &Inputs) -> Inputs {
        self.inputs = self.model.actuated(inputs);
        self.inputs
    }

    fn read(&mut self) -> Readings {
        self.sensors.read(&self.model, &self.x)
    }

    fn offset(&self) -> f64 {
        self.sensors.offset
    }

    fn balance(&self) -> f64 {
        self.x[1].to_degrees()
    }

    fn travel(&self) -> f64 {
        self.x[0]
    }

    fn push(&mut self, rate: f64) {
        self.x[3] += rate.to_radians();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::LinearPlant;
    use super::*;

    #[test]
    fn the_pendulum_agrees_with_its_linear_model_near_upright() {
        let mut parts = pendulum().parts().clone();
        parts.start = vec![0.0, 1e-4, 0.0, 0.0];
        let model = Model::new(parts).unwrap();
        let (mut body, mut linear) = (CartPendulum::new(&model, 1), LinearPlant::new(&model, 1));
        for plant in [&mut body as &mut dyn Plant, &mut linear] {
            plant.apply(&[0.01, 0.0]);
            plant.advance(300_000_000);
        }
        assert!((body.balance() / linear.balance() - 1.0).abs() < 1e-4);
        assert!((body.travel() / linear.travel() - 1.0).abs() < 1e-4);
    }

    #[test]
    fn energy_is_conserved_without_friction_and_external_force() {
        let mut plant = CartPendulum::new(&pendulum(), 1);
        let energy = |x: &DVector<f64>| {
            let (v, w) = (x[2], x[3]);
            let inertia = ROD_KG * ROD_M * ROD_M * 4.0 / 3.0;
            0.5 * (CART_KG + ROD_KG) * v * v
                + 0.5 * inertia * w * w
                + ROD_KG * ROD_M * x[1].cos() * (v * w + GRAVITY)
        };
        let before = energy(&plant.x);
        // The force compensates the friction at the current speed of the cart, so that energy is conserved.
        for _ in 0..1000 {
            plant.inputs[0] = FRICTION * plant.x[2];
            plant.step(2e-4);
        }
        let lost = (energy(&plant.x) - before).abs();
        assert!(lost < 1e-5 * before, "{lost} of {before}");
    }
}
