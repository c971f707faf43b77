//! `taut forward` and `taut generate` connected by memif: no packet is lost, and all are counted.

use crate::support::program::{Finished, Program, run};
use crate::support::undisturbed::undisturbed;
use crate::support::{RESTING, Sockets, alone, other, scratch, taut};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

const FLUSHES: [&str; 4] = ["full(32, 100us)", "each", "every(50us)", "idle(32)"];

fn start_forward(sockets: &Sockets, role: &str, more: &[&str]) -> Program {
    let core = taut_host::choose_cores().device.to_string();
    let mut arguments = vec!["forward".to_string()];
    arguments.extend(sockets.ports(role, ""));
    arguments.extend(
        ["--json", "--core", &core]
            .iter()
            .chain(more)
            .map(ToString::to_string),
    );
    if !more.contains(&"--wait") {
        arguments.extend(RESTING.map(String::from));
    }
    let mut forward = Program::start(&mut taut(&arguments));
    forward.wait_for_stdout("started");
    forward
}

fn generate(ports: &[String], more: &[&str]) -> Finished {
    let core = taut_host::choose_cores().generator.to_string();
    let mut arguments = vec!["generate".to_string()];
    arguments.extend(ports.iter().cloned());
    arguments.extend(
        ["--json", "--core", &core]
            .iter()
            .chain(more)
            .map(ToString::to_string),
    );
    run(&mut taut(&arguments))
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no number: {value}"))
}

#[test]
fn a_forwarder_in_either_role_returns_and_counts_every_packet() {
    let _turn = alone();
    for (index, flush) in FLUSHES.into_iter().enumerate() {
        let role = ["server", "client"][index % 2];
        undisturbed(|| {
            let sockets = Sockets::new();
            let forward = start_forward(&sockets, role, &["--flush", flush, "--quiet"]);
            let ports = sockets.ports(other(role), "");
            let finished = generate(&ports, &["--rate", "20k", "--seconds", "0.3"]);
            let ours = finished.last_json();
            let theirs = forward.interrupt().success().last_json();
            assert_eq!(theirs["event"], "summary");
            let stream = &ours["streams"][0];
            let tally = &stream["tally"];
            assert_eq!(tally["corrupt"], 0, "{ours}");
            for name in ["duplicate", "reordered"] {
                assert_eq!(stream["sequence"][name], 0, "{ours}");
            }
            let [sent, received, refused] =
                ["sent", "received", "refused"].map(|name| number(&tally[name]));
            assert_eq!(
                sent + refused + number(&tally["unsent"]),
                number(&tally["owed"])
            );
            let counters = &theirs["counters"];
            let [rx, tx] = ["rx_packets", "tx_packets"].map(|name| number(&counters[name]));
            assert_eq!(rx, tx + number(&theirs["dropped"]), "{theirs}");
            // The ports have also counted the packets from before the trial.
            let handed_over = number(&ours["ports"][0]["tx_packets"]);
            let came_back = number(&ours["ports"][1]["rx_packets"]);
            // Packets of the warm-up are foreign packets of the trial. They exist only if the forwarder was preempted
            // for 20 ms.
            let stragglers = number(&tally["foreign"]);
            if stragglers > 0
                || sent < 5_000
                || received != sent
                || (rx, tx) != (handed_over, came_back)
                || rx != tx
            {
                return Err(format!("{flush}, {role}: {ours} {theirs}"));
            }
            Ok(())
        });
    }
}

#[test]
fn forwarder_and_generator_can_each_mix_server_and_client_ports() {
    let _turn = alone();
    // Forwarder and generator each have one server port and one client port.
    undisturbed(|| {
        let [west, east] = Sockets::new()
            .paths()
            .map(|path| path.display().to_string());
        fs::create_dir_all(std::path::Path::new(&west).parent().unwrap()).unwrap();
        let forward_ports = [format!("memif:{west}"), format!("memif:{east},role=client")];
        let ports = [
            "--port".to_string(),
            format!("memif:{west},role=client,id=0"),
            "--port".to_string(),
            format!("memif:{east}"),
        ];
        let mut forward = Program::start(&mut taut(&[
            "forward",
            "--port",
            &forward_ports[0],
            "--port",
            &forward_ports[1],
            "--json",
            "--quiet",
        ]));
        forward.wait_for_stdout("started");
        let ours = generate(&ports, &["--rate", "10k", "--seconds", "0.3"]).first_stream();
        forward.interrupt().success();
        fs::remove_dir_all(std::path::Path::new(&west).parent().unwrap()).unwrap();
        match number(&ours["tally"]["received"]) {
            received if received > 1_000 && ours["lost"] == 0 => Ok(()),
            _ => Err(ours.to_string()),
        }
    });
}

