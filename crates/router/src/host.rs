//! HOST: makes a port of the chain a host with addresses of its own. It replies to ARP (RFC 826), neighbour discovery
//! (RFC 4861) and echo requests (RFC 792, RFC 4443 section 4.2), and to UDP with "port unreachable".
//!
//! The worker only detects such packets; the replies are made on the slow path.

use serde::Deserialize;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use taut_function::slow::{ErrorLimit, Handler, Passage, Punted, Send};
use taut_function::{Class, Context, Entry, Function, KernelVersion, SettingsError, settings};
use taut_port::tap::{Tap, is_name};
use taut_port::{Batch, PortError, Punt};
use taut_sys::Alarm;
use taut_wire::checksum::{Sum, pseudo_header_v6};
use taut_wire::{
    EtherType, Ethernet, Headers, IcmpError, Icmpv4, IpProtocol, Ipv4, Ipv6, Layer3, Mac, Udp,
    icmp_error, resolution,
};

/// The entry of function HOST in the list of functions.
pub const ENTRY: Entry = Entry {
    name: "host",
    summary: "gives a port addresses that answer ARP, neighbour discovery and echo",
    class: Class::Basic,
    ports: Some("port"),
    settings: SETTINGS,
    files: |_| Vec::new(),
    build: |table| Ok(Box::new(Host::new(settings(table)?)?) as Box<dyn Function>),
    in_kernel: KernelVersion::No("it has no version there"),
};

/// The descriptions of the settings, for `taut functions` and the pages of docs/reference.
const SETTINGS: &[taut_function::Setting] = &[
    (
        "port",
        "0",
        "number of the port in the chain; each port with addresses needs a `host` of its own",
    ),
    ("mac", "required", "MAC address of the port"),
    (
        "addresses",
        "required",
        "its IPv4 and IPv6 addresses, 1 to 64",
    ),
    (
        "tap",
        "none",
        "name of a kernel interface that makes the kernel this host",
    ),
];

/// The limit on addresses of one port of the host.
const MOST_ADDRESSES: usize = 64;

/// The time to live of replies (RFC 1700).
const HOPS: u8 = 64;
/// The number of frames that are read from the kernel's interface in one call of the slow path.
const AT_A_TIME: usize = 64;
const LONGEST_FRAME_BYTES: usize = 2048;
/// The MTU of the tap interface, bytes.
const TAP_MTU: u16 = 1500;
const ICMPV4_ECHO_REQUEST: u8 = 8;
const ICMPV6_ECHO_REQUEST: u8 = 128;
const ICMPV6_ECHO_REPLY: u8 = 129;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    #[serde(default)]
    port: usize,
    mac: String,
    addresses: Vec<IpAddr>,
    tap: Option<String>,
}

/// The counts of packets for the port's own addresses. The worker counts the first one, the slow path the others.
#[derive(Debug, Default)]
struct Counts {
    for_itself: AtomicU64,
    neighbour_answered: AtomicU64,
    echo_answered: AtomicU64,
    port_unreachable: AtomicU64,
    to_kernel: AtomicU64,
    from_kernel: AtomicU64,
    unanswered: AtomicU64,
    not_understood: AtomicU64,
}

/// The MAC address and the IP addresses of the host's port.
#[derive(Debug, Clone)]
pub(crate) struct Own {
    mac: Mac,
    addresses: Arc<[IpAddr]>,
}

struct Host {
    port: usize,
    own: Own,
    /// The name of the tap interface through which the Linux kernel acts as the host; none if the router is the host
    /// itself. `tap` holds the open interface until the slow path takes it.
    tap_name: Option<String>,
    tap: Option<Tap>,
    counts: Arc<Counts>,
}

impl Own {
    pub(crate) fn new(mac: Mac, addresses: &Arc<[IpAddr]>) -> Self {
        Self {
            mac,
            addresses: Arc::clone(addresses),
        }
    }

