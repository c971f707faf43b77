//! Keeps the clock of this machine synchronised during a run, and restores its earlier state.

use super::{ClockMethod, ClockOrder, ClockReading, chrony, ptp};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taut_host::private::{self, is_left_behind, name_of_this_process};
use taut_results::write_json;

/// Interval between two readings of the clock's error while the error's bound is too large.
const POLL: Duration = Duration::from_millis(200);
/// Interval between two checks during the run whether the daemons are running.
const WATCH: Duration = Duration::from_millis(100);
/// File with the names of the daemons to restart, in the folder of running programs.
const JOURNAL: &str = "clock-daemons.json";
/// Services that set the clock, which are stopped during a run.
const SERVICES: [&str; 8] = [
    "chrony",
    "chronyd",
    "systemd-timesyncd",
    "ntp",
    "ntpsec",
    "openntpd",
    "ptp4l",
    "phc2sys",
];

/// Reason why the clock is not synchronised.
#[derive(Debug, thiserror::Error)]
pub enum ClockError {
    /// A program that the synchronisation needs is missing.
    #[error("needs {program} (package {package}), to synchronise the clock")]
    Missing {
        /// Name of the program.
        program: String,
        /// Debian's package that contains the program.
        package: &'static str,
    },
    /// A synchronisation daemon exited by itself.
    #[error("{program} ended ({status}): {last}")]
    Ended {
        /// Name of the daemon's program.
        program: String,
        /// Exit status of the daemon.
        status: String,
        /// Last line of the daemon's output.
        last: String,
    },
    /// The bound on the clock's error was not met in time.
    #[error(
        "the clock is not within {bound_us:.1} us of the reference after {seconds} s: {found}; raise `bound` or \
         `within`, or look at the path between the nodes"
    )]
    Bound {
        /// The required bound on the clock's error, µs.
        bound_us: f64,
        /// Time for which the process waited, s.
        seconds: f64,
        /// The last reading of the clock, as text.
        found: String,
    },
    /// The operating system reported an error.
    #[error("{what}: {source}")]
    Io {
        /// File or program on which the operation failed.
        what: String,
        /// Error of the operating system.
        source: io::Error,
    },
}

fn io_error(what: impl ToString) -> impl FnOnce(io::Error) -> ClockError {
    let what = what.to_string();
    move |source| ClockError::Io { what, source }
}

/// Synchronises the clock of this machine until `stop` is set. Calls `report` with the reading that meets the bound,
/// and with the last reading. The reference node reports a reading of zeros once its daemon runs.
///
/// # Errors
/// A program is missing or exits by itself, or the bound is not met in time. The clock's services are restored in any
/// case.
pub fn keep_clock(
    order: &ClockOrder,
    stop: &AtomicBool,
    mut report: impl FnMut(&ClockReading),
) -> Result<(), ClockError> {
    let folder = private::scratch().map_err(io_error("folder for temporary files"))?;
    restore_daemons();
    // Only what sets the clock disturbs others that do.
    let _others = (order.adjust && !order.is_reference)
        .then(Others::stop)
        .transpose()?;
    let mut daemons = Daemons::start(order, folder.path())?;
    let begun = Instant::now();
    let mut last = None;
    loop {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        daemons.check()?;
        last = read(order, folder.path())?.or(last);
        match last {
            Some(reading) if reading.bound_ns <= order.bound_s * 1e9 => break report(&reading),
            _ if begun.elapsed().as_secs_f64() > order.within_s => {
                return Err(late(order, last, &daemons));
            }
            _ => std::thread::sleep(POLL),
        }
    }
    while !stop.load(Ordering::Relaxed) {
        daemons.check()?;
        std::thread::sleep(WATCH);
    }
    if let Some(reading) = read(order, folder.path())? {
        report(&reading);
    }
    Ok(())
}

/// Returns the error that the bound on the clock's error was not met in time.
fn late(order: &ClockOrder, last: Option<ClockReading>, daemons: &Daemons) -> ClockError {
    ClockError::Bound {
        bound_us: order.bound_s * 1e6,
        seconds: order.within_s,
        found: match last {
            Some(reading) => format!(
                "offset {:.1} us, bound on the error {:.1} us",
                reading.offset_ns / 1e3,
                reading.bound_ns / 1e3
            ),
            None => format!("no reply of the reference ({})", daemons.last_line()),
        },
    }
}

/// Returns a reading of the clock; `None` if the daemon has no reading yet.
fn read(order: &ClockOrder, folder: &Path) -> Result<Option<ClockReading>, ClockError> {
    let mut query = match order.method {
        ClockMethod::Chrony => chrony::query(folder),
        ClockMethod::Ptp => ptp::query(folder),
    };
    let output = query.stdin(Stdio::null()).stderr(Stdio::null()).output();
    let output = output.map_err(|e| no_program(&query, order.method, e))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let zero = ClockReading {
        offset_ns: 0.0,
        path_delay_ns: 0.0,
        root_dispersion_ns: 0.0,
        bound_ns: 0.0,
    };
    Ok(match (order.method, order.is_reference) {
        (ClockMethod::Chrony, true) => chrony::reading(&text).map(|_| zero),
        (ClockMethod::Ptp, true) => ptp::replies(&text).then_some(zero),
        (ClockMethod::Chrony, false) => chrony::reading(&text),
        (ClockMethod::Ptp, false) => ptp::reading(&text),
    })
}

