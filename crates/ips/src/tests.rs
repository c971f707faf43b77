#![allow(clippy::unwrap_used)]
use super::*;
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use taut_function::CountKind;
use taut_function::testing::batch_of;
use taut_inspect::tcp::{ACK, FIN, RST, SYN};

pub(super) fn ips(folder: &Path, rules: &str, more: &str) -> Box<dyn Function> {
    let mut function = not_prepared(folder, rules, more);
    function.prepare().unwrap();
    function
}

/// Returns an inspection with the given rules and the settings in `more`; other settings have the tests' defaults.
fn not_prepared(folder: &Path, rules: &str, more: &str) -> Box<dyn Function> {
    fs::write(folder.join("rules"), rules).unwrap();
    let mut text = format!("rules = [\"{}/rules\"]\n{more}\n", folder.display());
    let ours = [
        ("events", format!("\"{}/eve.json\"", folder.display())),
        // Small tables are fast to create.
        ("flows", "1024".to_string()),
        ("memory", "\"1 MB\"".to_string()),
        ("head_limit", "\"8 KiB\"".to_string()),
        ("body_limit", "\"8 KiB\"".to_string()),
        // A busy machine interrupts tests for longer than the default.
        ("max_time", "\"1s\"".to_string()),
    ];
    for (name, value) in ours {
        if !more.contains(&format!("{name} = ")) {
            text.insert_str(0, &format!("{name} = {value}\n"));
        }
    }
    (ENTRY.build)(text.parse().unwrap()).unwrap()
}

/// Returns true if the frame passes.
pub(super) fn passes(function: &mut Box<dyn Function>, frame: &[u8]) -> bool {
    let mut batch = batch_of(frame, 64);
    function.process(
        &mut batch,
        &Context {
            to_port: 1,
            ports: 2,
            ..Context::default()
        },
    );
    batch.is_kept(0)
}

pub(super) fn udp(destination_port: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    frame.extend((28 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 1, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 198, 51, 100, 7]);
    frame.extend(
        40_000u16
            .to_be_bytes()
            .into_iter()
            .chain(destination_port.to_be_bytes()),
    );
    frame.extend((8 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    sealed(frame)
}

/// Returns the frame with the right checksums of IPv4 and TCP, at their usual offsets.
pub(super) fn sealed(mut frame: Vec<u8>) -> Vec<u8> {
    use taut_wire::Sum;
    frame[24..26].fill(0);
    let sum = Sum::of(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    if frame[23] == 6 {
        frame[50..52].fill(0);
        let len = frame.len() as u32 - 34;
        let sum = Sum::of(&frame[34..]).combine(Sum::of(&frame[26..34]));
        let sum = sum.add_u16(6).add_u32(len).checksum();
        frame[50..52].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

/// Returns a TCP segment between two hosts, from or to the client. The segment acknowledges only the SYN of its
/// receiver in the tests' handshake.
fn tcp(from_client: bool, flags: u8, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let acknowledgement = if from_client { 500 } else { 100 };
    segment(from_client, flags, (sequence, acknowledgement), payload)
}

/// Returns a segment with a sequence and an acknowledgement number.
pub(super) fn segment(
    from_client: bool,
    flags: u8,
    numbers: (u32, u32),
    payload: &[u8],
) -> Vec<u8> {
    let (sequence, acknowledgement) = numbers;
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    let (client, server) = ([192, 0, 2, 1], [198, 51, 100, 7]);
    let (source, destination) = if from_client {
        (client, server)
    } else {
        (server, client)
    };
    let (source_port, destination_port) = if from_client {
        (40_000u16, 8080u16)
    } else {
        (8080, 40_000)
    };
    frame.extend([0x45, 0]);
    frame.extend((40 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 1, 0x40, 0, 64, 6, 0, 0]);
    frame.extend(source.into_iter().chain(destination));
    frame.extend(
        source_port
            .to_be_bytes()
            .into_iter()
            .chain(destination_port.to_be_bytes()),
    );
    frame.extend(sequence.to_be_bytes());
    frame.extend(acknowledgement.to_be_bytes());
    frame.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    frame.extend(payload);
    sealed(frame)
}

fn events(folder: &Path, kind: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("eve.json")).unwrap();
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|it| it["event_type"] == kind).collect()
}

pub(super) fn ids(folder: &Path) -> Vec<u64> {
    let alerts = events(folder, "alert");
    alerts
        .iter()
        .map(|it| it["alert"]["signature_id"].as_u64().unwrap())
        .collect()
}

/// Sends a request to the inspection's socket in the given folder.
fn ask(folder: &Path, text: &str) -> Value {
    use std::io::{BufRead, BufReader, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(folder.join("sock")).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

fn handshake(function: &mut Box<dyn Function>) {
    assert!(passes(function, &tcp(true, 2, 99, b"")));
    assert!(passes(function, &tcp(false, 0x12, 499, b"")));
    assert!(passes(function, &tcp(true, 0x10, 100, b"")));
}

#[test]
fn alerts_are_counted_by_name_and_by_rule() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "alert udp any any -> any 5000 (sid:1;)\nalert udp any any -> any any (sid:2;)\n";
    let mut function = ips(folder.path(), rules, "");
    let count = |function: &dyn Function| {
        [
            "alerts", "alert 1", "alert 2", "alert 3", "alert x", "passed", "nothing",
        ]
        .map(|name| function.count_of(name))
    };
    passes(&mut function, &udp(5000, b"a"));
    let before = count(&*function);
    passes(&mut function, &udp(5001, b"b"));
    passes(&mut function, &udp(5001, b"c"));
    let after = count(&*function);
    assert_eq!(
        before,
        [Some(2), Some(1), Some(1), None, None, Some(1), None]
    );
    assert_eq!(
        after,
        [Some(4), Some(1), Some(3), None, None, Some(3), None]
    );
}

#[test]
fn a_drop_rule_drops_the_matching_packet_and_its_flow() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "drop udp any any -> any 5000 (msg:\"bad\"; content:\"EVIL\"; nocase; sid:1; rev:3;)\n\
                 alert udp any any -> any any (msg:\"seen\"; content:\"evil\"; offset:0; depth:4; sid:2;)\n\
                 pass udp any any -> any 5001 (content:\"evil\"; sid:3;)\n";
    let mut function = ips(folder.path(), rules, "");
    assert!(passes(&mut function, &udp(5000, b"fine")));
    assert!(!passes(&mut function, &udp(5000, b"evil words")));
    assert!(!passes(&mut function, &udp(5000, b"fine")));
    assert!(passes(&mut function, &udp(5001, b"evil words")));
    assert!(passes(&mut function, &udp(5002, b"no evil")));
    let outcomes = function.outcomes();
    let count = |name: &str| outcomes.iter().find(|it| it.0 == name).unwrap().1;
    assert_eq!(
        [
            "passed",
            "dropped_by_rule",
            "dropped_with_flow",
            "passed_with_flow"
        ]
        .map(count),
        [3, 1, 1, 0]
    );
    drop(function);
    assert_eq!(ids(folder.path()), [1, 2]);
    let alert = &events(folder.path(), "alert")[0];
    assert_eq!(alert["alert"]["action"], "blocked");
    assert_eq!(
        (&alert["alert"]["rev"], &alert["proto"], &alert["dest_port"]),
        (&3.into(), &"UDP".into(), &5000.into())
    );
    assert_eq!(
        events(folder.path(), "stats").last().unwrap()["stats"]["ips"]["dropped_by_rule"],
        1
    );
}

#[test]
fn pass_rules_with_packet_conditions_do_not_pass_entire_flows() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "pass tcp any any -> any any (flow:not_established; sid:1;)\n\
                 pass udp any any -> any any (dsize:<3; sid:2;)\n\
                 pass udp any any -> any 5001 (content:\"fine\"; dsize:4; sid:3;)\n\
                 pass ip 192.0.2.1 any -> 198.51.100.9 any (sid:4;)\n\
                 drop ip any any -> any any (sid:9;)\n";
    let mut function = ips(folder.path(), rules, "");
    handshake(&mut function);
    assert!(!passes(&mut function, &tcp(true, 0x18, 100, b"evil")));
    assert!(passes(&mut function, &udp(5000, b"ab")));
    assert!(!passes(&mut function, &udp(5000, b"abc")));
    assert!(passes(&mut function, &udp(5001, b"fine")));
    assert!(!passes(&mut function, &udp(5001, b"evil")));
    let outcomes = function.outcomes();
    let count = |name: &str| outcomes.iter().find(|it| it.0 == name).unwrap().1;
    assert_eq!(count("passed_with_flow"), 0);
}

#[test]
fn a_bypass_rule_passes_all_later_packets_of_the_flow() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "alert udp any any -> any any (content:\"skip\"; bypass; sid:1;)\n\
                 drop udp any any -> any any (content:\"evil\"; sid:2;)\n\
                 alert udp any any -> any any (content:\"also\"; sid:3;)\n\
                 alert tcp any any -> any any (content:\"skip\"; bypass; sid:4;)\n";
    let mut function = ips(folder.path(), rules, "");
    // Other rules still apply to the packet itself, and a rule that drops the packet takes effect.
    assert!(!passes(&mut function, &udp(5000, b"skip evil")));
    assert!(!passes(&mut function, &udp(5000, b"fine")));
    assert!(passes(&mut function, &udp(5001, b"skip also")));
    assert!(passes(&mut function, &udp(5001, b"evil also")));
    // A `pass` rule has no effect on a flow if it matches a segment that no receiver accepts.
    handshake(&mut function);
    let outside = segment(true, 0x10, (90_000_000, 500), b"skip");
    assert!(!passes(&mut function, &outside));
    assert!(passes(&mut function, &tcp(true, 0x18, 100, b"skip")));
    assert!(passes(&mut function, &tcp(true, 0x18, 104, b"skip")));
    drop(function);
    assert_eq!(ids(folder.path()), [2, 1, 1, 3, 4, 4]);
}

#[test]
fn no_packet_is_dropped_in_alert_only_mode() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "drop udp any any -> any any (content:\"evil\"; sid:1;)\n";
    let mut function = ips(folder.path(), rules, "alert_only = true");
    assert!(passes(&mut function, &udp(1, b"evil")) && passes(&mut function, &udp(1, b"evil")));
    drop(function);
    assert_eq!(
        events(folder.path(), "alert")[1]["alert"]["action"],
        "allowed"
    );
}

