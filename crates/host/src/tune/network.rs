//! Settings of network interfaces and sockets.

use super::setting::{EVERY, FULL_SPEED, Group, LATENCY, Looked, QUIET, Setting, View};
use super::step::{Format, Step, field, tally};
use crate::command;
use crate::cpu_list::mask_cpus;

pub(super) const SETTINGS: &[Setting] = &[
    Setting {
        name: "receive-steering",
        group: Group::Network,
        what: "RPS: the CPUs to which the kernel hands received packets for protocol work.",
        cost: "Packets of other interfaces are processed on the CPU, in soft interrupts that another core sends: 5 to 50 µs each time.",
        see: "grep . /sys/class/net/*/queues/rx-*/rps_cpus",
        is_applied: true,
        by_hand: "",
        boot: "",
        below: "",
        source: "Linux, Documentation/networking/scaling.rst (RPS)",
        profiles: QUIET,
        look: receive_steering,
    },
    Setting {
        name: "transmit-steering",
        group: Group::Network,
        what: "XPS: which transmit queue a CPU uses.",
        cost: "Without it, or with a queue shared between CPUs, senders on the kernel's interfaces wait for each other's lock. It costs \
               nothing while a CPU does not send through the kernel.",
        see: "grep . /sys/class/net/*/queues/tx-*/xps_cpus",
        is_applied: false,
        by_hand: "echo MASK > /sys/class/net/INTERFACE/queues/tx-N/xps_cpus (back: echo the old mask)",
        boot: "",
        below: "",
        source: "Linux, Documentation/networking/scaling.rst (XPS)",
        profiles: FULL_SPEED,
        look: transmit_steering,
    },
    Setting {
        name: "busy-read",
        group: Group::Network,
        what: "How long a socket that reads polls its device before it sleeps.",
        cost: "A read that sleeps pays for an interrupt and a wake-up: 5 to 30 µs. Polling first costs CPU time instead. Programs that poll \
               memory themselves (memif, DPDK) do not come here.",
        see: "cat /proc/sys/net/core/busy_read",
        is_applied: true,
        by_hand: "",
        boot: "",
        below: "",
        source: "Linux, Documentation/admin-guide/sysctl/net.rst (busy_read) and networking/napi.rst",
        profiles: LATENCY,
        look: |view| view.number_where("/proc/sys/net/core/busy_read", 50, |now| now >= 50),
    },
    Setting {
        name: "busy-poll",
        group: Group::Network,
        what: "How long poll() and select() poll devices before they sleep.",
        cost: "A program that waits in poll() pays for an interrupt and a wake-up: 5 to 30 µs. Polling devices first costs CPU time instead.",
        see: "cat /proc/sys/net/core/busy_poll",
        is_applied: true,
        by_hand: "",
        boot: "",
        below: "",
        source: "Linux, Documentation/admin-guide/sysctl/net.rst (busy_poll)",
        profiles: LATENCY,
        look: |view| view.number_where("/proc/sys/net/core/busy_poll", 50, |now| now >= 50),
    },
    Setting {
        name: "interrupt-coalescing",
        group: Group::Network,
        what: "How long a network card waits for more packets before it interrupts.",
        cost: "That time is added to every packet at low rates: interrupt moderation made a kernel gateway take 230 µs at 100 packets a \
               second, and 40 µs at 10,000. With none, each packet interrupts: the highest rate falls.",
        see: "ethtool -c INTERFACE",
        is_applied: true,
        by_hand: "",
        boot: "",
        below: "",
        source: "ethtool(8); Lange et al., CNSM 2015",
        profiles: LATENCY,
        look: coalescing,
    },
    Setting {
        name: "ring-sizes",
        group: Group::Network,
        what: "How many packets the receive ring of a network card holds.",
        cost: "A long ring hides a device that is too slow behind queueing: 4096 packets at 100 kpkt/s are 41 ms. A short one loses bursts. Most drivers take the link down to change it, so `taut tune apply` does not.",
        see: "ethtool -g INTERFACE",
        is_applied: false,
        by_hand: "ethtool -G INTERFACE rx 512 (back: the value that ethtool -g showed)",
        boot: "",
        below: "",
        source: "ethtool(8)",
        profiles: LATENCY,
        look: rings,
    },
    Setting {
        name: "offloads",
        group: Group::Network,
        what: "LRO and GRO: received packets are put together before the stack sees them.",
        cost: "Packets wait for others of their flow, and a forwarder sends frames that it never received. Segments are cheaper to process \
               in bulk, so throughput wants them on.",
        see: "ethtool -k INTERFACE | grep receive-offload",
        is_applied: true,
        by_hand: "",
        boot: "",
        below: "",
        source: "Linux, Documentation/networking/segmentation-offloads.rst; ethtool(8)",
        profiles: LATENCY,
        look: offloads,
    },
    Setting {
        name: "ipv6-chatter",
        group: Group::Network,
        what: "Whether interfaces speak IPv6 of their own accord.",
        cost: "An interface that comes up looks for duplicate addresses, asks for routers and joins multicast groups, and goes on to: frames \
               that nobody sent are in the way of the measured ones and in their counts. An interface that somebody logs in through by IPv6 has to keep it, so \
               `taut tune apply` leaves it to you.",
        see: "grep . /proc/sys/net/ipv6/conf/*/disable_ipv6",
        is_applied: false,
        by_hand: "sysctl net.ipv6.conf.INTERFACE.disable_ipv6=1 (back: 0) for interfaces that only carry measured traffic",
        boot: "",
        below: "",
        source: "Gallenmüller 2021, section 5.4.3; Linux, Documentation/networking/ip-sysctl.rst (disable_ipv6)",
        profiles: QUIET,
        look: ipv6_chatter,
    },
    Setting {
        name: "numa-placement",
        group: Group::Network,
        what: "Whether network cards hang on the memory node of the CPUs.",
        cost: "Each access across nodes takes some 100 ns more, for descriptors and packets: several times per packet.",
        see: "cat /sys/class/net/*/device/numa_node /sys/devices/system/node/node*/cpulist",
        is_applied: false,
        by_hand: "choose CPUs of the card's node",
        boot: "",
        below: "Put the card into a slot of the other processor",
        source: "DPDK, Getting Started Guide for Linux, section 7; Linux, Documentation/ABI/testing/sysfs-bus-pci (numa_node)",
        profiles: EVERY,
        look: placement,
    },
];

