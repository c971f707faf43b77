//! What rules do to a packet: as people and controllers say it, and as the steps that a worker takes. (OpenFlow Switch
//! Specification 1.3.5, section 5.12.)

use super::key::{Field, TAGGED};
use crate::resize::move_start;
use std::net::{Ipv4Addr, Ipv6Addr};
use taut_port::{Packet, PoolHandle};
use taut_wire::{EtherType, Headers, IpProtocol, Layer3, checksum, udp};

/// Number of a port of the chain.
pub(super) type PortNumber = u8;

/// One thing that is done to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// A copy leaves through a port, unless the packet has come from there.
    Output(PortNumber),
    /// A copy goes back to where the packet has come from.
    InPort,
    /// A copy leaves through each port but the one that the packet has come from.
    Flood,
    /// The packet goes as a learning bridge sends it.
    Normal,
    /// The packet is shown to the controller.
    Controller,
    /// Copies wait in this queue of their ports, 0 to 7, if they must wait.
    Queue(u8),
    Group(u32),
    Meter(u32),
    Set(Field, u128),
    DecrementTtl,
    PushVlan(EtherType),
    PopVlan,
    /// What follows is up to the rules of another table.
    Goto(u8),
}

/// Reasons why a list of actions cannot be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum ActionsError {
    #[error("what changes a packet must stand before what sends it: copies are made last")]
    ChangedAfterSent,
    #[error("a packet that is shown to the controller goes nowhere else")]
    ShownAndSent,
    #[error("a table must have a higher number than the one that leads to it")]
    GoesBack,
    #[error("nothing can stand behind what leads to another table")]
    BehindGoto,
    #[error("this field cannot be set")]
    NotSettable,
}

/// Kinds of steps: the lowest 8 bits of a step. 0 is none.
pub(super) mod step {
    pub const OUTPUT: u64 = 1;
    pub const IN_PORT: u64 = 2;
    pub const FLOOD: u64 = 3;
    pub const NORMAL: u64 = 4;
    pub const CONTROLLER: u64 = 5;
    pub const QUEUE: u64 = 6;
    pub const GROUP: u64 = 7;
    pub const METER: u64 = 8;
    /// The field's number in the next 8 bits, its value above; addresses in the two steps behind.
    pub const SET: u64 = 9;
    pub const DECREMENT_TTL: u64 = 10;
    pub const PUSH_VLAN: u64 = 11;
    pub const POP_VLAN: u64 = 12;
    pub const GOTO: u64 = 13;
    /// Bits of the kind.
    pub const KIND: u64 = 0xff;
    /// Place of what belongs to it.
    pub const ARGUMENT_AT: u32 = 8;
    /// Place of a field's value.
    pub const VALUE_AT: u32 = 16;
}

impl Action {
    /// Whether it changes the packet.
    fn changes(self) -> bool {
        matches!(
            self,
            Self::Set(..) | Self::DecrementTtl | Self::PushVlan(_) | Self::PopVlan
        )
    }

    /// Whether it sends the packet somewhere.
    pub fn sends(self) -> bool {
        matches!(
            self,
            Self::Output(_) | Self::InPort | Self::Flood | Self::Normal | Self::Group(_)
        )
    }

    fn encode(self, steps: &mut Vec<u64>) {
        let with = |kind: u64, argument: u64| kind | argument << step::ARGUMENT_AT;
        match self {
            Self::Output(port) => steps.push(with(step::OUTPUT, u64::from(port))),
            Self::InPort => steps.push(step::IN_PORT),
            Self::Flood => steps.push(step::FLOOD),
            Self::Normal => steps.push(step::NORMAL),
            Self::Controller => steps.push(step::CONTROLLER),
            Self::Queue(queue) => steps.push(with(step::QUEUE, u64::from(queue))),
            Self::Group(number) => steps.push(with(step::GROUP, u64::from(number))),
            Self::Meter(number) => steps.push(with(step::METER, u64::from(number))),
            Self::Set(field, value) => {
                let place = Field::ALL.iter().position(|it| *it == field).unwrap_or(0) as u64;
                if field.bits() == 128 {
                    steps.push(with(step::SET, place));
                    steps.extend([(value >> 64) as u64, value as u64]);
                } else {
                    steps.push(with(step::SET, place | (value as u64) << 8));
                }
            }
            Self::DecrementTtl => steps.push(step::DECREMENT_TTL),
            Self::PushVlan(kind) => steps.push(with(step::PUSH_VLAN, u64::from(kind.0))),
            Self::PopVlan => steps.push(step::POP_VLAN),
            Self::Goto(table) => steps.push(with(step::GOTO, u64::from(table))),
        }
    }
}

