//! A machine reached through the system's OpenSSH, with the user's own settings, keys and known hosts. Nothing has to
//! be installed on the machine: this program is copied once, and all processes end with the connection.

use super::exchange::{Kept, exchange, read_all};
use super::parcel::{self, RunFile};
use super::step::{Step, StepUnderWay};
use super::{ANSWER, Node, Power, Site, TRANSFER, ask, fetch, sockets};
use crate::agent::{Facts, Moment, checksum};
use crate::definition::ResetBefore;
use crate::error::ExperimentError;
use crate::role::Role;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taut_host::SshAddress;
use tempfile::TempDir;

/// Shell script that prints properties of the machine, then keeps the connection open until its input ends.
const PROBE: &str = r#"printf '\ntaut-node\t%s\t%s\t%s\t%s\n' "$(uname -s) $(uname -m)" \
"${XDG_CACHE_HOME:-$HOME/.cache}" "${TMPDIR:-/tmp}" "$(cat /proc/sys/kernel/random/boot_id)"; exec cat >/dev/null"#;
/// Shell script that writes $2 bytes from standard input to the file $1 atomically.
const INSTALL: &str = r#"set -e; mkdir -p "$(dirname "$1")"; trap 'rm -f "$1.$$"' EXIT; cat >"$1.$$"
[ "$(wc -c <"$1.$$")" -eq "$2" ]; chmod 755 "$1.$$"; mv -f "$1.$$" "$1""#;
/// Interval between two attempts to reach a machine that is booting.
const RETRY: Duration = Duration::from_secs(1);

/// A remote machine.
pub(crate) struct Ssh {
    role: String,
    address: SshAddress,
    reset: Option<String>,
    reset_before: ResetBefore,
    /// True if a reset has booted the machine at least once.
    is_reset: bool,
    boot_limit: Duration,
    program: PathBuf,
    connection: Option<Connection>,
    /// Boot id at the last connection; each boot of the machine changes it.
    boot_id: String,
    /// Boot id of the machine, and the firmware settings that its power interface stated during that boot.
    firmware: Option<(String, BTreeMap<String, String>)>,
    /// True if the last attempt to reach the machine timed out.
    given_up: bool,
    /// The folder of the current run on the machine.
    folder: String,
}

/// Connection to the machine. The fields are dropped in this order: first the reservation, then the connection through
/// which it was made.
struct Connection {
    /// Reservation of the machine and of the base folder of its runs.
    hold: Kept,
    /// The OpenSSH master connection, which carries all other connections.
    master: Kept,
    sockets: TempDir,
    /// Path of the copy of this program on the machine.
    program: String,
    /// The base folder of runs on the machine, which is removed when the connection closes.
    base: String,
    boot_id: String,
}

/// Reason why a machine cannot be used at present.
enum Trouble {
    /// The machine may become available soon; the value is the reason why it is not.
    Away(String),
    /// The user has to act before the machine can be used; the value is the reason and the remedy.
    Final(String),
}

impl Trouble {
    fn reason(self) -> String {
        match self {
            Self::Away(reason) | Self::Final(reason) => reason,
        }
    }
}

impl Ssh {
    pub(crate) fn new(name: &str, role: &Role, address: &SshAddress, program: &Path) -> Self {
        Self {
            role: name.to_owned(),
            address: address.clone(),
            reset: role.definition.reset.clone(),
            reset_before: role.definition.reset_before,
            is_reset: false,
            boot_limit: role.boot_limit,
            program: program.to_owned(),
            connection: None,
            boot_id: String::new(),
            firmware: None,
            given_up: false,
            folder: String::new(),
        }
    }

    fn wrong(&self, reason: impl Into<String>) -> ExperimentError {
        ExperimentError::node(&self.role, reason)
    }

    /// Returns an `ssh` command that runs the command line `words` on the machine.
    fn ssh(&self, sockets: &TempDir, master: &str, words: &[&str]) -> Command {
        let path = format!("ControlPath=\"{}\"", sockets.path().join("s").display());
        self.address
            .command(&["ControlPersist=no", master, &path], words)
    }

