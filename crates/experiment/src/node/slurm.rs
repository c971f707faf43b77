//! A machine in a Slurm allocation: each command on it is a Slurm step (`srun`), and its files are on the file system
//! that all machines share.

use super::exchange::{exchange, read_all};
use super::parcel::RunFile;
use super::step::{Step, StepUnderWay};
use super::{Node, Site};
use crate::agent::{Facts, Moment};
use crate::error::ExperimentError;
use crate::experiment::Experiment;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Timeout of Slurm's commands, and of steps that only query a node.
pub(crate) const ANSWER: Duration = Duration::from_secs(60);

/// Error message for a job that Slurm ended at its time limit.
pub(crate) const TIME_LIMIT: &str =
    "Slurm ended its job at the time limit, which is made of plan.limit and plan.attempts";

struct Slurm {
    role: String,
    host: String,
    program: PathBuf,
    folder: PathBuf,
}

/// Returns the nodes in the allocation in which this process runs.
pub(crate) fn of_allocation(
    experiment: &Experiment,
    program: &Path,
) -> Result<Vec<Box<dyn Node>>, ExperimentError> {
    let (first, _) = experiment
        .nodes
        .first()
        .unwrap_or_else(|| unreachable!("an experiment has a node"));
    let wrong = |reason: String| ExperimentError::node(first, reason);
    let list = std::env::var("SLURM_JOB_NODELIST").map_err(|_| {
        wrong("this is not a Slurm job: start it with `taut experiment run`".into())
    })?;
    let hosts = asked("scontrol", &["show", "hostnames", &list]).map_err(wrong)?;
    let mut offered = Vec::new();
    for host in hosts.split_whitespace() {
        let node = asked("scontrol", &["show", "node", "-o", host]).map_err(wrong)?;
        offered.push((host.to_owned(), active_features(&node)));
    }
    let wanted: Vec<Option<&str>> = experiment
        .nodes
        .values()
        .map(|role| role.definition.features.as_deref())
        .collect();
    let chosen = assign(&wanted, &offered).ok_or_else(|| {
        wrong(format!(
            "the allocated machines ({list}) lack the features that the nodes require"
        ))
    })?;
    let nodes = experiment.nodes.keys().zip(chosen).map(|(role, host)| {
        Box::new(Slurm {
            role: role.clone(),
            host: offered[host].0.clone(),
            program: program.to_owned(),
            folder: PathBuf::new(),
        }) as Box<dyn Node>
    });
    Ok(nodes.collect())
}

/// Returns the output of a Slurm command.
///
/// # Errors
/// The command is missing, fails, or does not end in time.
pub fn ask_slurm(program: &str, arguments: &[&str]) -> Result<String, ExperimentError> {
    asked(program, arguments).map_err(|reason| ExperimentError::node("slurm", reason))
}

/// Returns the output of a Slurm command.
pub(crate) fn asked(program: &str, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments);
    let output = exchange(command, |_| Ok(()), read_all, ANSWER, None)
        .map_err(|reason| match std::env::var_os("PATH") {
            Some(path) if !std::env::split_paths(&path).any(|folder| folder.join(program).is_file()) => {
                format!("`{program}` is not installed here: start the experiment on a machine that submits jobs to Slurm")
            }
            _ => reason,
        })?;
    Ok(String::from_utf8_lossy(&output).into_owned())
}

fn active_features(node: &str) -> BTreeSet<String> {
    node.split_whitespace()
        .find_map(|word| word.strip_prefix("ActiveFeatures="))
        .unwrap_or("")
        .split(',')
        .map(ToOwned::to_owned)
        .collect()
}

/// Returns whether a machine with `features` has the features in `wanted`: names joined by `&` (and) and `|` (or).
fn has(features: &BTreeSet<String>, wanted: &str) -> bool {
    wanted
        .split('&')
        .all(|part| part.split('|').any(|name| features.contains(name.trim())))
}

/// Assigns a different machine to each node, as an index in `offered`; `None` if no assignment gives every node its
/// requested features.
fn assign(wanted: &[Option<&str>], offered: &[(String, BTreeSet<String>)]) -> Option<Vec<usize>> {
    fn go_on(
        wanted: &[Option<&str>],
        offered: &[(String, BTreeSet<String>)],
        chosen: &mut Vec<usize>,
    ) -> bool {
        let Some(next) = wanted.get(chosen.len()) else {
            return true;
        };
        for (index, (_, features)) in offered.iter().enumerate() {
            if !chosen.contains(&index) && next.is_none_or(|next| has(features, next)) {
                chosen.push(index);
                if go_on(wanted, offered, chosen) {
                    return true;
                }
                chosen.pop();
            }
        }
        false
    }
    let mut chosen = Vec::new();
    go_on(wanted, offered, &mut chosen).then_some(chosen)
}

