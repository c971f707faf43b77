//! Tests of chains that share ports: a classifier selects the chain of each packet.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use taut_engine::{Chain, Order, Start, Team};
use taut_functions::FUNCTIONS;
use taut_port::{Batch, Port, PortSpec, Resources};
use taut_sys::Clock;
use taut_wire::UdpFlow;

/// A timeout longer than any pause of a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
static NEVER: AtomicBool = AtomicBool::new(false);

/// Runs a chain file between two links and calls `drive` with the ports at the opposite ends of the links. `PORTS` in
/// the text is replaced by the worker's ports. Returns the counts of packets by outcome.
fn between(
    name: &str,
    text: &str,
    drive: impl FnOnce(&Team, [&mut dyn Port; 2], &mut Resources),
) -> Vec<(&'static str, u64)> {
    let ends = ["west", "east"].map(|end| format!("pair:{name}-{}-{end}", std::process::id()));
    let text = text.replace("PORTS", &format!("{ends:?}"));
    let chain = Chain::parse(&text, "x.toml", FUNCTIONS).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let start = Start {
        clock: Clock::calibrate(Duration::from_millis(2)),
        stop: Arc::clone(&stop),
        given_up: &NEVER,
        tell: Arc::new(|_| ()),
        tell_link: Arc::new(|_, _| ()),
        at_end: Arc::new(|_| ()),
    };
    let team = Team::start(&chain, name, &start, None).unwrap();
    let mut resources = Resources::for_ports(&chain.ports).unwrap();
    let mut open = |spec: &PortSpec| spec.open(&mut resources).unwrap();
    let mut far: Vec<_> = chain.ports.iter().map(&mut open).collect();
    let [west, east] = &mut far[..] else {
        panic!("two ports")
    };
    drive(&team, [&mut **west, &mut **east], &mut resources);
    stop.store(true, Ordering::Relaxed);
    team.join().1
}

/// Returns a frame to the UDP port `port` whose last bytes are `number`.
fn frame(port: u16, number: u32) -> Vec<u8> {
    let flow = UdpFlow {
        dst_port: port,
        ..UdpFlow::default()
    };
    let mut frame = flow.frame(104).unwrap();
    let end = frame.len();
    frame[end - 4..].copy_from_slice(&number.to_be_bytes());
    frame
}

fn send(port: &mut dyn Port, resources: &Resources, frames: &[Vec<u8>]) {
    let mut batch = Batch::new();
    for frame in frames {
        resources.pool().fill(&mut batch, 1, frame.len() as u16);
        let last = batch.len() - 1;
        batch.packet_mut(last).bytes_mut().copy_from_slice(frame);
    }
    assert_eq!(port.tx(&mut batch), frames.len());
}

/// Receives from a port until `count` frames have arrived; returns the frames.
fn receive(port: &mut dyn Port, count: usize) -> Vec<Vec<u8>> {
    let (mut batch, mut frames, begun) = (Batch::new(), Vec::new(), Instant::now());
    while frames.len() < count && begun.elapsed() < PATIENCE {
        if port.rx(&mut batch) == 0 {
            std::thread::yield_now();
        }
        frames.extend(batch.packets().iter().map(|it| it.bytes().to_vec()));
        batch.clear();
    }
    frames
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(*frame.last_chunk().unwrap())
}

const TEXT: &str = r#"
ports = PORTS
default = "forward"

[[classifier]]
chain = "drop"
destination_port = 1

[[classifier]]
chain = "left"
destination_port = 2

[[classifier]]
chain = "right"
destination_port = 3

[[function]]
chain = "left"
name = "xor"
key = 1

[[function]]
chain = "right"
name = "xor"
key = 2

[[function]]
chain = "left"
name = "xor"
key = 4
"#;

/// Offset of the payload of a UDP packet in a frame without tags.
const PAYLOAD_AT: usize = 42;

#[test]
fn each_packet_passes_the_functions_of_its_chain_in_order() {
    let sent: Vec<_> = (0..60).map(|n| frame(1 + (n * 7 % 4) as u16, n)).collect();
    let outcomes = between("classes", TEXT, |_, [west, east], resources| {
        for [from, to] in [[0, 1], [1, 0]] {
            let ports: [&mut dyn Port; 2] = [&mut *west, &mut *east];
            let mut ports = ports.map(Some);
            let (from, to) = (ports[from].take().unwrap(), ports[to].take().unwrap());
            send(from, resources, &sent);
            let arrived = receive(to, 45);
            assert_eq!(arrived.len(), 45);
            for (port, mask) in [(2_u16, 5_u8), (3, 2), (4, 0)] {
                let same = |frame: &&Vec<u8>| frame[36..38] == port.to_be_bytes();
                let expected = sent.iter().filter(same).map(|frame| {
                    let payload = frame[PAYLOAD_AT..].iter().map(|byte| byte ^ mask);
                    payload.collect::<Vec<u8>>()
                });
                let found = arrived.iter().filter(same);
                let found = found.map(|frame| frame[PAYLOAD_AT..].to_vec());
                assert!(found.eq(expected), "port {port}: another order or payload");
            }
        }
    });
    for expected in [
        ("to chain left", 30),
        ("to chain right", 30),
        ("forwarded without a chain", 30),
        ("dropped by the classifier", 30),
    ] {
        assert!(outcomes.contains(&expected), "{outcomes:?}");
    }
}

#[test]
fn an_update_keeps_delayed_packets_in_their_own_chain() {
    let text = TEXT.replace(
        "name = \"xor\"\nkey = 1",
        "name = \"impair\"\ndelay = 1.0\ndelay_time = \"20ms\"",
    );
    let sent: Vec<_> = (0..40).map(|n| frame(2 + (n % 2) as u16, n)).collect();
    let seen = Mutex::new(Vec::new());
    between("classes-update", &text, |team, [west, east], resources| {
        send(west, resources, &sent);
        // The packets of the other chain show that the delayed ones have arrived in the worker as well.
        let first = receive(east, 20);
        let functions = r#"{"functions": [
            {"name": "xor", "key": 2, "chain": "right"}, {"name": "xor", "key": 4, "chain": "left"}]}"#;
        let order = Order::parse(functions, FUNCTIONS).unwrap();
        let exchange = team.exchange();
        let replaced = exchange.replace(&order.functions.unwrap()).unwrap();
        assert_eq!((replaced.kept, replaced.made), (2, 0));
        let unknown = r#"{"functions": [{"name": "forward", "chain": "middle"}]}"#;
        let unknown = Order::parse(unknown, FUNCTIONS).unwrap().functions.unwrap();
        let wrong = exchange.replace(&unknown).unwrap_err().to_string();
        assert!(
            wrong.contains("none of those that the classifier"),
            "{wrong}"
        );
        let second = receive(east, 20);
        *seen.lock().unwrap() = [first, second].concat();
    });
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen.len(), 40);
    for frame in seen {
        let mask = if frame[37] == 2 { 4 } else { 2 };
        let payload = frame[PAYLOAD_AT..].iter().map(|byte| byte ^ mask);
        let payload: Vec<u8> = payload.collect();
        let original = sent.iter().find(|it| it[PAYLOAD_AT..] == payload[..]);
        assert!(original.is_some(), "{}", number(&payload));
    }
}
