//! What the gateway's bearers are, as whoever changes them sees it: checks every change before the worker hears
//! of it, so that a set of changes is made as a whole or not at all.

use super::bearer::{Bearer, Match, Path};
use super::change::{Change, Sender, Stuck};
use super::table::{Matching, Slot, Table};
use std::collections::HashMap;
use std::net::IpAddr;

/// Paths there can be: numbers of 16 bits, and 0 is for none.
const MOST_PATHS: usize = 65_535;

/// The authoritative table, and the way to the worker's copy of it.
#[derive(Debug)]
pub struct Control {
    own: Vec<IpAddr>,
    table: Table,
    paths: Paths,
    sender: Sender,
}

/// Why bearers are not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is one of that match.
    #[error("match {0} has a bearer already; remove it first")]
    Duplicate(Match),
    /// There is none of that match.
    #[error("match {0} has no bearer")]
    Unknown(Match),
    /// The table is full.
    #[error("the table is full: it has room for {0} bearers (setting `bearers`)")]
    Full(usize),
    /// There are too many pairs of addresses.
    #[error("too many different peers: {MOST_PATHS} at most")]
    TooManyPaths,
    /// The worker takes none.
    #[error("the data path takes no changes: it has ended, or hangs")]
    Stuck,
}

impl From<Stuck> for Refused {
    fn from(Stuck: Stuck) -> Self {
        Self::Stuck
    }
}

/// One wish of a set that is granted as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// A bearer that must not be there yet.
    Add(Bearer),
    /// A bearer in the place of one of its match, if there is one.
    Put(Bearer),
    /// A bearer that must be there goes.
    Remove(Match),
    /// No more packets will come through this tunnel of a peer.
    EndMarker {
        /// The identifier that the peer gave it.
        teid: u32,
        /// Between whom.
        path: Path,
    },
}

impl Control {
    pub(super) fn new(own: Vec<IpAddr>, room: usize, sender: Sender) -> Self {
        Self {
            own,
            table: Table::new(Matching::Hash, room),
            paths: Paths::default(),
            sender,
        }
    }

    /// The gateway's own addresses.
    pub fn own(&self) -> &[IpAddr] {
        &self.own
    }

    /// How many bearers there are, and how many there can be.
    pub fn occupancy(&self) -> (usize, usize) {
        (self.table.len(), self.table.room())
    }

    /// The bearer of a match.
    pub fn get(&self, matched: Match) -> Option<Bearer> {
        let slot = self.table.get(matched.key())?;
        Some(Bearer::of_slot(slot, self.paths.get(slot.path)))
    }

    /// All bearers, in no order that means anything.
    pub fn bearers(&self) -> impl Iterator<Item = Bearer> {
        let bearer = |slot: Slot| Bearer::of_slot(slot, self.paths.get(slot.path));
        self.table.entries().map(bearer)
    }

    /// What became of packets so far.
    pub fn fates(&self) -> Vec<(&'static str, u64)> {
        self.sender.fates.read()
    }

    /// Grants all wishes, in order, or none.
    ///
    /// # Errors
    /// The number of the first wish that cannot be granted, from 0, and why.
    pub fn grant(&mut self, wishes: &[Wish]) -> Result<(), (usize, Refused)> {
        let mut undo: Vec<(u64, Option<Slot>)> = Vec::with_capacity(wishes.len());
        let mut changes = Vec::with_capacity(wishes.len());
        // Paths are let go of when all is decided, so that none is given another meaning half-way.
        let mut let_go = Vec::new();
        for (number, wish) in wishes.iter().enumerate() {
            if let Err(refused) = self.decide(*wish, &mut undo, &mut changes, &mut let_go) {
                for change in changes {
                    if let Change::EndMarker { path, .. } = change {
                        self.paths.release(path);
                    }
                }
                for (key, before) in undo.into_iter().rev() {
                    if let Some(now) = self.table.remove(key) {
                        self.paths.release(now.path);
                    }
                    // It was there, so there is room.
                    if let Some(slot) = before {
                        self.table.set(slot);
                    }
                }
                return Err((number, refused));
            }
        }
        for path in let_go {
            self.paths.release(path);
        }
        let sent = self.sender.send(&changes);
        sent.map_err(|stuck| (0, stuck.into()))
    }

    /// Waits until everything granted is in force.
    ///
    /// # Errors
    /// `Stuck`.
    pub fn settle(&self) -> Result<(), Refused> {
        Ok(self.sender.settle()?)
    }

    fn decide(
        &mut self,
        wish: Wish,
        undo: &mut Vec<(u64, Option<Slot>)>,
        changes: &mut Vec<Change>,
        let_go: &mut Vec<u16>,
    ) -> Result<(), Refused> {
        match wish {
            Wish::Add(bearer) | Wish::Put(bearer) => {
                let key = bearer.matched.key();
                let before = self.table.get(key);
                if before.is_some() && matches!(wish, Wish::Add(_)) {
                    return Err(Refused::Duplicate(bearer.matched));
                }
                if before.is_none() && self.table.len() == self.table.room() {
                    return Err(Refused::Full(self.table.room()));
                }
                let path = self.paths.take(bearer.path(), changes)?;
                let slot = bearer.slot(path);
                self.table.set(slot);
                let_go.extend(before.map(|slot| slot.path));
                undo.push((key, before));
                changes.push(Change::Set(slot));
            }
            Wish::Remove(matched) => {
                let key = matched.key();
                let before = self.table.remove(key).ok_or(Refused::Unknown(matched))?;
                let_go.push(before.path);
                undo.push((key, Some(before)));
                changes.push(Change::Remove(key));
            }
            Wish::EndMarker { teid, path } => {
                let path = self.paths.take(Some(path), changes)?;
                let_go.push(path);
                changes.push(Change::EndMarker { path, teid });
            }
        }
        Ok(())
    }
}

/// Pairs of addresses by number, and how many entries use each.
#[derive(Debug, Default)]
struct Paths {
    numbers: HashMap<Path, u16>,
    /// By number less 1.
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
    use super::super::change::{Receiver, changes};
    use super::*;

    fn control(room: usize) -> (Control, Receiver) {
        let (sender, receiver) = changes(None);
        (
            Control::new(vec![[192, 0, 2, 1].into()], room, sender),
            receiver,
        )
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
            receiver.take(|change| all.push(change));
        }
        all
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
