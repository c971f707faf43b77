//! A virtual machine that the experiment makes on this machine, with links to other virtual machines. A helper process
//! of this program owns the emulator, and exits when this process exits.

use super::exchange::Kept;
use super::parcel::{self, RunFile};
use super::step::{Step, StepUnderWay};
use super::{Node, Site, ask, fetch};
use crate::agent::{Facts, Moment, checksum};
use crate::definition::{ResetBefore, VmDefinition};
use crate::error::ExperimentError;
use crate::role::Role;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use taut_deploy::vm::{CableEnd, NodeMachine};
use tempfile::TempDir;

/// Default memory of a virtual machine, MB: space for this program twice (packed and unpacked), packet buffers, and the
/// kernel.
const MEMORY_MB: u32 = 768;
/// Folder inside a virtual machine that contains the folders of runs.
const BASE: &str = "/tmp";

/// A virtual machine as a node.
pub(super) struct Vm {
    role: String,
    machine: NodeMachine,
    /// Expected SHA-256 of the machine's image.
    sha256: Option<String>,
    /// True if each run gets a new virtual machine.
    is_new_each_run: bool,
    boot_limit: Duration,
    program: PathBuf,
    /// Folder of the sockets of all virtual machines of the experiment.
    _sockets: Arc<TempDir>,
    emulator: Option<Kept>,
    up: Option<Up>,
    /// True if a run was made on the virtual machine that is running.
    is_used: bool,
    /// The folder of the current run on the machine.
    folder: String,
}

/// Access to a machine that has booted.
struct Up {
    address: String,
    token: String,
    boot_id: String,
}

impl Vm {
    pub(super) fn new(name: &str, role: &Role, program: &Path, sockets: &Arc<TempDir>) -> Self {
        let plain = VmDefinition::default();
        let definition = role.definition.vm.as_ref().unwrap_or(&plain);
        let socket = |link: usize, end: usize| sockets.path().join(format!("{link}-{end}"));
        let cables = role.cables.iter().map(|cable| CableEnd {
            interface: cable.interface.clone(),
            mac: mac(cable.link, cable.end),
            socket: socket(cable.link, cable.end),
            peer: socket(cable.link, 1 - cable.end),
        });
        let each_run = role.definition.reset_before == ResetBefore::EachRun;
        Self {
            role: name.to_owned(),
            machine: NodeMachine {
                name: name.to_owned(),
                cores: definition.cores.map_or(1, std::num::NonZeroU32::get),
                memory_mb: definition.memory_mb.unwrap_or(MEMORY_MB),
                card: definition.card,
                cables: cables.collect(),
                image: definition.image.as_ref().map(PathBuf::from),
            },
            sha256: definition.sha256.clone(),
            is_new_each_run: role.definition.reset.is_some() && each_run,
            boot_limit: role.boot_limit,
            program: program.to_owned(),
            _sockets: Arc::clone(sockets),
            emulator: None,
            up: None,
            is_used: false,
            folder: BASE.to_owned(),
        }
    }

    fn wrong(&self, reason: impl Into<String>) -> ExperimentError {
        ExperimentError::node(&self.role, reason)
    }

    /// Refuses an image whose checksum differs from the one in the experiment file.
    fn check_image(&self) -> Result<(), ExperimentError> {
        let (Some(image), Some(expected)) = (&self.machine.image, &self.sha256) else {
            return Ok(());
        };
        let found = checksum(image)
            .map_err(|e| self.wrong(format!("its image {}: {e}", image.display())))?;
        if found.eq_ignore_ascii_case(expected) {
            return Ok(());
        }
        Err(self.wrong(format!(
            "its image {} has the SHA-256 {found}, not {expected}",
            image.display()
        )))
    }

    /// Starts a new virtual machine in place of the present one.
    fn start_machine(&mut self) -> Result<(), ExperimentError> {
        self.up = None;
        self.emulator = None;
        self.is_used = false;
        let machine =
            serde_json::to_string(&self.machine).map_err(|e| self.wrong(e.to_string()))?;
        let mut command = Command::new(&self.program);
        command.args(["node", "machine", "--machine", &machine]);
        let started =
            Kept::start(command).map_err(|e| self.wrong(format!("cannot start it: {e}")))?;
        self.emulator = Some(started);
        Ok(())
    }

