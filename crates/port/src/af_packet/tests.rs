//! The backend on real interfaces; needs root, and says so where it is lacking.
#![allow(clippy::unwrap_used)]

use crate::interface_tests::{self as each_backend, Testbed, both_ends, frame_bytes, open};
use crate::{Batch, PortSpec, Resources};

#[test]
fn frames_cross_both_ways_in_order() {
    each_backend::frames_cross_both_ways_in_order("af_packet", ",ring=64");
}

#[test]
fn frames_too_long_or_too_short_are_counted() {
    each_backend::frames_too_long_or_too_short_are_counted("af_packet", "");
}

#[test]
fn an_owner_that_sleeps_is_woken() {
    let Some(bed) = Testbed::new(1) else { return };
    let (mut left, mut right) = both_ends(&bed, "af_packet", "");
    each_backend::an_owner_that_sleeps_is_woken(&mut right, &mut left);
}

#[test]
fn a_full_receive_ring_counts_what_it_loses() {
    each_backend::a_full_receive_ring_counts_what_it_loses("af_packet", "");
}

#[test]
fn traffic_resumes_after_the_link_was_down() {
    each_backend::traffic_resumes_after_the_link_was_down("af_packet", "");
}

#[test]
fn an_interface_that_vanishes_is_told_and_may_return() {
    each_backend::an_interface_that_vanishes_is_told_and_may_return("af_packet", "");
}

#[test]
fn what_is_missing_is_named() {
    each_backend::what_is_missing_is_named("af_packet");
}

#[test]
fn vlan_tags_arrive_where_they_were() {
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
fn a_forwarder_receives_in_place_and_the_ring_flows_on() {
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
fn a_packet_outlives_the_port_it_came_through() {
    let Some(bed) = Testbed::new(1) else { return };
    let (mut left, mut right) = both_ends(&bed, "af_packet", "");
    left.send(&frame_bytes(5, 60));
    let mut batch = Batch::new();
    right.receive(&mut batch, 1);
    drop(right);
    assert_eq!(batch.packets()[0].bytes(), frame_bytes(5, 60));
}

#[test]
fn a_ring_of_odd_size_is_refused() {
    let error = open("af_packet:lo,ring=100").err().unwrap().to_string();
    assert!(error.contains("power of two"), "{error}");
}
