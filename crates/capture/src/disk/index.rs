//! The index of a segment: the keys (addresses, ports and other properties of packets) that occur in each block, and
//! the times of the blocks.
//!
//! The file consists of pages of 4096 bytes with the keys in order, each with a checksum, so that one read finds a key.
//! They are followed by the head (times, blocks, the first key of each page), its checksum and its length. All numbers
//! are little-endian.
//!
//! | Part | Holds |
//! |---|---|
//! | page | number of keys (2 bytes), keys, zeros, CRC-32 (4 bytes) |
//! | key | numbers: its code minus that of the previous key in the page; twice its list's length, plus 1 for bits |
//! | | continued for each key: its list, as numbers |
//! | list | empty: all blocks; or the first block and distances to the next; or the first block and bits from it on |
//! | head | bytes, packets, first and last time of the segment (8 each), blocks, pages (4 each) |
//! | | for each block: first and last time (8 each), packets (4), bytes (3), kinds of keys that were dropped (1) |
//! | | continued for each block: its offset in the file (8), its bytes in the file (4) |
//! | | for each page: its first key (8) |
//! | end | a word that identifies the format (8), bytes of the head (4), CRC-32 of head, word and length (4) |
//!
//! Numbers in index pages have 7 bits per byte, the lowest first; the top bit is set if more bytes follow.

use super::keys::{Codes, KINDS, kind};
use super::{BLOCK_BYTES, Blocks, MOST_BLOCKS};
use crate::record::Record;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

const PAGE_BYTES: usize = 4096;
/// Maximum number of bytes of keys in a page, including the number of keys: all bytes except the checksum.
const BODY_BYTES: usize = PAGE_BYTES - 4;
const MAGIC: u64 = u64::from_le_bytes(*b"tautidx2");
const FIXED_BYTES: usize = 40;
const BLOCK_ENTRY_BYTES: usize = 36;
const END_BYTES: usize = 16;
/// Number of bytes at the end of the index file that are read first: most heads are smaller.
const FIRST_READ_BYTES: usize = 32 << 10;

/// Number of slots in the table of fingerprints that occurred in a block.
const SEEN: usize = 1 << 14;
const SEEN_SHIFT: u32 = 64 - SEEN.trailing_zeros();
/// Multiplier that spreads the bits of a code over all 64 bits (2^64 divided by the golden ratio).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Maximum number of keys of a block that are indexed: limits memory (8 bytes per key) and the size of the index.
const MOST_KEYS: usize = 16_384;
/// Maximum number of bytes that a key of one block takes in an index page: 9 for its code, 1 for the length of its
/// list, 2 for the block.
const ENTRY_BYTES: u64 = 12;

/// Returns the maximum size in bytes of the index of a segment of `segment_bytes` bytes.
pub(super) const fn most_bytes(segment_bytes: u64) -> u64 {
    let blocks = segment_bytes.div_ceil(BLOCK_BYTES as u64);
    let keys = blocks * MOST_KEYS as u64 * ENTRY_BYTES;
    // An entry that does not fit leaves the end of a page empty. The empty part is bounded, because a list has at most
    // one bit for each block.
    let pages = keys / (BODY_BYTES as u64 - 16 - blocks / 8) + 1;
    let head = FIXED_BYTES as u64 + blocks * BLOCK_ENTRY_BYTES as u64 + END_BYTES as u64;
    pages * (PAGE_BYTES as u64 + 8) + head
}

/// The location of a block in its segment file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Stored {
    /// Offset of the block's first byte in the segment file.
    pub(super) at: u64,
    /// Number of bytes of the block in the file: fewer than in memory if the block is compressed.
    pub(super) bytes: u32,
}

/// The properties of a block of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockFacts {
    /// Time of the block's earliest packet, ns since 1970.
    pub(super) first_ns: u64,
    /// Time of the block's latest packet, ns since 1970.
    pub(super) last_ns: u64,
    /// Number of packets in the block.
    pub(super) packets: u32,
    /// Number of bytes of the block that are in use, from its start on.
    pub(super) bytes: u32,
    /// Location of the block in the segment file.
    pub(super) stored: Stored,
    /// Bit mask of the kinds of keys that exceeded the limit and are not indexed: any key of these kinds may be in the
    /// block.
    given_up: u8,
}

