//! Settings of the machine that affect latency: read, explained, changed and restored.
//!
//! Each family of settings has one file, in which a setting is one entry. A change at run time is a [`Step`]: apply,
//! revert and the printed commands are built from steps.

mod apply;
mod boot;
pub mod bulk;
mod interrupts;
mod isolation;
mod journal;
mod memory;
mod network;
pub mod noise;
mod page;
mod platform;
mod power;
mod reverting;
mod root;
mod scheduler;
mod setting;
mod step;

use std::collections::BTreeSet;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use apply::{
    Applied, Outcome, Reverted, apply, apply_only, enact, is_in_force, plan, revert, revert_plan,
};
pub use boot::BootLine;
pub use page::{page, pages, rows};
pub use reverting::Reverting;
pub use root::Root;
pub use setting::{Finding, Group, Profile, Setting, State};
pub use step::{Format, Step};

use crate::cpu_list::{format_cpu_list, parse_cpu_list};
use crate::machine::Machine;
use setting::{Looked, View};

/// The reason why a machine cannot be checked or changed as requested.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// The text is not a list of CPUs.
    #[error("`{0}` is not a list of CPUs; expected 1 or 2-3,6, for example")]
    NotAList(String),
    /// The machine does not have the requested CPUs.
    #[error("CPU {missing} does not exist or is offline; online: {online}")]
    NoSuchCpu {
        /// The requested CPUs that the machine does not have.
        missing: String,
        /// The CPUs that are online.
        online: String,
    },
    /// The requested CPUs are all CPUs, so that no CPU would be left for the system.
    #[error(
        "{cpus} would be every CPU of this machine ({online}), and the system needs one; leave out at least one"
    )]
    LastCpu {
        /// The requested CPUs.
        cpus: String,
        /// The CPUs that are online.
        online: String,
    },
    /// The file tree does not list the CPUs.
    #[error("{0} cannot be read; is this a Linux machine with /sys?")]
    NoCpus(PathBuf),
    /// Only root may change settings.
    #[error(
        "only root can change settings; run: sudo taut tune {0}   (taut tune audit and --dry-run need no root)"
    )]
    NotRoot(String),
    /// The daemon tuned is active.
    #[error(
        "tuned is active (profile {profile}) and would set its own values again; turn it off (tuned-adm off), or let it do the work (tuned-adm profile cpu-partitioning)"
    )]
    Tuned {
        /// The active profile of the daemon tuned.
        profile: String,
    },
    /// The settings now in force are for other CPUs or another profile.
    #[error("already applied for CPU {cpus}, profile {profile}; first run: taut tune revert")]
    AppliedOtherwise {
        /// The CPUs of the settings in force.
        cpus: String,
        /// The profile of the settings in force.
        profile: String,
    },
    /// The kernel refused to restore the old value of a setting.
    #[error("not reverted, and still in the journal: {0}")]
    NotReverted(String),
    /// Another process applies or reverts settings.
    #[error("another taut tune apply or revert is running")]
    Busy,
    /// The journal cannot be written, so nothing may be changed.
    #[error(
        "{path}: {source}; without the journal no setting is changed, as it could not be reverted"
    )]
    Journal {
        /// The path of the journal.
        path: PathBuf,
        /// The reason why the journal cannot be written.
        source: std::io::Error,
    },
    /// The file is not a journal.
    #[error(
        "{path}:{line}: not a journal of taut tune ({reason}); restore the values by hand and remove the file"
    )]
    NotAJournal {
        /// The path of the file.
        path: PathBuf,
        /// The number of the invalid line, from 1.
        line: usize,
        /// The reason why the line is invalid.
        reason: String,
    },
}

/// The result of an audit.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Audit {
    /// The profile that the machine is compared with.
    pub profile: Profile,
    /// The CPUs that are to be isolated for low latency, as a list such as `2-3`.
    pub cpus: String,
    /// True if the audit ran as root, and could therefore read the files that only root can read.
    pub as_root: bool,
    /// The finding of each setting, grouped by family.
    pub findings: Vec<Finding>,
}

impl Audit {
    /// Returns the number of settings that are bad for the profile.
    #[must_use]
    pub fn bad(&self) -> usize {
        let bad = |finding: &&Finding| finding.state == State::Bad;
        self.findings.iter().filter(bad).count()
    }

