//! Checks this machine for a new user: what is available, what is missing, and how to fix it.
//!
//! The checks use other modules: [`Machine`] for rights and facts, [`tune::audit`] for settings, and
//! [`tune::noise::listen`] for noise.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use rustix::fs::{Access, access};
use schemars::JsonSchema;
use serde::Serialize;
use taut_sys::Clock;

use crate::cpu_list::format_cpu_list;
use crate::machine::Machine;
use crate::permissions::{Capability, in_user_namespace, is_root};
use crate::private::{Claim, MEASURING, cache_folder_path, run_folder_path};
use crate::topology::{allowed_cpus, choose_cores};
use crate::tune::noise::{CpuNoise, Plan, listen};
use crate::tune::{self, Audit, Finding, Profile, Root, State, TuneError};

/// The duration of the noise measurement.
const LISTENED: Duration = Duration::from_secs(1);
/// The time for which the time-stamp counter is compared with the kernel's clock.
const CALIBRATED: Duration = Duration::from_millis(50);
/// The maximum number of bad settings that the output shows.
const SHOWN_SETTINGS: usize = 5;
/// The number of huge pages of 2 MB that the buffers of a few ports need.
const HUGE_PAGES: u64 = 256;
/// The kernel's file that sets the number of huge pages.
const HUGE_PAGES_FILE: &str = "/proc/sys/vm/nr_hugepages";
/// The locked memory that an AF_XDP port with its default rings needs, doubled for a second port, bytes.
const LOCKED_BYTES: u64 = 64 << 20;

/// Settings that the summary of settings omits: they have a separate check in this module, or cannot be changed on the
/// machine itself.
const NOT_AMONG_SETTINGS: &[&str] = &[
    "huge-pages",
    "clock-source",
    "virtual-machine",
    "mitigations",
];

/// The capabilities that ports need. In order, they are for packet sockets, interfaces, XDP programs, XDP programs with
/// filters, and locked memory.
const RIGHTS: &[Capability] = &[
    Capability::NetRaw,
    Capability::NetAdmin,
    Capability::Bpf,
    Capability::Perfmon,
    Capability::IpcLock,
];

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The check passed.
    Well,
    /// The checked feature works, but could work better.
    Better,
    /// The checked feature is missing, and it is required.
    Missing,
}

/// The result of one check, with its advice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Check {
    /// The name of the check.
    pub name: String,
    /// The verdict of the check.
    pub verdict: Verdict,
    /// The checked state of the machine, in one line.
    pub found: String,
    /// The command that makes the check pass, or advice if there is no such command; empty if the check passed.
    pub mend: String,
}

impl Check {
    /// Makes the result of a check that passed, with verdict [`Verdict::Well`].
    pub fn well(name: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            verdict: Verdict::Well,
            found: found.into(),
            mend: String::new(),
        }
    }

    /// Makes the result of a check that did not pass, with its verdict and its remedy.
    pub fn ill(
        name: impl Into<String>,
        verdict: Verdict,
        found: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            verdict,
            found: found.into(),
            mend: mend.into(),
        }
    }
}

/// Runs all checks except those of ports: rights, cores, folders, huge pages, clock, noise, then the settings with the
/// largest benefit. `program` is the executable to which the advised command grants missing rights; `stop` ends the
/// noise measurement.
///
/// # Errors
/// [`TuneError::NoCpus`] if the kernel does not list the CPUs.
pub fn examine(program: &Path, stop: &AtomicBool) -> Result<Vec<Check>, TuneError> {
    let machine = Machine::read();
    // The checks apply to the CPU that a device under test would get.
    let cpu = choose_cores().device;
    let root = Root::machine();
    let audit = tune::audit(&root, &BTreeSet::from([cpu]), Profile::Latency)?;
    let is_every_cpu = tune::is_every_cpu(&root, &BTreeSet::from([cpu]))?;
    let mut checks = vec![
        rights(&machine, program),
        cores(&allowed_cpus(), &Machine::online()),
        folders(&Folder::all(), is_writable),
        huge_pages(&machine),
        clock(&machine, &Clock::calibrate(CALIBRATED)),
        noise(cpu, stop),
    ];
    checks.extend(settings(&audit, is_every_cpu));
    Ok(checks)
}

