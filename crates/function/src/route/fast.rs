//! What a worker does with each packet: look at it, look up where it goes, give it its next addresses. (RFC 1812 section 5.2,
//! RFC 8200.) Everything else is the slow path's.

use super::hop::{Hop, Hops};
use super::settings::Interface;
use crate::Context;
use crate::budget::Budget;
use crate::changes::Receiver;
use crate::host::Own;
use crate::mix::mix;
use std::sync::Arc;
use taut_lpm::{NextHop, v4, v6};
use taut_port::{BATCH_CAPACITY, Batch, Punt};
use taut_sys::Clock;
use taut_wire::{EtherType, Ethernet, Headers, Ipv4, Mac, Sum, checksum, resolution};

/// Bytes of an Ethernet header without tags.
pub(super) const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const TTL_AT: usize = ETHERNET_BYTES + 8;
const PROTOCOL_AT: usize = TTL_AT + 1;
const CHECKSUM_AT: usize = TTL_AT + 2;
const HOP_LIMIT_AT: usize = ETHERNET_BYTES + 7;
const V6_DESTINATION_AT: usize = ETHERNET_BYTES + 24;

/// What becomes of a packet in the worker.
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
}

/// Names of [`Outcome`], in their order.
pub(super) const OUTCOMES: [&str; 10] = [
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
];

/// Result of the first look at a packet.
enum Look {
    V4(u32),
    V6([u8; 16]),
    Punt(Punt),
    /// It is for all stations or a group of them, and the kernel listens.
    Group(Punt),
    Drop(Outcome),
}

/// Packets in trouble that the slow path is given at once, and time between those after that, ns. What neighbours say has
/// the rest of its ring: a flood for one that is asked for must not drown the answer.
const TROUBLE_AT_ONCE: u64 = 256;
const TROUBLE_APART_NS: f64 = 10_000.0;

/// A worker's part of the router.
pub(super) struct Plane {
    interfaces: Arc<[Interface]>,
    ears: Vec<Ears>,
    v4: Arc<v4::Fib>,
    v6: Arc<v6::Fib>,
    hops: Arc<Hops>,
    /// Questions whether the worker has moved on.
    pub receiver: Receiver<()>,
    pub counts: [u64; OUTCOMES.len()],
    trouble: Budget,
    /// Frames for all stations, or groups of them, that the kernel is given.
    heard: Budget,
}

/// What a worker knows of who is spoken to behind an interface.
struct Ears {
    own: Own,
    /// Whether the kernel has what is for the router itself or for groups of stations.
    is_kernels: bool,
}

