//! Whole packets out of fragments of IPv4 (RFC 791 section 3.2) and IPv6 (RFC 8200 section 4.5), for a thread that may ask for memory.
//!
//! Where two fragments overlap, receivers differ in which one they take, so that an attacker can show us one packet and the receiver
//! another. A datagram whose fragments overlap is given up therefore, with all fragments that are still to come (RFC 5722 for IPv6; the
//! same is done for IPv4). The exception is a fragment that comes twice and is the same, byte for byte: the second one is left out. A first
//! fragment that cuts a TCP header before its flags ends the datagram too (RFC 1858 section 3).
//!
//! The header of the whole packet is the first fragment's, ECN bits included. IPv4 headers with a wrong checksum are not counted in, as no
//! receiver would. When there is no room for another datagram, fragments of new ones are refused; a datagram is given up for one of whose
//! fragments there is no memory, as it can never be whole.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use taut_wire::{IpProtocol, Ipv4, Ipv6};

/// Limits of what is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FragmentLimits {
    /// Bytes in all, those that a fragment costs besides its payload included ([`OVERHEAD_BYTES`]).
    pub bytes: usize,
    /// Datagrams at a time, those that were given up included.
    pub datagrams: usize,
    /// Time from the first fragment that came until the datagram is let go, in nanoseconds.
    pub timeout_ns: u64,
}

impl Default for FragmentLimits {
    /// 4 MiB, 1024 datagrams, 30 seconds (which Linux takes for IPv4).
    fn default() -> Self {
        Self {
            bytes: 4 << 20,
            datagrams: 1024,
            timeout_ns: 30_000_000_000,
        }
    }
}

/// Bytes that a fragment is taken to cost besides its payload.
pub const OVERHEAD_BYTES: usize = 128;
/// Fragments of a datagram at most: 64 KiB in pieces of 512 bytes.
pub const MOST_FRAGMENTS: usize = 128;
/// Bytes of a packet at most, headers included.
const MOST_BYTES: usize = 65_535;
/// Bytes of a TCP header up to and with its flags and window, which the first fragment has to have (RFC 1858 section 3).
const TCP_START_BYTES: usize = 16;
const IPV6_HEADER_BYTES: usize = 40;
const FRAGMENT_HEADER_BYTES: usize = 8;

/// Why fragments were dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FragmentFault {
    /// The packet is not a fragment.
    NotAFragment,
    /// Its headers are wrong: a version, a length that leads out of the packet, an IPv4 checksum.
    Header,
    /// It is empty, or another follows and its length is no multiple of 8 bytes.
    Length,
    /// The same fragment had come before.
    Duplicate,
    /// It covers bytes of another one, or there are bytes behind the last fragment.
    Overlap,
    /// The whole packet would be longer than a packet can be.
    TooLong,
    /// The first fragment cuts the TCP header.
    TinyFirst,
    /// There are more than [`MOST_FRAGMENTS`].
    TooMany,
    /// There is no memory for it.
    NoMemory,
    /// Its datagram was given up before.
    GivenUp,
}

impl FragmentFault {
    /// Whether it ends the datagram, not just the fragment.
    fn ends_datagram(self) -> bool {
        matches!(
            self,
            Self::Length
                | Self::Overlap
                | Self::TooLong
                | Self::TinyFirst
                | Self::TooMany
                | Self::NoMemory
        )
    }
}

/// What became of a fragment. Tokens are those of the frames that the caller no longer has to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was the last one that was missing.
    Whole {
        /// The packet from its layer-3 header on. It may be a fragment again where somebody has put a fragment header into what an
        /// IPv6 host has cut up: no sender of good faith does.
        packet: Vec<u8>,
        /// Tokens of its fragments, in order of their places.
        tokens: Vec<u64>,
    },
    /// It waits for the others.
    Kept,
    /// It was dropped, and what was kept of its datagram may have been too.
    Dropped {
        /// Why.
        cause: FragmentFault,
        /// Tokens of the frames that are dropped with it, then its own.
        tokens: Vec<u64>,
    },
}

/// What fragments of one datagram share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    source: IpAddr,
    destination: IpAddr,
    identification: u32,
    /// Of IPv4 alone (RFC 8200 section 4.5: it may differ there).
    protocol: u8,
}

