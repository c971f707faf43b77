//! Facts about the machine on which a result depends, each with the file from which it was read.
//!
//! The host name and the user are omitted, so that a record can be published. A file that is missing or unreadable
//! gives `None` (or an empty list), never an error.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

mod network_card;

pub use network_card::NetworkCard;

use crate::cpu_list::parse_cpu_list;
use crate::permissions::{Capability, effective_capabilities};

/// The file with the list of online CPUs.
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// A fact about the machine, with the file from which it was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact<T> {
    /// The value that was read.
    pub value: T,
    /// The absolute path of the file from which the value was read.
    pub source: String,
}

/// A cache that CPU 0 (or the first online CPU) uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// The level of the cache; level 1 is nearest to the core.
    pub level: u8,
    /// The kind of the cache: `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// The size of this cache, bytes.
    pub size_bytes: u64,
    /// The CPUs that share this cache.
    pub shared_by_cpus: BTreeSet<usize>,
}

/// Huge pages of one size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugePages {
    /// The size of one huge page, bytes.
    pub page_bytes: u64,
    /// The number of huge pages of this size that the kernel has reserved.
    pub total: u64,
    /// The number of reserved huge pages of this size that are unused.
    pub free: u64,
}

/// An idle state (C-state), which a CPU enters when it has no runnable task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleState {
    /// The name that the driver gives the state, such as `C6` or `haltpoll idle`.
    pub name: String,
    /// The time that leaving the state takes, us, as the driver states it.
    pub exit_latency_us: u64,
    /// True if the administrator disabled the idle state.
    pub disabled: bool,
}

/// Facts about the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The model of the first CPU.
    pub cpu_model: Option<Fact<String>>,
    /// The vendor of the first CPU, such as `AuthenticAMD`.
    pub cpu_vendor: Option<Fact<String>>,
    /// The version of the microcode that the first CPU runs, such as `0xd0003f5`.
    pub microcode: Option<Fact<String>>,
    /// The vendor of the machine: `sys_vendor` of DMI.
    pub product_vendor: Option<Fact<String>>,
    /// The vendor's name for the machine.
    pub product_name: Option<Fact<String>>,
    /// The vendor of the mainboard.
    pub board_vendor: Option<Fact<String>>,
    /// The vendor's name for the mainboard.
    pub board_name: Option<Fact<String>>,
    /// The revision of the mainboard.
    pub board_version: Option<Fact<String>>,
    /// The vendor of the machine's firmware.
    pub bios_vendor: Option<Fact<String>>,
    /// The version of the machine's firmware (BIOS).
    pub bios_version: Option<Fact<String>>,
    /// The date of the machine's firmware as its vendor writes it, usually month/day/year.
    pub bios_date: Option<Fact<String>>,
    /// The NICs by interface. A NIC that DPDK uses has no interface; its key is the PCI address.
    pub network_cards: BTreeMap<String, NetworkCard>,
    /// The online CPUs.
    pub online_cpus: Option<Fact<BTreeSet<usize>>>,
    /// The number of physical cores among the online CPUs.
    pub cores: Option<usize>,
    /// The number of hardware threads of the first core.
    pub threads_per_core: Option<Fact<usize>>,
    /// The number of NUMA nodes.
    pub numa_nodes: Option<Fact<usize>>,
    /// The caches of the first online CPU, nearest first.
    pub caches: Vec<Cache>,
    /// The kernel release, such as `6.18.0`.
    pub kernel_release: Option<Fact<String>>,
    /// The kernel's build line, with its preemption model.
    pub kernel_version: Option<Fact<String>>,
    /// The kernel's command line.
    pub kernel_command_line: Option<Fact<String>>,
    /// Timer interrupts per second, as the kernel was configured.
    pub timer_hz: Option<Fact<u32>>,
    /// The memory that the kernel manages, bytes.
    pub memory_bytes: Option<Fact<u64>>,
    /// The hypervisor that this machine runs on, such as `KVM (full)`, `Xen` or `unnamed`; `None` on bare metal.
    pub hypervisor: Option<Fact<String>>,
    /// The kernel's clock source in use, such as `tsc`.
    pub clock_source: Option<Fact<String>>,
    /// The flags of the CPU that make the time-stamp counter reliable as a clock.
    pub tsc_flags: Option<Fact<Vec<String>>>,
    /// Huge pages by size, smallest first.
    pub huge_pages: Vec<HugePages>,
    /// The CPUs to which the scheduler moves no tasks by itself (`isolcpus`).
    pub isolated_cpus: Option<Fact<BTreeSet<usize>>>,
    /// The CPUs that have no periodic timer interrupt while they run a single task (`nohz_full`).
    pub nohz_full_cpus: Option<Fact<BTreeSet<usize>>>,
    /// Simultaneous multithreading: `on`, `off`, `forceoff`, `notsupported`, `notimplemented`.
    pub smt: Option<Fact<String>>,
    /// The frequency governor of the first online CPU; `None` if the frequency cannot be set here.
    pub frequency_governor: Option<Fact<String>>,
    /// True if the CPU may exceed its base frequency.
    pub turbo: Option<Fact<bool>>,
    /// The idle states of the first online CPU, lightest first.
    pub idle_states: Vec<IdleState>,
    /// The kernel's report on each CPU vulnerability, by the vulnerability's name.
    pub mitigations: BTreeMap<String, String>,
    /// The soft limit of lockable memory (RLIMIT_MEMLOCK); `u64::MAX` when unlimited.
    pub memory_lock_limit_bytes: Option<Fact<u64>>,
    /// The effective capabilities of this process, limited to those that packet processing needs.
    pub capabilities: Option<Fact<Vec<Capability>>>,
}

