//! The table of rules in which workers look up packets: tuple space search. (Srinivasan et al., SIGCOMM 1999; Open
//! vSwitch's classifier, Pfaff et al., NSDI 2015, section 3.2.)
//!
//! The rules with the same mask are a *tuple*. For each tuple, the masked key of a packet is looked up in one hash
//! table, which all tuples share. The tuples of a table are searched in descending order of their highest priority, so
//! that most of them can be skipped. The control plane writes slots and buckets while workers read them. A slot is
//! written completely before a bucket refers to it. A removed slot is reused only when every worker has begun another
//! batch.

use super::key::{Key, WORDS};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use taut_port::BATCH_CAPACITY;
use taut_sys::{filled_on_huge_pages, prefetch};

/// The limit on the number of masks in all tables together. Each mask costs a lookup for packets without a better
/// match.
pub(super) const MOST_TUPLES: usize = 4096;
/// The number of tables of rules in a switch.
pub(super) const TABLES: u8 = 64;
/// The number of words of a slot that contain steps.
pub(super) const SLOT_STEPS: usize = 6;
/// The number of positions in a bucket. Rules with the same hash are in one bucket, or in a second bucket if the first
/// was full.
const PLACES: usize = 8;
/// The number of tags of a bucket in one word.
const IN_WORD: usize = 4;
/// The number of slot numbers of a bucket in one word.
const SLOTS_IN_WORD: usize = 2;
/// The limit on the number of rules in a switch.
pub(super) const MOST_RULES: usize = 1 << 21;

/// The index of a slot, the memory of one rule that a worker reads.
pub(super) type Slot = u32;

/// The part of a rule that a worker reads, in two cache lines: head, the key words that its tuple compares, steps, and
/// the slot in which the steps continue. A rule with at most four key words and two steps is read from the first line
/// alone.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Words([AtomicU64; 16]);

const HEAD: usize = 0;
/// The indices of the words of a slot that contain the key (`KEY`) and the steps (`STEPS`).
const KEY: [usize; WORDS] = [1, 2, 3, 4, 8, 9, 10, 11];
const STEPS: [usize; SLOT_STEPS] = [5, 6, 7, 12, 13, 14];
const LINK: usize = 15;
/// The number of key words in the first cache line of a slot.
const NEAR_WORDS: u8 = 4;

/// A bucket of rules, one cache line: for each rule a tag of 16 bits, 0 if there is none, and the number of its slot. A
/// lookup compares all tags of a word in one operation.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Bucket {
    tags: [AtomicU64; PLACES / IN_WORD],
    slots: [AtomicU64; PLACES / SLOTS_IN_WORD],
    /// The number of rules that did not fit into this bucket and are in their second bucket.
    elsewhere: AtomicU64,
}

/// The number of free positions below which a new rule may be put into its second bucket.
const CROWDED: usize = 3;

const EACH_TAG: u64 = 0x0001_0001_0001_0001;

impl Bucket {
    fn tag(&self, place: usize) -> u64 {
        self.tags[place / IN_WORD].load(Ordering::Relaxed) >> (16 * (place % IN_WORD)) & 0xffff
    }

    /// Writes a tag into the bucket. Release: a worker that reads the tag also reads the new slot number and the new
    /// contents of the slot.
    fn set_tag(&self, place: usize, tag: u64) {
        let (word, at) = (&self.tags[place / IN_WORD], 16 * (place % IN_WORD));
        let others = word.load(Ordering::Relaxed) & !(0xffff << at);
        word.store(others | tag << at, Ordering::Release);
    }

    fn slot(&self, place: usize) -> Slot {
        let word = self.slots[place / SLOTS_IN_WORD].load(Ordering::Acquire);
        (word >> (32 * (place % SLOTS_IN_WORD))) as Slot
    }

    /// Writes a slot's number into the bucket. Release: a worker that reads the number also reads the new contents of
    /// the slot.
    fn set_slot(&self, place: usize, slot: Slot) {
        let (word, at) = (
            &self.slots[place / SLOTS_IN_WORD],
            32 * (place % SLOTS_IN_WORD),
        );
        let others = word.load(Ordering::Relaxed) & !(0xffff_ffff << at);
        word.store(others | u64::from(slot) << at, Ordering::Release);
    }

