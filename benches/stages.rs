//! Measures the time of each stage of a round trip through the memif forwarder, one packet at a time. Generator and
//! forwarder are two threads of one process whose timestamps share the time-stamp counter. `cargo bench --bench stages`
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_port::{Batch, Port, PortSpec, Resources};
use taut_sys::{Clock, ticks};
use taut_traffic::{Stream, ping_pong};
use taut_wire::{Received, StampLayout, UdpFlow, classify};

const PACKETS: usize = 200_000;
/// Time between two packets, ns: 100 kpkt/s.
const GAP_NS: f64 = 10_000.0;

fn main() {
    let cores = taut_host::choose_cores();
    let clock = Clock::calibrate(Duration::from_millis(200));
    let folder = tempfile::tempdir().unwrap();
    let sockets = ["west.sock", "east.sock"].map(|s| folder.path().join(s).display().to_string());
    let done = AtomicBool::new(false);
    let device = cores.device;
    taut_host::pin_current_thread(cores.generator).unwrap();
    let floor = ping_pong(&clock, 4_000, move || {
        taut_host::pin_current_thread(device).unwrap()
    })
    .p50_ns;
    std::thread::scope(|scope| {
        let specs = sockets
            .clone()
            .map(|s| PortSpec::parse(&format!("memif:{s}")).unwrap());
        let mut generator = Ports::open(&specs);
        let forwarder = scope.spawn(|| {
            taut_host::pin_current_thread(device).unwrap();
            let specs = sockets
                .clone()
                .map(|s| PortSpec::parse(&format!("memif:{s},role=client")).unwrap());
            forward(&mut Ports::open(&specs), &done)
        });
        generator.wait();
        let sent = generate(&mut generator, &clock);
        done.store(true, Ordering::Relaxed);
        let forwarded = forwarder.join().unwrap();
        report(&clock, floor, &sent, &forwarded);
    });
}

struct Ports {
    west: Box<dyn Port>,
    east: Box<dyn Port>,
    resources: Resources,
}

impl Ports {
    fn open(specs: &[PortSpec; 2]) -> Self {
        let mut resources = Resources::for_ports(specs).unwrap();
        Self {
            west: specs[0].open(&mut resources).unwrap(),
            east: specs[1].open(&mut resources).unwrap(),
            resources,
        }
    }

    fn wait(&mut self) {
        while !(self.west.link().is_up() && self.east.link().is_up()) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The generator's four timestamps of a packet, cycles: when the packet was stamped, passed to the port, received
/// again, and classified.
struct Sent {
    stamped: u64,
    handed_over: u64,
    seen: u64,
    classified: u64,
}

fn generate(ports: &mut Ports, clock: &Clock) -> Vec<Sent> {
    let flow = UdpFlow::default();
    let template = flow.frame(64).unwrap();
    let layout = StampLayout::new(&template).unwrap();
    let stream = Stream::new(&flow, 64).unwrap();
    let pool = ports.resources.pool();
    let (mut out, mut arrived) = (Batch::new(), Batch::new());
    let gap = clock.to_ticks(GAP_NS) as u64;
    let mut sent = Vec::with_capacity(PACKETS);
    let mut due = ticks() + gap;
    for sequence in 0..PACKETS as u64 {
        while ticks() < due {}
        due += gap;
        pool.fill(&mut out, 1, stream.longest_bytes() as u16);
        out.packets_mut()[0].bytes_mut().copy_from_slice(&template);
        let stamped = ticks();
        layout
            .write(out.packets_mut()[0].bytes_mut(), 1, sequence, stamped)
            .unwrap();
        ports.west.tx(&mut out);
        let handed_over = ticks();
        while ports.east.rx(&mut arrived) == 0 {}
        let seen = ticks();
        assert!(
            matches!(classify(arrived.packets()[0].bytes(), flow.dst_port), Received::Stamped(s) if s.sequence == sequence)
        );
        let classified = ticks();
        arrived.clear();
        sent.push(Sent {
            stamped,
            handed_over,
            seen,
            classified,
        });
    }
    sent
}

/// Forwards packets until `done` is set. Returns, for each packet, the ticks at which the forwarder received the packet
/// and at which it had sent the packet.
fn forward(ports: &mut Ports, done: &AtomicBool) -> Vec<(u64, u64)> {
    let mut forwarded = Vec::with_capacity(PACKETS);
    let mut batch = Batch::new();
    while !done.load(Ordering::Relaxed) {
        if ports.west.rx(&mut batch) > 0 {
            let seen = ticks();
            ports.east.tx(&mut batch);
            forwarded.push((seen, ticks()));
        }
        ports.east.rx(&mut batch);
        batch.clear();
    }
    forwarded
}

fn report(clock: &Clock, floor_ns: f64, sent: &[Sent], forwarded: &[(u64, u64)]) {
    assert_eq!(sent.len(), forwarded.len());
    let stage = |name: &str, of: &dyn Fn(&Sent, &(u64, u64)) -> u64| {
        let mut ns: Vec<f64> = sent
            .iter()
            .zip(forwarded)
            .map(|(s, f)| clock.to_ns(of(s, f)))
            .collect();
        ns.sort_by(f64::total_cmp);
        let at = |q: f64| ns[((ns.len() - 1) as f64 * q) as usize];
        println!("{name:<58}{:>8.0}{:>8.0}{:>8.0}", at(0.1), at(0.5), at(0.9));
    };
    println!(
        "one packet at a time, {PACKETS} packets, {} ns apart",
        GAP_NS
    );
    println!("{:<58}{:>8}{:>8}{:>8}", "stage, ns", "p10", "p50", "p90");
    stage(
        "generator: stamp, checksum, write frame and descriptor",
        &|s, _| s.handed_over.saturating_sub(s.stamped),
    );
    stage("to the forwarder: index line, descriptor line", &|s, f| {
        f.0.saturating_sub(s.handed_over)
    });
    stage("forwarder: receive returned -> sent on", &|_, f| f.1 - f.0);
    stage("to the generator: index line, descriptor line", &|s, f| {
        s.seen.saturating_sub(f.1)
    });
    stage("round trip as measured (stamp -> seen)", &|s, _| {
        s.seen - s.stamped
    });
    stage(
        "after the receive stamp: classify, verify checksums",
        &|s, _| s.classified - s.seen,
    );
    println!("cache-line ping-pong in the same run: p50 {floor_ns:.0} ns round trip");
}
