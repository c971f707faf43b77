//! Functions in the kernel between real interfaces, in native and generic XDP. Their output equals that of the
//! functions in user space, and other programs reach each other through NAT.

#[path = "../../crates/functions/tests/frames/mod.rs"]
mod frames;

use crate::support::hosts::{FAR, Transport, in_namespace, ip, transfer, two_hosts};
use crate::support::in_kernel::InKernel;
use crate::support::program::{Program, run};
use crate::support::{alone_and_root, is_installed, scratch};
use frames::{STAMPS, frames, without_stamps};
use serde_json::{Value, json};
use std::process::Command;
use taut_function::{Context, Function};
use taut_functions::build;
use taut_host::Testbed;
use taut_port::{Batch, PoolHandle};
use taut_sys::{ClockReading, StampClock};
use taut_wire::UdpFlow;

const XOR: &str = "key = 9\n";
const FILTER: &str = "default = \"accept\"\nrules = [{ action = \"drop\", source = \"10.0.0.0/29\" }, \
                      { action = \"drop\", protocol = \"udp\", destination_port = \"50-51\" }]\n";
const BALANCE: &str =
    "port = 1\nhops = [\"02:00:00:00:00:01\", \"02:00:00:00:00:02\", \"02:00:00:00:00:03\"]\n";
/// The maximum distance of a number from the current time, ns, at which it counts as a timestamp.
const A_WHILE_NS: u64 = 60_000_000_000;

/// Returns the output of the functions in user space for frames that pass from one port to the other.
fn in_user_space(
    functions: &mut [Box<dyn Function>],
    frames: &[Vec<u8>],
    from: usize,
) -> Vec<Vec<u8>> {
    let pool = PoolHandle::new(128, false).unwrap();
    let mut batch = Batch::new();
    for frame in frames {
        let mut packet = pool.take(frame.len() as u16).unwrap();
        packet.bytes_mut().copy_from_slice(frame);
        batch.push(packet);
    }
    let context = Context {
        now_ticks: taut_sys::ticks(),
        from_port: from,
        to_port: 1 - from,
        ports: 2,
    };
    let mut pass = |function: &mut Box<dyn Function>| {
        function.process(&mut batch, &context);
        batch.settle(&mut Batch::new());
    };
    if from == 0 {
        functions.iter_mut().for_each(&mut pass);
    } else {
        functions.iter_mut().rev().for_each(&mut pass);
    }
    batch
        .packets()
        .iter()
        .map(|it| it.bytes().to_vec())
        .collect()
}

/// Returns frames sorted, and without their timestamps, so that two outputs can be compared.
fn comparable(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let now_ns = ClockReading::now(StampClock::Monotonic).unwrap().ns;
    for frame in &mut frames {
        let is_stamped = frame.last_chunk::<STAMPS>().is_some_and(|stamps| {
            stamps
                .as_chunks()
                .0
                .iter()
                .all(|stamp| now_ns.abs_diff(u64::from_be_bytes(*stamp)) < A_WHILE_NS)
        });
        if is_stamped {
            *frame = without_stamps(frame).0;
        }
    }
    frames.sort();
    frames
}

