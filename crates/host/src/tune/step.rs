//! A change to a setting at run time: how it is made, checked, undone and printed as a shell command.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

use super::root::Root;
use crate::command;
use crate::cpu_list::{mask_cpus, parse_cpu_list};

/// A change to the machine at run time. `taut tune apply` makes only such changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Writes a value into a file of the kernel.
    Write {
        /// The path of the kernel's file.
        path: String,
        /// The value to write into the file.
        value: String,
        /// The format in which the file's present text and the new value are compared.
        format: Format,
    },
    /// Creates a control group.
    Group {
        /// The path of the control group's folder.
        path: String,
        /// The file names in the group's folder and the values to write into them, in this order.
        settings: Vec<(String, String)>,
    },
    /// Changes a setting of a NIC's driver by `ethtool`.
    Card {
        /// The interface of the NIC.
        interface: String,
        /// The letter that shows the settings: `k` for offloads, `c` for coalescing. The capital letter sets them.
        letter: char,
        /// The name by which `ethtool` sets the setting.
        key: String,
        /// The name by which `ethtool` shows the setting.
        shown: String,
        /// The value that the driver's setting gets.
        value: String,
    },
    /// Moves tasks from one control group to another, except those that the kernel does not allow to move.
    Tasks {
        /// The path of the file that lists the tasks of the source group.
        from: String,
        /// The path of the file that lists the tasks of the target group.
        to: String,
    },
    /// Stops a daemon (SIGSTOP) until it is continued.
    Pause {
        /// The folder of the daemon's process, `/proc/PID`.
        path: String,
        /// The start time of the process, in ticks since the boot. The start time identifies the process, because
        /// another process may get the same number later.
        began: String,
    },
}

/// The format in which two texts of a file are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// Texts are compared unchanged; of a choice (`always [madvise] never`), the chosen word is compared.
    Text,
    /// Texts are compared as masks of CPUs in hexadecimal.
    Mask,
    /// Texts are compared as lists of CPUs.
    List,
    /// A switch such as `+cpuset` is in force if the words of the file contain its name.
    Switch,
}

impl Step {
    pub(crate) fn write(path: impl Into<String>, value: impl Into<String>) -> Self {
        Self::formatted(path, value, Format::Text)
    }

    pub(crate) fn formatted(
        path: impl Into<String>,
        value: impl Into<String>,
        format: Format,
    ) -> Self {
        Self::Write {
            path: path.into(),
            value: value.into(),
            format,
        }
    }

    /// Returns the present value: the text of a file, the value that the NIC's driver reports, or the state of a
    /// process (`gone` if it has exited). For a control group it is `true` if the group exists, else `false`. For tasks
    /// it is empty.
    pub(crate) fn now(&self, root: &Root) -> io::Result<String> {
        match self {
            Self::Write { path, .. } => root.raw(path),
            Self::Group { path, .. } => Ok(root.exists(path).to_string()),
            Self::Tasks { .. } => Ok(String::new()),
            Self::Pause { path, began } => match process(root, path) {
                Some((state, since)) if since == *began => Ok(state),
                _ => Ok("gone".to_owned()),
            },
            Self::Card {
                interface,
                letter,
                shown,
                ..
            } => card(root, *letter, interface, &[]).and_then(|text| {
                let value = field(&text, shown).map(str::to_owned);
                value.ok_or_else(|| io::Error::other(format!("the driver does not show {shown}")))
            }),
        }
    }

