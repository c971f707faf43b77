//! Plants: what is to be kept in balance. A plant is one file; `robot.rs` is the one of NCSbench, `pendulum.rs` one that is
//! no linear system, `file.rs` reads any linear one from a TOML file.

mod file;
mod linear;
mod pendulum;
mod robot;

pub use file::model_of_file;
pub use linear::LinearPlant;
pub use pendulum::{CartPendulum, pendulum};
pub use robot::{AXLE_M, DUTY_VOLTAGE, WHEEL_RADIUS_M, robot};

use crate::model::{Inputs, Model, ModelError, Readings};
use taut_settings::SettingsFileError;

/// A plant in software. Time is whole nanoseconds, inputs hold until others are applied.
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
    /// The model that controllers are designed for.
    fn model(&self) -> &Model;
    /// Lets time pass.
    fn advance(&mut self, ns: u64);
    /// Applies inputs, within limits and in whole steps, and returns what they have become.
    fn apply(&mut self, inputs: &Inputs) -> Inputs;
    /// Reads the sensors: rounded, with noise and offset.
    fn read(&mut self) -> Readings;
    /// Offset of the first sensor, as many readings at rest before the start tell it.
    fn offset(&self) -> f64;
    /// The state that has to stay small, in the unit of the results.
    fn balance(&self) -> f64;
    /// How far the plant has gone, in the unit of the results.
    fn travel(&self) -> f64;
    /// Changes the rate of the first input's state by a push: `rate` is in the unit of the balance, per second.
    fn push(&mut self, rate: f64);
    /// Whether it has fallen: nothing brings it back.
    fn has_fallen(&self) -> bool {
        let parts = self.model().parts();
        let balance = self.balance().abs();
        // What has grown beyond numbers has fallen as well.
        balance.is_nan() || balance > parts.bound * parts.scale[0]
    }
}

/// Names of the plants that are here, as [`model`] takes them.
pub const NAMES: [&str; 4] = ["robot", "pendulum", "drone-axis", "conveyor"];

const DRONE_AXIS: &str = include_str!("drone-axis.toml");
const CONVEYOR: &str = include_str!("conveyor.toml");

/// The model of one of the plants that are here.
pub fn model(name: &str) -> Option<Model> {
    match name {
        "robot" => Some(robot()),
        "pendulum" => Some(pendulum()),
        "drone-axis" => model_of_file(DRONE_AXIS, "drone-axis.toml").ok(),
        "conveyor" => model_of_file(CONVEYOR, "conveyor.toml").ok(),
        _ => None,
    }
}

/// A plant of this model; the cart pendulum of [`pendulum`] is simulated as the body that it is, others as their models.
pub fn plant(model: &Model, seed: u64) -> Box<dyn Plant> {
    if model.name() == pendulum::NAME {
        Box::new(CartPendulum::new(model, seed))
    } else {
        Box::new(LinearPlant::new(model, seed))
    }
}

/// Why there is no plant.
#[derive(Debug, thiserror::Error)]
pub enum PlantError {
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] SettingsFileError),
    /// What it says cannot be.
    #[error(transparent)]
    Model(#[from] ModelError),
}
