//! IPv6 neighbour discovery: solicitations and advertisements (RFC 4861 sections 4.3 and 4.4).

use std::net::Ipv6Addr;

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{
    ByteSlice, FromBytes, Immutable, IntoBytes, KnownLayout, Ref, SplitByteSlice, Unaligned,
};

use crate::{Error, Mac, Sum, view};

const WHAT: &str = "neighbour message";
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// The types of the options with a link-layer address: the sender's, and the target's (RFC 4861 section 4.6.1).
const SOURCE_ADDRESS: u8 = 1;
const TARGET_ADDRESS: u8 = 2;
/// The unit of an option's length, bytes.
const UNIT_LEN_BYTES: usize = 8;

/// The hop limit of every neighbour message. A message with a lower hop limit may come from another link (RFC 4861
/// section 7.1).
pub const HOP_LIMIT: u8 = 255;

#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Message {
    kind: u8,
    code: u8,
    checksum: U16,
    flags: [u8; 4],
    target: [u8; 16],
}

#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct AddressOption {
    kind: u8,
    units: u8,
    mac: Mac,
}

/// A typed reference ("view") to a neighbour solicitation or advertisement: the ICMPv6 message, without the IPv6
/// header.
#[derive(Debug)]
pub struct Neighbour<B: ByteSlice> {
    message: Ref<B, Message>,
    options: B,
}

impl<B: SplitByteSlice> Neighbour<B> {
    /// Makes a view of the neighbour message `message`. The checksum is not verified.
    ///
    /// # Errors
    /// Returns `Truncated` for fewer than 24 bytes; `BadValue` for any other type of message.
    pub fn new(message: B) -> Result<Self, Error> {
        let (message, options) = view::header::<B, Message>(message, WHAT)?;
        if ![SOLICITATION, ADVERTISEMENT].contains(&message.kind) || message.code != 0 {
            return Err(Error::BadValue {
                what: "type of a neighbour message",
                value: message.kind.into(),
            });
        }
        Ok(Self { message, options })
    }
}

impl<B: ByteSlice> Neighbour<B> {
    /// Returns true if the message is a solicitation.
    pub fn is_solicitation(&self) -> bool {
        self.message.kind == SOLICITATION
    }

    /// Returns the target address: the requested one, or the one that is advertised.
    pub fn target(&self) -> Ipv6Addr {
        self.message.target.into()
    }

    /// Returns the MAC address in the message's options: the sender's in a solicitation, the target's in an
    /// advertisement. None if the message has no such option.
    pub fn mac(&self) -> Option<Mac> {
        let wanted = if self.is_solicitation() {
            SOURCE_ADDRESS
        } else {
            TARGET_ADDRESS
        };
        let mut rest: &[u8] = &self.options;
        while let [kind, units, body @ ..] = rest {
            let len = usize::from(*units) * UNIT_LEN_BYTES;
            if *kind == wanted && len == UNIT_LEN_BYTES {
                return body.first_chunk().map(|mac| Mac(*mac));
            }
            // An option of length 0 would make the loop endless (section 4.6).
            if len == 0 {
                return None;
            }
            rest = rest.get(len..)?;
        }
        None
    }

    /// Verifies the checksum over the message and the pseudo header of its IPv6 packet.
    ///
    /// # Errors
    /// Returns `BadChecksum` if the checksum is wrong.
    pub fn verify_checksum(&self, pseudo_header: Sum) -> Result<(), Error> {
        let sum = Sum::of(self.message.as_bytes()).combine(Sum::of(&self.options));
        if sum.combine(pseudo_header).is_valid() {
            Ok(())
        } else {
            Err(Error::BadChecksum { what: WHAT })
        }
    }
}

/// The fields of a neighbour message with a MAC address, as a Rust value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourRepr {
    /// Solicitation: asks for the MAC address of `target`.
    Solicitation {
        /// Address whose MAC address is requested.
        target: Ipv6Addr,
        /// MAC address of the sender.
        mac: Mac,
    },
    /// Advertisement: `target` has the MAC address `mac`.
    Advertisement {
        /// Address whose MAC address is advertised.
        target: Ipv6Addr,
        /// MAC address of `target`.
        mac: Mac,
        /// True if the message replies to a solicitation.
        solicited: bool,
    },
}