    /// Waits until the virtual machine has booted.
    fn wait_until_up(&mut self, stop: &AtomicBool) -> Result<&Up, ExperimentError> {
        if self.up.is_none() {
            let limit = self.boot_limit;
            let Some(emulator) = &mut self.emulator else {
                return Err(self.wrong("it is not started"));
            };
            let said = emulator.line("up ", limit, stop).map_err(|said| {
                let last = said.trim().lines().last().unwrap_or("it ended").to_owned();
                let reason = last.strip_prefix("taut: ").unwrap_or(&last).to_owned();
                ExperimentError::node(&self.role, format!("it did not boot: {reason}"))
            })?;
            let [address, token, boot_id] = said.split(' ').collect::<Vec<_>>()[..] else {
                return Err(self.wrong("unexpected output of its emulator"));
            };
            self.up = Some(Up {
                address: address.to_owned(),
                token: token.to_owned(),
                boot_id: boot_id.to_owned(),
            });
        }
        self.up
            .as_ref()
            .ok_or_else(|| ExperimentError::node(&self.role, "it is not up"))
    }

    /// Makes a local command that runs `taut node WHAT --folder FOLDER ARGUMENTS` on the node. FOLDER is the run's
    /// folder on the node. The command ends when its standard input closes.
    fn agent(&self, what: &str, arguments: &[&str]) -> Command {
        let Some(up) = &self.up else {
            // A machine that is not up runs no command.
            return Command::new("false");
        };
        let mut command = Command::new(&self.program);
        command
            .args(["node", "dial", "--address", &up.address, "--"])
            .args(["node", what, "--folder", &self.folder])
            .args(arguments)
            .env("TAUT_MACHINE_TOKEN", &up.token);
        command
    }

    fn ask_json<T: serde::de::DeserializeOwned>(
        &mut self,
        what: &str,
    ) -> Result<T, ExperimentError> {
        // An experiment that is stopped drops the machine, which ends the wait.
        self.wait_until_up(&AtomicBool::new(false))?;
        let answer = ask(self.agent(what, &[]), Vec::new()).map_err(|reason| self.wrong(reason))?;
        serde_json::from_slice(&answer)
            .map_err(|e| self.wrong(format!("unexpected output of {what}: {e}")))
    }
}

/// Returns the MAC address of the network card at one end of a link.
fn mac(link: usize, end: usize) -> String {
    let [high, low] = u16::try_from(link).unwrap_or(u16::MAX).to_be_bytes();
    format!("52:54:01:{high:02x}:{low:02x}:{end:02x}")
}

impl Node for Vm {
    fn role(&self) -> &str {
        &self.role
    }

    /// Starts the virtual machine. It boots while the other machines are started.
    fn take(&mut self, _stop: &AtomicBool) -> Result<(), ExperimentError> {
        self.check_image()?;
        self.start_machine()
    }

    fn begin(&mut self, run: &Site<'_>, files: &[RunFile]) -> Result<Vec<String>, ExperimentError> {
        let mut notes = Vec::new();
        let was_lost = self.lost();
        if was_lost.is_some() || (self.is_used && self.is_new_each_run) {
            self.start_machine()?;
        }
        let boot_id = self.wait_until_up(run.stop)?.boot_id.clone();
        if let Some(reason) = was_lost {
            notes.push(format!(
                "node {} is a new machine (boot id {boot_id}): {reason}",
                self.role
            ));
        }
        self.is_used = true;
        self.folder = format!("{BASE}/{}", run.id);
        let parcel = parcel::pack_files(files).map_err(|e| self.wrong(e.to_string()))?;
        ask(self.agent("begin", &[]), parcel).map_err(|reason| self.wrong(reason))?;
        Ok(notes)
    }

    fn boot_id(&self) -> &str {
        self.up.as_ref().map_or("", |up| &up.boot_id)
    }

    fn start(&self, step: Step<'_>) -> Result<Box<dyn StepUnderWay>, ExperimentError> {
        step.start_by(&self.role, |words| self.agent("step", words))
    }

    fn lost(&self) -> Option<String> {
        let said = self.emulator.as_ref()?.ended()?;
        let last = said.trim().lines().last().unwrap_or("no output").to_owned();
        Some(format!("the machine ended: {last}"))
    }

    fn facts(&mut self) -> Result<Facts, ExperimentError> {
        self.ask_json("facts")
    }

    fn moment(&mut self) -> Result<Moment, ExperimentError> {
        self.ask_json("moment")
    }

    fn collect(&mut self, into: &Path) -> Result<(), ExperimentError> {
        fetch(self.agent("collect", &[]), into).map_err(|reason| {
            let reason = self.lost().unwrap_or(reason);
            self.wrong(format!("cannot copy the run's files back: {reason}"))
        })
    }
}
