//! Tests of the backend on real interfaces, in both modes. They need root; without root each test prints a line and is
//! skipped.
#![allow(clippy::unwrap_used)]

use super::program::{Program, Settings};
use crate::interface_tests::{self as each_backend, Testbed, both_ends, frame_bytes, open};
use crate::{Batch, PortSpec, Resources};
use taut_sys::interface::Interface;
use taut_sys::{ClockReading, StampClock};
use taut_xdp::Mode;

#[test]
fn frames_pass_in_both_directions_in_order() {
    each_backend::frames_pass_in_both_directions_in_order("af_xdp", ",ring=64");
    each_backend::frames_pass_in_both_directions_in_order("af_xdp", ",ring=64,mode=generic");
}

#[test]
fn frames_too_long_or_too_short_are_counted() {
    each_backend::frames_too_long_or_too_short_are_counted("af_xdp", "");
}

#[test]
fn a_sleeping_receiver_is_woken_for_every_frame() {
    let Some(bed) = Testbed::new(1) else { return };
    let (mut left, mut right) = both_ends(&bed, "af_xdp", "");
    each_backend::a_sleeping_receiver_is_woken_for_every_frame(&mut right, &mut left);
}

#[test]
fn frames_lost_to_a_full_receive_ring_are_counted() {
    each_backend::frames_lost_to_a_full_receive_ring_are_counted("af_xdp", "");
    each_backend::frames_lost_to_a_full_receive_ring_are_counted("af_xdp", ",mode=generic");
}

#[test]
fn traffic_resumes_after_the_link_was_down() {
    each_backend::traffic_resumes_after_the_link_was_down("af_xdp", "");
}

#[test]
fn a_deleted_interface_is_reported_and_its_replacement_is_used() {
    each_backend::a_deleted_interface_is_reported_and_its_replacement_is_used("af_xdp", "");
}

#[test]
fn errors_name_missing_interfaces_and_privileges() {
    each_backend::errors_name_missing_interfaces_and_privileges("af_xdp");
    let Some(bed) = Testbed::new(1) else { return };
    let error = bed.in_left(|| open("af_xdp:left0,queue=7").err().unwrap());
    assert!(
        error.is_missing() && error.to_string().contains("queue 7 of left0"),
        "{error}"
    );
}

