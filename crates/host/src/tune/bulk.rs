//! Bulk load that runs next to a latency-critical forwarder: the control group that confines the load, as steps of the
//! journal, and the command that starts the load.
//!
//! The amount of the load is the control group's quota of processor time. A [`Way`] confines it further. Sources:
//! Linux, Documentation/admin-guide/cgroup-v2.rst (cpu), scheduler/sched-bwc.rst and filesystems/resctrl.rst.

use std::collections::BTreeSet;
use std::process::Command;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::isolation::V2;
use super::root::Root;
use super::step::{Format, Step};
use crate::cpu_list::format_cpu_list;

/// The folder of the control groups that limit processor time, in version 1 of control groups.
const V1_CPU: &str = "/sys/fs/cgroup/cpu";
/// The folder of resctrl, the kernel's interface for shares of cache and memory bandwidth.
const RESCTRL: &str = "/sys/fs/resctrl";
/// The name of the control group, and of the resctrl group, for bulk load.
const GROUP: &str = "taut-bulk";
/// The period of the quota of processor time, µs. It is the shortest period with which a quota of an eighth of a CPU
/// exceeds the kernel's minimum of 1 ms, since a longer period makes longer bursts.
const PERIOD_US: u64 = 10_000;
/// The divisor of the last-level cache: bulk load gets one part of this many.
const CACHE_PART: u32 = 4;

/// The method that confines bulk load, in addition to its quota of processor time.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Bulk load is not confined: it runs on every CPU that it is given.
    Free,
    /// The control group has the smallest weight (`cpu.weight` 1, `cpu.shares` 2).
    Weight,
    /// The control group has the idle policy (`cpu.idle`, SCHED_IDLE).
    Idle,
    /// Bulk load runs on all CPUs but the forwarder's.
    Cpus,
    /// Bulk load is confined by both [`Way::Cpus`] and [`Way::Idle`].
    CpusIdle,
    /// Bulk load is confined by [`Way::Cpus`], and gets a quarter of the last-level cache and the least memory
    /// bandwidth (resctrl).
    Resctrl,
}

impl Way {
    /// All methods of confining bulk load, from the loosest to the tightest.
    pub const ALL: [Self; 6] = [
        Self::Free,
        Self::Weight,
        Self::Idle,
        Self::Cpus,
        Self::CpusIdle,
        Self::Resctrl,
    ];

    /// Returns the id of the method, as results contain it.
    #[must_use]
    pub fn id(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Weight => "weight",
            Self::Idle => "idle",
            Self::Cpus => "cpus",
            Self::CpusIdle => "cpus-idle",
            Self::Resctrl => "resctrl",
        }
    }

    /// Returns the description of the method, for readers of the results.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::Free => "on all its CPUs, nothing confines it",
            Self::Weight => "smallest weight of a control group",
            Self::Idle => "idle policy (cpu.idle)",
            Self::Cpus => "not on the forwarder's CPU",
            Self::CpusIdle => "not on the forwarder's CPU, idle policy",
            Self::Resctrl => {
                "not on the forwarder's CPU, a quarter of the cache, least memory bandwidth"
            }
        }
    }

    /// Returns true if the bulk load is kept off the forwarder's CPU.
    #[must_use]
    pub fn spares_forwarder(self) -> bool {
        matches!(self, Self::Cpus | Self::CpusIdle | Self::Resctrl)
    }
}

/// The machine lacks a feature that a method of confining bulk load needs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {how}")]
pub struct NoWay {
    /// The feature that the machine lacks.
    pub what: &'static str,
    /// The way to get the missing feature.
    pub how: &'static str,
}

const NO_CPU: NoWay = NoWay {
    what: "no control groups with processor time",
    how: "mount cgroup2, or the cpu controller of version 1, on /sys/fs/cgroup",
};
const NO_IDLE: NoWay = NoWay {
    what: "the kernel has no cpu.idle",
    how: "it is there from Linux 5.15 on",
};
const NO_RESCTRL: NoWay = NoWay {
    what: "resctrl is not mounted, or the processor has no cache allocation",
    how: "mount -t resctrl resctrl /sys/fs/resctrl",
};

/// The confinement of bulk load: the changes to the machine, and the files by which a process enters the control
/// groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confined {
    /// The changes to the machine, in the order in which they are made.
    pub steps: Vec<Step>,
    /// The files to which a process writes its process ID to enter the groups.
    entrances: Vec<String>,
    /// The file with the process IDs of the confined processes.
    members: String,
}

