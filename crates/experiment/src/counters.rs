//! Counters of a command's resource use: events of the processor and the kernel, interrupts, and the load of the cache.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use taut_host::SystemActivity;
use taut_sys::{Event, FamilyCounters};

/// Folder of the kernel's cache and memory monitoring (Documentation/filesystems/resctrl.rst).
const RESCTRL: &str = "/sys/fs/resctrl";

/// A quantity that is counted while a command runs, over all processes of the command unless stated otherwise.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Counter {
    /// Processor cycles.
    Cycles,
    /// Retired instructions.
    Instructions,
    /// Loads that missed the first-level data cache.
    L1dReadMisses,
    /// Accesses that missed the last-level cache.
    LlcMisses,
    /// Page faults.
    PageFaults,
    /// Context switches.
    ContextSwitches,
    /// Interrupts of the whole machine.
    Interrupts,
    /// Bytes of the last-level cache that the command occupies at its end (from resctrl).
    CacheLoad,
    /// Bytes transferred between last-level cache and memory (from resctrl).
    MemoryBytes,
}

/// Counts of a command's counters, as the agent writes them to a file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CounterReport {
    /// Counts by the name of the counter.
    pub counts: BTreeMap<String, f64>,
    /// Reasons why counters are missing, by the name of the counter.
    pub missing: BTreeMap<String, String>,
}

impl Counter {
    /// Returns the name of the counter in files and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cycles => "cycles",
            Self::Instructions => "instructions",
            Self::L1dReadMisses => "l1d_read_misses",
            Self::LlcMisses => "llc_misses",
            Self::PageFaults => "page_faults",
            Self::ContextSwitches => "context_switches",
            Self::Interrupts => "interrupts",
            Self::CacheLoad => "cache_load",
            Self::MemoryBytes => "memory_bytes",
        }
    }

    /// Returns the counter with the given name; `None` if there is none.
    pub fn of_name(name: &str) -> Option<Self> {
        serde_json::from_value(serde_json::Value::from(name)).ok()
    }

    /// Returns the event of the processor or kernel that the counter counts; `None` for other sources.
    fn event(self) -> Option<Event> {
        Some(match self {
            Self::Cycles => Event::Cycles,
            Self::Instructions => Event::Instructions,
            Self::L1dReadMisses => Event::L1dReadMisses,
            Self::LlcMisses => Event::LlcMisses,
            Self::PageFaults => Event::PageFaults,
            Self::ContextSwitches => Event::ContextSwitches,
            Self::Interrupts | Self::CacheLoad | Self::MemoryBytes => return None,
        })
    }
}

/// The active counters of a command; they are started before the command.
pub(crate) struct Counting {
    wanted: Vec<Counter>,
    events: FamilyCounters,
    cache: Option<Result<MonitorGroup, String>>,
}

impl Counting {
    pub(crate) fn start(wanted: &[Counter]) -> Self {
        let events: Vec<Event> = wanted.iter().filter_map(|it| it.event()).collect();
        let of_cache = |it: &Counter| matches!(it, Counter::CacheLoad | Counter::MemoryBytes);
        Self {
            wanted: wanted.to_vec(),
            cache: wanted.iter().any(of_cache).then(MonitorGroup::open),
            events: FamilyCounters::open(&events),
        }
    }

    /// Returns the counts at the end of the command; `activity` is the activity of the machine during the command.
    pub(crate) fn end(self, activity: &SystemActivity) -> CounterReport {
        let mut report = CounterReport::default();
        let read = self.events.read();
        for counter in self.wanted {
            let found = match (counter, &self.cache) {
                (Counter::Interrupts, _) => {
                    let cores = activity.cores.iter();
                    Ok(cores.map(|core| core.interrupt_count as f64).sum())
                }
                (Counter::CacheLoad, Some(Ok(group))) => group.sum("llc_occupancy"),
                (Counter::MemoryBytes, Some(Ok(group))) => group.sum("mbm_total_bytes"),
                (_, Some(Err(why))) if counter.event().is_none() => Err(why.clone()),
                _ => {
                    let missing = self.events.missing().iter();
                    let why = missing.filter(|(event, _)| Some(*event) == counter.event());
                    match (&read, why.map(|(_, why)| why.to_string()).next()) {
                        (_, Some(why)) => Err(why),
                        (Err(e), _) => Err(e.to_string()),
                        (Ok(counts), _) => counts
                            .iter()
                            .find(|(event, _)| Some(*event) == counter.event())
                            .map(|(_, count)| *count)
                            .ok_or_else(|| "other users occupied the counters".to_owned()),
                    }
                }
            };
            match found {
                Ok(count) => report
                    .counts
                    .insert(counter.name().to_owned(), count)
                    .map(drop),
                Err(why) => report
                    .missing
                    .insert(counter.name().to_owned(), why)
                    .map(drop),
            };
        }
        report
    }
}

/// A resctrl monitoring group that contains this process and the processes that it starts; it is removed when dropped.
struct MonitorGroup {
    folder: PathBuf,
}

impl MonitorGroup {
    fn open() -> Result<Self, String> {
        let groups = Path::new(RESCTRL).join("mon_groups");
        if !groups.is_dir() {
            return Err(
                "needs a processor with cache monitoring and: mount -t resctrl resctrl /sys/fs/resctrl".to_owned(),
            );
        }
        let folder = groups.join(format!("taut-{}", std::process::id()));
        let why = |e: io::Error| format!("{}: {e}", groups.display());
        fs::create_dir(&folder).map_err(why)?;
        let group = Self { folder };
        fs::write(group.folder.join("tasks"), std::process::id().to_string()).map_err(why)?;
        Ok(group)
    }

    /// Returns the sum over all caches of the monitored value `what`.
    fn sum(&self, what: &str) -> Result<f64, String> {
        let why = |e: io::Error| format!("{what}: {e}");
        let mut sum = 0.0;
        for cache in fs::read_dir(self.folder.join("mon_data")).map_err(why)? {
            let path = cache.map_err(why)?.path().join(what);
            let text = fs::read_to_string(path).map_err(why)?;
            let value: f64 = text
                .trim()
                .parse()
                .map_err(|_| format!("{what}: {}", text.trim()))?;
            sum += value;
        }
        Ok(sum)
    }
}

impl Drop for MonitorGroup {
    fn drop(&mut self) {
        // A monitoring group is removed as a folder, although it seems to contain files.
        let _ = fs::remove_dir(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_host::Snapshot;

    #[test]
    fn every_counter_has_a_count_or_a_reason() {
        let all = [
            Counter::Cycles,
            Counter::PageFaults,
            Counter::Interrupts,
            Counter::CacheLoad,
            Counter::MemoryBytes,
        ];
        let before = Snapshot::take();
        let counting = Counting::start(&all);
        std::process::Command::new("true").status().unwrap();
        let activity = Snapshot::difference(&before, &Snapshot::take(), &[0]);
        let report = counting.end(&activity);
        for counter in all {
            let (name, reason) = (counter.name(), report.missing.get(counter.name()));
            assert!(
                report.counts.contains_key(name) != reason.is_some(),
                "{report:?}"
            );
            assert!(reason.is_none_or(|why| !why.is_empty() && !why.contains('\n')));
            assert_eq!(Counter::of_name(name), Some(counter));
        }
        assert!(report.counts.contains_key("interrupts"));
    }
}
