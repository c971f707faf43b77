//! Tests with fragments in all orders, from attackers and from ordinary senders.
#![allow(clippy::unwrap_used)]

use super::*;

use etherparse::SlicedPacket;
use etherparse::defrag::IpDefragPool;
use proptest::prelude::*;
use taut_wire::{IpProtocol, Ipv4, Ipv4Repr, Ipv6Repr};

const V4: bool = false;
const V6: bool = true;
pub(super) const UDP: u8 = 17;
pub(super) const TCP: u8 = 6;

/// Returns a fragment; IPv6 ones have a hop-by-hop header before the fragment header.
pub(super) fn fragment(
    is_v6: bool,
    id: u16,
    protocol: u8,
    at: usize,
    more: bool,
    data: &[u8],
) -> Vec<u8> {
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
    Fragments::new(FragmentLimits::default(), Overlap::Drop)
}

/// Sets the source address of a fragment; an IPv4 fragment gets the last 32 bits of `source`.
fn set_source(packet: &mut [u8], source: u128) {
    if packet[0] >> 4 == 6 {
        packet[8..24].copy_from_slice(&source.to_be_bytes());
    } else {
        packet[12..16].copy_from_slice(&(source as u32).to_be_bytes());
        Ipv4::new(packet).unwrap().fill_checksum();
    }
}

/// Returns the payload of the packet, found by an independent parser.
fn payload_of(packet: &[u8]) -> Vec<u8> {
    let sliced = etherparse::IpSlice::from_slice(packet).unwrap();
    assert!(!sliced.payload().fragmented);
    if packet[0] >> 4 == 4 {
        assert!(Ipv4::new(packet).unwrap().verify_checksum().is_ok());
    }
    assert_eq!(sliced.payload_ip_number().0, UDP);
    sliced.payload().payload.to_vec()
}

/// Returns the payload of the packet that a fragment has completed.
fn whole(outcome: Outcome<'_>) -> Vec<u8> {
    match outcome {
        Outcome::Whole(packet) => payload_of(packet),
        other => panic!("it is not whole: {other:?}"),
    }
}

fn dropped(fault: FragmentFault) -> Outcome<'static> {
    Outcome::Dropped(fault)
}

/// Checks that lists, counters and memory agree, and that no memory is in use after all datagrams have timed out.
pub(super) fn check_that_all_comes_back(kept: &mut Fragments) {
    let chunks: u32 = kept.chunks_of.iter().sum();
    assert_eq!(chunks as usize, kept.memory.used());
    let in_lists = |lists: &Lists| {
        (0..kept.chunks_of.len())
            .map(|it| lists.len(it))
            .sum::<usize>()
    };
    assert_eq!(in_lists(&kept.by_key), kept.datagrams());
    assert_eq!(in_lists(&kept.by_source), kept.datagrams());
    kept.expire(u64::MAX);
    assert_eq!((kept.datagrams(), kept.bytes()), (0, 0));
    assert!(kept.chunks_of.iter().all(|it| *it == 0));
}

#[test]
fn fragments_in_reverse_order_are_reassembled() {
    let payload: Vec<u8> = (0..100).collect();
    for is_v6 in [V4, V6] {
        let mut pieces = cut(is_v6, 5, &payload, &[2]);
        pieces.reverse();
        let mut kept = fragments();
        let (last, others) = pieces.split_last().unwrap();
        for piece in others {
            assert_eq!(kept.push(0, 0, piece), Outcome::Kept);
        }
        assert_eq!(whole(kept.push(0, 0, last)), payload);
        assert_eq!((kept.datagrams(), kept.bytes()), (0, 0));
        assert_eq!(kept.counters, FragmentCounters::default());
    }
}

