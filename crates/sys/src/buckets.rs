//! Buckets: memory for streams of records that keeps the newest ones. Each bucket belongs to one writer, which appends
//! records and publishes how far readers may read. A reader holds a bucket, and a held bucket is not overwritten.
//! (Gallenmüller 2021, section 3.5, passes complete buckets; here each record can be read as soon as it is published.)
//!
//! A writer claims the bucket that was claimed longest ago, by one compare-and-exchange of a word; there is no lock and
//! no list. That word contains the bucket's kind, the count of readers that hold it, and its serial number. The serial
//! number grows by one with each claim, so that readers notice if the bucket they looked up was overwritten.

use crate::filled_on_huge_pages;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

// For tests of every interleaving (`./run miri`), the types of loom.
#[cfg(loom)]
use loom::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// The number of tags of a bucket: words that the writer stores in addition to the records, and by which readers choose
/// a bucket.
pub const TAGS: usize = 5;
/// The size of the two words at the start of each record, bytes.
const HEAD_BYTES: usize = 16;

/// The kinds of a slot: vacant, open, closed, busy. The kind is in the two lowest bits of the slot's state.
const VACANT: u64 = 0;
const OPEN: u64 = 1;
const CLOSED: u64 = 2;
const BUSY: u64 = 3;
const KIND: u64 = 3;
/// The increment of a slot's state for one more reader that holds the bucket; 14 bits count these readers.
const HOLD: u64 = 1 << 2;
const HOLDS: u64 = 0x3fff << 2;
/// The lowest bit of the bucket's serial number in a slot's state; the serial number has all bits from this bit on.
const NUMBER_SHIFT: u32 = 16;
/// The number of bits of a slot index in an entry of the directory.
const SLOT_BITS: u32 = 16;
const MOST_SLOTS: usize = 1 << SLOT_BITS;

/// A slot for a bucket. It has its own cache lines, because writers publish often.
#[derive(Debug)]
#[repr(align(128))]
struct Slot {
    state: AtomicU64,
    /// Number of bytes of the bucket that readers may read.
    published: AtomicUsize,
    tags: [AtomicU64; TAGS],
    /// Memory of `bucket_bytes` bytes, null in a vacant slot. Only the thread that made the slot busy may change it.
    memory: AtomicPtr<u64>,
}

/// Slots for buckets, some of which have memory.
#[derive(Debug)]
pub struct Buckets {
    slots: Box<[Slot]>,
    /// The serial numbers of buckets with their slots, indexed by serial number modulo the count of slots.
    directory: Box<[AtomicU64]>,
    bucket_bytes: usize,
    /// Number of attempts to claim a slot, from which the next slot to try is derived.
    cursor: AtomicUsize,
    /// Serial number of the newest bucket.
    newest: AtomicU64,
    /// Number of slots with memory.
    filled: AtomicUsize,
    /// Locked while the number of slots with memory changes; writers never take this lock.
    resizing: Mutex<()>,
    /// Number of claims that skipped a bucket because a reader held it.
    passed_over: AtomicU64,
}

/// The result of looking up a bucket by its serial number.
#[derive(Debug)]
pub enum Look {
    /// No bucket with that serial number exists yet.
    NotYet,
    /// The bucket was overwritten, or a reader has taken it ([`Buckets::take`]).
    Gone,
    /// The bucket exists, and is not overwritten as long as the lease exists.
    There(Lease),
}

/// A bucket that is being written. Dropping it closes the bucket.
#[derive(Debug)]
pub struct Bucket {
    all: Arc<Buckets>,
    slot: usize,
    start: NonNull<u8>,
    at: usize,
    number: u64,
    replaced: [u64; TAGS],
}

/// A bucket that is being read, by any number of readers.
#[derive(Debug)]
pub struct Lease {
    all: Arc<Buckets>,
    slot: usize,
    start: NonNull<u8>,
    number: u64,
}

/// A bucket that a single reader has taken out of use: no writer overwrites it and no other reader sees it. Dropping it
/// empties the bucket.
#[derive(Debug)]
pub struct Taken {
    all: Arc<Buckets>,
    slot: usize,
    start: NonNull<u8>,
}

// SAFETY: until it is dropped, only this value accesses the bucket's memory after the published part, on whichever
// thread it is.
unsafe impl Send for Bucket {}
// SAFETY: a lease gives access only to bytes that nobody writes while it exists, on whichever thread it is.
unsafe impl Send for Lease {}
// SAFETY: nobody writes the bytes while the lease exists, and a lease only reads them.
unsafe impl Sync for Lease {}
// SAFETY: only this value accesses the bucket's memory, on whichever thread it is.
unsafe impl Send for Taken {}

