//! Parsing and building of frames: no I/O, no unsafe code, no allocation on the data path.
//!
//! Each protocol is one file in two parts. A *view* (`Udp<B>`) reads bytes in place. Its constructor checks every
//! length once, so its accessors cannot fail; a view over `&mut [u8]` also sets fields. A *representation* (`UdpRepr`)
//! is the header as a value: `parse` reads the value from a view, `emit` writes it to the front of a buffer. Emitting a
//! parsed header gives the same bytes again.
//!
//! ```
//! use taut_wire::{EtherType, Ethernet, Ipv4, Udp, UdpFlow};
//!
//! let frame = UdpFlow::default().frame(64)?;
//! let ethernet = Ethernet::new(&frame[..])?;
//! assert_eq!(ethernet.ethertype(), EtherType::IPV4);
//! let ip = Ipv4::new(ethernet.payload())?;
//! let udp = Udp::new(ip.payload())?;
//! udp.verify_checksum(ip.pseudo_header(udp.length()))?;
//! # Ok::<(), taut_wire::Error>(())
//! ```
#![forbid(unsafe_code)]
// Silent truncation of numbers causes errors in packets and statistics. Tests may truncate.
#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_possible_wrap
    )
)]

pub mod arp;
pub mod checksum;
pub mod error;
pub mod ethernet;
pub mod frame;
pub mod gtpc;
pub mod gtpu;
pub mod headers;
pub mod icmp;
pub mod icmp_error;
pub mod ip_protocol;
pub mod ipv4;
pub mod ipv6;
pub mod link_probe;
pub mod lldp;
pub mod neighbour;
pub mod pfcp;
pub mod probe;
pub mod resolution;
pub mod stamp;
pub mod tcp;
pub mod udp;
mod view;

pub use arp::{Arp, ArpRepr};
pub use checksum::Sum;
pub use error::Error;
pub use ethernet::{EtherType, Ethernet, EthernetRepr, Mac, TagKind, Vlan, VlanTag};
pub use frame::{MAX_FRAME_SIZE_BYTES, MIN_FRAME_SIZE_BYTES, Protocol, Tunnel, UdpFlow};
pub use gtpu::{Gtpu, GtpuRepr};
pub use headers::{Fault, Headers, Layer3};
pub use icmp::{Icmpv4, Icmpv4Repr};
pub use icmp_error::{IcmpError, icmp_error};
pub use ip_protocol::IpProtocol;
pub use ipv4::{Ipv4, Ipv4Repr};
pub use ipv6::{Ipv6, Ipv6Repr, Transport};
pub use link_probe::{LinkEnd, LinkProbe};
pub use lldp::Lldp;
pub use neighbour::{Neighbour, NeighbourRepr};
pub use probe::{PROBE_BYTES, Probe, ProbeWay};
pub use stamp::{PortRange, Received, Stamp, StampLayout, claimed_stamp, classify};
pub use tcp::{Tcp, TcpFlags, TcpRepr};
pub use udp::{Udp, UdpRepr};
