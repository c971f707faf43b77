//! Measures the cost of the forwarding loop itself: two ports without a device each deliver 32 packets of 64 bytes per
//! receive call. Compares taut's null port and its DPDK port on `net_null` with testpmd (io) on two `net_null`, on one
//! core each, interleaved. `cargo bench --bench floor`; TAUT_BASE=PROGRAM adds another build of taut, to show the cost
//! of a change of the loop.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use taut_host::testpmd::{Memory, Testpmd};
use taut_measure::ratio_interval;

const REPETITIONS: usize = 9;
const SECONDS: f64 = 0.7;

const NAMES: [&str; 4] = [
    "taut null",
    "taut dpdk:net_null",
    "testpmd net_null io",
    "taut null, TAUT_BASE",
];
const DEVICES: [&str; 2] = ["net_null0,size=64,copy=0", "net_null1,size=64,copy=0"];

/// Returns the packets per second of `taut forward` between the two ports, and its busy cycles per packet.
fn taut(program: &str, ports: [String; 2], core: usize) -> Option<(f64, f64)> {
    let output = Command::new(program)
        .args(["forward", "--quiet", "--json", "--core", &core.to_string()])
        .args(["--seconds", &SECONDS.to_string()])
        .args(ports.iter().flat_map(|port| ["--port", port]))
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let summary: serde_json::Value = serde_json::from_str(text.lines().last()?).ok()?;
    let packets = summary["counters"]["tx_packets"].as_f64()?;
    Some((
        packets / summary["seconds"].as_f64()?,
        summary["busy_ticks_per_packet"].as_f64()?,
    ))
}

/// Returns the rate that testpmd prints when it stops forwarding, packets per second.
fn testpmd(core: usize) -> Option<f64> {
    // The lines of testpmd must arrive when they are written, not when a buffer is full.
    let testpmd = Testpmd {
        cpu: core,
        memory: Memory::Usual,
        devices: &DEVICES.map(str::to_string),
        mode: "io",
        buffers: 8192,
        more: &[],
    };
    let mut child = Command::new("stdbuf")
        .arg("-oL")
        .args(testpmd.words())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut lines = BufReader::new(child.stdout.take()?).lines();
    lines
        .find(|line| line.as_ref().is_ok_and(|l| l.starts_with("Press enter")))?
        .ok()?;
    let begun = Instant::now();
    std::thread::sleep(Duration::from_secs_f64(SECONDS));
    let seconds = begun.elapsed().as_secs_f64();
    child.stdin.take()?.write_all(b"\n").ok()?;
    // The last line that begins with `TX-packets:` contains the sum of both ports.
    let packets = lines
        .map_while(Result::ok)
        .filter_map(|line| {
            let count = line.trim().strip_prefix("TX-packets:")?;
            count.split_whitespace().next()?.parse::<f64>().ok()
        })
        .last();
    let _ = child.wait();
    Some(packets? / seconds)
}

fn main() {
    let core = taut_host::choose_cores().device;
    let own = env!("CARGO_BIN_EXE_taut");
    let base = std::env::var("TAUT_BASE").ok();
    let null = || ["null:source=32", "null:source=32"].map(String::from);
    let mut rates: [Vec<f64>; 4] = Default::default();
    let mut busy: [Vec<f64>; 4] = Default::default();
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..REPETITIONS {
        let mut order = [0, 1, 2, 3];
        random.shuffle(&mut order);
        for i in order {
            let measured = match i {
                0 => taut(own, null(), core),
                3 => base.as_ref().and_then(|base| taut(base, null(), core)),
                1 => taut(own, DEVICES.map(|device| format!("dpdk:{device}")), core),
                _ => testpmd(core).map(|rate| (rate, 0.0)),
            };
            let Some((rate, cycles)) = measured else {
                continue;
            };
            rates[i].push(rate);
            busy[i].push(cycles);
        }
    }
    println!(
        "two ports without a device, one core, bursts of 32, 64-byte frames, {REPETITIONS} interleaved \
         repetitions of {SECONDS} s, Mpkt/s"
    );
    println!(
        "{:<24}{:>10}{:>10}{:>10}   cycles/packet",
        "forwarder", "min", "median", "max"
    );
    for (i, name) in NAMES.iter().enumerate() {
        if rates[i].is_empty() {
            println!("{name:<24}no data (not installed, not built in, or not asked for)");
            continue;
        }
        let sorted = sorted(&rates[i]);
        let cycles = (i != 2).then(|| self::sorted(&busy[i])[busy[i].len() / 2]);
        println!(
            "{name:<24}{:>10.1}{:>10.1}{:>10.1}   {}",
            sorted[0] / 1e6,
            sorted[sorted.len() / 2] / 1e6,
            sorted[sorted.len() - 1] / 1e6,
            cycles.map_or("-".to_string(), |c| format!("{c:.1}")),
        );
    }
    for (over, under) in [(0, 2), (1, 2), (0, 3)] {
        if let Some(r) = ratio_interval(&rates[over], &rates[under], 0.95) {
            println!(
                "{} / {}: median {:.2} ({}; spread {:.2} to {:.2})",
                NAMES[over],
                NAMES[under],
                r.median.point,
                r.median.words(|value| format!("{value:.2}")),
                r.min,
                r.max,
            );
        }
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}
