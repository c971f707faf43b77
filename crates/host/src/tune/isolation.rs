//! Settings that keep other tasks off the isolated CPUs.

use super::setting::{Group, LATENCY, Looked, Setting, View};
use super::step::{Format, Step};

/// The name of the control group of the isolated CPUs, which is also the name of its folder.
pub(super) const ISOLATED: &str = "taut";
/// The control group of the tasks that must not run on isolated CPUs, in version 1 of control groups.
const SYSTEM: &str = "taut-system";
/// The folder of the cpuset controller in version 1 of control groups.
pub(super) const V1: &str = "/sys/fs/cgroup/cpuset";
/// The root folder of version 2 of control groups.
pub(super) const V2: &str = "/sys/fs/cgroup";

pub(super) const SETTINGS: &[Setting] = &[
    Setting {
        name: "isolated-cpus",
        group: Group::Isolation,
        what: "CPUs to which the scheduler gives no tasks by itself: a partition of cpusets, or `isolcpus`.",
        cost: "Any other task on the CPU holds a busy loop up for a time slice: milliseconds. Isolation is the first of the three steps \
               that took the largest jitter of a forwarder from 12.5 to 4.8 µs.",
        see: "cat /sys/devices/system/cpu/isolated /sys/fs/cgroup/taut/cpuset.cpus.partition /sys/fs/cgroup/cpuset/taut/cpuset.cpus",
        is_applied: true,
        by_hand: "",
        boot: "isolcpus=managed_irq,domain,CPUS",
        below: "",
        source: "Linux, Documentation/admin-guide/cgroup-v2.rst (cpuset.cpus.partition) and kernel-parameters.txt (isolcpus); \
                 Stylianopoulos et al., DEBS 2020, Figure 3",
        profiles: LATENCY,
        look: isolated,
    },
    Setting {
        name: "tickless",
        group: Group::Isolation,
        what: "CPUs that get no timer tick while a single task runs: `nohz_full`.",
        cost: "A busy CPU is interrupted 100 to 1000 times a second, for 1 to 8 µs each: 5.5 and 8.2 µs at 250 Hz were measured. \
               These interrupts make the p99.99 of a forwarder that is otherwise undisturbed.",
        see: "cat /sys/devices/system/cpu/nohz_full",
        is_applied: false,
        by_hand: "",
        boot: "nohz_full=CPUS (the kernel must be built with CONFIG_NO_HZ_FULL)",
        below: "",
        source: "Linux, Documentation/timers/no_hz.rst; Gallenmüller, dissertation, TU München 2021, section 5.4",
        profiles: LATENCY,
        look: tickless,
    },
    Setting {
        name: "rcu-callbacks",
        group: Group::Isolation,
        what: "CPUs whose RCU callbacks run in threads elsewhere: `rcu_nocbs`.",
        cost: "Otherwise memory that others have freed is cleaned up in soft interrupts of this CPU: bursts of tens of microseconds.",
        see: "tr ' ' '\\n' < /proc/cmdline | grep rcu_nocbs",
        is_applied: false,
        by_hand: "",
        boot: "rcu_nocbs=CPUS rcu_nocb_poll (nohz_full implies the first)",
        below: "",
        source: "Linux, Documentation/admin-guide/kernel-parameters.txt (rcu_nocbs) and kernel-per-CPU-kthreads.rst",
        profiles: LATENCY,
        look: rcu_callbacks,
    },
    Setting {
        name: "rcu-threads",
        group: Group::Isolation,
        what: "Where the threads run that do RCU's work: rcu_preempt, rcuog/N, rcuop/N and their kin.",
        cost: "A thread of them that runs on the CPU takes it for 5 to 50 µs at a time, whatever `rcu_nocbs` has moved to it.",
        see: "ps -eo pid,psr,comm | grep rcu; grep Cpus_allowed_list /proc/PID/status",
        is_applied: false,
        by_hand: "for pid in $(pgrep rcu); do taskset -pc OTHER_CPUS $pid; done (back: the same with all CPUs)",
        boot: "",
        below: "",
        source: "Gallenmüller 2021, section 5.4.3; Linux, Documentation/admin-guide/kernel-per-CPU-kthreads.rst",
        profiles: LATENCY,
        look: rcu_threads,
    },
    Setting {
        name: "hardware-threads",
        group: Group::Isolation,
        what: "Simultaneous multithreading: a second hardware thread on the same core.",
        cost: "The sibling takes execution units, caches and memory bandwidth of the core by turns of nanoseconds: latency depends on what \
               runs there. Turning threads off takes CPUs away from cpusets and interrupts, which is not undone exactly, so `taut tune \
               apply` leaves it to you.",
        see: "cat /sys/devices/system/cpu/smt/control /sys/devices/system/cpu/cpu1/topology/thread_siblings_list",
        is_applied: false,
        by_hand: "echo off > /sys/devices/system/cpu/smt/control (back: echo on); or leave the siblings idle",
        boot: "nosmt",
        below: "BIOS: Hyper-Threading or SMT off",
        source: "Gallenmüller 2021, section 5.4; Linux, Documentation/ABI/testing/sysfs-devices-system-cpu (smt/control)",
        profiles: LATENCY,
        look: hardware_threads,
    },
];

