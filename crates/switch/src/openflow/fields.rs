//! The fields of packets as OpenFlow encodes them, OXM. (OpenFlow 1.3.5, sections 7.2.3.2 to 7.2.3.8.)

use super::wire::{Reader, Writer, Wrong};
use crate::action::Action;
use crate::key::{Field, Key, TAGGED};
use crate::scope::Of;
use taut_wire::{EtherType, IpProtocol};

/// The OXM class of OpenFlow's own fields.
const BASIC: u16 = 0x8000;
/// The OXM class of Nicira's fields. Every program that supports Open vSwitch knows the time-to-live field of this
/// class.
const NICIRA: u16 = 0x0001;
const NICIRA_TTL: u8 = 29;

/// The condition for a field in a match: the other fields that the match has to compare exactly, so that it may contain
/// this field.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Needs {
    Nothing,
    Tag,
    Ip,
    Type(EtherType),
    Protocol(IpProtocol),
    /// The match compares this EtherType and this ICMP protocol.
    Message(EtherType, IpProtocol),
}

/// A supported field, as messages encode it.
#[derive(Debug, Clone, Copy)]
struct Known {
    class: u16,
    number: u8,
    field: Field,
    bytes: usize,
    can_be_masked: bool,
    needs: Needs,
}

const fn known(number: u8, field: Field, bytes: usize, can_be_masked: bool, needs: Needs) -> Known {
    Known {
        class: BASIC,
        number,
        field,
        bytes,
        can_be_masked,
        needs,
    }
}

const KNOWN: [Known; 25] = [
    known(0, Field::InPort, 4, false, Needs::Nothing),
    known(3, Field::EthDestination, 6, true, Needs::Nothing),
    known(4, Field::EthSource, 6, true, Needs::Nothing),
    known(5, Field::EthType, 2, false, Needs::Nothing),
    known(6, Field::VlanId, 2, true, Needs::Nothing),
    known(7, Field::VlanPriority, 1, false, Needs::Tag),
    known(8, Field::Dscp, 1, false, Needs::Ip),
    known(9, Field::Ecn, 1, false, Needs::Ip),
    known(10, Field::IpProtocol, 1, false, Needs::Ip),
    Known {
        class: NICIRA,
        ..known(NICIRA_TTL, Field::Ttl, 1, false, Needs::Ip)
    },
    known(11, Field::Source, 4, true, Needs::Type(EtherType::IPV4)),
    known(
        12,
        Field::Destination,
        4,
        true,
        Needs::Type(EtherType::IPV4),
    ),
    known(22, Field::Source, 4, true, Needs::Type(EtherType::ARP)),
    known(23, Field::Destination, 4, true, Needs::Type(EtherType::ARP)),
    known(26, Field::Source, 16, true, Needs::Type(EtherType::IPV6)),
    known(
        27,
        Field::Destination,
        16,
        true,
        Needs::Type(EtherType::IPV6),
    ),
    known(
        21,
        Field::ArpOperation,
        2,
        false,
        Needs::Type(EtherType::ARP),
    ),
    known(
        13,
        Field::SourcePort,
        2,
        false,
        Needs::Protocol(IpProtocol::TCP),
    ),
    known(
        14,
        Field::DestinationPort,
        2,
        false,
        Needs::Protocol(IpProtocol::TCP),
    ),
    known(
        15,
        Field::SourcePort,
        2,
        false,
        Needs::Protocol(IpProtocol::UDP),
    ),
    known(
        16,
        Field::DestinationPort,
        2,
        false,
        Needs::Protocol(IpProtocol::UDP),
    ),
    known(
        17,
        Field::SourcePort,
        2,
        false,
        Needs::Protocol(IpProtocol::SCTP),
    ),
    known(
        18,
        Field::DestinationPort,
        2,
        false,
        Needs::Protocol(IpProtocol::SCTP),
    ),
    known(
        19,
        Field::SourcePort,
        1,
        false,
        Needs::Message(EtherType::IPV4, IpProtocol::ICMP),
    ),
    known(
        20,
        Field::DestinationPort,
        1,
        false,
        Needs::Message(EtherType::IPV4, IpProtocol::ICMP),
    ),
];
/// The additional fields of packets over IPv6: type and code of ICMPv6 messages.
const KNOWN_V6: [Known; 2] = [
    known(
        29,
        Field::SourcePort,
        1,
        false,
        Needs::Message(EtherType::IPV6, IpProtocol::ICMPV6),
    ),
    known(
        30,
        Field::DestinationPort,
        1,
        false,
        Needs::Message(EtherType::IPV6, IpProtocol::ICMPV6),
    ),
];

