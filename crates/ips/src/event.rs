//! Events of packets and flows, and the parts of messages that alerts include.

use taut_inspect::buffer::{Application, Buffer};
use taut_inspect::evaluate::Packet;

/// The buffers of a message that an alert includes.
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

/// The two endpoints of a packet: their addresses and ports.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends {
    pub source: (u128, u16),
    pub destination: (u128, u16),
    pub protocol: u8,
}

impl Ends {
    /// Returns the endpoints of a packet.
    pub fn of(packet: &Packet<'_>) -> Self {
        Self {
            source: (packet.source, packet.source_port),
            destination: (packet.destination, packet.destination_port),
            protocol: packet.protocol,
        }
    }
}

/// The kind of an event, with its details.
#[derive(Debug, Clone, Copy)]
pub(super) enum What {
    /// A rule matches.
    Alert {
        /// The version of the rule set that matched; the next field is the index of the matching rule in that set.
        version: u64,
        rule: u32,
        /// True if the packet was dropped.
        is_blocked: bool,
        /// The number of the packet that matched; a later event contains the packet itself.
        packet: u32,
    },
    /// The packet with this number, of which `len` bytes are in the ring of bytes.
    Packet { number: u32, len: u32 },
    /// A packet is dropped for another reason than a matching rule.
    Drop { reason: &'static str },
    /// A flow has ended.
    Flow {
        packets: [u32; 2],
        bytes: [u64; 2],
        alerts: u32,
        /// The reason for the removal of the flow.
        reason: &'static str,
    },
}

/// An event in the inspection of a worker, such as an alert or the end of a flow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Event {
    pub at_ticks: u64,
    pub flow: u64,
    pub ends: Ends,
    pub application: Option<Application>,
    pub port: u8,
    pub what: What,
}

/// An event in the ring to the writing thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived {
    pub event: Event,
    /// The packet's timestamp from the ingress port, in ns since 1970; 0 if the port took none.
    pub stamp_ns: u64,
    /// The number of bytes of message parts that the event has in the ring of bytes.
    pub said_bytes: u32,
}
