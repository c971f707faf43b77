//! Events: what has happened to a packet or a flow, and what alerts say of messages.

use taut_inspect::buffer::{Application, Buffer};
use taut_inspect::evaluate::Packet;

/// Parts of messages that alerts say.
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
    /// Those of a packet.
    pub fn of(packet: &Packet<'_>) -> Self {
        Self {
            source: (packet.source, packet.source_port),
            destination: (packet.destination, packet.destination_port),
            protocol: packet.protocol,
        }
    }
}

/// What has happened.
#[derive(Debug, Clone, Copy)]
pub(super) enum What {
    /// A rule fits.
    Alert {
        /// Set of rules that it is of, and its place there.
        version: u64,
        rule: u32,
        /// Whether the packet was dropped.
        is_blocked: bool,
        /// Number of the packet that it is about: the one that comes next.
        packet: u32,
    },
    /// The packet of that number, so many bytes of which are in the ring of bytes.
    Packet { number: u32, len: u32 },
    /// A packet is dropped, and by no rule that fits it.
    Drop { reason: &'static str },
    /// A flow is over.
    Flow {
        packets: [u32; 2],
        bytes: [u64; 2],
        alerts: u32,
        /// Why nobody asks for it any more.
        reason: &'static str,
    },
}

/// Event of a worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Event {
    pub at_ticks: u64,
    pub flow: u64,
    pub ends: Ends,
    pub application: Option<Application>,
    pub port: u8,
    pub what: What,
}

/// An event as it waits for the thread that writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived {
    pub event: Event,
    /// Time at which its packet arrived, by the stamp of its port, ns since 1970; 0 without.
    pub stamp_ns: u64,
    /// Bytes of what the message says that are in the ring of bytes.
    pub said_bytes: u32,
}
