//! The router on the slow path. It resolves neighbours and buffers packets for them, sends ICMP errors, fragments
//! packets above the MTU, and replies to requests to the router itself.

use super::control::Control;
use super::fast::{ETHERNET_BYTES, TAG_AT, TAG_BYTES, is_v4, rewrite, vlan_of};
use super::interface::Interface;
use super::neighbours::{At, Due, Wanted};
use super::taps::Taps;
use crate::host::{datagram_for, echo};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use taut_function::fragment::{Uncut, may_be_cut};
use taut_function::slow::{ErrorLimit, Handler, Passage, Punted, Send};
use taut_port::Punt;
use taut_sys::Alarm;
use taut_wire::arp::Operation;
use taut_wire::neighbour::solicited_node;
use taut_wire::{
    Arp, ArpRepr, EtherType, Ethernet, EthernetRepr, Headers, IcmpError, Mac, NeighbourRepr, Vlan,
    icmp_error, resolution,
};

/// The counts of the slow path: the results of punted packets, and the packets that the slow path creates.
#[derive(Debug, Default)]
pub(super) struct Counts {
    forwarded: AtomicU64,
    cut: AtomicU64,
    pushed_out: AtomicU64,
    crowded: AtomicU64,
    unanswered: AtomicU64,
    time_exceeded: AtomicU64,
    no_route: AtomicU64,
    prohibited: AtomicU64,
    too_big: AtomicU64,
    no_port: AtomicU64,
    not_told: AtomicU64,
    neighbours: AtomicU64,
    echo: AtomicU64,
    not_understood: AtomicU64,
    unsent: AtomicU64,
    no_room: AtomicU64,
    asked: AtomicU64,
    to_kernel: AtomicU64,
    kernel_refused: AtomicU64,
    from_kernel: AtomicU64,
}

/// The names of the counts of dropped packets. In most of these cases, the sender gets an ICMP error.
pub(super) const DROPS: [&str; 9] = [
    "slow path: dropped, as too many wait for the neighbour",
    "slow path: dropped, as too many neighbours are asked for",
    "slow path: dropped, as the kernel did not take them",
    "slow path: dropped, as there was no room to send them",
    "slow path: the neighbour does not answer",
    "slow path: no hops left",
    "slow path: no route",
    "slow path: prohibited",
    "slow path: too big",
];

