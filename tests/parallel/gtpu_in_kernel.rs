//! The mobile gateway in the kernel. Its XDP programs handle and count every frame as the function does in user space,
//! and hold a million bearers. PFCP adds and deletes sessions, and the kernel of a host finds the gateway by ARP.

#[path = "../../crates/gateway/src/scapy.rs"]
mod scapy;

use crate::support::hosts::{gateway_answers_echo, in_namespace, ip};
use crate::support::in_kernel::{InKernel, backlog_drops};
use crate::support::program::{Finished, run};
use crate::support::undisturbed::{Complaint, undisturbed};
use crate::support::{alone_and_root, scratch, taut};
use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use taut_function::{Context, Function, Handler, Punted};
use taut_port::{Batch, PoolHandle};
use taut_wire::arp::Operation;
use taut_wire::gtpu::{ErrorIndication, Extensions, MessageType, emit_echo_request};
use taut_wire::pfcp::{
    Cause, ElementType as E, FTeid, Mbr, Message, MessageType as PfcpMessageType, Seid, Writer,
};
use taut_wire::resolution::{LONGEST_BYTES, arp_frame, neighbour_frame};
use taut_wire::{
    ArpRepr, EtherType, Ethernet, EthernetRepr, Gtpu, GtpuRepr, IpProtocol, Ipv4, Ipv4Repr, Mac,
    NeighbourRepr, Protocol, Tunnel, UdpFlow, UdpRepr, Vlan,
};

const OWN4: &str = "192.0.2.1";
const OWN6: &str = "2001:db8::1";
const BEARERS: &str = "0x10,relay,0xdeadbeef,192.0.2.9
0x11,decapsulate
0x12,drop
0x13,hold
0x16,block
0x14,relay,0x20,2001:db8::9
0x15,relay,0x21,192.0.2.9,,198.51.100.1
10.45.0.2,encapsulate,0x30,192.0.2.9,9
10.45.0.3,hold
10.45.0.6,block
10.45.0.4,encapsulate,0x31,2001:db8::9
10.45.0.5,encapsulate,0x32,192.0.2.8
2001:db8:45::,encapsulate,0x33,192.0.2.9
";

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// `taut forward` in the kernel with a gateway, and its control socket.
struct Gateway {
    kernel: InKernel,
    control: PathBuf,
}

impl Gateway {
    fn start(redirects: bool, settings: &str, bearers: &str, behind: &str) -> Self {
        let folder = scratch();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("bearers.csv"), bearers).unwrap();
        let functions = format!(
            "[[function]]\nname = \"gtpu\"\n{}{settings}control = \"{}\"\nload = \"{}\"\n{behind}",
            own(),
            path("control").display(),
            path("bearers.csv").display()
        );
        Self {
            control: path("control"),
            kernel: InKernel::start(redirects, &functions, folder),
        }
    }

    fn bearer(&self, arguments: &[&str]) -> Finished {
        let control = self.control.display().to_string();
        run(&mut taut(
            &[&["bearer", "--control", &control], arguments].concat(),
        ))
    }

    /// Waits until the gateway has counted `count` packets under `outcome`.
    #[track_caller]
    fn until_counted(&self, outcome: &str, count: u64) {
        let line = format!("  {outcome} {count}\n");
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let status = self.bearer(&["status"]).success();
            if status.stdout.contains(&line) {
                return;
            }
            assert!(Instant::now() < deadline, "no {line:?} in {status:?}");
        }
    }
}

/// The gateway function in the process of the test, called as a worker in user space calls it.
struct InProcess {
    function: Box<dyn Function>,
    slow: Box<dyn Handler>,
    pool: PoolHandle,
    _folder: tempfile::TempDir,
}

impl InProcess {
    fn start(settings: &str, bearers: &str) -> Self {
        let folder = scratch();
        let file = folder.path().join("bearers.csv");
        std::fs::write(&file, bearers).unwrap();
        let table = format!("{}{settings}load = \"{}\"\n", own(), file.display());
        let mut function = taut_functions::build("gtpu", table.parse().unwrap()).unwrap();
        function.prepare().unwrap();
        Self {
            slow: function.handler().unwrap(),
            function,
            pool: PoolHandle::new(512, false).unwrap(),
            _folder: folder,
        }
    }

    fn pass(&mut self, frames: &[Vec<u8>], from: usize) -> [Vec<Vec<u8>>; 2] {
        let mut out = [Vec::new(), Vec::new()];
        let mut batch = Batch::new();
        for frame in frames {
            let mut packet = self.pool.take(frame.len() as u16).unwrap();
            packet.bytes_mut().copy_from_slice(frame);
            batch.push(packet);
        }
        let to_port = 1 - from;
        let context = Context {
            from_port: from,
            to_port,
            ..Context::default()
        };
        self.function.process(&mut batch, &context);
        let mut punted = Batch::new();
        batch.settle(&mut punted);
        out[to_port].extend(batch.packets().iter().map(|p| p.bytes().to_vec()));
        for (index, packet) in punted.packets().iter().enumerate() {
            let punted = Punted {
                frame: packet.bytes(),
                from_port: from,
                cause: punted.cause(index),
            };
            self.slow.handle(&punted, &mut |way, frame| {
                out[way.to_port].push(frame.to_vec());
                true
            });
        }
        out
    }
}

