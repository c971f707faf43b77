//! Reassembly of IPv4 fragments (RFC 791 section 3.2) and IPv6 fragments (RFC 8200 section 4.5) for one worker, with
//! all memory allocated at the start.
//!
//! Receivers differ in which of two overlapping fragments they keep, so an attacker can show one packet to the
//! inspection and another to the receiver. A datagram whose fragments overlap and differ is abandoned, including its
//! later fragments (RFC 5722 for IPv6; the same applies to IPv4), unless [`Overlap::First`] is configured. Duplicate
//! bytes that are equal do no harm. A first fragment that splits a TCP header before its flags ends the datagram too
//! (RFC 1858 section 3).
//!
//! The header of the complete packet is that of the first fragment, including the ECN bits. Fragments with a wrong IPv4
//! header checksum are dropped, as by any receiver.
//!
//! # Replacement of datagrams
//!
//! A new datagram always gets an entry, if necessary that of the oldest datagram, so no sender can lock others out. The
//! entries and bytes of a source are limited. A source at its limit replaces its own datagrams, so it cannot evict
//! those of others. A source is identified by its address, in IPv6 by the first 64 bits. Sources are distinguished by a
//! hash with a secret key. Few sources therefore share a limit, and no sender can choose the source with which it
//! shares one.
//!
//! # Cost of a fragment
//!
//! The bytes of a datagram are stored by their offset, in chunks with a bit for each unit of 8 bytes. The time to store
//! and compare a fragment therefore depends on its own length and not on earlier fragments. In addition, up to eight
//! datagrams whose keys have the same hash are examined. The number of other datagrams that are released is limited by
//! the chunks that the fragment needs and the entries of its source. A complete datagram is copied once.

mod datagram;
mod fault;
mod fragment;
mod lists;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use fault::{FragmentFault, MOST_FRAGMENTS, MOST_HEADER_BYTES};

use crate::arena::{CHUNK_BYTES, NONE};
use crate::overlap::Overlap;
use datagram::{Datagram, MOST_CHUNKS, Memory, Taken};
use fault::MOST_BYTES;
use fragment::{Fragment, IPV6_HEADER_BYTES, Key};
use lists::Lists;
use taut_sys::HashKey;

/// Maximum number of datagrams in one hash list. There are twice as many lists as entries, so lists rarely reach this
/// length.
const MOST_IN_CHAIN: usize = 8;

/// The limits on stored fragments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FragmentLimits {
    /// Maximum number of bytes of payload and headers in all, in complete chunks of [`CHUNK_BYTES`]. In addition, each
    /// datagram takes about 700 bytes.
    pub bytes: usize,
    /// Maximum number of datagrams at the same time, including those that were abandoned.
    pub datagrams: usize,
    /// Maximum number of datagrams of one source at the same time. A source may use the same fraction of `bytes` as of
    /// `datagrams`, or the size of the longest datagram if that is more.
    pub of_source: usize,
    /// Time from the arrival of the first fragment until the datagram is released, in nanoseconds. A datagram that is
    /// abandoned is remembered for the same time after that.
    pub timeout_ns: u64,
}

impl Default for FragmentLimits {
    /// Returns 4 MiB, 1024 datagrams, 64 of one source, and 30 seconds (the value of Linux for IPv4).
    fn default() -> Self {
        Self {
            bytes: 4 << 20,
            datagrams: 1024,
            of_source: 64,
            timeout_ns: 30_000_000_000,
        }
    }
}

/// The result of passing a fragment to the reassembly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// The fragment is stored; other fragments of its datagram are missing.
    Kept,
    /// The fragment completed its datagram. The bytes are the packet, from its layer-3 header on, with correct lengths
    /// and checksum. The packet is again a fragment if an IPv6 packet with a fragment header was fragmented, which no
    /// legitimate sender does.
    Whole(&'a [u8]),
    /// The fragment was dropped; its datagram was abandoned if the fault [ends](FragmentFault::ends_datagram) it.
    Dropped(FragmentFault),
    /// All bytes of the fragment had arrived before with the same values.
    Duplicate,
}

/// Counters of datagrams that were released before they were complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FragmentCounters {
    /// Datagrams that were replaced as the oldest of all, because entries or memory had run out.
    pub made_room: u64,
    /// Datagrams that were replaced as the oldest of a source that had reached its limit.
    pub made_room_of_source: u64,
    /// Datagrams that were abandoned because one of their fragments had a fault that
    /// [ends](FragmentFault::ends_datagram) the datagram.
    pub given_up: u64,
    /// Datagrams that were released because of their timeout.
    pub timed_out: u64,
}

// Indices of the lists of entries by age. Each entry is in one of the lists.
const FREE: usize = 0;
const GIVEN_UP: usize = 1;
const WAITING: usize = 2;

