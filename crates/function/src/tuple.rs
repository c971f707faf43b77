//! The addresses, protocol and ports of a frame: the five fields that identify a flow.

use crate::mix::mix;
use std::net::IpAddr;
use taut_wire::{Headers, IpProtocol, Layer3};

/// The addresses, protocol and ports of a packet, which identify its flow.
#[derive(Debug, Clone, Copy)]
pub struct Tuple {
    /// The IP protocol.
    pub protocol: IpProtocol,
    /// The source address; IPv4 addresses are mapped into IPv6.
    pub source: u128,
    /// The destination address; IPv4 addresses are mapped into IPv6.
    pub destination: u128,
    /// The source and destination ports; none for other protocols than TCP, UDP and SCTP, and for fragments other than
    /// the first.
    pub ports: Option<(u16, u16)>,
    /// True for a packet that is a fragment, including the first one.
    pub is_fragment: bool,
}

impl Tuple {
    /// Returns a hash that is the same for all packets of a flow in one direction, and spread evenly over all 64 bits.
    /// Fragments are hashed by their addresses alone, because only the first one has ports.
    #[inline]
    pub fn flow_hash(&self, seed: u64) -> u64 {
        let (source_port, destination_port) = match self.ports {
            Some(ports) if !self.is_fragment => ports,
            _ => (0, 0),
        };
        let rest = u64::from(source_port) << 24
            | u64::from(destination_port) << 8
            | u64::from(self.protocol.0);
        let source = mix(seed, (self.source >> 64) as u64 ^ rest);
        let source = mix(source, self.source as u64);
        let both = mix(source, (self.destination >> 64) as u64);
        mix(both, self.destination as u64)
    }
}

/// The kind of a frame, for a function that uses addresses and ports.
pub enum Seen {
    /// An IP packet with its addresses, protocol and ports.
    Tuple(Tuple),
    /// A frame without IP.
    NoIp,
    /// A frame with a wrong or truncated header.
    Malformed,
}

impl Seen {
    /// Returns the kind of a frame from its parsed headers.
    #[inline]
    pub fn of(headers: &Headers, frame: &[u8]) -> Self {
        // This includes a packet truncated before its ports, which could otherwise bypass the rules.
        if headers.fault().is_some() {
            return Self::Malformed;
        }
        if headers.layer3() == Layer3::Other {
            return Self::NoIp;
        }
        let (source, destination) = headers.addresses_in(frame);
        Self::Tuple(Tuple {
            protocol: headers.protocol(),
            source,
            destination,
            ports: headers.ports(),
            is_fragment: headers.is_fragment(),
        })
    }
}

/// Returns an IP address as IPv6; IPv4 addresses are mapped.
pub fn mapped(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}
