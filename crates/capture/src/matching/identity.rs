//! The identity of a packet: a hash of the bytes that a forwarding device does not change.
//!
//! Two folded multiplications for each 16 bytes produce two halves of 64 bits with different constants (the step of
//! wyhash, Wang Yi 2019). For random hashes, two different packets have the same identity with probability 2^-128. If a
//! million packets wait to be matched, a new packet has the identity of one of them with probability 2^-108. The hash
//! does not protect against packets crafted to collide: those count as ambiguous.

use taut_wire::{EtherType, Ethernet, IpProtocol};

/// Default number of bytes after the IP header that are hashed.
pub const IDENTITY_BYTES: usize = 128;

const IPV4_HEADER_BYTES: usize = 20;
const IPV6_HEADER_BYTES: usize = 40;
/// Constants without a pattern: fractional parts of the square roots of 2, 3, 5 and 7 (as in SHA-512).
const KEYS: [u64; 4] = [
    0x6a09_e667_f3bc_c908,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
];

/// The value that identifies a packet: the same before and after a forwarding device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Identity(pub [u64; 2]);

/// Header fields that the observed device rewrites, in addition to those that every forwarder rewrites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ignore {
    /// IP addresses, and the checksums that include them.
    pub addresses: bool,
    /// Ports of TCP, UDP and SCTP, identifiers of ICMP echoes, and checksums.
    pub ports: bool,
    /// Layer-4 checksums, because one capture point sees packets before the NIC fills in the checksums.
    pub checksums: bool,
}

/// The settings of packet identities; both capture points have to use the same settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identify {
    /// Header fields that are ignored in addition to those that every forwarder rewrites.
    pub ignore: Ignore,
    /// Maximum number of bytes after the IP header, or after Ethernet header and tags, that are hashed; both capture
    /// points have to store that many.
    pub bytes: usize,
}

impl Default for Identify {
    fn default() -> Self {
        Self {
            ignore: Ignore::default(),
            bytes: IDENTITY_BYTES,
        }
    }
}

impl Identify {
    /// Returns the identity of a frame that had `wire_bytes` on the wire. Returns `None` if the frame's length fields
    /// are wrong, or if fewer bytes are stored than have to be hashed, as the other capture point may have stored more.
    ///
    /// The identity ignores MAC addresses, VLAN tags, DSCP and ECN, flow label, TTL or hop limit, and checksum and
    /// options of IPv4. In frames without IP, trailing zeros are ignored too, as they may be padding.
    #[inline]
    pub fn of(&self, frame: &[u8], wire_bytes: u32) -> Option<Identity> {
        let ethernet = Ethernet::new(frame).ok()?;
        let kind = ethernet.ethertype();
        let network = frame.get(ethernet.header_len_bytes()..)?;
        let on_wire = (wire_bytes as usize).max(frame.len()) - ethernet.header_len_bytes();
        match kind {
            EtherType::IPV4 => self.ipv4(network, on_wire),
            EtherType::IPV6 => self.ipv6(network, on_wire),
            EtherType(other) => {
                let bytes = kept(network, on_wire, self.bytes)?;
                let end = bytes.iter().rposition(|it| *it != 0).map_or(0, |at| at + 1);
                let mut hash = Hash::new(u64::from(other));
                hash.add_all(&bytes[..end]);
                Some(hash.finish())
            }
        }
    }

