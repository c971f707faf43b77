//! `taut model`: predictions from a few measurements, how sure they are, and what they were held to.

mod access;
mod budget;
mod fit;
mod overload;
mod plan;
mod predict;

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
    /// Say how many packets a machine carries, what binds it, and how long packets take
    Predict(predict::Arguments),
    /// Say which resource binds, and what the others have left
    Explain(predict::Arguments),
    /// Fit a model to runs that were measured, and write it into a file
    Fit(fit::Arguments),
    /// Hold a model to runs that it has not seen, or all models to what others have published
    Check(fit::CheckArguments),
    /// Say how many cores, which batch and which flush policy a rate and a latency take
    Plan(plan::Arguments),
    /// Measure what random accesses cost on this machine, and hold the access model to it
    Access(access::Arguments),
    /// Say where a core with a function tips over, from how long single packets take
    Overload(overload::Arguments),
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

/// What takes a core away, as options say it.
fn vacations(interrupts: &[Ticking]) -> Result<Vacations, Failure> {
    let mut vacations = Vacations::none();
    for Ticking(interrupt) in interrupts {
        vacations = vacations.with_periodic(interrupt.per_second, interrupt.cost_ns)?;
    }
    Ok(vacations)
}

/// The same for the model of overload.
fn taken_away(interrupts: &[Ticking]) -> Vec<Interruption> {
    let all = interrupts.iter().map(|Ticking(interrupt)| Interruption {
        name: "given".to_owned(),
        rate_hz: interrupt.per_second,
        duration_us: interrupt.cost_ns / 1e3,
    });
    all.collect()
}

/// What `--io` says: cycles, or a port whose cycles the machine file has.
#[derive(Debug, Clone)]
enum Io {
    Cycles(f64),
    Port(String),
}

impl Io {
    /// Cycles of receiving and sending a packet, and where they are from; none of which nobody has said more.
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
    let wanted = |_| "want cycles of at least 0, or a port of the machine file".to_owned();
    not_negative(text).map(Io::Cycles).map_err(wanted)
}

/// Reads a name and a number: `load_cycles=350`.
fn assignment(text: &str) -> Result<(String, f64), String> {
    let (name, value) = text.split_once('=').ok_or("want NAME=NUMBER")?;
    let value: f64 = value.trim().parse().map_err(|_| "want NAME=NUMBER")?;
    if !value.is_finite() {
        return Err("want a finite number".to_owned());
    }
    Ok((name.trim().to_owned(), value))
}

/// Reads a number of at least 0.
fn not_negative(text: &str) -> Result<f64, String> {
    let value = text
        .parse()
        .ok()
        .filter(|value| (0.0..=1e15).contains(value));
    value.ok_or_else(|| "want a number of at least 0".to_owned())
}

/// Reads a number above 0.
fn positive(text: &str) -> Result<f64, String> {
    let value = not_negative(text).ok().filter(|value| *value > 0.0);
    value.ok_or_else(|| "want a number above 0".to_owned())
}
