//! Tests of evasions, one evasion each. Every checksum is right unless a wrong checksum is the evasion.
#![allow(clippy::unwrap_used)]

use super::tests::{ips, sealed, segment, udp};
use super::*;
use taut_function::testing::batch_of;
use taut_inspect::tcp::{ACK, FIN, RST, SYN, URG};
use taut_port::{Mark, Punt};

const RULES: &str = "drop http any any -> any any (flow:established,to_server; http.uri; content:\"/evil\"; sid:1;)\n\
     drop tcp any any -> any any (flow:established,to_server; content:\"EVIL-bytes\"; sid:2;)\n\
     drop http any any -> any any (http.uri; content:\"/long/way\"; http.request_body; content:\"cmd=\"; sid:3;)\n\
     drop ftp any any -> any any (ftp.command; content:\"DELE\"; sid:4;)\n\
     drop ssh any any -> any any (ssh.software; content:\"evil\"; sid:5;)\n";
const REQUEST: &[u8] = b"GET /evil HTTP/1.1\r\nHost: a\r\n\r\n";

/// An inspection, and the current time that is passed to it. The tests play the hosts on both sides, which may ignore
/// bytes that they receive.
struct Line {
    function: Box<dyn Function>,
    _folder: tempfile::TempDir,
    now_ticks: u64,
}

impl Line {
    fn new(more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            function: ips(folder.path(), RULES, more),
            _folder: folder,
            now_ticks: taut_sys::ticks(),
        }
    }

    fn wait_s(&mut self, seconds: u64) {
        let clock = Clock::calibrate(Duration::from_millis(2));
        self.now_ticks += clock.to_ticks(1e9 * seconds as f64) as u64;
    }

    /// Passes a frame that arrives at the port `from_port` to the inspection. Returns the mark of the frame; none if
    /// the frame passes.
    fn sends(&mut self, frame: &[u8], from_port: usize) -> Option<Mark> {
        let context = Context {
            now_ticks: self.now_ticks,
            from_port,
            to_port: from_port ^ 1,
            ports: 2,
        };
        let mut batch = batch_of(frame, 64);
        self.function.process(&mut batch, &context);
        batch.mark(0)
    }

    fn passes(&mut self, frame: &[u8], from_port: usize) -> bool {
        self.sends(frame, from_port).is_none()
    }

    /// Returns true if a segment of the client passes.
    fn client(&mut self, flags: u8, numbers: (u32, u32), payload: &[u8]) -> bool {
        self.passes(&segment(true, flags, numbers, payload), 0)
    }

    fn server(&mut self, flags: u8, numbers: (u32, u32), payload: &[u8]) -> bool {
        self.passes(&segment(false, flags, numbers, payload), 1)
    }

    /// Returns true if a segment between the client with the given number and the server passes.
    fn passes_of(
        &mut self,
        number: u32,
        is_client: bool,
        flags: u8,
        numbers: (u32, u32),
        payload: &[u8],
    ) -> bool {
        let frame = segment(is_client, flags, numbers, payload);
        self.passes(&from(number, frame, is_client), usize::from(!is_client))
    }

    fn handshake(&mut self) {
        assert!(self.client(SYN, (99, 0), b""));
        assert!(self.server(SYN | ACK, (499, 100), b""));
        assert!(self.client(ACK, (100, 500), b""));
    }

    /// Returns the number of packets that the inspection has counted under the outcome with that name.
    fn count(&self, outcome: &str) -> u64 {
        self.function.count_of(outcome).unwrap()
    }
}

/// Returns an inspection through which client and server have opened a TCP connection.
fn open() -> Line {
    let mut line = Line::new("");
    line.handshake();
    line
}

/// Returns the frame with another client address.
fn from(number: u32, mut frame: Vec<u8>, is_client: bool) -> Vec<u8> {
    let at = if is_client { 26 } else { 30 };
    frame[at..at + 4].copy_from_slice(&(0x0a00_0000 + number).to_be_bytes());
    sealed(frame)
}