    fn free(&self) -> usize {
        (0..PLACES).filter(|place| self.tag(*place) == 0).count()
    }

    fn free_place(&self) -> Option<usize> {
        (0..PLACES).find(|place| self.tag(*place) == 0)
    }

    fn place_of(&self, tag: u64, slot: Slot) -> Option<usize> {
        (0..PLACES).find(|place| self.tag(*place) == tag && self.slot(*place) == slot)
    }

    /// Returns the positions in the bucket that have this tag. In rare cases, the result also contains the position
    /// after one of them, which does not have the tag.
    #[inline(always)]
    fn places_of(&self, tag: u64) -> impl Iterator<Item = usize> {
        let mut high = 0_u64;
        for (number, word) in self.tags.iter().enumerate() {
            let differs = word.load(Ordering::Acquire) ^ tag.wrapping_mul(EACH_TAG);
            // The result has the highest bit of each group of 16 bits that are all 0.
            let same = differs.wrapping_sub(EACH_TAG) & !differs & (EACH_TAG << 15);
            high |= same >> (15 - number);
        }
        std::iter::from_fn(move || {
            let bit = high.trailing_zeros() as usize;
            high &= high.wrapping_sub(1);
            // The positions of the first word have their bits at 0, 16, 32 and 48; the bit of each position of the
            // second word follows.
            (bit < 64).then_some(bit % 16 * IN_WORD + bit / 16)
        })
    }
}

/// The slots and buckets: written by the control plane, read by all workers.
#[derive(Debug)]
pub(super) struct Memory {
    slots: Box<[Words]>,
    buckets: Box<[Bucket]>,
}

/// The data of a rule that a worker needs in addition to the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub priority: u16,
    /// The index of the tuple that the rule belongs to.
    pub tuple: u16,
    /// The index of the counter for the rule's packets.
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

/// The bits of a key that are compared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Mask {
    pub bits: Key,
    /// The indices of the key words in which the mask has bits; the first `many` entries are valid.
    words: [u8; WORDS],
    many: u8,
}

impl Mask {
    pub fn new(bits: Key) -> Self {
        let mut words = [0; WORDS];
        let mut many = 0;
        for (word, bits) in (0..).zip(bits.0) {
            if bits != 0 {
                words[usize::from(many)] = word;
                many += 1;
            }
        }
        Self { bits, words, many }
    }

    /// Returns the bits that at least one of the tuples compares.
    pub fn of_all(tuples: &[Tuple]) -> Self {
        let masks = tuples.iter().map(|tuple| &tuple.mask.bits);
        Self::new(masks.fold(Key::default(), |all, bits| all.or(bits)))
    }

    #[inline(always)]
    fn words(&self) -> impl Iterator<Item = usize> {
        let asked = self.words.iter().take(usize::from(self.many));
        asked.map(|word| usize::from(*word) & (WORDS - 1))
    }

    /// Returns true if both keys have the same values in the bits of the mask.
    #[inline(always)]
    fn is_same(&self, one: &Key, other: &Key) -> bool {
        let mut words = self.words();
        words.all(|word| (one.0[word] ^ other.0[word]) & self.bits.0[word] == 0)
    }

    #[inline(always)]
    fn hash(&self, seed: u64, key: &Key) -> u64 {
        self.words().fold(seed, |hash, word| {
            fold(hash, key.0[word] & self.bits.0[word])
        })
    }
}

/// The rules of a table that compare the same bits of the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tuple {
    pub number: u16,
    pub mask: Mask,
    /// The highest priority of the tuple's rules.
    pub highest: u16,
}

impl Tuple {
    pub fn new(number: u16, bits: Key, highest: u16) -> Self {
        Self {
            number,
            mask: Mask::new(bits),
            highest,
        }
    }

    #[inline(always)]
    fn hash(&self, key: &Key) -> u64 {
        self.mask.hash(u64::from(self.number), key)
    }
}

/// The error for a rule that finds no free position in its two buckets, or no free slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full;

