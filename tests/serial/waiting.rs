//! Workers that sleep while no packets arrive: no packet is lost, none waits longer than the policy allows, and less
//! processor time is used.

use crate::support::leftovers::Watch;
use crate::support::program::{Finished, Program, run};
use crate::support::undisturbed::undisturbed;
use crate::support::{Sockets, alone, alone_and_root, other, scratch, taut};
use serde_json::Value;
use std::path::Path;

/// Starts a forwarder over both sockets with the policy `wait`, and with the given role of its ports.
fn forward(sockets: &Sockets, role: &str, wait: &str) -> Program {
    let mut words = vec!["forward", "--json", "--quiet", "--wait", wait];
    let ports = sockets.ports(role, "");
    words.extend(ports.iter().map(String::as_str));
    let mut program = Program::start(&mut taut(&words));
    program.wait_for_stdout("started");
    program
}

fn generate(sockets: &Sockets, role: &str, words: &str) -> Finished {
    let ports = sockets.ports(role, "");
    let mut all: Vec<&str> = vec!["generate", "--json"];
    all.extend(words.split_whitespace());
    all.extend(ports.iter().map(String::as_str));
    run(&mut taut(&all))
}

fn number(json: &Value, path: &str) -> f64 {
    let found = json.pointer(path).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("no {path} in {json}"))
}

#[test]
fn a_sleeping_forwarder_loses_nothing_and_reports_its_sleep_time() {
    let _turn = alone();
    for (wait, role) in [
        ("interrupt", "client"),
        ("interrupt", "server"),
        ("sleep(200us)", "client"),
        ("yield", "client"),
        ("poll", "client"),
    ] {
        // A generator that is preempted for long finds a full ring and loses packets, which is not the forwarder's
        // fault.
        undisturbed(|| {
            let sockets = Sockets::new();
            let program = forward(&sockets, role, wait);
            let traffic = "--rate 2k --seconds 0.4 --max-loss 1";
            let finished = generate(&sockets, other(role), traffic).success();
            let counters = program.interrupt().success().last_json();
            let stream = finished.first_stream();
            assert_eq!(number(&stream, "/tally/corrupt"), 0.0, "{wait}: {stream}");
            let slept = number(&counters, "/counters/sleeps");
            let sleeps = wait.starts_with("sleep") || wait == "interrupt";
            assert_eq!(slept > 0.0, sleeps, "{wait} as {role}: {counters}");
            assert_eq!(
                number(&counters, "/asleep") > 0.0,
                sleeps,
                "{wait}: {counters}"
            );
            if number(&stream, "/lost") == 0.0 && number(&stream, "/tally/received") > 0.0 {
                Ok(())
            } else {
                Err(format!("{wait} as {role}: {stream}"))
            }
        });
    }
}

/// Rare packets wake a sleeping forwarder. Without the wakeup, the forwarder would poll its ports every ten
/// milliseconds, and the median packet would wait for five. On a busy machine, packets sometimes wait that long in
/// spite of the wakeup.
#[test]
fn packets_wake_a_forwarder_over_memif_and_over_packet_sockets() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    for port in ["memif", "af_packet", "af_xdp"] {
        let device = format!("{port},wait=interrupt");
        undisturbed(|| {
            let watch = Watch::begin();
            let words = [
                "generate",
                "--device",
                &device,
                "--rate",
                "200",
                "--seconds",
                "0.6",
            ];
            let words: Vec<&str> = words
                .into_iter()
                .chain(["--json", "--max-loss", "1"])
                .collect();
            let finished = run(watch.over(&mut taut(&words)));
            if finished.code() == Some(3) {
                println!("skipped: needs {port}: {}", finished.stderr);
                return Ok(());
            }
            let finished = finished.success();
            let summary = finished.last_json();
            watch.nothing_is_left();
            assert!(
                number(&summary, "/energy/device_cpu_share") < 0.5,
                "{summary}"
            );
            match number(&finished.first_stream(), "/latency_ns/p50_ns") {
                median_ns if median_ns < 4e6 => Ok(()),
                median_ns => Err(format!("{device}: median of {median_ns} ns")),
            }
        });
    }
}

#[test]
fn a_sleeping_forwarder_uses_less_cpu_than_a_polling_forwarder() {
    let _turn = alone();
    undisturbed(|| {
        let share = |wait: &str| {
            let device = format!("memif,wait={wait}");
            let words = [
                "generate",
                "--device",
                &device,
                "--rate",
                "500",
                "--seconds",
                "0.6",
                "--json",
            ];
            let words: Vec<&str> = words.into_iter().chain(["--max-loss", "1"]).collect();
            let summary = run(&mut taut(&words)).success().last_json();
            assert!(number(&summary, "/energy/seconds") >= 0.5, "{summary}");
            number(&summary, "/energy/device_cpu_share")
        };
        // On a busy machine, a polling thread gets only the remaining CPU time. The sleeping threads must use less than
        // half of that.
        let [polls, sleeps, woken] = ["poll", "sleep(5ms)", "interrupt"].map(share);
        if sleeps < polls / 2.0 && woken < polls / 2.0 {
            Ok(())
        } else {
            Err(format!("poll {polls}, sleep {sleeps}, interrupt {woken}"))
        }
    });
}

#[test]
fn a_power_meter_is_read_and_invalid_meters_are_refused() {
    let _turn = alone();
    let folder = scratch();
    // Each read returns 7 joules more.
    let count = folder.path().join("count");
    let script = format!(
        "echo x >> {0}; echo $(($(wc -l < {0}) * 7))",
        Path::display(&count)
    );
    let words = [
        "generate",
        "--device",
        "memif-idle",
        "--rate",
        "1k",
        "--seconds",
        "0.3",
        "--json",
    ];
    let with = |meter: &str| {
        let words: Vec<&str> = words
            .into_iter()
            .chain(["--max-loss", "1", "--meter", meter])
            .collect();
        run(&mut taut(&words))
    };
    let summary = with(&script).success().last_json();
    assert_eq!(number(&summary, "/energy/joules"), 7.0, "{summary}");
    assert!(number(&summary, "/energy/watts") > 0.0, "{summary}");
    let finished = with("echo lots");
    assert_eq!(finished.code(), Some(2), "{finished:?}");
    assert!(
        finished.stderr.contains("joules counted so far"),
        "{finished:?}"
    );
    assert_eq!(finished.stderr.lines().count(), 1, "{finished:?}");
}

#[test]
fn errors_name_ports_that_cannot_wake_a_sleeping_worker() {
    let words = ["forward", "--port", "null:", "--wait", "interrupt"];
    let finished = run(&mut taut(&words));
    assert_eq!(finished.code(), Some(2), "{finished:?}");
    let wanted = "null: cannot wake the worker (af_packet, af_xdp, memif, pair, tap can)";
    assert!(finished.stderr.contains(wanted), "{finished:?}");
}
