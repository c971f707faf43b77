//! `taut probe`: round trips between ordinary sockets agree with those of irtt, and injected faults are counted.

use crate::support::hosts::{FAR, Namespace, in_namespace, two_hosts};
use crate::support::program::{Program, run};
use crate::support::undisturbed::undisturbed;
use crate::support::{alone, alone_and_root, is_installed, json, names, scratch, taut};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use taut_host::Testbed;

/// Builds the command of the program under test in a namespace.
fn taut_in(namespace: &str, arguments: &[&str]) -> Command {
    let mut command = in_namespace(namespace, env!("CARGO_BIN_EXE_taut"));
    command.args(arguments);
    command
}

/// Starts a server on the loopback interface and returns its address.
fn server_here() -> (Program, String) {
    let mut server = Program::start(&mut taut(&[
        "probe",
        "server",
        "--bind",
        "127.0.0.1:0",
        "--json",
    ]));
    server.wait_for_stdout("started");
    let started: Value = serde_json::from_str(server.stdout().lines().next().unwrap()).unwrap();
    (server, started["address"].as_str().unwrap().to_string())
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("no number: {value}"))
}

#[test]
fn client_and_server_count_every_probe_and_results_are_complete() {
    let _turn = alone();
    let folder = scratch();
    let out = folder.path().join("out");
    let (server, address) = server_here();
    let asked = [
        "probe",
        "client",
        &address,
        "--count",
        "50",
        "--repetitions",
        "4",
        "--interval",
        "500us",
        "--size",
        "300",
        "--budget",
        "1s",
        "--cpu",
        "--json",
        "--samples",
        "csv",
        "--out",
    ];
    let mut client = taut(&asked);
    let found = run(client.arg(&out)).success().last_json();
    assert_eq!(
        (&found["sent"], &found["received"]),
        (&200.into(), &200.into())
    );
    assert_eq!(
        (&found["lost"], &found["duplicate"]),
        (&0.into(), &0.into())
    );
    assert_eq!(found["repetitions"].as_array().unwrap().len(), 4);
    assert_eq!(found["budget"]["share"], 1.0);
    // The wake-up is part of the round trip. The kernel may not report it, or the clock may be set during the run.
    if let Some(wake_up) = found["wake_up_ns"].as_object() {
        assert!(number(&wake_up["avg_ns"]) < number(&found["rtt_ns"]["avg_ns"]));
    }
    let mean = &found["rtt_mean_ns"];
    assert!(number(&mean["low"]) <= number(&mean["point"]), "{mean}");
    // A late probe waits before it is sent, and only the time from the intended send time includes that wait.
    assert!(number(&found["rtt_from_intended_ns"]["avg_ns"]) >= number(&found["rtt_ns"]["avg_ns"]));
    let all = &found["cpu"]["all"];
    let shares = ["user", "system", "irq", "softirq", "steal", "guest", "idle"];
    let sum: f64 = shares.iter().map(|share| number(&all[share])).sum();
    assert!((0.99..1.01).contains(&sum), "{all}");
    assert_eq!(json(&out.join("summary.json")), found);
    let files = [
        "figures",
        "latency.hlog",
        "report.html",
        "samples.csv",
        "summary.json",
    ];
    assert_eq!(names(&out), files.map(String::from).into());
    let figures = ["cdf.svg", "timeline.svg"].map(String::from);
    assert_eq!(names(&out.join("figures")), figures.into());
    let page = fs::read(out.join("report.html")).unwrap();
    fs::remove_file(out.join("report.html")).unwrap();
    let again = run(taut(&["report", "--json"]).arg(&out)).success();
    assert_eq!(serde_json::from_str::<Value>(&again.stdout).unwrap(), found);
    assert!(page == fs::read(out.join("report.html")).unwrap());
    let rows = fs::read_to_string(out.join("samples.csv")).unwrap();
    assert_eq!(rows.lines().count(), 201);
    let refused = run(taut(&asked).arg(&out));
    assert_eq!(refused.code(), Some(2), "{refused:?}");
    let said = server.interrupt().success().last_json();
    // The client sends additional probes first, to check whether the server exists.
    assert!(number(&said["probes"]["answered"]) >= 201.0, "{said}");
    assert_eq!(said["probes"]["malformed"], 0);
}

