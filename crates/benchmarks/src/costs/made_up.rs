//! Synthetic runs with known costs, for tests: of null ports, and of pair ports between cores that a hypervisor moves.

#![allow(clippy::unwrap_used)]

use super::design::{self, Point};
use super::trial::{Bottleneck, Trial};
use super::{Costs, Facts, Results, all};
use crate::made_up::head;
use std::path::Path;
use taut_bench::benchmark::Benchmark;
use taut_results::write_json;

/// Number of synthetic design points for each kind of port.
pub const POINTS: usize = 40;

/// Returns results of null and pair ports, with 1 % of noise in each run. In one run of pair ports the hypervisor moved
/// a virtual CPU.
pub fn results() -> Results {
    let mut random = fastrand::Rng::with_seed(5);
    let ports: Vec<_> = all()
        .into_iter()
        .filter(|port| port.id != "memif")
        .collect();
    let mut outcomes = Vec::new();
    for (number, port) in ports.iter().enumerate() {
        for (at, point) in design::draw(POINTS, 3, number).into_iter().enumerate() {
            let far = random.bool();
            let line = if far { 1_040.0 } else { 120.0 } + random.f64() * 8.0;
            let line = port.has_generator().then_some(line);
            let noise = 0.99 + 0.02 * random.f64();
            let mut trial = trial(&port.id, (at, point), line, noise);
            if line.is_some() && at == 6 {
                trial.line_cycles[1] = 2_000.0;
            }
            outcomes.push(trial);
        }
    }
    let facts = Facts {
        points: POINTS,
        ports,
    };
    Results {
        head: head(Costs::DESCRIPTION.schema, facts),
        outcomes,
        problems: Vec::new(),
    }
}

/// Returns the synthetic cycles per packet at a point, without noise. `line` is the round trip of a cache line in
/// cycles, for ports between cores.
pub fn cycles(point: &Point, line: Option<f64>) -> f64 {
    let [load, bytes, batch] = [point.load_cycles, point.frame_bytes, point.burst].map(f64::from);
    let of_lines = line.map_or(0.0, |line| line * (0.4 / batch + 1e-4 * bytes));
    20.0 + load + 80.0 / batch + of_lines
}

fn trial(port: &str, (number, point): (usize, Point), line: Option<f64>, noise: f64) -> Trial {
    let cycles = cycles(&point, line) * noise;
    Trial {
        port: port.to_owned(),
        number,
        point,
        cycles,
        slices_cycles: vec![cycles],
        batch: f64::from(point.burst),
        rate_pps: 2.6e9 / cycles,
        dropped: 0.0,
        busy: 1.0,
        interruptions_per_s: 100.0,
        interrupted: 0.001,
        line_cycles: line.map_or_else(Vec::new, |line| vec![line, line]),
        bottleneck: Bottleneck::Device,
    }
}

/// Writes synthetic runs as a results folder.
pub fn write(dir: &Path) {
    let results = results();
    let folder = dir.join(Costs::DESCRIPTION.outcomes);
    std::fs::create_dir_all(&folder).unwrap();
    write_json(&dir.join(Costs::DESCRIPTION.head), &results.head).unwrap();
    for trial in &results.outcomes {
        let name = format!("{}-{:04}-1.json", trial.port, trial.number);
        write_json(&folder.join(name), trial).unwrap();
    }
}