impl Counts {
    pub fn outcomes(&self) -> Vec<(&'static str, u64)> {
        [
            ("slow path: forwarded", &self.forwarded),
            ("slow path: cut, and forwarded", &self.cut),
            (
                "slow path: dropped, as too many wait for the neighbour",
                &self.pushed_out,
            ),
            (
                "slow path: dropped, as too many neighbours are asked for",
                &self.crowded,
            ),
            ("slow path: the neighbour does not answer", &self.unanswered),
            ("slow path: no hops left", &self.time_exceeded),
            ("slow path: no route", &self.no_route),
            ("slow path: prohibited", &self.prohibited),
            ("slow path: too big", &self.too_big),
            ("slow path: no port listens", &self.no_port),
            ("slow path: from or about neighbours", &self.neighbours),
            ("slow path: echo answered", &self.echo),
            ("slow path: not understood", &self.not_understood),
            ("slow path: to the kernel", &self.to_kernel),
            (
                "slow path: dropped, as the kernel did not take them",
                &self.kernel_refused,
            ),
            (
                "slow path: dropped, as there was no room to send them",
                &self.unsent,
            ),
            (
                "slow path: from the kernel, beside the above",
                &self.from_kernel,
            ),
            (
                "slow path: no room to send, beside the above",
                &self.no_room,
            ),
            (
                "slow path: senders not told, beside the above",
                &self.not_told,
            ),
            (
                "slow path: questions for neighbours, beside the above",
                &self.asked,
            ),
        ]
        .map(|(cause, count)| (cause, count.load(Ordering::Relaxed)))
        .to_vec()
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

pub(super) struct SlowPath {
    interfaces: Arc<[Interface]>,
    control: Arc<Mutex<Control>>,
    counts: Arc<Counts>,
    errors: ErrorLimit,
    /// The kernel's interfaces, and true if this slow path reads from them; none if the settings name no such
    /// interface.
    taps: Option<(Arc<Taps>, bool)>,
    /// True if frames of at least one interface are tagged.
    has_tags: bool,
    scratch: Vec<u8>,
}

impl SlowPath {
    pub fn new(
        interfaces: &Arc<[Interface]>,
        control: &Arc<Mutex<Control>>,
        counts: &Arc<Counts>,
    ) -> Self {
        Self {
            interfaces: Arc::clone(interfaces),
            control: Arc::clone(control),
            counts: Arc::clone(counts),
            errors: ErrorLimit::unused(),
            taps: None,
            has_tags: interfaces.iter().any(|it| it.vlan.is_some()),
            scratch: Vec::new(),
        }
    }

    /// Adds the kernel's interfaces. Only the slow path of one worker reads from them; `receives` is true for that slow
    /// path.
    pub fn with_taps(self, taps: Option<&Arc<Taps>>, receives: bool) -> Self {
        Self {
            taps: taps.map(|taps| (Arc::clone(taps), receives)),
            ..self
        }
    }

    fn is_kernels(&self, port: usize) -> bool {
        self.taps.as_ref().is_some_and(|(taps, _)| taps.has(port))
    }

    /// Passes a frame that arrived at `port` to the kernel. The frame is for the router itself, or for a multicast
    /// group of which the kernel may be a member.
    fn give_kernel(&self, port: usize, frame: &[u8]) {
        let is_taken = self
            .taps
            .as_ref()
            .is_some_and(|(taps, _)| taps.send(port, frame));
        count(match is_taken {
            true => &self.counts.to_kernel,
            false => &self.counts.kernel_refused,
        });
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an ICMP error to the sender of a packet that arrived at `port`.
    fn tell(&mut self, port: usize, frame: &[u8], error: IcmpError, send: &mut Send<'_>) {
        let counter = match error {
            IcmpError::TimeExceeded => &self.counts.time_exceeded,
            IcmpError::NoRoute => &self.counts.no_route,
            IcmpError::NoNeighbour => &self.counts.unanswered,
            IcmpError::Prohibited => &self.counts.prohibited,
            IcmpError::NoPort => &self.counts.no_port,
            IcmpError::TooBig(_) => &self.counts.too_big,
        };
        count(counter);
        let (sender, _) = addresses(frame);
        let own = self.control().address_towards(port as u8, sender);
        let mut reply = [0; icmp_error::LONGEST_BYTES];
        let length = own.and_then(|own| icmp_error(frame, error, own, &mut reply));
        let is_told = length.is_some_and(|length| {
            self.errors.admits() && send(Passage::of_own(port), &reply[..length])
        });
        if !is_told {
            count(&self.counts.not_told);
        }
    }

    /// Forwards a packet whose neighbour was unresolved, or one above the MTU of its egress link.
    fn forward(&mut self, port: usize, frame: &[u8], send: &mut Send<'_>) {
        let (_, destination) = addresses(frame);
        let mut control = self.control();
        let all = control.neighbours_towards(control.table_of(port as u8), destination);
        let known = all.iter().find_map(|at| Some((*at, control.mac(*at)?)));
        let Some(first) = all.first().copied() else {
            drop(control);
            // The route has been removed in the meantime.
            self.tell(port, frame, IcmpError::NoRoute, send);
            return;
        };
        let (at, wanted) = match known {
            Some((at, mac)) => (at, Wanted::Known(mac)),
            None => (
                first,
                control.want(first, (port as u8, frame), Instant::now()),
            ),
        };
        drop(control);
        match wanted {
            Wanted::Known(mac) => self.emit(port, frame, (at.0, mac), send),
            Wanted::Ask => self.ask(at, None, send),
            Wanted::Waits { pushed_out: true } => count(&self.counts.pushed_out),
            Wanted::Waits { pushed_out: false } => {}
            Wanted::Crowded => count(&self.counts.crowded),
            Wanted::Failed => self.tell(port, frame, IcmpError::NoNeighbour, send),
        }
    }

    /// Sends a packet that arrived at `from` to a neighbour.
    fn emit(&mut self, from: usize, frame: &[u8], (port, mac): (u8, Mac), send: &mut Send<'_>) {
        let Some(interface) = self.interfaces.get(usize::from(port)) else {
            return;
        };
        let hops_at = ETHERNET_BYTES + if is_v4(frame) { 8 } else { 7 };
        if frame.get(hops_at).is_none_or(|hops| *hops <= 1) {
            self.tell(from, frame, IcmpError::TimeExceeded, send);
            return;
        }
        let (source, mtu) = (interface.mac, interface.mtu);
        self.scratch.clear();
        self.scratch.extend_from_slice(frame);
        rewrite(&mut self.scratch, source, mac);
        let end = Headers::of(frame).end();
        let is_too_long = end.saturating_sub(ETHERNET_BYTES) > usize::from(mtu);
        if is_too_long && let Err(why) = may_be_cut(&self.scratch, mtu) {
            match why {
                Uncut::Not => self.tell(from, frame, IcmpError::TooBig(mtu), send),
                Uncut::Malformed => count(&self.counts.not_understood),
            }
            return;
        }
        let way = Passage {
            mtu: is_too_long.then_some(mtu),
            ..Passage::between(from, port.into())
        };
        match (send(way, &self.scratch), is_too_long) {
            (true, false) => count(&self.counts.forwarded),
            (true, true) => count(&self.counts.cut),
            (false, _) => count(&self.counts.unsent),
        }
    }

    /// Requests the MAC address of a neighbour: by unicast to its last known address `mac`, or by multicast if `mac` is
    /// none.
    fn ask(&self, (port, ip): At, mac: Option<Mac>, send: &mut Send<'_>) {
        let Some(interface) = self.interfaces.get(usize::from(port)) else {
            return;
        };
        let mut question = [0; resolution::LONGEST_BYTES];
        let header = |destination, ethertype| EthernetRepr {
            destination,
            source: interface.mac,
            vlan: Vlan::Untagged,
            ethertype,
        };
        let own = self.control().address_towards(port, ip);
        let length = match (ip, own) {
            (IpAddr::V4(target_ip), own) => {
                // If the router has no address on the interface, the request is a probe (RFC 5227 section 1.1).
                let sender_ip = match own {
                    Some(IpAddr::V4(own)) => own,
                    _ => Ipv4Addr::UNSPECIFIED,
                };
                let asked = ArpRepr {
                    operation: Operation::REQUEST,
                    sender_mac: interface.mac,
                    sender_ip,
                    target_mac: mac.unwrap_or_default(),
                    target_ip,
                };
                let header = header(mac.unwrap_or(Mac::BROADCAST), EtherType::ARP);
                resolution::arp_frame(&header, &asked, &mut question)
            }
            (IpAddr::V6(target), Some(IpAddr::V6(own))) => {
                let (group, group_mac) = solicited_node(target);
                let (to, to_mac) = mac.map_or((group, group_mac), |mac| (target, mac));
                let asked = NeighbourRepr::Solicitation {
                    target,
                    mac: interface.mac,
                };
                let header = header(to_mac, EtherType::IPV6);
                resolution::neighbour_frame(&header, (own, to), &asked, &mut question)
            }
            (IpAddr::V6(_), _) => None,
        };
        if length.is_some_and(|length| send(Passage::of_own(port.into()), &question[..length])) {
            count(&self.counts.asked);
        }
    }

    /// Processes a neighbour message: records the neighbour's MAC address, sends the packets that waited for the
    /// neighbour, and replies to a request.
    fn hear(&mut self, port: usize, frame: &[u8], send: &mut Send<'_>) {
        let Some(mac_of_port) = self.interfaces.get(port).map(|it| it.mac) else {
            return;
        };
        let number = port as u8;
        if let Some((ip, mac, asked)) = said(frame)
            && !mac.is_multicast()
        {
            let mut control = self.control();
            let asks_us = asked.is_some_and(|asked| control.is_own(number, asked));
            let waited = match control.is_own(number, ip) {
                true => Vec::new(),
                false => control.learn((number, ip), mac, asks_us, Instant::now()),
            };
            drop(control);
            for (from, frame) in waited {
                self.emit(from.into(), &frame, (number, mac), send);
            }
        }
        if self.is_kernels(port) {
            self.give_kernel(port, frame);
            return;
        }
        count(&self.counts.neighbours);
        let mut reply = [0; resolution::LONGEST_BYTES];
        let control = self.control();
        let mac_of = |ip| control.is_own(number, ip).then_some(mac_of_port);
        let answer = resolution::answer(frame, mac_of, &mut reply);
        drop(control);
        if answer.is_some_and(|length| !send(Passage::of_own(port), &reply[..length])) {
            count(&self.counts.no_room);
        }
    }

    /// Processes an untagged frame that arrived at an interface and was punted with `cause`.
    fn do_with(&mut self, port: usize, frame: &[u8], cause: Punt, send: &mut Send<'_>) {
        match cause {
            Punt::Neighbour => self.hear(port, frame, send),
            Punt::Local => match said(frame) {
                // The worker cannot distinguish a unicast neighbour request from other packets.
                Some(_) => self.hear(port, frame, send),
                None if self.is_kernels(port) => self.give_kernel(port, frame),
                None => self.answer(port, frame, send),
            },
            Punt::Unresolved | Punt::TooBig(_) => self.forward(port, frame, send),
            Punt::TimeExceeded => self.tell(port, frame, IcmpError::TimeExceeded, send),
            Punt::Unknown => self.tell(port, frame, IcmpError::NoRoute, send),
            Punt::Unreachable => self.tell(port, frame, IcmpError::NoNeighbour, send),
            Punt::Prohibited => self.tell(port, frame, IcmpError::Prohibited, send),
            // These causes belong to other functions.
            Punt::Rejected | Punt::Fragment | Punt::LastFragment | Punt::Made { .. } => {}
        }
    }

    /// Replies to an echo request or a datagram for the router itself.
    fn answer(&mut self, port: usize, frame: &[u8], send: &mut Send<'_>) {
        self.scratch.clear();
        self.scratch.extend_from_slice(frame);
        if echo(&mut self.scratch).is_some() {
            match send(Passage::of_own(port), &self.scratch) {
                true => count(&self.counts.echo),
                false => count(&self.counts.unsent),
            }
        } else if datagram_for(frame).is_some() {
            self.tell(port, frame, IcmpError::NoPort, send);
        } else {
            count(&self.counts.not_understood);
        }
    }
}

/// Returns a function that sends untagged frames through interfaces, and adds the tag that frames have on the
/// interface.
fn by_interface<'a>(
    interfaces: &'a [Interface],
    send: &'a mut Send<'_>,
) -> impl FnMut(Passage, &[u8]) -> bool + 'a {
    let port_of = |number: usize| interfaces.get(number).map(|it| usize::from(it.port));
    move |way, frame| {
        let Some(interface) = interfaces.get(way.to_port) else {
            return false;
        };
        let way = Passage {
            from_port: way.from_port.and_then(port_of),
            to_port: interface.port.into(),
            ..way
        };
        match (interface.vlan, frame.split_at_checked(TAG_AT)) {
            (Some(vlan), Some((addresses, rest))) => {
                let [high, low] = vlan.to_be_bytes();
                send(way, &[addresses, &[0x81, 0x00, high, low], rest].concat())
            }
            _ => send(way, frame),
        }
    }
}

/// Returns the source and destination addresses of the IP packet in a frame.
fn addresses(frame: &[u8]) -> (IpAddr, IpAddr) {
    let (source, destination) = Headers::of(frame).addresses_in(frame);
    let address = |bits: u128| Ipv6Addr::from_bits(bits).to_canonical();
    (address(source), address(destination))
}

/// Parses a neighbour message. Returns the sender's IP and MAC address, and the IP address that the message requests,
/// if any.
fn said(frame: &[u8]) -> Option<(IpAddr, Mac, Option<IpAddr>)> {
    let ethernet = Ethernet::new(frame).ok()?;
    if ethernet.ethertype() == EtherType::ARP {
        let arp = Arp::new(ethernet.payload()).ok()?;
        let asked = arp.target_ip().into();
        let is_nobody = arp.sender_ip().is_unspecified();
        return (!is_nobody).then(|| (arp.sender_ip().into(), arp.sender_mac(), Some(asked)));
    }
    let (from, message) = resolution::neighbour_message(&ethernet)?;
    if message.is_solicitation() {
        let asked = message.target().into();
        return (!from.is_unspecified()).then_some((from.into(), message.mac()?, Some(asked)));
    }
    let mac = message.mac().unwrap_or(ethernet.source());
    Some((message.target().into(), mac, None))
}

impl Handler for SlowPath {
    fn handle(&mut self, punted: &Punted<'_>, send: &mut Send<'_>) -> bool {
        if matches!(
            punted.cause,
            Punt::Rejected | Punt::Fragment | Punt::LastFragment | Punt::Made { .. }
        ) {
            return false;
        }
        let on_port = |it: &&Interface| usize::from(it.port) == punted.from_port;
        let vlan = vlan_of(punted.frame).filter(|_| self.has_tags);
        let is_it = |it: &Interface| on_port(&it) && it.vlan == vlan;
        // The worker has already found an interface for this frame.
        let Some(number) = self.interfaces.iter().position(is_it) else {
            count(&self.counts.not_understood);
            return true;
        };
        let interfaces = Arc::clone(&self.interfaces);
        let mut send = by_interface(&interfaces, send);
        match vlan {
            None => self.do_with(number, punted.frame, punted.cause, &mut send),
            Some(_) => {
                let frame = [&punted.frame[..TAG_AT], &punted.frame[TAG_AT + TAG_BYTES..]].concat();
                self.do_with(number, &frame, punted.cause, &mut send);
            }
        }
        true
    }