    /// Returns the findings by state, bad ones first, and within a state by their effect on latency, largest first.
    #[must_use]
    pub fn by_effect(&self) -> Vec<&Finding> {
        let states = [State::Bad, State::Unknown, State::Ok, State::NotHere];
        let mut findings: Vec<_> = self.findings.iter().collect();
        // The sort is stable, so settings of one rank keep their order.
        findings.sort_by_key(|it| {
            let state = states.iter().position(|state| *state == it.state);
            (state, it.rank())
        });
        findings
    }
}

/// Returns every known setting, grouped by family.
pub fn settings() -> impl Iterator<Item = &'static Setting> {
    [
        isolation::SETTINGS,
        interrupts::SETTINGS,
        power::SETTINGS,
        memory::SETTINGS,
        scheduler::SETTINGS,
        network::SETTINGS,
        platform::SETTINGS,
    ]
    .into_iter()
    .flatten()
}

/// Returns the CPUs in a list such as `1` or `2-3,6`, if all of them are online below `root`.
///
/// # Errors
/// [`TuneError::NotAList`], [`TuneError::NoSuchCpu`], [`TuneError::NoCpus`].
pub fn online_cpus(root: &Root, list: &str) -> Result<BTreeSet<usize>, TuneError> {
    let cpus = parse_cpu_list(list)
        .filter(|cpus| !cpus.is_empty())
        .ok_or_else(|| TuneError::NotAList(list.to_owned()))?;
    let online = online(root)?;
    let missing = &cpus - &online;
    if missing.is_empty() {
        return Ok(cpus);
    }
    Err(TuneError::NoSuchCpu {
        missing: format_cpu_list(&missing),
        online: format_cpu_list(&online),
    })
}

/// Returns the default CPU of an audit: the last one, because the first serves most interrupts.
///
/// # Errors
/// [`TuneError::NoCpus`].
pub fn default_cpus(root: &Root) -> Result<BTreeSet<usize>, TuneError> {
    Ok(online(root)?.last().copied().into_iter().collect())
}

/// Returns true if `cpus` are all online CPUs.
///
/// # Errors
/// [`TuneError::NoCpus`].
pub fn is_every_cpu(root: &Root, cpus: &BTreeSet<usize>) -> Result<bool, TuneError> {
    Ok(other_cpu(root, cpus)?.is_none())
}

/// Returns the first online CPU that is not in `cpus`; `None` if there is none.
///
/// # Errors
/// [`TuneError::NoCpus`].
pub fn other_cpu(root: &Root, cpus: &BTreeSet<usize>) -> Result<Option<usize>, TuneError> {
    Ok((&online(root)? - cpus).first().copied())
}

fn online(root: &Root) -> Result<BTreeSet<usize>, TuneError> {
    let path = "/sys/devices/system/cpu/online";
    let cpus = root.text(path).and_then(|text| parse_cpu_list(&text));
    cpus.filter(|cpus| !cpus.is_empty())
        .ok_or_else(|| TuneError::NoCpus(root.path(path)))
}

/// Reads every setting. It changes nothing and needs no root; without root, settings that only root can read are
/// unknown.
///
/// # Errors
/// [`TuneError::NoCpus`].
pub fn audit(root: &Root, cpus: &BTreeSet<usize>, profile: Profile) -> Result<Audit, TuneError> {
    let folder = root.path("/");
    let view = View {
        root,
        cpus,
        system: &online(root)? - cpus,
        profile,
        machine: Machine::read_under(&folder),
    };
    Ok(Audit {
        profile,
        cpus: format_cpu_list(cpus),
        as_root: crate::permissions::is_root(),
        findings: settings().map(|setting| finding(setting, &view)).collect(),
    })
}

