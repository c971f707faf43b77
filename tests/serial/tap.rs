//! `taut tap` compared with the generator: the wiretap's counts equal the generator's, and its latency is lower. It
//! identifies dropped packets by number, and another program's timestamps agree. A second test checks an inline wiretap
//! over memif.

use crate::support::program::{Program, run};
use crate::support::undisturbed::{Complaint, undisturbed};
use crate::support::{Sockets, alone, alone_and_root, is_installed, scratch, taut};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use taut_host::{Steering, Testbed, choose_cores};

/// Starts a wiretap on the device's interfaces.
fn start_tap(testbed: &Testbed, arguments: &[&str]) -> Program {
    let mut command = testbed.command_in_device(env!("CARGO_BIN_EXE_taut"));
    command.args(["tap", "dut0", "dut1", "--json"]);
    let mut tap = Program::start(command.args(arguments));
    tap.wait_for_stderr("watching dut0 and dut1");
    tap
}

fn start_forward(testbed: &Testbed, arguments: &[&str]) -> Program {
    let mut command = testbed.command_in_device(env!("CARGO_BIN_EXE_taut"));
    command.args(["forward", "--core", &choose_cores().device.to_string()]);
    let mut forward = Program::start(command.args(arguments));
    forward.wait_until("both links up", |_, stderr| {
        stderr.matches(": up").count() >= 2
    });
    forward
}

fn generate(testbed: &Testbed, options: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("ip");
    let inside = ["netns", "exec", testbed.generator_namespace()];
    command.args(inside).arg(env!("CARGO_BIN_EXE_taut"));
    command.args(["generate", "--json", "--warm-up", "0"]);
    for interface in ["gen0", "gen1"] {
        command.args(["--port", &format!("af_packet:{interface}{options}")]);
    }
    command.args(["--core", &choose_cores().generator.to_string()]);
    command.args(arguments);
    command
}

fn bridge() -> Testbed {
    let cpu = choose_cores().device;
    let steering = Steering::PacketSteering { cpu };
    let testbed = Testbed::builder().bridge(true).steering(steering);
    testbed.build().unwrap()
}

/// Reads latencies by sequence number from a file of samples in CSV; `None` for a lost packet.
fn latencies_ns(samples: &Path) -> BTreeMap<u64, Option<u64>> {
    let text = std::fs::read_to_string(samples).unwrap();
    let rows = text.lines().skip(1).map(|row| {
        let cells: Vec<&str> = row.split(',').collect();
        (cells[0].parse().unwrap(), cells[3].parse().ok())
    });
    rows.collect()
}

/// Reads the samples of the only flow that entered through the side `side`.
fn tap_samples(folder: &Path, side: &str) -> BTreeMap<u64, Option<u64>> {
    let mut flows = std::fs::read_dir(folder.join(side)).unwrap().flatten();
    let flow = flows.find(|entry| entry.path().is_dir()).unwrap();
    latencies_ns(&flow.path().join("samples.csv"))
}

