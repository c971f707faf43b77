//! The control plane of the gateway's bearers. It checks every change before a worker gets it, so that a set of changes
//! is applied as a whole or not at all.

use super::bearer::{Bearer, Kind, MOST_PATHS, Match, Path, Sources};
use super::buffer::HeldInAll;
use super::change::{Change, Sender, Senders};
use super::classifier::Classifier;
use super::event::Event;
use super::gtpc;
use super::limit::{Limited, Limits, Taken};
use super::numbered::Numbered;
use super::peers::Peers;
use super::pfcp::Counts;
use super::policing::{Meters, SharedMeters, UNMETERED};
use super::refusal::Refused;
use super::slot::Slot;
use super::state::Together;
use super::table::{Matching, Table};
use std::net::IpAddr;
use std::sync::Arc;

/// The authoritative bearer table, and the sender of changes to the workers' copies.
#[derive(Debug)]
pub struct Control {
    own: Vec<IpAddr>,
    table: Table,
    paths: Numbered<Path>,
    /// The source addresses that packets from tunnels must have.
    sources: Numbered<Sources>,
    limited: Limited,
    classifiers: Classifiers,
    /// The number of packets that all workers buffer together, and its limit.
    pub(super) held: HeldInAll,
    /// The ports and MAC addresses of tunnel peers, shared with the workers.
    peers: Peers,
    senders: Senders,
    /// Changes that belong to a refused set: the kernel programs have applied them, and undoing them has failed.
    owed: Vec<Change>,
    /// The counts of PFCP messages, if PFCP is in use.
    pub(super) signalling: Option<Arc<Counts>>,
    /// The counts of GTP-C messages, if GTP-C is in use.
    pub(super) gtpc: Option<Arc<gtpc::Counts>>,
}

/// A requested change of bearers; a set of requests is granted completely or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// Adds a bearer whose match must not exist yet.
    Add(Bearer),
    /// Adds a bearer, or replaces the bearer with the same match; the rate limits of that bearer stay.
    Put(Bearer),
    /// Removes a bearer, which must exist.
    Remove(Match),
    /// Replaces all rate limits of a bearer, which must exist.
    Limit(Match, Limits),
    /// Sends an end marker to a peer for one of its tunnels.
    EndMarker {
        /// The TEID that the peer assigned to the tunnel.
        teid: u32,
        /// The outer addresses of the tunnel.
        path: Path,
    },
    /// Sets the rules of the classifier with the given number, or removes the classifier.
    Classifier(u32, Option<Arc<Classifier>>),
    /// Drops the packets that are buffered for the bearer with the given match.
    Forget(Match),
}