impl Memory {
    /// Allocates memory for `rules` rules, each of which may have a few steps.
    pub fn new(rules: usize) -> Arc<Self> {
        let rules = rules.clamp(1, MOST_RULES);
        // Rules of more than a few steps need several slots, and removed slots become free a little later.
        let slots = rules + rules / 4 + 64;
        // The table is at most a third full, so it is practically impossible that both buckets of a hash are full.
        let buckets = (3 * rules).div_ceil(PLACES).next_power_of_two();
        Arc::new(Self {
            slots: filled_on_huge_pages(slots, Words::default).into(),
            buckets: filled_on_huge_pages(buckets, Bucket::default).into(),
        })
    }

    /// Returns the number of slots, each of which has space for one rule of a few steps.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns the two buckets of a hash. The second is for rules that did not fit into the first.
    #[inline(always)]
    fn buckets_of(&self, hash: u64) -> (&Bucket, &Bucket) {
        let mask = self.buckets.len() - 1;
        let first = hash as usize & mask;
        let second = (first ^ (hash >> 48) as usize).wrapping_mul(0x9e37_79b9) & mask;
        (&self.buckets[first], &self.buckets[second])
    }

    /// Returns the indices of both buckets in which a rule with this key may be.
    #[cfg(test)]
    pub fn bucket_numbers(&self, tuple: &Tuple, key: &Key) -> [usize; 2] {
        let (first, second) = self.buckets_of(tuple.hash(key));
        [first, second].map(|bucket| {
            let all = self.buckets.iter();
            all.take_while(|other| !std::ptr::eq(*other, bucket))
                .count()
        })
    }

