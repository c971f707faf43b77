//! The bearer table: from a tunnel endpoint identifier or a user's address to what happens to the packet.
//!
//! `hash` is open addressing with linear probing at half load: 32 bytes per bearer, a look-up touches one cache
//! line, rarely two. Look-ups are made for a batch at a time, so that its cache misses overlap. `linear` is the
//! scan of the whole table of Lange et al. (CNSM 2015), kept for study.

use serde::Deserialize;

/// How a table is searched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Matching {
    /// In constant time.
    #[default]
    Hash,
    /// From the first entry on.
    Linear,
}

/// One entry, 16 bytes: four to a cache line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Slot {
    /// What is matched, as [`super::Match::key`] gives it; 0 in an empty slot.
    pub key: u64,
    /// The identifier that packets get.
    pub teid: u32,
    /// Which path they take, 0 where they take none.
    pub path: u16,
    /// The QoS flow that they are marked with, or [`NO_QFI`].
    pub qfi: u8,
    pub action: u8,
}

pub(super) const NO_QFI: u8 = 0xff;

/// Slots of a hash table for each entry that it has room for.
const SLOTS_PER_ENTRY: usize = 2;

/// Of a hash table, bytes of memory for each bearer that it has room for.
pub const BYTES_PER_BEARER: usize = SLOTS_PER_ENTRY * size_of::<Slot>();

#[derive(Debug)]
pub(super) struct Table {
    matching: Matching,
    /// Of `hash`: every slot. Of `linear`: the entries.
    slots: Vec<Slot>,
    entries: usize,
    room: usize,
}

impl Table {
    /// A table with room for `room` entries, all of its memory set aside now.
    pub fn new(matching: Matching, room: usize) -> Self {
        let slots = match matching {
            // Written, so that the kernel gives the memory now and not to the first packets.
            Matching::Hash => vec![
                Slot {
                    qfi: NO_QFI,
                    ..Slot::default()
                };
                room * SLOTS_PER_ENTRY
            ],
            Matching::Linear => Vec::with_capacity(room),
        };
        Self {
            matching,
            slots,
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

    /// Every entry, in no order that means anything.
    pub fn entries(&self) -> impl Iterator<Item = Slot> {
        self.slots.iter().copied().filter(|slot| slot.key != 0)
    }

    /// The place where the search for `key` begins (multiplicative hashing; the high bits of the product are the
    /// mixed ones, and scale to any number of slots).
    #[inline(always)]
    fn home(&self, key: u64) -> usize {
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((u128::from(hash) * self.slots.len() as u128) >> 64) as usize
    }

    #[inline(always)]
    fn after(&self, place: usize) -> usize {
        if place + 1 == self.slots.len() {
            0
        } else {
            place + 1
        }
    }

    /// Of `hash`, where `key` is (Ok) or would go (Err).
    #[inline(always)]
    fn place(&self, key: u64) -> Result<usize, usize> {
        let mut place = self.home(key);
        loop {
            match self.slots[place].key {
                found if found == key => return Ok(place),
                0 => return Err(place),
                _ => place = self.after(place),
            }
        }
    }

    /// The entry of `key`, which is not 0.
    pub fn get(&self, key: u64) -> Option<Slot> {
        let slot = match self.matching {
            Matching::Hash => self.place(key).ok().map(|place| self.slots[place]),
            Matching::Linear => self.slots.iter().find(|slot| slot.key == key).copied(),
        };
        slot.filter(|slot| slot.key != 0)
    }

    /// Looks up a batch: `found[i]` is the entry of `keys[i]`, or one with the key 0. A key of 0 finds nothing.
    #[inline]
    pub fn look_up(&self, keys: &[u64], found: &mut [Slot]) {
        if self.matching == Matching::Linear {
            for (key, found) in keys.iter().zip(found) {
                *found = self.get(*key).unwrap_or_default();
            }
            return;
        }
        if self.slots.is_empty() {
            found.fill(Slot::default());
            return;
        }
        // Loads that do not wait for each other: the misses of a batch are under way together.
        for (key, found) in keys.iter().zip(found.iter_mut()) {
            *found = self.slots[self.home(*key)];
        }
        for (key, found) in keys.iter().zip(found) {
            if found.key != *key {
                *found = match (found.key, *key) {
                    (0, _) | (_, 0) => Slot::default(),
                    _ => self
                        .place(*key)
                        .map_or(Slot::default(), |place| self.slots[place]),
                };
            }
        }
    }

    /// Puts an entry in, in the place of one of its key; false if there is no room for another one.
    pub fn set(&mut self, slot: Slot) -> bool {
        debug_assert!(slot.key != 0);
        let place = match self.matching {
            Matching::Hash if self.slots.is_empty() => return false,
            Matching::Hash => self.place(slot.key),
            Matching::Linear => {
                let mut slots = self.slots.iter();
                slots
                    .position(|s| s.key == slot.key)
                    .ok_or(self.slots.len())
            }
        };
        match place {
            Ok(place) => self.slots[place] = slot,
            Err(_) if self.entries == self.room => return false,
            Err(place) => {
                self.entries += 1;
                match self.matching {
                    Matching::Hash => self.slots[place] = slot,
                    Matching::Linear => self.slots.push(slot),
                }
            }
        }
        true
    }

    /// Takes the entry of `key` out.
    pub fn remove(&mut self, key: u64) -> Option<Slot> {
        if self.matching == Matching::Linear {
            let place = self.slots.iter().position(|slot| slot.key == key)?;
            self.entries -= 1;
            return Some(self.slots.swap_remove(place));
        }
        if self.slots.is_empty() {
            return None;
        }
        let mut gap = self.place(key).ok()?;
        let removed = self.slots[gap];
        self.entries -= 1;
        // Those behind move up as far as their homes allow, so that no tombstone has to be searched past.
        let mut place = gap;
        loop {
            place = self.after(place);
            let slot = self.slots[place];
            if slot.key == 0 {
                break;
            }
            let home = self.home(slot.key);
            let stays = if gap <= place {
                gap < home && home <= place
            } else {
                gap < home || home <= place
            };
            if !stays {
                self.slots[gap] = slot;
                gap = place;
            }
        }
        self.slots[gap] = Slot {
            qfi: NO_QFI,
            ..Slot::default()
        };
        Some(removed)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
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
    fn four_entries_fill_a_cache_line() {
        assert_eq!(size_of::<Slot>(), 16);
        assert_eq!(BYTES_PER_BEARER, 32);
    }

    #[test]
    fn a_million_bearers_are_found_and_the_next_one_has_no_room() {
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
    fn a_table_without_room_finds_nothing() {
        for matching in [Matching::Hash, Matching::Linear] {
            let mut table = Table::new(matching, 0);
            assert!(!table.set(slot(1, 1)));
            let mut found = [slot(9, 9)];
            table.look_up(&[1], &mut found);
            assert_eq!((found[0].key, table.remove(1)), (0, None));
        }
    }

    proptest! {
        /// Whatever is put in and taken out, both kinds of table hold what a map holds. Few slots and few keys
        /// make long runs of neighbours, some around the end.
        #[test]
        fn tables_hold_what_a_map_holds(
            steps in proptest::collection::vec((any::<bool>(), 1u64..40, any::<u32>()), 1..300), spread: bool,
        ) {
            let key = |k: u64| if spread { k.wrapping_mul(0x1_0000_0001) } else { k };
            for matching in [Matching::Hash, Matching::Linear] {
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
