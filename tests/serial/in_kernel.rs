//! `taut forward --in-kernel`: XDP programs that forward packets of taut and of other programs, report what they do not
//! support, and leave nothing behind.

use crate::support::hosts::{FAR, Transport, in_namespace, transfer, two_hosts};
use crate::support::program::{PATIENCE, Program, run};
use crate::support::undisturbed::undisturbed;
use crate::support::{alone_and_root, is_installed, scratch};
use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use taut_host::{Testbed, choose_cores};

/// Returns the lock of a test that needs root and XDP, or prints why it is skipped.
fn turn() -> Option<std::sync::MutexGuard<'static, ()>> {
    let turn = alone_and_root()?;
    let found = taut_port::backends()
        .iter()
        .find(|b| b.name == "af_xdp")
        .map(|b| (b.probe)());
    if matches!(found, Some(Ok(_))) {
        return Some(turn);
    }
    println!("skipped: needs XDP: {found:?}");
    None
}

fn in_device(testbed: &Testbed, arguments: &[&str]) -> Command {
    let mut command = testbed.command_in_device(env!("CARGO_BIN_EXE_taut"));
    command.arg("forward").args(arguments);
    command
}

/// Starts taut between both interfaces and waits until both links are up.
fn start(testbed: &Testbed, arguments: &[&str]) -> Program {
    let both = ["--port", "af_xdp:dut0", "--port", "af_xdp:dut1"];
    let arguments = [&["--in-kernel", "--json"], &both[..], arguments].concat();
    let mut forward = Program::start(&mut in_device(testbed, &arguments));
    forward.wait_until("both links up", |_, stderr| {
        stderr.matches(": up").count() >= 2
    });
    forward
}

fn generate(testbed: &Testbed, ports: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", testbed.generator_namespace()]);
    command.args([env!("CARGO_BIN_EXE_taut"), "generate", "--json"]);
    for port in ports {
        command.args(["--port", port]);
    }
    command.args(["--rate", "1k", "--seconds", "0.5"]);
    command.args(["--core", &choose_cores().generator.to_string()]);
    command
}

fn all_come_back(testbed: &Testbed, ports: &[&str]) {
    undisturbed(|| {
        let finished = run(&mut generate(testbed, ports));
        if finished.code() != Some(0) {
            return Err(format!("{finished:?}"));
        }
        let stream = finished.first_stream();
        let tally = &stream["tally"];
        assert_eq!(tally["corrupt"], 0, "{stream}");
        if stream["lost"] == 0 && tally["received"] == tally["sent"] {
            Ok(())
        } else {
            Err(stream.to_string())
        }
    });
}

const PACKET_SOCKETS: [&str; 2] = ["af_packet:gen0", "af_packet:gen1"];

#[test]
fn native_and_generic_xdp_forward_and_count_every_packet() {
    let Some(_turn) = turn() else { return };
    for (redirects, mode) in [(true, "native"), (false, "generic")] {
        let testbed = Testbed::builder().redirects(redirects).build().unwrap();
        let forward = start(&testbed, &[]);
        let told = forward.stderr();
        assert!(
            told.contains(&format!("dut0 to dut1: {mode} XDP")),
            "{told}"
        );
        all_come_back(&testbed, &PACKET_SOCKETS);
        let finished = forward.interrupt().success();
        let summary = finished.last_json();
        let count = |name: &str| summary["counters"][name].as_u64().unwrap();
        assert!(count("rx_packets") >= 500, "{summary}");
        assert_eq!(count("tx_packets"), count("rx_packets"), "{summary}");
        assert_eq!(summary["dropped"], 0, "{summary}");
    }
}

#[test]
fn unmodified_programs_reach_each_other_through_xdp() {
    let Some(_turn) = turn() else { return };
    if !is_installed("ping") && !is_installed("iperf3") {
        println!("skipped: needs ping or iperf3 (package iputils-ping or iperf3)");
        return;
    }
    for redirects in [true, false] {
        let testbed = Testbed::builder().redirects(redirects).build().unwrap();
        let near = testbed.generator_namespace();
        let far = two_hosts(&testbed, near, "gen1");
        let forward = start(&testbed, &[]);
        if is_installed("ping") {
            let mut command = in_namespace(near, "ping");
            let finished = run(command.args(["-c", "20", "-i", "0.02", "-W", "10", FAR]));
            assert!(finished.stdout.contains(" 20 received"), "{finished:?}");
        }
        if is_installed("iperf3") {
            transfer(Transport::Tcp, (&far.0, 11111), near, (FAR, 11111));
        }
        drop(forward);
    }
}

