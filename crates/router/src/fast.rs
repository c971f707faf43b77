//! The data plane of the router: checks each packet, looks up its next hop, and sets the MAC addresses for the next
//! link. (RFC 1812 section 5.2, RFC 8200.) All other work belongs to the slow path.

use super::control::Fibs;
use super::hop::{Hop, Hops, Used};
use super::interface::Interface;
use crate::host::Own;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use taut_function::Context;
use taut_function::budget::Budget;
use taut_function::changes::Receiver;
use taut_function::mix::mix;
use taut_function::resize::move_start;
use taut_lpm::NextHop;
use taut_port::{BATCH_CAPACITY, Batch, Packet, PoolHandle, Punt};
use taut_sys::{Clock, HashKey};
use taut_wire::{EtherType, Ethernet, Headers, Ipv4, Mac, Sum, checksum, resolution};

/// The length of an Ethernet header without tags, in bytes.
pub(super) const ETHERNET_BYTES: usize = 14;
/// The number of egress interfaces that the entry of a next hop can refer to.
const MOST_EXITS: usize = 1 << u8::BITS;
/// The offset and the length of a VLAN tag, in bytes (IEEE 802.1Q-2018 section 9.6).
pub(super) const TAG_AT: usize = 12;
pub(super) const TAG_BYTES: usize = 4;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const TTL_AT: usize = ETHERNET_BYTES + 8;
const PROTOCOL_AT: usize = TTL_AT + 1;
const CHECKSUM_AT: usize = TTL_AT + 2;
const HOP_LIMIT_AT: usize = ETHERNET_BYTES + 7;
const V6_SOURCE_AT: usize = ETHERNET_BYTES + 8;
const V6_DESTINATION_AT: usize = V6_SOURCE_AT + 16;

/// The outcome of a packet in the worker: forwarded, dropped for a cause, or punted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Forwarded,
    SlowPath,
    NotForUs,
    NoInterface,
    NoIp,
    Malformed,
    BadChecksum,
    Martian,
    Blackhole,
    Excess,
    NoMemory,
}

/// The names of the outcomes, in the order of [`Outcome`].
pub(super) const OUTCOMES: [&str; 11] = [
    "forwarded",
    "to the slow path",
    "dropped: for another station",
    "dropped: the port has no interface",
    "dropped: neither IP nor ARP",
    "dropped: malformed",
    "dropped: wrong checksum",
    "dropped: from or to an address that nobody has",
    "dropped: blackhole route",
    "dropped: more than the slow path is given",
    "dropped: no memory for a VLAN tag",
];

/// The result of the first check of a packet: its destination, or the reason why it needs no lookup.
enum Look {
    V4(u32),
    V6([u8; 16]),
    Punt(Punt),
    /// The frame is broadcast or multicast, and is punted to the kernel.
    Group(Punt),
    Drop(Outcome),
}

/// The maximum number of punted packets other than neighbour messages in a burst. The next constant is the interval
/// between such packets after a burst, ns. The limits leave the remaining space of the slow path's ring to neighbour
/// messages, so that a flood to an unresolved neighbour cannot displace the neighbour's reply.
const TROUBLE_AT_ONCE: u64 = 256;
const TROUBLE_APART_NS: f64 = 10_000.0;

/// Returns the VLAN identifier in the tag of a frame; none if the frame has no tag.
#[inline(always)]
pub(super) fn vlan_of(frame: &[u8]) -> Option<u16> {
    match frame.get(TAG_AT..TAG_AT + TAG_BYTES) {
        Some(&[0x81, 0x00, high, low]) => Some(u16::from_be_bytes([high, low]) & 0xfff),
        _ => None,
    }
}

/// The numbers of the router's interfaces on one port.
#[derive(Debug, Clone, Default)]
struct OnPort {
    untagged: Option<u8>,
    /// Pairs of a VLAN identifier and the number of its interface.
    tagged: Vec<(u16, u8)>,
}

