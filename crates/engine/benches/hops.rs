//! Benchmark of the cost of one more function. It measures, by regression, the cycles per packet and hop of compact
//! chains of 1 to 10 functions. It also compares a separate worker, joined by memif, with the cost of its ports alone.
//! The variants run interleaved. `cargo bench -p taut-engine`
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use taut_engine::{Chain, CountersView, Stage, Worker};
use taut_functions::FUNCTIONS;
use taut_measure::{Interval, median, median_interval, ratio_interval};
use taut_port::{Batch, PortSpec, Resources};
use taut_sys::Clock;

const REPETITIONS: usize = 25;
const DURATION: Duration = Duration::from_millis(20);
const MEMIF_PAIRS: usize = 25;
const MEMIF_DURATION: Duration = Duration::from_millis(100);
const LONGEST: usize = 10;
/// The cost of a hop (one more function in the chain) that was published for Snabb, in cycles per packet.
const WANTED_CYCLES: f64 = 35.0;

fn main() {
    let cores = taut_host::choose_cores();
    let clock = Clock::calibrate(Duration::from_millis(200));
    println!(
        "compact chains of 1 to {LONGEST} functions, null ports, {REPETITIONS} interleaved repetitions of {DURATION:?}"
    );
    let distinct = "mac-swap, mac-rewrite, forward in turn";
    let kinds: [(&str, &[&str], usize); 4] = [
        ("forward, bursts of 32", &["forward"], 32),
        ("forward, bursts of 1", &["forward"], 1),
        ("mac-swap, bursts of 32", &["mac-swap"], 32),
        (
            distinct,
            &[
                "mac-swap",
                "mac-rewrite(source=02:00:00:00:00:07)",
                "forward",
            ],
            32,
        ),
    ];
    // The measured cycles per packet, by kind of chain, number of functions and repetition.
    let mut measured: Vec<Vec<Vec<f64>>> = vec![Vec::new(); kinds.len()];
    let mut seed = fastrand::Rng::with_seed(1);
    for _ in 0..REPETITIONS {
        let mut order: Vec<(usize, usize)> = (0..kinds.len())
            .flat_map(|kind| (1..=LONGEST).map(move |length| (kind, length)))
            .collect();
        seed.shuffle(&mut order);
        let mut cycles = vec![vec![0.0; LONGEST]; kinds.len()];
        for (kind, length) in order {
            let (_, functions, burst) = kinds[kind];
            let functions = functions.iter().cycle().take(length).copied().collect();
            cycles[kind][length - 1] = compact(functions, burst, cores.device, &clock);
        }
        for (all, cycles) in measured.iter_mut().zip(cycles) {
            all.push(cycles);
        }
    }
    for ((name, ..), repetitions) in kinds.iter().zip(&measured) {
        let slopes: Vec<f64> = repetitions.iter().map(|cycles| slope(cycles)).collect();
        let at = |length: usize| {
            let cycles: Vec<f64> = repetitions
                .iter()
                .map(|cycles| cycles[length - 1])
                .collect();
            median(&cycles).unwrap()
        };
        let Interval {
            point, low, high, ..
        } = median_interval(&slopes, 0.95).unwrap();
        let verdict = if high <= WANTED_CYCLES {
            "holds"
        } else {
            "not shown"
        };
        println!(
            "  {name}: {point:.2} cycles per packet and hop ({low:.2} to {high:.2}); 1 function {:.1}, {LONGEST} {:.1}; \
             at most {WANTED_CYCLES}: {verdict}",
            at(1),
            at(LONGEST)
        );
    }
    println!(
        "a worker of its own between two memif links, {MEMIF_PAIRS} interleaved pairs of {MEMIF_DURATION:?}, at saturation"
    );
    let (mut alone, mut hop) = (Vec::new(), Vec::new());
    for pair in 0..MEMIF_PAIRS {
        let mut measure = |is_hop: bool| {
            let functions = if is_hop { vec!["forward"] } else { Vec::new() };
            let cycles = memif(functions, &cores, &clock);
            if is_hop { &mut hop } else { &mut alone }.push(cycles);
        };
        measure(pair % 2 == 0);
        measure(pair % 2 != 0);
    }
    let show = |name: &str, values: &[f64]| {
        let found = median_interval(values, 0.95).unwrap();
        let words = found.words(|cycles| format!("{cycles:.1}"));
        println!("  {name}: {:.1} cycles per packet ({words})", found.point);
    };
    show("ports alone", &alone);
    show("with `forward`: the hop", &hop);
    let ratio = ratio_interval(&hop, &alone, 0.95).unwrap();
    println!(
        "  hop over ports: {:.2} ({}); at most 2: {}",
        ratio.median.point,
        ratio.median.words(|value| format!("{value:.2}")),
        if ratio.median.high <= 2.0 {
            "holds"
        } else {
            "not shown"
        }
    );
}

