//! `taut generate --cores`: several workers that send at the same time, each through its own ports.

use crate::support::program::{Finished, Program, run};
use crate::support::undisturbed::undisturbed;
use crate::support::{RESTING, Sockets, alone, other, taut};
use serde_json::Value;
use taut_host::allowed_cpus;

/// Returns two CPUs for the workers; if there is one only, prints why the test is skipped and returns `None`.
fn cores() -> Option<String> {
    let cpus = allowed_cpus();
    if cpus.len() < 2 {
        println!("skipped: needs two cores");
        return None;
    }
    let cores: Vec<String> = cpus.iter().take(2).map(ToString::to_string).collect();
    Some(cores.join(","))
}

/// Starts a forwarder between the two sockets. It sleeps while no packets arrive, which leaves time for other programs
/// on its cores.
fn forward(sockets: &Sockets, role: &str, more: &[&str]) -> Program {
    let mut arguments = vec!["forward".to_string()];
    arguments.extend(sockets.ports(role, ""));
    let always = ["--json", "--quiet"];
    let all = always.iter().chain(&RESTING).chain(more);
    arguments.extend(all.map(ToString::to_string));
    let mut forward = Program::start(&mut taut(&arguments));
    forward.wait_for_stdout("started");
    forward
}

fn generate(ports: &[String], cores: &str, more: &[&str]) -> Vec<String> {
    let mut arguments = vec!["generate".to_string()];
    arguments.extend(ports.iter().cloned());
    let always = ["--json", "--cores", cores];
    arguments.extend(always.iter().chain(more).map(ToString::to_string));
    arguments
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no number: {value}"))
}

/// Returns the summary of a run with two workers, after checks that hold on a busy machine as well.
fn summary(finished: &Finished) -> Value {
    let summary = finished.last_json();
    assert_eq!(summary["workers"], 2, "{summary}");
    let by_worker = summary["sent_by_worker"].as_array().unwrap();
    let sent = number(&summary["flow"]["sent"]);
    assert_eq!(by_worker.iter().map(number).sum::<u64>(), sent, "{summary}");
    summary
}

#[test]
fn two_generator_workers_send_the_requested_rate_over_separate_rings() {
    let _turn = alone();
    let Some(cores) = cores() else {
        return;
    };
    for role in ["server", "client"] {
        undisturbed(|| {
            let sockets = Sockets::new();
            let forward = forward(&sockets, role, &["--workers", "2"]);
            let ports = sockets.ports(other(role), "");
            let offer = ["--rate", "20k", "--seconds", "0.5"];
            let ours = summary(&run(&mut taut(&generate(&ports, &cores, &offer))));
            let theirs = forward.interrupt().success().last_json();
            let of = |name: &str| number(&ours["flow"][name]);
            let due = of("sent") + of("refused") + of("unsent");
            assert!((9_998..=10_002).contains(&due), "{ours}");
            assert_eq!(ours["asked_pps"], 20_000.0, "{ours}");
            // Four threads poll on two cores: a stall may lose packets, but not all of a worker.
            let by_worker = ours["sent_by_worker"].as_array().unwrap();
            let back = number(&theirs["counters"]["tx_packets"]);
            if by_worker.iter().all(|sent| number(sent) > 500)
                && of("received_in_all") * 10 >= back * 9
            {
                return Ok(());
            }
            Err(format!("{role}: {ours} {theirs}"))
        });
    }
}

#[test]
fn a_killed_peer_or_too_few_rings_block_no_worker() {
    let _turn = alone();
    let Some(cores) = cores() else {
        return;
    };
    let sockets = Sockets::new();
    let few = forward(&sockets, "server", &[]);
    let ports = sockets.ports("client", "");
    let finished = run(&mut taut(&generate(&ports, &cores, &["--wait", "0.5"])));
    assert_eq!(finished.code(), Some(3), "{finished:?}");
    let said = "the peer has too few rings for 2 workers";
    assert!(finished.stderr.contains(said), "{finished:?}");
    few.interrupt().success();

    let sockets = Sockets::new();
    let forward = forward(&sockets, "server", &["--workers", "2"]);
    let offer = ["--rate", "max", "--seconds", "1"];
    let ports = sockets.ports("client", "");
    let generator = Program::start(&mut taut(&generate(&ports, &cores, &offer)));
    std::thread::sleep(std::time::Duration::from_millis(500));
    forward.kill();
    summary(&generator.finish().success());
}

#[test]
fn ctrl_c_ends_all_workers() {
    let _turn = alone();
    let Some(cores) = cores() else {
        return;
    };
    let ports = ["--port", "pair:ends", "--port", "pair:ends"].map(String::from);
    let offer = ["--rate", "20k", "--seconds", "600"];
    let generator = Program::start(&mut taut(&generate(&ports, &cores, &offer)));
    std::thread::sleep(std::time::Duration::from_millis(800));
    let ours = summary(&generator.interrupt().success());
    assert_eq!(ours["flow"]["stopped"], true, "{ours}");
    assert!(number(&ours["flow"]["received"]) > 0, "{ours}");
}
