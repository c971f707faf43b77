//! Measures the saturation throughput over memif: `taut forward` compared with DPDK's testpmd (io), interleaved, with
//! the same generator and ring size, 64-byte frames. `cargo bench --bench forwarding`
#![allow(clippy::unwrap_used)]

mod peers;

use peers::{Forwarder, Program, Role, flood, start};
use std::time::Duration;
use taut_measure::ratio_interval;
use taut_sys::Clock;

const REPETITIONS: usize = 9;
const DURATION: Duration = Duration::from_millis(700);

fn main() {
    let taut = |name, role, flush| Forwarder {
        name,
        role,
        program: Program::Taut { flush },
    };
    let testpmd = |name, role, zero_copy| Forwarder {
        name,
        role,
        program: Program::Testpmd { zero_copy },
    };
    let forwarders = [
        taut("taut-client-idle", Role::Client, "idle(32)"),
        taut("taut-client-full", Role::Client, "full(32,100us)"),
        taut("taut-client-each", Role::Client, "each"),
        taut("taut-server-idle", Role::Server, "idle(32)"),
        testpmd("testpmd-client", Role::Client, false),
        testpmd("testpmd-client-zero-copy", Role::Client, true),
        testpmd("testpmd-server", Role::Server, false),
    ];
    let cores = taut_host::choose_cores();
    let clock = Clock::calibrate(Duration::from_millis(100));
    taut_host::pin_current_thread(cores.generator).unwrap();
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); forwarders.len()];
    let mut busy: Vec<Vec<f64>> = vec![Vec::new(); forwarders.len()];
    let mut seed = fastrand::Rng::with_seed(1);
    for repetition in 0..REPETITIONS {
        let mut order: Vec<usize> = (0..forwarders.len()).collect();
        seed.shuffle(&mut order);
        for i in order {
            let forwarder = &forwarders[i];
            let measured = start(forwarder, &cores).and_then(|bench| {
                Ok((
                    flood(&bench.specs, &clock, DURATION)?,
                    bench.output(forwarder.name),
                ))
            });
            match measured {
                Ok((rate, output)) => {
                    rates[i].push(rate);
                    let summary = output
                        .lines()
                        .last()
                        .and_then(|l| serde_json::from_str::<serde_json::Value>(l).ok());
                    busy[i].extend(summary.and_then(|s| s["busy_ticks_per_packet"].as_f64()));
                }
                Err(e) if repetition == 0 => println!("{}: {e}", forwarder.name),
                Err(_) => {}
            }
        }
    }
    println!(
        "saturation throughput, 64-byte frames, ring 1024, {REPETITIONS} interleaved repetitions of {DURATION:?}"
    );
    println!(
        "{:<28}{:>10}{:>10}{:>10}   cycles/packet (busy)",
        "forwarder", "min", "median", "max"
    );
    for (i, forwarder) in forwarders.iter().enumerate() {
        let mut sorted = rates[i].clone();
        sorted.sort_by(f64::total_cmp);
        if sorted.is_empty() {
            println!("{:<28} no data", forwarder.name);
            continue;
        }
        let mpps = |r: f64| r / 1e6;
        busy[i].sort_by(f64::total_cmp);
        let cycles = busy[i]
            .get(busy[i].len() / 2)
            .map_or("-".to_string(), |c| format!("{c:.1}"));
        println!(
            "{:<28}{:>10.2}{:>10.2}{:>10.2}   {cycles}",
            forwarder.name,
            mpps(sorted[0]),
            mpps(sorted[sorted.len() / 2]),
            mpps(sorted[sorted.len() - 1])
        );
    }
    for (over, under) in [(0, 4), (0, 5), (3, 6), (0, 1), (2, 1)] {
        let n = rates[over].len().min(rates[under].len());
        if let Some(r) = ratio_interval(&rates[over][..n], &rates[under][..n], 0.95) {
            println!(
                "{} / {}: median {:.2} ({}; spread {:.2} to {:.2})",
                forwarders[over].name,
                forwarders[under].name,
                r.median.point,
                r.median.words(|value| format!("{value:.2}")),
                r.min,
                r.max
            );
        }
    }
}
