//! Tests of a wiretap on veth pairs, for frames of any sender. They need root; without root each test prints a line and
//! is skipped.
#![allow(clippy::unwrap_used)]

use crate::interface_tests::{Testbed, frame_bytes, open};
use std::time::{Duration, Instant};
use taut_xdp::wire_tap::{Sighting, WireTap};

const PATIENCE: Duration = Duration::from_secs(10);

fn tap(bed: &Testbed, interfaces: &[&str]) -> WireTap {
    let names: Vec<String> = interfaces.iter().map(ToString::to_string).collect();
    bed.in_right(|| WireTap::start(&names, 1 << 20)).unwrap()
}

/// Returns a UDP frame over IPv4 with the header of a measurement packet: magic number, `flow`, `sequence`, timestamp
/// 0. The bytes of `tag`, such as a VLAN tag, precede the EtherType.
fn stamped(flow: u16, sequence: u64, tag: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    frame.extend(tag);
    frame.extend([8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend([10, 0, 0, 1, 10, 0, 0, 2, 1, 1, 2, 2, 0, 26, 0, 0]);
    frame.extend([0x7a, 0x07]);
    frame.extend(flow.to_be_bytes());
    frame.extend(&sequence.to_be_bytes()[2..]);
    frame.extend([0; 8]);
    frame
}

/// Waits until a wiretap has captured at least `packets` packets, and returns a record of each.
fn seen(tap: &mut WireTap, packets: usize) -> Vec<Sighting> {
    let mut all = Vec::new();
    let begun = Instant::now();
    while all.len() < packets {
        tap.take(|sighting| all.push(sighting));
        assert!(begun.elapsed() < PATIENCE, "{all:?} {:?}", tap.missed());
    }
    all
}

#[test]
fn the_wiretap_captures_both_directions_from_every_kind_of_socket() {
    for (backend, options) in [
        ("af_packet", ""),
        ("af_packet", ",qdisc=yes"),
        ("af_xdp", ",queue=0-1"),
    ] {
        let Some(bed) = Testbed::new(1) else { return };
        let mut tap = tap(&bed, &["right0"]);
        {
            let mut left = bed.in_left(|| open(&format!("{backend}:left0{options}")).unwrap());
            // A foreign frame, a stamped frame, and a stamped frame with a VLAN tag.
            left.send(&frame_bytes(5, 60));
            left.send(&stamped(3, 1 << 40 | 7, &[]));
            left.send(&stamped(3, 8, &[0x81, 0, 0, 5]));
            left.port.close();
        }
        let mut all = seen(&mut tap, 2);
        let mut right = bed.in_right(|| open(&format!("{backend}:right0{options}")).unwrap());
        right.send(&stamped(4, 9, &[]));
        all.extend(seen(&mut tap, 1));
        let what: Vec<_> = all
            .iter()
            .map(|s| (s.flow, s.sequence, s.side, s.leaving))
            .collect();
        assert_eq!(
            what,
            [
                (3, 1 << 40 | 7, 0, false),
                (3, 8, 0, false),
                (4, 9, 0, true)
            ],
            "{backend}{options}"
        );
        assert!(all.is_sorted_by_key(|s| s.time_ns), "{all:?}");
        assert_eq!(tap.missed().ring_full, 0);
    }
}

#[test]
fn the_wiretap_captures_xdp_socket_frames_sent_through_a_qdisc() {
    let Some(bed) = Testbed::new(1) else { return };
    let mut tap = tap(&bed, &["right0"]);
    let mut right = bed.in_right(|| open("af_xdp:right0,queue=0-1").unwrap());
    let mut left = bed.in_left(|| open("af_packet:left0,qdisc=yes").unwrap());
    left.send(&stamped(1, 2, &[]));
    assert_eq!(right.receive_one(), stamped(1, 2, &[]));
    let all = seen(&mut tap, 1);
    assert_eq!((all[0].sequence, all[0].leaving), (2, false), "{all:?}");
    // A frame sent directly to the driver is not captured, but counted.
    let before = bed.in_right(|| tap.missed().unseen);
    let mut left = bed.in_left(|| open("af_packet:left0").unwrap());
    left.send(&stamped(1, 3, &[]));
    assert_eq!(right.receive_one(), stamped(1, 3, &[]));
    tap.take(|sighting| panic!("{sighting:?}"));
    assert!(bed.in_right(|| tap.missed().unseen) > before);
}

#[test]
fn the_wiretap_captures_only_on_the_configured_interfaces() {
    let (Some(bed), Some(other)) = (Testbed::new(2), Testbed::new(1)) else {
        return;
    };
    let mut tap = tap(&bed, &["right1"]);
    // The first interface is in another namespace and probably has the same index.
    for (bed, name) in [(&other, "left0"), (&bed, "left0"), (&bed, "left1")] {
        let mut port = bed.in_left(|| open(&format!("af_packet:{name}")).unwrap());
        port.send(&stamped(1, 1, &[]));
    }
    let all = seen(&mut tap, 1);
    assert_eq!(all.len(), 1, "{all:?}");
}

#[test]
fn invalid_wiretap_interfaces_are_refused() {
    let Some(bed) = Testbed::new(1) else { return };
    let refused = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let error = bed
            .in_right(|| WireTap::start(&names, 1 << 20))
            .unwrap_err();
        error.to_string()
    };
    assert!(refused(&[]).contains("one or two"));
    assert!(refused(&["right0", "right0"]).contains("twice"));
    assert!(refused(&["nowhere"]).contains("ip link"));
    assert!(refused(&["lo"]).contains("veth"), "{}", refused(&["lo"]));
}

#[test]
fn packets_beyond_the_ring_capacity_are_counted() {
    const SENT: u64 = 300;
    let Some(bed) = Testbed::new(1) else { return };
    let names = ["right0".to_string()];
    // The ring has space for 128 entries, or a few less.
    let mut tap = bed.in_right(|| WireTap::start(&names, 4096)).unwrap();
    let mut left = bed.in_left(|| open("af_packet:left0").unwrap());
    for sequence in 0..SENT {
        left.send(&stamped(1, sequence, &[]));
    }
    let begun = Instant::now();
    let mut all = Vec::new();
    // The kernel may still be sending frames after the last send call has returned.
    while all.len() as u64 + tap.missed().ring_full < SENT {
        assert!(begun.elapsed() < PATIENCE, "{:?}", tap.missed());
        if tap.missed().ring_full > 0 {
            tap.take(|sighting| all.push(sighting.sequence));
        }
    }
    assert!(tap.missed().ring_full > 0);
    assert_eq!(all[..100], Vec::from_iter(0..100));
}