/// A fragment of a packet.
struct Fragment<'a> {
    key: Key,
    /// Headers in front of what was cut up: with their options, without the fragment header.
    headers: &'a [u8],
    /// Where in `headers` the number of the protocol behind them is.
    protocol_at: usize,
    protocol: u8,
    offset: usize,
    has_more: bool,
    payload: &'a [u8],
}

/// A fragment that is kept.
#[derive(Debug)]
struct Piece {
    offset: usize,
    payload: Vec<u8>,
    token: u64,
}

#[derive(Debug)]
struct Datagram {
    /// Its place in the order of coming.
    number: u64,
    since_ns: u64,
    /// By their places.
    pieces: Vec<Piece>,
    /// Headers of the first fragment, made those of the whole packet but for lengths and checksum; empty until it is there.
    headers: Vec<u8>,
    /// Bytes of payload, if the last fragment is there.
    end: Option<usize>,
    is_given_up: bool,
}

impl Datagram {
    fn cost(&self) -> usize {
        let pieces: usize = self
            .pieces
            .iter()
            .map(|piece| piece.payload.len() + OVERHEAD_BYTES)
            .sum();
        pieces + self.headers.len()
    }

    fn let_go(&mut self) -> Vec<u64> {
        self.headers = Vec::new();
        std::mem::take(&mut self.pieces)
            .into_iter()
            .map(|piece| piece.token)
            .collect()
    }
}

/// Datagrams that are not whole yet.
#[derive(Debug)]
pub struct Fragments {
    limits: FragmentLimits,
    datagrams: HashMap<Key, Datagram>,
    /// Keys in the order in which datagrams began, which is that in which they time out.
    order: BTreeMap<u64, Key>,
    begun: u64,
    bytes: usize,
}

impl Fragments {
    /// Makes room for fragments; memory is asked for as they come.
    pub fn new(limits: FragmentLimits) -> Self {
        Self {
            limits,
            datagrams: HashMap::new(),
            order: BTreeMap::new(),
            begun: 0,
            bytes: 0,
        }
    }

