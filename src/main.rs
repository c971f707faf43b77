//! The `taut` command: parses arguments, calls the crates, prints the results. There is one file per subcommand.

#![forbid(unsafe_code)]
// Some code is used only by commands that the demo's program does not have.
#![cfg_attr(not(feature = "whole"), allow(dead_code, unused_imports))]

#[cfg(feature = "whole")]
mod bearer;
mod bench;
#[cfg(feature = "whole")]
mod capture;
#[cfg(feature = "whole")]
mod chain;
#[cfg(feature = "whole")]
mod completions;
mod control;
mod demo;
mod doctor;
mod exit;
mod experiment;
mod forward;
mod functions;
mod gate;
mod generate;
mod guest;
#[cfg(feature = "whole")]
mod ips;
mod kinds;
#[cfg(feature = "whole")]
mod lab;
#[cfg(feature = "whole")]
mod man;
#[cfg(feature = "whole")]
mod model;
mod node;
mod ports;
mod probe;
#[cfg(test)]
mod reference;
mod report;
#[cfg(feature = "whole")]
mod route;
mod samples;
#[cfg(feature = "whole")]
mod schema;
#[cfg(feature = "whole")]
mod script;
mod serve;
mod tap;
mod target;
mod terminal;
mod transport;
mod tune;
mod usage;
mod version;
mod vm;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::process::ExitCode;

/// Forwards, generates and measures packets at low latency on commodity Linux machines.
#[derive(Parser)]
#[command(
    version,
    after_help = "Start with:  taut demo\n\nExit codes: 0 done, 1 the thing measured failed its stated limit, 2 bad input, 3 the machine lacks something, 4 a gate cannot tell, 130 interrupted."
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
    #[cfg(feature = "whole")]
    /// Run a chain of functions over threads, processes or namespaces: up, status, update, down
    Chain(chain::Arguments),
    #[cfg(feature = "whole")]
    /// Add, list, remove and load bearers of a running mobile gateway (function gtpu)
    Bearer(bearer::Arguments),
    #[cfg(feature = "whole")]
    /// List, show, add and delete routes of a running router (function route)
    Route(route::Arguments),
    #[cfg(feature = "whole")]
    /// Check rule files, and query or reload a running inspection (function ips)
    Ips(ips::Arguments),
    #[cfg(feature = "whole")]
    /// Keep the packets of the last seconds in memory, and write those around a trigger, also from before it fired
    Capture(Box<capture::Arguments>),
    /// Generate traffic at a constant rate and measure what comes back
    Generate(generate::Arguments),
    /// Measure a device (RFC 2544, or by comparison), or the cost of I/O, functions, generators and switches
    Bench(bench::Arguments),
    /// Experiments as files: plan, run, repeat, compare, publish
    Experiment(experiment::Arguments),
    #[cfg(feature = "whole")]
    /// Share nodes among many users: calendar, queue and experiments of a laboratory
    Lab(lab::Arguments),
    /// Decide whether a change made a program worse, by runs of both versions in pairs
    Gate(gate::Arguments),
    #[cfg(feature = "whole")]
    /// Generate and measure traffic with a Lua script
    Script(script::Arguments),
    /// Measure round trips between ordinary sockets, and the highest rate without loss, as an application sees a path
    Probe(probe::Arguments),
    /// Close a control loop over a network: run plant and controller, and search the limits that they survive
    Control(control::Arguments),
    /// Watch packets enter and leave a device, and measure the time inside the device alone
    Tap(tap::Arguments),
    #[cfg(feature = "whole")]
    /// Predict rate, latency and overload from a few measurements, with the error of the prediction
    Model(model::Arguments),
    /// Show and change the settings of this machine that matter for latency, and measure its noise
    Tune(tune::Arguments),
    /// Print which ports this machine supports, and what the others lack
    Ports(ports::Arguments),
    /// Print the functions that a chain can name, and their settings
    Functions(functions::Arguments),
    /// Show results folders in a browser: list, reports, comparisons, files
    Serve(serve::Arguments),
    /// Show what works on this machine, what is missing, and the command that fixes it
    Doctor(doctor::Arguments),
    /// Write the report and figures of a results folder again
    Report(report::Arguments),
    /// Run the node's part of an experiment
    #[command(hide = true)]
    Node(node::Arguments),
    /// Run a chain file in a virtual machine
    Vm(vm::Arguments),
    /// Run as the first process of a virtual machine
    #[command(hide = true)]
    Guest,
    #[cfg(feature = "whole")]
    /// Print a completion script for a shell
    #[command(after_help = "Example:  taut completions bash > /etc/bash_completion.d/taut")]
    Completions {
        /// Shell that the script is for
        shell: clap_complete::Shell,
    },
    #[cfg(feature = "whole")]
    /// Write man pages into a folder, one for the command and one for each subcommand
    #[command(after_help = "Example:  taut man pages && man -l pages/taut-forward.1")]
    Man {
        /// Folder to write to; created if it does not exist
        folder: std::path::PathBuf,
    },
}