const NOTHING: BlockFacts = BlockFacts {
    first_ns: u64::MAX,
    last_ns: 0,
    packets: 0,
    bytes: 0,
    stored: Stored { at: 0, bytes: 0 },
    given_up: 0,
};

/// The collector of index data while a segment is written. It stores up to [`MOST_KEYS`] keys of a block. If a block
/// has more, the collector drops one kind of keys after the other, and the index records which.
#[derive(Debug)]
pub(super) struct Gathered {
    /// Table of the fingerprints that occurred in this block, both of packets and of single keys. A packet with a known
    /// fingerprint adds no keys, as is the case for most packets, and a known key is not stored again.
    seen: Box<[u64]>,
    /// Keys of the block that is being filled, with duplicates.
    keys: Vec<u64>,
    facts: BlockFacts,
    /// Complete blocks of the segment, with their keys in order.
    blocks: Vec<(BlockFacts, Box<[u64]>)>,
}

impl Gathered {
    pub(super) fn new() -> Self {
        Self {
            seen: vec![0; SEEN].into(),
            keys: Vec::new(),
            facts: NOTHING,
            blocks: Vec::new(),
        }
    }

    /// Returns the collected data of the segment, and starts with an empty collector again.
    pub(super) fn take(&mut self) -> Finished {
        self.seen.fill(0);
        self.keys.clear();
        self.facts = NOTHING;
        Finished {
            blocks: std::mem::take(&mut self.blocks),
        }
    }

    /// Returns the number of packets in the block that is being filled.
    #[inline]
    pub(super) fn packets_in_block(&self) -> u32 {
        self.facts.packets
    }

    /// Adds a packet to the data of the block that is being filled.
    #[inline]
    pub(super) fn add(&mut self, record: &Record<'_>) {
        let time_ns = record.facts.time_ns;
        self.facts.first_ns = self.facts.first_ns.min(time_ns);
        self.facts.last_ns = self.facts.last_ns.max(time_ns);
        self.facts.packets += 1;
        let codes = Codes::of(record.frame);
        if self.is_seen(codes.fingerprint()) {
            return;
        }
        for code in codes.as_slice() {
            if !self.is_seen(code.wrapping_mul(SPREAD)) {
                self.keys.push(*code);
            }
        }
    }

    /// Returns true if a fingerprint is known to have occurred in this block. Another fingerprint may have replaced it
    /// in the table, so the result may be false although the fingerprint has occurred.
    #[inline]
    fn is_seen(&mut self, fingerprint: u64) -> bool {
        let place = &mut self.seen[(fingerprint >> SEEN_SHIFT) as usize];
        // 0 means an empty slot.
        std::mem::replace(place, fingerprint) == fingerprint && fingerprint != 0
    }

    /// Ends the block that is being filled, which has `bytes` bytes in use and is stored at the location `stored` of
    /// the file.
    pub(super) fn end_block(&mut self, bytes: usize, stored: Stored) {
        self.keys.sort_unstable();
        self.keys.dedup();
        self.facts.bytes = bytes as u32;
        self.facts.stored = stored;
        for kind in 0..KINDS {
            if self.keys.len() <= MOST_KEYS {
                break;
            }
            let of_kind = range_of(&self.keys, kind);
            if !of_kind.is_empty() {
                self.facts.given_up |= 1 << kind;
                self.keys.drain(of_kind);
            }
        }
        self.blocks.push((self.facts, self.keys.as_slice().into()));
        self.facts = NOTHING;
        self.keys.clear();
        self.seen.fill(0);
    }
}

/// Returns the range of the keys of kind `of` in `keys`, which are in order.
fn range_of(keys: &[u64], of: u8) -> Range<usize> {
    let from = keys.partition_point(|key| kind(*key) < of);
    from..keys.partition_point(|key| kind(*key) <= of)
}

/// The collected data of a complete segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finished {
    blocks: Vec<(BlockFacts, Box<[u64]>)>,
}