fn own() -> String {
    format!("address = [\"{OWN4}\", \"{OWN6}\"]\n")
}

fn plain(source: &str, destination: &str, len: usize) -> Vec<u8> {
    let flow = UdpFlow {
        src_ip: address(source),
        dst_ip: address(destination),
        ..UdpFlow::default()
    };
    flow.frame(len + 4).unwrap()
}

fn tunnelled(outer_v4: bool, inner_v4: bool, teid: u32, len: usize) -> Vec<u8> {
    let tunnel = Tunnel {
        teid,
        src_ip: address(if outer_v4 { "192.0.2.7" } else { "2001:db8::7" }),
        dst_ip: address(if outer_v4 { OWN4 } else { OWN6 }),
    };
    let (src_ip, dst_ip) = if inner_v4 {
        (address("10.45.0.2"), address("198.19.0.1"))
    } else {
        (address("2001:db8:45::2"), address("2001:db8:99::1"))
    };
    let inner = UdpFlow {
        src_ip,
        dst_ip,
        ..UdpFlow::default()
    };
    inner
        .frame_as(Protocol::Udp, Some(&tunnel), len + 4)
        .unwrap()
}

/// Builds a packet in a tunnel that ends at the gateway; `destination` is that of the user packet.
fn from_user_to(destination: &str) -> Vec<u8> {
    let tunnel = Tunnel {
        teid: 0x11,
        src_ip: address("192.0.2.7"),
        dst_ip: address(OWN4),
    };
    let user = match address(destination) {
        IpAddr::V4(_) => "10.45.0.2",
        IpAddr::V6(_) => "2001:db8:45::2",
    };
    let inner = UdpFlow {
        src_ip: address(user),
        dst_ip: address(destination),
        ..UdpFlow::default()
    };
    inner.frame_as(Protocol::Udp, Some(&tunnel), 154).unwrap()
}

/// Builds a GTP-U message over IPv4 to the gateway.
fn message(bytes: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 42 + bytes.len()];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    let ip = Ipv4Repr {
        traffic_class: 0x28,
        identification: 7,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset_bytes: 0,
        ttl: 64,
        protocol: IpProtocol::UDP,
        source: [192, 0, 2, 7].into(),
        destination: [192, 0, 2, 1].into(),
        options: &[],
        payload_len_bytes: 8 + bytes.len(),
    };
    let mut ip = ip.emit(&mut frame[14..]).unwrap();
    let udp = UdpRepr {
        source_port: 2152,
        destination_port: 2152,
        payload_len_bytes: bytes.len(),
    };
    let mut udp = udp.emit(ip.payload_mut()).unwrap();
    udp.payload_mut().copy_from_slice(bytes);
    frame
}

/// Builds a GTP-U user packet or end marker with a sequence number and `extensions` extension headers of one kind.
fn extended(message_type: MessageType, teid: u32, kind: u8, extensions: usize) -> Vec<u8> {
    let user = plain("198.19.0.1", "10.45.0.9", 60)[14..].to_vec();
    let mut chain = Vec::new();
    for number in 1..=extensions {
        chain.extend([1, 0x10, 9, if number == extensions { 0 } else { kind }]);
    }
    let repr = GtpuRepr {
        message_type,
        teid,
        sequence: Some(77),
        n_pdu: None,
        extensions: (extensions > 0).then_some(Extensions {
            first: kind,
            bytes: &chain,
        }),
        payload_len_bytes: user.len(),
    };
    let mut bytes = vec![0; repr.header_len_bytes() + user.len()];
    let mut gtpu = repr.emit(&mut bytes).unwrap();
    gtpu.payload_mut().copy_from_slice(&user);
    message(&bytes)
}

/// Adds a correct outer UDP checksum to a tunnelled frame.
fn with_checksum(mut frame: Vec<u8>) -> Vec<u8> {
    let mut ethernet = Ethernet::new(&mut frame[..]).unwrap();
    let mut ip = Ipv4::new(ethernet.payload_mut()).unwrap();
    let pseudo = ip.pseudo_header(ip.payload().len() as u16);
    let mut udp = taut_wire::Udp::new(ip.payload_mut()).unwrap();
    udp.fill_checksum(pseudo);
    frame
}

/// Sets a byte of a frame's outer IPv4 header, and corrects the header's checksum.
fn in_header(mut frame: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    frame[14 + at] = byte;
    let mut ethernet = Ethernet::new(&mut frame[..]).unwrap();
    Ipv4::new(ethernet.payload_mut()).unwrap().fill_checksum();
    frame
}

