//! Erects a plant that begins down, and hands it over to the balancing controller.
//!
//! A pendulum on a cart is swung up by its energy (Åström and Furuta, Automatica 36, 2000). The cart accelerates so
//! that the rod's energy approaches that of the upright position. A robot on its wheels has only one try. It drives
//! away at full voltage, pressed to the ground by its motors, and reverses. The motors' torque and the braking of the
//! wheels throw the body up.
//!
//! Both hand over as soon as the unstable mode is within what the inputs can hold. A linear plant with left eigenvector
//! v of the pole p can be balanced by inputs of up to u if |v x| < |v B| u / p.

use crate::model::{Inputs, MOST_INPUTS, Model};
use crate::plant::{Body, force_for, rod_energy, wrapped};
use crate::protocol::Report;
use nalgebra::{DMatrix, DVector};

/// Fraction of the range in which the inputs can hold the unstable mode of the linear plant; within it the balancing
/// controller takes over. The margin is for errors of the linear model and for delay.
const TAKEN_SHARE: f64 = 0.7;
/// Fraction of the wheels' rate without load at which a robot reverses.
const WOUND_SHARE: f64 = 0.95;
/// Largest acceleration of the cart while the rod swings up, m/s², and the gain from the rod's energy times its rate to
/// that acceleration.
const SWINGS: (f64, f64) = (6.0, 40.0);
/// Accelerations that keep the cart near its start, per position and per speed, 1/s² and 1/s.
const CENTRED: (f64, f64) = (1.0, 1.0);
/// Rate of the rod below which it counts as hanging still, rad/s.
const STILL: f64 = 0.05;
/// Fraction of a reading's deviation by which the estimate is corrected, and fraction by which the estimated rate is
/// corrected.
const CORRECTED: (f64, f64) = (0.7, 0.3);

/// The part of a controller that erects a plant.
#[derive(Debug, Clone)]
pub(super) struct SwingUp {
    body: Body,
    /// Left eigenvector of the unstable pole.
    unstable: DVector<f64>,
    /// Largest magnitude of the unstable mode that the inputs can hold.
    most: f64,
    /// Estimated states at the last report.
    x: DVector<f64>,
    applied: Inputs,
    last_read_ns: Option<u64>,
    /// True once a robot has reversed.
    is_thrown: bool,
    is_done: bool,
}

impl SwingUp {
    /// Makes the swing-up part of the controller for a plant; `None` if the plant begins upright.
    pub(super) fn new(model: &Model) -> Option<Self> {
        let body = Body::of(model)?;
        let (unstable, pole) = unstable_mode(model.a());
        let inputs = (unstable.transpose() * model.b()).abs().sum();
        Some(Self {
            body,
            unstable,
            most: inputs * model.parts().limit / pole,
            x: model.start(),
            applied: [0.0; MOST_INPUTS],
            last_read_ns: None,
            is_thrown: false,
            is_done: false,
        })
    }

    /// Returns true if the balancing controller has taken over.
    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Hands over to the balancing controller.
    pub(super) fn end(&mut self) {
        self.is_done = true;
    }

    /// Returns the inputs for a plant in states `x`; `None` if the balancing controller can take over.
    pub(super) fn inputs(&mut self, model: &Model, x: &DVector<f64>) -> Option<Inputs> {
        let parts = model.parts();
        let mode = self.unstable.dot(x);
        let is_near = x[parts.balance].abs() < parts.bound;
        if is_near && mode.abs() < TAKEN_SHARE * self.most {
            return None;
        }
        let limit = parts.limit;
        Some(match self.body {
            Body::Cart => [swing(x).clamp(-limit, limit), 0.0],
            Body::Robot(robot) => {
                let side = x[1].signum();
                let is_down = x[1].abs() >= 0.99 * robot.lying_rad();
                let is_wound = -x[2] * side >= WOUND_SHARE * robot.free_rate(limit);
                self.is_thrown = if is_down {
                    self.is_thrown || is_wound
                } else {
                    true
                };
                // Driving towards the ground side raises the body; driving away presses it down.
                let volts = if self.is_thrown { limit } else { -limit };
                // A robot that was thrown and lies again has to wind up again.
                if is_down && self.is_thrown && x[2] * side >= WOUND_SHARE * robot.free_rate(limit)
                {
                    self.is_thrown = false;
                }
                [volts * side; 2]
            }
        })
    }

    /// Advances states by `ns` while the inputs hold.
    pub(super) fn advance(&self, x: &mut DVector<f64>, inputs: &Inputs, ns: u64) {
        self.body.advance(x, inputs, ns);
    }

    /// Processes a report, and returns the estimated states at its reading.
    pub(super) fn update(
        &mut self,
        model: &Model,
        report: &Report,
        elapsed_ns: u64,
    ) -> DVector<f64> {
        let mut x = self.x.clone();
        if let Some(last_ns) = self.last_read_ns {
            let applied_ns = report.previous.as_ref().and_then(|it| it.applied_ns);
            let old_ns = applied_ns.map_or(0, |ns| ns.saturating_sub(last_ns).min(elapsed_ns));
            self.body.advance(&mut x, &self.applied, old_ns);
            self.body
                .advance(&mut x, &report.applied, elapsed_ns - old_ns);
        }
        (self.applied, self.last_read_ns) = (report.applied, Some(report.read_ns));
        let expected = model.c() * &x;
        let seconds = elapsed_ns.max(1) as f64 * 1e-9;
        let (share, rate_share) = (CORRECTED.0, CORRECTED.1 / seconds);
        let off = |sensor: usize| report.readings[sensor] - expected[sensor];
        match self.body {
            Body::Cart => {
                let angle = wrapped(off(1).to_radians());
                for (state, off) in [(0, off(0)), (1, angle)] {
                    x[state] += share * off;
                    x[state + 2] += rate_share * off;
                }
                x[1] = wrapped(x[1]);
            }
            Body::Robot(_) => {
                let gyroscope = (off(0) - report.offset).to_radians();
                x[6] += share * gyroscope;
                x[3] += share * gyroscope;
                let wheels = ((off(1) + off(2)) / 2.0).to_radians();
                x[0] += share * wheels;
                x[2] += rate_share * wheels;
            }
        }
        self.x = x.clone();
        x
    }
}

/// Returns the force on the cart, N, that brings the rod's energy towards that of the upright position.
fn swing(x: &DVector<f64>) -> f64 {
    let (position, angle, speed, rate) = (x[0], x[1], x[2], x[3]);
    let (most, gain) = SWINGS;
    let pumped = gain * rod_energy(angle, rate) * rate * angle.cos();
    let is_still = rate.abs() < STILL && angle.cos() < 0.0;
    let pumped = if is_still {
        most
    } else {
        pumped.clamp(-most, most)
    };
    let acceleration = pumped - CENTRED.0 * position - CENTRED.1 * speed;
    force_for(x.as_slice(), acceleration)
}

/// Returns the left eigenvector of the pole with the greatest real part, and that pole, 1/s, by inverse iteration.
fn unstable_mode(a: &DMatrix<f64>) -> (DVector<f64>, f64) {
    let poles = crate::steps::eigenvalues(a).unwrap_or_default();
    let pole = poles.iter().map(|[re, _]| *re).fold(f64::MIN, f64::max);
    let shifted = a.transpose() - DMatrix::identity(a.nrows(), a.nrows()) * (pole + 1e-6);
    let inverse = shifted.lu();
    let mut vector = DVector::from_element(a.nrows(), 1.0);
    for _ in 0..8 {
        if let Some(next) = inverse.solve(&vector) {
            vector = next.normalize();
        }
    }
    (vector, pole)
}