#[test]
fn a_worker_forwards_between_two_ports_without_copying_the_frame() {
    let Some(bed) = Testbed::new(2) else { return };
    let (mut source, mut sink) = bed.in_left(|| {
        (
            open("af_xdp:left0").unwrap(),
            open("af_packet:left1").unwrap(),
        )
    });
    let specs = ["af_xdp:right0,ring=64", "af_xdp:right1,ring=64"]
        .map(|text| PortSpec::parse(text).unwrap());
    let mut resources = Resources::for_ports(&specs).unwrap();
    let pool = resources.pool();
    let [mut a, mut b] = bed.in_right(|| specs.map(|spec| spec.open(&mut resources).unwrap()));
    let mut batch = Batch::new();
    for number in 0..500 {
        source.send(&frame_bytes(number, 100));
        while a.rx(&mut batch) == 0 {}
        let packet = &batch.packets()[0];
        assert!(pool.owns(packet));
        assert!(packet.headroom() >= 128);
        let available = pool.available();
        while b.tx(&mut batch) == 0 {}
        // A copy would have taken one frame more from the pool.
        assert!(pool.available() >= available);
        assert_eq!(sink.receive_one(), frame_bytes(number, 100));
    }
    drop((a, b));
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn packets_received_on_af_packet_are_sent_by_af_xdp() {
    let Some(bed) = Testbed::new(2) else { return };
    let (mut source, mut sink) = bed.in_left(|| {
        (
            open("af_packet:left0").unwrap(),
            open("af_packet:left1").unwrap(),
        )
    });
    let specs =
        ["af_packet:right0", "af_xdp:right1,ring=64"].map(|text| PortSpec::parse(text).unwrap());
    let mut resources = Resources::for_ports(&specs).unwrap();
    let [mut a, mut b] = bed.in_right(|| specs.map(|spec| spec.open(&mut resources).unwrap()));
    let mut batch = Batch::new();
    for number in 0..500 {
        source.send(&frame_bytes(number, 100));
        while a.rx(&mut batch) == 0 {}
        while b.tx(&mut batch) == 0 {}
        assert_eq!(sink.receive_one(), frame_bytes(number, 100));
    }
}

#[test]
fn a_closed_port_returns_its_frames_and_frees_its_queue() {
    let Some(bed) = Testbed::new(1) else { return };
    let (mut left, right) = both_ends(&bed, "af_xdp", "");
    left.send(&frame_bytes(1, 60));
    let pool = right.resources.pool();
    drop((left, right));
    assert_eq!(pool.outstanding(), 0);
    let (mut left, mut right) = both_ends(&bed, "af_xdp", "");
    left.send(&frame_bytes(2, 60));
    assert_eq!(right.receive_one(), frame_bytes(2, 60));
}

#[test]
fn two_queues_of_one_interface_share_the_program() {
    let Some(bed) = Testbed::new(1) else { return };
    let mut left = bed.in_left(|| open("af_xdp:left0,queue=1").unwrap());
    let specs = ["af_xdp:right0,queue=0", "af_xdp:right0,queue=1"]
        .map(|text| PortSpec::parse(text).unwrap());
    let mut resources = Resources::for_ports(&specs).unwrap();
    let [mut first, mut second] =
        bed.in_right(|| specs.map(|spec| spec.open(&mut resources).unwrap()));
    let mut batch = Batch::new();
    left.send(&frame_bytes(1, 60));
    while second.rx(&mut batch) == 0 {}
    assert_eq!(batch.packets()[0].bytes(), frame_bytes(1, 60));
    assert_eq!(first.rx(&mut batch), 0);
}

#[test]
fn each_worker_receives_only_from_its_queue_of_the_interface() {
    let Some(bed) = Testbed::new(1) else { return };
    let [mut first, mut second] = ["af_xdp:left0,queue=0", "af_xdp:left0,queue=1"]
        .map(|text| bed.in_left(|| open(text).unwrap()));
    let spec = PortSpec::parse("af_xdp:right0,queue=0-1").unwrap();
    let mut opened = each_backend::parts_of(&bed, &spec, 2);
    for number in 0..100 {
        for (sender, worker) in [(&mut first, 0), (&mut second, 1)] {
            sender.send(&frame_bytes(number, 60));
            assert_eq!(opened[worker].receive_one(), frame_bytes(number, 60));
            assert_eq!(opened[1 - worker].port.rx(&mut Batch::new()), 0);
        }
    }
    let error = spec.parts(3).err().unwrap().to_string();
    assert!(
        error.contains("3 workers need as many queues, not 2"),
        "{error}"
    );
}

#[test]
fn an_xdp_program_already_attached_is_reported_with_its_process() {
    let Some(bed) = Testbed::new(1) else { return };
    let _first = bed.in_left(|| {
        let lookup = std::net::UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let index = Interface::find(&lookup, "left0").unwrap().index;
        Program::attach(
            "a test",
            "left0",
            index,
            &[Mode::Native],
            &Settings::default(),
        )
        .unwrap()
    });
    let error = bed.in_left(|| open("af_xdp:left0").err().unwrap());
    let text = error.to_string();
    assert!(
        error.is_missing() && text.contains("has one (id "),
        "{text}"
    );
    let holder = format!("process {} (", std::process::id());
    assert!(
        text.contains(&holder) && text.contains("has attached it"),
        "{text}"
    );
}

#[test]
fn port_details_report_the_xdp_mode_in_use() {
    let Some(bed) = Testbed::new(1) else { return };
    for (mode, want) in [
        ("", "native"),
        (",mode=native", "native"),
        (",mode=generic", "generic"),
    ] {
        let opened = bed.in_left(|| open(&format!("af_xdp:left0{mode}")).unwrap());
        assert!(
            opened.port.details().starts_with(want),
            "{}",
            opened.port.details()
        );
    }
    let error = open("af_xdp:left0,mode=fast").err().unwrap().to_string();
    assert!(error.contains("native or generic"), "{error}");
}

/// Returns a broadcast frame with `rest` after its addresses.
fn ether(rest: &[u8]) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1]);
    frame.extend(rest);
    frame
}