#[test]
fn json_summaries_have_numbers_in_all_expected_fields() {
    let _turn = alone();
    let sockets = Sockets::new();
    let forward = start_forward(&sockets, "server", &[]);
    let finished = generate(
        &sockets.ports("client", ""),
        &["--rate", "5k", "--seconds", "2.2"],
    );
    let theirs = forward.interrupt().success();
    for text in [&finished.stdout, &theirs.stdout] {
        let lines: Vec<Value> = text
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect();
        let seconds: Vec<_> = lines.iter().filter(|l| l["event"] == "second").collect();
        assert!(seconds.len() >= 2, "{text}");
        assert_eq!(
            (&seconds[0]["second"], &seconds[1]["second"]),
            (&1.into(), &2.into())
        );
        assert_eq!(lines.iter().filter(|l| l["event"] == "summary").count(), 1);
    }
    let has = |value: &Value, pointers: &[&str]| {
        for pointer in pointers {
            let found = value.pointer(pointer);
            assert!(found.is_some_and(Value::is_number), "{pointer} in {value}");
        }
    };
    has(
        &finished.first_stream(),
        &[
            "/asked_pps",
            "/lost",
            "/tally/owed",
            "/tally/sent",
            "/tally/received",
            "/tally/refused",
            "/tally/unsent",
            "/tally/corrupt",
            "/tally/foreign",
            "/tally/seconds",
            "/latency_ns/min_ns",
            "/latency_ns/avg_ns",
            "/latency_ns/p50_ns",
            "/latency_ns/p99_ns",
            "/latency_ns/max_ns",
            "/latency_ns/std_ns",
            "/latency_ns/count",
            "/jitter_ns/avg_ns",
            "/jitter_ns/max_ns",
            "/send_delay_ns/max_ns",
            "/sequence/duplicate",
            "/sequence/reordered",
        ],
    );
    has(
        &theirs.last_json(),
        &[
            "/seconds",
            "/dropped",
            "/average_batch",
            "/busy",
            "/busy_ticks_per_packet",
            "/tsc_hz",
            "/counters/rx_packets",
            "/counters/rx_bytes",
            "/counters/tx_packets",
            "/counters/tx_bytes",
            "/counters/dropped_tx_full",
            "/counters/busy_ticks",
            "/counters/total_ticks",
        ],
    );
}

/// The test itself is at the other end of the port's link, and compares the raw frames that return.
#[test]
fn a_chain_file_swaps_the_mac_addresses_of_one_port() {
    use taut_port::{Batch, PortSpec, Resources};
    let _turn = alone();
    let folder = scratch();
    let socket = folder.path().join("swap.sock");
    let chain = folder.path().join("swap.toml");
    let text = format!(
        "flush = \"each\"\nports = [\"memif:{}\"]\n\n[[function]]\nname = \"mac-swap\"\n",
        socket.display()
    );
    fs::write(&chain, text).unwrap();
    let mut forward = Program::start(&mut taut(&["forward".as_ref(), chain.as_os_str()]));
    forward.wait_for_stdout("forwarding, flush each");

    let spec = PortSpec::parse(&format!("memif:{},role=client", socket.display())).unwrap();
    let mut resources = Resources::for_ports(std::slice::from_ref(&spec)).unwrap();
    let mut port = spec.open(&mut resources).unwrap();
    let frame = taut_wire::UdpFlow::default().frame(64).unwrap();
    let deadline = std::time::Instant::now() + crate::support::program::PATIENCE;
    let (mut out, mut back) = (Batch::new(), Batch::new());
    while !port.link().is_up() {
        assert!(std::time::Instant::now() < deadline);
        sleep(Duration::from_millis(1));
    }
    let mut packet = resources.pool().take(frame.len() as u16).unwrap();
    packet.bytes_mut().copy_from_slice(&frame);
    out.push(packet);
    while !out.is_empty() {
        assert!(std::time::Instant::now() < deadline);
        port.tx(&mut out);
    }
    while port.rx(&mut back) == 0 {
        assert!(std::time::Instant::now() < deadline);
    }
    let swapped = back.packets()[0].bytes();
    assert_eq!(swapped[..6], frame[6..12]);
    assert_eq!(swapped[6..12], frame[..6]);
    assert_eq!(swapped[12..], frame[12..]);
    drop((back, port));
    forward.interrupt().success();
}