/// Builds an ARP request for an IP address.
fn question(asked: &str) -> Vec<u8> {
    let mac = Mac([2, 0, 0, 0, 0, 7]);
    let mut header = EthernetRepr {
        destination: Mac::BROADCAST,
        source: mac,
        vlan: Vlan::Untagged,
        ethertype: EtherType::ARP,
    };
    let mut frame = [0; LONGEST_BYTES];
    let length = match address(asked) {
        IpAddr::V4(target_ip) => {
            let question = ArpRepr {
                operation: Operation::REQUEST,
                sender_mac: mac,
                sender_ip: [192, 0, 2, 7].into(),
                target_mac: Mac::default(),
                target_ip,
            };
            arp_frame(&header, &question, &mut frame)
        }
        IpAddr::V6(target) => {
            header.ethertype = EtherType::IPV6;
            let ends = (
                "2001:db8::7".parse().unwrap(),
                "ff02::1:ff00:1".parse().unwrap(),
            );
            let question = NeighbourRepr::Solicitation { target, mac };
            neighbour_frame(&header, ends, &question, &mut frame)
        }
    };
    frame[..length.unwrap()].to_vec()
}

/// Returns frames of every kind that a gateway distinguishes: valid frames, and a frame for each error.
fn frames() -> Vec<Vec<u8>> {
    let mut whole = Vec::new();
    for teid in [0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16] {
        for (outer_v4, inner_v4) in [(true, true), (true, false), (false, true), (false, false)] {
            whole.push(tunnelled(outer_v4, inner_v4, teid, 150));
        }
        whole.push(with_checksum(tunnelled(true, true, teid, 151)));
    }
    for user in [
        "10.45.0.2",
        "10.45.0.3",
        "10.45.0.4",
        "10.45.0.5",
        "10.45.0.6",
        "10.45.0.99",
    ] {
        whole.push(plain("198.19.0.1", user, 80));
        whole.push(plain("198.19.0.1", user, 1514));
    }
    for closed in [OWN4, OWN6, "127.0.0.1", "2001:db8::2"] {
        whole.push(from_user_to(closed));
    }
    whole.push(plain("2001:db8:99::1", "2001:db8:45::7", 90));
    whole.push(plain("2001:db8:99::1", "2001:db8:46::7", 90));
    for kind in [0x85, 0x80, 0xc0, 0xc1, 0x20] {
        for (teid, extensions) in [(0x10, 1), (0x10, 6), (0x11, 1), (0x11, 2), (0x11, 5)] {
            whole.push(extended(MessageType::G_PDU, teid, kind, extensions));
        }
    }
    for teid in [0x10, 0x11, 0x77] {
        whole.push(extended(MessageType::END_MARKER, teid, 0, 0));
    }
    whole.push(tunnelled(true, true, 0x77, 100));
    whole.push(tunnelled(true, true, 0, 100));
    let mut bytes = [0; 64];
    let length = emit_echo_request(7, &mut bytes).unwrap();
    whole.push(message(&bytes[..length]));
    let indication = ErrorIndication {
        teid: 5,
        peer: address(OWN4),
    };
    let length = indication.emit(&mut bytes).unwrap();
    whole.push(message(&bytes[..length]));
    for kind in [2, 31] {
        whole.push(message(&[0x32, kind, 0, 4, 0, 0, 0, 0, 0, 1, 0, 0]));
    }
    for version in [0x10, 0x50, 0x20, 0xf0] {
        whole.push(message(&[version, 255, 0, 0, 0, 0, 0, 0x10]));
    }
    let relayed = || tunnelled(true, true, 0x10, 120);
    // The cases are TTLs, fragments, another protocol, padding, tags, ARP.
    whole.extend([0, 1, 2].map(|hops| in_header(relayed(), 8, hops)));
    whole.push(in_header(relayed(), 6, 0x20));
    whole.push(in_header(relayed(), 9, 6));
    for frame in [
        relayed(),
        tunnelled(true, true, 0x11, 120),
        plain("198.19.0.1", "10.45.0.2", 80),
    ] {
        whole.push([&frame[..], &[0xee; 9]].concat());
        whole.push([&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat());
        whole.push(
            [
                &frame[..12],
                &[0x88, 0xa8, 0, 6, 0x81, 0, 0, 5],
                &frame[12..],
            ]
            .concat(),
        );
    }
    whole.push([&relayed()[..12], &[8, 6], &[0; 40][..]].concat());
    for asked in [OWN4, OWN6, "192.0.2.200", "2001:db8::200"] {
        let question = question(asked);
        whole.push([&question[..12], &[0x81, 0, 0, 5], &question[12..]].concat());
        whole.push(question);
    }
    let mut all = whole.clone();
    let cut = [
        relayed(),
        tunnelled(false, true, 0x11, 150),
        extended(MessageType::G_PDU, 0x11, 0x85, 2),
        plain("2001:db8:99::1", "2001:db8:45::7", 90),
    ];
    for frame in &cut {
        // Packet sockets do not send shorter frames.
        all.extend((15..frame.len()).map(|len| frame[..len].to_vec()));
    }
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..4000 {
        let mut frame = whole[random.usize(..whole.len())].clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(12..frame.len().min(90));
            frame[at] = random.u8(..);
        }
        all.push(frame);
    }
    all
}

fn sorted(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    frames.sort();
    frames
}

