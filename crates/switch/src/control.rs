//! The control plane of the switch: it stores the rules, and writes each of them into the tables that the worker reads.

use super::action::{Action, Instructions};
use super::at_work::{AtWork, Worker};
use super::count::Count;
use super::group::{Group, MOST_GROUPS};
use super::key::Key;
use super::meter::{MOST_METERS, Meter};
use super::refusal::Refused;
use super::shape::{GroupState, MeterState, Shape, Table};
use super::table::{
    Full, Head, MOST_RULES, MOST_TUPLES, Mask, Memory, Slot, TABLES, Tuple, slots_for,
};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use taut_function::mix::Seeded;
use taut_function::table_swap::{InUse, Swapped};
use taut_sys::filled_on_huge_pages;

/// The time limit for the worker to begin another batch, so that a change is in force.
const PATIENCE: Duration = Duration::from_secs(2);

/// A rule of the switch: a match and its instructions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    pub table: u8,
    /// The priority: of several rules that match a packet, the rule with the highest priority applies.
    pub priority: u16,
    /// The bits of the key (the packet's fields) that a packet must have to match; bits that are 0 in `mask` are
    /// ignored.
    pub value: Key,
    pub mask: Key,
    pub does: Instructions,
    /// The cookie (an opaque number) that the creator of the rule chose.
    pub cookie: u64,
    /// The flags of the rule in OpenFlow's encoding.
    pub flags: u16,
    /// The idle timeout in seconds; 0 for never.
    pub idle_s: u16,
    /// The hard timeout in seconds; 0 for never.
    pub hard_s: u16,
}

/// A rule that is in force, with its creation time and its place in the worker's tables.
#[derive(Debug)]
pub(super) struct Kept {
    pub rule: Rule,
    tuple: u16,
    slots: Vec<Slot>,
    pub made: Instant,
}

#[derive(Debug)]
struct TupleState {
    tuple: Tuple,
    table: u8,
    /// The number of rules of each priority.
    priorities: BTreeMap<u16, u32>,
}

/// The identifier of a rule, which is also the index of the rule's counter.
pub(super) type RuleId = u32;

#[derive(Debug)]
pub(super) struct Control {
    memory: Arc<Memory>,
    counts: Arc<Vec<Count>>,
    shape: Swapped<Shape>,
    /// True if the worker does not yet have the newest tuples, groups and meters.
    is_behind: bool,
    at_work: AtWork,
    tuples: Vec<Option<TupleState>>,
    by_mask: HashMap<(u8, Key), u16, Seeded>,
    rules: Vec<Option<Kept>>,
    /// For each rule identifier, the cookie and the table-miss flag of the rule. They stay after the rule is removed,
    /// until the identifier is reused.
    names: Vec<Name>,
    many: usize,
    /// The rules by match. A match is the index of the tuple, and the compared bits of the key. Rules with the same
    /// match are in descending order of priority.
    by_key: HashMap<(u16, Key), Vec<RuleId>, Seeded>,
    timed: BTreeSet<RuleId>,
    free_slots: Vec<Slot>,
    free_ids: Vec<RuleId>,
    free_tuples: Vec<u16>,
    /// The slots of removed rules that the worker may still read.
    retired_slots: Vec<Slot>,
    retired_ids: Vec<RuleId>,
    retired_tuples: Vec<u16>,
    groups: BTreeMap<u32, (Group, Arc<GroupState>)>,
    meters: BTreeMap<u32, (Meter, Arc<MeterState>)>,
    /// The total number of rules that scans have visited since the start.
    looked: Cell<u64>,
    /// The identifier of the rule with timeouts that is checked next.
    timed_next: RuleId,
}

/// The fields by which controllers identify a rule: its cookie, and whether it is the table-miss rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name {
    pub cookie: u64,
    /// True if the rule matches all packets and has the lowest priority (the table-miss rule).
    pub is_last: bool,
}

impl Name {
    /// The value for packets that no rule has sent to the controller: all bits of the cookie are set. (OpenFlow 1.3.5,
    /// section 7.4.1.)
    pub const NOBODY: Self = Self {
        cookie: u64::MAX,
        is_last: false,
    };

    fn of(rule: &Rule) -> Self {
        Self {
            cookie: rule.cookie,
            is_last: rule.priority == 0 && rule.mask == Key::default(),
        }
    }
}