/// Checks that the wiretap has recorded exactly the generator's packets, and that the time of each inside the device is
/// shorter than its round trip.
fn compare(testbed: &Testbed, options: &str) {
    undisturbed(|| {
        let folder = scratch();
        let [inside, outside] = ["tap", "generator"].map(|n| folder.path().join(n));
        let into = |folder: &Path| {
            let folder = folder.to_str().unwrap().to_string();
            ["--out".to_string(), folder, "--samples=csv".to_string()]
        };
        let tap = start_tap(testbed, &into(&inside).each_ref().map(String::as_str));
        let mut command = generate(testbed, options, &["--rate=5k", "--seconds=0.5"]);
        let generated = run(command.args(into(&outside)));
        let tapped = tap.interrupt().success().last_json();
        if generated.code() != Some(0) || generated.first_stream()["lost"] != 0 {
            return Err(format!("{generated:?}").into());
        }
        let number = |of: &serde_json::Value| of.as_u64().unwrap();
        let sent = number(&generated.first_stream()["tally"]["sent"]);
        // The kernel of some virtual machines skips its trace points for milliseconds, which is reported packet by
        // packet.
        let unseen = number(&tapped["missed"]["unseen"]);
        if unseen * 10 > sent {
            let skipped = format!("the kernel skipped {unseen} trace points: {tapped}");
            return Err(Complaint::spoilt(skipped));
        }
        let direction = &tapped["directions"][0];
        let [entered, left] = ["entered", "left"].map(|name| number(&direction[name]));
        assert!(entered <= sent && left <= sent, "{tapped}");
        assert!(2 * sent - entered - left <= unseen, "{tapped}");
        if unseen == 0 {
            assert_eq!([entered, left], [sent; 2], "{tapped}");
        }
        assert_eq!(direction["to"], "dut1", "{tapped}");
        assert_eq!(tapped["directions"][1]["entered"], 0, "{tapped}");
        let outside = latencies_ns(&outside.join("samples.csv"));
        let inside = tap_samples(&inside, "dut0");
        assert!(inside.keys().all(|number| outside.contains_key(number)));
        let seen = inside
            .iter()
            .filter_map(|(number, it)| Some((number, (*it)?)));
        let inside: BTreeMap<u64, u64> = seen.map(|(number, it)| (*number, it)).collect();
        assert!(inside.len() as u64 + unseen >= sent, "{tapped}");
        // The time inside the device is shorter than the round trip, but the two are read from different clocks.
        let longer = inside
            .iter()
            .filter(|(number, i)| outside[number].is_some_and(|o| **i >= o));
        assert!(longer.count() * 1000 <= inside.len(), "{tapped}");
        Ok(())
    });
}

#[test]
fn tap_latency_of_a_bridge_is_below_the_round_trip() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    compare(&bridge(), "");
}

#[test]
fn tap_latency_of_a_forwarder_is_below_the_round_trip() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let testbed = Testbed::builder().build().unwrap();
    let ports = ["--port=af_xdp:dut0", "--port=af_xdp:dut1"];
    let forward = start_forward(&testbed, &ports);
    compare(&testbed, ",qdisc=yes");
    forward.interrupt().success();
}

#[test]
fn dropped_packets_are_reported_by_their_sequence_number() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let testbed = Testbed::builder().build().unwrap();
    let folder = scratch();
    let chain = folder.path().join("chain.toml");
    let text = "ports = [\"af_packet:dut0\", \"af_packet:dut1\"]\n\n[[function]]\nname = \"impair\"\n\
                lose_at = [17, 401]\n";
    std::fs::write(&chain, text).unwrap();
    let forward = start_forward(&testbed, &[chain.to_str().unwrap()]);
    let tap = start_tap(&testbed, &[]);
    run(&mut generate(&testbed, "", &["--rate=2k", "--seconds=0.5"]));
    let tapped = tap.interrupt().success().last_json();
    forward.interrupt().success();
    let flow = &tapped["directions"][0]["flows"][0];
    assert_eq!(flow["lost"], 2, "{tapped}");
    assert_eq!(
        flow["lost_sequences"],
        serde_json::json!([17, 401]),
        "{tapped}"
    );
}

/// Starts tshark, which records the epoch seconds of UDP packets on an interface of the bridge by sequence number.
fn captured(testbed: &Testbed, interface: &str, folder: &Path) -> Program {
    let file = folder.join(format!("{interface}.pcap"));
    let mut command = testbed.command_in_device("tshark");
    command.args(["-i", interface, "-f", "udp", "-w"]);
    let mut tshark = Program::start(command.arg(&file));
    // tshark reports the start of the capture too early. It begins its file once the interface is open.
    tshark.wait_until("a file with a header", |_, _| {
        std::fs::metadata(&file).is_ok_and(|file| file.len() > 0)
    });
    tshark
}