#[test]
fn a_probe_server_counts_malformed_probes_until_standard_input_closes() {
    let _turn = alone();
    let arguments = [
        "probe",
        "server",
        "--bind",
        "127.0.0.1:0",
        "--json",
        "--until-stdin-closes",
    ];
    let mut server = Program::start(&mut taut(&arguments));
    server.wait_for_stdout("started");
    let started: Value = serde_json::from_str(server.stdout().lines().next().unwrap()).unwrap();
    let stranger = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger
        .send_to(b"hello", started["address"].as_str().unwrap())
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    server.close_input();
    let said = server.finish().success().last_json();
    assert_eq!(
        (&said["probes"]["answered"], &said["probes"]["malformed"]),
        (&0.into(), &1.into())
    );
}

#[test]
fn a_rate_search_finds_a_rate_confirmed_by_its_trials() {
    let _turn = alone();
    let (_server, address) = server_here();
    let arguments = [
        "probe",
        "client",
        &address,
        "--search-rate",
        "--max-rate",
        "3k",
        "--trial",
        "0.1",
        "--repetitions",
        "2",
        "--size",
        "64",
        "--json",
    ];
    undisturbed(|| {
        let finished = run(&mut taut(&arguments));
        if finished.code() != Some(0) {
            return Err(format!("{finished:?}"));
        }
        let found = finished.last_json();
        let searches = found["searches"].as_array().unwrap();
        assert_eq!(searches.len(), 2);
        let mut sum = 0.0;
        for search in searches {
            let rate = number(&search["rate_pps"]);
            assert!((100.0..=3000.0).contains(&rate), "{rate}");
            sum += rate;
            let trials = search["trials"].as_array().unwrap();
            let holds = |trial: &&Value| {
                let outcome = &trial["outcome"];
                outcome["offered_pps"] == search["rate_pps"]
                    && outcome["received"] == outcome["sent"]
            };
            assert!(trials.iter().any(|trial| holds(&trial)), "{search}");
        }
        assert!((number(&found["rate_pps"]["point"]) - sum / 2.0).abs() < 1e-6);
        let bits = number(&found["payload_bit_per_s"]);
        assert!((bits - sum / 2.0 * 64.0 * 8.0).abs() < 1.0);
        Ok(())
    });
}

#[test]
fn invalid_probe_arguments_are_refused_with_a_remedy() {
    let _turn = alone();
    let (_server, address) = server_here();
    let closed = std::net::UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let cases: [(&[&str], i32, &str); 6] = [
        (
            &["client", &closed, "--wait", "0.1"],
            3,
            "taut probe server",
        ),
        (
            &["client", "no.such.name.invalid"],
            2,
            "expected a host or an address",
        ),
        (&["client", &address, "--size", "15"], 2, "16"),
        (
            &["client", &address, "--interval", "5"],
            2,
            "expected a time",
        ),
        (
            &["client", &address, "--search-rate", "--max-rate", "1Gbit/s"],
            2,
            "probes per second",
        ),
        (&["server", "--bind", &address], 2, "another --bind"),
    ];
    for (arguments, code, says) in cases {
        let finished = run(&mut taut(&[&["probe"], arguments].concat()));
        assert_eq!(finished.code(), Some(code), "{arguments:?}: {finished:?}");
        assert!(
            finished.stderr.contains(says),
            "{arguments:?}: {finished:?}"
        );
    }
}

/// Builds a testbed with its first interface connected to a host through `far_interface`.
fn hosts(far_interface: &str, from: impl Fn(&Testbed) -> String) -> (Testbed, Namespace) {
    let testbed = Testbed::builder().build().unwrap();
    let far = two_hosts(&testbed, &from(&testbed), far_interface);
    // Router solicitations would count as packets.
    let off = "[ ! -e /proc/sys/net/ipv6 ] || echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6";
    run(in_namespace(&far.0, "sh").args(["-c", off])).success();
    (testbed, far)
}

fn server_in(namespace: &str) -> Program {
    let bound = format!("{FAR}:8621");
    let mut server = Program::start(&mut taut_in(
        namespace,
        &["probe", "server", "--bind", &bound],
    ));
    server.wait_for_stdout("answering");
    server
}

