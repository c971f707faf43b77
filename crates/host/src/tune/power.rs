//! Settings of the CPUs' clock frequency and idle states.

use super::setting::{EVERY, FULL_SPEED, Group, LATENCY, Looked, Profile, Setting, View};
use super::step::{Step, tally};

pub(super) const SETTINGS: &[Setting] = &[
    Setting {
        name: "idle-states",
        group: Group::Power,
        what: "The states into which a CPU falls while it has nothing to do (C-states).",
        cost: "To wake from a deep one takes 50 to 200 µs, and caches may be empty then. In a virtual machine every state that halts goes \
               through the hypervisor, whatever it states. A loop that polls never sleeps; what waits in the kernel does.",
        see: "grep . /sys/devices/system/cpu/cpu1/cpuidle/state*/{name,latency,disable}",
        is_applied: true,
        by_hand: "",
        boot: "intel_idle.max_cstate=0 processor.max_cstate=1",
        below: "BIOS: C-states off",
        source: "Linux, Documentation/admin-guide/pm/cpuidle.rst; Gallenmüller 2021, section 5.4",
        profiles: LATENCY,
        look: idle_states,
    },
    Setting {
        name: "dma-latency",
        group: Group::Power,
        what: "The longest wake-up that any program has asked the kernel for: `/dev/cpu_dma_latency`.",
        cost: "Where nobody asks, every CPU may fall into its deepest idle state, and wakes 50 to 200 µs late. A request lasts only while the program that made it holds the file open, so no command \
               can leave one behind: `taut tune apply` turns the idle states of its CPUs off instead, which lasts.",
        see: "od -A n -t d4 /dev/cpu_dma_latency",
        is_applied: false,
        by_hand: "exec 3> /dev/cpu_dma_latency; printf '\\0\\0\\0\\0' >&3 (holds while this shell lives; back: exec 3>&-)",
        boot: "",
        below: "",
        source: "Linux, Documentation/admin-guide/pm/cpuidle.rst (power management quality of service)",
        profiles: LATENCY,
        look: dma_latency,
    },
    Setting {
        name: "governor",
        group: Group::Power,
        what: "Who chooses the clock frequency of a CPU.",
        cost: "Governors other than `performance` follow the load: the first packets after a pause are processed at a third of the clock, \
               and changing it stops the core for 10 to 100 µs.",
        see: "cat /sys/devices/system/cpu/cpu1/cpufreq/scaling_governor",
        is_applied: true,
        by_hand: "",
        boot: "cpufreq.default_governor=performance",
        below: "On the host of a virtual machine, or BIOS: power profile `performance`",
        source: "Linux, Documentation/admin-guide/pm/cpufreq.rst",
        profiles: EVERY,
        look: governor,
    },
    Setting {
        name: "energy-preference",
        group: Group::Power,
        what: "What the processor itself prefers between speed and power.",
        cost: "With hardware that picks its own clock, anything but `performance` lets it slow down within a millisecond of light load.",
        see: "cat /sys/devices/system/cpu/cpu1/cpufreq/energy_performance_preference",
        is_applied: true,
        by_hand: "",
        boot: "",
        below: "BIOS: energy performance bias",
        source: "Linux, Documentation/admin-guide/pm/intel_pstate.rst and amd-pstate.rst",
        profiles: EVERY,
        look: |view| every_cpu(view, "cpufreq/energy_performance_preference", "performance"),
    },
    Setting {
        name: "turbo",
        group: Group::Power,
        what: "Clock frequencies above the base frequency.",
        cost: "They depend on temperature and on what other cores do, so that latency varies; without them everything is slower. Turned off \
               as the third of the three steps that took the largest jitter of a forwarder from 12.5 to 4.8 µs.",
        see: "cat /sys/devices/system/cpu/intel_pstate/no_turbo /sys/devices/system/cpu/cpufreq/boost",
        is_applied: true,
        by_hand: "",
        boot: "",
        below: "BIOS: Turbo Boost or Core Performance Boost",
        source: "Stylianopoulos et al., DEBS 2020, Figure 3; Linux, Documentation/admin-guide/pm/intel_pstate.rst",
        profiles: FULL_SPEED,
        look: turbo,
    },
];