impl Buckets {
    /// Makes slots for `most` buckets of `bucket_bytes` each. None has memory yet.
    ///
    /// # Panics
    /// Panics if `most` is 0 or more than 65,536, or if `bucket_bytes` is not a multiple of 8.
    pub fn new(most: usize, bucket_bytes: usize) -> Arc<Self> {
        assert!((1..=MOST_SLOTS).contains(&most) && bucket_bytes.is_multiple_of(8));
        let slot = || Slot {
            state: AtomicU64::new(VACANT),
            published: AtomicUsize::new(0),
            tags: std::array::from_fn(|_| AtomicU64::new(0)),
            memory: AtomicPtr::new(std::ptr::null_mut()),
        };
        Arc::new(Self {
            slots: (0..most).map(|_| slot()).collect(),
            directory: (0..most).map(|_| AtomicU64::new(0)).collect(),
            bucket_bytes,
            cursor: AtomicUsize::new(0),
            newest: AtomicU64::new(0),
            filled: AtomicUsize::new(0),
            resizing: Mutex::new(()),
            passed_over: AtomicU64::new(0),
        })
    }

    /// Returns the size of a bucket in bytes.
    pub fn bucket_bytes(&self) -> usize {
        self.bucket_bytes
    }

    /// Returns the maximum number of buckets.
    pub fn most(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of buckets with memory.
    pub fn len(&self) -> usize {
        self.filled.load(Ordering::Relaxed)
    }

    /// Returns true if no bucket has memory.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how often a claim skipped a bucket because a reader held it.
    pub fn passed_over(&self) -> u64 {
        self.passed_over.load(Ordering::Relaxed)
    }

    /// Changes the number of buckets with memory to `wanted`, at most the capacity: allocates memory, or frees the
    /// memory of the buckets that were claimed longest ago. Buckets that are held or being written keep their memory.
    /// Returns the new number, and passes the tags of removed buckets to `lost`.
    pub fn resize(&self, wanted: usize, mut lost: impl FnMut([u64; TAGS])) -> usize {
        let _alone = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut filled = self.filled.load(Ordering::Relaxed);
        for slot in &self.slots {
            if filled >= wanted {
                break;
            }
            if slot.state.load(Ordering::Relaxed) == VACANT {
                slot.memory
                    .store(allocate(self.bucket_bytes), Ordering::Relaxed);
                // Release: the thread that claims this slot sees the slot's memory.
                slot.state.store(CLOSED, Ordering::Release);
                filled += 1;
                self.filled.store(filled, Ordering::Relaxed);
            }
        }
        while filled > wanted {
            let Some(at) = self.occupy() else {
                break;
            };
            let slot = &self.slots[at];
            lost(slot.tags());
            slot.clear();
            let memory = slot.memory.swap(std::ptr::null_mut(), Ordering::Relaxed);
            free(memory, self.bucket_bytes);
            slot.state.store(VACANT, Ordering::Release);
            filled -= 1;
            self.filled.store(filled, Ordering::Relaxed);
        }
        filled
    }

    /// Claims the bucket that was claimed longest ago, to overwrite it, and gives it initial tags. None if all buckets
    /// are being written or held.
    pub fn claim(self: &Arc<Self>, tags: [u64; TAGS]) -> Option<Bucket> {
        let at = self.occupy()?;
        let slot = &self.slots[at];
        let replaced = slot.tags();
        slot.clear();
        slot.set_tags(tags);
        let start = slot.start()?;
        let number = self.newest.fetch_add(1, Ordering::Relaxed) + 1;
        // Release: a reader that holds the bucket by its new number sees that it is empty.
        slot.state
            .store(number << NUMBER_SHIFT | OPEN, Ordering::Release);
        self.entry(number)
            .store(number << SLOT_BITS | at as u64, Ordering::Release);
        Some(Bucket {
            all: Arc::clone(self),
            slot: at,
            start,
            at: 0,
            number,
            replaced,
        })
    }

    /// Marks as busy the slot that was claimed longest ago, of the slots that are neither held nor being written.
    /// Returns its index; none if there is no such slot.
    fn occupy(&self) -> Option<usize> {
        // Each slot has to be tried once. The loop is twice as long, because other threads also move the cursor.
        for _ in 0..2 * self.slots.len() {
            let at = self.cursor.fetch_add(1, Ordering::Relaxed) % self.slots.len();
            let state = self.slots[at].state.load(Ordering::Relaxed);
            if state & KIND != CLOSED {
                continue;
            }
            if state & HOLDS != 0 {
                self.passed_over.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            // Acquire: earlier holders of the bucket have finished reading before it is overwritten.
            if self.slots[at].occupy(state) {
                return Some(at);
            }
        }
        None
    }

    fn entry(&self, number: u64) -> &AtomicU64 {
        &self.directory[(number % self.directory.len() as u64) as usize]
    }

    /// Returns the serial number of the newest bucket; serial numbers begin with 1.
    pub fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// Returns the serial number of the oldest bucket that can still exist.
    pub fn oldest(&self) -> u64 {
        self.after(0)
    }

    /// Returns the serial number of the first bucket after that with the number `number` which exists or will exist.
    pub fn after(&self, number: u64) -> u64 {
        let newest = self.newest();
        let numbers = self.slots.iter().filter_map(Slot::number);
        let there = numbers.filter(|it| *it > number).min();
        let there = there.unwrap_or(u64::MAX).min(newest + 1);
        // A bucket that was claimed during the search above is missing there, but has an entry in the directory or will
        // get one.
        (number + 1..there)
            .find(|it| self.entry(*it).load(Ordering::Acquire) >> SLOT_BITS <= *it)
            .unwrap_or(there)
    }

    /// Looks up the bucket with the given serial number.
    pub fn look(self: &Arc<Self>, number: u64) -> Look {
        let entry = self.entry(number).load(Ordering::Acquire);
        let (there, at) = (entry >> SLOT_BITS, entry as usize & (MOST_SLOTS - 1));
        if there < number {
            return Look::NotYet;
        }
        // A bucket that stays open or held while all others are overwritten loses its directory entry, but still
        // exists.
        let mut slots = self.slots.iter();
        let at = match there == number {
            true => Some(at),
            false => slots.position(|slot| slot.number() == Some(number)),
        };
        let lease = at.filter(|at| self.slots[*at].hold(number)).and_then(|at| {
            Some(Lease {
                all: Arc::clone(self),
                slot: at,
                start: self.slots[at].start()?,
                number,
            })
        });
        lease.map_or(Look::Gone, Look::There)
    }

    /// Takes the oldest bucket that is neither held nor being written; none if there is no such bucket.
    pub fn take(self: &Arc<Self>) -> Option<Taken> {
        let all = self.slots.iter().enumerate();
        let closed = all.filter_map(|(at, slot)| {
            let state = slot.state.load(Ordering::Relaxed);
            let is_closed = state & (KIND | HOLDS) == CLOSED && state >> NUMBER_SHIFT != 0;
            is_closed.then_some((state, at))
        });
        let (state, at) = closed.min()?;
        if !self.slots[at].occupy(state) {
            return None;
        }
        let start = self.slots[at].start()?;
        Some(Taken {
            all: Arc::clone(self),
            slot: at,
            start,
        })
    }
}

impl Drop for Buckets {
    fn drop(&mut self) {
        for slot in &self.slots {
            // No `Bucket`, `Lease` or `Taken` exists any more, because each of them has a reference to this value.
            free(slot.memory.load(Ordering::Relaxed), self.bucket_bytes);
        }
    }
}

fn allocate(bytes: usize) -> *mut u64 {
    let words = filled_on_huge_pages(bytes / 8, || 0_u64).into_boxed_slice();
    Box::into_raw(words).cast()
}

fn free(memory: *mut u64, bytes: usize) {
    if !memory.is_null() {
        let words = std::ptr::slice_from_raw_parts_mut(memory, bytes / 8);
        // SAFETY: `allocate` made this slice with that length, and its slot no longer refers to it; nobody reads or
        // writes it, because the slot was busy.
        drop(unsafe { Box::from_raw(words) });
    }
}

impl Slot {
    fn start(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.memory.load(Ordering::Relaxed).cast())
    }

    /// Returns the serial number of the slot's bucket, if it has one.
    fn number(&self) -> Option<u64> {
        let state = self.state.load(Ordering::Relaxed);
        let is_there = state & KIND == OPEN || state & KIND == CLOSED;
        (is_there && state >> NUMBER_SHIFT != 0).then_some(state >> NUMBER_SHIFT)
    }

    fn tags(&self) -> [u64; TAGS] {
        std::array::from_fn(|i| self.tags[i].load(Ordering::Relaxed))
    }

    #[inline]
    fn set_tags(&self, tags: [u64; TAGS]) {
        for (to, tag) in self.tags.iter().zip(tags) {
            to.store(tag, Ordering::Relaxed);
        }
    }

    /// Clears the slot. Only the thread that made the slot busy may do this.
    fn clear(&self) {
        self.published.store(0, Ordering::Relaxed);
        self.set_tags([0; TAGS]);
    }

    /// Makes the slot busy if its state is `state`, which must be closed and not held.
    fn occupy(&self, state: u64) -> bool {
        // Acquire: pairs with the Release of readers that stop holding the bucket.
        self.state
            .compare_exchange(state, BUSY, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Holds the bucket, if it still has the serial number `number`.
    fn hold(&self, number: u64) -> bool {
        let hold = |state: u64| {
            let is_there = state & KIND == OPEN || state & KIND == CLOSED;
            let may = is_there && state >> NUMBER_SHIFT == number && state & HOLDS != HOLDS;
            may.then_some(state + HOLD)
        };
        // Acquire: the reader sees the bucket's memory, and that the bucket was emptied when it got this number.
        self.state
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, hold)
            .is_ok()
    }
}

impl Bucket {
    /// Appends a record of two words and bytes; the next record begins at a multiple of 8. Returns false if the bucket
    /// is full. Readers see the record only after it is published.
    #[inline(always)]
    #[must_use]
    pub fn append(&mut self, head: [u64; 2], bytes: &[u8]) -> bool {
        let size = HEAD_BYTES + bytes.len().next_multiple_of(8);
        if size > self.all.bucket_bytes - self.at {
            return false;
        }
        // SAFETY: the bucket's memory has `size` bytes left, begins at a multiple of 8, and `at` is one too. Only this
        // value writes the unpublished part, and `bytes` cannot overlap it, because only published parts of a bucket
        // can be borrowed.
        unsafe {
            let to = self.start.as_ptr().add(self.at);
            to.cast::<[u64; 2]>().write(head);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.add(HEAD_BYTES), bytes.len());
        }
        self.at += size;
        true
    }

    /// Publishes all appended records, with the given tags.
    #[inline]
    pub fn publish(&mut self, tags: [u64; TAGS]) {
        let slot = &self.all.slots[self.slot];
        slot.set_tags(tags);
        // Release: a reader that sees the length sees the bytes and the tags.
        slot.published.store(self.at, Ordering::Release);
    }

    /// Returns the number of appended bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.at
    }

