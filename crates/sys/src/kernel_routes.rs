//! Routes, neighbours, addresses and interfaces of a network namespace, and notifications of their changes. (RFC 3549,
//! rtnetlink(7).)
//!
//! One socket receives notifications, the other one requests dumps of the existing state. A reader that subscribes
//! before it requests a dump misses no change. A fact that is in both is read twice, which does no harm. If the kernel
//! reports lost notifications ([`Heard::Overrun`]), the dump must be requested again.

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REPLACE,
    NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NetlinkMessage, NetlinkPayload, NlasIterator,
    Parseable, ParseableParametrized,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteLwEnCapType, RouteMessage,
    RouteNextHop, RouteNextHopFlags, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with, sockopt,
};
use std::io;
use std::net::IpAddr;
use std::time::Duration;

/// The subscribed notifications (RTNLGRP_* of linux/rtnetlink.h, as bits): interfaces, neighbours, addresses and routes
/// of either family, next-hop objects.
const GROUPS: u32 = 1 | 1 << 2 | 1 << 4 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 31;
/// The size of the receive buffer for notifications, bytes: enough for some hundred thousand routes.
const KEPT_BYTES: usize = 256 << 20;
/// The maximum number of bytes per receive call.
const BUFFER_BYTES: usize = 256 << 10;
/// The maximum number of messages received after one wait.
const AT_ONCE: usize = 256;
/// The types of messages about routes (RTM_NEWROUTE, RTM_DELROUTE of linux/rtnetlink.h).
const NEW_ROUTE: u16 = 24;
const GONE_ROUTE: u16 = 25;
/// The lengths of a netlink message header, and of the route header after it, bytes.
const HEADER_BYTES: usize = 16;
const ROUTE_HEADER_BYTES: usize = 12;
/// The parsed attributes of a route: destination (RTA_DST), interface (RTA_OIF), next hops (RTA_GATEWAY, RTA_MULTIPATH,
/// RTA_VIA), metric (RTA_PRIORITY) and table (RTA_TABLE).
const ROUTE_ATTRIBUTES: [u16; 7] = [1, 4, 5, 9, 18, 6, 15];
/// The types of messages about next-hop objects (RTM_NEWNEXTHOP, RTM_DELNEXTHOP).
const NEXT_HOP_OBJECTS: std::ops::RangeInclusive<u16> = 104..=105;
/// The kernel's number of the main routing table (RT_TABLE_MAIN).
pub const MAIN_TABLE: u32 = 254;
/// The kernel's number of the local routing table (RT_TABLE_LOCAL), which contains the namespace's own addresses.
pub const LOCAL_TABLE: u32 = 255;

/// The action of a kernel route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelRouteKind {
    /// Forwards packets to a next hop.
    Unicast,
    /// Delivers packets to the host itself; broadcast and anycast routes also have this kind.
    Local,
    /// Drops packets.
    Blackhole,
    /// Drops packets and reports to the sender that the destination is unreachable.
    Unreachable,
    /// Drops packets and reports to the sender that the destination is prohibited.
    Prohibit,
}

/// A next hop of a kernel route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelNextHop {
    /// Index of the interface that leads to the next hop.
    pub interface: u32,
    /// Address of the neighbour, which may be of the other address family than the route; None if the destinations are
    /// neighbours themselves.
    pub via: Option<IpAddr>,
    /// Weight of this next hop relative to the other next hops of the route, by which flows are spread (ECMP).
    pub weight: u16,
}

/// A route of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelRoute {
    /// Number of the routing table.
    pub table: u32,
    /// Network of the destinations, and length of its prefix in bits.
    pub to: (IpAddr, u8),
    /// Metric: of several routes with the same prefix, the one with the lowest metric is used.
    pub metric: u32,
    /// Action on packets that match the route.
    pub kind: KernelRouteKind,
    /// Next hops, without those that the kernel does not use.
    pub next_hops: Vec<KernelNextHop>,
    /// True if the kernel appended the route to one with the same prefix and metric.
    pub is_appended: bool,
}