#[test]
fn datagrams_beyond_the_maximum_ip_length_are_dropped() {
    for (is_v6, most) in [(V4, 65_515), (V6, 65_527)] {
        for (len, is_whole) in [(most, true), (most + 1, false)] {
            let payload: Vec<u8> = (0..len).map(|it| (it / 7) as u8).collect();
            let mut pieces = cut(is_v6, 1, &payload, &[64]);
            assert!(pieces.len() == MOST_FRAGMENTS);
            // The first fragment determines the length of the headers, and may arrive last.
            pieces.rotate_left(1);
            let mut kept = fragments();
            let (last, others) = pieces.split_last().unwrap();
            if is_whole {
                others
                    .iter()
                    .for_each(|it| assert_eq!(kept.push(0, 0, it), Outcome::Kept));
                assert_eq!(whole(kept.push(0, 0, last)), payload);
            } else {
                let outcomes = others
                    .iter()
                    .map(|it| kept.push(0, 0, it) == dropped(FragmentFault::TooLong));
                assert_eq!(outcomes.filter(|it| *it).count(), 1);
                assert_eq!(kept.push(0, 0, last), dropped(FragmentFault::GivenUp));
            }
            check_that_all_comes_back(&mut kept);
        }
    }
}

#[test]
fn the_first_fragment_header_counts_towards_the_length_limit() {
    let with_options = |at: usize, more, data: &[u8]| {
        let mut packet = fragment(V4, 1, UDP, at, more, data);
        packet.splice(20..20, [1; 40]);
        packet[0] = 0x4f;
        let len = packet.len() as u16;
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        Ipv4::new(&mut packet[..]).unwrap().fill_checksum();
        packet
    };
    let (first, last) = (
        with_options(0, true, &[0; 8]),
        fragment(V4, 1, UDP, 65_504, false, &[0; 8]),
    );
    for order in [[&first, &last], [&last, &first]] {
        let mut kept = fragments();
        assert_eq!(kept.push(0, 0, order[0]), Outcome::Kept);
        assert_eq!(kept.push(0, 0, order[1]), dropped(FragmentFault::TooLong));
    }
}

#[test]
fn an_atomic_fragment_is_complete_and_affects_no_other_datagram() {
    let mut kept = fragments();
    let atomic = fragment(V6, 1, UDP, 0, false, b"12345678");
    assert_eq!(whole(kept.push(0, 0, &atomic)), b"12345678");
    assert_eq!(kept.datagrams(), 0);
    let other = fragment(V6, 1, UDP, 8, true, b"abcdefgh");
    assert_eq!(kept.push(0, 0, &other), Outcome::Kept);
    assert_eq!(whole(kept.push(0, 0, &atomic)), b"12345678");
    assert_eq!(kept.push(0, 0, &other), Outcome::Duplicate);
}

#[test]
fn reassembled_packets_have_the_header_and_ecn_of_fragment_zero() {
    for order in [[0, 1], [1, 0]] {
        let mut pieces = cut(V4, 1, &[7; 40], &[3]);
        for (piece, ecn) in pieces.iter_mut().zip([2, 3]) {
            piece[1] = ecn;
            Ipv4::new(&mut piece[..]).unwrap().fill_checksum();
        }
        let mut kept = fragments();
        assert_eq!(kept.push(0, 0, &pieces[order[0]]), Outcome::Kept);
        let Outcome::Whole(packet) = kept.push(0, 0, &pieces[order[1]]) else {
            panic!("it is whole");
        };
        assert_eq!((packet[1], packet[8]), (2, 9));
    }
}

#[test]
fn fragments_of_different_vlans_addresses_or_ip_versions_stay_separate() {
    let pieces = cut(V4, 1, &[7; 40], &[3]);
    let mut kept = fragments();
    assert_eq!(kept.push(0, 1, &pieces[0]), Outcome::Kept);
    assert_eq!(kept.push(0, 2, &pieces[1]), Outcome::Kept);
    let mut other = pieces[1].clone();
    set_source(&mut other, 7);
    assert_eq!(kept.push(0, 1, &other), Outcome::Kept);
    assert_eq!(
        kept.push(0, 1, &cut(V6, 1, &[7; 40], &[3])[1]),
        Outcome::Kept
    );
    assert_eq!(kept.datagrams(), 4);
    assert_eq!(whole(kept.push(0, 1, &pieces[1])), [7; 40]);
}

