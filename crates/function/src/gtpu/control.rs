//! The gateway's bearers, as whoever changes them sees them. Checks every change before the worker hears of it, so that
//! a set of changes is made as a whole or not at all.

use super::bearer::{Bearer, MOST_PATHS, Match, Path};
use super::change::{Change, Sender, Senders};
use super::event::Event;
use super::held::HeldInAll;
use super::limit::{Limited, Limits, Taken};
use super::peers::Peers;
use super::pfcp::Counts;
use super::policing::{Meters, SharedMeters, UNMETERED};
use super::refusal::Refused;
use super::slot::Slot;
use super::sorting::Sorting;
use super::state::Together;
use super::table::{Matching, Table};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// The authoritative table, and the way to the worker's copy of it.
#[derive(Debug)]
pub struct Control {
    own: Vec<IpAddr>,
    table: Table,
    paths: Paths,
    limited: Limited,
    sortings: Sortings,
    /// Packets that all workers keep.
    pub(super) held: HeldInAll,
    /// What workers know of the other ends of paths.
    peers: Peers,
    senders: Senders,
    /// Changes that the kernel had made when it refused another one of their set, and would not take back.
    owed: Vec<Change>,
    /// Counts of PFCP, where it is spoken.
    pub(super) signalling: Option<Arc<Counts>>,
}

/// One wish of a set that is granted as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// A bearer that must not be there yet.
    Add(Bearer),
    /// A bearer in the place of one of its match, if there is one, whose limits it keeps.
    Put(Bearer),
    /// A bearer that must be there goes.
    Remove(Match),
    /// A bearer that must be there is held to these rates, and to no others.
    Limit(Match, Limits),
    /// No more packets will come through this tunnel of a peer.
    EndMarker {
        /// The identifier that the peer gave it.
        teid: u32,
        /// Ends of the tunnel.
        path: Path,
    },
    /// The rules of the sorting with that number, or none any more.
    Sorting(u32, Option<Arc<Sorting>>),
    /// The packets that are kept for the bearer of this match are dropped.
    Forget(Match),
}

impl Control {
    /// Makes the control of the worker at the other end of `sender`, which has all this together with it.
    pub(super) fn new(
        own: Vec<IpAddr>,
        room: usize,
        sender: Sender,
        Together {
            meters,
            held,
            peers,
        }: Together,
    ) -> Self {
        Self {
            own,
            table: Table::new(Matching::Hash, room),
            paths: Paths::default(),
            limited: Limited::new(room),
            sortings: Sortings::new(room),
            held,
            peers,
            senders: Senders::new(sender, meters),
            owed: Vec::new(),
            signalling: None,
        }
    }

    /// Lets another worker follow: `make` is told all there is, and `sender` what changes from now on.
    pub(super) fn add_worker(&mut self, sender: Sender, mut make: impl FnMut(Change)) {
        for (path, number) in self.paths.users.iter().zip(1..) {
            if let (Some(path), _) = path {
                make(Change::Path(number, *path));
            }
        }
        for (number, sorting) in self.sortings.all() {
            let sorting = Some(Arc::clone(sorting));
            make(Change::Sorting { number, sorting });
        }
        self.table.entries().map(Change::Set).for_each(&mut make);
        for (key, meters) in self.limited.bearers() {
            make(Change::Police { key, meters });
        }
        self.senders.add(sender);
    }

    /// What workers have together, for another one of them.
    pub(super) fn together(&self) -> Together {
        Together {
            meters: self.meters(),
            held: self.held.clone(),
            peers: self.peers.clone(),
        }
    }

    /// The meters that all workers share.
    pub(super) fn meters(&self) -> SharedMeters {
        self.senders.meters.clone()
    }

    /// The gateway's own addresses.
    pub fn own(&self) -> &[IpAddr] {
        &self.own
    }

    /// Returns how many bearers there are, and how many there can be.
    pub fn occupancy(&self) -> (usize, usize) {
        (self.table.len(), self.table.room())
    }