impl Ears {
    /// Reason why the slow path is to have a frame for the router's MAC address, for all stations or for a group of them.
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
        (v4, v6, hops): (Arc<v4::Fib>, Arc<v6::Fib>, Arc<Hops>),
        receiver: Receiver<()>,
        clock: &Clock,
    ) -> Self {
        let own = interfaces.iter().map(|it| Ears {
            own: Own::new(it.mac, &it.addresses.own().collect()),
            is_kernels: it.tap.is_some(),
        });
        Self {
            ears: own.collect(),
            interfaces: Arc::clone(interfaces),
            v4,
            v6,
            hops,
            receiver,
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
        let (Some(interface), Some(ears)) = (
            self.interfaces.get(context.from_port),
            self.ears.get(context.from_port),
        ) else {
            for index in 0..batch.len() {
                if batch.is_kept(index) {
                    batch.mark_dropped(index);
                    self.counts[Outcome::NoInterface as usize] += 1;
                }
            }
            return;
        };
        // Addresses of one family lie side by side, so that the table is asked for all of them at once.
        let mut four = [0_u32; BATCH_CAPACITY];
        let mut six = [[0_u8; 16]; BATCH_CAPACITY];
        let mut places = [[0_u8; BATCH_CAPACITY]; 2];
        let mut counts = [0_usize; 2];
        for index in 0..batch.len() {
            if !batch.is_kept(index) {
                continue;
            }
            match look(batch.packets()[index].bytes(), interface.mac, ears) {
                Look::V4(address) => {
                    four[counts[0] % BATCH_CAPACITY] = address;
                    places[0][counts[0] % BATCH_CAPACITY] = index as u8;
                    counts[0] += 1;
                }
                Look::V6(address) => {
                    six[counts[1] % BATCH_CAPACITY] = address;
                    places[1][counts[1] % BATCH_CAPACITY] = index as u8;
                    counts[1] += 1;
                }
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
        let mut numbers = [NextHop::NONE; BATCH_CAPACITY];
        let [four_count, six_count] = counts.map(|count| count.min(BATCH_CAPACITY));
        if four_count > 0 {
            let numbers = &mut numbers[..four_count];
            self.v4.lookup_batch(&four[..four_count], numbers);
            for (place, number) in places[0].iter().zip(&*numbers) {
                let outcome = self.forward::<true>(batch, usize::from(*place), *number, context);
                self.counts[outcome as usize] += 1;
            }
        }
        if six_count > 0 {
            let numbers = &mut numbers[..six_count];
            self.v6.lookup_batch(&six[..six_count], numbers);
            for (place, number) in places[1].iter().zip(&*numbers) {
                let outcome = self.forward::<false>(batch, usize::from(*place), *number, context);
                self.counts[outcome as usize] += 1;
            }
        }
    }

    /// Sends a packet, which has been looked at, where its next hop says.
    #[inline(always)]
    fn forward<const IS_V4: bool>(
        &mut self,
        batch: &mut Batch,
        index: usize,
        number: NextHop,
        context: &Context,
    ) -> Outcome {
        let frame = batch.packets()[index].bytes();
        let mut hop = self.hops.get(number);
        if let Hop::Group(group) = hop {
            hop = self.hops.of_group(group, flow_of(frame));
        }
        let cause = match hop {
            Hop::Forward { port, mac } => {
                let to = self.interfaces.get(usize::from(port));
                let (source, mtu) = to.map_or((Mac::default(), 0), |it| (it.mac, it.mtu));
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
                } else {
                    rewrite(batch.packet_mut_but_headers(index).bytes_mut(), source, mac);
                    batch.send_to(index, port);
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

/// Looks whether a frame is a packet to forward, and where to; long enough for what [`rewrite`] changes then.
#[inline(always)]
fn look(frame: &[u8], mac: Mac, ears: &Ears) -> Look {
    let Some(head) = frame.first_chunk::<{ ETHERNET_BYTES + IPV4_BYTES }>() else {
        return Look::Drop(Outcome::Malformed);
    };
    if head[..6] != mac.0 {
        // To all stations or a group of them: somebody asks for the router, or it is none of its business.
        let concerned = (head[0] & 1 == 1).then(|| ears.concerned(frame)).flatten();
        let kind = if ears.is_kernels {
            Look::Group
        } else {
            Look::Punt
        };
        return concerned.map_or(Look::Drop(Outcome::NotForUs), kind);
    }
    match EtherType(u16::from_be_bytes([head[12], head[13]])) {
        EtherType::IPV4 => look_v4(frame, head),
        EtherType::IPV6 => look_v6(frame, ears),
        EtherType::ARP => match ears.concerned(frame) {
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
        // Options, of which none is looked at.
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
    // Sources that no station has: this network, itself, groups and beyond (RFC 1812 sections 5.3.7, 4.2.2.11).
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
fn look_v6(frame: &[u8], ears: &Ears) -> Look {
    let Some(head) = frame.first_chunk::<{ ETHERNET_BYTES + IPV6_BYTES }>() else {
        return Look::Drop(Outcome::Malformed);
    };
    let length = IPV6_BYTES + usize::from(u16::from_be_bytes([head[18], head[19]]));
    if head[14] >> 4 != 6 || ETHERNET_BYTES + length > frame.len() {
        return Look::Drop(Outcome::Malformed);
    }
    let mut destination = [0; 16];
    destination.copy_from_slice(&head[V6_DESTINATION_AT..]);
    let source = &head[22..V6_DESTINATION_AT];
    let is_none_or_loopback = |address: &[u8]| address[..15] == [0; 15] && address[15] <= 1;
    let is_link_local = |address: &[u8]| address[0] == 0xfe && address[1] & 0xc0 == 0x80;
    if is_none_or_loopback(source) || source[0] == 0xff || is_none_or_loopback(&destination) {
        return Look::Drop(Outcome::Martian);
    }
    if destination[0] == 0xff {
        return Look::Drop(Outcome::NotForUs);
    }
    // Such addresses mean something on their link only (RFC 4291 section 2.5.6).
    if is_link_local(source) || is_link_local(&destination) {
        return match ears.concerned(frame) {
            Some(cause) => Look::Punt(cause),
            None => Look::Drop(Outcome::Martian),
        };
    }
    Look::V6(destination)
}

/// Reason why the kernel is to have a frame: what neighbours say the router hears, too.
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

/// Gives a packet, of whose hops one is left at least, the addresses of its next link, and takes a hop off.
#[inline(always)]
pub(super) fn rewrite(frame: &mut [u8], source: Mac, destination: Mac) {
    let Some(head) = frame.first_chunk_mut::<{ ETHERNET_BYTES + IPV4_BYTES }>() else {
        return;
    };
    head[..6].copy_from_slice(&destination.0);
    head[6..12].copy_from_slice(&source.0);
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

/// A number that all packets of a flow share, fragments by their addresses alone.
#[inline]
fn flow_of(frame: &[u8]) -> u64 {
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
    words.into_iter().fold(0, mix)
}

/// Whether a frame is an untagged one of IPv4.
pub(super) fn is_v4(frame: &[u8]) -> bool {
    Ethernet::new(frame).is_ok_and(|it| it.ethertype() == EtherType::IPV4)
}
