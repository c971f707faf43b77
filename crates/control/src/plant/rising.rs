//! Plants that begin down and have to erect themselves, as bodies whose equations hold at any angle.

use super::Plant;
use super::body::Body;
use super::linear::Sensors;
use crate::model::{Inputs, MOST_INPUTS, Model, Readings};
use nalgebra::DVector;

/// Time for which the balanced state has to stay within [`UP_SHARE`] of the bound until the plant counts as erected,
/// ns.
pub const UP_NS: u64 = 1_000_000_000;
/// Largest deviation of an erect plant, as a fraction of the deviation at which it falls: 11.25 of 45 degrees.
const UP_SHARE: f64 = 0.25;
/// Longest time between two checks of the balanced state, ns.
const CHECKED_NS: u64 = 5_000_000;

/// A plant that begins down. It cannot fall before it has erected itself.
#[derive(Debug, Clone)]
pub struct RisingPlant {
    model: Model,
    body: Body,
    sensors: Sensors,
    x: DVector<f64>,
    inputs: Inputs,
    /// Time for which the plant has been erect, ns.
    up_ns: u64,
    is_up: bool,
}

impl RisingPlant {
    /// Makes a plant in its initial state; `seed` determines offsets and noise of its sensors.
    pub(super) fn new(model: &Model, body: Body, seed: u64) -> Self {
        Self {
            sensors: Sensors::new(model, seed),
            x: model.start(),
            inputs: [0.0; MOST_INPUTS],
            model: model.clone(),
            body,
            up_ns: 0,
            is_up: false,
        }
    }
}

impl Plant for RisingPlant {
    fn model(&self) -> &Model {
        &self.model
    }

    fn advance(&mut self, mut ns: u64) {
        let parts = self.model.parts();
        while ns > 0 {
            let step_ns = ns.min(CHECKED_NS);
            self.body.advance(&mut self.x, &self.inputs, step_ns);
            ns -= step_ns;
            let is_near = self.x[parts.balance].abs() <= UP_SHARE * parts.bound;
            self.up_ns = if is_near { self.up_ns + step_ns } else { 0 };
            self.is_up |= self.up_ns >= UP_NS;
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
        let parts = self.model.parts();
        self.x[parts.balance] * parts.scale[0]
    }

    fn travel(&self) -> f64 {
        let parts = self.model.parts();
        self.x[parts.travel] * parts.scale[1]
    }

    fn push(&mut self, rate: f64) {
        if let Some(state) = self.model.rate_of_balance() {
            self.x[state] += rate / self.model.parts().scale[0];
        }
    }

    fn is_up(&self) -> bool {
        self.is_up
    }

    fn has_fallen(&self) -> bool {
        let parts = self.model.parts();
        let balance = self.x[parts.balance].abs();
        balance.is_nan() || (self.is_up && balance > parts.bound)
    }
}