fn finding(setting: &Setting, view: &View) -> Finding {
    let mut looked = (setting.look)(view);
    if !setting.profiles.contains(&view.profile) && looked.state == State::Bad {
        looked = Looked {
            steps: Vec::new(),
            arguments: Vec::new(),
            ..Looked::is(true, looked.now, "any, in this profile")
        };
    }
    let bad = looked.state == State::Bad;
    let mut change_now: Vec<String> = Vec::new();
    if bad {
        change_now.extend(
            looked
                .steps
                .iter()
                .filter(|step| !step.is_done(view.root))
                .map(Step::command),
        );
        if change_now.is_empty() && !setting.by_hand.is_empty() {
            change_now.push(setting.by_hand.to_owned());
        }
    } else if looked.state == State::Unknown && !setting.by_hand.is_empty() {
        change_now.push(setting.by_hand.to_owned());
    }
    Finding {
        name: setting.name.to_owned(),
        group: setting.group,
        state: looked.state,
        now: looked.now,
        wanted: looked.wanted,
        change_now,
        change_at_boot: if bad { looked.arguments } else { Vec::new() },
        change_below: if bad {
            setting.below.to_owned()
        } else {
            String::new()
        },
        why: setting.cost.to_owned(),
        source: setting.source.to_owned(),
        can_be_applied: !looked.steps.is_empty(),
        steps: looked.steps,
    }
}

/// Moves the calling thread into the partition that [`apply`] created, if `cpu` is in one. With version 2 of control
/// groups the whole process moves.
pub(crate) fn enter_partition(cpu: usize) {
    let root = Root::machine();
    if let Some(path) = isolation::entrance(&root, cpu) {
        let task = rustix::thread::gettid().as_raw_nonzero().to_string();
        // An error is ignored: if the thread cannot enter the partition, the later pinning fails and reports the
        // reason.
        let _ = root.write(&path, &task);
    }
}