impl Control {
    /// Creates the control plane for the worker that receives from `sender`. Control plane and worker share the meters,
    /// the buffer counts and the peers.
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
            paths: Numbered::new(MOST_PATHS),
            sources: Numbered::new(room),
            limited: Limited::new(room),
            classifiers: Classifiers::new(room),
            held,
            peers,
            senders: Senders::new(sender, meters),
            owed: Vec::new(),
            signalling: None,
            gtpc: None,
        }
    }

    /// Adds another worker: `make` is called with the changes that create the current state, and `sender` gets all
    /// later changes.
    pub(super) fn add_worker(&mut self, sender: Sender, mut make: impl FnMut(Change)) {
        for (number, path) in self.paths() {
            make(Change::Path(number, path));
        }
        for (number, sources) in self.sources.all() {
            make(Change::Sources(number, sources));
        }
        for (number, classifier) in self.classifiers.all() {
            let classifier = Some(Arc::clone(classifier));
            make(Change::Classifier { number, classifier });
        }
        self.table.entries().map(Change::Set).for_each(&mut make);
        for (key, meters) in self.limited.bearers() {
            make(Change::Police { key, meters });
        }
        self.senders.add(sender);
    }

    /// Returns the state that workers share, for an additional worker.
    pub(super) fn together(&self) -> Together {
        Together {
            meters: self.meters(),
            held: self.held.clone(),
            peers: self.peers.clone(),
        }
    }

    /// Returns the meters that all workers share.
    pub(super) fn meters(&self) -> SharedMeters {
        self.senders.meters.clone()
    }

    /// Returns the gateway's own addresses.
    pub fn own(&self) -> &[IpAddr] {
        &self.own
    }

    /// Returns the number of bearers, and the limit on that number.
    pub fn occupancy(&self) -> (usize, usize) {
        (self.table.len(), self.table.room())
    }

    /// Returns the bearer with the given match; none if there is no such bearer.
    pub fn get(&self, matched: Match) -> Option<Bearer> {
        Some(self.bearer(self.table.get(matched.key())?))
    }

    /// Returns all bearers, in arbitrary order.
    pub fn bearers(&self) -> impl Iterator<Item = Bearer> {
        self.table.entries().map(|slot| self.bearer(slot))
    }

    fn bearer(&self, slot: Slot) -> Bearer {
        let sources = match slot.kind() {
            Kind::Decapsulate => self.sources.get(slot.teid),
            _ => None,
        };
        Bearer::of_slot(slot, self.paths.get(slot.path.into()), sources)
    }

    /// Returns the rate limits of the bearer with the given match.
    pub fn limits(&self, matched: Match) -> Limits {
        self.limited.limits_of(matched.key())
    }

    /// Returns the packet counts of all workers, with the name of the `Outcome` for each.
    pub fn outcomes(&self) -> Vec<(&'static str, u64)> {
        self.senders.outcomes()
    }

    /// Disables waiting for the worker, for a caller that itself makes the worker apply changes.
    pub(super) fn never_wait(&mut self) {
        self.senders.never_wait();
    }

    /// Returns the next event of a worker, if there is one.
    pub(super) fn event(&mut self) -> Option<Event> {
        self.senders.event()
    }

    /// Returns the paths of all tunnels, with their numbers.
    pub(super) fn paths(&self) -> impl Iterator<Item = (u16, Path)> {
        self.paths.all().map(|(number, path)| (number as u16, path))
    }

    /// Sends an echo request on a path.
    pub(super) fn ask(&mut self, path: u16, sequence: u16) {
        // A worker that accepts no changes sends nothing.
        if self.catch_up().is_ok() {
            self.senders.send(&[Change::Echo { path, sequence }]);
        }
    }

    /// Returns an unused number for a classifier, other than those in `taken`; none if all are in use.
    pub(super) fn classifier_number(&mut self, taken: &[u32]) -> Option<u32> {
        self.classifiers.number(taken)
    }

    /// Returns the numbers of all classifiers.
    pub(super) fn classifiers(&self) -> Vec<u32> {
        self.classifiers.all().map(|(number, _)| number).collect()
    }

    /// Returns the classifier with the given number; none if the number is not in use.
    pub(super) fn classifier(&self, number: u32) -> Option<&Arc<Classifier>> {
        self.classifiers.get(number)
    }

    /// Returns the numbers of the meters of the bearer with the given key.
    pub(super) fn meters_of(&self, key: u64) -> Meters {
        self.limited.meters_of(key)
    }

    /// Returns how many bearers, paths and meters exist.
    pub(super) fn in_use(&self) -> (usize, usize, usize) {
        let paths = self.paths.len();
        (self.table.len(), paths, self.limited.in_use().0)
    }

    /// Grants all requests in `wishes`, in order, or none. Granted changes always reach the worker, before any later
    /// changes; [`Control::settle`] waits until they are in force.
    ///
    /// # Errors
    /// Returns the number of the first request that cannot be granted, from 0, and the reason.
    pub fn grant(&mut self, wishes: &[Wish]) -> Result<(), (usize, Refused)> {
        self.catch_up().map_err(|refused| (0, refused))?;
        let mut plan = Plan {
            undo: Vec::with_capacity(wishes.len()),
            changes: Vec::with_capacity(wishes.len()),
            let_go: Vec::new(),
            meters_let_go: Vec::new(),
        };
        self.classifiers.drop_retired();
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
            // The kernel may have applied only some of the set's changes. The kernel's entries for all of them are
            // therefore set to the state of this table.
            self.owed = self.still_refused(changes);
            return Err((0, refused));
        }
        for slot in plan.let_go {
            self.release(slot);
        }
        for meter in plan.meters_let_go {
            self.limited.release(meter);
        }
        for step in plan.undo {
            if let Undo::Classifier(_, Some(before)) = step {
                self.classifiers.retire(before);
            }
        }
        self.senders.send(&plan.changes);
        Ok(())
    }

    /// Sends all granted changes, except those that are already on their way to the worker. No set is granted while
    /// earlier changes could not be sent, so at most one set of changes waits.
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

    /// Makes the kernel's entries that `changes` concern equal to those of the authoritative table; returns the changes
    /// that the kernel refuses.
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
                // No bearer uses a new path yet.
                Change::Path(..)
                | Change::Sources(..)
                | Change::EndMarker { .. }
                | Change::Echo { .. }
                | Change::Classifier { .. }
                | Change::Forget(_) => return false,
            };
            self.senders.mirror(&[now]).is_err()
        });
        changes
    }

    fn undo(&mut self, plan: Plan) {
        for change in plan.changes {
            if let Change::EndMarker { path, .. } = change {
                self.paths.release(path.into());
            }
        }
        for step in plan.undo.into_iter().rev() {
            match step {
                Undo::Slot(key, before) => {
                    if let Some(now) = self.table.remove(key) {
                        self.release(now);
                    }
                    // The entry existed before, so there is space.
                    if let Some(slot) = before {
                        self.table.set(slot);
                    }
                }
                Undo::Meters(key, before) => {
                    self.limited.assign(key, before);
                    self.mark(key);
                }
                Undo::Taken(taken) => self.limited.give_back(taken),
                Undo::Classifier(number, before) => drop(self.classifiers.set(number, before)),
            }
        }
    }

    /// Releases the path and the source addresses whose numbers a removed entry has.
    fn release(&mut self, slot: Slot) {
        self.paths.release(slot.path.into());
        if slot.kind() == Kind::Decapsulate {
            self.sources.release(slot.teid);
        }
    }

    /// Waits until all granted changes are in force at the workers.
    ///
    /// # Errors
    /// Returns `Stuck` on a timeout; granted changes are applied once the worker accepts changes again.
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
                let path = self.take_path(bearer.path(), plan)?;
                let sources = match self.take_sources(bearer.sources(), plan) {
                    Ok(sources) => sources,
                    Err(refused) => {
                        self.paths.release(path.into());
                        return Err(refused);
                    }
                };
                let is_metered = before.is_some_and(Slot::is_metered);
                let slot = bearer.slot(path, sources).metered(is_metered);
                self.table.set(slot);
                plan.let_go.extend(before);
                plan.undo.push(Undo::Slot(key, before));
                plan.changes.push(Change::Set(slot));
            }
            Wish::Remove(matched) => {
                let key = matched.key();
                let before = self.table.remove(key).ok_or(Refused::Unknown(matched))?;
                plan.let_go.push(before);
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
                let path = self.take_path(Some(path), plan)?;
                plan.let_go.push(Slot {
                    path,
                    ..Slot::EMPTY
                });
                plan.changes.push(Change::EndMarker { path, teid });
            }
            Wish::Classifier(number, ref classifier) => {
                if !self.classifiers.can_be(number) {
                    return Err(Refused::TooManyClassifiers);
                }
                let before = self.classifiers.set(number, classifier.clone());
                plan.undo.push(Undo::Classifier(number, before));
                let classifier = classifier.clone();
                plan.changes.push(Change::Classifier { number, classifier });
            }
            Wish::Forget(matched) => plan.changes.push(Change::Forget(matched.key())),
        }
        Ok(())
    }

    /// Returns the number of a path, 0 for none, and counts one more table entry that uses the path. A new path is sent
    /// to the worker.
    fn take_path(&mut self, path: Option<Path>, plan: &mut Plan) -> Result<u16, Refused> {
        let taken = self.paths.take(path).ok_or(Refused::TooManyPaths)?;
        let number = taken.0 as u16;
        let new = path.filter(|_| taken.1);
        plan.changes
            .extend(new.map(|path| Change::Path(number, path)));
        Ok(number)
    }

    /// Returns the number under which the table stores a user's addresses, 0 for none, as [`Self::take_path`] does for
    /// a path.
    fn take_sources(&mut self, sources: Option<Sources>, plan: &mut Plan) -> Result<u32, Refused> {
        let room = self.table.room();
        let (number, is_new) = self.sources.take(sources).ok_or(Refused::Full(room))?;
        let new = sources.filter(|_| is_new);
        plan.changes
            .extend(new.map(|sources| Change::Sources(number, sources)));
        Ok(number)
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

    /// Sets the meter bit of the entry with the given key if its bearer has meters, and clears it otherwise. Returns
    /// the entry if it has changed.
    fn mark(&mut self, key: u64) -> Option<Slot> {
        let slot = self.table.get(key)?;
        let marked = slot.metered(self.limited.meters_of(key) != UNMETERED);
        (marked != slot).then(|| {
            self.table.set(marked);
            marked
        })
    }
}

