//! Tests that rules about an anomaly are also evaluated on packets that the inspection drops because of that anomaly.

#![allow(clippy::unwrap_used)]

use super::tests::{ids, ips, passes, sealed, segment, udp};
use std::path::Path;
use taut_function::Function;
use taut_inspect::tcp::{ACK, RST, SYN};

const CHECKSUMS: &str = "drop tcp any any -> any 8080 (tcpv4-csum:invalid; flow:established,to_server; content:\"x\"; sid:1;)\n\
    alert ip any any -> any any (ipv4-csum:invalid; sid:2;)\n\
    drop ip any any -> any any (content:\"x\"; sid:3;)\n\
    alert udp any any -> any any (udpv4-csum:invalid; sid:4;)\n\
    alert tcp any any -> any any (tcpv4-csum:invalid; flow:to_client; sid:5;)\n";

fn open(function: &mut Box<dyn Function>) {
    for (from_client, flags, numbers) in [
        (true, SYN, (99, 0)),
        (false, SYN | ACK, (499, 100)),
        (true, ACK, (100, 500)),
    ] {
        assert!(passes(function, &segment(from_client, flags, numbers, b"")));
    }
}

#[test]
fn checksum_rules_match_packets_dropped_for_a_wrong_checksum() {
    let folder = tempfile::tempdir().unwrap();
    let mut function = ips(folder.path(), CHECKSUMS, "");
    // The packet belongs to no known flow, and creates none.
    let mut datagram = udp(53, b"x");
    datagram[40] = 1;
    assert!(!passes(&mut function, &datagram));
    open(&mut function);
    let mut damaged = segment(true, ACK, (100, 500), b"x");
    damaged[50] ^= 1;
    assert!(!passes(&mut function, &damaged));
    let mut header = segment(true, ACK, (100, 500), b"x");
    header[24] ^= 1;
    assert!(!passes(&mut function, &header));
    let mut answer = segment(false, ACK, (500, 100), b"x");
    answer[50] ^= 1;
    assert!(!passes(&mut function, &answer));
    // The anomaly of a dropped segment does not affect the segment's flow.
    assert!(passes(&mut function, &segment(true, ACK, (100, 500), b"y")));
    drop(function);
    assert_eq!(ids(folder.path()), [4, 1, 2, 5]);
}

#[test]
fn rules_match_overlapping_fragments() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "alert udp any any -> any any (decode-event:ipv4.frag_overlap; sid:1;)\n\
        alert ip any any -> any any (decode-event:ipv6.frag_overlap; sid:2;)\n\
        alert udp any any -> any any (decode-event:ipv4.frag_overlap; fragoffset:>0; sid:3;)\n";
    let mut function = ips(folder.path(), rules, "");
    let fragment = |id: u8, place: u8, more: bool, content: &[u8]| {
        let mut frame = udp(5000, b"");
        frame.truncate(34);
        frame.extend(content);
        frame[16..18].copy_from_slice(&(20 + content.len() as u16).to_be_bytes());
        (frame[19], frame[20], frame[21]) = (id, if more { 0x20 } else { 0 }, place);
        sealed(frame)
    };
    let first: Vec<u8> = [&udp(5000, &[b'a'; 16])[34..]].concat();
    for (id, second) in [(1, [b'a'; 8]), (2, [b'b'; 8])] {
        passes(&mut function, &fragment(id, 0, true, &first[..16]));
        passes(&mut function, &fragment(id, 1, true, &second));
    }
    passes(&mut function, &fragment(3, 0, true, &first[..16]));
    passes(&mut function, &fragment(3, 2, false, &first[16..]));
    drop(function);
    assert_eq!(ids(folder.path()), [1, 3, 1, 3]);
}

/// Sends the segments in an open connection, with one rule for each event in `events`. Returns the alerts, and true if
/// the last segment passes.
fn of_events(folder: &Path, events: &[&str], segments: &[Vec<u8>]) -> (Vec<u64>, bool) {
    let rules = events.iter().zip(1..).map(|(event, id)| {
        format!("alert tcp any any -> any any (stream-event:{event}; sid:{id};)\n")
    });
    let mut function = ips(folder, &rules.collect::<String>(), "");
    open(&mut function);
    let passed = segments.iter().map(|it| passes(&mut function, it)).last();
    drop(function);
    (ids(folder), passed.unwrap_or(true))
}

#[test]
fn stream_event_rules_match_segments_that_the_stream_drops() {
    let events = [
        "est_invalid_ack",
        "suspected_rst_inject",
        "est_packet_out_of_window",
        "est_syn_resend_diff_seq",
        "pkt_invalid_ack",
        "reassembly_overlap_different_data",
        "pkt_spurious_retransmission",
    ];
    let data = |sequence, payload| segment(true, ACK, (sequence, 500), payload);
    for (segments, wanted, is_passed) in [
        (vec![data(100, b"x")], vec![], true),
        (
            vec![segment(true, ACK, (100, 501), b"x")],
            vec![1, 5],
            false,
        ),
        (
            vec![segment(true, RST, (100, 0), b""), data(100, b"x")],
            vec![2],
            false,
        ),
        (vec![data(90_000_000, b"x")], vec![3], false),
        (vec![segment(true, SYN, (7, 0), b"")], vec![4], true),
        (vec![data(100, b"x"), data(100, b"y")], vec![6], false),
        (
            vec![
                data(100, b"xx"),
                segment(false, ACK, (500, 102), b""),
                data(100, b"xx"),
            ],
            vec![7],
            true,
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let found = of_events(folder.path(), &events, &segments);
        assert_eq!(found, (wanted, is_passed));
    }
}

#[test]
fn segments_with_old_timestamps_are_dropped_with_an_alert() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "alert tcp any any -> any any (stream-event:pkt_invalid_timestamp; content:\"x\"; sid:1;)\n";
    let mut function = ips(folder.path(), rules, "");
    let with = |from_client, flags, numbers, timestamp: u32, payload: &[u8]| {
        let mut frame = segment(from_client, flags, numbers, b"");
        frame[46] = 0x80;
        frame.extend([1, 1, 8, 10]);
        frame.extend(timestamp.to_be_bytes());
        frame.extend([0; 4]);
        frame.extend(payload);
        let len = frame.len() as u16 - 14;
        frame[16..18].copy_from_slice(&len.to_be_bytes());
        sealed(frame)
    };
    for (frame, passed) in [
        (with(true, SYN, (99, 0), 1000, b""), true),
        (with(false, SYN | ACK, (499, 100), 70, b""), true),
        (with(true, ACK, (100, 500), 1001, b""), true),
        (with(true, ACK, (100, 500), 900, b"x"), false),
        (with(true, ACK, (100, 500), 1001, b"x"), true),
    ] {
        assert_eq!(passes(&mut function, &frame), passed);
    }
    drop(function);
    assert_eq!(ids(folder.path()), [1]);
}
