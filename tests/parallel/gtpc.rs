//! The mobile gateway as its own control plane: scapy is the MME, and tshark decodes the messages of both.

use crate::support::between::{Between, decoded};
use crate::support::program::run;
use crate::support::{alone, bytes_of, scapy, scratch, taut};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use taut_wire::{
    Ethernet, Gtpu, IpProtocol, Ipv4, Ipv4Repr, Protocol, Tunnel, Udp, UdpFlow, UdpRepr,
};

/// The MME, which reads one command and writes one reply per line.
struct Mme {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Mme {
    fn start() -> Option<Self> {
        let mut command = scapy("scapy_mme.py")?;
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Some(Self {
            input: process.stdin.take().unwrap(),
            output: BufReader::new(process.stdout.take().unwrap()),
            process,
        })
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the MME has ended: see above");
        serde_json::from_str(&line).unwrap()
    }

    fn ask(&mut self, command: &str) -> Value {
        writeln!(self.input, "{command}").unwrap();
        self.answer()
    }
}

impl Drop for Mme {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn flow(from: Ipv4Addr, to: Ipv4Addr) -> UdpFlow {
    UdpFlow {
        src_ip: from.into(),
        dst_ip: to.into(),
        ..UdpFlow::default()
    }
}

/// Returns the TEID and the destination of the tunnel in a frame.
fn tunnel_of(frame: &[u8]) -> (u32, IpAddr) {
    let ethernet = Ethernet::new(frame).unwrap();
    let ip = Ipv4::new(ethernet.payload()).unwrap();
    let udp = Udp::new(ip.payload()).unwrap();
    let teid = Gtpu::new(udp.payload()).unwrap().teid();
    (teid, ip.destination().into())
}

/// Returns a frame with a GTP-C message, for tshark.
fn framed(payload: &[u8]) -> Vec<u8> {
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
        source: Ipv4Addr::LOCALHOST,
        destination: Ipv4Addr::LOCALHOST,
        options: &[],
        payload_len_bytes: 8 + payload.len(),
    };
    let mut ip = ip.emit(&mut frame[14..]).unwrap();
    let udp = UdpRepr {
        source_port: 2123,
        destination_port: 2123,
        payload_len_bytes: payload.len(),
    };
    let mut udp = udp.emit(ip.payload_mut()).unwrap();
    udp.payload_mut().copy_from_slice(payload);
    frame
}

#[test]
fn an_mme_of_scapy_attaches_pages_and_detaches_a_user() {
    let _turn = alone();
    let Some(mut mme) = Mme::start() else {
        return;
    };
    let peer = mme.answer()["port"].as_u64().unwrap();
    let free = UdpSocket::bind("127.0.0.2:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let folder = scratch();
    let socket = folder.path().join("gateway.sock").display().to_string();
    let mut gateway = Between::start(&format!(
        "[[function]]\nname = \"gtpu\"\naddress = \"192.0.2.1\"\ncontrol = \"{socket}\"\npools = [\"10.45.0.0/24\"]\n\
         gtpc = {{ address = \"127.0.0.2:{port}\", peers = [\"127.0.0.1:{peer}\"], response_time = \"20s\" }}\n"
    ));
    mme.ask(&format!("gateway {port}"));
    let made = mme.ask("attach");
    assert_eq!(
        (&made["cause"], &made["bearer"]),
        (&16.into(), &16.into()),
        "{made}"
    );
    assert_eq!(made["address"], "192.0.2.1");
    let user: Ipv4Addr = made["user"].as_str().unwrap().parse().unwrap();
    let server = Ipv4Addr::new(198, 19, 0, 1);
    assert_eq!(mme.ask("move 32")["cause"], 16);
    // Packets of the user pass in both directions.
    let tunnel = Tunnel {
        teid: made["teid"].as_u64().unwrap() as u32,
        src_ip: [192, 0, 2, 7].into(),
        dst_ip: [192, 0, 2, 1].into(),
    };
    let up = |user| flow(user, server).frame_as(Protocol::Udp, Some(&tunnel), 140);
    gateway.send(0, &[up(user).unwrap()]);
    let left = gateway.receive(1, 1);
    assert_eq!(Ipv4::new(&left[0][14..]).unwrap().source(), user);
    let down = flow(server, user).frame(100).unwrap();
    gateway.send(1, std::slice::from_ref(&down));
    let base_station = IpAddr::from([192, 0, 2, 7]);
    assert_eq!(tunnel_of(&gateway.receive(0, 1)[0]), (32, base_station));
    // The idle user's packet waits for the base station that the MME finds.
    assert_eq!(mme.ask("idle")["cause"], 16);
    gateway.send(1, std::slice::from_ref(&down));
    let notice = mme.ask("paged");
    assert_eq!(
        (&notice["teid"], &notice["bearer"]),
        (&0x77.into(), &5.into())
    );
    assert_eq!(mme.ask("move 33")["cause"], 16);
    assert_eq!(tunnel_of(&gateway.receive(0, 1)[0]), (33, base_station));
    // The gateway drops a packet whose inner source is another user's address.
    let other = Ipv4Addr::new(10, 45, 0, 99);
    gateway.send(0, &[up(other).unwrap(), up(user).unwrap()]);
    gateway.receive(1, 1);
    let status = run(&mut taut(&["bearer", "--control", &socket, "status"])).success();
    assert!(
        status.stdout.contains("user packet from a wrong source 1"),
        "{status:?}"
    );
    assert!(status.stdout.contains("GTP-C\n"), "{status:?}");
    assert_eq!(mme.ask("detach")["cause"], 16);
    let passed = mme.ask("bytes");
    let list = run(&mut taut(&["bearer", "--control", &socket, "list"])).success();
    assert_eq!(list.stdout.lines().count(), 1, "{list:?}");
    gateway.program.interrupt().success();
    let messages = passed["messages"].as_array().unwrap();
    let frames: Vec<_> = messages
        .iter()
        .map(|it| framed(&bytes_of(it.as_str().unwrap())))
        .collect();
    let fields = [
        "frame.protocols",
        "gtpv2.message_type",
        "_ws.expert.message",
    ];
    let Some(lines) = decoded(&frames, &fields) else {
        return;
    };
    for line in &lines {
        assert_eq!(line[0], "eth:ethertype:ip:udp:gtp:gtpv2", "{line:?}");
    }
    let kinds: Vec<_> = lines.iter().map(|line| line[1].as_str()).collect();
    for kind in [
        "32", "33", "34", "35", "170", "171", "176", "177", "36", "37",
    ] {
        assert!(kinds.contains(&kind), "{kind}: {kinds:?}");
    }
}
