//! The treatment of packets by next hop. Each next hop is one word, which workers read and the control plane writes.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use taut_lpm::NextHop;
use taut_wire::Mac;
use taut_xdp::router::KernelRouter;

/// The number of possible next hops, including the invalid one.
pub(super) const MOST_HOPS: usize = NextHop::MOST as usize + 1;

/// For each next hop, the number of packets that a worker has sent by it; the index is the next hop's number. Only that
/// worker changes these counters.
pub(super) type Used = Arc<[AtomicU64]>;

/// Returns new counters of a worker, all 0.
pub(super) fn unused() -> Used {
    (0..MOST_HOPS).map(|_| AtomicU64::new(0)).collect()
}

/// The treatment of packets that have a certain next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hop {
    /// There is no route to the packets' destination.
    NoRoute,
    /// Packets leave through a port, to the host with the given MAC address.
    Forward { port: u8, mac: Mac },
    /// The slow path has to resolve the next hop's MAC address first.
    Unresolved,
    /// Each flow has one of the next hops of the group with this number.
    Group(u8),
    /// Packets are for the router itself.
    Local,
    /// Packets are dropped silently.
    Blackhole,
    /// Packets are dropped, and their senders get "unreachable".
    Unreachable,
    /// Packets are dropped, and their senders get "prohibited".
    Prohibited,
}

/// The lowest bit of the kind in the 64-bit word that encodes a hop. The port is in the bits below the kind, and the
/// MAC address in the lowest 48 bits.
const KIND_AT: u32 = 56;
const PORT_AT: u32 = 48;

impl Hop {
    const fn kind(self) -> u64 {
        match self {
            Self::NoRoute => 0,
            Self::Forward { .. } => 1,
            Self::Unresolved => 2,
            Self::Local => 3,
            Self::Blackhole => 4,
            Self::Unreachable => 5,
            Self::Prohibited => 6,
            Self::Group(_) => 7,
        }
    }

    fn word(self) -> u64 {
        let rest = match self {
            Self::Forward { port, mac } => {
                let [a, b, c, d, e, f] = mac.0;
                u64::from_be_bytes([0, port, a, b, c, d, e, f])
            }
            Self::Group(number) => u64::from(number),
            _ => 0,
        };
        self.kind() << KIND_AT | rest
    }

    #[inline(always)]
    fn of_word(word: u64) -> Self {
        match word >> KIND_AT {
            1 => {
                let [_, _, a, b, c, d, e, f] = word.to_be_bytes();
                Self::Forward {
                    port: (word >> PORT_AT) as u8,
                    mac: Mac([a, b, c, d, e, f]),
                }
            }
            2 => Self::Unresolved,
            3 => Self::Local,
            4 => Self::Blackhole,
            5 => Self::Unreachable,
            6 => Self::Prohibited,
            7 => Self::Group(word as u8),
            _ => Self::NoRoute,
        }
    }
}

/// The number of possible groups of next hops.
pub(super) const MOST_GROUPS: usize = 256;
/// The number of buckets into which the flows of a group are divided.
pub(super) const BUCKETS: usize = 64;

/// The number of the next hop for each bucket of a group's flows.
type Buckets = [AtomicU16; BUCKETS];

/// The treatment of packets by each next hop, shared by all workers; the index is the next hop's number. Number 0 means
/// that there is no route.
#[derive(Debug)]
pub(super) struct Hops {
    words: Box<[AtomicU64]>,
    groups: Box<[Buckets]>,
    /// The XDP programs to which all changes are copied; empty if the kernel forwards no packets.
    kernel: OnceLock<Arc<KernelRouter>>,
}

impl Hops {
    pub fn new() -> Self {
        let buckets = || std::array::from_fn(|_| AtomicU16::new(0));
        Self {
            words: (0..MOST_HOPS).map(|_| AtomicU64::new(0)).collect(),
            groups: (0..MOST_GROUPS).map(|_| buckets()).collect(),
            kernel: OnceLock::new(),
        }
    }

    /// Copies the treatment of packets by all next hops, and all later changes of it, to XDP programs.
    pub fn mirror(&self, kernel: Arc<KernelRouter>) {
        let kernel = self.kernel.get_or_init(|| kernel);
        for (number, word) in self.words.iter().enumerate() {
            kernel.set_hop(number, word.load(Ordering::Relaxed));
        }
        for (share, number) in self.groups.iter().flatten().enumerate() {
            kernel.set_share(share, number.load(Ordering::Relaxed).into());
        }
    }

    fn at(&self, index: usize) -> Hop {
        let word = self.words.get(index);
        Hop::of_word(word.map_or(0, |word| word.load(Ordering::Relaxed)))
    }

    /// Returns the hop that the group assigns to a flow; `flow` is the flow's hash.
    #[inline]
    pub fn of_group(&self, group: u8, flow: u64) -> Hop {
        let bucket = &self.groups[usize::from(group)][flow as usize % BUCKETS];
        self.at(bucket.load(Ordering::Relaxed).into())
    }

    /// Assigns another next hop to a bucket of a group's flows.
    pub fn set_bucket(&self, group: u8, bucket: usize, number: NextHop) {
        if let Some(of_worker) = self.groups[usize::from(group)].get(bucket) {
            of_worker.store(number.index() as u16, Ordering::Release);
        }
        if let Some(kernel) = self.kernel.get() {
            kernel.set_share(usize::from(group) * BUCKETS + bucket, number.index());
        }
    }

    /// Returns the treatment of packets that have this next hop. The treatment was written before any table entry that
    /// refers to the next hop.
    #[inline(always)]
    pub fn get(&self, number: NextHop) -> Hop {
        self.at(number.index())
    }

    pub fn set(&self, number: NextHop, hop: Hop) {
        if let Some(word) = self.words.get(number.index()) {
            word.store(hop.word(), Ordering::Release);
        }
        if let Some(kernel) = self.kernel.get() {
            kernel.set_hop(number.index(), hop.word());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_encoded_next_hop_decodes_to_the_same_next_hop() {
        let hops = Hops::new();
        let mac = Mac([0xfe, 1, 2, 3, 4, 0xff]);
        let all = [
            Hop::NoRoute,
            Hop::Forward { port: 0, mac },
            Hop::Forward { port: 255, mac },
            Hop::Unresolved,
            Hop::Local,
            Hop::Blackhole,
            Hop::Unreachable,
            Hop::Prohibited,
            Hop::Group(255),
        ];
        let number = NextHop::new(NextHop::MOST).unwrap();
        for hop in all {
            hops.set(number, hop);
            assert_eq!(hops.get(number), hop);
        }
        assert_eq!(hops.get(NextHop::NONE), Hop::NoRoute);
    }
}
