//! The mobile gateway: `taut forward` with the function `gtpu`, between memif links and veth pairs. tshark decodes its
//! frames, its tunnels end in Open vSwitch, and its bearers change while packets pass.

use crate::support::between::{Between, decoded, write_pcap};
use crate::support::drivers::{self, group, moved, simple};
use crate::support::hosts::{Namespace, gateway_answers_echo, in_namespace, ip};
use crate::support::program::{Finished, Program, run};
use crate::support::{alone, alone_and_root, is_installed, is_listened_on, scratch, taut};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use taut_host::Testbed;
use taut_port::Batch;
use taut_wire::gtpu::emit_echo_request;
use taut_wire::pfcp::{Cause, ElementType as E, FTeid, Message, MessageType as M, Seid, Writer};
use taut_wire::{
    Ethernet, Gtpu, IpProtocol, Ipv4, Ipv4Repr, Protocol, Tunnel, Udp, UdpFlow, UdpRepr,
};

const OWN: &str = "192.0.2.1";
const PEER: &str = "192.0.2.7";

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A gateway whose two ports are connected to the test.
struct Gateway {
    between: Between,
    control: PathBuf,
    _folder: tempfile::TempDir,
}

impl Gateway {
    fn start(settings: &str) -> Self {
        let folder = scratch();
        let control = folder.path().join("control.sock");
        let between = Between::start(&format!(
            "[[function]]\nname = \"gtpu\"\naddress = [\"{OWN}\", \"2001:db8::1\"]\ncontrol = \"{}\"\n{settings}",
            control.display()
        ));
        Self {
            between,
            control,
            _folder: folder,
        }
    }

    fn bearer(&self, arguments: &[&str]) -> Finished {
        let control = self.control.display().to_string();
        run(&mut taut(
            &[&["bearer", "--control", &control], arguments].concat(),
        ))
    }

    fn add(&self, lines: &[&str]) {
        let finished = self.bearer(&[&["add"], lines].concat()).success();
        let counted = match lines.len() {
            1 => "1 bearer".to_owned(),
            count => format!("{count} bearers"),
        };
        assert_eq!(finished.stdout, format!("{counted} added\n"));
    }

    fn send(&mut self, port: usize, frames: &[Vec<u8>]) {
        self.between.send(port, frames);
    }

    fn receive(&mut self, port: usize, count: usize) -> Vec<Vec<u8>> {
        self.between.receive(port, count)
    }
}

fn flow(source: &str, destination: &str) -> UdpFlow {
    UdpFlow {
        src_ip: address(source),
        dst_ip: address(destination),
        ..UdpFlow::default()
    }
}

fn tunnelled(teid: u32, user: &str, len: usize) -> Vec<u8> {
    let v6 = user.contains(':');
    let tunnel = Tunnel {
        teid,
        src_ip: address(if v6 { "2001:db8::7" } else { PEER }),
        dst_ip: address(if v6 { "2001:db8::1" } else { OWN }),
    };
    let inner = flow(user, if v6 { "2001:db8:99::1" } else { "198.19.0.1" });
    inner.frame_as(Protocol::Udp, Some(&tunnel), len).unwrap()
}

/// Builds a frame with a UDP datagram between two addresses.
fn framed(source: [u8; 4], destination: [u8; 4], port: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 14 + 28 + payload.len()];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    let ip = Ipv4Repr {
        traffic_class: 0,
        identification: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset_bytes: 0,
        ttl: 64,
        protocol: IpProtocol::UDP,
        source: source.into(),
        destination: destination.into(),
        options: &[],
        payload_len_bytes: 8 + payload.len(),
    };
    let mut ip = ip.emit(&mut frame[14..]).unwrap();
    let udp = UdpRepr {
        source_port: port,
        destination_port: port,
        payload_len_bytes: payload.len(),
    };
    let mut udp = udp.emit(ip.payload_mut()).unwrap();
    udp.payload_mut().copy_from_slice(payload);
    frame
}