#[test]
fn overlapping_fragments_with_different_bytes_drop_the_datagram() {
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
            let first = fragment(is_v6, 1, UDP, 16, true, &a);
            assert_eq!(kept.push(0, 0, &first), Outcome::Kept);
            let other = fragment(is_v6, 1, UDP, at, more, &[b'b'; 48][..len]);
            let outcome = kept.push(0, 0, &other);
            assert_eq!(
                outcome,
                dropped(FragmentFault::Overlap),
                "{at} {more} {len}"
            );
            // Later fragments of the datagram are dropped too, until it has timed out.
            let late = fragment(is_v6, 1, UDP, 32, true, &a);
            assert_eq!(kept.push(1, 0, &late), dropped(FragmentFault::GivenUp));
            assert_eq!((kept.bytes(), kept.datagrams()), (0, 1));
            assert_eq!((kept.counters.given_up, kept.counters.timed_out), (1, 0));
            kept.expire(40_000_000_000);
            assert_eq!(kept.push(40_000_000_001, 0, &late), Outcome::Kept);
            check_that_all_comes_back(&mut kept);
        }
    }
}

/// Returns lists of fragments. The last fragment of each list contradicts the earlier ones in the end of the datagram
/// or in the protocol, but not in overlapping bytes.
fn contradictions() -> Vec<Vec<Vec<u8>>> {
    let piece = |at, more, len| fragment(V6, 1, UDP, at, more, &[b'a'; 48][..len]);
    vec![
        // The second fragment ends the datagram at another offset.
        vec![piece(16, false, 8), piece(24, false, 8)],
        vec![piece(16, false, 8), piece(8, false, 8)],
        vec![piece(16, false, 5), piece(16, false, 4)],
        // After the last fragment, a fragment announces more fragments at the end or beyond it.
        vec![piece(16, false, 8), piece(16, true, 8)],
        vec![piece(16, false, 8), piece(24, true, 8)],
        vec![piece(16, false, 5), piece(16, true, 8)],
        // The second fragment ends the datagram before bytes that are present.
        vec![piece(16, true, 8), piece(8, false, 8)],
        vec![piece(16, true, 8), piece(16, false, 8)],
        vec![piece(16, true, 8), piece(16, false, 5)],
        // The second fragment has another protocol.
        vec![
            fragment(V6, 1, TCP, 0, true, &[b'a'; 16]),
            piece(0, true, 16),
        ],
    ]
}

/// Pushes the fragments of each contradiction, and checks that the last fragment is dropped because of `fault`. Then
/// calls `behind` with the first fragment.
fn contradict(overlap: Overlap, fault: FragmentFault, behind: impl Fn(&mut Fragments, &[u8])) {
    for (number, pieces) in contradictions().iter().enumerate() {
        let mut kept = Fragments::new(FragmentLimits::default(), overlap);
        let (last, others) = pieces.split_last().unwrap();
        others
            .iter()
            .for_each(|it| assert_eq!(kept.push(0, 0, it), Outcome::Kept));
        assert_eq!(kept.push(0, 0, last), dropped(fault), "{number}");
        behind(&mut kept, &others[0]);
    }
}

#[test]
fn contradictory_fragments_drop_the_datagram_and_free_its_memory() {
    contradict(Overlap::Drop, FragmentFault::Overlap, |kept, _| {
        check_that_all_comes_back(kept);
    });
}

