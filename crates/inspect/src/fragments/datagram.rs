//! An incomplete datagram. Its bytes are stored in chunks by their offset, so no search is necessary to store a
//! fragment.

use super::fault::{FragmentFault, MOST_BYTES, MOST_FRAGMENTS};
use super::fragment::{Fragment, Key, write_lengths};
use crate::arena::{Arena, CHUNK_BYTES, NONE};
use crate::overlap::Overlap;

/// Number of bytes in a unit of fragment offsets.
const UNIT_BYTES: usize = 8;
/// Number of chunks for the payload of the longest datagram.
const PAYLOAD_CHUNKS: usize = MOST_BYTES.div_ceil(CHUNK_BYTES);
/// Number of chunks for the longest datagram, including its headers.
pub(super) const MOST_CHUNKS: usize = PAYLOAD_CHUNKS + 1;

/// The chunks of all datagrams, with the units that are present in each chunk.
#[derive(Debug)]
pub(super) struct Memory {
    arena: Arena,
    /// One bit for each unit of a chunk, set if the unit is present.
    present: Box<[u64]>,
}

const _: () = assert!(CHUNK_BYTES / UNIT_BYTES == u64::BITS as usize);

/// The result of storing the bytes of a fragment in a chunk.
#[derive(Debug, Default, Clone, Copy)]
struct Laid {
    /// Number of bytes that were not present yet.
    new: usize,
    /// True if some bytes of the fragment differ from the stored bytes at the same offset.
    differs: bool,
}

impl Memory {
    pub fn new(bytes: usize) -> Self {
        let arena = Arena::new(bytes);
        Self {
            present: vec![0; arena.chunks()].into(),
            arena,
        }
    }

    /// Returns the number of chunks in use.
    pub fn used(&self) -> usize {
        self.arena.used()
    }

    /// Returns the number of chunks that are free.
    pub fn free(&self) -> usize {
        self.arena.chunks() - self.arena.used()
    }

    /// Returns the number of all chunks.
    pub fn chunks(&self) -> usize {
        self.arena.chunks()
    }

    fn take(&mut self) -> Result<u32, FragmentFault> {
        let chunk = self.arena.take().ok_or(FragmentFault::NoMemory)?;
        self.present[chunk as usize] = 0;
        Ok(chunk)
    }

    /// Copies bytes into the units of a chunk that are not present yet, and compares the other bytes with the stored
    /// ones.
    fn lay(&mut self, chunk: u32, at: usize, bytes: &[u8]) -> Laid {
        let first = at / UNIT_BYTES;
        let units = bytes.len().div_ceil(UNIT_BYTES) as u32;
        let wanted = (u64::MAX >> (u64::BITS - units)) << first;
        let present = self.present[chunk as usize];
        self.present[chunk as usize] |= wanted;
        let place = &mut self.arena.bytes_mut(chunk)[at..at + bytes.len()];
        let mut laid = Laid::default();
        if present & wanted == 0 {
            place.copy_from_slice(bytes);
            laid.new = bytes.len();
            return laid;
        }
        let places = place.chunks_mut(UNIT_BYTES);
        for (unit, (place, bytes)) in (first..).zip(places.zip(bytes.chunks(UNIT_BYTES))) {
            if present >> unit & 1 == 1 {
                laid.differs |= place != bytes;
            } else {
                place.copy_from_slice(bytes);
                laid.new += bytes.len();
            }
        }
        laid
    }
}

/// The result of accepting a fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    Kept,
    Duplicate,
    /// The fragment completed the datagram. The number is the length of the datagram in bytes, including its headers.
    Whole(usize),
}

/// A datagram that is incomplete, or that was abandoned.
#[derive(Debug, Clone)]
pub(super) struct Datagram {
    pub key: Key,
    pub since_ns: u64,
    /// Indices of the two lists that contain the datagram: the list of its hash, and the list of its source.
    pub chain: u32,
    pub source: u32,
    pub is_given_up: bool,
    /// True if the fragment that arrived last overlapped an earlier fragment.
    pub overlaps: bool,
    /// Number of fragments that contained new bytes.
    fragments: u16,
    /// Length of the payload in bytes; none until the fragment at its end has arrived.
    end: Option<usize>,
    /// Offset after the stored byte with the highest offset.
    reach: usize,
    /// Number of stored bytes of the payload.
    present: usize,
    /// Chunk with the headers of the first fragment, in the form for the complete packet except for lengths and
    /// checksum.
    headers: u32,
    header_bytes: usize,
    /// Number of header bytes that count towards the length of the packet.
    counted_bytes: usize,
    /// Protocol number in the first fragment.
    protocol: u8,
    /// Chunks with the payload of the datagram, by their offset.
    chunks: [u32; PAYLOAD_CHUNKS],
}