#[test]
fn rules_match_http_messages_across_tcp_segments_in_any_order() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "alert http any any -> any any (msg:\"path\"; flow:to_server,established; http.uri; content:\"/a/secret\"; sid:1;)\n\
                 alert tcp any any -> any 8080 (msg:\"over the cut\"; content:\"User-Agent|3a| bad\"; sid:2;)\n\
                 alert http any any -> any any (http.user_agent; content:\"badger\"; startswith; endswith; sid:3;)\n\
                 alert http any any -> any any (flow:to_client; http.stat_code; content:\"404\"; sid:4;)\n\
                 alert tcp any any -> any any (content:\"never there\"; sid:5;)\n\
                 alert tcp any any -> any any (flow:to_server,not_established; flags:S; sid:6;)\n";
    let mut function = ips(folder.path(), rules, "");
    handshake(&mut function);
    let request = b"GET /a/%73ecret HTTP/1.1\r\nHost: x\r\nUser-Agent: badger\r\n\r\n";
    let (one, two, three) = (&request[..20], &request[20..50], &request[50..]);
    assert!(passes(&mut function, &tcp(true, 0x18, 100, one)));
    assert!(passes(&mut function, &tcp(true, 0x18, 150, three)));
    assert!(passes(&mut function, &tcp(true, 0x18, 120, two)));
    assert!(passes(&mut function, &tcp(true, 0x18, 120, two)));
    assert!(passes(
        &mut function,
        &tcp(
            false,
            0x18,
            500,
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        )
    ));
    assert!(!passes(&mut function, &tcp(true, 0x18, 120, b"YYYYYYYYYY")));
    assert!(passes(&mut function, &tcp(true, 4, 166, b"")));
    drop(function);
    let mut found = ids(folder.path());
    found.sort_unstable();
    // Retransmitted bytes are inspected again, because streams store only part of them.
    assert_eq!(found, [1, 2, 2, 3, 4, 6]);
    assert_eq!(events(folder.path(), "drop").len(), 1);
}

#[test]
fn a_new_connection_on_reused_ports_resets_both_stream_directions() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "alert http any any -> any any (flow:to_server,established; http.uri; content:\"/one\"; sid:1;)\n\
                 alert http any any -> any any (flow:to_client; http.stat_code; content:\"404\"; sid:2;)\n";
    let mut function = ips(folder.path(), rules, "");
    let answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2000\r\n\r\nbut less than that";
    let end = 500 + answer.len() as u32;
    for from in [0, 70_000, u32::MAX - 300] {
        let mut put = |from_client, flags, numbers: (u32, u32), payload: &[u8]| {
            let numbers = (numbers.0.wrapping_add(from), numbers.1.wrapping_add(from));
            passes(
                &mut function,
                &segment(from_client, flags, numbers, payload),
            )
        };
        assert!(put(true, SYN, (99, 0), b""));
        assert!(put(false, SYN | ACK, (499, 100), b""));
        assert!(put(true, ACK, (100, 500), b""));
        assert!(put(true, ACK, (100, 500), b"GET /one HTTP/1.1\r\n\r\n"));
        assert!(put(false, ACK, (500, 121), answer));
        assert!(put(true, FIN | ACK, (121, end), b""));
        // An endpoint that has sent no FIN may continue to send, and a SYN without a reply begins no connection.
        assert!(put(true, SYN, (4000, 0), b""));
        assert!(put(false, ACK, (end, 122), b" more"));
        assert!(put(false, FIN | ACK, (end + 5, 122), b""));
        assert!(put(true, ACK, (122, end + 6), b""));
        assert!(!put(true, ACK, (122, end + 6), b"over"));
    }
    drop(function);
    assert_eq!(ids(folder.path()), [1, 2, 1, 2, 1, 2]);
}

#[test]
fn a_new_connection_on_reused_ports_is_identified_as_dns() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "alert dns any any -> any any (dns.query; content:\"bad\"; sid:1;)\n";
    let mut function = ips(folder.path(), rules, "");
    let query = b"\0\x15\0\x01\x01\0\0\x01\0\0\0\0\0\0\x03bad\0\0\x01\0\x01";
    let behind = 100 + query.len() as u32;
    for from in [0, 70_000] {
        let mut put = |from_client, flags, numbers: (u32, u32), payload: &[u8]| {
            let mut segment = segment(
                from_client,
                flags,
                (numbers.0 + from, numbers.1 + from),
                payload,
            );
            let at = if from_client { 36 } else { 34 };
            segment[at..at + 2].copy_from_slice(&53u16.to_be_bytes());
            assert!(passes(&mut function, &sealed(segment)));
        };
        put(true, SYN, (99, 0), b"");
        put(false, SYN | ACK, (499, 100), b"");
        put(true, ACK, (100, 500), query);
        put(true, FIN | ACK, (behind, 500), b"");
        put(false, FIN | ACK, (500, behind + 1), b"");
        put(true, ACK, (behind + 1, 501), b"");
    }
    drop(function);
    assert_eq!(ids(folder.path()), [1, 1]);
}