    /// Connects to the machine, copies this program to it, and reserves it.
    fn connect(&self, stop: &AtomicBool) -> Result<Connection, Trouble> {
        let lacking = |e: io::Error| {
            Trouble::Final(match e.kind() {
                io::ErrorKind::NotFound => {
                    "`ssh` is not installed here: install the OpenSSH client".to_owned()
                }
                _ => format!("cannot start ssh: {e}"),
            })
        };
        let sockets = sockets().map_err(lacking)?;
        let mut master = Kept::start(self.ssh(&sockets, "ControlMaster=yes", &["sh", "-c", PROBE]))
            .map_err(lacking)?;
        let said = master
            .line("taut-node\t", ANSWER, stop)
            .map_err(|said| self.unreachable(&said))?;
        let [system, cache, temporary, boot_id] = said.split('\t').collect::<Vec<_>>()[..] else {
            return Err(Trouble::Final(format!(
                "unexpected output of its shell: `{said}`"
            )));
        };
        runs_on(system).map_err(Trouble::Final)?;
        let sum = checksum(&self.program)
            .map_err(|e| Trouble::Final(format!("{}: {e}", self.program.display())))?;
        let program = format!("{cache}/taut/{}/taut", &sum[..16]);
        self.install(&sockets, &program, stop)?;
        let mut hold = Kept::start(self.ssh(
            &sockets,
            "ControlMaster=no",
            &[&program, "node", "hold", "--folder", temporary],
        ))
        .map_err(lacking)?;
        let base = hold.line("held ", ANSWER, stop).map_err(|said| {
            let last = last_line(&said);
            Trouble::Away(last.strip_prefix("taut: ").unwrap_or(last).to_owned())
        })?;
        Ok(Connection {
            hold,
            master,
            program,
            base,
            boot_id: boot_id.to_owned(),
            sockets,
        })
    }

    /// Returns the reason why `ssh` failed, derived from its output, and the remedy.
    fn unreachable(&self, said: &str) -> Trouble {
        let by_hand = &self.address;
        let last = last_line(said);
        if said.contains("REMOTE HOST IDENTIFICATION HAS CHANGED")
            || said.contains("HOST KEY FOR")
            || last.contains("ost key verification failed") && said.contains("has changed")
        {
            return Trouble::Final(format!(
                "its host key is not the known one: if it was reinstalled, remove the old key with `ssh-keygen -R` \
                and log in once with `{by_hand}`; if not, another machine responds"
            ));
        }
        if last.contains("ost key verification failed") {
            return Trouble::Final(format!(
                "its host key is not known here: log in once with `{by_hand}` and accept it"
            ));
        }
        if last.contains("Permission denied") || last.contains("Too many authentication failures") {
            return Trouble::Away(format!(
                "no permission: `{by_hand}` must work without a password (see ssh-copy-id)"
            ));
        }
        Trouble::Away(format!(
            "cannot be reached: {last}; `{by_hand}` must work without a prompt"
        ))
    }

    /// Copies this program to the machine, unless the machine already has a copy.
    fn install(&self, sockets: &TempDir, program: &str, stop: &AtomicBool) -> Result<(), Trouble> {
        let version = || {
            let command = self.ssh(sockets, "ControlMaster=no", &[program, "--version"]);
            exchange(command, |_| Ok(()), read_all, ANSWER, Some(stop))
        };
        if version().is_ok() {
            return Ok(());
        }
        let trouble = |reason: String| {
            Trouble::Final(format!("cannot copy taut to it as {program}: {reason}"))
        };
        let io = |e: io::Error| trouble(e.to_string());
        let mut file = File::open(&self.program).map_err(io)?;
        let size = file.metadata().map_err(io)?.len().to_string();
        let words = ["sh", "-c", INSTALL, "sh", program, &size];
        let command = self.ssh(sockets, "ControlMaster=no", &words);
        let send =
            move |mut input: std::process::ChildStdin| io::copy(&mut file, &mut input).map(drop);
        exchange(command, send, read_all, TRANSFER, Some(stop)).map_err(trouble)?;
        version()
            .map(drop)
            .map_err(|reason| Trouble::Final(misfit(&reason)))
    }

    /// Replaces the connection to the machine.
    fn connected(&mut self, connection: Connection) {
        self.folder.clone_from(&connection.base);
        self.boot_id.clone_from(&connection.boot_id);
        self.connection = Some(connection);
        self.given_up = false;
    }

