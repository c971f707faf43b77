//! Tests of forwarding in the kernel between real interfaces. They need root; without root each test prints a line and
//! is skipped.
#![allow(clippy::unwrap_used)]

use crate::interface_tests::{Opened, Testbed, frame_bytes, open};
use crate::{PortError, PortSpec};
use std::time::{Duration, Instant};
use taut_xdp::forward::{Address, HeaderChange, KernelCounters, KernelForwarder, KernelProgram};

const PATIENCE: Duration = Duration::from_secs(10);

fn start(
    bed: &Testbed,
    options: &str,
    changes: &[HeaderChange],
) -> Result<KernelForwarder, PortError> {
    let specs = ["right0", "right1"]
        .map(|name| PortSpec::parse(&format!("af_xdp:{name}{options}")).unwrap());
    bed.in_right(|| forward(&specs, changes))
}

fn forward(specs: &[PortSpec], changes: &[HeaderChange]) -> Result<KernelForwarder, PortError> {
    let program = KernelProgram::Headers(changes);
    Ok(KernelForwarder::start(&super::entrances(specs)?, program)?)
}

/// Returns ports on the far interfaces of both veth pairs: those to which the forwarder is not attached. `af_xdp` ports
/// attach an XDP program to them, without which veth drops redirected frames.
fn far_ends(bed: &Testbed, backend: &str) -> [Opened; 2] {
    let queues = if backend == "af_xdp" {
        ",queue=0-1"
    } else {
        ""
    };
    ["left0", "left1"]
        .map(|name| bed.in_left(|| open(&format!("{backend}:{name}{queues}")).unwrap()))
}

/// Returns the forwarder's counters once it has received `rx_packets` frames.
fn counted(forwarder: &KernelForwarder, rx_packets: u64) -> KernelCounters {
    let begun = Instant::now();
    loop {
        let counters = forwarder.counters();
        if counters.rx_packets >= rx_packets {
            return counters;
        }
        assert!(begun.elapsed() < PATIENCE, "{counters:?}");
    }
}

fn wait_for_links(bed: &Testbed, forwarder: &mut KernelForwarder) {
    let begun = Instant::now();
    while bed.in_right(|| forwarder.links()) != [Ok(()), Ok(())] {
        assert!(begun.elapsed() < PATIENCE);
    }
}

#[test]
fn frames_pass_in_both_directions_and_are_counted() {
    for (backend, options, mode) in [
        ("af_xdp", "", "native"),
        ("af_xdp", ",mode=native", "native"),
        ("af_xdp", ",mode=generic", "generic"),
        // The driver of this port's interface accepts no frames from native programs.
        ("af_packet", "", "generic"),
    ] {
        let Some(bed) = Testbed::new(2) else { return };
        let [mut a, mut b] = far_ends(&bed, backend);
        let mut forwarder = start(&bed, options, &[]).unwrap();
        let details = forwarder.details();
        assert_eq!(details.len(), 2, "{details:?}");
        assert!(
            details[0].starts_with(&format!("right0 to right1: {mode} XDP")),
            "{details:?}"
        );
        wait_for_links(&bed, &mut forwarder);
        let mut bytes = 0;
        for number in 0..300 {
            let len = 60 + number as usize * 4;
            bytes += 2 * len as u64;
            a.send(&frame_bytes(number, len));
            assert_eq!(b.receive_one(), frame_bytes(number, len));
            b.send(&frame_bytes(number, len));
            assert_eq!(a.receive_one(), frame_bytes(number, len));
        }
        let counters = counted(&forwarder, 600);
        assert_eq!((counters.rx_packets, counters.tx_packets), (600, 600));
        assert_eq!((counters.rx_bytes, counters.tx_bytes), (bytes, bytes));
        assert_eq!((counters.refused, counters.too_short), (0, 0));
    }
}

