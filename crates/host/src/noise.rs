//! Noise on this machine: permanent sources, and the events during a run.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::other_tasks::{TaskTime, TaskTimes};

/// A known source of noise, for the reader of a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoiseSource {
    /// A short name, such as `virtual machine`.
    pub name: String,
    /// The effect of the noise source on the measurement.
    pub detail: String,
    /// The evidence for the source of noise, with the file that contains the evidence.
    pub evidence: String,
}

/// The kernel's counters of processor times, interrupts and context switches at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    taken: Instant,
    /// Times per CPU: milliseconds of steal, interrupt and soft interrupt.
    times: BTreeMap<usize, CpuTimes>,
    context_switches: u64,
    /// The interrupt counts per name and CPU.
    interrupts: Counters,
    softirqs: Counters,
    involuntary_switches: u64,
    load_average: Option<f64>,
    tasks: TaskTimes,
}

type Counters = BTreeMap<String, BTreeMap<usize, u64>>;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct CpuTimes {
    steal_ms: u64,
    interrupt_ms: u64,
    softirq_ms: u64,
}

/// The maximum number of other programs that [`SystemActivity::busiest`] returns, for a warning.
const NAMED: usize = 2;

/// Name of the noise source that represents all other programs.
pub const OTHER_PROGRAMS: &str = "other programs";

/// The name of an event, and how often it occurred.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Count {
    /// The kernel's name for the event, with the driver's name if there is one: `LOC Local timer interrupts`.
    pub name: String,
    /// The number of times that this event occurred.
    pub count: u64,
}

/// The kernel's work on one CPU between two snapshots: steal time, interrupts and soft interrupts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CoreActivity {
    /// The number of the CPU.
    pub cpu: usize,
    /// The steal time, in which the hypervisor did not run this CPU, although it was ready to run.
    pub steal_ms: u64,
    /// The time spent in interrupt handlers, if the kernel accounts for it.
    pub interrupt_ms: u64,
    /// The time spent in soft interrupts.
    pub softirq_ms: u64,
    /// The number of interrupts that this CPU handled.
    pub interrupt_count: u64,
    /// Interrupts by kind, most frequent first, without kinds that did not occur.
    pub interrupts: Vec<Count>,
    /// The number of soft interrupts that ran.
    pub softirq_count: u64,
    /// Soft interrupts by kind, most frequent first, without kinds that did not occur.
    pub softirqs: Vec<Count>,
}

/// The activity on the machine between two snapshots.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SystemActivity {
    /// The time between the snapshots.
    pub duration_ms: u64,
    /// The activity of each requested CPU, in the order of the request.
    pub cores: Vec<CoreActivity>,
    /// The context switches of the whole machine.
    pub context_switches: u64,
    /// The involuntary context switches of this process's threads; only threads that exist at both snapshots count.
    pub involuntary_switches: u64,
    /// The mean number of runnable tasks in the minute before the first snapshot; `None` if the kernel does not report
    /// it.
    pub load_average_before: Option<f64>,
    /// The other processes that used the most processor time, on any CPU; empty in results that do not contain them.
    #[serde(default)]
    pub others: Vec<TaskTime>,
}

impl Snapshot {
    /// Reads the kernel's counters of this machine. A file that cannot be read counts as zeros.
    #[must_use]
    pub fn take() -> Self {
        Self::take_under(Path::new("/"))
    }

    fn take_under(root: &Path) -> Self {
        let proc = root.join("proc");
        let text = |name: &str| fs::read_to_string(proc.join(name)).unwrap_or_default();
        let stat = text("stat");
        Self {
            taken: Instant::now(),
            times: cpu_times(&stat, rustix::param::clock_ticks_per_second()),
            context_switches: stat
                .lines()
                .find_map(|line| line.strip_prefix("ctxt "))
                .and_then(|count| count.trim().parse().ok())
                .unwrap_or(0),
            interrupts: counters(&text("interrupts")),
            softirqs: counters(&text("softirqs")),
            involuntary_switches: involuntary_switches(&proc.join("self/task")),
            load_average: text("loadavg")
                .split_whitespace()
                .next()
                .and_then(|load| load.parse().ok()),
            tasks: TaskTimes::take_under(root),
        }
    }