#[test]
fn overlap_policy_first_keeps_the_earlier_bytes() {
    contradict(
        Overlap::First,
        FragmentFault::Contradiction,
        |kept, first| {
            assert_eq!(kept.push(0, 0, first), Outcome::Duplicate);
        },
    );
    let mut kept = Fragments::new(FragmentLimits::default(), Overlap::First);
    let push = |kept: &mut Fragments, at, more, data: &[u8]| {
        let packet = fragment(V4, 1, UDP, at, more, data);
        match kept.push(0, 0, &packet) {
            Outcome::Whole(packet) => Some(payload_of(packet)),
            outcome => {
                assert_eq!(outcome, Outcome::Kept);
                None
            }
        }
    };
    assert_eq!(push(&mut kept, 8, true, &[b'a'; 8]), None);
    assert_eq!(push(&mut kept, 8, true, &[b'b'; 8]), None);
    assert_eq!(push(&mut kept, 8, false, &[b'c'; 13]), None);
    let whole = push(&mut kept, 0, true, &[b'd'; 16]).unwrap();
    assert_eq!(whole, b"ddddddddaaaaaaaaccccc");
}

#[test]
fn duplicate_fragment_bytes_do_not_prevent_reassembly() {
    let payload: Vec<u8> = (0..1500).map(|it| (it / 3) as u8).collect();
    let pieces = cut(V4, 1, &payload, &[70]);
    let mut kept = fragments();
    for which in [1, 2] {
        assert_eq!(kept.push(0, 0, &pieces[which]), Outcome::Kept);
        assert_eq!(kept.push(0, 0, &pieces[which]), Outcome::Duplicate);
    }
    // Fragments of a different split contain a part of the stored bytes, or more than the stored bytes.
    let piece = |from: usize, to: usize| fragment(V4, 1, UDP, from, true, &payload[from..to]);
    assert_eq!(kept.push(0, 0, &piece(800, 1000)), Outcome::Duplicate);
    assert_eq!(kept.push(0, 0, &piece(496, 1000)), Outcome::Kept);
    assert_eq!(whole(kept.push(0, 0, &pieces[0])), payload);
}

#[test]
fn each_invalid_fragment_has_a_named_fault() {
    use FragmentFault::{Header, Length, NotAFragment, TinyFirst, TooLong};
    let good = fragment(V4, 1, UDP, 8, true, &[0; 8]);
    let mut wrong_sum = good.clone();
    wrong_sum[10] ^= 1;
    let mut lying = fragment(V6, 1, UDP, 8, true, &[0; 8]);
    lying[5] += 1;
    let mut no_fragment_header = fragment(V6, 1, UDP, 8, true, &[0; 8]);
    no_fragment_header[4..6].copy_from_slice(&[0, 15]);
    let mut long_extension = fragment(V6, 1, UDP, 8, true, &[0; 2000]);
    long_extension[41] = 59;
    let mut whole = fragment(V6, 1, UDP, 8, true, &[0; 8]);
    whole[40] = UDP;
    let table = [
        (Vec::new(), Header),
        (vec![0x50; 40], Header),
        (good[..27].to_vec(), Header),
        (wrong_sum, Header),
        (lying, Header),
        (no_fragment_header, Header),
        (long_extension, Header),
        (whole, NotAFragment),
        (fragment(V4, 1, UDP, 0, false, &[0; 8]), NotAFragment),
        (fragment(V4, 1, UDP, 8, true, &[0; 9]), Length),
        (fragment(V4, 1, UDP, 8, true, &[]), Length),
        (fragment(V6, 1, UDP, 8, false, &[]), Length),
        (fragment(V4, 1, UDP, 65_528, false, &[0; 8]), TooLong),
        (fragment(V6, 1, UDP, 65_528, false, &[0; 8]), TooLong),
        (fragment(V4, 1, TCP, 0, true, &[0; 8]), TinyFirst),
        (fragment(V6, 1, TCP, 0, true, &[0; 8]), TinyFirst),
    ];
    for (number, (packet, fault)) in table.into_iter().enumerate() {
        let mut kept = fragments();
        assert_eq!(kept.push(0, 0, &packet), dropped(fault), "{number}");
        assert_eq!(
            kept.datagrams(),
            usize::from(fault.ends_datagram()),
            "{number}"
        );
    }
}