    /// Writes a rule of the given tuple into slots to which no bucket refers. [`slots_for`] gives the number of slots;
    /// the first slot identifies the rule.
    pub fn write(&self, slots: &[Slot], (tuple, key): (&Tuple, &Key), head: Head, steps: &[u64]) {
        let Some(first) = slots.first() else { return };
        // Relaxed: a worker that finds the slot has read the slot's number with Acquire, and `put` stores that number
        // with Release after these writes.
        let relaxed = Ordering::Relaxed;
        let words = &self.slots[*first as usize].0;
        for (place, word) in KEY.into_iter().zip(tuple.mask.words()) {
            words[place].store(key.0[word], relaxed);
        }
        words[HEAD].store(head.word(), relaxed);
        let (own, mut rest) = steps.split_at(steps.len().min(SLOT_STEPS));
        for (number, place) in STEPS.into_iter().enumerate() {
            words[place].store(own.get(number).copied().unwrap_or(0), relaxed);
        }
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

    /// Makes the rule in a slot visible to workers under its key. The slot replaces the earlier slot of that key, if
    /// there was one.
    pub fn put(
        &self,
        tuple: &Tuple,
        key: &Key,
        slot: Slot,
        instead: Option<Slot>,
    ) -> Result<(), Full> {
        let hash = tuple.hash(key);
        let tag = tag(hash);
        let (first, second) = self.buckets_of(hash);
        if let Some(old) = instead {
            for bucket in [first, second] {
                if let Some(place) = bucket.place_of(tag, old) {
                    bucket.set_slot(place, slot);
                    return Ok(());
                }
            }
        }
        // A lookup reads the second bucket only if it contains rules that belong to the first bucket.
        let is_elsewhere = first.free() < CROWDED && second.free() > first.free();
        let bucket = if is_elsewhere { second } else { first };
        let place = bucket.free_place().ok_or(Full)?;
        if is_elsewhere {
            let many = first.elsewhere.load(Ordering::Relaxed);
            first.elsewhere.store(many + 1, Ordering::Release);
        }
        bucket.set_slot(place, slot);
        bucket.set_tag(place, tag);
        Ok(())
    }

    /// Makes the rule in a slot invisible to workers.
    pub fn take_out(&self, tuple: &Tuple, key: &Key, slot: Slot) {
        let hash = tuple.hash(key);
        let tag = tag(hash);
        let (first, second) = self.buckets_of(hash);
        if let Some(place) = first.place_of(tag, slot) {
            first.set_tag(place, 0);
        } else if let Some(place) = second.place_of(tag, slot) {
            second.set_tag(place, 0);
            let many = first.elsewhere.load(Ordering::Relaxed);
            first
                .elsewhere
                .store(many.saturating_sub(1), Ordering::Release);
        }
    }

    /// Finds, for each key whose bit is set in `wanted`, the slot of the matching rule with the highest priority.
    /// `asked` are the bits that any of the tuples compares.
    pub fn find(
        &self,
        (tuples, asked): (&[Tuple], &Mask),
        keys: &[Key; BATCH_CAPACITY],
        wanted: u64,
        found: &mut [Found; BATCH_CAPACITY],
        scratch: &mut Scratch,
    ) {
        // Packets of a flow arrive together: a key equal to the previous one has the same result.
        let mut same = 0;
        let mut before = usize::MAX;
        for_each(wanted, |index| {
            found[index] = Found::NOTHING;
            let is_same = before < BATCH_CAPACITY && asked.is_same(&keys[before], &keys[index]);
            same |= u64::from(is_same) << index;
            before = index;
        });
        let mut left = wanted & !same;
        for tuple in tuples {
            // A rule that was already found has at least the priority of all rules in the tuples that follow.
            let mut open = 0;
            for_each(left, |index| {
                let best = found[index];
                if !best.is_some() || best.priority < tuple.highest {
                    open |= 1 << index;
                }
            });
            left = open;
            if left == 0 {
                break;
            }
            self.find_in(tuple, keys, left, found, scratch);
        }
        let mut last = Found::NOTHING;
        for_each(wanted, |index| match same & 1 << index {
            0 => last = found[index],
            _ => found[index] = last,
        });
    }

    /// Finds the matching rules of one tuple for all packets. Each step is done for all packets before the next one, so
    /// that their memory accesses overlap.
    #[inline(always)]
    fn find_in(
        &self,
        tuple: &Tuple,
        keys: &[Key; BATCH_CAPACITY],
        asked: u64,
        found: &mut [Found; BATCH_CAPACITY],
        Scratch { hashes, places }: &mut Scratch,
    ) {
        for_each(asked, |index| {
            let hash = tuple.hash(&keys[index]);
            hashes[index] = hash;
            prefetch(self.buckets_of(hash).0);
        });
        for_each(asked, |index| {
            let hash = hashes[index];
            let bucket = self.buckets_of(hash).0;
            let place = bucket.places_of(tag(hash)).next();
            places[index] = place.map_or(NO_PLACE, |place| place as u8);
            let slot = place.map_or(0, |place| bucket.slot(place));
            if let Some(words) = self.slots.get(slot as usize) {
                prefetch(words);
                if tuple.mask.many > NEAR_WORDS {
                    prefetch(&words.0[WORDS]);
                }
            }
        });
        for_each(asked, |index| {
            let rule = self.found(tuple, &keys[index], hashes[index], places[index]);
            let best = &mut found[index];
            if rule.is_some() && (!best.is_some() || rule.priority > best.priority) {
                *best = rule;
            }
        });
    }

    /// Returns the rule of a tuple that matches a key. `place` is the first position with the key's tag in the first
    /// bucket, or `NO_PLACE`.
    #[inline(always)]
    fn found(&self, tuple: &Tuple, key: &Key, hash: u64, place: u8) -> Found {
        let (first, second) = self.buckets_of(hash);
        let fits = |bucket: &Bucket, place: usize| {
            let slot = bucket.slot(place);
            let head = self.fits(tuple, key, slot)?;
            Some(Found {
                slot: slot + 1,
                priority: head.priority,
                counter: head.counter,
            })
        };
        let is_there = place != NO_PLACE;
        if is_there && let Some(found) = fits(first, usize::from(place) & (PLACES - 1)) {
            return found;
        }
        let is_elsewhere = first.elsewhere.load(Ordering::Acquire) != 0;
        if !is_there && !is_elsewhere {
            return Found::NOTHING;
        }
        let second = is_elsewhere.then_some(second);
        let mut buckets = [Some(first), second].into_iter().flatten();
        let found = buckets.find_map(|bucket| {
            let mut places = bucket.places_of(tag(hash));
            places.find_map(|place| fits(bucket, place))
        });
        found.unwrap_or(Found::NOTHING)
    }

    /// Returns the head of the rule in a slot, if the rule has that tuple and that key.
    #[inline(always)]
    fn fits(&self, tuple: &Tuple, key: &Key, slot: Slot) -> Option<Head> {
        let words = &self.slots.get(slot as usize)?.0;
        let head = Head::of_word(words[HEAD].load(Ordering::Relaxed));
        let mut differs = u64::from(head.tuple ^ tuple.number);
        for (place, word) in KEY.into_iter().zip(tuple.mask.words()) {
            let own = words[place].load(Ordering::Relaxed);
            differs |= own ^ key.0[word] & tuple.mask.bits.0[word];
        }
        (differs == 0).then_some(head)
    }

    /// Returns the output step of the rule in a slot, if the rule only sends packets to a port; 0 otherwise.
    #[inline(always)]
    pub fn only_step(&self, slot: Slot) -> u64 {
        let Some(Words(words)) = self.slots.get(slot as usize) else {
            return 0;
        };
        let step = |number: usize| words[STEPS[number]].load(Ordering::Relaxed);
        if step(1) == 0 { step(0) } else { 0 }
    }

    /// Returns the steps of the rule in a slot, one at a time.
    #[inline(always)]
    pub fn steps(&self, slot: Slot) -> Steps<'_> {
        Steps {
            memory: self,
            words: self.slots.get(slot as usize).map_or(&[], |it| &it.0),
            at: 0,
            is_first: true,
        }
    }
}

