//! The other build of taut that an experiment runs for comparison (`--against`).

use crate::definition::{Definition, Order};
use crate::error::ExperimentError;
use crate::variables::Values;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use toml::Spanned;

/// The loop variable whose value is the build of taut that makes a run: [`HEAD`] or [`BASE`].
pub(crate) const BUILD: &str = "build";
/// The name of the build that runs the experiment: this program.
pub(crate) const HEAD: &str = "head";
/// The name of the build given by `--against`.
pub(crate) const BASE: &str = "base";

/// Number of bytes of a program's output that are searched for its version.
const VERSION_BYTES: u64 = 4_096;

/// The other build of taut: the reference with which this program is compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Build {
    /// Absolute path of the build's program.
    pub program: String,
    /// Version of the program, as the program prints it: `taut 0.2.0, commit 1a2b3c`.
    pub version: String,
}

impl Build {
    /// Returns the build whose program has this path.
    ///
    /// # Errors
    /// The file does not exist, cannot be run, or is not a taut program.
    pub fn of(program: &Path) -> Result<Self, ExperimentError> {
        let wrong = |reason: String| {
            let place = program.display();
            ExperimentError::Unknown(format!("--against {place}: {reason}"))
        };
        let path = std::fs::canonicalize(program).map_err(|e| wrong(e.to_string()))?;
        let Some(text) = path.to_str() else {
            return Err(wrong("the path is not UTF-8: move the program".to_owned()));
        };
        let printed = printed_version(&path).map_err(|e| wrong(format!("cannot run it: {e}")))?;
        let version = version_in(&printed).ok_or_else(|| {
            wrong("expected the program of another taut; its --version does not say so".to_owned())
        })?;
        Ok(Self {
            program: text.to_owned(),
            version,
        })
    }

    /// Checks that the program still has the version that it had when the experiment began.
    ///
    /// # Errors
    /// The program does not exist, cannot be run, or has another version.
    pub(crate) fn check(&self) -> Result<(), ExperimentError> {
        let now = Self::of(Path::new(&self.program)).map_err(|e| {
            ExperimentError::Unknown(format!(
                "{e}; the runs so far have {}: put it back there, or run the experiment file into a new folder",
                self.version
            ))
        })?;
        if now.version == self.version {
            return Ok(());
        }
        Err(ExperimentError::Unknown(format!(
            "--against {}: this is {}, and the runs so far have {}: put that back, or run the experiment file into a \
             new folder",
            self.program, now.version, self.version
        )))
    }

    /// Adds the loop over both builds to an experiment. Each repetition then runs all combinations with both builds, in
    /// random order.
    pub(crate) fn add_to(definition: &mut Definition) -> Result<(), ExperimentError> {
        let is_taken = definition.variables.contains_key(BUILD)
            || definition.loops.contains_key(BUILD)
            || definition.zip.iter().any(|zip| zip.contains_key(BUILD));
        if is_taken {
            return Err(ExperimentError::Unknown(format!(
                "--against adds a variable `{BUILD}`, and the experiment file has one: rename it there"
            )));
        }
        let builds = [HEAD, BASE].map(|name| toml::Value::String(name.to_owned()));
        let builds = Spanned::new(0..0, toml::Value::Array(builds.to_vec()));
        definition.loops.insert(BUILD.to_owned(), builds);
        definition.plan.order = Order::Interleaved;
        Ok(())
    }
}

/// Returns true if these loop variables are those of a run by the other build, [`BASE`].
pub(crate) fn is_base(loops: &Values) -> bool {
    loops.get(BUILD).is_some_and(|build| build == BASE)
}

/// Returns true if a formula or condition uses the variable [`BUILD`].
pub(crate) fn names_build(expression: &str) -> bool {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut words = expression.split(|c: char| !is_of_name(c));
    words.any(|word| word == BUILD)
}

/// Returns the text that a program prints with `--version`.
fn printed_version(program: &Path) -> std::io::Result<String> {
    let mut child = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut printed = Vec::new();
    let read = match child.stdout.take() {
        Some(output) => output.take(VERSION_BYTES).read_to_end(&mut printed),
        None => Ok(0),
    };
    // A program that prints more than `VERSION_BYTES` is not taut, and may never exit by itself.
    let _ = child.kill();
    child.wait()?;
    read?;
    Ok(String::from_utf8_lossy(&printed).into_owned())
}

