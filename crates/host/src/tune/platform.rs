//! Settings below the operating system (hypervisor, firmware), and other programs that tune the machine.

use super::setting::{EVERY, Group, LATENCY, Looked, Setting, View};
use std::os::unix::fs::FileExt;

pub(super) const SETTINGS: &[Setting] = &[
    Setting {
        name: "virtual-machine",
        group: Group::Platform,
        what: "Whether a hypervisor lies below.",
        cost: "The host may take the CPU away at any time, for microseconds to tens of milliseconds, and each interrupt costs an exit. Tuned \
               virtual machines came within microseconds of bare metal: the host has to be tuned as well.",
        see: "systemd-detect-virt; grep -c hypervisor /proc/cpuinfo",
        is_applied: false,
        by_hand: "",
        boot: "",
        below: "On the host: pin virtual CPUs to isolated cores, huge pages, no overcommitment; or use the machine itself",
        source: "Gallenmüller 2021, section 5.4",
        profiles: LATENCY,
        look: |view| match &view.machine.hypervisor {
            Some(hypervisor) => Looked::is(false, hypervisor.value.clone(), "none"),
            None => Looked::is(true, "none", "none"),
        },
    },
    Setting {
        name: "steal-time",
        group: Group::Platform,
        what: "The share of time in which the host ran something else while these CPUs wanted to run, since boot.",
        cost: "Every such time is a gap of microseconds to tens of milliseconds in a measurement.",
        see: "grep ^cpu /proc/stat (the eighth number of each line)",
        is_applied: false,
        by_hand: "",
        boot: "",
        below: "On the host: do not share the cores of these virtual CPUs",
        source: "proc_stat(5)",
        profiles: EVERY,
        look: steal,
    },
    Setting {
        name: "system-management-interrupts",
        group: Group::Platform,
        what: "How often the firmware has taken the CPU away (SMI), since it was reset.",
        cost: "All CPUs stop for 50 µs to several milliseconds, and the kernel does not see it.",
        see: "rdmsr -p 1 0x34 (Intel; needs root and the module msr)",
        is_applied: false,
        by_hand: "modprobe msr lets root read the count",
        boot: "",
        below: "BIOS: USB legacy support, power management by firmware and error reporting by firmware off",
        source: "Intel, Software Developer's Manual, volume 4 (MSR_SMI_COUNT); Linux, Documentation/trace/hwlat_detector.rst",
        profiles: LATENCY,
        look: management_interrupts,
    },
    Setting {
        name: "tuned",
        group: Group::Platform,
        what: "Whether the daemon tuned sets this machine up.",
        cost: "Two programs that set the same values undo each other. While tuned is active `taut tune apply` changes nothing.",
        see: "tuned-adm active",
        is_applied: false,
        by_hand: "tuned-adm off; or keep it, with tuned-adm profile cpu-partitioning",
        boot: "",
        below: "",
        source: "tuned(8), tuned-profiles-cpu-partitioning(7)",
        profiles: EVERY,
        look: |view| match active_tuned(view.root) {
            None => Looked::is(true, "not active", "not active"),
            Some(profile) => Looked::is(
                false,
                format!("active, profile {profile}"),
                "not active, or in charge instead of taut",
            ),
        },
    },
];

/// Returns the active profile of the daemon tuned; `None` if tuned is not active.
pub(super) fn active_tuned(root: &super::Root) -> Option<String> {
    // The daemon runs under its interpreter's name. Its PID file, which exists while it runs, identifies the daemon.
    let number = root.number("/run/tuned/tuned.pid")?;
    if !root.exists(&format!("/proc/{number}")) {
        return None;
    }
    let profile = root.text("/etc/tuned/active_profile").unwrap_or_default();
    (!profile.is_empty()).then_some(profile)
}

fn steal(view: &View) -> Looked {
    const BEARABLE: f64 = 0.0001;
    let stat = view.root.text("/proc/stat").unwrap_or_default();
    let (mut stolen, mut all) = (0_u64, 0_u64);
    for line in stat.lines() {
        let mut words = line.split_whitespace();
        let cpu = words
            .next()
            .and_then(|name| name.strip_prefix("cpu")?.parse().ok());
        if cpu.is_some_and(|cpu: usize| view.cpus.contains(&cpu)) {
            // The fields are user, nice, system, idle, iowait, irq, softirq, steal.
            let times: Vec<u64> = words.take(8).filter_map(|word| word.parse().ok()).collect();
            stolen += times.get(7).copied().unwrap_or(0);
            all += times.iter().sum::<u64>();
        }
    }
    if all == 0 {
        return Looked::unknown("/proc/stat has no line of these CPUs", "none");
    }
    let share = stolen as f64 / all as f64;
    Looked::is(share < BEARABLE, format!("{:.3} %", share * 100.0), "none")
}

fn management_interrupts(view: &View) -> Looked {
    const COUNT_REGISTER: u64 = 0x34;
    let vendor = view
        .machine
        .cpu_vendor
        .as_ref()
        .map_or("", |fact| fact.value.as_str());
    if vendor != "GenuineIntel" {
        return Looked::not_here("only Intel processors count them");
    }
    let wanted = "does not grow";
    let mut counts = Vec::new();
    for cpu in view.cpus {
        let path = format!("/dev/cpu/{cpu}/msr");
        let mut word = [0; 8];
        let Ok(file) = std::fs::File::open(view.root.path(&path)) else {
            return Looked::unknown(format!("needs root and modprobe msr: {path}"), wanted);
        };
        if file.read_exact_at(&mut word, COUNT_REGISTER).is_err() {
            return Looked::unknown(
                format!("{path} has no readable counter (a virtual machine?)"),
                wanted,
            );
        }
        counts.push(u64::from_ne_bytes(word));
    }
    // A count since the reset does not show whether the machine is noisy now, but a count of zero shows that it was
    // quiet.
    let most = counts.iter().max().copied().unwrap_or(0);
    Looked::is(most == 0, format!("{most} since reset"), wanted)
}