/// Returns the command with which this user runs `command` as root.
fn as_root(command: &str) -> String {
    if is_root() {
        command.to_owned()
    } else if command.contains(['>', '|', ';', '&', '$']) {
        format!("sudo sh -c '{}'", command.replace('\'', "'\\''"))
    } else {
        format!("sudo {command}")
    }
}

/// Checks whether this process has the rights that ports need.
fn rights(machine: &Machine, program: &Path) -> Check {
    let held = machine.capabilities.as_ref();
    let held = held.map(|fact| fact.value.as_slice()).unwrap_or_default();
    let limit = machine.memory_lock_limit_bytes.as_ref();
    let limit = limit.map_or(0, |fact| fact.value);
    rights_of(
        held,
        limit,
        (is_root(), in_user_namespace()),
        &program.display().to_string(),
    )
}

fn rights_of(
    held: &[Capability],
    limit_bytes: u64,
    (is_root, in_user_namespace): (bool, bool),
    program: &str,
) -> Check {
    let has = |right: Capability| match right {
        // The older and wider right `CAP_SYS_ADMIN` still includes these two rights.
        Capability::Bpf | Capability::Perfmon => {
            !in_user_namespace && (held.contains(&right) || held.contains(&Capability::SysAdmin))
        }
        Capability::IpcLock => {
            limit_bytes >= LOCKED_BYTES || (!in_user_namespace && held.contains(&right))
        }
        _ => held.contains(&right),
    };
    let lacking: Vec<_> = RIGHTS.iter().filter(|right| !has(**right)).collect();
    let who = match (is_root, in_user_namespace) {
        (true, true) => "root of a user namespace",
        (true, false) => "root",
        (false, _) => "an ordinary user",
    };
    let is_unlimited = !in_user_namespace && held.contains(&Capability::IpcLock);
    let memory = if is_unlimited || limit_bytes == u64::MAX {
        "memory may be locked without limit".to_owned()
    } else {
        format!("{} MiB may be locked", limit_bytes >> 20)
    };
    if lacking.is_empty() {
        return Check::well(
            "rights",
            format!("{who} with all that ports take; {memory}"),
        );
    }
    let names = |separator: &str, prefix: &str| {
        let names = lacking.iter().map(|right| right.name());
        let names = names.map(|name| name.strip_prefix(prefix).unwrap_or(name));
        names.collect::<Vec<_>>().join(separator)
    };
    let found = format!("{who} without {}; {memory}", names(", ", ""));
    let mend = if in_user_namespace {
        "run it outside of the user namespace: what it may there ends with it".to_owned()
    } else if is_root {
        format!(
            "start the container with --cap-add={}, or the unit with AmbientCapabilities=",
            names(",", "CAP_")
        )
    } else {
        // The command sets all rights, because it replaces the rights that the file had before.
        let all = RIGHTS.iter().map(|right| right.name().to_lowercase());
        let all = all.collect::<Vec<_>>().join(",");
        format!("sudo setcap {all}+ep {program}")
    };
    Check::ill("rights", Verdict::Missing, found, mend)
}

/// Checks whether a generator and a device can each have a core.
fn cores(allowed: &BTreeSet<usize>, online: &BTreeSet<usize>) -> Check {
    let list = format_cpu_list(allowed);
    if allowed.len() > 1 {
        let found = format!("{} of {} (CPU {list})", allowed.len(), online.len());
        return Check::well("cores", found);
    }
    let found = format!(
        "only CPU {list} of {}, which generator and device would share",
        online.len()
    );
    let mend = if online.len() > 1 {
        // The command changes the affinity of the user's shell, which later commands inherit. If a cpuset forbids the
        // change, `taskset` reports an error.
        format!("taskset -pc {} $$", format_cpu_list(online))
    } else {
        "give this machine a second core".to_owned()
    };
    Check::ill("cores", Verdict::Missing, found, mend)
}

