//! Rules as workers look them up: tuple space search. (Srinivasan et al., SIGCOMM 1999; Open vSwitch's classifier, Pfaff et al.,
//! NSDI 2015, section 3.2.)
//!
//! Rules that ask about the same bits are a *tuple*: a packet's key under that mask is looked for in one hash table, which all tuples
//! share. A table's tuples are asked by their highest priority, so that most of them need not be. One side writes slots and
//! buckets while workers read them: a slot is written whole before a bucket leads to it, and used again only when every worker has
//! begun another batch since it was taken out.

use super::key::{Key, WORDS};
use crate::mix::mix;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use taut_port::BATCH_CAPACITY;

/// Words of a slot that hold what to do.
pub(super) const SLOT_STEPS: usize = 6;
/// Rules with the same hash are looked for in two buckets of so many places.
const PLACES: usize = 8;
/// Rules that there may be at most.
pub(super) const MOST_RULES: usize = 1 << 21;

/// Number of a slot.
pub(super) type Slot = u32;

/// What a worker reads of a rule, in two cache lines: its key under its mask; its head; what to do; and the slot in which that goes on.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Words([AtomicU64; 16]);

const HEAD: usize = WORDS;
const STEPS: usize = WORDS + 1;
const LINK: usize = 15;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Bucket([AtomicU64; PLACES]);

/// Slots and buckets: written by one side, read by all workers.
#[derive(Debug)]
pub(super) struct Memory {
    slots: Box<[Words]>,
    buckets: Box<[Bucket]>,
}

/// Facts of a rule that a worker needs beside what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub priority: u16,
    /// Number of the tuple.
    pub tuple: u16,
    /// Number under which the rule's packets are counted.
    pub counter: u32,
}

impl Head {
    fn word(self) -> u64 {
        u64::from(self.priority) << 48 | u64::from(self.tuple) << 32 | u64::from(self.counter)
    }

    fn of_word(word: u64) -> Self {
        Self {
            priority: (word >> 48) as u16,
            tuple: (word >> 32) as u16,
            counter: word as u32,
        }
    }
}

/// Rules that ask about the same bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tuple {
    pub number: u16,
    pub mask: Key,
    /// The words in which the mask has bits, the first `many` of these.
    words: [u8; WORDS],
    many: u8,
    /// Highest priority of its rules.
    pub highest: u16,
}

impl Tuple {
    pub fn new(number: u16, mask: Key, highest: u16) -> Self {
        let mut words = [0; WORDS];
        let mut many = 0;
        for (word, bits) in (0..).zip(mask.0) {
            if bits != 0 {
                words[usize::from(many)] = word;
                many += 1;
            }
        }
        Self {
            number,
            mask,
            words,
            many,
            highest,
        }
    }

    #[inline(always)]
    fn words(&self) -> impl Iterator<Item = usize> {
        let asked = self.words.iter().take(usize::from(self.many));
        asked.map(|word| usize::from(*word) & (WORDS - 1))
    }

    #[inline(always)]
    fn hash(&self, key: &Key) -> u64 {
        let seed = u64::from(self.number);
        self.words().fold(seed, |hash, word| {
            mix(hash, key.0[word] & self.mask.0[word])
        })
    }
}

/// No place in these buckets, or no slot, is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full;

