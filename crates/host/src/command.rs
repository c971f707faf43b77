//! Runs set-up programs (`ip`, `bridge`, `ethtool`, `chrt`) and quotes their errors.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, ExitStatus, Stdio};

/// The reason why a set-up program failed. Every message quotes the command line.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The program is not on the search path.
    #[error(
        "`{program}` is not on the search path; get it with: apt-get install {package} (or add \
         /usr/sbin to PATH)"
    )]
    NotInstalled {
        /// The program that is absent.
        program: String,
        /// The Debian package that contains the program.
        package: &'static str,
    },
    /// The kernel refused an operation of the command because of a missing privilege.
    #[error("no permission for `{command}`: {stderr}; run as root, or with {}", rights_for(.command))]
    NotPermitted {
        /// The command line that was not permitted.
        command: String,
        /// The standard error of the program.
        stderr: String,
    },
    /// The program ran and failed.
    #[error("`{command}` failed ({status}): {stderr}")]
    Failed {
        /// The command line that failed.
        command: String,
        /// The exit status of the program.
        status: ExitStatus,
        /// The standard error of the program.
        stderr: String,
    },
    /// The program exists but could not be started.
    #[error("cannot run `{command}`: {source}")]
    NotStarted {
        /// The command line that could not be started.
        command: String,
        /// The error that the operating system reported.
        source: io::Error,
    },
}

/// Runs `program` with `arguments` and returns its standard output.
///
/// # Errors
/// [`CommandError`], with the command line and the program's standard error.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<String, CommandError> {
    let output = output_of(program, arguments)?;
    output.map_err(|(status, stderr)| failure(command_line(program, arguments), status, stderr))
}

/// Runs lines of shell in order in a network namespace (that of this process if none is given), and returns their
/// output. One process enters the namespace for all lines. In the namespace, `/sys` and `/proc/sys` show the
/// namespace's own interfaces.
///
/// # Errors
/// [`CommandError`], with the line that failed; later lines are not run.
pub(crate) fn run_lines(namespace: Option<&str>, lines: &[String]) -> Result<String, CommandError> {
    let script = lines.join("\n");
    // With `-x` the shell prints each line before it runs it.
    let shell = ["sh", "-exc", &script];
    let words = match namespace {
        Some(namespace) => [&["ip", "netns", "exec", namespace] as &[&str], &shell].concat(),
        None => shell.to_vec(),
    };
    let (program, arguments) = (words[0], &words[1..]);
    let output = output_of(program, arguments)?;
    output.map_err(|(status, stderr)| {
        let (line, said) = line_that_failed(&stderr);
        let line = line.unwrap_or_else(|| command_line(program, arguments));
        let called = line.split(' ').next().unwrap_or_default();
        // A shell returns the exit status 127 if a program is absent.
        if status.code() == Some(127) && !is_installed(called) {
            return not_installed(called);
        }
        failure(line, status, said)
    })
}

/// Runs a program. Returns its standard output, or its exit status and standard error if it failed.
fn output_of(
    program: &str,
    arguments: &[&str],
) -> Result<Result<String, (ExitStatus, String)>, CommandError> {
    let output = Command::new(program)
        .args(arguments)
        // The language is fixed, because messages are quoted and searched.
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(|source| {
            // The error's kind is not used: an unreadable folder on the search path hides "not found".
            if is_installed(program) {
                CommandError::NotStarted {
                    command: command_line(program, arguments),
                    source,
                }
            } else {
                not_installed(program)
            }
        })?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err((output.status, text(&output.stderr).trim().to_owned()))
    })
}

fn command_line(program: &str, arguments: &[&str]) -> String {
    [&[program], arguments].concat().join(" ")
}

fn not_installed(program: &str) -> CommandError {
    CommandError::NotInstalled {
        program: program.to_owned(),
        package: package_of(program),
    }
}