/// The table of incomplete datagrams.
#[derive(Debug)]
pub struct Fragments {
    limits: FragmentLimits,
    overlap: Overlap,
    hash_key: HashKey,
    memory: Memory,
    /// One datagram for each entry of the table; the content of a free entry is meaningless.
    datagrams: Box<[Datagram]>,
    /// The lists [`FREE`], [`GIVEN_UP`] and [`WAITING`] of entries, each with the oldest entry first.
    by_age: Lists,
    /// Entries in use, in lists by the hash of their key. There are twice as many lists as entries.
    by_key: Lists,
    /// Entries in use, in lists by the hash of their source, the oldest first. There are as many lists as in `by_key`.
    by_source: Lists,
    /// Number of chunks in use for the entries of each list of `by_source`. The next field is the maximum of this
    /// number.
    chunks_of: Box<[u32]>,
    share: usize,
    scratch: Box<[u8]>,
    overlaps: bool,
    /// Counters of incomplete datagrams.
    pub counters: FragmentCounters,
}

impl Fragments {
    /// Allocates all memory for the reassembly.
    pub fn new(limits: FragmentLimits, overlap: Overlap) -> Self {
        let places = limits.datagrams.clamp(1, NONE as usize / 4);
        let of_source = limits.of_source.clamp(1, places);
        let memory = Memory::new(limits.bytes);
        let lists = (2 * places).next_power_of_two();
        let free = Datagram::new(Key::NONE, 0, 0, 0);
        let mut by_age = Lists::new(3, places);
        (0..places).for_each(|place| by_age.push(FREE, place));
        Self {
            limits: FragmentLimits {
                datagrams: places,
                of_source,
                ..limits
            },
            overlap,
            hash_key: HashKey::default(),
            share: (memory.chunks() * of_source / places).max(MOST_CHUNKS),
            memory,
            datagrams: vec![free; places].into(),
            by_age,
            by_key: Lists::new(lists, places),
            by_source: Lists::new(lists, places),
            chunks_of: vec![0; lists].into(),
            scratch: vec![0; IPV6_HEADER_BYTES + MOST_BYTES].into(),
            overlaps: false,
            counters: FragmentCounters::default(),
        }
    }

    /// Returns the number of datagrams that are stored or remembered as abandoned.
    pub fn datagrams(&self) -> usize {
        self.limits.datagrams - self.by_age.len(FREE)
    }

    /// Returns the number of bytes of the chunks in use.
    pub fn bytes(&self) -> usize {
        self.memory.used() * CHUNK_BYTES
    }

    /// Releases datagrams that have timed out. The caller calls it about once a second.
    pub fn expire(&mut self, now_ns: u64) {
        while let Some(oldest) = self.oldest()
            && self.is_over(oldest, now_ns)
        {
            self.time_out(oldest);
        }
    }

