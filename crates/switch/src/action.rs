//! The actions of a switch's rules in two forms: as people and controllers write them, and as the steps that a worker
//! executes. (OpenFlow Switch Specification 1.3.5, section 5.12.)

use super::key::{Field, TAGGED};
use super::scope::Of;
use super::set::ActionSet;
use super::{sctp, step};
use std::net::{Ipv4Addr, Ipv6Addr};
use taut_function::resize::move_start;
use taut_port::{Packet, PoolHandle};
use taut_wire::{EtherType, Headers, IpProtocol, Layer3, checksum, udp};

/// The number of a port of the chain.
pub(super) type PortNumber = u8;

/// The destination of a copy that an action sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    /// The port with this number; nothing is sent if it is the ingress port.
    Port(PortNumber),
    /// The port at which the packet arrived.
    InPort,
    /// Every port except the ingress port.
    Flood,
    /// Every port except the ingress port, including ports that are configured not to be flooded. This switch has no
    /// such ports, so `All` has the same effect as `Flood`.
    All,
    /// The ports that a learning bridge would choose.
    Normal,
    /// The controller, which gets the packet as changed by the earlier actions.
    Controller,
}

/// The length, in bytes, with which a controller requests the complete packet.
pub(super) const WHOLE: u16 = 0xffff;

/// One action on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Sends a copy of the packet. The number is how many bytes of a buffered packet a controller requests. This switch
    /// buffers no packets, so the controller gets all bytes.
    Output(To, u16),
    /// Sets the priority queue, 0 to 7, in which copies of the packet wait if their port is full.
    Queue(u8),
    Group(u32),
    Meter(u32),
    Set(Field, Of, u128),
    DecrementTtl,
    PushVlan(EtherType),
    PopVlan,
    /// Continues with the rules of the table with this number.
    Goto(u8),
}

/// The instructions of a rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Instructions {
    /// The actions that are executed immediately, in order (Apply-Actions). The last one may lead to another table.
    pub apply: Vec<Action>,
    /// True if the packet's action set is cleared after `apply` (Clear-Actions).
    pub clears: bool,
    /// The actions that are added to the packet's action set, one of each kind (Write-Actions). The set is executed
    /// when no other table follows.
    pub write: Vec<Action>,
}

impl From<Vec<Action>> for Instructions {
    fn from(apply: Vec<Action>) -> Self {
        Self {
            apply,
            ..Self::default()
        }
    }
}

impl Instructions {
    /// Returns all actions, those executed immediately and those of the action set.
    pub fn all(&self) -> impl Iterator<Item = &Action> {
        self.apply.iter().chain(&self.write)
    }

    /// Returns the steps that a worker executes for a rule in the table with number `table`.
    pub fn steps(&self, table: u8) -> Result<Vec<u64>, ActionsError> {
        if self.apply.len() + self.write.len() > MOST_ACTIONS {
            return Err(ActionsError::TooMany);
        }
        let mut written = Vec::new();
        for action in &self.write {
            check_settable(*action)?;
            action.encode(&mut written);
        }
        let goto = self.apply.last().filter(|it| matches!(it, Action::Goto(_)));
        // The action set is empty before the first table, and a rule without a goto ends the tables. Therefore the set
        // of such a rule is executed immediately if possible.
        if table == 0 && goto.is_none() {
            let mut set = ActionSet::EMPTY;
            let mut rest = written.iter().copied();
            while let Some(word) = rest.next() {
                set.write(word, &mut rest);
            }
            let is_sent = self.apply.iter().any(|action| action.sends());
            if !(is_sent && set.changes()) {
                let mut all = steps(&self.apply, table)?;
                all.extend(set.steps());
                return Ok(all);
            }
        }
        check(&self.apply, table)?;
        let mut all = Vec::new();
        let at_once = self
            .apply
            .iter()
            .filter(|it| !matches!(it, Action::Goto(_)));
        at_once.for_each(|action| action.encode(&mut all));
        if self.clears {
            all.push(step::CLEAR);
        }
        let mut rest = written.into_iter();
        while let Some(word) = rest.next() {
            all.push(word | step::WRITTEN);
            if step::is_long(word) {
                all.extend(rest.next());
                all.extend(rest.next());
            }
        }
        if let Some(goto) = goto {
            goto.encode(&mut all);
        }
        Ok(all)
    }
}

