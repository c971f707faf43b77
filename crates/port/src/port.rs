//! The interface of all backends: [`Port`].

use crate::Batch;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use taut_sys::{Alarm, StampClock};

/// An endpoint through which a worker receives and sends packets. One thread polls a port; receiving and sending never
/// block.
///
/// A function or worker does not know the backend of a port. Each call is a dynamic dispatch, but it is made once per
/// batch, not once per packet.
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

    /// Takes packets from the front of `batch` and sends them immediately; returns the number of packets taken. Packets
    /// for which the port has no space stay in the batch: the caller decides whether to retry or to drop them.
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

    /// Returns whether the port can still receive packets. Links and peers can always deliver more packets, but a
    /// capture file ends. Make the call about once per second, as for [`Port::link`].
    fn supply(&mut self) -> Supply {
        Supply::Open
    }

    /// Returns true if the port loses no packets while the caller does not receive, because the packets come from a
    /// file. The caller should then receive no more packets than it can send.
    fn waits(&self) -> bool {
        false
    }

    /// Returns true if the port can send packets; false for a capture file that is only read.
    fn takes(&self) -> bool {
        true
    }

    /// Returns true if the link accepts this frame, judged by its length and kind. A link without a known limit accepts
    /// all frames.
    fn fits(&self, _frame: &[u8]) -> bool {
        true
    }

    /// Flushes all packets and waits until they have reached their destination, if the backend can know that. The
    /// owner calls this function once, after the last send. The call may block and make system calls.
    fn close(&mut self) {}

    /// Sets whether received packets must be in memory that no other process can write to. If so, frames in shared
    /// memory are copied before they are delivered; otherwise they may stay there.
    fn own_bytes(&mut self, _wanted: bool) {}

    /// Prepares the port for a caller that will sleep: `alarm` then watches a file descriptor that becomes readable
    /// when a packet arrives. The caller calls [`Port::rx`] once more before it sleeps, because a packet may have
    /// arrived just before. It calls [`Port::disarm`] after it wakes up. Returns false if the caller must keep polling,
    /// because work is left or the backend cannot wake a thread ([`Backend::wakes`](crate::Backend::wakes)).
    fn arm(&mut self, alarm: &mut Alarm) -> bool {
        let _ = alarm;
        false
    }

    /// Ends the preparation for sleep, because the caller polls again.
    fn disarm(&mut self) {}

    /// Returns the arrival timestamps of the packets that the last [`Port::rx`] appended, 0 for a packet without a
    /// timestamp. Clock ([`Port::stamp_clock`]) and unit are those of the device (a NIC: ticks; a capture file:
    /// microseconds since 1970). The list is empty if timestamps are not configured, or the backend has none.
    fn arrival_stamps(&self) -> &[u64] {
        &[]
    }

    /// Returns the clock of [`Port::arrival_stamps`]; None if timestamps are not configured, or the backend has none.
    fn stamp_clock(&self) -> Option<StampClock> {
        None
    }

    /// Returns a text for display about choices that the spec left to the port, such as driver mode and copies. The
    /// text is empty if there were none.
    fn details(&self) -> String {
        String::new()
    }
}

/// The state of a port's link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Link {
    /// The link is up: packets can pass.
    Up,
    /// The link is down, for example without a peer; the text says what the port waits for or what happened.
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
    /// No packets will ever arrive, because the port is only for sending.
    None,
    /// All packets of the port's file have been received.
    Ended,
    /// The port has failed, in both directions.
    Broken(Breakdown),
}

/// The reason why a port has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breakdown {
    /// Reason in words, with the position in the file if there is one.
    pub why: String,
    /// True if the machine is the cause, such as a full disk; false if the input is the cause.
    pub is_machines: bool,
}

/// The counters of a port since it was opened. The port counts the packets that are lost inside it; the caller counts
/// those for which the port had no space (`tx_full`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// Packets for which the port had no space and which the caller therefore dropped. Ports leave this counter at 0;
    /// the caller adds it.
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
