//! Settings that keep interrupts and the kernel's own work off the isolated CPUs.

use super::setting::{Group, LATENCY, Looked, QUIET, Setting, View};
use super::step::{Format, Step, pause, tally};
use crate::cpu_list::{mask_cpus, parse_cpu_list};

pub(super) const SETTINGS: &[Setting] = &[
    Setting {
        name: "irq-affinity",
        group: Group::Interrupts,
        what: "The CPUs that serve the interrupts of devices.",
        cost: "Each interrupt takes 1 to 10 µs from whatever runs, and its soft interrupt more. Moving them off the measuring core is the \
               second of the three steps that took the largest jitter of a forwarder from 12.5 to 4.8 µs. Interrupts that the kernel manages \
               itself (queues of NVMe disks, some network cards) refuse, and stay.",
        see: "grep . /proc/irq/*/smp_affinity_list; cat /proc/interrupts",
        is_applied: true,
        by_hand: "",
        boot: "irqaffinity=OTHER-CPUS; for managed ones isolcpus=managed_irq,domain,CPUS",
        below: "",
        source: "Linux, Documentation/core-api/irq/irq-affinity.rst; Stylianopoulos et al., DEBS 2020, Figure 3",
        profiles: QUIET,
        look: affinity,
    },
    Setting {
        name: "default-irq-affinity",
        group: Group::Interrupts,
        what: "The CPUs that serve interrupts of devices that come later.",
        cost: "A device that appears (a hot plug, a driver that is loaded, an interface that is brought up) would interrupt the CPU again.",
        see: "cat /proc/irq/default_smp_affinity",
        is_applied: true,
        by_hand: "",
        boot: "irqaffinity=OTHER-CPUS",
        below: "",
        source: "Linux, Documentation/core-api/irq/irq-affinity.rst",
        profiles: QUIET,
        look: default_affinity,
    },
    Setting {
        name: "irqbalance",
        group: Group::Interrupts,
        what: "The daemon that moves interrupts between CPUs every ten seconds.",
        cost: "It moves interrupts back onto the CPU, unless that is isolated at boot or banned.",
        see: "systemctl is-active irqbalance; ps -o stat= -C irqbalance (T: it stands still)",
        is_applied: true,
        by_hand: "",
        boot: "",
        below: "",
        source: "irqbalance(1); Stylianopoulos et al., DEBS 2020, section on tuning",
        profiles: QUIET,
        look: irqbalance,
    },
    Setting {
        name: "workqueues",
        group: Group::Interrupts,
        what: "The CPUs on which deferred work of the kernel runs that is bound to none.",
        cost: "Writeback, network and driver work run as kernel threads on the CPU and preempt an ordinary busy loop for 5 to 100 µs.",
        see: "cat /sys/devices/virtual/workqueue/cpumask",
        is_applied: true,
        by_hand: "",
        boot: "workqueue.unbound_cpus=OTHER-CPUS (implied by isolcpus=domain)",
        below: "",
        source: "Linux, Documentation/core-api/workqueue.rst and admin-guide/kernel-per-CPU-kthreads.rst",
        profiles: QUIET,
        look: workqueues,
    },
    Setting {
        name: "timer-migration",
        group: Group::Interrupts,
        what: "Whether timers of idle CPUs move to busy ones.",
        cost: "A CPU that polls is never idle, so the kernel gives it the timers of idle CPUs, and with them further interrupts.",
        see: "cat /proc/sys/kernel/timer_migration",
        is_applied: true,
        by_hand: "",
        boot: "",
        below: "",
        source: "Linux, Documentation/admin-guide/kernel-per-CPU-kthreads.rst; tuned's profile cpu-partitioning",
        profiles: LATENCY,
        look: |view| view.number("/proc/sys/kernel/timer_migration", 0),
    },
    Setting {
        name: "hard-lockup-watchdog",
        group: Group::Interrupts,
        what: "The watchdog that looks by a non-maskable interrupt whether a CPU is stuck.",
        cost: "A non-maskable interrupt every few seconds, and a performance counter that profilers then lack.",
        see: "cat /proc/sys/kernel/nmi_watchdog",
        is_applied: true,
        by_hand: "",
        boot: "nmi_watchdog=0",
        below: "",
        source: "Linux, Documentation/admin-guide/lockup-watchdogs.rst",
        profiles: LATENCY,
        look: |view| {
            view.number("/proc/sys/kernel/nmi_watchdog", 0)
                .boot(["nmi_watchdog=0"])
        },
    },
    Setting {
        name: "soft-lockup-watchdog",
        group: Group::Interrupts,
        what: "The CPUs on which a thread of highest priority looks whether others still get to run.",
        cost: "A switch to that thread and back every four seconds: some microseconds each.",
        see: "cat /proc/sys/kernel/watchdog /proc/sys/kernel/watchdog_cpumask",
        is_applied: true,
        by_hand: "",
        boot: "nosoftlockup, or watchdog_cpumask by sysctl; nohz_full implies it",
        below: "",
        source: "Linux, Documentation/admin-guide/lockup-watchdogs.rst and sysctl/kernel.rst (watchdog_cpumask)",
        profiles: LATENCY,
        look: soft_lockup,
    },
    Setting {
        name: "memory-statistics",
        group: Group::Interrupts,
        what: "How often every CPU folds its memory statistics into the sums.",
        cost: "Work of some microseconds on each CPU that has touched memory, by default every second.",
        see: "cat /proc/sys/vm/stat_interval",
        is_applied: true,
        by_hand: "",
        boot: "",
        below: "",
        source: "Linux, Documentation/admin-guide/sysctl/vm.rst (stat_interval); tuned's profile cpu-partitioning",
        profiles: LATENCY,
        look: |view| view.number_where("/proc/sys/vm/stat_interval", 120, |now| now >= 10),
    },
    Setting {
        name: "machine-check-poll",
        group: Group::Interrupts,
        what: "How often every CPU asks its hardware for corrected errors.",
        cost: "A timer on each CPU, by default every five minutes: some microseconds then. Errors that are not corrected are still reported.",
        see: "cat /sys/devices/system/machinecheck/machinecheck0/check_interval",
        is_applied: true,
        by_hand: "",
        boot: "mce=ignore_ce",
        below: "",
        source: "Linux, Documentation/arch/x86/x86_64/machinecheck.rst",
        profiles: LATENCY,
        look: |view| {
            let path = "/sys/devices/system/machinecheck/machinecheck0/check_interval";
            view.number(path, 0).boot(["mce=ignore_ce"])
        },
    },
];