#[test]
fn mac_addresses_are_rewritten_as_configured_for_the_egress_port() {
    let Some(bed) = Testbed::new(2) else { return };
    let [mut a, mut b] = far_ends(&bed, "af_xdp");
    let fixed = HeaderChange {
        destination: Address::Fixed([2, 1, 1, 1, 1, 1]),
        source: Address::Fixed([2, 2, 2, 2, 2, 2]),
    };
    let _forwarder = start(&bed, "", &[HeaderChange::SWAP, fixed]).unwrap();
    a.send(&frame_bytes(7, 60));
    let mut wanted = frame_bytes(7, 60);
    wanted[..12].copy_from_slice(&[2, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
    assert_eq!(b.receive_one(), wanted);
    b.send(&frame_bytes(8, 60));
    let mut wanted = frame_bytes(8, 60);
    wanted[..12].rotate_left(6);
    assert_eq!(a.receive_one(), wanted);
}

#[test]
fn a_single_interface_sends_received_frames_back() {
    let Some(bed) = Testbed::new(1) else { return };
    let mut left = bed.in_left(|| open("af_xdp:left0,queue=0-1").unwrap());
    let spec = PortSpec::parse("af_packet:right0").unwrap();
    let _forwarder = bed
        .in_right(|| forward(&[spec], &[HeaderChange::SWAP]))
        .unwrap();
    left.send(&frame_bytes(7, 60));
    let mut wanted = frame_bytes(7, 60);
    wanted[..12].rotate_left(6);
    assert_eq!(left.receive_one(), wanted);
}

#[test]
fn frames_refused_by_the_egress_interface_are_counted() {
    // Frames redirected to a far end without XDP never reach the driver.
    let Some(bed) = Testbed::new(2) else { return };
    let mut a = bed.in_left(|| open("af_packet:left0").unwrap());
    let forwarder = start(&bed, ",mode=native", &[]).unwrap();
    let details = forwarder.details();
    assert!(
        details[0].contains("takes no frames from it"),
        "{details:?}"
    );
    for number in 0..50 {
        a.send(&frame_bytes(number, 60));
    }
    let counters = counted(&forwarder, 50);
    assert_eq!((counters.rx_packets, counters.tx_packets), (50, 0));
    assert_eq!(counters.refused, 50);
    drop((a, forwarder));

    // The other far end's queue is full, because it is not read while this thread sends.
    let [mut a, _b] = far_ends(&bed, "af_xdp");
    let forwarder = start(&bed, "", &[]).unwrap();
    bed.right_ip("link set right1 down");
    for number in 0..50 {
        a.send(&frame_bytes(number, 60));
    }
    let counters = counted(&forwarder, 50);
    assert_eq!((counters.tx_packets, counters.refused), (0, 50));
}

#[test]
fn a_deleted_interface_is_reported_and_its_replacement_is_used() {
    let Some(bed) = Testbed::new(2) else { return };
    let [mut a, b] = far_ends(&bed, "af_xdp");
    let mut forwarder = start(&bed, "", &[]).unwrap();
    bed.right_ip("link set right0 down");
    let links = bed.in_right(|| forwarder.links());
    assert!(
        matches!(&links[0], Err(why) if why.contains("ip link set right0 up")),
        "{links:?}"
    );
    bed.right_ip("link set right0 up");
    drop(b);
    bed.right_ip("link del right1");
    a.send(&frame_bytes(1, 60));
    let links = bed.in_right(|| forwarder.links());
    assert_eq!(links[1], Err("interface right1 was deleted".into()));
    counted(&forwarder, 1);
    bed.plug_in(1);
    let mut b = bed.in_left(|| open("af_xdp:left1,queue=0-1").unwrap());
    wait_for_links(&bed, &mut forwarder);
    a.send(&frame_bytes(2, 60));
    assert_eq!(b.receive_one(), frame_bytes(2, 60));
    b.send(&frame_bytes(3, 60));
    assert_eq!(a.receive_one(), frame_bytes(3, 60));
}

#[test]
fn dropping_the_forwarder_detaches_all_programs_from_the_interfaces() {
    let Some(bed) = Testbed::new(2) else { return };
    drop(start(&bed, "", &[]).unwrap());
    // This start would fail if a program were still attached to an interface.
    drop(start(&bed, "", &[]).unwrap());
    drop(bed.in_right(|| open("af_xdp:right0").unwrap()));
}

#[test]
fn unsupported_forwarding_is_refused_with_a_reason() {
    let Some(bed) = Testbed::new(2) else { return };
    let error = |texts: &[&str]| {
        let specs: Vec<_> = texts.iter().map(|t| PortSpec::parse(t).unwrap()).collect();
        bed.in_right(|| forward(&specs, &[])).err().unwrap()
    };
    for (texts, part) in [
        (&["null:"][..], "between interfaces only"),
        (
            &["af_xdp:right0,queue=1"],
            "queue has no effect in the kernel",
        ),
        (&["af_packet:right0,ring=64"], "ring has no effect"),
        (&["af_xdp:right0", "af_packet:right0"], "given twice"),
        (&["af_xdp:right0,mode=fast"], "native or generic"),
    ] {
        let error = error(texts);
        assert!(
            !error.is_missing() && error.to_string().contains(part),
            "{error}"
        );
    }
    let gone = error(&["af_xdp:none0"]);
    assert!(
        gone.is_missing() && gone.to_string().contains("\"none0\""),
        "{gone}"
    );
    let plain = error(&["af_xdp:lo,mode=native"]);
    let needs = "a driver of lo with XDP";
    assert!(
        plain.is_missing() && plain.to_string().contains(needs),
        "{plain}"
    );
    let _other = bed.in_right(|| open("af_xdp:right1").unwrap());
    let taken = error(&["af_xdp:right0", "af_xdp:right1"]);
    assert!(taken.is_missing(), "{taken}");
    assert!(taken.to_string().contains("right1 has one (id "), "{taken}");
    // The failed start has detached the programs that it had attached before the error.
    drop(bed.in_right(|| open("af_xdp:right0").unwrap()));
    // With this MTU a frame is longer than a page, which native mode does not support.
    bed.left_ip("link set left0 mtu 9000");
    let long = error(&["af_xdp:right0,mode=native"]);
    assert!(
        long.is_missing() && long.to_string().contains("a smaller MTU"),
        "{long}"
    );
}