/// The state of the search for each packet of a batch, between two of its steps.
#[derive(Debug)]
pub(super) struct Scratch {
    hashes: [u64; BATCH_CAPACITY],
    /// For each packet, the first position in its bucket that has the tag of the packet's key, or `NO_PLACE`.
    places: [u8; BATCH_CAPACITY],
}

const NO_PLACE: u8 = 0xff;

impl Default for Scratch {
    fn default() -> Self {
        Self {
            hashes: [0; BATCH_CAPACITY],
            places: [NO_PLACE; BATCH_CAPACITY],
        }
    }
}

/// The rule that applies to a packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    /// The number of the rule's slot plus 1; 0 for no rule.
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

/// Iterator over the steps of a rule, until a step is 0 or there are no more.
pub(super) struct Steps<'a> {
    memory: &'a Memory,
    words: &'a [AtomicU64],
    /// The number of steps that were read from the current slot.
    at: usize,
    is_first: bool,
}

impl Iterator for Steps<'_> {
    type Item = u64;

    #[inline(always)]
    fn next(&mut self) -> Option<u64> {
        let mut place = match self.is_first {
            true => STEPS.get(self.at).copied(),
            false => Some(self.at).filter(|at| *at < LINK),
        };
        if place.is_none() {
            let link = self.words.get(LINK)?.load(Ordering::Relaxed);
            let link = link.checked_sub(1)?;
            self.words = &self.memory.slots.get(link as usize)?.0;
            (self.at, self.is_first) = (0, false);
            place = Some(0);
        }
        self.at += 1;
        Some(self.words.get(place?)?.load(Ordering::Relaxed))
    }
}

/// Returns the number of slots that a rule with `steps` steps takes.
pub(super) fn slots_for(steps: usize) -> usize {
    1 + steps.saturating_sub(SLOT_STEPS).div_ceil(LINK)
}

fn write_steps(words: &[AtomicU64], steps: &[u64]) {
    for (place, word) in words.iter().enumerate() {
        // The word after the last step is 0.
        word.store(steps.get(place).copied().unwrap_or(0), Ordering::Relaxed);
    }
}

/// Returns the tag of a key's hash: some of its bits, never 0.
#[inline(always)]
fn tag(hash: u64) -> u64 {
    (hash >> 48).max(1)
}