fn no_program(command: &Command, method: ClockMethod, e: io::Error) -> ClockError {
    let program = command.get_program().to_string_lossy().into_owned();
    match e.kind() {
        io::ErrorKind::NotFound => ClockError::Missing {
            program,
            package: match method {
                ClockMethod::Chrony => "chrony",
                ClockMethod::Ptp => "linuxptp",
            },
        },
        _ => io_error(program)(e),
    }
}

/// The synchronisation daemons of a run, which are ended when this value is dropped.
struct Daemons {
    running: Vec<(String, Child)>,
    log: PathBuf,
}

impl Daemons {
    fn start(order: &ClockOrder, folder: &Path) -> Result<Self, ClockError> {
        let (name, text, commands) = match order.method {
            ClockMethod::Chrony => (
                "chrony.conf",
                chrony::config(order, folder),
                vec![chrony::daemon(order, folder)],
            ),
            ClockMethod::Ptp => (
                "ptp4l.conf",
                ptp::config(order, folder),
                ptp::daemons(order, folder),
            ),
        };
        fs::write(folder.join(name), text).map_err(io_error(name))?;
        let log = folder.join("log");
        let output = File::create(&log).map_err(io_error(log.display()))?;
        let mut daemons = Self {
            running: Vec::new(),
            log,
        };
        for mut command in commands {
            let out = output.try_clone().map_err(io_error("log"))?;
            let err = output.try_clone().map_err(io_error("log"))?;
            // The signal that ends this process must not end the daemons before the last reading.
            command
                .stdin(Stdio::null())
                .stdout(out)
                .stderr(err)
                .process_group(0);
            let child = command
                .spawn()
                .map_err(|e| no_program(&command, order.method, e))?;
            let name = command.get_program().to_string_lossy().into_owned();
            daemons.running.push((name, child));
        }
        Ok(daemons)
    }

    /// Returns an error if a synchronisation daemon has exited.
    fn check(&mut self) -> Result<(), ClockError> {
        let last = self.last_line();
        for (program, child) in &mut self.running {
            if let Some(status) = child.try_wait().map_err(io_error(&*program))? {
                return Err(ClockError::Ended {
                    program: program.clone(),
                    status: status.to_string(),
                    last,
                });
            }
        }
        Ok(())
    }

    fn last_line(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let line = text.trim().lines().last().unwrap_or("it printed nothing");
        line.escape_debug().to_string()
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        for (_, child) in &mut self.running {
            if let Ok(None) = child.try_wait() {
                let pid = rustix::process::Pid::from_child(child);
                // chronyd and ptp4l leave the clock's rate as it is when they end by a signal.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                let deadline = Instant::now() + Duration::from_secs(1);
                while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// Contents of the journal of stopped services. If the process that stopped them is killed, other processes restart
/// them.
#[derive(Serialize, Deserialize)]
struct Journal {
    /// Name of the process that stopped the services.
    process: String,
    services: Vec<String>,
}

/// Services that set the clock, which are stopped until this value is dropped.
struct Others {
    journal: PathBuf,
}

impl Others {
    fn stop() -> Result<Self, ClockError> {
        let journal = private::run_folder()
            .map_err(io_error("folder of locks"))?
            .join(JOURNAL);
        let is_active = |service: &&str| systemctl(&["is-active", "--quiet", service]);
        let services = SERVICES
            .iter()
            .filter(|it| is_active(it))
            .map(|it| (*it).to_owned());
        let stopped = Journal {
            process: name_of_this_process(),
            services: services.collect(),
        };
        // The journal is written first: a kill between both restarts a service that runs, which changes nothing.
        write_json(&journal, &stopped)
            .map_err(|e| io_error(journal.display())(io::Error::other(e)))?;
        let others = Self { journal };
        for service in &stopped.services {
            systemctl(&["stop", service]);
        }
        Ok(others)
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        restore(&self.journal);
    }
}

/// Restarts the clock services that a killed process had stopped.
pub fn restore_daemons() {
    let journal = private::run_folder_path().join(JOURNAL);
    let found: Option<Journal> = fs::read(&journal)
        .ok()
        .and_then(|it| serde_json::from_slice(&it).ok());
    if found.is_some_and(|it| is_left_behind(&it.process)) {
        restore(&journal);
    }
}

fn restore(journal: &Path) {
    let found: Option<Journal> = fs::read(journal)
        .ok()
        .and_then(|it| serde_json::from_slice(&it).ok());
    let services = found.map(|it| it.services).unwrap_or_default();
    let known = services.iter().filter(|it| SERVICES.contains(&it.as_str()));
    for service in known {
        // Without waiting: the time for ending a command is short.
        systemctl(&["start", "--no-block", service]);
    }
    let _ = fs::remove_file(journal);
}

/// Runs systemctl; returns true if it succeeds. A machine without systemctl has no services to stop.
fn systemctl(arguments: &[&str]) -> bool {
    let mut command = Command::new("systemctl");
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
