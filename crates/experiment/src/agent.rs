//! Agent that runs one step of a run on a local or remote node, and ensures that no process of the step outlives the
//! experiment.

use crate::clock::restore_daemons;
use crate::counters::{Counter, Counting};
use crate::firmware;
use crate::node::parcel;
use crate::secrets::Secrets;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime};
use taut_host::private::{self, Claim, EXPERIMENT, LockError, MEASURING};
use taut_host::process::{adopt_descendants, end_descendants, end_group, sweep_left_behind};
use taut_host::{Awake, Machine, Snapshot, SystemActivity};
use taut_results::hex;
use taut_sys::Locked;
use tempfile::TempDir;

/// Exit code of a step that exceeded its time limit, the same as that of timeout(1).
pub const TIMED_OUT: i32 = 124;
/// Exit code of a step that a stop request ended; shells report SIGTERM with the same code.
pub const STOPPED: i32 = 143;

/// Folder of the files with each command's counts, in a run's folder on a node.
pub(crate) const COUNTERS: &str = "counters";

/// Maximum time for ending the processes of a step by signals, including its descendants outside of its process group.
pub(crate) const STEPS_END: Duration = Duration::from_secs(16);
/// Interval at which a reserved machine sends heartbeats over the connection.
const HEARTBEAT: Duration = Duration::from_secs(5);

enum Event {
    Ended(i32),
    InputClosed,
}

/// A step that the agent runs on this machine.
#[derive(Debug)]
pub struct StepOrder<'a> {
    /// Folder of the run on this machine.
    pub folder: &'a Path,
    /// Name of the step.
    pub name: &'a str,
    /// Maximum duration of the step.
    pub limit: Duration,
    /// Shell script of the step.
    pub script: &'a str,
    /// True if the first line of standard input contains the experiment's secrets, which the script gets in its
    /// environment.
    pub secrets: bool,
    /// True if no core of this machine may enter an idle state during the step; the kernel may refuse that.
    pub awake: bool,
    /// Program that the script runs as `taut`; `None` for this program.
    pub program: Option<&'a Path>,
    /// Quantities, such as cycles or page faults, that are counted during the step.
    pub counters: &'a [Counter],
}

/// Runs a step until its script ends, standard input closes, or its limit expires, then ends all processes of the
/// script. Writes the machine's activity to `activity/<name>.json` in the folder, and event counts to
/// `counters/<name>.json`. Returns the script's exit code.
///
/// # Errors
/// The folder or the shell cannot be used, or the line with secrets does not arrive.
pub fn step(order: &StepOrder<'_>) -> io::Result<i32> {
    let StepOrder {
        folder,
        name,
        limit,
        script,
        secrets,
        awake,
        program,
        counters,
    } = *order;
    // If the kernel does not accept the request, the field `Moment::halts` in the run's record contains the reason.
    let _awake = awake.then(Awake::ask);
    let secrets = match secrets {
        true => Secrets::of_line(&mut io::stdin().lock())?,
        false => BTreeMap::new(),
    };
    // The folder is marked as in use, so that the process that removes it waits until this step has ended.
    let _in_use = in_use(folder);
    adopt_descendants()?;
    let link = match program {
        Some(program) => link_to(program)?,
        None => link_to(&std::env::current_exe()?)?,
    };
    let before = Snapshot::take();
    let counting = (!counters.is_empty()).then(|| Counting::start(counters));
    let child = start_script(folder, script, secrets, link.path())?;
    let group = Pid::from_child(&child);
    let happened = watch(child);
    let mut was_ended = true;
    let mut code = match happened.recv_timeout(limit) {
        Ok(Event::Ended(code)) => {
            was_ended = false;
            Some(code)
        }
        Ok(Event::InputClosed) | Err(RecvTimeoutError::Disconnected) => None,
        Err(RecvTimeoutError::Timeout) => {
            end_group(group, || {
                matches!(happened.recv_timeout(Duration::ZERO), Ok(Event::Ended(_)))
            });
            Some(TIMED_OUT)
        }
    };
    if code.is_none() {
        end_group(group, || {
            if let Ok(Event::Ended(ended)) = happened.try_recv() {
                code = Some(if ended == 0 { 0 } else { STOPPED });
            }
            code.is_some()
        });
    }
    end_descendants();
    if was_ended {
        // On a busy machine, some processes may have been killed before they removed what they had created.
        sweep_left_behind();
    }
    restore_daemons();
    let activity = write_activity(folder, name, &before)?;
    if let Some(counting) = counting {
        let into = folder.join(COUNTERS);
        fs::create_dir_all(&into)?;
        let report = serde_json::to_vec(&counting.end(&activity))?;
        fs::write(into.join(format!("{name}.json")), report)?;
    }
    Ok(code.unwrap_or(STOPPED))
}