/// The steps of a list of actions in a table of that number.
pub(super) fn steps(actions: &[Action], table: u8) -> Result<Vec<u64>, ActionsError> {
    let mut is_sent = false;
    for (place, action) in actions.iter().enumerate() {
        if is_sent && (action.changes() || matches!(action, Action::Goto(_))) {
            return Err(ActionsError::ChangedAfterSent);
        }
        is_sent |= action.sends();
        match *action {
            Action::Goto(to) if to <= table => return Err(ActionsError::GoesBack),
            Action::Goto(_) if place + 1 < actions.len() => return Err(ActionsError::BehindGoto),
            Action::Set(field, _) if !is_settable(field) => return Err(ActionsError::NotSettable),
            _ => {}
        }
    }
    if is_sent && actions.contains(&Action::Controller) {
        return Err(ActionsError::ShownAndSent);
    }
    let mut steps = Vec::new();
    for action in actions {
        action.encode(&mut steps);
    }
    Ok(steps)
}

fn is_settable(field: Field) -> bool {
    !matches!(
        field,
        Field::InPort | Field::EthType | Field::IpProtocol | Field::ArpOperation
    )
}

/// Bytes of the addresses of a frame, behind which a tag stands.
const TAG_AT: usize = 12;
const TAG_BYTES: usize = 4;
/// Types of tags. (IEEE 802.1Q-2018, table 9-1.)
pub(super) const CUSTOMER_TAG: EtherType = EtherType(0x8100);
pub(super) const SERVICE_TAG: EtherType = EtherType(0x88a8);

/// Gives the packet one more tag, with number and priority of the outermost one it has. False, and no change, where there is no memory
/// for that.
pub(super) fn push_vlan(packet: &mut Packet, kind: EtherType, pool: &PoolHandle) -> bool {
    let outer = outer_tag(packet.bytes()).unwrap_or(0);
    if !move_start(packet, TAG_AT, 0, TAG_BYTES, pool) {
        return false;
    }
    let [a, b] = kind.0.to_be_bytes();
    let [c, d] = outer.to_be_bytes();
    if let Some(tag) = packet.bytes_mut().get_mut(TAG_AT..TAG_AT + TAG_BYTES) {
        tag.copy_from_slice(&[a, b, c, d]);
    }
    true
}

/// Takes the outermost tag off, if there is one.
pub(super) fn pop_vlan(packet: &mut Packet) {
    if outer_tag(packet.bytes()).is_some() {
        packet.bytes_mut().copy_within(..TAG_AT, TAG_BYTES);
        packet.drop_front(TAG_BYTES as u16);
    }
}

fn outer_tag(frame: &[u8]) -> Option<u16> {
    let head = frame.get(TAG_AT..TAG_AT + TAG_BYTES)?;
    let kind = EtherType(u16::from_be_bytes([head[0], head[1]]));
    matches!(kind, CUSTOMER_TAG | SERVICE_TAG).then(|| u16::from_be_bytes([head[2], head[3]]))
}

/// Takes one off the hops that a packet may make; false if it has made as many as it may.
pub(super) fn decrement_ttl(frame: &mut [u8], headers: Headers) -> bool {
    let at = match headers.layer3() {
        Layer3::Ipv4 => headers.ip() + 8,
        Layer3::Ipv6 => headers.ip() + 7,
        Layer3::Other => return true,
    };
    match frame.get(at).copied() {
        Some(0 | 1) => false,
        Some(ttl) if headers.fault().is_none() => {
            set(frame, headers, Field::Ttl, u128::from(ttl - 1));
            true
        }
        _ => true,
    }
}