/// Opens a connection of the given client.
fn begin(line: &mut Line, number: u32) {
    for (is_client, flags, numbers) in [
        (true, SYN, (99, 0)),
        (false, SYN | ACK, (499, 100)),
        (true, ACK, (100, 500)),
    ] {
        let frame = from(number, segment(is_client, flags, numbers, b""), is_client);
        assert!(line.passes(&frame, usize::from(!is_client)), "{number}");
    }
}

/// Splits a frame into fragments at the payload offsets `cuts`, which are multiples of eight.
fn fragments(frame: &[u8], cuts: &[usize]) -> Vec<Vec<u8>> {
    let payload = &frame[34..];
    let begins = std::iter::once(&0).chain(cuts);
    let ends = cuts.iter().copied().chain([payload.len()]);
    let of = begins.zip(ends).map(|(&begin, end)| {
        let mut fragment = [&frame[..34], &payload[begin..end]].concat();
        let more = u16::from(end < payload.len()) << 13;
        fragment[16..18].copy_from_slice(&((20 + end - begin) as u16).to_be_bytes());
        fragment[20..22].copy_from_slice(&((begin / 8) as u16 | more).to_be_bytes());
        fragment[24..26].fill(0);
        let sum = taut_wire::Sum::of(&fragment[14..34]).checksum();
        fragment[24..26].copy_from_slice(&sum.to_be_bytes());
        fragment
    });
    of.collect()
}

#[test]
fn a_fragmented_request_is_assigned_to_its_flow() {
    // The request arrives in two and in three fragments.
    for cuts in [&[24][..], &[24, 40]] {
        let mut line = open();
        let whole = segment(true, ACK, (100, 500), REQUEST);
        let marks: Vec<_> = fragments(&whole, cuts)
            .iter()
            .map(|it| line.sends(it, 0))
            .collect();
        let (last, first) = marks.split_last().unwrap();
        assert!(
            first
                .iter()
                .all(|it| *it == Some(Mark::Punted(Punt::Fragment)))
        );
        assert_eq!(*last, Some(Mark::Dropped));
        // Later packets of the same flow are dropped, fragmented or not.
        assert!(!line.client(ACK, (100, 500), b"anything"));
        let again = segment(true, ACK, (100, 500), &[b'x'; 40]);
        let marks = fragments(&again, &[32]);
        let marks: Vec<_> = marks.iter().map(|it| line.sends(it, 0)).collect();
        assert_eq!(marks[1], Some(Mark::Dropped));
        assert_eq!(line.count("dropped_with_flow"), 2);
    }
    let mut line = open();
    assert!(line.client(ACK, (100, 500), &REQUEST[..8]));
    let rest = segment(true, ACK, (108, 500), &REQUEST[8..]);
    let marks = fragments(&rest, &[24]);
    let marks: Vec<_> = marks.iter().map(|it| line.sends(it, 0)).collect();
    assert_eq!(marks[1], Some(Mark::Dropped));
    // The fragments of a harmless datagram pass.
    let mut line = open();
    let whole = segment(
        true,
        ACK,
        (100, 500),
        b"GET /good HTTP/1.1\r\nHost: a\r\n\r\n",
    );
    let marks = fragments(&whole, &[24]);
    let marks: Vec<_> = marks.iter().map(|it| line.sends(it, 0)).collect();
    assert_eq!(marks[1], Some(Mark::Punted(Punt::LastFragment)));
}

