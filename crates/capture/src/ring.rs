//! Ring: the last seconds of packets in memory. (Gallenmüller 2021, section 3.5: the queue of queues.)
//!
//! A producer writes records into a bucket of its own and publishes them once per batch. Readers see published records
//! immediately. In Gallenmüller's dissertation, readers see records only when the bucket is complete, which takes
//! hundreds of milliseconds. Readers follow all producers, in order of time, or begin in the past. Records that are
//! overwritten before a reader has read them count as missed. For comparison, a ring can publish complete buckets as in
//! the dissertation: [`Ring::classic`].

use crate::record::{Facts, HEADER_BYTES, LONGEST_BYTES, Record};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use taut_sys::{Bucket, Buckets, Lease, Look, TAGS, Taken};

/// Size of a bucket in bytes: eight huge pages.
pub const BUCKET_BYTES: usize = 16 << 20;
/// Minimum number of buckets of a ring: one that is being written, and a complete one.
const FEWEST_BUCKETS: usize = 2;

/// The header that a producer writes at the start of a bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Content {
    /// Time of the bucket's first packet, nanoseconds since 1970; 0 in an empty bucket.
    pub first_ns: u64,
    /// Time of the bucket's last packet, nanoseconds since 1970.
    pub last_ns: u64,
    /// Number of packets in the bucket.
    pub packets: u64,
    /// Index of the producer that wrote the bucket.
    pub producer: u16,
    /// Sum of the packets' lengths on the wire, bytes.
    pub wire_bytes: u64,
    /// Number of packets that the same producer wrote into earlier buckets.
    pub before: u64,
}

impl Content {
    fn tags(&self) -> [u64; TAGS] {
        let packets = self.packets << 16 | u64::from(self.producer);
        [
            self.first_ns,
            self.last_ns,
            packets,
            self.wire_bytes,
            self.before,
        ]
    }

    fn of_tags([first_ns, last_ns, packets, wire_bytes, before]: [u64; TAGS]) -> Self {
        Self {
            first_ns,
            last_ns,
            packets: packets >> 16,
            producer: packets as u16,
            wire_bytes,
            before,
        }
    }
}

