//! Settings of priorities, preemption, clocks, and mitigations.

use super::setting::{EVERY, Group, LATENCY, Looked, Setting, View};
use super::step::{Step, chosen};

pub(super) const SETTINGS: &[Setting] = &[
    Setting {
        name: "real-time-throttling",
        group: Group::Scheduler,
        what: "How much of each second tasks of real-time priority may have: 95 % by default.",
        cost: "A loop that polls at real-time priority is stopped for 50 ms in every second. Without the limit such a loop never lets \
               anything else run on its CPU: only for CPUs that nothing else needs.",
        see: "cat /proc/sys/kernel/sched_rt_runtime_us",
        is_applied: true,
        by_hand: "",
        boot: "",
        below: "",
        source: "Linux, Documentation/scheduler/sched-rt-group.rst",
        profiles: LATENCY,
        look: |view| view.number("/proc/sys/kernel/sched_rt_runtime_us", -1),
    },
    Setting {
        name: "preemption",
        group: Group::Scheduler,
        what: "Where the kernel can be interrupted by a task that has become urgent: PREEMPT_RT, full, lazy, voluntary, none.",
        cost: "Without preemption a system call of another task delays the wake-up of a receiver by up to milliseconds. A loop that polls \
               alone on its CPU does not wake, and is not concerned.",
        see: "uname -v; cat /sys/kernel/realtime /sys/kernel/debug/sched/preempt",
        is_applied: true,
        by_hand: "",
        boot: "preempt=full (kernels with CONFIG_PREEMPT_DYNAMIC)",
        below: "",
        source: "Linux, Documentation/admin-guide/kernel-parameters.txt (preempt=); Gallenmüller 2021, section 5.4",
        profiles: LATENCY,
        look: preemption,
    },
    Setting {
        name: "clock-source",
        group: Group::Scheduler,
        what: "What the kernel reads the time from.",
        cost: "`hpet` and `acpi_pm` take a microsecond for each reading and a system call; the time-stamp counter takes 20 ns and none.",
        see: "cat /sys/devices/system/clocksource/clocksource0/current_clocksource",
        is_applied: true,
        by_hand: "",
        boot: "tsc=reliable (if you know that it is)",
        below: "On the host of a virtual machine: show it an invariant time-stamp counter",
        source: "Linux, Documentation/admin-guide/kernel-parameters.txt (clocksource=, tsc=)",
        profiles: EVERY,
        look: clock_source,
    },
    Setting {
        name: "mitigations",
        group: Group::Scheduler,
        what: "What the kernel does against leaks through speculation.",
        cost: "System calls, interrupts and context switches take up to twice as long; a loop that polls in user space pays nothing. \
               Turning them off trades security for that: only where nobody else's code runs.",
        see: "grep . /sys/devices/system/cpu/vulnerabilities/*",
        is_applied: false,
        by_hand: "",
        boot: "mitigations=off (your decision: never proposed by taut tune apply --boot)",
        below: "",
        source: "Linux, Documentation/admin-guide/hw-vuln/index.rst",
        profiles: LATENCY,
        look: mitigations,
    },
];

fn preemption(view: &View) -> Looked {
    let wanted = "real-time or full";
    if view.root.number("/sys/kernel/realtime") == Some(1) {
        return Looked::is(true, "real-time (PREEMPT_RT)", wanted);
    }
    let version = view
        .machine
        .kernel_version
        .as_ref()
        .map_or("", |fact| fact.value.as_str());
    let path = "/sys/kernel/debug/sched/preempt";
    if let Some(text) = view.root.text(path) {
        let now = chosen(&text);
        return Looked::is(now == "full", now, wanted)
            .steps(vec![Step::write(path, "full")])
            .boot(["preempt=full"]);
    }
    let dynamic = version.contains("PREEMPT_DYNAMIC");
    if let Some(chosen) = dynamic.then(|| view.argument("preempt")).flatten() {
        return Looked::is(chosen == "full", chosen, wanted).boot(["preempt=full"]);
    }
    if dynamic {
        // If nothing else selects a preemption mode, that of the kernel's build configuration applies.
        let built = [
            ("CONFIG_PREEMPT_NONE", "none"),
            ("CONFIG_PREEMPT_VOLUNTARY", "voluntary"),
            ("CONFIG_PREEMPT_LAZY", "lazy"),
            ("CONFIG_PREEMPT", "full"),
        ];
        let built = built
            .iter()
            .find(|(option, _)| view.configured(option) == Some(true));
        return match built {
            Some((_, now)) => Looked::is(
                *now == "full",
                format!("{now}, by the kernel's default"),
                wanted,
            ),
            None => Looked::unknown(
                "dynamic; as root with debugfs: /sys/kernel/debug/sched/preempt",
                wanted,
            ),
        }
        .boot(["preempt=full"]);
    }
    if version.is_empty() {
        return Looked::unknown("no /proc/sys/kernel/version", wanted);
    }
    let full = version.contains("PREEMPT");
    Looked::is(
        full,
        if full { "full" } else { "none or voluntary" },
        wanted,
    )
}

fn clock_source(view: &View) -> Looked {
    let folder = "/sys/devices/system/clocksource/clocksource0";
    let path = format!("{folder}/current_clocksource");
    let Some(now) = view.root.text(&path) else {
        return Looked::not_here(&format!("no {path}"));
    };
    let available = view
        .root
        .text(&format!("{folder}/available_clocksource"))
        .unwrap_or_default();
    let has = |name: &str| available.split_whitespace().any(|word| word == name);
    let good = [
        "tsc",
        "kvm-clock",
        "arch_sys_counter",
        "hyperv_clocksource_tsc_page",
    ];
    let best = good.into_iter().find(|name| has(name));
    Looked::is(good.contains(&now.as_str()), now, "tsc").steps(
        best.map(|name| Step::write(path, name))
            .into_iter()
            .collect(),
    )
}

fn mitigations(view: &View) -> Looked {
    let all = &view.machine.mitigations;
    if all.is_empty() {
        return Looked::unknown(
            "no /sys/devices/system/cpu/vulnerabilities",
            "your decision",
        );
    }
    let active = all
        .iter()
        .filter(|(_, state)| state.starts_with("Mitigation"));
    let names: Vec<&str> = active.map(|(name, _)| name.as_str()).collect();
    let now = match names.len() {
        0 => "none active".to_owned(),
        _ => format!("active: {}", names.join(", ")),
    };
    Looked::is(true, now, "your decision")
}