/// A fact about the state of the kernel, or a change of this state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelFact {
    /// A route exists in the kernel.
    Route(KernelRoute),
    /// A route was deleted, or only some next hops of a route: those that `next_hops` lists.
    RouteGone(KernelRoute),
    /// The MAC address of a neighbour is known or has been deleted.
    Neighbour {
        /// Index of the interface that leads to the neighbour.
        interface: u32,
        /// IP address of the neighbour.
        address: IpAddr,
        /// MAC address of the neighbour; None if it is no longer known.
        mac: Option<[u8; 6]>,
        /// True if the entry is static, so that the neighbour is not queried.
        is_fixed: bool,
    },
    /// An address of the host was added or deleted.
    Address {
        /// Index of the interface that has the address.
        interface: u32,
        /// Address, and prefix length of its network in bits.
        address: (IpAddr, u8),
        /// True if the address was added or exists; false if it was deleted.
        is_there: bool,
    },
    /// An interface has changed. Routes through it may have disappeared without a notification.
    Interface,
    /// A next-hop object has changed. Routes that use it may have changed without a notification.
    NextHopObject,
}

/// The result of waiting for notifications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// No notification arrived before the timeout.
    Nothing,
    /// Notifications arrived, and their facts were passed to the callback.
    Some,
    /// Notifications were lost: request a dump again.
    Overrun,
}

/// The netlink sockets of one network namespace.
#[derive(Debug)]
pub struct KernelRoutes {
    changes: OwnedFd,
    asking: OwnedFd,
    buffer: Vec<u8>,
    sequence: u32,
}

fn open(groups: u32) -> io::Result<OwnedFd> {
    let socket = socket_with(
        rustix::net::AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        // Protocol 0 is NETLINK_ROUTE.
        None,
    )?;
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

impl KernelRoutes {
    /// Subscribes to notifications in the network namespace of the calling thread. [`Self::ask`] returns the existing
    /// state.
    ///
    /// # Errors
    /// The error that the operating system reported.
    pub fn open() -> io::Result<Self> {
        let changes = open(GROUPS)?;
        // Only root may set this size. Other users get a smaller buffer, so that overruns happen earlier.
        if sockopt::set_socket_recv_buffer_size_force(&changes, KEPT_BYTES).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(&changes, KEPT_BYTES);
        }
        Ok(Self {
            changes,
            asking: open(0)?,
            buffer: vec![0; BUFFER_BYTES],
            sequence: 0,
        })
    }

    /// Requests the current state and passes it to `tell`: addresses first, then neighbours, then routes. Returns false
    /// if the state changed during the dump, so that facts may be missing.
    ///
    /// # Errors
    /// The error that the operating system reported.
    pub fn ask(&mut self, mut tell: impl FnMut(KernelFact)) -> io::Result<bool> {
        let mut is_whole = true;
        let mut route = [RouteMessage::default(), RouteMessage::default()];
        route[0].header.address_family = AddressFamily::Inet;
        route[1].header.address_family = AddressFamily::Inet6;
        let [four, six] = route;
        for question in [
            RouteNetlinkMessage::GetAddress(AddressMessage::default()),
            RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()),
            RouteNetlinkMessage::GetRoute(four),
            RouteNetlinkMessage::GetRoute(six),
        ] {
            self.send(question, NLM_F_DUMP)?;
            is_whole &= self.hear_answer(&mut tell)?;
        }
        Ok(is_whole)
    }

    /// Adds an address to an interface, unless it exists; for IPv6 without duplicate address detection.
    ///
    /// # Errors
    /// The error that the operating system reported.
    pub fn add_address(
        &mut self,
        interface: u32,
        (address, length): (IpAddr, u8),
    ) -> io::Result<()> {
        const NODAD: u8 = 0x02;
        let mut message = AddressMessage::default();
        message.header.family = match address {
            IpAddr::V4(_) => AddressFamily::Inet,
            IpAddr::V6(_) => AddressFamily::Inet6,
        };
        message.header.prefix_len = length;
        message.header.index = interface;
        message.header.flags =
            netlink_packet_route::address::AddressHeaderFlags::from_bits_retain(NODAD);
        message.attributes.push(AddressAttribute::Local(address));
        message.attributes.push(AddressAttribute::Address(address));
        self.send(
            RouteNetlinkMessage::NewAddress(message),
            NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE,
        )?;
        self.hear_answer(&mut |_| {})?;
        Ok(())
    }

    fn send(&mut self, question: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(question));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        send(&self.asking, &bytes, SendFlags::empty())?;
        Ok(())
    }

    /// Receives the reply to the last request and passes its facts to `tell`. Returns true if nothing changed during
    /// the dump.
    fn hear_answer(&mut self, tell: &mut impl FnMut(KernelFact)) -> io::Result<bool> {
        let mut is_whole = true;
        loop {
            let (_, length) = recv(&self.asking, &mut self.buffer[..], RecvFlags::TRUNC)?;
            let bytes = self
                .buffer
                .get(..length)
                .ok_or(io::ErrorKind::FileTooLarge)?;
            for (header, message) in messages(bytes) {
                if header.sequence_number != self.sequence {
                    continue;
                }
                is_whole &= header.flags & NLM_F_DUMP_INTR == 0;
                if matches!(header.message_type, NLMSG_ERROR | NLMSG_DONE) {
                    return outcome(message).map(|()| is_whole);
                }
                if let Some(fact) = fact(&header, message) {
                    tell(fact);
                }
            }
        }
    }

    /// Waits for notifications until the timeout, and passes their facts on in order.
    ///
    /// # Errors
    /// The error that the operating system reported.
    pub fn listen(
        &mut self,
        most: Duration,
        mut tell: impl FnMut(KernelFact),
    ) -> io::Result<Heard> {
        let timeout = Timespec {
            tv_sec: most.as_secs() as i64,
            tv_nsec: most.subsec_nanos().into(),
        };
        let mut watched = [PollFd::new(&self.changes, PollFlags::IN)];
        match poll(&mut watched, Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => return Ok(Heard::Nothing),
            done => done?,
        };
        // Each change is a separate message, so many of them are received after one wait.
        for taken in 0..AT_ONCE {
            let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
            let length = match recv(&self.changes, &mut self.buffer[..], flags) {
                Ok((_, length)) => length,
                Err(Errno::NOBUFS) => return Ok(Heard::Overrun),
                Err(Errno::AGAIN | Errno::INTR) if taken == 0 => return Ok(Heard::Nothing),
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(e) => return Err(e.into()),
            };
            // A message longer than the buffer counts as lost.
            let Some(bytes) = self.buffer.get(..length) else {
                return Ok(Heard::Overrun);
            };
            for (header, message) in messages(bytes) {
                if let Some(fact) = fact(&header, message) {
                    tell(fact);
                }
            }
        }
        Ok(Heard::Some)
    }
}

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