    /// Returns the activity between `before` and `after` on `cpus`. Counters that went backwards (of a CPU that was
    /// offline) count as zero.
    #[must_use]
    pub fn difference(before: &Self, after: &Self, cpus: &[usize]) -> SystemActivity {
        let duration = after.taken.saturating_duration_since(before.taken);
        SystemActivity {
            duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
            cores: cpus
                .iter()
                .map(|&cpu| {
                    let [old, new] = [before, after]
                        .map(|snapshot| snapshot.times.get(&cpu).copied().unwrap_or_default());
                    let interrupts = increments(&before.interrupts, &after.interrupts, cpu);
                    let softirqs = increments(&before.softirqs, &after.softirqs, cpu);
                    let total = |counts: &[Count]| counts.iter().map(|c| c.count).sum();
                    CoreActivity {
                        cpu,
                        steal_ms: new.steal_ms.saturating_sub(old.steal_ms),
                        interrupt_ms: new.interrupt_ms.saturating_sub(old.interrupt_ms),
                        softirq_ms: new.softirq_ms.saturating_sub(old.softirq_ms),
                        interrupt_count: total(&interrupts),
                        interrupts,
                        softirq_count: total(&softirqs),
                        softirqs,
                    }
                })
                .collect(),
            context_switches: after
                .context_switches
                .saturating_sub(before.context_switches),
            involuntary_switches: after
                .involuntary_switches
                .saturating_sub(before.involuntary_switches),
            load_average_before: before.load_average,
            others: after.tasks.others_since(&before.tasks, std::process::id()),
        }
    }
}

impl SystemActivity {
    /// Returns the sum of this activity and a later one on the same CPUs.
    #[must_use]
    pub fn join(self, later: Self) -> Self {
        let cores = self
            .cores
            .into_iter()
            .zip(later.cores)
            .map(|(a, b)| CoreActivity {
                cpu: a.cpu,
                steal_ms: a.steal_ms + b.steal_ms,
                interrupt_ms: a.interrupt_ms + b.interrupt_ms,
                softirq_ms: a.softirq_ms + b.softirq_ms,
                interrupt_count: a.interrupt_count + b.interrupt_count,
                softirq_count: a.softirq_count + b.softirq_count,
                interrupts: join_counts(a.interrupts, b.interrupts),
                softirqs: join_counts(a.softirqs, b.softirqs),
            });
        Self {
            duration_ms: self.duration_ms + later.duration_ms,
            cores: cores.collect(),
            context_switches: self.context_switches + later.context_switches,
            involuntary_switches: self.involuntary_switches + later.involuntary_switches,
            load_average_before: self.load_average_before,
            others: join_tasks(self.others, later.others),
        }
    }

    /// Returns an upper bound of the fraction of a core's time that other programs took, 0..1. It is the processor time
    /// of the busiest other processes, plus the largest steal time. Longer interruptions of a core are work of the
    /// kernel for the measured packets. The bound is 0 for results that do not contain other processes.
    #[must_use]
    pub fn most_taken(&self) -> f64 {
        let others_ms = self.others.iter().map(|task| task.ms as f64);
        let steal_ms = self.cores.iter().map(|core| core.steal_ms as f64);
        most_taken(others_ms, steal_ms, self.duration_ms as f64)
    }

    /// Returns the names of up to two other programs that used noticeable processor time, the busiest first.
    #[must_use]
    pub fn busiest(&self) -> Vec<String> {
        let others = self.others.iter();
        others
            .filter(|task| is_noticeable(task.ms, self.duration_ms))
            .take(NAMED)
            .map(|task| task.name.clone())
            .collect()
    }
}

/// Returns an upper bound of the fraction of a core's time that others took, 0 to 1: the sum of `others_ms` plus the
/// maximum of `steal_ms`, divided by `duration_ms`. It is 0 if the duration is 0.
#[must_use]
pub fn most_taken(
    others_ms: impl Iterator<Item = f64>,
    steal_ms: impl Iterator<Item = f64>,
    duration_ms: f64,
) -> f64 {
    if duration_ms <= 0.0 {
        return 0.0;
    }
    let ms = others_ms.sum::<f64>() + steal_ms.fold(0.0, f64::max);
    (ms / duration_ms).min(1.0)
}

/// Adds up the times of processes of the same name and returns them, longest first.
fn join_tasks(mut some: Vec<TaskTime>, others: Vec<TaskTime>) -> Vec<TaskTime> {
    for other in others {
        match some.iter_mut().find(|task| task.name == other.name) {
            Some(task) => task.ms += other.ms,
            None => some.push(other),
        }
    }
    some.sort_by_key(|task| std::cmp::Reverse(task.ms));
    some
}

