//! Nodes: the machines that run the commands of a run. Each kind defines how a command of the agent reaches the machine
//! and how files are transferred; the rest is common to all kinds.

pub(crate) mod address;
mod exchange;
mod local;
pub(crate) mod parcel;
pub(crate) mod slurm;
mod ssh;
mod step;

pub use local::check_machine_is_free;
pub(crate) use local::{Local, take_this_machine};
pub(crate) use step::{Step, StepUnderWay};

use self::address::NodeAddress;
use self::parcel::RunFile;
use crate::agent::{Facts, Moment};
use crate::error::ExperimentError;
use crate::role::Role;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;

/// A machine that runs steps.
pub(crate) trait Node: Send {
    /// Returns the node's role.
    fn role(&self) -> &str;

    /// Connects to the machine, reserves it for this experiment alone, and copies this program to it. It is called
    /// once, before the first run.
    fn take(&mut self, stop: &AtomicBool) -> Result<(), ExperimentError>;

    /// Brings the node to its known state and makes the folder of a run there, in which later steps run. Returns notes
    /// for the reader.
    fn begin(&mut self, run: &Site<'_>, files: &[RunFile]) -> Result<Vec<String>, ExperimentError>;

    /// Starts a command of a run on the node, through the agent.
    fn start(&self, step: Step<'_>) -> Result<Box<dyn StepUnderWay>, ExperimentError>;

    /// Returns the reason why the machine is no longer available, if it is not.
    fn lost(&self) -> Option<String> {
        None
    }

    /// Returns the node's facts, for the record.
    fn facts(&mut self) -> Result<Facts, ExperimentError>;

    /// Returns the node's clock and its free space.
    fn moment(&mut self) -> Result<Moment, ExperimentError>;

    /// Moves the run's files from the node into `into`.
    fn collect(&mut self, into: &Path) -> Result<(), ExperimentError>;
}

/// Parameters of a run that its nodes need.
pub(crate) struct Site<'a> {
    pub(crate) id: &'a str,
    /// The run's own folder among the results.
    pub(crate) folder: &'a Path,
    /// The namespace of a local node with links.
    pub(crate) namespace: Option<&'a str>,
    /// Flag that is set to end the experiment.
    pub(crate) stop: &'a AtomicBool,
}

/// Writes the files of a run into its folder on a file system of this machine.
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

/// Runs the local command that resets a node.
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

/// Makes the node of a role.
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
