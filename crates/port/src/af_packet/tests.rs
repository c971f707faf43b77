//! Tests of the backend on real interfaces. They need root; without root each test prints a line and is skipped.
#![allow(clippy::unwrap_used)]

use crate::interface_tests::{
    self as each_backend, PATIENCE, Testbed, both_ends, frame_bytes, open,
};
use crate::{Batch, PortSpec, Resources};
use std::time::Instant;

#[test]
fn frames_pass_in_both_directions_in_order() {
    each_backend::frames_pass_in_both_directions_in_order("af_packet", ",ring=64");
}

#[test]
fn frames_too_long_or_too_short_are_counted() {
    each_backend::frames_too_long_or_too_short_are_counted("af_packet", "");
}

#[test]
fn a_sleeping_receiver_is_woken_for_every_frame() {
    let Some(bed) = Testbed::new(1) else { return };
    let (mut left, mut right) = both_ends(&bed, "af_packet", "");
    each_backend::a_sleeping_receiver_is_woken_for_every_frame(&mut right, &mut left);
}

#[test]
fn frames_lost_to_a_full_receive_ring_are_counted() {
    each_backend::frames_lost_to_a_full_receive_ring_are_counted("af_packet", "");
}

#[test]
fn traffic_resumes_after_the_link_was_down() {
    each_backend::traffic_resumes_after_the_link_was_down("af_packet", "");
}

#[test]
fn a_deleted_interface_is_reported_and_its_replacement_is_used() {
    each_backend::a_deleted_interface_is_reported_and_its_replacement_is_used("af_packet", "");
}

#[test]
fn errors_name_missing_interfaces_and_privileges() {
    each_backend::errors_name_missing_interfaces_and_privileges("af_packet");
}

#[test]
fn received_vlan_tags_are_restored_at_their_offset() {
    let Some(bed) = Testbed::new(1) else { return };
    let (mut left, mut right) = both_ends(&bed, "af_packet", "");
    for (kind, len) in [([0x81, 0x00], 64), ([0x88, 0xa8], 64), ([0x81, 0x00], 1518)] {
        let mut bytes = frame_bytes(0, len);
        bytes[12..18].copy_from_slice(&[kind[0], kind[1], 0x60, 0x2a, 0x88, 0xb5]);
        left.send(&bytes);
        assert_eq!(right.receive_one(), bytes);
    }
    assert_eq!(left.port.counters().tx_too_long, 0);
}

#[test]
fn a_forwarder_receives_without_copies_and_uses_all_ring_slots() {
    let Some(bed) = Testbed::new(2) else { return };
    let (mut source, mut sink) = bed.in_left(|| {
        (
            open("af_packet:left0").unwrap(),
            open("af_packet:left1").unwrap(),
        )
    });
    let specs = ["af_packet:right0,ring=64", "af_packet:right1,ring=64"]
        .map(|text| PortSpec::parse(text).unwrap());
    let mut resources = Resources::for_ports(&specs).unwrap();
    let [mut a, mut b] = bed.in_right(|| specs.map(|s| s.open(&mut resources).unwrap()));
    let mut batch = Batch::new();
    let mut places = std::collections::BTreeSet::new();
    for number in 0..500 {
        source.send(&frame_bytes(number, 100));
        while a.rx(&mut batch) == 0 {}
        places.insert(batch.packets()[0].data());
        assert_eq!(resources.pool().outstanding(), 0);
        while b.tx(&mut batch) == 0 {}
        assert_eq!(sink.receive_one(), frame_bytes(number, 100));
    }
    assert_eq!(places.len(), 64);
}

#[test]
fn received_packets_remain_valid_after_the_port_closes() {
    let Some(bed) = Testbed::new(1) else { return };
    let (mut left, mut right) = both_ends(&bed, "af_packet", "");
    left.send(&frame_bytes(5, 60));
    let mut batch = Batch::new();
    right.receive(&mut batch, 1);
    drop(right);
    assert_eq!(batch.packets()[0].bytes(), frame_bytes(5, 60));
}

