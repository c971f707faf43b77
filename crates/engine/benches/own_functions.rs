//! Benchmark of users' functions compared with the same function in taut: a MAC swap built in, in a shared library in
//! C, and in Lua, interleaved. The first run has a worker over a port that copies each frame from a template and
//! discards sent packets, so the function's cost stands out. The second run uses memif, with a peer on another core.
//! `cargo bench -p taut-engine --bench own_functions`
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taut_engine::{Flush, Worker};
use taut_function::Function;
use taut_measure::{median, ratio_interval};
use taut_port::{Batch, Link, PoolHandle, Port, PortCounters, PortSpec, Resources};
use taut_sys::Clock;
use taut_wire::UdpFlow;

/// Many short repetitions, because the differences are a few percent and the machine may be shared.
const REPETITIONS: usize = 30;
const DURATION: Duration = Duration::from_millis(100);
const REPETITIONS_OVER_MEMIF: usize = 30;
const DURATION_OVER_MEMIF: Duration = Duration::from_millis(150);

/// A port that receives as many frames as requested.
struct Frames {
    pool: PoolHandle,
    template: Vec<u8>,
    counters: PortCounters,
}

impl Port for Frames {
    fn rx(&mut self, batch: &mut Batch) -> usize {
        let n = self.pool.fill(batch, 32, self.template.len() as u16);
        for packet in batch.packets_mut() {
            packet.bytes_mut().copy_from_slice(&self.template);
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

/// One variant under comparison: its name, its function, and the file (library or script) that the function loads.
struct Contender {
    name: &'static str,
    function: &'static str,
    file: Option<String>,
}

impl Contender {
    fn function(&self) -> Box<dyn Function> {
        let mut settings = toml::Table::new();
        let file = self.file.clone();
        settings.extend(file.map(|file| ("file".to_string(), file.into())));
        let mut function = taut_functions::build(self.function, settings).unwrap();
        function.prepare().unwrap();
        function
    }

    fn worker(&self, clock: &Clock) -> Worker {
        let port: Box<dyn Port> = Box::new(Frames {
            pool: PoolHandle::new(1024, false).unwrap(),
            template: UdpFlow::default().frame(64).unwrap(),
            counters: PortCounters::default(),
        });
        Worker::new(vec![port], vec![self.function()], Flush::default(), clock)
    }

    /// Returns the packets per second and core over memif; None if the worker has measured nothing. They are computed
    /// from the cycles per packet in iterations with packets, to exclude times when the peer is preempted.
    fn over_memif(&self, [device, peer]: [usize; 2], clock: &Clock) -> Option<f64> {
        let folder = tempfile::tempdir().unwrap();
        let specs = |role: &str| {
            ["west", "east"].map(|name| {
                let text = format!("memif:{}/{name}.sock,role={role}", folder.path().display());
                PortSpec::parse(&text).unwrap()
            })
        };
        let (near, far) = (specs("client"), specs("server"));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                taut_host::pin_current_thread(device).unwrap();
                let mut resources = Resources::for_ports(&near).unwrap();
                let ports = near.each_ref().map(|it| it.open(&mut resources).unwrap());
                let functions = vec![self.function()];
                let mut worker = Worker::new(ports.into(), functions, Flush::default(), clock);
                worker.run(&stop);
                worker.counters().read()
            });
            taut_host::pin_current_thread(peer).unwrap();
            let mut resources = Resources::for_ports(&far).unwrap();
            let [mut west, mut east] = far.each_ref().map(|it| it.open(&mut resources).unwrap());
            while !(west.link().is_up() && east.link().is_up()) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let pool = resources.pool();
            let (mut out, mut arrived) = (Batch::new(), Batch::new());
            let begun = Instant::now();
            while begun.elapsed() < DURATION_OVER_MEMIF {
                for _ in 0..16 {
                    if out.is_empty() {
                        pool.fill(&mut out, 32, 60);
                    }
                    west.tx(&mut out);
                    east.rx(&mut arrived);
                    arrived.clear();
                }
            }
            stop.store(true, Ordering::Relaxed);
            let done = worker.join().unwrap();
            let busy = done.busy_ticks - done.interrupted_ticks.min(done.busy_ticks);
            // A worker that was preempted all the time has measured nothing.
            (busy > 0 && done.rx_packets > 0)
                .then(|| clock.hz * done.rx_packets as f64 / busy as f64)
        })
    }
}

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let library = folder.path().join("libmac_swap.so");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-shared", "-fPIC", "-I"])
        .arg(root.join("crates/plugin/include"))
        .arg("-o")
        .arg(&library)
        .arg(root.join("examples/plugin-c/mac_swap.c"));
    assert!(cc.status().unwrap().success());
    let script = root.join("examples/function-lua/mac_swap.lua");
    let contenders = [
        ("built in", "mac-swap", None),
        (
            "library in C",
            "plugin",
            Some(library.display().to_string()),
        ),
        ("script in Lua", "lua", Some(script.display().to_string())),
    ]
    .map(|(name, function, file)| Contender {
        name,
        function,
        file,
    });
    let cores = taut_host::choose_cores();
    let clock = Clock::calibrate(Duration::from_millis(200));
    taut_host::pin_current_thread(cores.device).unwrap();
    let mut workers = contenders.each_ref().map(|it| it.worker(&clock));
    let rates = in_turns(REPETITIONS, |at| Some(rate_pps(&mut workers[at], &clock)));
    println!(
        "a worker over frames of 64 bytes from a template, {REPETITIONS} times {DURATION:?} in turns"
    );
    show(&contenders, &rates);
    drop(workers);
    let cores = [cores.device, cores.generator];
    let rates = in_turns(REPETITIONS_OVER_MEMIF, |at| {
        contenders[at].over_memif(cores, &clock)
    });
    println!(
        "over memif, frames of 64 bytes, per core, {REPETITIONS_OVER_MEMIF} times {DURATION_OVER_MEMIF:?} in turns"
    );
    show(&contenders, &rates);
}