    #[inline]
    fn ipv4(&self, network: &[u8], on_wire: usize) -> Option<Identity> {
        let head: &[u8; IPV4_HEADER_BYTES] = network.first_chunk()?;
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let header_bytes = usize::from(head[0] & 15) * 4;
        let total = word(0) as u16;
        let is_sound = head[0] >> 4 == 4
            && header_bytes >= IPV4_HEADER_BYTES
            && (header_bytes..=on_wire).contains(&usize::from(total));
        if !is_sound {
            return None;
        }
        let protocol = head[9];
        let payload = network.get(header_bytes..)?;
        let payload = kept(payload, usize::from(total) - header_bytes, self.bytes)?;
        let mut hash = Hash::new(4 << 8 | u64::from(protocol));
        let addresses = match self.ignore.addresses {
            true => 0,
            false => u64::from(word(12)) << 32 | u64::from(word(16)),
        };
        // Length, identification and fragment offset, but not the "do not fragment" bit.
        let fragment = word(4) & 0xffff_3fff;
        hash.add(u64::from(total) << 32 | u64::from(fragment), addresses);
        let is_later = fragment & 0x1fff != 0;
        self.transport(
            &mut hash,
            (!is_later).then_some(IpProtocol(protocol)),
            payload,
        );
        Some(hash.finish())
    }

    #[inline]
    fn ipv6(&self, network: &[u8], on_wire: usize) -> Option<Identity> {
        let head: &[u8; IPV6_HEADER_BYTES] = network.first_chunk()?;
        let word = |at: usize| {
            let bytes = head[at..].first_chunk().copied();
            u64::from_be_bytes(bytes.unwrap_or_default())
        };
        let total = usize::from(u16::from_be_bytes([head[4], head[5]]));
        if head[0] >> 4 != 6 || IPV6_HEADER_BYTES + total > on_wire {
            return None;
        }
        let payload = kept(&network[IPV6_HEADER_BYTES..], total, self.bytes)?;
        let mut hash = Hash::new(6 << 8 | u64::from(head[6]));
        hash.add(total as u64, 0);
        if !self.ignore.addresses {
            hash.add(word(8), word(16));
            hash.add(word(24), word(32));
        }
        self.transport(&mut hash, Some(IpProtocol(head[6])), payload);
        Some(hash.finish())
    }

    /// Adds the bytes after the IP header to the hash. `protocol` is none for a fragment other than the first, which
    /// has no layer-4 header.
    #[inline]
    fn transport(&self, hash: &mut Hash, protocol: Option<IpProtocol>, payload: &[u8]) {
        let Ignore {
            addresses,
            ports,
            checksums,
        } = self.ignore;
        let ignored = protocol
            .filter(|_| addresses || ports || checksums)
            .and_then(fields);
        let Some((checksum_at, checksum_bytes, ports_at)) = ignored else {
            hash.add_all(payload);
            return;
        };
        // TCP has the longest header up to the end of its checksum.
        let mut head = [0; 32];
        let len = payload.len().min(head.len());
        head[..len].copy_from_slice(&payload[..len]);
        head[checksum_at..checksum_at + checksum_bytes].fill(0);
        if ports {
            let echoes = matches!(protocol, Some(IpProtocol::ICMP | IpProtocol::ICMPV6));
            let bytes = if echoes { 2 } else { 4 };
            head[ports_at..ports_at + bytes].fill(0);
        }
        hash.add_all(&head[..len]);
        hash.add_all(&payload[len..]);
    }
}

/// Returns the offset and length of a protocol's checksum, and the offset of the protocol's ports, or of the field that
/// a NAT uses instead.
fn fields(protocol: IpProtocol) -> Option<(usize, usize, usize)> {
    match protocol {
        IpProtocol::TCP => Some((16, 2, 0)),
        IpProtocol::UDP => Some((6, 2, 0)),
        IpProtocol::SCTP => Some((8, 4, 0)),
        IpProtocol::ICMP | IpProtocol::ICMPV6 => Some((2, 2, 4)),
        _ => None,
    }
}

/// Returns the first `most` bytes of a field with `len` bytes; none if `bytes` does not contain them all.
#[inline]
fn kept(bytes: &[u8], len: usize, most: usize) -> Option<&[u8]> {
    bytes.get(..len.min(most))
}

struct Hash {
    halves: [u64; 2],
    bytes: u64,
}

impl Hash {
    #[inline]
    fn new(seed: u64) -> Self {
        Self {
            halves: [KEYS[0] ^ seed, KEYS[1]],
            bytes: 0,
        }
    }

