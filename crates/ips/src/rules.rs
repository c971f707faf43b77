//! The rules in force. They are read from files, compiled in the background, and swapped as a whole while packets pass.

use super::settings::Checked;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use taut_function::changes::pause;
use taut_function::table_swap::{InUse, Swapped};
use taut_inspect::compile::{Inspector, RuleCounters, RuleSet};
use taut_inspect::read::{Options, Reading};
use taut_inspect::rule::{About, Action};

/// The number of rate counters per worker.
const RATE_COUNTERS: usize = 65_536;
/// The number of rule sets whose descriptions stay stored for pending events.
const KEPT: usize = 4;
/// The maximum number of rules with a separate metric; the other rules share one metric.
pub(super) const MOST_SHOWN: usize = 100;
/// The size limit of a rule file.
const MOST_FILE_BYTES: u64 = 256 << 20;

/// A set of rules in force, with an inspector for each worker: the memory with which the worker evaluates the rules.
pub(super) struct InForce {
    pub version: u64,
    pub set: RuleSet,
    /// The inspectors of this rule set. Each worker takes one when it first uses the set.
    inspectors: Slots,
    /// The inspectors of earlier rule sets, which workers put here for the control plane to free.
    left: Slots,
    /// The rule counters of all inspectors of this set.
    counters: Vec<Arc<[RuleCounters]>>,
}

/// Slots for inspectors that are exchanged without waiting: a thread that finds a slot locked tries the next slot.
#[derive(Default)]
struct Slots(Vec<Mutex<Option<Inspector>>>);

impl Slots {
    fn take(&self) -> Option<Inspector> {
        let mut slots = self.0.iter();
        slots.find_map(|slot| slot.try_lock().ok()?.take())
    }

    /// Stores an inspector in a free slot; returns the inspector if no slot is free.
    fn put(&self, inspector: Inspector) -> Option<Inspector> {
        let mut inspector = Some(inspector);
        for slot in &self.0 {
            if let Ok(mut slot) = slot.try_lock()
                && slot.is_none()
            {
                *slot = inspector.take();
                break;
            }
        }
        inspector
    }
}

impl InForce {
    fn new(set: RuleSet, version: u64, workers: usize) -> Self {
        let mut made = Self {
            version,
            set,
            inspectors: Slots::default(),
            left: Slots::default(),
            counters: Vec::new(),
        };
        made.make_room(workers);
        made
    }

    /// Adds slots until there is one for each of `workers` workers.
    fn make_room(&mut self, workers: usize) {
        while self.inspectors.0.len() < workers {
            let inspector = Inspector::new(&self.set, RATE_COUNTERS);
            self.counters.push(inspector.counters());
            self.inspectors.0.push(Mutex::new(Some(inspector)));
            self.left.0.push(Mutex::default());
        }
    }

    /// Replaces a worker's inspector by one of this set. The call never waits and frees no memory.
    pub fn change(&self, inspector: &mut Inspector) {
        // This set has one inspector for each worker.
        let next = self.inspectors.take();
        let next = next.unwrap_or_else(|| Inspector::new(&self.set, RATE_COUNTERS));
        let before = std::mem::replace(inspector, next);
        // A slot is always free, because there is a slot for each inspector of this set.
        drop(self.left.put(before));
    }
}

/// The description of a rule in force, for events and metrics.
pub(super) struct Known {
    pub about: About,
    /// True if the rule drops or rejects matching packets.
    pub drops: bool,
}

/// The version of a rule set, and the counters of its rules by worker.
type OfVersion = (u64, Vec<Arc<[RuleCounters]>>);

struct State {
    swapped: Swapped<InForce>,
    /// The descriptions of the rules by version of the rule set, the newest last.
    about: Vec<(u64, Arc<Vec<Known>>)>,
    counters: OfVersion,
    /// The indices of the rules of the current rule set that have a separate metric.
    shown: Vec<u32>,
    /// The number of existing or planned workers and slow paths.
    workers: usize,
    /// The number of workers and slow paths that have started.
    made: usize,
    read: Read,
}

/// The result of reading rules.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Read {
    /// The number of rules in force.
    pub rules: usize,
    /// The number of rules that were skipped because of an error.
    #[serde(default)]
    pub mistaken: usize,
    /// The first error, with its position; none if there was no error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_mistake: Option<String>,
    /// The number of rules that were skipped because a part is unsupported.
    pub left_out: usize,
    /// The number of rules that are in force without their unsupported parts.
    pub in_part: usize,
    /// The number of rules that were skipped because an earlier rule has the same identifier.
    pub doubled: usize,
    /// The number of rules that contain each unsupported option.
    pub not_understood: BTreeMap<String, usize>,
    /// The memory of the pattern search, in bytes.
    pub memory_bytes: usize,
}