    /// Returns the cause with which the worker punts the frame to the slow path; none if the frame is not for this
    /// host.
    #[inline(always)]
    pub(crate) fn concerned(&self, frame: &[u8]) -> Option<Punt> {
        let ethernet = Ethernet::new(frame).ok()?;
        // Most packets are for other hosts. Their destination address alone shows that.
        let to = ethernet.destination();
        if to != self.mac && !to.is_multicast() {
            return None;
        }
        let own = |address: IpAddr| self.addresses.contains(&address);
        match ethernet.ethertype() {
            EtherType::ARP => {
                let arp = taut_wire::Arp::new(ethernet.payload()).ok()?;
                own(arp.target_ip().into()).then_some(Punt::Neighbour)
            }
            EtherType::IPV4 => {
                let for_us = own(Ipv4::new(ethernet.payload()).ok()?.destination().into());
                (for_us && to == self.mac).then_some(Punt::Local)
            }
            EtherType::IPV6 => {
                if own(Ipv6::new(ethernet.payload()).ok()?.destination().into()) {
                    return (to == self.mac).then(|| {
                        match resolution::neighbour_message(&ethernet) {
                            Some(_) => Punt::Neighbour,
                            None => Punt::Local,
                        }
                    });
                }
                let (_, message) = resolution::neighbour_message(&ethernet)?;
                own(message.target().into()).then_some(Punt::Neighbour)
            }
            _ => None,
        }
    }
}

impl Host {
    fn new(settings: Settings) -> Result<Self, SettingsError> {
        let Settings {
            port,
            mac,
            addresses,
            tap,
        } = settings;
        let wrong = |reason: String| Err(SettingsError(reason));
        let mac: Mac = match mac.parse() {
            Ok(mac) => mac,
            Err(_) => {
                return wrong(format!(
                    "mac: expected an address such as 02:00:00:00:00:01, not \"{mac}\""
                ));
            }
        };
        if mac.is_multicast() || mac == Mac::default() {
            return wrong(format!("mac: {mac} is not a unicast address"));
        }
        if !(1..=MOST_ADDRESSES).contains(&addresses.len()) {
            let count = addresses.len();
            return wrong(format!(
                "addresses: expected 1 to {MOST_ADDRESSES}, not {count}"
            ));
        }
        let no_host = |address: &&IpAddr| address.is_multicast() || address.is_unspecified();
        if let Some(address) = addresses.iter().find(no_host) {
            return wrong(format!("addresses: {address} is not a unicast address"));
        }
        if let Some(name) = tap.as_ref().filter(|name| !is_name(name)) {
            return wrong(format!(
                "tap: expected the name of an interface to be made, of 1 to 15 letters and digits, not \"{name}\""
            ));
        }
        Ok(Self {
            port,
            own: Own {
                mac,
                addresses: addresses.into(),
            },
            tap_name: tap,
            tap: None,
            counts: Arc::default(),
        })
    }
}

impl Function for Host {
    fn process(&mut self, batch: &mut Batch, context: &Context) {
        if context.from_port != self.port {
            return;
        }
        let mut concerned = 0;
        for index in 0..batch.len() {
            if batch.is_kept(index)
                && let Some(cause) = self.own.concerned(batch.packets()[index].bytes())
            {
                batch.mark_punted(index, cause);
                concerned += 1;
            }
        }
        if concerned > 0 {
            self.counts
                .for_itself
                .fetch_add(concerned, Ordering::Relaxed);
        }
    }

    fn prepare(&mut self) -> Result<(), PortError> {
        self.tap = match &self.tap_name {
            Some(name) => Some(Tap::create(name, self.own.mac.0, TAP_MTU)?),
            None => None,
        };
        Ok(())
    }

