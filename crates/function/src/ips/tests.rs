#![allow(clippy::unwrap_used)]
use super::*;
use crate::CountKind;
use crate::batch_of::batch_of;
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

fn ips(folder: &Path, rules: &str, more: &str) -> Box<dyn Function> {
    fs::write(folder.join("rules"), rules).unwrap();
    let text = format!(
        "rules = [\"{0}/rules\"]\nevents = \"{0}/eve.json\"\nflows = 1024\n{more}",
        folder.display()
    );
    let mut function = (ENTRY.build)(text.parse().unwrap()).unwrap();
    function.prepare().unwrap();
    function
}

/// Whether the frame passes.
fn passes(function: &mut Box<dyn Function>, frame: &[u8]) -> bool {
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

fn udp(destination_port: u16, payload: &[u8]) -> Vec<u8> {
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
    frame
}

/// A segment of TCP between two hosts, from the client or to it.
fn tcp(from_client: bool, flags: u8, sequence: u32, payload: &[u8]) -> Vec<u8> {
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
    frame.extend(1u32.to_be_bytes());
    frame.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    frame.extend(payload);
    frame
}

fn events(folder: &Path, kind: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("eve.json")).unwrap();
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|it| it["event_type"] == kind).collect()
}

fn ids(folder: &Path) -> Vec<u64> {
    let alerts = events(folder, "alert");
    alerts
        .iter()
        .map(|it| it["alert"]["signature_id"].as_u64().unwrap())
        .collect()
}

/// Asks the inspection at the socket of that folder.
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
fn a_packet_that_a_rule_drops_is_dropped_with_all_that_follow_in_its_flow() {
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
        [2, 1, 1, 1]
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
fn alert_only_drops_nothing() {
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
fn messages_are_found_over_segments_in_any_order() {
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
    // Bytes that are sent again are looked at again, as nobody remembers all that was there.
    assert_eq!(found, [1, 2, 2, 3, 4, 6]);
    assert_eq!(events(folder.path(), "drop").len(), 1);
}

#[test]
fn another_connection_between_the_same_ports_begins_anew_in_both_directions() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "alert http any any -> any any (flow:to_server,established; http.uri; content:\"/one\"; sid:1;)\n\
                 alert http any any -> any any (flow:to_client; http.stat_code; content:\"404\"; sid:2;)\n";
    let mut function = ips(folder.path(), rules, "");
    let answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2000\r\n\r\nbut less than that";
    for _ in 0..2 {
        handshake(&mut function);
        assert!(passes(
            &mut function,
            &tcp(true, 0x18, 100, b"GET /one HTTP/1.1\r\n\r\n")
        ));
        assert!(passes(&mut function, &tcp(false, 0x18, 500, answer)));
        assert!(passes(&mut function, &tcp(true, 0x11, 121, b"")));
        // Who has not said that he is done goes on.
        assert!(passes(&mut function, &tcp(true, 2, 99, b"")));
        assert!(passes(
            &mut function,
            &tcp(false, 0x18, 500 + answer.len() as u32, b" more")
        ));
        assert!(passes(
            &mut function,
            &tcp(false, 0x11, 505 + answer.len() as u32, b"")
        ));
    }
    drop(function);
    assert_eq!(ids(folder.path()), [1, 2, 1, 2]);
}

#[test]
fn all_messages_of_a_segment_are_looked_at() {
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
        segment
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
    // A hello and a key exchange in one record.
    let answer = [22, 3, 3, 0, 12, 2, 0, 0, 2, 1, 1, 12, 0, 0, 2, 1, 1];
    assert!(passes(&mut function, &to_port(443, false, 0x12, 499, b"")));
    assert!(passes(
        &mut function,
        &to_port(443, false, 0x18, 500, &answer)
    ));
    drop(function);
    assert_eq!(ids(folder.path()), [1, 1, 2, 3]);
}

/// A message of TLS, and messages in records of that size.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &(body.len() as u32).to_be_bytes()[1..], body].concat()
}

fn records(messages: &[u8], size: usize) -> Vec<u8> {
    let record = |part: &[u8]| [&[22, 3, 3][..], &(part.len() as u16).to_be_bytes(), part].concat();
    messages.chunks(size).flat_map(record).collect()
}

/// A certificate for `CN=a.example`, signed by `CN=b`, of number 1a2b, as far as it is read, and some bytes.
const CERTIFICATE: &[u8] =
    b"\x30\x39\x30\x37\x02\x02\x1a\x2b\x30\x00\x30\x0c\x31\x0a\x30\x08\x06\x03\x55\x04\x03\x0c\x01b\x30\x00\
      \x30\x14\x31\x12\x30\x10\x06\x03\x55\x04\x03\x0c\x09a.example\x04\x09some more";

#[test]
fn certificates_and_fingerprints_of_tls_are_found_over_segments() {
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
        // The one with the end of the certificates is dropped.
        let goes = passes(&mut function, &segment);
        assert_eq!(goes, number < last, "{number} of {last}");
    }
    drop(function);
    let mut found = ids(folder.path());
    found.sort_unstable();
    assert_eq!(found, [1, 2, 3, 5, 6, 7, 8]);
}