fn times(folder: &Path, interface: &str) -> BTreeMap<String, f64> {
    let file = folder.join(format!("{interface}.pcap"));
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file);
    command.args([
        "-T",
        "fields",
        "-e",
        "frame.time_epoch",
        "-e",
        "udp.payload",
    ]);
    let listed = run(&mut command).success().stdout;
    let rows = listed.lines().filter_map(|row| row.split_once('\t'));
    rows.filter_map(|(time, payload)| {
        // The digits are magic, flow, and the sequence number, in hexadecimal.
        let number = payload.get(8..20)?.to_string();
        // A floating-point number of this century's seconds loses the nanoseconds, so only the fraction is used.
        let (seconds, fraction) = time.split_once('.')?;
        let seconds = seconds.parse::<u64>().ok()? % 1000;
        Some((
            number,
            seconds as f64 + format!("0.{fraction}").parse::<f64>().ok()?,
        ))
    })
    .collect()
}

#[test]
fn timestamps_of_the_tap_agree_with_a_capture_in_tshark() {
    /// Maximum difference between tshark's timestamps and the wiretap's, ns. They are usually some hundred nanoseconds
    /// apart; the limit allows for a noisy machine.
    const BOUND_NS: f64 = 5_000.0;
    let Some(_turn) = alone_and_root() else {
        return;
    };
    if !is_installed("tshark") {
        println!("skipped: needs tshark (package tshark)");
        return;
    }
    let testbed = bridge();
    undisturbed(|| {
        let folder = scratch();
        let inside = folder.path().join("tap");
        let captures = ["dut0", "dut1"].map(|i| captured(&testbed, i, folder.path()));
        let out = format!("--out={}", inside.display());
        let tap = start_tap(&testbed, &[&out, "--samples=csv"]);
        run(&mut generate(&testbed, "", &["--rate=2k", "--seconds=0.5"]));
        // The test waits because tshark reads packets some time after they arrive.
        std::thread::sleep(Duration::from_secs(1));
        tap.interrupt().success();
        for capture in captures {
            capture.signal(Signal::INT);
            capture.finish();
        }
        let [entered, left] = ["dut0", "dut1"].map(|i| times(folder.path(), i));
        let tapped = tap_samples(&inside, "dut0");
        let mut differences: Vec<f64> = tapped
            .iter()
            .filter_map(|(number, latency_ns)| {
                let number = format!("{number:012x}");
                let theirs = (left.get(&number)? - entered.get(&number)?) * 1e9;
                Some((*latency_ns)? as f64 - theirs)
            })
            .collect();
        if differences.len() < 900 {
            return Err(format!("{} packets in both", differences.len()));
        }
        differences.sort_by(f64::total_cmp);
        let median = differences[differences.len() / 2];
        println!(
            "tap minus tshark: median {median:.0} ns of {}",
            differences.len()
        );
        if median.abs() < BOUND_NS {
            Ok(())
        } else {
            Err(format!("tap minus tshark: {median} ns"))
        }
    });
}

#[test]
fn the_benchmark_reports_device_latency_in_addition_to_round_trips() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let folder = scratch();
    let out = folder.path().join("bench");
    let bench = |device: &str| {
        let mut command = taut(&["bench", "latency", "--quick", "--tap", "--rate=5k"]);
        command.args(["--size=64", "--latency-seconds=0.4", "--device", device]);
        run(command.arg("--out").arg(out.join(device)))
    };
    for device in ["veth-bridge", "veth-af-xdp-each"] {
        let finished = bench(device).success();
        assert!(finished.stdout.contains("device only"), "{finished:?}");
        let text = std::fs::read_to_string(out.join(device).join("summary.json")).unwrap();
        let summary: serde_json::Value = serde_json::from_str(&text).unwrap();
        let load = &summary["sizes"][0]["latency"][0];
        assert!(
            load["inside"]["packets"].as_u64().unwrap() >= 2_000,
            "{load}"
        );
        let median = |row: &serde_json::Value| row["quantiles"][0]["ns"].as_f64().unwrap();
        assert!(median(&load["inside"]) < median(load), "{load}");
        let page = std::fs::read_to_string(out.join(device).join("report.html")).unwrap();
        assert!(page.contains("device only") && page.contains("Device only:"));
    }
    let finished = bench("memif-each");
    assert_eq!(finished.code(), Some(2), "{finished:?}");
    assert!(finished.stderr.contains("--tap: needs"), "{finished:?}");
}