fn idle_states(view: &View) -> Looked {
    let wanted = "none that sleeps";
    let is_virtual = view.machine.hypervisor.is_some();
    let (mut asleep, mut steps, mut seen) = (Vec::new(), Vec::new(), false);
    for folder in view.folders("cpuidle") {
        for state in view.root.names(&folder) {
            let file = |name: &str| format!("{folder}/{state}/{name}");
            let Some(name) = view.root.text(&file("name")) else {
                continue;
            };
            seen = true;
            let latency_us = view.root.number(&file("latency")).unwrap_or(0);
            if name == "POLL" || !(is_virtual || latency_us > 1) {
                continue;
            }
            steps.push(Step::write(file("disable"), "1"));
            if view.root.number(&file("disable")) != Some(1) {
                asleep.push(format!("{name} ({latency_us} µs)"));
            }
        }
    }
    if !seen {
        return Looked::not_here("no /sys/devices/system/cpu/cpu*/cpuidle");
    }
    let now = match asleep.is_empty() {
        true => "none that sleeps".to_owned(),
        false => tally(asleep.iter().cloned()),
    };
    Looked::is(asleep.is_empty(), now, wanted)
        .steps(steps)
        .boot(["intel_idle.max_cstate=0", "processor.max_cstate=1"])
}

fn dma_latency(view: &View) -> Looked {
    // The value that the kernel reports if there is no request.
    const NOT_ASKED_US: i32 = 2_000_000_000;
    let path = "/dev/cpu_dma_latency";
    let wanted = "0 µs, or idle states off";
    if view.root.is_secret(path) {
        return Looked::unknown(format!("only root can read {path}"), wanted);
    }
    // Reading is harmless: only writing makes a request.
    let Ok(mut bytes) = std::fs::File::open(view.root.path(path)) else {
        return Looked::not_here(&format!("no {path}"));
    };
    let mut word = [0; 4];
    if std::io::Read::read_exact(&mut bytes, &mut word).is_err() {
        return Looked::unknown(format!("{path} cannot be read"), wanted);
    }
    let asked_us = i32::from_ne_bytes(word);
    let awake = matches!(
        idle_states(view).state,
        super::State::Ok | super::State::NotHere
    );
    let now = match asked_us {
        NOT_ASKED_US => "nobody asks".to_owned(),
        _ => format!("{asked_us} µs"),
    };
    let now = if awake {
        format!("{now}; no idle state sleeps")
    } else {
        now
    };
    Looked::is(asked_us == 0 || awake, now, wanted)
}

/// Checks that `file` of each isolated CPU contains `value`.
fn every_cpu(view: &View, file: &str, value: &str) -> Looked {
    let paths = view.folders(file);
    let found: Vec<_> = paths
        .iter()
        .filter_map(|path| view.root.text(path))
        .collect();
    if found.is_empty() {
        return Looked::not_here("the frequency is not this system's to set");
    }
    let steps = paths.iter().filter(|path| view.root.exists(path));
    let steps = steps.map(|path| Step::write(path.clone(), value)).collect();
    Looked::is(found.iter().all(|text| text == value), tally(found), value).steps(steps)
}

fn governor(view: &View) -> Looked {
    every_cpu(view, "cpufreq/scaling_governor", "performance")
        .boot(["cpufreq.default_governor=performance"])
}

fn turbo(view: &View) -> Looked {
    let on = view.profile == Profile::Throughput;
    let word = |on: bool| if on { "on" } else { "off" };
    for (path, on_value) in [
        ("/sys/devices/system/cpu/intel_pstate/no_turbo", 0),
        ("/sys/devices/system/cpu/cpufreq/boost", 1),
    ] {
        if let Some(value) = view.root.number(path) {
            let is_on = value == on_value;
            let wanted = if on { on_value } else { 1 - on_value };
            return Looked::is(is_on == on, word(is_on), word(on))
                .steps(vec![Step::write(path, wanted.to_string())]);
        }
    }
    Looked::not_here("the frequency is not this system's to set")
}