impl Datagram {
    pub fn new(key: Key, since_ns: u64, chain: u32, source: u32) -> Self {
        Self {
            key,
            since_ns,
            chain,
            source,
            is_given_up: false,
            overlaps: false,
            fragments: 0,
            end: None,
            reach: 0,
            present: 0,
            headers: NONE,
            header_bytes: 0,
            counted_bytes: 0,
            protocol: 0,
            chunks: [NONE; PAYLOAD_CHUNKS],
        }
    }

    /// Checks a fragment against earlier ones of the datagram, and returns the number of chunks that it needs.
    pub fn check(&self, fragment: &Fragment<'_>, overlap: Overlap) -> Result<usize, FragmentFault> {
        fragment.check()?;
        let end = fragment.end();
        let counted_bytes = self.counted_bytes.max(fragment.counted_bytes());
        if counted_bytes + self.reach.max(end) > MOST_BYTES {
            return Err(FragmentFault::TooLong);
        }
        let contradicts_end = match self.end {
            Some(known) if fragment.has_more => end >= known,
            Some(known) => end != known,
            None => !fragment.has_more && end <= self.reach,
        };
        let (begins, has_begun) = (fragment.offset == 0, self.headers != NONE);
        if contradicts_end || begins && has_begun && fragment.protocol != self.protocol {
            return Err(match overlap {
                Overlap::Drop => FragmentFault::Overlap,
                Overlap::First => FragmentFault::Contradiction,
            });
        }
        let chunks = &self.chunks[fragment.offset / CHUNK_BYTES..end.div_ceil(CHUNK_BYTES)];
        let missing = chunks.iter().filter(|chunk| **chunk == NONE).count();
        Ok(missing + usize::from(begins && !has_begun))
    }

    /// Stores a checked fragment. If the fragment completes the datagram, the datagram is written to `whole`.
    pub fn keep(
        &mut self,
        memory: &mut Memory,
        fragment: &Fragment<'_>,
        overlap: Overlap,
        whole: &mut [u8],
    ) -> Result<Taken, FragmentFault> {
        let laid = self.lay(memory, fragment)?;
        self.overlaps = laid.new < fragment.payload.len();
        if laid.differs && overlap == Overlap::Drop {
            return Err(FragmentFault::Overlap);
        }
        if laid.new == 0 && !laid.differs {
            return Ok(Taken::Duplicate);
        }
        self.fragments += 1;
        if usize::from(self.fragments) > MOST_FRAGMENTS {
            return Err(FragmentFault::TooMany);
        }
        if fragment.offset == 0 && self.headers == NONE {
            self.headers = memory.take()?;
            fragment.write_headers(memory.arena.bytes_mut(self.headers));
            self.header_bytes = fragment.header_bytes();
            self.counted_bytes = fragment.counted_bytes();
            self.protocol = fragment.protocol;
        }
        if self.end == Some(self.present) {
            return Ok(Taken::Whole(self.write_whole(memory, whole)));
        }
        Ok(Taken::Kept)
    }

    fn lay(&mut self, memory: &mut Memory, fragment: &Fragment<'_>) -> Result<Laid, FragmentFault> {
        let mut all = Laid::default();
        let (mut at, mut rest) = (fragment.offset, fragment.payload);
        while !rest.is_empty() {
            let within = at % CHUNK_BYTES;
            let (bytes, behind) = rest.split_at(rest.len().min(CHUNK_BYTES - within));
            let chunk = &mut self.chunks[at / CHUNK_BYTES];
            if *chunk == NONE {
                *chunk = memory.take()?;
            }
            let laid = memory.lay(*chunk, within, bytes);
            all.new += laid.new;
            all.differs |= laid.differs;
            (at, rest) = (at + bytes.len(), behind);
        }
        self.present += all.new;
        self.reach = self.reach.max(at);
        if !fragment.has_more {
            self.end = Some(at);
        }
        Ok(all)
    }

    fn write_whole(&self, memory: &Memory, to: &mut [u8]) -> usize {
        let len = self.header_bytes + self.reach;
        let (headers, mut rest) = to[..len].split_at_mut(self.header_bytes);
        headers.copy_from_slice(&memory.arena.bytes(self.headers)[..self.header_bytes]);
        for chunk in &self.chunks {
            let (place, behind) = rest.split_at_mut(rest.len().min(CHUNK_BYTES));
            if place.is_empty() {
                break;
            }
            place.copy_from_slice(&memory.arena.bytes(*chunk)[..place.len()]);
            rest = behind;
        }
        write_lengths(&mut to[..len]);
        len
    }

    /// Releases all chunks of the datagram, and returns their number.
    pub fn let_go(&mut self, memory: &mut Memory) -> usize {
        let before = memory.used();
        for chunk in self.chunks.iter_mut().chain([&mut self.headers]) {
            if *chunk != NONE {
                memory.arena.give_back(*chunk);
                *chunk = NONE;
            }
        }
        before - memory.used()
    }
}