    /// Returns true if nothing was appended.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.at == 0
    }

    /// Returns the serial number of the bucket, which grows with each claim.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the tags of the overwritten bucket, whose records are lost.
    pub fn replaced(&self) -> [u64; TAGS] {
        self.replaced
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        // Release: a reader that sees the closed state sees everything that was published before. While the bucket is
        // open, other threads change only the number of holders.
        self.all.slots[self.slot]
            .state
            .fetch_add(CLOSED - OPEN, Ordering::Release);
    }
}

impl Lease {
    /// Returns the published bytes, and whether the bucket is closed.
    pub fn bytes(&self) -> (&[u8], bool) {
        let slot = &self.all.slots[self.slot];
        // The state is read before the length: if the bucket is closed, all its bytes are published.
        let is_closed = slot.state.load(Ordering::Acquire) & KIND == CLOSED;
        let len = slot.published.load(Ordering::Acquire);
        // SAFETY: the bucket's memory is neither freed nor given to another writer as long as this lease holds it. The
        // writer writes only after the published part, and the published part is initialised.
        let bytes = unsafe { std::slice::from_raw_parts(self.start.as_ptr(), len) };
        (bytes, is_closed)
    }

    /// Returns the last published tags. Each tag is current, but the tags may be of different publications.
    pub fn tags(&self) -> [u64; TAGS] {
        self.all.slots[self.slot].tags()
    }

