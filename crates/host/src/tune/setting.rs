//! Settings of the machine, the data that they are checked against, and the findings about them.

use std::collections::BTreeSet;
use std::fmt::{self, Display};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::root::Root;
use super::step::Step;
use crate::cpu_list::{format_cpu_list, mask_of_cpus, parse_cpu_list};
use crate::machine::Machine;

/// The goal for which a machine is tuned, such as short latencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// The shortest tail latency on the given CPUs, at any cost in power, memory and speed of other CPUs.
    Latency,
    /// The most work per time: full clock frequency and no background work of the kernel; tails may stay long.
    Throughput,
    /// Little noise on the given CPUs without harm to other users of the machine.
    Shared,
}

/// All profiles, for settings that affect each of them.
pub(super) const EVERY: &[Profile] = &[Profile::Latency, Profile::Throughput, Profile::Shared];
pub(super) const LATENCY: &[Profile] = &[Profile::Latency];
pub(super) const QUIET: &[Profile] = &[Profile::Latency, Profile::Shared];
pub(super) const FULL_SPEED: &[Profile] = &[Profile::Latency, Profile::Throughput];

/// A family of settings; `apply` changes all settings of a group or none.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// Settings that keep other tasks off the isolated CPUs.
    Isolation,
    /// Settings that keep interrupts and the kernel's own work off the isolated CPUs.
    Interrupts,
    /// Settings of clock frequency and idle states.
    Power,
    /// Settings of pages and caches.
    Memory,
    /// Settings of priorities, preemption and clocks.
    Scheduler,
    /// Settings of network interfaces and sockets.
    Network,
    /// Settings below the operating system, and of other programs that tune the machine.
    Platform,
}

impl Group {
    /// All groups, in the order in which they are applied. Tasks are moved first, because some settings move with the
    /// tasks.
    pub const ALL: [Self; 7] = [
        Self::Isolation,
        Self::Interrupts,
        Self::Power,
        Self::Memory,
        Self::Scheduler,
        Self::Network,
        Self::Platform,
    ];
}

impl Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Isolation => "isolation",
            Self::Interrupts => "interrupts",
            Self::Power => "power",
            Self::Memory => "memory",
            Self::Scheduler => "scheduler",
            Self::Network => "network",
            Self::Platform => "platform",
        })
    }
}

/// The state of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// The setting has the value that the profile requires, or the profile does not depend on the setting.
    Ok,
    /// The setting costs latency or speed in this profile.
    Bad,
    /// The setting could not be read.
    Unknown,
    /// The setting does not exist on this machine.
    NotHere,
}

impl Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Bad => "improve",
            Self::Unknown => "unknown",
            Self::NotHere => "not here",
        })
    }
}

/// Settings by their effect on latency, largest first: those that delay packets longest and most often. Other settings
/// follow in the order of the audit.
pub(super) const BY_EFFECT: &[&str] = &[
    // These settings delay packets by up to milliseconds, or at each pause of the traffic.
    "governor",
    "idle-states",
    "isolated-cpus",
    "real-time-throttling",
    "virtual-machine",
    "steal-time",
    "system-management-interrupts",
    // These settings delay packets by microseconds to tens of microseconds, many times a second.
    "irq-affinity",
    "irqbalance",
    "tickless",
    "hardware-threads",
    "transparent-huge-pages",
    "rcu-callbacks",
    "rcu-threads",
    "workqueues",
    "receive-steering",
    "automatic-numa-balancing",
    "hard-lockup-watchdog",
    "soft-lockup-watchdog",
    "interrupt-coalescing",
    // These settings delay packets less, or seldom.
    "turbo",
    "preemption",
    "memory-compaction",
    "swappiness",
];

/// A setting that affects latency or throughput: its constant description, and how to check it. The description becomes
/// a section of the documentation.
pub struct Setting {
    /// A short name, which is also a heading of the documentation.
    pub name: &'static str,
    /// The family of the setting.
    pub group: Group,
    /// The description of the setting, in one sentence.
    pub what: &'static str,
    /// The cost of a wrong value of the setting, and the reason.
    pub cost: &'static str,
    /// A command that shows the setting.
    pub see: &'static str,
    /// True if `apply` changes the setting on machines that have it.
    pub is_applied: bool,
    /// The way to change the setting by hand at run time; empty if `apply` changes it or if it cannot be changed.
    pub by_hand: &'static str,
    /// The way to change the setting at boot; empty if there is none.
    pub boot: &'static str,
    /// The way to change the setting in the BIOS or on the host; empty if there is none.
    pub below: &'static str,
    /// The documents that recommend the value of the setting, such as a manual page.
    pub source: &'static str,
    pub(super) profiles: &'static [Profile],
    pub(super) look: fn(&View) -> Looked,
}

/// The result of checking one setting.
pub(super) struct Looked {
    pub state: State,
    pub now: String,
    pub wanted: String,
    pub steps: Vec<Step>,
    pub arguments: Vec<String>,
}

impl Looked {
    fn new(state: State, now: impl Into<String>, wanted: impl Into<String>) -> Self {
        Self {
            state,
            now: now.into(),
            wanted: wanted.into(),
            steps: Vec::new(),
            arguments: Vec::new(),
        }
    }

    pub fn not_here(why: &str) -> Self {
        Self::new(State::NotHere, why, "")
    }

    pub fn unknown(why: impl Into<String>, wanted: &str) -> Self {
        Self::new(State::Unknown, why, wanted)
    }

    pub fn is(good: bool, now: impl Into<String>, wanted: impl Into<String>) -> Self {
        Self::new(if good { State::Ok } else { State::Bad }, now, wanted)
    }