/// Iterates over the messages in received bytes, aligned to four bytes; truncated messages are skipped.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (NetlinkHeader, &[u8])> {
    std::iter::from_fn(move || {
        let buffer = NetlinkBuffer::new_checked(&bytes).ok()?;
        let header = NetlinkHeader::parse(&buffer).ok()?;
        let length = header.length as usize;
        let message = bytes.get(..length).filter(|it| !it.is_empty())?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((header, message))
    })
}

/// Returns the result in the message that ends a reply.
fn outcome(message: &[u8]) -> io::Result<()> {
    let code = message.get(16..20).and_then(|code| code.try_into().ok());
    match code.map_or(0, i32::from_ne_bytes) {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(-code)),
    }
}

/// Returns the fact in a message; None if the message is invalid, or [`KernelFact`] has no variant for its subject.
fn fact(header: &NetlinkHeader, message: &[u8]) -> Option<KernelFact> {
    if NEXT_HOP_OBJECTS.contains(&header.message_type) {
        return Some(KernelFact::NextHopObject);
    }
    // There may be a million routes, so only the necessary attributes are parsed.
    match header.message_type {
        NEW_ROUTE => {
            let is_appended = header.flags & NLM_F_APPEND != 0;
            return route(message.get(HEADER_BYTES..)?, is_appended).map(KernelFact::Route);
        }
        GONE_ROUTE => {
            return route(message.get(HEADER_BYTES..)?, false).map(KernelFact::RouteGone);
        }
        _ => {}
    }
    let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(message).ok()?;
    let NetlinkPayload::InnerMessage(message) = message.payload else {
        return None;
    };
    match message {
        RouteNetlinkMessage::NewNeighbour(message) => neighbour(&message, true),
        RouteNetlinkMessage::DelNeighbour(message) => neighbour(&message, false),
        RouteNetlinkMessage::NewAddress(message) => address(&message, true),
        RouteNetlinkMessage::DelAddress(message) => address(&message, false),
        RouteNetlinkMessage::NewLink(_) | RouteNetlinkMessage::DelLink(_) => {
            Some(KernelFact::Interface)
        }
        _ => None,
    }
}

