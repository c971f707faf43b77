//! Plants: the systems to balance. Each file holds one: `robot.rs` the robot of NCSbench, `pendulum.rs` a non-linear
//! pendulum; `file.rs` reads any linear plant from a TOML file. `rising.rs` has those that begin down, `body.rs` their
//! equations of motion.

mod body;
mod file;
mod linear;
mod pendulum;
mod rising;
mod robot;

pub use file::model_of_file;
pub use linear::LinearPlant;
pub use pendulum::{CartPendulum, pendulum};
pub use rising::{RisingPlant, UP_NS};
pub use robot::{AXLE_M, DUTY_VOLTAGE, WHEEL_RADIUS_M, robot};

pub(crate) use body::{Body, wrapped};
pub(crate) use pendulum::{force_for, rod_energy};

use crate::model::{Inputs, Model, ModelError, Readings};
use taut_settings::SettingsFileError;

/// A simulated plant. Time is in whole nanoseconds; inputs hold until new ones are applied.
///
/// ```
/// use taut_control::plant::{LinearPlant, Plant, robot};
///
/// let mut plant = LinearPlant::new(&robot(), 1);
/// plant.apply(&[1.0, 1.0]);
/// plant.advance(35_000_000);
/// assert!(plant.balance() < 0.0, "wheels go forward, the body falls back");
/// ```
pub trait Plant: Send {
    /// Returns the linear model for which controllers are designed.
    fn model(&self) -> &Model;
    /// Simulates the plant for `ns` nanoseconds.
    fn advance(&mut self, ns: u64);
    /// Applies inputs, clipped to the limits and rounded to whole steps; returns the applied values.
    fn apply(&mut self, inputs: &Inputs) -> Inputs;
    /// Returns readings of the sensors, with rounding, noise and offset.
    fn read(&mut self) -> Readings;
    /// Returns the offset of the first sensor, estimated from readings at rest before the start.
    fn offset(&self) -> f64;
    /// Returns the true value of the balanced state, in the unit of the plant's results.
    fn balance(&self) -> f64;
    /// Returns the distance of the plant from its start, in the unit of the plant's results.
    fn travel(&self) -> f64;
    /// Changes the rate of the balanced state by `rate`, in the unit of the plant's results per second.
    fn push(&mut self, rate: f64);
    /// Returns true if the plant began upright, or has erected itself.
    fn is_up(&self) -> bool {
        true
    }
    /// Returns true if the plant has fallen and cannot recover.
    fn has_fallen(&self) -> bool {
        let parts = self.model().parts();
        let balance = self.balance().abs();
        // A state that has overflowed has fallen as well.
        balance.is_nan() || balance > parts.bound * parts.scale[0]
    }
}

/// Names of the built-in plants, the arguments of [`model`].
pub const NAMES: [&str; 7] = [
    "robot",
    "pendulum",
    "drone-axis",
    "conveyor",
    "robot-on-a-stand",
    "robot-lying",
    "pendulum-hanging",
];

const DRONE_AXIS: &str = include_str!("drone-axis.toml");
const CONVEYOR: &str = include_str!("conveyor.toml");

/// Returns the model of a built-in plant.
pub fn model(name: &str) -> Option<Model> {
    match name {
        "robot" => Some(robot()),
        "pendulum" => Some(pendulum()),
        robot::ON_A_STAND => Some(robot::on_a_stand()),
        robot::LYING => Some(robot::lying()),
        pendulum::HANGING => Some(pendulum::hanging()),
        "drone-axis" => model_of_file(DRONE_AXIS, "drone-axis.toml").ok(),
        "conveyor" => model_of_file(CONVEYOR, "conveyor.toml").ok(),
        _ => None,
    }
}

/// Makes a plant from a model. The cart pendulum of [`pendulum`] and plants that begin down are simulated as non-linear
/// bodies, every other plant by its linear model.
pub fn plant(model: &Model, seed: u64) -> Box<dyn Plant> {
    if let Some(body) = Body::of(model) {
        Box::new(RisingPlant::new(model, body, seed))
    } else if model.name() == pendulum::NAME {
        Box::new(CartPendulum::new(model, seed))
    } else {
        Box::new(LinearPlant::new(model, seed))
    }
}

/// Reason why a plant cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum PlantError {
    /// The plant file cannot be read or parsed.
    #[error(transparent)]
    File(#[from] SettingsFileError),
    /// The values in the file are invalid.
    #[error(transparent)]
    Model(#[from] ModelError),
}