#[test]
fn ring_sizes_other_than_powers_of_two_are_refused() {
    let error = open("af_packet:lo,ring=100").err().unwrap().to_string();
    assert!(error.contains("power of two"), "{error}");
}

/// Returns a frame of 60 bytes with IPv4 and UDP headers, from which the kernel can compute its flow hash. `from` and
/// `to` are pairs of an address and a port.
fn udp(from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Vec<u8> {
    let mut frame = frame_bytes(0, 60);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..26].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0]);
    frame[26..30].copy_from_slice(&from.0);
    frame[30..34].copy_from_slice(&to.0);
    frame[34..36].copy_from_slice(&from.1.to_be_bytes());
    frame[36..38].copy_from_slice(&to.1.to_be_bytes());
    frame[38..40].copy_from_slice(&26_u16.to_be_bytes());
    frame
}

#[test]
fn every_worker_receives_again_after_an_interface_is_recreated() {
    let Some(bed) = Testbed::new(1) else { return };
    let mut left = bed.in_left(|| open("af_packet:left0").unwrap());
    let spec = PortSpec::parse("af_packet:right0,ring=64").unwrap();
    let mut workers = each_backend::parts_of(&bed, &spec, 2);
    // Sends many flows, and returns the number of flows that each worker received; the last packets of a worker are not
    // released.
    let spread = |left: &mut each_backend::Opened, workers: &mut [each_backend::Opened]| {
        let mut shares = [0; 2];
        let mut batches = [Batch::new(), Batch::new()];
        for number in 0..40 {
            left.send(&udp(([10, 0, 0, 1], 1000 + number), ([10, 0, 0, 2], 53)));
            let begun = Instant::now();
            let mut found = None;
            while found.is_none() && begun.elapsed() < PATIENCE {
                found = (0..2).find(|at| workers[*at].port.rx(&mut batches[*at]) > 0);
            }
            shares[found.unwrap()] += 1;
        }
        (shares, batches)
    };
    let (before, held) = spread(&mut left, &mut workers);
    for _ in 0..3 {
        bed.right_ip("link del right0");
        for worker in &mut workers {
            assert!(!worker.port.link().is_up());
        }
        bed.plug_in(0);
        bed.in_left(|| left.wait_for_link());
        bed.in_right(|| workers.iter_mut().for_each(|it| it.wait_for_link()));
        let (after, _) = spread(&mut left, &mut workers);
        assert!(after.iter().all(|share| *share > 5), "{before:?} {after:?}");
    }
    // The packets keep the rings' memory mapped, although the ports are closed.
    assert_eq!(held.iter().map(Batch::len).sum::<usize>(), 40);
    for batch in &held {
        assert!(
            batch
                .packets()
                .iter()
                .all(|it| it.bytes()[12..14] == [8, 0])
        );
    }
    drop(held);
    assert_eq!(
        workers
            .iter_mut()
            .map(|it| it.port.counters().rx_packets)
            .sum::<u64>(),
        160
    );
}

#[test]
fn both_directions_of_a_flow_reach_the_same_worker() {
    let Some(bed) = Testbed::new(1) else { return };
    let mut left = bed.in_left(|| open("af_packet:left0").unwrap());
    let spec = PortSpec::parse("af_packet:right0").unwrap();
    let mut workers = each_backend::parts_of(&bed, &spec, 2);
    let mut shares = [0; 2];
    for number in 0..64 {
        let (here, there) = (([10, 0, 0, 1], 1000 + number), ([10, 0, 0, 2], 53));
        let mut whose = Vec::new();
        for (from, to) in [(here, there), (there, here), (here, there)] {
            let frame = udp(from, to);
            left.send(&frame);
            let mut batch = Batch::new();
            let mut turns = (0..2).cycle();
            let worker = turns.find(|at| workers[*at].port.rx(&mut batch) > 0);
            assert_eq!(batch.packets()[0].bytes(), frame);
            whose.push(worker.unwrap());
        }
        assert!(whose.iter().all(|it| *it == whose[0]), "{whose:?}");
        shares[whose[0]] += 1;
    }
    assert!(shares.iter().all(|share| *share > 10), "{shares:?}");
}
