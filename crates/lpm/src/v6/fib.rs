//! The levels of the IPv6 table, and look-ups in them: of one address, or of several without vector instructions, level
//! by level so that cache misses overlap.

use std::hint::select_unpredictable;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::plan::key;
use super::{
    FIRST_BITS, HALF_ENTRIES, HALF_RANGES, LINE_BITS, LINE_ENTRIES, NODE_BITS, NODE_ENTRIES,
};
use crate::NextHop;
use taut_sys::AlignedTable;

/// Flag of an entry whose other bits are the index of a node (256 entries, one for each value of a byte).
pub(super) const IS_NODE: u32 = 1 << 31;
/// Flag of an entry whose other bits are the index of a line (up to sixteen ranges of the next four bytes, with an
/// entry each).
pub(super) const IS_LINE: u32 = 1 << 30;
/// Number of address bytes after which a batch continues only with its unresolved addresses; announced prefixes end
/// before, at /48.
pub(super) const BATCH_BYTES: usize = 8;

/// The decoded content of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    Hop(NextHop),
    Node(u32),
    Line(u32),
}

impl Entry {
    #[inline(always)]
    pub fn of_bits(bits: u32) -> Self {
        if bits & IS_NODE != 0 {
            Self::Node(bits & !IS_NODE)
        } else if bits & IS_LINE != 0 {
            Self::Line(bits & !IS_LINE)
        } else {
            Self::Hop(NextHop::of_bits(bits as u16))
        }
    }

    pub fn bits(self) -> u32 {
        match self {
            Self::Hop(hop) => hop.bits().into(),
            Self::Node(node) => IS_NODE | node,
            Self::Line(line) => IS_LINE | line,
        }
    }
}

/// The tables that look-ups read, shared between the updater and all readers.
#[derive(Debug)]
pub struct Fib {
    pub(super) first: AlignedTable<AtomicU32>,
    /// The nodes, each with 256 entries: one for each value of a byte.
    pub(super) nodes: AlignedTable<AtomicU32>,
    /// The lines. Each has two halves, each a cache line: the starts of eight ranges, then their entries. The first
    /// range always starts at 0, so the slot for its start holds the start of the second half's first range instead.
    /// Unused ranges start at 2^32 - 1 and have the entry of the last range in use.
    pub(super) lines: AlignedTable<AtomicU32>,
    #[cfg(target_arch = "x86_64")]
    pub(super) wide: Option<taut_sys::lanes::Wide>,
}

impl Fib {
    pub(super) fn new(nodes: usize, lines: usize) -> Self {
        Self {
            first: AlignedTable::new(1 << FIRST_BITS),
            nodes: AlignedTable::new(nodes * NODE_ENTRIES),
            lines: AlignedTable::new(lines * LINE_ENTRIES),
            #[cfg(target_arch = "x86_64")]
            wide: taut_sys::lanes::Wide::found(),
        }
    }

    /// Returns the entries of a node.
    #[inline(always)]
    pub(super) fn node(&self, node: u32) -> &[AtomicU32] {
        let from = node as usize * NODE_ENTRIES;
        &self.nodes[from..from + NODE_ENTRIES]
    }

    /// Returns the 32-bit words of the line (up to sixteen ranges) with the index `line`.
    #[inline(always)]
    fn line(&self, line: u32) -> &[AtomicU32] {
        let from = line as usize * LINE_ENTRIES;
        &self.lines[from..from + LINE_ENTRIES]
    }

    /// Returns the entry of the range with the index `place` in a line (up to sixteen ranges).
    pub(super) fn range(&self, line: u32, place: usize) -> &AtomicU32 {
        let half = place / HALF_RANGES * HALF_ENTRIES;
        &self.line(line)[half + HALF_RANGES + place % HALF_RANGES]
    }

    /// Returns the start of the range with the index `place` in a line (up to sixteen ranges); `None` for the first
    /// range, which starts at 0.
    pub(super) fn start(&self, line: u32, place: usize) -> Option<&AtomicU32> {
        let half = place / HALF_RANGES * HALF_ENTRIES;
        let place = match place {
            0 => return None,
            HALF_RANGES => 0,
            place => half + place % HALF_RANGES,
        };
        Some(&self.line(line)[place])
    }

    /// Returns the index, in a line of up to sixteen ranges, of the range that contains `key`.
    pub(super) fn place(&self, line: u32, key: u32) -> usize {
        let entry = entry_of(self.line(line), key);
        entry / (HALF_ENTRIES) * HALF_RANGES + entry % HALF_RANGES
    }

    /// Looks up one address in network byte order; returns [`NextHop::NONE`] without a route.
    #[inline]
    pub fn lookup(&self, address: [u8; 16]) -> NextHop {
        let [a, b, ..] = address;
        let address = u128::from_be_bytes(address);
        let mut entry = self.first[usize::from(u16::from_be_bytes([a, b]))].load(Ordering::Relaxed);
        let mut depth = FIRST_BITS;
        loop {
            match Entry::of_bits(entry) {
                Entry::Hop(hop) => return hop,
                Entry::Node(node) => {
                    fence(Ordering::Acquire);
                    let byte = key(address, depth) >> 24;
                    entry = self.node(node)[byte as usize & 0xff].load(Ordering::Relaxed);
                    depth += NODE_BITS;
                }
                Entry::Line(line) => {
                    fence(Ordering::Acquire);
                    let line = self.line(line);
                    entry = line[entry_of(line, key(address, depth))].load(Ordering::Relaxed);
                    depth += LINE_BITS;
                }
            }
        }
    }