#[test]
fn http2_is_parsed_after_an_upgrade_of_the_connection() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "alert http any any -> any any (http.uri; content:\"/evil\"; sid:1;)\n\
        alert http any any -> any any (http.stat_code; content:\"404\"; sid:2;)\n\
        alert tcp any any -> any any (content:\"Switching\"; sid:3;)\n";
    let ask = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
    let agree = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    // The request is a GET with a literal path.
    let request = b"\0\0\x08\x01\x04\0\0\0\x03\x82\x04\x05/evil";
    let answer = b"\0\0\x01\x01\x04\0\0\0\x03\x8d";
    let begun = [&preface[..], request].concat();
    let (behind_ask, behind_agree) = (100 + ask.len() as u32, 500 + agree.len() as u32);
    let mut function = ips(folder.path(), rules, "");
    for (from_client, flags, numbers, payload) in [
        (true, SYN, (99, 0), &b""[..]),
        (false, SYN | ACK, (499, 100), b""),
        (true, ACK, (100, 500), ask),
        (false, ACK, (500, behind_ask), agree),
        (true, ACK, (behind_ask, behind_agree), &begun),
        (false, ACK, (behind_agree, behind_ask), answer),
    ] {
        assert!(passes(
            &mut function,
            &segment(from_client, flags, numbers, payload)
        ));
    }
    drop(function);
    assert_eq!(ids(folder.path()), [3, 1, 2]);
    // The bytes that the client sends before the server accepts the upgrade to HTTP/2 are not parsed.
    let folder = tempfile::tempdir().unwrap();
    let mut function = ips(folder.path(), rules, "");
    for (from_client, flags, numbers, payload, passed) in [
        (true, SYN, (99, 0), &b""[..], true),
        (false, SYN | ACK, (499, 100), b"", true),
        (true, ACK, (100, 500), ask, true),
        (true, ACK, (behind_ask, 500), &begun, false),
    ] {
        let frame = segment(from_client, flags, numbers, payload);
        assert_eq!(passes(&mut function, &frame), passed);
    }
}

#[test]
fn drop_rules_match_dns_requests_split_into_single_byte_segments() {
    let label = |letter, len| [&[len as u8][..], &[letter; 63][..len]].concat();
    let labels = [
        b"\x03bad".to_vec(),
        label(b'a', 63),
        label(b'b', 63),
        label(b'c', 63),
        label(b'd', 50),
    ];
    let head = b"\0\x01\x01\0\0\x01\0\0\0\0\0\0";
    let message = [&head[..], &labels.concat(), b"\0\0\x01\0\x01"].concat();
    let query = [&(message.len() as u16).to_be_bytes()[..], &message].concat();
    for (rule, passed) in [
        ("dns.query; content:\"bad\";", false),
        ("content:\"no\";", true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let protocol = if passed { "tcp" } else { "dns" };
        let rules = format!("drop {protocol} any any -> any any ({rule} sid:1;)\n");
        let mut function = ips(folder.path(), &rules, "");
        let mut put = |from_client, flags, numbers, payload: &[u8]| {
            let mut segment = segment(from_client, flags, numbers, payload);
            let at = if from_client { 36 } else { 34 };
            segment[at..at + 2].copy_from_slice(&53u16.to_be_bytes());
            passes(&mut function, &sealed(segment))
        };
        assert!(put(true, SYN, (99, 0), b""));
        assert!(put(false, SYN | ACK, (499, 100), b""));
        let one_by_one = query.iter().zip(100..);
        let all: Vec<bool> = one_by_one
            .map(|(byte, sequence)| put(true, ACK, (sequence, 500), &[*byte]))
            .collect();
        assert_eq!(all.last(), Some(&passed));
    }
}

#[test]
fn all_messages_of_a_segment_are_inspected() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "alert dns any any -> any any (dns.query; content:\"bad\"; sid:1;)\n\
                 alert tls any any -> any any (tls.sni; content:\"bad\"; sid:2;)\n\
                 alert tls any any -> any any (ssl_state:server_keyx; sid:3;)\n";
    let mut function = ips(folder.path(), rules, "");
    let query = |name: &[u8]| {
        let message = [
            &b"\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"[..],
            &[name.len() as u8],
            name,
            b"\x00\x00\x01\x00\x01",
        ]
        .concat();
        [&(message.len() as u16).to_be_bytes()[..], &message].concat()
    };
    let to_port = |port: u16, from_client, flags, sequence, payload: &[u8]| {
        let mut segment = tcp(from_client, flags, sequence, payload);
        let at = if from_client { 36 } else { 34 };
        segment[at..at + 2].copy_from_slice(&port.to_be_bytes());
        sealed(segment)
    };
    let three = [query(b"fine"), query(b"bad1"), query(b"bad2")].concat();
    let (one, two) = three.split_at(three.len() - 9);
    assert!(passes(&mut function, &to_port(53, true, 2, 99, b"")));
    assert!(passes(&mut function, &to_port(53, true, 0x18, 100, one)));
    let behind = 100 + one.len() as u32;
    assert!(passes(&mut function, &to_port(53, true, 0x18, behind, two)));
    let hello = |name: &[u8]| {
        let len = |more: usize| ((name.len() + more) as u16).to_be_bytes();
        let sni = [&[0, 0][..], &len(5), &len(3), &[0], &len(0), name].concat();
        let body = [
            &[3, 3][..],
            &[7; 32],
            &[0, 0, 2, 0x13, 1, 1, 0],
            &len(9),
            &sni,
        ]
        .concat();
        let message = [&[1, 0][..], &(body.len() as u16).to_be_bytes(), &body].concat();
        [
            &[22, 3, 1][..],
            &(message.len() as u16).to_be_bytes(),
            &message,
        ]
        .concat()
    };
    let both = [&hello(b"fine")[..], &[20, 3, 3, 0, 1, 1], &hello(b"bad3")].concat();
    assert!(passes(&mut function, &to_port(443, true, 2, 99, b"")));
    assert!(passes(&mut function, &to_port(443, true, 0x18, 100, &both)));
    // The record has a hello and a key exchange.
    let answer = [22, 3, 3, 0, 12, 2, 0, 0, 2, 1, 1, 12, 0, 0, 2, 1, 1];
    assert!(passes(&mut function, &to_port(443, false, 0x12, 499, b"")));
    assert!(passes(
        &mut function,
        &to_port(443, false, 0x18, 500, &answer)
    ));
    drop(function);
    assert_eq!(ids(folder.path()), [1, 1, 2, 3]);
}

/// Returns a TLS handshake message, which is not yet divided into records.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &(body.len() as u32).to_be_bytes()[1..], body].concat()
}

fn records(messages: &[u8], size: usize) -> Vec<u8> {
    let record = |part: &[u8]| [&[22, 3, 3][..], &(part.len() as u16).to_be_bytes(), part].concat();
    messages.chunks(size).flat_map(record).collect()
}

