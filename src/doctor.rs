//! `taut doctor`: checks of this machine, with the commands that install or enable missing parts.

use crate::exit::{self, Failure};
use crate::terminal::print;
use schemars::JsonSchema;
use serde::Serialize;
use taut_host::doctor::{Check, Verdict, examine};
use taut_port::{Backend, PortError, backends};

/// Maximum width of a line with a finding, characters. Commands that fix the problem are not split.
const WIDTH: usize = 100;
/// Width of the columns before a finding, characters.
const INDENT: usize = 33;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut doctor
  taut doctor --json | jq -r '.checks[] | select(.verdict == \"missing\") | .mend'

Changes nothing; measures the interruptions of one CPU for a second. Ends with code 3 if something is missing. Settings
that work but could be better are reported and do not change the exit code.")]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize, JsonSchema)]
pub struct Results<'a> {
    missing: usize,
    checks: &'a [Check],
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let stop = exit::stop_flag()?;
    let others = examine(&exit::own_program()?, stop)?;
    let rights = others.iter().find(|it| it.name == "rights");
    let give_rights = rights.map_or("", |rights| rights.mend.as_str());
    let ports = backends().iter().map(|backend| port(backend, give_rights));
    let checks: Vec<Check> = ports.chain(others.iter().cloned()).collect();
    let is_missing = |it: &&Check| it.verdict == Verdict::Missing;
    let missing = checks.iter().filter(is_missing).count();
    if arguments.json {
        let results = Results {
            missing,
            checks: &checks,
        };
        print::line(serde_json::to_string_pretty(&results).unwrap_or_default());
    } else {
        show(&checks);
    }
    match missing {
        0 => Ok(()),
        _ => Err(Failure::Missing(format!(
            "{missing} of {} things are missing; the fix is printed below each",
            checks.len()
        ))),
    }
}

/// Reports whether ports of a backend are available, as `taut ports` does.
fn port(backend: &Backend, give_rights: &str) -> Check {
    let name = format!("port {}", backend.name);
    match (backend.probe)() {
        Ok(found) => Check::well(name, found),
        Err(PortError::Missing { what, needs }) => {
            let (found, mend) = if needs.contains("CAP_") && !give_rights.is_empty() {
                (format!("{what}: needs {needs}"), give_rights.to_string())
            } else {
                (format!("unavailable ({what})"), needs)
            };
            Check::ill(name, Verdict::Missing, found, mend)
        }
        Err(e) => Check::ill(
            name,
            Verdict::Missing,
            e.to_string(),
            "the kernel log may contain more: dmesg",
        ),
    }
}

fn show(checks: &[Check]) {
    let ports_that_work = checks
        .iter()
        .filter(|it| it.verdict == Verdict::Well)
        .filter_map(|it| it.name.strip_prefix("port "));
    let ports: Vec<&str> = ports_that_work.collect();
    line(Verdict::Well, "ports", &ports.join(", "));
    let rights = checks.iter().find(|it| it.name == "rights");
    for check in checks {
        let is_port = check.name.starts_with("port ");
        if is_port && check.verdict == Verdict::Well {
            continue;
        }
        line(check.verdict, &check.name, &check.found);
        if is_port && rights.is_some_and(|rights| rights.mend == check.mend) {
            print::line(format!("{:<INDENT$}fix: see \"rights\"", ""));
        } else if !check.mend.is_empty() {
            print::line(format!("{:<INDENT$}fix: {}", "", check.mend));
        }
    }
}

fn line(verdict: Verdict, name: &str, found: &str) {
    let verdict = match verdict {
        Verdict::Well => "ok",
        Verdict::Better => "tip",
        Verdict::Missing => "MISSING",
    };
    let mut lines = in_lines(found, WIDTH - INDENT).into_iter();
    let first = lines.next().unwrap_or_default();
    print::line(format!("{verdict:<9}{name:<24}{first}"));
    for more in lines {
        print::line(format!("{:<INDENT$}{more}", ""));
    }
}

/// Splits a text between words into lines of at most `width` characters. A longer word has a line of its own.
fn in_lines(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_findings_are_split_between_words() {
        assert_eq!(in_lines("ab cd efg", 5), ["ab cd", "efg"]);
        assert_eq!(in_lines("abcdefgh ij", 5), ["abcdefgh", "ij"]);
        assert_eq!(in_lines("", 5), [""]);
    }
}
