//! Local nodes, which are on this machine. A node with links has a network namespace of its own.

use super::parcel::RunFile;
use super::step::{Step, StepUnderWay};
use super::{Node, Site};
use crate::agent::{self, Facts, Held, Moment};
use crate::definition::ResetBefore;
use crate::error::ExperimentError;
use crate::role::Role;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

/// Local node: this machine.
pub(crate) struct Local {
    role: String,
    reset: Option<String>,
    reset_before: ResetBefore,
    is_reset: bool,
    program: PathBuf,
    folder: PathBuf,
    namespace: Option<String>,
}

impl Local {
    pub(crate) fn new(name: &str, role: &Role, program: &Path) -> Self {
        Self {
            role: name.to_owned(),
            reset: role.definition.reset.clone(),
            reset_before: role.definition.reset_before,
            is_reset: false,
            program: program.to_owned(),
            folder: PathBuf::new(),
            namespace: None,
        }
    }

    /// Makes a local command that runs `taut node WHAT --folder FOLDER ARGUMENTS` on the node. FOLDER is the run's
    /// folder on the node. The command ends when its standard input closes.
    fn agent(&self, what: &str, arguments: &[&str]) -> Command {
        let mut command = match &self.namespace {
            Some(namespace) => {
                let mut command = Command::new("ip");
                command
                    .args(["netns", "exec", namespace])
                    .arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        command
            .args(["node", what, "--folder"])
            .arg(&self.folder)
            .args(arguments);
        command
    }
}

impl Node for Local {
    fn role(&self) -> &str {
        &self.role
    }

    /// Does nothing: the experiment reserves the machine once for all local nodes.
    fn take(&mut self, _stop: &AtomicBool) -> Result<(), ExperimentError> {
        Ok(())
    }

    fn begin(&mut self, run: &Site<'_>, files: &[RunFile]) -> Result<Vec<String>, ExperimentError> {
        self.namespace = run.namespace.map(ToOwned::to_owned);
        self.folder = run.folder.join(&self.role);
        let is_due = self.reset_before == ResetBefore::EachRun || !self.is_reset;
        if let Some(reset) = self.reset.as_ref().filter(|_| is_due) {
            super::run_reset(&self.role, reset)?;
            self.is_reset = true;
        }
        super::write_files(&self.folder, files)?;
        Ok(Vec::new())
    }

    fn start(&self, step: Step<'_>) -> Result<Box<dyn StepUnderWay>, ExperimentError> {
        step.start_by(&self.role, |words| self.agent("step", words))
    }

    fn facts(&mut self) -> Result<Facts, ExperimentError> {
        Ok(agent::facts())
    }

    fn moment(&mut self) -> Result<Moment, ExperimentError> {
        Ok(agent::moment(&self.folder))
    }

    fn collect(&mut self, _into: &Path) -> Result<(), ExperimentError> {
        Ok(())
    }
}

/// Checks that no experiment runs on this machine.
///
/// # Errors
/// Another experiment runs on this machine.
pub fn check_machine_is_free() -> Result<(), ExperimentError> {
    take_this_machine().map(drop)
}

/// Reserves this machine for one experiment.
pub(crate) fn take_this_machine() -> Result<Held, ExperimentError> {
    Held::claim().map_err(|why| ExperimentError::node("local", why))
}
