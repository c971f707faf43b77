//! Equations of motion that hold far from upright, for plants that erect themselves and for their controllers.
//!
//! The robot's equations are those of a two-wheeled inverted pendulum with two motors between body and wheels
//! (Yamamoto, NXTway-GS Model-Based Design, 2009, section 3; Kim and Kwon, Journal of Intelligent and Robotic Systems
//! 79, 2015). Their parameters follow from the published linear model (`robot.rs`), up to a common factor that cancels
//! out. With the inertia of wheels and motors as seen by the wheels' angle as unit:
//!
//! ```text
//! w' + (h cos p - c) q' - h q^2 sin p = T           w, q: rates of wheels and pitch; p: pitch
//! (h cos p - c) w' + j q' - m sin p = -T            T = v (u1 + u2) - d (w - q): torque of the motors
//! ```
//!
//! The linear model gives h - c, j, m, v and d. It cannot tell h (mass and height of the body times the wheels' radius)
//! from c (inertia of the motors). But h is m times the radius over g, so that h is 3.534 and c is 0.101.

use super::pendulum::{self, cart_rates};
use super::robot::{self, WHEEL_RADIUS_M};
use crate::model::{Inputs, Model};
use nalgebra::DVector;

/// Acceleration of free fall, m/s².
const GRAVITY: f64 = 9.81;
/// Longest step of the fourth-order Runge-Kutta method, ns. The shortest time constant, of the robot's motors, is 6 ms.
const STEP_NS: u64 = 500_000;
/// Number of states of the robot.
const ROBOT_STATES: usize = 7;

/// States of a body; entries beyond its number of states are 0.
type States = [f64; ROBOT_STATES];

/// A body whose equations of motion hold at any angle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Body {
    /// The pendulum on a cart, which swings freely all around.
    Cart,
    /// The two-wheeled robot, which lies on the ground at a pitch.
    Robot(Wheeled),
}

/// The parameters of the two-wheeled robot in the equations of this module.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wheeled {
    h: f64,
    c: f64,
    j: f64,
    m: f64,
    v: f64,
    d: f64,
    /// Pitch at which the body lies on the ground, on either side, rad.
    lying_rad: f64,
    /// The rows of the linear model that hold at any pitch: yaw rate and gyroscope, of the states and of the inputs.
    yaw: [f64; 3],
    gyroscope_lag_s: f64,
}

impl Wheeled {
    /// Returns the parameters of the published robot, which lies on the ground at `lying_rad`.
    pub(super) fn published(lying_rad: f64) -> Self {
        let model = robot::robot();
        let (a, b) = (model.a(), model.b());
        let cross = -a[(2, 1)] / a[(3, 1)];
        let ratio = -b[(2, 0)] / b[(3, 0)];
        let j = ratio * (1.0 + cross) - cross;
        let determinant = j - cross * cross;
        let m = a[(3, 1)] * determinant;
        let v = -b[(3, 0)] * determinant / (1.0 + cross);
        let h = m / GRAVITY * WHEEL_RADIUS_M;
        Self {
            h,
            c: h - cross,
            j,
            m,
            v,
            d: v * a[(2, 3)] / b[(2, 0)],
            lying_rad,
            yaw: [a[(5, 5)], b[(5, 0)], b[(5, 1)]],
            gyroscope_lag_s: -1.0 / a[(6, 6)],
        }
    }

    /// Returns the rate of the wheels without load, rad/s, with `volts` at both motors.
    pub(crate) fn free_rate(&self, volts: f64) -> f64 {
        self.v * 2.0 * volts / self.d
    }

    /// Returns the pitch at which the body lies on the ground, rad.
    pub(crate) fn lying_rad(&self) -> f64 {
        self.lying_rad
    }

    /// Returns the sum of kinetic and potential energy, in the unit of this module's equations.
    #[cfg(test)]
    fn energy(&self, x: &[f64]) -> f64 {
        let (w, q, cosine) = (x[2], x[3], x[1].cos());
        0.5 * (w * w + self.j * q * q) + (self.h * cosine - self.c) * w * q + self.m * cosine
    }