    /// The bearer of a match.
    pub fn get(&self, matched: Match) -> Option<Bearer> {
        let slot = self.table.get(matched.key())?;
        Some(Bearer::of_slot(slot, self.paths.get(slot.path)))
    }

    /// Returns all bearers, in no order that means anything.
    pub fn bearers(&self) -> impl Iterator<Item = Bearer> {
        let bearer = |slot: Slot| Bearer::of_slot(slot, self.paths.get(slot.path));
        self.table.entries().map(bearer)
    }

    /// The rates that the bearer of a match is held to.
    pub fn limits(&self, matched: Match) -> Limits {
        self.limited.limits_of(matched.key())
    }

    /// Returns what became of packets so far.
    pub fn outcomes(&self) -> Vec<(&'static str, u64)> {
        self.senders.outcomes()
    }

    /// Never waits for the worker, where nobody but the caller makes it take changes.
    pub(super) fn never_wait(&mut self) {
        self.senders.never_wait();
    }

    /// Returns the next thing that a worker has to tell, if there is one.
    pub(super) fn event(&mut self) -> Option<Event> {
        self.senders.event()
    }

    /// Returns the other ends of all tunnels, and the numbers of the ways there.
    pub(super) fn paths(&self) -> impl Iterator<Item = (u16, Path)> {
        let numbered = (1..).zip(&self.paths.users);
        numbered.filter_map(|(number, (path, _))| Some((number, (*path)?)))
    }

    /// Asks the other end of a path whether it is there.
    pub(super) fn ask(&mut self, path: u16, sequence: u16) {
        // One that takes nothing sends nothing.
        if self.catch_up().is_ok() {
            self.senders.send(&[Change::Echo { path, sequence }]);
        }
    }

    /// Returns a number for a sorting that is none of `taken`, if there is one.
    pub(super) fn sorting_number(&mut self, taken: &[u32]) -> Option<u32> {
        self.sortings.number(taken)
    }

    /// Numbers of all sortings.
    pub(super) fn sortings(&self) -> Vec<u32> {
        self.sortings.all().map(|(number, _)| number).collect()
    }

    /// The sorting of that number.
    pub(super) fn sorting(&self, number: u32) -> Option<&Arc<Sorting>> {
        self.sortings.get(number)
    }

    /// Numbers of the meters of a key's bearer.
    pub(super) fn meters_of(&self, key: u64) -> Meters {
        self.limited.meters_of(key)
    }

    /// Returns how many bearers, paths and meters there are.
    pub(super) fn in_use(&self) -> (usize, usize, usize) {
        let paths = self.paths.numbers.len();
        (self.table.len(), paths, self.limited.in_use().0)
    }

    /// Grants all wishes, in order, or none. What is granted reaches the worker in any case, at the latest before
    /// anything that is granted after it; [`Control::settle`] says when it has.
    ///
    /// # Errors
    /// The number of the first wish that cannot be granted, from 0, and why.
    pub fn grant(&mut self, wishes: &[Wish]) -> Result<(), (usize, Refused)> {
        self.catch_up().map_err(|refused| (0, refused))?;
        let mut plan = Plan {
            undo: Vec::with_capacity(wishes.len()),
            changes: Vec::with_capacity(wishes.len()),
            paths_let_go: Vec::new(),
            meters_let_go: Vec::new(),
        };
        self.sortings.drop_retired();
        for (number, wish) in wishes.iter().enumerate() {
            if let Err(refused) = self.decide(wish, &mut plan) {
                self.undo(plan);
                return Err((number, refused));
            }
        }
        if let Err(e) = self.senders.mirror(&plan.changes) {
            let changes = plan.changes.clone();
            self.undo(plan);
            let refused = Refused::Kernel(e.to_string());
            // It may take back more than it has made: what it says then is what this side says.
            self.owed = self.still_refused(changes);
            return Err((0, refused));
        }
        for path in plan.paths_let_go {
            self.paths.release(path);
        }
        for meter in plan.meters_let_go {
            self.limited.release(meter);
        }
        for step in plan.undo {
            if let Undo::Sorting(_, Some(before)) = step {
                self.sortings.retire(before);
            }
        }
        self.senders.send(&plan.changes);
        Ok(())
    }

