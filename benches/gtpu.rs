//! Measures the cost of the mobile gateway per packet. One worker relays GTP-U with 1, 400 and 1,000,000 bearers, which
//! it finds by hash or by linear search. It is compared with a worker that forwards at layer 2. Frames have 128 bytes,
//! and their tunnels are drawn uniformly. The port copies each received frame from a template and discards sent frames.
//! `cargo bench --bench gtpu`
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_engine::{Flush, Worker};
use taut_measure::ratio_interval;
use taut_port::{Batch, Link, PoolHandle, Port, PortCounters};
use taut_sys::Clock;
use taut_wire::{Protocol, Tunnel, UdpFlow};

/// Many short repetitions show differences of a few percent even on shared machines.
const REPETITIONS: usize = 60;
const DURATION: Duration = Duration::from_millis(100);
const FRAME_SIZE_BYTES: usize = 128;
/// Offset of the tunnel identifier: Ethernet, IPv4 and UDP headers, then 4 bytes of GTP-U.
const TEID_AT: usize = 14 + 20 + 8 + 4;

/// A port that delivers as many frames as are requested, each in a tunnel drawn from 1 to `tunnels`.
struct Tunnels {
    pool: PoolHandle,
    template: Vec<u8>,
    tunnels: u64,
    state: u64,
    counters: PortCounters,
}

impl Tunnels {
    fn new(tunnels: u32) -> Self {
        let tunnel = Tunnel {
            teid: 1,
            src_ip: "192.0.2.7".parse().unwrap(),
            dst_ip: "192.0.2.1".parse().unwrap(),
        };
        let flow = UdpFlow::default();
        let template = flow.frame_as(Protocol::Udp, Some(&tunnel), FRAME_SIZE_BYTES);
        Self {
            pool: PoolHandle::new(1024, false).unwrap(),
            template: template.unwrap(),
            tunnels: tunnels.into(),
            state: 0x9e37_79b9_7f4a_7c15,
            counters: PortCounters::default(),
        }
    }
}

impl Port for Tunnels {
    fn rx(&mut self, batch: &mut Batch) -> usize {
        let n = self.pool.fill(batch, 32, self.template.len() as u16);
        for packet in batch.packets_mut() {
            packet.bytes_mut().copy_from_slice(&self.template);
            // xorshift64 is cheap, and the same for all contenders.
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            let teid = 1 + (((self.state >> 32) * self.tunnels) >> 32) as u32;
            packet.bytes_mut()[TEID_AT..TEID_AT + 4].copy_from_slice(&teid.to_be_bytes());
        }
        self.counters.rx_packets += n as u64;
        n
    }

    fn tx(&mut self, batch: &mut Batch) -> usize {
        let n = batch.len();
        batch.clear();
        self.counters.tx_packets += n as u64;
        n
    }

    fn link(&mut self) -> Link {
        Link::Up
    }

    fn counters(&mut self) -> PortCounters {
        self.counters
    }
}

/// A contender: a function's name, its settings, and the number of tunnels.
struct Contender {
    name: &'static str,
    function: &'static str,
    settings: String,
    tunnels: u32,
}

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let gtpu = |name, tunnels: u32, matching: &str| {
        let file = folder.path().join(format!("{tunnels}.csv"));
        let mut out = std::io::BufWriter::new(std::fs::File::create(&file).unwrap());
        for teid in 1..=tunnels {
            // The tunnels have up to 2,000 peers, as many as a gateway has base stations.
            let (a, b) = (teid % 8, teid / 8 % 250 + 1);
            writeln!(out, "{teid},relay,{teid},198.18.{a}.{b}").unwrap();
        }
        out.flush().unwrap();
        Contender {
            name,
            function: "gtpu",
            settings: format!(
                "address = \"192.0.2.1\"\nbearers = {tunnels}\nmatching = \"{matching}\"\nload = \"{}\"",
                file.display()
            ),
            tunnels,
        }
    };
    let contenders = [
        Contender {
            name: "layer 2 (mac-swap)",
            function: "mac-swap",
            settings: String::new(),
            tunnels: 1_000_000,
        },
        gtpu("gtpu, 1 bearer", 1, "hash"),
        gtpu("gtpu, 400 bearers", 400, "hash"),
        gtpu("gtpu, 1000000 bearers", 1_000_000, "hash"),
        gtpu("gtpu, 1 bearer, linear", 1, "linear"),
        gtpu("gtpu, 400 bearers, linear", 400, "linear"),
    ];
    let cores = taut_host::choose_cores();
    let clock = Clock::calibrate(Duration::from_millis(200));
    taut_host::pin_current_thread(cores.device).unwrap();
    let mut workers: Vec<Worker> = contenders.iter().map(|c| c.worker(&clock)).collect();
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); contenders.len()];
    let mut seed = fastrand::Rng::with_seed(1);
    for _ in 0..REPETITIONS {
        let mut order: Vec<usize> = (0..contenders.len()).collect();
        seed.shuffle(&mut order);
        for i in order {
            rates[i].push(rate_pps(&mut workers[i], &clock));
        }
    }
    println!(
        "{REPETITIONS} interleaved repetitions of {DURATION:?}, {FRAME_SIZE_BYTES}-byte frames, one core, tunnels drawn uniformly"
    );
    println!(
        "{:<28}{:>10}{:>10}{:>10}{:>16}{:>12}",
        "", "min", "median", "max Mpps", "cycles/packet", "over L2"
    );
    let median = |rates: &[f64]| {
        let mut sorted = rates.to_vec();
        sorted.sort_by(f64::total_cmp);
        (
            sorted[0],
            sorted[sorted.len() / 2],
            sorted[sorted.len() - 1],
        )
    };
    let base = clock.hz / median(&rates[0]).1;
    for (contender, rates) in contenders.iter().zip(&rates) {
        let (least, middle, most) = median(rates);
        let cycles = clock.hz / middle;
        println!(
            "{:<28}{:>10.2}{:>10.2}{:>10.2}{cycles:>16.1}{:>12.1}",
            contender.name,
            least / 1e6,
            middle / 1e6,
            most / 1e6,
            cycles - base
        );
    }
    for (over, under) in [(2, 1), (3, 1), (5, 4), (3, 0)] {
        if let Some(r) = ratio_interval(&rates[over], &rates[under], 0.95) {
            println!(
                "{} / {}: median {:.3} ({})",
                contenders[over].name,
                contenders[under].name,
                r.median.point,
                r.median.words(|value| format!("{value:.3}"))
            );
        }
    }
}

impl Contender {
    fn worker(&self, clock: &Clock) -> Worker {
        let mut function =
            taut_functions::build(self.function, self.settings.parse().unwrap()).unwrap();
        function.prepare().unwrap();
        let port: Box<dyn Port> = Box::new(Tunnels::new(self.tunnels));
        Worker::new(vec![port], vec![function], Flush::default(), clock)
    }
}

/// Measures the packet rate of a worker, packets per second.
fn rate_pps(worker: &mut Worker, clock: &Clock) -> f64 {
    let counters = worker.counters();
    let stop = Arc::new(AtomicBool::new(false));
    let stopper = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            std::thread::sleep(DURATION);
            stop.store(true, Ordering::Relaxed);
        })
    };
    // The worker starts again, but its counters continue from the last run.
    let before = counters.read().tx_packets;
    worker.run(&stop);
    stopper.join().unwrap();
    let counted = counters.read();
    assert_eq!(counted.dropped(), 0);
    assert_eq!(counted.tx_packets, counted.rx_packets);
    (counted.tx_packets - before) as f64 / (clock.to_ns(counted.total_ticks) * 1e-9)
}