    fn rates(&self, x: &States, inputs: &Inputs) -> States {
        let (pitch, w, q) = (x[1], x[2], x[3]);
        let (sine, cosine) = pitch.sin_cos();
        let torque = self.v * (inputs[0] + inputs[1]) - self.d * (w - q);
        let cross = self.h * cosine - self.c;
        let (first, second) = (torque + self.h * q * q * sine, self.m * sine - torque);
        let determinant = self.j - cross * cross;
        let mut rates = [
            (self.j * first - cross * second) / determinant,
            (second - cross * first) / determinant,
        ];
        // The ground only pushes: the body stays on it while its weight and the motors press it down.
        let side = pitch.signum();
        let lies = pitch.abs() >= self.lying_rad && q * side >= 0.0;
        let is_held = lies && rates[1] * side >= 0.0;
        if is_held {
            rates = [self.v * (inputs[0] + inputs[1]) - self.d * w, 0.0];
        }
        let [yaw, left, right] = self.yaw;
        [
            w,
            if is_held { 0.0 } else { q },
            rates[0],
            rates[1],
            x[5],
            yaw * x[5] + left * inputs[0] + right * inputs[1],
            (q - x[6]) / self.gyroscope_lag_s,
        ]
    }

    /// Ends the motion of a body that has reached the ground: it does not bounce.
    fn land(&self, x: &mut States) {
        if x[1].abs() >= self.lying_rad {
            let side = x[1].signum();
            x[1] = self.lying_rad * side;
            if x[3] * side > 0.0 {
                x[3] = 0.0;
            }
        }
    }
}

impl Body {
    /// Returns the body of a plant that erects itself; `None` for all other plants.
    pub(crate) fn of(model: &Model) -> Option<Self> {
        match model.name() {
            pendulum::HANGING => Some(Self::Cart),
            robot::LYING | robot::ON_A_STAND => {
                let lying_rad = model.parts().start[model.parts().balance].abs();
                Some(Self::Robot(Wheeled::published(lying_rad)))
            }
            _ => None,
        }
    }

    /// Advances the states by `ns` while the inputs hold.
    pub(crate) fn advance(&self, x: &mut DVector<f64>, inputs: &Inputs, mut ns: u64) {
        let mut states = [0.0; ROBOT_STATES];
        states[..x.len()].copy_from_slice(x.as_slice());
        while ns > 0 {
            let step_ns = ns.min(STEP_NS);
            self.step(&mut states, inputs, step_ns as f64 * 1e-9);
            ns -= step_ns;
        }
        x.copy_from_slice(&states[..x.len()]);
    }

    fn rates(&self, x: &States, inputs: &Inputs) -> States {
        match self {
            Self::Cart => {
                let mut rates = [0.0; ROBOT_STATES];
                rates[..4].copy_from_slice(&cart_rates(&[x[0], x[1], x[2], x[3]], inputs[0]));
                rates
            }
            Self::Robot(robot) => robot.rates(x, inputs),
        }
    }

    fn step(&self, x: &mut States, inputs: &Inputs, seconds: f64) {
        let along = |rates: &States, share: f64| -> States {
            std::array::from_fn(|state| x[state] + rates[state] * seconds * share)
        };
        let first = self.rates(x, inputs);
        let second = self.rates(&along(&first, 0.5), inputs);
        let third = self.rates(&along(&second, 0.5), inputs);
        let fourth = self.rates(&along(&third, 1.0), inputs);
        for (state, value) in x.iter_mut().enumerate() {
            let sum = first[state] + 2.0 * (second[state] + third[state]) + fourth[state];
            *value += sum * seconds / 6.0;
        }
        match self {
            Self::Cart => x[1] = wrapped(x[1]),
            Self::Robot(robot) => robot.land(x),
        }
    }
}