/// The reason why a list of actions is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum ActionsError {
    #[error(
        "actions that modify a packet must come before actions that send it: copies are made last"
    )]
    ChangedAfterSent,
    #[error("goto must lead to a table with a higher number")]
    GoesBack,
    #[error("goto must be the last action")]
    BehindGoto,
    #[error("an action cannot set this field")]
    NotSettable,
    #[error("an action list has at most {MOST_ACTIONS} actions")]
    TooMany,
}

/// The limit on the actions of a rule, or of all buckets of a group together: an OpenFlow message has space for this
/// many actions.
pub(super) const MOST_ACTIONS: usize = 2000;

impl Of {
    /// Returns true if a frame is one of the packets in which the action sets the field.
    #[inline(always)]
    fn fits(self, frame: &[u8], headers: Headers) -> bool {
        let (is_v4, is_v6) = match headers.layer3() {
            Layer3::Ipv4 => (true, false),
            Layer3::Ipv6 => (false, true),
            Layer3::Other => (false, false),
        };
        let is = |protocol: IpProtocol| headers.protocol() == protocol;
        let is_arp = || EtherType(word(frame, headers.ip().wrapping_sub(2))) == EtherType::ARP;
        match self {
            Self::Any => true,
            Self::Ip => is_v4 || is_v6,
            Self::Ipv4 => is_v4,
            Self::Ipv6 => is_v6,
            Self::Arp => !is_v4 && !is_v6 && is_arp(),
            Self::Ipv4OrArp => is_v4 || !is_v6 && is_arp(),
            Self::Ports => headers.ports().is_some(),
            Self::Tcp => is(IpProtocol::TCP),
            Self::Udp => is(IpProtocol::UDP),
            Self::Sctp => is(IpProtocol::SCTP),
            Self::Icmp => is_v4 && is(IpProtocol::ICMP),
            Self::Icmpv6 => is_v6 && is(IpProtocol::ICMPV6),
        }
    }
}

impl Action {
    /// Returns an action that sends a copy through a port.
    pub const fn port(port: PortNumber) -> Self {
        Self::Output(To::Port(port), 0)
    }

    /// Returns true if the action changes the packet.
    pub fn changes(self) -> bool {
        matches!(
            self,
            Self::Set(..) | Self::DecrementTtl | Self::PushVlan(_) | Self::PopVlan
        )
    }

    /// Returns true if the action sends a packet in which changes by later actions would appear. Packets to the
    /// controller never contain later changes.
    pub fn sends(self) -> bool {
        match self {
            Self::Output(to, _) => to != To::Controller,
            Self::Group(_) => true,
            _ => false,
        }
    }

