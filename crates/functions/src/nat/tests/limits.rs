//! Tests of the limits on mappings, per host and during a flood.

use super::*;
use std::time::Instant;

fn udp(host: [u8; 4], port: u16) -> Vec<u8> {
    packet(Kind::Udp, (host, port), (PEER, 53), b"x")
}

#[test]
fn flows_beyond_the_mapping_limit_of_a_host_are_dropped() {
    let mut nat = nat("mappings_per_host = 3\nudp_timeout = \"2s\"\n");
    let hz = Clock::calibrate(Duration::from_millis(20)).hz as u64;
    let (greedy, modest) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    for port in 0..3 {
        assert!(out(&mut *nat, &udp(greedy, port)).is_some());
    }
    assert!(out(&mut *nat, &udp(greedy, 3)).is_none());
    assert!(out(&mut *nat, &packet(Kind::Tcp, (greedy, 3), (PEER, 53), b"")).is_none());
    // The mappings of the host with too many flows stay, and other hosts are not affected.
    assert!(out(&mut *nat, &udp(greedy, 2)).is_some());
    assert!(out(&mut *nat, &udp(modest, 3)).is_some());
    let refused = nat
        .outcomes()
        .into_iter()
        .find(|(name, _)| name.contains("host has"));
    assert_eq!(
        refused,
        Some(("dropped: its host has too many mappings", 2))
    );
    // The sweep visits all slots after some new flows.
    let now = |n| 3 * hz + n * hz / 100;
    assert!((0..1000).any(|n| at(&mut *nat, &udp(greedy, 4), 1, now(n)).is_some()));
}

#[test]
fn forwarded_ports_do_not_count_towards_the_host_limit() {
    let mut nat = nat(
        "mappings_per_host = 1\nforward = [{ protocol = \"udp\", port = 53, to = \"10.0.0.1:53\" }]",
    );
    assert!(out(&mut *nat, &udp([10, 0, 0, 1], 53)).is_some());
    assert!(out(&mut *nat, &udp([10, 0, 0, 1], 54)).is_some());
    assert!(out(&mut *nat, &udp([10, 0, 0, 1], 55)).is_none());
}

/// Measures the packets per second of a flood of new flows that meets a full table, and of a flood that fills the
/// table.
#[test]
#[ignore = "a measurement: cargo test --release -p taut-functions --lib flood -- --ignored --nocapture"]
fn the_packet_rate_of_nat_during_a_flood_is_measured() {
    const FLOOD: usize = 1_000_000;
    for (what, more) in [
        ("full table", "mappings = 16384\n"),
        ("ports taken", "mappings = 1000000\nports = \"1024-9215\"\n"),
    ] {
        let mut nat = nat(more);
        let pool = taut_port::PoolHandle::new(64, false).unwrap();
        let mut number = 0_u32;
        let mut pass = |nat: &mut dyn Function, flows: usize| {
            let mut took = Duration::ZERO;
            for _ in 0..flows / 32 {
                let mut batch = Batch::new();
                for _ in 0..32 {
                    number += 1;
                    let [_, b, c, d] = number.to_be_bytes();
                    let frame = udp([10, b, c, d], number as u16);
                    let mut it = pool.take(frame.len() as u16).unwrap();
                    it.bytes_mut().copy_from_slice(&frame);
                    batch.push(it);
                }
                let context = Context {
                    now_ticks: taut_sys::ticks(),
                    from_port: 0,
                    to_port: 1,
                    ports: 2,
                };
                let start = Instant::now();
                nat.process(&mut batch, &context);
                took += start.elapsed();
            }
            flows as f64 / took.as_secs_f64() / 1e6
        };
        let filling = pass(&mut *nat, 16_384);
        let rates: Vec<String> = (0..5)
            .map(|_| format!("{:.2}", pass(&mut *nat, FLOOD)))
            .collect();
        println!(
            "{what}: filling {filling:.2}, flood {} Mpps",
            rates.join(" ")
        );
        println!("{:?}", nat.outcomes());
    }
}