/// Adds up counts of the same name and returns them, most frequent first.
fn join_counts(mut some: Vec<Count>, others: Vec<Count>) -> Vec<Count> {
    for other in others {
        match some.iter_mut().find(|count| count.name == other.name) {
            Some(count) => count.count += other.count,
            None => some.push(other),
        }
    }
    some.sort_by_key(|count| std::cmp::Reverse(count.count));
    some
}

/// Returns every known source of noise for work that is pinned to `cpus`. Sources are derived from the machine's facts,
/// and from the activity during a run if it is given.
#[must_use]
pub fn noise_sources(
    machine: &Machine,
    cpus: &[usize],
    activity: Option<&SystemActivity>,
) -> Vec<NoiseSource> {
    let mut sources = standing_sources(machine, cpus);
    if let Some(activity) = activity {
        sources.extend(sources_in(activity));
    }
    sources
}

fn source(name: &str, detail: &str, evidence: String) -> NoiseSource {
    NoiseSource {
        name: name.to_owned(),
        detail: detail.to_owned(),
        evidence,
    }
}

fn standing_sources(machine: &Machine, cpus: &[usize]) -> Vec<NoiseSource> {
    let mut sources = Vec::new();
    if let Some(hypervisor) = &machine.hypervisor {
        sources.push(source(
            "virtual machine",
            "the host may take a CPU away at any time, and interrupts cost an exit to the hypervisor",
            format!("{} ({})", hypervisor.value, hypervisor.source),
        ));
    }
    if let Some(online) = &machine.online_cpus
        && online.value.len() <= cpus.len()
    {
        sources.push(source(
            "no spare CPU",
            "the rest of the system runs on the measuring CPUs",
            format!("{} online ({})", online.value.len(), online.source),
        ));
    }
    let isolated = machine.isolated_cpus.as_ref().map(|fact| &fact.value);
    let exposed: Vec<String> = cpus
        .iter()
        .filter(|cpu| !isolated.is_some_and(|isolated| isolated.contains(cpu)))
        .map(usize::to_string)
        .collect();
    if !exposed.is_empty() {
        sources.push(source(
            "no isolation",
            "the scheduler may put other work on the measuring CPUs",
            format!(
                "CPU {} not in /sys/devices/system/cpu/isolated",
                exposed.join(", ")
            ),
        ));
    }
    let tickless = machine.nohz_full_cpus.as_ref().map(|fact| &fact.value);
    if !cpus
        .iter()
        .all(|cpu| tickless.is_some_and(|tickless| tickless.contains(cpu)))
    {
        let rate = machine.timer_hz.as_ref().map_or_else(
            || "rate unknown".to_owned(),
            |hz| format!("{} per second ({})", hz.value, hz.source),
        );
        sources.push(source(
            "timer interrupts",
            "each busy CPU is interrupted at the kernel's tick",
            format!("{rate}; nohz_full does not cover the measuring CPUs"),
        ));
    }
    if let Some(smt) = machine.smt.as_ref().filter(|smt| smt.value == "on") {
        sources.push(source(
            "simultaneous multithreading",
            "the other hardware thread of a core takes execution units and cache",
            format!("{} ({})", smt.value, smt.source),
        ));
    }
    sources.extend(clock_and_power_sources(machine));
    sources
}

fn clock_and_power_sources(machine: &Machine) -> Vec<NoiseSource> {
    let mut sources = Vec::new();
    if let Some(governor) = machine
        .frequency_governor
        .as_ref()
        .filter(|governor| governor.value != "performance")
    {
        sources.push(source(
            "frequency scaling",
            "the clock follows the load, so that idle phases are paid for later",
            format!("governor {} ({})", governor.value, governor.source),
        ));
    }
    if let Some(turbo) = machine.turbo.as_ref().filter(|turbo| turbo.value) {
        sources.push(source(
            "turbo",
            "the clock depends on temperature and on the other cores",
            format!("on ({})", turbo.source),
        ));
    }
    // The measured times are about a microsecond, so lighter states have no visible effect. In a virtual machine,
    // however, every state that halts exits to the hypervisor, independent of its stated latency.
    let is_virtual = machine.hypervisor.is_some();
    let deepest = machine
        .idle_states
        .iter()
        .filter(|state| !state.disabled && state.name != "POLL")
        .filter(|state| is_virtual || state.exit_latency_us > 1)
        .max_by_key(|state| state.exit_latency_us);
    if let Some(deepest) = deepest {
        sources.push(source(
            "idle states",
            "a CPU that waits instead of polling wakes late",
            format!(
                "{} states {} µs to leave (/sys/devices/system/cpu/cpu*/cpuidle)",
                deepest.name, deepest.exit_latency_us
            ),
        ));
    }
    if let Some(clock) = machine
        .clock_source
        .as_ref()
        .filter(|clock| clock.value != "tsc")
    {
        sources.push(source(
            "slow clock",
            "the kernel does not trust the time-stamp counter, and reading its clock costs more",
            format!("{} ({})", clock.value, clock.source),
        ));
    }
    sources
}