/// A set of requests that is being granted.
struct Plan {
    /// The steps that undo the set, in the order of the set's changes. They run in reverse order.
    undo: Vec<Undo>,
    changes: Vec<Change>,
    /// The entries whose path and addresses are released after the whole set is granted, so that no number is
    /// reassigned within the set.
    let_go: Vec<Slot>,
    meters_let_go: Vec<u32>,
}

enum Undo {
    /// Restores the earlier table entry of a key; none if the key had no entry.
    Slot(u64, Option<Slot>),
    /// Restores the earlier meters of the bearer with a key.
    Meters(u64, Meters),
    Taken(Taken),
    /// Restores the earlier classifier of a number; none if the number had no classifier.
    Classifier(u32, Option<Arc<Classifier>>),
}

/// The classifiers by number, from 1.
#[derive(Debug)]
struct Classifiers {
    most: usize,
    all: Vec<Option<Arc<Classifier>>>,
    /// The number that was tried last: the search for an unused number starts after it.
    next: usize,
    /// The replaced classifiers that workers may still use. The control plane frees them, so that a worker never frees
    /// memory.
    retired: Vec<Arc<Classifier>>,
}

impl Classifiers {
    /// Creates numbers for as many classifiers as there may be bearers.
    fn new(most: usize) -> Self {
        Self {
            most,
            all: Vec::new(),
            next: 0,
            retired: Vec::new(),
        }
    }