#[test]
fn padding_after_a_fragment_is_excluded_from_the_datagram() {
    let mut kept = fragments();
    let mut last = fragment(V4, 1, UDP, 8, false, b"end");
    last.extend([0xee; 20]);
    assert_eq!(kept.push(0, 0, &last), Outcome::Kept);
    let first = fragment(V4, 1, UDP, 0, true, b"12345678");
    assert_eq!(whole(kept.push(0, 0, &first)), b"12345678end");
}

#[test]
fn a_datagram_expires_a_fixed_time_after_its_first_fragment() {
    let pieces = cut(V4, 1, &[7; 40], &[2]);
    let limits = FragmentLimits {
        timeout_ns: 10,
        ..FragmentLimits::default()
    };
    let mut kept = Fragments::new(limits, Overlap::Drop);
    assert_eq!(kept.push(100, 0, &pieces[0]), Outcome::Kept);
    assert_eq!(kept.push(109, 0, &pieces[1]), Outcome::Kept);
    kept.expire(109);
    assert_eq!(kept.datagrams(), 1);
    // The timeout also applies if `expire` was not called since.
    assert_eq!(kept.push(110, 0, &pieces[2]), Outcome::Kept);
    assert_eq!((kept.datagrams(), kept.counters.timed_out), (1, 1));
    kept.expire(119);
    assert_eq!(kept.datagrams(), 1);
    kept.expire(120);
    assert_eq!(
        (kept.datagrams(), kept.bytes(), kept.counters.timed_out),
        (0, 0, 2)
    );
}

#[test]
fn fragments_of_a_dropped_datagram_are_dropped_until_its_timeout() {
    let limits = FragmentLimits {
        timeout_ns: 10,
        ..FragmentLimits::default()
    };
    let mut kept = Fragments::new(limits, Overlap::Drop);
    let [first, other] = [1, 2].map(|byte| fragment(V4, 1, UDP, 8, true, &[byte; 8]));
    assert_eq!(kept.push(100, 0, &first), Outcome::Kept);
    assert_eq!(kept.push(105, 0, &other), dropped(FragmentFault::Overlap));
    kept.expire(114);
    assert_eq!(kept.push(114, 0, &first), dropped(FragmentFault::GivenUp));
    kept.expire(115);
    assert_eq!(kept.datagrams(), 0);
    assert_eq!((kept.counters.given_up, kept.counters.timed_out), (1, 0));
}

#[test]
fn fragments_per_datagram_are_limited_and_small_fragments_share_chunks() {
    let mut kept = fragments();
    let tiny = |number: usize| fragment(V4, 1, UDP, 8 + number * 16, true, &[0; 8]);
    for number in 0..MOST_FRAGMENTS {
        assert_eq!(kept.push(0, 0, &tiny(number)), Outcome::Kept);
        assert_eq!(kept.push(0, 0, &tiny(number)), Outcome::Duplicate);
    }
    assert_eq!(kept.bytes(), MOST_FRAGMENTS * 16);
    assert_eq!(
        kept.push(0, 0, &tiny(MOST_FRAGMENTS)),
        dropped(FragmentFault::TooMany)
    );
    assert_eq!(kept.bytes(), 0);
    check_that_all_comes_back(&mut kept);
}