fn sources_in(activity: &SystemActivity) -> Vec<NoiseSource> {
    let mut sources = Vec::new();
    let during = activity.duration_ms;
    for core in &activity.cores {
        if core.steal_ms > 0 {
            sources.push(source(
                "steal time",
                "the hypervisor ran something else while a measuring CPU wanted to run",
                format!(
                    "CPU {}: {} ms in {during} ms (/proc/stat)",
                    core.cpu, core.steal_ms
                ),
            ));
        }
        let total: u64 = core.interrupts.iter().map(|count| count.count).sum();
        if total > 0 {
            sources.push(source(
                "interrupts",
                "a measuring CPU left its work for interrupt handlers",
                format!(
                    "CPU {}: {total} in {during} ms, most: {} (/proc/interrupts)",
                    core.cpu,
                    top(&core.interrupts)
                ),
            ));
        }
        if !core.softirqs.is_empty() {
            sources.push(source(
                "soft interrupts",
                "a measuring CPU did deferred work of the kernel; with kernel interfaces, NET_RX is \
                 part of what is measured",
                format!(
                    "CPU {}: {} in {during} ms (/proc/softirqs)",
                    core.cpu,
                    top(&core.softirqs)
                ),
            ));
        }
    }
    if activity.involuntary_switches > 0 {
        sources.push(source(
            "preemption",
            "the scheduler took a thread of this process off its CPU",
            format!(
                "{} times in {during} ms (/proc/self/task/*/status)",
                activity.involuntary_switches
            ),
        ));
    }
    let others = activity.others.iter();
    let named: Vec<String> = others
        .filter(|task| is_noticeable(task.ms, during))
        .map(|task| format!("{} {} ms", task.name, task.ms))
        .collect();
    if !named.is_empty() {
        sources.push(source(
            OTHER_PROGRAMS,
            "other programs used processor time during the measurement",
            format!("{} of {during} ms (/proc/*/stat)", named.join(", ")),
        ));
    }
    // An average of half a runnable task is more than housekeeping.
    if let Some(load) = activity.load_average_before.filter(|load| *load >= 0.5) {
        sources.push(source(
            "other load",
            "other programs were running when the measurement began",
            format!("{load} runnable tasks on average over a minute (/proc/loadavg)"),
        ));
    }
    sources
}

/// Returns true if a processor time is at least a hundredth of the duration.
fn is_noticeable(ms: u64, duration_ms: u64) -> bool {
    ms > 0 && ms.saturating_mul(100) >= duration_ms
}

/// Returns the three most frequent counts, as `name count, ...`.
fn top(counts: &[Count]) -> String {
    let top: Vec<String> = counts
        .iter()
        .take(3)
        .map(|count| format!("{} {}", count.name, count.count))
        .collect();
    top.join(", ")
}

/// Parses the `cpuN` lines of `/proc/stat`: user nice system idle iowait irq softirq steal, in ticks.
fn cpu_times(stat: &str, ticks_per_second: u64) -> BTreeMap<usize, CpuTimes> {
    let milliseconds = |ticks: u64| ticks.saturating_mul(1000) / ticks_per_second.max(1);
    stat.lines()
        .filter_map(|line| {
            let mut words = line.strip_prefix("cpu")?.split(' ');
            let cpu = words.next()?.parse().ok()?;
            let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
            Some((
                cpu,
                CpuTimes {
                    interrupt_ms: milliseconds(*ticks.get(5)?),
                    softirq_ms: milliseconds(*ticks.get(6)?),
                    steal_ms: milliseconds(*ticks.get(7)?),
                },
            ))
        })
        .collect()
}