    fn all(&self) -> impl Iterator<Item = (u32, &Arc<Classifier>)> {
        let numbered = (1..).zip(&self.all);
        numbered.filter_map(|(number, classifier)| Some((number, classifier.as_ref()?)))
    }

    fn get(&self, number: u32) -> Option<&Arc<Classifier>> {
        let place = (number as usize).checked_sub(1)?;
        self.all.get(place)?.as_ref()
    }

    fn can_be(&self, number: u32) -> bool {
        (1..=self.most).contains(&(number as usize))
    }

    /// Returns an unused number that is not in `taken`; none if all are in use. Numbers are tried round robin, so the
    /// returned number has been unused for long. There are as many numbers as bearers, and each classifier has one
    /// number, so the search is short.
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

    /// Assigns a classifier to a valid number, or removes the number's classifier. Returns the earlier classifier, if
    /// there was one.
    fn set(&mut self, number: u32, classifier: Option<Arc<Classifier>>) -> Option<Arc<Classifier>> {
        let place = (number as usize).wrapping_sub(1);
        if place >= self.all.len() {
            self.all.resize(place + 1, None);
        }
        std::mem::replace(&mut self.all[place], classifier)
    }

    fn retire(&mut self, classifier: Arc<Classifier>) {
        self.retired.push(classifier);
    }

    fn drop_retired(&mut self) {
        self.retired.retain(|it| Arc::strong_count(it) > 1);
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
        (control_of(room, sender, together(room)), receiver)
    }

    /// Creates the state that the workers of a test share, which takes some 20 ms.
    fn together(room: usize) -> Together {
        Together {
            meters: SharedMeters::new(room),
            held: HeldInAll::default(),
            peers: Peers::new(),
        }
    }