/// Returns the CPUs of the partition that [`apply`] created; empty without root. This process may enter the partition,
/// although its affinity does not include these CPUs.
pub(crate) fn partition_cpus() -> BTreeSet<usize> {
    let root = Root::machine();
    if !crate::permissions::is_root() {
        return BTreeSet::new();
    }
    let mut cpus = online(&root).unwrap_or_default();
    cpus.retain(|cpu| isolation::entrance(&root, *cpu).is_some());
    cpus
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::root::tests::tree;
    use super::*;

    const ONLINE: (&str, &str) = ("/sys/devices/system/cpu/online", "0-3\n");

    fn found(root: &Root, name: &str, profile: Profile) -> Finding {
        let audit = audit(root, &BTreeSet::from([2, 3]), profile).unwrap();
        audit.findings.into_iter().find(|f| f.name == name).unwrap()
    }

    #[test]
    fn settings_without_data_are_not_reported_as_bad() {
        let (_folder, root) = tree(&[ONLINE]);
        let audit = audit(&root, &BTreeSet::from([2]), Profile::Latency).unwrap();
        let bad: Vec<_> = audit
            .findings
            .iter()
            .filter(|f| f.state == State::Bad)
            .map(|f| &f.name)
            .collect();
        // Arguments that are not on the command line are known to be absent.
        assert_eq!(bad, ["isolated-cpus", "rcu-callbacks"]);
        assert_eq!(audit.findings.len(), settings().count());
    }

    #[test]
    fn bad_settings_with_the_largest_effect_on_latency_come_first() {
        for name in setting::BY_EFFECT {
            assert!(settings().any(|it| it.name == *name), "{name}");
        }
        let (_folder, root) = tree(&[ONLINE]);
        let mut audit = audit(&root, &BTreeSet::from([2]), Profile::Latency).unwrap();
        for finding in &mut audit.findings {
            finding.state = match finding.name.as_str() {
                "ipv6-chatter" | "swappiness" | "governor" | "tickless" => State::Bad,
                "isolated-cpus" => State::Unknown,
                _ => State::Ok,
            };
        }
        let sorted = audit.by_effect();
        let first: Vec<_> = sorted.iter().take(5).map(|it| it.name.as_str()).collect();
        let bad = ["governor", "tickless", "swappiness", "ipv6-chatter"];
        assert_eq!(first[..4], bad);
        assert_eq!(first[4], "isolated-cpus");
        assert_eq!(sorted.len(), audit.findings.len());
    }

    #[test]
    fn setting_names_are_unique_and_every_setting_has_a_source() {
        let names: BTreeSet<_> = settings().map(|setting| setting.name).collect();
        assert_eq!(names.len(), settings().count());
        for setting in settings() {
            for text in [setting.what, setting.cost, setting.see, setting.source] {
                assert!(!text.is_empty(), "{}", setting.name);
            }
        }
    }

    #[test]
    fn rcu_threads_and_interfaces_with_ipv6_are_detected() {
        let (_folder, root) = tree(&[
            ONLINE,
            ("/proc/14/comm", "rcu_preempt\n"),
            (
                "/proc/14/status",
                "Name:\trcu_preempt\nCpus_allowed_list:\t0-3\n",
            ),
            ("/proc/15/comm", "rcuc/2\n"),
            ("/proc/15/status", "Cpus_allowed_list:\t2\n"),
            ("/proc/16/comm", "rcuop/1\n"),
            ("/proc/16/status", "Cpus_allowed_list:\t0-1\n"),
            ("/sys/class/net/lo/ifindex", "1\n"),
            ("/sys/class/net/eth0/ifindex", "2\n"),
            ("/sys/class/net/eth1/ifindex", "3\n"),
            ("/proc/sys/net/ipv6/conf/lo/disable_ipv6", "0\n"),
            ("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", "0\n"),
            ("/proc/sys/net/ipv6/conf/eth1/disable_ipv6", "1\n"),
        ]);
        let threads = found(&root, "rcu-threads", Profile::Latency);
        assert_eq!(
            (threads.state, threads.now.as_str()),
            (State::Bad, "rcu_preempt may run there")
        );
        let chatter = found(&root, "ipv6-chatter", Profile::Shared);
        assert_eq!(
            (chatter.state, chatter.now.as_str()),
            (State::Bad, "1 of 2 interfaces speak it")
        );
    }

    #[test]
    fn cpu_isolation_from_the_boot_command_line_is_detected() {
        let (_folder, root) = tree(&[
            ONLINE,
            ("/sys/devices/system/cpu/isolated", "2-3\n"),
            ("/sys/devices/system/cpu/nohz_full", "3\n"),
            ("/proc/cmdline", "quiet nohz_full=2-3 -- rcu_nocbs=1\n"),
        ]);
        assert_eq!(
            found(&root, "isolated-cpus", Profile::Latency).state,
            State::Ok
        );
        let tickless = found(&root, "tickless", Profile::Latency);
        assert_eq!(
            (tickless.state, tickless.now.as_str()),
            (State::Bad, "CPU 3")
        );
        assert_eq!(tickless.change_at_boot, ["nohz_full=2-3"]);
        assert_eq!(
            found(&root, "rcu-callbacks", Profile::Latency).state,
            State::Ok
        );
    }

    #[test]
    fn interrupts_on_the_tuned_cpus_are_reported_with_remedies() {
        let (_folder, root) = tree(&[
            ONLINE,
            ("/proc/irq/9/smp_affinity", "f\n"),
            ("/proc/irq/10/smp_affinity", "1\n"),
            ("/proc/irq/11/smp_affinity", "c\n"),
            ("/proc/irq/default_smp_affinity", "f\n"),
        ]);
        let affinity = found(&root, "irq-affinity", Profile::Shared);
        assert_eq!(affinity.state, State::Bad);
        // An interrupt that only the isolated CPUs served moves to the other CPUs.
        assert_eq!(
            affinity.change_now,
            [
                "echo 3 > /proc/irq/9/smp_affinity",
                "echo 3 > /proc/irq/11/smp_affinity"
            ]
        );
        assert_eq!(affinity.change_at_boot, ["irqaffinity=0-1"]);
        assert_eq!(
            found(&root, "irq-affinity", Profile::Throughput).state,
            State::Ok
        );
    }

    #[test]
    fn turbo_and_transparent_huge_pages_are_bad_for_latency_only() {
        let (_folder, root) = tree(&[
            ONLINE,
            ("/sys/devices/system/cpu/intel_pstate/no_turbo", "0\n"),
            (
                "/sys/kernel/mm/transparent_hugepage/enabled",
                "[always] madvise never\n",
            ),
        ]);
        let states = |name| {
            [Profile::Latency, Profile::Throughput, Profile::Shared]
                .map(|profile| found(&root, name, profile).state)
        };
        assert_eq!(states("turbo"), [State::Bad, State::Ok, State::Ok]);
        assert_eq!(
            states("transparent-huge-pages"),
            [State::Bad, State::Ok, State::Ok]
        );
        assert_eq!(states("governor"), [State::NotHere; 3]);
    }

    #[test]
    fn deep_idle_states_are_disabled_on_the_tuned_cpus_only() {
        let (_folder, root) = tree(&[
            ONLINE,
            ("/sys/devices/system/cpu/cpu0/cpuidle/state1/name", "C6\n"),
            ("/sys/devices/system/cpu/cpu2/cpuidle/state0/name", "POLL\n"),
            ("/sys/devices/system/cpu/cpu2/cpuidle/state0/latency", "0\n"),
            ("/sys/devices/system/cpu/cpu2/cpuidle/state1/name", "C6\n"),
            (
                "/sys/devices/system/cpu/cpu2/cpuidle/state1/latency",
                "133\n",
            ),
            ("/sys/devices/system/cpu/cpu2/cpuidle/state1/disable", "0\n"),
        ]);
        let idle = found(&root, "idle-states", Profile::Latency);
        assert_eq!(idle.now, "C6 (133 µs)");
        assert_eq!(
            idle.change_now,
            ["echo 1 > /sys/devices/system/cpu/cpu2/cpuidle/state1/disable"]
        );
    }

    #[test]
    fn cpu_isolation_commands_exist_for_both_versions_of_control_groups() {
        let (_folder, root) = tree(&[
            ONLINE,
            ("/sys/fs/cgroup/cgroup.controllers", "cpu cpuset io\n"),
            ("/sys/fs/cgroup/cgroup.subtree_control", "cpu\n"),
        ]);
        let commands = found(&root, "isolated-cpus", Profile::Latency).change_now;
        assert_eq!(
            commands[0],
            "echo +cpuset > /sys/fs/cgroup/cgroup.subtree_control"
        );
        assert!(commands[1].contains("echo isolated > /sys/fs/cgroup/taut/cpuset.cpus.partition"));
        let (_folder, root) = tree(&[
            ONLINE,
            ("/sys/fs/cgroup/cpuset/cpuset.sched_load_balance", "1\n"),
            ("/sys/fs/cgroup/cpuset/cpuset.mems", "0\n"),
            ("/sys/fs/cgroup/cpuset/tasks", "1\n"),
        ]);
        let commands = found(&root, "isolated-cpus", Profile::Latency).change_now;
        assert!(commands[1].contains("echo 2-3 > /sys/fs/cgroup/cpuset/taut/cpuset.cpus"));
    }

    #[test]
    fn steal_time_and_a_running_tuned_daemon_are_detected() {
        let own = format!("/proc/{}/comm", std::process::id());
        let (_folder, root) = tree(&[
            ONLINE,
            (
                "/proc/stat",
                "cpu 0\ncpu2 50 0 0 949 0 0 0 1 0 0\ncpu3 0 0 0 0 0 0 0 0\n",
            ),
            ("/run/tuned/tuned.pid", &format!("{}\n", std::process::id())),
            ("/etc/tuned/active_profile", "cpu-partitioning\n"),
            (&own, "tuned\n"),
        ]);
        assert_eq!(found(&root, "steal-time", Profile::Latency).now, "0.100 %");
        assert!(
            found(&root, "tuned", Profile::Latency)
                .now
                .contains("cpu-partitioning")
        );
    }

    #[test]
    fn invalid_or_offline_cpus_in_a_list_are_refused() {
        let (_folder, root) = tree(&[ONLINE]);
        assert_eq!(online_cpus(&root, "1,3").unwrap(), BTreeSet::from([1, 3]));
        assert!(matches!(
            online_cpus(&root, "x"),
            Err(TuneError::NotAList(_))
        ));
        assert!(matches!(
            online_cpus(&root, ""),
            Err(TuneError::NotAList(_))
        ));
        let error = online_cpus(&root, "2-7").unwrap_err().to_string();
        assert!(
            error.contains("CPU 4-7") && error.contains("0-3"),
            "{error}"
        );
        assert_eq!(default_cpus(&root).unwrap(), BTreeSet::from([3]));
        let (_folder, empty) = tree(&[]);
        assert!(matches!(
            online_cpus(&empty, "1"),
            Err(TuneError::NoCpus(_))
        ));
    }

    #[test]
    fn an_audit_is_unchanged_after_conversion_to_json_and_back() {
        let root = Root::machine();
        let cpus = default_cpus(&root).unwrap();
        for profile in [Profile::Latency, Profile::Throughput, Profile::Shared] {
            let audit = audit(&root, &cpus, profile).unwrap();
            let text = serde_json::to_string(&audit).unwrap();
            let back: Audit = serde_json::from_str(&text).unwrap();
            assert_eq!(back.findings.len(), audit.findings.len());
        }
    }
}
