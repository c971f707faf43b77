//! Look-ups of IPv6: one address, or a batch level by level so that cache misses overlap.

use std::hint::select_unpredictable;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::plan::key;
use super::{FIRST_BITS, LINE_BITS, NODE_BITS, NODE_ENTRIES, RANGES};
use crate::NextHop;

/// Bit of an entry that is the number of a node.
const IS_NODE: u32 = 1 << 31;
/// Bit of an entry that is the number of a line.
const IS_LINE: u32 = 1 << 30;
/// Addresses of a batch that are looked up together.
const TOGETHER: usize = 64;
/// Bytes behind which addresses of a batch go on one by one: what is announced to others ends at /48.
const BATCH_BYTES: usize = 8;

/// What an entry says.
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

/// An entry for each value of a byte. It is filled with [`Default`].
#[derive(Debug)]
pub struct Node(pub(super) [AtomicU32; NODE_ENTRIES]);

impl Default for Node {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU32::new(0)))
    }
}

impl Clone for Node {
    fn clone(&self) -> Self {
        Self(copied(&self.0))
    }
}

/// Up to sixteen ranges, filled with [`Default`]. Those that are not in use begin at the last value and have the
/// entry of the last one in use.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Line {
    /// First values. The first range begins at 0: in place of that stands how many are in use.
    pub(super) starts: [AtomicU32; RANGES],
    pub(super) entries: [AtomicU32; RANGES],
}

impl Clone for Line {
    fn clone(&self) -> Self {
        Self {
            starts: copied(&self.starts),
            entries: copied(&self.entries),
        }
    }
}

impl Line {
    /// Returns the place of the range that holds `key`.
    #[inline(always)]
    pub(super) fn place(&self, key: u32) -> usize {
        let is_behind =
            |place: usize| usize::from(self.starts[place].load(Ordering::Relaxed) <= key);
        let mut place = 0;
        for half in [8, 4, 2, 1] {
            place += is_behind(place + half) * half;
        }
        place
    }

    /// Returns the entries of the ranges in use.
    pub(super) fn in_use(&self) -> &[AtomicU32] {
        let count = self.starts[0].load(Ordering::Relaxed) as usize;
        &self.entries[..count.min(RANGES)]
    }
}

/// What look-ups go through, shared between the table and all who look up.
#[derive(Debug)]
pub struct Fib {
    pub(super) first: Box<[AtomicU32; 1 << FIRST_BITS]>,
    pub(super) nodes: Box<[Node]>,
    pub(super) lines: Box<[Line]>,
}

impl Fib {
    /// Looks one address up, given as it stands in a packet; [`NextHop::NONE`] where there is no route.
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
                    entry =
                        self.nodes[node as usize].0[byte as usize & 0xff].load(Ordering::Relaxed);
                    depth += NODE_BITS;
                }
                Entry::Line(line) => {
                    fence(Ordering::Acquire);
                    let line = &self.lines[line as usize];
                    entry = line.entries[line.place(key(address, depth))].load(Ordering::Relaxed);
                    depth += LINE_BITS;
                }
            }
        }
    }

    /// Looks a batch up: `hops[i]` becomes the next hop of `addresses[i]`, as far as both reach. All go through a level
    /// before any goes through the next one: loads of a level do not wait for each other.
    #[inline]
    pub fn lookup_batch(&self, addresses: &[[u8; 16]], hops: &mut [NextHop]) {
        let count = addresses.len().min(hops.len());
        let whole = addresses[..count].as_chunks::<TOGETHER>();
        let (batches, rest) = hops[..count].as_chunks_mut::<TOGETHER>();
        for (addresses, hops) in whole.0.iter().zip(batches) {
            self.look_up_together(addresses, hops);
        }
        if !rest.is_empty() {
            let mut padded = ([[0; 16]; TOGETHER], [NextHop::NONE; TOGETHER]);
            padded.0[..rest.len()].copy_from_slice(whole.1);
            self.look_up_together(&padded.0, &mut padded.1);
            rest.copy_from_slice(&padded.1[..rest.len()]);
        }
    }

    /// Returns the memory of all levels, bytes, also that of nodes and lines that are not in use.
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.first) + size_of_val(&*self.nodes) + size_of_val(&*self.lines)
    }

    #[inline]
    fn look_up_together(&self, addresses: &[[u8; 16]; TOGETHER], hops: &mut [NextHop; TOGETHER]) {
        let mut entries = [0_u32; TOGETHER];
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

    /// Goes on from the first level, whose entries are given, to next hops. Addresses that are there already go
    /// through the same steps without effect: that costs less than to tell them apart.
    fn look_further(&self, addresses: &[[u8; 16]; TOGETHER], entries: &mut [u32; TOGETHER]) {
        let mut bytes = [FIRST_BITS / 8; TOGETHER];
        let mut any = entries.iter().fold(0, |any, entry| any | entry);
        for byte in usize::from(FIRST_BITS / 8)..BATCH_BYTES {
            if any & IS_NODE == 0 {
                break;
            }
            fence(Ordering::Acquire);
            any = 0;
            for ((address, entry), its_byte) in addresses.iter().zip(&mut *entries).zip(&mut bytes)
            {
                let is_node = *entry & IS_NODE != 0;
                let node = select_unpredictable(is_node, *entry & !IS_NODE, 0);
                let node = &self.nodes[node as usize];
                let next = node.0[usize::from(address[byte])].load(Ordering::Relaxed);
                *entry = select_unpredictable(is_node, next, *entry);
                *its_byte += u8::from(is_node);
                any |= *entry;
            }
        }
        if any & IS_LINE != 0 {
            fence(Ordering::Acquire);
            any = 0;
            for ((address, entry), byte) in addresses.iter().zip(&mut *entries).zip(bytes) {
                let is_line = *entry & IS_LINE != 0;
                let line = select_unpredictable(is_line, *entry & !IS_LINE, 0);
                let line = &self.lines[line as usize];
                // Both cache lines are asked for at once.
                let _ = line.entries[0].load(Ordering::Relaxed);
                let place = line.place(key(u128::from_be_bytes(*address), byte * 8));
                let next = line.entries[place].load(Ordering::Relaxed);
                *entry = select_unpredictable(is_line, next, *entry);
                any |= *entry;
            }
        }
        if any & (IS_NODE | IS_LINE) != 0 {
            // Hosts, and networks that are not announced to others.
            for (address, entry) in addresses.iter().zip(entries) {
                if *entry & (IS_NODE | IS_LINE) != 0 {
                    *entry = self.lookup(*address).bits().into();
                }
            }
        }
    }
}

fn copied<const N: usize>(numbers: &[AtomicU32; N]) -> [AtomicU32; N] {
    std::array::from_fn(|i| AtomicU32::new(numbers[i].load(Ordering::Relaxed)))
}
