//! The interface of all backends: [`Port`].

use crate::Batch;
use serde::{Deserialize, Serialize};
use taut_sys::{Alarm, StampClock};

/// A place where packets enter and leave. It is used by one thread, polled, and never blocks.
///
/// A function or worker does not know the backend of a port. The calls are dynamic, but once per batch, not per packet.
pub trait Port {
    /// Appends the packets that have arrived to `batch`, up to its capacity; returns their number.
    ///
    /// ```
    /// # use taut_port::{Batch, Port, PortSpec, Resources};
    /// # let mut resources = Resources::for_ports(&[PortSpec::parse("null:")?])?;
    /// # let mut port = PortSpec::parse("null:source=32")?.open(&mut resources)?;
    /// let mut batch = Batch::new();
    /// let n = port.rx(&mut batch);
    /// assert_eq!(n, batch.len());
    /// # Ok::<(), taut_port::PortError>(())
    /// ```
    fn rx(&mut self, batch: &mut Batch) -> usize;

    /// Takes packets from the front of `batch` and sends them immediately; returns their number. Packets that did not
    /// fit stay in the batch: the caller decides whether to retry or to drop them.
    ///
    /// ```
    /// # use taut_port::{Batch, Port, PortSpec, Resources};
    /// # let mut resources = Resources::for_ports(&[PortSpec::parse("null:")?])?;
    /// # let mut port = PortSpec::parse("null:")?.open(&mut resources)?;
    /// let mut batch = Batch::new();
    /// resources.pool().fill(&mut batch, 3, 60);
    /// let sent = port.tx(&mut batch);
    /// assert_eq!(batch.len(), 3 - sent);
    /// # Ok::<(), taut_port::PortError>(())
    /// ```
    fn tx(&mut self, batch: &mut Batch) -> usize;

    /// Returns the link state. The call may cost a system call, so make it about once per second, not per batch.
    fn link(&mut self) -> Link;

    /// Returns the counters since the port was opened. The call is cheap, but not free.
    fn counters(&mut self) -> PortCounters;

    /// Returns whether the port can still receive packets. Links and peers can always bring more; files end. Call it as
    /// often as [`Port::link`].
    fn supply(&mut self) -> Supply {
        Supply::Open
    }

    /// Returns true if packets wait in the port without loss until they are received (a file). Then the caller should
    /// receive no more than it can send.
    fn waits(&self) -> bool {
        false
    }

    /// Returns true if the port can send packets; false for a file that is only read.
    fn takes(&self) -> bool {
        true
    }

    /// Returns true if the link accepts a frame of this length and kind. A link without a known limit accepts all
    /// frames.
    fn fits(&self, _frame: &[u8]) -> bool {
        true
    }

    /// Flushes all packets and waits until they have reached their destination, if the backend can know that. The
    /// owner calls this function once, after the last send. The call may block and make system calls.
    fn close(&mut self) {}

    /// Sets whether received packets must be in memory that no other process can write to. If so, frames in shared
    /// memory are copied before they are delivered.
    fn own_bytes(&mut self, _wanted: bool) {}

    /// Prepares the port for a caller that will sleep: `alarm` watches the file that becomes readable when a packet
    /// arrives. The caller calls [`Port::rx`] once more before it sleeps, because a packet may have arrived just
    /// before. It calls [`Port::disarm`] when it is awake. Returns false if the caller must keep polling, because work
    /// is left or the backend cannot wake a thread ([`Backend::wakes`](crate::Backend::wakes)).
    fn arm(&mut self, alarm: &mut Alarm) -> bool {
        let _ = alarm;
        false
    }

    /// Ends the preparation for sleep, because the caller polls again.
    fn disarm(&mut self) {}

    /// Returns the arrival timestamps of the packets that the last [`Port::rx`] appended. They have the device's own
    /// clock ([`Port::stamp_clock`]) and unit (a NIC: ticks; a capture file: microseconds since 1970), and are 0 for a
    /// packet without one. The list is empty if timestamps are not configured, or the backend has none.
    fn arrival_stamps(&self) -> &[u64] {
        &[]
    }