impl Memory {
    /// Memory for so many rules, of which each may do a few things.
    pub fn new(rules: usize) -> Arc<Self> {
        let rules = rules.clamp(1, MOST_RULES);
        // Rules of more than a few steps take more slots than one, and those that are taken out are free a little later.
        let slots = rules + rules / 4 + 64;
        // Half full at most: both buckets of a hash being full is as good as impossible then.
        let buckets = (2 * rules).div_ceil(PLACES).next_power_of_two();
        Arc::new(Self {
            slots: (0..slots).map(|_| Words::default()).collect(),
            buckets: (0..buckets).map(|_| Bucket::default()).collect(),
        })
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Bytes of all of it.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.slots) + size_of_val(&*self.buckets)
    }

    #[inline(always)]
    fn buckets_of(&self, hash: u64) -> [&Bucket; 2] {
        let tag = hash >> 32;
        let first = hash as usize & (self.buckets.len() - 1);
        let second = (first ^ (tag as usize).wrapping_mul(0x5bd1_e995)) & (self.buckets.len() - 1);
        [&self.buckets[first], &self.buckets[second]]
    }

    /// Writes a rule into slots that no worker can know of yet: as many as [`slots_for`] says, the first of which is its own.
    pub fn write(&self, slots: &[Slot], key: &Key, head: Head, steps: &[u64]) {
        let Some(first) = slots.first() else { return };
        // Relaxed: whoever finds the slot has read its number with Acquire, from where `put` stores it with Release.
        let relaxed = Ordering::Relaxed;
        let words = &self.slots[*first as usize].0;
        for (word, bits) in words.iter().zip(key.0) {
            word.store(bits, relaxed);
        }
        words[HEAD].store(head.word(), relaxed);
        let (own, mut rest) = steps.split_at(steps.len().min(SLOT_STEPS));
        write_steps(&words[STEPS..LINK], own);
        let mut before = words;
        for slot in &slots[1..] {
            before[LINK].store(u64::from(*slot) + 1, relaxed);
            let words = &self.slots[*slot as usize].0;
            let (own, left) = rest.split_at(rest.len().min(LINK));
            write_steps(&words[..LINK], own);
            (before, rest) = (words, left);
        }
        before[LINK].store(0, relaxed);
    }

    /// Lets workers find a slot by the key in it, instead of the one that they have found by that until now, if there was one.
    pub fn put(
        &self,
        tuple: &Tuple,
        key: &Key,
        slot: Slot,
        instead: Option<Slot>,
    ) -> Result<(), Full> {
        let hash = tuple.hash(key);
        let entry = entry(hash, slot);
        // Release: with the entry a worker sees what `write` has put into the slot.
        if let Some(old) = instead.map(|old| self::entry(hash, old)) {
            let buckets = self.buckets_of(hash);
            let mut places = buckets.iter().flat_map(|bucket| &bucket.0);
            if let Some(place) = places.find(|place| place.load(Ordering::Relaxed) == old) {
                place.store(entry, Ordering::Release);
                return Ok(());
            }
        }
        let free = |bucket: &&Bucket| {
            let places = bucket.0.iter();
            places
                .filter(|place| place.load(Ordering::Relaxed) == 0)
                .count()
        };
        let [first, second] = self.buckets_of(hash);
        let bucket = if free(&second) > free(&first) {
            second
        } else {
            first
        };
        let mut places = bucket.0.iter();
        let place = places
            .find(|place| place.load(Ordering::Relaxed) == 0)
            .ok_or(Full)?;
        place.store(entry, Ordering::Release);
        Ok(())
    }

    /// Has workers find the slot no more.
    pub fn take_out(&self, tuple: &Tuple, key: &Key, slot: Slot) {
        let hash = tuple.hash(key);
        let entry = entry(hash, slot);
        for place in self.buckets_of(hash).iter().flat_map(|bucket| &bucket.0) {
            if place.load(Ordering::Relaxed) == entry {
                place.store(0, Ordering::Release);
                return;
            }
        }
    }

    /// Finds for each key whose bit is set in `wanted` the slot of the rule of highest priority.
    pub fn find(
        &self,
        tuples: &[Tuple],
        keys: &[Key; BATCH_CAPACITY],
        wanted: u64,
        found: &mut [Found; BATCH_CAPACITY],
    ) {
        let mut left = wanted;
        for_each(wanted, |index| found[index] = Found::NOTHING);
        for tuple in tuples {
            // Rules that are found already are no worse than all that follow.
            let mut asked = 0;
            for_each(left, |index| {
                let best = found[index];
                if !best.is_some() || best.priority < tuple.highest {
                    asked |= 1 << index;
                }
            });
            left = asked;
            if left == 0 {
                return;
            }
            // In steps over all packets, so that what one waits for from memory the others wait for meanwhile.
            let mut hashes = [0; BATCH_CAPACITY];
            let mut slots = [0_u32; BATCH_CAPACITY];
            for_each(left, |index| hashes[index] = tuple.hash(&keys[index]));
            for_each(left, |index| slots[index] = self.candidate(hashes[index]));
            for_each(left, |index| {
                let at = slots[index];
                if at == 0 {
                    return;
                }
                let rule = match self.fits(tuple, &keys[index], at - 1) {
                    Some(head) => Some((at - 1, head)),
                    None => self.find_slowly(tuple, &keys[index], hashes[index]),
                };
                if let Some((slot, head)) = rule {
                    let best = &mut found[index];
                    if !best.is_some() || head.priority > best.priority {
                        *best = Found {
                            slot: slot + 1,
                            priority: head.priority,
                            counter: head.counter,
                        };
                    }
                }
            });
        }
    }

    /// The first slot of that hash, and 1; 0 if there is none.
    #[inline(always)]
    fn candidate(&self, hash: u64) -> u32 {
        let tag = hash >> 32;
        for bucket in self.buckets_of(hash) {
            for place in &bucket.0 {
                let entry = place.load(Ordering::Acquire);
                if entry >> 32 == tag && entry as u32 != 0 {
                    return entry as u32;
                }
            }
        }
        0
    }

    /// Finds the rule of that key where another one has the same tag.
    #[cold]
    fn find_slowly(&self, tuple: &Tuple, key: &Key, hash: u64) -> Option<(Slot, Head)> {
        let tag = hash >> 32;
        let buckets = self.buckets_of(hash);
        let entries = buckets.iter().flat_map(|bucket| &bucket.0);
        entries
            .map(|place| place.load(Ordering::Acquire))
            .filter(|entry| entry >> 32 == tag && *entry as u32 != 0)
            .find_map(|entry| {
                let slot = entry as u32 - 1;
                Some((slot, self.fits(tuple, key, slot)?))
            })
    }

    /// The head of the rule in a slot, if it is of that tuple and asks for that key.
    #[inline(always)]
    fn fits(&self, tuple: &Tuple, key: &Key, slot: Slot) -> Option<Head> {
        let words = &self.slots.get(slot as usize)?.0;
        let head = Head::of_word(words[HEAD].load(Ordering::Relaxed));
        let is_same = head.tuple == tuple.number
            && tuple.words().all(|word| {
                words[word].load(Ordering::Relaxed) == key.0[word] & tuple.mask.0[word]
            });
        is_same.then_some(head)
    }

    /// What to do by the rule in a slot, a step at a time.
    #[inline(always)]
    pub fn steps(&self, slot: Slot) -> Steps<'_> {
        Steps {
            memory: self,
            words: self.slots.get(slot as usize).map_or(&[], |it| &it.0),
            at: STEPS,
            end: LINK,
        }
    }
}