    /// Brings everything up to what was granted so far, but for what is on its way to the worker: nothing is granted on
    /// top of what could not be sent, so that what waits is one set of changes at most.
    fn catch_up(&mut self) -> Result<(), Refused> {
        self.senders.catch_up()?;
        if !self.owed.is_empty() {
            let owed = std::mem::take(&mut self.owed);
            self.owed = self.still_refused(owed);
        }
        if self.owed.is_empty() {
            return Ok(());
        }
        let text = "it would not take back what it had made of a set of them";
        Err(Refused::Kernel(text.to_string()))
    }

    /// Makes the kernel say what this side says about all that `changes` are about; returns those that it refuses that
    /// of.
    fn still_refused(&self, mut changes: Vec<Change>) -> Vec<Change> {
        changes.retain(|change| {
            let now = match *change {
                Change::Set(Slot { key, .. }) | Change::Remove(key) => {
                    self.table.get(key).map_or(Change::Remove(key), Change::Set)
                }
                Change::Police { key, .. } => {
                    let meters = self.limited.meters_of(key);
                    Change::Police { key, meters }
                }
                Change::Meter { number, .. } => match self.limited.cost_of(number) {
                    Some(cost) => Change::Meter { number, cost },
                    None => return false,
                },
                // No bearer names a path that is new.
                Change::Path(..)
                | Change::EndMarker { .. }
                | Change::Echo { .. }
                | Change::Sorting { .. }
                | Change::Forget(_) => return false,
            };
            self.senders.mirror(&[now]).is_err()
        });
        changes
    }

    fn undo(&mut self, plan: Plan) {
        for change in plan.changes {
            if let Change::EndMarker { path, .. } = change {
                self.paths.release(path);
            }
        }
        for step in plan.undo.into_iter().rev() {
            match step {
                Undo::Slot(key, before) => {
                    if let Some(now) = self.table.remove(key) {
                        self.paths.release(now.path);
                    }
                    // It was there, so there is room.
                    if let Some(slot) = before {
                        self.table.set(slot);
                    }
                }
                Undo::Meters(key, before) => {
                    self.limited.assign(key, before);
                    self.mark(key);
                }
                Undo::Taken(taken) => self.limited.give_back(taken),
                Undo::Sorting(number, before) => drop(self.sortings.set(number, before)),
            }
        }
    }

    /// Waits until everything granted is in force.
    ///
    /// # Errors
    /// `Stuck`; what was granted is made once the worker takes changes again.
    pub fn settle(&mut self) -> Result<(), Refused> {
        Ok(self.senders.settle()?)
    }

    fn decide(&mut self, wish: &Wish, plan: &mut Plan) -> Result<(), Refused> {
        match *wish {
            Wish::Add(bearer) | Wish::Put(bearer) => {
                let key = bearer.matched.key();
                let before = self.table.get(key);
                if before.is_some() && matches!(wish, Wish::Add(_)) {
                    return Err(Refused::Duplicate(bearer.matched));
                }
                if before.is_none() && self.table.len() == self.table.room() {
                    return Err(Refused::Full(self.table.room()));
                }
                let path = self.paths.take(bearer.path(), &mut plan.changes)?;
                let is_metered = before.is_some_and(Slot::is_metered);
                let slot = bearer.slot(path).metered(is_metered);
                self.table.set(slot);
                plan.paths_let_go.extend(before.map(|slot| slot.path));
                plan.undo.push(Undo::Slot(key, before));
                plan.changes.push(Change::Set(slot));
            }
            Wish::Remove(matched) => {
                let key = matched.key();
                let before = self.table.remove(key).ok_or(Refused::Unknown(matched))?;
                plan.paths_let_go.push(before.path);
                plan.undo.push(Undo::Slot(key, Some(before)));
                plan.changes.push(Change::Remove(key));
                self.assign(key, UNMETERED, plan);
            }
            Wish::Limit(matched, limits) => {
                let key = matched.key();
                if self.table.get(key).is_none() {
                    return Err(Refused::Unknown(matched));
                }
                let mut meters = UNMETERED;
                for (meter, limit) in meters.iter_mut().zip(limits.into_iter().flatten()) {
                    let taken = self.limited.take(limit, &mut plan.changes)?;
                    plan.undo.push(Undo::Taken(taken));
                    *meter = taken.number;
                }
                self.assign(key, meters, plan);
                plan.changes.extend(self.mark(key).map(Change::Set));
            }
            Wish::EndMarker { teid, path } => {
                let path = self.paths.take(Some(path), &mut plan.changes)?;
                plan.paths_let_go.push(path);
                plan.changes.push(Change::EndMarker { path, teid });
            }
            Wish::Sorting(number, ref sorting) => {
                if !self.sortings.can_be(number) {
                    return Err(Refused::TooManySortings);
                }
                let before = self.sortings.set(number, sorting.clone());
                plan.undo.push(Undo::Sorting(number, before));
                let sorting = sorting.clone();
                plan.changes.push(Change::Sorting { number, sorting });
            }
            Wish::Forget(matched) => plan.changes.push(Change::Forget(matched.key())),
        }
        Ok(())
    }