/// A folder in which taut creates files.
struct Folder {
    path: PathBuf,
    /// The kind of files that taut creates in the folder, in the plural.
    content: &'static str,
    /// The verdict of the check if this process cannot write to the folder.
    otherwise: Verdict,
    mend: &'static str,
}

impl Folder {
    fn all() -> [Self; 4] {
        let here = std::env::current_dir().unwrap_or_else(|_| ".".into());
        let sockets = if is_root() {
            "mount -t tmpfs tmpfs /run (for a container: --tmpfs /run)"
        } else {
            "export XDG_RUNTIME_DIR=FOLDER"
        };
        [
            Self {
                path: run_folder_path(),
                content: "sockets and locks",
                otherwise: Verdict::Missing,
                mend: sockets,
            },
            Self {
                path: std::env::temp_dir(),
                content: "temporary files",
                otherwise: Verdict::Missing,
                mend: "export TMPDIR=FOLDER",
            },
            Self {
                path: here.join("results"),
                content: "results",
                otherwise: Verdict::Better,
                mend: "cd FOLDER, or option --out FOLDER",
            },
            Self {
                path: cache_folder_path(),
                content: "kernels of virtual machines",
                otherwise: Verdict::Better,
                mend: "export XDG_CACHE_HOME=FOLDER",
            },
        ]
    }
}

/// Checks whether the folders in which taut creates files are writable.
fn folders(folders: &[Folder], is_writable: impl Fn(&Path) -> bool) -> Check {
    let name = "folders";
    let ill: Vec<&Folder> = folders.iter().filter(|it| !is_writable(&it.path)).collect();
    if ill.is_empty() {
        let paths = folders.iter().map(|it| it.path.display().to_string());
        let paths: Vec<_> = paths.collect();
        return Check::well(name, format!("writable: {}", paths.join(", ")));
    }
    let is_missing = ill.iter().any(|it| it.otherwise == Verdict::Missing);
    let verdict = if is_missing {
        Verdict::Missing
    } else {
        Verdict::Better
    };
    let found = ill
        .iter()
        .map(|it| format!("{} ({})", it.path.display(), it.content));
    let found = found.collect::<Vec<_>>().join(", ");
    let mend = ill.iter().map(|it| it.mend).collect::<Vec<_>>();
    Check::ill(
        name,
        verdict,
        format!("not writable: {found}"),
        mend.join("; "),
    )
}

/// Reports whether this process can create files in the folder, or create the folder.
fn is_writable(folder: &Path) -> bool {
    let existing = folder.ancestors().find(|it| it.exists());
    existing.is_some_and(|it| access(it, Access::WRITE_OK | Access::EXEC_OK).is_ok())
}

/// Checks whether huge pages are free.
fn huge_pages(machine: &Machine) -> Check {
    let name = "huge pages";
    let Some(default) = machine.huge_pages.first() else {
        return Check::ill(
            name,
            Verdict::Missing,
            "this kernel has none",
            "a kernel with CONFIG_HUGETLBFS; packet memory lies on ordinary pages, which is slower",
        );
    };
    let of_size: Vec<String> = machine
        .huge_pages
        .iter()
        .filter(|size| size.total > 0)
        .map(|size| {
            let mebibytes = size.page_bytes >> 20;
            format!("{} of {} free, {mebibytes} MiB each", size.free, size.total)
        })
        .collect();
    if machine.huge_pages.iter().any(|size| size.free > 0) {
        return Check::well(name, of_size.join("; "));
    }
    let found = if of_size.is_empty() {
        "none set aside: packet memory lies on ordinary pages, which is slower".to_owned()
    } else {
        of_size.join("; ")
    };
    let wanted = default.total + HUGE_PAGES;
    let mend = format!("sysctl -w vm.nr_hugepages={wanted}");
    let mend = if is_root() && access(HUGE_PAGES_FILE, Access::WRITE_OK).is_err() {
        format!("outside of this container: {mend}")
    } else {
        as_root(&mend)
    };
    Check::ill(name, Verdict::Missing, found, mend)
}

