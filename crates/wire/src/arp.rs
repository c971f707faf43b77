//! ARP packets that map IPv4 addresses to Ethernet addresses (RFC 826).

use std::net::Ipv4Addr;

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{
    ByteSlice, ByteSliceMut, FromBytes, Immutable, IntoBytes, KnownLayout, Ref, SplitByteSlice,
    Unaligned,
};

use crate::{Error, EtherType, Mac, view};

const HARDWARE_ETHERNET: u16 = 1;

/// The operation of an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation(pub u16);

impl Operation {
    /// Request: asks for the MAC address of the target IP address.
    pub const REQUEST: Self = Self(1);
    /// Reply: gives the MAC address of the sender's IP address.
    pub const REPLY: Self = Self(2);
}

#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Packet {
    hardware_type: U16,
    protocol_type: U16,
    hardware_len: u8,
    protocol_len: u8,
    operation: U16,
    sender_mac: Mac,
    sender_ip: [u8; 4],
    target_mac: Mac,
    target_ip: [u8; 4],
}

/// A typed reference ("view") to the bytes of an ARP packet for IPv4 on Ethernet; padding after its 28 bytes is
/// ignored.
#[derive(Debug)]
pub struct Arp<B: ByteSlice> {
    packet: Ref<B, Packet>,
}

impl<B: SplitByteSlice> Arp<B> {
    /// Makes a view of an ARP packet in `bytes`.
    ///
    /// # Errors
    /// Returns `Truncated` for fewer than 28 bytes; `BadValue` if the addresses are not IPv4 on Ethernet.
    pub fn new(bytes: B) -> Result<Self, Error> {
        let (packet, _) = view::header::<B, Packet>(bytes, "ARP packet")?;
        for (what, value, right) in [
            (
                "ARP hardware type",
                packet.hardware_type.get(),
                HARDWARE_ETHERNET,
            ),
            (
                "ARP protocol type",
                packet.protocol_type.get(),
                EtherType::IPV4.0,
            ),
            ("ARP hardware address length", packet.hardware_len.into(), 6),
            ("ARP protocol address length", packet.protocol_len.into(), 4),
        ] {
            if value != right {
                return Err(Error::BadValue {
                    what,
                    value: value.into(),
                });
            }
        }
        Ok(Self { packet })
    }
}

impl<B: ByteSlice> Arp<B> {
    /// Returns the operation: request or reply.
    pub fn operation(&self) -> Operation {
        Operation(self.packet.operation.get())
    }

    /// Returns the sender's MAC address.
    pub fn sender_mac(&self) -> Mac {
        self.packet.sender_mac
    }

    /// Returns the sender's IPv4 address.
    pub fn sender_ip(&self) -> Ipv4Addr {
        self.packet.sender_ip.into()
    }

    /// Returns the target's MAC address; it is zero in a request.
    pub fn target_mac(&self) -> Mac {
        self.packet.target_mac
    }

    /// Returns the target's IPv4 address.
    pub fn target_ip(&self) -> Ipv4Addr {
        self.packet.target_ip.into()
    }
}

impl<B: ByteSliceMut> Arp<B> {
    /// Turns a request into the reply of the host with MAC address `mac`, in place.
    pub fn make_reply(&mut self, mac: Mac) {
        let packet = &mut *self.packet;
        packet.operation.set(Operation::REPLY.0);
        packet.target_mac = packet.sender_mac;
        packet.sender_mac = mac;
        std::mem::swap(&mut packet.sender_ip, &mut packet.target_ip);
    }
}

/// The fields of an ARP packet as a Rust value, independent of the packet's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpRepr {
    /// The operation: request or reply.
    pub operation: Operation,
    /// The sender's MAC address.
    pub sender_mac: Mac,
    /// The sender's IPv4 address.
    pub sender_ip: Ipv4Addr,
    /// The target's MAC address; it is zero in a request.
    pub target_mac: Mac,
    /// The target's IPv4 address.
    pub target_ip: Ipv4Addr,
}