/// Gives a field of the frame a value, and checksums that cover it theirs; nothing where the frame does not have it.
pub(super) fn set(frame: &mut [u8], headers: Headers, field: Field, value: u128) {
    match field {
        Field::EthDestination => set_mac(frame, 0, value),
        Field::EthSource => set_mac(frame, 6, value),
        Field::VlanId | Field::VlanPriority => {
            let Some(old) = outer_tag(frame) else { return };
            let new = match field {
                Field::VlanId => old & 0xf000 | value as u16 & (TAGGED - 1),
                _ => old & 0x1fff | (value as u16) << 13,
            };
            frame[TAG_AT + 2..TAG_AT + TAG_BYTES].copy_from_slice(&new.to_be_bytes());
        }
        _ if headers.fault().is_some() => {}
        Field::Dscp | Field::Ecn | Field::Ttl => set_in_ip(frame, headers, field, value),
        Field::Source | Field::Destination => set_address(frame, headers, field, value),
        Field::SourcePort | Field::DestinationPort => set_port(frame, headers, field, value),
        Field::InPort | Field::EthType | Field::IpProtocol | Field::ArpOperation => {}
    }
}

fn set_mac(frame: &mut [u8], at: usize, value: u128) {
    let [_, _, mac @ ..] = (value as u64).to_be_bytes();
    if let Some(place) = frame.get_mut(at..at + 6) {
        place.copy_from_slice(&mac);
    }
}

/// The 16 bits at that place.
fn word(frame: &[u8], at: usize) -> u16 {
    let found = frame.get(at..at + 2);
    found.map_or(0, |it| u16::from_be_bytes([it[0], it[1]]))
}

/// Writes 16 bits; what they were.
fn put_word(frame: &mut [u8], at: usize, new: u16) -> u16 {
    let old = word(frame, at);
    if let Some(place) = frame.get_mut(at..at + 2) {
        place.copy_from_slice(&new.to_be_bytes());
    }
    old
}

fn set_in_ip(frame: &mut [u8], headers: Headers, field: Field, value: u128) {
    let (ip, value) = (headers.ip(), value as u16);
    match (headers.layer3(), field) {
        (Layer3::Ipv4, Field::Ttl) => {
            let new = word(frame, ip + 8) & 0x00ff | value << 8;
            put_covered(frame, headers, ip + 8, new, Covered::Header);
        }
        (Layer3::Ipv4, _) => {
            let old = word(frame, ip);
            let new = match field {
                Field::Dscp => old & 0xff03 | (value & 0x3f) << 2,
                _ => old & 0xfffc | value & 3,
            };
            put_covered(frame, headers, ip, new, Covered::Header);
        }
        (Layer3::Ipv6, Field::Ttl) => {
            let new = word(frame, ip + 6) & 0xff00 | value & 0xff;
            put_word(frame, ip + 6, new);
        }
        (Layer3::Ipv6, _) => {
            let old = word(frame, ip);
            let new = match field {
                Field::Dscp => old & 0xf03f | (value & 0x3f) << 6,
                _ => old & 0xffcf | (value & 3) << 4,
            };
            put_word(frame, ip, new);
        }
        (Layer3::Other, _) => {}
    }
}

fn set_address(frame: &mut [u8], headers: Headers, field: Field, value: u128) {
    let (ip, is_source) = (headers.ip(), field == Field::Source);
    match headers.layer3() {
        Layer3::Ipv4 => {
            let at = ip + if is_source { 12 } else { 16 };
            let [a, b, c, d] = Ipv4Addr::from_bits(value as u32).octets();
            for (at, new) in [(at, [a, b]), (at + 2, [c, d])] {
                put_covered(frame, headers, at, u16::from_be_bytes(new), Covered::Both);
            }
        }
        Layer3::Ipv6 => {
            let at = ip + if is_source { 8 } else { 24 };
            for (place, new) in Ipv6Addr::from_bits(value)
                .segments()
                .into_iter()
                .enumerate()
            {
                put_covered(frame, headers, at + 2 * place, new, Covered::Transport);
            }
        }
        Layer3::Other => {
            let ethertype = EtherType(word(frame, ip.wrapping_sub(2)));
            let at = ip + if is_source { 14 } else { 24 };
            if let Some(place) = frame
                .get_mut(at..at + 4)
                .filter(|_| ethertype == EtherType::ARP)
            {
                place.copy_from_slice(&(value as u32).to_be_bytes());
            }
        }
    }
}