    /// Accepts a fragment that arrives at the time `now_ns` of a monotonic clock. `packet` begins with its layer-3
    /// header. Fragments with different tags, such as VLANs or ingress ports, belong to different datagrams.
    ///
    /// A packet in a single fragment, as translators send it, is complete immediately, even if fragments with the same
    /// key wait (RFC 6946).
    pub fn push(&mut self, now_ns: u64, tag: u32, packet: &[u8]) -> Outcome<'_> {
        match self.take(now_ns, tag, packet) {
            Ok(Taken::Kept) => Outcome::Kept,
            Ok(Taken::Duplicate) => Outcome::Duplicate,
            Ok(Taken::Whole(len)) => Outcome::Whole(&self.scratch[..len]),
            Err(fault) => Outcome::Dropped(fault),
        }
    }

    /// Returns true if the fragment accepted last overlapped another fragment of its datagram, with equal bytes or not.
    pub fn overlaps(&self) -> bool {
        self.overlaps
    }

    fn take(&mut self, now_ns: u64, tag: u32, packet: &[u8]) -> Result<Taken, FragmentFault> {
        self.overlaps = false;
        let fragment = Fragment::read(packet, tag)?;
        if fragment.is_atomic() {
            return Ok(Taken::Whole(fragment.write_whole(&mut self.scratch)));
        }
        let place = self.place_of(&fragment.key, now_ns);
        if self.datagrams[place].is_given_up {
            return Err(FragmentFault::GivenUp);
        }
        let taken = self.keep(place, &fragment);
        match taken {
            Ok(Taken::Whole(_)) => self.let_go(place),
            Err(fault) if fault.ends_datagram() => self.give_up(place, now_ns),
            _ => {}
        }
        taken
    }

    fn keep(&mut self, place: usize, fragment: &Fragment<'_>) -> Result<Taken, FragmentFault> {
        let chunks = self.datagrams[place].check(fragment, self.overlap)?;
        self.make_room(place, chunks)?;
        let used = self.memory.used();
        let datagram = &mut self.datagrams[place];
        let taken = datagram.keep(&mut self.memory, fragment, self.overlap, &mut self.scratch);
        self.overlaps = datagram.overlaps;
        // If the fragment contradicts stored bytes, fewer chunks than calculated may have been allocated, so the actual
        // number is added.
        self.chunks_of[datagram.source as usize] += (self.memory.used() - used) as u32;
        taken
    }

    /// Returns the entry of the datagram with `key`; creates the entry if there is none.
    fn place_of(&mut self, key: &Key, now_ns: u64) -> usize {
        let chain = self.list_of(key.hash(&self.hash_key));
        if let Some(place) = self.find(key, chain) {
            if !self.is_over(place, now_ns) {
                return place;
            }
            self.time_out(place);
        }
        self.begin(key, chain, now_ns)
    }

    fn find(&self, key: &Key, chain: usize) -> Option<usize> {
        let mut places = self.by_key.iter(chain);
        places.find(|place| self.datagrams[*place].key == *key)
    }

    /// Returns the index of the list for the hash of a key or of a source.
    fn list_of(&self, hash: u64) -> usize {
        hash as usize & (self.chunks_of.len() - 1)
    }

    /// Begins a datagram. If necessary, it replaces the oldest datagram of its source, of its hash list, or of the
    /// table.
    fn begin(&mut self, key: &Key, chain: usize, now_ns: u64) -> usize {
        let source = self.list_of(key.hash_of_source(&self.hash_key));
        if self.by_source.len(source) >= self.limits.of_source
            && let Some(oldest) = self.by_source.first(source)
        {
            self.let_go(oldest);
            self.counters.made_room_of_source += 1;
        }
        if self.by_key.len(chain) >= MOST_IN_CHAIN
            && let Some(oldest) = self.by_key.first(chain)
        {
            self.let_go(oldest);
            self.counters.made_room += 1;
        }
        if self.by_age.len(FREE) == 0
            && let Some(oldest) = self.oldest()
        {
            self.let_go(oldest);
            self.counters.made_room += 1;
        }
        // There is always a free entry at this point.
        let place = self.by_age.first(FREE).unwrap_or(0);
        self.by_age.remove(FREE, place);
        self.by_age.push(WAITING, place);
        self.by_key.push(chain, place);
        self.by_source.push(source, place);
        self.datagrams[place] = Datagram::new(*key, now_ns, chain as u32, source as u32);
        place
    }

    /// Releases other datagrams, those of the same source first, until `chunks` chunks are free for the datagram in
    /// entry `place`.
    fn make_room(&mut self, place: usize, chunks: usize) -> Result<(), FragmentFault> {
        let source = self.datagrams[place].source as usize;
        while self.chunks_of[source] as usize + chunks > self.share {
            let oldest = self.by_source.iter(source).find(|it| *it != place);
            self.let_go(oldest.ok_or(FragmentFault::NoMemory)?);
            self.counters.made_room_of_source += 1;
        }
        while self.memory.free() < chunks {
            let oldest = self.by_age.iter(WAITING).find(|it| *it != place);
            self.let_go(oldest.ok_or(FragmentFault::NoMemory)?);
            self.counters.made_room += 1;
        }
        Ok(())
    }

    /// Returns the datagram that times out first.
    fn oldest(&self) -> Option<usize> {
        let oldest = [GIVEN_UP, WAITING].map(|list| self.by_age.first(list));
        let oldest = oldest.into_iter().flatten();
        oldest.min_by_key(|place| self.datagrams[*place].since_ns)
    }

    fn is_over(&self, place: usize, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.datagrams[place].since_ns) >= self.limits.timeout_ns
    }

    fn time_out(&mut self, place: usize) {
        self.counters.timed_out += u64::from(!self.datagrams[place].is_given_up);
        self.let_go(place);
    }

    fn give_up(&mut self, place: usize, now_ns: u64) {
        self.give_chunks_back(place);
        self.by_age.remove(WAITING, place);
        self.by_age.push(GIVEN_UP, place);
        // Lists by age are in order of these times.
        self.datagrams[place].since_ns = now_ns;
        self.datagrams[place].is_given_up = true;
        self.counters.given_up += 1;
    }

    fn let_go(&mut self, place: usize) {
        self.give_chunks_back(place);
        let datagram = &self.datagrams[place];
        let list = if datagram.is_given_up {
            GIVEN_UP
        } else {
            WAITING
        };
        self.by_age.remove(list, place);
        self.by_key.remove(datagram.chain as usize, place);
        self.by_source.remove(datagram.source as usize, place);
        self.by_age.push(FREE, place);
    }

    fn give_chunks_back(&mut self, place: usize) {
        let datagram = &mut self.datagrams[place];
        let chunks = datagram.let_go(&mut self.memory);
        self.chunks_of[datagram.source as usize] -= chunks as u32;
    }
}