/// Returns the confinement of bulk load by the method `way`, with a quota of `cpus` CPUs of processor time; `None` for
/// no quota.
///
/// # Errors
/// The machine lacks a feature that the method needs.
pub fn confine(root: &Root, way: Way, cpus: Option<f64>) -> Result<Confined, NoWay> {
    let quota_us = cpus.map(|cpus| ((cpus * PERIOD_US as f64).round() as u64).max(1_000));
    let idle = matches!(way, Way::Idle | Way::CpusIdle);
    let controllers = root.text(&format!("{V2}/cgroup.controllers"));
    let has_v2 = controllers.is_some_and(|all| all.split_whitespace().any(|name| name == "cpu"));
    let mut steps = Vec::new();
    let mut settings: Vec<(&str, String)> = Vec::new();
    let folder = if root.exists(&format!("{V1_CPU}/cpu.cfs_quota_us")) {
        if idle && !root.exists(&format!("{V1_CPU}/cpu.idle")) {
            return Err(NO_IDLE);
        }
        settings.push(("cpu.cfs_period_us", PERIOD_US.to_string()));
        let quota = quota_us.map_or("-1".to_owned(), |us| us.to_string());
        settings.push(("cpu.cfs_quota_us", quota));
        if way == Way::Weight {
            settings.push(("cpu.shares", "2".to_owned()));
        }
        format!("{V1_CPU}/{GROUP}")
    } else if has_v2 {
        let control = format!("{V2}/cgroup.subtree_control");
        steps.push(Step::formatted(control, "+cpu", Format::Switch));
        let quota = quota_us.map_or("max".to_owned(), |us| us.to_string());
        settings.push(("cpu.max", format!("{quota} {PERIOD_US}")));
        if way == Way::Weight {
            settings.push(("cpu.weight", "1".to_owned()));
        }
        format!("{V2}/{GROUP}")
    } else {
        return Err(NO_CPU);
    };
    if idle {
        settings.push(("cpu.idle", "1".to_owned()));
    }
    let members = format!("{folder}/cgroup.procs");
    let mut entrances = vec![members.clone()];
    steps.push(group(folder, settings));
    if way == Way::Resctrl {
        let folder = format!("{RESCTRL}/{GROUP}");
        entrances.push(format!("{folder}/tasks"));
        steps.push(group(folder, vec![("schemata", schemata(root)?)]));
    }
    steps.retain(|step| !step.is_done(root));
    Ok(Confined {
        steps,
        entrances,
        members,
    })
}

fn group(path: String, settings: Vec<(&str, String)>) -> Step {
    let settings = settings.into_iter();
    Step::Group {
        path,
        settings: settings
            .map(|(file, value)| (file.to_owned(), value))
            .collect(),
    }
}

/// Returns the resctrl shares of bulk load: the lowest quarter of each last-level cache, and the smallest bandwidth of
/// each memory.
fn schemata(root: &Root) -> Result<String, NoWay> {
    let now = root
        .text(&format!("{RESCTRL}/schemata"))
        .ok_or(NO_RESCTRL)?;
    let least = root.number(&format!("{RESCTRL}/info/MB/min_bandwidth"));
    let mut lines = Vec::new();
    for line in now.lines() {
        let Some((resource, domains)) = line.trim().split_once(':') else {
            continue;
        };
        let share = |value: &str| match resource {
            "L3" => {
                let mask = u64::from_str_radix(value, 16).ok()?;
                let part = (mask.count_ones() / CACHE_PART).max(1);
                let lowest = mask & mask.wrapping_neg();
                Some(format!("{:x}", ((1_u64 << part.min(63)) - 1) * lowest))
            }
            "MB" => least.map(|least| least.to_string()),
            _ => None,
        };
        let domains: Option<Vec<String>> = domains
            .split(';')
            .map(|domain| {
                let (id, value) = domain.split_once('=')?;
                Some(format!("{id}={}", share(value.trim())?))
            })
            .collect();
        if let Some(domains) = domains {
            lines.push(format!("{resource}:{}", domains.join(";")));
        }
    }
    match lines.is_empty() {
        true => Err(NO_RESCTRL),
        false => Ok(lines.join("\n")),
    }
}