#[test]
fn time_limits_and_signals_end_commands_with_a_summary() {
    let _turn = alone();
    let sockets = Sockets::new();
    let mut arguments = vec!["forward".to_string()];
    arguments.extend(sockets.ports("server", ""));
    arguments.extend(["--seconds", "0.3"].map(String::from));
    let finished = run(&mut taut(&arguments)).success();
    assert!(
        finished.stdout.contains("forwarded 0 of 0 packets"),
        "{finished:?}"
    );
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let forward = start_forward(&sockets, "server", &[]);
        forward.signal(signal);
        assert_eq!(
            forward.finish().success().last_json()["event"],
            "summary",
            "{signal:?}"
        );
    }
    // A signal also ends a generator that waits between two packets.
    let _forward = start_forward(&sockets, "server", &["--quiet"]);
    let mut arguments = vec!["generate".to_string()];
    arguments.extend(sockets.ports("client", ""));
    arguments.extend(["--rate", "1k", "--seconds", "1000", "--json"].map(String::from));
    let mut generator = Program::start(&mut taut(&arguments));
    generator.wait_for_stdout("\"second\":1");
    let tally = &generator.interrupt().success().first_stream()["tally"];
    assert_eq!(tally["stopped"], true);
    assert!(number(&tally["unsent"]) > 900_000 && number(&tally["sent"]) > 0);
}

#[test]
fn an_interrupted_forwarder_removes_its_sockets() {
    let _turn = alone();
    let sockets = Sockets::new();
    start_forward(&sockets, "server", &[]).interrupt().success();
    assert!(sockets.paths().iter().all(|path| !path.exists()));
}

#[test]
fn the_forwarder_notices_a_killed_peer_and_serves_the_next() {
    let _turn = alone();
    for role in ["server", "client"] {
        let sockets = Sockets::new();
        let mut forward = start_forward(&sockets, role, &["--quiet"]);
        for life in 1..=2 {
            let mut arguments = vec!["generate".to_string()];
            arguments.extend(sockets.ports(other(role), ""));
            arguments.extend(["--seconds", "1000", "--json"].map(String::from));
            let mut generator = Program::start(&mut taut(&arguments));
            generator.wait_until("packets back", |stdout, _| {
                stdout.lines().any(|line| !line.contains("\"received\":0,"))
            });
            let downs = forward.stderr().matches(": down").count();
            generator.kill();
            forward.wait_until("both links down", |_, stderr| {
                stderr.matches(": down").count() >= downs + 2
            });
            assert!(forward.stderr().matches(": up").count() >= 2 * life);
            assert!(forward.is_running());
        }
        let finished = forward.interrupt().success();
        assert!(!finished.stderr.contains("panicked"), "{finished:?}");
    }
}

#[test]
fn a_buffered_forwarder_waits_for_its_drain_timer() {
    let _turn = alone();
    // At 100 kpkt/s, the timer drains a buffer of 32 before the buffer is full. A packet waits on average for half of
    // the timer's time.
    undisturbed(|| {
        let average = |flush: &str| {
            let sockets = Sockets::new();
            let more = ["--flush", flush, "--quiet", "--wait", "poll"];
            let _forward = start_forward(&sockets, "client", &more);
            let ports = sockets.ports("server", "");
            let stream = generate(&ports, &["--rate", "100k", "--seconds", "0.3"]).first_stream();
            stream["latency_ns"]["p50_ns"].as_u64().unwrap_or(0)
        };
        let (full, each) = (average("full(32, 100us)"), average("each"));
        if full > each && each > 0 {
            Ok(())
        } else {
            Err(format!("full {full} ns, each {each} ns"))
        }
    });
}