    /// Returns the clock of [`Port::arrival_stamps`]; None if timestamps are not configured, or the backend has none.
    fn stamp_clock(&self) -> Option<StampClock> {
        None
    }

    /// Describes for display the choices that the spec left open (such as driver mode, copies). The text is empty if
    /// there were none.
    fn details(&self) -> String {
        String::new()
    }
}

/// The state of a port's link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Link {
    /// Packets can pass.
    Up,
    /// The peer is absent; the text says what the port waits for or what happened.
    Down(String),
}

/// Converts the link state of a network interface ([`taut_sys::interface::Interface::passes`]).
impl From<Result<(), String>> for Link {
    fn from(passes: Result<(), String>) -> Self {
        passes.map_or_else(Self::Down, |()| Self::Up)
    }
}

impl Link {
    /// Returns true if packets can pass.
    pub fn is_up(&self) -> bool {
        *self == Link::Up
    }
}

/// The state of a port's receiving side: whether packets can still arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Supply {
    /// Packets may arrive at any time.
    Open,
    /// No packets will ever arrive: the port is only for sending.
    None,
    /// All packets have been received.
    Ended,
    /// The port has failed, in both directions.
    Broken(Breakdown),
}

/// The reason why a port has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breakdown {
    /// Reason and position in words.
    pub why: String,
    /// True if the machine is the cause, such as a full disk; false if the input is the cause.
    pub is_machines: bool,
}

/// The counters of a port since it was opened. Packets that did not fit into a full ring are counted by the caller;
/// these counters include the losses inside the port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
// Missing fields default to 0, so that results folders of older versions stay readable.
#[serde(default)]
pub struct PortCounters {
    /// Packets delivered to the caller.
    pub rx_packets: u64,
    /// Bytes of `rx_packets`.
    pub rx_bytes: u64,
    /// Packets taken from the caller and sent.
    pub tx_packets: u64,
    /// Bytes of `tx_packets`.
    pub tx_bytes: u64,
    /// Packets that arrived when the receive ring was full (counted by the kernel or the device).
    pub rx_overrun: u64,
    /// Packets that arrived with an invalid descriptor (a malicious peer, a broken ring).
    pub rx_malformed: u64,
    /// Packets that arrived, but were longer than a buffer.
    pub rx_too_long: u64,
    /// Packets taken from the caller that were longer than the peer's buffer or the link's MTU.
    pub tx_too_long: u64,
    /// Packets taken from the caller that the kernel or the peer refused.
    pub tx_failed: u64,
    /// Packets that the port did not take because its ring was full, and that the caller dropped and counted.
    pub tx_full: u64,
}

impl PortCounters {
    /// Returns all counters, in the order of the fields.
    #[must_use]
    pub const fn counts(&self) -> [u64; 10] {
        [
            self.rx_packets,
            self.rx_bytes,
            self.tx_packets,
            self.tx_bytes,
            self.rx_overrun,
            self.rx_malformed,
            self.rx_too_long,
            self.tx_too_long,
            self.tx_failed,
            self.tx_full,
        ]
    }

    /// Makes counters from an array in the order of the fields.
    #[must_use]
    pub const fn of(counts: [u64; 10]) -> Self {
        let [
            rx_packets,
            rx_bytes,
            tx_packets,
            tx_bytes,
            rx_overrun,
            rx_malformed,
            rx_too_long,
            tx_too_long,
            tx_failed,
            tx_full,
        ] = counts;
        Self {
            rx_packets,
            rx_bytes,
            tx_packets,
            tx_bytes,
            rx_overrun,
            rx_malformed,
            rx_too_long,
            tx_too_long,
            tx_failed,
            tx_full,
        }
    }
}

impl std::ops::Add for PortCounters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let mut counts = self.counts();
        for (count, more) in counts.iter_mut().zip(other.counts()) {
            *count = count.wrapping_add(more);
        }
        Self::of(counts)
    }
}