impl OnPort {
    /// Returns the ingress interface of a frame, and the number of tag bytes in its header.
    #[inline(always)]
    fn of(&self, frame: &[u8]) -> Option<(u8, usize)> {
        if self.tagged.is_empty() {
            return self.untagged.map(|number| (number, 0));
        }
        let Some(vlan) = vlan_of(frame) else {
            return self.untagged.map(|number| (number, 0));
        };
        let mut tagged = self.tagged.iter();
        tagged.find_map(|(of, number)| (*of == vlan).then_some((*number, TAG_BYTES)))
    }
}

/// The packets of a batch whose destinations must be looked up, for one address family.
struct Asking<A> {
    count: usize,
    addresses: [A; BATCH_CAPACITY],
    packets: [Asked; BATCH_CAPACITY],
}

/// A packet whose destination must be looked up.
#[derive(Debug, Clone, Copy, Default)]
struct Asked {
    /// The index of the packet in the batch.
    index: u8,
    /// The length of the packet's VLAN tag in bytes; 0 for none.
    tag: u8,
    /// The number of the table in which the packet is looked up.
    table: u8,
}

impl<A: Copy + Default> Asking<A> {
    fn new() -> Self {
        Self {
            count: 0,
            addresses: [A::default(); BATCH_CAPACITY],
            packets: [Asked::default(); BATCH_CAPACITY],
        }
    }

    #[inline(always)]
    fn add(&mut self, address: A, packet: Asked) {
        let at = self.count % BATCH_CAPACITY;
        self.addresses[at] = address;
        self.packets[at] = packet;
        self.count += 1;
    }

    /// Looks up the next hops of the packets: calls `look` once for all packets if they use the same table, else once
    /// per packet. Returns the numbers of the next hops, and how many there are.
    #[inline(always)]
    fn numbers<const TAGGED: bool>(
        &self,
        mut look: impl FnMut(usize, &[A], &mut [NextHop]),
    ) -> ([NextHop; BATCH_CAPACITY], usize) {
        let mut numbers = [NextHop::NONE; BATCH_CAPACITY];
        let count = self.count.min(BATCH_CAPACITY);
        let packets = &self.packets[..count];
        let Some(first) = packets.first() else {
            return (numbers, 0);
        };
        // Packets without tags arrived at the same interface, so they use the same table.
        if !TAGGED || packets.iter().all(|packet| packet.table == first.table) {
            look(
                first.table.into(),
                &self.addresses[..count],
                &mut numbers[..count],
            );
        } else {
            for (at, packet) in packets.iter().enumerate() {
                look(
                    packet.table.into(),
                    &self.addresses[at..=at],
                    &mut numbers[at..=at],
                );
            }
        }
        (numbers, count)
    }
}

/// The properties of an egress interface that a worker needs to forward packets.
#[derive(Debug, Clone, Copy, Default)]
struct Exit {
    mac: Mac,
    mtu: u16,
    port: u8,
    /// The VLAN identifier in tags of outgoing frames; none if these frames have no tag.
    vlan: Option<u16>,
}

/// Consecutive packets of one batch that took the same next hop.
#[derive(Debug, Clone, Copy)]
struct Run {
    number: NextHop,
    packets: u64,
}

/// A worker's data plane of the router.
pub(super) struct Plane {
    /// The interfaces on each port, by port number.
    ports: Vec<OnPort>,
    /// The properties of the ingress interfaces, by interface number.
    ears: Vec<Ears>,
    /// The properties of the egress interfaces, by interface number. Every possible number has an entry, so that no
    /// bounds check is needed.
    exits: Box<[Exit; MOST_EXITS]>,
    fibs: Fibs,
    hops: Arc<Hops>,
    used: Used,
    /// The pool for packets that get a VLAN tag without headroom for it; none if no interface has tags.
    pool: Option<PoolHandle>,
    /// The receiver of the control plane's requests for a grace period.
    pub receiver: Receiver<()>,
    /// The seed of the flow hash, the same for all workers and for the kernel. It is secret, so that a sender cannot
    /// choose the next hop of its flows.
    flow_seed: u64,
    pub counts: [u64; OUTCOMES.len()],
    trouble: Budget,
    /// The limit on broadcast and multicast frames that the kernel receives.
    heard: Budget,
}