/// The start of a certificate for `CN=a.example`, signed by `CN=b`, with serial number 1a2b: up to the last parsed
/// field, then filler bytes.
const CERTIFICATE: &[u8] =
    b"\x30\x39\x30\x37\x02\x02\x1a\x2b\x30\x00\x30\x0c\x31\x0a\x30\x08\x06\x03\x55\x04\x03\x0c\x01b\x30\x00\
      \x30\x14\x31\x12\x30\x10\x06\x03\x55\x04\x03\x0c\x09a.example\x04\x09some more";

#[test]
fn tls_certificates_and_fingerprints_match_across_segments() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "alert tls any any -> any any (flow:to_client; tls.cert_subject; content:\"CN=a.example\"; bsize:12; \
                 tls.cert_issuer; content:\"CN=b\"; endswith; sid:1;)\n\
                 drop tls any any -> any any (tls.cert_serial; content:\"1A:2B\"; sid:2;)\n\
                 alert tls any any -> any any (tls.certs; content:\"second\"; startswith; sid:3;)\n\
                 alert tls any any -> any any (tls.cert_subject; content:\"second\"; sid:4;)\n\
                 alert tls any any -> any any (ja3.string; content:\"771,47,0,,\"; bsize:10; sid:5;)\n\
                 alert tls any any -> any any (ja3s.string; content:\"771,47,\"; bsize:7; ja3s.hash; content:\"5397c414a9ebeaff1bf18b70ca22eaa0\"; sid:6;)\n\
                 alert tls any any -> any any (ja3.string; content:\"771,47,0,,\"; tls.sni; content:\"a.example\"; startswith; sid:7;)\n\
                 alert tls any any -> any any (ja3s.string; content:\"771,47,\"; tls.cert_subject; content:\"a.example\"; sid:8;)\n";
    let mut function = ips(folder.path(), rules, "");
    handshake(&mut function);
    let random = [7; 32];
    let name = b"\0\x12\0\0\0\x0e\0\x0c\0\0\x09a.example";
    let hello = [&[3, 3][..], &random, &[0, 0, 2, 0, 47, 1, 0], name].concat();
    let hello = records(&message(1, &hello), 1000);
    for (number, part) in (0..).zip(hello.chunks(30)) {
        assert!(passes(
            &mut function,
            &tcp(true, 0x18, 100 + 30 * number, part)
        ));
    }
    let with_len = |der: &[u8]| [&[0, 0, der.len() as u8][..], der].concat();
    let list = [with_len(CERTIFICATE), with_len(b"second")].concat();
    let answer = [
        message(2, &[&[3, 3][..], &random, &[0, 0, 47, 0]].concat()),
        message(11, &[&[0, 0, list.len() as u8][..], &list].concat()),
        message(14, b""),
    ]
    .concat();
    let answer = records(&answer, 50);
    let last = answer.len().div_ceil(40) - 1;
    for (number, part) in answer.chunks(40).enumerate() {
        let segment = tcp(false, 0x18, 500 + 40 * number as u32, part);
        // The segment with the end of the certificates is dropped.
        let goes = passes(&mut function, &segment);
        assert_eq!(goes, number < last, "{number} of {last}");
    }
    drop(function);
    let mut found = ids(folder.path());
    found.sort_unstable();
    assert_eq!(found, [1, 2, 3, 5, 6, 7, 8]);
}

