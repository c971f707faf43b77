//! Nodes: the machines that run the commands of a run. Each kind of node defines how an agent's command reaches the
//! machine and how files are transferred; all else is common to all kinds.

pub(crate) mod address;
mod exchange;
mod local;
pub(crate) mod parcel;
pub(crate) mod slurm;
mod ssh;
mod step;

pub use local::check_machine_is_free;
pub(crate) use local::{Local, take_this_machine};
pub use slurm::ask_slurm;
pub(crate) use step::{Step, StepUnderWay};

use self::address::NodeAddress;
use self::parcel::RunFile;
use crate::agent::{Facts, Moment};
use crate::error::ExperimentError;
use crate::role::Role;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;

/// A machine that runs the commands of a run.
pub(crate) trait Node: Send {
    /// Returns the node's role.
    fn role(&self) -> &str;

    /// Connects to the machine, reserves it for this experiment alone, and copies this program to it. It is called
    /// once, before the first run.
    fn take(&mut self, stop: &AtomicBool) -> Result<(), ExperimentError>;

    /// Brings the node to its known state, and makes a run's folder on it, in which later steps run. Returns notes for
    /// the user.
    fn begin(&mut self, run: &Site<'_>, files: &[RunFile]) -> Result<Vec<String>, ExperimentError>;

    /// Starts a command of a run on the node, through the agent.
    fn start(&self, step: Step<'_>) -> Result<Box<dyn StepUnderWay>, ExperimentError>;

    /// Returns the reason why the machine is no longer available; `None` if it is available.
    fn lost(&self) -> Option<String> {
        None
    }

    /// Returns facts about the node, for the record of the run.
    fn facts(&mut self) -> Result<Facts, ExperimentError>;

    /// Returns the properties of the node that change over time: the time of its clock, its free space, and more.
    fn moment(&mut self) -> Result<Moment, ExperimentError>;

    /// Moves the run's files from the node into the local folder `into`.
    fn collect(&mut self, into: &Path) -> Result<(), ExperimentError>;
}

/// Parameters of a run that nodes need.
pub(crate) struct Site<'a> {
    pub(crate) id: &'a str,
    /// The folder of the run in the results folder.
    pub(crate) folder: &'a Path,
    /// The network namespace of a local node with links.
    pub(crate) namespace: Option<&'a str>,
    /// Flag that requests the end of the experiment.
    pub(crate) stop: &'a AtomicBool,
}

/// Writes the files of a run into its folder, on a file system that this machine can access.
fn write_files(folder: &Path, files: &[RunFile]) -> Result<(), ExperimentError> {
    std::fs::create_dir_all(folder).map_err(ExperimentError::io(folder))?;
    for file in files {
        let path = folder.join(&file.name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(ExperimentError::io(parent))?;
        }
        std::fs::write(&path, &file.text).map_err(ExperimentError::io(path))?;
    }
    Ok(())
}

/// Runs the local command that resets the node of this role.
pub(crate) fn run_reset(role: &str, reset: &str) -> Result<(), ExperimentError> {
    let output = Command::new("sh")
        .arg("-c")
        .arg(reset)
        .env("TAUT_NODE", role)
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(|e| ExperimentError::node(role, format!("cannot run its reset `{reset}`: {e}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.trim().lines().last().unwrap_or("");
    Err(ExperimentError::node(
        role,
        format!("its reset `{reset}` failed ({}): {last}", output.status),
    ))
}

/// Makes the node that takes this role.
pub(crate) fn of_role(
    name: &str,
    role: &Role,
    program: &Path,
) -> Result<Box<dyn Node>, ExperimentError> {
    match &role.address {
        NodeAddress::Local => Ok(Box::new(Local::new(name, role, program))),
        NodeAddress::Ssh(address) => Ok(Box::new(ssh::Ssh::new(name, role, address, program))),
        // The runs that Slurm starts make these nodes themselves, with their allocated hosts.
        NodeAddress::Slurm => Err(ExperimentError::node(name, "its host is not known yet")),
    }
}