#[test]
fn segments_ignored_by_the_receiver_do_not_affect_the_stream() {
    let wrong = |mut frame: Vec<u8>| {
        frame[50] ^= 1;
        frame
    };
    let fine: &[u8] = b"GET /fine HTTP/1.1\r\nHost: a\r\n\r\n";
    // The client sends a copy with other bytes, a reset, and a byte before the opening, all with wrong checksums.
    let mut line = open();
    assert!(!line.passes(&wrong(segment(true, ACK, (100, 500), fine)), 0));
    assert!(!line.passes(&wrong(segment(true, RST, (100, 0), b"")), 0));
    assert!(!line.client(ACK, (100, 500), REQUEST));
    let mut line = Line::new("");
    assert!(!line.passes(&wrong(segment(true, ACK, (900, 500), b"x")), 0));
    line.handshake();
    assert!(!line.client(ACK, (100, 500), REQUEST));
    // The same holds with right checksums for resets outside of the window, data far ahead, and acknowledgements of
    // bytes that were never sent.
    let mut line = open();
    for sequence in [99, 70_000, 1 << 31] {
        assert!(!line.client(RST, (sequence, 0), b""));
    }
    for at in 0..200 {
        assert!(!line.client(ACK, ((1 << 29) + 2 * at, 500), b"x"));
    }
    assert!(!line.client(ACK, (100, 501), fine));
    assert!(!line.client(0, (100, 500), fine));
    assert!(!line.client(ACK, (100, 500), REQUEST));
    assert_eq!(line.count("dropped_by_rule"), 1);
}

#[test]
fn retransmissions_cannot_replace_unacknowledged_bytes() {
    // The receiver may ignore the first copy, so a second copy with other bytes is dropped even after 10 KB more.
    let mut line = open();
    assert!(line.client(ACK, (100, 500), b"harm"));
    for at in 0..10u32 {
        assert!(line.client(ACK, (104 + 1000 * at, 500), &[b'.'; 1000]));
    }
    assert!(!line.client(ACK, (100, 500), b"EVIL"));
    assert!(!line.client(ACK, (102, 500), b"xx"));
    assert!(line.client(ACK, (100, 500), b"harm"));
    assert_eq!(line.count("dropped_overlap"), 2);
    // Once the receiver has acknowledged the bytes, it ignores a copy with other bytes, so the copy passes.
    assert!(line.server(ACK, (500, 104), b""));
    assert!(line.client(ACK, (100, 500), b"EVIL"));
    // The same holds after a gap.
    let mut line = open();
    assert!(line.client(ACK, (110, 500), b"later"));
    assert!(!line.client(ACK, (100, 500), b"EVIL-bytes12345"));
    assert!(!line.client(ACK, (100, 500), b"EVIL-bytes"));
    assert_eq!(line.count("dropped_by_rule"), 1);
    // The receiver ignores a FIN and continues. In the middle of a header the FIN does not pass, because servers may
    // accept the partial header.
    let mut line = open();
    assert!(line.client(ACK, (100, 500), b"EVIL"));
    assert!(line.client(FIN | ACK, (104, 500), b""));
    assert!(!line.client(ACK, (104, 500), b"-bytes"));
    let mut line = open();
    assert!(line.client(ACK, (100, 500), &REQUEST[..22]));
    assert!(!line.client(FIN | ACK, (122, 500), b""));
    assert_eq!(line.count("dropped_unfinished"), 1);
    assert!(!line.client(ACK, (122, 500), &REQUEST[22..]));
}

#[test]
fn packets_are_dropped_until_the_server_accepts_a_new_connection() {
    let mut line = open();
    assert!(!line.client(ACK, (100, 500), REQUEST));
    // The client sends a reset, waits, and sends more data; or it sends new SYNs that get no reply.
    assert!(!line.client(RST, (100, 0), b""));
    for seconds in [4, 40, 600, 3000] {
        line.wait_s(seconds);
        assert!(!line.client(ACK, (100, 500), b"on with it"));
        assert!(line.client(SYN, (7000 + seconds as u32, 0), b""));
        assert!(!line.client(ACK, (7001 + seconds as u32, 500), b"on with it"));
    }
    // A reply of the server that arrives at the client's port is forged, so it is dropped.
    let forged = segment(false, SYN | ACK, (900, 7601), b"");
    assert!(!line.passes(&forged, 0));
    // The server replies to another SYN of the client, which begins a new connection.
    assert!(line.client(SYN, (9000, 0), b""));
    assert!(line.server(SYN | ACK, (20_000, 9001), b""));
    assert!(line.client(ACK, (9001, 20_001), b"GET /fine HTTP/1.1\r\n\r\n"));
    assert!(!line.client(ACK, (9023, 20_001), REQUEST));
}

