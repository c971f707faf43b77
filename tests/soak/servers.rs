//! Clients that disconnect from servers at any moment, also in the middle of a message, while packets pass. No server
//! hangs, other clients are served, and resources of the lost clients are released. The test closes the clients'
//! sockets, which is what the kernel does when a client is killed.

use super::{held_by, share_of};
use crate::support::program::{Finished, Program, run};
use crate::support::{alone, scratch, taut};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use taut_wire::pfcp::{ElementType as E, MessageType as M, NodeId, Writer};

const PEERS: u64 = 1000;
/// Number of clients after which the process's resources must not grow any more.
const SETTLING: u64 = 100;
const GROWTH_KB: u64 = 2048;
const PATIENCE: Duration = Duration::from_secs(30);

/// Calls `peer` with the number of each client, to connect and disconnect that client. Checks that the process keeps no
/// resources of the clients.
fn gone(what: &str, process: u32, mut peer: impl FnMut(u64, &mut fastrand::Rng)) {
    let mut random = fastrand::Rng::with_seed(1);
    let peers = share_of(PEERS);
    let mut settled = held_by(process);
    let begun = Instant::now();
    for number in 1..=peers {
        peer(number, &mut random);
        if number == SETTLING.min(peers) {
            settled = held_by(process);
        }
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = held_by(process);
        if now.0 <= settled.0 && now.1 <= settled.1 + GROWTH_KB {
            let seconds = begun.elapsed().as_secs();
            println!(
                "{what}: {peers} peers gone in {seconds} s; descriptors and kB {settled:?}, at the end {now:?}"
            );
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{what}: {settled:?}, then {now:?}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Sends a random part of `message`, reads a part of the reply in half of the calls, and closes the connection. If a
/// reply was not read, the kernel resets the connection.
fn breaks_off(mut stream: impl Read + Write, message: &[u8], random: &mut fastrand::Rng) {
    let said = random.usize(0..=message.len());
    let _ = stream.write_all(&message[..said]);
    if random.bool() {
        let mut some = [0; 64];
        let _ = stream.read(&mut some);
    }
}

fn over_tcp(address: SocketAddr, message: &[u8], random: &mut fastrand::Rng) {
    let stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    // The kernel resets the connection if a reply has arrived unread.
    breaks_off(stream, message, random);
}

/// Starts a forwarder with constant traffic, and returns its process.
fn forwarder(folder: &Path, functions: &str) -> Program {
    let file = folder.join("chain.toml");
    let ports = "ports = [\"null:source=32\", \"null:\"]\nwait = \"sleep(50us)\"\n";
    fs::write(&file, format!("{ports}{functions}")).unwrap();
    let mut up = Program::start(taut(&["forward", "--json"]).arg(&file).current_dir(folder));
    up.wait_for_stdout("started");
    up
}

/// Checks that the forwarder passed packets until the last second and ends on request.
fn ends_well(what: &str, up: Program) -> Finished {
    let ended = up.interrupt().success();
    assert!(!ended.stderr.contains("panicked"), "{what}: {ended:?}");
    let counted = ended.last_json()["counters"]["rx_packets"]
        .as_u64()
        .unwrap();
    assert!(counted > 0, "{what}");
    ended
}

#[test]
#[ignore = "a minute: ./run soak"]
fn disconnected_openflow_controllers_leak_no_resources() {
    let _turn = alone();
    let folder = scratch();
    let address: SocketAddr = "127.0.0.1:16753".parse().unwrap();
    let rule = "rule = [{ in_port = 0, actions = [\"output:1\"] }]";
    let up = forwarder(
        folder.path(),
        &format!("[[function]]\nname = \"switch\"\nopenflow = \"{address}\"\n{rule}\n"),
    );
    // The messages are HELLO, FEATURES_REQUEST, and a request for table statistics.
    let hello = [4, 0, 0, 8, 0, 0, 0, 1, 4, 5, 0, 8, 0, 0, 0, 2];
    let flows = [
        &[
            4, 18, 0, 56, 0, 0, 0, 3, 0, 1, 0, 0, 0, 0, 0, 0, 255, 0, 0, 0,
        ][..],
        &[255; 8],
        &[0; 20],
        &[0, 1, 0, 4, 0, 0, 0, 0],
    ]
    .concat();
    let message = [&hello[..], &flows].concat();
    gone("controllers of a switch", up.id(), |_, random| {
        over_tcp(address, &message, random)
    });
    let mut last = TcpStream::connect(address).unwrap();
    last.set_read_timeout(Some(PATIENCE)).unwrap();
    last.write_all(&hello).unwrap();
    let mut answer = [0; 8];
    last.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..2], [4, 0]);
    drop(last);
    ends_well("switch", up);
}

#[test]
#[ignore = "a minute: ./run soak"]
fn vanished_pfcp_control_planes_leak_no_resources() {
    let _turn = alone();
    let folder = scratch();
    let gateway: SocketAddr = "127.0.0.8:8805".parse().unwrap();
    let functions = "[[function]]\nname = \"gtpu\"\naddress = \"127.0.0.8\"\npfcp = { address = \"127.0.0.8\", peers = [\"127.0.0.9\"] }\n";
    let up = forwarder(folder.path(), functions);
    gone("control planes of a gateway", up.id(), |number, random| {
        // The clients use the same address one after the other. Each has another recovery time stamp, so the gateway
        // deletes the sessions of the previous client.
        let smf = UdpSocket::bind("127.0.0.9:8805").unwrap();
        smf.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut setup = Writer::message(M::ASSOCIATION_SETUP_REQUEST, None, number as u32);
        setup.element(E::NODE_ID, &NodeId([127, 0, 0, 9].into()).emit());
        setup.element(
            E::RECOVERY_TIME_STAMP,
            &(3_900_000_000 + number as u32).to_be_bytes(),
        );
        let setup = setup.finish().unwrap();
        smf.send_to(&setup, gateway).unwrap();
        if random.u8(0..4) == 0 {
            smf.send_to(&setup[..random.usize(0..setup.len())], gateway)
                .unwrap();
        }
        let mut answer = [0; 2048];
        let (length, _) = smf.recv_from(&mut answer).unwrap();
        assert!(length > 8);
    });
    ends_well("gateway", up);
}

#[test]
#[ignore = "a minute: ./run soak"]
fn disconnected_probe_and_web_clients_leak_no_resources() {
    let _turn = alone();
    let folder = scratch();
    let address: SocketAddr = "127.0.0.1:17787".parse().unwrap();
    let line = [
        "probe",
        "server",
        "--bind",
        "127.0.0.1:17787",
        "--transport",
        "tcp",
    ];
    let mut server = Program::start(&mut taut(&line));
    server.wait_until("a server", |_, _| TcpStream::connect(address).is_ok());
    let noise: Vec<u8> = (0..=255).collect();
    gone("probes over TCP", server.id(), |_, random| {
        over_tcp(address, &noise, random)
    });
    let probed = run(&mut taut(&[
        "probe",
        "client",
        "127.0.0.1:17787",
        "--transport",
        "tcp",
        "--count",
        "20",
        "--repetitions",
        "2",
    ]));
    probed.success();
    server.interrupt();
    // The next clients are browsers.
    fs::create_dir(folder.path().join("results")).unwrap();
    let results = folder.path().join("results").display().to_string();
    let mut serve = Program::start(&mut taut(&[
        "serve",
        &results,
        "--listen",
        "127.0.0.1:17788",
    ]));
    serve.wait_until("an address", |stdout, stderr| {
        (stdout.to_string() + stderr).contains("http://")
    });
    let address: SocketAddr = "127.0.0.1:17788".parse().unwrap();
    let request =
        b"GET /list.json HTTP/1.1\r\nHost: 127.0.0.1:17788\r\nConnection: keep-alive\r\n\r\n";
    gone("browsers", serve.id(), |_, random| {
        over_tcp(address, request, random)
    });
    let mut last = TcpStream::connect(address).unwrap();
    last.set_read_timeout(Some(PATIENCE)).unwrap();
    last.write_all(request).unwrap();
    let mut answer = [0; 5];
    last.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/");
    drop(last);
    serve.interrupt();
}

#[test]
#[ignore = "a minute: ./run soak"]
fn disconnected_capture_clients_leak_no_resources() {
    let _turn = alone();
    let folder = scratch();
    let functions = "[[function]]\nname = \"record\"\nring = \"64M\"\ncontrol = \"capture.sock\"\n";
    let up = forwarder(folder.path(), functions);
    let socket = folder.path().join("capture.sock");
    let request = b"{\"status\":{}}\n";
    gone("readers of a capture", up.id(), |_, random| {
        let stream = UnixStream::connect(&socket).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_millis(20)))
            .unwrap();
        breaks_off(stream, request, random);
    });
    let line = ["capture", "status", "--json", "--control", "capture.sock"];
    run(taut(&line).current_dir(folder.path())).success();
    ends_well("capture", up);
}