/// The rule that a packet is treated by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    /// Its slot, and 1; 0 for none.
    slot: u32,
    priority: u16,
    pub counter: u32,
}

impl Found {
    pub const NOTHING: Self = Self {
        slot: 0,
        priority: 0,
        counter: 0,
    };

    pub const fn is_some(self) -> bool {
        self.slot != 0
    }

    pub fn slot(self) -> Option<Slot> {
        self.slot.checked_sub(1)
    }
}

/// Steps of a rule, until one is 0 or there are no more.
pub(super) struct Steps<'a> {
    memory: &'a Memory,
    words: &'a [AtomicU64],
    at: usize,
    end: usize,
}

impl Iterator for Steps<'_> {
    type Item = u64;

    #[inline(always)]
    fn next(&mut self) -> Option<u64> {
        if self.at == self.end {
            let link = self
                .words
                .get(LINK)?
                .load(Ordering::Relaxed)
                .checked_sub(1)?;
            self.words = &self.memory.slots.get(link as usize)?.0;
            (self.at, self.end) = (0, LINK);
        }
        let step = self.words.get(self.at)?.load(Ordering::Relaxed);
        self.at += 1;
        Some(step)
    }
}

/// Slots that a rule of so many steps takes.
pub(super) fn slots_for(steps: usize) -> usize {
    1 + steps.saturating_sub(SLOT_STEPS).div_ceil(LINK)
}

fn write_steps(words: &[AtomicU64], steps: &[u64]) {
    for (place, word) in words.iter().enumerate() {
        // Behind the last step stands 0.
        word.store(steps.get(place).copied().unwrap_or(0), Ordering::Relaxed);
    }
}

