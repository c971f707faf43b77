//! What a program could leave behind on a machine: processes, namespaces, links, sockets, files, XDP
//! programs, huge pages, run-time files of the programs that it starts. Each program under watch gets a temporary folder of its own, by which what
//! it made is told from what others make on the same machine at the same time.

use super::program::PATIENCE;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A look at the machine before a program runs.
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

    /// The folder that programs under watch have for their temporary files (`TMPDIR`).
    pub fn temporary(&self) -> &Path {
        self.temporary.path()
    }

    /// Gives `command` the temporary folder.
    pub fn over<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("TMPDIR", self.temporary())
    }

    /// What runs and was given the folder.
    pub fn processes(&self) -> Vec<String> {
        processes_with(&self.temporary().display().to_string())
    }

    /// How many namespaces of testbeds there are that were not there before, whoever laid them.
    pub fn new_namespaces(&self) -> usize {
        namespaces()
            .filter(|name| !self.namespaces.contains(name))
            .count()
    }

    /// Fails with the list of what the programs left. Others' things come and go: what is there now must
    /// go within a minute, whatever comes meanwhile.
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

/// What has no folder to be told by: namespaces of testbeds whose process is dead, links of testbeds
/// where none should be, XDP programs, run-time files where baselines have them by themselves, files on huge pages (memory
/// without a name goes with its process; how many pages are free is everybody's business).
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

/// The names of network namespaces of testbeds, which have the number of a process in them. Tests have some of their own beside these.
fn namespaces() -> impl Iterator<Item = String> {
    names("/run/netns").filter(|name| {
        let owner = name
            .strip_prefix("taut-")
            .and_then(|it| it.split('-').next());
        owner.is_some_and(|it| it.parse::<u32>().is_ok())
    })
}

/// The names of what lies in `folder`.
fn names(folder: &str) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

/// Processes that were given the folder `own`, in their environment or on their command line.
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