    fn poll(&mut self, send: &mut Send<'_>) -> bool {
        let interfaces = Arc::clone(&self.interfaces);
        let send = &mut by_interface(&interfaces, send);
        let mut control = self.control();
        let due = control.tick(Instant::now());
        let released = control.take_released();
        drop(control);
        let mut is_some = !due.is_empty() || !released.is_empty();
        for ((port, _), mac, (from, frame)) in released {
            self.emit(from.into(), &frame, (port, mac), send);
        }
        for each in due {
            match each {
                Due::Ask(at, mac) => self.ask(at, mac, send),
                Due::GivenUp(_, waited) | Due::Stranded(waited) => {
                    for (from, frame) in waited {
                        self.tell(from.into(), &frame, IcmpError::NoNeighbour, send);
                    }
                }
                Due::Gone(_) => {}
            }
        }
        if let Some((taps, true)) = &self.taps {
            let counts = &self.counts;
            is_some |= taps.receive(&mut self.scratch, |port, frame| {
                count(match send(Passage::of_own(port), frame) {
                    true => &counts.from_kernel,
                    false => &counts.no_room,
                });
            });
        }
        is_some
    }

    fn arm(&mut self, alarm: &mut Alarm) {
        if let Some((taps, true)) = &self.taps {
            taps.arm(alarm);
        }
    }

    fn is_over(&self) -> bool {
        Arc::strong_count(&self.counts) == 1
    }
}
