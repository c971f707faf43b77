//! The `taut` command: parses arguments, calls the crates, prints. One file per subcommand.

#![forbid(unsafe_code)]

mod aliasing;
mod bearer;
mod bench;
mod chain;
mod chain_plan;
mod demo;
mod exit;
mod experiment;
mod forward;
mod forward_control;
mod forward_in_kernel;
mod forward_threads;
mod functions;
mod generate;
mod generators;
mod guest;
mod manifest;
mod node;
mod noise;
mod ports;
mod print;
mod probe;
mod quantity;
mod report;
mod rfc2544;
mod samples;
mod script;
mod tap;
mod target;
mod tune;
mod vm;
mod watch;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// Forwards, generates and measures packets at low latency on commodity Linux machines.
#[derive(Parser)]
#[command(
    version,
    after_help = "Start with:  taut demo\n\nExit codes: 0 done, 1 the thing measured failed its stated limit, 2 bad input, 3 the machine lacks something, 130 interrupted."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compare packet forwarders on this machine: the main job, no hardware needed
    Demo(demo::Arguments),
    /// Run a data plane: ports, functions and a flush policy on one core
    Forward(forward::Arguments),
    /// Run a chain of functions over threads, processes or namespaces: up, status, update, down
    Chain(chain::Arguments),
    /// Add, list, remove and load bearers of a running mobile gateway (function gtpu)
    Bearer(bearer::Arguments),
    /// Make traffic at a constant rate and measure what comes back
    Generate(generate::Arguments),
    /// Measure a device after RFC 2544, what input and output of a packet cost (io), packet generators (generator), or functions
    /// side by side (functions)
    Bench(bench::Arguments),
    /// Experiments as files: plan, run, repeat, compare, publish
    Experiment(experiment::Arguments),
    /// Make and measure traffic with a Lua script
    Script(script::Arguments),
    /// Round trips between ordinary sockets, and the highest rate without loss: what an application sees of a path
    Probe(probe::Arguments),
    /// See packets enter and leave a device, and what the device alone takes
    Tap(tap::Arguments),
    /// See and change the settings of this machine that matter for latency, and listen to its noise
    Tune(tune::Arguments),
    /// Say which ports this machine can have, and why not where not
    Ports(ports::Arguments),
    /// Make the report and figures of a results folder again
    Report(report::Arguments),
    /// What an experiment runs on its nodes
    #[command(hide = true)]
    Node(node::Arguments),
    /// Run a chain file in a virtual machine
    Vm(vm::Arguments),
    /// What runs first in a virtual machine
    #[command(hide = true)]
    Guest,
    /// Print a completion script for a shell
    #[command(after_help = "Example:  taut completions bash > /etc/bash_completion.d/taut")]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Forward(arguments) => forward::run(arguments),
        Command::Chain(arguments) => chain::run(arguments),
        Command::Bearer(arguments) => bearer::run(arguments),
        Command::Generate(arguments) => generate::run(arguments),
        Command::Script(arguments) => script::run(arguments),
        Command::Probe(arguments) => probe::run(&arguments),
        Command::Tap(arguments) => tap::run(&arguments),
        Command::Experiment(arguments) => experiment::run(&arguments),
        Command::Node(arguments) => match node::run(arguments) {
            Ok(code) => return code,
            Err(failure) => Err(failure),
        },
        Command::Vm(arguments) => match vm::run(&arguments) {
            Ok(code) => return code,
            Err(failure) => Err(failure),
        },
        Command::Guest => guest::run(),
        Command::Tune(arguments) => tune::run(&arguments),
        Command::Ports(arguments) => ports::run(&arguments),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "taut", &mut script);
            print::line(String::from_utf8_lossy(&script).trim_end());
            Ok(())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