impl Confined {
    /// Returns a command that enters the control groups, pins itself to the CPUs `cpus` and then runs `command`. The
    /// command and its descendants end when the standard input closes.
    #[must_use]
    pub fn command(&self, cpus: &BTreeSet<usize>, command: &[String]) -> Command {
        let mut script = String::new();
        for file in &self.entrances {
            script.push_str(&format!("echo $$ > {file} && "));
        }
        // A command of the user need not watch its standard input, so the shell does.
        script.push_str(
            "exec 3<&0 && { (read -r _ <&3; kill -KILL 0) & exec \"$@\" < /dev/null 3<&-; }",
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, "sh", "taskset", "-c", &format_cpu_list(cpus)]);
        shell.args(command);
        shell
    }

    /// Returns the processor time of the confined processes and of their children that have exited, s.
    #[must_use]
    pub fn cpu_s(&self, root: &Root) -> f64 {
        let members = root.text(&self.members).unwrap_or_default();
        let ticks = members.lines().filter_map(|pid| {
            let stat = root.text(&format!("/proc/{}/stat", pid.trim()))?;
            let (_, rest) = stat.rsplit_once(')')?;
            let times = rest.split_whitespace().skip(11).take(4);
            Some(
                times
                    .filter_map(|ticks| ticks.parse::<u64>().ok())
                    .sum::<u64>(),
            )
        });
        ticks.sum::<u64>() as f64 / rustix::param::clock_ticks_per_second() as f64
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::root::tests::tree;
    use super::super::{enact, is_in_force, revert};
    use super::*;

    const V1_FILES: &[(&str, &str)] = &[
        ("/sys/devices/system/cpu/online", "0-3\n"),
        ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
        ("/sys/fs/cgroup/cpu/cpu.idle", "0\n"),
    ];

    fn settings(confined: &Confined) -> Vec<(String, String)> {
        match confined.steps.last() {
            Some(Step::Group { settings, .. }) => settings.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn bulk_quotas_are_written_for_both_versions_of_control_groups() {
        let (_folder, root) = tree(V1_FILES);
        let text = |it: &(String, String)| format!("{}={}", it.0, it.1);
        let shown = |way, cpus| -> Vec<String> {
            let confined = confine(&root, way, cpus).unwrap();
            settings(&confined).iter().map(text).collect()
        };
        assert_eq!(
            shown(Way::Weight, Some(1.5)),
            [
                "cpu.cfs_period_us=10000",
                "cpu.cfs_quota_us=15000",
                "cpu.shares=2"
            ]
        );
        assert_eq!(
            shown(Way::CpusIdle, None)[1..],
            ["cpu.cfs_quota_us=-1", "cpu.idle=1"]
        );
        let (_folder, root) = tree(&[
            ("/sys/fs/cgroup/cgroup.controllers", "cpu io\n"),
            ("/sys/fs/cgroup/cgroup.subtree_control", "io\n"),
        ]);
        let confined = confine(&root, Way::Weight, Some(0.5)).unwrap();
        assert_eq!(confined.steps.len(), 2);
        let shown: Vec<String> = settings(&confined).iter().map(text).collect();
        assert_eq!(shown, ["cpu.max=5000 10000", "cpu.weight=1"]);
        let (_folder, root) = tree(&[]);
        assert_eq!(confine(&root, Way::Free, None), Err(NO_CPU));
    }

    #[test]
    fn cache_and_memory_shares_keep_the_form_of_the_machine() {
        let files = [
            (
                "/sys/fs/resctrl/schemata",
                "    MB:0=100;1=100\n    L3:0=fffff;1=ffff0\n",
            ),
            ("/sys/fs/resctrl/info/MB/min_bandwidth", "10\n"),
        ];
        let (_folder, root) = tree(&[V1_FILES, &files].concat());
        let confined = confine(&root, Way::Resctrl, None).unwrap();
        let wanted = "MB:0=10;1=10\nL3:0=1f;1=f0";
        assert_eq!(
            settings(&confined),
            [("schemata".to_owned(), wanted.to_owned())]
        );
        assert_eq!(confined.entrances[1], "/sys/fs/resctrl/taut-bulk/tasks");
        let (_folder, root) = tree(V1_FILES);
        assert_eq!(confine(&root, Way::Resctrl, None), Err(NO_RESCTRL));
    }

    #[test]
    fn the_group_of_bulk_load_is_removed_through_the_journal() {
        let (_folder, root) = tree(V1_FILES);
        let confined = confine(&root, Way::Idle, Some(1.0)).unwrap();
        let cpus = BTreeSet::from([3]);
        enact(&root, &cpus, "bulk", confined.steps).unwrap();
        assert!(root.exists("/sys/fs/cgroup/cpu/taut-bulk/cpu.idle"));
        assert!(is_in_force(&root).unwrap());
        assert_eq!(revert(&root).unwrap().restored, 1);
        assert!(!root.exists("/sys/fs/cgroup/cpu/taut-bulk"));
    }

    #[test]
    fn processor_time_of_bulk_load_includes_exited_children() {
        let stat = "7 (a b) R 1 1 1 0 -1 0 0 0 0 0 100 20 3 4 20 0 1 0 9";
        let (_folder, root) = tree(
            &[
                V1_FILES,
                &[
                    ("/sys/fs/cgroup/cpu/taut-bulk/cgroup.procs", "7\n8\n"),
                    ("/proc/7/stat", stat),
                ],
            ]
            .concat(),
        );
        let confined = confine(&root, Way::Free, None).unwrap();
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(confined.cpu_s(&root), 127.0 / ticks);
    }
}