    #[inline(always)]
    fn add(&mut self, a: u64, b: u64) {
        let [x, y] = self.halves;
        self.halves = [
            fold(x ^ a, b ^ KEYS[2]) ^ x.rotate_left(23),
            fold(y ^ b, a ^ KEYS[3]) ^ y.rotate_left(29),
        ];
    }

    #[inline]
    fn add_all(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        let mut chunks = bytes.chunks_exact(16);
        for chunk in &mut chunks {
            self.add_chunk(chunk);
        }
        let rest = chunks.remainder();
        if !rest.is_empty() {
            let mut last = [0; 16];
            last[..rest.len()].copy_from_slice(rest);
            self.add_chunk(&last);
        }
    }

    #[inline(always)]
    fn add_chunk(&mut self, chunk: &[u8]) {
        if let Some(&[a, b]) = chunk.as_chunks::<8>().0.first_chunk() {
            self.add(u64::from_le_bytes(a), u64::from_le_bytes(b));
        }
    }

    #[inline]
    fn finish(mut self) -> Identity {
        // The number of bytes is hashed as well, so that zeros at the end make a difference.
        self.add(self.bytes, KEYS[0]);
        self.add(KEYS[1], self.bytes);
        Identity(self.halves)
    }
}

/// Returns the exclusive or of the two halves of the 128-bit product of two numbers.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use etherparse::PacketBuilder;
    use proptest::prelude::*;

    const NAT: Ignore = Ignore {
        addresses: true,
        ports: true,
        checksums: false,
    };

    fn identify(ignore: Ignore) -> Identify {
        Identify {
            ignore,
            ..Identify::default()
        }
    }

    fn of(identify: &Identify, frame: &[u8]) -> Identity {
        identify.of(frame, frame.len() as u32).unwrap()
    }

    #[derive(Clone, Copy, Debug)]
    enum Kind {
        Udp4,
        Tcp4,
        Icmp4,
        Udp6,
        Tcp6,
    }

    fn frame(kind: Kind, host: u8, port: u16, ttl: u8, payload: &[u8]) -> Vec<u8> {
        let four = |host| {
            PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4([10, 0, 0, host], [10, 0, 1, 1], ttl)
        };
        let six = |host| PacketBuilder::ethernet2([1; 6], [2; 6]).ipv6([host; 16], [9; 16], ttl);
        let mut frame = Vec::new();
        match kind {
            Kind::Udp4 => four(host).udp(port, 53).write(&mut frame, payload),
            Kind::Tcp4 => four(host).tcp(port, 80, 7, 9).write(&mut frame, payload),
            Kind::Icmp4 => four(host)
                .icmpv4_echo_request(port, 3)
                .write(&mut frame, payload),
            Kind::Udp6 => six(host).udp(port, 53).write(&mut frame, payload),
            Kind::Tcp6 => six(host).tcp(port, 80, 7, 9).write(&mut frame, payload),
        }
        .unwrap();
        frame
    }

    fn kinds() -> impl Strategy<Value = Kind> {
        prop::sample::select(vec![
            Kind::Udp4,
            Kind::Tcp4,
            Kind::Icmp4,
            Kind::Udp6,
            Kind::Tcp6,
        ])
    }

    proptest! {
        #[test]
        fn forwarding_preserves_a_packets_identity_and_modification_changes_it(
            kind in kinds(), host: u8, port: u16, payload in prop::collection::vec(any::<u8>(), 1..100), at: prop::sample::Index,
        ) {
            let identify = Identify::default();
            let before = frame(kind, host, port, 64, &payload);
            let mut after = frame(kind, host, port, 63, &payload);
            after[..12].fill(7);
            // The changed fields are DSCP and ECN, or traffic class and flow label.
            match kind {
                Kind::Udp6 | Kind::Tcp6 => after[14..18].copy_from_slice(&[0x6b, 0x8c, 1, 2]),
                _ => after[15] = 0xb8,
            }
            // A VLAN tag and padding are added.
            after.splice(12..12, [0x81, 0, 0, 5]);
            after.resize(after.len() + 20, 0);
            prop_assert_eq!(of(&identify, &before), of(&identify, &after));
            // The frame is truncated after the hashed bytes.
            let wire = before.len() as u32;
            let snapped = &before[..before.len().min(14 + 40 + IDENTITY_BYTES)];
            prop_assert_eq!(identify.of(snapped, wire), Some(of(&identify, &before)));
            prop_assert_eq!(identify.of(&before[..before.len() - 1], wire), None);
            let mut other = payload.clone();
            other[at.index(payload.len())] ^= 1;
            prop_assert_ne!(of(&identify, &before), of(&identify, &frame(kind, host, port, 64, &other)));
            prop_assert_ne!(of(&identify, &before), of(&identify, &frame(kind, host, port ^ 1, 64, &payload)));
            prop_assert_ne!(of(&identify, &before), of(&identify, &frame(kind, host ^ 1, port, 64, &payload)));
        }

        #[test]
        fn in_nat_mode_packets_are_identified_only_by_their_payload(
            kind in kinds(), host: u8, port: u16, payload in prop::collection::vec(any::<u8>(), 1..100),
        ) {
            let identify = identify(NAT);
            let inside = frame(kind, host, port, 64, &payload);
            let outside = frame(kind, !host, !port, 63, &payload);
            prop_assert_eq!(of(&identify, &inside), of(&identify, &outside));
            let mut other = payload.clone();
            other[0] ^= 1;
            prop_assert_ne!(of(&identify, &inside), of(&identify, &frame(kind, host, port, 64, &other)));
        }

        #[test]
        fn random_frames_are_identified_without_a_panic(frame: Vec<u8>, wire: u16, kind in 0..3_usize, bytes in 0..200_usize) {
            let mut frame = frame;
            if frame.len() > 15 {
                let kinds: [[u8; 3]; 3] = [[8, 0, 0x45], [0x86, 0xdd, 0x60], [8, 6, 0]];
                frame[12..15].copy_from_slice(&kinds[kind]);
            }
            let _ = Identify { ignore: NAT, bytes }.of(&frame, u32::from(wire));
        }
    }

    #[test]
    fn packet_identities_can_exclude_incomplete_checksums() {
        let whole = frame(Kind::Udp4, 1, 1000, 64, &[1, 2, 3]);
        let mut partial = whole.clone();
        partial[40..42].fill(9);
        let all = identify(Ignore::default());
        assert_ne!(of(&all, &whole), of(&all, &partial));
        let without = identify(Ignore {
            checksums: true,
            ..Ignore::default()
        });
        assert_eq!(of(&without, &whole), of(&without, &partial));
    }

    #[test]
    fn arp_packets_are_identified_regardless_of_mac_addresses_and_padding() {
        let identify = Identify::default();
        let mut arp = vec![0; 12];
        arp.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        let mut padded = arp.clone();
        padded[..12].fill(3);
        padded.resize(60, 0);
        assert_eq!(of(&identify, &arp), of(&identify, &padded));
        padded[21] = 2;
        assert_ne!(of(&identify, &arp), of(&identify, &padded));
        assert_eq!(identify.of(&[0; 5], 60), None);
        // The length field exceeds the frame.
        let mut lying = frame(Kind::Udp4, 1, 1, 64, &[1]);
        lying[16] = 1;
        assert_eq!(identify.of(&lying, lying.len() as u32), None);
    }

    #[test]
    fn a_million_similar_packets_have_distinct_identities() {
        let identify = Identify::default();
        let mut frame = frame(Kind::Udp4, 1, 1, 64, &[0; 8]);
        let mut seen: Vec<_> = (0..1_000_000_u32)
            .map(|number| {
                frame[42..46].copy_from_slice(&number.to_be_bytes());
                of(&identify, &frame).0
            })
            .collect();
        // Each half alone is tested, too.
        for half in 0..2 {
            seen.sort_unstable_by_key(|it| it[half]);
            assert!(seen.windows(2).all(|pair| pair[0][half] != pair[1][half]));
        }
    }
}
