//! Location of an entry, and the addresses that use it.

use super::{LINE_BITS, NODE_BITS};
use crate::{Prefix, PrefixV6};

/// Location of an entry of the IPv6 table: in the first level, in a node or in a line.
#[derive(Debug, Clone, Copy)]
pub(super) enum EntryLocation {
    First(usize),
    Node(u32, usize),
    Line(u32, usize),
}

/// The addresses that share their first `depth` bits with `address`, and the location of the entry that all of them
/// use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub address: u128,
    pub depth: u8,
    pub place: EntryLocation,
}

impl Part {
    pub fn prefix(self) -> PrefixV6 {
        Prefix::of(self.address, self.depth)
    }

    /// Returns the part of `self` whose next address byte has the value `byte`. Its entry is in the node with index
    /// `node`.
    pub fn of_node(self, node: u32, byte: usize) -> Self {
        let shift = 128 - u32::from(self.depth + NODE_BITS);
        Self {
            address: self.prefix().network() | (byte as u128) << shift,
            depth: self.depth + NODE_BITS,
            place: EntryLocation::Node(node, byte),
        }
    }

    /// Returns the part of `self` whose next 32 bits have the value `start`. Its entry belongs to the line's range with
    /// index `place`; this range must consist of `start` alone.
    pub fn of_line(self, line: u32, place: usize, start: u32) -> Self {
        let shift = 128 - u32::from(self.depth + LINE_BITS);
        Self {
            address: self.prefix().network() | u128::from(start) << shift,
            depth: self.depth + LINE_BITS,
            place: EntryLocation::Line(line, place),
        }
    }
}
