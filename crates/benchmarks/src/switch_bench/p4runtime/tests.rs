//! Tests of the client against a server in this process, which can also break the protocol.
#![allow(clippy::unwrap_used)]

use super::client::BATCH;
use super::connection::{Connection, Wait};
use super::error::P4Error;
use super::frames::{DATA, END_HEADERS, END_STREAM, Frame, HEADERS, SETTINGS, WINDOW_UPDATE};
use super::pipeline::P4;
use super::protobuf::{Fields, Message, last};
use super::{Client, Pipeline, to_network, version};
use crate::switch_bench::openflow::{Action, Asked, Change, Rule};
use crate::switch_bench::part::{Does, Matching, Order, Part};
use crate::switch_bench::{Switch, Topology, Wires};
use loona_hpack::{Decoder, Encoder};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

static STOP: AtomicBool = AtomicBool::new(false);

const SOON: Duration = Duration::from_secs(20);

const INFO: &str = r#"
pkg_info { arch: "v1model" }
tables {
  preamble { id: 33 name: "ingress.route" alias: "route" }
  match_fields { id: 1 name: "port" bitwidth: 9 match_type: TERNARY }
  match_fields { id: 2 name: "dst" bitwidth: 32 match_type: LPM }
  match_fields { id: 3 name: "type" bitwidth: 16 match_type: EXACT }
  action_refs { id: 16 } action_refs { id: 17 }
  direct_resource_ids: 99
}
tables {
  preamble { id: 34 name: "ingress.host" alias: "host" }
  match_fields { id: 1 name: "dst" bitwidth: 32 match_type: EXACT }
  action_refs { id: 16 } action_refs { id: 17 }
}
tables {
  preamble { id: 35 name: "ingress.cast" alias: "cast" }
  action_refs { id: 17 }
  is_const_table: true
}
actions {
  preamble { id: 16 name: "ingress.send" alias: "send" }
  params { id: 1 name: "port" bitwidth: 9 }
  params { id: 2 name: "mac" bitwidth: 48 }
}
actions { preamble { id: 17 name: "ingress.drop" alias: "drop" } }
direct_meters { preamble { id: 99 } spec { unit: PACKETS } direct_table_id: 33 }
"#;

const ROUTE: &str = r#"
p4info = "info.txtpb"
pipeline = "pipeline.json"
[[table]]
name = "route"
in_port = "port"
ip_dst = "dst"
send = "send"
drop = "ingress.drop"
fixed = { type = "0x800", mac = "0x020000000001" }
"#;

fn opened(settings: &str) -> Result<Pipeline, String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("info.txtpb"), INFO).unwrap();
    std::fs::write(folder.path().join("pipeline.json"), "{}").unwrap();
    let p4: P4 = toml::from_str(settings).map_err(|e| e.to_string())?;
    p4.open(folder.path())
}

fn rule(asked: Asked) -> Rule {
    Rule {
        priority: 7,
        asked,
        actions: vec![Action::Output(300)],
        ..Rule::default()
    }
}

/// Returns the fields of a message as text, with nested messages in braces where `deep` has their numbers.
fn fields(bytes: &[u8]) -> BTreeMap<u32, Vec<Vec<u8>>> {
    let mut fields: BTreeMap<u32, Vec<Vec<u8>>> = BTreeMap::new();
    for field in Fields::of(bytes, "a message") {
        let (number, value) = field.unwrap();
        let bytes = match value.bytes() {
            [] => value.number().to_string().into_bytes(),
            bytes => bytes.to_vec(),
        };
        fields.entry(number).or_default().push(bytes);
    }
    fields
}

fn entry(pipeline: &Pipeline, change: Change, rule: &Rule) -> BTreeMap<u32, Vec<Vec<u8>>> {
    let update = pipeline.update(change, rule, Some(5)).unwrap();
    let entity = last(&update.0, 2, "a test").unwrap().unwrap();
    fields(last(entity.bytes(), 2, "a test").unwrap().unwrap().bytes())
}