    /// Datagrams that are kept or remembered as given up.
    pub fn datagrams(&self) -> usize {
        self.datagrams.len()
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Lets datagrams go whose time is over, and hands their tokens out. To be called every second or so.
    pub fn expire(&mut self, now_ns: u64, gone: &mut dyn FnMut(u64)) {
        while let Some((_, &key)) = self.order.first_key_value() {
            let since_ns = self.datagrams.get(&key).map_or(0, |it| it.since_ns);
            if now_ns.saturating_sub(since_ns) < self.limits.timeout_ns {
                return;
            }
            if let Some(mut datagram) = self.remove(&key) {
                datagram.let_go().into_iter().for_each(&mut *gone);
            }
        }
    }

    /// Takes a fragment, from its layer-3 header on, at a time of any clock that does not go back. `token` stands for its frame.
    ///
    /// A packet of one fragment, as translators send them, is whole at once (RFC 6946).
    pub fn push(&mut self, now_ns: u64, packet: &[u8], token: u64) -> Outcome {
        let fragment = match read(packet) {
            Ok(fragment) => fragment,
            Err(cause) => return dropped(cause, Vec::new(), token),
        };
        if fragment.offset == 0 && !fragment.has_more {
            let mut whole = fragment.headers_of_whole();
            whole.extend_from_slice(fragment.payload);
            return match finish(&mut whole) {
                true => Outcome::Whole {
                    packet: whole,
                    tokens: vec![token],
                },
                false => dropped(FragmentFault::TooLong, Vec::new(), token),
            };
        }
        if !self.datagrams.contains_key(&fragment.key) {
            if self.datagrams.len() >= self.limits.datagrams {
                return dropped(FragmentFault::NoMemory, Vec::new(), token);
            }
            self.order.insert(self.begun, fragment.key);
            let datagram = Datagram {
                number: self.begun,
                since_ns: now_ns,
                pieces: Vec::new(),
                headers: Vec::new(),
                end: None,
                is_given_up: false,
            };
            self.datagrams.insert(fragment.key, datagram);
            self.begun += 1;
        }
        let room = self.limits.bytes.saturating_sub(self.bytes);
        let Some(datagram) = self.datagrams.get_mut(&fragment.key) else {
            return dropped(FragmentFault::NoMemory, Vec::new(), token);
        };
        let before = datagram.cost();
        let kept = datagram.keep(&fragment, token, room);
        self.bytes = self.bytes - before + datagram.cost();
        match kept {
            Err(cause) if cause.ends_datagram() => {
                self.bytes -= datagram.cost();
                datagram.is_given_up = true;
                dropped(cause, datagram.let_go(), token)
            }
            Err(cause) => dropped(cause, Vec::new(), token),
            Ok(false) => Outcome::Kept,
            Ok(true) => match self.remove(&fragment.key) {
                Some(datagram) => datagram.whole(token),
                None => Outcome::Kept,
            },
        }
    }

    fn remove(&mut self, key: &Key) -> Option<Datagram> {
        let datagram = self.datagrams.remove(key)?;
        self.order.remove(&datagram.number);
        self.bytes -= datagram.cost();
        Some(datagram)
    }
}

impl Datagram {
    /// Keeps a fragment; says whether the datagram is whole with it.
    fn keep(
        &mut self,
        fragment: &Fragment<'_>,
        token: u64,
        room: usize,
    ) -> Result<bool, FragmentFault> {
        if self.is_given_up {
            return Err(FragmentFault::GivenUp);
        }
        let (begin, len) = (fragment.offset, fragment.payload.len());
        let end = begin + len;
        if len == 0 || fragment.has_more && !len.is_multiple_of(8) {
            return Err(FragmentFault::Length);
        }
        if fragment.counted_bytes() + end > MOST_BYTES {
            return Err(FragmentFault::TooLong);
        }
        if begin == 0 && fragment.protocol == IpProtocol::TCP.0 && len < TCP_START_BYTES {
            return Err(FragmentFault::TinyFirst);
        }
        let place = self.pieces.partition_point(|piece| piece.offset < begin);
        if let Some(same) = self.pieces.get(place)
            && same.offset == begin
            && same.payload == fragment.payload
            && (self.end == Some(end)) != fragment.has_more
        {
            return Err(FragmentFault::Duplicate);
        }
        let in_front = place.checked_sub(1).and_then(|it| self.pieces.get(it));
        let last = self
            .pieces
            .last()
            .map_or(0, |piece| piece.offset + piece.payload.len());
        if in_front.is_some_and(|piece| piece.offset + piece.payload.len() > begin)
            || self.pieces.get(place).is_some_and(|it| it.offset < end)
            || self.end.is_some_and(|whole| end > whole)
            || !fragment.has_more && (self.end.is_some() || last > end)
        {
            return Err(FragmentFault::Overlap);
        }
        if self.pieces.len() == MOST_FRAGMENTS {
            return Err(FragmentFault::TooMany);
        }
        if len + OVERHEAD_BYTES + fragment.headers.len() > room {
            return Err(FragmentFault::NoMemory);
        }
        let piece = Piece {
            offset: begin,
            payload: fragment.payload.to_vec(),
            token,
        };
        self.pieces.insert(place, piece);
        if begin == 0 {
            self.headers = fragment.headers_of_whole();
        }
        if !fragment.has_more {
            self.end = Some(end);
        }
        let there: usize = self.pieces.iter().map(|piece| piece.payload.len()).sum();
        Ok(self.end == Some(there))
    }

    /// The whole packet; `token` is that of the fragment that came last.
    fn whole(mut self, token: u64) -> Outcome {
        let mut packet = std::mem::take(&mut self.headers);
        for piece in &self.pieces {
            packet.extend_from_slice(&piece.payload);
        }
        let tokens = self.let_go();
        match finish(&mut packet) {
            true => Outcome::Whole { packet, tokens },
            false => {
                // Headers of the first fragment may be longer than those of the others, by which the length was held.
                let others = tokens.into_iter().filter(|&it| it != token).collect();
                dropped(FragmentFault::TooLong, others, token)
            }
        }
    }
}

impl Fragment<'_> {
    /// Bytes of its headers that count for the length of a packet: an IPv6 payload is what is behind the fixed header.
    fn counted_bytes(&self) -> usize {
        match self.key.source {
            IpAddr::V4(_) => self.headers.len(),
            IpAddr::V6(_) => self.headers.len() - IPV6_HEADER_BYTES,
        }
    }

    /// The headers, which now say what is behind them and that nothing was cut.
    fn headers_of_whole(&self) -> Vec<u8> {
        let mut headers = self.headers.to_vec();
        headers[self.protocol_at] = self.protocol;
        if self.key.source.is_ipv4() {
            // All that remains of flags and offset is "do not fragment" and the reserved bit.
            headers[6] &= 0xc0;
            headers[7] = 0;
        }
        headers
    }
}

