//! A table of IPv4 and IPv6 routes, with the FIBs in which workers look up destinations.

use crate::prefix::Prefix;
use crate::refusal::Refused;
use taut_lpm::{NextHop, v4, v6};

/// The number of /24 networks that may contain routes with longer prefixes: the maximum that the FIB supports.
const BLOCKS: usize = v4::MOST_BLOCKS;

/// A routing table with IPv4 and IPv6 routes.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) v4: v4::Table,
    pub(super) v6: v6::Table,
}

impl Table {
    pub(super) fn new() -> Result<Self, Refused> {
        Ok(Self {
            v4: v4::Table::new(BLOCKS)?,
            v6: v6::Table::new(v6::Capacity::default()),
        })
    }

    pub(super) fn write(&mut self, prefix: Prefix, hop: Option<NextHop>) -> Result<(), Refused> {
        match (prefix, hop) {
            (Prefix::V4(prefix), Some(hop)) => drop(self.v4.insert(prefix, hop)?),
            (Prefix::V4(prefix), None) => drop(self.v4.remove(prefix)),
            (Prefix::V6(prefix), Some(hop)) => drop(self.v6.insert(prefix, hop)?),
            (Prefix::V6(prefix), None) => drop(self.v6.remove(prefix)?),
        }
        Ok(())
    }

    pub(super) fn has_retired(&self) -> bool {
        self.v4.retired_blocks() > 0 || self.v6.retired() > 0
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.v4.fib().memory_bytes() + self.v6.fib().memory_bytes()
    }
}