/// Returns the interfaces that belong to a NIC: interfaces that have a device in sysfs.
fn cards(view: &View) -> Vec<String> {
    let mut names = view.root.names("/sys/class/net");
    names.retain(|name| view.root.exists(&format!("/sys/class/net/{name}/device")));
    names
}

/// Returns the paths of `file` for every queue whose name starts with `kind`, of all interfaces.
fn queues(view: &View, kind: &str, file: &str) -> Vec<String> {
    let folders = view.root.names("/sys/class/net");
    let queues = folders.iter().flat_map(|interface| {
        let folder = format!("/sys/class/net/{interface}/queues");
        let mut names = view.root.names(&folder);
        names.retain(|name| name.starts_with(kind));
        names
            .into_iter()
            .map(move |name| format!("{folder}/{name}/{file}"))
    });
    queues
        .filter(|path| view.root.text(path).is_some())
        .collect()
}

fn receive_steering(view: &View) -> Looked {
    let files = queues(view, "rx-", "rps_cpus");
    if files.is_empty() {
        return Looked::not_here("kernel without RPS, or no interface");
    }
    let mut steps = Vec::new();
    for path in &files {
        let mask = view
            .root
            .text(path)
            .and_then(|text| mask_cpus(&text))
            .unwrap_or_default();
        if !mask.is_disjoint(view.cpus) {
            // An empty mask turns steering off, so the other requested CPUs stay in the mask.
            let left = crate::cpu_list::mask_of_cpus(&(&mask - view.cpus));
            steps.push(Step::formatted(path.clone(), left, Format::Mask));
        }
    }
    let now = format!("{} of {} queues steer there", steps.len(), files.len());
    Looked::is(
        steps.is_empty(),
        now,
        format!("none to CPU {}", view.list()),
    )
    .steps(steps)
}

