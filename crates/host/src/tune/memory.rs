//! Settings of pages, caches and NUMA nodes.

use super::setting::{EVERY, FULL_SPEED, Group, LATENCY, Looked, Setting, View};
use super::step::{Step, chosen};

pub(super) const SETTINGS: &[Setting] = &[
    Setting {
        name: "huge-pages",
        group: Group::Memory,
        what: "Pages of 2 MiB or 1 GiB set aside for packet memory.",
        cost: "With pages of 4 KiB a pool of packets needs thousands of entries in the translation cache, and misses cost tens of cycles a \
               packet. DPDK does not start without huge pages. How many are needed depends on the program, so `taut tune apply` sets none.",
        see: "grep Huge /proc/meminfo",
        is_applied: false,
        by_hand: "echo 256 > /proc/sys/vm/nr_hugepages (back: echo 0)",
        boot: "hugepages=256, or default_hugepagesz=1G hugepagesz=1G hugepages=4",
        below: "",
        source: "Linux, Documentation/admin-guide/mm/hugetlbpage.rst; DPDK, Getting Started Guide for Linux, section 2.3",
        profiles: EVERY,
        look: huge_pages,
    },
    Setting {
        name: "transparent-huge-pages",
        group: Group::Memory,
        what: "Whether the kernel makes huge pages by itself, for programs that did not ask.",
        cost: "With `always`, a page fault may stop a program while memory is compacted, for a millisecond and more; khugepaged changes \
               pages under running programs.",
        see: "cat /sys/kernel/mm/transparent_hugepage/enabled",
        is_applied: true,
        by_hand: "",
        boot: "transparent_hugepage=madvise",
        below: "",
        source: "Linux, Documentation/admin-guide/mm/transhuge.rst",
        profiles: LATENCY,
        look: transparent,
    },
    Setting {
        name: "huge-page-defragmentation",
        group: Group::Memory,
        what: "Whether khugepaged compacts memory to make huge pages.",
        cost: "Pages move while programs use them: every CPU is interrupted to forget their old place.",
        see: "cat /sys/kernel/mm/transparent_hugepage/khugepaged/defrag",
        is_applied: true,
        by_hand: "",
        boot: "transparent_hugepage=never",
        below: "",
        source: "Linux, Documentation/admin-guide/mm/transhuge.rst (khugepaged)",
        profiles: LATENCY,
        look: |view| view.number("/sys/kernel/mm/transparent_hugepage/khugepaged/defrag", 0),
    },
    Setting {
        name: "memory-compaction",
        group: Group::Memory,
        what: "How eagerly the kernel compacts memory ahead of need.",
        cost: "Pages move while programs use them: every CPU that may know their old place is interrupted.",
        see: "cat /proc/sys/vm/compaction_proactiveness",
        is_applied: true,
        by_hand: "",
        boot: "",
        below: "",
        source: "Linux, Documentation/admin-guide/sysctl/vm.rst (compaction_proactiveness)",
        profiles: LATENCY,
        look: |view| view.number("/proc/sys/vm/compaction_proactiveness", 0),
    },
    Setting {
        name: "same-page-merging",
        group: Group::Memory,
        what: "KSM: the kernel looks for equal pages and merges them.",
        cost: "Writing to a merged page faults and copies; each merge interrupts CPUs to forget the page's old place.",
        see: "cat /sys/kernel/mm/ksm/run",
        is_applied: true,
        by_hand: "",
        boot: "",
        below: "On the host of a virtual machine: KSM off",
        source: "Linux, Documentation/admin-guide/mm/ksm.rst",
        profiles: FULL_SPEED,
        look: |view| view.number_where("/sys/kernel/mm/ksm/run", 0, |now| now != 1),
    },
    Setting {
        name: "swappiness",
        group: Group::Memory,
        what: "How readily the kernel swaps out pages of programs to keep files in memory.",
        cost: "A page that was swapped out costs milliseconds when it is touched again. Packet memory of taut is locked; code and stacks \
               of other programs are not.",
        see: "cat /proc/sys/vm/swappiness; swapon --show",
        is_applied: true,
        by_hand: "",
        boot: "",
        below: "",
        source: "Linux, Documentation/admin-guide/sysctl/vm.rst (swappiness); tuned's profile cpu-partitioning",
        profiles: LATENCY,
        look: |view| view.number_where("/proc/sys/vm/swappiness", 10, |now| now <= 10),
    },
    Setting {
        name: "automatic-numa-balancing",
        group: Group::Memory,
        what: "Whether the kernel moves pages to the memory node that uses them.",
        cost: "It unmaps pages from time to time to see who touches them: page faults in the middle of a busy loop, and pages that move.",
        see: "cat /proc/sys/kernel/numa_balancing",
        is_applied: true,
        by_hand: "",
        boot: "numa_balancing=disable",
        below: "",
        source: "Linux, Documentation/admin-guide/sysctl/kernel.rst (numa_balancing)",
        profiles: FULL_SPEED,
        look: |view| {
            view.number("/proc/sys/kernel/numa_balancing", 0)
                .boot(["numa_balancing=disable"])
        },
    },
    Setting {
        name: "cache-partition",
        group: Group::Memory,
        what: "A part of the last-level cache for the CPUs alone (resctrl: Intel CAT, AMD QoS).",
        cost: "Other cores evict the working set; each line that is gone costs a read from memory, some 100 ns. A partition of 4 of 6 MB was \
               part of the set-up with which latencies of a virtual machine came near those of bare metal.",
        see: "cat /sys/fs/resctrl/schemata",
        is_applied: false,
        by_hand: "mount -t resctrl resctrl /sys/fs/resctrl; mkdir /sys/fs/resctrl/taut; write cpus_list and schemata there (back: rmdir, umount)",
        boot: "",
        below: "",
        source: "Linux, Documentation/filesystems/resctrl.rst; Gallenmüller 2021, section 5.4",
        profiles: LATENCY,
        look: cache_partition,
    },
];