    fn assign(&mut self, key: u64, meters: Meters, plan: &mut Plan) {
        let before = self.limited.assign(key, meters);
        let used = before.into_iter().filter(|number| *number != 0);
        plan.meters_let_go.extend(used);
        if before != meters {
            plan.undo.push(Undo::Meters(key, before));
            plan.changes.push(Change::Police { key, meters });
        }
    }

    /// Makes the entry say whether there are meters for it; returns the entry if it said otherwise.
    fn mark(&mut self, key: u64) -> Option<Slot> {
        let slot = self.table.get(key)?;
        let marked = slot.metered(self.limited.meters_of(key) != UNMETERED);
        (marked != slot).then(|| {
            self.table.set(marked);
            marked
        })
    }
}

/// A set of wishes that is being granted.
struct Plan {
    /// Steps that undo what was done so far, first step first.
    undo: Vec<Undo>,
    changes: Vec<Change>,
    /// Numbers are let go of when all is decided, so that none is given another meaning half-way.
    paths_let_go: Vec<u16>,
    meters_let_go: Vec<u32>,
}

enum Undo {
    /// The entry of this key was this one.
    Slot(u64, Option<Slot>),
    /// The bearer of this key had these meters.
    Meters(u64, Meters),
    Taken(Taken),
    /// The sorting of this number was this one.
    Sorting(u32, Option<Arc<Sorting>>),
}

/// Sortings by number, from 1.
#[derive(Debug)]
struct Sortings {
    most: usize,
    all: Vec<Option<Arc<Sorting>>>,
    /// Number after the one that was given last.
    next: usize,
    /// Sortings that workers may still have: the last one who drops one frees its memory, which is no worker's work.
    retired: Vec<Arc<Sorting>>,
}

impl Sortings {
    /// Makes numbers for as many as there may be bearers.
    fn new(most: usize) -> Self {
        Self {
            most,
            all: Vec::new(),
            next: 0,
            retired: Vec::new(),
        }
    }

    fn all(&self) -> impl Iterator<Item = (u32, &Arc<Sorting>)> {
        let numbered = (1..).zip(&self.all);
        numbered.filter_map(|(number, sorting)| Some((number, sorting.as_ref()?)))
    }

    fn get(&self, number: u32) -> Option<&Arc<Sorting>> {
        let place = (number as usize).checked_sub(1)?;
        self.all.get(place)?.as_ref()
    }

    fn can_be(&self, number: u32) -> bool {
        (1..=self.most).contains(&(number as usize))
    }

    /// Returns a number that is not in use: one that was not for as long as possible. Numbers are as many as bearers,
    /// and each sorting has one, so that one that is free is found soon.
    fn number(&mut self, taken: &[u32]) -> Option<u32> {
        for _ in 0..self.most {
            self.next = self.next % self.most + 1;
            let number = self.next as u32;
            if self.get(number).is_none() && !taken.contains(&number) {
                return Some(number);
            }
        }
        None
    }