fn set_port(frame: &mut [u8], headers: Headers, field: Field, value: u128) {
    let is_source = field == Field::SourcePort;
    let at = headers.transport();
    if headers.ports().is_some() {
        let at = at + if is_source { 0 } else { 2 };
        put_covered(frame, headers, at, value as u16, Covered::Transport);
    } else if matches!(headers.protocol(), IpProtocol::ICMP | IpProtocol::ICMPV6) && at > 0 {
        let old = word(frame, at);
        let new = match is_source {
            true => old & 0x00ff | (value as u16) << 8,
            false => old & 0xff00 | value as u16 & 0xff,
        };
        put_covered(frame, headers, at, new, Covered::Transport);
    }
}

/// Checksums that cover a word.
#[derive(Clone, Copy, PartialEq)]
enum Covered {
    Header,
    Transport,
    Both,
}

/// Writes 16 bits that checksums cover, and updates those. (RFC 1624.)
fn put_covered(frame: &mut [u8], headers: Headers, at: usize, new: u16, covered: Covered) {
    let old = put_word(frame, at, new);
    if covered != Covered::Transport {
        let sum_at = headers.ip() + 10;
        let sum = checksum::update_u16(word(frame, sum_at), old, new);
        put_word(frame, sum_at, sum);
    }
    if covered == Covered::Header {
        return;
    }
    let Some(offset) = checksum_of(headers, covered) else {
        return;
    };
    let sum_at = headers.transport() + offset;
    let is_udp = headers.protocol() == IpProtocol::UDP;
    let sum = word(frame, sum_at);
    if sum_at + 2 > headers.end() || is_udp && sum == 0 && headers.layer3() == Layer3::Ipv4 {
        return;
    }
    let sum = checksum::update_u16(sum, old, new);
    put_word(frame, sum_at, if is_udp { udp::nonzero(sum) } else { sum });
}

