//! A plant that behaves as its linear model, simulated without discretisation error, with the errors of real sensors
//! and actuators.

use super::Plant;
use crate::model::{Inputs, MOST_INPUTS, MOST_SENSORS, Model, Readings};
use crate::steps::Steps;
use nalgebra::DVector;

/// Number of readings at rest over which the offset of the first sensor is averaged, as on NCSbench's robot.
const READINGS_AT_REST: usize = 200;

/// Sensors with their noise and offsets.
#[derive(Debug, Clone)]
pub(super) struct Sensors {
    random: fastrand::Rng,
    biases: Vec<f64>,
    pub(super) offset: f64,
}

impl Sensors {
    /// Draws the offsets, and estimates the offset of the first sensor from readings at rest.
    pub(super) fn new(model: &Model, seed: u64) -> Self {
        let mut sensors = Self {
            random: fastrand::Rng::with_seed(seed),
            biases: Vec::new(),
            offset: 0.0,
        };
        for sensor in &model.parts().sensors {
            let bias = sensor.bias * normal(&mut sensors.random);
            sensors.biases.push(bias);
        }
        let at_rest = DVector::zeros(model.states());
        let mut sum = 0.0;
        for _ in 0..READINGS_AT_REST {
            sum += sensors.read(model, &at_rest)[0];
        }
        sensors.offset = sum / READINGS_AT_REST as f64;
        sensors
    }

    pub(super) fn read(&mut self, model: &Model, x: &DVector<f64>) -> Readings {
        let mut readings = [0.0; MOST_SENSORS];
        for (number, sensor) in model.parts().sensors.iter().enumerate() {
            let truth = model.c().row(number).transpose().dot(x);
            let noise = sensor.noise * normal(&mut self.random);
            let read = truth + self.biases[number] + noise;
            readings[number] = if sensor.resolution > 0.0 {
                (read / sensor.resolution).round() * sensor.resolution
            } else {
                read
            };
        }
        readings
    }
}

/// Draws a number from the standard normal distribution (Box and Muller 1958).
pub(crate) fn normal(random: &mut fastrand::Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.f64()).cos()
}

/// A plant that behaves as its linear model.
#[derive(Debug, Clone)]
pub struct LinearPlant {
    model: Model,
    steps: Steps,
    sensors: Sensors,
    x: DVector<f64>,
    inputs: Inputs,
}

impl LinearPlant {
    /// Makes a plant in its initial state; `seed` determines offsets and noise of its sensors.
    pub fn new(model: &Model, seed: u64) -> Self {
        Self {
            steps: Steps::new(model.a(), model.b()),
            sensors: Sensors::new(model, seed),
            x: model.start(),
            inputs: [0.0; MOST_INPUTS],
            model: model.clone(),
        }
    }

    /// Returns the true states.
    pub fn states(&self) -> &DVector<f64> {
        &self.x
    }
}

impl Plant for LinearPlant {
    fn model(&self) -> &Model {
        &self.model
    }

    fn advance(&mut self, ns: u64) {
        self.steps.advance(&mut self.x, &self.inputs, ns);
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
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::robot;
    use super::*;

    #[test]
    fn equal_seeds_give_equal_readings_and_different_seeds_different_readings() {
        let model = robot();
        let read = |seed| LinearPlant::new(&model, seed).read();
        assert_eq!(read(7), read(7));
        assert!((0..20).any(|seed| read(seed) != read(7)));
    }

    #[test]
    fn readings_are_integer_degrees_and_voltages_stay_within_8_volt() {
        let mut plant = LinearPlant::new(&robot(), 3);
        let applied = plant.apply(&[100.0, 1.0]);
        // 8 V are 98.92 % of 8.087 V, rounded to 99 %.
        assert!((applied[0] - 0.99 * 8.087).abs() < 1e-12, "{applied:?}");
        assert!((applied[1] - 0.12 * 8.087).abs() < 1e-12, "{applied:?}");
        plant.advance(20_000_000);
        for reading in plant.read() {
            assert_eq!(reading, reading.round());
        }
        assert_eq!(plant.apply(&[f64::NAN, f64::INFINITY]), [0.0, 0.0]);
    }

    #[test]
    fn uncontrolled_robots_fall_at_the_rate_of_their_unstable_pole() {
        let mut plant = LinearPlant::new(&robot(), 1);
        plant.push(10.0);
        let mut last = 0.0;
        for _ in 0..30 {
            last = plant.balance();
            plant.advance(35_000_000);
        }
        // The unstable pole is at +5.685 1/s, a growth by 1.22 each period.
        let growth = plant.balance() / last;
        assert!(
            (growth - (5.685_f64 * 0.035).exp()).abs() < 1e-3,
            "{growth}"
        );
        assert!(plant.has_fallen());
    }
}