    /// Resets the machine, and waits until it has booted. Returns a note for the user.
    fn boot_by(&mut self, reset: &str, stop: &AtomicBool) -> Result<String, ExperimentError> {
        let deadline = Instant::now() + self.boot_limit;
        self.connection = None;
        super::run_reset(&self.role, reset)?;
        // A machine that still replies may be about to go down.
        while self.connect_anew(stop)?.is_none() {
            if Instant::now() + RETRY > deadline || stop.load(Ordering::Relaxed) {
                self.connection = None;
                return Err(self.wrong(format!(
                    "its reset did not boot it: it replies with the same boot id {} after {} s (boot_limit)",
                    self.boot_id,
                    self.boot_limit.as_secs()
                )));
            }
            self.connection = None;
            std::thread::sleep(RETRY);
        }
        self.is_reset = true;
        Ok(format!(
            "node {} booted by its reset (boot id {})",
            self.role, self.boot_id
        ))
    }

    /// Reconnects to a machine that is booting, or whose connection broke. Returns a note for the user if the machine
    /// has booted.
    fn connect_anew(&mut self, stop: &AtomicBool) -> Result<Option<[String; 2]>, ExperimentError> {
        let before = self.boot_id.clone();
        self.connection = None;
        self.connect_again(stop)?;
        Ok((before != self.boot_id).then(|| [before, self.boot_id.clone()]))
    }

    /// Retries to connect until the machine replies, or until the time limit expires.
    fn connect_again(&mut self, stop: &AtomicBool) -> Result<(), ExperimentError> {
        let limit = if self.given_up {
            Duration::ZERO
        } else {
            self.boot_limit
        };
        let deadline = Instant::now() + limit;
        loop {
            let reason = match self.connect(stop) {
                Ok(connection) => {
                    self.connected(connection);
                    return Ok(());
                }
                Err(Trouble::Final(reason)) => return Err(self.wrong(reason)),
                Err(Trouble::Away(reason)) => reason,
            };
            if Instant::now() + RETRY > deadline || stop.load(Ordering::Relaxed) {
                self.given_up = true;
                return Err(self.wrong(format!(
                    "not back within its boot_limit of {} s: {reason}",
                    self.boot_limit.as_secs()
                )));
            }
            std::thread::sleep(RETRY);
        }
    }

    fn connection(&self) -> Result<&Connection, ExperimentError> {
        self.connection
            .as_ref()
            .ok_or_else(|| self.wrong("not connected to it"))
    }

    /// Runs `taut node WHAT` on the machine with the given input, and returns the output.
    fn ask(&self, what: &str, input: Vec<u8>) -> Result<Vec<u8>, ExperimentError> {
        ask(self.agent(what, &[]), input)
            .map_err(|reason| self.wrong(self.lost().unwrap_or(reason)))
    }

    fn ask_json<T: serde::de::DeserializeOwned>(&self, what: &str) -> Result<T, ExperimentError> {
        let answer = self.ask(what, Vec::new())?;
        serde_json::from_slice(&answer)
            .map_err(|e| self.wrong(format!("unexpected output of {what}: {e}")))
    }

    /// Makes a local command that runs `taut node WHAT --folder FOLDER ARGUMENTS` on the node. FOLDER is the run's
    /// folder on the node. The command ends when its standard input closes.
    fn agent(&self, what: &str, arguments: &[&str]) -> Command {
        let Some(connection) = &self.connection else {
            // Without a connection, a command on the machine could not be ended, so this command fails instead.
            return Command::new("false");
        };
        let mut words = vec![
            connection.program.as_str(),
            "node",
            what,
            "--folder",
            &self.folder,
        ];
        words.extend(arguments);
        self.ssh(&connection.sockets, "ControlMaster=no", &words)
    }
}

impl Node for Ssh {
    fn role(&self) -> &str {
        &self.role
    }

    fn take(&mut self, stop: &AtomicBool) -> Result<(), ExperimentError> {
        let connection = self
            .connect(stop)
            .map_err(|trouble| self.wrong(trouble.reason()))?;
        self.connected(connection);
        Ok(())
    }