/// The number of packets, and the sum of their lengths on the wire.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Count {
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes on the wire.
    pub bytes: u64,
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// A counter that other threads read. Each counter has separate cache lines, because producers update their counters
/// with each batch.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Counter {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Counter {
    fn add(&self, packets: u64, bytes: u64) {
        self.packets.fetch_add(packets, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Sets the counter to a count that no other thread changes.
    fn set(&self, count: Count) {
        self.packets.store(count.packets, Ordering::Relaxed);
        self.bytes.store(count.bytes, Ordering::Relaxed);
    }

    fn get(&self) -> Count {
        Count {
            packets: self.packets.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

/// The counts of packets that were written into a ring.
#[derive(Debug, Default)]
struct Written {
    /// Counts of the producers that existed when the newest producer was created.
    by: Vec<Arc<Counter>>,
    /// Sum of the counts of producers that had been dropped before the newest producer was created.
    before: Count,
}

impl Written {
    fn count(&self) -> Count {
        let mut sum = self.before;
        self.by.iter().for_each(|it| sum += it.get());
        sum
    }

    /// Adds a counter for a new producer, and returns it.
    fn with_one_more(&mut self) -> Arc<Counter> {
        let before = &mut self.before;
        self.by.retain_mut(|it| {
            // The producer that shared the counter was dropped, so the count is final.
            let gone = Arc::get_mut(it).map(|it| it.get());
            gone.into_iter().for_each(|it| *before += it);
            gone.is_none()
        });
        let counter = Arc::default();
        self.by.push(Arc::clone(&counter));
        counter
    }
}

/// The memory for the last seconds of packets.
#[derive(Debug)]
pub struct Ring {
    buckets: Arc<Buckets>,
    producers: AtomicU32,
    written: Mutex<Written>,
    /// Written packets that were overwritten since, or removed when the ring was shrunk.
    overwritten: Counter,
    /// Packets for which no bucket was free, as all buckets were being written or read.
    lost: Counter,
    /// Maximum age in ns at which a producer closes its bucket in a classic ring; none if readers see incomplete
    /// buckets.
    hold_ns: Option<u64>,
}

/// The reason why a ring cannot be created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RingError(pub String);

impl Ring {
    /// Creates a ring of `bytes` bytes, which can grow to `most_bytes`, with buckets of `bucket_bytes`.
    ///
    /// # Errors
    /// Returns an error if there are fewer than two buckets.
    pub fn new(bytes: u64, most_bytes: u64, bucket_bytes: usize) -> Result<Arc<Self>, RingError> {
        Self::make(bytes, most_bytes, bucket_bytes, None).map(Arc::new)
    }

    /// Creates a ring as in Gallenmüller 2021, section 3.5: readers see the packets of a bucket only once its producer
    /// closes it. The producer closes a bucket when it is full or has reached the age `hold`. The owner of a producer
    /// regularly calls [`Producer::hand_over`].
    ///
    /// # Errors
    /// Returns the same errors as [`Ring::new`].
    pub fn classic(
        bytes: u64,
        most_bytes: u64,
        bucket_bytes: usize,
        hold: Duration,
    ) -> Result<Arc<Self>, RingError> {
        let hold_ns = u64::try_from(hold.as_nanos()).unwrap_or(u64::MAX);
        Self::make(bytes, most_bytes, bucket_bytes, Some(hold_ns)).map(Arc::new)
    }

    fn make(
        bytes: u64,
        most_bytes: u64,
        bucket_bytes: usize,
        hold_ns: Option<u64>,
    ) -> Result<Self, RingError> {
        let buckets = bytes / bucket_bytes as u64;
        if buckets < FEWEST_BUCKETS as u64 {
            return Err(RingError(format!(
                "a ring of {bytes} bytes is too small for {FEWEST_BUCKETS} buckets of {bucket_bytes} bytes"
            )));
        }
        let most = most_bytes.max(bytes) / bucket_bytes as u64;
        if most > 1 << 16 {
            return Err(RingError(format!(
                "a ring has at most 65536 buckets, here of {bucket_bytes} bytes: use larger buckets"
            )));
        }
        let all = Buckets::new(most as usize, bucket_bytes);
        all.resize(buckets as usize, |_| ());
        Ok(Self {
            buckets: all,
            producers: AtomicU32::new(0),
            written: Mutex::default(),
            overwritten: Counter::default(),
            lost: Counter::default(),
            hold_ns,
        })
    }

    /// Changes the size of the ring while packets are written; if the ring shrinks, the oldest packets are removed.
    /// Returns the new size in bytes: less than `bytes` if the ring cannot grow so much, more if buckets are in use.
    pub fn resize(&self, bytes: u64) -> u64 {
        let wanted = (bytes / self.buckets.bucket_bytes() as u64).max(FEWEST_BUCKETS as u64);
        let wanted = wanted.min(self.buckets.most() as u64);
        let now = self.buckets.resize(wanted as usize, |tags| {
            let content = Content::of_tags(tags);
            self.overwritten.add(content.packets, content.wire_bytes);
        });
        now as u64 * self.buckets.bucket_bytes() as u64
    }

    /// Returns the size of a bucket in bytes.
    pub fn bucket_bytes(&self) -> usize {
        self.buckets.bucket_bytes()
    }

    /// Returns the size of the ring in bytes.
    pub fn bytes(&self) -> u64 {
        self.buckets.len() as u64 * self.buckets.bucket_bytes() as u64
    }

    /// Returns the maximum size of the ring in bytes.
    pub fn most_bytes(&self) -> u64 {
        self.buckets.most() as u64 * self.buckets.bucket_bytes() as u64
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the count of packets that were written into the ring.
    pub fn kept(&self) -> Count {
        self.written().count()
    }

    /// Returns the count of written packets that were overwritten since, or removed when the ring was shrunk.
    pub fn overwritten(&self) -> Count {
        self.overwritten.get()
    }

    /// Returns the count of packets for which there was no bucket, as all buckets were being written or read.
    pub fn lost(&self) -> Count {
        self.lost.get()
    }

    /// Returns the maximum time for which a classic ring hides a packet from readers; none if readers see packets as
    /// soon as they are published.
    pub fn hold(&self) -> Option<Duration> {
        self.hold_ns.map(Duration::from_nanos)
    }

    /// Returns how many times a producer skipped a bucket because a reader used it.
    pub fn passed_over(&self) -> u64 {
        self.buckets.passed_over()
    }

    /// Returns the time of the oldest packet in the ring, nanoseconds since 1970; `None` if the ring is empty.
    pub fn oldest_ns(&self) -> Option<u64> {
        let mut number = self.buckets.oldest();
        while number <= self.buckets.newest() {
            if let Look::There(lease) = self.buckets.look(number) {
                return Some(Content::of_tags(lease.tags()).first_ns).filter(|ns| *ns > 0);
            }
            number = self.buckets.after(number);
        }
        None
    }

    /// Creates another producer, which stores up to `snap_bytes` of each frame.
    pub fn producer(self: &Arc<Self>, snap_bytes: usize) -> Producer {
        // Numbers of producers have 16 bits.
        let number = self.producers.fetch_add(1, Ordering::Relaxed) as u16;
        Producer {
            ring: Arc::clone(self),
            bucket: None,
            content: Content {
                producer: number,
                ..Content::default()
            },
            published: Content::default(),
            snap_bytes: snap_bytes.min(LONGEST_BYTES as usize),
            lost: Count::default(),
            counts: Default::default(),
            told: self.written().with_one_more(),
        }
    }

    /// Creates a reader of the ring's packets that begins at `start`.
    pub fn reader(self: &Arc<Self>, start: Start) -> Reader {
        let mut reader = Reader {
            ring: Arc::clone(self),
            next: self.buckets.oldest(),
            lines: Vec::new(),
            from_ns: 0,
            missed: 0,
            waits_for_closed: self.hold_ns.is_some(),
        };
        match start {
            Start::At(from_ns) => {
                reader.from_ns = from_ns;
                reader.pass_over_before(from_ns);
                // The reader protects the first bucket of each producer from the start.
                reader.deal();
            }
            Start::Now => reader.pass_over_all(),
        }
        reader
    }

    /// Creates a taker, which removes packets.
    pub fn taker(self: &Arc<Self>) -> Taker {
        Taker(Arc::clone(self))
    }
}

/// The packet at which a reader begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The packets with this timestamp (nanoseconds since 1970) or a later one that are still in the ring.
    At(u64),
    /// The packets that arrive after the creation of the reader.
    Now,
}

/// A writer of packets into a ring, for one thread.
#[derive(Debug)]
pub struct Producer {
    ring: Arc<Ring>,
    bucket: Option<Bucket>,
    /// Header of the current bucket, including packets that are not published yet.
    content: Content,
    /// Header of the current bucket as it was last published.
    published: Content,
    snap_bytes: usize,
    /// Lost packets of this producer that are not published yet.
    lost: Count,
    /// Counts of stored and of lost packets, as last published.
    counts: (Count, Count),
    /// Counter of this producer's stored packets, which other threads read.
    told: Arc<Counter>,
}

impl Producer {
    /// Stores a packet. Readers see it after the next [`Producer::publish`].
    #[inline(always)]
    pub fn put(&mut self, facts: Facts, frame: &[u8]) {
        let kept = &frame[..frame.len().min(self.snap_bytes)];
        let head = facts.words(kept.len() as u32);
        let is_in = match &mut self.bucket {
            Some(bucket) => bucket.append(head, kept),
            None => false,
        };
        if !is_in && !self.put_into_next(head, kept) {
            self.lost.packets += 1;
            self.lost.bytes += u64::from(facts.wire_bytes);
            return;
        }
        let content = &mut self.content;
        if content.packets == 0 {
            content.first_ns = facts.time_ns;
        }
        content.last_ns = facts.time_ns;
        content.packets += 1;
        content.wire_bytes += u64::from(facts.wire_bytes);
    }

    /// Closes the current bucket and puts the record into a newly claimed one. Returns false if no bucket is free, or
    /// the record is longer than a bucket.
    #[cold]
    fn put_into_next(&mut self, head: [u64; 2], kept: &[u8]) -> bool {
        self.close();
        self.bucket = self.ring.buckets.claim(self.content.tags());
        let Some(bucket) = &mut self.bucket else {
            return false;
        };
        let replaced = Content::of_tags(bucket.replaced());
        if replaced.packets > 0 {
            let overwritten = &self.ring.overwritten;
            overwritten.add(replaced.packets, replaced.wire_bytes);
        }
        bucket.append(head, kept)
    }

    /// Publishes the packets that were put; called once per batch.
    #[inline]
    pub fn publish(&mut self) {
        let (content, published) = (&self.content, &self.published);
        if content.packets != published.packets {
            if let Some(bucket) = &mut self.bucket {
                bucket.publish(content.tags());
            }
            self.counts.0 += Count {
                packets: content.packets - published.packets,
                bytes: content.wire_bytes - published.wire_bytes,
            };
            self.told.set(self.counts.0);
            self.published = *content;
        }
        if self.lost.packets > 0 {
            self.ring.lost.add(self.lost.packets, self.lost.bytes);
            self.counts.1 += self.lost;
            self.lost = Count::default();
        }
    }

    /// Returns the counts of packets that the producer has published, and that it has lost.
    pub fn counts(&self) -> (Count, Count) {
        self.counts
    }

    /// Closes the current bucket: the next packet is stored in another bucket.
    pub fn close(&mut self) {
        self.publish();
        self.bucket = None;
        self.content = Content {
            producer: self.content.producer,
            before: self.content.before + self.content.packets,
            ..Content::default()
        };
        self.published = self.content;
    }

    /// In a classic ring, closes the current bucket if the bucket's first packet has reached the maximum age.
    #[inline]
    pub fn hand_over(&mut self, now_ns: u64) {
        if let Some(hold_ns) = self.ring.hold_ns
            && self.content.packets > 0
            && now_ns.saturating_sub(self.content.first_ns) >= hold_ns
        {
            self.close();
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.close();
    }
}

/// The position of a reader in the buckets of one producer. A reader has one line for each producer.
#[derive(Debug)]
struct Line {
    producer: u16,
    /// Current bucket, and the offset in it of the next record; none if the reader has no bucket of this producer.
    bucket: Option<(Lease, usize)>,
    /// Numbers of the producer's next buckets.
    later: VecDeque<u64>,
    /// Number of packets that the producer has written before its next bucket, if the reader misses none; `None` before
    /// the first bucket.
    expected: Option<u64>,
}

/// A reader of packets, which leaves them in the ring.
#[derive(Debug)]
pub struct Reader {
    ring: Arc<Ring>,
    /// Number of the ring's first bucket that is not yet assigned to a producer's line.
    next: u64,
    lines: Vec<Line>,
    from_ns: u64,
    missed: u64,
    waits_for_closed: bool,
}

impl Reader {
    /// Returns the number of packets that were overwritten before the reader could read them.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Returns the time of the next available packet, nanoseconds since 1970; none if no packet is available. The
    /// bucket of that packet is protected from overwriting.
    pub fn next_ns(&mut self) -> Option<u64> {
        self.deal();
        let buckets = &self.ring.buckets;
        let mut first = None;
        for line in &mut self.lines {
            self.missed += line.go_on(buckets);
            let from_ns = self.from_ns;
            let next = line.next_ns().map(|ns| ns.max(from_ns));
            first = first.into_iter().chain(next).min();
        }
        first
    }

    /// Returns the first bucket that is assigned to no line, if there is one; overwritten buckets are skipped.
    fn unknown(&mut self) -> Option<Lease> {
        while self.next <= self.ring.buckets.newest() {
            match self.ring.buckets.look(self.next) {
                Look::NotYet => return None,
                Look::Gone => self.next = self.ring.buckets.after(self.next),
                Look::There(lease) => return Some(lease),
            }
        }
        None
    }

    /// Skips closed buckets whose packets are all older than `time_ns`.
    fn pass_over_before(&mut self, time_ns: u64) {
        while let Some(lease) = self.unknown() {
            let (_, is_closed) = lease.bytes();
            if !is_closed || Content::of_tags(lease.tags()).last_ns >= time_ns {
                return;
            }
            self.next += 1;
        }
    }

    /// Skips to the end of all existing buckets, so that the reader begins with the next packet.
    fn pass_over_all(&mut self) {
        while let Some(lease) = self.unknown() {
            let (bytes, is_closed) = lease.bytes();
            if !is_closed && self.waits_for_closed {
                // In a classic ring, the bucket becomes visible when it is closed; the packets that it contains at this
                // moment are skipped then.
                self.from_ns = Content::of_tags(lease.tags()).last_ns + 1;
                return;
            }
            if !is_closed {
                let at = bytes.len();
                let mut line = Line::of(Content::of_tags(lease.tags()).producer);
                line.bucket = Some((lease, at));
                self.lines.push(line);
            }
            self.next += 1;
        }
    }

    /// Assigns each new bucket to the line (the read position) of the producer that wrote the bucket.
    fn deal(&mut self) {
        while let Some(lease) = self.unknown() {
            if self.waits_for_closed && !lease.bytes().1 {
                return;
            }
            let producer = Content::of_tags(lease.tags()).producer;
            let known = self.lines.iter().position(|it| it.producer == producer);
            let at = known.unwrap_or_else(|| {
                self.lines.push(Line::of(producer));
                self.lines.len() - 1
            });
            let line = &mut self.lines[at];
            if line.bucket.is_none() && line.later.is_empty() {
                self.missed += line.begin(lease);
            } else {
                // Only the number is stored, not a lease, so that a slow reader blocks only one bucket of each
                // producer.
                line.later.push_back(self.next);
            }
            self.next += 1;
        }
    }

    /// Calls `each` for up to `most` available packets with times up to `until_ns`, in order of time. Returns their
    /// number.
    pub fn read(&mut self, until_ns: u64, most: usize, mut each: impl FnMut(&Record<'_>)) -> usize {
        self.deal();
        let mut read = 0;
        loop {
            let (mut first, mut first_ns, mut second_ns) = (None, until_ns, until_ns);
            for at in 0..self.lines.len() {
                self.missed += self.lines[at].go_on(&self.ring.buckets);
                if let Some(ns) = self.lines[at].next_ns() {
                    if ns <= first_ns && (first.is_none() || ns < first_ns) {
                        (second_ns, first_ns, first) = (first_ns, ns, Some(at));
                    } else {
                        second_ns = second_ns.min(ns);
                    }
                }
            }
            let Some(at) = first else {
                return read;
            };
            let from_ns = self.from_ns;
            let Some((lease, place)) = &mut self.lines[at].bucket else {
                return read;
            };
            let bytes = lease.bytes().0;
            while let Some((record, size)) = record_at(bytes, *place) {
                let ns = record.facts.time_ns;
                // The first packet is read in any case, so that the loop makes progress.
                if (ns > second_ns && ns != first_ns) || read == most {
                    break;
                }
                *place += size;
                if ns >= from_ns {
                    each(&record);
                    read += 1;
                }
            }
            if read == most {
                return read;
            }
        }
    }
}

impl Line {
    /// Creates the read position of a producer, before anything was read.
    fn of(producer: u16) -> Self {
        Self {
            producer,
            bucket: None,
            later: VecDeque::new(),
            expected: None,
        }
    }

    /// Begins with a producer's bucket; returns the number of that producer's packets that were overwritten before it.
    fn begin(&mut self, lease: Lease) -> u64 {
        let before = Content::of_tags(lease.tags()).before;
        let missed = self.expected.map_or(0, |it| before.saturating_sub(it));
        self.bucket = Some((lease, 0));
        missed
    }

    /// Advances to the producer's next bucket if the current one is closed and read completely. Returns the number of
    /// packets between the two buckets that were overwritten before they were read.
    fn go_on(&mut self, buckets: &Arc<Buckets>) -> u64 {
        let mut missed = 0;
        loop {
            if let Some((lease, at)) = &self.bucket {
                let (bytes, is_closed) = lease.bytes();
                if *at < bytes.len() || !is_closed {
                    return missed;
                }
                let content = Content::of_tags(lease.tags());
                self.expected = Some(content.before + content.packets);
                self.bucket = None;
            }
            let Some(number) = self.later.pop_front() else {
                return missed;
            };
            if let Look::There(lease) = buckets.look(number) {
                missed += self.begin(lease);
            }
        }
    }

    /// Returns the time of the producer's next packet; none if no packet is available.
    fn next_ns(&self) -> Option<u64> {
        let (lease, at) = self.bucket.as_ref()?;
        let (record, _) = record_at(lease.bytes().0, *at)?;
        Some(record.facts.time_ns)
    }
}

/// Returns the record at the given offset, and its size; none at the end of the bucket's records.
#[inline(always)]
fn record_at(bytes: &[u8], at: usize) -> Option<(Record<'_>, usize)> {
    let rest = bytes.get(at..)?;
    let (head, rest) = rest.split_first_chunk::<HEADER_BYTES>()?;
    let [a, b] = [0, 8].map(|i| {
        let mut word = [0; 8];
        word.copy_from_slice(&head[i..i + 8]);
        u64::from_ne_bytes(word)
    });
    let (facts, kept) = Facts::of_words([a, b]);
    let frame = rest.get(..kept as usize)?;
    let size = crate::record::record_bytes(kept as usize);
    Some((Record { facts, frame }, size))
}

/// A consumer that removes packets, a bucket at a time, the oldest first.
#[derive(Debug)]
pub struct Taker(Arc<Ring>);

/// A bucket of packets that was removed from the ring, so that no other thread can access it. Dropping the batch
/// returns the memory to the ring.
#[derive(Debug)]
pub struct Batch(Taken);

impl Taker {
    /// Removes the oldest closed bucket that no reader uses; none if there is no such bucket.
    pub fn take(&self) -> Option<Batch> {
        self.0.buckets.take().map(Batch)
    }
}

impl Batch {
    /// Returns the header of the bucket.
    pub fn content(&self) -> Content {
        Content::of_tags(self.0.tags())
    }

    /// Returns the packets of the bucket.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        let (bytes, mut at) = (self.0.bytes(), 0);
        std::iter::from_fn(move || {
            let (record, size) = record_at(bytes, at)?;
            at += size;
            Some(record)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const SMALL: usize = 512;

    fn facts(time_ns: u64, port: u8) -> Facts {
        Facts {
            time_ns,
            wire_bytes: 100,
            port,
            flags: 0,
        }
    }

    fn times(reader: &mut Reader) -> Vec<u64> {
        let mut seen = Vec::new();
        reader.read(u64::MAX, usize::MAX, |it| seen.push(it.facts.time_ns));
        seen
    }

    #[test]
    fn a_reader_receives_only_published_packets_from_its_start_time() {
        let ring = Ring::new(4096, 0, SMALL).unwrap();
        let mut producer = ring.producer(60);
        let mut reader = ring.reader(Start::Now);
        producer.put(facts(1, 0), &[7; 100]);
        assert!(times(&mut reader).is_empty());
        producer.publish();
        let mut kept = Vec::new();
        reader.read(u64::MAX, 10, |it| kept.push((it.facts, it.frame.to_vec())));
        assert_eq!(kept, [(facts(1, 0), vec![7; 60])]);
        producer.put(facts(5, 0), &[]);
        producer.put(facts(9, 0), &[]);
        producer.publish();
        let mut until_5 = Vec::new();
        reader.read(5, 10, |it| until_5.push(it.facts.time_ns));
        assert_eq!(until_5, [5]);
        assert!(times(&mut ring.reader(Start::Now)).is_empty());
        assert_eq!(times(&mut ring.reader(Start::At(5))), [5, 9]);
        assert_eq!(times(&mut ring.reader(Start::At(0))), [1, 5, 9]);
        assert_eq!(times(&mut reader), [9]);
        assert_eq!(ring.oldest_ns(), Some(1));
        assert_eq!(
            ring.kept(),
            Count {
                packets: 3,
                bytes: 300
            }
        );
    }

    #[test]
    fn overwritten_packets_are_counted_by_the_ring_and_the_reader() {
        let ring = Ring::new(4 * SMALL as u64, 0, SMALL).unwrap();
        let mut producer = ring.producer(64);
        let mut reader = ring.reader(Start::Now);
        for at in 1..=1000 {
            producer.put(facts(at, 0), &[1; 64]);
            producer.publish();
        }
        let seen = times(&mut reader);
        assert_eq!(seen.last(), Some(&1000));
        assert_eq!(seen.len() as u64 + ring.overwritten().packets, 1000);
        assert!(seen.windows(2).all(|it| it[0] + 1 == it[1]), "{seen:?}");
        // The producer had no bucket before, so the reader expected no packets from this producer. A producer with a
        // bucket publishes its losses.
        assert_eq!(reader.missed(), 0);
        for at in 1001..=2000 {
            producer.put(facts(at, 0), &[1; 64]);
        }
        producer.publish();
        let more = times(&mut reader);
        assert_eq!(more.len() as u64 + reader.missed(), 1000);
        assert_eq!(ring.lost(), Count::default());
    }

    #[test]
    fn a_bucket_in_use_by_a_reader_is_not_overwritten() {
        let ring = Ring::new(3 * SMALL as u64, 0, SMALL).unwrap();
        let mut producer = ring.producer(64);
        for at in 1..=6 {
            producer.put(facts(at, 0), &[1; 64]);
        }
        producer.publish();
        let mut reader = ring.reader(Start::At(0));
        let mut first = Vec::new();
        reader.read(u64::MAX, 2, |it| first.push(it.facts.time_ns));
        for at in 7..=200 {
            producer.put(facts(at, 0), &[1; 64]);
        }
        producer.publish();
        assert!(ring.passed_over() > 0);
        first.extend(times(&mut reader));
        assert_eq!(first[..6], [1, 2, 3, 4, 5, 6]);
        assert_eq!(first.len() as u64 + reader.missed(), 200);
        assert_eq!(ring.overwritten().packets, reader.missed());
    }

    #[test]
    fn packets_without_a_free_bucket_count_as_lost() {
        let ring = Ring::new(2 * SMALL as u64, 0, SMALL).unwrap();
        let (mut a, mut b) = (ring.producer(64), ring.producer(64));
        a.put(facts(1, 0), &[1; 64]);
        b.put(facts(2, 0), &[1; 64]);
        let mut c = ring.producer(64);
        c.put(facts(3, 0), &[1; 64]);
        c.publish();
        assert_eq!(
            ring.lost(),
            Count {
                packets: 1,
                bytes: 100
            }
        );
        // A frame that is longer than a bucket is lost, too.
        a.close();
        let mut whole = ring.producer(10_000);
        whole.put(facts(4, 0), &[1; 5000]);
        whole.publish();
        assert_eq!(ring.lost().packets, 2);
    }

    #[test]
    fn all_consumers_of_a_classic_ring_receive_only_complete_buckets() {
        let hold = Duration::from_nanos(10);
        let ring = Ring::classic(8 * SMALL as u64, 0, SMALL, hold).unwrap();
        let mut producer = ring.producer(64);
        let mut classic = ring.reader(Start::At(0));
        for at in 1..=8 {
            producer.put(facts(at, 0), &[1; 64]);
        }
        producer.publish();
        assert_eq!(times(&mut classic), [1, 2, 3, 4, 5, 6]);
        let mut late = ring.reader(Start::Now);
        producer.hand_over(16);
        assert!(times(&mut classic).is_empty());
        producer.put(facts(9, 0), &[1; 64]);
        producer.hand_over(17);
        assert_eq!(times(&mut classic), [7, 8, 9]);
        // The reader started when two packets were in a bucket that was not closed yet; it skips both.
        assert_eq!(times(&mut late), [9]);
        drop((classic, late));
        let taker = ring.taker();
        let batch = taker.take().unwrap();
        assert_eq!((batch.content().packets, batch.content().first_ns), (6, 1));
        assert_eq!(batch.records().map(|it| it.facts.time_ns).sum::<u64>(), 21);
        assert_eq!(times(&mut ring.reader(Start::At(0))), [7, 8, 9]);
        drop(batch);
        assert_eq!(taker.take().unwrap().records().count(), 3);
        assert!(taker.take().is_none());
    }

    #[test]
    fn a_busy_producer_never_overwrites_packets_of_an_idle_producer() {
        let ring = Ring::new(4 * SMALL as u64, 0, SMALL).unwrap();
        let (mut few, mut many) = (ring.producer(64), ring.producer(64));
        few.put(facts(1, 0), &[1; 8]);
        few.publish();
        many.put(facts(2, 1), &[2; 64]);
        many.publish();
        let mut follower = ring.reader(Start::At(0));
        assert_eq!(times(&mut follower), [1, 2]);
        for at in 3..=200 {
            many.put(facts(at, 1), &[2; 64]);
            many.publish();
        }
        few.put(facts(201, 0), &[1; 8]);
        few.publish();
        let last: Vec<u64> = (195..=201).collect();
        assert_eq!(ring.oldest_ns(), Some(1));
        for mut reader in [ring.reader(Start::At(0)), ring.reader(Start::At(180))] {
            let seen = times(&mut reader);
            assert!(seen.ends_with(&last), "{seen:?}");
        }
        let seen = times(&mut follower);
        assert!(seen.ends_with(&last), "{seen:?}");
        few.close();
        few.put(facts(202, 0), &[1; 8]);
        few.publish();
        assert_eq!(times(&mut follower), [202]);
        assert_eq!(follower.missed() + seen.len() as u64, 199);
    }

    #[test]
    fn a_ring_resizes_within_its_limits_and_counts_overwritten_packets() {
        assert!(Ring::new(SMALL as u64, 0, SMALL).is_err());
        assert!(Ring::new(1 << 40, 0, 4096).is_err());
        let ring = Ring::new(4 * SMALL as u64, 8 * SMALL as u64, SMALL).unwrap();
        assert_eq!(ring.resize(1 << 30), 8 * SMALL as u64);
        let mut producer = ring.producer(64);
        for at in 1..=40 {
            producer.put(facts(at, 0), &[1; 64]);
        }
        producer.publish();
        assert_eq!(ring.resize(0), 2 * SMALL as u64);
        let seen = times(&mut ring.reader(Start::At(0)));
        assert_eq!(seen, (31..=40).collect::<Vec<_>>());
        assert_eq!(ring.overwritten().packets, 30);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]

        /// For any behaviour of producers and a reader, each packet arrives once, in the order of time among the
        /// available packets, or counts as missed.
        #[test]
        fn packets_arrive_once_and_in_order_or_count_as_missing(
            steps in prop::collection::vec((0..4u8, 1..6usize, 0..120usize), 1..300),
            buckets in 8..14u64,
        ) {
            let ring = Ring::new(buckets * SMALL as u64, 0, SMALL).unwrap();
            let mut producers: Vec<_> = (0..3).map(|_| ring.producer(96)).collect();
            let mut reader = ring.reader(Start::Now);
            // After this, the reader has a line for each producer.
            let mut now = 0;
            let mut put = BTreeSet::new();
            for (port, producer) in producers.iter_mut().enumerate() {
                now += 1;
                producer.put(facts(now, port as u8), &[0; 8]);
                producer.publish();
                put.insert(now);
            }
            let mut seen = Vec::new();
            reader.read(u64::MAX, usize::MAX, |it| seen.push(it.facts.time_ns));
            for (who, count, len) in steps {
                match producers.get_mut(who as usize) {
                    Some(producer) => {
                        for _ in 0..count {
                            now += 1;
                            producer.put(facts(now, who), &vec![who; len]);
                            put.insert(now);
                        }
                        producer.publish();
                    }
                    None => {
                        let mut last = 0;
                        reader.read(u64::MAX, count * 7, |it| {
                            assert!(it.facts.time_ns > last);
                            last = it.facts.time_ns;
                            assert!(it.frame.iter().all(|byte| *byte == it.facts.port));
                            seen.push(last);
                        });
                    }
                }
            }
            // Missed packets of a producer are counted when the producer writes its next packet.
            for (port, producer) in producers.iter_mut().enumerate() {
                now += 1;
                producer.put(facts(now, port as u8), &[]);
                producer.publish();
                put.insert(now);
            }
            let mut rest = Vec::new();
            reader.read(u64::MAX, usize::MAX, |it| rest.push(it.facts.time_ns));
            prop_assert!(rest.is_sorted());
            seen.extend(rest);
            let all = seen.len();
            let once: BTreeSet<_> = seen.into_iter().collect();
            prop_assert_eq!(once.len(), all);
            prop_assert!(once.is_subset(&put));
            prop_assert_eq!(all as u64 + reader.missed() + ring.lost().packets, put.len() as u64);
        }
    }
}
