//! The backend on real interfaces, in both modes; needs root, and says so where it is lacking.
#![allow(clippy::unwrap_used)]

use crate::interface_tests::{self as each_backend, Testbed, both_ends, frame_bytes, open};
use crate::{Batch, PortSpec, Resources};

#[test]
fn frames_cross_both_ways_in_order() {
    each_backend::frames_cross_both_ways_in_order("af_xdp", ",ring=64");
    each_backend::frames_cross_both_ways_in_order("af_xdp", ",ring=64,mode=generic");
}

#[test]
fn frames_too_long_or_too_short_are_counted() {
    each_backend::frames_too_long_or_too_short_are_counted("af_xdp", "");
}

#[test]
fn a_full_receive_ring_counts_what_it_loses() {
    each_backend::a_full_receive_ring_counts_what_it_loses("af_xdp", "");
    each_backend::a_full_receive_ring_counts_what_it_loses("af_xdp", ",mode=generic");
}

#[test]
fn traffic_resumes_after_the_link_was_down() {
    each_backend::traffic_resumes_after_the_link_was_down("af_xdp", "");
}

#[test]
fn an_interface_that_vanishes_is_told_and_may_return() {
    each_backend::an_interface_that_vanishes_is_told_and_may_return("af_xdp", "");
}

#[test]
fn what_is_missing_is_named() {
    each_backend::what_is_missing_is_named("af_xdp");
    let Some(bed) = Testbed::new(1) else { return };
    let error = bed.in_left(|| open("af_xdp:left0,queue=7").err().unwrap());
    assert!(
        error.is_missing() && error.to_string().contains("queue 7 of left0"),
        "{error}"
    );
}

#[test]
fn two_ports_of_one_worker_forward_without_moving_the_frame() {
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
        // A copy would have taken a frame and given one back, at once or when sent.
        assert!(pool.available() >= available);
        assert_eq!(sink.receive_one(), frame_bytes(number, 100));
    }
    drop((a, b));
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn a_packet_from_elsewhere_is_copied_into_the_pool() {
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
fn frames_return_to_the_pool_when_the_port_goes_and_the_queue_is_free_again() {
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
fn a_program_that_is_there_already_is_named() {
    let Some(bed) = Testbed::new(1) else { return };
    let _first = bed.in_left(|| open("af_xdp:left0").unwrap());
    let error = bed.in_left(|| open("af_xdp:left0").err().unwrap());
    let text = error.to_string();
    assert!(
        error.is_missing() && text.contains("has one (id "),
        "{text}"
    );
    assert!(text.contains("ip link set left0 xdp off"), "{text}");
}

#[test]
fn the_mode_taken_is_told() {
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