fn ipv6_chatter(view: &View) -> Looked {
    let mut names = view.root.names("/sys/class/net");
    names.retain(|name| name != "lo");
    let off = |name: &String| {
        view.root
            .number(&format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"))
    };
    let known: Vec<i64> = names.iter().filter_map(off).collect();
    if known.is_empty() {
        return Looked::not_here("no interface, or kernel without IPv6");
    }
    let speaking = known.iter().filter(|off| **off == 0).count();
    let now = format!("{speaking} of {} interfaces speak it", known.len());
    Looked::is(speaking == 0, now, "off on those that are measured")
}

fn transmit_steering(view: &View) -> Looked {
    let files = queues(view, "tx-", "xps_cpus");
    if files.is_empty() {
        return Looked::not_here("no interface with several transmit queues");
    }
    let own = view.cpus.iter().all(|cpu| {
        files.iter().any(|path| {
            view.root
                .text(path)
                .and_then(|text| mask_cpus(&text))
                .is_some_and(|mask| mask.contains(cpu))
        })
    });
    let now = if own {
        "a queue for these CPUs"
    } else {
        "no queue chosen for these CPUs"
    };
    Looked::is(own, now, "a queue for these CPUs")
}

/// Returns the output of `ethtool` for every NIC, or the reason why there is none.
fn ethtool(view: &View, option: &str) -> Result<Vec<(String, String)>, Looked> {
    let cards = cards(view);
    if cards.is_empty() {
        return Err(Looked::not_here("no network card"));
    }
    if !view.root.is_machine() {
        return Err(Looked::unknown(
            "ethtool can only read the running machine",
            "",
        ));
    }
    let mut said = Vec::new();
    for card in cards {
        match command::run("ethtool", &[option, &card]) {
            Ok(text) => said.push((card, text)),
            Err(e @ command::CommandError::NotInstalled { .. }) => {
                return Err(Looked::unknown(e.to_string(), ""));
            }
            // The driver does not have this setting.
            Err(_) => {}
        }
    }
    if said.is_empty() {
        return Err(Looked::not_here("no driver has this setting"));
    }
    Ok(said)
}

fn coalescing(view: &View) -> Looked {
    let said = match ethtool(view, "-c") {
        Ok(said) => said,
        Err(looked) => return looked,
    };
    let mut steps = Vec::new();
    let now: Vec<String> = said
        .iter()
        .map(|(card, text)| {
            let adaptive = field(text, "Adaptive RX") == Some("on");
            let wait_us = field(text, "rx-usecs").and_then(|n| n.parse::<u64>().ok());
            if adaptive {
                steps.push(of_card(card, 'c', "adaptive-rx", "Adaptive RX", "off"));
            }
            if wait_us.is_some_and(|wait| adaptive || wait > 0) {
                steps.push(of_card(card, 'c', "rx-usecs", "rx-usecs", "0"));
            }
            match wait_us {
                _ if adaptive => format!("{card} adaptive"),
                Some(wait_us) => format!("{card} {wait_us} µs"),
                None => format!("{card} unknown"),
            }
        })
        .collect();
    Looked::is(steps.is_empty(), tally(now), "0 µs").steps(steps)
}

fn of_card(interface: &str, letter: char, key: &str, shown: &str, value: &str) -> Step {
    Step::Card {
        interface: interface.to_owned(),
        letter,
        key: key.to_owned(),
        shown: shown.to_owned(),
        value: value.to_owned(),
    }
}

fn rings(view: &View) -> Looked {
    const LONG: u64 = 1024;
    let said = match ethtool(view, "-g") {
        Ok(said) => said,
        Err(looked) => return looked,
    };
    let size = |text: &str| field(text, "RX").and_then(|n| n.parse::<u64>().ok());
    let now = said.iter().map(|(card, text)| match size(text) {
        Some(size) => format!("{card} {size}"),
        None => format!("{card} unknown"),
    });
    let good = said
        .iter()
        .all(|(_, text)| size(text).is_none_or(|size| size <= LONG));
    Looked::is(good, tally(now), format!("{LONG} or less"))
}

fn offloads(view: &View) -> Looked {
    let said = match ethtool(view, "-k") {
        Ok(said) => said,
        Err(looked) => return looked,
    };
    let mut steps = Vec::new();
    let now: Vec<String> = said
        .iter()
        .map(|(card, text)| {
            let mut on = Vec::new();
            for (shown, key) in [
                ("generic-receive-offload", "gro"),
                ("large-receive-offload", "lro"),
            ] {
                if field(text, shown) == Some("on") {
                    on.push(key);
                    steps.push(of_card(card, 'k', key, shown, "off"));
                }
            }
            match on.as_slice() {
                [] => format!("{card} off"),
                names => format!("{card} {}", names.join("+")),
            }
        })
        .collect();
    Looked::is(steps.is_empty(), tally(now), "off").steps(steps)
}

fn placement(view: &View) -> Looked {
    let nodes = view
        .machine
        .numa_nodes
        .as_ref()
        .map_or(1, |nodes| nodes.value);
    if nodes < 2 {
        return Looked::not_here("one memory node");
    }
    let mut far = Vec::new();
    for card in cards(view) {
        // The number is negative if the firmware does not report it.
        let node = view
            .root
            .number(&format!("/sys/class/net/{card}/device/numa_node"))
            .unwrap_or(-1);
        let near = view.cpus_in(&format!("/sys/devices/system/node/node{node}/cpulist"));
        if near.is_some_and(|near| !view.cpus.is_subset(&near)) {
            far.push(format!("{card} on node {node}"));
        }
    }
    let now = if far.is_empty() {
        "near".to_owned()
    } else {
        far.join(", ")
    };
    Looked::is(far.is_empty(), now, "CPUs on the card's node")
}