#[test]
fn rules_become_entries_with_canonical_values() {
    let pipeline = opened(ROUTE).unwrap();
    let metered = Rule {
        meter: Some(1),
        ..rule(to_network(2, 24))
    };
    let made = entry(&pipeline, Change::Add, &metered);
    assert_eq!(made[&1], [b"33"]);
    let port = Message::default().bytes(1, &[2]).bytes(2, &[1, 255]);
    let port = Message::default().number(1, 1).message(3, &port);
    let network = Message::default().bytes(1, &[10, 0, 0, 0]).number(2, 24);
    let network = Message::default().number(1, 2).message(4, &network);
    let kind = Message::default().bytes(1, &[8, 0]);
    let kind = Message::default().number(1, 3).message(2, &kind);
    assert_eq!(made[&2], [port.0, network.0, kind.0]);
    assert_eq!(made[&4], [b"7"]);
    assert_eq!(made[&6].len(), 1);
    let port = Message::default().number(2, 1).bytes(3, &[1, 44]);
    let mac = Message::default()
        .number(2, 2)
        .bytes(3, &[2, 0, 0, 0, 0, 1]);
    let action = Message::default()
        .number(1, 16)
        .message(4, &port)
        .message(4, &mac);
    assert_eq!(made[&3], [Message::default().message(1, &action).0]);
    let silent = Rule {
        actions: Vec::new(),
        ..rule(to_network(2, 0))
    };
    let silenced = entry(&pipeline, Change::Modify, &silent);
    let drop = Message::default().number(1, 17);
    assert_eq!(silenced[&3], [Message::default().message(1, &drop).0]);
    assert_eq!(silenced[&2].len(), 2);
    let deleted = entry(&pipeline, Change::Delete, &rule(to_network(2, 24)));
    assert_eq!(deleted.keys().collect::<Vec<_>>(), [&1, &2, &4]);
}

#[test]
fn the_first_table_that_can_express_a_rule_gets_it() {
    let host = "[[table]]\nname = 'host'\nip_dst = 'dst'\nsend = 'send'\ndrop = 'drop'\nfixed = { mac = '1' }\n";
    let (head, route) = ROUTE.split_at(ROUTE.find("[[table]]").unwrap());
    let pipeline = opened(&format!("{head}{host}{route}")).unwrap();
    for (length, table) in [(32, b"34"), (24, b"33")] {
        let rule = rule(to_network(1, length));
        assert_eq!(entry(&pipeline, Change::Add, &rule)[&1], [table]);
    }
    assert!(!pipeline.has_priorities(&to_network(1, 32)));
    assert!(pipeline.has_priorities(&to_network(1, 24)));
    assert!(pipeline.has_port(511) && !pipeline.has_port(512));
    let service = Asked {
        udp_dst: Some(9),
        ..Asked::default()
    };
    assert!(!pipeline.matches(&service));
    let queued = Rule {
        actions: vec![Action::Queue(1)],
        ..rule(to_network(1, 32))
    };
    assert_eq!(pipeline.update(Change::Add, &queued, None), None);
}

#[test]
fn wrong_names_in_the_section_name_the_key() {
    for (from, to, why) in [
        (
            "name = \"route\"",
            "name = \"rout\"",
            "name: the P4Info has no rout; there are: ingress.route, ingress.host",
        ),
        (
            "name = \"route\"",
            "name = \"cast\"",
            "entries are constant",
        ),
        (
            "ip_dst = \"dst\"",
            "ip_dst = \"src\"",
            "ip_dst: the P4Info has no src; there are: port, dst, type",
        ),
        (
            "drop = \"ingress.drop\"",
            "drop = \"send\"",
            "without parameters",
        ),
        (
            "type = \"0x800\", ",
            "",
            "the match field type needs a value",
        ),
        (
            ", mac = \"0x020000000001\"",
            "",
            "without a value are: port, mac",
        ),
        ("\"0x800\"", "\"0x80000\"", "is too large"),
        ("\"0x800\"", "\"x\"", "fixed: type: x is no number"),
        ("mac =", "vlan = \"1\", mac =", "vlan is no match field"),
        ("info.txtpb", "other", "p4info: "),
        ("info.txtpb", "pipeline.json", "expected a name or a number"),
        ("p4info =", "info =", "unknown field"),
    ] {
        let text = ROUTE.replacen(from, to, 1);
        assert_ne!(text, ROUTE);
        let wrong = opened(&text).unwrap_err();
        assert!(wrong.contains(why), "{to}: {wrong}");
    }
}