/// Returns the angle reduced to the range from -pi to pi, rad.
pub(crate) fn wrapped(angle: f64) -> f64 {
    use std::f64::consts::{PI, TAU};
    (angle + PI).rem_euclid(TAU) - PI
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plant::{LinearPlant, Plant, robot};

    const UPRIGHT: f64 = 1.0;

    fn body(lying_rad: f64) -> Wheeled {
        Wheeled::published(lying_rad)
    }

    #[test]
    fn published_matrices_give_the_parameters_of_the_body() {
        let it = body(UPRIGHT);
        for (found, wanted) in [
            (it.h, 3.533_527),
            (it.c, 0.100_853),
            (it.j, 32.310_767),
            (it.m, 1_260.505),
            (it.free_rate(8.0), 15.551_2),
        ] {
            assert!((found / wanted - 1.0).abs() < 1e-5, "{found} {wanted}");
        }
    }

    #[test]
    fn energy_is_conserved_without_friction_and_voltage() {
        let mut free = body(1e9);
        free.d = 0.0;
        let mut x = DVector::from_vec(vec![0.0, 0.4, 3.0, -1.0, 0.0, 0.0, 0.0]);
        let before = free.energy(x.as_slice());
        Body::Robot(free).advance(&mut x, &[0.0; 2], 1_000_000_000);
        let after = free.energy(x.as_slice());
        assert!(x[1] > 1.0, "it has fallen far: {x}");
        assert!((after / before - 1.0).abs() < 1e-7, "{before} {after}");
    }

    #[test]
    fn the_body_agrees_with_the_published_model_near_upright() {
        let model = robot();
        let mut linear = LinearPlant::new(&model, 1);
        linear.push(0.01);
        let mut x = DVector::zeros(7);
        x[3] = 0.01_f64.to_radians();
        for inputs in [[0.01, 0.02], [-0.03, 0.01], [0.0, -0.02]] {
            // The motors' steps are coarser than these voltages, so both get what the motors make of them.
            let inputs = linear.apply(&inputs.map(|it: f64| it * 5.0));
            linear.advance(50_000_000);
            Body::Robot(body(UPRIGHT)).advance(&mut x, &inputs, 50_000_000);
            for (state, (found, wanted)) in x.iter().zip(linear.states().iter()).enumerate() {
                let close = (found - wanted).abs() < 1e-3 * wanted.abs() + 1e-7;
                assert!(close, "{state}: {found} {wanted}");
            }
        }
    }

    /// Returns the greatest pitch, degrees, that the body reaches if it drives away at `volts` and then reverses.
    fn reached_by_a_kick(lying_deg: f64, volts: f64) -> f64 {
        let lying_rad = lying_deg.to_radians();
        let kicked = Body::Robot(body(lying_rad));
        let mut x = DVector::zeros(7);
        x[1] = -lying_rad;
        kicked.advance(&mut x, &[volts; 2], 500_000_000);
        let mut most = -lying_deg;
        for _ in 0..2_000 {
            kicked.advance(&mut x, &[-volts; 2], 1_000_000);
            most = most.max(x[1].to_degrees());
        }
        most
    }

    /// NCSbench's robot lies at 59.2 degrees. With 8 V it lifts its body by less than four of them.
    #[test]
    fn the_published_robot_cannot_rise_from_the_ground() {
        let lying_deg = 1.0325_f64.to_degrees();
        let most = reached_by_a_kick(lying_deg, 8.0);
        assert!((most + 55.3).abs() < 0.1, "{most}");
        let least = (8..40).find(|volts| reached_by_a_kick(lying_deg, f64::from(*volts)) > 0.0);
        assert_eq!(least, Some(21), "lowest whole voltage that suffices");
        let farthest = (1..60).rfind(|deg| reached_by_a_kick(f64::from(*deg), 8.0) > 0.0);
        assert_eq!(farthest, Some(30), "greatest whole angle with 8 V");
    }
}
