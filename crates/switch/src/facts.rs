//! The state, other than rules, that the worker shares with the server thread.

use super::count::{Count, more};
use super::table::TABLES;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;
use taut_sys::HashKey;

/// The maximum number of ports of a chain.
pub(super) const MOST_PORTS: usize = 256;

/// The state, other than rules, that the worker shares with the server thread.
pub(super) struct Facts {
    /// The number of ports of the chain; it is known after the first call of the worker.
    pub ports: AtomicUsize,
    pub is_up: Arc<[AtomicBool]>,
    /// The number of controller connections that the switch has closed because the controller broke the protocol, was
    /// idle, or did not read.
    pub ended: AtomicU64,
    /// The number of frames from and to controllers that were lost because a ring or a buffer was full.
    pub lost: AtomicU64,
    /// The counters of each port.
    pub port_counts: Box<[PortCounts]>,
    /// The counters of the lookups in each table.
    pub table_counts: [TableCounts; TABLES as usize],
    /// The time since which the packets of the ports are counted: the start of the switch.
    pub begun: Instant,
    /// The seed of the flow hash that selects the bucket of a group. It is secret, so that a sender cannot choose flows
    /// that all get the same bucket.
    pub flow_seed: u64,
}

/// The counters of a port: frames that the switch has received from the port, and sent to the port. Each counter has
/// one writer.
#[derive(Debug, Default)]
pub(super) struct PortCounts {
    pub received: Count,
    pub sent: Count,
    /// The frames that controllers have sent through this port.
    pub sent_out: Count,
}

/// The numbers of packets that were looked up in a table, and of packets that matched a rule in it. Only the worker
/// adds to these counters.
#[derive(Debug, Default)]
pub(super) struct TableCounts {
    looked_up: AtomicU64,
    matched: AtomicU64,
}

impl TableCounts {
    /// Adds the numbers of packets of a batch that were looked up together, and that matched a rule.
    #[inline(always)]
    pub fn add(&self, looked_up: u64, matched: u64) {
        more(&self.looked_up, looked_up);
        more(&self.matched, matched);
    }

    /// Returns the number of packets that were looked up in the table, and the number of packets that matched a rule.
    pub fn read(&self) -> (u64, u64) {
        (
            self.looked_up.load(Ordering::Relaxed),
            self.matched.load(Ordering::Relaxed),
        )
    }
}

impl Facts {
    pub fn new() -> Self {
        Self {
            ports: AtomicUsize::new(0),
            is_up: (0..MOST_PORTS).map(|_| AtomicBool::new(true)).collect(),
            ended: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            port_counts: (0..MOST_PORTS).map(|_| PortCounts::default()).collect(),
            table_counts: std::array::from_fn(|_| TableCounts::default()),
            begun: Instant::now(),
            flow_seed: HashKey::of_process().seed(),
        }
    }

    /// Returns the number of packets and bytes received from a port, then the number of packets and bytes sent to the
    /// port.
    pub fn port_counts(&self, port: u8) -> [(u64, u64); 2] {
        let Some(counts) = self.port_counts.get(usize::from(port)) else {
            return [(0, 0); 2];
        };
        let (sent, out) = (counts.sent.read(), counts.sent_out.read());
        let sent = (sent.0.wrapping_add(out.0), sent.1.wrapping_add(out.1));
        [counts.received.read(), sent]
    }

    /// Counts a frame from or to a controller that was lost because a ring or a buffer was full.
    pub fn lose(&self) {
        // Relaxed: the number is a statistic.
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    pub fn is_up(&self, port: u8) -> bool {
        // Relaxed: no other memory depends on it.
        let state = self.is_up.get(usize::from(port));
        state.is_some_and(|it| it.load(Ordering::Relaxed))
    }
}