/// Checks whether the time-stamp counter can be used as a clock.
fn clock(machine: &Machine, clock: &Clock) -> Check {
    let name = "clock";
    let kernels = machine.clock_source.as_ref();
    let kernels = kernels.map_or("an unknown clock", |fact| fact.value.as_str());
    let counter = format!(
        "counter of {:.3} GHz, to {:.1} ppm; the kernel reads {kernels}",
        clock.hz / 1e9,
        clock.error_ppm
    );
    // On processors other than x86, the counter always has a constant rate.
    let flags = machine.tsc_flags.as_ref();
    let has = |flag: &str| flags.is_some_and(|fact| fact.value.iter().any(|it| it == flag));
    let is_invariant = !cfg!(target_arch = "x86_64") || (has("constant_tsc") && has("nonstop_tsc"));
    if is_invariant {
        return Check::well(name, format!("invariant {counter}"));
    }
    Check::ill(
        name,
        Verdict::Better,
        format!("{counter}; the processor does not say that the counter is invariant"),
        below("clock-source"),
    )
}

/// Returns how to change the named setting in the BIOS or on the hypervisor's host; empty if there is no way.
fn below(setting: &str) -> String {
    let found = tune::settings().find(|it| it.name == setting);
    found.map_or("", |setting| setting.below).to_owned()
}

