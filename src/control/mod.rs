//! `taut control`: a plant that falls unless it is balanced, its controller, and the network between them.

pub mod challenge;
pub mod controller;
pub mod live;
mod options;
mod over;
mod plant;
mod run;
pub mod show;

use crate::exit::Failure;
use taut_control::ModelError;
use taut_control::plant::PlantError;
use taut_folders::control_loop::RunError;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Run plant and controller, over sockets or in virtual time, and report how well the plant was balanced
    Run(run::Arguments),
    /// Run the plant: send reports, apply commands
    Plant(plant::Arguments),
    /// Run the controller: answer reports with commands
    Controller(controller::Arguments),
    /// Search the largest delay, jitter, loss, burst of losses and push that the plant survives
    Challenge(challenge::Arguments),
    /// Show a folder of `taut control run --out` again, or a plant
    Show(show::Arguments),
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.what {
        What::Run(arguments) => run::run(arguments),
        What::Plant(arguments) => plant::run(arguments),
        What::Controller(arguments) => controller::run(arguments),
        What::Challenge(arguments) => challenge::run(arguments),
        What::Show(arguments) => show::run(arguments),
    }
}

impl From<ModelError> for Failure {
    fn from(e: ModelError) -> Self {
        Self::Input(e.to_string())
    }
}

impl From<PlantError> for Failure {
    fn from(e: PlantError) -> Self {
        Self::Input(e.to_string())
    }
}

impl From<RunError> for Failure {
    fn from(e: RunError) -> Self {
        match e {
            RunError::Results(e) => e.into(),
            RunError::Stopped => Self::Interrupted(e.to_string()),
            other => Self::Missing(other.to_string()),
        }
    }
}