/// The number of rules that one step of a scan of all rules visits, if the scan is split into steps.
const AT_ONCE: usize = 4096;

impl Control {
    /// Creates a control plane with capacity for `most_rules` rules.
    pub fn new(most_rules: usize) -> Self {
        let most_rules = most_rules.clamp(1, MOST_RULES);
        let memory = Memory::new(most_rules);
        Self {
            counts: Arc::new(filled_on_huge_pages(most_rules, Count::default)),
            shape: Swapped::new(Shape::default()),
            is_behind: false,
            at_work: AtWork::default(),
            tuples: Vec::new(),
            by_mask: HashMap::default(),
            rules: Vec::new(),
            names: Vec::new(),
            many: 0,
            by_key: HashMap::default(),
            timed: BTreeSet::new(),
            free_slots: (0..memory.slots() as Slot).rev().collect(),
            free_ids: (0..most_rules as RuleId).rev().collect(),
            free_tuples: Vec::new(),
            retired_slots: Vec::new(),
            retired_ids: Vec::new(),
            retired_tuples: Vec::new(),
            groups: BTreeMap::new(),
            meters: BTreeMap::new(),
            looked: Cell::new(0),
            timed_next: 0,
            memory,
        }
    }

    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub fn counts(&self) -> &Arc<Vec<Count>> {
        &self.counts
    }

    /// Returns the newest [`Shape`]: the tuples, groups and meters. The worker has it already, or gets it with its
    /// first batch after [`Control::tell`].
    pub fn shape(&self) -> &Shape {
        self.shape.present()
    }

    /// Attaches the worker, of which there is only one: returns its access to the tuples, groups and meters, and its
    /// counter of batches.
    pub fn follow(&mut self) -> (InUse<Shape>, Worker) {
        self.tell();
        (self.shape.worker(), self.at_work.worker())
    }

    /// Returns true if at least one rule has a timeout.
    pub fn is_timed(&self) -> bool {
        !self.timed.is_empty()
    }

    /// Returns true if the worker may need memory for packets: for added tags, or for copies that a group changes.
    pub fn makes_packets(&self) -> bool {
        let buckets = self.groups.values().flat_map(|(group, _)| &group.buckets);
        let mut of_buckets = buckets.flat_map(|bucket| &bucket.actions);
        let mut of_rules = self.rules().flat_map(|(_, kept)| kept.rule.does.all());
        of_buckets.any(|action| action.changes())
            || of_rules.any(|action| matches!(action, Action::PushVlan(_)))
    }

    /// Returns the rules in force, with their identifiers. The visits are counted ([`Control::looked`]).
    pub fn rules(&self) -> impl Iterator<Item = (RuleId, &Kept)> {
        self.looks_at(self.rules.len());
        let all = (0..).zip(&self.rules);
        all.filter_map(|(id, kept)| Some((id, kept.as_ref()?)))
    }

    /// Visits up to `AT_ONCE` rule identifiers from `next` on, calls `each` for the rules among them, and advances
    /// `next`. Returns false if no identifiers are left.
    pub fn next_rules(&self, next: &mut RuleId, mut each: impl FnMut(RuleId, &Kept)) -> bool {
        let left = self.rules.get(*next as usize..).unwrap_or_default();
        let some = &left[..left.len().min(AT_ONCE)];
        self.looks_at(some.len());
        for (id, kept) in (*next..).zip(some) {
            if let Some(kept) = kept {
                each(id, kept);
            }
        }
        *next += some.len() as RuleId;
        !some.is_empty()
    }

    fn looks_at(&self, many: usize) {
        self.looked.set(self.looked.get() + many as u64);
    }

    /// Returns the total number of rules that scans have visited; a session uses the number to limit the cost of
    /// requests.
    pub fn looked(&self) -> u64 {
        self.looked.get()
    }

    /// Returns the maximum number of rules.
    pub fn room(&self) -> usize {
        self.counts.len()
    }

    pub fn rule(&self, id: RuleId) -> Option<&Kept> {
        self.rules.get(id as usize)?.as_ref()
    }

    /// Returns the fields by which controllers identify a rule.
    pub fn name(&self, id: RuleId) -> Name {
        self.names.get(id as usize).copied().unwrap_or(Name::NOBODY)
    }

