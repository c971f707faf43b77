//! Nodes: the machines that run the commands of a run. Each kind of node defines how an agent's command reaches the
//! machine and how files are transferred; all else is common to all kinds.

pub(crate) mod address;
mod exchange;
mod local;
pub(crate) mod parcel;
mod power;
pub(crate) mod slurm;
mod ssh;
mod step;
mod vm;

pub use local::check_machine_is_free;
pub(crate) use local::{Local, take_this_machine};
pub(crate) use power::Power;
pub use slurm::ask_slurm;
pub(crate) use step::{Step, StepUnderWay};

use self::address::NodeAddress;
use self::parcel::RunFile;
use crate::agent::{Facts, Moment};
use crate::error::ExperimentError;
use crate::role::Role;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use taut_host::private;
use tempfile::TempDir;

/// Timeout for a reply from an available machine.
const ANSWER: Duration = Duration::from_secs(30);
/// Timeout for a file transfer in either direction.
const TRANSFER: Duration = Duration::from_secs(600);

/// A machine that runs the commands of a run.
pub(crate) trait Node: Send {
    /// Returns the node's role.
    fn role(&self) -> &str;

    /// Connects to the machine, reserves it for this experiment alone, and copies this program to it. It is called
    /// once, before the first run.
    fn take(&mut self, stop: &AtomicBool) -> Result<(), ExperimentError>;

    /// Brings the node to its known state, and makes on it the folder of a run, in which the run's commands are
    /// started. Returns notes for the user.
    fn begin(&mut self, run: &Site<'_>, files: &[RunFile]) -> Result<Vec<String>, ExperimentError>;

    /// Returns an identifier that each boot of the machine changes; empty for this machine.
    fn boot_id(&self) -> &str {
        ""
    }

    /// Starts a command of a run on the node, through the agent.
    fn start(&self, step: Step<'_>) -> Result<Box<dyn StepUnderWay>, ExperimentError>;

    /// Returns the reason why the machine is no longer available; `None` if it is available.
    fn lost(&self) -> Option<String> {
        None
    }

    /// Returns facts about the node's hardware and software, for the record of the run.
    fn facts(&mut self) -> Result<Facts, ExperimentError>;

    /// Returns the properties of the node that change over time, such as the time of its clock and its free space.
    fn moment(&mut self) -> Result<Moment, ExperimentError>;

    /// Moves the run's files from the node into the local folder `into`.
    fn collect(&mut self, into: &Path) -> Result<(), ExperimentError>;
}

/// Data about a run that nodes need.
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

/// Resets the node of this role: by its power interface, or by a local command.
pub(crate) fn run_reset(role: &str, reset: &str) -> Result<(), ExperimentError> {
    if let Ok(Some(power)) = Power::parse(reset) {
        return power
            .cycle()
            .map_err(|reason| ExperimentError::node(role, format!("its reset failed: {reason}")));
    }
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

/// Runs an agent's command on a node with the given input, and returns the output.
fn ask(agent: Command, input: Vec<u8>) -> Result<Vec<u8>, String> {
    let send = move |mut stdin: std::process::ChildStdin| stdin.write_all(&input);
    exchange::exchange(agent, send, exchange::read_all, ANSWER, None)
}

/// Writes the files that an agent's command prints as a tar stream into the folder `into`.
fn fetch(agent: Command, into: &Path) -> Result<(), String> {
    let target = into.to_owned();
    let receive = move |stream| parcel::unpack(stream, &target);
    exchange::exchange(agent, |_| Ok(()), receive, TRANSFER, None)
}

/// Makes a temporary folder for sockets; its path is short enough for the address of a Unix socket.
pub(crate) fn sockets() -> io::Result<TempDir> {
    let short = Some(std::env::temp_dir()).filter(|path| path.as_os_str().len() < 45);
    let parent = short.unwrap_or_else(|| "/tmp".into());
    private::sweep(&parent);
    private::scratch_in(&parent, &private::name_of_this_process())
}

/// Makes the nodes of the given roles, in the order of the roles.
pub(crate) fn of_roles<'a>(
    roles: impl Iterator<Item = (&'a String, &'a Role)>,
    program: &Path,
) -> Result<Vec<Box<dyn Node>>, ExperimentError> {
    // All virtual machines of an experiment share a folder, where their cables are.
    let mut folder: Option<Arc<TempDir>> = None;
    let mut nodes: Vec<Box<dyn Node>> = Vec::new();
    for (name, role) in roles {
        nodes.push(match &role.address {
            NodeAddress::Local => Box::new(Local::new(name, role, program)),
            NodeAddress::Ssh(address) => Box::new(ssh::Ssh::new(name, role, address, program)),
            NodeAddress::Vm => {
                let sockets = match &folder {
                    Some(sockets) => Arc::clone(sockets),
                    None => Arc::new(sockets().map_err(ExperimentError::io("sockets"))?),
                };
                folder = Some(Arc::clone(&sockets));
                Box::new(vm::Vm::new(name, role, program, &sockets))
            }
            // The runs that Slurm starts make these nodes themselves, with their allocated hosts.
            NodeAddress::Slurm => {
                return Err(ExperimentError::node(name, "its host is not known yet"));
            }
        });
    }
    Ok(nodes)
}