#[test]
fn xdp_and_user_space_gateways_give_frames_the_same_outcomes() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    // Each gateway has a free port, and addresses that users must not reach.
    let answers = "mac = [\"02:00:00:00:00:a0\", \"02:00:00:00:00:a1\"]\n\
        pfcp = { address = \"127.0.0.1:0\", node_id = \"2001:db8::2\", peers = [\"127.0.0.1\"] }\n";
    for (redirects, settings) in [
        (true, ""),
        (false, "others = \"forward\"\ntunnels = [0]\n"),
        (true, answers),
    ] {
        undisturbed(|| {
            let dropped = backlog_drops();
            let mut wanted = InProcess::start(settings, BEARERS);
            let mut gateway = Gateway::start(redirects, settings, BEARERS, "");
            // A chunk has no more frames than replies fit into the ring.
            for (number, chunk) in frames().chunks(48).enumerate() {
                let from = number % 2;
                // After this pause, both gateways may send ICMP errors again: their limit is one each millisecond.
                std::thread::sleep(Duration::from_millis(20));
                let want = wanted.pass(chunk, from);
                let got = gateway
                    .kernel
                    .pass(chunk, from, [want[0].len(), want[1].len()]);
                let came = [0, 1].map(|port: usize| got[port].len());
                let sent = [0, 1].map(|port: usize| want[port].len());
                if came != sent && backlog_drops() > dropped {
                    return Err(Complaint::spoilt(format!(
                        "the kernel's backlog was full in chunk {number}: {came:?} of {sent:?}"
                    )));
                }
                for (port, (want, got)) in want.into_iter().zip(got).enumerate() {
                    assert_eq!(sorted(got), sorted(want), "chunk {number}, port {port}");
                }
            }
            let summary = gateway.kernel.program.interrupt().success().last_json();
            let outcomes = summary["outcomes"].as_object().unwrap();
            for (outcome, count) in wanted.function.outcomes() {
                assert_eq!(
                    outcomes[outcome].as_u64(),
                    Some(count),
                    "{outcome}: {summary}"
                );
            }
            let counted: u64 = outcomes
                .values()
                .filter_map(serde_json::Value::as_u64)
                .sum();
            let counters = &summary["counters"];
            assert_eq!(counters["rx_packets"].as_u64(), Some(counted), "{summary}");
            Ok(())
        });
    }
}

#[test]
fn xdp_forwards_by_a_million_bearers_and_applies_bearer_changes() {
    const COUNT: u32 = 1_000_000;
    const REWRITE: &str = "[[function]]\nname = \"mac-rewrite\"\nsource = [\"02:00:00:00:00:a0\", \"02:00:00:00:00:a1\"]\n";
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let lines: String = (1..=COUNT)
        .map(|teid| {
            format!(
                "{teid},relay,{},198.18.{}.{}\n",
                teid ^ 0x100_0000,
                teid % 8,
                teid % 250
            )
        })
        .collect();
    let mut gateway = Gateway::start(true, "bearers = 1000000\n", &lines, REWRITE);
    let status = gateway.bearer(&["status"]).success();
    assert!(
        status
            .stdout
            .starts_with("1000000 bearers, capacity 1000000"),
        "{status:?}"
    );
    let teid_of = |frame: &[u8]| Gtpu::new(&frame[42..]).unwrap().teid();
    let mut random = fastrand::Rng::with_seed(3);
    let teids: Vec<u32> = (0..200).map(|_| random.u32(1..=COUNT)).collect();
    let frames: Vec<_> = teids
        .iter()
        .map(|t| tunnelled(true, true, *t, 128))
        .collect();
    let [_, out] = gateway.kernel.pass(&frames, 0, [0, frames.len()]);
    let mut got: Vec<u32> = out.iter().map(|frame| teid_of(frame)).collect();
    let mut want: Vec<u32> = teids.iter().map(|teid| teid ^ 0x100_0000).collect();
    got.sort_unstable();
    want.sort_unstable();
    assert_eq!(got, want);
    let full = gateway.bearer(&["add", "0x7fffffff,relay,5,192.0.2.9"]);
    assert_eq!(full.code(), Some(2), "{full:?}");
    assert!(full.stderr.contains("the table is full"), "{full:?}");
    gateway
        .bearer(&["add", "--replace", "7,relay,8,192.0.2.9"])
        .success();
    gateway.bearer(&["remove", "9"]).success();
    let frames = [7, 9].map(|teid| tunnelled(true, true, teid, 128));
    // The gateway sends its peer an error about the deleted tunnel.
    let [told, out] = gateway.kernel.pass(&frames, 0, [1, 1]);
    assert_eq!((told.len(), teid_of(&out[0])), (1, 8));
    // Relayed packets pass `mac-rewrite` after the gateway. In the reverse direction the gateway is last, so its own
    // packets leave unchanged.
    assert_eq!(
        (&told[0][6..12], &out[0][6..12]),
        (&[2, 0, 0, 0, 0, 2][..], &[2, 0, 0, 0, 0, 0xa1][..])
    );
    let status = gateway.bearer(&["status"]).success();
    assert!(status.stdout.contains("relayed 201"), "{status:?}");
    assert!(status.stdout.contains("unknown TEID 1"), "{status:?}");
}

