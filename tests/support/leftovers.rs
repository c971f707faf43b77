//! Checks for everything that a program could leave behind on a machine. That includes processes, namespaces, links,
//! sockets, files, XDP programs, huge pages, and run-time files of programs that it starts. Each watched program gets
//! its own temporary folder, which distinguishes its files from those of other programs that run at the same time.

use super::program::PATIENCE;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The state of the machine before a program runs.
pub struct Watch {
    temporary: TempDir,
    before: BTreeSet<String>,
    namespaces: BTreeSet<String>,
}

impl Watch {
    pub fn begin() -> Self {
        Self {
            temporary: super::scratch(),
            before: shared_things(),
            namespaces: namespaces().collect(),
        }
    }

    /// Returns the folder for temporary files (`TMPDIR`) of watched programs.
    pub fn temporary(&self) -> &Path {
        self.temporary.path()
    }

    /// Sets the temporary folder for `command`.
    pub fn over<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("TMPDIR", self.temporary())
    }

    /// Returns the running processes that use the temporary folder.
    pub fn processes(&self) -> Vec<String> {
        processes_with(&self.temporary().display().to_string())
    }

    /// Returns the number of testbed namespaces that were created since this watch began, whoever created them.
    pub fn new_namespaces(&self) -> usize {
        namespaces()
            .filter(|name| !self.namespaces.contains(name))
            .count()
    }

    /// Waits until every leftover that exists now has disappeared, since other programs create and remove things as
    /// well. Fails with the list of remaining leftovers after a minute.
    #[track_caller]
    pub fn nothing_is_left(&self) {
        let deadline = Instant::now() + PATIENCE;
        let mut left = self.left();
        while !left.is_empty() {
            assert!(Instant::now() < deadline, "left behind: {left:#?}");
            sleep(Duration::from_millis(200));
            let still = self.left();
            left.retain(|thing| still.contains(thing));
        }
    }

    fn left(&self) -> BTreeSet<String> {
        let mut left: BTreeSet<_> = shared_things().difference(&self.before).cloned().collect();
        let own = self.temporary().display().to_string();
        let entries = fs::read_dir(self.temporary()).unwrap();
        left.extend(entries.map(|entry| format!("file {}", entry.unwrap().path().display())));
        let sockets = fs::read_to_string("/proc/net/unix").unwrap();
        left.extend(
            sockets
                .lines()
                .filter(|line| line.contains(&own))
                .map(|line| format!("socket {line}")),
        );
        left.extend(processes_with(&own));
        left
    }
}

/// Lists leftovers that no folder identifies: namespaces of testbeds with a dead process, and links in this namespace
/// with names of a testbed's links. The list also has XDP programs, Open vSwitch's files in its default folders, and
/// files on huge pages. Anonymous memory is not checked: it ends with its process, and the number of free pages depends
/// on all programs.
fn shared_things() -> BTreeSet<String> {
    let mut things = BTreeSet::new();
    for name in namespaces() {
        let owner = name
            .strip_prefix("taut-")
            .and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            things.insert(format!("namespace {name}"));
        }
    }
    for name in names("/sys/class/net") {
        if ["gen", "dut", "br"]
            .iter()
            .any(|start| name.starts_with(start))
        {
            things.insert(format!("link {name}"));
        }
    }
    for folder in [
        "/run/openvswitch",
        "/etc/openvswitch",
        "/var/log/openvswitch",
    ] {
        for name in names(folder) {
            things.insert(format!("file {folder}/{name}"));
        }
    }
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    for mount in mounts.lines() {
        let mut words = mount.split(' ').skip(1);
        if let (Some(folder), Some("hugetlbfs")) = (words.next(), words.next()) {
            for name in names(folder) {
                things.insert(format!("file {folder}/{name}"));
            }
        }
    }
    if super::is_installed("bpftool") {
        let listed = Command::new("bpftool")
            .args(["prog", "list", "-j"])
            .output()
            .unwrap();
        let programs: serde_json::Value =
            serde_json::from_slice(&listed.stdout).unwrap_or_default();
        for program in programs.as_array().into_iter().flatten() {
            if program["type"] == "xdp" {
                things.insert(format!("XDP program {}", program["id"]));
            }
        }
    }
    things
}

/// Returns the names of testbeds' network namespaces, which contain a process number. Tests have further namespaces of
/// their own.
fn namespaces() -> impl Iterator<Item = String> {
    names("/run/netns").filter(|name| {
        let owner = name
            .strip_prefix("taut-")
            .and_then(|it| it.split('-').next());
        owner.is_some_and(|it| it.parse::<u32>().is_ok())
    })
}

/// Returns the names of the files in `folder`.
fn names(folder: &str) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

/// Returns the processes that have the folder `own` in their environment or on their command line.
fn processes_with(own: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter(|entry| {
            ["environ", "cmdline"].iter().any(|name| {
                let text = fs::read(entry.path().join(name)).unwrap_or_default();
                text.windows(own.len()).any(|part| part == own.as_bytes())
            })
        })
        .map(|entry| {
            let command = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            format!(
                "process {} {}",
                entry.file_name().display(),
                command.replace('\0', " ")
            )
        })
        .collect()
}