#[test]
fn experiments_with_a_tap_record_the_latency_inside_the_device() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let folder = scratch();
    let file = folder.path().join("bridge.toml");
    let text = r#"
title = "Latency of the bridge, and of the bridge alone"
[device]
id = "veth-bridge"
tap = true
[traffic]
rate = "5k"
seconds = 0.5
[measure]
what = ["latency"]
[[figure]]
name = "inside"
kind = "cdf"
title = "Inside the bridge"
samples = "latency/inside"
"#;
    std::fs::write(&file, text).unwrap();
    let out = folder.path().join("results");
    let mut command = taut(&["experiment", "run"]);
    run(command.arg(&file).arg("--out").arg(&out)).success();
    let summaries = found(&out, "latency/summary.json");
    let text = std::fs::read_to_string(&summaries[0]).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&text).unwrap();
    let inside = &summary["inside"];
    assert!(inside["entered"].as_u64().unwrap() >= 2_000, "{inside}");
    let median = |latency: &serde_json::Value| latency["p50_ns"].as_u64().unwrap();
    assert!(
        median(&inside["summary"]) < median(&summary["streams"][0]["latency_ns"]),
        "{summary}"
    );
    assert!(!found(&out, "latency/inside/latency.hlog").is_empty());
    assert!(!found(&out, "inside.svg").is_empty());
}

/// Returns the files below a folder whose path ends with `end`.
fn found(folder: &Path, end: &str) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = paths
        .flat_map(|path| match path.is_dir() {
            true => found(&path, end),
            false => vec![path],
        })
        .filter(|path| path.ends_with(end))
        .collect();
    all.sort();
    all
}

#[test]
fn an_invalid_wiretap_is_refused_and_creates_no_folder() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let folder = scratch();
    let out = folder.path().join("results");
    for (arguments, code, part) in [
        (&["nowhere0"][..], 3, "ip link"),
        (&["lo"], 3, "veth"),
        (&["lo", "lo"], 2, "twice"),
        (&["a", "b", "c"], 2, "unexpected"),
        (&["lo", "--seconds=x"], 2, "expected seconds"),
    ] {
        let mut command = taut(&["tap"]);
        let finished = run(command.args(arguments).arg("--out").arg(&out));
        assert_eq!(finished.code(), Some(code), "{finished:?}");
        assert!(finished.stderr.contains(part), "{finished:?}");
        assert!(!out.exists());
    }
    let testbed = Testbed::builder().build().unwrap();
    let finished = start_tap(&testbed, &["--seconds=0.1"]).finish();
    assert_eq!(finished.code(), Some(1), "{finished:?}");
    assert!(
        finished.stderr.contains("no measurement packet"),
        "{finished:?}"
    );
}