impl NeighbourRepr {
    /// The length of a neighbour message with one link-layer address option, in bytes.
    pub const LEN_BYTES: usize = size_of::<Message>() + size_of::<AddressOption>();

    /// Writes the message, with its checksum, to the front of `buffer`.
    ///
    /// # Errors
    /// Returns `Truncated` if the message does not fit.
    pub fn emit(&self, buffer: &mut [u8], pseudo_header: Sum) -> Result<(), Error> {
        let (mut message, rest) = view::header::<_, Message>(buffer, WHAT)?;
        let (mut option, _) = view::header::<_, AddressOption>(rest, WHAT)?;
        let (kind, option_kind, flags, target, mac) = match *self {
            Self::Solicitation { target, mac } => (SOLICITATION, SOURCE_ADDRESS, 0, target, mac),
            Self::Advertisement {
                target,
                mac,
                solicited,
            } => {
                // The flags include the override flag: the receiver replaces an existing entry.
                let flags = if solicited { 0x60 } else { 0x20 };
                (ADVERTISEMENT, TARGET_ADDRESS, flags, target, mac)
            }
        };
        *message = Message {
            kind,
            code: 0,
            checksum: 0.into(),
            flags: [flags, 0, 0, 0],
            target: target.octets(),
        };
        *option = AddressOption {
            kind: option_kind,
            units: 1,
            mac,
        };
        let sum = Sum::of(message.as_bytes()).combine(Sum::of(option.as_bytes()));
        message.checksum.set(sum.combine(pseudo_header).checksum());
        Ok(())
    }
}

/// Returns the solicited-node multicast address of `target`, and the MAC address of that multicast group (RFC 4291
/// section 2.7.1, RFC 2464 section 7).
pub fn solicited_node(target: Ipv6Addr) -> (Ipv6Addr, Mac) {
    let [.., a, b, c] = target.octets();
    let group = Ipv6Addr::new(
        0xff02,
        0,
        0,
        0,
        0,
        1,
        0xff00 | u16::from(a),
        u16::from_be_bytes([b, c]),
    );
    (group, Mac([0x33, 0x33, 0xff, a, b, c]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;
    use crate::{IpProtocol, checksum};

    const TARGET: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0x0102, 0x0304);

    #[test]
    fn emitted_neighbour_messages_parse_with_a_correct_checksum() {
        let mac = Mac([2, 0, 0, 0, 0, 9]);
        let sum = checksum::pseudo_header_v6(TARGET, TARGET, IpProtocol::ICMPV6, 32);
        for (repr, asks) in [
            (
                NeighbourRepr::Solicitation {
                    target: TARGET,
                    mac,
                },
                true,
            ),
            (
                NeighbourRepr::Advertisement {
                    target: TARGET,
                    mac,
                    solicited: true,
                },
                false,
            ),
        ] {
            let mut bytes = [0; NeighbourRepr::LEN_BYTES];
            repr.emit(&mut bytes, sum).unwrap();
            let view = Neighbour::new(&bytes[..]).unwrap();
            view.verify_checksum(sum).unwrap();
            assert_eq!(
                (view.is_solicitation(), view.target(), view.mac()),
                (asks, TARGET, Some(mac))
            );
            bytes[9] ^= 1;
            let view = Neighbour::new(&bytes[..]).unwrap();
            assert!(view.verify_checksum(sum).is_err());
        }
    }

    #[test]
    fn the_solicited_node_group_ends_in_three_address_bytes() {
        let (group, mac) = solicited_node(TARGET);
        assert_eq!(group, "ff02::1:ff02:304".parse::<Ipv6Addr>().unwrap());
        assert_eq!(mac, Mac([0x33, 0x33, 0xff, 2, 3, 4]));
    }

    proptest! {
        #[test]
        fn parsing_arbitrary_neighbour_discovery_options_terminates(
            mut bytes in proptest::collection::vec(any::<u8>(), 24..120),
            asks: bool,
        ) {
            bytes[..2].copy_from_slice(&[if asks { SOLICITATION } else { ADVERTISEMENT }, 0]);
            let _ = Neighbour::new(&bytes[..]).unwrap().mac();
        }
    }
}