/// Mixes a word into a hash: both halves of a product, as in wyhash.
#[inline(always)]
fn fold(hash: u64, word: u64) -> u64 {
    let product =
        u128::from(hash ^ 0x9e37_79b9_7f4a_7c15) * u128::from(word ^ 0xd1b5_4a32_d192_ed03);
    (product >> 64) as u64 ^ product as u64
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
    use crate::key::Field;

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
        let asked = Mask::of_all(tuples);
        memory.find(
            (tuples, &asked),
            &keys,
            1 << 5,
            &mut found,
            &mut Scratch::default(),
        );
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
    fn a_packet_matches_the_entry_of_highest_priority_across_tuples() {
        let memory = Memory::new(64);
        let exact = Tuple::new(0, key(u128::MAX, 0xffff), 10);
        let prefix = Tuple::new(1, key(0xffff_ff00, 0), 20);
        let any = Tuple::new(2, Key::default(), 1);
        for (slot, tuple, of, priority) in [
            (0, &exact, key(0x0a00_0001, 42), 10),
            (1, &prefix, key(0x0a00_0000, 0), 20),
            (2, &any, Key::default(), 1),
        ] {
            memory.write(&[slot], (tuple, &of), head(priority, tuple.number), &[7]);
            memory.put(tuple, &of, slot, None).unwrap();
        }
        let tuples = [prefix.clone(), exact.clone(), any];
        assert_eq!(find(&memory, &tuples, key(0x0a00_0001, 42)), Some(1));
        assert_eq!(find(&memory, &tuples, key(0x0b00_0001, 42)), Some(2));
        memory.take_out(&prefix, &key(0x0a00_0000, 0), 1);
        assert_eq!(find(&memory, &tuples, key(0x0a00_0001, 42)), Some(0));
        let new = key(0x0a00_0001, 42);
        memory.write(&[3], (&exact, &new), head(10, 0), &[8]);
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
    fn lookups_find_an_entry_only_for_packets_of_its_flow() {
        let memory = Memory::new(64);
        // The key uses all words, half of which are in the second line of a slot.
        let all = Key([u64::MAX; WORDS]);
        let tuple = Tuple::new(3, all, 10);
        let of = |number: u64| Key(std::array::from_fn(|word| number * (word as u64 + 1)));
        for number in 1..=8 {
            memory.write(
                &[number],
                (&tuple, &of(u64::from(number))),
                head(10, 3),
                &[1],
            );
            let put = memory.put(&tuple, &of(u64::from(number)), number, None);
            put.unwrap();
        }
        let numbers = [1, 1, 1, 2, 2, 9, 9, 8, 1, 9, 8, 8];
        let mut keys = [Key::default(); BATCH_CAPACITY];
        for (key, number) in keys.iter_mut().zip(numbers) {
            *key = of(number);
        }
        let mut found = [Found::NOTHING; BATCH_CAPACITY];
        // All keys but the second one are looked up.
        let wanted = ((1 << numbers.len()) - 1) & !2;
        let tuples = [tuple];
        let asked = Mask::of_all(&tuples);
        memory.find(
            (&tuples, &asked),
            &keys,
            wanted,
            &mut found,
            &mut Scratch::default(),
        );
        for (index, number) in numbers.into_iter().enumerate() {
            let want = (number != 9 && index != 1).then_some(number as Slot);
            assert_eq!(found[index].slot(), want, "{index}");
        }
    }

    #[test]
    fn long_action_lists_continue_in_additional_slots() {
        let memory = Memory::new(64);
        let any = Tuple::new(0, Key::default(), 1);
        for many in [0, 1, 2, 6, 7, 21, 22, 36, 37] {
            let steps: Vec<u64> = (1..=many).collect();
            let slots: Vec<Slot> = (10..).take(slots_for(steps.len())).collect();
            memory.write(&slots, (&any, &Key::default()), head(1, 0), &steps);
            let read: Vec<u64> = memory.steps(10).take_while(|step| *step != 0).collect();
            assert_eq!(read, steps);
            let only = if many == 1 { 1 } else { 0 };
            assert_eq!(memory.only_step(10), only);
        }
    }

    #[test]
    fn the_table_stores_the_configured_number_of_flow_entries() {
        let many = if cfg!(miri) { 200 } else { 20_000 };
        let memory = Memory::new(many as usize);
        let tuple = Tuple::new(0, key(u128::MAX, 0xffff), 10);
        for number in 0..many {
            let of = key(u128::from(number), 42);
            memory.write(&[number], (&tuple, &of), head(10, 0), &[1]);
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