/// Parses the table of `/proc/interrupts` or `/proc/softirqs`: a header of CPUs, then a name, one count per CPU and a
/// description. Lines with fewer counts than CPUs (`ERR`, `MIS`) belong to no CPU and are skipped.
fn counters(table: &str) -> Counters {
    let mut lines = table.lines();
    let cpus: Vec<usize> = lines
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .map_while(|word| word.strip_prefix("CPU")?.parse().ok())
        .collect();
    lines
        .filter_map(|line| {
            let (name, rest) = line.split_once(':')?;
            let mut words = rest.split_whitespace();
            let counts = cpus
                .iter()
                .map(|&cpu| Some((cpu, words.next()?.parse().ok()?)))
                .collect::<Option<BTreeMap<usize, u64>>>()?;
            let description = words.collect::<Vec<_>>().join(" ");
            let name = format!("{} {description}", name.trim());
            Some((name.trim().to_owned(), counts))
        })
        .collect()
}

fn increments(before: &Counters, after: &Counters, cpu: usize) -> Vec<Count> {
    let count_in = |counters: &Counters, name: &str| {
        counters
            .get(name)
            .and_then(|counts| counts.get(&cpu))
            .copied()
            .unwrap_or(0)
    };
    let mut counts: Vec<Count> = after
        .keys()
        .map(|name| Count {
            name: name.clone(),
            count: count_in(after, name).saturating_sub(count_in(before, name)),
        })
        .filter(|count| count.count > 0)
        .collect();
    counts.sort_by_key(|count| std::cmp::Reverse(count.count));
    counts
}