    /// Returns true if the change that this step makes is already in force.
    pub(crate) fn is_done(&self, root: &Root) -> bool {
        match self {
            Self::Write {
                path,
                value,
                format,
            } => root.raw(path).is_ok_and(|now| format.is_same(&now, value)),
            Self::Group { path, settings } => settings.iter().all(|(file, value)| {
                root.text(&format!("{path}/{file}")).is_some_and(|now| {
                    // The kernel shows every resource of a group, and one line is written for each that changes.
                    let shown = |line: &str| now.lines().any(|now| now.trim() == line);
                    let has_lines = file == "schemata" && value.lines().all(shown);
                    now == *value || same_list(&now, value) || has_lines
                })
            }),
            Self::Card { value, .. } => self.now(root).is_ok_and(|now| now == *value),
            Self::Pause { .. } => self
                .now(root)
                .is_ok_and(|now| now == "gone" || now == PAUSED),
            // Remaining tasks belong to the kernel; new tasks start in the new group.
            Self::Tasks { from, to } => {
                let empty = |path: &str| root.text(path).is_none_or(|tasks| tasks.is_empty());
                !empty(to) || empty(from)
            }
        }
    }

    /// Makes the change and checks that it is in force.
    pub(crate) fn make(&self, root: &Root) -> io::Result<()> {
        match self {
            Self::Write {
                path,
                value,
                format,
            } => {
                root.write(path, value)?;
                let now = root.raw(path)?;
                if format.is_same(&now, value) {
                    return Ok(());
                }
                Err(io::Error::other(format!(
                    "the kernel took {value} and shows {}",
                    chosen(&now)
                )))
            }
            Self::Group { path, settings } => {
                let folder = root.path(path);
                if !folder.exists() {
                    fs::create_dir(&folder)?;
                }
                for (file, value) in settings {
                    fs::write(folder.join(file), format!("{value}\n"))
                        .map_err(|e| io::Error::new(e.kind(), format!("{file}: {e}")))?;
                }
                if self.is_done(root) {
                    return Ok(());
                }
                let shown = settings.iter().map(|(file, _)| {
                    let now = root.text(&format!("{path}/{file}")).unwrap_or_default();
                    format!("{file} = {now}")
                });
                Err(io::Error::other(format!(
                    "the kernel shows {}",
                    shown.collect::<Vec<_>>().join(", ")
                )))
            }
            Self::Tasks { from, to } => move_tasks(root, from, to),
            Self::Card { value, .. } => self.set_card(root, value),
            Self::Pause { path, .. } => {
                if !self.is_done(root) {
                    signal(root, path, Signal::STOP)?;
                }
                Ok(())
            }
        }
    }

    /// Restores the value `before`, which [`Step::now`] returned before the change.
    pub(crate) fn undo(&self, root: &Root, before: &str) -> io::Result<()> {
        match self {
            Self::Write {
                path,
                value,
                format,
            } => {
                if root.raw(path)? == before {
                    return Ok(());
                }
                match format {
                    Format::Switch => root.write(path, &value.replace('+', "-"))?,
                    _ => root.write(path, chosen(before))?,
                }
                let now = root.raw(path)?;
                if now == before {
                    return Ok(());
                }
                Err(io::Error::other(format!(
                    "it was {} and is {}",
                    before.trim(),
                    now.trim()
                )))
            }
            Self::Group { path, settings } => {
                if before == "true" || !root.exists(path) {
                    return Ok(());
                }
                undo_group(root, path, settings)
            }
            Self::Card { .. } => {
                if self.now(root)? == before {
                    return Ok(());
                }
                self.set_card(root, before)
            }
            Self::Tasks { from, to } => {
                if root.exists(to) {
                    move_all(root, to, from)?;
                }
                Ok(())
            }
            // A process that another user had stopped stays stopped, and one that has exited cannot be continued.
            Self::Pause { path, .. } => match before != PAUSED && self.now(root)? == PAUSED {
                true => signal(root, path, Signal::CONT),
                false => Ok(()),
            },
        }
    }