#[test]
fn a_chain_file_places_its_functions_in_the_kernel() {
    let Some(_turn) = turn() else { return };
    let testbed = Testbed::builder().redirects(true).build().unwrap();
    let folder = scratch();
    let path = folder.path().join("chain.toml");
    // The generator accepts frames with these addresses, as it checks only the payload.
    let chain = "place = \"kernel\"\nports = [\"af_xdp:dut0\", \"af_xdp:dut1\"]\n\
                 [[function]]\nname = \"mac-rewrite\"\n\
                 source = [\"02:00:00:00:01:01\", \"02:00:00:00:01:02\"]\n";
    fs::write(&path, chain).unwrap();
    let mut forward = Program::start(&mut in_device(&testbed, &[path.to_str().unwrap()]));
    forward.wait_for_stdout("forwarding in the kernel");
    all_come_back(&testbed, &PACKET_SOCKETS);
    forward.wait_until("a second with packets", |out, _| {
        out.lines()
            .any(|l| l.contains(" s  rx") && !l.contains("rx        0 pps"))
    });
    forward.interrupt().success();
}

#[test]
fn options_unsupported_in_the_kernel_cause_a_one_line_error() {
    let Some(_turn) = turn() else { return };
    let testbed = Testbed::builder().build().unwrap();
    for (line, code, part) in [
        ("--in-kernel --port null:", 2, "between interfaces only"),
        (
            "--in-kernel --port af_xdp:dut0 --core 0",
            2,
            "neither flush policy",
        ),
        (
            "--in-kernel --port af_xdp:dut0 --flush each",
            2,
            "neither flush policy",
        ),
        (
            "--in-kernel --port af_xdp:dut0,queue=1",
            2,
            "queue has no effect in the kernel",
        ),
        ("--in-kernel --port af_xdp:none0", 3, "\"none0\""),
        (
            "--in-kernel --port af_xdp:dut0 --function snort",
            2,
            "no function \"snort\"",
        ),
        (
            "--in-kernel --port af_xdp:dut0 --function walk(steps=1,bytes=4096)",
            2,
            "\"walk\" cannot run in the kernel (what it costs is meant for a core of its own)",
        ),
        (
            "--in-kernel --port af_xdp:dut0 --function gtpu(address=192.0.2.1) --function xor(key=1)",
            2,
            "it can be combined with forward, mac-rewrite and mac-swap only",
        ),
    ] {
        let arguments: Vec<_> = line.split(' ').collect();
        let finished = run(&mut in_device(&testbed, &arguments));
        assert_eq!(finished.code(), Some(code), "{line}: {finished:?}");
        let lines: Vec<_> = finished.stderr.lines().collect();
        assert!(
            lines.len() == 1 && lines[0].starts_with("taut: ") && lines[0].contains(part),
            "{line}: {finished:?}"
        );
    }
    // A second program is refused, because an XDP program is already attached to the interface.
    let forward = start(&testbed, &[]);
    let arguments = ["--in-kernel", "--port", "af_xdp:dut1"];
    let second = run(&mut in_device(&testbed, &arguments));
    assert_eq!(second.code(), Some(3), "{second:?}");
    assert!(second.stderr.contains("dut1 has one (id "), "{second:?}");
    drop(forward);
}

/// Reports whether an XDP program is attached to the interface.
fn has_program(testbed: &Testbed, interface: &str) -> bool {
    let namespace = testbed.device_namespace();
    let shown = run(Command::new("ip").args(["-n", namespace, "link", "show", interface]));
    shown.success().stdout.contains("prog/xdp")
}

#[test]
fn xdp_programs_are_removed_even_if_the_process_is_killed() {
    let Some(_turn) = turn() else { return };
    let testbed = Testbed::builder().redirects(true).build().unwrap();
    for kill in [false, true] {
        let forward = start(&testbed, &[]);
        assert!(has_program(&testbed, "dut0") && has_program(&testbed, "dut1"));
        if kill {
            forward.kill();
        } else {
            forward.interrupt().success();
        }
        // After SIGKILL the kernel closes the process's files a moment later.
        let begun = Instant::now();
        while has_program(&testbed, "dut0") || has_program(&testbed, "dut1") {
            assert!(begun.elapsed() < PATIENCE, "kill: {kill}");
            sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn forwarding_reports_deleted_and_down_interfaces_and_continues() {
    let Some(_turn) = turn() else { return };
    let testbed = Testbed::builder().redirects(true).build().unwrap();
    let mut forward = start(&testbed, &[]);
    let device = testbed.device_namespace();
    let ip = |arguments: &[&str]| {
        run(Command::new("ip")
            .args(["-n", device, "link"])
            .args(arguments))
        .success();
    };
    ip(&["set", "dut1", "down"]);
    forward.wait_for_stderr("dut1: down: dut1 is down: ip link set dut1 up");
    ip(&["set", "dut1", "up"]);
    forward.wait_until("up again", |_, stderr| {
        stderr.matches("dut1: up").count() >= 2
    });
    all_come_back(&testbed, &PACKET_SOCKETS);
    ip(&["del", "dut1"]);
    forward.wait_for_stderr("dut1: down: interface dut1 was deleted");
    assert!(forward.is_running());
    let finished = forward.interrupt().success();
    assert!(!finished.stderr.contains("panicked"), "{finished:?}");
}