#[test]
fn application_protocols_are_identified_by_their_first_bytes() {
    let rules = "alert smtp any any -> any any (content:\"mark\"; sid:1;)\n\
                 alert ftp any any -> any any (content:\"mark\"; sid:2;)\n\
                 alert ssh any any -> any any (content:\"mark\"; sid:3;)\n\
                 alert smb any any -> any any (content:\"mark\"; sid:4;)\n\
                 alert http any any -> any any (content:\"mark\"; sid:5;)\n";
    for (greeting, first, want) in [
        (
            &b"220 mail.example ESMTP\r\n"[..],
            &b"ehlo me\r\nmark"[..],
            &[1][..],
        ),
        (b"220-files.example\r\n", b"USER me\r\nmark", &[2]),
        (b"220 (vsFTPd 3.0.3)\r\n", b"mark", &[2]),
        (b"220 what?\r\n", b"mark", &[]),
        (b"SSH-2.0-a\r\n", b"mark", &[3]),
        (b"", b"SSH-2.0-b\r\nmark", &[3]),
        (b"", b"\0\0\0\x2f\xffSMBmark", &[4]),
        (b"", b"HELO me\r\nmark", &[1]),
        (b"", b"POST / HTTP/1.1\r\nmark", &[5]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut function = ips(folder.path(), rules, "");
        handshake(&mut function);
        // The greeting arrives in two segments.
        let (one, two) = greeting.split_at(greeting.len().min(8));
        for (at, part) in [(500, one), (508, two)] {
            if !part.is_empty() {
                assert!(passes(&mut function, &tcp(false, 0x18, at, part)));
            }
        }
        assert!(passes(&mut function, &tcp(true, 0x18, 100, first)));
        drop(function);
        assert_eq!(
            ids(folder.path()),
            want,
            "{}",
            String::from_utf8_lossy(first)
        );
    }
}

#[test]
fn ftp_command_and_raw_content_rules_match_across_segments() {
    let rules = "drop ftp any any -> any any (ftp.command; content:\"DELE\"; sid:1;)\n\
                 alert tcp any any -> any any (content:\"DELE x\"; sid:2;)\n\
                 alert ftp any any -> any any (ftp.completion_code; content:\"331\"; sid:3;)\n";
    let folder = tempfile::tempdir().unwrap();
    let mut function = ips(folder.path(), rules, "");
    handshake(&mut function);
    for (from_client, at, text, goes) in [
        (false, 500, &b"220 (x)\r\n"[..], true),
        (true, 100, b"USER a\r\n", true),
        (false, 509, b"331 p\r\n", true),
        (true, 108, b"DE", true),
        (true, 110, b"LE x\r\n", false),
    ] {
        let segment = tcp(from_client, 0x18, at, text);
        assert_eq!(passes(&mut function, &segment), goes, "{at}");
    }
    drop(function);
    let mut found = ids(folder.path());
    found.sort_unstable();
    assert_eq!(found, [1, 2, 3]);
}

#[test]
fn ntp_and_ike_are_recognised_at_their_ports_only() {
    let rules = "drop ntp any any -> any any (ntp.mode:client; sid:1;)\n\
                 drop ike any any -> any any (ike.init_spi; content:\"01\"; endswith; sid:2;)\n";
    let folder = tempfile::tempdir().unwrap();
    let mut function = ips(folder.path(), rules, "");
    let mut ntp = vec![0; 48];
    ntp[0] = 0x23;
    let mut ike = vec![0; 28];
    (ike[7], ike[17], ike[27]) = (1, 0x10, 28);
    let behind_zeros = [&[0; 4], &ike[..]].concat();
    for (port, payload, goes) in [
        (124, &ntp, true),
        (123, &ntp, false),
        (501, &ike, true),
        (500, &ike, false),
        (4500, &ike, true),
        (4500, &behind_zeros, false),
    ] {
        let goes_here = passes(&mut function, &udp(port, payload));
        assert_eq!(goes_here, goes, "{port}");
    }
    drop(function);
    assert_eq!(ids(folder.path()), [1, 2, 2]);
}

#[test]
fn packets_over_the_time_limit_pass_or_drop_as_configured() {
    // Rules without a content are evaluated for every packet. Together these rules take more than a microsecond.
    let mut rules = String::new();
    for sid in 1..3000 {
        writeln!(
            rules,
            "alert udp any any -> any any (dsize:>{}; sid:{sid};)",
            1000 + sid
        )
        .unwrap();
    }
    for (more, passed, name) in [
        (
            "max_time = \"1us\"\nover_time = \"pass\"",
            true,
            "passed_over_time",
        ),
        ("max_time = \"1us\"", false, "dropped_over_time"),
        ("", true, "passed"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut function = ips(folder.path(), &rules, more);
        for _ in 0..10 {
            assert_eq!(passes(&mut function, &udp(9, b"fine")), passed, "{name}");
        }
        let outcomes = function.outcomes();
        let counted: Vec<_> = outcomes.iter().filter(|it| it.1 > 0).collect();
        assert_eq!(counted, [&(name, 10)]);
        drop(function);
        let drops = events(folder.path(), "drop");
        assert_eq!(drops.len(), if passed { 0 } else { 10 });
        assert!(
            drops
                .iter()
                .all(|it| it["drop"]["reason"] == "no more time")
        );
    }
}

#[test]
fn the_alert_file_contains_matching_packets_and_their_rules() {
    use taut_capture::pcapng::{Block, read};
    let folder = tempfile::tempdir().unwrap();
    let rules = "drop udp any any -> any 5000 (msg:\"bad\"; content:\"evil\"; sid:1; rev:3;)\n\
                 alert udp any any -> any any (content:\"evil\"; sid:2;)\n";
    let file = folder.path().join("alerts.pcapng");
    let alerts = format!("alerts = \"{}\"\nalerts_size = \"64 kB\"", file.display());
    let mut function = ips(folder.path(), rules, &alerts);
    let frames = [
        udp(5000, b"fine"),
        udp(5000, b"evil words"),
        udp(5001, b"more evil"),
    ];
    let passed = frames.each_ref().map(|frame| passes(&mut function, frame));
    assert_eq!(passed, [true, false, true]);
    drop(function);
    let bytes = fs::read(&file).unwrap();
    let (mut found, mut rest) = (Vec::new(), &bytes[..]);
    while let Some((block, size)) = read(rest) {
        if let Block::Packet(record) = block {
            let since = Duration::from_nanos(record.facts.time_ns);
            let now = std::time::UNIX_EPOCH.elapsed().unwrap();
            assert!(since < now + Duration::from_secs(60), "{since:?}");
            found.push((
                record.frame.to_vec(),
                String::from_utf8_lossy(&rest[..size]),
            ));
        }
        rest = &rest[size..];
    }
    assert_eq!((found.len(), rest.len()), (2, 0));
    assert_eq!((&found[0].0, &found[1].0), (&frames[1], &frames[2]));
    assert!(found[0].1.contains("1:1:3 bad (blocked)") && found[0].1.contains("1:2:0"));
    assert!(!found[1].1.contains("bad") && found[1].1.contains("1:2:0"));
}

#[test]
fn gtp_tunnelled_packets_are_inspected_only_if_configured() {
    use taut_wire::{Protocol, Tunnel, UdpFlow};
    let rules = "drop udp 198.18.0.0/16 any -> any 5000 (content:\"evil\"; sid:1;)\n\
                 alert udp any any -> any 2152 (content:\"evil\"; sid:2;)\n";
    let flow = UdpFlow {
        dst_port: 5000,
        ..UdpFlow::default()
    };
    let tunnel = Tunnel {
        teid: 9,
        src_ip: "2001:db8::1".parse().unwrap(),
        dst_ip: "2001:db8::2".parse().unwrap(),
    };
    let mut frame = flow.frame_as(Protocol::Udp, Some(&tunnel), 300).unwrap();
    let at = flow.header_bytes(Protocol::Udp, Some(&tunnel));
    frame[at..at + 4].copy_from_slice(b"evil");
    let plain = udp(5000, b"evil");
    for (more, passed, found) in [("", true, 2), ("inner = true", false, 1)] {
        let folder = tempfile::tempdir().unwrap();
        let more = format!("checksums = \"ignore\"\n{more}");
        let mut function = ips(folder.path(), rules, &more);
        assert_eq!(passes(&mut function, &frame), passed);
        assert!(passes(&mut function, &plain), "of other addresses");
        // The tunnel is truncated, or a length within it is wrong.
        assert!(!passes(&mut function, &frame[..at]));
        let mut lies = frame.clone();
        lies[at - 28 + 2] = 0xff;
        assert_eq!(passes(&mut function, &lies), passed);
        let outcomes = function.outcomes();
        let malformed = outcomes
            .iter()
            .find(|it| it.0 == "dropped_malformed")
            .unwrap()
            .1;
        assert_eq!(malformed, if passed { 1 } else { 2 });
        drop(function);
        let alerts = events(folder.path(), "alert");
        assert!(alerts.iter().all(|it| it["alert"]["signature_id"] == found));
        if !passed {
            assert_eq!(
                (alerts.len(), &alerts[0]["src_ip"]),
                (1, &"198.18.0.1".into())
            );
        }
    }
}

#[test]
fn tunnelled_fragments_are_reassembled_and_inspected_before_they_pass() {
    use taut_function::Punted;
    use taut_port::Mark;
    use taut_wire::{Protocol, Tunnel, UdpFlow};
    let context = Context {
        to_port: 1,
        ports: 2,
        ..Context::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let rules = "drop udp any any -> any 5000 (content:\"evil words\"; sid:1;)\n";
    let mut function = ips(folder.path(), rules, "inner = true");
    let mut slow = function.handler().unwrap();
    let tunnel = Tunnel {
        teid: 9,
        src_ip: "2001:db8::1".parse().unwrap(),
        dst_ip: "2001:db8::2".parse().unwrap(),
    };
    // Each half of the datagram has 24 bytes and is sent in a tunnel frame of its own.
    let half = |word: &[u8], second: bool, id: u8| {
        let flow = UdpFlow {
            dst_port: 5000,
            ..UdpFlow::default()
        };
        let at = flow.header_bytes(Protocol::Udp, Some(&tunnel)) - 8;
        let mut frame = flow
            .frame_as(Protocol::Udp, Some(&tunnel), at + 24 + 4)
            .unwrap();
        let ip = at - 20;
        frame[ip + 5] = id;
        frame[ip + 6..ip + 8].copy_from_slice(if second { &[0, 3] } else { &[0x20, 0] });
        if second {
            frame[at..at + 24].fill(b' ');
            frame[at..at + word.len()].copy_from_slice(word);
        } else {
            frame[at + 4..at + 6].copy_from_slice(&48u16.to_be_bytes());
            frame[at + 6..at + 8].fill(0);
            frame[at + 24 - word.len()..at + 24].copy_from_slice(word);
        }
        let mut header = taut_wire::Ipv4::new(&mut frame[ip..]).unwrap();
        header.fill_checksum();
        frame
    };
    let mut put = |words: [&[u8]; 2], id| {
        let mut left = Vec::new();
        for (word, second) in words.into_iter().zip([false, true]) {
            let frame = half(word, second, id);
            let mut batch = batch_of(&frame, 64);
            function.process(&mut batch, &context);
            let Some(Mark::Punted(cause)) = batch.mark(0) else {
                continue;
            };
            let punted = Punted {
                frame: &frame,
                from_port: 0,
                cause,
            };
            slow.handle(&punted, &mut |way, frame| {
                left.push((way.to_port, frame.to_vec()));
                true
            });
        }
        left
    };
    let passed = put([b"fine", b" words"], 1);
    assert_eq!(
        passed,
        [(1, half(b"fine", false, 1)), (1, half(b" words", true, 1))]
    );
    assert!(put([b"evil", b" words"], 2).is_empty());
    drop((function, slow));
    assert_eq!(ids(folder.path()), [1]);
}

#[test]
fn packets_are_counted_by_outcome_and_by_matching_rule() {
    let folder = tempfile::tempdir().unwrap();
    let mut rules = String::new();
    for sid in 1..=300 {
        writeln!(
            rules,
            "alert udp any any -> any {sid} (msg:\"number {sid}\"; sid:{sid};)"
        )
        .unwrap();
    }
    let mut function = ips(folder.path(), &rules, "");
    let counted = function.counted().unwrap();
    let hits = || {
        let counts = counted.counts().into_iter();
        let rules = counts.filter(|it| it.kind == CountKind::Rule);
        rules
            .map(|it| (it.name, it.about, it.count))
            .collect::<Vec<_>>()
    };
    assert!(hits().is_empty());
    for port in [200, 200, 7] {
        assert!(passes(&mut function, &udp(port, b"fine")));
    }
    let named = |sid: u32, count| (format!("1:{sid}"), format!("number {sid}"), count);
    assert_eq!(hits(), [named(7, 1), named(200, 2)]);
    for port in 1..=300 {
        assert!(passes(&mut function, &udp(port, b"fine")));
    }
    let all = hits();
    // The rules that had a counter keep it.
    assert_eq!(all.len(), rules::MOST_SHOWN + 1);
    assert!(all.contains(&named(200, 3)) && all.contains(&named(7, 2)));
    assert_eq!(
        all[rules::MOST_SHOWN],
        ("others".to_string(), String::new(), 200)
    );
    let counts = counted.counts();
    let passed = counts.iter().find(|it| it.name == "passed").unwrap();
    assert_eq!((passed.kind, passed.count), (CountKind::Outcome, 303));
    assert!(
        counts
            .iter()
            .any(|it| it.name == "alerts" && it.count == 303)
    );
}

#[test]
fn alert_packets_are_skipped_when_the_file_writer_lags() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "alert udp any any -> any any (content:\"evil\"; sid:2;)\n";
    let file = folder.path().join("alerts.pcapng");
    let more = format!(
        "alerts = \"{}\"\nalerts_size = \"64 kB\"\ncontrol = \"{}/sock\"",
        file.display(),
        folder.path().display()
    );
    let mut function = ips(folder.path(), rules, &more);
    for _ in 0..2000 {
        assert!(passes(&mut function, &udp(1, b"evil")));
    }
    let left_out = || {
        ask(folder.path(), "{\"op\":\"status\"}\n")["notes"]["alerts_left_out"]
            .as_u64()
            .unwrap()
    };
    let begun = std::time::Instant::now();
    while left_out() == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::yield_now();
    }
    drop(function);
    assert!(fs::metadata(&file).unwrap().len() <= 64 << 10);
}

#[test]
fn invalid_limits_are_refused_with_the_reason() {
    let said = |text: &str| (ENTRY.build)(text.parse().unwrap()).err().unwrap().0;
    for (text, part) in [
        (
            "max_time = \"50\"",
            "max_time = \"50\": expected a time such as \"50us\"",
        ),
        ("max_time = \"2s\"", "max_time: expected 1us to 1s"),
        ("max_time = \"0us\"", "max_time: expected 1us to 1s"),
        ("alerts_size = \"1 MB\"", "alerts_size: needs alerts"),
        (
            "alerts = \"x\"\nalerts_size = \"1 kB\"",
            "expected \"64 kB\" at least",
        ),
        ("max_time = \"1us\"\nover_time = \"reject\"", "reject"),
    ] {
        assert!(said(text).contains(part), "{text}: {}", said(text));
    }
}

#[test]
fn flow_bits_and_rate_filters_restrict_alerts() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "alert udp any any -> any any (content:\"one\"; flowbits:set,seen; flowbits:noalert; sid:1;)\n\
                 alert udp any any -> any any (content:\"two\"; flowbits:isset,seen; sid:2;)\n\
                 alert udp any any -> any any (content:\"many\"; detection_filter:track by_src, count 2, seconds 60; sid:3;)\n\
                 alert dns any any -> any any (dns.query; dotprefix; content:\".example.com\"; endswith; nocase; sid:4;)\n";
    let mut function = ips(folder.path(), rules, "");
    for payload in ["two", "one", "two", "many", "many", "many", "many"] {
        assert!(passes(&mut function, &udp(9, payload.as_bytes())));
    }
    let query = |name: &[u8]| {
        [
            b"\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00",
            name,
            b"\x00\x00\x01\x00\x01",
        ]
        .concat()
    };
    assert!(passes(
        &mut function,
        &udp(53, &query(b"\x07Example\x03com"))
    ));
    assert!(passes(
        &mut function,
        &udp(53, &query(b"\x0anotexample\x03com"))
    ));
    drop(function);
    assert_eq!(ids(folder.path()), [2, 3, 3, 4]);
}