#[test]
fn a_gateway_chain_file_works_with_four_kinds_of_ports() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let folder = scratch();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("b.csv"), "1,relay,2,192.0.2.9\n2,relay,3,192.0.2.9\n").unwrap();
    let chain = format!(
        "ports = [\"null:\"]\n[[function]]\nname = \"gtpu\"\naddress = \"{OWN4}\"\nload = \"{}\"\n",
        path("b.csv")
    );
    std::fs::write(path("chain.toml"), chain).unwrap();
    for way in ["af_packet", "af_xdp", "xdp", "memif"] {
        let device = format!("{way},chain={}", path("chain.toml"));
        let outer = ["outer_src_ip=192.0.2.7", "outer_dst_ip=192.0.2.1"];
        let mut arguments = vec!["generate", "--device", &device, "--json", "--rate", "1k"];
        arguments.extend(["--seconds", "0.3", "--warm-up", "0", "--max-loss", "1"]);
        for set in [&outer[..], &["protocol=gtpu", "teid=1-2 random"]].concat() {
            arguments.extend(["--set", set]);
        }
        arguments.extend(["--size", "128"]);
        undisturbed(|| {
            let finished = run(&mut taut(&arguments));
            if finished.code() != Some(0) {
                return Err(format!("{way}: {finished:?}"));
            }
            let stream = finished.first_stream();
            let tally = &stream["tally"];
            if stream["lost_share"] == 0.0 && tally["received"] == tally["sent"] {
                Ok(())
            } else {
                Err(format!("{way}: {stream}"))
            }
        });
    }
}

/// The control plane's side of PFCP, in the gateway's namespace; scapy creates its messages.
struct Core {
    socket: UdpSocket,
    seid: u64,
}

impl Core {
    fn new(gateway: &Gateway) -> Self {
        let testbed = &gateway.kernel.testbed;
        ip(&format!("-n {} link set lo up", testbed.device_namespace()));
        let _inside = testbed.enter_device().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let patience = Some(Duration::from_secs(20));
        socket.set_read_timeout(patience).unwrap();
        Self { socket, seid: 0 }
    }

    /// Sends the PFCP message called `name`, modified by `change`; checks the cause in the response and returns the
    /// response.
    #[track_caller]
    fn ask(&self, name: &str, change: impl Fn(&mut Vec<u8>), cause: Cause) -> Vec<u8> {
        self.ask_of("pfcp/", name, change, cause)
    }

    /// Works like [`Core::ask`] for a message with a full name of `family` followed by `name`, among scapy's messages.
    #[track_caller]
    fn ask_of(
        &self,
        family: &str,
        name: &str,
        change: impl Fn(&mut Vec<u8>),
        cause: Cause,
    ) -> Vec<u8> {
        let all = scapy::messages(family);
        let found = all.into_iter().find(|(found, _)| *found == name);
        let (_, mut message) = found.unwrap();
        if message[0] & 1 == 1 && !name.starts_with("establishment") {
            message[4..12].copy_from_slice(&self.seid.to_be_bytes());
        }
        change(&mut message);
        self.send(&message, cause)
    }

    /// Sends a message; checks the cause in the response and returns the response.
    #[track_caller]
    fn send(&self, message: &[u8], cause: Cause) -> Vec<u8> {
        self.socket.send_to(message, "127.0.0.1:8805").unwrap();
        let mut response = vec![0; 2048];
        let length = self.socket.recv(&mut response).unwrap();
        response.truncate(length);
        let message = Message::parse(&response).unwrap();
        let mut elements = message.elements.map(Result::unwrap);
        let found = elements.find(|e| e.element_type == E::CAUSE).unwrap();
        assert_eq!(found.value, [cause.0]);
        response
    }

    /// Establishes the session with a request modified by `change`; returns the TEID that the gateway chose for its
    /// tunnel.
    fn establish(&mut self, change: impl Fn(&mut Vec<u8>)) -> u32 {
        self.establish_of("pfcp/", change)
    }

    fn establish_of(&mut self, family: &str, change: impl Fn(&mut Vec<u8>)) -> u32 {
        let response = self.ask_of(family, "establishment", change, Cause::ACCEPTED);
        let message = Message::parse(&response).unwrap();
        let mut chosen = None;
        for element in message.elements.map(Result::unwrap) {
            if element.element_type == E::F_SEID {
                self.seid = Seid::parse(element.value).unwrap().seid;
            } else if element.element_type == E::CREATED_PDR {
                let mut group = element.group().map(Result::unwrap);
                let end = group.find(|e| e.element_type == E::F_TEID).unwrap();
                if let FTeid::Chosen { teid, .. } = FTeid::parse(end.value).unwrap() {
                    chosen = Some(teid);
                }
            }
        }
        chosen.unwrap()
    }
}

/// Returns message type, TEID and destination of a GTP-U message over IPv4.
fn outer(frame: &[u8]) -> (MessageType, u32, [u8; 4]) {
    let gtpu = Gtpu::new(&frame[42..]).unwrap();
    let to = frame[30..34].try_into().unwrap();
    (gtpu.message_type(), gtpu.teid(), to)
}