/// Returns an IPv4 packet with a UDP header, including its EtherType.
fn ipv4_udp(fragment: u16, port: u16) -> Vec<u8> {
    let mut packet = vec![0x08, 0x00, 0x45, 0, 0, 46, 0, 1];
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2, 0x30, 0x39]);
    packet.extend(port.to_be_bytes());
    packet.extend([0, 26, 0, 0]);
    packet.resize(48, 7);
    packet
}

fn ipv6_udp(port: u16) -> Vec<u8> {
    let mut packet = vec![0x86, 0xdd, 0x60, 0, 0, 0, 0, 16, 17, 64];
    packet.resize(42, 0x20);
    packet.extend([0x30, 0x39]);
    packet.extend(port.to_be_bytes());
    packet.extend([0, 16, 0, 0]);
    packet.resize(58, 7);
    packet
}

fn tagged(inside: &[u8]) -> Vec<u8> {
    [&[0x81, 0x00, 0x00, 0x07], inside].concat()
}

#[test]
fn frames_without_a_filter_match_are_left_to_the_kernel() {
    let Some(bed) = Testbed::new(1) else { return };
    let arp = [&[0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1][..], &[7; 36]].concat();
    let mut cut_short = ether(&ipv4_udp(0, 2152));
    cut_short.truncate(14 + 22);
    let frames = [
        (ether(&ipv4_udp(0, 2152)), true),
        (ether(&ipv6_udp(2152)), true),
        (ether(&tagged(&ipv4_udp(0, 2152))), true),
        (ether(&[&[0x88, 0xf7][..], &[7; 46]].concat()), true),
        (ether(&ipv4_udp(0, 2153)), false),
        (ether(&ipv4_udp(0x2000, 2152)), false),
        (ether(&ipv4_udp(0x0003, 2152)), false),
        (ether(&arp), false),
        (ether(&tagged(&tagged(&ipv4_udp(0, 2152)))), false),
        (cut_short, false),
        (ether(&[0x08, 0x00, 0x45]), false),
    ];
    for mode in ["native", "generic"] {
        let mut left = bed.in_left(|| open("af_packet:left0").unwrap());
        let (mut right, mut kernel) = bed.in_right(|| {
            (
                open(&format!(
                    "af_xdp:right0,queue=0-1,filter=udp:2152+ether:0x88f7,mode={mode}"
                ))
                .unwrap(),
                open("af_packet:right0").unwrap(),
            )
        });
        for round in 0..3 {
            for (number, (frame, taken)) in frames.iter().enumerate() {
                println!("{mode}, round {round}, frame {number}");
                left.send(frame);
                let (wanted, other) = if *taken {
                    (&mut right, &mut kernel)
                } else {
                    (&mut kernel, &mut right)
                };
                let came = wanted.receive_one();
                assert_eq!(came[..frame.len()], frame[..]);
                // A packet socket receives frames before a generic XDP program takes them.
                let mut seen = Batch::new();
                other.port.rx(&mut seen);
                assert!(seen.is_empty() || mode == "generic" && *taken);
            }
        }
    }
}

#[test]
fn ports_of_one_interface_share_its_filter() {
    let Some(bed) = Testbed::new(1) else { return };
    let specs = ["queue=0,filter=udp", "queue=1,filter=tcp"]
        .map(|options| PortSpec::parse(&format!("af_xdp:right0,{options}")).unwrap());
    let mut resources = Resources::for_ports(&specs).unwrap();
    let error = bed.in_right(|| {
        let _first = specs[0].open(&mut resources).unwrap();
        specs[1].open(&mut resources).err().unwrap()
    });
    assert!(error.to_string().contains("same filter"), "{error}");
    assert!(!error.is_missing());
}