#[test]
fn host_bits_span_flows_and_stream_sizes_are_per_direction() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "alert udp any any -> any 5000 (xbits:set,seen,track ip_src,expire 60; noalert; sid:1;)\n\
                 alert udp any any -> any 5001 (xbits:isset,seen,track ip_src; sid:2;)\n\
                 alert udp any any -> any 5001 (xbits:isset,seen,track ip_dst; sid:3;)\n\
                 alert udp any any -> any 5002 (xbits:unset,seen,track ip_src; noalert; sid:4;)\n\
                 alert tcp any any -> any any (content:\"mark\"; stream_size:client,=,5; stream_size:server,=,1; sid:5;)\n\
                 alert tcp any any -> any any (content:\"mark\"; stream_size:both,>,8; sid:6;)\n\
                 alert tcp any any -> any any (content:\"mark\"; stream_size:either,>,8; sid:7;)\n\
                 alert tcp any any -> any any (flags:S; stream_size:server,=,0; sid:8;)\n";
    let mut function = ips(folder.path(), rules, "");
    for port in [5001, 5000, 5001, 5002, 5001] {
        assert!(passes(&mut function, &udp(port, b"any")));
    }
    handshake(&mut function);
    assert!(passes(&mut function, &tcp(true, 0x18, 100, b"mark")));
    assert!(passes(&mut function, &tcp(true, 0x18, 104, b"mark")));
    assert!(passes(&mut function, &tcp(false, 0x18, 500, b"mark")));
    assert!(passes(&mut function, &tcp(false, 0x18, 504, b"mark")));
    drop(function);
    let mut found = ids(folder.path());
    found.sort_unstable();
    assert_eq!(found, [2, 5, 6, 7, 7, 7, 8]);
}

#[test]
fn errors_in_rules_are_reported_with_line_and_column() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules");
    let mut text = String::from("alert udp any any -> any any (sid:1;)\n");
    writeln!(
        text,
        "alert udp $HOME any -> any any (sid:2;)\nalert udp any any -> any (sid:3;)"
    )
    .unwrap();
    fs::write(&path, text).unwrap();
    let rules = format!("rules = [\"{}\"]", path.display());
    let strict = format!("{rules}\nstrict = true").parse().unwrap();
    let said = (ENTRY.build)(strict).err().unwrap().0;
    assert!(
        said.contains("rules:2:11: $HOME is not defined") && said.contains("and 1 more error"),
        "{said}"
    );
    // By default errors skip their rules.
    let (_, read) = looking(rules.parse().unwrap()).unwrap();
    assert_eq!((read.rules, read.mistaken), (1, 2));
    let warned = warning(&read).unwrap();
    assert!(
        warned.starts_with("2 rules are skipped because of errors: ")
            && warned.contains("rules:2:11: $HOME is not defined"),
        "{warned}"
    );
    assert_eq!(warning(&Read::default()), None);
    let said = (ENTRY.build)("rules = [\"/nowhere\"]".parse().unwrap())
        .err()
        .unwrap()
        .0;
    assert!(said.starts_with("/nowhere: No such file"), "{said}");
}