#[test]
fn pfcp_requests_move_sessions_and_close_gates_under_traffic() {
    const CHUNK: usize = 10;
    const OLD: (MessageType, u32, [u8; 4]) = (MessageType::G_PDU, 0x20, [192, 0, 2, 7]);
    const NEW: (MessageType, u32, [u8; 4]) = (MessageType::G_PDU, 0x30, [192, 0, 2, 8]);
    const NEXT: (MessageType, u32, [u8; 4]) = (MessageType::G_PDU, 0x31, [192, 0, 2, 8]);
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let settings = "pfcp = { address = \"127.0.0.1\", peers = [\"127.0.0.1\"] }\n";
    // In the direction to the users, `mac-rewrite` comes before the gateway, but the gateway's end markers need MAC
    // addresses as well.
    let rewrite = "[[function]]\nname = \"mac-rewrite\"\nsource = \"02:00:00:00:00:a0\"\ndestination = \"02:00:00:00:00:a1\"\n";
    let mut gateway = Gateway::start(true, settings, "", rewrite);
    let mut core = Core::new(&gateway);
    let nothing = |_: &mut Vec<u8>| ();
    let early = "establishment-without-association";
    core.ask(early, nothing, Cause::NO_ASSOCIATION);
    core.ask("association", nothing, Cause::ACCEPTED);
    let uplink = core.establish(nothing);
    let up = tunnelled(true, true, uplink, 128);
    let down = plain("198.19.0.1", "10.45.0.2", 100);
    let chunk = vec![down.clone(); CHUNK];
    let [none, out] = gateway.kernel.pass(&vec![up.clone(); CHUNK], 0, [0, CHUNK]);
    assert_eq!((none.len(), out.len()), (0, CHUNK));
    assert_eq!(out[0][14..], up[50..]);
    // Packets in the tunnel from another user's address are dropped.
    let mut spoofed = up.clone();
    spoofed[50 + 15] ^= 1;
    gateway.kernel.pass(&[spoofed], 0, [0, 0]);
    gateway.until_counted("user packet from a wrong source", 1);

    // The handover happens while packets pass.
    let (mut sent, mut left) = (0, Vec::new());
    let mut pass = |gateway: &mut Gateway, frames: &[Vec<u8>], wanted: usize| {
        sent += frames.len();
        let [out, other] = gateway.kernel.pass(frames, 1, [wanted, 0]);
        assert_eq!(other, Vec::<Vec<u8>>::new());
        for frame in &out {
            assert_eq!(frame[..12], [2, 0, 0, 0, 0, 0xa1, 2, 0, 0, 0, 0, 0xa0]);
        }
        left.extend(out.iter().map(|frame| outer(frame)));
        (sent, left.len())
    };
    pass(&mut gateway, &chunk, CHUNK);
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| {
            core.ask("move", nothing, Cause::ACCEPTED);
        });
        while !moving.is_finished() {
            pass(&mut gateway, &chunk, CHUNK);
        }
        moving.join().unwrap();
    });
    let (sent, so_far) = pass(&mut gateway, &chunk, CHUNK);
    // The end marker is one additional packet.
    pass(&mut gateway, &[], (sent + 1).saturating_sub(so_far));
    let marker = (MessageType::END_MARKER, OLD.1, OLD.2);
    let count = |wanted| left.iter().filter(|frame| **frame == wanted).count();
    assert_eq!((count(marker), left.len()), (1, sent + 1), "{left:?}");
    assert!(count(OLD) >= CHUNK && count(NEW) >= CHUNK, "{left:?}");
    assert_eq!(count(OLD) + count(NEW), sent);
    let first_new = left.iter().position(|frame| *frame == NEW).unwrap();
    let late = left[first_new..].iter().filter(|frame| **frame == OLD);
    assert_eq!(late.count(), 0, "{left:?}");
    // Only a few packets were in flight when the end marker was sent.
    let ended = left.iter().position(|frame| *frame == marker).unwrap();
    let late = left[ended..].iter().filter(|frame| **frame == OLD).count();
    assert!(late <= CHUNK, "{left:?}");

    // The gate closes for one direction, and opens again.
    core.ask("close-gate", nothing, Cause::ACCEPTED);
    let nowhere = gateway.kernel.pass(&chunk, 1, [0, 0]);
    assert!(nowhere.iter().all(Vec::is_empty));
    gateway.until_counted("gate closed", CHUNK as u64);
    let [_, out] = gateway.kernel.pass(std::slice::from_ref(&up), 0, [0, 1]);
    assert_eq!(out.len(), 1);
    // The user moves again; no other user's packets go to the end marker's destination.
    let further = |message: &mut Vec<u8>| {
        message[14] = 98;
        let teid = message.windows(4).position(|four| four == [0, 0, 0, 0x30]);
        message[teid.unwrap() + 3] = NEXT.1 as u8;
    };
    core.ask("move", further, Cause::ACCEPTED);
    let [out, _] = gateway.kernel.pass(&[], 1, [1, 0]);
    assert_eq!(outer(&out[0]), (MessageType::END_MARKER, NEW.1, NEW.2));
    let open = |message: &mut Vec<u8>| {
        // The message has another sequence number, and open gates in its last byte.
        message[14] = 99;
        *message.last_mut().unwrap() = 0;
    };
    core.ask("close-gate", open, Cause::ACCEPTED);
    let [out, _] = gateway.kernel.pass(&chunk, 1, [CHUNK, 0]);
    assert_eq!(out.len(), CHUNK);

    // A refused message changes nothing.
    core.ask("update-unknown-far", nothing, Cause::RULE_FAILURE);
    let [out, _] = gateway.kernel.pass(&chunk, 1, [CHUNK, 0]);
    assert!(out.iter().all(|frame| outer(frame) == NEXT));
    core.ask("remove-downlink", nothing, Cause::ACCEPTED);
    gateway.kernel.pass(&chunk, 1, [0, 0]);
    gateway.until_counted("unknown user", CHUNK as u64);
    core.ask("deletion", nothing, Cause::ACCEPTED);
    let [told, _] = gateway.kernel.pass(std::slice::from_ref(&up), 0, [1, 0]);
    assert_eq!(outer(&told[0]).0, MessageType::ERROR_INDICATION);
    core.ask("deletion-again", nothing, Cause::SESSION_NOT_FOUND);
    let list = gateway.bearer(&["list"]).success();
    assert_eq!(list.stdout.lines().count(), 1, "{list:?}");

    let summary = gateway.kernel.program.interrupt().success().last_json();
    let outcomes = summary["outcomes"].as_object().unwrap();
    for (outcome, count) in [
        ("encapsulated", sent + 2 * CHUNK),
        ("decapsulated", CHUNK + 1),
        ("gate closed", CHUNK),
        ("unknown user", CHUNK),
        ("unknown TEID", 1),
        ("told to drop", 0),
    ] {
        assert_eq!(
            outcomes[outcome].as_u64(),
            Some(count as u64),
            "{outcome}: {summary}"
        );
    }
    let counted: u64 = outcomes
        .values()
        .filter_map(serde_json::Value::as_u64)
        .sum();
    let received = summary["counters"]["rx_packets"].as_u64();
    assert_eq!(received, Some(counted), "{summary}");
}