fn isolated(view: &View) -> Looked {
    let wanted = format!("CPU {} isolated", view.list());
    let booted = view.cpus_in("/sys/devices/system/cpu/isolated");
    let covers = booted.as_ref().is_some_and(|set| view.cpus.is_subset(set));
    let argument = [format!("isolcpus=managed_irq,domain,{}", view.list())];
    let group = partition(view);
    let held = group.as_ref().is_some_and(|steps| {
        // Only the groups are checked, because tasks start and exit all the time: if the groups exist, so does taut's
        // partition.
        let groups = steps
            .iter()
            .filter(|step| matches!(step, Step::Group { .. }));
        groups.clone().count() > 0 && groups.into_iter().all(|step| step.is_done(view.root))
    });
    let now = match &booted {
        _ if held => "a partition of cpusets".to_owned(),
        Some(set) if !set.is_empty() => format!("CPU {}", crate::cpu_list::format_cpu_list(set)),
        _ => "none".to_owned(),
    };
    let looked = Looked::is(covers || held, now, wanted).boot(argument);
    match group {
        Some(steps) => looked.steps(steps),
        None => looked,
    }
}

/// Returns the steps that create a partition of cpusets, in the version of control groups that has cpusets on this
/// machine; `None` if neither version has them.
fn partition(view: &View) -> Option<Vec<Step>> {
    let root = view.root;
    if root.exists(&format!("{V1}/cpuset.sched_load_balance")) {
        let mems = root.text(&format!("{V1}/cpuset.mems"))?;
        let group = |name: &str, cpus: String, balanced: &str| Step::Group {
            path: format!("{V1}/{name}"),
            settings: vec![
                ("cpuset.cpus".to_owned(), cpus),
                ("cpuset.mems".to_owned(), mems.clone()),
                ("cpuset.sched_load_balance".to_owned(), balanced.to_owned()),
            ],
        };
        return Some(vec![
            group(SYSTEM, view.system_list(), "1"),
            group(ISOLATED, view.list(), "0"),
            Step::write(format!("{V1}/cpuset.sched_load_balance"), "0"),
            Step::Tasks {
                from: format!("{V1}/tasks"),
                to: format!("{V1}/{SYSTEM}/tasks"),
            },
        ]);
    }
    let controllers = root.text(&format!("{V2}/cgroup.controllers"))?;
    if !controllers.split_whitespace().any(|name| name == "cpuset") {
        return None;
    }
    Some(vec![
        Step::formatted(
            format!("{V2}/cgroup.subtree_control"),
            "+cpuset",
            Format::Switch,
        ),
        Step::Group {
            path: format!("{V2}/{ISOLATED}"),
            settings: vec![
                ("cpuset.cpus".to_owned(), view.list()),
                ("cpuset.cpus.partition".to_owned(), "isolated".to_owned()),
            ],
        },
    ])
}