#[test]
fn a_full_table_or_memory_evicts_the_oldest_datagram() {
    let limits = FragmentLimits {
        bytes: 4 * CHUNK_BYTES,
        datagrams: 2,
        of_source: 2,
        timeout_ns: 10,
    };
    let mut kept = Fragments::new(limits, Overlap::Drop);
    let piece = |id, at, len| fragment(V4, id, UDP, at, true, &vec![0; len]);
    assert_eq!(kept.push(0, 0, &piece(1, 512, 8)), Outcome::Kept);
    assert_eq!(kept.push(1, 0, &piece(2, 512, 8)), Outcome::Kept);
    // The source has no entry for a third datagram, so its first datagram is released.
    assert_eq!(kept.push(2, 0, &piece(3, 512, 512)), Outcome::Kept);
    assert_eq!(
        (
            kept.datagrams(),
            kept.bytes(),
            kept.counters.made_room_of_source
        ),
        (2, 1024, 1)
    );
    // Memory for two more chunks is free. A fragment that needs a third chunk releases the second datagram.
    assert_eq!(kept.push(3, 0, &piece(3, 1024, 1024)), Outcome::Kept);
    assert_eq!((kept.datagrams(), kept.counters.made_room), (2, 0));
    assert_eq!(kept.push(3, 0, &piece(3, 2048, 8)), Outcome::Kept);
    assert_eq!(
        (kept.datagrams(), kept.bytes(), kept.counters.made_room),
        (1, 2048, 1)
    );
    // An invalid fragment releases no other datagram, and abandoned datagrams have no memory to release.
    let wrong = fragment(V4, 4, UDP, 0, true, &[0; 9]);
    assert_eq!(kept.push(4, 0, &wrong), dropped(FragmentFault::Length));
    assert_eq!(
        kept.push(4, 0, &piece(3, 2560, 8)),
        dropped(FragmentFault::NoMemory)
    );
    assert_eq!(
        (kept.datagrams(), kept.bytes(), kept.counters.made_room),
        (2, 0, 1)
    );
    assert_eq!(kept.counters.given_up, 2);
    check_that_all_comes_back(&mut kept);
}

#[test]
fn a_fragment_flood_of_one_source_evicts_no_other_source() {
    // The flood arrives between the two fragments of a datagram of another source.
    for is_v6 in [V4, V6] {
        let mut kept = fragments();
        let payload: Vec<u8> = (0..2000).map(|it| (it / 9) as u8).collect();
        let benign = cut(is_v6, 1, &payload, &[170]);
        assert_eq!(kept.push(0, 0, &benign[0]), Outcome::Kept);
        let mut source: u128 = 0x2001_0db8_00ff_0000 << 64 | 0xc633_6401;
        while shares_source(&kept, is_v6, source) {
            source += 1 << 64 | 1;
        }
        for number in 0..50_000_u32 {
            let (len, at) = [(1400, 0), (8, 0), (1400, 60_000), (9, 0)][number as usize / 16 % 4];
            let mut packet = fragment(
                is_v6,
                (number >> 4) as u16,
                UDP,
                at,
                true,
                &[0; 1400][..len],
            );
            let spread = number as usize % 16 * 512 + at;
            set_offset(&mut packet, spread.min(60_000));
            set_source(&mut packet, source);
            assert!(!matches!(kept.push(1, 0, &packet), Outcome::Whole(_)));
        }
        assert!(kept.counters.made_room_of_source > 1000 && kept.counters.made_room == 0);
        assert!(kept.datagrams() <= 65 && kept.bytes() <= (512 + 5) * CHUNK_BYTES);
        assert_eq!(whole(kept.push(2, 0, &benign[1])), payload);
        check_that_all_comes_back(&mut kept);
    }
}

/// Returns true if a source shares its list with the source of [`fragment`].
fn shares_source(kept: &Fragments, is_v6: bool, source: u128) -> bool {
    let mut packet = fragment(is_v6, 1, UDP, 8, true, &[0; 8]);
    let usual = lists_of(kept, &packet).1;
    set_source(&mut packet, source);
    lists_of(kept, &packet).1 == usual
}

/// Returns the indices of a fragment's lists, by its key and by its source.
fn lists_of(kept: &Fragments, packet: &[u8]) -> (usize, usize) {
    let key = Fragment::read(packet, 0).unwrap().key;
    let hashes = (key.hash(&kept.hash_key), key.hash_of_source(&kept.hash_key));
    (kept.list_of(hashes.0), kept.list_of(hashes.1))
}