/// The properties of an ingress interface that a worker needs.
struct Ears {
    mac: Mac,
    /// The number of the table in which packets from the interface are looked up.
    table: u8,
    own: Own,
    /// True if the kernel receives multicast packets and packets for the router itself.
    is_kernels: bool,
}

impl Ears {
    /// Returns the punt cause of a frame for the router's MAC address, or of a broadcast or multicast frame.
    fn concerned(&self, frame: &[u8]) -> Option<Punt> {
        match self.is_kernels {
            true => Some(of_kernel(frame)),
            false => self.own.concerned(frame),
        }
    }
}

impl Plane {
    pub fn new(
        interfaces: &Arc<[Interface]>,
        (fibs, hops): (Fibs, Arc<Hops>),
        used: Used,
        pool: Option<PoolHandle>,
        receiver: Receiver<()>,
        clock: &Clock,
    ) -> Self {
        let own = interfaces.iter().map(|it| Ears {
            mac: it.mac,
            table: it.table,
            own: Own::new(it.mac, &it.addresses.own().collect()),
            is_kernels: it.tap.is_some(),
        });
        Self {
            ears: own.collect(),
            exits: exits_of(interfaces),
            ports: ports_of(interfaces),
            fibs,
            hops,
            used,
            pool,
            receiver,
            flow_seed: HashKey::of_process().seed(),
            counts: [0; OUTCOMES.len()],
            trouble: Budget::new(TROUBLE_AT_ONCE, clock.to_ticks(TROUBLE_APART_NS) as u64, 0),
            heard: Budget::new(TROUBLE_AT_ONCE, clock.to_ticks(TROUBLE_APART_NS) as u64, 0),
        }
    }

    pub fn process(&mut self, batch: &mut Batch, context: &Context) {
        self.receiver.take(drop);
        if batch.is_empty() {
            return;
        }
        match self.ports.get(context.from_port) {
            Some(on_port) if !on_port.tagged.is_empty() => self.pass::<true>(batch, context),
            Some(on_port) if on_port.untagged.is_some() => self.pass::<false>(batch, context),
            _ => {
                for index in 0..batch.len() {
                    if batch.is_kept(index) {
                        batch.mark_dropped(index);
                        self.counts[Outcome::NoInterface as usize] += 1;
                    }
                }
            }
        }
    }

    /// Processes packets that arrived at a port with VLANs (`TAGGED`), or at a port that is a single interface.
    #[inline(always)]
    fn pass<const TAGGED: bool>(&mut self, batch: &mut Batch, context: &Context) {
        let on_port = &self.ports[context.from_port];
        let only = on_port
            .untagged
            .and_then(|number| self.ears.get(usize::from(number)));
        // Addresses of one family are stored together, so that one lookup covers all of them.
        let mut four = Asking::<u32>::new();
        let mut six = Asking::<[u8; 16]>::new();
        for index in 0..batch.len() {
            if !batch.is_kept(index) {
                continue;
            }
            let frame = batch.packets()[index].bytes();
            let found = match TAGGED {
                false => only.map(|ears| (ears, 0)),
                true => on_port
                    .of(frame)
                    .and_then(|(number, tag)| Some((self.ears.get(usize::from(number))?, tag))),
            };
            let Some((ears, tag)) = found else {
                batch.mark_dropped(index);
                self.counts[Outcome::NoInterface as usize] += 1;
                continue;
            };
            let packet = Asked {
                index: index as u8,
                tag: tag as u8,
                table: ears.table,
            };
            match look(frame, tag, ears) {
                Look::V4(address) => four.add(address, packet),
                Look::V6(address) => six.add(address, packet),
                Look::Punt(cause) => {
                    batch.mark_punted(index, cause);
                    self.counts[Outcome::SlowPath as usize] += 1;
                }
                Look::Group(cause) => {
                    let outcome = match self.heard.admits(context.now_ticks) {
                        true => {
                            batch.mark_punted(index, cause);
                            Outcome::SlowPath
                        }
                        false => {
                            batch.mark_dropped(index);
                            Outcome::Excess
                        }
                    };
                    self.counts[outcome as usize] += 1;
                }
                Look::Drop(outcome) => {
                    batch.mark_dropped(index);
                    self.counts[outcome as usize] += 1;
                }
            }
        }
        if four.count > 0 {
            let fibs = &self.fibs;
            let (numbers, count) = four.numbers::<TAGGED>(|table, addresses, numbers| {
                if let Some((v4, _)) = fibs.get(table) {
                    v4.lookup_batch(addresses, numbers);
                }
            });
            self.forward_all::<true, TAGGED>(batch, &four.packets[..count], &numbers, context);
        }
        if six.count > 0 {
            let fibs = &self.fibs;
            let (numbers, count) = six.numbers::<TAGGED>(|table, addresses, numbers| {
                if let Some((_, v6)) = fibs.get(table) {
                    v6.lookup_batch(addresses, numbers);
                }
            });
            self.forward_all::<false, TAGGED>(batch, &six.packets[..count], &numbers, context);
        }
    }