/// Where in the header of layer 4 the checksum lies that covers it, if there is one here: later fragments have none.
fn checksum_of(headers: Headers, covered: Covered) -> Option<usize> {
    let is_later = headers.is_fragment() && headers.ports().is_none();
    match headers.protocol() {
        _ if is_later => None,
        IpProtocol::UDP => Some(6),
        IpProtocol::TCP => Some(16),
        IpProtocol::ICMPV6 => Some(2),
        // It covers type and code, but no addresses.
        IpProtocol::ICMP if covered == Covered::Transport => Some(2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::switch::key::Key;
    use taut_wire::{Ipv4, Ipv6, Udp, UdpFlow};

    fn frame(source: &str, destination: &str) -> Vec<u8> {
        let flow = UdpFlow {
            src_ip: source.parse().unwrap(),
            dst_ip: destination.parse().unwrap(),
            src_port: 1000,
            dst_port: 42,
            ..UdpFlow::default()
        };
        flow.frame(100).unwrap()
    }

    fn changed(frame: &[u8], field: Field, value: u128) -> Vec<u8> {
        let mut changed = frame.to_vec();
        set(&mut changed, Headers::of(frame), field, value);
        changed
    }

    fn is_sound(frame: &[u8]) -> bool {
        let headers = Headers::of(frame);
        let udp = &frame[headers.transport()..headers.end()];
        let udp = Udp::new(udp).unwrap();
        let length = udp.length();
        match headers.layer3() {
            Layer3::Ipv4 => {
                let ip = Ipv4::new(&frame[headers.ip()..]).unwrap();
                ip.verify_checksum().is_ok()
                    && udp.verify_checksum(ip.pseudo_header(length)).is_ok()
            }
            _ => {
                let ip = Ipv6::new(&frame[headers.ip()..]).unwrap();
                let sum = checksum::pseudo_header_v6(
                    ip.source(),
                    ip.destination(),
                    IpProtocol::UDP,
                    u32::from(length),
                );
                udp.verify_checksum(sum).is_ok()
            }
        }
    }

    #[test]
    fn fields_are_set_with_the_checksums_that_cover_them() {
        let v6_address: Ipv6Addr = "2001:db8::77:ffff".parse().unwrap();
        for (frame, address) in [
            (frame("198.18.0.1", "198.18.0.2"), 0x0a00_0003),
            (frame("2001:db8::1", "2001:db8::2"), v6_address.to_bits()),
        ] {
            assert!(is_sound(&frame));
            for (field, value) in [
                (Field::EthDestination, 0x0200_0000_0009),
                (Field::EthSource, 0x0200_0000_0008),
                (Field::Source, address),
                (Field::Destination, address),
                (Field::SourcePort, 65535),
                (Field::DestinationPort, 0),
                (Field::Dscp, 46),
                (Field::Ecn, 3),
                (Field::Ttl, 1),
            ] {
                let changed = changed(&frame, field, value);
                let key = Key::of(&changed, Headers::of(&changed), 0);
                assert_eq!(key.get(field), value, "{field:?}");
                assert!(is_sound(&changed), "{field:?}");
            }
        }
    }

    #[test]
    fn packets_have_hops_until_there_are_none_left() {
        let mut frame = frame("198.18.0.1", "198.18.0.2");
        let headers = Headers::of(&frame);
        set(&mut frame, headers, Field::Ttl, 2);
        assert!(decrement_ttl(&mut frame, headers));
        assert!(is_sound(&frame));
        assert!(!decrement_ttl(&mut frame, headers));
    }

    #[test]
    fn tags_are_put_on_and_taken_off() {
        let plain = frame("198.18.0.1", "198.18.0.2");
        let pool = PoolHandle::new(4, false).unwrap();
        let mut packet = pool.take(plain.len() as u16).unwrap();
        packet.bytes_mut().copy_from_slice(&plain);
        assert!(push_vlan(&mut packet, CUSTOMER_TAG, &pool));
        let headers = Headers::of(packet.bytes());
        set(packet.bytes_mut(), headers, Field::VlanId, 0x1123);
        set(packet.bytes_mut(), headers, Field::VlanPriority, 5);
        assert_eq!(packet.bytes()[12..16], [0x81, 0, 0xa1, 0x23]);
        assert!(push_vlan(&mut packet, SERVICE_TAG, &pool));
        assert_eq!(packet.bytes()[12..18], [0x88, 0xa8, 0xa1, 0x23, 0x81, 0]);
        pop_vlan(&mut packet);
        pop_vlan(&mut packet);
        assert_eq!(packet.bytes(), plain);
        pop_vlan(&mut packet);
        assert_eq!(packet.bytes(), plain);
    }

    #[test]
    fn lists_that_cannot_be_carried_out_are_refused() {
        let mac = Action::Set(Field::EthDestination, 1);
        for (actions, table, why) in [
            (
                vec![Action::Output(1), mac],
                0,
                ActionsError::ChangedAfterSent,
            ),
            (
                vec![Action::Output(1), Action::Goto(1)],
                0,
                ActionsError::ChangedAfterSent,
            ),
            (
                vec![Action::Output(1), Action::Controller],
                0,
                ActionsError::ShownAndSent,
            ),
            (vec![Action::Goto(1)], 1, ActionsError::GoesBack),
            (vec![Action::Goto(2), mac], 1, ActionsError::BehindGoto),
            (
                vec![Action::Set(Field::InPort, 1)],
                0,
                ActionsError::NotSettable,
            ),
        ] {
            assert_eq!(steps(&actions, table), Err(why));
        }
        assert_eq!(
            steps(&[mac, Action::Queue(7), Action::Output(1)], 0)
                .unwrap()
                .len(),
            3
        );
    }
}