    fn handler(&mut self) -> Option<Box<dyn Handler>> {
        let (port, counts) = (self.port, Arc::clone(&self.counts));
        let own = self.own.clone();
        Some(match self.tap.take() {
            Some(tap) => Box::new(Kernel {
                tap,
                port,
                own,
                counts,
                room: vec![0; LONGEST_FRAME_BYTES],
            }),
            None => Box::new(Answers {
                port,
                own,
                counts,
                reply: Vec::new(),
                errors: ErrorLimit::unused(),
            }),
        })
    }

    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        let counts = &self.counts;
        [
            ("for a port's own addresses", &counts.for_itself),
            ("neighbour answered", &counts.neighbour_answered),
            ("echo answered", &counts.echo_answered),
            ("told that no port listens", &counts.port_unreachable),
            ("to the kernel", &counts.to_kernel),
            ("from the kernel", &counts.from_kernel),
            ("not understood", &counts.not_understood),
            ("unanswered", &counts.unanswered),
        ]
        .map(|(cause, count)| (cause, count.load(Ordering::Relaxed)))
        .to_vec()
    }
}

/// The part of function HOST on the slow path, which makes the replies.
struct Answers {
    port: usize,
    own: Own,
    counts: Arc<Counts>,
    reply: Vec<u8>,
    errors: ErrorLimit,
}

impl Answers {
    /// Sends "port unreachable" to the sender of a datagram. Returns true if it was sent, false if the rate limit or
    /// the port refused it. Returns none if the datagram is incomplete, has a wrong checksum, or must not cause an ICMP
    /// error.
    fn refuse(&mut self, frame: &[u8], send: &mut Send<'_>) -> Option<bool> {
        let own = datagram_for(frame)?;
        let mut reply = [0; icmp_error::LONGEST_BYTES];
        let length = icmp_error(frame, IcmpError::NoPort, own, &mut reply)?;
        Some(self.errors.admits() && send(Passage::of_own(self.port), &reply[..length]))
    }
}

/// Returns the destination address of a UDP datagram; none if the datagram is incomplete or has a wrong checksum.
pub(crate) fn datagram_for(frame: &[u8]) -> Option<IpAddr> {
    let headers = Headers::of(frame);
    if headers.protocol() != IpProtocol::UDP || headers.is_fragment() {
        return None;
    }
    let udp = Udp::new(headers.transport_in(frame)).ok()?;
    let packet = frame.get(headers.ip()..)?;
    let pseudo_header = match headers.layer3() {
        Layer3::Ipv4 => {
            let ip = Ipv4::new(packet).ok()?;
            ip.verify_checksum().ok()?;
            ip.pseudo_header(udp.length())
        }
        _ => Ipv6::new(packet)
            .ok()?
            .pseudo_header(IpProtocol::UDP, udp.length().into()),
    };
    // A kernel on the same machine leaves the checksum to a NIC, which is absent here. The checksum field then contains
    // the sum of the pseudo header.
    let is_left_to_a_card = udp.checksum() == pseudo_header.fold();
    if !is_left_to_a_card && udp.verify_checksum(pseudo_header).is_err() {
        return None;
    }
    let (_, destination) = headers.addresses_in(frame);
    Some(Ipv6Addr::from_bits(destination).to_canonical())
}

