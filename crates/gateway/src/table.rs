//! The bearer table: it maps a tunnel endpoint identifier or a user's address to the bearer's action.
//!
//! The search `hash` uses open addressing at half load by cache lines of four slots: 32 bytes per bearer. A lookup
//! touches one cache line, in a full table 1.05 on average. Lookups run a batch at a time, so that cache misses
//! overlap. A lookup compares its key with all four slots without a branch that could be mispredicted. The search
//! `linear` scans the identifiers from the first one on. The search `rules` compares every packet with one bearer after
//! another in several fields, as Lange et al. (CNSM 2015) did. `linear` and `rules` exist for study.

use super::Match;
use super::rules::{Asked, Rule};
use super::slot::Slot;
use serde::Deserialize;
use std::net::IpAddr;
use taut_port::BATCH_CAPACITY;
use taut_sys::{HashKey, filled_on_huge_pages};

/// The method by which a bearer table is searched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Matching {
    /// The table is searched in constant time.
    #[default]
    Hash,
    /// The table is searched from the first entry on, by its key.
    Linear,
    /// The table is searched from the first entry on, and each entry compares several header fields.
    Rules,
}

/// The number of slots in a cache line.
const LINE_SLOTS: usize = 4;

/// A cache line of a hash table. The hash of a key selects its home line, at whose first slot the search for the key
/// begins. The search ends at an empty slot, perhaps in a later line.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Line([Slot; LINE_SLOTS]);

impl Line {
    /// Returns the slot of `key` if it is in this line, or else an arbitrary slot: the caller compares the key.
    #[inline(always)]
    fn candidate(&self, key: u64) -> &Slot {
        let is = |place: usize| usize::from(self.0[place].key == key);
        &self.0[(is(1) | is(2) << 1 | (is(3) * 3)) % LINE_SLOTS]
    }

    fn has_empty(&self) -> bool {
        self.0.iter().any(|slot| slot.key == 0)
    }
}

/// The number of slots that a hash table has for each bearer of its capacity.
const SLOTS_PER_ENTRY: usize = 2;

/// The memory of a hash table for each bearer of its capacity, bytes.
pub const BYTES_PER_BEARER: usize = SLOTS_PER_ENTRY * size_of::<Slot>();

#[derive(Debug)]
pub(super) struct Table {
    matching: Matching,
    /// The cache lines of a `hash` table; empty if the table's capacity is 0.
    lines: Vec<Line>,
    /// The secret that is mixed into keys, so that a control plane cannot choose tunnels whose keys collide.
    secret: u64,
    /// The entries of a `linear` table or a `rules` table; empty in a `hash` table.
    list: Vec<Slot>,
    /// The rule of each entry of `list` in a `rules` table; empty in other tables.
    rules: Vec<Rule>,
    own: Vec<IpAddr>,
    entries: usize,
    room: usize,
}

impl Table {
    /// Creates a table with a capacity of `room` entries, and allocates all of its memory.
    pub fn new(matching: Matching, room: usize) -> Self {
        Self::of_gateway(matching, room, &[])
    }

    /// Creates a table for a gateway with the addresses `own`, which the rules of a `rules` table compare.
    pub fn of_gateway(matching: Matching, room: usize, own: &[IpAddr]) -> Self {
        let (mut lines, mut list, mut rules) = (Vec::new(), Vec::new(), Vec::new());
        match matching {
            Matching::Hash => {
                let count = (room * SLOTS_PER_ENTRY).div_ceil(LINE_SLOTS);
                // The memory is written, so that the kernel maps it now and not with the first packets.
                lines = filled_on_huge_pages(count, || Line([Slot::EMPTY; LINE_SLOTS]));
            }
            Matching::Linear => list.reserve_exact(room),
            Matching::Rules => {
                list.reserve_exact(room);
                rules.reserve_exact(room);
            }
        }
        Self {
            matching,
            lines,
            secret: HashKey::of_process().seed(),
            list,
            rules,
            own: own.to_vec(),
            entries: 0,
            room,
        }
    }

    pub fn len(&self) -> usize {
        self.entries
    }

    pub fn room(&self) -> usize {
        self.room
    }

    /// Returns every entry, in arbitrary order.
    pub fn entries(&self) -> impl Iterator<Item = Slot> {
        let in_lines = self.lines.iter().flat_map(|line| line.0);
        in_lines
            .chain(self.list.iter().copied())
            .filter(|slot| slot.key != 0)
    }