fn dropped(cause: FragmentFault, mut tokens: Vec<u64>, token: u64) -> Outcome {
    tokens.push(token);
    Outcome::Dropped { cause, tokens }
}

/// Writes the lengths of a whole packet, and the checksum of an IPv4 header; false if it is too long.
fn finish(packet: &mut [u8]) -> bool {
    let is_v4 = packet.first().is_some_and(|first| first >> 4 == 4);
    let len = if is_v4 {
        packet.len()
    } else {
        packet.len() - IPV6_HEADER_BYTES
    };
    let Ok(len) = u16::try_from(len) else {
        return false;
    };
    if is_v4 {
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        let Ok(mut view) = Ipv4::new(packet) else {
            return false;
        };
        view.fill_checksum();
    } else {
        packet[4..6].copy_from_slice(&len.to_be_bytes());
    }
    true
}

fn read(packet: &[u8]) -> Result<Fragment<'_>, FragmentFault> {
    match packet.first().map(|first| first >> 4) {
        Some(4) => read_v4(packet),
        Some(6) => read_v6(packet),
        _ => Err(FragmentFault::Header),
    }
}

fn read_v4(packet: &[u8]) -> Result<Fragment<'_>, FragmentFault> {
    let ip = Ipv4::new(packet).map_err(|_| FragmentFault::Header)?;
    ip.verify_checksum().map_err(|_| FragmentFault::Header)?;
    if !ip.is_fragment() {
        return Err(FragmentFault::NotAFragment);
    }
    let (headers, rest) = packet.split_at(ip.header_len_bytes());
    Ok(Fragment {
        key: Key {
            source: ip.source().into(),
            destination: ip.destination().into(),
            identification: ip.identification().into(),
            protocol: ip.protocol().0,
        },
        headers,
        protocol_at: 9,
        protocol: ip.protocol().0,
        offset: ip.fragment_offset_bytes(),
        has_more: ip.more_fragments(),
        // What lies behind the packet, as padding does, is left out.
        payload: &rest[..ip.payload().len()],
    })
}