/// Runs a generator, an in-line wiretap and a forwarder with `impair` once, connected in a line. Returns an error if
/// the machine disturbed the run.
fn compare_in_line() -> Result<(), String> {
    let (outer, inner) = (Sockets::new(), Sockets::new());
    let folder = scratch();
    let [inside, outside, log, chain] =
        ["tap", "generator", "impair.csv", "chain.toml"].map(|name| folder.path().join(name));
    let [west, east] = inner.paths();
    let text = format!(
        "ports = [\"memif:{}\", \"memif:{}\"]\n[[function]]\nname = \"impair\"\nloss = 0.02\nlog = \"{}\"\n",
        west.display(),
        east.display(),
        log.display()
    );
    std::fs::write(&chain, text).unwrap();
    let cores = choose_cores();
    let mut forward = taut(&["forward", "--json", "--quiet", "--core"]);
    let mut forward = Program::start(forward.arg(cores.device.to_string()).arg(&chain));
    forward.wait_for_stdout("started");

    let mut tap = taut(&["tap", "--json", "--samples=csv", "--out"]);
    tap.arg(&inside);
    let ways = outer
        .ports("server", "")
        .into_iter()
        .zip(inner.ports("client", ""));
    // The ports are the generator's, then the device's, of each side.
    let (generators, devices): (Vec<_>, Vec<_>) = ways.unzip();
    for (generator, device) in generators.chunks(2).zip(devices.chunks(2)) {
        tap.args(generator).args(device);
    }
    let mut tap = Program::start(&mut tap);
    tap.wait_until("the device's links up", |_, stderr| {
        stderr.matches("role=client: up").count() == 2
    });

    let mut generate = taut(&["generate", "--json", "--samples=csv", "--warm-up=0"]);
    generate.args(["--rate=2k", "--seconds=0.5", "--max-loss=1", "--core"]);
    generate.arg(cores.generator.to_string());
    generate
        .args(outer.ports("client", ""))
        .arg("--out")
        .arg(&outside);
    let generated = run(&mut generate);
    let tapped = tap.interrupt();
    let forwarded = forward.interrupt().success().last_json();
    if generated.code() != Some(0) {
        return Err(format!("{generated:?}"));
    }
    let tapped = tapped.success().last_json();
    let tally = generated.first_stream()["tally"].clone();
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    let relay = &tapped["relay"];
    let by_accident = number(&forwarded["dropped"])
        - number(&forwarded["counters"]["dropped_by_function"])
        + number(&relay["refused"])
        + number(&relay["undelivered"])
        + number(&tally["refused"]);
    if by_accident > 0 || number(&tally["unsent"]) > 0 {
        return Err(format!("lost by accident: {tally} {tapped} {forwarded}"));
    }

    let direction = &tapped["directions"][0];
    let (sent, entered) = (number(&tally["sent"]), number(&direction["entered"]));
    assert!(entered <= sent, "{tally} {tapped}");
    if (entered, &direction["left"]) != (sent, &tally["received"]) {
        // The generator stops after 20 ms of silence, which may be too short for three programs on two cores.
        return Err(format!("the generator did not wait: {tally} {tapped}"));
    }

    let log = std::fs::read_to_string(&log).unwrap();
    let dropped: Vec<u64> = log
        .lines()
        .skip(1)
        .map(|line| line.split(',').nth(3).unwrap().parse().unwrap())
        .collect();
    assert!(!dropped.is_empty() && dropped.len() < 100, "{log}");
    assert_eq!(
        (&direction["from"], &direction["to"]),
        (&"A".into(), &"B".into())
    );
    assert_eq!(tapped["directions"][1]["entered"], 0, "{tapped}");
    assert_eq!(tapped["missed"]["ring_full"], 0, "{tapped}");
    let (inside, outside) = (
        tap_samples(&inside, "A"),
        latencies_ns(&outside.join("samples.csv")),
    );
    assert!(inside.keys().eq(outside.keys()));
    let lost = inside.iter().filter(|(_, latency)| latency.is_none());
    let lost: Vec<u64> = lost.map(|(sequence, _)| *sequence).collect();
    assert_eq!(lost, dropped, "{tapped}");
    assert_eq!(direction["lost"], dropped.len(), "{tapped}");
    // Both programs read the same counter, but each one has calibrated the counter separately.
    let pairs = inside.iter().zip(outside.values());
    let longer = pairs.filter(|((_, inside), outside)| inside.is_some() && inside >= outside);
    match longer.count() {
        0 => Ok(()),
        n => Err(format!("{n} packets longer inside than around: {tapped}")),
    }
}

#[test]
fn an_inline_tap_reports_sent_packets_and_drops_correctly() {
    let _turn = alone();
    undisturbed(compare_in_line);
}

