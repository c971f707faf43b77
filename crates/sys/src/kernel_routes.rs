//! What the kernel of a network namespace knows of routes, neighbours, addresses and interfaces, and what it says when they
//! change. (RFC 3549, rtnetlink(7).)
//!
//! Two sockets: one hears of changes, the other asks for all there is. Who listens from before it asks misses nothing, and
//! what is heard twice does no harm. When the kernel says that more has happened than it could tell ([`Heard::Overrun`]), all is
//! to be asked for again.

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
    RouteNextHopFlags, RouteType, RouteVia,
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

/// Changes that are heard of (RTNLGRP_* of linux/rtnetlink.h, as bits): interfaces, neighbours, addresses and routes of
/// either family, next-hop objects.
const GROUPS: u32 = 1 | 1 << 2 | 1 << 4 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 31;
/// Bytes of changes that the kernel keeps until they are heard: some hundred thousand routes.
const KEPT_BYTES: usize = 256 << 20;
/// Bytes that are received at once.
const BUFFER_BYTES: usize = 256 << 10;
/// Messages that are received after one wait, at most.
const AT_ONCE: usize = 256;
/// Messages about routes (RTM_NEWROUTE, RTM_DELROUTE of linux/rtnetlink.h).
const NEW_ROUTE: u16 = 24;
const GONE_ROUTE: u16 = 25;
/// Bytes of the header of a message, and of that of a route in it.
const HEADER_BYTES: usize = 16;
const ROUTE_HEADER_BYTES: usize = 12;
/// Attributes of a route that are looked at: where it goes (RTA_DST), through which interface (RTA_OIF), by which
/// neighbours (RTA_GATEWAY, RTA_MULTIPATH, RTA_VIA), its metric (RTA_PRIORITY) and table (RTA_TABLE).
const ROUTE_ATTRIBUTES: [u16; 7] = [1, 4, 5, 9, 18, 6, 15];
/// Messages about next-hop objects (RTM_NEWNEXTHOP, RTM_DELNEXTHOP).
const NEXT_HOP_OBJECTS: std::ops::RangeInclusive<u16> = 104..=105;
/// The kernel's own numbers of tables (RT_TABLE_MAIN, RT_TABLE_LOCAL).
pub const MAIN_TABLE: u32 = 254;
/// Table of the addresses that are the namespace's own.
pub const LOCAL_TABLE: u32 = 255;

/// What becomes of packets of a kernel's route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelRouteKind {
    /// They go to a next hop.
    Unicast,
    /// They are for the host itself, or for all stations of one of its networks.
    Local,
    /// They vanish.
    Blackhole,
    /// Senders are told that nobody is there.
    Unreachable,
    /// Senders are told that it is forbidden.
    Prohibit,
}

/// A next hop of a kernel's route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelNextHop {
    /// Number of the interface.
    pub interface: u32,
    /// Address of the neighbour, which may be of the other family; none where destinations are neighbours themselves.
    pub via: Option<IpAddr>,
    /// Its part of the route's flows, beside those of the other next hops.
    pub weight: u16,
}

/// A route as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelRoute {
    /// Number of the table.
    pub table: u32,
    /// Network of the destinations, and length of its prefix in bits.
    pub to: (IpAddr, u8),
    /// The lower, the better.
    pub metric: u32,
    /// What becomes of packets.
    pub kind: KernelRouteKind,
    /// Next hops, those left out that the kernel does not use.
    pub next_hops: Vec<KernelNextHop>,
    /// Whether it stands beside one of the same prefix and metric.
    pub is_appended: bool,
}

/// Something that is so in the kernel, or has come about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelFact {
    /// A route is there.
    Route(KernelRoute),
    /// A route is gone, or some of its next hops.
    RouteGone(KernelRoute),
    /// A neighbour's MAC address is known; `is_fixed` where somebody has set it.
    Neighbour {
        /// Number of the interface.
        interface: u32,
        /// IP address.
        address: IpAddr,
        /// MAC address; none if the neighbour is not known any more.
        mac: Option<[u8; 6]>,
        /// Whether somebody has set it, so that nobody asks the neighbour.
        is_fixed: bool,
    },
    /// An address of the host itself is there or gone.
    Address {
        /// Number of the interface.
        interface: u32,
        /// Address, and length of its network's prefix in bits.
        address: (IpAddr, u8),
        /// Whether it is there.
        is_there: bool,
    },
    /// An interface has changed. Routes through it may have gone without a word.
    Interface,
    /// A next-hop object has changed. Routes that use it may have changed without a word.
    NextHopObject,
}

/// Outcome of listening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// Nothing in that time.
    Nothing,
    /// Some facts.
    Some,
    /// More has happened than could be told: ask for all again.
    Overrun,
}