impl Handler for Answers {
    fn handle(&mut self, punted: &Punted<'_>, send: &mut Send<'_>) -> bool {
        // Packets that other functions have punted are left to those functions.
        if punted.from_port != self.port || self.own.concerned(punted.frame).is_none() {
            return false;
        }
        let (answered, sent) = match punted.cause {
            Punt::Neighbour => {
                let mut reply = [0; resolution::LONGEST_BYTES];
                let mac_of = |ip| self.own.addresses.contains(&ip).then_some(self.own.mac);
                let length = resolution::answer(punted.frame, mac_of, &mut reply);
                let sent = length.map(|length| send(Passage::of_own(self.port), &reply[..length]));
                (&self.counts.neighbour_answered, sent)
            }
            Punt::Local => {
                self.reply.clear();
                self.reply.extend_from_slice(punted.frame);
                match echo(&mut self.reply) {
                    Some(()) => {
                        let sent = send(Passage::of_own(self.port), &self.reply);
                        (&self.counts.echo_answered, Some(sent))
                    }
                    None => {
                        let sent = self.refuse(punted.frame, send);
                        (&self.counts.port_unreachable, sent)
                    }
                }
            }
            _ => return false,
        };
        let count = match sent {
            Some(true) => answered,
            Some(false) => &self.counts.unanswered,
            None => &self.counts.not_understood,
        };
        count.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn is_over(&self) -> bool {
        Arc::strong_count(&self.counts) == 1
    }
}

/// The slow path of HOST if the kernel acts as the host. A tap interface passes packets for the host's addresses to the
/// kernel; packets from the kernel leave through the port.
struct Kernel {
    tap: Tap,
    port: usize,
    own: Own,
    counts: Arc<Counts>,
    room: Vec<u8>,
}

impl Handler for Kernel {
    fn handle(&mut self, punted: &Punted<'_>, _: &mut Send<'_>) -> bool {
        if punted.from_port != self.port || self.own.concerned(punted.frame).is_none() {
            return false;
        }
        let count = match self.tap.send(punted.frame) {
            true => &self.counts.to_kernel,
            false => &self.counts.unanswered,
        };
        count.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn poll(&mut self, send: &mut Send<'_>) -> bool {
        let mut taken = 0;
        while taken < AT_A_TIME
            && let Some(frame) = self.tap.receive(&mut self.room)
        {
            let count = match send(Passage::of_own(self.port), frame) {
                true => &self.counts.from_kernel,
                false => &self.counts.unanswered,
            };
            count.fetch_add(1, Ordering::Relaxed);
            taken += 1;
        }
        taken > 0
    }

    fn arm(&mut self, alarm: &mut Alarm) {
        self.tap.arm(alarm);
    }

    fn is_over(&self) -> bool {
        Arc::strong_count(&self.counts) == 1
    }
}

/// Turns an echo request into the reply in place; none if the request is incomplete or has a wrong checksum.
pub(crate) fn echo(frame: &mut [u8]) -> Option<()> {
    let mut ethernet = Ethernet::new(&mut *frame).ok()?;
    ethernet.swap_addresses();
    match ethernet.ethertype() {
        EtherType::IPV4 => {
            let packet = ethernet.payload_mut();
            Ipv4::new(&*packet).ok()?.verify_checksum().ok()?;
            *packet.get_mut(8)? = HOPS;
            let mut ip = Ipv4::new(packet).ok()?;
            let is_icmp = ip.protocol() == IpProtocol::ICMP && !ip.is_fragment();
            // A broadcast or a host without an address must get no reply (RFC 1122 section 3.2.2.6).
            let (from, to) = (ip.source(), ip.destination());
            let is_host = !from.is_multicast() && !from.is_broadcast() && !from.is_unspecified();
            if !is_icmp || !is_host {
                return None;
            }
            let icmp = Icmpv4::new(ip.payload()).ok()?;
            icmp.verify_checksum().ok()?;
            if (icmp.kind(), icmp.code()) != (ICMPV4_ECHO_REQUEST, 0) {
                return None;
            }
            ip.set_source(to);
            ip.set_destination(from);
            ip.fill_checksum();
            let message = ip.payload_mut();
            message[0] = 0;
            Icmpv4::new(message).ok()?.fill_checksum();
        }
        EtherType::IPV6 => {
            let payload = ethernet.payload_mut();
            let (from, to, length) = {
                let ip = Ipv6::new(&*payload).ok()?;
                if ip.next_header() != IpProtocol::ICMPV6 || ip.source().is_multicast() {
                    return None;
                }
                (ip.source(), ip.destination(), ip.payload().len())
            };
            let start = taut_wire::ipv6::HEADER_LEN_BYTES;
            let (header, message) = payload.split_at_mut_checked(start)?;
            let message = message.get_mut(..length)?;
            let pseudo =
                |from, to| pseudo_header_v6(from, to, IpProtocol::ICMPV6, message.len() as u32);
            let is_right = pseudo(from, to).combine(Sum::of(message)).is_valid();
            if !is_right || message.len() < 8 || message[..2] != [ICMPV6_ECHO_REQUEST, 0] {
                return None;
            }
            let sum = pseudo(to, from);
            header[7] = HOPS;
            header[8..24].copy_from_slice(&to.octets());
            header[24..40].copy_from_slice(&from.octets());
            message[0] = ICMPV6_ECHO_REPLY;
            message[2..4].fill(0);
            let sum = sum.combine(Sum::of(message)).checksum();
            message[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_port::{Mark, PoolHandle};
    use taut_wire::arp::Operation;
    use taut_wire::{ArpRepr, EthernetRepr, Icmpv4Repr, Ipv4Repr, Ipv6Repr, NeighbourRepr, Vlan};

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
    const OTHER: Mac = Mac([2, 0, 0, 0, 0, 7]);

    fn host() -> Host {
        let text = "mac = \"02:00:00:00:00:0a\"\naddresses = [\"192.0.2.1\", \"2001:db8::1\"]";
        Host::new(toml::from_str(text).unwrap()).unwrap()
    }

    fn ethernet(to: Mac, ethertype: EtherType) -> EthernetRepr {
        EthernetRepr {
            destination: to,
            source: OTHER,
            vlan: Vlan::Untagged,
            ethertype,
        }
    }

    /// Returns an echo request to the address `to` with some payload.
    fn echo_request(v6: bool, to: &str) -> Vec<u8> {
        let mut frame = vec![0; 14 + if v6 { 40 } else { 20 } + 8 + 30];
        let kind = if v6 { EtherType::IPV6 } else { EtherType::IPV4 };
        let mut outer = ethernet(OWN, kind).emit(&mut frame).unwrap();
        let to: IpAddr = to.parse().unwrap();
        match to {
            IpAddr::V4(to) => {
                let header = Ipv4Repr {
                    traffic_class: 0,
                    identification: 9,
                    dont_fragment: true,
                    more_fragments: false,
                    fragment_offset_bytes: 0,
                    ttl: 1,
                    protocol: IpProtocol::ICMP,
                    source: "192.0.2.7".parse().unwrap(),
                    destination: to,
                    options: &[],
                    payload_len_bytes: 38,
                };
                let mut ip = header.emit(outer.payload_mut()).unwrap();
                let request = Icmpv4Repr::EchoRequest {
                    identifier: 3,
                    sequence: 4,
                };
                let message = ip.payload_mut();
                request.emit(message).unwrap();
                message[8..].fill(0x5a);
                Icmpv4::new(message).unwrap().fill_checksum();
            }
            IpAddr::V6(to) => {
                let from = "2001:db8::7".parse().unwrap();
                let header = Ipv6Repr {
                    traffic_class: 0,
                    flow_label: 0,
                    next_header: IpProtocol::ICMPV6,
                    hop_limit: 1,
                    source: from,
                    destination: to,
                    payload_len_bytes: 38,
                };
                let mut ip = header.emit(outer.payload_mut()).unwrap();
                let message = ip.payload_mut();
                message[..8].copy_from_slice(&[ICMPV6_ECHO_REQUEST, 0, 0, 0, 0, 3, 0, 4]);
                message[8..].fill(0x5a);
                let sum = pseudo_header_v6(from, to, IpProtocol::ICMPV6, 38)
                    .combine(Sum::of(message))
                    .checksum();
                message[2..4].copy_from_slice(&sum.to_be_bytes());
            }
        }
        frame
    }

    fn neighbour_question(v6: bool) -> Vec<u8> {
        let mut frame = [0; resolution::LONGEST_BYTES];
        let length = if v6 {
            let question = NeighbourRepr::Solicitation {
                target: "2001:db8::1".parse().unwrap(),
                mac: OTHER,
            };
            let (group, mac) = taut_wire::neighbour::solicited_node("2001:db8::1".parse().unwrap());
            let ends = ("2001:db8::7".parse().unwrap(), group);
            resolution::neighbour_frame(
                &ethernet(mac, EtherType::IPV6),
                ends,
                &question,
                &mut frame,
            )
        } else {
            let question = ArpRepr {
                operation: Operation::REQUEST,
                sender_mac: OTHER,
                sender_ip: "192.0.2.7".parse().unwrap(),
                target_mac: Mac::default(),
                target_ip: "192.0.2.1".parse().unwrap(),
            };
            resolution::arp_frame(
                &ethernet(Mac::BROADCAST, EtherType::ARP),
                &question,
                &mut frame,
            )
        };
        frame[..length.unwrap()].to_vec()
    }

    /// Returns the worker's mark of a frame on the given port.
    fn mark(host: &mut Host, frame: &[u8], from_port: usize) -> Option<Mark> {
        let pool = PoolHandle::new(4, false).unwrap();
        let mut batch = Batch::new();
        pool.fill(&mut batch, 1, frame.len() as u16);
        batch.packets_mut()[0].bytes_mut().copy_from_slice(frame);
        let context = Context {
            from_port,
            ..Context::default()
        };
        host.process(&mut batch, &context);
        batch.mark(0)
    }

    /// Returns the frames that the slow path sends when it gets `frame` with the punt cause `cause`.
    fn answers(host: &mut Host, frame: &[u8], cause: Punt) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        let punted = Punted {
            frame,
            from_port: 0,
            cause,
        };
        let mut handler = host.handler().unwrap();
        let is_handled = handler.handle(&punted, &mut |way, frame| {
            assert_eq!(way, Passage::of_own(0));
            sent.push(frame.to_vec());
            true
        });
        assert_eq!(is_handled, host.own.concerned(frame).is_some());
        sent
    }

    #[test]
    fn only_packets_for_the_port_itself_leave_the_fast_path() {
        let mut host = host();
        for v6 in [false, true] {
            let own = if v6 { "2001:db8::1" } else { "192.0.2.1" };
            let other = if v6 { "2001:db8::2" } else { "192.0.2.2" };
            let request = echo_request(v6, own);
            assert_eq!(
                mark(&mut host, &request, 0),
                Some(Mark::Punted(Punt::Local))
            );
            assert_eq!(mark(&mut host, &request, 1), None);
            assert_eq!(mark(&mut host, &echo_request(v6, other), 0), None);
            let mut bridged = request.clone();
            bridged[..6].copy_from_slice(&OTHER.0);
            assert_eq!(mark(&mut host, &bridged, 0), None);
            let question = neighbour_question(v6);
            assert_eq!(
                mark(&mut host, &question, 0),
                Some(Mark::Punted(Punt::Neighbour))
            );
            for cut in 0..question.len().min(request.len()) {
                mark(&mut host, &request[..cut], 0);
                mark(&mut host, &question[..cut], 0);
            }
        }
    }

    #[test]
    fn neighbour_and_echo_requests_get_replies_with_correct_checksums() {
        let mut host = host();
        for v6 in [false, true] {
            let sent = answers(&mut host, &neighbour_question(v6), Punt::Neighbour);
            let answer = Ethernet::new(&sent[0][..]).unwrap();
            assert_eq!((answer.destination(), answer.source()), (OTHER, OWN));
            let own = if v6 { "2001:db8::1" } else { "192.0.2.1" };
            let sent = answers(&mut host, &echo_request(v6, own), Punt::Local);
            let answer = Ethernet::new(&sent[0][..]).unwrap();
            assert_eq!((answer.destination(), answer.source()), (OTHER, OWN));
            if v6 {
                let ip = Ipv6::new(answer.payload()).unwrap();
                assert_eq!(
                    (ip.source().to_string().as_str(), ip.hop_limit()),
                    (own, HOPS)
                );
                let sum = ip.pseudo_header(IpProtocol::ICMPV6, 38);
                assert!(sum.combine(Sum::of(ip.payload())).is_valid());
                assert_eq!(ip.payload()[..2], [ICMPV6_ECHO_REPLY, 0]);
            } else {
                let ip = Ipv4::new(answer.payload()).unwrap();
                ip.verify_checksum().unwrap();
                assert_eq!((ip.source().to_string().as_str(), ip.ttl()), (own, HOPS));
                let icmp = Icmpv4::new(ip.payload()).unwrap();
                icmp.verify_checksum().unwrap();
                let reply = Icmpv4Repr::EchoReply {
                    identifier: 3,
                    sequence: 4,
                };
                assert_eq!(Icmpv4Repr::parse(&icmp).unwrap(), reply);
            }
        }
        let counted = |host: &Host| -> Vec<u64> { host.outcomes().iter().map(|f| f.1).collect() };
        assert_eq!(counted(&host), [0, 2, 2, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn valid_udp_to_the_host_triggers_icmp_port_unreachable() {
        let mut host = host();
        for (v6, own, sender) in [
            (false, "192.0.2.1", "192.0.2.7"),
            (true, "2001:db8::1", "2001:db8::7"),
        ] {
            let flow = taut_wire::UdpFlow {
                src_mac: OTHER,
                dst_mac: OWN,
                src_ip: sender.parse().unwrap(),
                dst_ip: own.parse().unwrap(),
                ..taut_wire::UdpFlow::default()
            };
            let frame = flow.frame(100).unwrap();
            let sent = answers(&mut host, &frame, Punt::Local);
            let answer = Headers::of(&sent[0]);
            let mapped = |text: &str| taut_function::tuple::mapped(text.parse().unwrap());
            assert_eq!(answer.addresses_in(&sent[0]), (mapped(own), mapped(sender)));
            let head = if v6 { [1, 4] } else { [3, 3] };
            assert_eq!(answer.transport_in(&sent[0])[..2], head);
            let mut left = frame.clone();
            let (at, sum) = if v6 {
                let ip = Ipv6::new(&frame[14..]).unwrap();
                let length = ip.payload().len() as u32;
                (60, ip.pseudo_header(IpProtocol::UDP, length))
            } else {
                let ip = Ipv4::new(&frame[14..]).unwrap();
                (40, ip.pseudo_header(ip.payload().len() as u16))
            };
            left[at..at + 2].copy_from_slice(&sum.fold().to_be_bytes());
            assert_eq!(answers(&mut host, &left, Punt::Local).len(), 1, "{v6}");
            // One frame has a wrong checksum, another is truncated.
            for at in [frame.len() - 1, if v6 { 60 } else { 20 }] {
                let mut broken = frame.clone();
                broken[at] ^= 0x20;
                assert!(
                    answers(&mut host, &broken, Punt::Local).is_empty(),
                    "{v6} {at}"
                );
            }
        }
        let counts = &host.counts;
        assert_eq!(counts.port_unreachable.load(Ordering::Relaxed), 4);
        assert_eq!(counts.not_understood.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn invalid_requests_are_counted_and_get_no_reply() {
        let mut host = host();
        let mut not_answered = 0;
        for v6 in [false, true] {
            let own = if v6 { "2001:db8::1" } else { "192.0.2.1" };
            let whole = echo_request(v6, own);
            for at in [14, if v6 { 14 + 40 } else { 14 + 20 }, whole.len() - 1] {
                let mut broken = whole.clone();
                broken[at] ^= 0x11;
                assert!(
                    answers(&mut host, &broken, Punt::Local).is_empty(),
                    "{v6} {at}"
                );
                not_answered += u64::from(host.own.concerned(&broken).is_some());
            }
            for cut in 0..whole.len() {
                assert!(answers(&mut host, &whole[..cut], Punt::Local).is_empty());
                not_answered += u64::from(host.own.concerned(&whole[..cut]).is_some());
            }
        }
        assert!(not_answered >= 4);
        assert_eq!(
            host.counts.not_understood.load(Ordering::Relaxed),
            not_answered
        );
    }

    #[test]
    fn wrong_settings_cause_a_one_line_error() {
        for (text, part) in [
            ("mac = \"x\"\naddresses = [\"192.0.2.1\"]", "mac: expected"),
            (
                "mac = \"ff:ff:ff:ff:ff:ff\"\naddresses = [\"192.0.2.1\"]",
                "unicast address",
            ),
            (
                "mac = \"02:00:00:00:00:01\"\naddresses = []",
                "expected 1 to 64",
            ),
            (
                "mac = \"02:00:00:00:00:01\"\naddresses = [\"224.0.0.1\"]",
                "unicast address",
            ),
        ] {
            let wrong = Host::new(toml::from_str(text).unwrap()).err().unwrap();
            assert!(wrong.0.contains(part) && !wrong.0.contains('\n'), "{wrong}");
        }
    }
}