#[test]
fn a_non_strict_reload_skips_rules_with_errors() {
    let (good, bad) = (
        "drop udp any any -> any any (content:\"new\"; sid:1;)\n",
        "drop udp any any -> any any (msg:\"a\" content:\"old\"; sid:2;)\n",
    );
    for (more, is_taken) in [
        ("", false),
        ("strict = false\n", true),
        ("strict = true\n", false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let more = format!("control = \"{}/sock\"\n{more}", folder.path().display());
        let first = if more.contains("true") { "" } else { bad };
        let mut function = ips(folder.path(), first, &more);
        let status = || ask(folder.path(), "{\"op\":\"status\"}\n");
        assert_eq!(
            status()["rules"]["mistaken"],
            usize::from(!first.is_empty())
        );
        fs::write(folder.path().join("rules"), format!("{bad}{good}")).unwrap();
        let answer = std::thread::scope(|scope| {
            let asked = scope.spawn(|| ask(folder.path(), "{\"op\":\"reload\"}\n"));
            while !asked.is_finished() {
                passes(&mut function, &udp(9, b"fine"));
            }
            asked.join().unwrap()
        });
        assert_eq!(answer["ok"], is_taken, "{more}: {answer}");
        assert_eq!(passes(&mut function, &udp(60_001, b"new")), !is_taken);
        assert!(passes(&mut function, &udp(60_002, b"old")));
        assert_eq!(status()["rules"]["rules"], usize::from(is_taken));
    }
}

#[test]
fn a_reload_replaces_the_rules_unless_new_rules_have_errors() {
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("control = \"{}/sock\"", folder.path().display());
    let mut function = ips(
        folder.path(),
        "drop udp any any -> any any (content:\"old\"; sid:1;)",
        &socket,
    );
    let ask = |text: &str| ask(folder.path(), text);
    assert!(!passes(&mut function, &udp(1, b"old")));
    fs::write(
        folder.path().join("rules"),
        "drop udp any any -> any any (content:x; sid:1;)",
    )
    .unwrap();
    let refused = ask("{\"op\":\"reload\"}\n");
    assert!(
        refused["error"]
            .as_str()
            .unwrap()
            .contains("the rules stay as they were: "),
        "{refused}"
    );
    assert!(!passes(&mut function, &udp(2, b"old")));
    fs::write(
        folder.path().join("rules"),
        "drop udp any any -> any any (content:\"new\"; sid:7;)",
    )
    .unwrap();
    let dropped = 2;
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| ask("{\"op\":\"reload\"}\n"));
        while passes(&mut function, &udp(9, b"fine")) && !asked.is_finished() {}
        assert_eq!(asked.join().unwrap()["rules"]["rules"], 1);
    });
    assert!(passes(&mut function, &udp(60_001, b"old")));
    assert!(!passes(&mut function, &udp(60_002, b"new")));
    let top = ask("{\"op\":\"top\",\"most\":5}\n");
    assert_eq!(
        (&top["top"][0]["sid"], &top["top"][0]["fitted"]),
        (&7.into(), &1.into())
    );
    assert_eq!(
        ask("{\"op\":\"status\"}\n")["outcomes"]["dropped_by_rule"],
        dropped + 1
    );
}

#[test]
fn a_flood_of_flows_stays_within_the_table_memory() {
    let folder = tempfile::tempdir().unwrap();
    let mut function = ips(
        folder.path(),
        "alert udp any any -> any any (content:\"x\"; sid:1;)",
        "memory = \"1 MB\"",
    );
    // The flow table has 1024 slots.
    let frame = udp(1, b"one of many");
    for i in 0..5000u32 {
        let mut frame = frame.clone();
        frame[26..30].copy_from_slice(&i.to_be_bytes());
        assert!(passes(&mut function, &sealed(frame)));
    }
    let syn = tcp(true, 2, 1, b"");
    for i in 0..5000u32 {
        let mut frame = syn.clone();
        frame[26..30].copy_from_slice(&i.to_be_bytes());
        assert!(passes(&mut function, &sealed(frame)));
    }
}

#[test]
fn alert_rules_log_allowed_while_drop_rules_log_blocked() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "alert udp any any -> any any (content:\"evil\"; sid:1;)\n\
                 reject udp any any -> any any (content:\"evil\"; sid:2;)\n\
                 drop udp any any -> any any (content:\"evil\"; sid:3;)\n";
    let mut function = ips(folder.path(), rules, "");
    assert!(!passes(&mut function, &udp(5000, b"evil")));
    drop(function);
    let actions: Vec<_> = events(folder.path(), "alert")
        .into_iter()
        .map(|it| {
            (
                it["alert"]["signature_id"].clone(),
                it["alert"]["action"].clone(),
            )
        })
        .collect();
    for (id, action) in &actions {
        let want = if *id == 1 { "allowed" } else { "blocked" };
        assert_eq!(action, want, "{actions:?}");
    }
    assert!(
        actions.len() >= 2 && actions.iter().any(|it| it.0 == 1),
        "{actions:?}"
    );
}

#[test]
fn stream_rules_do_not_match_the_payload_of_tcp_resets() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "alert tcp any any -> any any (flow:only_stream; content:\"gone\"; sid:1;)\n\
        alert tcp any any -> any any (content:\"gone\"; sid:2;)\n";
    let mut function = ips(folder.path(), rules, "");
    for (is_client, flags, numbers, payload) in [
        (true, SYN, (99, 0), &b""[..]),
        (false, SYN | ACK, (499, 100), b""),
        (true, ACK, (100, 500), b"here"),
        (false, RST | ACK, (500, 104), b"gone"),
    ] {
        let frame = segment(is_client, flags, numbers, payload);
        assert!(passes(&mut function, &frame));
    }
    drop(function);
    assert_eq!(ids(folder.path()), [2]);
}

#[test]
fn alerts_contain_the_ingress_port_and_arrival_time_of_packets() {
    let folder = tempfile::tempdir().unwrap();
    let mut function = not_prepared(folder.path(), "alert udp any any -> any any (sid:1;)", "");
    let names = PortNames(["left".to_string(), "right".to_string()].into());
    function.join(Member::default(), &names.shared()).unwrap();
    function.prepare().unwrap();
    for (from_port, stamp_ns) in [(1, 951_782_400_000_001_000), (0, 0), (7, 0)] {
        let mut batch = batch_of(&udp(1, b"any"), 64);
        batch.set_arrivals(&[stamp_ns], 1);
        function.process(
            &mut batch,
            &Context {
                now_ticks: taut_sys::ticks(),
                from_port,
                ..Context::default()
            },
        );
    }
    drop(function);
    let alerts = events(folder.path(), "alert");
    assert_eq!(alerts[0]["in_iface"], "right");
    assert_eq!(alerts[0]["timestamp"], "2000-02-29T00:00:00.000001+0000");
    assert_eq!(
        (&alerts[1]["in_iface"], &alerts[2]["in_iface"]),
        (&"left".into(), &"7".into())
    );
    assert!(alerts[1]["timestamp"].as_str().unwrap() > "2026");
}