#[test]
fn data_after_a_reset_is_dropped() {
    let mut line = open();
    assert!(line.client(ACK, (100, 500), b"EVIL"));
    assert!(line.client(RST, (104, 0), b""));
    line.wait_s(300);
    assert!(!line.client(ACK, (104, 500), b"-bytes"));
    assert_eq!(line.count("dropped_over"), 1);
}

#[test]
fn the_syn_that_the_server_acknowledges_starts_the_stream() {
    // The server may reply to either SYN of the client.
    for (first, second) in [(99, 5000), (5000, 99)] {
        let mut line = Line::new("");
        assert!(line.client(SYN, (first, 0), b""));
        assert!(line.client(SYN, (second, 0), b""));
        // As long as no packet of the server has arrived here, the server's packets may take another path.
        line.client(ACK, (5001, 500), b"early");
        assert!(line.server(SYN | ACK, (499, 100), b""));
        assert!(line.client(ACK, (100, 500), b""));
        assert!(!line.client(ACK, (100, 500), REQUEST));
    }
    // The server replies to a SYN within the connection only by a challenge ACK.
    let mut line = open();
    assert!(line.client(SYN, (77_777, 0), b""));
    assert!(line.server(ACK, (500, 100), b""));
    assert!(!line.client(ACK, (100, 500), REQUEST));
    // The client forges a reply of the server before it sends a SYN.
    let mut line = Line::new("");
    let forged = segment(false, SYN | ACK, (499, 100), b"");
    line.passes(&forged, 0);
    line.handshake();
    assert!(!line.client(ACK, (100, 500), REQUEST));
}

#[test]
fn data_in_a_syn_is_part_of_the_stream() {
    // The SYN carries the complete request, or a part of the request.
    let mut line = Line::new("");
    assert!(!line.client(SYN, (99, 0), REQUEST));
    for cut in 1..REQUEST.len() {
        let (one, two) = REQUEST.split_at(cut);
        let behind = 100 + cut as u32;
        // Each split of the request uses clients of its own.
        let mut first = |is_client, flags, numbers, payload: &[u8]| {
            line.passes_of(2 * behind, is_client, flags, numbers, payload)
        };
        if !first(true, SYN, (99, 0), one) {
            continue;
        }
        assert!(first(false, SYN | ACK, (499, behind), b""));
        assert!(first(true, ACK, (behind, 500), b""));
        assert!(!first(true, ACK, (behind, 500), two), "{cut}");
        // The server did not accept the data in the SYN, so the client retransmits it.
        let mut second = |is_client, flags, numbers, payload: &[u8]| {
            line.passes_of(2 * behind + 1, is_client, flags, numbers, payload)
        };
        assert!(second(true, SYN, (99, 0), one));
        assert!(second(false, SYN | ACK, (499, 100), b""));
        assert!(second(true, ACK, (100, 500), b""));
        assert!(!second(true, ACK, (100, 500), REQUEST), "{cut}");
    }
}

