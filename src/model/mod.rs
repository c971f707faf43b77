//! `taut model`: predictions from a few measurements, their uncertainty, and the comparison with measured values.

mod access;
pub mod budget;
pub mod combined;
pub mod fit;
mod overload;
pub mod plan;
pub mod predict;

use crate::exit::Failure;
use crate::tune::aliasing::Ticking;
use taut_forecast::{Described, ForecastError};
use taut_model::estimate::{Estimate, WrongValue};
use taut_model::model_file::ModelError;
use taut_model::overload::Interruption;
use taut_model::queueing::{QueueingError, Vacations};

#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Predict the packet rate of a machine, the resource that limits it, and the latency
    Predict(predict::Arguments),
    /// Print which resource is the limit, and how much of the others is in use
    Explain(predict::Arguments),
    /// Fit a model to measured runs, and write it to a file
    Fit(fit::Arguments),
    /// Check a model with runs that it has not seen, or all models with published figures
    Check(fit::CheckArguments),
    /// Find the cores, batch and flush policy for a rate and a latency
    Plan(plan::Arguments),
    /// Measure the cost of random accesses on this machine, and compare the access model with it
    Access(access::Arguments),
    /// Compute the rate at which a core with a function is overloaded, from the latency of single packets
    Overload(overload::Arguments),
    /// Predict rate and latency of a fast switch before a server that gets a share of the packets
    Combined(combined::Arguments),
    /// Split a latency from end to end into its parts
    Budget(budget::Arguments),
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::Predict(arguments) => predict::run(arguments, false),
        Command::Explain(arguments) => predict::run(arguments, true),
        Command::Fit(arguments) => fit::run(arguments),
        Command::Check(arguments) => fit::check(arguments),
        Command::Plan(arguments) => plan::run(arguments),
        Command::Access(arguments) => access::run(arguments),
        Command::Overload(arguments) => overload::run(arguments),
        Command::Combined(arguments) => combined::run(arguments),
        Command::Budget(arguments) => budget::run(arguments),
    }
}

impl From<ForecastError> for Failure {
    fn from(e: ForecastError) -> Self {
        match e {
            ForecastError::File { ref source, .. } => Self::of_file(source, e.to_string()),
            ForecastError::Chain(e) => e.into(),
            other => Self::Input(other.to_string()),
        }
    }
}

impl From<WrongValue> for Failure {
    fn from(e: WrongValue) -> Self {
        ForecastError::from(e).into()
    }
}

impl From<ModelError> for Failure {
    fn from(e: ModelError) -> Self {
        ForecastError::from(e).into()
    }
}

impl From<QueueingError> for Failure {
    fn from(e: QueueingError) -> Self {
        ForecastError::from(e).into()
    }
}

/// Converts the interrupt options to vacations: in queueing theory, times in which the core serves no packet.
fn vacations(interrupts: &[Ticking]) -> Result<Vacations, Failure> {
    let mut vacations = Vacations::none();
    for Ticking(interrupt) in interrupts {
        vacations = vacations.with_periodic(interrupt.per_second, interrupt.cost_ns)?;
    }
    Ok(vacations)
}

/// Converts the interrupt options to interruptions, as the overload model takes them.
fn taken_away(interrupts: &[Ticking]) -> Vec<Interruption> {
    let all = interrupts.iter().map(|Ticking(interrupt)| Interruption {
        name: "given".to_owned(),
        rate_hz: interrupt.per_second,
        duration_us: interrupt.cost_ns / 1e3,
    });
    all.collect()
}

/// The value of `--io`: cycles, or the name of a port whose cycles are in the machine file.
#[derive(Debug, Clone)]
enum Io {
    Cycles(f64),
    Port(String),
}

impl Io {
    /// Returns the cycles to receive and send a packet, and their source if there is one.
    fn cycles(&self, machine: &Described) -> Result<(Estimate, Option<String>), Failure> {
        match self {
            Self::Cycles(cycles) => Ok((Estimate::given(*cycles)?, None)),
            Self::Port(port) => {
                let (cycles, origin) = machine.io(port)?;
                Ok((cycles, Some(origin)))
            }
        }
    }
}

fn io(text: &str) -> Result<Io, String> {
    if text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.parse::<f64>().is_err() {
        return Ok(Io::Port(text.to_owned()));
    }
    let wanted = |_| "expected cycles of at least 0, or a port of the machine file".to_owned();
    not_negative(text).map(Io::Cycles).map_err(wanted)
}

/// Parses an assignment of a number to a name: `load_cycles=350`.
fn assignment(text: &str) -> Result<(String, f64), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=NUMBER")?;
    let value: f64 = value.trim().parse().map_err(|_| "expected NAME=NUMBER")?;
    if !value.is_finite() {
        return Err("expected a finite number".to_owned());
    }
    Ok((name.trim().to_owned(), value))
}

/// Parses a number of at least 0.
fn not_negative(text: &str) -> Result<f64, String> {
    let value = text
        .parse()
        .ok()
        .filter(|value| (0.0..=1e15).contains(value));
    value.ok_or_else(|| "expected a number of at least 0".to_owned())
}

/// Parses a number above 0.
fn positive(text: &str) -> Result<f64, String> {
    let value = not_negative(text).ok().filter(|value| *value > 0.0);
    value.ok_or_else(|| "expected a number above 0".to_owned())
}