    /// Returns the memory of all levels in bytes, including unused nodes and lines.
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.first) + size_of_val(&*self.nodes) + size_of_val(&*self.lines)
    }

    pub(super) fn look_up_plainly<const N: usize>(
        &self,
        addresses: &[[u8; 16]; N],
        hops: &mut [NextHop; N],
    ) {
        let mut entries = [0_u32; N];
        let mut any = 0;
        for ((address, hop), entry) in addresses.iter().zip(hops.iter_mut()).zip(&mut entries) {
            let place = usize::from(u16::from_be_bytes([address[0], address[1]]));
            *entry = self.first[place].load(Ordering::Relaxed);
            *hop = NextHop::of_bits(*entry as u16);
            any |= *entry;
        }
        if any & (IS_NODE | IS_LINE) != 0 {
            self.look_further(addresses, &mut entries);
            for (hop, entry) in hops.iter_mut().zip(entries) {
                *hop = NextHop::of_bits(entry as u16);
            }
        }
    }

    /// Continues look-ups from their first-level entries to next hops. Addresses that are resolved already pass the
    /// same steps without effect, which costs less than a branch to skip them.
    fn look_further<const N: usize>(&self, addresses: &[[u8; 16]; N], entries: &mut [u32; N]) {
        let mut depths = [FIRST_BITS; N];
        let mut any = entries.iter().fold(0, |any, entry| any | entry);
        for byte in usize::from(FIRST_BITS / 8)..BATCH_BYTES {
            if any & IS_NODE == 0 {
                break;
            }
            fence(Ordering::Acquire);
            any = 0;
            for ((address, entry), depth) in addresses.iter().zip(&mut *entries).zip(&mut depths) {
                let is_node = *entry & IS_NODE != 0;
                let node = select_unpredictable(is_node, *entry & !IS_NODE, 0) as usize;
                let place = node * NODE_ENTRIES + usize::from(address[byte]);
                let next = self.nodes[place].load(Ordering::Relaxed);
                *entry = select_unpredictable(is_node, next, *entry);
                *depth += select_unpredictable(is_node, NODE_BITS, 0);
                any |= *entry;
            }
        }
        if any & IS_LINE != 0 {
            fence(Ordering::Acquire);
            any = 0;
            for ((address, entry), depth) in addresses.iter().zip(&mut *entries).zip(&mut depths) {
                let is_line = *entry & IS_LINE != 0;
                let line = select_unpredictable(is_line, *entry & !IS_LINE, 0);
                let line = self.line(line);
                let place = entry_of(line, key(u128::from_be_bytes(*address), *depth));
                let next = line[place].load(Ordering::Relaxed);
                *entry = select_unpredictable(is_line, next, *entry);
                *depth += select_unpredictable(is_line, LINE_BITS, 0);
                any |= *entry;
            }
        }
        if any & (IS_NODE | IS_LINE) != 0 {
            self.go_on(addresses, entries, depths);
        }
    }

    /// Continues look-ups below the depth of announced networks. `depths` is, for each address, the number of its bits
    /// that lead to its entry in `entries`. At each level, all unresolved addresses are processed before the next level
    /// begins.
    #[inline(never)]
    pub(super) fn go_on<const N: usize>(
        &self,
        addresses: &[[u8; 16]; N],
        entries: &mut [u32; N],
        mut depths: [u8; N],
    ) {
        // The indices of unresolved addresses, written without a branch, which could be mispredicted.
        let mut left = [0_u8; N];
        let mut count = 0;
        for (at, entry) in entries.iter().enumerate() {
            left[count] = at as u8;
            count += usize::from(*entry & (IS_NODE | IS_LINE) != 0);
        }
        while count > 0 {
            fence(Ordering::Acquire);
            let mut still = 0;
            for at in 0..count {
                let number = left[at];
                let at = usize::from(number);
                let key = key(u128::from_be_bytes(addresses[at]), depths[at]);
                let (next, bits) = match Entry::of_bits(entries[at]) {
                    Entry::Node(node) => (&self.node(node)[(key >> 24) as usize], NODE_BITS),
                    Entry::Line(line) => {
                        let line = self.line(line);
                        (&line[entry_of(line, key)], LINE_BITS)
                    }
                    Entry::Hop(_) => continue,
                };
                let next = next.load(Ordering::Relaxed);
                entries[at] = next;
                depths[at] += bits;
                left[still] = number;
                still += usize::from(next & (IS_NODE | IS_LINE) != 0);
            }
            count = still;
        }
    }
}

/// Returns the index, among the words of a line (up to sixteen ranges), of the entry of the range that contains `key`.
#[inline(always)]
fn entry_of(line: &[AtomicU32], key: u32) -> usize {
    let is_behind = |place: usize| usize::from(line[place].load(Ordering::Relaxed) <= key);
    let mut place = is_behind(0) * HALF_ENTRIES;
    for step in [4, 2, 1] {
        place += is_behind(place + step) * step;
    }
    place + HALF_RANGES
}