    /// Sets the value of a NIC's setting and checks that it is in force.
    fn set_card(&self, root: &Root, value: &str) -> io::Result<()> {
        let Self::Card {
            interface,
            letter,
            key,
            ..
        } = self
        else {
            return Ok(());
        };
        card(root, letter.to_ascii_uppercase(), interface, &[key, value])?;
        let now = self.now(root)?;
        if now == value {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "the driver took {key} {value} and shows {now}"
        )))
    }

    /// Returns the equivalent shell command.
    #[must_use]
    pub fn command(&self) -> String {
        match self {
            Self::Write { path, value, .. } => format!("echo {value} > {path}"),
            Self::Group { path, settings } => {
                let writes = settings
                    .iter()
                    .map(|(file, value)| format!(" && echo {value} > {path}/{file}"));
                format!("mkdir -p {path}{}", writes.collect::<String>())
            }
            Self::Card {
                interface,
                letter,
                key,
                value,
                ..
            } => {
                let letter = letter.to_ascii_uppercase();
                format!("ethtool -{letter} {interface} {key} {value}")
            }
            Self::Tasks { from, to } => {
                format!("for task in $(cat {from}); do echo $task > {to}; done 2>/dev/null")
            }
            Self::Pause { path, .. } => format!("kill -STOP {}", path.trim_start_matches("/proc/")),
        }
    }

    /// Returns the file, folder or interface that is changed.
    #[must_use]
    pub fn path(&self) -> &str {
        match self {
            Self::Write { path, .. } | Self::Group { path, .. } | Self::Tasks { to: path, .. } => {
                path
            }
            Self::Card { interface, .. } => interface,
            Self::Pause { path, .. } => path,
        }
    }
}

/// The state letter of a stopped process in `/proc/PID/stat`.
const PAUSED: &str = "T";

/// Returns the state of a process, as in `/proc/PID/stat`, and its start time; `None` if it does not exist.
fn process(root: &Root, path: &str) -> Option<(String, String)> {
    let text = root.text(&format!("{path}/stat"))?;
    // The name, in parentheses, may contain spaces and parentheses.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.to_owned();
    Some((state, fields.nth(18)?.to_owned()))
}

/// Returns the step that stops the process with number `pid`; `None` if the process does not exist or is stopped
/// already.
pub(crate) fn pause(root: &Root, pid: u32) -> Option<Step> {
    let path = format!("/proc/{pid}");
    let (state, began) = process(root, &path)?;
    (state != PAUSED).then_some(Step::Pause { path, began })
}

/// Sends a signal to a process. In a synthetic tree it changes the state as the kernel would show it.
fn signal(root: &Root, path: &str, signal: Signal) -> io::Result<()> {
    if !root.is_machine() {
        let state = if signal == Signal::STOP { PAUSED } else { "S" };
        let stat = root.raw(&format!("{path}/stat"))?;
        let Some((name, rest)) = stat.trim().rsplit_once(") ") else {
            return Err(io::Error::other("no process"));
        };
        let (_, rest) = rest.split_once(' ').unwrap_or_default();
        return root.write(&format!("{path}/stat"), &format!("{name}) {state} {rest}"));
    }
    let pid = path.trim_start_matches("/proc/").parse().ok();
    let pid = pid.and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("no process"))?;
    Ok(rustix::process::kill_process(pid, signal)?)
}

impl Format {
    pub(crate) fn is_same(self, now: &str, wanted: &str) -> bool {
        match self {
            Self::Text => chosen(now) == wanted,
            Self::Mask => mask_cpus(now).is_some_and(|cpus| Some(cpus) == mask_cpus(wanted)),
            Self::List => same_list(now, wanted),
            Self::Switch => {
                let word = wanted.trim_start_matches('+');
                now.split_whitespace().any(|switch| switch == word)
            }
        }
    }
}

/// Runs `ethtool`; fails in a synthetic tree, because `ethtool` accesses only the running machine.
fn card(root: &Root, letter: char, interface: &str, setting: &[&str]) -> io::Result<String> {
    if !root.is_machine() {
        return Err(io::Error::other(
            "ethtool can only read the running machine",
        ));
    }
    if !root.exists(&format!("/sys/class/net/{interface}")) {
        return Err(ErrorKind::NotFound.into());
    }
    let option = format!("-{letter}");
    let arguments = [&[option.as_str(), interface], setting].concat();
    command::run("ethtool", &arguments).map_err(io::Error::other)
}