impl Finished {
    /// Returns the number of packets in all blocks of the segment.
    pub(super) fn packets(&self) -> u64 {
        self.blocks
            .iter()
            .map(|(facts, _)| u64::from(facts.packets))
            .sum()
    }

    /// Returns the content of the index file for a segment with the given number of bytes.
    pub(super) fn encode(&self, segment_bytes: u64) -> Vec<u8> {
        let Pages {
            mut bytes, firsts, ..
        } = self.pages();
        let head_at = bytes.len();
        let times = || self.blocks.iter().map(|(facts, _)| facts);
        let first_ns = times().map(|facts| facts.first_ns).min();
        let last_ns = times().map(|facts| facts.last_ns).max();
        for number in [
            segment_bytes,
            self.packets(),
            first_ns.unwrap_or(u64::MAX),
            last_ns.unwrap_or(0),
            self.blocks.len() as u64 | (firsts.len() as u64) << 32,
        ] {
            bytes.extend(number.to_le_bytes());
        }
        for (facts, _) in &self.blocks {
            bytes.extend(facts.first_ns.to_le_bytes());
            bytes.extend(facts.last_ns.to_le_bytes());
            bytes.extend(facts.packets.to_le_bytes());
            let bytes_and_kinds = facts.bytes | u32::from(facts.given_up) << 24;
            bytes.extend(bytes_and_kinds.to_le_bytes());
            bytes.extend(facts.stored.at.to_le_bytes());
            bytes.extend(facts.stored.bytes.to_le_bytes());
        }
        bytes.extend(firsts.iter().flat_map(|first| first.to_le_bytes()));
        let head_bytes = (bytes.len() - head_at) as u32;
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend(head_bytes.to_le_bytes());
        let sum = crc32fast::hash(&bytes[head_at..]);
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    /// Returns the index pages with the keys of all blocks, in order.
    fn pages(&self) -> Pages {
        let mut pages = Pages::default();
        let mut heap: BinaryHeap<_> = self
            .blocks
            .iter()
            .enumerate()
            .filter_map(|(block, (_, keys))| Some(Reverse((*keys.first()?, block))))
            .collect();
        let mut places = vec![0; self.blocks.len()];
        let mut list: Vec<usize> = Vec::new();
        let mut of = None;
        while let Some(mut least) = heap.peek_mut() {
            let Reverse((key, block)) = *least;
            if let Some(before) = of.filter(|before| *before != key) {
                pages.push(before, &list, self.blocks.len());
                list.clear();
            }
            of = Some(key);
            list.push(block);
            places[block] += 1;
            match self.blocks[block].1.get(places[block]) {
                Some(next) => *least = Reverse((*next, block)),
                None => drop(PeekMut::pop(least)),
            }
        }
        if let Some(key) = of {
            pages.push(key, &list, self.blocks.len());
        }
        pages.end_page();
        pages
    }
}

/// The pages of an index that are being filled.
#[derive(Default)]
struct Pages {
    bytes: Vec<u8>,
    /// First key of each page of the index.
    firsts: Vec<u64>,
    page: Vec<u8>,
    keys: u16,
    last: u64,
}

impl Pages {
    /// Adds a key with the list of blocks in which it occurs, in a segment of `blocks` blocks.
    fn push(&mut self, key: u64, list: &[usize], blocks: usize) {
        let mut entry = Vec::with_capacity(16);
        self.entry(&mut entry, key, list, blocks);
        if self.keys > 0 && 2 + self.page.len() + entry.len() > BODY_BYTES {
            self.end_page();
            entry.clear();
            self.entry(&mut entry, key, list, blocks);
        }
        if self.keys == 0 {
            self.firsts.push(key);
        }
        self.page.extend(entry);
        self.keys += 1;
        self.last = key;
    }