    /// Returns the line where the search for `key` begins. The line is chosen by multiplicative hashing: the high bits
    /// of the product are the mixed ones, and they scale to any number of lines.
    #[inline(always)]
    fn home(&self, key: u64) -> usize {
        let hash = (key ^ self.secret).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((u128::from(hash) * self.lines.len() as u128) >> 64) as usize
    }

    fn slot(&self, place: usize) -> &Slot {
        &self.lines[place / LINE_SLOTS].0[place % LINE_SLOTS]
    }

    fn slot_mut(&mut self, place: usize) -> &mut Slot {
        &mut self.lines[place / LINE_SLOTS].0[place % LINE_SLOTS]
    }

    fn after(&self, place: usize) -> usize {
        if place + 1 == self.lines.len() * LINE_SLOTS {
            0
        } else {
            place + 1
        }
    }

    /// Returns the position of `key` in a non-empty `hash` table (Ok), or the position where `key` would be added
    /// (Err).
    fn place(&self, key: u64) -> Result<usize, usize> {
        let mut place = self.home(key) * LINE_SLOTS;
        loop {
            match self.slot(place).key {
                found if found == key => return Ok(place),
                0 => return Err(place),
                _ => place = self.after(place),
            }
        }
    }

    /// Returns the entry with the key `key`, which is not 0; none if the table has no such entry.
    pub fn get(&self, key: u64) -> Option<Slot> {
        match self.matching {
            Matching::Hash if self.lines.is_empty() => None,
            Matching::Hash => self.place(key).ok().map(|place| *self.slot(place)),
            Matching::Linear | Matching::Rules => {
                self.list.iter().find(|slot| slot.key == key).copied()
            }
        }
    }

    /// Returns true if the table compares header fields ([`Self::taker`]) instead of keys.
    #[inline]
    pub fn has_rules(&self) -> bool {
        self.matching == Matching::Rules
    }

    /// Returns the entry of the first rule that matches a packet, or an entry with the key 0.
    #[inline]
    pub fn taker(&self, asked: &Asked) -> Slot {
        let mut rules = self.rules.iter();
        let place = rules.position(|rule| rule.takes(asked));
        let found = place.and_then(|place| self.list.get(place));
        found.copied().unwrap_or(Slot::EMPTY)
    }

    /// Looks up a batch of at most [`BATCH_CAPACITY`] keys: `found[i]` is the entry of `keys[i]`, or one with the key
    /// 0. A key of 0 finds nothing.
    #[inline]
    pub fn look_up(&self, keys: &[u64], found: &mut [Slot]) {
        if self.matching != Matching::Hash {
            for (key, found) in keys.iter().zip(found) {
                *found = self.get(*key).unwrap_or(Slot::EMPTY);
            }
            return;
        }
        if self.lines.is_empty() {
            found.fill(Slot::EMPTY);
            return;
        }
        // These loads do not wait for each other, so the cache misses of a batch overlap.
        let mut homes = [0; BATCH_CAPACITY];
        for ((key, found), home) in keys.iter().zip(found.iter_mut()).zip(&mut homes) {
            *home = self.home(*key);
            found.key = self.lines[*home].0[0].key;
        }
        for ((key, found), home) in keys.iter().zip(found).zip(homes) {
            let line = &self.lines[home];
            *found = *line.candidate(*key);
            if found.key != *key {
                *found = self.look_further(line, *key);
            }
        }
    }

    /// Looks up a `key` that is not in `line`, the line where its search begins.
    #[cold]
    fn look_further(&self, line: &Line, key: u64) -> Slot {
        if key == 0 || line.has_empty() {
            return Slot::EMPTY;
        }
        self.get(key).unwrap_or(Slot::EMPTY)
    }

    /// Adds an entry, or replaces the entry with the same key; returns false if the table is full.
    pub fn set(&mut self, slot: Slot) -> bool {
        debug_assert!(slot.key != 0);
        let place = match self.matching {
            Matching::Hash if self.lines.is_empty() => return false,
            Matching::Hash => self.place(slot.key),
            Matching::Linear | Matching::Rules => {
                let mut slots = self.list.iter();
                slots.position(|s| s.key == slot.key).ok_or(self.list.len())
            }
        };
        if place.is_err() {
            if self.entries == self.room {
                return false;
            }
            self.entries += 1;
        }
        match (self.matching, place) {
            (Matching::Hash, Ok(place) | Err(place)) => *self.slot_mut(place) = slot,
            (Matching::Linear | Matching::Rules, Ok(place)) => self.list[place] = slot,
            (Matching::Linear, Err(_)) => self.list.push(slot),
            (Matching::Rules, Err(_)) => {
                self.list.push(slot);
                self.rules
                    .push(Rule::of(Match::of_key(slot.key), &self.own));
            }
        }
        true
    }