#[test]
fn a_forged_syn_ack_does_not_shift_the_stream() {
    for (more, as_client) in [
        ("", false),
        ("", true),
        ("midstream = \"drop\"", false),
        ("midstream = \"drop\"", true),
    ] {
        let mut line = Line::new(more);
        for cut in 1..REQUEST.len() {
            // Each split of the request uses a client of its own.
            let behind = 100 + cut as u32;
            let forged = segment(as_client, SYN | ACK, (7, 8), b"");
            line.passes(&from(behind, forged, as_client), 0);
            let mut put = |is_client, flags, numbers, payload: &[u8]| {
                line.passes_of(behind, is_client, flags, numbers, payload)
            };
            let (one, two) = REQUEST.split_at(cut);
            let taken = put(true, SYN, (99, 0), one);
            if !taken && !put(true, SYN, (99, 0), b"") {
                continue;
            }
            assert!(put(false, SYN | ACK, (499, 100), b""));
            assert!(put(true, ACK, (100, 500), b""));
            let again = put(true, ACK, (100, 500), one);
            let rest = put(true, ACK, (behind, 500), two);
            assert!(!again || !rest, "{more} {as_client} {cut}");
        }
    }
}

#[test]
fn http_is_recognised_at_any_split_of_the_first_bytes() {
    // The request arrives byte by byte, after empty lines, or with a long header.
    let empty = [b"\r\n\r\n", REQUEST].concat();
    let long = [
        &b"GET / HTTP/1.1\r\nA: "[..],
        &[b'a'; 20_000],
        b"\r\n\r\nGET /evil HTTP/1.1\r\n\r\n",
    ]
    .concat();
    for (bytes, size) in [(REQUEST, 1), (&empty[..], 3), (&long[..], 1400)] {
        let mut line = open();
        let mut at = 100;
        let all = bytes.chunks(size).all(|part| {
            let passes = line.client(ACK, (at, 500), part);
            at += part.len() as u32;
            passes
        });
        assert!(!all, "{size}");
    }
    // Header and body of one message arrive in separate segments.
    let mut line = open();
    let head = b"POST /long/way HTTP/1.1\r\nContent-Length: 8\r\n\r\n";
    assert!(line.client(ACK, (100, 500), head));
    assert!(!line.client(ACK, (100 + head.len() as u32, 500), b"cmd=evil"));
}

#[test]
fn urgent_flags_are_cleared_or_packets_dropped_as_configured() {
    for (more, passes, flags) in [
        ("", true, ACK),
        ("urgent = \"pass\"", true, ACK | URG),
        ("urgent = \"drop\"", false, ACK | URG),
    ] {
        let mut line = Line::new(more);
        line.handshake();
        let mut frame = segment(true, ACK | URG, (100, 500), b"abc");
        frame[53] = 2;
        let frame = sealed(frame);
        let mut batch = batch_of(&frame, 64);
        let context = Context {
            now_ticks: line.now_ticks,
            to_port: 1,
            ports: 2,
            ..Context::default()
        };
        line.function.process(&mut batch, &context);
        assert_eq!(batch.is_kept(0), passes);
        if passes {
            let left = batch.packets()[0].bytes();
            assert_eq!(left[47], flags);
            assert_eq!(sealed(left.to_vec()), left, "checksums are right");
        }
    }
}

#[test]
fn connections_without_handshake_follow_the_midstream_setting() {
    let going_on = segment(true, ACK, (100, 500), REQUEST);
    for (more, passes, outcome) in [
        ("", false, "dropped_by_rule"),
        ("midstream = \"pass\"", true, "passed_midstream"),
        ("midstream = \"drop\"", false, "dropped_midstream"),
    ] {
        let mut line = Line::new(more);
        // The rules require that both ends have sent data.
        if more.is_empty() {
            assert!(line.server(ACK, (500, 100), b""));
        }
        assert_eq!(line.passes(&going_on, 0), passes);
        assert_eq!(line.count(outcome), 1, "{more}");
    }
}