/// Returns the argument of `sbatch --constraint` with which every node gets a machine with its features.
pub(crate) fn constraint(wanted: &[Option<&str>]) -> Option<String> {
    let named: Vec<&str> = wanted.iter().flatten().copied().collect();
    let first = named.first()?;
    if named.len() == wanted.len() && named.iter().all(|name| name == first) {
        return Some((*first).to_owned());
    }
    let mut counted: Vec<(&str, usize)> = Vec::new();
    for name in named {
        match counted.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => counted.push((name, 1)),
        }
    }
    let parts: Vec<String> = counted
        .into_iter()
        .map(|(name, count)| match name.contains(['&', '|']) {
            true => format!("({name})*{count}"),
            false => format!("{name}*{count}"),
        })
        .collect();
    Some(format!("[{}]", parts.join("&")))
}

impl Slurm {
    fn wrong(&self, reason: impl std::fmt::Display) -> ExperimentError {
        ExperimentError::node(&self.role, format!("{} ({reason})", self.host))
    }

    fn ask<T: serde::de::DeserializeOwned>(&self, what: &str) -> Result<T, ExperimentError> {
        let answer = exchange(self.agent(what, &[]), |_| Ok(()), read_all, ANSWER, None);
        let answer = answer.map_err(|reason| match reason.contains("No such file") {
            true => self.wrong(format!(
                "it does not see {}: results must be on a file system that all machines share",
                self.program.display()
            )),
            false => self.wrong(reason),
        })?;
        serde_json::from_slice(&answer)
            .map_err(|e| self.wrong(format!("unexpected output of {what}: {e}")))
    }

    /// Makes a local command that runs `taut node WHAT --folder FOLDER ARGUMENTS` on the node. FOLDER is the run's
    /// folder on the node. The command ends when its standard input closes.
    fn agent(&self, what: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("srun");
        // The step uses the whole machine together with other steps, instead of the single CPU of a task.
        command
            .args([
                "--overlap",
                "--nodes=1",
                "--ntasks=1",
                "--cpu-bind=none",
                "--mem=0",
                "--unbuffered",
            ])
            .arg(format!("--nodelist={}", self.host))
            .arg(&self.program)
            .args(["node", what, "--folder"])
            .arg(&self.folder)
            .args(arguments);
        command
    }
}

impl Node for Slurm {
    fn role(&self) -> &str {
        &self.role
    }

    /// Does nothing: Slurm has allocated the machine to this run alone.
    fn take(&mut self, _stop: &AtomicBool) -> Result<(), ExperimentError> {
        Ok(())
    }

    fn begin(&mut self, run: &Site<'_>, files: &[RunFile]) -> Result<Vec<String>, ExperimentError> {
        self.folder = run.folder.join(&self.role);
        super::write_files(&self.folder, files)?;
        Ok(vec![format!("node {} was {}", self.role, self.host)])
    }

    fn start(&self, step: Step<'_>) -> Result<Box<dyn StepUnderWay>, ExperimentError> {
        step.start_by(&self.role, |words| self.agent("step", words))
    }

    /// Returns the reason why the machines are no longer available: Slurm ended the allocation, and with it the use of
    /// all its machines.
    fn lost(&self) -> Option<String> {
        let job = std::env::var("SLURM_JOB_ID").ok()?;
        let reason = ["--noheader", "--states=all", "--format=%r", "--jobs", &job];
        let reason = asked("squeue", &reason).ok()?;
        (reason.trim() == "TimeLimit").then(|| TIME_LIMIT.to_owned())
    }

    fn facts(&mut self) -> Result<Facts, ExperimentError> {
        self.ask("facts")
    }

    fn moment(&mut self) -> Result<Moment, ExperimentError> {
        self.ask("moment")
    }

    fn collect(&mut self, _into: &Path) -> Result<(), ExperimentError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn host(name: &str, features: &[&str]) -> (String, BTreeSet<String>) {
        (
            name.into(),
            features.iter().map(|f| (*f).to_owned()).collect(),
        )
    }

    #[test]
    fn each_node_gets_a_machine_with_its_features() {
        let hosts = [
            host("a", &["gen", "fast"]),
            host("b", &["gen"]),
            host("c", &["dut"]),
        ];
        assert_eq!(
            assign(&[Some("dut"), Some("gen")], &hosts),
            Some(vec![2, 0])
        );
        // The first machine that suits the first node is the only machine that suits the second node.
        assert_eq!(
            assign(&[Some("gen"), Some("gen&fast")], &hosts),
            Some(vec![1, 0])
        );
        assert_eq!(
            assign(&[None, Some("x|dut"), None], &hosts),
            Some(vec![0, 2, 1])
        );
        assert_eq!(assign(&[Some("dut"), Some("dut")], &hosts), None);
        let line =
            "NodeName=a Arch=x86_64 AvailableFeatures=gen,old ActiveFeatures=gen,fast Gres=(null)";
        assert_eq!(active_features(line), host("a", &["gen", "fast"]).1);
    }

    #[test]
    fn node_features_become_a_slurm_constraint() {
        assert_eq!(constraint(&[None, None]), None);
        assert_eq!(constraint(&[Some("x"), Some("x")]), Some("x".into()));
        assert_eq!(
            constraint(&[Some("gen"), Some("dut")]),
            Some("[gen*1&dut*1]".into())
        );
        assert_eq!(
            constraint(&[Some("gen"), None, Some("gen")]),
            Some("[gen*2]".into())
        );
        assert_eq!(
            constraint(&[Some("a&b"), Some("c")]),
            Some("[(a&b)*1&c*1]".into())
        );
    }
}
