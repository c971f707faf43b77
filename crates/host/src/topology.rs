//! The choice of one CPU for the load generator and one for the device under test.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity};
use serde::{Deserialize, Serialize};

use crate::cpu_list::parse_cpu_list;

/// The two CPUs of an experiment on one machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorePlan {
    /// The CPU of the load generator (it sends and receives in one loop).
    pub generator: usize,
    /// The CPU of the device under test.
    pub device: usize,
    /// A note about the choice of these CPUs, for readers of the results.
    pub note: String,
}

impl CorePlan {
    /// Returns the same plan with the generator on `core`, if a core is given. A device on that core moves to the
    /// generator's previous core.
    #[must_use]
    pub fn with_generator(mut self, core: Option<usize>) -> Self {
        if let Some(core) = core.filter(|core| *core != self.generator) {
            if core == self.device {
                self.device = self.generator;
            }
            self.generator = core;
            self.note = format!(
                "generator on CPU {core} as asked for, device under test on CPU {}",
                self.device
            );
        }
        self
    }

    /// Returns true if the generator and the device under test share one CPU, so that results are meaningless.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.generator == self.device
    }
}

/// A CPU that this process may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cpu {
    /// The kernel's number of the CPU.
    pub id: usize,
    /// The hardware threads of the CPU's core, including this CPU.
    pub siblings: BTreeSet<usize>,
    /// The CPUs that share the last-level cache of this CPU, including this CPU; empty if unknown.
    pub near: BTreeSet<usize>,
    /// True if the scheduler keeps other tasks off the CPU (`isolcpus`).
    pub isolated: bool,
}

/// The CPUs from which the CPUs for generator and device are chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// The usable CPUs in ascending order of their number.
    pub cpus: Vec<Cpu>,
}

/// Returns the best pair of CPUs for generator and device, among those that the affinity mask and the cpuset of this
/// process allow.
#[must_use]
pub fn choose_cores() -> CorePlan {
    Topology::read_under(Path::new("/"), &allowed_cpus()).choose_cores()
}

/// Returns a core for each of `threads` threads, chosen so that the threads disturb each other least; `None` if this
/// process may not use that many cores.
#[must_use]
pub fn cores_for(threads: usize) -> Option<Vec<usize>> {
    Topology::read_under(Path::new("/"), &allowed_cpus()).cores_for(threads)
}

