//! Tests that every port on a kernel interface must pass, on veth pairs between temporary network namespaces. The
//! backends' test files call them with their specs.
#![allow(clippy::unwrap_used)]

use crate::{Batch, Link, Port, PortError, PortSpec, Resources};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use taut_sys::Alarm;

/// The timeout after which a test fails because an expected frame or state has not arrived.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Two namespaces with `cables` veth pairs of two queues between them: `left0`, `left1`... in one, `right0`... in the
/// other. The namespaces are deleted when the testbed is dropped.
pub(crate) struct Testbed {
    left: String,
    right: String,
    queues: u32,
}

pub(crate) fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.expect("ip (iproute2) runs");
    assert!(output.status.success(), "ip {arguments}: {output:?}");
}

impl Testbed {
    /// Makes a testbed. Returns None and prints a line if this process may not make namespaces.
    pub(crate) fn new(cables: u32) -> Option<Self> {
        Self::with_queues(cables, 2)
    }

    /// Makes a testbed as [`Testbed::new`] does, with the given number of queues at both ends of each pair.
    pub(crate) fn with_queues(cables: u32, queues: u32) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return None;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let unique = format!("taut-port-{}-{number}", std::process::id());
        let bed = Self {
            left: format!("{unique}-left"),
            right: format!("{unique}-right"),
            queues,
        };
        for name in [&bed.left, &bed.right] {
            ip(&format!("netns add {name}"));
            // Otherwise the kernel sends router solicitations.
            inside(name, || {
                let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
            });
        }
        for cable in 0..cables {
            bed.plug_in(cable);
        }
        Some(bed)
    }

    pub(crate) fn plug_in(&self, cable: u32) {
        let Self {
            left,
            right,
            queues,
        } = self;
        let queues = format!("numrxqueues {queues} numtxqueues {queues}");
        ip(&format!(
            "-n {left} link add left{cable} {queues} type veth \
             peer name right{cable} {queues} netns {right}"
        ));
        self.left_ip(&format!("link set left{cable} up"));
        ip(&format!("-n {right} link set right{cable} up"));
    }

    pub(crate) fn left_ip(&self, arguments: &str) {
        ip(&format!("-n {} {arguments}", self.left));
    }

    /// Moves an interface from the left to the right namespace.
    pub(crate) fn move_to_right(&self, interface: &str) {
        self.left_ip(&format!("link set {interface} netns {}", self.right));
    }

    pub(crate) fn right_ip(&self, arguments: &str) {
        ip(&format!("-n {} {arguments}", self.right));
    }

    pub(crate) fn in_left<T>(&self, action: impl FnOnce() -> T) -> T {
        inside(&self.left, action)
    }

    pub(crate) fn in_right<T>(&self, action: impl FnOnce() -> T) -> T {
        inside(&self.right, action)
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        for name in [&self.left, &self.right] {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

/// Runs `action` with this thread in the namespace `name`.
fn inside<T>(name: &str, action: impl FnOnce() -> T) -> T {
    let enter = |file: &File| {
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    };
    let home = File::open("/proc/thread-self/ns/net").unwrap();
    enter(&File::open(format!("/run/netns/{name}")).unwrap());
    let result = action();
    enter(&home);
    result
}

/// A port, and the packet pool (in its resources) with which it was opened.
pub(crate) struct Opened {
    pub(crate) port: Box<dyn Port>,
    pub(crate) resources: Resources,
}

/// Opens a port for `workers` workers in the namespace with the interfaces `right0`, `right1`... Each worker's part of
/// the port has its own resources.
pub(crate) fn parts_of(bed: &Testbed, spec: &PortSpec, workers: usize) -> Vec<Opened> {
    let parts = spec.parts(workers).unwrap().into_iter();
    parts
        .map(|part| {
            let mut resources = Resources::for_ports(std::slice::from_ref(spec)).unwrap();
            let port = bed.in_right(|| part(&mut resources).unwrap());
            Opened { port, resources }
        })
        .collect()
}

pub(crate) fn open(text: &str) -> Result<Opened, PortError> {
    let spec = PortSpec::parse(text)?;
    let mut resources = Resources::for_ports(std::slice::from_ref(&spec))?;
    let port = spec.open(&mut resources)?;
    Ok(Opened { port, resources })
}

/// Returns the bytes of test frame `number`: addresses, an EtherType for experiments, number, padding.
pub(crate) fn frame_bytes(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
    bytes.extend(number.to_be_bytes());
    while bytes.len() < len {
        bytes.push((number as usize * 31 + bytes.len()) as u8);
    }
    bytes
}

impl Opened {
    /// Appends one packet with the given bytes to `batch`.
    pub(crate) fn load(&self, batch: &mut Batch, bytes: &[u8]) {
        assert_eq!(self.resources.pool().fill(batch, 1, bytes.len() as u16), 1);
        let last = batch.len() - 1;
        batch.packets_mut()[last].bytes_mut().copy_from_slice(bytes);
    }

    /// Sends one frame, and retries until the port accepts it.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let mut batch = Batch::new();
        self.load(&mut batch, bytes);
        let start = Instant::now();
        while self.port.tx(&mut batch) == 0 {
            assert!(start.elapsed() < PATIENCE, "could not send");
        }
    }

    /// Receives until `batch` has `n` packets.
    pub(crate) fn receive(&mut self, batch: &mut Batch, n: usize) {
        let start = Instant::now();
        while batch.len() < n {
            self.port.rx(batch);
            assert!(start.elapsed() < PATIENCE, "{} of {n} came", batch.len());
        }
    }

    /// Receives until this frame arrives, and discards frames before it.
    fn receive_until(&mut self, bytes: &[u8]) {
        let mut batch = Batch::new();
        while batch.packets().last().is_none_or(|p| p.bytes() != bytes) {
            batch.clear();
            self.receive(&mut batch, 1);
        }
    }

    pub(crate) fn wait_for_link(&mut self) {
        let start = Instant::now();
        loop {
            match self.port.link() {
                Link::Up => return,
                Link::Down(why) => assert!(start.elapsed() < PATIENCE, "{why}"),
            }
        }
    }

    pub(crate) fn receive_one(&mut self) -> Vec<u8> {
        let mut batch = Batch::new();
        self.receive(&mut batch, 1);
        batch.packets()[0].bytes().to_vec()
    }
}

/// Opens two ports, one at each end of the first veth pair. `backend` and `options` make the spec.
pub(crate) fn both_ends(bed: &Testbed, backend: &str, options: &str) -> (Opened, Opened) {
    let at = |name| open(&format!("{backend}:{name}{options}")).unwrap();
    (bed.in_left(|| at("left0")), bed.in_right(|| at("right0")))
}

/// Thousands of frames of all lengths pass in bursts of all sizes, in both directions.
pub(crate) fn frames_pass_in_both_directions_in_order(backend: &str, options: &str) {
    let Some(bed) = Testbed::new(1) else { return };
    let (mut left, mut right) = both_ends(&bed, backend, options);
    cross(&mut left, &mut right);
    cross(&mut right, &mut left);
}

fn cross(from: &mut Opened, to: &mut Opened) {
    let mut number = 0;
    let length = |number: u64| 60 + (number * 97 % 1455) as usize;
    let (mut batch, mut received) = (Batch::new(), Batch::new());
    while number < 6000 {
        let first = number;
        for _ in 0..1 + number % 40 {
            from.load(&mut batch, &frame_bytes(number, length(number)));
            number += 1;
        }
        let start = Instant::now();
        while !batch.is_empty() {
            from.port.tx(&mut batch);
            assert!(start.elapsed() < PATIENCE);
        }
        to.receive(&mut received, (number - first) as usize);
        for (packet, n) in received.packets().iter().zip(first..) {
            assert!(packet.bytes() == frame_bytes(n, length(n)), "frame {n}");
        }
        received.clear();
    }
    let (sent, got) = (from.port.counters(), to.port.counters());
    assert_eq!(sent.tx_packets, number);
    assert_eq!(got.rx_packets, number);
    assert_eq!(sent.tx_bytes, got.rx_bytes);
    assert_eq!(sent.tx_too_long + sent.tx_failed + got.rx_overrun, 0);
}

/// Frames that are too long or too short for the link are counted, and valid frames still pass.
pub(crate) fn frames_too_long_or_too_short_are_counted(backend: &str, options: &str) {
    let Some(bed) = Testbed::new(1) else { return };
    let (mut left, mut right) = both_ends(&bed, backend, options);
    let mut batch = Batch::new();
    left.load(&mut batch, &frame_bytes(0, 60));
    left.load(&mut batch, &frame_bytes(1, 1515));
    left.load(&mut batch, &frame_bytes(2, 60)[..14]);
    left.load(&mut batch, &frame_bytes(3, 60));
    assert_eq!(left.port.tx(&mut batch), 4);
    right.receive(&mut batch, 2);
    assert_eq!(batch.packets()[0].bytes(), frame_bytes(0, 60));
    assert_eq!(batch.packets()[1].bytes(), frame_bytes(3, 60));
    let counters = left.port.counters();
    assert_eq!(
        (
            counters.tx_packets,
            counters.tx_too_long,
            counters.tx_failed
        ),
        (2, 1, 1)
    );
}

/// Frames that do not fit into the receive ring are counted, and dropped packets free their slots.
pub(crate) fn frames_lost_to_a_full_receive_ring_are_counted(backend: &str, options: &str) {
    let Some(bed) = Testbed::new(1) else { return };
    let (mut left, mut right) = both_ends(&bed, backend, &format!("{options},ring=64"));
    for number in 0..100 {
        left.send(&frame_bytes(number, 60));
    }
    let start = Instant::now();
    while right.port.counters().rx_overrun < 36 {
        assert!(start.elapsed() < PATIENCE, "{:?}", right.port.counters());
    }
    let mut batch = Batch::new();
    right.receive(&mut batch, 64);
    assert_eq!(right.port.rx(&mut Batch::new()), 0);
    let counters = right.port.counters();
    assert_eq!((counters.rx_packets, counters.rx_overrun), (64, 36));
    batch.clear();
    right.port.rx(&mut batch);
    left.send(&frame_bytes(100, 60));
    assert_eq!(right.receive_one(), frame_bytes(100, 60));
}

/// A thread that sleeps on `port` wakes up when `other` sends, and only then.
pub(crate) fn a_sleeping_receiver_is_woken_for_every_frame(port: &mut Opened, other: &mut Opened) {
    let mut alarm = Alarm::default();
    for number in 0..20 {
        let (quiet, mut slept) = (Duration::from_millis(2), false);
        // The kernel may send frames of its own on a new interface.
        for _ in 0..100 {
            while port.port.rx(&mut Batch::new()) > 0 {}
            alarm.clear();
            assert!(port.port.arm(&mut alarm));
            let begun = Instant::now();
            alarm.wait(quiet);
            slept |= begun.elapsed() >= quiet;
            port.port.disarm();
            if slept {
                break;
            }
        }
        assert!(slept, "woken all the time");
        let bytes = frame_bytes(number, 60);
        other.send(&bytes);
        alarm.clear();
        assert!(port.port.arm(&mut alarm));
        let begun = Instant::now();
        alarm.wait(2 * PATIENCE);
        assert!(begun.elapsed() < PATIENCE, "not woken");
        port.port.disarm();
        port.receive_until(&bytes);
    }
}

/// Traffic resumes after a link goes down and comes up again.
pub(crate) fn traffic_resumes_after_the_link_was_down(backend: &str, options: &str) {
    let Some(bed) = Testbed::new(1) else { return };
    let (mut left, mut right) = both_ends(&bed, backend, options);
    left.send(&frame_bytes(1, 60));
    assert_eq!(right.receive_one(), frame_bytes(1, 60));
    assert_eq!(left.port.link(), Link::Up);
    bed.left_ip("link set left0 down");
    let Link::Down(text) = left.port.link() else {
        panic!("still up")
    };
    assert!(text.contains("left0 is down"), "{text}");
    // The kernel reports the state of the peer interface a little later.
    let start = Instant::now();
    while right.port.link().is_up() {
        assert!(start.elapsed() < PATIENCE, "still up");
    }
    let Link::Down(text) = right.port.link() else {
        panic!("up again")
    };
    assert!(text.contains("no carrier"), "{text}");
    let mut batch = Batch::new();
    for number in 0..8 {
        left.load(&mut batch, &frame_bytes(number, 60));
    }
    for _ in 0..1000 {
        left.port.tx(&mut batch);
        assert_eq!(left.port.rx(&mut Batch::new()), 0);
        assert_eq!(right.port.rx(&mut Batch::new()), 0);
    }
    batch.clear();
    bed.left_ip("link set left0 up");
    left.wait_for_link();
    right.wait_for_link();
    left.send(&frame_bytes(9, 60));
    right.receive_until(&frame_bytes(9, 60));
    right.send(&frame_bytes(10, 60));
    assert_eq!(left.receive_one(), frame_bytes(10, 60));
}

/// If the interface is deleted under traffic, the port reports that and stays usable. The port continues on a new
/// interface of the same name.
pub(crate) fn a_deleted_interface_is_reported_and_its_replacement_is_used(
    backend: &str,
    options: &str,
) {
    let Some(bed) = Testbed::new(1) else { return };
    let (mut left, mut right) = both_ends(&bed, backend, options);
    let mut batch = Batch::new();
    let mut number = 0;
    let mut held = Batch::new();
    let mut traffic = |left: &mut Opened, right: &mut Opened, rounds| {
        for _ in 0..rounds {
            batch.clear();
            for _ in 0..16 {
                left.load(&mut batch, &frame_bytes(number, 60));
                number += 1;
            }
            left.port.tx(&mut batch);
            right.port.rx(&mut held);
            if held.room() == 0 {
                held.clear();
            }
        }
    };
    traffic(&mut left, &mut right, 10);
    bed.right_ip("link del right0");
    traffic(&mut left, &mut right, 1000);
    for (port, name) in [(&mut left.port, "left0"), (&mut right.port, "right0")] {
        assert_eq!(
            port.link(),
            Link::Down(format!("interface {name} was deleted"))
        );
        port.counters();
    }
    held.clear();
    bed.plug_in(0);
    bed.in_left(|| left.wait_for_link());
    bed.in_right(|| right.wait_for_link());
    left.send(&frame_bytes(1 << 40, 60));
    right.receive_until(&frame_bytes(1 << 40, 60));
}

/// Wrong specs and missing privileges are named in errors.
pub(crate) fn errors_name_missing_interfaces_and_privileges(backend: &str) {
    let Some(bed) = Testbed::new(0) else { return };
    let error = bed.in_left(|| open(&format!("{backend}:none0")).err().unwrap());
    assert!(error.is_missing(), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("\"none0\"") && text.contains("ip link"),
        "{text}"
    );
    // Capabilities belong to a single thread.
    let without = std::thread::spawn({
        let spec = format!("{backend}:lo");
        move || {
            give_up_capabilities();
            open(&spec).err().unwrap()
        }
    });
    let error = without.join().unwrap();
    assert!(error.is_missing(), "{error}");
    assert!(error.to_string().contains("needs root"), "{error}");
}

/// Drops all privileges of the calling thread.
pub(crate) fn give_up_capabilities() {
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).unwrap();
}