fn all() -> impl Iterator<Item = Known> + Clone {
    KNOWN.into_iter().chain(KNOWN_V6)
}

impl Known {
    /// Returns true if a match with the given bits may also contain the field.
    fn may_be_asked(&self, value: &Key, mask: &Key) -> bool {
        let is = |field: Field, wanted: u128| {
            mask.get(field) == field.whole() && value.get(field) == wanted
        };
        let is_type = |kind: EtherType| is(Field::EthType, u128::from(kind.0));
        let is_ip = || is_type(EtherType::IPV4) || is_type(EtherType::IPV6);
        let is_protocol = |protocol: IpProtocol| is(Field::IpProtocol, u128::from(protocol.0));
        match self.needs {
            Needs::Nothing => true,
            Needs::Tag => {
                let tagged = u128::from(TAGGED);
                mask.get(Field::VlanId) & tagged != 0 && value.get(Field::VlanId) & tagged != 0
            }
            Needs::Ip => is_ip(),
            Needs::Type(kind) => is_type(kind),
            Needs::Protocol(protocol) => is_ip() && is_protocol(protocol),
            Needs::Message(kind, protocol) => is_type(kind) && is_protocol(protocol),
        }
    }

    /// Returns the packets that have the field, as the scope of an action that sets it.
    fn of(&self) -> Of {
        match self.needs {
            Needs::Nothing | Needs::Tag => Of::Any,
            Needs::Ip => Of::Ip,
            Needs::Type(EtherType::IPV6) => Of::Ipv6,
            Needs::Type(EtherType::ARP) => Of::Arp,
            Needs::Type(_) => Of::Ipv4,
            Needs::Protocol(IpProtocol::UDP) => Of::Udp,
            Needs::Protocol(IpProtocol::SCTP) => Of::Sctp,
            Needs::Protocol(_) => Of::Tcp,
            Needs::Message(EtherType::IPV6, _) => Of::Icmpv6,
            Needs::Message(..) => Of::Icmp,
        }
    }

    /// Converts a field's value from a message; ports are counted from 1 in messages.
    fn value(&self, value: u128) -> Result<u128, Wrong> {
        if self.field == Field::InPort {
            return value
                .checked_sub(1)
                .filter(|port| *port < 255)
                .ok_or(Wrong::BAD_VALUE);
        }
        let is_known = value & !self.field.whole() == 0;
        is_known.then_some(value).ok_or(Wrong::BAD_VALUE)
    }
}

/// Parses a field with its value and mask from a message.
fn read_field(reader: &mut Reader<'_>) -> Result<(Known, u128, Option<u128>), Wrong> {
    let bad = Wrong::BAD_MATCH_LENGTH;
    let head = reader.bytes(4, bad)?;
    let class = u16::from_be_bytes([head[0], head[1]]);
    let (number, has_mask) = (head[2] >> 1, head[2] & 1 == 1);
    let mut body = Reader(reader.bytes(usize::from(head[3]), bad)?);
    let found = all().find(|it| it.class == class && it.number == number);
    let known = found.ok_or(Wrong::BAD_FIELD)?;
    let wanted = known.bytes * if has_mask { 2 } else { 1 };
    if body.0.len() != wanted {
        return Err(bad);
    }
    let value = body.number(known.bytes)?;
    let mask = has_mask.then(|| body.number(known.bytes)).transpose()?;
    Ok((known, value, mask))
}

/// Parses a match and its padding from a message: the required bits of the key, and their mask.
pub(super) fn read_match(reader: &mut Reader<'_>) -> Result<(Key, Key), Wrong> {
    let (kind, length) = (reader.u16()?, usize::from(reader.u16()?));
    if kind != 1 {
        return Err(Wrong::BAD_MATCH_TYPE);
    }
    let body = length.checked_sub(4).ok_or(Wrong::BAD_MATCH_LENGTH)?;
    let mut fields = Reader(reader.bytes(body, Wrong::BAD_MATCH_LENGTH)?);
    reader.bytes(length.next_multiple_of(8) - length, Wrong::BAD_MATCH_LENGTH)?;
    let (mut value, mut mask) = (Key::default(), Key::default());
    while !fields.is_empty() {
        let (known, wanted, bits) = read_field(&mut fields)?;
        if mask.get(known.field) != 0 {
            return Err(Wrong::DUPLICATE_FIELD);
        }
        if !known.may_be_asked(&value, &mask) {
            return Err(Wrong::BAD_PREREQUISITE);
        }
        let whole = match known.bytes {
            // The mask of an IPv4 address has only as many bits as the address.
            4 if known.field != Field::InPort => u128::from(u32::MAX),
            _ => known.field.whole(),
        };
        let bits = match bits {
            Some(_) if !known.can_be_masked => return Err(Wrong::BAD_MASK),
            Some(bits) if bits & !whole != 0 => return Err(Wrong::BAD_MASK),
            Some(bits) => bits,
            None => whole,
        };
        let wanted = known.value(wanted)?;
        if wanted & !bits != 0 {
            return Err(Wrong::BAD_VALUE);
        }
        mask.set(known.field, bits);
        value.set(known.field, wanted);
    }
    Ok((value, mask))
}