impl Machine {
    /// Reads the facts of this machine. Facts that only NIC drivers know are read by `ethtool`, if it is installed.
    #[must_use]
    pub fn read() -> Self {
        let mut machine = Self::read_under(Path::new("/"));
        for (interface, card) in &mut machine.network_cards {
            card.ask_driver(interface);
        }
        machine
    }

    /// Returns the online CPUs of this machine; an empty set if the kernel does not list them.
    #[must_use]
    pub fn online() -> BTreeSet<usize> {
        let tree = Tree {
            root: Path::new("/"),
        };
        tree.cpus(ONLINE).map(|cpus| cpus.value).unwrap_or_default()
    }

    /// Reads the facts from the tree of `proc`, `sys` and `boot` below `root`.
    #[must_use]
    pub fn read_under(root: &Path) -> Self {
        let tree = Tree { root };
        let dmi = |name: &str| tree.line(&format!("/sys/class/dmi/id/{name}"));
        let online_cpus = tree.cpus(ONLINE);
        let first_cpu = online_cpus
            .as_ref()
            .and_then(|online| online.value.first().copied())
            .unwrap_or(0);
        let cpu = format!("/sys/devices/system/cpu/cpu{first_cpu}");
        let flags = tree.cpu_info("flags");
        Self {
            cpu_model: tree.cpu_info("model name"),
            cpu_vendor: tree.cpu_info("vendor_id"),
            microcode: tree.cpu_info("microcode"),
            product_vendor: dmi("sys_vendor"),
            product_name: dmi("product_name"),
            board_vendor: dmi("board_vendor"),
            board_name: dmi("board_name"),
            board_version: dmi("board_version"),
            bios_vendor: dmi("bios_vendor"),
            bios_version: dmi("bios_version"),
            bios_date: dmi("bios_date"),
            network_cards: tree.network_cards(),
            cores: online_cpus
                .as_ref()
                .and_then(|online| tree.cores(&online.value)),
            threads_per_core: tree
                .cpus(&format!("{cpu}/topology/thread_siblings_list"))
                .map(|siblings| siblings.map(|cpus| cpus.len())),
            online_cpus,
            numa_nodes: tree
                .cpus("/sys/devices/system/node/online")
                .map(|nodes| nodes.map(|nodes| nodes.len())),
            caches: tree.caches(&format!("{cpu}/cache")),
            kernel_release: tree.line("/proc/sys/kernel/osrelease"),
            kernel_version: tree.line("/proc/sys/kernel/version"),
            kernel_command_line: tree.line("/proc/cmdline"),
            timer_hz: tree.timer_hz(),
            memory_bytes: tree.memory_bytes(),
            hypervisor: tree.hypervisor(flags.as_ref()),
            clock_source: tree
                .line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            tsc_flags: flags.map(|flags| flags.map(|flags| tsc_flags(&flags))),
            huge_pages: tree.huge_pages(),
            isolated_cpus: tree.cpus("/sys/devices/system/cpu/isolated"),
            nohz_full_cpus: tree.cpus("/sys/devices/system/cpu/nohz_full"),
            smt: tree.line("/sys/devices/system/cpu/smt/control"),
            frequency_governor: tree.line(&format!("{cpu}/cpufreq/scaling_governor")),
            turbo: tree.turbo(),
            idle_states: tree.idle_states(&format!("{cpu}/cpuidle")),
            mitigations: tree.mitigations(),
            memory_lock_limit_bytes: tree.memory_lock_limit_bytes(),
            capabilities: tree.capabilities(),
        }
    }
}

