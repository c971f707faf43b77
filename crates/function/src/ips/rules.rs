//! Rules in force: read from their files, made ready aside, and swapped whole while packets flow.

use super::settings::Checked;
use crate::changes::pause;
use crate::swapped::{InUse, Swapped};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use taut_inspect::compile::{Inspector, RuleCounters, RuleSet};
use taut_inspect::read::{Options, Reading};
use taut_inspect::rule::{About, Action};

/// Counters of rates that a worker has.
const RATE_COUNTERS: usize = 65_536;
/// Sets of rules whose descriptions are kept for events that are still to be written.
const KEPT: usize = 4;
/// Rules that have a counter of their own in metrics; the others have one together.
pub(super) const MOST_SHOWN: usize = 100;
/// A file of rules is no longer than this.
const MOST_FILE_BYTES: u64 = 256 << 20;

/// A set of rules, and memory to ask it for each worker.
pub(super) struct InForce {
    pub version: u64,
    pub set: RuleSet,
    /// Taken by workers, one each, when they first see the set.
    inspectors: Slots,
    /// Those of sets before, left here by workers to be freed by whoever decides.
    left: Slots,
    /// Counters of all that workers take.
    counters: Vec<Arc<[RuleCounters]>>,
}

/// Places in which memory changes hands without anybody waiting: who finds one locked goes on to the next.
#[derive(Default)]
struct Slots(Vec<Mutex<Option<Inspector>>>);

impl Slots {
    fn take(&self) -> Option<Inspector> {
        let mut slots = self.0.iter();
        slots.find_map(|slot| slot.try_lock().ok()?.take())
    }

    /// Puts one into a free place; gives it back where there is none.
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

    /// Has memory for as many workers.
    fn make_room(&mut self, workers: usize) {
        while self.inspectors.0.len() < workers {
            let inspector = Inspector::new(&self.set, RATE_COUNTERS);
            self.counters.push(inspector.counters());
            self.inspectors.0.push(Mutex::new(Some(inspector)));
            self.left.0.push(Mutex::default());
        }
    }

    /// Changes a worker's memory for that of this set. Never waits, and frees nothing.
    pub fn change(&self, inspector: &mut Inspector) {
        // There is one for each worker.
        let next = self.inspectors.take();
        let next = next.unwrap_or_else(|| Inspector::new(&self.set, RATE_COUNTERS));
        let before = std::mem::replace(inspector, next);
        // There is a place for each that was taken.
        drop(self.left.put(before));
    }
}

/// What is known of a rule.
pub(super) struct Known {
    pub about: About,
    /// Whether it drops or rejects what it fits.
    pub drops: bool,
}

/// Counters of all workers for a version, by worker.
type OfVersion = (u64, Vec<Arc<[RuleCounters]>>);

struct State {
    swapped: Swapped<InForce>,
    /// Descriptions of rules by version, the newest last.
    about: Vec<(u64, Arc<Vec<Known>>)>,
    counters: OfVersion,
    /// Rules of that version that have a counter of their own in metrics.
    shown: Vec<u32>,
    /// Workers and slow paths that there are, or are to be.
    workers: usize,
    /// Those of them that have begun.
    made: usize,
    read: Read,
}

/// What came of reading.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Read {
    /// Rules in force.
    pub rules: usize,
    /// Rules that were left out, as something in them is wrong.
    #[serde(default)]
    pub mistaken: usize,
    /// What is wrong first, with its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_mistake: Option<String>,
    /// Rules that were left out, as a part of them was not understood.
    pub left_out: usize,
    /// Rules that are in force without a part that was not understood.
    pub in_part: usize,
    /// Rules of a number that another one had before.
    pub doubled: usize,
    /// Numbers of rules by the option that was not understood.
    pub not_understood: BTreeMap<String, usize>,
    /// Bytes of memory that searches take.
    pub memory_bytes: usize,
}