    fn entry(&self, entry: &mut Vec<u8>, key: u64, list: &[usize], blocks: usize) {
        put_number(entry, key - self.last);
        // A key that occurs almost everywhere does not narrow the search.
        let (Some(first), Some(last)) = (list.first(), list.last()) else {
            return;
        };
        if list.len() > 1 && list.len() >= blocks - blocks / 8 {
            put_number(entry, 0);
            return;
        }
        let mut distances = Vec::with_capacity(list.len() + 1);
        put_number(&mut distances, *first as u64);
        let mut bits = distances.clone();
        for pair in list.windows(2) {
            put_number(&mut distances, (pair[1] - pair[0]) as u64);
        }
        let start = bits.len();
        bits.resize(start + (last - first) / 8 + 1, 0);
        for block in list {
            bits[start + (block - first) / 8] |= 1 << ((block - first) % 8);
        }
        let (list, is_bits) = match bits.len() < distances.len() {
            true => (bits, 1),
            false => (distances, 0),
        };
        put_number(entry, list.len() as u64 * 2 + is_bits);
        entry.extend(list);
    }

    fn end_page(&mut self) {
        if self.keys == 0 {
            return;
        }
        let at = self.bytes.len();
        self.bytes.extend(self.keys.to_le_bytes());
        self.bytes.append(&mut self.page);
        self.bytes.resize(at + BODY_BYTES, 0);
        let sum = crc32fast::hash(&self.bytes[at..]);
        self.bytes.extend(sum.to_le_bytes());
        (self.keys, self.last) = (0, 0);
    }
}

fn put_number(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// The index of a segment in a file; only the head of the index is in memory.
pub(super) struct Index<F> {
    file: F,
    /// Size of the segment in bytes.
    pub(super) segment_bytes: u64,
    /// Number of packets in the segment.
    pub(super) packets: u64,
    /// Time of the earliest packet of the segment, ns since 1970.
    pub(super) first_ns: u64,
    /// Time of the latest packet of the segment, ns since 1970.
    pub(super) last_ns: u64,
    /// Blocks of the segment.
    pub(super) blocks: Vec<BlockFacts>,
    firsts: Vec<u64>,
    /// Number of bytes read from the index file.
    pub(super) bytes_read: u64,
}

/// The result of the lookup of a key in an index.
pub(super) enum Where {
    /// The blocks in which the key may occur; it occurs in no other block.
    In(Blocks),
    /// The index page that would list the key is damaged, so the result is unknown.
    Damaged,
}

/// A file from which an index is read.
pub(super) trait Source {
    /// Returns the file's length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Fills `to` with the bytes of the file from offset `at` on.
    fn read_exact_at(&self, to: &mut [u8], at: u64) -> io::Result<()>;
}

impl Source for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_exact_at(&self, to: &mut [u8], at: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, to, at)
    }
}

impl Source for &[u8] {
    fn len(&self) -> io::Result<u64> {
        Ok((**self).len() as u64)
    }

