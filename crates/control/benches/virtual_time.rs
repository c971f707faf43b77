//! Measures the time that a simulation of 49 s of control takes: 1,400 periods of NCSbench's robot in virtual time.

#![allow(clippy::unwrap_used)]

use std::time::Instant;
use taut_control::controller::{Faults, Filter};
use taut_control::{Scenario, plant, simulate};

const REPETITIONS: usize = 41;

fn main() {
    let plain = Scenario::new(plant::model("robot").unwrap());
    let mut original = plain.clone();
    original.controller.filter = Filter::Original;
    original.controller.faults = Faults::ORIGINAL;
    let mut lossy = plain.clone();
    lossy.link.loss = 0.05;
    lossy.link.jitter_ns = 10_000_000;
    let cases = [("kalman", plain), ("original", original), ("lossy", lossy)];
    let mut times_ms = [const { Vec::new() }; 3];
    // The runs are interleaved, so that noise of the machine affects all of them alike.
    for _ in 0..REPETITIONS {
        for ((_, scenario), times_ms) in cases.iter().zip(&mut times_ms) {
            let begun = Instant::now();
            let run = simulate(scenario).unwrap();
            times_ms.push(begun.elapsed().as_secs_f64() * 1e3);
            assert_eq!((run.records.len(), run.fallen_ns), (1400, None));
        }
    }
    for ((name, _), times_ms) in cases.iter().zip(&mut times_ms) {
        times_ms.sort_by(f64::total_cmp);
        let median = times_ms[REPETITIONS / 2];
        println!(
            "{name:<9} 49 s in {median:.1} ms ({:.1} to {:.1}, n = {REPETITIONS}): {:.0} times as fast",
            times_ms[0],
            times_ms[REPETITIONS - 1],
            49e3 / median
        );
    }
}
