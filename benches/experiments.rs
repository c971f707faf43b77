//! Measures the time and memory for listing and evaluating a large experiment: 10,000 synthetic runs with 10,000
//! samples each. `cargo bench --bench experiments`
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};
use taut_experiment::agent::checksum;
use taut_experiment::folder::{Folder, IndexedRun, RunRecord};
use taut_experiment::{Changes, Experiment};
use taut_measure::LatencyHistogram;

const SAMPLES: u64 = 10_000;

const FILE: &str = r#"
title = "Ten thousand runs"
[loop]
device = ["a", "b", "c", "d"]
rate = { from = 1, to = 250, by = 1 }
[plan]
repetitions = 10
[[step]]
name = "s"
run = "echo {{ device }} {{ rate }}"
[[table]]
name = "all"
rows = ["device"]
metrics = ["latency_ns.p50_ns", "latency_ns.p99_ns"]
[[figure]]
name = "cdf"
kind = "cdf"
by = ["device"]
[[figure]]
name = "line"
kind = "line"
by = ["device"]
x = "rate"
y = "latency_ns.p50_ns"
[[claim]]
text = "they are alike"
value = "median('latency_ns.p50_ns', device='a') / median('latency_ns.p50_ns', device='b')"
holds = "value > 0.5 and value < 2"
"#;

/// Writes the files of one run, and returns the run's line of the index.
fn make_run(
    folder: &Path,
    run: &taut_experiment::PlannedRun,
    experiment: &Experiment,
    rng: &mut fastrand::Rng,
) -> IndexedRun {
    let variant = &experiment.variants()[run.variant];
    let mut latency = LatencyHistogram::new();
    for _ in 0..SAMPLES {
        // The distribution is log-uniform over two decades with a tail.
        latency.record((300.0 * 100_f64.powf(rng.f64().powi(3))) as u64);
    }
    let dir = folder.join("runs").join(&run.id);
    fs::create_dir_all(dir.join("local/latency")).unwrap();
    let mut log = Vec::new();
    latency
        .write_hlog(&mut log, SystemTime::now(), Duration::from_secs(1), None)
        .unwrap();
    fs::write(dir.join("local/latency/latency.hlog"), log).unwrap();
    let mut metrics: BTreeMap<String, f64> =
        (0..60).map(|i| (format!("other.{i}"), rng.f64())).collect();
    for (name, q) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
        metrics.insert(
            format!("latency_ns.{name}_ns"),
            latency.quantile(q).unwrap() as f64,
        );
    }
    let record = RunRecord {
        id: run.id.clone(),
        variant: run.variant + 1,
        repetition: run.repetition,
        warm_up: false,
        loops: variant.loops.clone(),
        variables: variant.variables.clone(),
        started: "2026-01-01T00:00:00Z".into(),
        seconds: 1.0,
        attempt: 1,
        failure: None,
        commands: Vec::new(),
        nodes: BTreeMap::new(),
        metrics: metrics.clone(),
        links: Vec::new(),
        clocks: Vec::new(),
        programs: Vec::new(),
        notes: Vec::new(),
        files: BTreeMap::new(),
    };
    let path = dir.join("run.json");
    fs::write(&path, serde_json::to_vec_pretty(&record).unwrap()).unwrap();
    IndexedRun {
        id: record.id,
        variant: record.variant,
        repetition: record.repetition,
        warm_up: false,
        seconds: 1.0,
        variables: record.loops,
        metrics,
        programs: Vec::new(),
        checksum: checksum(&path).unwrap(),
    }
}

/// Returns the time that a command takes, seconds, and its peak memory, MiB.
fn timed(words: &[&str]) -> (f64, f64) {
    let began = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_taut"))
        .args(words)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak_kib: f64 = 0.0;
    let seconds = loop {
        if let Some(ended) = child.try_wait().unwrap() {
            assert!(ended.success(), "{words:?}: {ended}");
            break began.elapsed().as_secs_f64();
        }
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        peak_kib = peak_kib.max(kib.unwrap_or(0.0));
        std::thread::sleep(Duration::from_millis(1));
    };
    (seconds, peak_kib / 1024.0)
}

fn main() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path().join("large");
    let experiment =
        Experiment::parse(FILE, "large.toml", temporary.path(), &Changes::default()).unwrap();
    let folder = Folder::begin(&dir, &experiment, "large", "made up", &Changes::default()).unwrap();
    let plan = experiment.plan();
    let mut rng = fastrand::Rng::with_seed(1);
    let mut index = Vec::new();
    for run in &plan {
        serde_json::to_writer(&mut index, &make_run(&dir, run, &experiment, &mut rng)).unwrap();
        index.push(b'\n');
    }
    fs::write(dir.join("runs.jsonl"), index).unwrap();
    let mut state = folder.state().unwrap();
    state.done = plan.len();
    fs::write(
        dir.join("state.json"),
        serde_json::to_vec_pretty(&state).unwrap(),
    )
    .unwrap();
    println!(
        "{} runs, {} samples",
        plan.len(),
        plan.len() as u64 * SAMPLES
    );
    let results = temporary.path().display().to_string();
    let large = dir.display().to_string();
    for (what, words) in [
        ("list", vec!["experiment", "list", results.as_str()]),
        (
            "show --runs (evaluation, report)",
            vec!["experiment", "show", large.as_str(), "--runs"],
        ),
        (
            "show --verify",
            vec!["experiment", "show", large.as_str(), "--verify"],
        ),
    ] {
        let mut seconds: Vec<f64> = Vec::new();
        let mut peak = 0.0;
        for _ in 0..3 {
            let (took, memory) = timed(&words);
            seconds.push(took);
            peak = memory;
        }
        seconds.sort_by(f64::total_cmp);
        println!(
            "{what:<36}{:>8.2} s ({:.2} to {:.2}, n = 3), at most {peak:.0} MiB",
            seconds[1], seconds[0], seconds[2]
        );
    }
}