    fn read_exact_at(&self, to: &mut [u8], at: u64) -> io::Result<()> {
        let from = usize::try_from(at).ok().and_then(|at| self.get(at..));
        let from = from.and_then(|from| from.get(..to.len()));
        to.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the index is damaged")
}

/// Returns the number of 8 bytes at an offset of an index head; 0 if the number is beyond the end.
fn long_at(head: &[u8], at: usize) -> u64 {
    let bytes = head.get(at..).and_then(|it| it.first_chunk());
    bytes.map_or(0, |it| u64::from_le_bytes(*it))
}

/// Returns the properties of a block from their offset in an index head.
fn facts_at(head: &[u8], at: usize) -> BlockFacts {
    let long = |at: usize| long_at(head, at);
    BlockFacts {
        first_ns: long(at),
        last_ns: long(at + 8),
        packets: long(at + 16) as u32,
        // The length is limited to that of a block, because the file is untrusted.
        bytes: ((long(at + 16) >> 32) as u32 & 0xff_ffff).min(BLOCK_BYTES as u32),
        given_up: (long(at + 16) >> 56) as u8,
        stored: Stored {
            at: long(at + 24),
            bytes: long(at + 32) as u32,
        },
    }
}

/// Returns true if each block begins after the one before it, and all are within the segment. With this check, a
/// damaged index cannot make a query read the same bytes repeatedly.
fn are_in_order(blocks: &[BlockFacts], segment_bytes: u64) -> bool {
    let end = blocks.iter().try_fold(0, |end, facts: &BlockFacts| {
        let Stored { at, bytes } = facts.stored;
        at.checked_add(bytes.into()).filter(|_| at >= end)
    });
    end.is_some_and(|end| end <= segment_bytes)
}

impl<F: Source> Index<F> {
    /// Opens an index by reading its head.
    ///
    /// # Errors
    /// Returns an error if the head cannot be read, or is incomplete.
    pub(super) fn open(file: F) -> io::Result<Self> {
        let len = file.len()?;
        let mut bytes = vec![0; len.min(FIRST_READ_BYTES as u64) as usize];
        let at = len - bytes.len() as u64;
        file.read_exact_at(&mut bytes, at)?;
        let end = bytes.last_chunk::<END_BYTES>().ok_or_else(damaged)?;
        let head_bytes = u32::from_le_bytes([end[8], end[9], end[10], end[11]]) as usize;
        let wanted = head_bytes + END_BYTES;
        let most = FIXED_BYTES + MOST_BLOCKS * BLOCK_ENTRY_BYTES + (len as usize / PAGE_BYTES) * 8;
        if !end.starts_with(&MAGIC.to_le_bytes())
            || wanted as u64 > len
            || !(FIXED_BYTES..=most).contains(&head_bytes)
        {
            return Err(damaged());
        }
        if wanted > bytes.len() {
            bytes.resize(wanted, 0);
            file.read_exact_at(&mut bytes, len - wanted as u64)?;
        }
        let bytes_read = bytes.len() as u64;
        let head = &bytes[bytes.len() - wanted..];
        let (summed, sum) = head.split_at(wanted - 4);
        if crc32fast::hash(summed).to_le_bytes() != sum {
            return Err(damaged());
        }
        let long = |at: usize| long_at(head, at);
        let (blocks, pages) = (long(32) as u32 as usize, (long(32) >> 32) as usize);
        let is_right = blocks <= MOST_BLOCKS
            && head_bytes == FIXED_BYTES + blocks * BLOCK_ENTRY_BYTES + pages * 8
            && len == (pages * PAGE_BYTES + wanted) as u64;
        if !is_right {
            return Err(damaged());
        }
        let firsts_at = FIXED_BYTES + blocks * BLOCK_ENTRY_BYTES;
        let blocks = (0..blocks).map(|i| facts_at(head, FIXED_BYTES + i * BLOCK_ENTRY_BYTES));
        let (segment_bytes, blocks) = (long(0), blocks.collect::<Vec<_>>());
        if !are_in_order(&blocks, segment_bytes) {
            return Err(damaged());
        }
        Ok(Self {
            segment_bytes,
            packets: long(8),
            first_ns: long(16),
            last_ns: long(24),
            blocks,
            firsts: (0..pages).map(|i| long(firsts_at + i * 8)).collect(),
            bytes_read,
            file,
        })
    }

