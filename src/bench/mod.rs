//! `taut bench`: measures a device after RFC 2544, and the cost of operations on this machine (`io`, `costs`,
//! `functions`). It also measures generators (`generator`), switches (`switch`), control planes (`signalling`), and one
//! device with the method of `taut demo` (`comparison`).

pub mod comparison;
mod costs;
mod functions;
mod generator;
mod io;
mod rfc2544;
#[cfg(feature = "whole")]
pub mod signalling;
mod switch;

use crate::exit::{self, Failure};
use crate::terminal::measure_alone;
use crate::terminal::quantity;
use std::path::{Path, PathBuf};
use std::time::Duration;
use taut_bench::benchmark::fresh_folder;
use taut_bench::benchmark::{self, Benchmark, BenchmarkError, Plan};
use taut_results::Mode;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// The highest rate without loss, by frame size (RFC 2544 section 26.1)
    Throughput(rfc2544::ThroughputArguments),
    /// The distribution of latency at fractions of the throughput, or at a rate (section 26.2)
    Latency(rfc2544::LatencyArguments),
    /// Loss over the offered rate (section 26.3)
    Loss(rfc2544::LossArguments),
    /// The longest burst without loss, and the buffer it implies (section 26.4, RFC 9004)
    BackToBack(rfc2544::BackToBackArguments),
    /// One rate for hours: drift of latency and loss
    Soak(rfc2544::SoakArguments),
    /// Throughput, latency, loss and back-to-back frames in one report
    Rfc2544(rfc2544::AllArguments),
    /// Cost of a packet's input and output in each I/O framework, by raising the load per packet
    Io(io::Arguments),
    /// Cost of a packet over load, functions, frame size and batch, and a model fitted to it
    Costs(costs::Arguments),
    /// Bandwidth, accuracy and precision of packet generators, measured by an independent receiver
    Generator(generator::Arguments),
    /// Latency of a device at a constant rate and its highest loss-free rate, as in a repetition of `taut demo`
    Comparison(comparison::Arguments),
    /// Time of a packet in functions when several threads run them at the same time
    Functions(functions::Arguments),
    /// Control procedures of many users against a user plane or gateway, by PFCP or GTP-C
    #[cfg(feature = "whole")]
    Signalling(signalling::Arguments),
    /// A complete switch, measured through two ports: latency per hop, rules, priority, insertion, amplification
    Switch(switch::Arguments),
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.what {
        What::Throughput(arguments) => rfc2544::throughput(arguments),
        What::Latency(arguments) => rfc2544::latency(arguments),
        What::Loss(arguments) => rfc2544::loss(arguments),
        What::BackToBack(arguments) => rfc2544::back_to_back(arguments),
        What::Soak(arguments) => rfc2544::soak(arguments),
        What::Rfc2544(arguments) => rfc2544::all(arguments),
        What::Io(arguments) => io::run(arguments),
        What::Costs(arguments) => costs::run(arguments),
        What::Generator(arguments) => generator::run(arguments),
        What::Comparison(arguments) => comparison::run(arguments),
        What::Functions(arguments) => functions::run(arguments),
        #[cfg(feature = "whole")]
        What::Signalling(arguments) => signalling::run(arguments),
        What::Switch(arguments) => switch::run(arguments),
    }
}

/// Options of benchmarks whose measurements are interleaved.
#[derive(clap::Args)]
pub(crate) struct InTurns {
    /// Shortened, to check that it works
    #[arg(long)]
    quick: bool,
    /// Measure only the entry with this id; an unknown id lists all ids; may be repeated (default: all that are
    /// possible)
    #[arg(long, value_name = "ID")]
    only: Vec<String>,
    /// Length of each trial in seconds (default: io 0.1, switch 0.1, costs 0.9, generator 1, tune 5; shorter with
    /// --quick)
    #[arg(long, value_name = "SECONDS", value_parser = quantity::seconds)]
    trial: Option<f64>,
    /// Results folder, which must not hold an experiment yet (default: a new one under ./results)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Seed of the order in which measurements are interleaved, and in `costs` of the choice of measured points
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print summary.json instead of the tables
    #[arg(long)]
    json: bool,
}

impl InTurns {
    /// Runs a benchmark with trials of at least `least_trial` seconds, and shows its results.
    pub(crate) fn run<B: Benchmark>(&self, benchmark: B, least_trial: f64) -> Result<(), Failure> {
        let mode = if self.quick {
            Mode::Quick
        } else {
            Mode::Default
        };
        self.run_in(mode, benchmark, least_trial)
    }

    /// Runs a benchmark like [`InTurns::run`], in the given mode (quick, default or full).
    fn run_in<B: Benchmark>(
        &self,
        mode: Mode,
        benchmark: B,
        least_trial: f64,
    ) -> Result<(), Failure> {
        if self
            .trial
            .is_some_and(|s| !(least_trial..=60.0).contains(&s))
        {
            return Err(Failure::Input(format!(
                "--trial: expected {least_trial} to 60 seconds"
            )));
        }
        let name = B::DESCRIPTION
            .command
            .rsplit(' ')
            .next()
            .unwrap_or(B::DESCRIPTION.command);
        let fresh = || fresh_folder(Path::new("results"), name);
        let plan = Plan {
            mode,
            seed: self.seed,
            folder: self.out.clone().unwrap_or_else(fresh),
            program: exit::own_program()?,
            command_line: std::env::args().collect::<Vec<_>>().join(" "),
            only: self.only.clone(),
            trial: self.trial.map(Duration::from_secs_f64),
        };
        measure_alone(self.json, |bar, stop| {
            benchmark::run(benchmark, &plan, bar, stop)
        })
    }
}

impl From<BenchmarkError> for Failure {
    fn from(e: BenchmarkError) -> Self {
        match e {
            BenchmarkError::Nothing { .. } | BenchmarkError::Missing(_) => {
                Self::Missing(e.to_string())
            }
            BenchmarkError::Port(e) => e.into(),
            BenchmarkError::Results(e) => e.into(),
            BenchmarkError::Unknown { .. } | BenchmarkError::Affinity(_) => {
                Self::Input(e.to_string())
            }
        }
    }
}