/// Parses the route in a message; None if the message is invalid or the route is irrelevant to the router.
fn route(message: &[u8], is_appended: bool) -> Option<KernelRoute> {
    let header = RouteHeader::parse(message).ok()?;
    let kind = kind_of(header.kind)?;
    let none = match header.address_family {
        AddressFamily::Inet => IpAddr::from([0; 4]),
        AddressFamily::Inet6 => IpAddr::from([0_u16; 8]),
        _ => return None,
    };
    // Skips routes for a type of service or a source, and routes from the kernel's cache.
    if header.tos != 0
        || header.source_prefix_length != 0
        || header.flags.contains(RouteFlags::Cloned)
    {
        return None;
    }
    let mut route = KernelRoute {
        table: header.table.into(),
        to: (none, header.destination_prefix_length),
        metric: 0,
        kind,
        next_hops: Vec::new(),
        is_appended,
    };
    let is_dead = header.flags.bits() & RouteNextHopFlags::Dead.bits() as u32 != 0;
    let (mut only, mut via) = (None, None);
    let family_and_kind = (header.address_family, header.kind, RouteLwEnCapType::None);
    for attribute in NlasIterator::new(message.get(ROUTE_HEADER_BYTES..)?) {
        let attribute = attribute.ok()?;
        if !ROUTE_ATTRIBUTES.contains(&attribute.kind()) {
            continue;
        }
        match RouteAttribute::parse_with_param(&attribute, family_and_kind).ok()? {
            RouteAttribute::Destination(address) => route.to.0 = address_of(&address)?,
            RouteAttribute::Table(table) => route.table = table,
            RouteAttribute::Priority(metric) => route.metric = metric,
            RouteAttribute::Oif(interface) => only = Some(interface),
            RouteAttribute::Gateway(address) => via = address_of(&address),
            RouteAttribute::Via(address) => via = neighbour_of(&address),
            RouteAttribute::MultiPath(all) => {
                route.next_hops.extend(all.iter().filter_map(next_hop_of));
            }
            _ => {}
        }
    }
    if let Some(interface) = only
        && route.next_hops.is_empty()
        && !is_dead
    {
        route.next_hops.push(KernelNextHop {
            interface,
            via,
            weight: 1,
        });
    }
    Some(route)
}

fn kind_of(kind: RouteType) -> Option<KernelRouteKind> {
    Some(match kind {
        RouteType::Unicast => KernelRouteKind::Unicast,
        RouteType::Local | RouteType::Broadcast | RouteType::Anycast => KernelRouteKind::Local,
        RouteType::BlackHole => KernelRouteKind::Blackhole,
        RouteType::Unreachable => KernelRouteKind::Unreachable,
        RouteType::Prohibit => KernelRouteKind::Prohibit,
        _ => return None,
    })
}

/// Returns a next hop of a route; None if the kernel does not use it.
fn next_hop_of(next_hop: &RouteNextHop) -> Option<KernelNextHop> {
    let unused = RouteNextHopFlags::Dead | RouteNextHopFlags::Linkdown;
    if next_hop.flags.intersects(unused) {
        return None;
    }
    let via = next_hop
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Gateway(address) => address_of(address),
            RouteAttribute::Via(address) => neighbour_of(address),
            _ => None,
        });
    Some(KernelNextHop {
        interface: next_hop.interface_index,
        via,
        weight: u16::from(next_hop.hops) + 1,
    })
}