/// Builds the command line. For an option with a number, -1 is reported as an invalid value, not as an unknown option.
fn command() -> clap::Command {
    fn numbers(command: clap::Command) -> clap::Command {
        command
            .mut_args(|argument| {
                let is_option =
                    argument.get_long().is_some() && argument.get_action().takes_values();
                argument.allow_negative_numbers(is_option)
            })
            .mut_subcommands(numbers)
    }
    let command = numbers(Arguments::command());
    #[cfg(feature = "whole")]
    let command = schema::with_option(command);
    command
}

fn main() -> ExitCode {
    #[cfg(feature = "whole")]
    if let Some(schema) = schema::asked(
        std::env::args_os()
            .skip(1)
            .filter_map(|word| word.into_string().ok()),
    ) {
        terminal::print::line(schema);
        return ExitCode::SUCCESS;
    }
    let command_line = command().long_version(version::long());
    let matches = command_line.try_get_matches();
    let arguments = match matches.and_then(|it| Arguments::from_arg_matches(&it)) {
        Ok(arguments) => arguments,
        Err(e) => return usage::end(&e),
    };
    let done = match arguments.command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Forward(arguments) => forward::run(arguments),
        #[cfg(feature = "whole")]
        Command::Chain(arguments) => chain::run(arguments),
        #[cfg(feature = "whole")]
        Command::Bearer(arguments) => bearer::run(arguments),
        #[cfg(feature = "whole")]
        Command::Route(arguments) => route::run(arguments),
        #[cfg(feature = "whole")]
        Command::Ips(arguments) => ips::run(arguments),
        #[cfg(feature = "whole")]
        Command::Capture(arguments) => capture::run(*arguments),
        Command::Generate(arguments) => generate::run(arguments),
        #[cfg(feature = "whole")]
        Command::Script(arguments) => script::run(arguments),
        Command::Probe(arguments) => probe::run(&arguments),
        Command::Control(arguments) => control::run(&arguments),
        Command::Tap(arguments) => tap::run(&arguments),
        Command::Experiment(arguments) => experiment::run(&arguments),
        #[cfg(feature = "whole")]
        Command::Lab(arguments) => lab::run(&arguments),
        Command::Gate(arguments) => gate::run(&arguments),
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
        #[cfg(feature = "whole")]
        Command::Model(arguments) => model::run(&arguments),
        Command::Ports(arguments) => ports::run(&arguments),
        Command::Functions(arguments) => functions::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Serve(arguments) => serve::run(&arguments),
        #[cfg(feature = "whole")]
        Command::Completions { shell } => {
            terminal::print::line(completions::script(shell).trim_end());
            Ok(())
        }
        #[cfg(feature = "whole")]
        Command::Man { folder } => man::write_pages(&folder),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Returns the subcommands that the help of `command` lists.
fn shown(command: &clap::Command) -> impl Iterator<Item = &clap::Command> {
    command.get_subcommands().filter(|it| !it.is_hide_set())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::error::ErrorKind;
    use std::any::TypeId;
    use std::path::PathBuf;

    /// Values that every option with a number, a time or a rate has to reject.
    const NO_NUMBERS: [&str; 8] = [
        "NaN",
        "inf",
        "-inf",
        "-1",
        "1e300",
        "",
        " ",
        "\u{65e5}\u{672c}",
    ];

    /// Returns the numeric options of a command and its subcommands: the path of the command, and the option.
    fn numbers(command: &clap::Command, path: &[String]) -> Vec<(Vec<String>, String)> {
        let texts = [TypeId::of::<String>(), TypeId::of::<PathBuf>()];
        let own = command.get_arguments().filter_map(|argument| {
            let long = argument.get_long()?;
            let takes = argument.get_value_parser().type_id();
            let is_text = texts.iter().any(|text| takes == *text);
            (argument.get_action().takes_values() && !is_text)
                .then(|| (path.to_vec(), long.to_string()))
        });
        let mut all: Vec<_> = own.collect();
        for below in command.get_subcommands() {
            let path = [path, &[below.get_name().to_string()]].concat();
            all.extend(numbers(below, &path));
        }
        all
    }

    #[test]
    fn the_command_line_definition_passes_claps_checks() {
        command().debug_assert();
    }

    #[test]
    fn no_numeric_option_accepts_an_invalid_number() {
        let command = command();
        let options = numbers(&command, &["taut".to_string()]);
        assert!(options.len() > 60, "{options:?}");
        let mut taken = Vec::new();
        for (path, option) in &options {
            for value in NO_NUMBERS {
                let mut words = path.clone();
                words.push(format!("--{option}={value}"));
                let error = command.clone().try_get_matches_from(&words).err();
                let kind = error.map(|e| e.kind());
                if !matches!(
                    kind,
                    Some(ErrorKind::ValueValidation | ErrorKind::InvalidValue)
                ) {
                    taken.push(format!("{} ({kind:?})", words.join(" ")));
                }
            }
        }
        assert!(taken.is_empty(), "{taken:#?}");
    }
}