fn huge_pages(view: &View) -> Looked {
    let sizes = &view.machine.huge_pages;
    if sizes.is_empty() {
        return Looked::not_here("no /sys/kernel/mm/hugepages");
    }
    let some: Vec<String> = sizes
        .iter()
        .filter(|size| size.total > 0)
        .map(|size| {
            format!(
                "{} of {} MiB, {} free",
                size.total,
                size.page_bytes >> 20,
                size.free
            )
        })
        .collect();
    let now = if some.is_empty() {
        "none".to_owned()
    } else {
        some.join("; ")
    };
    Looked::is(!some.is_empty(), now, "some").boot(if some.is_empty() {
        vec!["hugepages=256"]
    } else {
        vec![]
    })
}

fn transparent(view: &View) -> Looked {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let Some(text) = view.root.text(path) else {
        return Looked::not_here(&format!("no {path}"));
    };
    let now = chosen(&text);
    Looked::is(now != "always", now, "madvise or never")
        .steps(vec![Step::write(path, "madvise")])
        .boot(["transparent_hugepage=madvise"])
}

fn cache_partition(view: &View) -> Looked {
    let folder = "/sys/fs/resctrl";
    if view.root.exists(&format!("{folder}/schemata")) {
        let groups = view.root.names(folder);
        let mine = groups.iter().find(|name| {
            view.cpus_in(&format!("{folder}/{name}/cpus_list"))
                .is_some_and(|set| view.cpus.is_subset(&set))
        });
        let now = mine.map_or_else(
            || "shared by all".to_owned(),
            |name| format!("group {name}"),
        );
        return Looked::is(mine.is_some(), now, "a group with these CPUs");
    }
    let flags = view.root.text("/proc/cpuinfo").unwrap_or_default();
    let can = flags
        .lines()
        .find(|line| line.starts_with("flags"))
        .is_some_and(|line| line.split_whitespace().any(|flag| flag == "cat_l3"));
    match can {
        true => Looked::is(false, "resctrl not mounted", "a group with these CPUs"),
        false => {
            Looked::not_here("no cache allocation in this processor, as far as this machine shows")
        }
    }
}