    /// Looks up the blocks in which a key may occur.
    pub(super) fn find(&mut self, key: u64) -> Where {
        let mut blocks = Blocks::none(self.blocks.len());
        for (block, facts) in self.blocks.iter().enumerate() {
            if facts.given_up >> kind(key) & 1 != 0 {
                blocks.add(block);
            }
        }
        let Some(page) = self
            .firsts
            .partition_point(|first| *first <= key)
            .checked_sub(1)
        else {
            return Where::In(blocks);
        };
        let mut bytes = [0; PAGE_BYTES];
        let place = (page * PAGE_BYTES) as u64;
        if self.file.read_exact_at(&mut bytes, place).is_err() {
            return Where::Damaged;
        }
        self.bytes_read += PAGE_BYTES as u64;
        let (body, sum) = bytes.split_at(BODY_BYTES);
        if crc32fast::hash(body).to_le_bytes() != sum {
            return Where::Damaged;
        }
        find_in(body, key, blocks).unwrap_or(Where::Damaged)
    }
}

/// Adds to `blocks` the blocks that an index page lists for a key; returns none if the page is damaged.
fn find_in(page: &[u8], key: u64, mut blocks: Blocks) -> Option<Where> {
    let (count, mut rest) = page.split_first_chunk()?;
    let mut at = 0_u64;
    for _ in 0..u16::from_le_bytes(*count) {
        at = at.checked_add(number(&mut rest)?)?;
        let tag = number(&mut rest)?;
        let (mut list, after) = rest.split_at_checked(usize::try_from(tag / 2).ok()?)?;
        rest = after;
        if at > key {
            break;
        }
        if at < key {
            continue;
        }
        if tag == 0 {
            return Some(Where::In(Blocks::all(blocks.len())));
        }
        let mut block = usize::try_from(number(&mut list)?).ok()?;
        if tag % 2 == 0 {
            blocks.add(block)?;
            while !list.is_empty() {
                block = block.checked_add(usize::try_from(number(&mut list)?).ok()?)?;
                blocks.add(block)?;
            }
            return Some(Where::In(blocks));
        }
        for (i, bits) in list.iter().enumerate() {
            for bit in (0..8).filter(|bit| bits >> bit & 1 != 0) {
                blocks.add(block.checked_add(i * 8 + bit)?)?;
            }
        }
        return Some(Where::In(blocks));
    }
    Some(Where::In(blocks))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::Key;
    use super::super::keys::FLOW;
    use super::*;
    use crate::record::Facts;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Returns the collected data of a segment whose blocks have these sets of keys.
    fn finished(keys: &[BTreeSet<u64>]) -> Finished {
        let facts = BlockFacts {
            first_ns: 1,
            last_ns: 2,
            packets: 3,
            bytes: 4,
            stored: Stored::default(),
            given_up: 0,
        };
        Finished {
            blocks: keys
                .iter()
                .map(|keys| (facts, keys.iter().copied().collect()))
                .collect(),
        }
    }

    fn look_up(index: &mut Index<&[u8]>, key: u64) -> Vec<usize> {
        match index.find(key) {
            Where::In(blocks) => blocks.iter().collect(),
            Where::Damaged => panic!("damaged"),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn an_index_lookup_returns_the_blocks_that_contain_the_key(
            blocks in 1..600_usize,
            keys in proptest::collection::vec((0..6_u64, 0..3000_u64, any::<u64>(), 0.0..1.0_f64), 1..200),
        ) {
            let mut sets = vec![BTreeSet::new(); blocks];
            let mut all = BTreeSet::new();
            for (kind, value, seed, share) in keys {
                let key = kind << 56 | value;
                all.insert(key);
                let mut random = fastrand::Rng::with_seed(seed);
                for set in sets.iter_mut().filter(|_| random.f64() < share * share) {
                    set.insert(key);
                }
            }
            let bytes = finished(&sets).encode(5);
            let mut index = Index::open(bytes.as_slice()).unwrap();
            prop_assert_eq!(index.blocks.len(), blocks);
            for key in all {
                let want: Vec<_> = (0..blocks).filter(|i| sets[*i].contains(&key)).collect();
                let found = look_up(&mut index, key);
                let is_all = want.len() >= blocks - blocks / 8 && found.len() == blocks;
                prop_assert!(found == want || is_all, "{key:x}: {want:?} {found:?}");
                prop_assert!(look_up(&mut index, key + 3000).is_empty());
            }
        }

        #[test]
        fn a_corrupted_index_is_read_without_a_panic(
            keys in proptest::collection::btree_set(0..5000_u64, 0..2000),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..20),
            is_mended: bool,
        ) {
            let mut bytes = finished(&[keys.clone(), BTreeSet::new(), keys]).encode(5);
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            // The checksums are corrected, so that the damaged data reaches the parser.
            if is_mended {
                mend(&mut bytes);
            }
            if let Ok(mut index) = Index::open(bytes.as_slice()) {
                for key in 0..5000 {
                    if let Where::In(blocks) = index.find(key) {
                        prop_assert!(blocks.iter().all(|block| block < index.blocks.len()));
                    }
                }
            }
        }
    }

    /// Recomputes all checksums of an index file that a test has changed.
    pub(super) fn mend(bytes: &mut [u8]) {
        let len = bytes.len();
        let head = u32::from_le_bytes(*bytes[len - 8..].first_chunk().unwrap()) as usize;
        let head_at = len.saturating_sub(head.saturating_add(END_BYTES)) / PAGE_BYTES * PAGE_BYTES;
        for page in bytes[..head_at].chunks_exact_mut(PAGE_BYTES) {
            let sum = crc32fast::hash(&page[..BODY_BYTES]);
            page[BODY_BYTES..].copy_from_slice(&sum.to_le_bytes());
        }
        let sum = crc32fast::hash(&bytes[head_at..len - 4]);
        bytes[len - 4..].copy_from_slice(&sum.to_le_bytes());
    }

    #[test]
    fn damaged_index_pages_and_index_headers_are_detected() {
        let keys: BTreeSet<u64> = (0..3000).map(|i| i * 1000).collect();
        let bytes = finished(&[keys, BTreeSet::new()]).encode(5);
        let mut changed = bytes.clone();
        changed[100] ^= 1;
        let mut index = Index::open(changed.as_slice()).unwrap();
        assert!(matches!(index.find(0), Where::Damaged));
        assert_eq!(look_up(&mut index, 2_999_000), [0]);
        let mut changed = bytes.clone();
        let len = changed.len();
        changed[len - 30] ^= 1;
        assert!(Index::open(changed.as_slice()).is_err());
        assert!(Index::open(&bytes[..len - 1]).is_err());
        assert!(Index::open(&[][..]).is_err());
    }

    #[test]
    fn indexes_with_overlapping_or_misplaced_blocks_are_refused() {
        let open = |places: [(u64, u32); 2], segment_bytes| {
            let mut finished = finished(&[BTreeSet::new(), BTreeSet::new()]);
            for ((facts, _), (at, bytes)) in finished.blocks.iter_mut().zip(places) {
                facts.stored = Stored { at, bytes };
            }
            Index::open(finished.encode(segment_bytes).as_slice()).is_ok()
        };
        assert!(open([(0, 10), (10, 5)], 15));
        assert!(open([(0, 10), (11, 4)], 15));
        for places in [
            [(0, 10), (9, 5)],
            [(0, 10), (10, 6)],
            [(10, 5), (0, 10)],
            [(0, 10), (u64::MAX, 1)],
        ] {
            assert!(!open(places, 15), "{places:?}");
        }
    }

    #[test]
    fn blocks_with_too_many_keys_omit_some_kinds_of_keys() {
        let mut gathered = Gathered::new();
        let mut frame = [0; 60];
        // The frame is UDP over IPv4.
        frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        frame[23] = 17;
        for flows in [10, 10_000, 10] {
            for i in 0..flows {
                frame[26..30].copy_from_slice(&u32::to_be_bytes(i / 4));
                frame[34..36].copy_from_slice(&(i as u16).to_be_bytes());
                gathered.add(&Record {
                    facts: Facts::default(),
                    frame: &frame,
                });
            }
            gathered.end_block(1000, Stored::default());
        }
        let finished = gathered.take();
        let keys: Vec<_> = finished.blocks.iter().map(|(_, keys)| keys.len()).collect();
        assert!(keys[1] <= MOST_KEYS && keys[1] > 10_000, "{keys:?}");
        let bytes = finished.encode(7);
        assert!(bytes.len() as u64 <= most_bytes(3 << 20));
        let mut index = Index::open(bytes.as_slice()).unwrap();
        assert_eq!(look_up(&mut index, u64::from(FLOW) << 56 | 1), [1]);
        let address = |last| Key::Address([0, 0, 0, last].into()).code();
        assert_eq!(look_up(&mut index, address(200)), [1]);
        assert_eq!(look_up(&mut index, address(1)), [0, 1, 2]);
        assert!(look_up(&mut index, Key::Protocol(6).code()).is_empty());
        assert_eq!(index.packets, 10_020);
    }

    #[test]
    fn an_index_of_distinct_keys_stays_within_its_size_bound() {
        let segment_bytes = 8 << 20;
        let mut random = fastrand::Rng::with_seed(1);
        let sets: Vec<BTreeSet<u64>> = (0..8)
            .map(|_| (0..MOST_KEYS).map(|_| random.u64(..7 << 56)).collect())
            .collect();
        let bytes = finished(&sets).encode(segment_bytes).len() as u64;
        assert!(bytes <= most_bytes(segment_bytes), "{bytes}");
        assert!(bytes > most_bytes(segment_bytes) / 2);
    }
}