impl ArpRepr {
    /// The length of an ARP packet for IPv4 on Ethernet, in bytes.
    pub const LEN_BYTES: usize = size_of::<Packet>();

    /// Reads the fields of an ARP packet.
    ///
    /// # Errors
    /// Returns no errors at present; `parse` has this signature for all protocols of the crate.
    pub fn parse<B: ByteSlice>(view: &Arp<B>) -> Result<Self, Error> {
        Ok(Self {
            operation: view.operation(),
            sender_mac: view.sender_mac(),
            sender_ip: view.sender_ip(),
            target_mac: view.target_mac(),
            target_ip: view.target_ip(),
        })
    }

    /// Writes the packet to the front of `buffer` and returns a view of it.
    ///
    /// # Errors
    /// Returns `Truncated` if the packet does not fit.
    pub fn emit<'a>(&self, buffer: &'a mut [u8]) -> Result<Arp<&'a mut [u8]>, Error> {
        let (mut packet, _) = view::header::<_, Packet>(buffer, "room for the ARP packet")?;
        *packet = Packet {
            hardware_type: HARDWARE_ETHERNET.into(),
            protocol_type: EtherType::IPV4.0.into(),
            hardware_len: 6,
            protocol_len: 4,
            operation: self.operation.0.into(),
            sender_mac: self.sender_mac,
            sender_ip: self.sender_ip.octets(),
            target_mac: self.target_mac,
            target_ip: self.target_ip.octets(),
        };
        Ok(Arp { packet })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn request() -> ArpRepr {
        ArpRepr {
            operation: Operation::REQUEST,
            sender_mac: Mac([2, 0, 0, 0, 0, 1]),
            sender_ip: Ipv4Addr::new(10, 0, 0, 1),
            target_mac: Mac::default(),
            target_ip: Ipv4Addr::new(10, 0, 0, 2),
        }
    }

    #[test]
    fn an_arp_reply_is_addressed_to_the_requests_sender() {
        let mut bytes = [0; 28];
        let mut view = request().emit(&mut bytes).unwrap();
        view.make_reply(Mac([2, 0, 0, 0, 0, 2]));
        assert_eq!(
            ArpRepr::parse(&view).unwrap(),
            ArpRepr {
                operation: Operation::REPLY,
                sender_mac: Mac([2, 0, 0, 0, 0, 2]),
                sender_ip: Ipv4Addr::new(10, 0, 0, 2),
                target_mac: Mac([2, 0, 0, 0, 0, 1]),
                target_ip: Ipv4Addr::new(10, 0, 0, 1),
            }
        );
    }

    #[test]
    fn address_types_other_than_ethernet_and_ipv4_are_refused() {
        let mut bytes = [0; 28];
        request().emit(&mut bytes).unwrap();
        for at in [1, 2, 4, 5] {
            let mut bytes = bytes;
            bytes[at] += 1;
            assert!(
                matches!(Arp::new(&bytes[..]), Err(Error::BadValue { .. })),
                "{at}"
            );
        }
    }

    #[test]
    fn etherparse_parses_emitted_arp_requests() {
        let mut bytes = [0; 28];
        request().emit(&mut bytes).unwrap();
        let theirs = etherparse::ArpPacketSlice::from_slice(&bytes).unwrap();
        assert_eq!(theirs.operation(), etherparse::ArpOperation::REQUEST);
        assert_eq!(theirs.sender_hw_addr(), request().sender_mac.0);
        assert_eq!(theirs.target_protocol_addr(), [10, 0, 0, 2]);
    }

    proptest! {
        #[test]
        fn parsed_arp_packets_are_emitted_unchanged(mut bytes: [u8; 28], length in 0usize..=28) {
            bytes[..6].copy_from_slice(&[0, 1, 8, 0, 6, 4]);
            prop_assert_eq!(Arp::new(&bytes[..length]).is_ok(), length == 28);
            let repr = ArpRepr::parse(&Arp::new(&bytes[..]).unwrap()).unwrap();
            let mut again = [0; 28];
            repr.emit(&mut again).unwrap();
            prop_assert_eq!(again, bytes);
        }
    }
}
