//! The body of the fuzz target for the router; `cargo test` runs the same body over seeded noise.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;
use taut_port::{Batch, PoolHandle};
use taut_router::Detached;

/// Longest frame that is tried, bytes.
const MOST: usize = 1600;
const OWN: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 0xa], [2, 0, 0, 0, 0, 0xb]];
const SETTINGS: &str = "\
[[interface]]
mac = \"02:00:00:00:00:0a\"
addresses = [\"10.0.0.1/24\", \"2001:db8::1/64\"]
[[interface]]
mac = \"02:00:00:00:00:0b\"
addresses = [\"10.0.1.1/24\", \"2001:db8:1::1/64\"]
mtu = 1280
";

thread_local! {
    /// The router and its memory, reused for all inputs: allocating it takes longer than a sequence.
    static ROUTER: RefCell<(Detached, PoolHandle)> = RefCell::new(made());
}

fn made() -> (Detached, PoolHandle) {
    let router = Detached::new(SETTINGS.parse().expect("settings")).expect("a router");
    (router, PoolHandle::new(1, false).expect("memory"))
}

/// Adds and removes routes while packets pass. Checks that every packet is counted once, and that the tables agree with
/// the routes. Returns the number of frames that the slow path sent.
pub fn sequence(bytes: &[u8]) -> usize {
    ROUTER.with_borrow_mut(|(router, pool)| {
        router.clear().expect("routes are taken away");
        let mut sent = 0;
        let mut rest = bytes;
        while let [operation, length, more @ ..] = rest {
            let (own, after) = more.split_at(more.len().min(usize::from(*length)));
            rest = after;
            match operation % 8 {
                0 => sent += pass(router, pool, usize::from(operation >> 7), own),
                1 => {
                    sent += pass(
                        router,
                        pool,
                        usize::from(operation >> 7),
                        &packet(*operation, own),
                    )
                }
                2 => {
                    sent += pass(
                        router,
                        pool,
                        usize::from(operation >> 7),
                        &question(*operation, own),
                    )
                }
                3 => drop(router.ask(&add(*operation, own))),
                4 => drop(router.ask(&remove(own))),
                5 => router.later(Duration::from_millis(u64::from(*length) * 40)),
                6 => drop(router.ask(own)),
                _ => {
                    for address in [v4(own), v6(own)] {
                        router.check(address).expect("tables that agree");
                    }
                }
            }
        }
        sent
    })
}

fn pass(router: &mut Detached, pool: &PoolHandle, port: usize, frame: &[u8]) -> usize {
    let frame = &frame[..frame.len().min(MOST)];
    let mut batch = Batch::new();
    pool.fill(&mut batch, 1, frame.len() as u16);
    batch.packets_mut()[0].bytes_mut().copy_from_slice(frame);
    router.pass(port, &mut batch).expect("one outcome")
}

fn byte(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or(0)
}

/// Returns an address near the addresses of the router.
fn v4(bytes: &[u8]) -> IpAddr {
    IpAddr::from([10, byte(bytes, 0) % 4, byte(bytes, 1) % 4, byte(bytes, 2)])
}

fn v6(bytes: &[u8]) -> IpAddr {
    let [a, b] = [byte(bytes, 0) % 4, byte(bytes, 1)].map(u16::from);
    Ipv6Addr::new(0x2001, 0xdb8, a, 0, 0, 0, 0, b).into()
}

/// Builds a datagram to the router, with some bytes of its headers from the input.
fn packet(operation: u8, bytes: &[u8]) -> Vec<u8> {
    let flow = taut_wire::UdpFlow {
        dst_mac: taut_wire::Mac(OWN[usize::from(operation >> 7)]),
        src_ip: if operation & 64 == 0 {
            [10, 0, 0, 7].into()
        } else {
            v6(&[0, 7])
        },
        dst_ip: if operation & 64 == 0 {
            v4(bytes)
        } else {
            v6(bytes)
        },
        ..taut_wire::UdpFlow::default()
    };
    let size = 100 + usize::from(byte(bytes, 3)) * 5;
    let mut frame = flow.frame(size).unwrap_or_default();
    for damage in bytes.get(4..).unwrap_or_default().chunks_exact(2) {
        if let Some(at) = frame.get_mut(14 + usize::from(damage[0]) % 40) {
            *at = damage[1];
        }
    }
    if let Ok(mut ip) = taut_wire::Ipv4::new(frame.get_mut(14..).unwrap_or_default()) {
        ip.fill_checksum();
    }
    frame
}

/// Builds an ARP request or reply from a neighbour of the router.
fn question(operation: u8, bytes: &[u8]) -> Vec<u8> {
    let port = operation >> 7;
    let mut frame = vec![0xff; 6];
    frame.extend([
        2,
        0,
        0,
        0,
        1,
        byte(bytes, 0),
        8,
        6,
        0,
        1,
        8,
        0,
        6,
        4,
        0,
        1 + (operation & 64) / 64,
    ]);
    frame.extend([2, 0, 0, 0, 1, byte(bytes, 0), 10, 0, port, byte(bytes, 1)]);
    frame.extend([0, 0, 0, 0, 0, 0, 10, 0, port, 1]);
    frame
}

fn prefix(bytes: &[u8]) -> String {
    let length = byte(bytes, 3);
    match length & 128 {
        0 => {
            // Shorter prefixes take milliseconds, as they fill millions of entries.
            let length = 8 + length % 25;
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            let IpAddr::V4(address) = v4(bytes) else {
                return String::new();
            };
            format!(
                "{}/{length}",
                std::net::Ipv4Addr::from(u32::from(address) & mask)
            )
        }
        _ => {
            let length = length & 127;
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            let IpAddr::V6(address) = v6(bytes) else {
                return String::new();
            };
            format!("{}/{length}", Ipv6Addr::from(u128::from(address) & mask))
        }
    }
}

fn add(operation: u8, bytes: &[u8]) -> Vec<u8> {
    let prefix = prefix(bytes);
    let (near, far) = match prefix.contains(':') {
        true => ("2001:db8::9", "2001:db8:1::9"),
        false => ("10.0.0.9", "10.0.1.9"),
    };
    let route = match operation >> 4 {
        0 => format!("blackhole {prefix}"),
        1 => format!("unreachable {prefix}"),
        2 => format!("prohibit {prefix}"),
        3 => format!("{prefix} dev {}", byte(bytes, 4) % 3),
        4..=7 => format!("{prefix} nexthop via {near} nexthop via {far}"),
        8..=11 => format!("{prefix} via {near}"),
        _ => format!("{prefix} via {far}"),
    };
    format!(
        "{{\"op\":\"add\",\"routes\":[\"{route}\"],\"replace\":{}}}",
        operation & 8 == 0
    )
    .into_bytes()
}

fn remove(bytes: &[u8]) -> Vec<u8> {
    format!("{{\"op\":\"remove\",\"prefixes\":[\"{}\"]}}", prefix(bytes)).into_bytes()
}