/// Reads a topology file whose section `[p4]` is `ROUTE`.
fn topology(second: u32) -> Result<Topology, String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("info.txtpb"), INFO).unwrap();
    std::fs::write(folder.path().join("pipeline.json"), "{}").unwrap();
    let p4 = ROUTE.replace("[[table]]", "[[p4.table]]");
    let ports = "ports = [\"null:\", \"null:source=1\"]";
    let text = format!("[generator]\n{ports}\nfirst = 0\nsecond = {second}\n[p4]\n{p4}");
    let path = folder.path().join("wires.toml");
    std::fs::write(&path, text).unwrap();
    Topology::read(&path).map_err(|e| e.to_string())
}

#[test]
fn measurements_follow_from_the_tables_of_a_pipeline() {
    let switch: Switch = "p4runtime:192.0.2.1:9559".parse().unwrap();
    let wires = |topology| Wires::new(topology, None, std::slice::from_ref(&switch));
    let known = wires(Some(topology(511).unwrap())).unwrap();
    let order = Order::Increasing;
    let rules = |matching| Part::Rules { matching, rules: 9 };
    let actions = |does| Part::Actions { does };
    for (part, reason) in [
        (Part::Insertion { order }, None),
        (rules(Matching::Exact), None),
        (rules(Matching::Prefix), None),
        (Part::Hops { loops: 1 }, None),
        (actions(Does::Output), Some("UDP port")),
        (actions(Does::Meter), Some("UDP port")),
        (actions(Does::Tag), Some("no common actions")),
        (Part::Amplify { cables: 1 }, Some("multicast groups")),
    ] {
        let why = switch.cannot(part, &known);
        assert_eq!(why.is_some(), reason.is_some(), "{part:?}: {why:?}");
        assert!(why.unwrap_or("").contains(reason.unwrap_or("")), "{why:?}");
    }
    assert_eq!(known.pipeline().unwrap().device_id, 1);
    let wide = topology(512).unwrap_err();
    assert!(wide.contains("port 512 does not fit"), "{wide}");
    let plain = "[generator]\nports = [\"null:\", \"null:source=1\"]\nfirst = 1\nsecond = 2\n";
    let plain = wires(Some(toml::from_str(plain).unwrap())).unwrap_err();
    assert!(
        plain.contains("expected [p4] in the topology file"),
        "{plain}"
    );
    let taut = Wires::new(Some(topology(5).unwrap()), None, &[Switch::Taut]);
    assert!(
        taut.unwrap_err()
            .contains("[p4] in the topology file is for")
    );
}

/// The behaviour of the server in this process.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Behaviour {
    Good,
    HasPipeline,
    NotPrimary,
    RefusesWrites,
    DiesAtWrite,
    LiesAboutLength,
    IsSilent,
    SpeaksHttp1,
}

/// Method and message of a call.
type Called = (String, Vec<u8>);

/// Starts a server for one connection. Its window is small, so that long messages wait for it.
fn serve(behaviour: Behaviour) -> (SocketAddr, Receiver<Called>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let (mut line, _) = listener.accept().unwrap();
        // The client ends the connection.
        let _ = converse(&mut line, behaviour, &tell);
    });
    (address, told)
}