    #[inline(always)]
    fn forward_all<const IS_V4: bool, const TAGGED: bool>(
        &mut self,
        batch: &mut Batch,
        packets: &[Asked],
        numbers: &[NextHop; BATCH_CAPACITY],
        context: &Context,
    ) {
        let mut forwarded = 0;
        let mut run = Run {
            number: NextHop::NONE,
            packets: 0,
        };
        for (packet, number) in packets.iter().zip(numbers) {
            let outcome = self.forward::<IS_V4, TAGGED>(batch, *packet, *number, context);
            if outcome != Outcome::Forwarded {
                self.counts[outcome as usize] += 1;
                continue;
            }
            forwarded += 1;
            if *number != run.number {
                self.count(run);
                run = Run {
                    number: *number,
                    packets: 0,
                };
            }
            run.packets += 1;
        }
        self.count(run);
        self.counts[Outcome::Forwarded as usize] += forwarded;
    }

    /// Counts the packets of `run`, which used one next hop. Only this worker writes the counter.
    #[inline(always)]
    fn count(&self, run: Run) {
        if let Some(used) = self.used.get(run.number.index()) {
            used.store(
                used.load(Ordering::Relaxed) + run.packets,
                Ordering::Relaxed,
            );
        }
    }

    /// Forwards a checked packet, or drops or punts it, depending on its next hop.
    #[inline(always)]
    fn forward<const IS_V4: bool, const TAGGED: bool>(
        &mut self,
        batch: &mut Batch,
        Asked { index, tag, .. }: Asked,
        number: NextHop,
        context: &Context,
    ) -> Outcome {
        let index = usize::from(index);
        let tag = if TAGGED { usize::from(tag) } else { 0 };
        let frame = batch.packets()[index].bytes();
        let mut hop = self.hops.get(number);
        if let Hop::Group(group) = hop {
            hop = self.hops.of_group(group, flow_of(self.flow_seed, frame));
        }
        // From here on, offsets are those of a frame without a tag.
        let frame = frame.get(tag..).unwrap_or_default();
        let cause = match hop {
            Hop::Forward { port, mac } => {
                let to = self.exits[usize::from(port)];
                let (source, mtu) = (to.mac, to.mtu);
                let (hops_left, length) = if IS_V4 {
                    (frame[TTL_AT], u16::from_be_bytes([frame[16], frame[17]]))
                } else {
                    let payload = u16::from_be_bytes([frame[18], frame[19]]);
                    (
                        frame[HOP_LIMIT_AT],
                        payload.saturating_add(IPV6_BYTES as u16),
                    )
                };
                if hops_left <= 1 {
                    Punt::TimeExceeded
                } else if length > mtu {
                    Punt::TooBig(mtu)
                } else if tag == 0 && to.vlan.is_none() {
                    rewrite(batch.packet_mut_but_headers(index).bytes_mut(), source, mac);
                    batch.send_to(index, to.port);
                    return Outcome::Forwarded;
                } else {
                    let packet = batch.packet_mut(index);
                    if !retag(packet, tag, to.vlan, self.pool.as_ref()) {
                        batch.mark_dropped(index);
                        return Outcome::NoMemory;
                    }
                    readdress(packet.bytes_mut(), source, mac);
                    batch.send_to(index, to.port);
                    return Outcome::Forwarded;
                }
            }
            Hop::Blackhole => {
                batch.mark_dropped(index);
                return Outcome::Blackhole;
            }
            Hop::Unresolved | Hop::Group(_) => Punt::Unresolved,
            Hop::NoRoute => Punt::Unknown,
            Hop::Local => Punt::Local,
            Hop::Unreachable => Punt::Unreachable,
            Hop::Prohibited => Punt::Prohibited,
        };
        if cause != Punt::Local && !self.trouble.admits(context.now_ticks) {
            batch.mark_dropped(index);
            return Outcome::Excess;
        }
        batch.mark_punted(index, cause);
        Outcome::SlowPath
    }
}

