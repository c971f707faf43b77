//! Tests of events that end a TCP mapping early, and of similar events that must not end it.

use super::super::parser::{ACK, FIN, RST, SYN};
use super::*;
use std::sync::LazyLock;

/// The ticks of a second.
static SECOND: LazyLock<u64> =
    LazyLock::new(|| Clock::calibrate(Duration::from_millis(20)).hz as u64);
const INSIDE: ([u8; 4], u16) = ([10, 0, 0, 1], 5000);
const SERVER: ([u8; 4], u16) = (PEER, 443);
const SHORT: &str = "tcp_timeout = \"1000s\"\ntcp_closing_timeout = \"10s\"\n";

/// Returns a TCP segment with a correct checksum.
fn segment(
    from: ([u8; 4], u16),
    to: ([u8; 4], u16),
    flags: u8,
    (sequence, acknowledgement): (u32, u32),
    payload: &[u8],
) -> Vec<u8> {
    let mut tcp = etherparse::TcpHeader::new(from.1, to.1, sequence, 1000);
    tcp.acknowledgment_number = acknowledgement;
    tcp.fin = flags & FIN != 0;
    tcp.syn = flags & SYN != 0;
    tcp.rst = flags & RST != 0;
    tcp.ack = flags & ACK != 0;
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv4(from.0, to.0, 64)
        .tcp_header(tcp)
        .write(&mut bytes, payload)
        .unwrap();
    bytes
}

/// Returns a translator with one open TCP connection, and the connection's outside endpoint. The next sequence number
/// is 1100 from inside, and 9000 from outside.
fn open() -> (Box<dyn Function>, ([u8; 4], u16)) {
    let mut nat = nat(SHORT);
    let sent = segment(INSIDE, SERVER, SYN, (999, 0), b"");
    let (outside, _) = ends(&out(&mut *nat, &sent).unwrap());
    let answer = segment(SERVER, outside, SYN | ACK, (8999, 1000), b"");
    back(&mut *nat, &answer).unwrap();
    let request = segment(INSIDE, SERVER, ACK, (1000, 9000), &[7; 100]);
    out(&mut *nat, &request).unwrap();
    (nat, outside)
}

/// Returns true if data from outside still reach the inside host at the time `seconds`, in seconds.
fn is_open(nat: &mut dyn Function, outside: ([u8; 4], u16), seconds: u64) -> bool {
    let data = segment(SERVER, outside, ACK, (9000, 1100), b"data");
    at(nat, &data, 0, seconds * *SECOND).is_some()
}

#[test]
fn forged_segments_from_outside_do_not_end_a_connection() {
    let stranger = ([192, 0, 2, 66], 6666);
    for (from, flags, numbers) in [
        (SERVER, RST, (9001, 0)),
        (SERVER, RST, (8999, 0)),
        (SERVER, RST | ACK, (0, 1100)),
        (stranger, RST, (1, 0)),
        (stranger, FIN | ACK, (9000, 1100)),
        (stranger, SYN, (9000, 0)),
        (stranger, SYN | FIN | RST, (9001, 0)),
    ] {
        let (mut nat, outside) = open();
        let forged = segment(from, outside, flags, numbers, b"");
        // The segment is translated whatever its sequence number is (RFC 7857 section 2.2): the host checks the number.
        assert!(at(&mut *nat, &forged, 0, 500 * *SECOND).is_some());
        let found = is_open(&mut *nat, outside, 900);
        assert!(found, "{from:?} {flags} {numbers:?}");
        assert!(!is_open(&mut *nat, outside, 1002));
    }
}

#[test]
fn resets_after_stray_segments_do_not_end_the_connection() {
    for (flags, numbers) in [
        // A reset takes its number from the segment's ACK; without an ACK it is 0 (RFC 9293 section 3.5.2).
        (RST, (77, 0)),
        (RST | ACK, (0, 12)),
    ] {
        let (mut nat, outside) = open();
        let stray = segment(([192, 0, 2, 66], 6666), outside, ACK, (11, 77), b"");
        assert!(back(&mut *nat, &stray).is_some());
        let answer = segment(INSIDE, ([192, 0, 2, 66], 6666), flags, numbers, b"");
        assert!(out(&mut *nat, &answer).is_some());
        assert!(is_open(&mut *nat, outside, 900));
        // The reply does not refresh the mapping either.
        assert!(at(&mut *nat, &answer, 1, 900 * *SECOND).is_some());
        assert!(!is_open(&mut *nat, outside, 1100));
    }
}