fn address_of(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

fn neighbour_of(via: &RouteVia) -> Option<IpAddr> {
    match via {
        RouteVia::Inet(address) => Some((*address).into()),
        RouteVia::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

fn neighbour(message: &NeighbourMessage, is_there: bool) -> Option<KernelFact> {
    let (mut address, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(it)) => {
                address = Some(IpAddr::V4(*it))
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(it)) => {
                address = Some(IpAddr::V6(*it))
            }
            NeighbourAttribute::LinkLayerAddress(it) => {
                mac = <[u8; 6]>::try_from(it.as_slice()).ok()
            }
            _ => {}
        }
    }
    let is_fixed = matches!(message.header.state, NeighbourState::Permanent);
    let is_known = is_fixed || matches!(message.header.state, NeighbourState::Reachable);
    // An entry that is neither resolved nor deleted carries no information.
    let is_gone = !is_there || matches!(message.header.state, NeighbourState::Failed);
    (is_known || is_gone).then_some(())?;
    Some(KernelFact::Neighbour {
        interface: message.header.ifindex,
        address: address.filter(|it| !it.is_multicast())?,
        mac: mac.filter(|mac| !is_gone && mac[0] & 1 == 0),
        is_fixed,
    })
}

fn address(message: &AddressMessage, is_there: bool) -> Option<KernelFact> {
    let (mut local, mut other) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(it) => local = Some(*it),
            AddressAttribute::Address(it) => other = Some(*it),
            _ => {}
        }
    }
    Some(KernelFact::Address {
        interface: message.header.index,
        address: (local.or(other)?, message.header.prefix_len),
        is_there,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use netlink_packet_route::route::RoutePreference;
    use std::net::Ipv4Addr;

    fn address(last: u8) -> RouteAddress {
        RouteAddress::Inet(Ipv4Addr::new(10, 0, 0, last))
    }

    /// Encodes a route message as the kernel does.
    fn message(attributes: Vec<RouteAttribute>) -> Vec<u8> {
        let mut route = RouteMessage::default();
        route.header.address_family = AddressFamily::Inet;
        route.header.destination_prefix_length = 16;
        route.header.table = MAIN_TABLE as u8;
        route.header.kind = RouteType::Unicast;
        route.attributes = attributes;
        let payload = NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route));
        let mut message = NetlinkMessage::new(NetlinkHeader::default(), payload);
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    fn facts(bytes: &[u8]) -> Vec<KernelFact> {
        messages(bytes)
            .filter_map(|(header, message)| fact(&header, message))
            .collect()
    }

    #[test]
    fn routes_are_parsed_from_messages_with_additional_attributes() {
        let destination =
            RouteAttribute::Destination(RouteAddress::Inet(Ipv4Addr::new(10, 9, 0, 0)));
        let one = message(vec![
            RouteAttribute::Table(1000),
            destination.clone(),
            RouteAttribute::Priority(7),
            RouteAttribute::PrefSource(address(1)),
            RouteAttribute::Gateway(address(2)),
            RouteAttribute::Preference(RoutePreference::High),
            RouteAttribute::Oif(5),
        ]);
        let hop = |interface, last, weight| KernelNextHop {
            interface,
            via: Some(Ipv4Addr::new(10, 0, 0, last).into()),
            weight,
        };
        let route = KernelRoute {
            table: 1000,
            to: (Ipv4Addr::new(10, 9, 0, 0).into(), 16),
            metric: 7,
            kind: KernelRouteKind::Unicast,
            next_hops: vec![hop(5, 2, 1)],
            is_appended: false,
        };
        assert_eq!(facts(&one), [KernelFact::Route(route.clone())]);
        let next_hop = |interface, last, hops| {
            let mut next_hop = RouteNextHop::default();
            next_hop.interface_index = interface;
            next_hop.hops = hops;
            next_hop.attributes = vec![RouteAttribute::Gateway(address(last))];
            next_hop
        };
        let several = message(vec![
            destination,
            RouteAttribute::MultiPath(vec![next_hop(5, 2, 0), next_hop(6, 3, 9)]),
        ]);
        let route = KernelRoute {
            table: MAIN_TABLE,
            metric: 0,
            next_hops: vec![hop(5, 2, 1), hop(6, 3, 10)],
            ..route
        };
        assert_eq!(facts(&several), [KernelFact::Route(route)]);
        // Both messages are parsed in sequence, truncated at every length.
        let both = [one.clone(), several].concat();
        assert_eq!(facts(&both).len(), 2);
        for end in 0..both.len() {
            assert_eq!(facts(&both[..end]).len(), usize::from(end >= one.len()));
        }
        // The first message has a length field that is too small, the second one an attribute that extends beyond the
        // message.
        for end in 16..one.len() {
            let mut short = one[..end].to_vec();
            short[..4].copy_from_slice(&(end as u32).to_ne_bytes());
            assert!(facts(&short).len() <= 1);
        }
        let mut wrong = one;
        wrong[28] = 0xff;
        assert_eq!(facts(&wrong), []);
    }
}
