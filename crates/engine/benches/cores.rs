//! Benchmark of one chain on one to all cores over null ports: packets per second of `n` workers, divided by the rate
//! of one worker. One chain has no functions, one has functions that any worker can run, and one has a `nat` whose
//! workers hand packets off to their owners. The variants run interleaved. `cargo bench -p taut-engine --bench cores`
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_engine::{Chain, CountersView, Stage, Start, Team};
use taut_functions::FUNCTIONS;
use taut_measure::ratio_interval;
use taut_port::PortSpec;
use taut_sys::Clock;

const REPETITIONS: usize = 30;
const DURATION: Duration = Duration::from_millis(100);
/// The chains under test: the name and the functions between the ports.
const CHAINS: [(&str, &[&str]); 3] = [
    ("nothing", &[]),
    (
        "mac-swap, filter, balance",
        &[
            "mac-swap",
            "filter(default=accept, rules=[])",
            "balance(port=1, hops=[02:00:00:00:00:01, 02:00:00:00:00:02])",
        ],
    ),
    (
        "nat, which reads packets twice to know whose they are, and passes these",
        &["nat(outside=[1], address=192.0.2.1)"],
    ),
];

static NEVER: AtomicBool = AtomicBool::new(false);

/// Returns the rate of all workers together in packets per cycle, without the time of interruptions.
fn rate(chain: &Chain, workers: usize, clock: &Clock) -> f64 {
    let mut chain = chain.clone();
    chain.workers = workers;
    chain.cores = taut_host::cores_for(workers).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let start = Start {
        clock: *clock,
        stop: Arc::clone(&stop),
        given_up: &NEVER,
        tell: Arc::new(|_| ()),
        tell_link: Arc::new(|_, _| ()),
        at_end: Arc::new(|_| ()),
    };
    let team = Team::start(&chain, "bench", &start, None).unwrap();
    std::thread::sleep(DURATION);
    stop.store(true, Ordering::Relaxed);
    let exchange = team.exchange();
    team.join();
    let of_one =
        |it: &CountersView| it.tx_packets as f64 / (it.total_ticks - it.interrupted_ticks) as f64;
    exchange.each().iter().map(of_one).sum()
}

fn main() {
    let clock = Clock::calibrate(Duration::from_millis(200));
    let most = taut_host::allowed_cpus().len();
    println!(
        "packets of so many workers over those of one, 95 % interval of {REPETITIONS} interleaved repetitions of {DURATION:?}"
    );
    for (name, functions) in CHAINS {
        let ports = ["null:source=32", "null:"].map(|text| PortSpec::parse(text).unwrap());
        let functions = functions
            .iter()
            .map(|text| Stage::parse(text, FUNCTIONS).unwrap());
        let chain = Chain::new(ports.into(), functions.collect());
        let mut rates = vec![Vec::new(); most];
        for _ in 0..REPETITIONS {
            for (rates, workers) in rates.iter_mut().zip(1..) {
                rates.push(rate(&chain, workers, &clock));
            }
        }
        println!("{name}:");
        for (found, workers) in rates.iter().zip(1..).skip(1) {
            let ratio = ratio_interval(found, &rates[0], 0.95).unwrap().median;
            let spread = ratio.words(|value| format!("{value:.2}"));
            println!("  {workers} workers: {:.2} ({spread})", ratio.point);
        }
    }
}
