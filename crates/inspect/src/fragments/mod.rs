//! Whole packets out of fragments of IPv4 (RFC 791 section 3.2) and IPv6 (RFC 8200 section 4.5), for a worker: all memory is made at the
//! start.
//!
//! Receivers differ in which of two overlapping fragments they keep, so an attacker can show one packet to the inspection and another
//! to the receiver. A datagram whose fragments overlap and differ is given up, with all fragments that are still to come (RFC 5722 for IPv6; the same is
//! done for IPv4), unless [`Overlap::First`] is asked for. Bytes that come twice and are the same do no harm. A first fragment that cuts a
//! TCP header before its flags ends the datagram too (RFC 1858 section 3).
//!
//! The header of the whole packet is the first fragment's, ECN bits included. IPv4 headers with a wrong checksum are not counted in, as no
//! receiver would.
//!
//! # Who makes room
//!
//! A new datagram always gets its place, so that nobody keeps others out: the oldest one makes room. A source has a share of places and of
//! memory, and makes room within it, so that a single one cannot push others out. It is known by its address, of IPv6 by the first 64 bits
//! of that. Sources are told apart by a hash with a secret key, so that few share what is one's, and nobody can choose with whom.
//!
//! # What a fragment costs
//!
//! The bytes of a datagram lie by their offset, in chunks with a bit for each unit of 8 bytes. So a fragment is put where it belongs, and
//! compared with what is there, in time that goes by its own length and not by what has come before. Besides, it looks at eight
//! datagrams of its hash at most, and lets go at most as many others as it needs chunks and as its source has places. A datagram that is
//! whole is copied once.

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

/// Datagrams in one list of hashes at most. There are twice as many lists as places, so that so many hardly ever meet.
const MOST_IN_CHAIN: usize = 8;

/// Limits of what is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FragmentLimits {
    /// Bytes of payload and headers in all, in whole chunks of [`CHUNK_BYTES`]. Besides, each datagram takes about 700 bytes.
    pub bytes: usize,
    /// Datagrams at a time, those that were given up included.
    pub datagrams: usize,
    /// Datagrams of one source at a time. Its share of `bytes` is the same as that of `datagrams`, or what the longest datagram takes.
    pub of_source: usize,
    /// Time from the first fragment that came until the datagram is let go, in nanoseconds. One that was given up is remembered for as
    /// long from then on.
    pub timeout_ns: u64,
}

impl Default for FragmentLimits {
    /// 4 MiB, 1024 datagrams, 64 of one source, 30 seconds (which Linux takes for IPv4).
    fn default() -> Self {
        Self {
            bytes: 4 << 20,
            datagrams: 1024,
            of_source: 64,
            timeout_ns: 30_000_000_000,
        }
    }
}

/// What became of a fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// It waits for the others.
    Kept,
    /// It was the last one that was missing: the packet from its layer-3 header on, with the right lengths and checksum. It may be a
    /// fragment again where somebody has put a fragment header into what an IPv6 host has cut up: no sender of good faith does.
    Whole(&'a [u8]),
    /// It was dropped, and its datagram was given up if the fault [ends](FragmentFault::ends_datagram) that.
    Dropped(FragmentFault),
    /// All that it says has come before, and the same.
    Duplicate,
}

/// Numbers of datagrams that did not become whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FragmentCounters {
    /// Datagrams that were let go as the oldest when places or memory had run out.
    pub made_room: u64,
    /// Datagrams that were let go as the oldest of a source that had its share.
    pub made_room_of_source: u64,
    /// Datagrams that a fragment has ended.
    pub given_up: u64,
    /// Datagrams whose time was over before they were whole.
    pub timed_out: u64,
}

// Lists of places by age. Each is in one of them.
const FREE: usize = 0;
const GIVEN_UP: usize = 1;
const WAITING: usize = 2;

/// Datagrams that are not whole yet.
#[derive(Debug)]
pub struct Fragments {
    limits: FragmentLimits,
    overlap: Overlap,
    hash_key: HashKey,
    memory: Memory,
    /// One for each place of the table; what is in a free one is over.
    datagrams: Box<[Datagram]>,
    /// Places by [`FREE`], [`GIVEN_UP`] and [`WAITING`], the oldest first.
    by_age: Lists,
    /// Places in use by the hash of their key, in twice as many lists as there are places.
    by_key: Lists,
    /// Places in use by the hash of their source, the oldest first, in as many lists.
    by_source: Lists,
    /// Chunks of each source, and those that it may have.
    chunks_of: Box<[u32]>,
    share: usize,
    scratch: Box<[u8]>,
    overlaps: bool,
    /// What has become of those that are gone.
    pub counters: FragmentCounters,
}

impl Fragments {
    /// Makes all memory.
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

    /// Returns the number of datagrams that are kept or remembered as given up.
    pub fn datagrams(&self) -> usize {
        self.limits.datagrams - self.by_age.len(FREE)
    }

    /// Returns the bytes of chunks in use.
    pub fn bytes(&self) -> usize {
        self.memory.used() * CHUNK_BYTES
    }

    /// Lets datagrams go whose time is over. It is to be called every second or so.
    pub fn expire(&mut self, now_ns: u64) {
        while let Some(oldest) = self.oldest()
            && self.is_over(oldest, now_ns)
        {
            self.time_out(oldest);
        }
    }

    /// Takes a fragment, from its layer-3 header on, at a time of any clock that does not go back. Fragments of different tags, as for a
    /// VLAN or the port that they came through, do not belong together.
    ///
    /// A packet of one fragment, as translators send them, is whole at once, whatever else waits (RFC 6946).
    pub fn push(&mut self, now_ns: u64, tag: u32, packet: &[u8]) -> Outcome<'_> {
        match self.take(now_ns, tag, packet) {
            Ok(Taken::Kept) => Outcome::Kept,
            Ok(Taken::Duplicate) => Outcome::Duplicate,
            Ok(Taken::Whole(len)) => Outcome::Whole(&self.scratch[..len]),
            Err(fault) => Outcome::Dropped(fault),
        }
    }

    /// Says whether the last fragment had bytes that another one of its datagram has, the same or others.
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
        // One that differs may have taken fewer.
        self.chunks_of[datagram.source as usize] += (self.memory.used() - used) as u32;
        taken
    }

    /// The place of the datagram with that key, which begins if it is not there.
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

    /// The list that a hash belongs to, of keys or of sources.
    fn list_of(&self, hash: u64) -> usize {
        hash as usize & (self.chunks_of.len() - 1)
    }

    /// Begins a datagram. The oldest of its source, of its hash, or of all makes room for it.
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
        // There is always one by now.
        let place = self.by_age.first(FREE).unwrap_or(0);
        self.by_age.remove(FREE, place);
        self.by_age.push(WAITING, place);
        self.by_key.push(chain, place);
        self.by_source.push(source, place);
        self.datagrams[place] = Datagram::new(*key, now_ns, chain as u32, source as u32);
        place
    }

    /// Lets others go, those of the same source first, until there are that many chunks for a datagram.
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

    /// The datagram whose time is over first.
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
