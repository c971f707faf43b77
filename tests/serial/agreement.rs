//! Other measurement programs agree with `taut generate` about the same device.
//!
//! sockperf and irtt use kernel sockets on both sides, taut packet sockets on one. The test therefore compares the
//! delay that a device adds to the same path without it, not the absolute delays.

use crate::support::hosts::{FAR, in_namespace, two_hosts};
use crate::support::program::{Program, run};
use crate::support::undisturbed::undisturbed;
use crate::support::{alone_and_root, is_installed};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;
use taut_host::{Testbed, choose_cores};
use taut_sys::Clock;

/// The largest change of socket delays between two successive minutes on a busy shared machine, µs.
const NOISE_US: f64 = 40.0;

/// Median one-way time, µs, by each installed program; taut is the first.
#[derive(Debug, Clone)]
struct Medians(Vec<(&'static str, f64)>);

impl Medians {
    fn taut(&self) -> f64 {
        self.0[0].1
    }

    /// Returns each program's median minus its median in `base`, µs.
    fn above(&self, base: &Self) -> Vec<(&'static str, f64)> {
        let pairs = self.0.iter().zip(&base.0);
        pairs
            .map(|(more, less)| (more.0, more.1 - less.1))
            .collect()
    }
}

/// Builds the command of `program` in `namespace` with real-time priority: taut's loops never sleep, and a busy machine
/// would preempt them.
fn hurried(namespace: &str, program: &str) -> Command {
    let mut command = in_namespace(namespace, "chrt");
    command.args(["--rr", "1", program]);
    command
}

fn taut_us(testbed: &Testbed, far_interface: &str) -> Result<f64, String> {
    let mut command = hurried(testbed.generator_namespace(), env!("CARGO_BIN_EXE_taut"));
    command.args(["generate", "--port", "af_packet:gen0", "--port"]);
    command.arg(format!("af_packet:{far_interface}"));
    // The frame is as long as the messages of sockperf and irtt.
    command.args([
        "--rate",
        "500",
        "--seconds",
        "0.6",
        "--size",
        "128",
        "--json",
    ]);
    command.args(["--core", &choose_cores().generator.to_string()]);
    let finished = run(&mut command);
    let median_ns = finished.first_stream()["latency_ns"]["p50_ns"].as_f64();
    median_ns
        .map(|ns| ns / 1e3)
        .ok_or_else(|| format!("{finished:?}"))
}

/// Starts a sockperf server in the namespace `far`, and a client in `near`, which sleeps for 2 s before it sends.
/// Returns the client and the server.
fn start_sockperf(near: &str, far: &str) -> (Program, Program) {
    let address = ["-i", FAR, "-p", "11111"];
    let mut command = hurried(far, "sockperf");
    let mut server = Program::start(command.arg("server").args(address));
    server.wait_for_stdout("[tid");
    let mut command = hurried(near, "sockperf");
    command
        .args(["ping-pong", "-t", "1", "-m", "82"])
        .args(address);
    (Program::start(&mut command), server)
}

/// Returns the one-way time that sockperf reports, which is half of the round trip.
fn sockperf_us((client, server): (Program, Program)) -> Result<f64, String> {
    let finished = client.finish();
    server.kill();
    let text = finished.stdout + &finished.stderr;
    let median = text
        .lines()
        .find(|line| line.contains("percentile 50.000"))
        .and_then(|line| line.rsplit('=').next()?.trim().parse().ok());
    median.ok_or(text)
}

fn irtt_us(near: &str, far: &str) -> Result<f64, String> {
    let mut command = hurried(far, "irtt");
    let bound = format!("{FAR}:2112");
    let mut server = Program::start(command.args(["server", "-b", &bound, "-i", "0"]));
    server.wait_until("irtt listens", |stdout, stderr| {
        (stdout.to_string() + stderr).contains("starting")
    });
    let mut command = hurried(near, "irtt");
    command.args(["client", "-Q", "-o", "-", "-i", "4ms", "-d", "600ms"]);
    let finished = run(command.args(["-l", "82", "--wait=100ms", FAR]));
    server.kill();
    let summary: Value =
        serde_json::from_str(&finished.stdout).map_err(|e| format!("{e}: {finished:?}"))?;
    let median_ns = summary["stats"]["rtt"]["median"].as_f64();
    median_ns
        .map(|ns| ns / 2e3)
        .ok_or_else(|| format!("{summary}"))
}

/// Measures from gen0 to `far_interface`, in namespace `from`. `device` is restarted for the programs other than taut,
/// as the interface moves to a host of its own.
fn medians(
    testbed: &Testbed,
    from: &str,
    far_interface: &str,
    device: impl Fn() -> Option<Program>,
) -> Result<Medians, String> {
    let running = device();
    let mut found = vec![("taut", taut_us(testbed, far_interface)?)];
    drop(running);
    let far = two_hosts(testbed, from, far_interface);
    let _running = device();
    let near = testbed.generator_namespace();
    let sockperf = is_installed("sockperf").then(|| start_sockperf(near, &far.0));
    // irtt measures while sockperf still sleeps.
    if is_installed("irtt") {
        found.push(("irtt", irtt_us(near, &far.0)?));
    }
    if let Some(sockperf) = sockperf {
        found.push(("sockperf", sockperf_us(sockperf)?));
    }
    Ok(Medians(found))
}

/// Measures the cable without a device, from gen0 to dut0, which is moved to a host of its own.
fn cable() -> Result<Medians, String> {
    let testbed = Testbed::builder().build().map_err(|e| e.to_string())?;
    let near = testbed.generator_namespace();
    let device = testbed.device_namespace();
    crate::support::hosts::ip(&format!("-n {device} link set dut0 netns {near}"));
    crate::support::hosts::ip(&format!("-n {near} link set dut0 up"));
    medians(&testbed, near, "dut0", || None)
}

fn bridge() -> Result<Medians, String> {
    let testbed = Testbed::builder().bridge(true).build();
    let testbed = testbed.map_err(|e| e.to_string())?;
    medians(&testbed, testbed.generator_namespace(), "gen1", || None)
}

/// Measures `taut forward` with `cycles` additional cycles for every packet.
fn forwarder(cycles: u64) -> Result<Medians, String> {
    let testbed = Testbed::builder().build().map_err(|e| e.to_string())?;
    let start = || {
        let mut command = hurried(testbed.device_namespace(), env!("CARGO_BIN_EXE_taut"));
        command.args(["forward", "--quiet", "--flush", "each"]);
        command.args(["--function", &format!("burn(cycles={cycles})")]);
        command.args(["--core", &choose_cores().device.to_string()]);
        command.args(["--port", "af_packet:dut0", "--port", "af_packet:dut1"]);
        let mut forward = Program::start(&mut command);
        forward.wait_until("both links up", |_, stderr| {
            stderr.matches(": up").count() >= 2
        });
        Some(forward)
    };
    medians(&testbed, testbed.generator_namespace(), "gen1", start)
}

fn others_are_here() -> bool {
    let here = is_installed("sockperf") || is_installed("irtt");
    let hurries = run(Command::new("chrt").args(["--rr", "1", "true"])).code() == Some(0);
    if !here || !hurries {
        println!("skipped: needs sockperf or irtt, and real-time priorities (chrt)");
    }
    here && hurries
}

#[test]
fn all_measuring_programs_agree_on_the_latency_of_a_bridge() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    if !others_are_here() {
        return;
    }
    undisturbed(|| {
        let (cable, bridge) = (cable()?, bridge()?);
        let added = bridge.above(&cable);
        println!("cable {cable:?}, bridge {bridge:?}, added {added:?}");
        for ((name, us), (_, more)) in bridge.0.iter().zip(&added).skip(1) {
            // Kernel sockets cost additional time at both ends, so no program may report less than taut.
            if *us < bridge.taut() {
                return Err(format!("{name} {us} µs, taut {} µs", bridge.taut()));
            }
            if (more - added[0].1).abs() > NOISE_US {
                return Err(format!("the bridge adds {added:?} µs"));
            }
        }
        Ok(())
    });
}

#[test]
fn all_measuring_programs_agree_on_a_known_delay() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    if !others_are_here() {
        return;
    }
    // The added delay is far above the noise. The maximum is the largest number of cycles that the function accepts.
    let clock = Clock::calibrate(Duration::from_millis(50));
    let cycles = (clock.to_ticks(300_000.0) as u64).min(1_000_000);
    let delay_us = clock.to_ns(cycles) / 1e3;
    undisturbed(|| {
        let (idle, busy) = (forwarder(0)?, forwarder(cycles)?);
        let added = busy.above(&idle);
        println!("idle {idle:?}, busy {busy:?}, added {added:?} of {delay_us}");
        let agrees = |(_, us): &(&str, f64)| (us - delay_us).abs() < NOISE_US;
        if added.iter().all(agrees) {
            return Ok(());
        }
        Err(format!("{delay_us} µs were added: {added:?}"))
    });
}