/// Checks whether a frame is a packet to be forwarded, and returns its destination if so. The frame is then long enough
/// for [`rewrite`].
#[inline(always)]
fn look(tagged: &[u8], tag: usize, ears: &Ears) -> Look {
    // Offsets are those of a frame without a tag. The offsets of the MAC addresses do not depend on a tag.
    let frame = tagged.get(tag..).unwrap_or_default();
    let Some(head) = frame.first_chunk::<{ ETHERNET_BYTES + IPV4_BYTES }>() else {
        return Look::Drop(Outcome::Malformed);
    };
    if tagged[..6] != ears.mac.0 {
        // A broadcast or multicast frame is either for the router or does not concern it.
        let concerned = (tagged[0] & 1 == 1).then(|| ears.concerned(tagged));
        let concerned = concerned.flatten();
        let kind = if ears.is_kernels {
            Look::Group
        } else {
            Look::Punt
        };
        return concerned.map_or(Look::Drop(Outcome::NotForUs), kind);
    }
    match EtherType(u16::from_be_bytes([head[12], head[13]])) {
        EtherType::IPV4 => look_v4(frame, head),
        EtherType::IPV6 => look_v6(frame, tagged, ears),
        EtherType::ARP => match ears.concerned(tagged) {
            Some(cause) => Look::Punt(cause),
            None => Look::Drop(Outcome::NotForUs),
        },
        _ if ears.is_kernels => Look::Group(Punt::Local),
        _ => Look::Drop(Outcome::NoIp),
    }
}

#[inline(always)]
fn look_v4(frame: &[u8], head: &[u8; ETHERNET_BYTES + IPV4_BYTES]) -> Look {
    let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let length = usize::from(u16::from_be_bytes([head[16], head[17]]));
    if head[14] != 0x45 {
        // The header has options, which are ignored.
        let Ok(ip) = Ipv4::new(&frame[ETHERNET_BYTES..]) else {
            return Look::Drop(Outcome::Malformed);
        };
        if ip.verify_checksum().is_err() {
            return Look::Drop(Outcome::BadChecksum);
        }
    } else if length < IPV4_BYTES || ETHERNET_BYTES + length > frame.len() {
        return Look::Drop(Outcome::Malformed);
    } else if !Sum::of(&head[ETHERNET_BYTES..]).is_valid() {
        return Look::Drop(Outcome::BadChecksum);
    }
    let (source, destination) = (word(26), word(30));
    // These sources belong to no host: this network, loopback, multicast and above (RFC 1812 sections 5.3.7, 4.2.2.11).
    let is_nobody = |address: u32| matches!(address >> 24, 0 | 127 | 240..=255);
    if is_nobody(source) || source >> 28 == 14 || is_nobody(destination) {
        return Look::Drop(Outcome::Martian);
    }
    if destination >> 28 == 14 {
        return Look::Drop(Outcome::NotForUs);
    }
    Look::V4(destination)
}