/// A conversation with the kernel of one network namespace.
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
        // Protocol 0 is the one of routes.
        None,
    )?;
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

impl KernelRoutes {
    /// Begins to listen in the network namespace of the calling thread; facts that were there before are told by [`Self::ask`].
    ///
    /// # Errors
    /// What the system says.
    pub fn open() -> io::Result<Self> {
        let changes = open(GROUPS)?;
        // Only root may have so much; what others get is less, and overruns come earlier.
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

    /// Tells all that is so now: addresses first, then neighbours, then routes. False where so much changed meanwhile
    /// that something may be missing.
    ///
    /// # Errors
    /// What the system says.
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

    /// Gives an interface an address, unless it has it; IPv6 without waiting whether another station has it too.
    ///
    /// # Errors
    /// What the system says.
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

    /// Hears the answer to the last question; whether nothing changed while the kernel gave it.
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

    /// Waits for changes, at most for this long, and tells them in order.
    ///
    /// # Errors
    /// What the system says.
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
        // Each change is a message of its own: many of them cost one wait.
        for taken in 0..AT_ONCE {
            let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
            let length = match recv(&self.changes, &mut self.buffer[..], flags) {
                Ok((_, length)) => length,
                Err(Errno::NOBUFS) => return Ok(Heard::Overrun),
                Err(Errno::AGAIN | Errno::INTR) if taken == 0 => return Ok(Heard::Nothing),
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(e) => return Err(e.into()),
            };
            // A change that is longer than the room for it is as good as not told.
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

/// Messages in received bytes, one after the other at multiples of four; what is cut short is left out.
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

/// What a message that ends an answer says.
fn outcome(message: &[u8]) -> io::Result<()> {
    let code = message.get(16..20).and_then(|code| code.try_into().ok());
    match code.map_or(0, i32::from_ne_bytes) {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(-code)),
    }
}

/// The fact that a message tells; none where it is about something else, or not understood.
fn fact(header: &NetlinkHeader, message: &[u8]) -> Option<KernelFact> {
    if NEXT_HOP_OBJECTS.contains(&header.message_type) {
        return Some(KernelFact::NextHopObject);
    }
    // There may be a million routes, of which little is wanted.
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

/// The route that a message is about; none where it is not understood, or the router has nothing to do with it.
fn route(message: &[u8], is_appended: bool) -> Option<KernelRoute> {
    let header = RouteHeader::parse(message).ok()?;
    let kind = match header.kind {
        RouteType::Unicast => KernelRouteKind::Unicast,
        RouteType::Local | RouteType::Broadcast | RouteType::Anycast => KernelRouteKind::Local,
        RouteType::BlackHole => KernelRouteKind::Blackhole,
        RouteType::Unreachable => KernelRouteKind::Unreachable,
        RouteType::Prohibit => KernelRouteKind::Prohibit,
        _ => return None,
    };
    let none = match header.address_family {
        AddressFamily::Inet => IpAddr::from([0; 4]),
        AddressFamily::Inet6 => IpAddr::from([0_u16; 8]),
        _ => return None,
    };
    // Routes for some types of service or some sources only, and what the kernel has looked up for itself.
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
                for next_hop in all {
                    let unused = RouteNextHopFlags::Dead | RouteNextHopFlags::Linkdown;
                    if next_hop.flags.intersects(unused) {
                        continue;
                    }
                    let via = next_hop
                        .attributes
                        .iter()
                        .find_map(|attribute| match attribute {
                            RouteAttribute::Gateway(address) => address_of(address),
                            RouteAttribute::Via(address) => neighbour_of(address),
                            _ => None,
                        });
                    route.next_hops.push(KernelNextHop {
                        interface: next_hop.interface_index,
                        via,
                        weight: u16::from(next_hop.hops) + 1,
                    });
                }
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
    // Of one that is neither known nor gone nothing is to be learnt.
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
    use netlink_packet_route::route::{RouteNextHop, RoutePreference};
    use std::net::Ipv4Addr;

    fn address(last: u8) -> RouteAddress {
        RouteAddress::Inet(Ipv4Addr::new(10, 0, 0, last))
    }

    /// A message about a route as the kernel writes it.
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
    fn a_route_is_read_whatever_else_its_message_says() {
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
        // Both, one behind the other; and cut short anywhere.
        let both = [one.clone(), several].concat();
        assert_eq!(facts(&both).len(), 2);
        for end in 0..both.len() {
            assert_eq!(facts(&both[..end]).len(), usize::from(end >= one.len()));
        }
        // A message whose own length ends it early, and one that has an attribute beyond its end.
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