fn tickless(view: &View) -> Looked {
    let wanted = format!("CPU {}", view.list());
    let arguments = [format!("nohz_full={}", view.list())];
    let Some(set) = view.cpus_in("/sys/devices/system/cpu/nohz_full") else {
        let hz = view.machine.timer_hz.as_ref();
        let ticks = hz.map_or_else(String::new, |hz| {
            format!(": {} ticks a second stay", hz.value)
        });
        return Looked::not_here(&format!("kernel without CONFIG_NO_HZ_FULL{ticks}"));
    };
    let now = match set.is_empty() {
        true => "none".to_owned(),
        false => format!("CPU {}", crate::cpu_list::format_cpu_list(&set)),
    };
    Looked::is(view.cpus.is_subset(&set), now, wanted).boot(arguments)
}

fn rcu_callbacks(view: &View) -> Looked {
    if view.configured("CONFIG_RCU_NOCB_CPU") == Some(false) {
        return Looked::not_here("kernel without CONFIG_RCU_NOCB_CPU");
    }
    let wanted = format!("off CPU {}", view.list());
    let covered = |value: String| {
        value == "all"
            || crate::cpu_list::parse_cpu_list(&value).is_some_and(|set| view.cpus.is_subset(&set))
    };
    let off = ["rcu_nocbs", "nohz_full"]
        .iter()
        .any(|name| view.argument(name).is_some_and(covered))
        || view.configured("CONFIG_RCU_NOCB_CPU_DEFAULT_ALL") == Some(true);
    let now = if off { "elsewhere" } else { "on every CPU" };
    Looked::is(off, now, wanted).boot([
        format!("rcu_nocbs={}", view.list()),
        "rcu_nocb_poll".to_owned(),
    ])
}

fn rcu_threads(view: &View) -> Looked {
    let may_run_here = view.processes().filter(|(pid, name)| {
        let status = || view.root.text(&format!("/proc/{pid}/status"));
        let allowed = |text: String| {
            let list = text
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
            crate::cpu_list::parse_cpu_list(list.trim())
        };
        name.starts_with("rcu")
            && status()
                .and_then(allowed)
                .is_some_and(|cpus| !cpus.is_disjoint(view.cpus))
    });
    // The threads `rcuc/N` are bound to their CPUs and cannot be moved.
    let movable = may_run_here.filter(|(_, name)| !name.starts_with("rcuc/"));
    let names: Vec<String> = movable.map(|(_, name)| name).collect();
    let now = match names.as_slice() {
        [] => "elsewhere".to_owned(),
        [only] => format!("{only} may run there"),
        [first, ..] => format!("{} may run there, such as {first}", names.len()),
    };
    Looked::is(names.is_empty(), now, format!("off CPU {}", view.list()))
}

fn hardware_threads(view: &View) -> Looked {
    let Some(control) = view.root.text("/sys/devices/system/cpu/smt/control") else {
        return Looked::not_here("no /sys/devices/system/cpu/smt");
    };
    if control.starts_with("not") {
        return Looked::not_here("one hardware thread in a core, as far as this machine shows");
    }
    let alone = view
        .folders("topology/thread_siblings_list")
        .iter()
        .all(|path| view.cpus_in(path).is_none_or(|set| set.len() < 2));
    Looked::is(alone, control, "off, or siblings idle").boot(["nosmt"])
}

/// Returns the file to which a task is written to join the partition that `taut tune apply` created, if `cpu` is in it.
pub(super) fn entrance(root: &super::Root, cpu: usize) -> Option<String> {
    [(V1, "tasks"), (V2, "cgroup.procs")]
        .iter()
        .find_map(|(hierarchy, file)| {
            let group = format!("{hierarchy}/{ISOLATED}");
            let cpus =
                crate::cpu_list::parse_cpu_list(&root.text(&format!("{group}/cpuset.cpus"))?)?;
            cpus.contains(&cpu).then(|| format!("{group}/{file}"))
        })
}
