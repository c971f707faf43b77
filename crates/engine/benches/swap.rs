//! Benchmark of the effect on a worker of swapping a table of a million entries under traffic. It reports the longest
//! time between two batches in the millisecond after each swap. For comparison, it reports the same time after a table
//! of the same size was built and discarded. Both cases run interleaved. `cargo bench -p taut-engine --bench swap`
#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use taut_engine::{Flush, Worker};
use taut_function::{Context, Function, InUse, Swapped};
use taut_measure::quantile_interval;
use taut_port::{Batch, PortSpec, Resources};
use taut_sys::{Clock, ticks};

const ENTRIES: usize = 1_000_000;
const SWAPS: usize = 1000;
/// The time after a table swap in which a pause of the worker is attributed to the swap.
const WINDOW: Duration = Duration::from_millis(1);
/// The timeout after which the benchmark fails because the control plane waits for a swap.
const PATIENCE: Duration = Duration::from_secs(10);
/// The limit of the 99th percentile of the worker's pauses, us.
const MOST_US: f64 = 100.0;

/// A function that looks up one address of the table for each packet; the addresses are spread over the whole table.
struct LooksUp {
    table: InUse<Vec<u64>>,
    random: fastrand::Rng,
    last: u64,
    longest: Arc<AtomicU64>,
    /// The sum of the numbers of the tables that the batches used.
    seen: Arc<AtomicU64>,
}

impl Function for LooksUp {
    fn process(&mut self, batch: &mut Batch, _: &Context) {
        let now = ticks();
        let pause = now - self.last;
        if self.last != 0 && pause > self.longest.load(Ordering::Relaxed) {
            self.longest.store(pause, Ordering::Relaxed);
        }
        self.last = now;
        let table = self.table.get();
        for _ in 0..batch.len() {
            black_box(table[self.random.usize(..ENTRIES)]);
        }
        self.seen.store(table[0], Ordering::Relaxed);
    }
}

fn main() {
    let cores = taut_host::choose_cores();
    let clock = Clock::calibrate(Duration::from_millis(200));
    let mut swapped = Swapped::new(vec![0_u64; ENTRIES]);
    let (longest, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let looks_up = LooksUp {
        table: swapped.worker(),
        random: fastrand::Rng::with_seed(1),
        last: 0,
        longest: Arc::clone(&longest),
        seen: Arc::clone(&seen),
    };
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let worker = std::thread::spawn(move || {
        taut_host::pin_current_thread(cores.device).unwrap();
        let specs = ["null:source=32", "null:"].map(|text| PortSpec::parse(text).unwrap());
        let mut resources = Resources::for_ports(&specs).unwrap();
        let ports = specs.iter().map(|spec| spec.open(&mut resources).unwrap());
        let ports: Vec<_> = ports.collect();
        let mut worker = Worker::new(ports, vec![Box::new(looks_up)], Flush::default(), &clock);
        worker.run(&stopped);
        worker.counters().read()
    });
    taut_host::pin_current_thread(cores.generator).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let mut pauses_us = [Vec::new(), Vec::new()];
    for number in 1..=SWAPS as u64 {
        for is_swapped in [false, true] {
            let next = vec![number; ENTRIES];
            longest.store(0, Ordering::Relaxed);
            let begun = Instant::now();
            if is_swapped {
                swapped.swap(next);
            } else {
                drop(black_box(next));
            }
            while begun.elapsed() < WINDOW {
                std::hint::spin_loop();
            }
            let pause_ns = clock.to_ns(longest.load(Ordering::Relaxed));
            pauses_us[usize::from(is_swapped)].push(pause_ns / 1e3);
            assert!(swapped.settle(PATIENCE), "the worker does not move on");
            if is_swapped {
                while seen.load(Ordering::Relaxed) != number {
                    assert!(begun.elapsed() < PATIENCE);
                }
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    let done = worker.join().unwrap();
    assert_eq!(done.rx_packets, done.tx_packets, "no packet is lost");
    println!(
        "{SWAPS} swaps of {ENTRIES} entries under {:.1} million packets, none lost: longest time between two batches within {WINDOW:?}",
        done.rx_packets as f64 / 1e6
    );
    for (what, found) in ["without a swap", "with a swap"]
        .into_iter()
        .zip(&mut pauses_us)
    {
        found.sort_by(f64::total_cmp);
        let at = |q: f64| {
            let quantile = quantile_interval(found, q, 0.95).unwrap();
            let spread = quantile.words(|value| format!("{value:.1}"));
            format!("{:.1} us ({spread})", quantile.point)
        };
        let most = found.last().unwrap();
        println!(
            "  {what}: median {}, p99 {}, most {most:.1} us",
            at(0.5),
            at(0.99)
        );
    }
    let p99 = quantile_interval(&pauses_us[1], 0.99, 0.95).unwrap();
    let verdict = if p99.high <= MOST_US {
        "is within"
    } else if p99.low > MOST_US {
        "is over"
    } else {
        "may be over or within"
    };
    println!("the p99 with a swap {verdict} {MOST_US} us");
}
