//! The processor time that other processes of the machine use during a measurement.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Number of other processes that a result names, those with the most processor time.
const NAMED: usize = 3;

/// Prefixes of the names of kernel threads that handle soft interrupts, including those of the measured packets.
const OF_SOFT_INTERRUPTS: [&str; 2] = ["ksoftirqd/", "napi/"];

/// A process, and the processor time that it used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskTime {
    /// Name of the process, as the kernel stores it: at most 15 characters.
    pub name: String,
    /// Processor time between two snapshots, ms, in steps of the kernel's clock tick.
    pub ms: u64,
}

/// The processor time of every process at one moment, by process id.
#[derive(Debug, Clone, Default)]
pub(crate) struct TaskTimes(BTreeMap<u32, Task>);

#[derive(Debug, Clone)]
struct Task {
    name: String,
    parent: u32,
    ms: u64,
}

impl TaskTimes {
    /// Reads the processor times of all processes. A process that ends during the read is omitted.
    pub(crate) fn take_under(root: &Path) -> Self {
        let per_second = rustix::param::clock_ticks_per_second().max(1);
        let processes = fs::read_dir(root.join("proc")).into_iter().flatten();
        let of = |entry: fs::DirEntry| {
            let id = entry.file_name().to_str()?.parse::<u32>().ok()?;
            let fields = stat_fields(&entry.path())?;
            // Fields 14 and 15 are the times in user and kernel mode (proc_pid_stat(5)).
            let ticks = fields.get(11)? + fields.get(12)?;
            let name = fs::read_to_string(entry.path().join("comm")).ok()?;
            let task = Task {
                name: name.trim().to_owned(),
                parent: u32::try_from(*fields.get(1)?).ok()?,
                ms: ticks * 1_000 / per_second,
            };
            Some((id, task))
        };
        Self(processes.flatten().filter_map(of).collect())
    }

    /// Returns the processes other than `own` and its descendants that used the most processor time since `before`. The
    /// times of processes with the same name are added up; threads of soft interrupts are omitted.
    pub(crate) fn others_since(&self, before: &Self, own: u32) -> Vec<TaskTime> {
        let mut by_name: BTreeMap<&str, u64> = BTreeMap::new();
        let is_other = |id: u32, task: &Task| {
            let mut own_work = OF_SOFT_INTERRUPTS.iter();
            !self.is_below(id, own) && !own_work.any(|name| task.name.starts_with(name))
        };
        for (id, task) in self.0.iter().filter(|(id, task)| is_other(**id, task)) {
            let earlier = before.0.get(id).map_or(0, |earlier| earlier.ms);
            *by_name.entry(&task.name).or_default() += task.ms.saturating_sub(earlier);
        }
        let mut found: Vec<TaskTime> = by_name
            .into_iter()
            .filter(|(_, ms)| *ms > 0)
            .map(|(name, ms)| TaskTime {
                name: name.to_owned(),
                ms,
            })
            .collect();
        found.sort_by_key(|task| std::cmp::Reverse(task.ms));
        found.truncate(NAMED);
        found
    }

    fn is_below(&self, id: u32, own: u32) -> bool {
        is_below(id, own, |id| Some(self.0.get(&id)?.parent))
    }
}

/// Returns true if the process `id` is the process `own` or a descendant of it.
pub(crate) fn is_below(id: u32, own: u32, parent_of: impl Fn(u32) -> Option<u32>) -> bool {
    let mut at = id;
    // A chain of parents is short. The limit ends a loop that arises because the chain changes while it is read.
    for _ in 0..64 {
        if at == own {
            return true;
        }
        match parent_of(at) {
            Some(parent) => at = parent,
            None => return false,
        }
    }
    false
}

/// Returns the numbers of `/proc/PID/stat` from the third field on, 0 for fields that are not numbers
/// (proc_pid_stat(5)).
pub(crate) fn stat_fields(process: &Path) -> Option<Vec<u64>> {
    let text = fs::read_to_string(process.join("stat")).ok()?;
    // The name, which precedes the last parenthesis, may contain any character.
    let (_, rest) = text.rsplit_once(')')?;
    let fields = rest.split_whitespace();
    Some(fields.map(|field| field.parse().unwrap_or(0)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(tasks: &[(u32, &str, u32, u64)]) -> TaskTimes {
        let tasks = tasks.iter().map(|(id, name, parent, ms)| {
            let name = (*name).to_owned();
            let (parent, ms) = (*parent, *ms);
            (*id, Task { name, parent, ms })
        });
        TaskTimes(tasks.collect())
    }

    #[test]
    fn other_processes_are_named_by_their_processor_time() {
        let before = times(&[
            (1, "init", 0, 50),
            (10, "taut", 1, 5),
            (20, "rustc", 1, 900),
        ]);
        let after = times(&[
            (1, "init", 0, 50),
            (10, "taut", 1, 500),
            (11, "testpmd", 10, 500),
            (20, "rustc", 1, 1_000),
            (21, "rustc", 1, 30),
            (22, "sshd", 1, 20),
            (23, "ksoftirqd/1", 1, 500),
            (24, "napi/dut0-8193", 1, 500),
        ]);
        let others = after.others_since(&before, 10);
        let named: Vec<(&str, u64)> = others.iter().map(|it| (it.name.as_str(), it.ms)).collect();
        assert_eq!(named, [("rustc", 130), ("sshd", 20)]);
    }

    #[test]
    fn the_processes_of_this_machine_are_read() {
        let now = TaskTimes::take_under(Path::new("/"));
        assert!(now.0.contains_key(&std::process::id()));
        assert!(now.is_below(std::process::id(), std::process::id()));
    }
}