/// Adds an option to the outer IPv4 header.
fn with_option(frame: &[u8]) -> Vec<u8> {
    let mut frame = [&frame[..34], &[1; 4], &frame[34..]].concat();
    let length = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&length.to_be_bytes());
    in_header(frame, 0, 0x46)
}

#[test]
fn user_space_classifies_and_buffers_packets_of_sessions_with_rules() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let settings = "pfcp = { address = \"127.0.0.1\", peers = [\"127.0.0.1\"] }\n";
    let mut gateway = Gateway::start(true, settings, "0x77,relay,0x78,192.0.2.9\n", "");
    let mut core = Core::new(&gateway);
    let nothing = |_: &mut Vec<u8>| ();
    core.ask_of("upf/", "association", nothing, Cause::ACCEPTED);
    let uplink = core.establish_of("upf/", nothing);
    // One packet waits for the base station.
    let down = plain("198.19.0.1", "10.45.0.2", 100);
    let [none, _] = gateway.kernel.pass(std::slice::from_ref(&down), 1, [0, 0]);
    assert!(none.is_empty());
    gateway.until_counted("packets held", 1);
    core.ask_of("upf/", "forward", nothing, Cause::ACCEPTED);
    let [out, _] = gateway.kernel.pass(std::slice::from_ref(&down), 1, [2, 0]);
    let to = (MessageType::G_PDU, 0x20, [192, 0, 2, 7]);
    assert!(out.iter().all(|frame| outer(frame) == to), "{out:?}");
    let [_, out] = gateway
        .kernel
        .pass(&[tunnelled(true, true, uplink, 128)], 0, [0, 1]);
    assert_eq!(out.len(), 1);
    // Packets of other tunnels stay in the kernel.
    let [_, out] = gateway
        .kernel
        .pass(&[tunnelled(true, true, 0x77, 128)], 0, [0, 1]);
    assert_eq!(outer(&out[0]).1, 0x78);
    let usage = core.ask_of("upf/", "all-usage", nothing, Cause::ACCEPTED);
    let elements = Message::parse(&usage).unwrap().elements.map(Result::unwrap);
    let reports = elements.filter(|it| it.element_type == E::USAGE_REPORT_IN_MODIFICATION);
    assert_eq!(reports.count(), 2);
    core.ask_of("upf/", "deletion", nothing, Cause::ACCEPTED);
    let list = gateway.bearer(&["list"]).success();
    assert_eq!(list.stdout.lines().count(), 2, "{list:?}");
}