    fn begin(&mut self, run: &Site<'_>, files: &[RunFile]) -> Result<Vec<String>, ExperimentError> {
        let mut notes = Vec::new();
        let is_due = self.reset_before == ResetBefore::EachRun || !self.is_reset;
        if let Some(reset) = self.reset.clone().filter(|_| is_due) {
            notes.push(self.boot_by(&reset, run.stop)?);
        } else if self.lost().is_some()
            && let Some([before, after]) = self.connect_anew(run.stop)?
        {
            notes.push(format!(
                "node {} has booted since it was lost (boot id {before}, then {after})",
                self.role
            ));
        }
        self.folder = format!("{}/{}", self.connection()?.base, run.id);
        let parcel = parcel::pack_files(files).map_err(|e| self.wrong(e.to_string()))?;
        self.ask("begin", parcel)?;
        Ok(notes)
    }

    fn start(&self, step: Step<'_>) -> Result<Box<dyn StepUnderWay>, ExperimentError> {
        step.start_by(&self.role, |words| self.agent("step", words))
    }

    fn lost(&self) -> Option<String> {
        let Some(connection) = &self.connection else {
            return Some("not connected to it".to_owned());
        };
        let ended = [&connection.master, &connection.hold]
            .into_iter()
            .find_map(Kept::ended)?;
        Some(format!("the connection to it broke: {}", last_line(&ended)))
    }

    fn boot_id(&self) -> &str {
        &self.boot_id
    }

    fn facts(&mut self) -> Result<Facts, ExperimentError> {
        let mut facts: Facts = self.ask_json("facts")?;
        if let Some(power) = self.reset.as_deref().and_then(|it| Power::parse(it).ok()?) {
            let firmware = match &self.firmware {
                Some((boot_id, firmware)) if *boot_id == self.boot_id => firmware.clone(),
                _ => power.firmware().map_err(|reason| self.wrong(reason))?,
            };
            facts.firmware.extend(firmware.clone());
            self.firmware = Some((self.boot_id.clone(), firmware));
        }
        Ok(facts)
    }

    fn moment(&mut self) -> Result<Moment, ExperimentError> {
        self.ask_json("moment")
    }

    fn collect(&mut self, into: &Path) -> Result<(), ExperimentError> {
        self.connection()?;
        fetch(self.agent("collect", &[]), into).map_err(|reason| {
            let reason = self.lost().unwrap_or(reason);
            self.wrong(format!("cannot copy the run's files back: {reason}"))
        })
    }
}

/// Checks whether a copy of this program runs on a machine, given the machine's output of `uname -s` and `uname -m`.
fn runs_on(system: &str) -> Result<(), String> {
    let own = std::env::consts::ARCH;
    let same = system.split_once(' ').is_some_and(|(name, machine)| {
        name == "Linux"
            && match own {
                "x86" => matches!(machine, "i386" | "i486" | "i586" | "i686"),
                "arm" => machine.starts_with("armv"),
                "powerpc64" => machine.starts_with("ppc64"),
                own => machine == own,
            }
    });
    if same {
        return Ok(());
    }
    Err(format!(
        "it is {system}, and this taut is made for Linux {own}: start the experiment from a machine like it"
    ))
}

/// Returns the reason why the copied program does not start on the machine, derived from its output, and the remedy.
fn misfit(reason: &str) -> String {
    // The messages are those of the loader (glibc, elf/dl-version.c and elf/dl-load.c).
    let why = if reason.contains("version `") && reason.contains("not found") {
        "its C library or another one is older than what this taut was built with"
    } else if reason.contains("shared libraries") {
        "it lacks a library, or has another one of that name"
    } else {
        "it does not start there"
    };
    format!(
        "this taut does not run there: {why} ({reason}); install what is missing, or start the experiment with a taut that was built on a system like it"
    )
}

fn last_line(text: &str) -> &str {
    let last = text.trim().lines().last().unwrap_or("").trim();
    if last.is_empty() { "ssh ended" } else { last }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn nodes_of_another_architecture_or_system_are_refused() {
        assert_eq!(
            runs_on(&format!("Linux {}", std::env::consts::ARCH)),
            Ok(())
        );
        for other in ["Linux sparc64", "Darwin arm64", "FreeBSD amd64", ""] {
            assert!(runs_on(other).unwrap_err().contains("made for Linux"));
        }
    }
}
