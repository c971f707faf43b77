//! What the switch tells the thread beside the worker, beside rules.

use super::count::Count;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// Ports that a chain has at most.
pub(super) const MOST_PORTS: usize = 256;

/// What the switch tells the thread, beside rules.
pub(super) struct Facts {
    /// Ports of the chain, once packets or their absence have shown them.
    pub ports: AtomicUsize,
    pub is_up: Arc<[AtomicBool]>,
    /// Connections of controllers that the switch has ended: they broke the protocol, were silent, or did not read.
    pub ended: AtomicU64,
    /// Frames of controllers, and for them, for which there was no room.
    pub lost: AtomicU64,
    /// What each port has received and sent.
    pub port_counts: Box<[PortCounts]>,
    /// When ports began to be counted.
    pub begun: Instant,
}

/// Frames that the switch has got from a port, and that it has sent there. Each has one writer.
#[derive(Debug, Default)]
pub(super) struct PortCounts {
    pub received: Count,
    pub sent: Count,
    /// Those that controllers have sent.
    pub sent_out: Count,
}

impl Facts {
    pub fn new() -> Self {
        Self {
            ports: AtomicUsize::new(0),
            is_up: (0..MOST_PORTS).map(|_| AtomicBool::new(true)).collect(),
            ended: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            port_counts: (0..MOST_PORTS).map(|_| PortCounts::default()).collect(),
            begun: Instant::now(),
        }
    }

    /// Packets and bytes that a port has received, and that it has sent.
    pub fn port_counts(&self, port: u8) -> [(u64, u64); 2] {
        let Some(counts) = self.port_counts.get(usize::from(port)) else {
            return [(0, 0); 2];
        };
        let (sent, out) = (counts.sent.read(), counts.sent_out.read());
        let sent = (sent.0.wrapping_add(out.0), sent.1.wrapping_add(out.1));
        [counts.received.read(), sent]
    }

    /// Counts a frame for which there was no room.
    pub fn lose(&self) {
        // Relaxed: a number for people.
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    pub fn is_up(&self, port: u8) -> bool {
        // Relaxed: nothing else is known by it.
        let state = self.is_up.get(usize::from(port));
        state.is_some_and(|it| it.load(Ordering::Relaxed))
    }
}