/// Returns the value after the last `key:` in a text of `ethtool`. The last one is used because `ethtool -g` prints
/// maxima first.
pub(crate) fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().rev().find_map(|line| {
        let (found, value) = line.trim().split_once(':')?;
        (found == key).then(|| value.split_whitespace().next())?
    })
}

fn same_list(now: &str, wanted: &str) -> bool {
    parse_cpu_list(now).is_some_and(|cpus| Some(cpus) == parse_cpu_list(wanted))
}

/// Returns the chosen word of `always [madvise] never` or `none (full)`; returns other texts unchanged.
pub(crate) fn chosen(text: &str) -> &str {
    let text = text.trim();
    if !text.contains(' ') {
        return text;
    }
    text.split_whitespace()
        .find_map(|word| {
            word.strip_prefix('[')
                .and_then(|word| word.strip_suffix(']'))
                .or_else(|| {
                    word.strip_prefix('(')
                        .and_then(|word| word.strip_suffix(')'))
                })
        })
        .unwrap_or(text)
}

/// Moves the tasks that the kernel allows to move, including tasks that are created in the old group during the move.
/// Kernel tasks that belong to a CPU stay.
fn move_tasks(root: &Root, from: &str, to: &str) -> io::Result<()> {
    const MOST_PASSES: usize = 100;
    let mut any_moved = false;
    for _ in 0..MOST_PASSES {
        let mut moved = 0;
        for task in root.raw(from)?.lines() {
            match root.write(to, task) {
                Ok(()) => moved += 1,
                // The task has exited, or is a kernel task that has to stay.
                Err(e) if matches!(e.raw_os_error(), Some(ESRCH | EINVAL)) => {}
                Err(e) => return Err(e),
            }
        }
        if moved == 0 {
            break;
        }
        any_moved = true;
    }
    let empty = |path: &str| root.text(path).is_none_or(|tasks| tasks.is_empty());
    if !any_moved && empty(to) && !empty(from) {
        return Err(io::Error::other("no task could be moved"));
    }
    Ok(())
}

const ESRCH: i32 = 3;
const EINVAL: i32 = 22;

/// Moves every task of a control group to another, including tasks that are created during the move. A task that is
/// about to exit cannot be moved, and disappears soon.
fn move_all(root: &Root, from: &str, to: &str) -> io::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(10);
    if !root.is_machine() {
        return Ok(());
    }
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let tasks = root.raw(from)?;
        if tasks.is_empty() {
            return Ok(());
        }
        let mut any_moved = false;
        for task in tasks.lines() {
            match root.write(to, task) {
                Ok(()) => any_moved = true,
                Err(e) if e.raw_os_error() == Some(ESRCH) => {}
                Err(e) => return Err(e),
            }
        }
        if !any_moved {
            thread::sleep(Duration::from_millis(1));
        }
    }
    Err(io::Error::other(format!(
        "tasks are still in {from} after {} s",
        PATIENCE.as_secs()
    )))
}

/// Moves the tasks of a control group to the group above it, and removes the group.
fn undo_group(root: &Root, path: &str, settings: &[(String, String)]) -> io::Result<()> {
    let (parent, _) = path.rsplit_once('/').unwrap_or(("", path));
    for file in ["tasks", "cgroup.procs"] {
        let (from, to) = (format!("{path}/{file}"), format!("{parent}/{file}"));
        if root.exists(&from) && root.exists(&to) {
            move_all(root, &from, &to)?;
            break;
        }
    }
    if !root.is_machine() {
        // The kernel creates and removes these files by itself; a synthetic tree does not.
        for (file, _) in settings {
            fs::remove_file(root.path(path).join(file))?;
        }
    }
    remove_group(root, path)
}