#[test]
fn alerts_contain_the_fields_of_their_http_message() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "alert http any any -> any any (flow:to_server; http.uri; content:\"/a\"; sid:1;)\n\
                 alert http any any -> any any (flow:to_client; http.stat_code; content:\"404\"; sid:2;)\n\
                 alert dns any any -> any any (dns.query; content:\"example\"; sid:3;)\n";
    let mut function = ips(folder.path(), rules, "");
    handshake(&mut function);
    let long = "x".repeat(1000);
    let request =
        format!("GET /a?{long} HTTP/1.1\r\nHost: Example.org:80\r\nUser-Agent: curl\r\n\r\n");
    assert!(passes(
        &mut function,
        &tcp(true, 0x18, 100, request.as_bytes())
    ));
    let response = b"HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n";
    assert!(passes(&mut function, &tcp(false, 0x18, 500, response)));
    let mut query = b"\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00".to_vec();
    query.extend(b"\x03www\x07example\x03org\x00\x00\x01\x00\x01");
    assert!(passes(&mut function, &udp(53, &query)));
    drop(function);
    let alerts = events(folder.path(), "alert");
    let http = &alerts[0]["http"];
    assert_eq!(http["hostname"], "example.org");
    assert_eq!(http["http_method"], "GET");
    assert_eq!(http["http_user_agent"], "curl");
    assert_eq!(http["protocol"], "HTTP/1.1");
    assert_eq!(http["status"], Value::Null);
    // Long values are truncated.
    assert_eq!(
        http["url"].as_str().unwrap(),
        format!("/a?{}", &long[..509])
    );
    assert_eq!(
        (
            &alerts[1]["http"]["status"],
            &alerts[1]["http"]["http_method"]
        ),
        (&404.into(), &"GET".into())
    );
    assert_eq!(alerts[2]["dns"]["query"][0]["rrname"], "www.example.org");
    assert_eq!(alerts[2]["http"], Value::Null);
}

#[test]
fn packets_pass_while_event_readers_connect_and_disconnect() {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;
    use std::time::Instant;
    let folder = tempfile::tempdir().unwrap();
    let sockets = format!(
        "events = \"unix:{0}/eve\"\ncontrol = \"{0}/sock\"",
        folder.path().display()
    );
    let rule = "alert udp any any -> any any (sid:1;)";
    let mut function = ips(folder.path(), rule, &sockets);
    let lost = || {
        let since = Instant::now();
        let status = ask(folder.path(), "{\"op\":\"status\"}\n");
        assert!(
            since.elapsed() < Duration::from_secs(1),
            "{:?}",
            since.elapsed()
        );
        status["notes"]["events_lost"].as_u64().unwrap()
    };
    let mut pass_until = |is_done: &dyn Fn() -> bool| {
        let since = Instant::now();
        while !is_done() {
            assert!(since.elapsed() < Duration::from_secs(20));
            assert!(passes(&mut function, &udp(1, b"any")));
        }
    };
    // At first there is no listener, then a reader that reads nothing, and then a reader that reads one line and exits.
    pass_until(&|| lost() > 0);
    let listening = UnixListener::bind(folder.path().join("eve")).unwrap();
    listening.set_nonblocking(true).unwrap();
    let accepted = std::cell::OnceCell::new();
    pass_until(&|| match listening.accept() {
        Ok((stream, _)) => accepted.set(stream).is_ok(),
        Err(_) => false,
    });
    let before = lost();
    pass_until(&|| lost() > before);
    let stream = accepted.into_inner().unwrap();
    stream.set_nonblocking(false).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["event_type"], "alert");
    pass_until(&|| listening.accept().is_ok());
}

#[test]
fn vxlan_tunnelled_packets_are_inspected_only_if_configured() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "drop udp any any -> any 5000 (content:\"evil\"; sid:1;)";
    for (inner, passed) in [("inner = true", false), ("", true)] {
        let mut function = ips(folder.path(), rules, inner);
        let carried = udp(5000, b"evil");
        let vxlan = [&[8, 0, 0, 0, 0, 0, 9, 0][..], &carried].concat();
        assert_eq!(passes(&mut function, &udp(4789, &vxlan)), passed);
        assert!(!passes(&mut function, &carried));
    }
}

/// Returns the resident memory of this process in bytes.
fn resident_bytes() -> usize {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|it| it.strip_prefix("VmRSS:"));
    let kilobytes = line.unwrap().trim().trim_end_matches(" kB");
    kilobytes.parse::<usize>().unwrap() << 10
}

#[test]
fn alert_floods_use_bounded_memory_and_control_requests_get_replies() {
    // The test measures the memory of its process, so it runs in a process of its own.
    if std::env::var_os("TAUT_TEST_ALONE").is_none() {
        let test = "alert_floods_use_bounded_memory_and_control_requests_get_replies";
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        alone
            .args([test, "--nocapture"])
            .env("TAUT_TEST_ALONE", "1");
        let ended = alone.output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        return;
    }
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;
    let folder = tempfile::tempdir().unwrap();
    let rules: String = (1..=8)
        .map(|id| format!("alert udp any any -> any any (msg:\"always\"; sid:{id};)\n"))
        .collect();
    let control = format!("control = \"{}/sock\"", folder.path().display());
    let mut function = ips(folder.path(), &rules, &control);
    let frame = udp(5000, b"any");
    let pool = taut_port::PoolHandle::new(64, false).unwrap();
    let mut batch = Batch::new();
    pool.fill(&mut batch, 64, frame.len() as u16);
    for packet in batch.packets_mut() {
        packet.bytes_mut().copy_from_slice(&frame);
    }
    let (before, is_over) = (resident_bytes(), AtomicBool::new(false));
    let (slowest, written, more) = std::thread::scope(|scope| {
        let asker = scope.spawn(|| {
            let mut slowest = Duration::ZERO;
            for _ in 0..10 {
                std::thread::sleep(Duration::from_millis(200));
                let since = Instant::now();
                assert_eq!(ask(folder.path(), "{\"op\":\"status\"}\n")["ok"], true);
                slowest = slowest.max(since.elapsed());
            }
            let written = fs::metadata(folder.path().join("eve.json")).unwrap().len();
            let more = resident_bytes().saturating_sub(before);
            is_over.store(true, Ordering::Relaxed);
            (slowest, written, more)
        });
        let since = Instant::now();
        while !is_over.load(Ordering::Relaxed) && since.elapsed() < Duration::from_secs(20) {
            function.process(&mut batch, &Context::default());
        }
        asker.join().unwrap()
    });
    println!("slowest answer {slowest:?}, {written} bytes written, {more} bytes more memory");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    assert!(written > 0);
    assert!(more < 32 << 20, "{more}");
    drop(function);
    let text = fs::read_to_string(folder.path().join("eve.json")).unwrap();
    // The lines are counted by their text, because parsing so many alerts as JSON would take too long.
    let of = |kind: &str| {
        let kind = format!("\"event_type\":\"{kind}\"");
        text.lines().filter(move |line| line.contains(&kind))
    };
    let alerts = of("alert").count() as u64;
    let stats: Value = serde_json::from_str(of("stats").next_back().unwrap()).unwrap();
    let stats = &stats["stats"];
    let passed = stats["ips"]["passed"].as_u64().unwrap();
    let lost = stats["events_lost"].as_u64().unwrap();
    assert_eq!(alerts + lost, 8 * passed);
    // More events occurred than could be written.
    assert!(lost > 0, "{alerts} alerts");
}