#[test]
fn round_trip_times_agree_with_irtt() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    if !is_installed("irtt") {
        println!("skipped: needs irtt");
        return;
    }
    let (testbed, far) = hosts("dut0", |testbed| testbed.device_namespace().to_string());
    let near = testbed.generator_namespace();
    let _server = server_in(&far.0);
    let mut command = in_namespace(&far.0, "irtt");
    let bound = format!("{FAR}:2112");
    let mut peer = Program::start(command.args(["server", "-b", &bound, "-i", "0"]));
    peer.wait_until("irtt listens", |stdout, stderr| {
        (stdout.to_string() + stderr).contains("starting")
    });
    // In some virtual machines, processors that sleep between packets wake up late for a sleeping program such as irtt,
    // so they are kept awake.
    let awake = || {
        Program::start(Command::new("chrt").args([
            "--idle",
            "0",
            "sh",
            "-c",
            "while :; do :; done",
        ]))
    };
    let _awake = [awake(), awake()];
    undisturbed(|| {
        let ours = [
            "probe",
            "client",
            FAR,
            "--count",
            "100",
            "--repetitions",
            "2",
            "--json",
        ];
        let ours = run(&mut taut_in(near, &ours)).success().last_json();
        let mut theirs = in_namespace(near, "irtt");
        theirs.args([
            "client", "-Q", "-o", "-", "-i", "5ms", "-d", "1s", "-l", "256",
        ]);
        let theirs = run(theirs.args(["--wait=200ms", FAR])).success();
        let theirs: Value = serde_json::from_str(&theirs.stdout).unwrap();
        let ours_ns = number(&ours["rtt_ns"]["p50_ns"]);
        let theirs_ns = number(&theirs["stats"]["rtt"]["median"]);
        // On a shared machine, sleeping programs only allow a coarse check: it finds a wrong unit or timestamp.
        let ratio = ours_ns / theirs_ns;
        if !(0.2..5.0).contains(&ratio) {
            return Err(format!("{ours_ns} ns, irtt {theirs_ns} ns"));
        }
        Ok(())
    });
}

/// Returns the client's report of 300 probes through `impair` with the given settings.
fn impaired(settings: &str, chain: &Path) -> Value {
    let text = format!(
        "ports = [\"af_packet:dut0\", \"af_packet:dut1\"]\nflush = \"each\"\nwait = \"yield\"\n[[function]]\nname = \"impair\"\n{settings}"
    );
    fs::write(chain, text).unwrap();
    let (testbed, far) = hosts("gen1", |testbed| testbed.generator_namespace().to_string());
    let device = testbed.device_namespace();
    let mut forward = Program::start(&mut taut_in(
        device,
        &["forward", "--quiet", chain.to_str().unwrap()],
    ));
    forward.wait_until("both links up", |_, stderr| {
        stderr.matches(": up").count() >= 2
    });
    let _server = server_in(&far.0);
    let arguments = [
        "probe",
        "client",
        FAR,
        "--count",
        "300",
        "--repetitions",
        "1",
        "--interval",
        "1ms",
        "--patience",
        "300ms",
        "--json",
    ];
    run(&mut taut_in(testbed.generator_namespace(), &arguments))
        .success()
        .last_json()
}

#[test]
fn probe_counts_equal_the_injected_faults() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let folder = scratch();
    let chain = folder.path().join("chain.toml");
    undisturbed(|| {
        // The packets follow address resolution and the first request. Each direction is counted separately, so packet
        // 50 is a request and a reply of different probes.
        let found = impaired(
            "lose_at = [50, 51, 120]\nduplicate_at = [200]\nreorder_at = [250]\n",
            &chain,
        );
        let counts = ["lost", "duplicate", "reordered", "malformed", "refused"];
        let counts = counts.map(|count| number(&found[count]));
        // The faults hit requests 50, 51, 120 and three replies. A request and a reply are duplicated, the request's
        // copy being answered as well, and one packet is overtaken in each direction.
        if counts != [6.0, 2.0, 2.0, 0.0, 0.0] {
            return Err(format!("{counts:?} {found}"));
        }
        Ok(())
    });
    undisturbed(|| {
        let found = impaired("", &chain);
        match number(&found["lost"]) + number(&found["duplicate"]) + number(&found["reordered"]) {
            0.0 => Ok(()),
            _ => Err(found.to_string()),
        }
    });
}