/// Returns the affinity mask of the calling thread, which the kernel keeps within the cpuset, and the CPUs that
/// `taut tune apply` isolated. The mask need not contain the isolated CPUs: [`crate::pin_current_thread`] moves a
/// thread into their partition.
#[must_use]
pub fn allowed_cpus() -> BTreeSet<usize> {
    let Ok(set) = sched_getaffinity(None) else {
        // The call fails only on a machine with more than 1024 CPUs; taut then uses the first two.
        return BTreeSet::from([0, 1]);
    };
    (0..CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .chain(crate::tune::partition_cpus())
        .collect()
}

impl Topology {
    /// Reads the facts about the `allowed` CPUs from the `sys` tree below `root`. The defaults for missing facts are:
    /// no siblings, cache sharing unknown, not isolated.
    #[must_use]
    pub fn read_under(root: &Path, allowed: &BTreeSet<usize>) -> Self {
        let folder = root.join("sys/devices/system/cpu");
        let list = |path: &str| {
            fs::read_to_string(folder.join(path))
                .ok()
                .and_then(|text| parse_cpu_list(&text))
        };
        let isolated = list("isolated").unwrap_or_default();
        let cpus = allowed
            .iter()
            .map(|&id| {
                let mut siblings =
                    list(&format!("cpu{id}/topology/thread_siblings_list")).unwrap_or_default();
                siblings.insert(id);
                Cpu {
                    id,
                    siblings,
                    near: (0..8)
                        .rev()
                        .find_map(|index| {
                            list(&format!("cpu{id}/cache/index{index}/shared_cpu_list"))
                        })
                        .unwrap_or_default(),
                    isolated: isolated.contains(&id),
                }
            })
            .collect();
        Self { cpus }
    }

    /// Returns the best pair of CPUs for generator and device. The criteria, in decreasing order of weight, are:
    /// different physical cores, isolated, not CPU 0 (it serves most interrupts), shared last-level cache, lowest
    /// numbers.
    #[must_use]
    pub fn choose_cores(&self) -> CorePlan {
        let best = self
            .cpus
            .iter()
            .enumerate()
            .flat_map(|(at, first)| {
                self.cpus[at + 1..]
                    .iter()
                    .map(move |second| (first, second))
            })
            // `min_by_key` returns the first of equal pairs, so low numbers break ties.
            .min_by_key(|(first, second)| {
                (
                    first.siblings.contains(&second.id),
                    2 - usize::from(first.isolated) - usize::from(second.isolated),
                    first.id == 0,
                    !first.near.is_empty() && !first.near.contains(&second.id),
                )
            });
        let Some((generator, device)) = best else {
            let only = self.cpus.first().map_or(0, |cpu| cpu.id);
            return CorePlan {
                generator: only,
                device: only,
                note: format!(
                    "only CPU {only} may be used: generator and device take turns on it, so the \
                     results are not meaningful"
                ),
            };
        };
        CorePlan {
            generator: generator.id,
            device: device.id,
            note: self.note(generator, device),
        }
    }

    /// Chooses cores as [`cores_for`] does.
    #[must_use]
    pub fn cores_for(&self, threads: usize) -> Option<Vec<usize>> {
        let mut chosen: Vec<&Cpu> = Vec::new();
        for _ in 0..threads {
            let free = self
                .cpus
                .iter()
                .filter(|cpu| !chosen.iter().any(|it| it.id == cpu.id));
            let best = free.min_by_key(|cpu| {
                let shares = chosen.iter().any(|it| it.siblings.contains(&cpu.id));
                (shares, !cpu.isolated, cpu.id == 0, cpu.id)
            });
            chosen.push(best?);
        }
        Some(chosen.iter().map(|cpu| cpu.id).collect())
    }

    fn note(&self, generator: &Cpu, device: &Cpu) -> String {
        let mut remarks = vec![format!(
            "generator on CPU {}, device under test on CPU {}",
            generator.id, device.id
        )];
        remarks.push(
            match (generator.isolated, device.isolated) {
                (true, true) => "both isolated",
                (false, false) => "neither is isolated",
                _ => "only one is isolated",
            }
            .to_owned(),
        );
        if generator.siblings.contains(&device.id) {
            remarks.push("they are hardware threads of one core and slow each other".to_owned());
        }
        if !generator.near.is_empty() && !generator.near.contains(&device.id) {
            remarks.push("they share no cache".to_owned());
        }
        if self.cpus.len() == 2 {
            remarks.push("no CPU is left for the rest of the system".to_owned());
        }
        remarks.join("; ")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cpu(id: usize) -> Cpu {
        Cpu {
            id,
            siblings: BTreeSet::from([id]),
            near: BTreeSet::new(),
            isolated: false,
        }
    }

    fn pair(cpus: Vec<Cpu>) -> (usize, usize) {
        let plan = Topology { cpus }.choose_cores();
        (plan.generator, plan.device)
    }

    #[test]
    fn generator_and_device_get_one_cpu_each_of_two_cpus() {
        let plan = Topology {
            cpus: vec![cpu(0), cpu(1)],
        }
        .choose_cores();
        assert_eq!((plan.generator, plan.device), (0, 1));
        assert!(plan.note.contains("no CPU is left"), "{}", plan.note);
        assert!(!plan.is_shared());
    }

    #[test]
    fn measurements_on_a_single_cpu_are_reported_as_not_meaningful() {
        let plan = Topology { cpus: vec![cpu(3)] }.choose_cores();
        assert_eq!((plan.generator, plan.device), (3, 3));
        assert!(plan.is_shared());
        assert!(plan.note.contains("not meaningful"), "{}", plan.note);
    }

    #[test]
    fn cpu_0_is_not_chosen_when_other_cpus_are_free() {
        assert_eq!(pair(vec![cpu(0), cpu(1), cpu(2)]), (1, 2));
    }

    #[test]
    fn generator_and_device_run_on_different_physical_cores() {
        let cpus = (0..4)
            .map(|id| Cpu {
                siblings: BTreeSet::from([id % 2, id % 2 + 2]),
                ..cpu(id)
            })
            .collect();
        assert_eq!(pair(cpus), (1, 2));
    }

    #[test]
    fn isolated_cpus_are_chosen_before_other_cpus() {
        let cpus = (0..6)
            .map(|id| Cpu {
                isolated: id >= 4,
                ..cpu(id)
            })
            .collect();
        assert_eq!(pair(cpus), (4, 5));
    }

    #[test]
    fn cpus_that_share_a_cache_are_preferred() {
        let cpus = [1, 2, 4, 5]
            .into_iter()
            .map(|id| Cpu {
                near: if id == 1 {
                    BTreeSet::from([0, 1])
                } else if id == 2 {
                    BTreeSet::from([2, 3])
                } else {
                    BTreeSet::from([4, 5])
                },
                ..cpu(id)
            })
            .collect();
        assert_eq!(pair(cpus), (4, 5));
    }

    #[test]
    fn a_cpu_tree_is_parsed_and_missing_entries_are_unknown() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/devices/system/cpu");
        fs::create_dir_all(folder.join("cpu1/topology")).unwrap();
        fs::create_dir_all(folder.join("cpu1/cache/index3")).unwrap();
        fs::write(folder.join("isolated"), "1\n").unwrap();
        fs::write(folder.join("cpu1/topology/thread_siblings_list"), "1,3\n").unwrap();
        fs::write(folder.join("cpu1/cache/index3/shared_cpu_list"), "0-3\n").unwrap();
        let topology = Topology::read_under(root.path(), &BTreeSet::from([1, 2]));
        assert_eq!(
            topology.cpus,
            [
                Cpu {
                    id: 1,
                    siblings: BTreeSet::from([1, 3]),
                    near: BTreeSet::from([0, 1, 2, 3]),
                    isolated: true
                },
                cpu(2)
            ]
        );
    }

    #[test]
    fn chosen_cpus_are_within_the_affinity_mask_of_the_thread() {
        let only = *allowed_cpus().last().unwrap();
        let plan = std::thread::spawn(move || {
            crate::pin_current_thread(only).unwrap();
            choose_cores()
        })
        .join()
        .unwrap();
        assert_eq!((plan.generator, plan.device), (only, only));
    }

    proptest! {
        #[test]
        fn chosen_cpus_are_always_available_cpus(ids in proptest::collection::btree_set(0_usize..64, 1..12)) {
            let (generator, device) = pair(ids.iter().map(|&id| cpu(id)).collect());
            prop_assert!(ids.contains(&generator) && ids.contains(&device));
            prop_assert_eq!(generator == device, ids.len() == 1);
        }
    }
}