#[test]
fn ports_of_one_interface_use_the_same_timestamp_setting() {
    let Some(bed) = Testbed::new(1) else { return };
    let specs = ["queue=0,stamps=kernel", "queue=1"]
        .map(|options| PortSpec::parse(&format!("af_xdp:right0,{options}")).unwrap());
    let mut resources = Resources::for_ports(&specs).unwrap();
    let error = bed.in_right(|| {
        let _first = specs[0].open(&mut resources).unwrap();
        specs[1].open(&mut resources).err().unwrap()
    });
    assert!(error.to_string().contains("mode and stamps"), "{error}");
}

#[test]
fn arrival_timestamps_are_between_sending_and_receipt_of_each_frame() {
    let Some(bed) = Testbed::new(1) else { return };
    let now = || ClockReading::now(StampClock::Monotonic).unwrap().ns;
    let stamped = |options: &str| format!("af_xdp:right0,ring=64,stamps=kernel{options}");
    for options in ["", ",mode=generic", ",filter=ether:0x88b5"] {
        let mut left = bed.in_left(|| open("af_xdp:left0").unwrap());
        let mut right = bed.in_right(|| open(&stamped(options)).unwrap());
        assert_eq!(right.port.stamp_clock(), Some(StampClock::Monotonic));
        let mut batch = Batch::new();
        // The indexes wrap around the ring several times.
        for round in 0..100 {
            let before = now();
            for number in 0..8 {
                left.send(&frame_bytes(round * 8 + number, 60));
            }
            let mut stamps = Vec::new();
            while batch.len() < 8 {
                let n = right.port.rx(&mut batch);
                assert_eq!(right.port.arrival_stamps().len(), n);
                stamps.extend_from_slice(right.port.arrival_stamps());
                assert!(now() - before < 10_000_000_000, "{options}: {batch:?}");
            }
            let between = stamps.iter().all(|at| (before..=now()).contains(at));
            assert!(between && stamps.is_sorted(), "{options}: {stamps:?}");
            batch.clear();
        }
    }
    let (mut left, mut right) = both_ends(&bed, "af_xdp", "");
    left.send(&frame_bytes(1, 60));
    assert_eq!(right.receive_one(), frame_bytes(1, 60));
    assert!(right.port.arrival_stamps().is_empty() && right.port.stamp_clock().is_none());
}

#[test]
fn a_port_receives_frames_from_all_its_queues() {
    let Some(bed) = Testbed::with_queues(1, 4) else {
        return;
    };
    for (options, queues) in [("queue=0-3", 0..4_u32), ("queue=1-2", 1..3)] {
        let (first, sent) = (queues.start, 200 * u64::from(queues.end - queues.start));
        let spec = PortSpec::parse(&format!("af_xdp:right0,ring=64,{options}")).unwrap();
        let mut resources = Resources::for_ports(std::slice::from_ref(&spec)).unwrap();
        let pool = resources.pool();
        let mut right = bed.in_right(|| spec.open(&mut resources).unwrap());
        assert!(right.details().contains(", queues "), "{}", right.details());
        let mut batch = Batch::new();
        for queue in queues {
            // A frame arrives at the queue with the number of the queue through which it was sent.
            let mut left = bed.in_left(|| open(&format!("af_xdp:left0,queue={queue}")).unwrap());
            for number in 0..200 {
                left.send(&frame_bytes(number, 60));
                while right.rx(&mut batch) == 0 {}
                assert_eq!(batch.packets()[0].bytes(), frame_bytes(number, 60));
                batch.clear();
            }
            // The port sends only through its first queue.
            if queue == first {
                pool.fill(&mut batch, 1, 60);
                batch.packets_mut()[0]
                    .bytes_mut()
                    .copy_from_slice(&frame_bytes(9, 60));
                while right.tx(&mut batch) == 0 {}
                assert_eq!(left.receive_one(), frame_bytes(9, 60));
            }
        }
        assert_eq!(right.counters().rx_packets, sent);
        drop(right);
        assert_eq!(pool.outstanding(), 0);
    }
}