    /// Removes and returns the entry of `key`; none if the table has no such entry.
    pub fn remove(&mut self, key: u64) -> Option<Slot> {
        if self.matching != Matching::Hash {
            let place = self.list.iter().position(|slot| slot.key == key)?;
            self.entries -= 1;
            if self.matching == Matching::Rules {
                self.rules.swap_remove(place);
            }
            return Some(self.list.swap_remove(place));
        }
        if self.lines.is_empty() {
            return None;
        }
        let mut gap = self.place(key).ok()?;
        let removed = *self.slot(gap);
        self.entries -= 1;
        // Later entries move up as far as their home lines allow, so that there are no tombstones.
        let mut place = gap;
        loop {
            place = self.after(place);
            let slot = *self.slot(place);
            if slot.key == 0 {
                break;
            }
            let home = self.home(slot.key) * LINE_SLOTS;
            let stays = if gap <= place {
                gap < home && home <= place
            } else {
                gap < home || home <= place
            };
            if !stays {
                *self.slot_mut(gap) = slot;
                gap = place;
            }
        }
        *self.slot_mut(gap) = Slot::EMPTY;
        Some(removed)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::slot::NO_QFI;
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn slot(key: u64, teid: u32) -> Slot {
        Slot {
            key,
            teid,
            path: 1,
            qfi: NO_QFI,
            action: 1,
        }
    }

    #[test]
    fn four_bearer_table_slots_fill_a_cache_line() {
        assert_eq!(size_of::<Slot>(), 16);
        assert_eq!(BYTES_PER_BEARER, 32);
    }

    #[test]
    fn a_million_bearers_are_found_and_the_next_is_refused() {
        let room = 1_000_000;
        let mut table = Table::new(Matching::Hash, room);
        for key in 1..=room as u64 {
            assert!(table.set(slot(key, key as u32)));
        }
        assert!(!table.set(slot(room as u64 + 1, 0)));
        assert!(table.set(slot(5, 6)), "a change needs no room");
        assert_eq!(table.len(), room);
        let keys: Vec<u64> = (1..=64).map(|i| i * 15_000).collect();
        let mut found = [Slot::default(); 64];
        table.look_up(&keys, &mut found);
        assert!(
            keys.iter()
                .zip(&found)
                .all(|(key, found)| found.key == *key)
        );
        assert_eq!(table.get(room as u64 + 1), None);
    }

    #[test]
    fn lookups_in_a_bearer_table_without_capacity_find_nothing() {
        for matching in [Matching::Hash, Matching::Linear, Matching::Rules] {
            let mut table = Table::new(matching, 0);
            assert!(!table.set(slot(1, 1)));
            let mut found = [slot(9, 9)];
            table.look_up(&[1], &mut found);
            assert_eq!((found[0].key, table.remove(1)), (0, None));
        }
    }

    proptest! {
        /// Under random insertions and removals, every kind of table contains the same entries as a map. There are few
        /// slots and few keys, so there are long runs of full slots, some of which wrap around at the end of the table.
        #[test]
        fn bearer_tables_contain_the_same_entries_as_a_hash_map(
            steps in proptest::collection::vec((any::<bool>(), 1u64..40, any::<u32>()), 1..300), spread: bool,
        ) {
            let key = |k: u64| if spread { k.wrapping_mul(0x1_0000_0001) } else { k };
            for matching in [Matching::Hash, Matching::Linear, Matching::Rules] {
                let mut table = Table::new(matching, 12);
                let mut map: HashMap<u64, u32> = HashMap::new();
                for (set, k, teid) in &steps {
                    if *set {
                        let fits = map.len() < 12 || map.contains_key(&key(*k));
                        prop_assert_eq!(table.set(slot(key(*k), *teid)), fits);
                        if fits {
                            map.insert(key(*k), *teid);
                        }
                    } else {
                        let removed = table.remove(key(*k)).map(|slot| slot.teid);
                        prop_assert_eq!(removed, map.remove(&key(*k)));
                    }
                    prop_assert_eq!(table.len(), map.len());
                }
                let keys: Vec<u64> = (0..40).map(key).collect();
                let mut found = [Slot::default(); 40];
                table.look_up(&keys, &mut found);
                for (key, found) in keys.iter().zip(found) {
                    let found = Some(found).filter(|slot| slot.key != 0).map(|slot| slot.teid);
                    prop_assert_eq!(found, map.get(key).copied());
                }
                prop_assert_eq!(table.entries().count(), map.len());
            }
        }
    }
}