#[test]
fn an_inline_tap_and_a_wiretap_receive_the_same_packets() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let testbed = bridge();
    undisturbed(|| {
        let (outer, folder) = (Sockets::new(), scratch());
        let [line, wires] = ["line", "wires"].map(|name| folder.path().join(name));
        let mut command = Command::new("ip");
        command.args(["netns", "exec", testbed.generator_namespace()]);
        command.arg(env!("CARGO_BIN_EXE_taut"));
        command.args(["tap", "--json", "--samples=csv"]);
        let generators = outer.ports("server", "");
        for (generator, device) in generators.chunks(2).zip(["gen0", "gen1"]) {
            command.args(generator);
            command.arg(format!("--port=af_packet:{device}"));
        }
        command.arg("--core").arg(choose_cores().device.to_string());
        let mut in_line = Program::start(command.arg("--out").arg(&line));
        in_line.wait_for_stderr("in line");
        let out = format!("--out={}", wires.display());
        let at_wires = start_tap(&testbed, &[&out, "--samples=csv"]);
        let mut generate = taut(&["generate", "--json", "--warm-up=0", "--rate=5k"]);
        generate.args(["--seconds=0.5", "--core"]);
        generate.arg(choose_cores().generator.to_string());
        let generated = run(generate.args(outer.ports("client", "")));
        let at_wires = at_wires.interrupt();
        let in_line = in_line.interrupt();
        if generated.code() != Some(0) || generated.first_stream()["lost"] != 0 {
            return Err(format!("{generated:?}").into());
        }
        let (in_line, at_wires) = (
            in_line.success().last_json(),
            at_wires.success().last_json(),
        );
        if at_wires["missed"]["unseen"] != 0 {
            // The kernel of some virtual machines skips its trace points for milliseconds.
            let skipped = format!("the kernel skipped trace points: {at_wires}");
            return Err(Complaint::spoilt(skipped));
        }
        let stream = generated.first_stream();
        let sent = &stream["tally"]["sent"];
        assert_eq!(&in_line["directions"][0]["left"], sent, "{in_line}");
        assert_eq!(&at_wires["directions"][0]["left"], sent, "{at_wires}");
        println!(
            "in line {}\nat the wires {}\nround trip {}",
            in_line["directions"][0]["latency_ns"],
            at_wires["directions"][0]["latency_ns"],
            stream["latency_ns"],
        );
        let (line, wires) = (tap_samples(&line, "A"), tap_samples(&wires, "dut0"));
        assert!(line.keys().eq(wires.keys()));
        // The times come from two clocks, so a few packets may seem to take longer at the wires than in line.
        let longer = wires.values().zip(line.values()).filter(|(w, l)| w >= l);
        match longer.count() {
            n if n * 1000 <= line.len() => Ok(()),
            n => Err(format!("{n} longer at the wires: {in_line} {at_wires}").into()),
        }
    });
}

#[test]
fn an_invalid_inline_tap_is_refused_and_creates_no_folder() {
    let _turn = alone();
    let folder = scratch();
    let out = folder.path().join("results");
    let capture = folder.path().join("in.pcap");
    let header = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 0xffff, 1_u32];
    std::fs::write(&capture, header.map(u32::to_le_bytes).concat()).unwrap();
    let capture = format!("--port=pcap:{}", capture.display());
    for (arguments, code, part) in [
        (&["--port=null:"][..], 2, "two or four ports"),
        (&["--port=null:", "--port=nul:"], 2, "no backend"),
        (&["--port=null:", &capture], 2, "a file"),
        (
            &["--port=null:", "--port=null:", "--core=9999"],
            2,
            "--core",
        ),
        (&["--port=null:", "lo"], 2, "cannot be used with"),
        (&["lo", "--core=1"], 2, "cannot be used with"),
        (&[], 2, "required"),
    ] {
        let mut command = taut(&["tap"]);
        let finished = run(command.args(arguments).arg("--out").arg(&out));
        assert_eq!(finished.code(), Some(code), "{finished:?}");
        assert!(finished.stderr.contains(part), "{finished:?}");
        assert!(!out.exists());
    }
    let nothing = ["tap", "--port=null:", "--port=null:", "--seconds=0.1"];
    let finished = run(&mut taut(&nothing));
    assert_eq!(finished.code(), Some(1), "{finished:?}");
    assert!(finished.stderr.contains("every link up"), "{finished:?}");
}