#[inline(always)]
fn look_v6(frame: &[u8], tagged: &[u8], ears: &Ears) -> Look {
    let Some(head) = frame.first_chunk::<{ ETHERNET_BYTES + IPV6_BYTES }>() else {
        return Look::Drop(Outcome::Malformed);
    };
    let length = IPV6_BYTES + usize::from(u16::from_be_bytes([head[18], head[19]]));
    if head[14] >> 4 != 6 || ETHERNET_BYTES + length > frame.len() {
        return Look::Drop(Outcome::Malformed);
    }
    let address = |at: usize| {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&head[at..at + 16]);
        bytes
    };
    let (source, destination) = (address(V6_SOURCE_AT), address(V6_DESTINATION_AT));
    // The first bits classify nearly all addresses.
    if is_usual(source) && is_usual(destination) {
        return Look::V6(destination);
    }
    look_v6_closely(tagged, source, destination, ears)
}

/// Returns true if an IPv6 address is neither at the start of the address space, which is unassigned, nor at its end,
/// which is link-local and multicast.
#[inline(always)]
fn is_usual(address: [u8; 16]) -> bool {
    let [high, low, ..] = address;
    let first = u16::from_be_bytes([high, low]);
    (1..0xfe80).contains(&first)
}

/// Checks an IPv6 packet one of whose addresses is not a usual one ([`is_usual`]).
#[cold]
fn look_v6_closely(tagged: &[u8], source: [u8; 16], destination: [u8; 16], ears: &Ears) -> Look {
    let is_none_or_loopback = |address: [u8; 16]| u128::from_be_bytes(address) <= 1;
    let is_link_local = |address: [u8; 16]| address[0] == 0xfe && address[1] & 0xc0 == 0x80;
    if is_none_or_loopback(source) || source[0] == 0xff || is_none_or_loopback(destination) {
        return Look::Drop(Outcome::Martian);
    }
    if destination[0] == 0xff {
        return Look::Drop(Outcome::NotForUs);
    }
    // Such addresses are valid on their link only (RFC 4291 section 2.5.6).
    if is_link_local(source) || is_link_local(destination) {
        return match ears.concerned(tagged) {
            Some(cause) => Look::Punt(cause),
            None => Look::Drop(Outcome::Martian),
        };
    }
    Look::V6(destination)
}

/// Returns the punt cause of a frame that the kernel is to receive. Neighbour messages have their own cause, because
/// the router processes them as well.
#[cold]
fn of_kernel(frame: &[u8]) -> Punt {
    let is_neighbours = Ethernet::new(frame).is_ok_and(|ethernet| {
        ethernet.ethertype() == EtherType::ARP || resolution::neighbour_message(&ethernet).is_some()
    });
    match is_neighbours {
        true => Punt::Neighbour,
        false => Punt::Local,
    }
}

/// Rewrites the MAC addresses of a packet for its next link and decrements its hop limit, which is at least 1.
#[inline(always)]
pub(super) fn rewrite(frame: &mut [u8], source: Mac, destination: Mac) {
    let Some(head) = frame.first_chunk_mut::<{ ETHERNET_BYTES + IPV4_BYTES }>() else {
        return;
    };
    head[..6].copy_from_slice(&destination.0);
    head[6..12].copy_from_slice(&source.0);
    take_hop(head);
}

/// Applies [`rewrite`] to a frame that may have a VLAN tag.
fn readdress(frame: &mut [u8], source: Mac, destination: Mac) {
    let tag = vlan_of(frame).map_or(0, |_| TAG_BYTES);
    let head = frame.get_mut(tag..).and_then(<[u8]>::first_chunk_mut);
    if let Some(head) = head {
        take_hop(head);
        frame[..6].copy_from_slice(&destination.0);
        frame[6..12].copy_from_slice(&source.0);
    }
}