#[test]
fn tshark_reads_every_kind_of_frame_that_the_gateway_sends() {
    let _turn = alone();
    let mut gateway = Gateway::start("");
    gateway.add(&[
        "0x10,relay,0x20,192.0.2.9",
        "0x11,relay,0x21,2001:db8::9",
        "0x12,decapsulate",
        "10.45.0.2,encapsulate,0x30,192.0.2.9,9",
        "2001:db8:45::,encapsulate,0x31,2001:db8::9,5",
    ]);
    let west = [
        tunnelled(0x10, "10.45.0.2", 128),
        tunnelled(0x11, "2001:db8:45::2", 200),
        tunnelled(0x11, "10.45.0.2", 200),
        tunnelled(0x12, "10.45.0.2", 128),
        tunnelled(0x12, "2001:db8:45::2", 200),
    ];
    gateway.send(0, &west);
    let up = gateway.receive(1, west.len());
    let east = ["10.45.0.2", "2001:db8:45::2"].map(|user| {
        let source = if user.contains(':') {
            "2001:db8:99::1"
        } else {
            "198.19.0.1"
        };
        flow(source, user).frame(100).unwrap()
    });
    gateway.send(1, &east);
    let mut down = gateway.receive(0, 2);
    // The gateway sends a reply through the port at which the request arrived.
    let mut echo = [0; 12];
    emit_echo_request(0x1234, &mut echo).unwrap();
    let echo = framed([192, 0, 2, 7], [192, 0, 2, 1], 2152, &echo);
    gateway.send(0, &[echo, tunnelled(0x99, "10.45.0.2", 128)]);
    down.extend(gateway.receive(0, 2));
    // In the tunnel, this packet would exceed the MTU, so its sender gets an error.
    gateway.send(1, &[flow("198.19.0.1", "10.45.0.2").frame(1514).unwrap()]);
    let told = gateway.receive(1, 1);
    let status = gateway.bearer(&["status"]).success();
    for line in [
        "5 bearers, capacity 100000",
        "  decapsulated 2",
        "  too big 1",
        "  unknown TEID 1",
    ] {
        assert!(status.stdout.contains(line), "{}", status.stdout);
    }
    let summary = gateway.between.program.interrupt().success().last_json();
    assert_eq!(summary["outcomes"]["relayed"], 3, "{summary}");
    assert_eq!(summary["outcomes"]["echo answered"], 1, "{summary}");
    assert!(!gateway.control.exists());

    let frames = [up, down, told].concat();
    let fields = [
        "frame.protocols",
        "gtp.teid",
        "gtp.message",
        "gtp.ext_hdr.pdu_ses_con.qos_flow_id",
    ];
    let Some(lines) = decoded(&frames, &fields) else {
        return;
    };
    let want = [
        ("eth:ethertype:ip:udp:gtp:ip:udp", "0x00000020", "0xff", ""),
        (
            "eth:ethertype:ipv6:udp:gtp:ipv6:udp",
            "0x00000021",
            "0xff",
            "",
        ),
        (
            "eth:ethertype:ipv6:udp:gtp:ip:udp",
            "0x00000021",
            "0xff",
            "",
        ),
        ("eth:ethertype:ip:udp", "", "", ""),
        ("eth:ethertype:ipv6:udp", "", "", ""),
        ("eth:ethertype:ip:udp:gtp:ip:udp", "0x00000030", "0xff", "9"),
        (
            "eth:ethertype:ipv6:udp:gtp:ipv6:udp",
            "0x00000031",
            "0xff",
            "5",
        ),
        ("eth:ethertype:ip:udp:gtp", "0x00000000", "0x02", ""),
        // The error indication names the unknown tunnel.
        ("eth:ethertype:ip:udp:gtp", "0x00000000", "0x1a", ""),
        ("eth:ethertype:ip:icmp:ip:udp", "", "", ""),
    ];
    for (line, (protocols, teid, message, qfi)) in lines.iter().zip(want) {
        let found = line[0].trim_end_matches(":data");
        assert!(found.starts_with(protocols), "{line:?}: {protocols}");
        assert_eq!((&line[1][..], &line[2][..]), (teid, message), "{line:?}");
        assert!(qfi.is_empty() || line[3] == qfi, "{line:?}");
    }
}

#[test]
fn each_frame_of_valid_and_broken_tunnels_is_counted() {
    let _turn = alone();
    let folder = scratch();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let whole = tunnelled(0x10, "10.45.0.2", 128);
    let mut frames = Vec::new();
    for cut in 14..whole.len() {
        frames.push(whole.clone());
        frames.push(whole[..cut].to_vec());
    }
    let mut with = |at: usize, value: u8| {
        let mut frame = whole.clone();
        frame[at] = value;
        frames.push(frame);
    };
    // The damaged frames have versions 0 and 2, GTP', lengths that are too short and too long, TEID 0, and an endless
    // extension header chain.
    with(42, 0x10);
    with(42, 0x50);
    with(42, 0x20);
    with(45, 1);
    with(44, 9);
    with(49, 0);
    with(42, 0x34);
    write_pcap(&folder.path().join("in.pcap"), &frames);
    let bearers = path("bearers.csv");
    std::fs::write(
        &bearers,
        "match,action,teid,remote\n0x10,relay,0x20,192.0.2.9\n",
    )
    .unwrap();
    let chain = path("chain.toml");
    let text = format!(
        "ports = [\"pcap:{}\", \"pcap:{},role=write\"]\n[[function]]\nname = \"gtpu\"\naddress = \"{OWN}\"\nload = \"{bearers}\"\n",
        path("in.pcap"),
        path("out.pcap")
    );
    std::fs::write(&chain, text).unwrap();
    let finished = run(&mut taut(&["forward", &chain, "--json", "--quiet"])).success();
    let summary = finished.last_json();
    let outcomes = summary["outcomes"].as_object().unwrap();
    let counted: u64 = outcomes
        .values()
        .filter_map(serde_json::Value::as_u64)
        .sum();
    assert_eq!(counted, frames.len() as u64, "{summary}");
    assert_eq!(outcomes["bad version"], 3, "{summary}");
    assert_eq!(outcomes["unknown TEID"], 1, "{summary}");
    let relayed = outcomes["relayed"].as_u64().unwrap();
    assert_eq!(summary["counters"]["tx_packets"].as_u64(), Some(relayed));
    // A length that is too short only truncates the user packet. The frame is relayed, as a relay does not parse user
    // packets.
    assert_eq!(relayed, (whole.len() - 14) as u64 + 1, "{summary}");
}