/// Writes a match and its padding to a message.
pub(super) fn write_match(writer: &mut Writer, value: &Key, mask: &Key) {
    let start = writer.0.len();
    writer.u16(1).u16(0);
    let mut done = Vec::new();
    for known in all() {
        let bits = mask.get(known.field);
        if bits == 0 || done.contains(&known.field) || !known.may_be_asked(value, mask) {
            continue;
        }
        done.push(known.field);
        let whole = match known.bytes {
            4 => u128::from(u32::MAX),
            _ => known.field.whole(),
        };
        let is_whole = bits == whole || known.field == Field::InPort;
        let more = u128::from(known.field == Field::InPort);
        writer.u16(known.class);
        writer.u8(known.number << 1 | u8::from(!is_whole));
        writer.u8((known.bytes * if is_whole { 1 } else { 2 }) as u8);
        writer.number(value.get(known.field) + more, known.bytes);
        if !is_whole {
            writer.number(bits, known.bytes);
        }
    }
    writer.length_at(start, start + 2);
    writer.pad(start);
}

/// Writes the list of the supported fields that `wanted` selects.
pub(super) fn write_fields(writer: &mut Writer, wanted: impl Fn(Field) -> bool) {
    for known in all().filter(|it| wanted(it.field)) {
        writer.u16(known.class);
        writer
            .u8(known.number << 1 | u8::from(known.can_be_masked))
            .u8(known.bytes as u8);
    }
}

/// Parses a set-field action: the field, the packets in which it is set, and its value.
pub(super) fn read_set(body: &[u8]) -> Result<(Field, Of, u128), Wrong> {
    let mut reader = Reader(body);
    let (known, value, mask) = read_field(&mut reader).map_err(|wrong| match wrong {
        Wrong::BAD_FIELD => Wrong::BAD_SET_TYPE,
        _ => Wrong::BAD_SET_LENGTH,
    })?;
    if mask.is_some() {
        return Err(Wrong::BAD_SET_TYPE);
    }
    let value = known.value(value).map_err(|_| Wrong::BAD_SET_VALUE)?;
    Ok((known.field, known.of(), value))
}

/// Writes a set-field action.
pub(super) fn write_set(writer: &mut Writer, field: Field, of: Of, value: u128) {
    // A rule in a file can set a field in several kinds of packets; a message names only one kind.
    let of = match of {
        Of::Ipv4OrArp => Of::Ipv4,
        Of::Ports => Of::Tcp,
        of => of,
    };
    if let Some(known) = all().find(|it| it.field == field && it.of() == of) {
        writer
            .u16(known.class)
            .u8(known.number << 1)
            .u8(known.bytes as u8);
        writer.number(value, known.bytes);
    }
}

/// Checks that the packets of a match have the fields that these actions set, in order: VLAN tags may be added and
/// removed in between. (OpenFlow 1.3.5, section 7.2.5.)
pub(super) fn check_fields_set(
    actions: &[Action],
    (value, mask): (&mut Key, &mut Key),
) -> Result<(), Wrong> {
    let tagged = u128::from(TAGGED);
    for action in actions {
        match *action {
            Action::PushVlan(_) | Action::PopVlan => {
                let is_pushed = matches!(action, Action::PushVlan(_));
                mask.set(Field::VlanId, tagged);
                value.set(Field::VlanId, if is_pushed { tagged } else { 0 });
            }
            Action::Set(field, of, _) => {
                let known = all().find(|it| it.field == field && it.of() == of);
                let has_tag = value.get(Field::VlanId) & mask.get(Field::VlanId) & tagged != 0;
                let has_it = known.is_some_and(|it| it.may_be_asked(value, mask));
                if !has_it || field == Field::VlanId && !has_tag {
                    return Err(Wrong::MATCH_INCONSISTENT);
                }
            }
            _ => {}
        }
    }
    Ok(())
}
