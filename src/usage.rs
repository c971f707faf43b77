//! Errors of the command line: one line with what is wrong, and which help to read.

use crate::exit::Failure;
use clap::Command;
use clap::error::ErrorKind;
use std::process::ExitCode;

/// The end of the message about an unknown subcommand.
const OTHER_SUBCOMMANDS: &str = if cfg!(feature = "whole") {
    ""
} else {
    "; this program has only what the demo needs, `./run build` makes one with all commands"
};

/// Ends a command line that starts nothing: prints help, the version or the error, and returns the exit code.
pub fn end(error: &clap::Error) -> ExitCode {
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if is_help || !error.use_stderr() {
        error.exit();
    }
    let words = std::env::args_os().skip(1);
    let words = words.filter_map(|word| word.into_string().ok());
    Failure::Input(text(error, words)).report()
}

/// Returns the error message, in one line, for a command line that consists of `words`.
fn text(error: &clap::Error, words: impl Iterator<Item = String>) -> String {
    let command = crate::command();
    let path = path(&command, words);
    let other = match error.kind() {
        ErrorKind::InvalidSubcommand => OTHER_SUBCOMMANDS,
        _ => "",
    };
    format!(
        "{}{other}; see {path} --help",
        one_line(&error.render().to_string())
    )
}

/// Returns the name of the command and of the subcommands that the words select, separated by spaces.
pub fn path(command: &Command, words: impl Iterator<Item = String>) -> String {
    let mut path = command.get_name().to_owned();
    let mut at = command;
    for word in words {
        if let Some(below) = at.find_subcommand(&word) {
            path = format!("{path} {}", below.get_name());
            at = below;
        }
    }
    path
}

/// Joins the lines of the parser's message, without usage and the pointer to the help.
fn one_line(message: &str) -> String {
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let ends = ["\n\nUsage: ", "\n\nFor more information"];
    let end = ends.iter().filter_map(|it| message.find(it)).min();
    let message = &message[..end.unwrap_or(message.len())];
    let mut line = String::new();
    for part in message.lines().map(str::trim).filter(|it| !it.is_empty()) {
        let (joint, part) = match part.strip_prefix("tip: ") {
            Some(tip) => ("; ", tip),
            None if line.is_empty() => ("", part),
            None if line.ends_with(':') || part.starts_with('[') => (" ", part),
            None => (", ", part),
        };
        line.push_str(joint);
        line.push_str(part);
    }
    line
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn refused(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let error = crate::command().try_get_matches_from(&words).unwrap_err();
        text(&error, words.into_iter().skip(1))
    }

    #[test]
    fn wrong_command_lines_are_described_in_one_line() {
        assert_eq!(
            refused("taut man"),
            "the following required arguments were not provided: <FOLDER>; see taut man --help"
        );
        for (line, start, end) in [
            (
                "taut generate --sied 64",
                "unexpected argument '--sied' found",
                "; see taut generate --help",
            ),
            (
                "taut demo --quick --full",
                "the argument '--",
                "; see taut demo --help",
            ),
            (
                "taut tune audit --profile fast",
                "invalid value 'fast' for '--profile <PROFILE>' [possible values: ",
                "; see taut tune audit --help",
            ),
            (
                "taut route --control /run/x.sock add",
                "the following required arguments were not provided: <ROUTE>...",
                "; see taut route add --help",
            ),
            (
                "taut nonsense",
                "unrecognized subcommand 'nonsense'",
                "; see taut --help",
            ),
        ] {
            let text = refused(line);
            assert!(text.starts_with(start) && text.ends_with(end), "{text}");
            assert_eq!(text.lines().count(), 1, "{text}");
        }
    }

    #[test]
    fn multi_line_usage_errors_are_printed_on_one_line() {
        let message = "error: cannot be used with:\n  --a\n  --b\n\n  tip: omit them\n\n\
            Usage: taut x\n\nFor more information, try '--help'.\n";
        let line = "cannot be used with: --a, --b; omit them";
        assert_eq!(one_line(message), line);
    }
}
