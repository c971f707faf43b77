//! `taut completions`: the script with which a shell completes commands, options and values.

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, ValueHint};
use clap_complete::Shell;
use taut_bench::device;
use taut_functions::FUNCTIONS;
use taut_port::backends;

/// Returns the script with which a shell completes the command line.
pub fn script(shell: Shell) -> String {
    let mut command = crate::command();
    command.build();
    let mut script = Vec::new();
    let mut shown = for_people(&command, shell);
    clap_complete::generate(shell, &mut shown, "taut", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Removes the hidden parts of a command, which only programs use.
fn for_people(command: &Command, shell: Shell) -> Command {
    let arguments = command.get_arguments().filter(|it| !it.is_hide_set());
    let below = crate::shown(command);
    let mut shown = Command::new(command.get_name().to_string())
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_flag(true)
        .disable_version_flag(true)
        .disable_help_subcommand(true)
        .args(arguments.map(|argument| alone(argument, shell)))
        .subcommands(below.map(|command| for_people(command, shell)));
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    shown
}

/// Removes an argument's conflicts with other arguments and its dependencies on them, because some of the other
/// arguments are hidden. Adds the values that the shell suggests.
fn alone(argument: &Arg, shell: Shell) -> Arg {
    let mut alone = Arg::new(argument.get_id().clone())
        .action(argument.get_action().clone())
        .value_parser(argument.get_value_parser().clone())
        .value_hint(hint(argument));
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
    if let Some(names) = argument.get_value_names() {
        alone = alone.value_names(names.to_vec());
    }
    let offered = offered(argument, shell);
    if !offered.is_empty() {
        alone = alone.value_parser(PossibleValuesParser::new(offered));
    }
    alone
}

fn value_name(argument: &Arg) -> &str {
    let name = argument.get_value_names().and_then(|names| names.first());
    name.map_or("", |name| name.as_str())
}

/// Returns the kind of path that a shell completes, by the hint of the argument and the name of its value.
fn hint(argument: &Arg) -> ValueHint {
    match (argument.get_value_hint(), value_name(argument)) {
        (ValueHint::AnyPath, "DIR" | "FOLDER") => ValueHint::DirPath,
        (ValueHint::AnyPath, "FILE" | "SOCKET") => ValueHint::FilePath,
        (ValueHint::Unknown, "EXPERIMENT") => ValueHint::AnyPath,
        (ValueHint::Unknown, "COMMAND") => ValueHint::CommandString,
        (hint, _) => hint,
    }
}

/// Returns the values that a shell suggests for an argument which also accepts other values; empty if there are no
/// suggestions.
fn offered(argument: &Arg, shell: Shell) -> Vec<String> {
    let long = argument.get_long().unwrap_or_default();
    match (long, value_name(argument)) {
        ("device", "ID") | ("devices", "IDS") => device::ids(),
        ("function", _) => FUNCTIONS.0.iter().map(|it| it.name.to_owned()).collect(),
        ("port", "SPEC") => backends()
            .iter()
            .map(|it| format!("{}:", it.name))
            .collect(),
        ("", "NAMES") => references(),
        // Other shells would then offer no files.
        ("", "EXPERIMENT") if shell == Shell::Bash => references(),
        _ => Vec::new(),
    }
}

fn references() -> Vec<String> {
    taut_experiment::reference().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_list_public_commands_and_no_hidden_commands() {
        use clap::ValueEnum;
        for shell in Shell::value_variants() {
            let script = script(*shell);
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
    fn completions_offer_listed_values_or_file_names() {
        let bash = script(Shell::Bash);
        for offered in [
            "memif-idle",
            "mac-swap",
            "af_packet:",
            "stylianopoulos-fig2",
            "compopt -o plusdirs",
            "compopt -o filenames",
        ] {
            assert!(bash.contains(offered), "{offered}");
        }
        let zsh = script(Shell::Zsh);
        for offered in ["memif-idle", "stylianopoulos-fig2", "_files -/"] {
            assert!(zsh.contains(offered), "{offered}");
        }
    }
}