#[test]
fn protocols_are_known_by_their_first_bytes() {
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
        // In two segments, as they come.
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
fn a_packet_that_takes_too_long_passes_or_is_dropped_as_is_said() {
    // Rules without a content are asked for every packet, and so many of them take more than a microsecond.
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
        ("max_time = \"1us\"", true, "passed_over_time"),
        (
            "max_time = \"1us\"\nover_time = \"drop\"",
            false,
            "dropped_over_time",
        ),
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
fn packets_that_alerts_are_about_are_in_the_file_with_their_rules() {
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
fn packets_in_tunnels_are_looked_at_on_request() {
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
        let mut function = ips(folder.path(), rules, more);
        assert_eq!(passes(&mut function, &frame), passed);
        assert!(passes(&mut function, &plain), "of other addresses");
        // A tunnel that is cut, and one within which something lies about its length.
        assert!(passes(&mut function, &frame[..at]));
        let mut lies = frame.clone();
        lies[at - 28 + 2] = 0xff;
        assert!(passes(&mut function, &lies));
        let outcomes = function.outcomes();
        let malformed = outcomes.iter().find(|it| it.0 == "malformed").unwrap().1;
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
fn fragments_in_tunnels_are_put_together_before_they_pass() {
    use crate::Punted;
    use taut_port::Punt;
    use taut_wire::{Protocol, Tunnel, UdpFlow};
    let folder = tempfile::tempdir().unwrap();
    let rules = "drop udp any any -> any 5000 (content:\"evil words\"; sid:1;)\n";
    let mut function = ips(folder.path(), rules, "inner = true");
    let mut slow = function.handler().unwrap();
    let tunnel = Tunnel {
        teid: 9,
        src_ip: "2001:db8::1".parse().unwrap(),
        dst_ip: "2001:db8::2".parse().unwrap(),
    };
    // Halves of a datagram, each in a tunnel frame of its own: 24 bytes of it in each.
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
            assert!(!passes(&mut function, &frame), "it waits");
            let punted = Punted {
                frame: &frame,
                from_port: 0,
                cause: Punt::Fragment,
            };
            slow.handle(&punted, &mut |port, frame| {
                left.push((port, frame.to_vec()));
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
fn others_read_what_is_counted_and_which_rules_fit() {
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
    // Those that had a counter keep it.
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
fn packets_of_alerts_are_left_out_rather_than_waited_for() {
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
fn bounds_that_are_none_are_said() {
    let said = |text: &str| (ENTRY.build)(text.parse().unwrap()).err().unwrap().0;
    for (text, part) in [
        (
            "max_time = \"50\"",
            "max_time = \"50\": want a time such as \"50us\"",
        ),
        ("max_time = \"2s\"", "max_time: want 1us to 1s"),
        ("max_time = \"0us\"", "max_time: want 1us to 1s"),
        ("over_time = \"drop\"", "over_time: say max_time, too"),
        ("alerts_size = \"1 MB\"", "alerts_size: say alerts, too"),
        (
            "alerts = \"x\"\nalerts_size = \"1 kB\"",
            "want \"64 kB\" at least",
        ),
        ("max_time = \"1us\"\nover_time = \"reject\"", "reject"),
    ] {
        assert!(said(text).contains(part), "{text}: {}", said(text));
    }
}

#[test]
fn bits_of_a_flow_and_rates_hold_rules_back() {
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
fn bits_of_hosts_hold_over_flows_and_sizes_of_streams_are_of_each_end() {
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
fn mistakes_in_rules_are_said_with_their_places() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules");
    let mut text = String::from("alert udp any any -> any any (sid:1;)\n");
    writeln!(
        text,
        "alert udp $HOME any -> any any (sid:2;)\nalert udp any any -> any (sid:3;)"
    )
    .unwrap();
    fs::write(&path, text).unwrap();
    let said = (ENTRY.build)(format!("rules = [\"{}\"]", path.display()).parse().unwrap())
        .err()
        .unwrap()
        .0;
    assert!(
        said.contains("rules:2:11: $HOME stands for nothing")
            && said.contains("and 1 mistakes more"),
        "{said}"
    );
    let said = (ENTRY.build)("rules = [\"/nowhere\"]".parse().unwrap())
        .err()
        .unwrap()
        .0;
    assert!(said.starts_with("/nowhere: No such file"), "{said}");
}

#[test]
fn a_reload_changes_the_rules_and_one_with_mistakes_does_not() {
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
    let mut dropped = 2;
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| ask("{\"op\":\"reload\"}\n"));
        // The slow path has rules of its own and is not called here. Whoever waits for it keeps nobody from anything.
        let (mut in_force, mut by_new_rules) = (false, 0);
        while !asked.is_finished() {
            if in_force {
                passes(&mut function, &udp(9, b"fine"));
                by_new_rules += 1;
            } else {
                dropped += 1;
                in_force = passes(&mut function, &udp(dropped, b"old"));
            }
        }
        dropped -= 1;
        assert_eq!(asked.join().unwrap()["rules"]["rules"], 1);
        // One at most would pass if the worker had to wait as long.
        assert!(by_new_rules > 100, "{by_new_rules} packets");
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
fn a_flood_of_flows_stays_within_the_memory_of_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let mut function = ips(
        folder.path(),
        "alert udp any any -> any any (content:\"x\"; sid:1;)",
        "memory = \"1 MB\"",
    );
    let frame = udp(1, b"one of many");
    for i in 0..20_000u32 {
        let mut frame = frame.clone();
        frame[26..30].copy_from_slice(&i.to_be_bytes());
        assert!(passes(&mut function, &frame));
    }
    let syn = tcp(true, 2, 1, b"");
    for i in 0..20_000u32 {
        let mut frame = syn.clone();
        frame[26..30].copy_from_slice(&i.to_be_bytes());
        assert!(passes(&mut function, &frame));
    }
}