    /// Gives a number, which can be one, its sorting; the one before.
    fn set(&mut self, number: u32, sorting: Option<Arc<Sorting>>) -> Option<Arc<Sorting>> {
        let place = (number as usize).wrapping_sub(1);
        if place >= self.all.len() {
            self.all.resize(place + 1, None);
        }
        std::mem::replace(&mut self.all[place], sorting)
    }

    fn retire(&mut self, sorting: Arc<Sorting>) {
        self.retired.push(sorting);
    }

    fn drop_retired(&mut self) {
        self.retired.retain(|it| Arc::strong_count(it) > 1);
    }
}

/// Pairs of addresses by number, and how many entries use each.
#[derive(Debug, Default)]
struct Paths {
    numbers: HashMap<Path, u16>,
    /// Path of each number less 1, and how many entries use it.
    users: Vec<(Option<Path>, u32)>,
    free: Vec<u16>,
}

impl Paths {
    fn get(&self, number: u16) -> Option<Path> {
        let index = usize::from(number).checked_sub(1)?;
        self.users.get(index)?.0
    }

    /// Counts one more user of `path`, 0 for none; a path that had none before is told to the worker.
    fn take(&mut self, path: Option<Path>, changes: &mut Vec<Change>) -> Result<u16, Refused> {
        let Some(path) = path else {
            return Ok(0);
        };
        if let Some(number) = self.numbers.get(&path) {
            self.users[usize::from(*number) - 1].1 += 1;
            return Ok(*number);
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.users.len() < MOST_PATHS => {
                self.users.push((None, 0));
                self.users.len() as u16
            }
            None => return Err(Refused::TooManyPaths),
        };
        self.users[usize::from(number) - 1] = (Some(path), 1);
        self.numbers.insert(path, number);
        changes.push(Change::Path(number, path));
        Ok(number)
    }