impl<T> Fact<T> {
    fn map<U>(self, change: impl FnOnce(T) -> U) -> Fact<U> {
        Fact {
            value: change(self.value),
            source: self.source,
        }
    }

    fn and_then<U>(self, change: impl FnOnce(T) -> Option<U>) -> Option<Fact<U>> {
        Some(Fact {
            value: change(self.value)?,
            source: self.source,
        })
    }
}

/// A file tree in which absolute paths are looked up below `root`.
struct Tree<'a> {
    root: &'a Path,
}

impl Tree<'_> {
    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn text(&self, path: &str) -> Option<Fact<String>> {
        let bytes = fs::read(self.path(path)).ok()?;
        Some(Fact {
            value: String::from_utf8_lossy(&bytes).into_owned(),
            source: path.to_owned(),
        })
    }

    /// Returns the text of a one-line file below the root; `None` if it is empty.
    fn line(&self, path: &str) -> Option<Fact<String>> {
        let fact = self.text(path)?.map(|text| text.trim().to_owned());
        (!fact.value.is_empty()).then_some(fact)
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.line(path)?.value.parse().ok()
    }

    fn cpus(&self, path: &str) -> Option<Fact<BTreeSet<usize>>> {
        self.text(path)?.and_then(|text| parse_cpu_list(&text))
    }

    /// Returns the names of the entries in a folder below the root, sorted.
    fn names(&self, path: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.path(path))
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// Returns the value of the first line `key : value` in `/proc/cpuinfo`.
    fn cpu_info(&self, key: &str) -> Option<Fact<String>> {
        self.text("/proc/cpuinfo")?
            .and_then(|text| value_of(&text, key))
    }

    fn cores(&self, online: &BTreeSet<usize>) -> Option<usize> {
        let mut cores = BTreeSet::new();
        for cpu in online {
            let topology = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
            cores.insert((
                self.number(&format!("{topology}/physical_package_id"))?,
                self.number(&format!("{topology}/core_id"))?,
            ));
        }
        (!cores.is_empty()).then_some(cores.len())
    }

    fn caches(&self, folder: &str) -> Vec<Cache> {
        let mut caches: Vec<Cache> = self
            .names(folder)
            .iter()
            .filter(|name| name.starts_with("index"))
            .filter_map(|name| {
                let folder = format!("{folder}/{name}");
                Some(Cache {
                    level: u8::try_from(self.number(&format!("{folder}/level"))?).ok()?,
                    kind: self.line(&format!("{folder}/type"))?.value,
                    size_bytes: size_bytes(&self.line(&format!("{folder}/size"))?.value)?,
                    shared_by_cpus: self.cpus(&format!("{folder}/shared_cpu_list"))?.value,
                })
            })
            .collect();
        caches.sort_by_key(|cache| cache.level);
        caches
    }

    fn timer_hz(&self) -> Option<Fact<u32>> {
        let compressed = "/proc/config.gz";
        if let Ok(file) = fs::File::open(self.path(compressed)) {
            let mut text = String::new();
            flate2::read::GzDecoder::new(file)
                .read_to_string(&mut text)
                .ok()?;
            return Some(Fact {
                value: configured_hz(&text)?,
                source: compressed.to_owned(),
            });
        }
        let release = self.line("/proc/sys/kernel/osrelease")?.value;
        self.text(&format!("/boot/config-{release}"))?
            .and_then(|text| configured_hz(&text))
    }

    fn memory_bytes(&self) -> Option<Fact<u64>> {
        self.text("/proc/meminfo")?.and_then(|text| {
            let total = value_of(&text, "MemTotal")?;
            total
                .strip_suffix("kB")?
                .trim()
                .parse::<u64>()
                .ok()?
                .checked_mul(1024)
        })
    }

    /// Detects the hypervisor, by the most reliable evidence first.
    fn hypervisor(&self, flags: Option<&Fact<String>>) -> Option<Fact<String>> {
        if let Some(kind) = self.line("/sys/hypervisor/type") {
            return Some(kind.map(|kind| match kind.as_str() {
                "xen" => "Xen".to_owned(),
                _ => kind,
            }));
        }
        let flags = flags.filter(|flags| has_word(&flags.value, "hypervisor"))?;
        if let Some(vendor) = self.line("/sys/class/dmi/id/sys_vendor") {
            let named = vendor.and_then(|vendor| {
                [
                    ("VMware", "VMware (full)"),
                    ("Microsoft", "Hyper-V (full)"),
                    ("innotek", "VirtualBox (full)"),
                ]
                .into_iter()
                .find(|(mark, _)| vendor.contains(mark))
                .map(|(_, name)| name.to_owned())
            });
            if named.is_some() {
                return named;
            }
        }
        if let Some(sources) =
            self.line("/sys/devices/system/clocksource/clocksource0/available_clocksource")
            && has_word(&sources.value, "kvm-clock")
        {
            return Some(sources.map(|_| "KVM (full)".to_owned()));
        }
        Some(Fact {
            value: "unnamed".to_owned(),
            source: flags.source.clone(),
        })
    }

    fn huge_pages(&self) -> Vec<HugePages> {
        let folder = "/sys/kernel/mm/hugepages";
        let mut sizes: Vec<HugePages> = self
            .names(folder)
            .iter()
            .filter_map(|name| {
                let size = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
                Some(HugePages {
                    page_bytes: size.parse::<u64>().ok()?.checked_mul(1024)?,
                    total: self.number(&format!("{folder}/{name}/nr_hugepages"))?,
                    free: self.number(&format!("{folder}/{name}/free_hugepages"))?,
                })
            })
            .collect();
        sizes.sort_by_key(|pages| pages.page_bytes);
        sizes
    }

    fn turbo(&self) -> Option<Fact<bool>> {
        let is_one = |text: String| match text.as_str() {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        };
        if let Some(off) = self.line("/sys/devices/system/cpu/intel_pstate/no_turbo") {
            return off.and_then(|text| is_one(text).map(|off| !off));
        }
        self.line("/sys/devices/system/cpu/cpufreq/boost")?
            .and_then(is_one)
    }

    fn idle_states(&self, folder: &str) -> Vec<IdleState> {
        let mut states: Vec<(u32, IdleState)> = self
            .names(folder)
            .iter()
            .filter_map(|name| {
                let state = format!("{folder}/{name}");
                Some((
                    name.strip_prefix("state")?.parse().ok()?,
                    IdleState {
                        name: self.line(&format!("{state}/name"))?.value,
                        exit_latency_us: self.number(&format!("{state}/latency"))?,
                        disabled: self.number(&format!("{state}/disable")) == Some(1),
                    },
                ))
            })
            .collect();
        states.sort_by_key(|(number, _)| *number);
        states.into_iter().map(|(_, state)| state).collect()
    }

    fn mitigations(&self) -> BTreeMap<String, String> {
        let folder = "/sys/devices/system/cpu/vulnerabilities";
        self.names(folder)
            .into_iter()
            .filter_map(|name| {
                let state = self.line(&format!("{folder}/{name}"))?.value;
                Some((name, state))
            })
            .collect()
    }

    fn memory_lock_limit_bytes(&self) -> Option<Fact<u64>> {
        self.text("/proc/self/limits")?.and_then(|text| {
            let soft = text
                .lines()
                .find_map(|line| line.strip_prefix("Max locked memory"))?
                .split_whitespace()
                .next()?;
            match soft {
                "unlimited" => Some(u64::MAX),
                bytes => bytes.parse().ok(),
            }
        })
    }

    fn capabilities(&self) -> Option<Fact<Vec<Capability>>> {
        self.text("/proc/self/status")?.and_then(|text| {
            let mask = effective_capabilities(&text)?;
            Some(
                Capability::ALL
                    .into_iter()
                    .filter(|capability| capability.is_in(mask))
                    .collect(),
            )
        })
    }
}