/// Removes a group's folder; exiting tasks keep it busy for a moment.
fn remove_group(root: &Root, path: &str) -> io::Result<()> {
    const TRIES: usize = 100;
    for _ in 0..TRIES {
        match fs::remove_dir(root.path(path)) {
            Err(e) if e.kind() == ErrorKind::ResourceBusy => {
                thread::sleep(Duration::from_millis(10));
            }
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            done => return done,
        }
    }
    fs::remove_dir(root.path(path))
}

/// Returns the values of several files in short form: `3` or `3 and 2 others`.
pub(crate) fn tally(values: impl IntoIterator<Item = String>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for value in values {
        *counts.entry(value).or_default() += 1;
    }
    let parts: Vec<String> = counts
        .iter()
        .map(|(value, count)| match count {
            1 => value.clone(),
            _ => format!("{value} ({count} times)"),
        })
        .collect();
    parts.join(", ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::root::tests::tree;
    use super::*;

    #[test]
    fn the_bracketed_word_of_a_sysfs_choice_is_its_value() {
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        assert_eq!(chosen("none voluntary (full)\n"), "full");
        assert_eq!(chosen("950000\n"), "950000");
    }

    #[test]
    fn masks_and_lists_are_compared_by_their_cpus() {
        assert!(Format::Mask.is_same("00000000,00000003\n", "3"));
        assert!(!Format::Mask.is_same("2", "3"));
        assert!(Format::List.is_same("0,1\n", "0-1"));
        assert!(Format::Switch.is_same("cpu cpuset io\n", "+cpuset"));
        assert!(!Format::Switch.is_same("cpu io\n", "+cpuset"));
    }

    #[test]
    fn undo_restores_a_written_value_byte_by_byte() {
        let (_folder, root) = tree(&[("/proc/a", "3\n")]);
        let step = Step::formatted("/proc/a", "1", Format::Mask);
        let before = step.now(&root).unwrap();
        assert!(!step.is_done(&root));
        step.make(&root).unwrap();
        assert!(step.is_done(&root));
        step.undo(&root, &before).unwrap();
        assert_eq!(root.raw("/proc/a").unwrap(), "3\n");
        assert_eq!(step.command(), "echo 1 > /proc/a");
    }

    #[test]
    fn a_control_group_is_deleted_when_its_step_is_undone() {
        let (_folder, root) = tree(&[("/sys/fs/cgroup/cgroup.procs", "")]);
        let step = Step::Group {
            path: "/sys/fs/cgroup/taut".into(),
            settings: vec![("cpuset.cpus".into(), "1".into())],
        };
        let before = step.now(&root).unwrap();
        step.make(&root).unwrap();
        assert!(step.is_done(&root));
        step.undo(&root, &before).unwrap();
        assert!(!root.exists("/sys/fs/cgroup/taut"));
    }

    #[test]
    fn the_last_of_several_equally_named_ethtool_fields_is_read() {
        let text = "Ring parameters for eth0:\nPre-set maximums:\nRX:\t\t4096\nCurrent hardware settings:\nRX:\t\t256\nTX:\t\tn/a\n";
        assert_eq!(field(text, "RX"), Some("256"));
        assert_eq!(field(text, "TX"), Some("n/a"));
        assert_eq!(field(text, "rx-usecs"), None);
        let text = "Coalesce parameters for eth0:\nAdaptive RX: on  TX: off\n";
        assert_eq!(field(text, "Adaptive RX"), Some("on"));
    }

    #[test]
    fn network_card_settings_cannot_be_applied_to_a_simulated_machine() {
        let (_folder, root) = tree(&[]);
        let step = Step::Card {
            interface: "eth0".into(),
            letter: 'k',
            key: "gro".into(),
            shown: "generic-receive-offload".into(),
            value: "off".into(),
        };
        assert!(step.make(&root).is_err() && !step.is_done(&root));
        assert_eq!(step.command(), "ethtool -K eth0 gro off");
    }

    #[test]
    fn writing_a_setting_to_a_missing_file_fails() {
        let (_folder, root) = tree(&[("/proc/a", "3\n")]);
        assert!(Step::write("/proc/b", "1").make(&root).is_err());
    }
}
