//! The one interface every backend has: [`Port`].

use crate::Batch;
use serde::{Deserialize, Serialize};
use taut_sys::{Alarm, StampClock};

/// Place where packets enter and leave. Used by one thread, polled, never blocking.
///
/// A function or worker above a port does not know which backend it has. The calls are dynamic, but
/// once per batch, not per packet.
pub trait Port {
    /// Appends the packets that have arrived to `batch`, as many as it has room for; returns how many.
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

    /// Takes packets from the front of `batch` and hands them to the other side at once; returns how
    /// many. Packets that did not fit stay in the batch: the caller decides whether to try again or to
    /// drop them.
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

    /// Whether the other side is there. May make a system call: ask about once a second, not per batch.
    fn link(&mut self) -> Link;

    /// Returns what has passed so far. Cheap, but not free.
    fn counters(&mut self) -> PortCounters;

    /// Says whether packets can still come out of the port. Links and peers can always bring more; files end. Ask as
    /// often as about the link.
    fn supply(&mut self) -> Supply {
        Supply::Open
    }

    /// Whether packets wait in the port until they are asked for, without loss (a file): then nobody need
    /// take more than can be passed on.
    fn waits(&self) -> bool {
        false
    }

    /// Whether what is sent goes anywhere; false for a file that is only read.
    fn takes(&self) -> bool {
        true
    }

    /// Whether the link behind it takes frames of this length and kind; one that knows no limit says yes.
    fn fits(&self, _frame: &[u8]) -> bool {
        true
    }

    /// Lets go of everything that was taken and waits until it is where it belongs, as far as that can be
    /// known: once, when no more will be sent. May block and call the system.
    fn close(&mut self) {}

    /// Is told whether the bytes of packets that come in have to be nobody else's: then frames in memory that a stranger can
    /// write to as well are copied before they are handed out.
    fn own_bytes(&mut self, _wanted: bool) {}

    /// Readies the port for an owner that will sleep: has `alarm` watch what becomes readable when a packet arrives.
    /// The owner calls [`Port::rx`] once more before it sleeps, as a packet may have come just before, and
    /// [`Port::disarm`] when it is awake. False if the port needs to be called instead (work left undone,
    /// or a backend that cannot wake anybody: [`Backend::wakes`](crate::Backend::wakes)).
    fn arm(&mut self, alarm: &mut Alarm) -> bool {
        let _ = alarm;
        false
    }

    /// The owner polls again.
    fn disarm(&mut self) {}

    /// Returns when the packets that the last [`Port::rx`] appended arrived, one stamp each, by the device's own clock
    /// and in its unit (a network card: ticks; a capture file: microseconds since 1970); 0 for a packet without. Empty
    /// where stamps were not asked for, or the backend has none.
    fn arrival_stamps(&self) -> &[u64] {
        &[]
    }

    /// The clock of [`Port::arrival_stamps`]; none where stamps were not asked for, or the backend has none.
    fn stamp_clock(&self) -> Option<StampClock> {
        None
    }

    /// Describes what the port made of what its spec left open (which driver mode, whether something is copied), for
    /// people to read; empty if nothing was.
    fn details(&self) -> String {
        String::new()
    }
}

/// State of a port's other side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Link {
    /// Packets can pass.
    Up,
    /// The other side is not there (yet, or any more); the text says what is awaited or what happened.
    Down(String),
}

/// Of an interface ([`taut_sys::interface::Interface::passes`]).
impl From<Result<(), String>> for Link {
    fn from(passes: Result<(), String>) -> Self {
        passes.map_or_else(Self::Down, |()| Self::Up)
    }
}

impl Link {
    /// True if packets can pass.
    pub fn is_up(&self) -> bool {
        *self == Link::Up
    }
}

/// Packets that a port still has to give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Supply {
    /// Packets may come at any time.
    Open,
    /// No packets will ever come: the port is for sending.
    None,
    /// All packets there were have come.
    Ended,
    /// The port can do no more, in either direction.
    Broken(Breakdown),
}

/// Reason why a port can do no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breakdown {
    /// Reason and place in words.
    pub why: String,
    /// The machine is to blame, such as a full disk; else what was read.
    pub is_machines: bool,
}

/// Counts of what passed through a port since it was opened. Packets that the caller could not place (a full ring) are
/// the caller's to count; these are the ones lost inside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
// Folders of versions that did not count something stay readable.
#[serde(default)]
pub struct PortCounters {
    /// Packets given to the caller.
    pub rx_packets: u64,
    /// Bytes of `rx_packets`.
    pub rx_bytes: u64,
    /// Packets taken from the caller and handed over.
    pub tx_packets: u64,
    /// Bytes of `tx_packets`.
    pub tx_bytes: u64,
    /// Arrived, but the receive ring was full (counted by the kernel or the device).
    pub rx_overrun: u64,
    /// Arrived with a description that cannot be true (a lying peer, a broken ring).
    pub rx_malformed: u64,
    /// Arrived, but longer than a buffer.
    pub rx_too_long: u64,
    /// Packets taken that were longer than the other side's buffer or the link's MTU.
    pub tx_too_long: u64,
    /// Packets taken that the kernel or the other side refused.
    pub tx_failed: u64,
    /// Packets not taken, as the ring was full, and dropped: counted by whoever sends.
    pub tx_full: u64,
}

impl PortCounters {
    /// All counts, in the order of the fields.
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

    /// Makes counters from all counts, in the order of the fields.
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
