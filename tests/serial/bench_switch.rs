//! `taut bench switch`, as short as possible: checks the files and output, but not the measured values.

use crate::support::program::{Program, run};
use crate::support::{alone, alone_and_root, is_root, json, names, python_with, scratch, taut};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

fn arguments(out: &Path, only: &[&str]) -> Vec<String> {
    let mut arguments: Vec<String> = ["bench", "switch", "--quick", "--trial", "0.02"]
        .map(String::from)
        .to_vec();
    for name in only {
        arguments.extend(["--only".to_string(), (*name).to_string()]);
    }
    arguments.extend(["--out".to_string(), out.display().to_string()]);
    arguments
}

#[test]
fn benchmarking_tauts_switch_gives_figures_and_a_repeatable_report() {
    let _turn = alone();
    let folder = scratch();
    let out = folder.path().join("switch");
    let only = ["hops", "qos", "insertion", "amplify"];
    let mut command = arguments(&out, &only);
    command.push("--json".to_string());
    let finished = run(&mut taut(&command)).success();
    let printed: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(printed, json(&out.join("summary.json")));

    let switch = &printed["switches"][0];
    assert_eq!(switch["switch"], "taut");
    let hops = switch["hops"].as_array().unwrap();
    let loops: Vec<u64> = hops
        .iter()
        .map(|row| row["loops"].as_u64().unwrap())
        .collect();
    assert_eq!(loops, [0, 1, 2, 4, 6]);
    assert!(switch["line"]["per_loop_ns"]["value"].is_f64(), "{switch}");
    // Even if packets were delayed by preemptions, the minimum latency grows with the length of the path.
    let least = |row: &Value| row["min_ns"]["median"].as_f64().unwrap();
    assert!(least(&hops[4]) > least(&hops[0]), "{hops:?}");

    let qos = switch["qos"].as_array().unwrap();
    let at = |load: u64, priority: bool| {
        let row = qos
            .iter()
            .find(|row| row["load_percent"] == load && row["priority"] == priority);
        row.unwrap()
    };
    assert_eq!(qos.len(), 4);
    assert!(at(300, false)["lost"].as_f64().unwrap() > 0.3, "{qos:?}");
    assert!(at(0, true)["p50_ns"]["median"].is_f64(), "{qos:?}");

    let insertion = switch["insertion"].as_array().unwrap();
    for row in insertion {
        assert_eq!(row["rules"], 100, "{row}");
        for field in [
            "barrier_p50_ns",
            "modified_barrier_p50_ns",
            "deleted_barrier_p50_ns",
        ] {
            assert!(row[field]["median"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
    let amplify = switch["amplify"].as_array().unwrap();
    let copies: Vec<u64> = amplify
        .iter()
        .map(|row| row["copies"].as_u64().unwrap())
        .collect();
    assert_eq!(copies, [3, 9]);
    assert!(switch["rules"].as_array().unwrap().is_empty());

    assert_eq!(names(&out.join("points")).len(), 5 + 4 + 3 + 2);
    let figures = names(&out.join("figures"));
    assert!(figures.iter().eq(["hops.svg", "qos.svg"]), "{figures:?}");
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("as published"));
    fs::remove_file(out.join("report.html")).unwrap();
    let again = run(&mut taut(&["report", &out.display().to_string()])).success();
    assert!(again.stdout.contains("report.html"), "{}", again.stdout);
    assert_eq!(page, fs::read_to_string(out.join("report.html")).unwrap());

    // Results are never overwritten.
    let refused = run(&mut taut(&command));
    assert_eq!(refused.code(), Some(2));
    assert!(
        refused.stderr.contains("exists already"),
        "{}",
        refused.stderr
    );
}

#[test]
fn errors_about_invalid_options_name_the_valid_values() {
    let _turn = alone();
    let folder = scratch();
    let out = folder.path().join("switch");
    for (only, more, part) in [
        ("latency", "", "available: hops, rules, qos"),
        ("hops", "hub", "there are taut, taut-af-xdp, taut-in-kernel"),
        ("hops", "openflow:host", "openflow:HOST:PORT"),
        ("hops", "p4runtime:host", "p4runtime:HOST:PORT"),
        ("hops", "p4runtime:h:1", "expected --topology FILE"),
        ("hops", "by-hand", "by-hand: expected --topology FILE"),
        ("hops", "--topology=/nowhere", "--topology: /nowhere: "),
        ("hops", "--amplifier=bridge", "it cannot amplify for taut"),
        ("hops", "--trial=0", "0.01 to 60"),
    ] {
        let mut command = arguments(&out, &[only]);
        command.retain(|word| more.is_empty() || !["--trial", "0.02"].contains(&word.as_str()));
        command.extend((!more.is_empty()).then(|| more.to_string()));
        let refused = run(&mut taut(&command));
        assert_eq!(refused.code(), Some(2), "{refused:?}");
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
        assert!(!out.exists());
    }
}

/// Starts `taut forward` as a switch on the network; returns the program, its OpenFlow port, and the topology file with
/// the cabling of the switch's ports. The first and the last port lead to the generator, and cables connect the others
/// in pairs.
fn elsewhere(folder: &Path, cables: usize, rules: &str) -> (Program, u16, PathBuf) {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let openflow = free.local_addr().unwrap().port();
    drop(free);
    let socket = |name: &str| format!("memif:{}", folder.join(name).display());
    let (west, east) = (socket("west.sock"), socket("east.sock"));
    let mut ports = vec![format!("{west},role=server")];
    for cable in 0..cables {
        ports.extend([format!("pair:c{cable}"), format!("pair:c{cable}")]);
    }
    ports.push(format!("{east},role=server"));
    let chain = folder.join("switch.toml");
    let text = format!(
        "ports = {ports:?}\nwait = \"sleep(50us)\"\n[[function]]\nname = \"switch\"\nopenflow = \"127.0.0.1:{openflow}\"\n{rules}"
    );
    fs::write(&chain, text).unwrap();
    let mut forward = taut(&["forward", "--core", "1", "--quiet"]);
    forward.arg(&chain);
    let mut switch = Program::start(&mut forward);
    switch.wait_for_stdout("forwarding");
    let topology = folder.join("wires.toml");
    let pairs = (0..cables).map(|it| [2 + 2 * it, 3 + 2 * it]);
    let wires = format!(
        "cables = {:?}\n[generator]\nports = [\"{west},role=client\", \"{east},role=client\"]\nfirst = 1\nsecond = {}\n",
        pairs.collect::<Vec<_>>(),
        2 + 2 * cables
    );
    fs::write(&topology, wires).unwrap();
    (switch, openflow, topology)
}

fn loops(summary: &Value) -> Vec<u64> {
    let hops = summary["switches"][0]["hops"].as_array().unwrap();
    let loops = hops.iter().map(|row| row["loops"].as_u64().unwrap());
    loops.collect()
}

#[test]
fn a_remote_switch_is_measured_over_links_from_a_file() {
    let _turn = alone();
    let folder = scratch();
    let (switch, openflow, topology) = elsewhere(folder.path(), 1, "");
    let out = folder.path().join("measured");
    let mut command = arguments(&out, &["hops", "amplify", "insertion", "qos"]);
    let device = format!("openflow:127.0.0.1:{openflow}");
    command.extend([device.clone(), "--json".to_string()]);
    command.extend(["--topology".to_string(), topology.display().to_string()]);
    let finished = run(&mut taut(&command)).success();
    // An unsupported measurement is reported and does not fail.
    assert!(
        finished.stderr.contains("return_pps") && finished.stderr.contains("qos of openflow:"),
        "{}",
        finished.stderr
    );
    let summary: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(summary["switches"][0]["switch"], device);
    let version = summary["switches"][0]["version"].as_str().unwrap();
    assert!(version.contains("taut"), "{version}");
    // The file has only one cable, so there are results for no loop and for one.
    assert_eq!(loops(&summary), [0, 1]);
    let amplify = summary["switches"][0]["amplify"].as_array().unwrap();
    let copies: Vec<&Value> = amplify.iter().map(|row| &row["copies"]).collect();
    assert_eq!(copies, [3]);
    let insertion = summary["switches"][0]["insertion"].as_array().unwrap();
    assert_eq!(insertion.len(), 3);
    let ended = switch.interrupt().success();
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
}

/// Starts a P4Runtime server in front of the OpenFlow switch at a port, and returns it with its own port. Returns none
/// without Python's gRPC.
fn p4runtime_before(openflow: u16) -> Option<(Program, u16)> {
    let Some(python) = python_with("grpc") else {
        println!("skipped: needs python3-grpcio");
        return None;
    };
    let mut command = Command::new(python);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/p4runtime.py");
    command.args([script, &openflow.to_string()]);
    let mut server = Program::start(&mut command);
    server.wait_for_stdout("\n");
    let port = server.stdout().trim().parse().unwrap();
    Some((server, port))
}

#[test]
fn a_p4runtime_switch_is_measured_through_its_pipeline() {
    let _turn = alone();
    let folder = scratch();
    let (switch, openflow, topology) = elsewhere(folder.path(), 1, "");
    let Some((server, port)) = p4runtime_before(openflow) else {
        return;
    };
    let info = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/p4runtime.p4info.txtpb"
    );
    let mut wires = fs::read_to_string(&topology).unwrap();
    wires += &format!(
        "[p4]\np4info = {info:?}\npipeline = \"pipeline.json\"\n[[p4.table]]\nname = \"route\"\n\
         in_port = \"standard_metadata.ingress_port\"\nip_dst = \"hdr.ipv4.dst_addr\"\nsend = \"send\"\n\
         drop = \"drop\"\n"
    );
    fs::write(&topology, wires).unwrap();
    fs::write(folder.path().join("pipeline.json"), "{}").unwrap();
    let out = folder.path().join("measured");
    let mut command = arguments(&out, &["hops", "insertion", "amplify"]);
    let device = format!("p4runtime:127.0.0.1:{port}");
    command.extend([device.clone(), "--json".to_string()]);
    command.extend(["--topology".to_string(), topology.display().to_string()]);
    let finished = run(&mut taut(&command)).success();
    let left_out = finished.stderr.contains("no multicast groups");
    assert!(left_out, "{}", finished.stderr);
    let summary: Value = serde_json::from_str(&finished.stdout).unwrap();
    let measured = &summary["switches"][0];
    assert_eq!(measured["switch"], device);
    assert_eq!(measured["version"], "P4Runtime 1.4.0");
    assert_eq!(loops(&summary), [0, 1]);
    let insertion = measured["insertion"].as_array().unwrap();
    assert_eq!(insertion.len(), 3);
    for row in insertion {
        assert!(
            row["barrier_p50_ns"]["median"].as_f64().unwrap() > 0.0,
            "{row}"
        );
    }
    // A wrong pipeline is refused before anything is measured.
    let wrong = fs::read_to_string(&topology).unwrap();
    fs::write(&topology, wrong.replace("\"route\"", "\"rout\"")).unwrap();
    let refused = run(&mut taut(&command));
    assert_eq!(refused.code(), Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("there are: ingress.route"),
        "{refused:?}"
    );
    drop(server);
    switch.interrupt().success();
}

#[test]
fn an_unreachable_openflow_switch_is_reported() {
    if !is_root() {
        return;
    }
    let folder = scratch();
    let topology = folder.path().join("wires.toml");
    let wires =
        "cables = []\n[generator]\nports = [\"null:\", \"null:source=1\"]\nfirst = 1\nsecond = 2\n";
    fs::write(&topology, wires).unwrap();
    let mut command = arguments(&folder.path().join("measured"), &["hops"]);
    command.extend(["openflow:127.0.0.1:9", "--topology"].map(String::from));
    command.push(topology.display().to_string());
    // The measurement runs in its own network namespace, which other tests' measurements do not block.
    let mut apart = Command::new("unshare");
    apart.args(["--net", env!("CARGO_BIN_EXE_taut")]);
    let missing = run(apart.args(&command));
    assert_eq!(missing.code(), Some(3), "{missing:?}");
    assert!(
        missing.stderr.contains("no OpenFlow switch there"),
        "{}",
        missing.stderr
    );
}

#[test]
fn the_benchmark_prints_manual_rules_and_waits_for_confirmation() {
    let _turn = alone();
    let folder = scratch();
    let rule = "[[function.rule]]\nin_port = 0\nactions = [\"output:1\"]\n";
    let (switch, _, topology) = elsewhere(folder.path(), 0, rule);
    let out = folder.path().join("measured");
    let mut command = arguments(&out, &["hops"]);
    command[4] = "0.3".to_string();
    command.extend(["by-hand", "--json", "--topology"].map(String::from));
    command.push(topology.display().to_string());
    let mut bench = Program::start(&mut taut(&command));
    bench.wait_for_stderr("priority=100,in_port=1,actions=output:2");
    // On a busy machine the first attempt at a point may fail, and the benchmark then requests confirmation again.
    (0..3).for_each(|_| bench.say(""));
    let finished = bench.finish().success();
    let summary: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(loops(&summary), [0]);
    // Without a user to confirm the cabling there is no result, and no wait.
    fs::remove_dir_all(&out).unwrap();
    let mut bench = Program::start(&mut taut(&command));
    bench.close_input();
    let finished = bench.finish();
    assert_eq!(finished.code(), Some(3), "{finished:?}");
    assert!(
        finished.stderr.contains("standard input ended"),
        "{}",
        finished.stderr
    );
    switch.interrupt().success();
}

#[test]
fn a_kernel_bridge_and_taut_switches_are_measured_over_veth() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let folder = scratch();
    for (device, copies) in [
        ("taut-af-xdp", 3.0),
        ("taut-in-kernel", 3.0),
        ("bridge", 1.0),
    ] {
        let out = folder.path().join(device);
        let mut command = arguments(&out, &["amplify", "qos"]);
        command.extend([device, "--json"].map(String::from));
        let finished = run(&mut taut(&command)).success();
        // An unsupported measurement is reported and does not fail.
        assert!(finished.stderr.contains("skipped: qos of "), "{finished:?}");
        let summary: Value = serde_json::from_str(&finished.stdout).unwrap();
        let amplify = &summary["switches"][0]["amplify"][0];
        assert_eq!(amplify["copies"], copies, "{amplify}");
        // Sockets of a busy machine lose some packets.
        let came = amplify["fold"]["median"].as_f64().unwrap();
        assert!((copies / 2.0..=copies).contains(&came), "{amplify}");
    }
}

#[test]
fn an_upstream_switch_copies_packets_for_the_amplification_test() {
    let _turn = alone();
    let folder = scratch();
    let out = folder.path().join("switch");
    let mut command = arguments(&out, &["amplify"]);
    command.extend(["taut", "--amplifier", "taut", "--json"].map(String::from));
    let finished = run(&mut taut(&command)).success();
    let summary: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(summary["amplifier"], "taut");
    for (row, copies) in summary["switches"][0]["amplify"]
        .as_array()
        .unwrap()
        .iter()
        .zip([1.0, 4.0])
    {
        assert_eq!(row["copies"], copies, "{row}");
        assert_eq!(row["fold"]["median"], copies, "{row}");
    }
}