/// Measures the noise of a CPU, on a separate thread, because the measuring process must not run on that CPU.
fn noise(cpu: usize, stop: &AtomicBool) -> Check {
    let name = "noise";
    let again = as_root(&format!("taut tune noise --cpus {cpu} --for 10s"));
    if let Some(held) = Claim::holder(MEASURING) {
        let found = format!("not listened to, as another taut measures ({held})");
        return Check::ill(name, Verdict::Better, found, again);
    }
    let plan = Plan {
        cpus: BTreeSet::from([cpu]),
        duration: LISTENED,
        fifo: None,
        trace: false,
    };
    let heard = thread::scope(|scope| {
        let listening = thread::Builder::new()
            .name("taut-doctor".to_owned())
            .spawn_scoped(scope, || listen(&plan, stop))
            .map_err(|e| format!("cannot start a thread: {e}"))?;
        match listening.join() {
            Ok(heard) => heard.map_err(|e| e.to_string()),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    });
    match heard.as_ref().map(|heard| heard.cpus.first()) {
        Ok(Some(heard)) => noise_heard(heard, again),
        Ok(None) => Check::ill(name, Verdict::Missing, "nothing was heard", again),
        Err(why) => Check::ill(name, Verdict::Missing, why.clone(), again),
    }
}

fn noise_heard(noise: &CpuNoise, again: String) -> Check {
    let found = &noise.interruptions;
    let text = format!(
        "CPU {} in {:.1} s: {} gaps over 10 us, {} over 100 us, the longest {:.0} us; {:.2} % of the time lost",
        noise.cpu,
        found.seconds,
        found.over_10_us,
        found.over_100_us,
        found.longest_ns / 1e3,
        found.share * 100.0
    );
    match found.over_100_us {
        0 => Check::well("noise", text),
        // Only root can see the causes of the noise.
        _ => Check::ill("noise", Verdict::Better, text, again),
    }
}

/// Returns checks for the bad settings whose change has the largest benefit.
fn settings(audit: &Audit, is_every_cpu: bool) -> Vec<Check> {
    let mut bad: Vec<&Finding> = audit
        .findings
        .iter()
        .filter(|it| it.state == State::Bad && !NOT_AMONG_SETTINGS.contains(&it.name.as_str()))
        .collect();
    bad.sort_by_key(|it| it.rank());
    bad.into_iter()
        .take(SHOWN_SETTINGS)
        .map(|it| {
            let found = format!("{}; wanted: {}", it.now, it.wanted);
            let mend = mend(it, &audit.cpus, is_every_cpu);
            Check::ill(it.name.as_str(), Verdict::Better, found, mend)
        })
        .collect()
}

/// Returns how to change a bad setting. The advice is not `taut tune apply` if `is_every_cpu` is true, because that
/// command needs another CPU for the system.
fn mend(finding: &Finding, cpus: &str, is_every_cpu: bool) -> String {
    match (finding.can_be_applied, finding.change_now.as_slice()) {
        (true, [_, _, ..]) if !is_every_cpu => as_root(&format!("taut tune apply --cpus {cpus}")),
        (true, [first, ..]) => as_root(first),
        (false, [advice, ..]) => as_advised(advice),
        (_, []) if !finding.change_at_boot.is_empty() => format!(
            "kernel argument {}, from the next boot on (where it goes: taut tune apply --cpus {cpus} --boot)",
            finding.change_at_boot.join(" ")
        ),
        (_, []) if !finding.change_below.is_empty() => finding.change_below.clone(),
        (_, []) => format!("taut tune explain {}", finding.name),
    }
}

/// Returns the advice as a command that runs as root if the advice is a single command, and otherwise unchanged.
fn as_advised(advice: &str) -> String {
    match advice.split_once(" (back: ") {
        Some((command, back)) if back.ends_with(')') && !command.contains(';') => as_root(command),
        _ => advice.to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::machine::HugePages;

    const ALL: &[Capability] = &Capability::ALL;

    #[test]
    fn missing_capabilities_are_reported_with_the_granting_command() {
        let unlimited = u64::MAX;
        let well = |held, limit| rights_of(held, limit, (false, false), "taut").verdict;
        assert_eq!(well(ALL, 0), Verdict::Well);
        // `CAP_SYS_ADMIN` includes two of the required rights, and the memory limit makes a third unnecessary.
        let older = [
            Capability::NetRaw,
            Capability::NetAdmin,
            Capability::SysAdmin,
        ];
        assert_eq!(well(&older, unlimited), Verdict::Well);
        assert_eq!(well(&older, 8 << 20), Verdict::Missing);
        let none = rights_of(&[], 8 << 20, (false, false), "/usr/bin/taut");
        assert!(
            none.found.contains("without CAP_NET_RAW, CAP_NET_ADMIN,"),
            "{none:?}"
        );
        assert!(none.found.ends_with("8 MiB may be locked"), "{none:?}");
        assert_eq!(
            none.mend,
            "sudo setcap cap_net_raw,cap_net_admin,cap_bpf,cap_perfmon,cap_ipc_lock+ep /usr/bin/taut"
        );
        let contained = rights_of(&[Capability::NetRaw], unlimited, (true, false), "taut");
        assert!(
            contained.mend.contains("--cap-add=NET_ADMIN,BPF,PERFMON,"),
            "{contained:?}"
        );
    }

    #[test]
    fn bpf_and_memory_lock_rights_are_missing_in_user_namespaces() {
        let check = rights_of(ALL, 8 << 20, (true, true), "taut");
        assert_eq!(check.verdict, Verdict::Missing);
        assert!(!check.found.contains("CAP_NET_RAW"), "{check:?}");
        for lacking in ["CAP_BPF", "CAP_IPC_LOCK", "root of a user namespace"] {
            assert!(check.found.contains(lacking), "{lacking}: {check:?}");
        }
    }

    #[test]
    fn a_single_available_core_is_reported_as_insufficient() {
        let cpus = |list: &[usize]| list.iter().copied().collect::<BTreeSet<_>>();
        assert_eq!(
            cores(&cpus(&[0, 2]), &cpus(&[0, 1, 2])).found,
            "2 of 3 (CPU 0,2)"
        );
        let one = cores(&cpus(&[1]), &cpus(&[0, 1, 2]));
        assert_eq!(
            (one.verdict, one.mend.as_str()),
            (Verdict::Missing, "taskset -pc 0-2 $$")
        );
        let alone = cores(&cpus(&[0]), &cpus(&[0]));
        assert!(alone.mend.contains("second core"), "{alone:?}");
    }

    #[test]
    fn the_verdict_depends_on_the_most_important_unwritable_folder() {
        let all = Folder::all();
        let without = |contents: &[&str]| {
            let ill = all.iter().filter(|it| contents.contains(&it.content));
            let ill: Vec<&Path> = ill.map(|it| it.path.as_path()).collect();
            folders(&all, |path| !ill.contains(&path))
        };
        let well = without(&[]);
        assert_eq!(well.verdict, Verdict::Well);
        assert!(well.found.starts_with("writable: /"), "{well:?}");
        let home = without(&["kernels of virtual machines"]);
        assert_eq!(home.verdict, Verdict::Better);
        assert_eq!(home.mend, "export XDG_CACHE_HOME=FOLDER");
        let both = without(&["temporary files", "results"]);
        assert_eq!(both.verdict, Verdict::Missing);
        assert_eq!(
            both.mend,
            "export TMPDIR=FOLDER; cd FOLDER, or option --out FOLDER"
        );
    }

    #[test]
    fn a_results_folder_inside_a_file_is_reported_as_unwritable() {
        let folder = crate::private::scratch().unwrap();
        assert!(is_writable(&folder.path().join("new/results")));
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(!is_writable(&file.join("results")));
    }

    #[test]
    fn the_huge_page_check_requires_free_pages() {
        let with = |total, free| {
            huge_pages(&Machine {
                huge_pages: vec![HugePages {
                    page_bytes: 2 << 20,
                    total,
                    free,
                }],
                ..Machine::default()
            })
        };
        assert_eq!(with(256, 1).found, "1 of 256 free, 2 MiB each");
        assert!(with(0, 0).mend.ends_with("sysctl -w vm.nr_hugepages=256"));
        assert!(with(256, 0).mend.ends_with("sysctl -w vm.nr_hugepages=512"));
        assert_eq!(huge_pages(&Machine::default()).verdict, Verdict::Missing);
    }

    #[test]
    fn settings_that_doctor_omits_exist_in_taut_tune() {
        for name in NOT_AMONG_SETTINGS {
            assert!(tune::settings().any(|it| it.name == *name), "{name}");
        }
        assert!(!below("clock-source").is_empty());
    }

    fn finding(name: &str, change_now: &[&str], change_at_boot: &[&str]) -> Finding {
        let owned = |texts: &[&str]| texts.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let text = serde_json::json!({
            "name": name, "group": "memory", "state": "bad", "now": "1", "wanted": "0",
            "change_now": owned(change_now), "change_at_boot": owned(change_at_boot), "change_below": "",
            "why": "", "source": "", "can_be_applied": false,
        });
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn the_most_effective_settings_are_listed_first_with_their_commands() {
        let audit = Audit {
            profile: Profile::Latency,
            cpus: "1".to_owned(),
            as_root: false,
            findings: vec![
                finding("ipv6-chatter", &["one; two"], &[]),
                finding("huge-pages", &[], &[]),
                finding("swappiness", &[], &[]),
                finding("tickless", &[], &["nohz_full=1"]),
                finding(
                    "irqbalance",
                    &["systemctl stop irqbalance (back: start)"],
                    &[],
                ),
            ],
        };
        let shown = settings(&audit, false);
        let names: Vec<&str> = shown.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(
            names,
            ["irqbalance", "tickless", "swappiness", "ipv6-chatter"]
        );
        assert!(
            shown[0].mend.ends_with("systemctl stop irqbalance"),
            "{shown:?}"
        );
        assert!(
            shown[1].mend.starts_with("kernel argument nohz_full=1"),
            "{shown:?}"
        );
        assert_eq!(shown[2].mend, "taut tune explain swappiness");
        assert_eq!(shown[3].mend, "one; two");
    }

    #[test]
    fn every_failed_check_of_this_machine_has_a_remedy() {
        let checks = examine(Path::new("taut"), &AtomicBool::new(false)).unwrap();
        let names: Vec<&str> = checks.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(
            names[..6],
            ["rights", "cores", "folders", "huge pages", "clock", "noise"]
        );
        assert!(checks.len() <= 6 + SHOWN_SETTINGS);
        for check in &checks {
            assert_eq!(
                check.mend.is_empty(),
                check.verdict == Verdict::Well,
                "{check:?}"
            );
            assert!(
                !check.found.contains('\n') && !check.mend.contains('\n'),
                "{check:?}"
            );
        }
    }
}
