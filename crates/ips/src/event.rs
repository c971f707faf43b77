//! Events of packets and flows, and the parts of messages that alerts include.

use taut_inspect::buffer::{Application, Buffer};
use taut_inspect::evaluate::Packet;

/// The parts of messages that alerts include.
pub(super) const SAID: [Buffer; 8] = [
    Buffer::HttpHost,
    Buffer::HttpRawUri,
    Buffer::HttpUserAgent,
    Buffer::HttpMethod,
    Buffer::HttpProtocol,
    Buffer::HttpStatusCode,
    Buffer::DnsQuery,
    Buffer::TlsSni,
];

/// The two ends of a packet: addresses and ports.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends {
    pub source: (u128, u16),
    pub destination: (u128, u16),
    pub protocol: u8,
}

impl Ends {
    /// Returns the ends of a packet.
    pub fn of(packet: &Packet<'_>) -> Self {
        Self {
            source: (packet.source, packet.source_port),
            destination: (packet.destination, packet.destination_port),
            protocol: packet.protocol,
        }
    }
}

/// The kinds of events.
#[derive(Debug, Clone, Copy)]
pub(super) enum What {
    /// A rule matches.
    Alert {
        /// The rule's set, and its index there.
        version: u64,
        rule: u32,
        /// True if the packet was dropped.
        is_blocked: bool,
        /// The number of its packet; the packet itself is a later event.
        packet: u32,
    },
    /// The packet of that number, with `len` bytes in the ring of bytes.
    Packet { number: u32, len: u32 },
    /// A packet is dropped, by another cause than a matching rule.
    Drop { reason: &'static str },
    /// A flow has ended.
    Flow {
        packets: [u32; 2],
        bytes: [u64; 2],
        alerts: u32,
        /// The reason for its removal.
        reason: &'static str,
    },
}

/// An event of a worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Event {
    pub at_ticks: u64,
    pub flow: u64,
    pub ends: Ends,
    pub application: Option<Application>,
    pub port: u8,
    pub what: What,
}

/// An event as it waits for the writing thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived {
    pub event: Event,
    /// The arrival time of its packet, by its port's timestamp, ns since 1970; 0 without.
    pub stamp_ns: u64,
    /// The bytes of message parts in the ring of bytes.
    pub said_bytes: u32,
}