/// Returns the version and the commit in the output of `taut --version`; `None` if another program printed it.
fn version_in(printed: &str) -> Option<String> {
    let mut lines = printed.lines();
    let version = lines.next()?.trim();
    let number = version.strip_prefix("taut ")?;
    let is_number = number.starts_with(|c: char| c.is_ascii_digit());
    if !is_number || version.contains(char::is_control) {
        return None;
    }
    let commit = lines.find_map(|line| line.strip_prefix("commit "));
    let commit = commit.map(str::trim);
    Some(
        match commit.filter(|it| it.chars().all(|c| c.is_ascii_alphanumeric())) {
            Some(commit) if !commit.is_empty() => format!("{version}, commit {commit}"),
            _ => version.to_owned(),
        },
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Changes, Experiment};

    fn build(program: &str) -> Build {
        Build {
            program: program.to_owned(),
            version: "taut 0.1.0".to_owned(),
        }
    }

    fn parse(text: &str) -> Result<Experiment, String> {
        let changes = Changes {
            against: Some(build("/nothing/taut")),
            ..Changes::default()
        };
        let text = format!("title = \"t\"\n{text}");
        Experiment::parse(&text, "e.toml", Path::new("."), &changes).map_err(|e| e.to_string())
    }

    #[test]
    fn every_repetition_runs_both_builds_interleaved() {
        let experiment = parse(
            "[loop]\nx = [1, 2]\n[plan]\norder = \"sequential\"\nrepetitions = 9\n[[step]]\nrun = \"echo {{ x }}\"",
        )
        .unwrap();
        let plan = experiment.plan();
        let is_base_at = |index: usize| is_base(&experiment.variants()[plan[index].variant].loops);
        assert_eq!(plan.len(), 9 * 2 * 2);
        for (index, round) in plan.chunks(4).enumerate() {
            assert!(round.iter().all(|run| run.repetition == index as u32 + 1));
            assert_eq!((0..4).filter(|at| is_base_at(4 * index + at)).count(), 2);
        }
        let first: Vec<bool> = (0..9).map(|index| is_base_at(4 * index)).collect();
        assert!(first.contains(&true) && first.contains(&false), "{first:?}");
    }

    #[test]
    fn a_variable_named_build_is_refused() {
        let step = "[[step]]\nrun = \"echo {{ build }}\"";
        for own in [
            "[variables]\nbuild = 1",
            "[loop]\nbuild = [1]",
            "[[zip]]\nbuild = [1]",
        ] {
            let why = parse(&format!("{own}\n{step}")).unwrap_err();
            assert!(why.contains("rename it there"), "{why}");
        }
        // The file may use the variable, but a plain run then lacks it.
        assert!(parse(step).is_ok());
    }

    #[test]
    fn build_is_recognised_as_a_whole_word_only() {
        assert!(names_build("median('x', build='head')") && names_build("build == \"base\""));
        assert!(!names_build("median('rebuild_ns', builds=1, a_build=2)"));
    }

    #[test]
    fn builds_are_not_compared_on_remote_nodes() {
        let text = "[nodes.far]\nat = \"ssh://root@dut:2222\"\n[[step]]\nrun = \"true\"";
        let why = parse(text).unwrap_err();
        assert!(why.contains("node far is elsewhere"), "{why}");
    }

    #[test]
    fn version_output_of_programs_other_than_taut_is_refused() {
        let printed = "taut 0.2.0\ncommit           1a2b3c\ndpdk             not built in\n";
        let version = version_in(printed).unwrap();
        assert_eq!(version, "taut 0.2.0, commit 1a2b3c");
        assert_eq!(version_in("taut 0.1.0\n").unwrap(), "taut 0.1.0");
        for other in ["", "cat (GNU coreutils) 9.1\n", "taut\n", "taut wheels\n"] {
            assert_eq!(version_in(other), None, "{other}");
        }
    }

    #[test]
    fn a_second_build_without_a_taut_program_is_refused() {
        let why = build("/nothing/taut").check().unwrap_err().to_string();
        assert!(
            why.starts_with("--against /nothing/taut: No such file"),
            "{why}"
        );
        assert!(
            why.ends_with("into a new folder") && !why.contains('\n'),
            "{why}"
        );
        let why = Build::of(Path::new("/bin/sh")).unwrap_err().to_string();
        assert!(why.contains("another taut"), "{why}");
    }
}