#[test]
fn xdp_gives_the_same_frames_and_counts_as_user_space() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let chains = [
        &[("xor", XOR), ("filter", FILTER), ("balance", BALANCE)][..],
        &[("filter", FILTER), ("ats", "")],
    ];
    for (redirects, chain) in [
        (true, chains[0]),
        (false, chains[0]),
        (true, chains[1]),
        (false, chains[1]),
    ] {
        let text: String = chain
            .iter()
            .map(|(name, settings)| format!("[[function]]\nname = \"{name}\"\n{settings}"))
            .collect();
        let mut kernel = InKernel::start(redirects, &text, scratch());
        let mut functions: Vec<_> = chain
            .iter()
            .map(|(name, settings)| {
                let mut function = build(name, settings.parse().unwrap()).unwrap();
                function.prepare().unwrap();
                function
            })
            .collect();
        // Packet sockets do not send frames that have only an Ethernet header.
        let frames = frames().into_iter().filter(|frame| frame.len() > 14);
        let frames: Vec<_> = frames.collect();
        for (number, chunk) in frames.chunks(48).enumerate() {
            let from = number % 2;
            let want = in_user_space(&mut functions, chunk, from);
            let mut wanted = [0; 2];
            wanted[1 - from] = want.len();
            let [back, on] = kernel.pass(chunk, from, wanted);
            let (got, none) = if from == 0 { (on, back) } else { (back, on) };
            assert!(none.is_empty(), "chunk {number}: {none:02x?}");
            let (got, want) = (comparable(got), comparable(want));
            let differs = want.iter().zip(&got).find(|(want, got)| want != got);
            assert!(
                differs.is_none() && got.len() == want.len(),
                "chunk {number}: {} instead of {} frames; the first that differs: {differs:02x?}",
                got.len(),
                want.len()
            );
        }
        let summary = kernel.program.interrupt().success().last_json();
        let counters = &summary["counters"];
        let sent = frames.len() as u64;
        assert_eq!(counters["rx_packets"].as_u64(), Some(sent), "{summary}");
        let outcomes = summary["outcomes"].as_object().unwrap();
        for (outcome, count) in functions.iter().flat_map(|it| it.outcomes()) {
            // Functions of a chain share some names of outcomes, and the report contains only the count of the last
            // function.
            if !outcome.contains("malformed") && !outcome.starts_with("passed") {
                assert_eq!(
                    outcomes[outcome].as_u64(),
                    Some(count),
                    "{outcome}: {summary}"
                );
            }
        }
    }
}

/// Replaces the functions of the running program; returns the program's reply.
fn exchange(program: &mut Program, functions: Value) -> Value {
    let count = |stdout: &str| stdout.matches("\"pause_us\"").count();
    let before = count(&program.stdout());
    program.say(&json!({ "functions": functions }).to_string());
    program.wait_until("an answer", |stdout, _| count(stdout) > before);
    let stdout = program.stdout();
    serde_json::from_str(stdout.lines().last().unwrap()).unwrap()
}

#[test]
fn an_unchanged_nat_keeps_its_mappings_when_functions_are_replaced() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let nat = json!({"name": "nat", "outside": [1], "address": "192.0.2.77"});
    let other = json!({"name": "nat", "outside": [1], "address": "192.0.2.78"});
    let chain = "[[function]]\nname = \"nat\"\noutside = [1]\naddress = \"192.0.2.77\"\n";
    let mut kernel = InKernel::start(true, chain, scratch());
    let outwards = UdpFlow {
        src_ip: [10, 0, 0, 9].into(),
        dst_ip: [192, 0, 2, 1].into(),
        src_port: 1000,
        dst_port: 53,
        ..UdpFlow::default()
    };
    let [_, on] = kernel.pass(&[outwards.frame(100).unwrap()], 0, [0, 1]);
    let port = u16::from_be_bytes([on[0][34], on[0][35]]);
    let back = |address: [u8; 4], port: u16| UdpFlow {
        src_ip: outwards.dst_ip,
        dst_ip: address.into(),
        src_port: 53,
        dst_port: port,
        ..UdpFlow::default()
    };
    let answer = back([192, 0, 2, 77], port).frame(100).unwrap();
    let xor = |key: u8| json!({"name": "xor", "key": key});
    let updated = exchange(&mut kernel.program, json!([xor(3), nat]));
    assert_eq!((&updated["kept"], &updated["made"]), (&json!(1), &json!(1)));
    let [came, _] = kernel.pass(std::slice::from_ref(&answer), 1, [1, 0]);
    if came.is_empty() {
        let summary = kernel.program.interrupt().success();
        panic!("its mapping is not known: {summary:?}");
    }
    assert_eq!(came[0][30..34], [10, 0, 0, 9]);
    // The new translator lacks the old mappings (the next frame out may get the same port).
    let updated = exchange(&mut kernel.program, json!([xor(4), other]));
    assert_eq!((&updated["kept"], &updated["made"]), (&json!(0), &json!(2)));
    let answer = back([192, 0, 2, 78], port ^ 2).frame(100).unwrap();
    kernel.pass(&[answer], 1, [0, 0]);
    let [_, on] = kernel.pass(&[outwards.frame(100).unwrap()], 0, [0, 1]);
    assert_eq!(on[0][26..30], [192, 0, 2, 78]);
    let summary = kernel.program.interrupt().success().last_json();
    assert_eq!(summary["counters"]["rx_packets"], 4, "{summary}");
    let outcome = |name: &str| summary["outcomes"][name].as_u64().unwrap();
    assert_eq!(outcome("translated to outside"), 2, "{summary}");
    assert_eq!(outcome("translated to inside"), 1, "{summary}");
    assert_eq!(outcome("dropped: no mapping"), 1, "{summary}");
    // Frames from outside pass the translator first. Two replies arrived, of which the translator forwarded one.
    assert_eq!(outcome("changed"), 2, "{summary}");
}