    /// Returns how many packets and bytes a rule has matched.
    pub fn count(&self, id: RuleId) -> (u64, u64) {
        self.counts.get(id as usize).map_or((0, 0), Count::read)
    }

    pub fn clear_count(&self, id: RuleId) {
        if let Some(count) = self.counts.get(id as usize) {
            count.clear();
        }
    }

    /// Returns the group with the lowest identifier that is at least `id`; none if there is no such group.
    pub fn next_group(&self, id: u32) -> Option<(&Group, &GroupState)> {
        let (_, (group, state)) = self.groups.range(id..).next()?;
        Some((group, state))
    }

    /// Returns the meter with the lowest identifier that is at least `id`; none if there is no such meter.
    pub fn next_meter(&self, id: u32) -> Option<(&Meter, &MeterState)> {
        let (_, (meter, state)) = self.meters.range(id..).next()?;
        Some((meter, state))
    }

    /// Returns the rule with exactly the given match, in the given table and at the given priority; none if there is no
    /// such rule.
    pub fn same(&self, table: u8, priority: u16, value: &Key, mask: &Key) -> Option<RuleId> {
        let tuple = *self.by_mask.get(&(table, *mask))?;
        let ids = self.by_key.get(&(tuple, *value))?;
        let mut ids = ids.iter().copied();
        ids.find(|id| {
            self.rule(*id)
                .is_some_and(|kept| kept.rule.priority == priority)
        })
    }

    /// Returns true if a packet could match both `rule` and an existing rule of the same table and priority.
    pub fn overlaps(&self, rule: &Rule) -> bool {
        self.rules().any(|(_, kept)| {
            let other = &kept.rule;
            let both = rule.mask.and(&other.mask);
            (other.table, other.priority) == (rule.table, rule.priority)
                && rule.value.and(&both) == other.value.and(&both)
        })
    }