#[test]
fn bearers_change_while_packets_pass_and_none_is_lost() {
    const CHANGES: usize = 100_000;
    const AT_A_TIME: u32 = 500;
    let _turn = alone();
    let mut gateway = Gateway::start("bearers = 200000\n");
    gateway.add(&["0x10,relay,0x20,192.0.2.9"]);
    let control = gateway.control.clone();
    let changing = std::thread::spawn(move || {
        let mut stream = UnixStream::connect(&control).unwrap();
        let mut answers = BufReader::new(stream.try_clone().unwrap()).lines();
        let begun = Instant::now();
        let mut changed = 0;
        // The loop adds, changes and deletes other bearers, and changes the one that packets use.
        for round in 1.. {
            let matches: Vec<u32> = (0..AT_A_TIME).map(|i| 0x1000 + i * 77).collect();
            let bearer = |m: u32| {
                format!(r#"{{"match":"{m}","action":"relay","teid":{round},"remote":"192.0.2.8"}}"#)
            };
            let mut bearers: Vec<_> = matches.iter().map(|m| bearer(*m)).collect();
            bearers.push(format!(
                r#"{{"match":"16","action":"relay","teid":{round},"remote":"192.0.2.9"}}"#
            ));
            let add = format!(
                r#"{{"op":"add","replace":true,"bearers":[{}]}}"#,
                bearers.join(",")
            );
            let names: Vec<_> = matches.iter().map(|m| format!("\"{m}\"")).collect();
            let remove = format!(r#"{{"op":"remove","matches":[{}]}}"#, names.join(","));
            stream
                .write_all(format!("{add}\n{remove}\n").as_bytes())
                .unwrap();
            for _ in 0..2 {
                let answer = answers.next().unwrap().unwrap();
                assert!(answer.contains("\"ok\":true"), "{answer}");
            }
            changed += 2 * AT_A_TIME as usize + 1;
            if changed >= CHANGES {
                return (changed, begun.elapsed());
            }
        }
        unreachable!()
    });
    let frame = tunnelled(0x10, "10.45.0.2", 128);
    let (mut sent, mut received) = (0, 0);
    let mut identifiers = std::collections::BTreeSet::new();
    let mut out = Batch::new();
    let mut arrived = Batch::new();
    let deadline = Instant::now() + Duration::from_secs(100);
    while (!changing.is_finished() || received < sent) && Instant::now() < deadline {
        // No more packets are in flight than the rings hold, so missing ones at the end were lost in the gateway.
        if !changing.is_finished() && sent - received < 256 {
            gateway
                .between
                .resources
                .pool()
                .fill(&mut out, 32, frame.len() as u16);
            for packet in out.packets_mut() {
                packet.bytes_mut().copy_from_slice(&frame);
            }
            sent += out.len();
            while !out.is_empty() {
                gateway.between.ports[0].tx(&mut out);
            }
        }
        received += gateway.between.ports[1].rx(&mut arrived);
        for packet in arrived.packets() {
            identifiers.insert(Gtpu::new(&packet.bytes()[42..]).unwrap().teid());
        }
        arrived.clear();
    }
    let (changed, took) = changing.join().unwrap();
    println!("{changed} changes in {took:?} while {sent} packets passed");
    assert_eq!(received, sent);
    assert!(sent > 1000, "{sent}");
    assert!(identifiers.len() > 1, "changes were seen by packets");
    let summary = gateway.between.program.interrupt().success().last_json();
    assert_eq!(summary["dropped"], 0, "{summary}");
    assert_eq!(
        summary["outcomes"]["relayed"].as_u64(),
        Some(sent as u64),
        "{summary}"
    );
}

#[test]
fn wrong_bearers_cause_a_one_line_error() {
    let _turn = alone();
    let mut gateway = Gateway::start("bearers = 2\n");
    let folder = scratch();
    let file = folder.path().join("b.csv");
    let path = file.display().to_string();
    for (text, part) in [
        (
            "1,drop\n2,drop\n3,drop\n",
            "b.csv:3: the table is full: the maximum is 2",
        ),
        (
            "1,drop\n1,drop\n",
            "b.csv:2: match 0x1 has a bearer already",
        ),
        (
            "1,drop\n\n2,dorp\n",
            "b.csv:3: action \"dorp\": expected relay,",
        ),
        (
            "1,relay,2,192.0.2.9,,2001:db8::1\n",
            "b.csv:1: local 2001:db8::1",
        ),
        ("\u{fffd}\u{0}", "b.csv:1: action \"\""),
    ] {
        std::fs::write(&file, text).unwrap();
        let finished = gateway.bearer(&["load", &path]);
        assert_eq!(finished.code(), Some(2), "{finished:?}");
        assert!(finished.stderr.contains(part), "{finished:?}");
        assert_eq!(finished.stderr.lines().count(), 1, "{finished:?}");
        let list = gateway.bearer(&["list"]).success();
        assert_eq!(
            list.stdout.lines().count(),
            1,
            "nothing of it was loaded: {list:?}"
        );
    }
    for (arguments, part) in [
        (&["add", "1"][..], "\"1\": action \"\""),
        (&["remove", "7"], "match 0x7 has no bearer"),
        (&["remove", "x"], "match \"x\": expected a TEID"),
        (
            &["load", "/nonexistent.csv"],
            "/nonexistent.csv: No such file",
        ),
    ] {
        let finished = gateway.bearer(arguments);
        assert_eq!(finished.code(), Some(2), "{finished:?}");
        assert!(finished.stderr.contains(part), "{finished:?}");
    }
    let nobody = run(&mut taut(&[
        "bearer",
        "--control",
        "/nonexistent.sock",
        "list",
    ]));
    assert_eq!(nobody.code(), Some(3), "{nobody:?}");
    assert!(nobody.stderr.contains("start `taut forward`"), "{nobody:?}");
    assert!(gateway.between.program.is_running());
    gateway.between.program.signal(Signal::TERM);
}

/// Builds a session establishment request with an uplink tunnel that the gateway chooses.
fn establishment(sequence: u32) -> Vec<u8> {
    let choose = FTeid::Choose {
        v4: true,
        v6: false,
        id: Some(1),
    };
    drivers::establishment(sequence, choose, [10, 45, 0, 2])
}

#[test]
fn pfcp_creates_moves_and_deletes_a_session() {
    let _turn = alone();
    // The test uses a free port, as other programs may use the default one.
    let port = UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let settings =
        format!("pfcp = {{ address = \"127.0.0.1:{port}\", peers = [\"127.0.0.1\"] }}\n");
    let mut gateway = Gateway::start(&settings);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let mut exchanged = Vec::new();
    let mut ask = |request: Vec<u8>, cause: Option<Cause>| {
        socket.send_to(&request, ("127.0.0.1", port)).unwrap();
        let mut response = [0; 2048];
        let length = socket.recv(&mut response).unwrap();
        let response = response[..length].to_vec();
        exchanged.push(framed([127, 0, 0, 1], [127, 0, 0, 2], 8805, &request));
        exchanged.push(framed([127, 0, 0, 2], [127, 0, 0, 1], 8805, &response));
        if let Some(cause) = cause {
            let message = Message::parse(&response).unwrap();
            let mut causes = message
                .elements
                .flatten()
                .filter(|e| e.element_type == E::CAUSE);
            assert_eq!(causes.next().unwrap().value, [cause.0]);
        }
        response
    };
    let node: (E, &[u8]) = (E::NODE_ID, &[0, 127, 0, 0, 1]);
    let stamp: (E, &[u8]) = (E::RECOVERY_TIME_STAMP, &[0xe0, 0, 0, 1]);
    ask(establishment(1), Some(Cause::NO_ASSOCIATION));
    ask(
        simple(M::ASSOCIATION_SETUP_REQUEST, None, 2, &[node, stamp]),
        Some(Cause::ACCEPTED),
    );
    ask(simple(M::HEARTBEAT_REQUEST, None, 3, &[stamp]), None);
    ask(
        simple(M::ASSOCIATION_UPDATE_REQUEST, None, 4, &[node]),
        Some(Cause::ACCEPTED),
    );
    ask(
        simple(M::ASSOCIATION_SETUP_REQUEST, None, 5, &[stamp]),
        Some(Cause::MANDATORY_IE_MISSING),
    );
    ask(
        simple(M::PFD_MANAGEMENT_REQUEST, None, 6, &[]),
        Some(Cause::SERVICE_NOT_SUPPORTED),
    );
    ask(
        simple(M::SESSION_SET_DELETION_REQUEST, None, 7, &[node]),
        Some(Cause::SERVICE_NOT_SUPPORTED),
    );
    ask(vec![0x40, 1, 0, 4, 0, 0, 8, 0], None);
    let made = ask(establishment(9), Some(Cause::ACCEPTED));
    let made = Message::parse(&made).unwrap().elements.map(Result::unwrap);
    let (mut seid, mut teid) = (0, 0);
    for element in made {
        if element.element_type == E::F_SEID {
            seid = Seid::parse(element.value).unwrap().seid;
        } else if element.element_type == E::CREATED_PDR {
            let end = element
                .group()
                .map(Result::unwrap)
                .find(|e| e.element_type == E::F_TEID);
            match FTeid::parse(end.unwrap().value).unwrap() {
                FTeid::Chosen { teid: chosen, .. } => teid = chosen,
                FTeid::Choose { .. } => panic!("not chosen"),
            }
        }
    }
    assert!(seid != 0 && teid != 0);
    // The chosen tunnel works uplink; downlink does not work yet.
    gateway.send(0, &[tunnelled(teid, "10.45.0.2", 128)]);
    let up = gateway.receive(1, 1);
    let user = flow("198.19.0.1", "10.45.0.2").frame(100).unwrap();
    gateway.send(1, std::slice::from_ref(&user));
    let deadline = Instant::now() + Duration::from_secs(20);
    while !gateway
        .bearer(&["status"])
        .success()
        .stdout
        .contains("packets held 1")
    {
        assert!(Instant::now() < deadline, "never seen");
    }
    // The user attaches to a base station, and then moves to another one.
    ask(moved(10, seid, 0x20, [192, 0, 2, 7]), Some(Cause::ACCEPTED));
    gateway.send(1, std::slice::from_ref(&user));
    // The buffered packet and this one arrive.
    let mut down = gateway.receive(0, 2);
    ask(moved(11, seid, 0x30, [192, 0, 2, 8]), Some(Cause::ACCEPTED));
    gateway.send(1, std::slice::from_ref(&user));
    down.extend(gateway.receive(0, 2));
    let ended = down.iter().filter(|f| {
        let ethernet = Ethernet::new(&f[..]).unwrap();
        let ip = Ipv4::new(ethernet.payload()).unwrap();
        let udp = Udp::new(ip.payload()).unwrap();
        let gtpu = Gtpu::new(udp.payload()).unwrap();
        (
            gtpu.message_type().0,
            gtpu.teid(),
            ip.destination().octets(),
        ) == (254, 0x20, [192, 0, 2, 7])
    });
    assert_eq!(ended.count(), 1);
    ask(
        simple(M::SESSION_DELETION_REQUEST, Some(seid), 12, &[]),
        Some(Cause::ACCEPTED),
    );
    ask(
        simple(M::SESSION_DELETION_REQUEST, Some(seid), 13, &[]),
        Some(Cause::SESSION_NOT_FOUND),
    );
    ask(
        moved(14, seid, 0x30, [192, 0, 2, 8]),
        Some(Cause::SESSION_NOT_FOUND),
    );
    ask(
        simple(M::ASSOCIATION_RELEASE_REQUEST, None, 15, &[node]),
        Some(Cause::ACCEPTED),
    );
    let list = gateway.bearer(&["list"]).success();
    assert_eq!(list.stdout.lines().count(), 1, "{list:?}");
    let summary = gateway.between.program.interrupt().success().last_json();
    assert_eq!(summary["outcomes"]["encapsulated"], 3, "{summary}");
    assert_eq!(summary["outcomes"]["dropped from buffer"], 0, "{summary}");
    let Some(lines) = decoded(&exchanged, &["frame.protocols", "pfcp.msg_type"]) else {
        return;
    };
    for line in &lines {
        assert_eq!(line[0], "eth:ethertype:ip:udp:pfcp", "{line:?}");
    }
    decoded(&[up, down].concat(), &["gtp.teid"]);
}

#[test]
fn a_control_plane_gets_buffering_and_usage_reports() {
    let _turn = alone();
    let free = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let patience = Some(Duration::from_secs(20));
    socket.set_read_timeout(patience).unwrap();
    let peer = socket.local_addr().unwrap();
    let settings = format!(
        "pfcp = {{ address = \"127.0.0.1:{port}\", peers = [\"{peer}\"], heartbeat = \"none\" }}\n"
    );
    let mut gateway = Gateway::start(&settings);
    let mut heard = Vec::new();
    let mut next = |kind: M| {
        let mut bytes = [0; 2048];
        let length = socket.recv(&mut bytes).unwrap();
        let message = Message::parse(&bytes[..length]).unwrap();
        assert_eq!(message.message_type, kind);
        heard.push(framed(
            [127, 0, 0, 2],
            [127, 0, 0, 1],
            8805,
            &bytes[..length],
        ));
        if kind == M::SESSION_REPORT_REQUEST {
            let cause: (E, &[u8]) = (E::CAUSE, &[1]);
            let answer = simple(kind.response(), Some(1), message.sequence, &[cause]);
            socket.send_to(&answer, ("127.0.0.1", port)).unwrap();
        }
        bytes[..length].to_vec()
    };
    let mut ask = |kind: M, request: Vec<u8>| {
        socket.send_to(&request, ("127.0.0.1", port)).unwrap();
        next(kind.response())
    };
    let node: (E, &[u8]) = (E::NODE_ID, &[0, 127, 0, 0, 1]);
    let stamp: (E, &[u8]) = (E::RECOVERY_TIME_STAMP, &[0xe0, 0, 0, 1]);
    let kind = M::ASSOCIATION_SETUP_REQUEST;
    ask(kind, simple(kind, None, 1, &[node, stamp]));
    let made = ask(M::SESSION_ESTABLISHMENT_REQUEST, establishment(2));
    let mut made = Message::parse(&made).unwrap().elements.map(Result::unwrap);
    let seid = made.find(|it| it.element_type == E::F_SEID).unwrap();
    let seid = Seid::parse(seid.value).unwrap().seid;
    // Downlink packets are buffered and reported, and a usage rule reports all packets from the first byte on.
    let kind = M::SESSION_MODIFICATION_REQUEST;
    let mut message = Writer::message(kind, Some(seid), 3);
    let far = group(&[(E::FAR_ID, &[0, 0, 0, 2]), (E::APPLY_ACTION, &[0x0c])]);
    message.grouped(E::UPDATE_FAR, &far);
    let urr = group(&[
        (E::URR_ID, &[0, 0, 0, 1]),
        (E::MEASUREMENT_METHOD, &[3]),
        (E::REPORTING_TRIGGERS, &[2, 0, 0]),
        (E::VOLUME_THRESHOLD, &[1, 0, 0, 0, 0, 0, 0, 0, 1]),
    ]);
    message.grouped(E::CREATE_URR, &urr);
    let pdr = group(&[(E::PDR_ID, &[0, 2]), (E::URR_ID, &[0, 0, 0, 1])]);
    message.grouped(E::UPDATE_PDR, &pdr);
    ask(kind, message.finish().unwrap());
    let user = flow("198.19.0.1", "10.45.0.2").frame(100).unwrap();
    gateway.send(1, std::slice::from_ref(&user));
    next(M::SESSION_REPORT_REQUEST);
    let mut ask = |kind: M, request: Vec<u8>| {
        socket.send_to(&request, ("127.0.0.1", port)).unwrap();
        next(kind.response())
    };
    ask(kind, moved(4, seid, 0x20, [192, 0, 2, 7]));
    let down = gateway.receive(0, 1);
    assert_eq!(Gtpu::new(&down[0][42..]).unwrap().teid(), 0x20);
    next(M::SESSION_REPORT_REQUEST);
    let kind = M::SESSION_DELETION_REQUEST;
    socket
        .send_to(&simple(kind, Some(seid), 5, &[]), ("127.0.0.1", port))
        .unwrap();
    next(kind.response());
    gateway.between.program.signal(Signal::TERM);
    let fields = ["pfcp.msg_type", "pfcp.urr_id"];
    let Some(lines) = decoded(&heard, &fields) else {
        return;
    };
    let kinds: Vec<_> = lines.iter().map(|line| &line[0][..]).collect();
    assert_eq!(kinds, ["6", "51", "53", "56", "53", "56", "55"]);
    assert_eq!(
        (&lines[5][1][..], &lines[6][1][..]),
        ("1", "1"),
        "{lines:?}"
    );
}

#[test]
fn an_idle_control_plane_gets_heartbeats_then_loses_its_sessions() {
    let _turn = alone();
    let free = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let patience = Some(Duration::from_secs(20));
    socket.set_read_timeout(patience).unwrap();
    let peer = socket.local_addr().unwrap();
    let settings = format!(
        "pfcp = {{ address = \"127.0.0.1:{port}\", peers = [\"{peer}\"], heartbeat = \"300ms\", response_time = \"200ms\", \
         repeats = 1, silence = \"3s\" }}\n"
    );
    let gateway = Gateway::start(&settings);
    // Returns the next message of a type, and skips heartbeats.
    let next = |kind: M| {
        let mut bytes = [0; 2048];
        loop {
            let length = socket.recv(&mut bytes).unwrap();
            let message = Message::parse(&bytes[..length]).unwrap();
            if message.message_type == kind {
                return message.sequence;
            }
        }
    };
    let ask = |kind: M, request: Vec<u8>| {
        socket.send_to(&request, ("127.0.0.1", port)).unwrap();
        next(kind.response());
    };
    let node: (E, &[u8]) = (E::NODE_ID, &[0, 127, 0, 0, 1]);
    let stamp: (E, &[u8]) = (E::RECOVERY_TIME_STAMP, &[0xe0, 0, 0, 1]);
    let kind = M::ASSOCIATION_SETUP_REQUEST;
    ask(kind, simple(kind, None, 1, &[node, stamp]));
    ask(M::SESSION_ESTABLISHMENT_REQUEST, establishment(2));
    let status = gateway.bearer(&["status"]).success();
    assert!(status.stdout.contains("PFCP\n  sessions 1\n"), "{status:?}");
    // The test answers two heartbeats. The gateway repeats the third one, as it gets no response.
    for _ in 0..2 {
        let sequence = next(M::HEARTBEAT_REQUEST);
        let answer = simple(M::HEARTBEAT_RESPONSE, None, sequence, &[stamp]);
        socket.send_to(&answer, ("127.0.0.1", port)).unwrap();
    }
    let sequences = [next(M::HEARTBEAT_REQUEST), next(M::HEARTBEAT_REQUEST)];
    assert_eq!(sequences[0], sequences[1]);
    let deadline = Instant::now() + Duration::from_secs(20);
    let status = loop {
        let status = gateway.bearer(&["status"]).success().stdout;
        if status.contains("peers silent 1") {
            break status;
        }
        assert!(Instant::now() < deadline, "{status}");
    };
    assert!(status.starts_with("0 bearers"), "{status}");
    assert!(status.contains("heartbeats unanswered"), "{status}");
    gateway.between.program.signal(Signal::TERM);
}

/// Open vSwitch in a namespace, with its files in a folder; it ends when the test ends.
struct Switch {
    _daemons: Vec<Program>,
    folder: tempfile::TempDir,
}

impl Switch {
    fn start(namespace: &str) -> Self {
        let folder = scratch();
        let file = |name: &str| folder.path().join(name).display().to_string();
        let schema = "/usr/share/openvswitch/vswitch.ovsschema";
        run(Command::new("ovsdb-tool").args(["create", &file("ovs.db"), schema])).success();
        let remote = format!("--remote=punix:{}", file("db.sock"));
        let control = format!("--unixctl={}", file("ovsdb.ctl"));
        let mut server = Command::new("ovsdb-server");
        server.args([&file("ovs.db"), &remote, &control, "--verbose=syslog:off"]);
        let server = Program::start(&mut server);
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_listened_on(&folder.path().join("db.sock")) {
            assert!(Instant::now() < deadline, "{}", server.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
        let db = format!("unix:{}", file("db.sock"));
        let control = format!("--unixctl={}", file("switch.ctl"));
        let mut daemon = in_namespace(namespace, "env");
        daemon.args([
            &format!("OVS_RUNDIR={}", folder.path().display()),
            "ovs-vswitchd",
            &db,
            &control,
            "--verbose=syslog:off",
        ]);
        let mut switch = Self {
            _daemons: vec![server],
            folder,
        };
        switch.set("--no-wait init");
        let daemon = Program::start(&mut daemon);
        // The daemon is stopped before its database, because the vector is dropped in order.
        switch._daemons.insert(0, daemon);
        switch
    }

    fn set(&self, line: &str) {
        let db = format!("--db=unix:{}", self.folder.path().join("db.sock").display());
        let words = ["--timeout=20", &db]
            .into_iter()
            .chain(line.split_whitespace());
        run(Command::new("ovs-vsctl").args(words)).success();
    }

    fn flow(&self, bridge: &str, flow: &str) {
        let socket = self.folder.path().join(format!("{bridge}.mgmt"));
        let socket = format!("unix:{}", socket.display());
        run(Command::new("ovs-ofctl").args(["add-flow", &socket, flow])).success();
    }

    fn tell(&self, line: &str) -> String {
        let target = self.folder.path().join("switch.ctl").display().to_string();
        let words = ["-t", &target].into_iter().chain(line.split_whitespace());
        run(Command::new("ovs-appctl").args(words)).success().stdout
    }
}

#[test]
fn the_gateway_exchanges_tunnelled_packets_with_open_vswitch() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    if !is_installed("ovs-vswitchd") || !is_installed("sockperf") {
        println!(
            "skipped: needs ovs-vswitchd and sockperf (packages openvswitch-switch, sockperf)"
        );
        return;
    }
    let testbed = Testbed::builder().build().unwrap();
    let radio = testbed.generator_namespace();
    // The network behind the gateway is a host of its own.
    let network = Namespace(format!("{radio}-net"));
    ip(&format!("netns add {}", network.0));
    ip(&format!("-n {radio} link set gen1 netns {}", network.0));
    let network_mac = "02:00:00:00:46:01";
    ip(&format!(
        "-n {} link set gen1 address {network_mac} arp on up",
        network.0
    ));
    ip(&format!("-n {} addr add 10.46.0.1/24 dev gen1", network.0));
    let gateway_mac = "02:00:00:00:99:01";
    ip(&format!("-n {} route add 10.45.0.0/24 dev gen1", network.0));
    ip(&format!(
        "-n {} neigh add 10.45.0.2 lladdr {gateway_mac} dev gen1",
        network.0
    ));

    // The switch has the addresses of the base station and of the user behind it.
    let switch = Switch::start(radio);
    let (radio_mac, user_mac) = ("02:00:00:00:02:07", "02:00:00:00:45:02");
    switch.set("add-br phy -- set Bridge phy datapath_type=netdev fail_mode=standalone other_config:hwaddr=02:00:00:00:02:07");
    switch.set("add-port phy gen0");
    switch.set("add-br radio -- set Bridge radio datapath_type=netdev fail_mode=secure");
    switch.set("add-port radio user0 -- set Interface user0 type=internal ofport_request=1 mac=\"02:00:00:00:45:02\"");
    switch.set("add-port radio tunnel -- set Interface tunnel type=gtpu options:remote_ip=192.0.2.1 options:key=flow ofport_request=2");
    ip(&format!("-n {radio} link set gen0 up"));
    ip(&format!("-n {radio} addr add {PEER}/24 dev phy"));
    ip(&format!("-n {radio} link set phy up"));
    ip(&format!("-n {radio} link set user0 mtu 1400 up"));
    ip(&format!("-n {radio} addr add 10.45.0.2/24 dev user0"));
    ip(&format!("-n {radio} route add 10.46.0.0/24 dev user0"));
    ip(&format!(
        "-n {radio} neigh add 10.46.0.1 lladdr {gateway_mac} dev user0"
    ));
    switch.tell(&format!("tnl/neigh/set phy {OWN} {gateway_mac}"));
    switch.flow(
        "radio",
        "in_port=1,ip,actions=set_field:0x10->tun_id,output:2",
    );
    switch.flow(
        "radio",
        &format!("in_port=2,tun_id=0x20,actions=set_field:{user_mac}->eth_dst,output:1"),
    );

    let folder = scratch();
    let chain = folder.path().join("gateway.toml");
    let text = format!(
        "ports = [\"af_packet:dut0\", \"af_packet:dut1\"]\nwait = \"sleep(50us)\"\n[[function]]\nname = \"gtpu\"\naddress = \"{OWN}\"\nload = \"{}\"\n\
         [[function]]\nname = \"mac-rewrite\"\nsource = \"{gateway_mac}\"\ndestination = [\"{radio_mac}\", \"{network_mac}\"]\n",
        folder.path().join("bearers.csv").display()
    );
    std::fs::write(&chain, text).unwrap();
    let bearers = format!("0x10,decapsulate\n10.45.0.2,encapsulate,0x20,{PEER}\n");
    std::fs::write(folder.path().join("bearers.csv"), bearers).unwrap();
    let mut command = testbed.command_in_device(env!("CARGO_BIN_EXE_taut"));
    command.args(["forward", "--json", "--quiet"]).arg(&chain);
    let mut forward = Program::start(&mut command);
    forward.wait_until("both links up", |_, stderr| {
        stderr.matches(": up").count() >= 2
    });

    // UDP, and TCP with correct handshake, checksums and windows.
    for transport in [&[][..], &["--tcp"]] {
        let server_at = ["-i", "10.46.0.1", "-p", "11111"];
        let mut command = in_namespace(&network.0, "sockperf");
        let mut server = Program::start(command.arg("server").args(server_at).args(transport));
        server.wait_for_stdout("[tid");
        let mut command = in_namespace(radio, "sockperf");
        command.args(["ping-pong", "-t", "1"]).args(server_at);
        let finished = run(command.args(transport));
        let text = finished.stdout.clone() + &finished.stderr;
        assert!(
            finished.code() == Some(0) && text.contains("Summary: Latency is"),
            "{text}\n{}\n{}\n{}",
            switch.tell("dpctl/dump-flows netdev@ovs-netdev"),
            switch.tell("ovs/route/show"),
            forward.interrupt().stdout,
        );
    }
    let summary = forward.interrupt().success().last_json();
    for outcome in ["encapsulated", "decapsulated"] {
        assert!(
            summary["outcomes"][outcome].as_u64().unwrap() >= 18,
            "{summary}"
        );
    }
}

#[test]
fn linux_resolves_the_gateway_and_gets_echo_responses() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let testbed = Testbed::builder().build().unwrap();
    let radio = testbed.generator_namespace();
    let mut sysctl = in_namespace(radio, "sysctl");
    run(sysctl.args(["-qw", "net.ipv6.conf.gen0.disable_ipv6=0"])).success();
    ip(&format!("-n {radio} link set gen0 arp on up"));
    ip(&format!("-n {radio} addr add {PEER}/24 dev gen0"));
    ip(&format!(
        "-n {radio} addr add 2001:db8::7/64 dev gen0 nodad"
    ));

    let folder = scratch();
    let chain = folder.path().join("gateway.toml");
    let gateway_mac = "02:00:00:00:99:01";
    let text = format!(
        "ports = [\"af_packet:dut0\", \"af_packet:dut1\"]\n[[function]]\nname = \"gtpu\"\n\
         address = [\"{OWN}\", \"2001:db8::1\"]\nmac = [\"{gateway_mac}\", \"02:00:00:00:99:02\"]\n"
    );
    std::fs::write(&chain, text).unwrap();
    let mut command = testbed.command_in_device(env!("CARGO_BIN_EXE_taut"));
    command.args(["forward", "--json", "--quiet"]).arg(&chain);
    let mut forward = Program::start(&mut command);
    forward.wait_until("both links up", |_, stderr| {
        stderr.matches(": up").count() >= 2
    });

    for (from, to) in [(PEER, OWN), ("2001:db8::7", "2001:db8::1")] {
        let answered = gateway_answers_echo(&testbed, address(from), address(to));
        let mut shown = Command::new("ip");
        let shown = run(shown.args(["-n", radio, "neigh", "show", "to", to])).success();
        assert!(answered, "{to}: {shown:?} {}", forward.interrupt().stdout);
        assert!(shown.stdout.contains(gateway_mac), "{shown:?}");
    }
    let summary = forward.interrupt().success().last_json();
    for outcome in ["neighbour answered", "echo answered"] {
        assert!(
            summary["outcomes"][outcome].as_u64().unwrap() >= 2,
            "{summary}"
        );
    }
}