/// Starts a script in a process group of its own, with the secrets in its environment, and with `programs` as the first
/// folder of its search path.
fn start_script(
    folder: &Path,
    script: &str,
    secrets: BTreeMap<String, String>,
    programs: &Path,
) -> io::Result<Child> {
    Command::new("sh")
        .arg("-c")
        .arg(script)
        .current_dir(folder)
        .envs(secrets)
        .env("PATH", search_path(programs)?)
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|e| match e.kind() {
            io::ErrorKind::NotFound if folder.is_dir() => io::Error::new(
                e.kind(),
                "needs sh, which runs the commands of experiments, and so of taut demo: a container image of taut alone has none (taut bench comparison does without)",
            ),
            _ => e,
        })
}

/// Returns the channel that reports the end of a script and the end of this process's standard input.
fn watch(mut child: Child) -> Receiver<Event> {
    let (events, happened) = channel();
    let ended = events.clone();
    std::thread::spawn(move || {
        let status = child.wait();
        let code = status.map_or(1, |status| {
            status.code().unwrap_or(128 + status.signal().unwrap_or(0))
        });
        let _ = ended.send(Event::Ended(code));
    });
    std::thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        let _ = events.send(Event::InputClosed);
    });
    happened
}

/// Writes the machine's activity since `before` to `activity/<name>.json` in a folder.
fn write_activity(folder: &Path, name: &str, before: &Snapshot) -> io::Result<SystemActivity> {
    let cpus: Vec<usize> = Machine::online().into_iter().collect();
    let activity = Snapshot::difference(before, &Snapshot::take(), &cpus);
    let into = folder.join("activity");
    fs::create_dir_all(&into)?;
    fs::write(
        into.join(format!("{name}.json")),
        serde_json::to_vec(&activity)?,
    )?;
    Ok(activity)
}

/// Creates a folder with a link `taut` to a program. The program's file may have another name, and its own folder may
/// contain another version of taut.
pub(crate) fn link_to(program: &Path) -> io::Result<TempDir> {
    let programs = private::scratch()?;
    symlink(program, programs.path().join("taut"))?;
    Ok(programs)
}

/// Returns the search path with the folder `programs` first.
pub(crate) fn search_path(programs: &Path) -> io::Result<OsString> {
    let before = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    let all = std::iter::once(programs.to_owned()).chain(std::env::split_paths(&before));
    std::env::join_paths(all).map_err(io::Error::other)
}

/// Facts about a node that stay the same between runs: versions, machine, firmware.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Facts {
    /// Version of taut on the node.
    pub taut_version: String,
    /// Architecture, such as `x86_64`.
    pub architecture: String,
    /// Name of the operating system, such as `Debian GNU/Linux 12 (bookworm)`.
    pub system: String,
    /// Host name that the node reports.
    pub host_name: String,
    /// Facts about the machine as JSON: CPU, kernel, kernel command line, core isolation, clock source and others.
    pub machine: serde_json::Value,
    /// Settings and versions of the firmware that the machine or its management controller states, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub firmware: BTreeMap<String, String>,
    /// CPUs that may handle each interrupt (the kernel's list), by interrupt number.
    pub interrupt_affinity: BTreeMap<String, String>,
}

/// Properties of a node that change over time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Moment {
    /// Time of the node's clock, ns since 1970.
    pub time_ns: u64,
    /// Free space in the file system that contains the runs, bytes.
    pub free_bytes: u64,
    /// Reason why the node's cores cannot be kept from idle states; `None` if the kernel accepts such requests.
    pub halts: Option<String>,
    /// Name of another process that is measuring on the node; `None` if there is none.
    #[serde(default)]
    pub measuring: Option<String>,
}

/// Reads facts about this machine.
pub fn facts() -> Facts {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let release = read("/etc/os-release");
    let system = release
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))
        .map(|name| name.trim_matches('"').to_owned())
        .unwrap_or_default();
    let interrupts = fs::read_dir("/proc/irq").into_iter().flatten().flatten();
    Facts {
        taut_version: env!("CARGO_PKG_VERSION").to_owned(),
        architecture: std::env::consts::ARCH.to_owned(),
        system,
        host_name: read("/proc/sys/kernel/hostname").trim().to_owned(),
        machine: serde_json::to_value(Machine::read()).unwrap_or_default(),
        firmware: firmware::read(Path::new("/")),
        interrupt_affinity: interrupts
            .filter_map(|entry| {
                let cpus = fs::read_to_string(entry.path().join("effective_affinity_list")).ok()?;
                Some((
                    entry.file_name().into_string().ok()?,
                    cpus.trim().to_owned(),
                ))
            })
            .collect(),
    }
}

