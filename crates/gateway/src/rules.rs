//! The bearers as rules of several fields, as in a software switch: a packet is compared with one rule after another,
//! field by field, until a rule matches. The gateway of Lange et al. (CNSM 2015) searched its table in this way. This
//! search exists for comparison only.

use super::Match;
use super::answer::ends;
use super::parser::Seen;
use std::net::IpAddr;
use taut_function::tuple::mapped;
use taut_wire::IpProtocol;
use taut_wire::gtpu::{MessageType, UDP_PORT};

/// A header field that rules compare. A packet in no tunnel to the gateway has 0 in `Protocol` and all later fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    /// The source and destination addresses of the outer IP header; IPv4 addresses are mapped (RFC 4291 section
    /// 2.5.5.2).
    Source,
    Destination,
    Protocol,
    /// The UDP destination port.
    Port,
    Message,
    Teid,
}

/// The number of header fields that rules compare.
const FIELDS: usize = 6;

/// The header fields of a packet that rules compare, each at the index of its [`Name`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Asked([u128; FIELDS]);

impl Asked {
    /// Parses the header fields of a frame; none if no bearer can match it.
    pub fn of(frame: &[u8], seen: &Seen) -> Option<Self> {
        match seen {
            Seen::Tunnelled(it) => {
                let (source, destination) = ends(frame, it)?;
                Some(Self([
                    mapped(source),
                    mapped(destination),
                    IpProtocol::UDP.0.into(),
                    UDP_PORT.into(),
                    it.message.0.into(),
                    it.teid.into(),
                ]))
            }
            Seen::Plain { ip, .. } => {
                let header = frame.get(usize::from(*ip)..)?;
                let (source, destination) = if header.first()? >> 4 == 4 {
                    let both = u64::from_be_bytes(*header.get(12..)?.first_chunk()?);
                    let address = |bits: u32| mapped(IpAddr::V4(bits.into()));
                    (address((both >> 32) as u32), address(both as u32))
                } else {
                    let address = |at: usize| header.get(at..)?.first_chunk().copied();
                    let (source, destination) = (address(8)?, address(24)?);
                    (
                        u128::from_be_bytes(source),
                        u128::from_be_bytes(destination),
                    )
                };
                Some(Self([source, destination, 0, 0, 0, 0]))
            }
            Seen::Settled(_) | Seen::Gone => None,
        }
    }
}

/// A required field value: a packet matches if its field equals `value` in the bits of `mask`.
#[derive(Debug, Clone, Copy)]
struct Field {
    name: Name,
    value: u128,
    mask: u128,
}

/// The mask of message types. It ignores the bit in which end markers and user packets differ, because both have the
/// same bearer.
const MESSAGE_MASK: u8 = !(MessageType::G_PDU.0 ^ MessageType::END_MARKER.0);

/// The rule of a bearer: the required fields of a packet, in order. No packet matches two bearers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule([Field; FIELDS]);

impl Rule {
    /// Returns the rule of a bearer of the gateway with the given addresses.
    pub fn of(matched: Match, own: &[IpAddr]) -> Self {
        let is = |name, value: u128, mask: u128| Field { name, value, mask };
        let exactly = |name, value: u128| is(name, value, u128::MAX);
        let of_none = |destination| {
            Self([
                is(Name::Source, 0, 0),
                destination,
                exactly(Name::Protocol, 0),
                exactly(Name::Port, 0),
                exactly(Name::Message, 0),
                exactly(Name::Teid, 0),
            ])
        };
        match matched {
            Match::Teid(teid) => {
                // The mask has the bits that all addresses of the gateway share. An earlier step checks that the
                // destination is one of these addresses.
                let first = own.first().map_or(0, |address| mapped(*address));
                let differ = own.iter().fold(0, |all, it| all | mapped(*it) ^ first);
                let mask = if own.is_empty() { 0 } else { !differ };
                let message = MessageType::G_PDU.0 & MESSAGE_MASK;
                Self([
                    is(Name::Source, 0, 0),
                    is(Name::Destination, first & mask, mask),
                    exactly(Name::Protocol, IpProtocol::UDP.0.into()),
                    exactly(Name::Port, UDP_PORT.into()),
                    is(Name::Message, message.into(), MESSAGE_MASK.into()),
                    exactly(Name::Teid, teid.into()),
                ])
            }
            Match::User(address) => {
                let mask = match address {
                    IpAddr::V4(_) => u128::MAX,
                    IpAddr::V6(_) => u128::MAX << 64,
                };
                of_none(is(Name::Destination, mapped(address) & mask, mask))
            }
            // The rule matches nothing: no packet arrives with such a match.
            Match::Rule { .. } => of_none(is(Name::Destination, 1, 0)),
        }
    }

    /// Returns true if all fields of the rule match those of a packet.
    #[inline(always)]
    pub fn takes(&self, asked: &Asked) -> bool {
        let fits = |field: &Field| asked.0[field.name as usize] & field.mask == field.value;
        self.0.iter().all(fits)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::slot::Slot;
    use super::*;

    #[test]
    fn a_rule_needs_the_documented_304_bytes_of_memory() {
        assert_eq!(size_of::<Rule>() + size_of::<Slot>(), 304);
    }

    #[test]
    fn a_tunnel_rule_compares_every_field_of_the_tunnel() {
        let own: [IpAddr; 1] = ["192.0.2.1".parse().unwrap()];
        let source = mapped("192.0.2.7".parse().unwrap());
        let asked = Asked([source, mapped(own[0]), 17, 2152, 255, 7]);
        let with = |name: Name, value: u128| {
            let mut other = asked;
            other.0[name as usize] = value;
            other
        };
        let rule = Rule::of(Match::Teid(7), &own);
        assert!(rule.takes(&asked));
        assert!(rule.takes(&with(Name::Source, 0)));
        assert!(rule.takes(&with(Name::Message, 254)));
        for (name, value) in [
            (Name::Destination, mapped(own[0]) + 1),
            (Name::Protocol, 6),
            (Name::Port, 2153),
            (Name::Message, 26),
            (Name::Teid, 8),
        ] {
            assert!(!rule.takes(&with(name, value)), "{name:?}");
        }
        // The two addresses differ in one bit, which the rule ignores: both values match.
        let rule = Rule::of(Match::Teid(7), &[own[0], "192.0.2.0".parse().unwrap()]);
        assert!(rule.takes(&asked));
        assert!(rule.takes(&with(Name::Destination, mapped(own[0]) - 1)));
        assert!(!rule.takes(&with(Name::Destination, mapped(own[0]) + 1)));
    }

    #[test]
    fn rules_for_already_classified_packets_match_no_packet_by_fields() {
        let matched = Match::Rule {
            number: 1,
            place: 0,
        };
        let rule = Rule::of(matched, &[]);
        for destination in [0, 1, u128::MAX] {
            assert!(!rule.takes(&Asked([0, destination, 0, 0, 0, 0])));
        }
    }
}
