#![allow(clippy::unwrap_used)]
use super::*;
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
    let ask = |text: &str| {
        use std::io::{BufRead, BufReader, Write};
        let mut stream =
            std::os::unix::net::UnixStream::connect(folder.path().join("sock")).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        serde_json::from_str::<Value>(&line).unwrap()
    };
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
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| ask("{\"op\":\"reload\"}\n"));
        while !asked.is_finished() {
            passes(&mut function, &udp(9, b"fine"));
        }
        assert_eq!(asked.join().unwrap()["rules"]["rules"], 1);
    });
    assert!(passes(&mut function, &udp(3, b"old")) && !passes(&mut function, &udp(4, b"new")));
    let top = ask("{\"op\":\"top\",\"most\":5}\n");
    assert_eq!(
        (&top["top"][0]["sid"], &top["top"][0]["fitted"]),
        (&7.into(), &1.into())
    );
    assert_eq!(
        ask("{\"op\":\"status\"}\n")["outcomes"]["dropped_by_rule"],
        3
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