fn affinity(view: &View) -> Looked {
    let wanted = format!("CPU {} serves none", view.list());
    let (mut steps, mut here, mut seen, mut secret) = (Vec::new(), 0, 0, false);
    for irq in view.root.names("/proc/irq") {
        if irq.parse::<u32>().is_err() {
            continue;
        }
        let path = format!("/proc/irq/{irq}/smp_affinity");
        secret |= view.root.is_secret(&path);
        let Some(mask) = view.root.text(&path).and_then(|text| mask_cpus(&text)) else {
            continue;
        };
        seen += 1;
        if mask.is_disjoint(view.cpus) {
            continue;
        }
        // The mask may contain several CPUs. If the kernel reports which of them it chose, only that CPU counts.
        let serving = view.cpus_in(&format!("/proc/irq/{irq}/effective_affinity_list"));
        here +=
            usize::from(serving.is_none_or(|set| set.is_empty() || !set.is_disjoint(view.cpus)));
        let left = &mask - view.cpus;
        let left = if left.is_empty() {
            view.system.clone()
        } else {
            left
        };
        let value = crate::cpu_list::mask_of_cpus(&left);
        let value = value.trim_start_matches(['0', ',']);
        steps.push(Step::formatted(path, value, Format::Mask));
    }
    match seen {
        0 if secret => Looked::unknown("only root can read /proc/irq/*/smp_affinity", &wanted),
        0 => Looked::not_here("no /proc/irq"),
        _ => {
            let now = format!(
                "{here} of {seen} interrupts served there, {} may be",
                steps.len()
            );
            Looked::is(steps.is_empty(), now, wanted)
                .steps(steps)
                .boot([format!("irqaffinity={}", view.system_list())])
        }
    }
}

fn masked(view: &View, paths: &[&str]) -> Looked {
    let wanted = format!("CPU {}", view.system_list());
    let files: Vec<_> = paths
        .iter()
        .filter_map(|path| Some((*path, view.root.text(path)?)))
        .collect();
    if files.is_empty() {
        return match view.root.is_secret(paths[0]) {
            true => Looked::unknown(format!("only root can read {}", paths[0]), &wanted),
            false => Looked::not_here(&format!("no {}", paths[0])),
        };
    }
    let quiet = |text: &str| mask_cpus(text).is_some_and(|set| set.is_disjoint(view.cpus));
    let steps = files
        .iter()
        .map(|(path, _)| Step::formatted(*path, view.system_mask(), Format::Mask));
    let now = tally(files.iter().map(|(_, text)| format!("mask {text}")));
    Looked::is(files.iter().all(|(_, text)| quiet(text)), now, wanted).steps(steps.collect())
}

fn default_affinity(view: &View) -> Looked {
    masked(view, &["/proc/irq/default_smp_affinity"])
        .boot([format!("irqaffinity={}", view.system_list())])
}

fn workqueues(view: &View) -> Looked {
    masked(
        view,
        &[
            "/sys/devices/virtual/workqueue/cpumask",
            "/sys/devices/virtual/workqueue/writeback/cpumask",
        ],
    )
}

fn irqbalance(view: &View) -> Looked {
    if !view.runs("irqbalance") {
        return Looked::is(true, "does not run", "does not run");
    }
    let all = view.processes().filter(|(_, name)| name == "irqbalance");
    let pauses: Vec<Step> = all.filter_map(|(pid, _)| pause(view.root, pid)).collect();
    if pauses.is_empty() {
        return Looked::is(true, "stands still", "does not run");
    }
    let banned = view
        .root
        .text("/etc/default/irqbalance")
        .unwrap_or_default();
    let banned = banned.lines().find_map(|line| {
        let value = line.trim().strip_prefix("IRQBALANCE_BANNED_CPULIST=")?;
        parse_cpu_list(value.trim_matches('"'))
    });
    let spared = banned.is_some_and(|set| view.cpus.is_subset(&set));
    let now = if spared {
        "runs, these CPUs banned"
    } else {
        "runs"
    };
    Looked::is(spared, now, "does not run, or CPUs banned").steps(pauses)
}

fn soft_lockup(view: &View) -> Looked {
    let path = "/proc/sys/kernel/watchdog_cpumask";
    let Some(set) = view.cpus_in(path) else {
        return Looked::not_here("kernel without soft lockup detector");
    };
    let off = view.root.number("/proc/sys/kernel/soft_watchdog") == Some(0);
    let now = match off {
        true => "off".to_owned(),
        false => format!("on CPU {}", crate::cpu_list::format_cpu_list(&set)),
    };
    let looked = Looked::is(
        off || set.is_disjoint(view.cpus),
        now,
        format!("not on CPU {}", view.list()),
    );
    looked
        .steps(vec![Step::formatted(
            path,
            view.system_list(),
            Format::List,
        )])
        .boot(["nosoftlockup"])
}