fn converse(
    line: &mut TcpStream,
    behaviour: Behaviour,
    tell: &Sender<Called>,
) -> std::io::Result<()> {
    if behaviour == Behaviour::SpeaksHttp1 {
        line.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")?;
        return line.read_to_end(&mut Vec::new()).map(drop);
    }
    line.set_nodelay(true)?;
    line.read_exact(&mut [0; 24])?;
    line.write_all(&Frame::bytes(SETTINGS, 0, 0, &[0, 4, 0, 0, 16, 0]))?;
    let mut decoder = Decoder::new();
    let mut calls: BTreeMap<u32, Called> = BTreeMap::new();
    loop {
        let frame = Frame::read(line)?;
        let stream = frame.stream;
        if frame.kind == HEADERS {
            let headers = decoder.decode(&frame.payload).unwrap();
            let path = headers.iter().find(|(name, _)| name == b":path").unwrap();
            let path = String::from_utf8_lossy(&path.1).into_owned();
            let method = path.rsplit('/').next().unwrap().to_string();
            calls.insert(stream, (method, Vec::new()));
            continue;
        }
        if frame.kind != DATA {
            continue;
        }
        for of in [0, stream] {
            let more = (frame.payload.len() as u32).to_be_bytes();
            line.write_all(&Frame::bytes(WINDOW_UPDATE, 0, of, &more))?;
        }
        let (method, message) = calls.get_mut(&stream).unwrap();
        message.extend(&frame.payload);
        let length = message
            .get(1..5)
            .map(|it| u32::from_be_bytes(it.try_into().unwrap()));
        if length.is_none_or(|length| message.len() < 5 + length as usize) {
            continue;
        }
        let called = (method.clone(), message.split_off(5));
        let reply = reply(&called.0, behaviour);
        let _ = tell.send(called.clone());
        match (behaviour, called.0.as_str()) {
            (Behaviour::IsSilent, "Write") => continue,
            (Behaviour::DiesAtWrite, "Write") => return Ok(()),
            (Behaviour::LiesAboutLength, "Write") => {
                let lie = [0, 0, 0, 0, 200, 1, 2, 3];
                line.write_all(&Frame::bytes(DATA, 0, stream, &lie))?;
            }
            _ => {}
        }
        answer(line, stream, &called.0, reply, behaviour)?;
    }
}

fn reply(method: &str, behaviour: Behaviour) -> Vec<Message> {
    match method {
        "Capabilities" => vec![Message::default().bytes(1, b"1.4.1")],
        "StreamChannel" => {
            let is_primary = behaviour != Behaviour::NotPrimary;
            let status = Message::default().number(1, if is_primary { 0 } else { 6 });
            let election = Message::default().number(2, 77);
            let update = Message::default().message(3, &election).message(4, &status);
            vec![
                Message::default().bytes(2, b""),
                Message::default().message(1, &update),
            ]
        }
        "GetForwardingPipelineConfig" if behaviour == Behaviour::HasPipeline => {
            let cookie = Message::default().number(1, opened(ROUTE).unwrap().cookie);
            let config = Message::default().message(3, &cookie);
            vec![Message::default().message(1, &config)]
        }
        "Read" => {
            let entity = |entry: Message| {
                let entity = Message::default().message(2, &entry);
                Message::default().message(1, &entity)
            };
            let entry = Message::default().number(1, 33);
            vec![
                entity(
                    entry
                        .clone()
                        .bytes(2, b"\x08\x01")
                        .number(4, 3)
                        .bytes(3, b"\x08\x01"),
                ),
                entity(entry.number(8, 1)),
            ]
        }
        _ => vec![Message::default()],
    }
}

fn block(headers: &[(&str, &str)]) -> Vec<u8> {
    let headers = headers.iter();
    Encoder::new().encode(headers.map(|(name, value)| (name.as_bytes(), value.as_bytes())))
}