#[test]
fn flows_in_different_vlans_or_port_pairs_are_separate() {
    // The same addresses also occur in another VLAN, and at another pair of ports.
    let mut line = open();
    assert!(!line.client(ACK, (100, 500), REQUEST));
    let tagged = |frame: &[u8]| [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat();
    let segments = [
        (0, segment(true, SYN, (99, 0), b"")),
        (1, segment(false, SYN | ACK, (499, 100), b"")),
        (
            0,
            segment(true, ACK, (100, 500), b"GET /fine HTTP/1.1\r\n\r\n"),
        ),
    ];
    for (port, frame) in &segments {
        assert!(line.passes(&tagged(frame), *port));
    }
    for (port, frame) in &segments {
        assert!(line.passes(frame, port + 2));
    }
    assert!(!line.client(ACK, (100, 500), b"of the one that was dropped"));
}

#[test]
fn packets_leave_with_at_least_the_configured_ttl() {
    let mut line = Line::new("min_ttl = 9");
    let mut frame = udp(7, b"low");
    frame[22] = 1;
    let frame = sealed(frame);
    let mut batch = batch_of(&frame, 64);
    line.function.process(
        &mut batch,
        &Context {
            to_port: 1,
            ports: 2,
            ..Context::default()
        },
    );
    let left = batch.packets()[0].bytes();
    assert_eq!((left[22], sealed(left.to_vec())), (9, left.to_vec()));
}

#[test]
fn partial_message_floods_hide_no_attack_and_harm_no_client() {
    let mut line = Line::new("memory = \"1 MB\"\nflows = 65536");
    // There are 1024 parsers.
    for number in 0..2000 {
        begin(&mut line, number);
        let head = segment(true, ACK, (100, 500), b"GET /half HTTP/1.1\r\nHo");
        line.passes(&from(number, head, true), 0);
        let early = segment(true, ACK, (1100, 500), &[b'x'; 1400]);
        line.passes(&from(number, early, true), 0);
        if number % 500 == 499 {
            line.wait_s(1);
        }
        if number % 100 == 99 {
            // The request of a harmless client still passes, and that of a harmful client is still detected.
            let (fine, evil) = (100_000 + number, 200_000 + number);
            begin(&mut line, fine);
            begin(&mut line, evil);
            let request = segment(true, ACK, (100, 500), b"GET /fine HTTP/1.1\r\n\r\n");
            assert!(line.passes(&from(fine, request, true), 0), "{number}");
            let request = segment(true, ACK, (100, 500), REQUEST);
            assert!(!line.passes(&from(evil, request, true), 0), "{number}");
        }
    }
    assert!(line.count("parsers_taken") > 0);
}

#[test]
fn idle_connections_occupy_no_parser() {
    let mut line = Line::new("flows = 65536");
    let lists = [&[0, 0, 0, 0x3c, 4, 20][..], &[0; 58]].concat();
    let ssh = [b"SSH-2.0-fine\r\n", &lists[..]].concat();
    let behind_ssh = 100 + ssh.len() as u32;
    let ftp: [(bool, (u32, u32), &[u8]); 3] = [
        (false, (500, 100), b"220 (x)\r\n"),
        (true, (100, 509), b"NOOP\r\n"),
        (false, (509, 106), b"200 x\r\n"),
    ];
    let ssh: [(bool, (u32, u32), &[u8]); 2] =
        [(true, (100, 500), &ssh), (false, (500, behind_ssh), &ssh)];
    let is_odd = |number: u32| number % 2 == 1;
    for number in 0..1000 {
        begin(&mut line, number);
        let said = if is_odd(number) { &ssh[..] } else { &ftp };
        for &(is_client, numbers, bytes) in said {
            let frame = from(number, segment(is_client, ACK, numbers, bytes), is_client);
            assert!(line.passes(&frame, usize::from(!is_client)), "{number}");
        }
    }
    assert_eq!(line.count("parsers_taken"), 0);
    for number in 0..1000 {
        let (numbers, bytes) = match is_odd(number) {
            true => ((behind_ssh, 500), &b"SSH-2.0-evil\r\n"[..]),
            false => ((106, 516), &b"DELE x\r\n"[..]),
        };
        let frame = from(number, segment(true, ACK, numbers, bytes), true);
        assert_eq!(line.passes(&frame, 0), is_odd(number), "{number}");
    }
}