#[test]
fn an_expected_reset_shortens_a_mapping_until_another_packet_arrives() {
    let (mut nat, outside) = open();
    let reset = segment(SERVER, outside, RST, (9000, 0), b"");
    // After a long idle time, the timeout counts from the reset on (RFC 7857 section 2.2).
    assert!(at(&mut *nat, &reset, 0, 500 * *SECOND).is_some());
    assert!(is_open(&mut *nat, outside, 509));
    // Another reset does not restart the timeout.
    assert!(at(&mut *nat, &reset, 0, 509 * *SECOND).is_some());
    assert!(!is_open(&mut *nat, outside, 512));

    let (mut nat, outside) = open();
    let reset = segment(INSIDE, SERVER, RST, (1100, 0), b"");
    assert!(out(&mut *nat, &reset).is_some());
    assert!(is_open(&mut *nat, outside, 9) && !is_open(&mut *nat, outside, 12));

    let (mut nat, outside) = open();
    assert!(out(&mut *nat, &reset).is_some());
    let more = segment(INSIDE, SERVER, ACK, (1100, 9000), b"more");
    assert!(at(&mut *nat, &more, 1, 5 * *SECOND).is_some());
    assert!(is_open(&mut *nat, outside, 900));
}

#[test]
fn a_finished_connection_keeps_its_mapping_for_the_closing_time() {
    let (mut nat, outside) = open();
    let last = segment(INSIDE, SERVER, FIN | ACK, (1100, 9000), b"");
    assert!(out(&mut *nat, &last).is_some());
    let acknowledgement = segment(INSIDE, SERVER, ACK, (1101, 9001), b"");
    assert!(at(&mut *nat, &acknowledgement, 1, 5 * *SECOND).is_some());
    assert!(is_open(&mut *nat, outside, 14) && !is_open(&mut *nat, outside, 16));
}

#[test]
fn a_second_connection_from_a_port_leaves_the_first_open() {
    let (mut nat, outside) = open();
    let other = segment(INSIDE, ([192, 0, 2, 9], 80), SYN, (5, 0), b"");
    assert_eq!(ends(&out(&mut *nat, &other).unwrap()).0, outside);
    assert!(is_open(&mut *nat, outside, 900));
}

#[test]
fn icmp_errors_for_an_expired_mapping_are_not_forwarded() {
    let (mut nat, outside) = open();
    let arrived = segment(SERVER, INSIDE, ACK, (9000, 1100), b"");
    let mut error = Vec::new();
    let kind = etherparse::Icmpv4Type::TimeExceeded(
        etherparse::icmpv4::TimeExceededCode::TtlExceededInTransit,
    );
    PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv4(INSIDE.0, PEER, 64)
        .icmpv4(kind)
        .write(&mut error, &arrived[14..])
        .unwrap();
    assert!(at(&mut *nat, &error, 1, 900 * *SECOND).is_some());
    assert!(at(&mut *nat, &error, 1, 1100 * *SECOND).is_none());
    // The state of a continued connection is unknown: it has the timeout of an opening one.
    let late = segment(INSIDE, SERVER, ACK, (1100, 9000), b"late");
    let sent = at(&mut *nat, &late, 1, 1100 * *SECOND).unwrap();
    assert_eq!(ends(&sent).0, outside);
    assert!(!is_open(&mut *nat, outside, 1112));
}

#[test]
fn forged_errors_change_no_mapping() {
    let (mut nat, outside) = open();
    let mut error = Vec::new();
    let unreachable = etherparse::Icmpv4Type::DestinationUnreachable(
        etherparse::icmpv4::DestUnreachableHeader::Port,
    );
    let quoted = segment(outside, SERVER, RST | ACK, (1100, 9000), b"");
    PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv4([192, 0, 2, 66], OUTSIDE, 64)
        .icmpv4(unreachable)
        .write(&mut error, &quoted[14..])
        .unwrap();
    for second in [100, 500, 999] {
        assert!(at(&mut *nat, &error, 0, second * *SECOND).is_some());
    }
    assert!(!is_open(&mut *nat, outside, 1002));
    // A packet about a missing mapping creates none.
    let (mut nat, outside) = open();
    let other = (outside.0, outside.1 ^ 2);
    let quoted = segment(other, SERVER, ACK, (1, 1), b"");
    error.truncate(42);
    error.extend_from_slice(&quoted[14..]);
    assert!(back(&mut *nat, &error).is_none());
    let data = segment(SERVER, other, ACK, (1, 1), b"");
    assert!(back(&mut *nat, &data).is_none());
}