fn failure(command: String, status: ExitStatus, stderr: String) -> CommandError {
    if stderr.contains("not permitted") || stderr.contains("ermission denied") {
        return CommandError::NotPermitted { command, stderr };
    }
    CommandError::Failed {
        command,
        status,
        stderr,
    }
}

/// Returns the last command line that a shell with `-x` printed before running it, and the messages after that line.
fn line_that_failed(stderr: &str) -> (Option<String>, String) {
    let mut line = None;
    let mut said: Vec<&str> = Vec::new();
    for told in stderr.lines() {
        if let Some(next) = told.strip_prefix("+ ") {
            line = Some(next.to_owned());
            said.clear();
        } else {
            said.push(told);
        }
    }
    (line, said.join("\n"))
}

/// Returns the privileges that a set-up command needs, such as for an error message.
fn rights_for(command: &str) -> &'static str {
    match command.split(' ').next() {
        Some("chrt") => "CAP_SYS_NICE",
        _ => "CAP_NET_ADMIN and CAP_SYS_ADMIN",
    }
}

/// Returns the Debian package of a program that this crate uses.
pub(crate) fn package_of(program: &str) -> &'static str {
    match program {
        "ip" | "bridge" => "iproute2",
        "ethtool" => "ethtool",
        _ => "util-linux",
    }
}

/// Returns true if `program` is an executable file on the search path.
#[must_use]
pub fn is_installed(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| {
            fs::metadata(folder.join(program))
                .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
        })
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_command_returns_the_output_of_its_program() {
        assert_eq!(run("echo", &["two", "words"]).unwrap(), "two words\n");
    }

    #[test]
    fn a_failure_quotes_the_command_and_its_stderr() {
        let message = run("sh", &["-c", "echo no such bridge >&2; exit 3"])
            .unwrap_err()
            .to_string();
        assert!(message.contains("`sh -c echo no such bridge"), "{message}");
        assert!(message.ends_with("no such bridge"), "{message}");
        assert!(message.contains("exit status: 3"), "{message}");
    }

    #[test]
    fn the_error_quotes_the_command_line_that_failed() {
        let lines = [
            "echo one",
            "[ -e /nowhere ] || echo two",
            "ls /nowhere",
            "echo three",
        ];
        let error = run_lines(None, &lines.map(String::from)).unwrap_err();
        let message = error.to_string();
        assert!(message.starts_with("`ls /nowhere` failed"), "{message}");
        assert!(
            !message.contains("three") && message.contains("No such file"),
            "{message}"
        );
        assert_eq!(
            run_lines(None, &[lines[0], lines[1]].map(String::from)).unwrap(),
            "one\ntwo\n"
        );
        let absent = run_lines(None, &["taut-no-such-program -v".to_owned()]);
        assert!(
            matches!(&absent, Err(CommandError::NotInstalled { program, .. }) if program == "taut-no-such-program"),
            "{absent:?}"
        );
        let refused = "sh -c 'echo RTNETLINK answers: Operation not permitted >&2; exit 2'";
        let refused = run_lines(None, &[refused.to_owned()]);
        assert!(matches!(refused, Err(CommandError::NotPermitted { .. })));
    }

    #[test]
    fn the_error_for_an_absent_program_names_its_package() {
        let error = run("taut-no-such-program", &[]).unwrap_err();
        assert!(
            matches!(error, CommandError::NotInstalled { .. }),
            "{error}"
        );
        assert_eq!(package_of("ip"), "iproute2");
    }

    #[test]
    fn programs_are_found_on_the_search_path_only() {
        assert!(is_installed("sh"));
        assert!(!is_installed("taut-no-such-program"));
    }

    #[test]
    fn missing_privileges_are_distinguished_from_other_failures() {
        let error = run(
            "sh",
            &[
                "-c",
                "echo 'RTNETLINK answers: Operation not permitted' >&2; exit 2",
            ],
        );
        assert!(matches!(error, Err(CommandError::NotPermitted { .. })));
        assert_eq!(rights_for("chrt --fifo --pid 50 1"), "CAP_SYS_NICE");
    }
}