    /// Returns the serial number of the bucket.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Release: the reads happen before another thread overwrites the bucket.
        self.all.slots[self.slot]
            .state
            .fetch_sub(HOLD, Ordering::Release);
    }
}

impl Taken {
    /// Returns all bytes of the bucket.
    pub fn bytes(&self) -> &[u8] {
        // Acquire: pairs with the Release that published these bytes.
        let len = self.all.slots[self.slot].published.load(Ordering::Acquire);
        // SAFETY: `len` bytes of the bucket's memory were written; the slot is busy, so nobody else accesses it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), len) }
    }

    /// Returns the tags of the bucket.
    pub fn tags(&self) -> [u64; TAGS] {
        self.all.slots[self.slot].tags()
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let slot = &self.all.slots[self.slot];
        slot.clear();
        // Release: the reads happen before another thread overwrites the bucket.
        slot.state.store(CLOSED, Ordering::Release);
    }
}

/// Tests of every interleaving of a few steps: `./run miri`.
#[cfg(all(test, loom))]
mod interleavings {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use loom::thread;

    fn written(bucket: &mut Bucket, value: u64) {
        assert!(bucket.append([value, value], &value.to_ne_bytes()));
        bucket.publish([value; TAGS]);
    }

    /// Checks that the data of a lease is complete, and does not change while the lease exists.
    fn check(lease: &Lease) {
        let (bytes, _) = lease.bytes();
        let before = bytes.to_vec();
        thread::yield_now();
        assert_eq!(&lease.bytes().0[..before.len()], before);
        for record in before.chunks(24) {
            let words: Vec<_> = record
                .chunks(8)
                .map(|it| u64::from_ne_bytes(it.try_into().unwrap()))
                .collect();
            assert!(words.iter().all(|word| *word == lease.number()));
        }
    }

