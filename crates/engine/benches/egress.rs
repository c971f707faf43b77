//! Benchmark of the cost of a random egress port for every packet, one of four memif ports, compared with a worker that
//! joins the same ports in pairs. It reports the worker's cycles per packet in iterations with packets. The peer of all
//! four ports runs on another core. The variants run interleaved. `cargo bench -p taut-engine --bench egress`
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_engine::{Flush, Worker};
use taut_function::{Context, Function, Needs};
use taut_measure::{median, ratio_interval};
use taut_port::{Batch, PortSpec, Resources};
use taut_sys::Clock;

const REPETITIONS: usize = 30;
const DURATION: Duration = Duration::from_millis(150);
const PORTS: usize = 4;
const BURST: usize = 32;

/// A function that reads an egress port from each packet, and sends the packet through that port if `obeys` is set.
struct Reads {
    obeys: bool,
}

impl Function for Reads {
    fn process(&mut self, batch: &mut Batch, _: &Context) {
        for index in 0..batch.len() {
            let port = std::hint::black_box(batch.packets()[index].bytes()[0]);
            if self.obeys {
                batch.send_to(index, port);
            }
        }
    }

    fn needs(&self) -> Needs {
        Needs {
            chooses_ports: self.obeys,
            ..Needs::default()
        }
    }
}

fn specs(folder: &std::path::Path, role: &str) -> Vec<PortSpec> {
    let spec = |port| format!("memif:{}/{port}.sock,role={role}", folder.display());
    (0..PORTS)
        .map(|port| PortSpec::parse(&spec(port)).unwrap())
        .collect()
}

/// Returns the worker's cycles per packet, and the rate of packets that returned to the peer, packets per second.
fn cycles(obeys: bool, cores: [usize; 2], clock: &Clock) -> (f64, f64) {
    let folder = tempfile::tempdir().unwrap();
    let (stop, clock) = (Arc::new(AtomicBool::new(false)), *clock);
    let (near, far) = (
        specs(folder.path(), "server"),
        specs(folder.path(), "client"),
    );
    let stopped = Arc::clone(&stop);
    let worker = std::thread::spawn(move || {
        taut_host::pin_current_thread(cores[0]).unwrap();
        let mut resources = Resources::for_ports(&near).unwrap();
        let ports = near.iter().map(|spec| spec.open(&mut resources).unwrap());
        let functions: Vec<Box<dyn Function>> = vec![Box::new(Reads { obeys })];
        let mut worker = Worker::new(ports.collect(), functions, Flush::default(), &clock);
        worker.run(&stopped);
        worker.counters().read()
    });
    taut_host::pin_current_thread(cores[1]).unwrap();
    let mut resources = Resources::for_ports(&far).unwrap();
    let mut ports: Vec<_> = far
        .iter()
        .map(|spec| spec.open(&mut resources).unwrap())
        .collect();
    while !ports.iter_mut().all(|port| port.link().is_up()) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (pool, mut random) = (resources.pool(), fastrand::Rng::with_seed(1));
    let (mut batch, mut back) = (Batch::new(), 0);
    let begun = std::time::Instant::now();
    while begun.elapsed() < DURATION {
        for port in &mut ports {
            back += port.rx(&mut batch);
            batch.clear();
            pool.fill(&mut batch, BURST, 60);
            for packet in batch.packets_mut() {
                packet.bytes_mut()[0] = random.u8(..PORTS as u8);
            }
            port.tx(&mut batch);
            batch.clear();
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    let done = worker.join().unwrap();
    let busy = done.busy_ticks - done.interrupted_ticks.min(done.busy_ticks);
    (busy as f64 / done.rx_packets as f64, back as f64 / seconds)
}

fn main() {
    let plan = taut_host::choose_cores();
    let cores = [plan.device, plan.generator];
    let clock = Clock::calibrate(Duration::from_millis(200));
    let mut found: [Vec<(f64, f64)>; 2] = Default::default();
    for _ in 0..REPETITIONS {
        for (obeys, found) in [false, true].into_iter().zip(&mut found) {
            found.push(cycles(obeys, cores, &clock));
        }
    }
    let [pairs, spread] = found.map(|found| -> (Vec<f64>, Vec<f64>) { found.into_iter().unzip() });
    println!("{PORTS} memif ports, {REPETITIONS} interleaved repetitions of {DURATION:?}, medians");
    for (name, (cycles, back)) in [("in pairs", &pairs), ("at random", &spread)] {
        println!(
            "  {name}: {:.0} cycles a packet, {:.2} Mpkt/s came back",
            median(cycles).unwrap(),
            median(back).unwrap() / 1e6
        );
    }
    let ratio = ratio_interval(&pairs.0, &spread.0, 0.95).unwrap().median;
    let words = ratio.words(|value| format!("{value:.3}"));
    println!(
        "  rate at random over that in pairs, per core: {:.3} ({words})",
        ratio.point
    );
}