/// Returns the value of the first line `key : value` in `text`.
fn value_of(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim().to_owned())
    })
}

fn has_word(text: &str, word: &str) -> bool {
    text.split_whitespace().any(|found| found == word)
}

/// Returns the flags that make the time-stamp counter a clock. They mean that its rate is constant, that it runs in
/// idle states, that its frequency is known, and that it can be read together with the CPU's number.
fn tsc_flags(flags: &str) -> Vec<String> {
    [
        "constant_tsc",
        "nonstop_tsc",
        "tsc_known_freq",
        "tsc_reliable",
        "rdtscp",
    ]
    .into_iter()
    .filter(|flag| has_word(flags, flag))
    .map(str::to_owned)
    .collect()
}

/// Parses a size as the kernel writes cache sizes: `32K`, `1M` or plain bytes.
fn size_bytes(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1024),
        b'M' => (&text[..text.len() - 1], 1024 * 1024),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn configured_hz(kernel_configuration: &str) -> Option<u32> {
    kernel_configuration
        .lines()
        .find_map(|line| line.strip_prefix("CONFIG_HZ="))?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Write;
    use tempfile::TempDir;

    fn tree(files: &[(&str, &str)]) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const CPU_INFO: &str = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: A CPU @ 3: fast\n\
        flags\t\t: fpu constant_tsc nonstop_tsc hypervisor rdtscp\n\nprocessor\t: 1\nmodel name\t: other\n";

    #[test]
    fn a_machine_without_proc_and_sys_files_has_no_facts() {
        let root = tree(&[]);
        assert_eq!(Machine::read_under(root.path()), Machine::default());
    }

    #[test]
    fn invalid_proc_and_sys_files_give_no_facts() {
        let root = tree(&[
            ("proc/meminfo", "MemTotal: lots\n"),
            ("proc/config.gz", "not compressed"),
            ("proc/self/limits", "Max locked memory\n"),
            ("sys/devices/system/cpu/online", "x-y\n"),
            ("sys/devices/system/cpu/cpu0/cache/index0/level", "1\n"),
            ("sys/kernel/mm/hugepages/hugepages-zkB/nr_hugepages", "1\n"),
            ("sys/devices/system/cpu/cpufreq/boost", "maybe\n"),
            ("proc/cpuinfo", "\u{0}\n:::\n"),
        ]);
        assert_eq!(Machine::read_under(root.path()), Machine::default());
    }

    #[test]
    fn each_machine_fact_names_the_file_it_was_read_from() {
        let root = tree(&[
            ("proc/cpuinfo", CPU_INFO),
            ("proc/meminfo", "MemTotal:       2048 kB\nMemFree: 1 kB\n"),
        ]);
        let machine = Machine::read_under(root.path());
        assert_eq!(
            machine.cpu_model.unwrap(),
            Fact {
                value: "A CPU @ 3: fast".to_owned(),
                source: "/proc/cpuinfo".to_owned()
            }
        );
        assert_eq!(machine.memory_bytes.unwrap().value, 2048 * 1024);
        assert_eq!(
            machine.tsc_flags.unwrap().value,
            ["constant_tsc", "nonstop_tsc", "rdtscp"]
        );
    }

    #[test]
    fn the_hypervisor_name_comes_from_the_most_reliable_source() {
        let clocks = (
            "sys/devices/system/clocksource/clocksource0/available_clocksource",
            "tsc kvm-clock\n",
        );
        for (files, expected) in [
            (vec![("proc/cpuinfo", CPU_INFO), clocks], Some("KVM (full)")),
            (vec![("proc/cpuinfo", CPU_INFO)], Some("unnamed")),
            (
                vec![
                    ("proc/cpuinfo", CPU_INFO),
                    ("sys/class/dmi/id/sys_vendor", "VMware, Inc.\n"),
                ],
                Some("VMware (full)"),
            ),
            (vec![("sys/hypervisor/type", "xen\n")], Some("Xen")),
            (vec![("proc/cpuinfo", "flags : fpu\n"), clocks], None),
        ] {
            let root = tree(&files);
            let found = Machine::read_under(root.path()).hypervisor;
            assert_eq!(found.map(|fact| fact.value).as_deref(), expected);
        }
    }

    #[test]
    fn timer_rate_is_read_from_config_gz_or_boot_configuration() {
        let text = "# CONFIG_HZ_100 is not set\nCONFIG_HZ_250=y\nCONFIG_HZ=250\n";
        let root = tree(&[
            ("proc/sys/kernel/osrelease", "6.1.0\n"),
            ("boot/config-6.1.0", "CONFIG_HZ=1000\n"),
        ]);
        let plain = Machine::read_under(root.path()).timer_hz.unwrap();
        assert_eq!(
            (plain.value, plain.source.as_str()),
            (1000, "/boot/config-6.1.0")
        );

        let file = fs::File::create(root.path().join("proc/config.gz")).unwrap();
        let mut gzip = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
        gzip.write_all(text.as_bytes()).unwrap();
        gzip.finish().unwrap();
        let compressed = Machine::read_under(root.path()).timer_hz.unwrap();
        assert_eq!(
            (compressed.value, compressed.source.as_str()),
            (250, "/proc/config.gz")
        );
    }

    #[test]
    fn cores_caches_pages_and_idle_states_are_parsed() {
        let cpu = "sys/devices/system/cpu";
        let files: Vec<(String, &str)> = [
            ("online", "0-3\n"),
            ("isolated", "2-3\n"),
            ("smt/control", "on\n"),
            ("intel_pstate/no_turbo", "0\n"),
            ("cpu0/cpufreq/scaling_governor", "powersave\n"),
            ("cpu0/topology/thread_siblings_list", "0,2\n"),
            ("cpu0/cache/index1/level", "2\n"),
            ("cpu0/cache/index1/type", "Unified\n"),
            ("cpu0/cache/index1/size", "1M\n"),
            ("cpu0/cache/index1/shared_cpu_list", "0,2\n"),
            ("cpu0/cache/index0/level", "1\n"),
            ("cpu0/cache/index0/type", "Data\n"),
            ("cpu0/cache/index0/size", "32K\n"),
            ("cpu0/cache/index0/shared_cpu_list", "0\n"),
            ("cpu0/cpuidle/state10/name", "C10\n"),
            ("cpu0/cpuidle/state10/latency", "890\n"),
            ("cpu0/cpuidle/state10/disable", "1\n"),
            ("cpu0/cpuidle/state2/name", "C1\n"),
            ("cpu0/cpuidle/state2/latency", "2\n"),
        ]
        .into_iter()
        .map(|(path, text)| (format!("{cpu}/{path}"), text))
        .chain((0..4).flat_map(|id| {
            [
                (
                    format!("{cpu}/cpu{id}/topology/core_id"),
                    ["0", "1"][id % 2],
                ),
                (format!("{cpu}/cpu{id}/topology/physical_package_id"), "0"),
            ]
        }))
        .chain([
            (
                "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages".to_owned(),
                "512\n",
            ),
            (
                "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages".to_owned(),
                "500\n",
            ),
        ])
        .collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(p, t)| (p.as_str(), *t)).collect();
        let machine = Machine::read_under(tree(&files).path());

        assert_eq!(machine.cores, Some(2));
        assert_eq!(machine.threads_per_core.unwrap().value, 2);
        assert_eq!(machine.isolated_cpus.unwrap().value, BTreeSet::from([2, 3]));
        assert_eq!(machine.smt.unwrap().value, "on");
        assert!(machine.turbo.unwrap().value);
        assert_eq!(machine.frequency_governor.unwrap().value, "powersave");
        let sizes: Vec<_> = machine
            .caches
            .iter()
            .map(|c| (c.level, c.size_bytes))
            .collect();
        assert_eq!(sizes, [(1, 32 << 10), (2, 1 << 20)]);
        let idle: Vec<_> = machine
            .idle_states
            .iter()
            .map(|s| (s.name.as_str(), s.disabled))
            .collect();
        assert_eq!(idle, [("C1", false), ("C10", true)]);
        assert_eq!(
            machine.huge_pages,
            [HugePages {
                page_bytes: 2 << 20,
                total: 512,
                free: 500
            }]
        );
    }

    #[test]
    fn firmware_and_microcode_versions_are_parsed() {
        let root = tree(&[
            (
                "proc/cpuinfo",
                "processor\t: 0\nmicrocode\t: 0xd0003f5\n\nprocessor\t: 1\nmicrocode\t: 0x1\n",
            ),
            ("sys/class/dmi/id/bios_vendor", "Dell Inc.\n"),
            ("sys/class/dmi/id/bios_version", "1.9.2\n"),
            ("sys/class/dmi/id/bios_date", "11/17/2022\n"),
            ("sys/class/dmi/id/board_vendor", "Dell Inc.\n"),
            ("sys/class/dmi/id/board_name", "0PYVT1\n"),
            ("sys/class/dmi/id/board_version", " \n"),
            ("sys/class/dmi/id/product_name", "PowerEdge R750\n"),
            ("sys/class/dmi/id/product_serial", "private\n"),
        ]);
        let machine = Machine::read_under(root.path());
        let value = |fact: &Option<Fact<String>>| {
            fact.as_ref()
                .map(|fact| fact.value.clone())
                .unwrap_or_default()
        };
        assert_eq!(value(&machine.microcode), "0xd0003f5");
        assert_eq!(value(&machine.bios_vendor), "Dell Inc.");
        assert_eq!(value(&machine.bios_date), "11/17/2022");
        assert_eq!(value(&machine.board_name), "0PYVT1");
        assert_eq!(value(&machine.product_name), "PowerEdge R750");
        assert_eq!(machine.board_version, None);
        assert_eq!(
            machine.bios_version.as_ref().unwrap().source,
            "/sys/class/dmi/id/bios_version"
        );
        let text = serde_json::to_string(&machine).unwrap();
        assert!(
            !text.contains("private"),
            "numbers that name one machine are left out: {text}"
        );
    }

    #[test]
    fn limits_and_capabilities_of_the_process_are_parsed() {
        for (soft, expected) in [("8388608", 8_388_608), ("unlimited", u64::MAX)] {
            let limits = format!("Max locked memory         {soft}   unlimited   bytes\n");
            let root = tree(&[
                ("proc/self/limits", &limits),
                ("proc/self/status", "CapEff:\t0000000000800000\n"),
            ]);
            let machine = Machine::read_under(root.path());
            assert_eq!(machine.memory_lock_limit_bytes.unwrap().value, expected);
            assert_eq!(machine.capabilities.unwrap().value, [Capability::SysNice]);
        }
    }

    #[test]
    fn machine_facts_are_unchanged_after_conversion_to_json_and_back() {
        let machine = Machine::read();
        assert!(machine.kernel_release.is_some());
        let text = serde_json::to_string(&machine).unwrap();
        assert_eq!(serde_json::from_str::<Machine>(&text).unwrap(), machine);
    }
}
