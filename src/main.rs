//! The `taut` command: parses arguments, calls the crates, prints the results. There is one file per subcommand.

#![forbid(unsafe_code)]

mod bearer;
mod bench;
mod capture;
mod chain;
mod control;
mod demo;
mod doctor;
mod exit;
mod experiment;
mod forward;
mod functions;
mod generate;
mod guest;
mod ips;
mod model;
mod node;
mod ports;
mod probe;
#[cfg(test)]
mod reference;
mod report;
mod route;
mod samples;
mod script;
mod serve;
mod tap;
mod target;
mod terminal;
mod transport;
mod tune;
mod version;
mod vm;

use crate::exit::Failure;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::path::{Path, PathBuf};
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
    /// List, show, add and delete routes of a running router (function route)
    Route(route::Arguments),
    /// Check rule files, and query or reload a running inspection (function ips)
    Ips(ips::Arguments),
    /// Keep the packets of the last seconds in memory, and write those around a trigger, also from before it fired
    Capture(Box<capture::Arguments>),
    /// Generate traffic at a constant rate and measure what comes back
    Generate(generate::Arguments),
    /// Measure a device (RFC 2544, or by comparison), or the cost of I/O, functions, generators and switches
    Bench(bench::Arguments),
    /// Experiments as files: plan, run, repeat, compare, publish
    Experiment(experiment::Arguments),
    /// Generate and measure traffic with a Lua script
    Script(script::Arguments),
    /// Measure round trips between ordinary sockets, and the highest rate without loss, as an application sees a path
    Probe(probe::Arguments),
    /// Close a control loop over a network: run plant and controller, and search the limits that they survive
    Control(control::Arguments),
    /// Watch packets enter and leave a device, and measure the time inside the device alone
    Tap(tap::Arguments),
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
    /// Print a completion script for a shell
    #[command(after_help = "Example:  taut completions bash > /etc/bash_completion.d/taut")]
    Completions {
        /// Shell that the script is for
        shell: clap_complete::Shell,
    },
    /// Write man pages into a folder, one for the command and one for each subcommand
    #[command(after_help = "Example:  taut man pages && man -l pages/taut-forward.1")]
    Man {
        /// Folder to write to; created if it does not exist
        folder: PathBuf,
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
    numbers(Arguments::command())
}