#[test]
fn a_busy_queue_does_not_starve_other_queues() {
    let Some(bed) = Testbed::with_queues(1, 4) else {
        return;
    };
    let mut right = bed.in_right(|| open("af_xdp:right0,queue=0-3").unwrap());
    let mut full = bed.in_left(|| open("af_xdp:left0,queue=2").unwrap());
    for number in 0..1000 {
        full.send(&frame_bytes(number, 60));
    }
    drop(full);
    let mut quiet = bed.in_left(|| open("af_xdp:left0,queue=3").unwrap());
    quiet.send(&frame_bytes(5000, 60));
    let mut batch = Batch::new();
    let found = (0..8).any(|_| {
        batch.clear();
        right.port.rx(&mut batch);
        let frames = batch.packets();
        frames.iter().any(|p| p.bytes() == frame_bytes(5000, 60))
    });
    assert!(found);
}

#[test]
fn frames_pass_with_busy_polling_and_without_wakeup_flags() {
    each_backend::frames_pass_in_both_directions_in_order("af_xdp", ",ring=64,poll=busy");
    each_backend::frames_pass_in_both_directions_in_order("af_xdp", ",ring=64,wakeup=always");
    each_backend::frames_pass_in_both_directions_in_order(
        "af_xdp",
        ",queue=0-1,poll=busy,copy=copy",
    );
}

#[test]
fn a_worker_forwards_between_ports_with_different_bind_options() {
    let Some(bed) = Testbed::new(2) else { return };
    let (mut source, mut sink) = bed.in_left(|| {
        (
            open("af_xdp:left0").unwrap(),
            open("af_packet:left1").unwrap(),
        )
    });
    let specs = [
        "af_xdp:right0,wakeup=always",
        "af_xdp:right1,queue=0-1,copy=copy",
    ]
    .map(|text| PortSpec::parse(text).unwrap());
    let mut resources = Resources::for_ports(&specs).unwrap();
    let pool = resources.pool();
    let [mut a, mut b] = bed.in_right(|| specs.map(|spec| spec.open(&mut resources).unwrap()));
    let mut batch = Batch::new();
    for number in 0..500 {
        source.send(&frame_bytes(number, 100));
        while a.rx(&mut batch) == 0 {}
        assert!(pool.owns(&batch.packets()[0]));
        while b.tx(&mut batch) == 0 {}
        assert_eq!(sink.receive_one(), frame_bytes(number, 100));
    }
    drop((a, b));
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn invalid_or_unsupported_options_are_refused() {
    let Some(bed) = Testbed::new(1) else { return };
    for (options, part) in [
        ("queue=3-1", "a range 0-3"),
        ("queue=1024", "0 to 1023"),
        ("queue=a", "0 to 1023"),
        ("filter=upd", "expected all, or up to 8 of"),
        ("copy=never", "auto or zero or copy"),
        ("poll=slow", "interrupt or busy"),
        ("wakeup=no", "need or always"),
        ("copy=zero,mode=generic", "leave out mode=generic"),
        (
            "stamps=hardware",
            "read no hardware stamps; expected kernel",
        ),
        ("stamps=sun", "expected kernel"),
    ] {
        let error = bed.in_left(|| open(&format!("af_xdp:left0,{options}")).err().unwrap());
        assert!(!error.is_missing(), "{error}");
        assert!(error.to_string().contains(part), "{options}: {error}");
    }
    for (options, part) in [
        ("copy=zero", "a driver of left0 with AF_XDP zero copy"),
        ("queue=0-5", "queue 2 of left0, which has fewer"),
    ] {
        let error = bed.in_left(|| open(&format!("af_xdp:left0,{options}")).err().unwrap());
        assert!(error.is_missing(), "{error}");
        assert!(error.to_string().contains(part), "{options}: {error}");
    }
}

#[test]
fn port_details_report_whether_busy_polling_works() {
    let Some(bed) = Testbed::new(1) else { return };
    let (mut left, mut right) = both_ends(&bed, "af_xdp", ",poll=busy");
    left.send(&frame_bytes(1, 60));
    right.receive_one();
    let details = right.port.details();
    // Linux 6.13 and later allow busy polling for veth, which does not number its queues.
    assert!(
        details.contains("busy polling of NAPI ")
            || details.contains("no effect: the driver names no queue"),
        "{details}"
    );
}