/// Returns the results of `measure` for each variant; the variants run in a random order in each repetition.
fn in_turns(repetitions: usize, mut measure: impl FnMut(usize) -> Option<f64>) -> [Vec<f64>; 3] {
    let mut rates = [const { Vec::new() }; 3];
    let mut seed = fastrand::Rng::with_seed(1);
    for _ in 0..repetitions {
        let mut order = [0, 1, 2];
        seed.shuffle(&mut order);
        let measured = order.map(|at| (at, measure(at)));
        if measured.iter().all(|(_, rate)| rate.is_some()) {
            for (at, rate) in measured {
                rates[at].extend(rate);
            }
        }
    }
    rates
}

fn show(contenders: &[Contender; 3], rates: &[Vec<f64>; 3]) {
    for (contender, rates) in contenders.iter().zip(rates) {
        let Some(rate) = median(rates) else {
            println!("  no data: others had the cores");
            return;
        };
        let (name, ns) = (contender.name, 1e9 / rate);
        println!(
            "  {name:<16}{:>8.2} Mpkt/s, {ns:.1} ns a packet",
            rate / 1e6
        );
    }
    for at in [1, 2] {
        let ratio = ratio_interval(&rates[at], &rates[0], 0.95).unwrap();
        println!(
            "  {} / built in: median {:.3} ({}; spread {:.2} to {:.2})",
            contenders[at].name,
            ratio.median.point,
            ratio.median.words(|value| format!("{value:.3}")),
            ratio.min,
            ratio.max
        );
    }
}

/// Returns the current forwarding rate of a worker, packets per second.
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
    // The counters of ports continue, those of the worker restart.
    let before = counters.read().tx_packets;
    worker.run(&stop);
    stopper.join().unwrap();
    let counted = counters.read();
    assert_eq!(
        (counted.dropped(), counted.tx_packets),
        (0, counted.rx_packets)
    );
    (counted.tx_packets - before) as f64 / (clock.to_ns(counted.total_ticks) * 1e-9)
}