/// Runs `taut forward` with NAT between two hosts, with the outside address 192.0.2.77.
fn translator(testbed: &Testbed, place: &str, folder: &tempfile::TempDir) -> Program {
    let backend = if place == "kernel" {
        "af_xdp"
    } else {
        "af_packet"
    };
    let chain = format!(
        "place = \"{place}\"\nports = [\"{backend}:dut0\", \"{backend}:dut1\"]\n[[function]]\nname = \"nat\"\n\
         outside = [1]\naddress = \"192.0.2.77\"\n\
         forward = [{{ protocol = \"tcp\", port = 8000, to = \"192.0.2.1:11112\" }}]\n"
    );
    let path = folder.path().join(format!("{place}.toml"));
    std::fs::write(&path, chain).unwrap();
    let mut command = testbed.command_in_device(env!("CARGO_BIN_EXE_taut"));
    let mut program = Program::start(command.args(["forward", "--json", "--quiet"]).arg(path));
    program.wait_until("both links up", |_, stderr| {
        stderr.matches(": up").count() >= 2
    });
    program
}

#[test]
fn hosts_and_servers_reach_each_other_through_nat() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    if !is_installed("ping") && !is_installed("iperf3") {
        println!("skipped: needs ping or iperf3 (package iputils-ping or iperf3)");
        return;
    }
    let folder = scratch();
    for (place, redirects) in [("user", false), ("kernel", true), ("kernel", false)] {
        let testbed = Testbed::builder().redirects(redirects).build().unwrap();
        let near = testbed.generator_namespace().to_string();
        let far = two_hosts(&testbed, &near, "gen1");
        let mac = run(&mut {
            let mut command = in_namespace(&near, "cat");
            command.arg("/sys/class/net/gen0/address");
            command
        });
        ip(&format!(
            "-n {} neigh replace 192.0.2.77 lladdr {} dev gen1",
            far.0,
            mac.stdout.trim()
        ));
        let forward = translator(&testbed, place, &folder);
        let inside = |namespace: &str, line: &str| -> Command {
            let (program, arguments) = line.split_once(' ').unwrap();
            let mut command = in_namespace(namespace, program);
            command.args(arguments.split(' '));
            command
        };
        if is_installed("ping") {
            let finished = run(&mut inside(
                &near,
                &format!("ping -c 20 -i 0.02 -W 10 {FAR}"),
            ));
            assert!(finished.stdout.contains(" 20 received"), "{finished:?}");
        }
        if is_installed("iperf3") {
            transfer(Transport::Tcp, (&far.0, 11111), &near, (FAR, 11111));
            let outside = ("192.0.2.77", 8000);
            transfer(Transport::Tcp, (&near, 11112), &far.0, outside);
        }
        let summary = forward.interrupt().success().last_json();
        let outcome = |name: &str| summary["outcomes"][name].as_u64().unwrap();
        assert!(outcome("translated to outside") >= 20, "{summary}");
        assert!(outcome("translated to inside") >= 20, "{summary}");
        assert_eq!(outcome("dropped: no mapping"), 0, "{summary}");
    }
}