    fn release(&mut self, number: u16) {
        let Some(index) = usize::from(number).checked_sub(1) else {
            return;
        };
        let (path, users) = &mut self.users[index];
        *users -= 1;
        if *users == 0
            && let Some(path) = path.take()
        {
            self.numbers.remove(&path);
            self.free.push(number);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::bearer::Action;
    use super::super::change::{Mirror, Receiver, changes};
    use super::super::limit::{Limit, MeterName};
    use super::*;
    use std::collections::BTreeMap;
    use std::io;
    use std::num::NonZeroU64;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    fn control(room: usize) -> (Control, Receiver) {
        let (sender, receiver) = changes(None).unwrap();
        (control_of(room, sender), receiver)
    }

    fn control_of(room: usize, sender: Sender) -> Control {
        let own = vec![[192, 0, 2, 1].into()];
        let all = Together {
            meters: SharedMeters::new(room),
            held: HeldInAll::default(),
            peers: Peers::new(),
        };
        Control::new(own, room, sender, all)
    }

    fn relay(teid: u32, remote: u8) -> Bearer {
        let path = Path {
            local: [192, 0, 2, 1].into(),
            remote: [192, 0, 2, remote].into(),
        };
        Bearer {
            matched: Match::Teid(teid),
            action: Action::Relay { teid, path },
        }
    }

    fn sent(receiver: &mut Receiver) -> Vec<Change> {
        let mut all = Vec::new();
        let mut before = 1;
        while all.len() != before {
            before = all.len();
            receiver.ring.take(|change| all.push(change));
        }
        all
    }

    /// Returns what the worker's table says after these changes, by key.
    fn made(changes: &[Change]) -> BTreeMap<u64, u32> {
        let mut table = BTreeMap::new();
        for change in changes {
            match change {
                Change::Set(slot) => drop(table.insert(slot.key, slot.teid)),
                Change::Remove(key) => drop(table.remove(key)),
                _ => {}
            }
        }
        table
    }

    fn decided(control: &Control) -> BTreeMap<u64, u32> {
        let entries = control.table.entries();
        entries.map(|slot| (slot.key, slot.teid)).collect()
    }

    #[test]
    fn what_a_worker_did_not_take_it_gets_before_anything_else() {
        let (mut control, mut receiver) = control(10_000);
        control.senders.first.patience = Duration::ZERO;
        // More than the ring holds, and nobody takes any.
        let many: Vec<_> = (1..=6000).map(|teid| Wish::Add(relay(teid, 7))).collect();
        let granted = control.grant(&many);
        // Nothing is granted on top of it: what waits does not grow.
        let more = control.grant(&[Wish::Add(relay(7000, 7))]);
        assert_eq!(more, Err((0, Refused::Stuck)));
        assert_eq!(control.settle(), Err(Refused::Stuck));
        assert_eq!(control.occupancy().0, 6000);
        let mut changes = sent(&mut receiver);
        control.grant(&[Wish::Remove(Match::Teid(1))]).unwrap();
        changes.extend(sent(&mut receiver));
        control.settle().unwrap();
        assert_eq!(granted, Ok(()));
        assert_eq!(made(&changes), decided(&control));
    }

    /// A copy that refuses changes from one on.
    #[derive(Debug, Clone, Default)]
    struct Fickle {
        made: Arc<Mutex<Vec<Change>>>,
        /// Changes that it still takes.
        takes: Arc<AtomicUsize>,
    }

    impl Mirror for Fickle {
        fn make(&self, change: &Change) -> io::Result<()> {
            let takes = |takes: usize| takes.checked_sub(1);
            let order = Ordering::Relaxed;
            if self.takes.fetch_update(order, order, takes).is_err() {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            self.made.lock().unwrap().push(change.clone());
            Ok(())
        }
    }

    impl Fickle {
        /// Returns what it says, by key, of bearers and of their meters.
        fn says(&self) -> (BTreeMap<u64, u32>, BTreeMap<u64, Meters>) {
            let changes = self.made.lock().unwrap();
            let mut metered = BTreeMap::new();
            for change in changes.iter() {
                if let Change::Police { key, meters } = change {
                    metered.insert(*key, *meters);
                }
            }
            metered.retain(|_, meters| *meters != UNMETERED);
            (made(&changes), metered)
        }
    }

    #[test]
    fn what_the_kernel_refuses_half_way_is_refused_as_a_whole_and_taken_back() {
        let [one, two] = [1, 2].map(Match::Teid);
        let before = [
            Wish::Add(relay(1, 7)),
            Wish::Add(relay(2, 8)),
            Wish::Limit(one, [limit(1, 1000), None]),
        ];
        let wishes = [
            Wish::Remove(one),
            Wish::Put(relay(2, 9)),
            Wish::Limit(two, [limit(1, 5), limit(2, 5)]),
            Wish::Add(relay(3, 9)),
        ];
        for taken in 0..9 {
            for back in 0..12 {
                let kernel = Fickle::default();
                let (sender, mut receiver) = changes(None).unwrap();
                let sender = sender.with_mirror(kernel.clone());
                let mut control = control_of(9, sender);
                kernel.takes.store(usize::MAX, Ordering::Relaxed);
                control.grant(&before).unwrap();
                sent(&mut receiver);
                let (said, limits) = (kernel.says(), control.limits(one));
                // It takes some of the set, then none, or some of what is to be taken back.
                kernel.takes.store(taken, Ordering::Relaxed);
                let refused = control.grant(&wishes).unwrap_err();
                assert!(matches!(refused, (0, Refused::Kernel(_))), "{refused:?}");
                assert_eq!(sent(&mut receiver), []);
                assert_eq!(control.limits(one), limits);
                assert_eq!(decided(&control), said.0);
                kernel.takes.store(back, Ordering::Relaxed);
                let _ = control.grant(&[Wish::Remove(Match::Teid(99))]);
                kernel.takes.store(usize::MAX, Ordering::Relaxed);
                let unknown = control.grant(&[Wish::Remove(Match::Teid(99))]);
                assert_eq!(unknown, Err((0, Refused::Unknown(Match::Teid(99)))));
                assert_eq!(kernel.says(), said, "{taken} taken, {back} back");
            }
        }
    }

    #[test]
    fn a_refused_set_of_wishes_leaves_everything_as_it_was() {
        let (mut control, mut receiver) = control(3);
        control
            .grant(&[Wish::Add(relay(1, 7)), Wish::Add(relay(2, 8))])
            .unwrap();
        assert_eq!(sent(&mut receiver).len(), 4);
        let mut before: Vec<_> = control.bearers().map(|b| b.matched).collect();
        before.sort();
        let cases = [
            (
                vec![Wish::Remove(Match::Teid(1)), Wish::Add(relay(2, 9))],
                (1, Refused::Duplicate(Match::Teid(2))),
            ),
            (
                vec![
                    Wish::Put(relay(1, 9)),
                    Wish::Add(relay(3, 9)),
                    Wish::Add(relay(4, 9)),
                ],
                (2, Refused::Full(3)),
            ),
            (
                vec![Wish::Remove(Match::Teid(2)), Wish::Remove(Match::Teid(2))],
                (1, Refused::Unknown(Match::Teid(2))),
            ),
            (
                vec![Wish::Add(relay(3, 9)), Wish::Add(relay(3, 9))],
                (1, Refused::Duplicate(Match::Teid(3))),
            ),
        ];
        for (wishes, refused) in cases {
            assert_eq!(control.grant(&wishes), Err(refused));
            let mut now: Vec<_> = control.bearers().map(|b| b.matched).collect();
            now.sort();
            assert_eq!(now, before);
            assert_eq!(control.get(Match::Teid(1)), Some(relay(1, 7)));
            assert_eq!(sent(&mut receiver), []);
        }
        // Nothing of what was refused still holds a path.
        assert_eq!(control.paths.numbers.len(), 2);
    }

    fn limit(rule: u32, kbps: u64) -> Option<Limit> {
        let meter = MeterName {
            session: 1,
            rule,
            is_uplink: true,
        };
        let kbps = NonZeroU64::new(kbps).unwrap();
        Some(Limit { meter, kbps })
    }

    #[test]
    fn meters_are_shared_by_name_and_go_with_their_last_bearer() {
        // The worker is not told of meters; the kernel's programs, which have their own, are.
        let kernel = Fickle::default();
        kernel.takes.store(usize::MAX, Ordering::Relaxed);
        let (sender, mut receiver) = changes(None).unwrap();
        let mut control = control_of(10, sender.with_mirror(kernel.clone()));
        let [one, two] = [1, 2].map(Match::Teid);
        let begun = || {
            let made = std::mem::take(&mut *kernel.made.lock().unwrap());
            let is_meter = |change: &&Change| matches!(change, Change::Meter { .. });
            made.iter().filter(is_meter).count()
        };
        for round in 0..3 {
            let wishes = [
                Wish::Add(relay(1, 7)),
                Wish::Add(relay(2, 7)),
                Wish::Limit(one, [limit(1, 1000), None]),
                Wish::Limit(two, [limit(1, 1000), limit(2, 500)]),
            ];
            control.grant(&wishes).unwrap();
            let changes = sent(&mut receiver);
            assert_eq!(begun(), 2, "round {round}: {changes:?}");
            // Where its meters are is known before it is looked for.
            let at = |wanted: fn(&Change) -> bool| changes.iter().position(wanted).unwrap();
            let police = at(|c| matches!(c, Change::Police { key: 1, .. }));
            let set = at(|c| matches!(c, Change::Set(s) if s.key == 1 && s.is_metered()));
            assert!(police < set);
            assert_eq!(control.limits(two), [limit(1, 1000), limit(2, 500)]);
            // Another way and the same rates: the meters go on. Another rate: one begins anew, for both.
            control.grant(&[Wish::Put(relay(2, 8))]).unwrap();
            let changes = sent(&mut receiver);
            assert_eq!(begun(), 0, "{changes:?}");
            let metered = |c: &Change| matches!(c, Change::Set(slot) if slot.is_metered());
            assert!(changes.iter().any(metered), "{changes:?}");
            let faster = [
                Wish::Limit(one, [limit(1, 2000), None]),
                Wish::Limit(two, [limit(1, 2000), None]),
            ];
            control.grant(&faster).unwrap();
            let changes = sent(&mut receiver);
            assert_eq!(begun(), 1, "{changes:?}");
            assert_eq!(control.limits(two), [limit(1, 2000), None]);
            let none = Change::Police {
                key: 1,
                meters: UNMETERED,
            };
            control.grant(&[Wish::Limit(one, [None, None])]).unwrap();
            let changes = sent(&mut receiver);
            assert!(changes.contains(&none), "{changes:?}");
            let bare = |c: &Change| matches!(c, Change::Set(slot) if !slot.is_metered());
            assert!(changes.iter().any(bare), "{changes:?}");
            control.grant(&[one, two].map(Wish::Remove)).unwrap();
            let none = Change::Police {
                key: 2,
                meters: UNMETERED,
            };
            assert!(sent(&mut receiver).contains(&none));
            // Numbers come back.
            assert_eq!(control.limited.in_use(), (0, 2));
        }
    }

    #[test]
    fn a_refused_set_of_wishes_leaves_every_limit_as_it_was() {
        let (mut control, mut receiver) = control(3);
        let [one, two] = [1, 2].map(Match::Teid);
        let wishes = [
            Wish::Add(relay(1, 7)),
            Wish::Add(relay(2, 7)),
            Wish::Limit(one, [limit(1, 1000), None]),
        ];
        control.grant(&wishes).unwrap();
        sent(&mut receiver);
        let never = Wish::Remove(Match::Teid(9));
        for wishes in [
            vec![Wish::Limit(one, [limit(1, 5), limit(2, 5)])],
            vec![Wish::Limit(one, [None, None]), Wish::Put(relay(1, 8))],
            vec![Wish::Limit(two, [limit(1, 7), limit(3, 5)])],
            vec![Wish::Remove(one), Wish::Add(relay(1, 9))],
            vec![
                Wish::Remove(one),
                Wish::Add(relay(1, 9)),
                Wish::Limit(one, [limit(1, 9), None]),
                Wish::Limit(two, [limit(1, 8), None]),
            ],
        ] {
            let number = wishes.len();
            let refused = control.grant(&[wishes, vec![never.clone()]].concat());
            assert_eq!(refused, Err((number, Refused::Unknown(Match::Teid(9)))));
            assert_eq!(control.limits(one), [limit(1, 1000), None]);
            assert_eq!(control.limits(two), [None, None]);
            assert_eq!(control.limited.in_use().0, 1);
            let metered = [1, 2].map(|key| control.table.get(key).unwrap().is_metered());
            assert_eq!(metered, [true, false]);
            assert_eq!(sent(&mut receiver), []);
        }
        let unknown = Wish::Limit(Match::Teid(9), [None, None]);
        assert!(control.grant(&[unknown]).is_err());
        // There are two for each bearer of the table.
        let mut room = Limited::new(1);
        for rule in [1, 2] {
            room.take(limit(rule, 1).unwrap(), &mut Vec::new()).unwrap();
        }
        let full = room.take(limit(3, 1).unwrap(), &mut Vec::new());
        assert_eq!(full.unwrap_err(), Refused::TooManyMeters(2));
    }

    #[test]
    fn paths_are_shared_and_their_numbers_come_back() {
        let (mut control, mut receiver) = control(10);
        for round in 0..3 {
            let wishes = [relay(1, 7), relay(2, 7), relay(3, 8)].map(Wish::Add);
            control.grant(&wishes).unwrap();
            assert_eq!(control.paths.users.len(), 2, "round {round}");
            let changes = sent(&mut receiver);
            let paths = changes.iter().filter(|c| matches!(c, Change::Path(..)));
            assert_eq!(paths.count(), 2);
            control.grant(&[Wish::Put(relay(3, 7))]).unwrap();
            assert_eq!(control.paths.numbers.len(), 1);
            control
                .grant(&[1, 2, 3].map(|teid| Wish::Remove(Match::Teid(teid))))
                .unwrap();
            assert_eq!(control.paths.numbers.len(), 0);
            sent(&mut receiver);
        }
        assert_eq!(control.occupancy(), (0, 10));
    }
}