    fn encode(self, steps: &mut Vec<u64>) {
        let with = |kind: u64, argument: u64| kind | argument << step::ARGUMENT_AT;
        match self {
            Self::Output(to, _) => steps.push(match to {
                To::Port(port) => with(step::OUTPUT, u64::from(port)),
                To::InPort => step::IN_PORT,
                To::Flood => step::FLOOD,
                To::All => step::ALL,
                To::Normal => step::NORMAL,
                To::Controller => step::CONTROLLER,
            }),
            Self::Queue(queue) => steps.push(with(step::QUEUE, u64::from(queue))),
            Self::Group(number) => steps.push(with(step::GROUP, u64::from(number))),
            Self::Meter(number) => steps.push(with(step::METER, u64::from(number))),
            Self::Set(field, of, value) => {
                let place = Field::ALL.iter().position(|it| *it == field).unwrap_or(0);
                let place = place as u64 | (of as u64) << 4;
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

/// Returns the steps that a worker executes for a list of actions of a rule in the table with number `table`.
pub(super) fn steps(actions: &[Action], table: u8) -> Result<Vec<u64>, ActionsError> {
    check(actions, table)?;
    let mut steps = Vec::new();
    actions.iter().for_each(|action| action.encode(&mut steps));
    Ok(steps)
}

/// Checks whether actions can be executed in sequence for a rule in the table with number `table`.
fn check(actions: &[Action], table: u8) -> Result<(), ActionsError> {
    if actions.len() > MOST_ACTIONS {
        return Err(ActionsError::TooMany);
    }
    let mut is_sent = false;
    for (place, action) in actions.iter().enumerate() {
        if is_sent && (action.changes() || matches!(action, Action::Goto(_))) {
            return Err(ActionsError::ChangedAfterSent);
        }
        is_sent |= action.sends();
        match *action {
            Action::Goto(to) if to <= table => return Err(ActionsError::GoesBack),
            Action::Goto(_) if place + 1 < actions.len() => return Err(ActionsError::BehindGoto),
            _ => check_settable(*action)?,
        }
    }
    Ok(())
}

fn check_settable(action: Action) -> Result<(), ActionsError> {
    match action {
        Action::Set(field, ..) if !is_settable(field) => Err(ActionsError::NotSettable),
        _ => Ok(()),
    }
}

fn is_settable(field: Field) -> bool {
    !matches!(
        field,
        Field::InPort | Field::EthType | Field::IpProtocol | Field::ArpOperation
    )
}

/// The length of an Ethernet header, in bytes. A packet that is shorter is no frame, and none of its fields can be
/// changed.
pub(super) const ETHERNET_BYTES: usize = 14;
/// The length of a frame's two MAC addresses in bytes, which is the offset of a VLAN tag.
const TAG_AT: usize = 12;
pub(super) const TAG_BYTES: usize = 4;
/// The EtherTypes of VLAN tags. (IEEE 802.1Q-2018, table 9-1.)
pub(super) const CUSTOMER_TAG: EtherType = EtherType(0x8100);
pub(super) const SERVICE_TAG: EtherType = EtherType(0x88a8);

/// Adds a VLAN tag of the EtherType `kind` to the packet, with the VLAN identifier and priority of its outermost tag.
/// Returns false, without a change, if there is no memory for the tag.
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

/// Removes the outermost VLAN tag, if there is one and the remaining bytes are a frame.
pub(super) fn pop_vlan(packet: &mut Packet) {
    let is_frame = packet.len() >= ETHERNET_BYTES + TAG_BYTES;
    if is_frame && outer_tag(packet.bytes()).is_some() {
        packet.bytes_mut().copy_within(..TAG_AT, TAG_BYTES);
        packet.drop_front(TAG_BYTES as u16);
    }
}

fn outer_tag(frame: &[u8]) -> Option<u16> {
    let head = frame.get(TAG_AT..TAG_AT + TAG_BYTES)?;
    let kind = EtherType(u16::from_be_bytes([head[0], head[1]]));
    matches!(kind, CUSTOMER_TAG | SERVICE_TAG).then(|| u16::from_be_bytes([head[2], head[3]]))
}

/// Decrements the hop limit of a packet; returns false if the hop limit has expired.
pub(super) fn decrement_ttl(frame: &mut [u8], headers: Headers) -> bool {
    let at = match headers.layer3() {
        Layer3::Ipv4 => headers.ip() + 8,
        Layer3::Ipv6 => headers.ip() + 7,
        Layer3::Other => return true,
    };
    match frame.get(at).copied() {
        Some(0 | 1) => false,
        Some(ttl) if headers.fault().is_none() => {
            set_in_ip(frame, headers, Field::Ttl, u128::from(ttl - 1));
            true
        }
        _ => true,
    }
}

/// Sets a field of the frame and updates the checksums that cover the field. The frame does not change if it lacks the
/// field, or is not one of the packets `of`.
pub(super) fn set(frame: &mut [u8], headers: Headers, field: Field, of: Of, value: u128) {
    if !of.fits(frame, headers) {
        return;
    }
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

/// Returns the 16-bit number at the given offset of the frame.
fn word(frame: &[u8], at: usize) -> u16 {
    let found = frame.get(at..at.wrapping_add(2));
    found.map_or(0, |it| u16::from_be_bytes([it[0], it[1]]))
}

/// Writes a 16-bit number at the given offset of the frame; returns the earlier value.
fn put_word(frame: &mut [u8], at: usize, new: u16) -> u16 {
    let old = word(frame, at);
    if let Some(place) = frame.get_mut(at..at.wrapping_add(2)) {
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
    let (transport, value) = (headers.transport(), value as u16);
    if headers.ports().is_some() {
        let at = transport + if is_source { 0 } else { 2 };
        match headers.protocol() {
            IpProtocol::SCTP => set_sctp_port(frame, headers, at, value),
            _ => put_covered(frame, headers, at, value, Covered::Transport),
        }
    } else if !headers.is_fragment() && transport > 0 {
        // This is an ICMP message; no other message without ports gets here.
        let old = word(frame, transport);
        let new = match is_source {
            true => old & 0x00ff | value << 8,
            false => old & 0xff00 | value & 0xff,
        };
        put_covered(frame, headers, transport, new, Covered::Transport);
    }
}

/// Sets an SCTP port. The checksum covers the complete packet, so a fragment stays unchanged.
fn set_sctp_port(frame: &mut [u8], headers: Headers, at: usize, value: u16) {
    let sum_at = headers.transport() + 8;
    if headers.is_fragment() || sum_at + 4 > headers.end() {
        return;
    }
    let old = put_word(frame, at, value);
    let Some(sum) = frame.get_mut(sum_at..sum_at + 4) else {
        return;
    };
    let changed = sctp::change(old, value, headers.end() - at - 2);
    for (byte, changed) in sum.iter_mut().zip(changed.to_le_bytes()) {
        *byte ^= changed;
    }
}

/// The checksums that cover a 16-bit word of a packet.
#[derive(Clone, Copy, PartialEq)]
enum Covered {
    Header,
    Transport,
    Both,
}

/// Writes 16 bits of the frame at offset `at` and updates the checksums that cover them. (RFC 1624.)
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

/// Returns the offset of the transport checksum that covers a word of the packet, if there is one: fragments other than
/// the first have none.
fn checksum_of(headers: Headers, covered: Covered) -> Option<usize> {
    let is_later = headers.is_fragment() && headers.ports().is_none();
    match headers.protocol() {
        _ if is_later => None,
        IpProtocol::UDP => Some(6),
        IpProtocol::TCP => Some(16),
        IpProtocol::ICMPV6 => Some(2),
        // The ICMP checksum covers type and code, but no addresses.
        IpProtocol::ICMP if covered == Covered::Transport => Some(2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::key::Key;
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
        set(&mut changed, Headers::of(frame), field, Of::Any, value);
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
    fn setting_a_header_field_updates_all_affected_checksums() {
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
    fn a_set_action_changes_only_packets_that_have_its_field() {
        let protocol = |mut frame: Vec<u8>, number: u8| {
            let headers = Headers::of(&frame);
            let at = headers.ip()
                + if headers.layer3() == Layer3::Ipv4 {
                    9
                } else {
                    6
                };
            frame[at] = number;
            frame
        };
        let v4 = frame("198.18.0.1", "198.18.0.2");
        let v6 = frame("2001:db8::1", "2001:db8::2");
        let mut arp = v4.clone();
        arp[12..14].copy_from_slice(&[8, 6]);
        let mut piece = v4.clone();
        piece[20] = 0x20;
        let all = [
            v4.clone(),
            protocol(v4.clone(), 6),
            protocol(v4.clone(), 132),
            protocol(v4.clone(), 1),
            v6.clone(),
            protocol(v6, 58),
            arp,
            protocol(piece.clone(), 132),
            protocol(piece, 1),
        ];
        let ports = Field::SourcePort;
        for (field, of, want) in [
            (Field::EthSource, Of::Any, &[0, 1, 2, 3, 4, 5, 6, 7, 8][..]),
            (Field::Dscp, Of::Ip, &[0, 1, 2, 3, 4, 5, 7, 8]),
            (Field::Source, Of::Ipv4, &[0, 1, 2, 3, 7, 8]),
            (Field::Source, Of::Ipv4OrArp, &[0, 1, 2, 3, 6, 7, 8]),
            (Field::Source, Of::Arp, &[6]),
            (Field::Source, Of::Ipv6, &[4, 5]),
            (ports, Of::Ports, &[0, 1, 2, 4]),
            (ports, Of::Tcp, &[1]),
            (ports, Of::Udp, &[0, 4]),
            // The test skips fragments, which lack bytes that the checksum covers. It also skips ICMP messages, whose
            // type may not match.
            (ports, Of::Sctp, &[2]),
            (ports, Of::Icmp, &[3]),
            (ports, Of::Icmpv6, &[5]),
        ] {
            let is_changed = |frame: &Vec<u8>| {
                let mut changed = frame.clone();
                set(&mut changed, Headers::of(frame), field, of, 0x35);
                changed != *frame
            };
            let changed: Vec<usize> = (0..all.len()).filter(|it| is_changed(&all[*it])).collect();
            assert_eq!(changed, want, "{field:?} {of:?}");
        }
    }

    #[test]
    fn setting_an_sctp_port_updates_the_checksum_of_the_packet() {
        for (source, destination) in [("198.18.0.1", "198.18.0.2"), ("2001:db8::1", "2001:db8::2")]
        {
            let mut packet = frame(source, destination);
            let headers = Headers::of(&packet);
            packet[headers.ip()
                + if headers.layer3() == Layer3::Ipv4 {
                    9
                } else {
                    6
                }] = 132;
            // Padding of a short frame is not covered.
            packet.extend([0x55; 7]);
            let sum_of = |packet: &[u8]| {
                let headers = Headers::of(packet);
                let mut covered = packet[headers.transport()..headers.end()].to_vec();
                let sum: [u8; 4] = covered[8..12].try_into().unwrap();
                covered[8..12].fill(0);
                (u32::from_le_bytes(sum), sctp::checksum(&covered))
            };
            let at = headers.transport() + 8;
            let right = sum_of(&packet).1;
            packet[at..at + 4].copy_from_slice(&right.to_le_bytes());
            for field in [Field::SourcePort, Field::DestinationPort] {
                let changed = changed(&packet, field, 4242);
                let (own, right) = sum_of(&changed);
                assert_eq!(own, right, "{field:?}");
                assert_eq!(Key::of(&changed, Headers::of(&changed), 0).get(field), 4242);
            }
        }
    }

    #[test]
    fn decrementing_the_ttl_fails_once_the_ttl_expires() {
        let mut frame = frame("198.18.0.1", "198.18.0.2");
        let headers = Headers::of(&frame);
        set(&mut frame, headers, Field::Ttl, Of::Ip, 2);
        assert!(decrement_ttl(&mut frame, headers));
        assert!(is_sound(&frame));
        assert!(!decrement_ttl(&mut frame, headers));
    }

    #[test]
    fn vlan_tags_are_pushed_and_popped() {
        let plain = frame("198.18.0.1", "198.18.0.2");
        let pool = PoolHandle::new(4, false).unwrap();
        let mut packet = pool.take(plain.len() as u16).unwrap();
        packet.bytes_mut().copy_from_slice(&plain);
        assert!(push_vlan(&mut packet, CUSTOMER_TAG, &pool));
        let headers = Headers::of(packet.bytes());
        set(packet.bytes_mut(), headers, Field::VlanId, Of::Any, 0x1123);
        set(packet.bytes_mut(), headers, Field::VlanPriority, Of::Any, 5);
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
    fn action_lists_that_cannot_be_executed_are_refused() {
        let mac = Action::Set(Field::EthDestination, Of::Any, 1);
        for (actions, table, why) in [
            (
                vec![Action::port(1), mac],
                0,
                ActionsError::ChangedAfterSent,
            ),
            (
                vec![Action::port(1), Action::Goto(1)],
                0,
                ActionsError::ChangedAfterSent,
            ),
            (vec![Action::Goto(1)], 1, ActionsError::GoesBack),
            (vec![Action::Goto(2), mac], 1, ActionsError::BehindGoto),
            (
                vec![Action::Set(Field::InPort, Of::Any, 1)],
                0,
                ActionsError::NotSettable,
            ),
        ] {
            assert_eq!(steps(&actions, table), Err(why));
        }
        assert_eq!(
            steps(&[mac, Action::Queue(7), Action::port(1)], 0)
                .unwrap()
                .len(),
            3
        );
    }
}