/// Returns the slope of the least-squares line through `values`, whose abscissas are 1, 2, ...
fn slope(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let middle = (n + 1.0) / 2.0;
    let mean = values.iter().sum::<f64>() / n;
    let off = |index: usize| index as f64 + 1.0 - middle;
    let both: f64 = values
        .iter()
        .enumerate()
        .map(|(i, y)| off(i) * (y - mean))
        .sum();
    both / (0..values.len()).map(|i| off(i) * off(i)).sum::<f64>()
}

fn chain(functions: Vec<&str>, ports: &[String; 2], burst: usize, core: usize) -> Chain {
    let ports = ports.iter().map(|text| PortSpec::parse(text).unwrap());
    let functions = functions
        .iter()
        .map(|text| Stage::parse(text, FUNCTIONS).unwrap());
    let mut chain = Chain::new(ports.collect(), functions.collect());
    chain.burst = burst;
    chain.core = Some(core);
    chain
}

/// Returns the counters of a worker that runs `chain` until it is stopped. The closure `meanwhile` is called at the
/// same time, once the links are up.
fn run(chain: Chain, clock: &Clock, meanwhile: impl FnOnce(&AtomicBool)) -> CountersView {
    let stop = Arc::new(AtomicBool::new(false));
    let (tell, told) = mpsc::channel();
    let worker = {
        let (stop, clock) = (Arc::clone(&stop), *clock);
        std::thread::spawn(move || {
            taut_host::pin_current_thread(chain.core.unwrap()).unwrap();
            let mut resources = Resources::for_ports(&chain.ports).unwrap();
            let ports = chain.ports.iter().map(|spec| spec.open(&mut resources));
            let ports = ports.map(Result::unwrap).collect();
            let functions = chain.build_functions().unwrap();
            let mut worker = Worker::new(ports, functions, chain.flush, &clock);
            worker.set_burst(chain.burst);
            tell.send(()).unwrap();
            worker.run(&stop);
            worker.counters().read()
        })
    };
    told.recv().unwrap();
    meanwhile(&stop);
    stop.store(true, Ordering::Relaxed);
    worker.join().unwrap()
}

fn compact(functions: Vec<&str>, burst: usize, core: usize, clock: &Clock) -> f64 {
    let ports = [format!("null:source={burst}"), "null:".to_string()];
    let done = run(chain(functions, &ports, burst, core), clock, |_| {
        std::thread::sleep(DURATION)
    });
    // Every iteration has packets; interrupted iterations do not count.
    (done.total_ticks - done.interrupted_ticks) as f64 / done.tx_packets as f64
}

/// Returns the busy cycles per packet of a worker with memif ports and the given functions under overload.
fn memif(functions: Vec<&str>, cores: &taut_host::CorePlan, clock: &Clock) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let ports = |role: &str| {
        ["west", "east"]
            .map(|end| format!("memif:{}/{end}.sock,role={role}", folder.path().display()))
    };
    let far = ports("server").map(|text| PortSpec::parse(&text).unwrap());
    taut_host::pin_current_thread(cores.generator).unwrap();
    let mut resources = Resources::for_ports(&far).unwrap();
    let mut open = |index: usize| far[index].open(&mut resources).unwrap();
    let (mut west, mut east) = (open(0), open(1));
    let pool = resources.pool();
    let device = chain(functions, &ports("client"), 32, cores.device);
    let done = run(device, clock, |_| {
        while !(west.link().is_up() && east.link().is_up()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (mut out, mut back) = (Batch::new(), Batch::new());
        let begun = std::time::Instant::now();
        while begun.elapsed() < MEMIF_DURATION {
            let room = 32 - out.len();
            pool.fill(&mut out, room, 60);
            west.tx(&mut out);
            east.rx(&mut back);
            back.clear();
        }
    });
    done.busy_ticks as f64 / done.tx_packets as f64
}