/// A rule and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Costs {
    /// Group and number.
    pub gid: u32,
    /// Number.
    pub sid: u32,
    /// Message.
    pub msg: String,
    /// Times that it was asked.
    pub asked: u64,
    /// Times that it fitted.
    pub fitted: u64,
    /// Ticks that it took in packets that were looked at closely.
    pub ticks: u64,
    /// Times that it was asked in those.
    pub timed: u64,
}

/// Rules made ready, and what came of reading them.
pub(super) type Compiled = (RuleSet, Read);

/// The side that decides.
pub(super) struct Rules {
    checked: Checked,
    state: Mutex<State>,
}

impl Rules {
    pub fn new(checked: &Checked, (set, read): Compiled, workers: usize) -> Self {
        let about = describe(&set);
        // Each has a slow path.
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

    /// Makes the end of one more worker, and its memory to ask the rules that it begins with.
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

    /// Reads all files again and swaps the rules; those in force stay if anything is wrong, unless the settings say that
    /// mistakes only leave out their rules.
    ///
    /// # Errors
    /// What is wrong, in one line.
    pub fn reload(&self) -> Result<Read, String> {
        let (set, read) = compile(&self.checked, self.checked.refuses.reload)?;
        let about = describe(&set);
        let (version, workers) = {
            let state = self.lock();
            (state.about.last().map_or(0, |it| it.0) + 1, state.workers)
        };
        let mut in_force = InForce::new(set, version, workers);
        let mut state = self.lock();
        // Another one may have begun meanwhile.
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

    /// Waits until all workers go by the rules in force, and frees those before. Nobody else waits for that.
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

    /// What is known of the rules of a version; none once there were others for long.
    pub fn described(&self, version: u64) -> Option<Arc<Vec<Known>>> {
        let state = self.lock();
        let found = state.about.iter().find(|it| it.0 == version);
        found.map(|it| Arc::clone(&it.1))
    }

    /// Times that rules of this number have fitted packets of all workers; none if there is no such rule in force, or
    /// somebody changes the rules at the moment. Never waits.
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

    /// How often rules have fitted since they were read, those that did: the first ones that are seen to keep
    /// counters of their own, [`MOST_SHOWN`] at most, so that none comes and goes; and all others together.
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

    /// The rules that cost most or fitted most, those first.
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

/// Reads files of rules.
///
/// # Errors
/// When a file cannot be read.
pub fn read_files<P: AsRef<Path>>(files: &[P], options: &Options) -> Result<Reading, String> {
    let mut reading = Reading::default();
    for file in files {
        let file = file.as_ref();
        let cannot = |e: std::io::Error| format!("{}: {e}", file.display());
        let size = std::fs::metadata(file).map_err(cannot)?;
        let wrong = |what: &str| Err(format!("{}: {what}", file.display()));
        if !size.is_file() {
            return wrong("want a file of rules, not a folder or a device");
        }
        if size.len() > MOST_FILE_BYTES {
            return wrong(&format!(
                "{} bytes of rules, and {MOST_FILE_BYTES} are read at most: take several files",
                size.len()
            ));
        }
        // Old rules have messages in other character sets than UTF-8.
        let bytes = std::fs::read(file).map_err(cannot)?;
        reading.read(&String::from_utf8_lossy(&bytes), options);
    }
    Ok(reading)
}

/// Reads files and makes their rules ready, but for those with mistakes.
///
/// # Errors
/// When a file cannot be read; if a mistake refuses all, the first one, with file, line and column, and how many there are
/// besides.
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

/// The first mistake with its place, and how many there are besides.
fn first_mistake(files: &[PathBuf], reading: &Reading) -> Option<String> {
    let (file, mistake) = reading.mistakes.first()?;
    let more = match reading.mistaken - 1 {
        0 => String::new(),
        1 => " (and 1 mistake more; `taut ips check` lists both)".to_string(),
        n => format!(" (and {n} mistakes more; `taut ips check` lists them)"),
    };
    Some(format!("{}:{mistake}{more}", files[*file].display()))
}