/// Replaces a frame's VLAN tag of `old` bytes by the tag of VLAN `vlan`, or removes it if `vlan` is none; the priority
/// stays. Returns false, without a change, if there is no memory for the tag.
fn retag(packet: &mut Packet, old: usize, vlan: Option<u16>, pool: Option<&PoolHandle>) -> bool {
    let Some(pool) = pool else { return false };
    let priority = match packet.bytes().get(TAG_AT + 2) {
        Some(high) if old > 0 => *high & 0xf0,
        _ => 0,
    };
    let new = if vlan.is_some() { TAG_BYTES } else { 0 };
    if old != new && !move_start(packet, TAG_AT, old, new, pool) {
        return false;
    }
    if let Some(vlan) = vlan {
        let [high, low] = vlan.to_be_bytes();
        packet.bytes_mut()[TAG_AT..TAG_AT + TAG_BYTES].copy_from_slice(&[
            0x81,
            0x00,
            priority | high,
            low,
        ]);
    }
    true
}

/// Decrements the hop limit of a packet whose frame begins with `head`, which has no tag.
#[inline(always)]
fn take_hop(head: &mut [u8; ETHERNET_BYTES + IPV4_BYTES]) {
    if head[12] == 0x08 {
        let old = u16::from_be_bytes([head[TTL_AT], head[PROTOCOL_AT]]);
        let sum = u16::from_be_bytes([head[CHECKSUM_AT], head[CHECKSUM_AT + 1]]);
        let sum = checksum::update_u16(sum, old, old.wrapping_sub(0x0100));
        head[TTL_AT] = head[TTL_AT].wrapping_sub(1);
        head[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
    } else {
        head[HOP_LIMIT_AT] = head[HOP_LIMIT_AT].wrapping_sub(1);
    }
}

fn exits_of(interfaces: &[Interface]) -> Box<[Exit; MOST_EXITS]> {
    let mut exits = Box::new([Exit::default(); MOST_EXITS]);
    for (exit, interface) in exits.iter_mut().zip(interfaces) {
        *exit = Exit {
            mac: interface.mac,
            mtu: interface.mtu,
            port: interface.port,
            vlan: interface.vlan,
        };
    }
    exits
}

fn ports_of(interfaces: &[Interface]) -> Vec<OnPort> {
    let count = interfaces.iter().map(|it| usize::from(it.port) + 1).max();
    let mut ports = vec![OnPort::default(); count.unwrap_or(0)];
    for (number, interface) in interfaces.iter().enumerate() {
        let port = &mut ports[usize::from(interface.port)];
        match interface.vlan {
            Some(vlan) => port.tagged.push((vlan, number as u8)),
            None => port.untagged = Some(number as u8),
        }
    }
    ports
}

/// Returns a hash that all packets of a flow share; for fragments, only the addresses are hashed. The XDP programs
/// compute the same hash.
#[inline]
fn flow_of(seed: u64, frame: &[u8]) -> u64 {
    let headers = Headers::of(frame);
    let (source, destination) = headers.addresses_in(frame);
    let ports = match headers.ports() {
        Some((source, destination)) if !headers.is_fragment() => {
            u64::from(source) << 16 | u64::from(destination)
        }
        _ => 0,
    };
    let words = [
        source as u64,
        (source >> 64) as u64,
        destination as u64,
        (destination >> 64) as u64,
        u64::from(headers.protocol().0) << 32 | ports,
    ];
    words.into_iter().fold(seed, mix)
}

/// Returns true if a frame is untagged IPv4.
pub(super) fn is_v4(frame: &[u8]) -> bool {
    Ethernet::new(frame).is_ok_and(|it| it.ethertype() == EtherType::IPV4)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_wire::UdpFlow;

    #[test]
    fn different_hash_seeds_separate_flows_with_the_same_next_hop() {
        let frame = |src_port| {
            let flow = UdpFlow {
                src_port,
                ..UdpFlow::default()
            };
            flow.frame(100).unwrap()
        };
        let hop = |seed, frame: &[u8]| flow_of(seed, frame) & 7;
        let all = (1..4000).map(frame);
        let chosen: Vec<_> = all.filter(|it| hop(1, it) == 0).collect();
        assert!((400..600).contains(&chosen.len()), "{}", chosen.len());
        let met = chosen.iter().filter(|it| hop(2, it) == 0);
        assert!(met.count() < 120);
    }
}