/// Reads the properties of this machine that change over time; `folder` contains the runs.
pub fn moment(folder: &Path) -> Moment {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    Moment {
        time_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
        free_bytes: rustix::fs::statvfs(folder)
            .map_or(u64::MAX, |fs| fs.f_bavail.saturating_mul(fs.f_frsize)),
        halts: Awake::why_not(),
        measuring: Claim::holder(MEASURING).map(|held| held.to_string()),
    }
}

/// Reservation of a machine for one experiment. Dropping it, or the exit of the process, releases the machine.
#[derive(Debug)]
pub struct Held {
    _claim: Claim,
}

impl Held {
    /// Reserves the machine that this process runs on.
    ///
    /// # Errors
    /// No reservation is possible; the error is one line with the process that has the reservation, or the reason.
    pub fn claim() -> Result<Self, String> {
        match Claim::take(EXPERIMENT) {
            Ok(_claim) => Ok(Self { _claim }),
            Err(held @ LockError::Held { .. }) => Err(format!(
                "another experiment runs on this machine ({held}), or another node of this one does; they would \
                disturb each other: wait for it to end"
            )),
            Err(e) => Err(format!("cannot reserve this machine: {e}")),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A step that had to be killed leaves its lock file behind. Taking and releasing the claim removes that file.
        let _ = Claim::take(MEASURING);
        restore_daemons();
    }
}

impl Held {
    /// Keeps the machine reserved, and keeps a folder for runs below `folder`, until standard input closes or the
    /// connection breaks. Then ends running steps and removes the folder for runs.
    ///
    /// # Errors
    /// Another experiment has reserved the machine, or the folder cannot be created.
    pub fn keep(self, folder: &Path) -> io::Result<()> {
        private::sweep(folder);
        let runs = private::scratch_in(folder, &private::name_of_this_process())?;
        let say = |line: &str| {
            let mut out = io::stdout().lock();
            writeln!(out, "{line}").and_then(|()| out.flush())
        };
        say(&format!("held {}", runs.path().display()))?;
        let (closed, input) = channel::<()>();
        std::thread::spawn(move || {
            let _ = io::stdin().read_to_end(&mut Vec::new());
            drop(closed);
        });
        // This machine gets no message when the other end of the connection disappears. Only a failed write reveals the
        // loss.
        while input.recv_timeout(HEARTBEAT) == Err(RecvTimeoutError::Timeout) {
            if say("here").is_err() {
                break;
            }
        }
        wait_for_steps(runs.path());
        runs.close()
    }
}

/// Marks a folder as in use until the returned value is dropped; `None` if the folder cannot be marked.
fn in_use(folder: &Path) -> Option<Locked> {
    Locked::shared(fs::File::open(folder).ok()?).ok()
}

/// Waits until no step is running in any folder below `runs`.
fn wait_for_steps(runs: &Path) {
    let deadline = Instant::now() + STEPS_END;
    for run in fs::read_dir(runs).into_iter().flatten().flatten() {
        let in_use = || {
            let mark = fs::File::open(run.path());
            mark.is_ok_and(|mark| Locked::exclusive(mark).is_err())
        };
        while in_use() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Makes the folder of a run, and writes the files received on standard input into it.
///
/// # Errors
/// The folder cannot be made, or an entry of the tar stream is not a plain file.
pub fn begin(folder: &Path) -> io::Result<()> {
    // An existing folder is from an earlier attempt whose files could not be fetched.
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => parcel::unpack(io::stdin().lock(), folder),
    }
}

/// Writes the files of a run to standard output, and removes them from this machine.
///
/// # Errors
/// The files cannot be read, or standard output is closed.
pub fn collect(folder: &Path) -> io::Result<()> {
    parcel::pack(folder, io::stdout().lock())?;
    fs::remove_dir_all(folder)
}

/// Returns the SHA-256 of a file, which is read in blocks.
///
/// # Errors
/// The file cannot be read.
pub fn checksum(path: &Path) -> io::Result<String> {
    checksum_of(fs::File::open(path)?)
}

/// Returns the SHA-256 of an open file from its current position to its end.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn checksum_of(mut file: fs::File) -> io::Result<String> {
    let mut digest = Sha256::new();
    let mut piece = vec![0; 1 << 18];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hex(&digest.finalize())),
            read => digest.update(&piece[..read]),
        }
    }
}