fn entry(hash: u64, slot: Slot) -> u64 {
    hash >> 32 << 32 | u64::from(slot + 1)
}

#[inline(always)]
fn for_each(mut bits: u64, mut each: impl FnMut(usize)) {
    while bits != 0 {
        each(bits.trailing_zeros() as usize & (BATCH_CAPACITY - 1));
        bits &= bits - 1;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::switch::key::Field;

    fn key(source: u128, port: u128) -> Key {
        let mut key = Key::default();
        key.set(Field::Source, source);
        key.set(Field::DestinationPort, port);
        key
    }

    fn find(memory: &Memory, tuples: &[Tuple], key: Key) -> Option<Slot> {
        let mut keys = [Key::default(); BATCH_CAPACITY];
        keys[5] = key;
        let mut found = [Found::NOTHING; BATCH_CAPACITY];
        memory.find(tuples, &keys, 1 << 5, &mut found);
        found[5].slot()
    }

    fn head(priority: u16, tuple: u16) -> Head {
        Head {
            priority,
            tuple,
            counter: 0,
        }
    }

    #[test]
    fn a_packet_finds_the_rule_of_highest_priority_over_all_tuples() {
        let memory = Memory::new(64);
        let exact = Tuple::new(0, key(u128::MAX, 0xffff), 10);
        let prefix = Tuple::new(1, key(0xffff_ff00, 0), 20);
        let any = Tuple::new(2, Key::default(), 1);
        for (slot, tuple, of, priority) in [
            (0, &exact, key(0x0a00_0001, 42), 10),
            (1, &prefix, key(0x0a00_0000, 0), 20),
            (2, &any, Key::default(), 1),
        ] {
            memory.write(&[slot], &of, head(priority, tuple.number), &[7]);
            memory.put(tuple, &of, slot, None).unwrap();
        }
        let tuples = [prefix.clone(), exact.clone(), any];
        assert_eq!(find(&memory, &tuples, key(0x0a00_0001, 42)), Some(1));
        assert_eq!(find(&memory, &tuples, key(0x0b00_0001, 42)), Some(2));
        memory.take_out(&prefix, &key(0x0a00_0000, 0), 1);
        assert_eq!(find(&memory, &tuples, key(0x0a00_0001, 42)), Some(0));
        memory.write(&[3], &key(0x0a00_0001, 42), head(10, 0), &[8]);
        memory
            .put(&exact, &key(0x0a00_0001, 42), 3, Some(0))
            .unwrap();
        assert_eq!(find(&memory, &tuples, key(0x0a00_0001, 42)), Some(3));
        assert_eq!(
            memory
                .steps(3)
                .take_while(|step| *step != 0)
                .collect::<Vec<_>>(),
            [8]
        );
    }

    #[test]
    fn many_steps_go_on_in_further_slots() {
        let memory = Memory::new(64);
        for many in [0, 1, 6, 7, 21, 22, 36, 37] {
            let steps: Vec<u64> = (1..=many).collect();
            let slots: Vec<Slot> = (10..).take(slots_for(steps.len())).collect();
            memory.write(&slots, &Key::default(), head(1, 0), &steps);
            let read: Vec<u64> = memory.steps(10).take_while(|step| *step != 0).collect();
            assert_eq!(read, steps);
        }
    }

    #[test]
    fn as_many_rules_fit_as_it_was_made_for() {
        let many = if cfg!(miri) { 200 } else { 100_000 };
        let memory = Memory::new(many as usize);
        let tuple = Tuple::new(0, key(u128::MAX, 0xffff), 10);
        for number in 0..many {
            let of = key(u128::from(number), 42);
            memory.write(&[number], &of, head(10, 0), &[1]);
            memory.put(&tuple, &of, number, None).unwrap();
        }
        let tuples = [tuple];
        for number in 0..many {
            assert_eq!(
                find(&memory, &tuples, key(u128::from(number), 42)),
                Some(number)
            );
        }
        assert_eq!(find(&memory, &tuples, key(u128::from(many), 42)), None);
    }
}