fn answer(
    line: &mut TcpStream,
    stream: u32,
    method: &str,
    messages: Vec<Message>,
    behaviour: Behaviour,
) -> std::io::Result<()> {
    let head = block(&[(":status", "200")]);
    line.write_all(&Frame::bytes(HEADERS, END_HEADERS, stream, &head))?;
    for message in messages {
        let mut bytes = vec![0];
        bytes.extend((message.0.len() as u32).to_be_bytes());
        bytes.extend(message.0);
        line.write_all(&Frame::bytes(DATA, 0, stream, &bytes))?;
    }
    if method == "StreamChannel" {
        return Ok(());
    }
    let is_refused = behaviour == Behaviour::RefusesWrites && method == "Write";
    // The second update exists already.
    let details = ("grpc-status-details-bin", "CAIaBhIECAASABoGEgQIBhIA");
    let tail = match is_refused {
        true => block(&[("grpc-status", "2"), details]),
        false => block(&[("grpc-status", "0")]),
    };
    line.write_all(&Frame::bytes(
        HEADERS,
        END_HEADERS | END_STREAM,
        stream,
        &tail,
    ))
}

fn connect(behaviour: Behaviour) -> (Result<Client, P4Error>, Receiver<Called>) {
    let (address, told) = serve(behaviour);
    let pipeline = Arc::new(opened(ROUTE).unwrap());
    (Client::connect(address, pipeline, &STOP), told)
}

#[test]
fn a_controller_becomes_primary_sets_the_pipeline_and_clears_tables() {
    let (address, _told) = serve(Behaviour::Good);
    assert_eq!(version(address, SOON).unwrap(), "P4Runtime 1.4.1");
    let (client, told) = connect(Behaviour::Good);
    let mut client = client.unwrap();
    let count = BATCH + 1;
    let rules = (0..count).map(|_| rule(to_network(1, 32)));
    client.rules(rules).unwrap();
    drop(client);
    let calls: Vec<Called> = told.iter().collect();
    let methods: Vec<&str> = calls.iter().map(|(method, _)| method.as_str()).collect();
    let expected = [
        "StreamChannel",
        "GetForwardingPipelineConfig",
        "SetForwardingPipelineConfig",
        "Read",
        "Write",
        "Write",
        "Write",
    ];
    assert_eq!(methods, expected);
    // Of the two entries, the default one stays; the key has no action.
    let deleted = fields(&calls[4].1)[&4].clone();
    assert_eq!(
        deleted,
        [b"\x08\x03\x12\x0a\x12\x08\x08\x21\x12\x02\x08\x01\x20\x03"]
    );
    let many = |at: usize| fields(&calls[at].1)[&4].len();
    assert_eq!([many(5), many(6)], [BATCH, 1]);
    let (again, told) = connect(Behaviour::HasPipeline);
    drop(again.unwrap());
    assert!(
        told.iter()
            .all(|(method, _)| method != "SetForwardingPipelineConfig")
    );
}

#[test]
fn faults_of_a_server_are_named() {
    let first = |behaviour| connect(behaviour).0.err().unwrap().to_string();
    let primary = first(Behaviour::NotPrimary);
    assert!(
        primary.contains("(election id 77) is primary for device 1"),
        "{primary}"
    );
    for (behaviour, why) in [
        (
            Behaviour::RefusesWrites,
            "refuses Write: UNKNOWN: change 2 of the request: ALREADY_EXISTS",
        ),
        (Behaviour::DiesAtWrite, "closes the connection"),
        (Behaviour::LiesAboutLength, "a message that is damaged"),
        (Behaviour::SpeaksHttp1, "a frame that is damaged"),
    ] {
        let wrong = first(behaviour);
        assert!(wrong.contains(why), "{behaviour:?}: {wrong}");
    }
    let (address, _told) = serve(Behaviour::IsSilent);
    let wait = Wait {
        patience: Duration::from_millis(50),
        stop: None,
    };
    let mut connection = Connection::open(address, SOON, wait).unwrap();
    let late = connection.call("Write", &[], |_| Ok(()));
    assert_eq!(late, Err(P4Error::Late(0)));
    static STOPPED: AtomicBool = AtomicBool::new(true);
    connection.wait.stop = Some(&STOPPED);
    let stopped = connection.call("Write", &[], |_| Ok(()));
    assert_eq!(stopped, Err(P4Error::Stopped));
    let nobody = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let nobody = version(nobody, SOON).unwrap_err().to_string();
    assert!(
        nobody.starts_with("no P4Runtime server there: "),
        "{nobody}"
    );
}