/// A rule, with the cost of its evaluations and the number of its matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Costs {
    /// The generator identifier of the rule.
    pub gid: u32,
    /// The identifier of the rule.
    pub sid: u32,
    /// The message of the rule.
    pub msg: String,
    /// The number of evaluations of the rule.
    pub asked: u64,
    /// The number of matches of the rule.
    pub fitted: u64,
    /// The total time of the rule's evaluations in those packets that were timed in detail, in ticks.
    pub ticks: u64,
    /// The number of the rule's evaluations in those packets that were timed in detail.
    pub timed: u64,
}

/// Compiled rules, and the result of reading them.
pub(super) type Compiled = (RuleSet, Read);

/// The control plane of the rules.
pub(super) struct Rules {
    checked: Checked,
    state: Mutex<State>,
}

impl Rules {
    pub fn new(checked: &Checked, (set, read): Compiled, workers: usize) -> Self {
        let about = describe(&set);
        // Each worker has a slow path.
        let workers = 2 * workers;
        let in_force = InForce::new(set, 1, workers);
        let counters = in_force.counters.clone();
        Self {
            checked: checked.clone(),
            state: Mutex::new(State {
                swapped: Swapped::new(in_force),
                about: vec![(1, about)],
                counters: (1, counters),
                shown: Vec::new(),
                workers,
                made: 0,
                read,
            }),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates one more worker's access to the rules in force, and its inspector for them.
    pub fn worker(&self) -> (InUse<InForce>, Inspector) {
        let mut state = self.lock();
        state.made += 1;
        state.workers = state.workers.max(state.made);
        let in_use = state.swapped.worker();
        let present = state.swapped.present();
        let inspector = present.inspectors.take();
        let is_one_more = inspector.is_none();
        let inspector = inspector.unwrap_or_else(|| Inspector::new(&present.set, RATE_COUNTERS));
        if is_one_more {
            state.counters.1.push(inspector.counters());
        }
        (in_use, inspector)
    }

    /// Reads all files again and swaps the rules. After an error the rules in force stay, unless the settings say that
    /// errors only skip their rules.
    ///
    /// # Errors
    /// Returns the error in one line.
    pub fn reload(&self) -> Result<Read, String> {
        let (set, read) = compile(&self.checked, self.checked.refuses.reload)?;
        let about = describe(&set);
        let (version, workers) = {
            let state = self.lock();
            (state.about.last().map_or(0, |it| it.0) + 1, state.workers)
        };
        let mut in_force = InForce::new(set, version, workers);
        let mut state = self.lock();
        // Another worker may have started while the rules were compiled.
        in_force.make_room(state.workers);
        state.counters = (version, in_force.counters.clone());
        state.shown.clear();
        state.about.push((version, about));
        let surplus = state.about.len().saturating_sub(KEPT);
        state.about.drain(..surplus);
        state.swapped.swap(in_force);
        state.read = read.clone();
        Ok(read)
    }

    /// Waits until all workers use the rules in force, and frees earlier rule sets. Returns false if that takes longer
    /// than `patience`. The call makes no other thread wait.
    pub fn settle(&self, patience: Duration) -> bool {
        let since = Instant::now();
        loop {
            let mut state = self.lock();
            let have_moved = state.swapped.settle(Duration::ZERO);
            let left = &state.swapped.present().left;
            let left: Vec<Inspector> = std::iter::from_fn(|| left.take()).collect();
            drop(state);
            drop(left);
            if have_moved || since.elapsed() >= patience {
                return have_moved;
            }
            pause(since);
        }
    }

    pub fn read(&self) -> Read {
        self.lock().read.clone()
    }

    /// Returns the descriptions of the rules in a rule set; none if the version is too old.
    pub fn described(&self, version: u64) -> Option<Arc<Vec<Known>>> {
        let state = self.lock();
        let found = state.about.iter().find(|it| it.0 == version);
        found.map(|it| Arc::clone(&it.1))
    }

    /// Returns the number of packets of all workers that matched this rule. Returns none if no such rule is in force,
    /// or if the rules are being changed. The call never waits.
    pub fn fitted(&self, id: u32) -> Option<u64> {
        let state = self.state.try_lock().ok()?;
        let (version, workers) = &state.counters;
        let (_, about) = state.about.iter().find(|it| it.0 == *version)?;
        let of_it = |rule: &usize| about[*rule].about.id == id;
        let rules: Vec<_> = (0..about.len()).filter(of_it).collect();
        let fitted = |rule: &usize| {
            let counters = workers.iter().filter_map(|it| it.get(*rule));
            counters.map(|it| it.counts().fitted).sum::<u64>()
        };
        (!rules.is_empty()).then(|| rules.iter().map(fitted).sum())
    }

    /// Returns the number of matches since the rules were read: of each rule with a counter of its own, and the sum of
    /// all other rules. At most [`MOST_SHOWN`] rules have counters of their own. These are the rules that matched
    /// first, so that no counter disappears later.
    pub fn hits(&self) -> (Vec<(About, u64)>, u64) {
        let mut state = self.lock();
        let State {
            about,
            counters: (version, workers),
            shown,
            ..
        } = &mut *state;
        let Some((_, about)) = about.iter().find(|it| it.0 == *version) else {
            return (Vec::new(), 0);
        };
        let fitted = |rule: usize| -> u64 {
            let each = workers.iter().filter_map(|counters| counters.get(rule));
            each.map(|it| it.counts().fitted).sum()
        };
        let (mut hits, mut others) = (Vec::new(), 0);
        for (rule, Known { about, .. }) in about.iter().enumerate() {
            let count = fitted(rule);
            if count == 0 {
                continue;
            }
            let number = rule as u32;
            let is_shown = shown.contains(&number);
            if !is_shown && shown.len() < MOST_SHOWN {
                shown.push(number);
            } else if !is_shown {
                others += count;
                continue;
            }
            hits.push((about.clone(), count));
        }
        (hits, others)
    }

    /// Returns up to `most` evaluated rules, those with the highest cost first. Among rules with the same cost, those
    /// with the most matches are first.
    pub fn top(&self, most: usize) -> Vec<Costs> {
        let state = self.lock();
        let (version, workers) = &state.counters;
        let Some((_, about)) = state.about.iter().find(|it| it.0 == *version) else {
            return Vec::new();
        };
        let mut all: Vec<Costs> = (0..about.len())
            .map(|rule| {
                let about = &about[rule].about;
                let mut costs = Costs {
                    gid: about.group,
                    sid: about.id,
                    msg: about.message.clone(),
                    asked: 0,
                    fitted: 0,
                    ticks: 0,
                    timed: 0,
                };
                for counters in workers {
                    let counts = counters
                        .get(rule)
                        .map(RuleCounters::counts)
                        .unwrap_or_default();
                    costs.asked += counts.asked;
                    costs.fitted += counts.fitted;
                    costs.ticks += counts.ticks;
                    costs.timed += counts.timed;
                }
                costs
            })
            .filter(|costs| costs.asked > 0)
            .collect();
        all.sort_by_key(|costs| std::cmp::Reverse((costs.ticks, costs.fitted, costs.asked)));
        all.truncate(most);
        all
    }
}

fn describe(set: &RuleSet) -> Arc<Vec<Known>> {
    let known = set.rules().iter().map(|rule| Known {
        about: rule.about.clone(),
        drops: matches!(rule.action, Action::Drop | Action::Reject),
    });
    Arc::new(known.collect())
}

/// Reads the rules in files.
///
/// # Errors
/// Fails if a file cannot be read.
pub fn read_files<P: AsRef<Path>>(files: &[P], options: &Options) -> Result<Reading, String> {
    let mut reading = Reading::default();
    for file in files {
        let file = file.as_ref();
        let cannot = |e: std::io::Error| format!("{}: {e}", file.display());
        let size = std::fs::metadata(file).map_err(cannot)?;
        let wrong = |what: &str| Err(format!("{}: {what}", file.display()));
        if !size.is_file() {
            return wrong("expected a file of rules, not a folder or a device");
        }
        if size.len() > MOST_FILE_BYTES {
            return wrong(&format!(
                "{} bytes of rules: the maximum is {MOST_FILE_BYTES}: use several files",
                size.len()
            ));
        }
        // Old rules have messages in other character sets than UTF-8.
        let bytes = std::fs::read(file).map_err(cannot)?;
        reading.read(&String::from_utf8_lossy(&bytes), options);
    }
    Ok(reading)
}

/// Reads files and compiles their rules, except those with errors.
///
/// # Errors
/// Fails if a file cannot be read. If an error refuses all rules, returns the first error with file, line and column,
/// and the number of further errors.
pub(super) fn compile(checked: &Checked, refuses: bool) -> Result<Compiled, String> {
    let reading = read_files(&checked.rules, &checked.options)?;
    let first_mistake = first_mistake(&checked.rules, &reading);
    if let Some(first) = &first_mistake
        && refuses
    {
        return Err(first.clone());
    }
    let mut read = Read {
        rules: reading.rules.len(),
        mistaken: reading.mistaken,
        first_mistake,
        left_out: reading.left_out,
        in_part: reading.in_part,
        doubled: reading.doubled,
        not_understood: reading
            .not_understood
            .iter()
            .map(|(name, rules)| (name.clone(), rules.len()))
            .collect(),
        memory_bytes: 0,
    };
    let set = RuleSet::with_matcher(reading.rules, reading.names, checked.matcher)?;
    read.memory_bytes = set.memory_bytes();
    Ok((set, read))
}

/// Returns the first error with its position, and the number of further errors; none if there is no error.
fn first_mistake(files: &[PathBuf], reading: &Reading) -> Option<String> {
    let (file, mistake) = reading.mistakes.first()?;
    let more = match reading.mistaken - 1 {
        0 => String::new(),
        1 => " (and 1 more error; `taut ips check` lists both)".to_string(),
        n => format!(" (and {n} more errors; `taut ips check` lists them)"),
    };
    Some(format!("{}:{mistake}{more}", files[*file].display()))
}