#[test]
fn hosts_of_one_ipv6_network_are_one_source() {
    let kept = fragments();
    let (network, other) = (0x2001_0db8 << 96, 0x2001_0db8_0001 << 80);
    assert!((0..100).all(|host| shares_source(&kept, V6, network | host)));
    let others = (0..100_u128).map(|it| other | it << 64);
    assert!(others.filter(|it| shares_source(&kept, V6, *it)).count() < 5);
    assert!((0..100).filter(|it| shares_source(&kept, V4, *it)).count() < 5);
}

#[test]
fn the_oldest_datagram_of_a_full_hash_chain_is_evicted() {
    let mut kept = fragments();
    let mut of_one_list = (0..).filter_map(|source| {
        let mut packet = fragment(V4, 1, UDP, 8, true, &[0; 8]);
        set_source(&mut packet, source);
        (lists_of(&kept, &packet).0 == 0).then_some(packet)
    });
    let packets: Vec<_> = of_one_list.by_ref().take(MOST_IN_CHAIN + 1).collect();
    drop(of_one_list);
    for packet in &packets {
        assert_eq!(kept.push(0, 0, packet), Outcome::Kept);
    }
    assert_eq!(
        (kept.datagrams(), kept.counters.made_room),
        (MOST_IN_CHAIN, 1)
    );
    assert_eq!(kept.push(0, 0, &packets[1]), Outcome::Duplicate);
    assert_eq!(kept.push(0, 0, &packets[0]), Outcome::Kept);
    check_that_all_comes_back(&mut kept);
}

fn set_offset(packet: &mut [u8], offset: usize) {
    if packet[0] >> 4 == 6 {
        packet[50..52].copy_from_slice(&(offset as u16 | 1).to_be_bytes());
    } else {
        packet[6..8].copy_from_slice(&((offset as u16 / 8) | 0x2000).to_be_bytes());
        Ipv4::new(packet).unwrap().fill_checksum();
    }
}