/// Returns the sum of `nonvoluntary_ctxt_switches` over the threads in a folder such as `/proc/self/task`.
fn involuntary_switches(tasks: &Path) -> u64 {
    fs::read_dir(tasks)
        .into_iter()
        .flatten()
        .filter_map(|task| {
            let status = fs::read_to_string(task.ok()?.path().join("status")).ok()?;
            status
                .lines()
                .find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"))?
                .trim()
                .parse::<u64>()
                .ok()
        })
        .sum()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::machine::{Fact, IdleState};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn fact<T>(value: T) -> Option<Fact<T>> {
        Some(Fact {
            value,
            source: "/a/file".to_owned(),
        })
    }

    fn snapshot(files: &[(&str, &str)]) -> Snapshot {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join("proc").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Snapshot::take_under(root.path())
    }

    fn names(sources: &[NoiseSource]) -> Vec<&str> {
        sources.iter().map(|source| source.name.as_str()).collect()
    }

    #[test]
    fn the_busiest_noticeable_programs_are_named() {
        let task = |(name, ms): (&str, u64)| TaskTime {
            name: name.to_owned(),
            ms,
        };
        let empty = snapshot(&[]);
        let activity = SystemActivity {
            duration_ms: 1_000,
            others: [("rustc", 900), ("cc1", 500), ("ld", 100), ("sshd", 9)]
                .map(task)
                .to_vec(),
            ..Snapshot::difference(&empty, &empty, &[])
        };
        assert_eq!(activity.busiest(), ["rustc", "cc1"]);
        let quiet = SystemActivity {
            others: vec![task(("sshd", 9))],
            ..activity
        };
        assert!(quiet.busiest().is_empty());
    }

    #[test]
    fn interrupts_are_counted_per_cpu_with_their_names() {
        let before = snapshot(&[(
            "interrupts",
            "           CPU0       CPU3\n 36:   10   5  PCI-MSIX 1-edge  disk\nLOC:  100 200   Local timer interrupts\nERR:  7\n",
        )]);
        let after = snapshot(&[(
            "interrupts",
            "           CPU0       CPU3\n 36:   10  8  PCI-MSIX 1-edge  disk\nLOC:  150 210   Local timer interrupts\nERR:  9\n",
        )]);
        let activity = Snapshot::difference(&before, &after, &[3, 0]);
        let counts: Vec<_> = activity
            .cores
            .iter()
            .map(|core| {
                let counts: Vec<_> = core
                    .interrupts
                    .iter()
                    .map(|c| (c.name.as_str(), c.count))
                    .collect();
                (core.cpu, counts)
            })
            .collect();
        assert_eq!(
            counts,
            [
                (
                    3,
                    vec![
                        ("LOC Local timer interrupts", 10),
                        ("36 PCI-MSIX 1-edge disk", 3)
                    ]
                ),
                (0, vec![("LOC Local timer interrupts", 50)]),
            ]
        );
    }

    #[test]
    fn steal_time_and_context_switches_are_counted_between_two_snapshots() {
        let stat = |steal: u64, switches: u64| {
            format!("cpu  0 0\ncpu1 1 2 3 4 5 6 7 {steal} 0 0\nctxt {switches}\n")
        };
        let status = |count: u64| format!("Name:\tx\nnonvoluntary_ctxt_switches:\t{count}\n");
        let [before, after] = [(10, 1000, 3), (14, 1500, 5)].map(|(steal, switches, lost)| {
            snapshot(&[
                ("stat", &stat(steal, switches)),
                ("self/task/1/status", &status(lost)),
                ("self/task/2/status", &status(lost)),
                ("loadavg", "1.50 0.2 0.1 1/80 99\n"),
            ])
        });
        let activity = Snapshot::difference(&before, &after, &[1]);
        let tick_ms = 1000 / rustix::param::clock_ticks_per_second();
        assert_eq!(activity.cores[0].steal_ms, 4 * tick_ms);
        assert_eq!(activity.context_switches, 500);
        assert_eq!(activity.involuntary_switches, 4);
        assert_eq!(
            names(&sources_in(&activity)),
            ["steal time", "preemption", "other load"]
        );
    }

    #[test]
    fn counters_that_went_backwards_count_as_zero() {
        let [before, after] = ["9", "3"].map(|count| {
            snapshot(&[
                ("softirqs", &format!("  CPU0\nNET_RX: {count}\n")),
                ("stat", &format!("ctxt {count}\n")),
            ])
        });
        let activity = Snapshot::difference(&before, &after, &[0]);
        assert_eq!(activity.cores[0].softirqs, []);
        assert_eq!(activity.context_switches, 0);
    }

    #[test]
    fn a_tuned_machine_has_no_permanent_noise_source() {
        let machine = Machine {
            online_cpus: fact(BTreeSet::from([0, 1, 2, 3])),
            isolated_cpus: fact(BTreeSet::from([2, 3])),
            nohz_full_cpus: fact(BTreeSet::from([2, 3])),
            smt: fact("off".to_owned()),
            frequency_governor: fact("performance".to_owned()),
            turbo: fact(false),
            clock_source: fact("tsc".to_owned()),
            ..Machine::default()
        };
        assert_eq!(noise_sources(&machine, &[2, 3], None), []);
    }

    #[test]
    fn shallow_idle_states_are_noise_sources_only_in_virtual_machines() {
        let bare = Machine {
            idle_states: vec![IdleState {
                name: "haltpoll idle".to_owned(),
                exit_latency_us: 1,
                disabled: false,
            }],
            ..Machine::default()
        };
        let guest = Machine {
            hypervisor: fact("KVM (full)".to_owned()),
            ..bare.clone()
        };
        let has_idle_states =
            |machine| names(&noise_sources(machine, &[], None)).contains(&"idle states");
        assert!(!has_idle_states(&bare));
        assert!(has_idle_states(&guest));
    }

    #[test]
    fn every_noise_source_of_an_untuned_machine_is_named() {
        let machine = Machine {
            hypervisor: fact("KVM (full)".to_owned()),
            online_cpus: fact(BTreeSet::from([0, 1])),
            timer_hz: fact(250),
            smt: fact("on".to_owned()),
            frequency_governor: fact("powersave".to_owned()),
            turbo: fact(true),
            clock_source: fact("hpet".to_owned()),
            idle_states: vec![IdleState {
                name: "C6".to_owned(),
                exit_latency_us: 133,
                disabled: false,
            }],
            ..Machine::default()
        };
        let sources = noise_sources(&machine, &[0, 1], None);
        assert_eq!(
            names(&sources),
            [
                "virtual machine",
                "no spare CPU",
                "no isolation",
                "timer interrupts",
                "simultaneous multithreading",
                "frequency scaling",
                "turbo",
                "idle states",
                "slow clock",
            ]
        );
        assert_eq!(sources[0].evidence, "KVM (full) (/a/file)");
        assert!(sources[3].evidence.starts_with("250 per second (/a/file)"));
    }

    #[test]
    fn this_machine_counts_its_own_context_switches() {
        let before = Snapshot::take();
        // A sleep causes a context switch.
        std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_millis(1)))
            .join()
            .unwrap();
        let activity = Snapshot::difference(&before, &Snapshot::take(), &[0]);
        assert!(activity.context_switches > 0);
        let text = serde_json::to_string(&activity).unwrap();
        assert_eq!(
            serde_json::from_str::<SystemActivity>(&text).unwrap(),
            activity
        );
    }

    proptest! {
        #[test]
        fn arbitrary_counter_tables_are_parsed_without_a_panic(table in "(CPU[0-9]{1,3} ){0,3}\n(.{0,40}\n){0,5}") {
            let _ = counters(&table);
            let _ = cpu_times(&table, 100);
        }
    }
}
