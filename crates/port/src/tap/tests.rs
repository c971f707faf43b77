//! Tests of the backend in temporary network namespaces. They need root; without root each test prints a line and is
//! skipped.
#![allow(clippy::unwrap_used)]

use crate::interface_tests::{Opened, Testbed, frame_bytes, open};
use crate::{Batch, Link};
use std::process::Command;

/// Makes a testbed without veth pairs; returns None and prints a line if taps cannot be made.
fn testbed() -> Option<Testbed> {
    let bed = Testbed::new(0)?;
    if let Err(error) = super::device::probe() {
        eprintln!("skipped: needs {error}");
        return None;
    }
    Some(bed)
}

/// Returns the output of `ip` for the interface.
fn shown(name: &str) -> String {
    let output = Command::new("ip")
        .args(["addr", "show", name])
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Makes a tap port and a packet socket on its kernel interface: each receives what the other sends.
fn tap_and_socket(bed: &Testbed, options: &str) -> (Opened, Opened) {
    bed.in_left(|| {
        let tap = open(&format!("tap:tap0{options}")).unwrap();
        (tap, open("af_packet:tap0,ring=4096").unwrap())
    })
}

fn down(opened: &mut Opened) -> String {
    match opened.port.link() {
        Link::Up => panic!("up"),
        Link::Down(why) => why,
    }
}

#[test]
fn frames_pass_in_both_directions_in_order() {
    let Some(bed) = testbed() else { return };
    let (mut tap, mut socket) = tap_and_socket(&bed, "");
    let length = |number: u64| 60 + (number * 97 % 1455) as usize;
    let mut total = 0;
    for (from, to) in [(0, 1), (1, 0)] {
        let mut number = 0;
        while number < 3000 {
            let (mut batch, mut received) = (Batch::new(), Batch::new());
            let ends = [&mut tap, &mut socket];
            let first = number;
            for _ in 0..1 + number % 64 {
                ends[from].load(&mut batch, &frame_bytes(number, length(number)));
                number += 1;
            }
            while !batch.is_empty() {
                ends[from].port.tx(&mut batch);
            }
            ends[to].receive(&mut received, (number - first) as usize);
            for (packet, n) in received.packets().iter().zip(first..) {
                assert!(packet.bytes() == frame_bytes(n, length(n)), "frame {n}");
            }
        }
        total = number;
    }
    let counters = tap.port.counters();
    assert_eq!((counters.rx_packets, counters.tx_packets), (total, total));
    assert_eq!(counters.rx_bytes, counters.tx_bytes);
    assert_eq!(tap.resources.pool().outstanding(), 0);
}

#[test]
fn a_sleeping_receiver_is_woken_for_every_frame() {
    let Some(bed) = testbed() else { return };
    let (mut tap, mut socket) = tap_and_socket(&bed, "");
    crate::interface_tests::a_sleeping_receiver_is_woken_for_every_frame(&mut tap, &mut socket);
}

#[test]
fn an_interface_has_the_requested_settings_until_the_port_closes() {
    let Some(bed) = testbed() else { return };
    bed.in_left(|| {
        let options = ",address=192.0.2.1/28,mac=02:00:00:00:0a:01,mtu=1280,queue=77";
        let mut tap = open(&format!("tap:tap0{options}")).unwrap();
        assert_eq!(tap.port.link(), Link::Up);
        let text = shown("tap0");
        for part in [
            "UP",
            "inet 192.0.2.1/28",
            "link/ether 02:00:00:00:0a:01",
            "mtu 1280",
            "qlen 77",
        ] {
            assert!(text.contains(part), "no {part}: {text}");
        }
        let mut batch = Batch::new();
        tap.load(&mut batch, &frame_bytes(0, 1280 + 14));
        tap.load(&mut batch, &frame_bytes(1, 1280 + 15));
        tap.load(&mut batch, &frame_bytes(2, 60)[..13]);
        assert_eq!(tap.port.tx(&mut batch), 3);
        let counters = tap.port.counters();
        assert_eq!(
            (
                counters.tx_packets,
                counters.tx_too_long,
                counters.tx_failed
            ),
            (1, 1, 1)
        );
        drop(tap);
        assert_eq!(shown("tap0"), "");
    });
}

#[test]
fn the_kernel_replies_to_arp_requests_through_the_tap() {
    let Some(bed) = testbed() else { return };
    let mut tap =
        bed.in_left(|| open("tap:tap0,address=192.0.2.1/24,mac=02:00:00:00:00:0a").unwrap());
    // ARP request for 192.0.2.1 from 192.0.2.9, at 02:00:00:00:00:09 (RFC 826).
    let asker = [2, 0, 0, 0, 0, 9];
    let mut question = [[0xff; 6], asker].concat();
    question.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
    question.extend(asker);
    question.extend([192, 0, 2, 9, 0, 0, 0, 0, 0, 0, 192, 0, 2, 1]);
    question.resize(60, 0);
    tap.send(&question);
    let answer = tap.receive_one();
    assert_eq!(answer[..6], asker);
    assert_eq!(answer[12..14], [0x08, 0x06]);
    assert_eq!(answer[20..22], [0, 2]);
    assert_eq!(answer[22..28], [2, 0, 0, 0, 0, 0x0a]);
    assert_eq!(answer[28..32], [192, 0, 2, 1]);
}

#[test]
fn a_link_that_is_down_or_deleted_is_reported() {
    let Some(bed) = testbed() else { return };
    let mut tap = bed.in_left(|| open("tap:tap0").unwrap());
    bed.left_ip("link set tap0 down");
    assert!(down(&mut tap).contains("ip link set tap0 up"));
    let mut batch = Batch::new();
    tap.load(&mut batch, &frame_bytes(0, 60));
    assert_eq!(tap.port.tx(&mut batch), 0);
    bed.left_ip("link set tap0 up");
    assert_eq!(tap.port.tx(&mut batch), 1);
    bed.move_to_right("tap0");
    assert_eq!(tap.port.link(), Link::Up);
    bed.right_ip("link del tap0");
    assert!(down(&mut tap).contains("tap0 was deleted"));
    tap.load(&mut batch, &frame_bytes(0, 60));
    assert_eq!(tap.port.tx(&mut batch), 0);
    assert_eq!(tap.port.rx(&mut Batch::new()), 0);
}

#[test]
fn an_interface_name_in_use_is_refused_without_side_effects() {
    let Some(bed) = testbed() else { return };
    bed.in_left(|| {
        let mut first = open("tap:tap0").unwrap();
        for name in ["tap0", "lo"] {
            let error = open(&format!("tap:{name}")).err().unwrap();
            assert!(error.is_missing(), "{error}");
            assert!(error.to_string().contains("is taken"), "{error}");
        }
        assert_eq!(first.port.link(), Link::Up);
    });
}

#[test]
fn invalid_specs_are_refused_with_the_valid_values() {
    for (spec, want) in [
        ("tap:tap%d", "not a valid interface name"),
        ("tap:sixteen-letters-", "1 to 15"),
        ("tap:t,mac=02:00:00:00:00", "02:00:00:00:00:01"),
        ("tap:t,mac=02:00:00:00:00:+1", "02:00:00:00:00:01"),
        ("tap:t,mac=03:00:00:00:00:01", "unicast address"),
        ("tap:t,address=10.0.0.1", "10.1.1.1/24"),
        ("tap:t,address=10.0.0.1/33", "10.1.1.1/24"),
        ("tap:t,mtu=9000", "68 to 1900"),
    ] {
        let error = open(spec).err().unwrap();
        assert!(!error.is_missing(), "{error}");
        assert!(error.to_string().contains(want), "{error}");
    }
}

#[test]
fn the_error_without_cap_net_admin_names_the_capability() {
    let Some(bed) = testbed() else { return };
    drop(bed);
    // Capabilities belong to a single thread.
    let error = std::thread::spawn(|| {
        crate::interface_tests::give_up_capabilities();
        assert!(super::device::probe().is_err());
        open("tap:taut-no").err().unwrap()
    });
    let error = error.join().unwrap();
    assert!(error.is_missing(), "{error}");
    assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
}
