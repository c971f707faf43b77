//! Measures the processing cost of a message on both endpoints of a connection, without sockets: sending, writing,
//! parsing and delivery. The benchmark runs in virtual time. `cargo bench -p taut-transport --bench messages`

#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::time::Instant;
use taut_transport::wire::MOST_DATAGRAM_BYTES;
use taut_transport::{Coding, Endpoint, Settings};

const REPETITIONS: usize = 21;
const MESSAGES: u64 = 20_000;
/// Time between messages in each direction, ns.
const INTERVAL_NS: u64 = 100_000;
const WAY_NS: u64 = 20_000;

/// Moves all pending packets from endpoint `from` to endpoint `to`; returns the number of packets.
fn carry(from: &mut Endpoint, to: &mut Endpoint, now_ns: u64) -> u64 {
    let mut packet = [0; MOST_DATAGRAM_BYTES];
    let mut packets = 0;
    while let Some(length) = from.transmit(now_ns, &mut packet) {
        to.receive(now_ns + WAY_NS, &packet[..length]);
        packets += 1;
    }
    packets
}

/// Returns the processing time (ns) and the number of packets, both per message and its reply.
fn measure(settings: Settings, bytes: usize) -> [f64; 2] {
    let mut now_ns = 1_000_000_000;
    let mut client = Endpoint::open(settings, None, [1; 16], now_ns).unwrap();
    let mut hello = [0; MOST_DATAGRAM_BYTES];
    let length = client.transmit(now_ns, &mut hello).unwrap();
    let mut server =
        Endpoint::accept(settings, None, [2; 16], now_ns + WAY_NS, &hello[..length]).unwrap();
    carry(&mut server, &mut client, now_ns + WAY_NS);
    let payload = vec![7; bytes];
    let (mut packets, mut delivered) = (0, 0);
    let begun = Instant::now();
    for _ in 0..MESSAGES {
        now_ns += INTERVAL_NS;
        client.send(now_ns, &payload).unwrap();
        packets += carry(&mut client, &mut server, now_ns);
        let there_ns = now_ns + WAY_NS;
        while let Some(message) = server.deliver(there_ns) {
            black_box(message.payload);
            delivered += 1;
        }
        server.send(there_ns, &payload).unwrap();
        black_box(server.wake_ns(there_ns));
        packets += carry(&mut server, &mut client, there_ns);
        while client.deliver(there_ns + WAY_NS).is_some() {
            delivered += 1;
        }
        black_box(client.wake_ns(there_ns + WAY_NS));
    }
    let ns = begun.elapsed().as_nanos() as f64;
    assert!(delivered >= 2 * MESSAGES - 20, "{delivered}");
    [ns / MESSAGES as f64, packets as f64 / MESSAGES as f64]
}

fn main() {
    let settings = |coding| Settings {
        coding,
        ..Settings::default()
    };
    let auto = Settings::default().coding;
    let cases = [
        ("as is, 256 bytes", settings(auto), 256),
        ("as is, 1,380 bytes", settings(auto), 1_380),
        ("no coding, 256 bytes", settings(Coding::Off), 256),
        ("no coding, 1,380 bytes", settings(Coding::Off), 1_380),
    ];
    let mut found = [const { Vec::new() }; 4];
    // The runs are interleaved, so that noise of the machine affects all of them alike.
    for _ in 0..REPETITIONS {
        for ((_, settings, bytes), found) in cases.iter().zip(&mut found) {
            found.push(measure(*settings, *bytes));
        }
    }
    for ((name, ..), found) in cases.iter().zip(&mut found) {
        found.sort_by(|a, b| a[0].total_cmp(&b[0]));
        let [median, packets] = found[REPETITIONS / 2];
        println!(
            "{name:<24}{median:>7.0} ns ({:.0} to {:.0}, n = {REPETITIONS}) for a message and its answer, {packets:.2} packets",
            found[0][0],
            found[REPETITIONS - 1][0],
        );
    }
}
