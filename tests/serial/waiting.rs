//! Workers that sleep while no packets come: nothing is lost, nobody waits for longer than the policy says, and the
//! processor time shows it.

use crate::support::leftovers::Watch;
use crate::support::program::{Finished, Program, run};
use crate::support::undisturbed::undisturbed;
use crate::support::{Sockets, alone, alone_and_root, other, scratch, taut};
use serde_json::Value;
use std::path::Path;

/// A forwarder over both sockets that waits as `wait` says, and the role that its ports have.
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
fn a_forwarder_that_sleeps_over_memif_loses_nothing_and_says_how_long_it_slept() {
    let _turn = alone();
    for (wait, role) in [
        ("interrupt", "client"),
        ("interrupt", "server"),
        ("sleep(200us)", "client"),
        ("yield", "client"),
        ("poll", "client"),
    ] {
        // A generator that is kept from its core for long finds a full ring: not the forwarder's fault.
        undisturbed(|| {
            let sockets = Sockets::new();
            let program = forward(&sockets, role, wait);
            let traffic = "--rate 2k --seconds 0.4 --max-loss 1";
            let finished = generate(&sockets, other(role), traffic).success();
            let counters = program.interrupt().success().last_json();
            let summary = finished.last_json();
            assert_eq!(number(&summary, "/tally/corrupt"), 0.0, "{wait}: {summary}");
            let slept = number(&counters, "/counters/sleeps");
            let sleeps = wait.starts_with("sleep") || wait == "interrupt";
            assert_eq!(slept > 0.0, sleeps, "{wait} as {role}: {counters}");
            assert_eq!(
                number(&counters, "/asleep") > 0.0,
                sleeps,
                "{wait}: {counters}"
            );
            if number(&summary, "/lost") == 0.0 && number(&summary, "/tally/received") > 0.0 {
                Ok(())
            } else {
                Err(format!("{wait} as {role}: {summary}"))
            }
        });
    }
}

/// Seldom packets find a forwarder that sleeps. If nothing woke it, it would look every ten milliseconds, and the median
/// packet wait for five. (On a machine with other work that may happen as well, now and then.)
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
            let summary = finished.success().last_json();
            watch.nothing_is_left();
            assert!(
                number(&summary, "/energy/device_cpu_share") < 0.5,
                "{summary}"
            );
            match number(&summary, "/latency_ns/p50_ns") {
                median_ns if median_ns < 4e6 => Ok(()),
                median_ns => Err(format!("{device}: median of {median_ns} ns")),
            }
        });
    }
}

#[test]
fn a_forwarder_between_sleeps_uses_less_of_the_processor_than_one_that_polls() {
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
        // What polls gets whatever core is left on a machine that does other work, so only a half is demanded.
        let [polls, sleeps, woken] = ["poll", "sleep(5ms)", "interrupt"].map(share);
        if sleeps < polls / 2.0 && woken < polls / 2.0 {
            Ok(())
        } else {
            Err(format!("poll {polls}, sleep {sleeps}, interrupt {woken}"))
        }
    });
}

#[test]
fn a_meter_is_asked_and_one_that_is_none_is_refused_before_anything_is_sent() {
    let _turn = alone();
    let folder = scratch();
    // Each time it is asked, 7 joules more.
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
fn ports_that_cannot_wake_a_worker_are_named_with_those_that_can() {
    let words = ["forward", "--port", "null:", "--wait", "interrupt"];
    let finished = run(&mut taut(&words));
    assert_eq!(finished.code(), Some(2), "{finished:?}");
    let wanted = "null: cannot wake the worker (af_packet, af_xdp, memif, pair, tap can)";
    assert!(finished.stderr.contains(wanted), "{finished:?}");
}
