//! Benchmark of the cost of punting: a worker over null ports whose first function punts a fraction of the packets,
//! compared with one that punts nothing. It also measures three ways of removing packets from a batch (Gallenmüller
//! 2021, section 5.3.1), which that thesis lists but does not measure. The variants run interleaved. `cargo bench -p
//! taut-engine --bench punt`
#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_engine::{CountersView, Flush, Worker};
use taut_function::{Context, Function, Handler, Punted, Send};
use taut_measure::{median, ratio_interval};
use taut_port::{Batch, PoolHandle, PortSpec, Punt, Resources};
use taut_sys::{Clock, ticks};

const SHARES: [u32; 5] = [0, 1, 10, 50, 100];
const REPETITIONS: usize = 25;
const DURATION: Duration = Duration::from_millis(50);
/// The number of functions that follow the function that punts.
const BEHIND: usize = 4;
const BURST: usize = 32;

/// A function that punts a fixed number of every hundred packets, evenly spread.
struct Punts {
    percent: u32,
    sum: u32,
    has_slow_path: bool,
}

impl Punts {
    fn new(percent: u32, has_slow_path: bool) -> Self {
        Self {
            percent,
            sum: 0,
            has_slow_path,
        }
    }

    #[inline(always)]
    fn mark(&mut self, batch: &mut Batch) {
        for index in 0..batch.len() {
            self.sum += self.percent;
            if self.sum >= 100 {
                self.sum -= 100;
                batch.mark_punted(index, Punt::Local);
            }
        }
    }
}

impl Function for Punts {
    fn process(&mut self, batch: &mut Batch, _: &Context) {
        self.mark(batch);
    }

    fn handler(&mut self) -> Option<Box<dyn Handler>> {
        self.has_slow_path.then(|| Box::new(Takes) as _)
    }
}

/// A handler that reads each packet and sends nothing.
struct Takes;

impl Handler for Takes {
    fn handle(&mut self, punted: &Punted<'_>, _: &mut Send<'_>) -> bool {
        black_box(punted.frame.first());
        true
    }
}

/// A function that changes the header of each packet that it processes.
struct Touches {
    skips_marked: bool,
}

impl Touches {
    #[inline(always)]
    fn touch(&self, batch: &mut Batch) {
        for index in 0..batch.len() {
            if self.skips_marked && !batch.is_kept(index) {
                continue;
            }
            let frame = batch.packets_mut()[index].bytes_mut();
            for place in 0..6 {
                frame.swap(place, place + 6);
            }
            frame[22] = frame[22].wrapping_sub(1);
        }
    }
}

impl Function for Touches {
    fn process(&mut self, batch: &mut Batch, _: &Context) {
        self.touch(batch);
    }
}

/// Returns the rate of packets through a worker, forwarded or punted, in packets per second, and the worker's counters.
fn worker(percent: Option<u32>, slow: bool, core: usize, clock: &Clock) -> (f64, CountersView) {
    let (stop, clock) = (Arc::new(AtomicBool::new(false)), *clock);
    let stopped = Arc::clone(&stop);
    let thread = std::thread::spawn(move || {
        taut_host::pin_current_thread(core).unwrap();
        let specs = ["null:source=32", "null:"].map(|text| PortSpec::parse(text).unwrap());
        let mut resources = Resources::for_ports(&specs).unwrap();
        let ports = specs.iter().map(|spec| spec.open(&mut resources).unwrap());
        let ports: Vec<_> = ports.collect();
        let mut functions: Vec<Box<dyn Function>> = Vec::new();
        if let Some(percent) = percent {
            functions.push(Box::new(Punts::new(percent, slow)));
        }
        let skips_marked = true;
        functions.extend((0..BEHIND).map(|_| Box::new(Touches { skips_marked }) as _));
        let mut worker = Worker::new(ports, functions, Flush::default(), &clock);
        worker.start_slow_path().unwrap();
        worker.run(&stop);
        worker.counters().read()
    });
    std::thread::sleep(DURATION);
    stopped.store(true, Ordering::Relaxed);
    let done = thread.join().unwrap();
    assert_eq!(
        done.rx_packets,
        done.tx_packets + done.punted + done.dropped()
    );
    let cycles = (done.total_ticks - done.interrupted_ticks) as f64;
    (done.rx_packets as f64 / cycles, done)
}

/// A way of removing packets from a batch.
#[derive(Clone, Copy)]
enum Removal {
    /// Packets are marked in place, skipped by later functions, and removed once at the end, as in a worker.
    DropOut,
    /// Packets are removed by each function that marks them, and the remaining packets are compacted.
    Rebatch,
    /// Packets are marked in place, but later functions still process all packets.
    FlagOnly,
}