    fn control_of(room: usize, sender: Sender, all: Together) -> Control {
        let own = vec![[192, 0, 2, 1].into()];
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

    /// Returns the entries of the worker's table after `changes`: the TEID of each entry, by key.
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
    fn a_worker_receives_pending_changes_before_new_changes() {
        let (mut control, mut receiver) = control(10_000);
        control.senders.first.patience = Duration::ZERO;
        // There are more changes than the ring has space for, and no worker applies them.
        let many: Vec<_> = (1..=6000).map(|teid| Wish::Add(relay(teid, 7))).collect();
        let granted = control.grant(&many);
        // No further set is granted, so that the number of pending changes does not grow.
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

    /// A copy of the table that accepts a set number of changes and refuses all later ones.
    #[derive(Debug, Clone, Default)]
    struct Fickle {
        made: Arc<Mutex<Vec<Change>>>,
        /// The number of changes that this copy of the table still accepts before it refuses all.
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
        /// Returns the entries of this copy of the table and the meters of its bearers, each by key.
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
    fn a_request_refused_by_the_kernel_is_rolled_back_completely() {
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
        let all = together(9);
        for taken in 0..9 {
            for back in 0..12 {
                let kernel = Fickle::default();
                let (sender, mut receiver) = changes(None).unwrap();
                let sender = sender.with_mirror(kernel.clone());
                let mut control = control_of(9, sender, all.clone());
                kernel.takes.store(usize::MAX, Ordering::Relaxed);
                control.grant(&before).unwrap();
                sent(&mut receiver);
                let (said, limits) = (kernel.says(), control.limits(one));
                // The copy accepts some changes of the set. Then it accepts none, or only some of the changes that undo
                // the set.
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
    fn a_refused_request_leaves_bearers_and_paths_unchanged() {
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
        // Refused requests do not occupy a path number.
        assert_eq!(control.paths.len(), 2);
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
    fn bearers_share_named_meters_until_the_last_bearer_is_removed() {
        // The worker gets no meters; the kernel programs do, because they have meters of their own.
        let kernel = Fickle::default();
        kernel.takes.store(usize::MAX, Ordering::Relaxed);
        let (sender, mut receiver) = changes(None).unwrap();
        let mut control = control_of(10, sender.with_mirror(kernel.clone()), together(10));
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
            // The meter numbers of a bearer are sent before its entry is marked as metered.
            let at = |wanted: fn(&Change) -> bool| changes.iter().position(wanted).unwrap();
            let police = at(|c| matches!(c, Change::Police { key: 1, .. }));
            let set = at(|c| matches!(c, Change::Set(s) if s.key == 1 && s.is_metered()));
            assert!(police < set);
            assert_eq!(control.limits(two), [limit(1, 1000), limit(2, 500)]);
            // A bearer whose path changes keeps its meters if the rates are the same. Another rate restarts one meter,
            // which both bearers share.
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
            // The meter numbers are free again.
            assert_eq!(control.limited.in_use(), (0, 2));
        }
    }

    #[test]
    fn a_refused_request_leaves_every_meter_unchanged() {
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
        // The limit is two meters for each bearer of the table.
        let mut room = Limited::new(1);
        for rule in [1, 2] {
            room.take(limit(rule, 1).unwrap(), &mut Vec::new()).unwrap();
        }
        let full = room.take(limit(3, 1).unwrap(), &mut Vec::new());
        assert_eq!(full.unwrap_err(), Refused::TooManyMeters(2));
    }

    #[test]
    fn paths_are_shared_and_released_with_their_last_bearer() {
        let (mut control, mut receiver) = control(10);
        for round in 0..3 {
            let wishes = [relay(1, 7), relay(2, 7), relay(3, 8)].map(Wish::Add);
            control.grant(&wishes).unwrap();
            assert_eq!(control.paths.len(), 2, "round {round}");
            let changes = sent(&mut receiver);
            let paths = changes.iter().filter(|c| matches!(c, Change::Path(..)));
            assert_eq!(paths.count(), 2);
            control.grant(&[Wish::Put(relay(3, 7))]).unwrap();
            assert_eq!(control.paths.len(), 1);
            control
                .grant(&[1, 2, 3].map(|teid| Wish::Remove(Match::Teid(teid))))
                .unwrap();
            assert_eq!(control.paths.len(), 0);
            sent(&mut receiver);
        }
        assert_eq!(control.occupancy(), (0, 10));
    }
}