fn main() -> ExitCode {
    let command_line = command().long_version(version::long());
    let arguments = Arguments::from_arg_matches(&command_line.get_matches());
    let done = match arguments.unwrap_or_else(|e| e.exit()).command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Forward(arguments) => forward::run(arguments),
        Command::Chain(arguments) => chain::run(arguments),
        Command::Bearer(arguments) => bearer::run(arguments),
        Command::Route(arguments) => route::run(arguments),
        Command::Ips(arguments) => ips::run(arguments),
        Command::Capture(arguments) => capture::run(*arguments),
        Command::Generate(arguments) => generate::run(arguments),
        Command::Script(arguments) => script::run(arguments),
        Command::Probe(arguments) => probe::run(&arguments),
        Command::Control(arguments) => control::run(&arguments),
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
        Command::Model(arguments) => model::run(&arguments),
        Command::Ports(arguments) => ports::run(&arguments),
        Command::Functions(arguments) => functions::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Completions { shell } => {
            terminal::print::line(completions(shell).trim_end());
            Ok(())
        }
        Command::Man { folder } => write_man_pages(&folder),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Returns the script with which a shell completes the command line.
fn completions(shell: clap_complete::Shell) -> String {
    let mut command = command();
    command.build();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut for_people(&command), "taut", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Returns the subcommands that help shows.
fn shown(command: &clap::Command) -> impl Iterator<Item = &clap::Command> {
    command.get_subcommands().filter(|it| !it.is_hide_set())
}

/// Removes the hidden parts of a command, which only programs use.
fn for_people(command: &clap::Command) -> clap::Command {
    let arguments = command.get_arguments().filter(|it| !it.is_hide_set());
    let below = shown(command);
    let mut shown = clap::Command::new(command.get_name().to_string())
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_flag(true)
        .disable_version_flag(true)
        .disable_help_subcommand(true)
        .args(arguments.map(alone))
        .subcommands(below.map(for_people));
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    shown
}

/// Removes an argument's conflicts with other arguments and its dependencies on them, as some of the other arguments
/// are hidden.
fn alone(argument: &clap::Arg) -> clap::Arg {
    let mut alone = clap::Arg::new(argument.get_id().clone())
        .action(argument.get_action().clone())
        .value_parser(argument.get_value_parser().clone())
        .value_hint(argument.get_value_hint());
    if let Some(long) = argument.get_long() {
        alone = alone.long(long.to_string());
    }
    if let Some(short) = argument.get_short() {
        alone = alone.short(short);
    }
    if let Some(help) = argument.get_help() {
        alone = alone.help(help.clone());
    }
    if let Some(count) = argument.get_num_args() {
        alone = alone.num_args(count);
    }
    if let Some(index) = argument.get_index() {
        alone = alone.index(index);
    }
    match argument.get_value_names() {
        Some(names) => alone.value_names(names.to_vec()),
        None => alone,
    }
}

fn write_man_pages(folder: &Path) -> Result<(), Failure> {
    let mut command = command().disable_help_subcommand(true);
    command.build();
    std::fs::create_dir_all(folder)
        .and_then(|()| write_man_page(&command, folder))
        .map_err(|e| Failure::of_file(&e, format!("{}: {e}", folder.display())))
}

/// Writes the manual pages of a command and of its subcommands.
fn write_man_page(command: &clap::Command, folder: &Path) -> std::io::Result<()> {
    for below in shown(command) {
        write_man_page(below, folder)?;
    }
    // Manual pages print only the name of a value, so the name gets `...` if the argument takes several values.
    let shown = command.clone().mut_args(|argument| {
        let name = argument.get_value_names().and_then(|names| names.first());
        let several = argument
            .get_num_args()
            .is_some_and(|count| count.max_values() > 1);
        match name
            .filter(|_| several && argument.is_positional())
            .cloned()
        {
            Some(name) => argument.value_name(format!("{name}...")),
            None => argument,
        }
    });
    let source = concat!("taut ", env!("CARGO_PKG_VERSION"));
    clap_mangen::Man::new(shown)
        .source(source)
        .generate_to(folder)
        .map(drop)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::error::ErrorKind;
    use std::any::TypeId;

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
    fn completions_list_public_commands_and_no_hidden_commands() {
        use clap::ValueEnum;
        for shell in clap_complete::Shell::value_variants() {
            let script = completions(*shell);
            for offered in ["detach", "rfc2544", "completions", "version"] {
                assert!(script.contains(offered), "{shell}: {offered}");
            }
            // These are the forms of the subcommand `guest` in the scripts of the shells; the bare word also occurs in
            // help texts.
            let guest = [
                "taut;guest",
                "taut,guest",
                "__guest",
                "\"guest\"",
                "'guest:",
            ];
            for hidden in guest.into_iter().chain(["detached"]) {
                assert!(!script.contains(hidden), "{shell}: {hidden}");
            }
        }
    }

    #[test]
    fn man_pages_name_the_version_and_the_accepted_arguments() {
        let folder = tempfile::tempdir().unwrap();
        write_man_pages(folder.path()).unwrap_or_else(|e| panic!("{}", e.into_text()));
        let names = std::fs::read_dir(folder.path()).unwrap();
        assert!(names.count() > 80);
        for name in ["taut-route-add", "taut-bearer-add"] {
            let page = std::fs::read_to_string(folder.path().join(format!("{name}.1"))).unwrap();
            let title = page.lines().find(|line| line.starts_with(".TH")).unwrap();
            assert!(
                title.contains(concat!("\"taut ", env!("CARGO_PKG_VERSION"))),
                "{title}"
            );
            assert!(page.contains("control"), "{page}");
            assert!(page.contains("..."), "{page}");
        }
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