    fn check<'a>(&self, actions: impl IntoIterator<Item = &'a Action>) -> Result<(), Refused> {
        for action in actions {
            match *action {
                Action::Group(id) if !self.groups.contains_key(&id) => {
                    return Err(Refused::NoSuchGroup);
                }
                Action::Meter(id) if !self.meters.contains_key(&id) => {
                    return Err(Refused::NoSuchMeter);
                }
                Action::Goto(table) if table >= TABLES => return Err(Refused::NoSuchTable),
                _ => {}
            }
        }
        Ok(())
    }

    /// Adds a rule, unless a rule with the same table, match and priority exists.
    pub fn add(&mut self, rule: Rule) -> Result<RuleId, Refused> {
        if self
            .same(rule.table, rule.priority, &rule.value, &rule.mask)
            .is_some()
        {
            return Err(Refused::Duplicate);
        }
        self.insert(rule)
    }

    /// Adds a rule. No other rule may have the same table, match and priority.
    fn insert(&mut self, rule: Rule) -> Result<RuleId, Refused> {
        if rule.table >= TABLES {
            return Err(Refused::NoSuchTable);
        }
        self.check(rule.does.all())?;
        let steps = rule.does.steps(rule.table)?;
        self.make_room(slots_for(steps.len()), 1)?;
        let tuple = self.tuple(&rule)?;
        let Some(id) = self.free_ids.pop() else {
            self.leave(tuple);
            return Err(Refused::TableFull);
        };
        self.clear_count(id);
        let now = taut_sys::ticks();
        self.counts[id as usize]
            .used_ticks
            .store(now, Ordering::Relaxed);
        let slots = self.take_slots(steps.len());
        let head = Head {
            priority: rule.priority,
            tuple,
            counter: id,
        };
        if let Some(Some(state)) = self.tuples.get(usize::from(tuple)) {
            let key = (&state.tuple, &rule.value);
            self.memory.write(&slots, key, head, &steps);
        }
        if let Err(full) = self.put_by_key(&rule, tuple, id, &slots) {
            self.free_ids.push(id);
            self.free_slots.extend(slots);
            self.leave(tuple);
            return Err(full.into());
        }
        if rule.idle_s != 0 || rule.hard_s != 0 {
            self.timed.insert(id);
        }
        let priority = rule.priority;
        if self.rules.len() <= id as usize {
            self.rules.resize_with(id as usize + 1, || None);
            self.names.resize(id as usize + 1, Name::NOBODY);
        }
        self.names[id as usize] = Name::of(&rule);
        self.rules[id as usize] = Some(Kept {
            rule,
            tuple,
            slots,
            made: Instant::now(),
        });
        self.many += 1;
        self.enter(tuple, priority);
        Ok(id)
    }

    /// Adds a rule to the list of rules with the same match, in descending order of priority. The worker sees only the
    /// first rule of the list.
    fn put_by_key(
        &mut self,
        rule: &Rule,
        tuple: u16,
        id: RuleId,
        slots: &[Slot],
    ) -> Result<(), Full> {
        let of_key = self.by_key.entry((tuple, rule.value)).or_default();
        let priority_of = |id: &RuleId| {
            let kept = self.rules.get(*id as usize).and_then(Option::as_ref);
            kept.map_or(0, |kept| kept.rule.priority)
        };
        let at = of_key.partition_point(|other| priority_of(other) > rule.priority);
        let before = of_key.first().copied();
        of_key.insert(at, id);
        if at != 0 {
            return Ok(());
        }
        let instead = before.and_then(|other| {
            let kept = self.rules.get(other as usize)?.as_ref()?;
            kept.slots.first().copied()
        });
        let state = self.tuples.get(usize::from(tuple)).and_then(Option::as_ref);
        let put = state.map_or(Err(Full), |state| {
            self.memory
                .put(&state.tuple, &rule.value, slots[0], instead)
        });
        if put.is_err() {
            // Both buckets of the rule's hash are full, so the insertion is undone.
            let of_key = self.by_key.entry((tuple, rule.value)).or_default();
            of_key.retain(|other| *other != id);
            if of_key.is_empty() {
                self.by_key.remove(&(tuple, rule.value));
            }
        }
        put
    }

    /// Adds a rule, which replaces an existing rule with the same match. The counts of the replaced rule continue if
    /// `keeps_counts` is set.
    pub fn replace(&mut self, rule: Rule, keeps_counts: bool) -> Result<(), Refused> {
        let same = self.same(rule.table, rule.priority, &rule.value, &rule.mask);
        let Some(id) = same else {
            return self.insert(rule).map(|_| ());
        };
        self.change(id, rule.does.clone())?;
        if !keeps_counts {
            self.clear_count(id);
        }
        let is_timed = rule.idle_s != 0 || rule.hard_s != 0;
        match is_timed {
            true => self.timed.insert(id),
            false => self.timed.remove(&id),
        };
        if let Some(kept) = self.rules.get_mut(id as usize).and_then(Option::as_mut) {
            self.names[id as usize] = Name::of(&rule);
            kept.rule = rule;
            kept.made = Instant::now();
        }
        let now = taut_sys::ticks();
        self.counts[id as usize]
            .used_ticks
            .store(now, Ordering::Relaxed);
        Ok(())
    }

    /// Replaces the instructions of a rule; its counts continue.
    pub fn change(&mut self, id: RuleId, does: Instructions) -> Result<(), Refused> {
        self.check(does.all())?;
        let Some(kept) = self.rule(id) else {
            return Ok(());
        };
        let steps = does.steps(kept.rule.table)?;
        self.make_room(slots_for(steps.len()), 0)?;
        let slots = self.take_slots(steps.len());
        let Some(kept) = self.rules.get_mut(id as usize).and_then(Option::as_mut) else {
            return Ok(());
        };
        let head = Head {
            priority: kept.rule.priority,
            tuple: kept.tuple,
            counter: id,
        };
        if let Some(Some(state)) = self.tuples.get(usize::from(kept.tuple)) {
            let key = (&state.tuple, &kept.rule.value);
            self.memory.write(&slots, key, head, &steps);
        }
        let is_first = self
            .by_key
            .get(&(kept.tuple, kept.rule.value))
            .is_some_and(|ids| ids.first() == Some(&id));
        if let Some(Some(state)) = self
            .tuples
            .get(usize::from(kept.tuple))
            .filter(|_| is_first)
        {
            let instead = kept.slots.first().copied();
            self.memory
                .put(&state.tuple, &kept.rule.value, slots[0], instead)?;
        }
        kept.rule.does = does;
        self.retired_slots
            .extend(std::mem::replace(&mut kept.slots, slots));
        Ok(())
    }

    /// Removes and returns a rule; none if there is no rule with the given identifier.
    pub fn remove(&mut self, id: RuleId) -> Option<Kept> {
        let kept = self.rules.get_mut(id as usize)?.take()?;
        self.many -= 1;
        self.timed.remove(&id);
        let key = (kept.tuple, kept.rule.value);
        let state = self.tuples.get_mut(usize::from(kept.tuple))?.as_mut()?;
        if let Some(ids) = self.by_key.get_mut(&key) {
            let was_first = ids.first() == Some(&id);
            ids.retain(|other| *other != id);
            let next = ids
                .first()
                .and_then(|next| self.rules.get(*next as usize)?.as_ref());
            let slot = kept.slots.first().copied();
            match (was_first, next.and_then(|next| next.slots.first())) {
                (true, Some(next)) => {
                    // There is always space: the slot of the removed rule.
                    let _ = self.memory.put(&state.tuple, &kept.rule.value, *next, slot);
                }
                (true, None) => {
                    if let Some(slot) = slot {
                        self.memory.take_out(&state.tuple, &kept.rule.value, slot);
                    }
                }
                (false, _) => {}
            }
            if ids.is_empty() {
                self.by_key.remove(&key);
            }
        }
        if let Some(many) = state.priorities.get_mut(&kept.rule.priority) {
            *many -= 1;
            if *many == 0 {
                state.priorities.remove(&kept.rule.priority);
            }
        }
        self.leave(kept.tuple);
        self.retired_slots.extend(&kept.slots);
        self.retired_ids.push(id);
        Some(kept)
    }

    /// Adds one to the number of rules of the given priority in the tuple with index `number`.
    fn enter(&mut self, number: u16, priority: u16) {
        let Some(Some(state)) = self.tuples.get_mut(usize::from(number)) else {
            return;
        };
        *state.priorities.entry(priority).or_default() += 1;
        let is_first = state.priorities.values().take(2).sum::<u32>() == 1;
        if is_first || priority > state.tuple.highest {
            state.tuple.highest = priority;
            self.is_behind = true;
        }
    }

    /// Removes the tuple with index `number` if its last rule has been removed.
    fn leave(&mut self, number: u16) {
        let Some(state) = &mut self.tuples[usize::from(number)] else {
            return;
        };
        match state.priorities.last_key_value() {
            None => {
                self.by_mask.remove(&(state.table, state.tuple.mask.bits));
                self.tuples[usize::from(number)] = None;
                self.retired_tuples.push(number);
                self.is_behind = true;
            }
            Some((highest, _)) if *highest != state.tuple.highest => {
                state.tuple.highest = *highest;
                self.is_behind = true;
            }
            Some(_) => {}
        }
    }

    /// Checks the next timed rules, and removes those with an expired timeout. Returns the removed rules, each with
    /// true if its idle timeout expired. The last value is true if all timed rules have been checked; the next call
    /// then begins with the first timed rule.
    pub fn expired(
        &mut self,
        now: Instant,
        now_ticks: u64,
        ticks_per_s: u64,
    ) -> (Vec<(RuleId, Kept, bool)>, bool) {
        let mut over = Vec::new();
        let some = self.timed.range(self.timed_next..).take(AT_ONCE);
        let (mut many, mut last) = (0, 0);
        for id in some {
            (many, last) = (many + 1, *id);
            let Some(kept) = self.rule(*id) else { continue };
            let rule = &kept.rule;
            let age = now.saturating_duration_since(kept.made);
            let used = self.counts[*id as usize].used_ticks.load(Ordering::Relaxed);
            let unused = now_ticks.saturating_sub(used);
            if rule.hard_s != 0 && age >= Duration::from_secs(u64::from(rule.hard_s)) {
                over.push((*id, false));
            } else if rule.idle_s != 0 && unused >= u64::from(rule.idle_s) * ticks_per_s {
                over.push((*id, true));
            }
        }
        let is_end = many < AT_ONCE;
        self.timed_next = if is_end { 0 } else { last + 1 };
        let taken = over.into_iter();
        let taken = taken.filter_map(|(id, is_idle)| Some((id, self.remove(id)?, is_idle)));
        (taken.collect(), is_end)
    }

    pub fn add_group(&mut self, group: Group) -> Result<(), Refused> {
        if self.groups.contains_key(&group.id) {
            return Err(Refused::Exists);
        }
        if self.groups.len() >= MOST_GROUPS {
            return Err(Refused::TooMany);
        }
        self.put_group(group)
    }

    pub fn change_group(&mut self, group: Group) -> Result<(), Refused> {
        if !self.groups.contains_key(&group.id) {
            return Err(Refused::NoSuchGroup);
        }
        self.put_group(group)
    }

    fn put_group(&mut self, group: Group) -> Result<(), Refused> {
        group.check()?;
        for bucket in &group.buckets {
            self.check(&bucket.actions)?;
        }
        let made = self.groups.get(&group.id).map(|(_, state)| state.made);
        let state = GroupState::new(&group, made.unwrap_or_else(Instant::now))?;
        let state = Arc::new(state);
        self.groups.insert(group.id, (group, state));
        self.is_behind = true;
        Ok(())
    }

    /// Removes the groups whose identifiers `wanted` selects, and the rules with actions that refer to them. Returns
    /// the removed rules. (OpenFlow 1.3.5, section 6.6.)
    pub fn remove_groups(&mut self, wanted: impl Fn(u32) -> bool) -> Vec<(RuleId, Kept)> {
        let before = self.groups.len();
        self.groups.retain(|id, _| !wanted(*id));
        self.is_behind |= self.groups.len() < before;
        self.remove_rules_with(|action| matches!(action, Action::Group(id) if wanted(*id)))
    }

    pub fn add_meter(&mut self, meter: Meter) -> Result<(), Refused> {
        if self.meters.contains_key(&meter.id) {
            return Err(Refused::Exists);
        }
        if self.meters.len() >= MOST_METERS {
            return Err(Refused::TooMany);
        }
        self.put_meter(meter)
    }

    pub fn change_meter(&mut self, meter: Meter) -> Result<(), Refused> {
        if !self.meters.contains_key(&meter.id) {
            return Err(Refused::NoSuchMeter);
        }
        self.put_meter(meter)
    }

    fn put_meter(&mut self, meter: Meter) -> Result<(), Refused> {
        meter.check()?;
        let made = self.meters.get(&meter.id).map(|(_, state)| state.made);
        let state = Arc::new(MeterState::new(&meter, made.unwrap_or_else(Instant::now)));
        self.meters.insert(meter.id, (meter, state));
        self.is_behind = true;
        Ok(())
    }

    /// Removes the meters whose identifiers `wanted` selects, and the rules that use them. Returns the removed rules.
    pub fn remove_meters(&mut self, wanted: impl Fn(u32) -> bool) -> Vec<(RuleId, Kept)> {
        let before = self.meters.len();
        self.meters.retain(|id, _| !wanted(*id));
        self.is_behind |= self.meters.len() < before;
        self.remove_rules_with(|action| matches!(action, Action::Meter(id) if wanted(*id)))
    }

    fn remove_rules_with(&mut self, wanted: impl Fn(&Action) -> bool) -> Vec<(RuleId, Kept)> {
        let with = |(id, kept): (RuleId, &Kept)| kept.rule.does.all().any(&wanted).then_some(id);
        let ids: Vec<RuleId> = self.rules().filter_map(with).collect();
        let taken = ids.into_iter();
        taken
            .filter_map(|id| Some((id, self.remove(id)?)))
            .collect()
    }

    /// Waits until every batch that the worker began before this call has ended, so that all changes are in force.
    pub fn settle(&mut self) -> Result<(), Refused> {
        self.tell();
        let is_settled = self.at_work.settle(PATIENCE);
        is_settled.then_some(()).ok_or(Refused::Stuck)
    }

    /// Waits as [`Control::settle`] does, and makes the memory of removed rules available again.
    fn recover(&mut self) -> Result<(), Refused> {
        self.settle()?;
        self.free_slots.append(&mut self.retired_slots);
        self.free_ids.append(&mut self.retired_ids);
        self.free_tuples.append(&mut self.retired_tuples);
        Ok(())
    }

    /// Returns the index of the tuple of a rule. A tuple contains the rules of a table with the same mask. Creates the
    /// tuple if it does not exist.
    fn tuple(&mut self, rule: &Rule) -> Result<u16, Refused> {
        if let Some(number) = self.by_mask.get(&(rule.table, rule.mask)) {
            return Ok(*number);
        }
        if self.tuples.len() >= MOST_TUPLES && self.free_tuples.is_empty() {
            self.recover()?;
        }
        let free = self.free_tuples.pop();
        let number = free.map_or(self.tuples.len(), usize::from);
        if number >= MOST_TUPLES {
            return Err(Refused::TooManyMasks);
        }
        let number = number as u16;
        let state = Some(TupleState {
            tuple: Tuple::new(number, rule.mask, rule.priority),
            table: rule.table,
            priorities: BTreeMap::new(),
        });
        match free {
            Some(free) => self.tuples[usize::from(free)] = state,
            None => self.tuples.push(state),
        }
        self.by_mask.insert((rule.table, rule.mask), number);
        Ok(number)
    }

    /// Ensures that `slots` slots of the worker's memory and `ids` rule identifiers are free.
    fn make_room(&mut self, slots: usize, ids: usize) -> Result<(), Refused> {
        let is_enough = |it: &Self| it.free_slots.len() >= slots && it.free_ids.len() >= ids;
        if !is_enough(self) && !self.retired_slots.is_empty() {
            self.recover()?;
        }
        is_enough(self).then_some(()).ok_or(Refused::TableFull)
    }

    fn take_slots(&mut self, steps: usize) -> Vec<Slot> {
        let left = self.free_slots.len().saturating_sub(slots_for(steps));
        self.free_slots.split_off(left)
    }

    /// Sends the current tuples, groups and meters to the worker; one call suffices for many changes. A new rule in a
    /// tuple that the worker already has is in force without this call.
    pub fn tell(&mut self) {
        if !std::mem::take(&mut self.is_behind) {
            return;
        }
        let mut shape = Shape::default();
        for state in self.tuples.iter().flatten() {
            let table = usize::from(state.table);
            if shape.tables.len() <= table {
                shape.tables.resize_with(table + 1, Table::default);
            }
            shape.tables[table].tuples.push(state.tuple.clone());
        }
        for table in &mut shape.tables {
            table.asked = Mask::of_all(&table.tuples);
            table
                .tuples
                .sort_by_key(|tuple| std::cmp::Reverse(tuple.highest));
        }
        let groups = self.groups.iter();
        shape.groups = groups
            .map(|(id, (_, state))| (*id, Arc::clone(state)))
            .collect();
        let meters = self.meters.iter();
        shape.meters = meters
            .map(|(id, (_, state))| (*id, Arc::clone(state)))
            .collect();
        self.shape.swap(shape);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::key::Field;

    fn rule(ports: u128, source: u128) -> Rule {
        let (mut value, mut mask) = (Key::default(), Key::default());
        mask.set(Field::Source, 0xffff_ffff);
        value.set(Field::Source, source);
        mask.set(Field::DestinationPort, ports);
        Rule {
            table: 0,
            priority: 1,
            value,
            mask,
            does: Vec::new().into(),
            cookie: 0,
            flags: 0,
            idle_s: 0,
            hard_s: 0,
        }
    }

    /// A rule that is refused because both its buckets are full uses up no mask. Otherwise each attempt would use up
    /// one of the masks, of which there are only [`MOST_TUPLES`].
    #[test]
    fn rules_refused_by_a_full_table_use_up_no_mask() {
        let mut control = Control::new(64);
        let first = control.add(rule(0, 0)).unwrap();
        let tuple = control.tuples[usize::from(control.rule(first).unwrap().tuple)].as_ref();
        let (tuple, memory) = (tuple.unwrap().tuple.clone(), Arc::clone(&control.memory));
        let pair = memory.bucket_numbers(&tuple, &rule(0, 0).value);
        let in_pair = |source: &u128| {
            let numbers = memory.bucket_numbers(&tuple, &rule(0, *source).value);
            numbers.iter().all(|it| pair.contains(it))
        };
        let mut colliding = (1..1 << 24).filter(in_pair);
        let is_full = colliding.any(|source| control.add(rule(0, source)).is_err());
        assert!(is_full && control.many < 40, "{}", control.many);
        let (rules, mut refused) = (control.many, 0);
        for number in 1..0x8000 {
            match control.add(rule(number, 7 * number)) {
                Ok(id) => drop(control.remove(id).unwrap()),
                Err(Refused::TableFull) => refused += 1,
                Err(other) => panic!("{other:?}"),
            }
            assert_eq!((control.by_mask.len(), control.by_key.len()), (1, rules));
        }
        assert!(refused > 0);
    }
}