#[test]
fn a_fragment_flood_of_many_sources_leaves_concurrent_datagrams_complete() {
    for is_v6 in [V4, V6] {
        let mut random = fastrand::Rng::with_seed(10);
        let mut kept = fragments();
        let mut flood = |kept: &mut Fragments, packets| {
            for _ in 0..packets {
                let mut packet = fragment(is_v6, random.u16(..), UDP, 0, true, &[0; 1400]);
                set_source(&mut packet, random.u128(..));
                assert_eq!(kept.push(0, 0, &packet), Outcome::Kept);
            }
        };
        for id in 0..200 {
            let benign = cut(is_v6, id, &[id as u8; 2000], &[170]);
            assert_eq!(kept.push(0, 0, &benign[0]), Outcome::Kept);
            flood(&mut kept, 500);
            assert_eq!(whole(kept.push(0, 0, &benign[1])), [id as u8; 2000]);
        }
        assert_eq!(kept.datagrams(), 1023);
        assert!(kept.counters.made_room > 90_000);
        check_that_all_comes_back(&mut kept);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn datagrams_are_delivered_only_if_all_fragments_arrive(
        lens in prop::collection::vec(9..600usize, 1..5),
        units in prop::collection::vec(1..9usize, 1..5),
        seed: u64,
        is_v6: bool,
        is_lossy: bool,
    ) {
        let mut random = fastrand::Rng::with_seed(seed);
        let payloads: Vec<Vec<u8>> = lens.iter().map(|&len| (0..len).map(|_| random.u8(..)).collect()).collect();
        let mut sent = Vec::new();
        let mut expected = 0;
        for (id, payload) in payloads.iter().enumerate() {
            let pieces = cut(is_v6, id as u16, payload, &units);
            if pieces.len() == 1 {
                continue;
            }
            let all = pieces.len();
            let there: Vec<_> = pieces.into_iter().filter(|_| !is_lossy || random.u8(..) >= 20).collect();
            expected += usize::from(there.len() == all);
            sent.extend(there.into_iter().map(|piece| (id, piece)));
        }
        random.shuffle(&mut sent);
        let mut theirs = IpDefragPool::<(), ()>::new();
        let mut kept = fragments();
        let mut found = 0;
        for (id, packet) in &sent {
            let other = theirs.process_sliced_packet(&SlicedPacket::from_ip(packet).unwrap(), (), ()).unwrap();
            match kept.push(0, 0, packet) {
                Outcome::Whole(packet) => {
                    found += 1;
                    prop_assert_eq!(&payload_of(packet), &payloads[*id]);
                    prop_assert_eq!(&other.map(|it| it.payload), &Some(payloads[*id].clone()));
                }
                outcome => {
                    prop_assert_eq!(outcome, Outcome::Kept);
                    prop_assert!(other.is_none());
                    // A duplicate arrives while the datagram is incomplete.
                    if random.bool() {
                        prop_assert_eq!(kept.push(0, 0, packet), Outcome::Duplicate);
                    }
                }
            }
        }
        prop_assert_eq!(found, expected);
        check_that_all_comes_back(&mut kept);
    }

    #[test]
    fn a_datagram_is_reassembled_from_any_fragments_in_any_order(
        len in 1..20_000usize,
        cuts in prop::collection::vec(0..2500usize, 0..40),
        seed: u64,
        is_v6: bool,
    ) {
        let mut random = fastrand::Rng::with_seed(seed);
        let payload: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|it| it * 8).filter(|it| *it < len).collect();
        cuts.extend([0, len]);
        cuts.sort_unstable();
        cuts.dedup();
        prop_assume!(cuts.len() > 2);
        let mut pieces: Vec<_> = cuts.windows(2).map(|it| fragment(is_v6, 3, UDP, it[0], it[1] < len, &payload[it[0]..it[1]])).collect();
        random.shuffle(&mut pieces);
        let mut kept = fragments();
        let (last, others) = pieces.split_last().unwrap();
        for piece in others {
            prop_assert_eq!(kept.push(0, 0, piece), Outcome::Kept);
        }
        prop_assert_eq!(whole(kept.push(0, 0, last)), payload);
        check_that_all_comes_back(&mut kept);
    }

    #[test]
    fn random_fragments_neither_panic_nor_leak_memory(
        packets in prop::collection::vec((0..3u32, prop::collection::vec(any::<u8>(), 0..80), 0..4u8), 0..60),
        bytes in 0..6000usize,
        places in 0..5usize,
        is_first: bool,
    ) {
        let limits = FragmentLimits { bytes, datagrams: places, of_source: places / 2, timeout_ns: 20 };
        let mut kept = Fragments::new(limits, if is_first { Overlap::First } else { Overlap::Drop });
        for (now_ns, (tag, mut packet, shape)) in (0..).zip(packets) {
            shape_as_fragment(&mut packet, shape);
            let _ = kept.push(now_ns, tag, &packet);
            prop_assert!(kept.bytes() <= bytes.max(CHUNK_BYTES) && kept.datagrams() <= places.max(1));
        }
        check_that_all_comes_back(&mut kept);
    }
}

/// Makes bytes look like a fragment, so that they reach the table.
fn shape_as_fragment(packet: &mut [u8], shape: u8) {
    let len = packet.len() as u16;
    if shape & 1 == 1 && len >= 20 {
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        packet[4..6].copy_from_slice(&[0, shape]);
        packet[6] &= 0x23;
        packet[9] &= 1;
        packet[12..20].fill(1);
        Ipv4::new(packet).unwrap().fill_checksum();
    } else if shape == 2 && len >= 48 {
        packet[0] = 0x60;
        packet[4..6].copy_from_slice(&(len - 40).to_be_bytes());
        packet[6] = 44;
        packet[8..40].fill(1);
        packet[42] &= 0x03;
        packet[44..48].fill(0);
    }
}