    pub fn steps(mut self, steps: Vec<Step>) -> Self {
        self.steps = steps;
        self
    }

    /// Adds arguments for the kernel's command line.
    pub fn boot<S: Into<String>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.arguments = arguments.into_iter().map(Into::into).collect();
        self
    }
}

/// The finding about one setting on this machine.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// The name of the setting.
    pub name: String,
    /// The family of the setting.
    pub group: Group,
    /// The state of the setting.
    pub state: State,
    /// The present value of the setting, or the reason why the value is unknown.
    pub now: String,
    /// The value of the setting that the profile requires.
    pub wanted: String,
    /// The way to change the setting now: the commands of `taut tune apply`, or advice.
    pub change_now: Vec<String>,
    /// Arguments for the kernel's command line that change the setting from the next boot on.
    pub change_at_boot: Vec<String>,
    /// The change in the BIOS or on the host that the profile requires; empty if there is none.
    pub change_below: String,
    /// The cost of a wrong value of the setting, and the reason.
    pub why: String,
    /// The documents that recommend the value of the setting, such as a manual page.
    pub source: String,
    /// True if `taut tune apply` changes the setting.
    pub can_be_applied: bool,
    #[serde(skip)]
    pub(super) steps: Vec<Step>,
}

impl Finding {
    /// Returns the place of the setting among all settings by their effect on latency: 0 has the largest effect, and
    /// settings with an unknown effect share the last place.
    pub fn rank(&self) -> usize {
        let place = BY_EFFECT.iter().position(|name| *name == self.name);
        place.unwrap_or(BY_EFFECT.len())
    }

    /// Returns the shell commands that change the setting as `taut tune apply` does.
    pub fn commands(&self) -> impl Iterator<Item = String> {
        self.steps.iter().map(Step::command)
    }
}

/// The CPUs and the files with which settings are checked.
pub(super) struct View<'a> {
    pub root: &'a Root,
    /// The CPUs that are to be isolated for low latency.
    pub cpus: &'a BTreeSet<usize>,
    /// The other online CPUs, for all other tasks.
    pub system: BTreeSet<usize>,
    pub profile: Profile,
    pub machine: Machine,
}

impl View<'_> {
    pub fn list(&self) -> String {
        format_cpu_list(self.cpus)
    }

    pub fn system_list(&self) -> String {
        format_cpu_list(&self.system)
    }

    pub fn system_mask(&self) -> String {
        let mask = mask_of_cpus(&self.system);
        mask.trim_start_matches(['0', ',']).to_owned()
    }

    /// Returns the path `below` in the sysfs folder of each isolated CPU.
    pub fn folders(&self, below: &str) -> Vec<String> {
        let folder = |cpu| format!("/sys/devices/system/cpu/cpu{cpu}/{below}");
        self.cpus.iter().map(folder).collect()
    }

    /// Returns the list of CPUs in a file: an empty set for an empty file, and `None` if the file has no such list.
    pub fn cpus_in(&self, path: &str) -> Option<BTreeSet<usize>> {
        parse_cpu_list(&self.root.text(path)?)
    }

    /// Returns the value of the argument `name` on the kernel's command line: empty if the argument has no value, and
    /// `None` if there is no such argument.
    pub fn argument(&self, name: &str) -> Option<String> {
        let line = self.machine.kernel_command_line.as_ref()?;
        // Arguments after ` -- ` belong to the first process.
        let line = line.value.split(" -- ").next().unwrap_or_default();
        line.split_whitespace().rev().find_map(|word| {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            (key == name).then(|| value.to_owned())
        })
    }

    /// Returns the value of an option in the kernel's configuration; `None` if the configuration cannot be read.
    pub fn configured(&self, option: &str) -> Option<bool> {
        let text = self.machine_configuration()?;
        Some(text.lines().any(|line| line == format!("{option}=y")))
    }

    fn machine_configuration(&self) -> Option<String> {
        use std::io::Read;
        if let Ok(file) = std::fs::File::open(self.root.path("/proc/config.gz")) {
            let mut text = String::new();
            flate2::read::GzDecoder::new(file)
                .read_to_string(&mut text)
                .ok()?;
            return Some(text);
        }
        let release = self.root.text("/proc/sys/kernel/osrelease")?;
        self.root.text(&format!("/boot/config-{release}"))
    }

    /// Checks that the number in a file is `value`.
    pub fn number(&self, path: &str, value: i64) -> Looked {
        self.number_where(path, value, |now| now == value)
    }

    /// Checks that the number in a file satisfies `good`. The step to change the setting writes `value` to the file.
    pub fn number_where(&self, path: &str, value: i64, good: impl Fn(i64) -> bool) -> Looked {
        if self.root.is_secret(path) {
            return Looked::unknown(format!("only root can read {path}"), &value.to_string());
        }
        let Some(now) = self.root.number(path) else {
            return Looked::not_here(&format!("no {path}"));
        };
        Looked::is(good(now), now.to_string(), value.to_string())
            .steps(vec![Step::write(path, value.to_string())])
    }

    /// Returns the number and name of each process, including kernel threads.
    pub fn processes(&self) -> impl Iterator<Item = (u32, String)> {
        let numbers = self.root.names("/proc").into_iter();
        let pids = numbers.filter_map(|name| name.parse::<u32>().ok());
        pids.filter_map(|pid| Some((pid, self.root.text(&format!("/proc/{pid}/comm"))?)))
    }

    /// Returns true if a program with the given name runs.
    pub fn runs(&self, program: &str) -> bool {
        self.processes().any(|(_, name)| name == program)
    }
}