    #[test]
    fn a_bucket_in_use_by_a_reader_is_not_overwritten() {
        let mut all = loom::model::Builder::new();
        all.preemption_bound = Some(3);
        all.check(|| {
            let buckets = Buckets::new(2, 48);
            buckets.resize(2, |_| ());
            let looked = Arc::clone(&buckets);
            let reader = thread::spawn(move || {
                for number in 1..=2 {
                    if let Look::There(lease) = looked.look(number) {
                        check(&lease);
                    }
                }
            });
            for _ in 0..3 {
                if let Some(mut bucket) = buckets.claim([0; TAGS]) {
                    let number = bucket.number();
                    written(&mut bucket, number);
                }
            }
            reader.join().unwrap();
        });
    }

    #[test]
    fn a_bucket_is_never_written_and_read_simultaneously() {
        let mut all = loom::model::Builder::new();
        all.preemption_bound = Some(3);
        all.check(|| {
            let buckets = Buckets::new(2, 48);
            buckets.resize(2, |_| ());
            let taken = Arc::clone(&buckets);
            let taker = thread::spawn(move || {
                if let Some(taken) = taken.take() {
                    let number = taken.tags()[0];
                    assert!(taken.bytes().chunks(8).all(|it| it == number.to_ne_bytes()));
                }
            });
            for _ in 0..2 {
                if let Some(mut bucket) = buckets.claim([0; TAGS]) {
                    let number = bucket.number();
                    written(&mut bucket, number);
                }
            }
            taker.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn there(look: Look) -> Lease {
        match look {
            Look::There(lease) => lease,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn published_bytes_are_readable_during_further_writes() {
        let buckets = Buckets::new(4, 64);
        assert!(buckets.claim([0; TAGS]).is_none());
        assert_eq!(buckets.resize(2, |_| ()), 2);
        let mut bucket = buckets.claim([9; TAGS]).unwrap();
        assert_eq!((bucket.number(), bucket.replaced()), (1, [0; TAGS]));
        let lease = there(buckets.look(1));
        assert_eq!(lease.bytes(), (&[][..], false));
        assert_eq!(lease.tags(), [9; TAGS]);
        assert!(bucket.append([1, 2], &[3; 8]));
        assert_eq!(lease.bytes(), (&[][..], false));
        bucket.publish([4; TAGS]);
        assert_eq!(lease.bytes().0.len(), 24);
        assert_eq!(&lease.bytes().0[16..], [3; 8]);
        assert!(bucket.append([1, 2], &[5; 20]));
        assert!(!bucket.append([1, 2], &[]));
        bucket.publish([6; TAGS]);
        drop(bucket);
        assert_eq!((lease.bytes().0.len(), lease.bytes().1), (64, true));
        assert_eq!(lease.tags(), [6; TAGS]);
        assert!(matches!(buckets.look(2), Look::NotYet));
    }

    #[test]
    fn the_oldest_unused_bucket_is_reused() {
        let buckets = Buckets::new(3, 64);
        buckets.resize(3, |_| ());
        let one = |tag| {
            let mut bucket = buckets.claim([0; TAGS]).unwrap();
            bucket.publish([tag; TAGS]);
            bucket
        };
        drop(one(10));
        let open = one(20);
        drop(one(30));
        let lease = there(buckets.look(3));
        assert_eq!(one(40).replaced(), [10; TAGS]);
        assert!(matches!(buckets.look(1), Look::Gone));
        // The second bucket is being written, the third is held.
        assert_eq!(one(50).replaced(), [40; TAGS]);
        assert!(buckets.passed_over() > 0);
        drop((open, lease));
        assert_eq!(buckets.oldest(), 2);
        assert_eq!(buckets.newest(), 5);
        assert_eq!(buckets.take().unwrap().tags(), [20; TAGS]);
        assert_eq!(buckets.oldest(), 3);
    }

    #[test]
    fn shrinking_frees_the_oldest_unused_buckets() {
        let buckets = Buckets::new(4, 64);
        buckets.resize(4, |_| ());
        for number in 1..=4 {
            buckets.claim([number; TAGS]).unwrap();
        }
        let held: Vec<_> = (1..=4).map(|it| there(buckets.look(it))).collect();
        assert!(buckets.claim([0; TAGS]).is_none());
        assert_eq!(buckets.resize(2, |_| panic!("held")), 4);
        drop(held);
        let mut lost = Vec::new();
        assert_eq!(buckets.resize(2, |tags| lost.push(tags[0])), 2);
        assert_eq!(lost, [1, 2]);
        assert_eq!(buckets.resize(3, |_| panic!("more")), 3);
        assert_eq!(there(buckets.look(4)).tags(), [4; TAGS]);
        // The order stays the same: the empty bucket is not claimed next.
        assert_eq!(buckets.claim([0; TAGS]).unwrap().replaced(), [3; TAGS]);
    }

    /// Two writers and two readers run at the same time, and buckets are overwritten constantly. The test also runs
    /// under Miri. The lengths are all combinations of three successive records in a small bucket, and one that is too
    /// long for any bucket.
    #[test]
    fn no_record_reaches_beyond_its_bucket() {
        const BYTES: usize = 80;
        let lengths = if cfg!(miri) { 0..9 } else { 0..BYTES };
        let buckets = Buckets::new(1, BYTES);
        buckets.resize(1, |_| ());
        let record = [7; 2 * BYTES];
        for first in lengths.clone() {
            for second in lengths.clone() {
                for third in lengths.clone().chain([2 * BYTES]) {
                    let mut bucket = buckets.claim([0; TAGS]).unwrap();
                    let mut at = 0;
                    for length in [first, second, third] {
                        let size = HEAD_BYTES + length.div_ceil(8) * 8;
                        let fits = at + size <= BYTES;
                        assert_eq!(bucket.append([1, 2], &record[..length]), fits);
                        at += if fits { size } else { 0 };
                        assert!(bucket.len() == at && at <= BYTES);
                    }
                }
            }
        }
    }

    #[test]
    fn readers_see_consistent_buckets_while_writers_wrap_around() {
        let rounds = if cfg!(miri) { 20 } else { 20_000 };
        let buckets = Buckets::new(6, 240);
        buckets.resize(6, |_| ());
        let done = AtomicBool::new(false);
        let (done, buckets) = (&done, &buckets);
        let seen = std::thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(move || {
                        let (mut next, mut seen) = (1, 0);
                        while !done.load(Ordering::Acquire) || next <= buckets.newest() {
                            match buckets.look(next) {
                                Look::NotYet => std::thread::yield_now(),
                                Look::Gone => next += 1,
                                Look::There(lease) => loop {
                                    let (bytes, is_closed) = lease.bytes();
                                    let number = lease.number().to_ne_bytes();
                                    assert!(bytes.chunks(8).all(|it| it == number));
                                    if is_closed {
                                        seen += 1;
                                        next += 1;
                                        break;
                                    }
                                    std::thread::yield_now();
                                },
                            }
                        }
                        seen
                    })
                })
                .collect();
            let writers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(move || {
                        for _ in 0..rounds {
                            let Some(mut bucket) = buckets.claim([0; TAGS]) else {
                                std::thread::yield_now();
                                continue;
                            };
                            let number = bucket.number();
                            while bucket.append([number; 2], &number.to_ne_bytes()) {
                                bucket.publish([number; TAGS]);
                            }
                        }
                    })
                })
                .collect();
            for writer in writers {
                writer.join().unwrap();
            }
            done.store(true, Ordering::Release);
            readers
                .into_iter()
                .map(|it| it.join().unwrap())
                .sum::<u64>()
        });
        assert!(seen > 0);
    }
}