#[test]
fn xdp_and_user_space_meters_enforce_a_sessions_maximum_rate() {
    const SENT: usize = 20;
    // The number of packets that a meter passes: its burst of 15000 bytes, and one packet more. Another packet would
    // take 8 seconds.
    const PASS: usize = 16;
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let settings = "pfcp = { address = \"127.0.0.1\", peers = [\"127.0.0.1\"] }\n";
    let mut gateway = Gateway::start(true, settings, "", "");
    let mut core = Core::new(&gateway);
    core.ask("association", |_| (), Cause::ACCEPTED);
    let rates = |kbps| Mbr {
        uplink_kbps: kbps,
        downlink_kbps: kbps,
    };
    let uplink = core.establish(|message| {
        let mbr = [0, E::MBR.0 as u8, 0, 10];
        let at = message.windows(4).position(|four| four == mbr).unwrap() + 4;
        message[at..at + 10].copy_from_slice(&rates(1).emit());
    });
    let update = |rule: u32, kbps: u64, sequence: u32| {
        let mut changed = Writer::group();
        changed.element(E::QER_ID, &rule.to_be_bytes());
        changed.element(E::MBR, &rates(kbps).emit());
        let request = PfcpMessageType::SESSION_MODIFICATION_REQUEST;
        let mut message = Writer::message(request, Some(core.seid), sequence);
        message.grouped(E::UPDATE_QER, &changed);
        core.send(&message.finish().unwrap(), Cause::ACCEPTED);
    };
    // The downlink has its own rule.
    update(2, 1, 200);
    let up = tunnelled(true, true, uplink, 50 + 1000);
    let ups = vec![up.clone(); SENT];
    let downs = vec![plain("198.19.0.1", "10.45.0.2", 14 + 1000); SENT];
    let [none, out] = gateway.kernel.pass(&ups, 0, [0, PASS]);
    assert_eq!((none.len(), out.len()), (0, PASS));
    gateway.until_counted("over the rate", (SENT - PASS) as u64);
    let [out, none] = gateway.kernel.pass(&downs, 1, [PASS, 0]);
    assert_eq!((out.len(), none.len()), (PASS, 0));
    gateway.until_counted("over the rate", 2 * (SENT - PASS) as u64);
    // After the user has moved, downlink packets above the rate are still dropped.
    core.ask("move", |_| (), Cause::ACCEPTED);
    let [out, _] = gateway.kernel.pass(&downs[..1], 1, [1, 0]);
    assert_eq!(outer(&out[0]).0, MessageType::END_MARKER);
    gateway.until_counted("over the rate", 2 * (SENT - PASS) as u64 + 1);
    // The XDP programs leave packets with IP options to the process, which limits them with its own meter.
    let [_, out] = gateway
        .kernel
        .pass(&vec![with_option(&up); SENT], 0, [0, PASS]);
    assert_eq!(out.len(), PASS);
    gateway.until_counted("over the rate", 3 * (SENT - PASS) as u64 + 1);
    // Another rate applies immediately.
    update(1, 1_000_000, 201);
    update(2, 1_000_000, 202);
    let [_, out] = gateway.kernel.pass(&ups, 0, [0, SENT]);
    assert_eq!(out.len(), SENT);
    let [out, _] = gateway.kernel.pass(&downs, 1, [SENT, 0]);
    assert_eq!(out.len(), SENT);
    core.ask("deletion", |_| (), Cause::ACCEPTED);
    let summary = gateway.kernel.program.interrupt().success().last_json();
    let outcomes = summary["outcomes"].as_object().unwrap();
    for (outcome, count) in [
        ("decapsulated", 2 * PASS + SENT),
        ("encapsulated", PASS + SENT),
        ("over the rate", 3 * (SENT - PASS) + 1),
    ] {
        assert_eq!(outcomes[outcome].as_u64(), Some(count as u64), "{summary}");
    }
}

#[test]
fn linux_resolves_an_xdp_gateway_and_gets_echo_responses() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let macs = ["02:00:00:00:99:01", "02:00:00:00:99:02"];
    for redirects in [true, false] {
        let gateway = Gateway::start(redirects, &format!("mac = {macs:?}\n"), "", "");
        let testbed = &gateway.kernel.testbed;
        let radio = testbed.generator_namespace();
        let mut sysctl = in_namespace(radio, "sysctl");
        run(sysctl.args(["-qw", "net.ipv6.conf.gen0.disable_ipv6=0"])).success();
        ip(&format!("-n {radio} link set gen0 arp on up"));
        ip(&format!("-n {radio} addr add 192.0.2.7/24 dev gen0"));
        ip(&format!(
            "-n {radio} addr add 2001:db8::7/64 dev gen0 nodad"
        ));
        for (from, to) in [("192.0.2.7", OWN4), ("2001:db8::7", OWN6)] {
            let answered = gateway_answers_echo(testbed, address(from), address(to));
            let mut shown = Command::new("ip");
            let shown = run(shown.args(["-n", radio, "neigh", "show", "to", to])).success();
            assert!(answered, "{to}: {shown:?}");
            assert!(shown.stdout.contains(macs[0]), "{shown:?}");
        }
        let summary = gateway.kernel.program.interrupt().success().last_json();
        for outcome in ["neighbour answered", "echo answered"] {
            assert!(
                summary["outcomes"][outcome].as_u64().unwrap() >= 2,
                "{summary}"
            );
        }
    }
}
