//! Measures how often `taut gate` is wrong, and how often it decides, on a machine that other programs disturb. One
//! computation is compared many times with itself, and with itself plus 2, 5 and 10 % more work, beside each kind of
//! neighbour. Prints CSV. `cargo bench --bench gate`; TAUT_GATES=10000 sets the number of comparisons.
#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taut_measure::sequential::{Decision, Sequential};

/// The kinds of programs that disturb the machine during the comparisons.
const NEIGHBOURS: [&str; 5] = ["none", "busy loops", "bursts", "cache thrash", "steps"];

/// Number of rounds of the computation, which take about 100 us in total.
const ROUNDS: u64 = 40_000;

/// Maximum number of pairs of a comparison.
const PAIRS: usize = 200;

const LEVEL: f64 = 0.01;

/// Runs the computation with `rounds` rounds, and returns its time in seconds.
fn compute(rounds: u64, table: &mut [u64]) -> f64 {
    let begin = Instant::now();
    let mut state = 1_u64;
    for round in 0..rounds {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(round);
        let at = (state >> 48) as usize % table.len();
        table[at] = table[at].wrapping_add(state);
    }
    black_box(state);
    begin.elapsed().as_secs_f64()
}

/// Disturbs the machine by a program of the given kind until `stop` is set.
fn neighbour(kind: &str, stop: &AtomicBool) {
    let mut random = fastrand::Rng::new();
    let mut memory = vec![0_u64; if kind == "cache thrash" { 8 << 20 } else { 64 }];
    let work = |memory: &mut [u64], time: Duration| {
        let begin = Instant::now();
        let mut at = 0;
        while begin.elapsed() < time && !stop.load(Ordering::Relaxed) {
            for _ in 0..10_000 {
                at = (at * 5 + 8_191) % memory.len();
                memory[at] = black_box(memory[at] + 1);
            }
        }
    };
    while !stop.load(Ordering::Relaxed) {
        match kind {
            "none" => return,
            "bursts" => {
                work(&mut memory, Duration::from_millis(random.u64(1..30)));
                std::thread::sleep(Duration::from_millis(random.u64(1..100)));
            }
            // The core is shared for seconds, then free for seconds, as when its clock or its tenants change.
            "steps" => {
                work(&mut memory, Duration::from_millis(random.u64(500..3_000)));
                std::thread::sleep(Duration::from_millis(random.u64(500..3_000)));
            }
            _ => work(&mut memory, Duration::from_millis(100)),
        }
    }
}

/// Compares the computation with one that does `slower` times the work.
fn compare(slower: f64, limit: f64, random: &mut fastrand::Rng, table: &mut [u64]) -> Sequential {
    let head_rounds = (ROUNDS as f64 * slower).round() as u64;
    let mut comparison = Sequential::new(limit, LEVEL);
    for _ in 0..PAIRS {
        let (base, head) = if random.bool() {
            let base = compute(ROUNDS, table);
            (base, compute(head_rounds, table))
        } else {
            let head = compute(head_rounds, table);
            (compute(ROUNDS, table), head)
        };
        if comparison.record(base, head) != Decision::Open {
            break;
        }
    }
    comparison
}

fn main() {
    let gates: usize = std::env::var("TAUT_GATES").map_or(500, |text| text.parse().unwrap());
    let cpus = std::thread::available_parallelism().unwrap().get();
    println!(
        "neighbours,slower,limit,gates,worse,within,cannot_tell,pairs_median,pairs_p90,seconds"
    );
    for kind in NEIGHBOURS {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..cpus {
                scope.spawn(|| neighbour(kind, &stop));
            }
            // Equal programs at the limit itself, where wrong verdicts are most frequent, then below it; slower ones.
            let cases = [
                (1.0, 1.0, 4),
                (1.0, 1.03, 1),
                (1.02, 1.0, 1),
                (1.05, 1.03, 1),
                (1.1, 1.03, 1),
            ];
            for (slower, limit, times) in cases {
                report(kind, (slower, limit), gates * times / 4);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

fn report(kind: &str, (slower, limit): (f64, f64), gates: usize) {
    let mut random = fastrand::Rng::with_seed(gates as u64);
    let mut table = vec![0_u64; 4_096];
    let begin = Instant::now();
    let mut pairs = Vec::new();
    let (mut worse, mut within) = (0, 0);
    for _ in 0..gates {
        let done = compare(slower, limit, &mut random, &mut table);
        pairs.push(done.pairs());
        worse += usize::from(done.decision() == Decision::Worse);
        within += usize::from(done.decision() == Decision::Within);
    }
    pairs.sort_unstable();
    let at = |share: f64| pairs[((pairs.len() - 1) as f64 * share) as usize];
    println!(
        "{kind},{slower},{limit},{gates},{worse},{within},{},{},{},{:.0}",
        gates - worse - within,
        at(0.5),
        at(0.9),
        begin.elapsed().as_secs_f64()
    );
}