fn read_v6(packet: &[u8]) -> Result<Fragment<'_>, FragmentFault> {
    let ip = Ipv6::new(packet).map_err(|_| FragmentFault::Header)?;
    let packet = &packet[..IPV6_HEADER_BYTES + ip.payload().len()];
    // The headers that every router may look at are in front of the fragment header (RFC 8200 section 4.5).
    let (mut at, mut protocol_at, mut protocol) = (IPV6_HEADER_BYTES, 6, ip.next_header());
    loop {
        match protocol {
            IpProtocol::FRAGMENT => break,
            IpProtocol::HOP_BY_HOP | IpProtocol::ROUTING | IpProtocol::DESTINATION => {
                let &[next, units] = packet
                    .get(at..)
                    .and_then(|rest| rest.first_chunk::<2>())
                    .ok_or(FragmentFault::Header)?;
                (protocol_at, protocol) = (at, IpProtocol(next));
                at += 8 + usize::from(units) * 8;
            }
            _ => return Err(FragmentFault::NotAFragment),
        }
    }
    let header = packet
        .get(at..)
        .and_then(|rest| rest.first_chunk::<FRAGMENT_HEADER_BYTES>())
        .ok_or(FragmentFault::Header)?;
    let place = u16::from_be_bytes([header[2], header[3]]);
    Ok(Fragment {
        key: Key {
            source: ip.source().into(),
            destination: ip.destination().into(),
            identification: u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
            protocol: 0,
        },
        headers: &packet[..at],
        protocol_at,
        protocol: header[0],
        offset: usize::from(place & 0xfff8),
        has_more: place & 1 == 1,
        payload: &packet[at + FRAGMENT_HEADER_BYTES..],
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    use etherparse::SlicedPacket;
    use etherparse::defrag::IpDefragPool;
    use proptest::prelude::*;
    use taut_wire::{Ipv4Repr, Ipv6Repr};

    const V4: bool = false;
    const V6: bool = true;
    const UDP: u8 = 17;
    const TCP: u8 = 6;

    /// A fragment; IPv6 ones have a hop-by-hop header in front of the fragment header.
    fn fragment(is_v6: bool, id: u16, protocol: u8, at: usize, more: bool, data: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 60 + data.len()];
        let begin = if is_v6 {
            let repr = Ipv6Repr {
                traffic_class: 0,
                flow_label: 7,
                next_header: IpProtocol::HOP_BY_HOP,
                hop_limit: 9,
                source: "2001:db8::1".parse().unwrap(),
                destination: "2001:db8::2".parse().unwrap(),
                payload_len_bytes: 16 + data.len(),
            };
            repr.emit(&mut packet).unwrap();
            packet[40..48].copy_from_slice(&[44, 0, 1, 4, 0, 0, 0, 0]);
            let place = (at as u16 | u16::from(more)).to_be_bytes();
            packet[48..56].copy_from_slice(&[protocol, 0, place[0], place[1], 0, 0, 0, 0]);
            packet[54..56].copy_from_slice(&id.to_be_bytes());
            56
        } else {
            let repr = Ipv4Repr {
                traffic_class: 0,
                identification: id,
                dont_fragment: false,
                more_fragments: more,
                fragment_offset_bytes: at as u16,
                ttl: 9,
                protocol: IpProtocol(protocol),
                source: "192.0.2.1".parse().unwrap(),
                destination: "192.0.2.2".parse().unwrap(),
                options: &[],
                payload_len_bytes: data.len(),
            };
            repr.emit(&mut packet).unwrap();
            20
        };
        packet.truncate(begin + data.len());
        packet[begin..].copy_from_slice(data);
        packet
    }

    fn cut(is_v6: bool, id: u16, payload: &[u8], units: &[usize]) -> Vec<Vec<u8>> {
        let mut fragments = Vec::new();
        let mut at = 0;
        for units in units.iter().cycle() {
            let end = (at + units * 8).min(payload.len());
            let has_more = end < payload.len();
            fragments.push(fragment(is_v6, id, UDP, at, has_more, &payload[at..end]));
            at = end;
            if !has_more {
                break;
            }
        }
        fragments
    }

    fn fragments() -> Fragments {
        Fragments::new(FragmentLimits::default())
    }

    fn cause(outcome: &Outcome) -> Option<FragmentFault> {
        match outcome {
            Outcome::Dropped { cause, .. } => Some(*cause),
            _ => None,
        }
    }

    /// What the packet carries, found by a parser that is not ours.
    fn payload_of(packet: &[u8]) -> Vec<u8> {
        let sliced = etherparse::IpSlice::from_slice(packet).unwrap();
        assert!(!sliced.payload().fragmented);
        if packet[0] >> 4 == 4 {
            assert!(Ipv4::new(packet).unwrap().verify_checksum().is_ok());
        }
        assert_eq!(sliced.payload_ip_number().0, UDP);
        sliced.payload().payload.to_vec()
    }

    #[test]
    fn fragments_in_any_order_are_a_packet() {
        let payload: Vec<u8> = (0..100).collect();
        for is_v6 in [V4, V6] {
            let mut pieces = cut(is_v6, 5, &payload, &[2]);
            pieces.reverse();
            let mut kept = fragments();
            let (last, others) = pieces.split_last().unwrap();
            for (token, piece) in others.iter().enumerate() {
                assert_eq!(kept.push(0, piece, token as u64), Outcome::Kept);
            }
            let Outcome::Whole { packet, tokens } = kept.push(0, last, 99) else {
                panic!("it is whole");
            };
            assert_eq!(payload_of(&packet), payload);
            assert_eq!(tokens, [99, 5, 4, 3, 2, 1, 0]);
            assert_eq!(
                (kept.datagrams(), kept.bytes(), kept.order.len()),
                (0, 0, 0)
            );
        }
    }

    #[test]
    fn a_packet_of_one_fragment_is_whole() {
        let packet = fragment(V6, 1, UDP, 0, false, b"12345678");
        let Outcome::Whole { packet, tokens } = fragments().push(0, &packet, 3) else {
            panic!("it is whole");
        };
        assert_eq!(
            (payload_of(&packet), tokens),
            (b"12345678".to_vec(), vec![3])
        );
    }

    #[test]
    fn fragments_that_overlap_end_the_datagram() {
        let a = [b'a'; 16];
        for is_v6 in [V4, V6] {
            // (offset, more, length) of the second fragment; the first is bytes 16 to 32.
            let overlaps = [
                (16, true, 8),
                (24, true, 8),
                (8, true, 16),
                (0, true, 48),
                (16, false, 16),
                (8, false, 8),
            ];
            for (at, more, len) in overlaps {
                let mut kept = fragments();
                assert_eq!(
                    kept.push(0, &fragment(is_v6, 1, UDP, 16, true, &a), 1),
                    Outcome::Kept
                );
                let other = fragment(is_v6, 1, UDP, at, more, &[b'b'; 48][..len]);
                let (cause, tokens) = (FragmentFault::Overlap, vec![1, 2]);
                assert_eq!(
                    kept.push(0, &other, 2),
                    Outcome::Dropped { cause, tokens },
                    "{at} {more} {len}"
                );
                // What is still to come of it is dropped too, until its time is over.
                let (cause, tokens) = (FragmentFault::GivenUp, vec![3]);
                let late = fragment(is_v6, 1, UDP, 32, true, &a);
                assert_eq!(kept.push(1, &late, 3), Outcome::Dropped { cause, tokens });
                assert_eq!(kept.bytes(), 0);
                kept.expire(40_000_000_000, &mut |token| {
                    panic!("{token} is gone already")
                });
                assert_eq!(kept.push(2, &late, 3), Outcome::Kept);
            }
        }
    }

    #[test]
    fn the_same_fragment_twice_is_left_out() {
        let payload = [7; 40];
        let pieces = cut(V4, 1, &payload, &[2]);
        let mut kept = fragments();
        for which in [1, 1, 2, 2] {
            let outcome = kept.push(0, &pieces[which], 0);
            assert!(
                matches!(outcome, Outcome::Kept)
                    || cause(&outcome) == Some(FragmentFault::Duplicate)
            );
        }
        assert!(matches!(kept.push(0, &pieces[0], 0), Outcome::Whole { .. }));
    }

    #[test]
    fn what_is_wrong_has_a_name() {
        let good = fragment(V4, 1, UDP, 8, true, &[0; 8]);
        let mut wrong_sum = good.clone();
        wrong_sum[10] ^= 1;
        let mut lying = fragment(V6, 1, UDP, 8, true, &[0; 8]);
        lying[5] += 1;
        let mut no_fragment_header = fragment(V6, 1, UDP, 8, true, &[0; 8]);
        no_fragment_header[4..6].copy_from_slice(&[0, 15]);
        let mut long_extension = fragment(V6, 1, UDP, 8, true, &[0; 8]);
        long_extension[41] = 200;
        let mut whole = fragment(V6, 1, UDP, 8, true, &[0; 8]);
        whole[40] = UDP;
        let table = [
            (Vec::new(), FragmentFault::Header),
            (vec![0x50; 40], FragmentFault::Header),
            (good[..27].to_vec(), FragmentFault::Header),
            (wrong_sum, FragmentFault::Header),
            (lying, FragmentFault::Header),
            (no_fragment_header, FragmentFault::Header),
            (long_extension, FragmentFault::Header),
            (whole, FragmentFault::NotAFragment),
            (
                fragment(V4, 1, UDP, 0, false, &[0; 8]),
                FragmentFault::NotAFragment,
            ),
            (
                fragment(V4, 1, UDP, 8, true, &[0; 9]),
                FragmentFault::Length,
            ),
            (fragment(V4, 1, UDP, 8, true, &[]), FragmentFault::Length),
            (fragment(V6, 1, UDP, 8, false, &[]), FragmentFault::Length),
            (
                fragment(V4, 1, UDP, 65_528, false, &[0; 8]),
                FragmentFault::TooLong,
            ),
            (
                fragment(V6, 1, UDP, 65_528, false, &[0; 8]),
                FragmentFault::TooLong,
            ),
            (
                fragment(V4, 1, TCP, 0, true, &[0; 8]),
                FragmentFault::TinyFirst,
            ),
            (
                fragment(V6, 1, TCP, 0, true, &[0; 8]),
                FragmentFault::TinyFirst,
            ),
        ];
        for (number, (packet, expected)) in table.into_iter().enumerate() {
            let outcome = fragments().push(0, &packet, 0);
            assert_eq!(cause(&outcome), Some(expected), "{number}");
        }
    }

    #[test]
    fn padding_behind_a_fragment_is_left_out() {
        let mut kept = fragments();
        let mut last = fragment(V4, 1, UDP, 8, false, b"end");
        last.extend([0xee; 20]);
        assert_eq!(kept.push(0, &last, 0), Outcome::Kept);
        let first = fragment(V4, 1, UDP, 0, true, b"12345678");
        let Outcome::Whole { packet, .. } = kept.push(0, &first, 0) else {
            panic!("it is whole");
        };
        assert_eq!(payload_of(&packet), b"12345678end");
    }

    #[test]
    fn limits_hold() {
        let limits = FragmentLimits {
            bytes: 1000,
            datagrams: 2,
            timeout_ns: 10,
        };
        let mut kept = Fragments::new(limits);
        let big = |id| fragment(V4, id, UDP, 8, true, &[0; 600]);
        assert_eq!(kept.push(0, &big(1), 1), Outcome::Kept);
        assert_eq!(
            cause(&kept.push(1, &big(2), 2)),
            Some(FragmentFault::NoMemory)
        );
        assert_eq!(
            cause(&kept.push(1, &fragment(V4, 3, UDP, 8, true, &[0; 8]), 3)),
            Some(FragmentFault::NoMemory)
        );
        assert!(kept.bytes() <= 1000 && kept.datagrams() == 2);
        let mut gone = Vec::new();
        kept.expire(9, &mut |token| gone.push(token));
        assert!(gone.is_empty());
        kept.expire(10, &mut |token| gone.push(token));
        assert_eq!((gone, kept.datagrams(), kept.bytes()), (vec![1], 1, 0));

        let mut kept = fragments();
        let tiny = |number: usize| fragment(V4, 1, UDP, 8 + number * 16, true, &[0; 8]);
        for number in 0..MOST_FRAGMENTS {
            assert_eq!(kept.push(0, &tiny(number), 0), Outcome::Kept);
        }
        assert_eq!(
            cause(&kept.push(0, &tiny(MOST_FRAGMENTS), 0)),
            Some(FragmentFault::TooMany)
        );
        assert_eq!(kept.bytes(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn datagrams_come_whole_or_not_at_all(
            lens in prop::collection::vec(9..600usize, 1..5),
            units in prop::collection::vec(1..9usize, 1..5),
            seed: u64,
            is_v6: bool,
            is_lossy: bool,
        ) {
            let mut random = fastrand::Rng::with_seed(seed);
            let payloads: Vec<Vec<u8>> = lens.iter().map(|&len| (0..len).map(|_| random.u8(..)).collect()).collect();
            let mut sent = Vec::new();
            let mut cut_up = 0;
            let mut is_lost = vec![false; payloads.len()];
            for (id, payload) in payloads.iter().enumerate() {
                let pieces = cut(is_v6, id as u16, payload, &units);
                if pieces.len() == 1 {
                    is_lost[id] = true;
                    continue;
                }
                cut_up += 1;
                for piece in pieces {
                    if is_lossy && random.u8(..) < 20 {
                        is_lost[id] = true;
                        continue;
                    }
                    sent.push((id, piece.clone()));
                }
            }
            random.shuffle(&mut sent);
            let mut theirs = IpDefragPool::<(), ()>::new();
            let mut kept = fragments();
            let mut tokens_back = Vec::new();
            let mut whole = 0;
            for (token, (id, packet)) in sent.iter().enumerate() {
                let other = theirs.process_sliced_packet(&SlicedPacket::from_ip(packet).unwrap(), (), ()).unwrap();
                match kept.push(0, packet, token as u64) {
                    Outcome::Whole { packet, tokens } => {
                        whole += 1;
                        tokens_back.extend(tokens);
                        prop_assert_eq!(&payload_of(&packet), &payloads[*id]);
                        prop_assert_eq!(&other.map(|it| it.payload), &Some(payloads[*id].clone()));
                    }
                    Outcome::Kept => {
                        prop_assert!(other.is_none());
                        // Once more, while it waits.
                        if random.bool() {
                            let again = kept.push(0, packet, u64::MAX);
                            prop_assert_eq!(cause(&again), Some(FragmentFault::Duplicate));
                        }
                    }
                    Outcome::Dropped { cause, .. } => prop_assert!(false, "{cause:?}"),
                }
            }
            let lost = is_lost.iter().filter(|&&it| it).count();
            prop_assert_eq!(whole, payloads.len() - lost);
            prop_assert!(is_lossy || whole == cut_up);
            kept.expire(u64::MAX, &mut |token| tokens_back.push(token));
            tokens_back.sort_unstable();
            prop_assert!(tokens_back.into_iter().eq(0..sent.len() as u64));
            prop_assert_eq!((kept.bytes(), kept.datagrams()), (0, 0));
        }
    }
}