/// Returns the cycles per packet of one way of removal, measured without a worker; the list `slow` replaces the ring to
/// the slow path.
fn cycles(way: Removal, percent: u32, pool: &PoolHandle, slow: &mut Vec<u8>) -> f64 {
    const BATCHES: usize = 20_000;
    let mut punts = Punts::new(percent, false);
    let skips_marked = matches!(way, Removal::DropOut);
    let functions: Vec<_> = (0..BEHIND).map(|_| Touches { skips_marked }).collect();
    let functions = black_box(functions);
    let (mut batch, mut punted) = (Batch::new(), Batch::new());
    let begun = ticks();
    for _ in 0..BATCHES {
        pool.fill(&mut batch, BURST, 60);
        punts.mark(&mut batch);
        if matches!(way, Removal::Rebatch) {
            batch.settle(&mut punted);
        }
        for function in &functions {
            function.touch(black_box(&mut batch));
        }
        batch.settle(&mut punted);
        for packet in punted.packets() {
            slow.clear();
            slow.extend_from_slice(packet.bytes());
        }
        punted.clear();
        batch.clear();
    }
    ticks().wrapping_sub(begun) as f64 / (BATCHES * BURST) as f64
}

fn main() {
    let core = taut_host::choose_cores().device;
    let clock = Clock::calibrate(Duration::from_millis(200));
    println!(
        "a worker over null ports, {BEHIND} functions that change headers behind one that punts, {REPETITIONS} interleaved \
         repetitions of {DURATION:?}: packets per cycle over those of a worker without it"
    );
    // Measured with a slow path, and without one, where punted packets are dropped.
    let mut base = Vec::new();
    let mut rates = vec![[Vec::new(), Vec::new()]; SHARES.len()];
    let mut missed = vec![Vec::new(); SHARES.len()];
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..REPETITIONS {
        let mut order: Vec<_> = (0..SHARES.len())
            .flat_map(|share| [(share, true), (share, false)])
            .collect();
        random.shuffle(&mut order);
        base.push(worker(None, false, core, &clock).0);
        for (share, slow) in order {
            let (rate, done) = worker(Some(SHARES[share]), slow, core, &clock);
            rates[share][usize::from(!slow)].push(rate);
            if slow {
                let all = (done.punted + done.dropped_punted).max(1);
                missed[share].push(done.dropped_punted as f64 / all as f64);
            }
        }
    }
    for (share, rates) in SHARES.iter().zip(&rates) {
        let index = SHARES.iter().position(|s| s == share).unwrap();
        let words = |rates: &[f64]| {
            let ratio = ratio_interval(rates, &base, 0.95).unwrap().median;
            let spread = ratio.words(|value| format!("{value:.3}"));
            format!("{:.3} ({spread})", ratio.point)
        };
        println!(
            "  {share:>3} % punted: {} to a slow path, whose ring was full for {:.1} % of them; {} dropped at once",
            words(&rates[0]),
            median(&missed[index]).unwrap() * 100.0,
            words(&rates[1]),
        );
    }

    taut_host::pin_current_thread(core).unwrap();
    let pool = PoolHandle::new(128, false).unwrap();
    let ways = [Removal::DropOut, Removal::Rebatch, Removal::FlagOnly];
    println!(
        "cycles per packet of a batch of {BURST} by the way in which packets drop out, {REPETITIONS} interleaved repetitions"
    );
    let mut slow = Vec::with_capacity(2048);
    for share in SHARES {
        let mut found: [Vec<f64>; 3] = Default::default();
        for _ in 0..REPETITIONS {
            let mut order = [0, 1, 2];
            random.shuffle(&mut order);
            for way in order {
                found[way].push(cycles(ways[way], share, &pool, &mut slow));
            }
        }
        let [drop_out, rebatch, flag_only] = found.each_ref().map(|f| median(f).unwrap());
        let over = |other: &[f64]| {
            let ratio = ratio_interval(other, &found[0], 0.95).unwrap().median;
            let spread = ratio.words(|value| format!("{value:.2}"));
            format!("{:.2} ({spread})", ratio.point)
        };
        println!(
            "  {share:>3} %: drop-out batching {drop_out:.1}; rebatching {rebatch:.1}, {} of it; flagging only {flag_only:.1}, {}",
            over(&found[1]),
            over(&found[2]),
        );
    }
}
