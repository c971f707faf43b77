//! DPDK ports compared with taut's own backends, connected to `dpdk-testpmd`, and on the kernel's interfaces.

use crate::support::program::{Finished, Program, run};
use crate::support::testpmd::Testpmd;
use crate::support::undisturbed::{Complaint, undisturbed};
use crate::support::{RESTING, Sockets, alone, alone_and_root, is_listened_on, taut, testpmd};
use rustix::process::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use taut_host::{Testbed, allowed_cpus, choose_cores};

/// Default number of slots of a ring of `net_memif`.
const RING: u64 = 1024;

/// Reports whether DPDK ports can be opened; prints a line if not.
fn has_dpdk() -> bool {
    let found = taut_port::backends()
        .iter()
        .find(|backend| backend.name == "dpdk")
        .map(|backend| (backend.probe)());
    if let Some(Ok(_)) = found {
        return true;
    }
    println!("skipped: needs {found:?}");
    false
}

fn ports(specs: impl IntoIterator<Item = String>) -> Vec<String> {
    specs
        .into_iter()
        .flat_map(|spec| ["--port".to_string(), spec])
        .collect()
}

fn start_forward(ports: &[String]) -> Program {
    let mut command = taut(&["forward", "--json", "--core"]);
    let core = choose_cores().device.to_string();
    let mut forward = Program::start(command.arg(core).args(RESTING).args(ports));
    forward.wait_for_stdout("started");
    forward
}

/// Builds the generator's command. All packets of a run together fit into a ring of 1024 slots, so that no stall of the
/// machine loses a packet.
fn generate(ports: &[String], sizes: &str) -> Command {
    let mut command = taut(&["generate", "--json", "--rate", "2k", "--seconds", "0.4"]);
    command
        .args(["--wait", "30", "--size", sizes])
        .args(["--core", &choose_cores().generator.to_string()])
        .args(ports);
    command
}

/// Checks that all packets of a generator returned, intact and in order.
fn all_came_back(finished: Finished) -> Result<(), Complaint> {
    assert!(!finished.stderr.contains("panicked"), "{finished:?}");
    // Code 1 means that the generator was preempted and sent fewer packets than requested.
    if !matches!(finished.code(), Some(0 | 1)) {
        return Err(format!("{finished:?}").into());
    }
    let stream = finished.first_stream();
    let tally = &stream["tally"];
    assert_eq!(tally["corrupt"], 0, "{stream}");
    for name in ["duplicate", "reordered"] {
        assert_eq!(stream["sequence"][name], 0, "{stream}");
    }
    let sent = tally["sent"].as_u64().unwrap();
    if sent >= 300 && stream["lost"] == 0 && tally["received"] == sent {
        Ok(())
    } else {
        Err(stream.to_string().into())
    }
}

/// Returns the output of a program that succeeded, or an error if `net_memif` killed the program. When a peer leaves,
/// `net_memif` of DPDK 22.11 may read a ring that another thread has unmapped. testpmd then dies, always at the same
/// instruction (docs/reference/ports.md).
fn unless_net_memif_died(finished: Finished) -> Result<Finished, Complaint> {
    if finished.signal() == Some(Signal::SEGV.as_raw()) {
        let died = format!("net_memif died as its peer left: {finished:?}");
        return Err(Complaint::spoilt(died));
    }
    Ok(finished.success())
}

fn memif_device(number: usize, role: &str, path: &Path) -> String {
    let path = path.display();
    format!("dpdk:net_memif{number},role={role},id=0,socket={path},socket-abstract=no")
}

fn wait_until_listened_on(program: &mut Program, sockets: &[PathBuf]) {
    program.wait_until("sockets", |_, _| {
        sockets.iter().all(|path| is_listened_on(path))
    });
}

fn counter(summary: &Value, name: &str) -> u64 {
    summary["counters"][name].as_u64().unwrap()
}

#[test]
fn hardware_pacing_without_nic_support_is_refused() {
    if !has_dpdk() {
        return;
    }
    let _turn = alone();
    let port = format!("dpdk:net_null{}", std::process::id());
    let finished = run(&mut taut(&[
        "generate",
        "--port",
        &port,
        "--pacing",
        "nic",
        "--seconds",
        "0.1",
    ]));
    assert_eq!(finished.code(), Some(3), "{finished:?}");
    for part in ["net_null does not", "use software pacing"] {
        assert!(finished.stderr.contains(part), "{finished:?}");
    }
    assert_eq!(finished.stderr.lines().count(), 1, "{finished:?}");
}

#[test]
fn dpdks_memif_clients_forward_between_our_memif_servers() {
    if !has_dpdk() || !testpmd::is_here() {
        return;
    }
    let _turn = alone();
    undisturbed(|| -> Result<(), Complaint> {
        let sockets = Sockets::new();
        let paths = sockets.paths();
        let mut generate = generate(&sockets.ports("server", ""), "64,1518");
        let mut generator = Program::start(&mut generate);
        // DPDK's memif client tries to connect only once, so the sockets must exist before.
        wait_until_listened_on(&mut generator, &paths);
        let devices = paths.iter().enumerate();
        let devices = devices.map(|(i, path)| memif_device(i, "client", path));
        let forward = start_forward(&ports(devices));
        let came_back = all_came_back(generator.finish());
        let summary = unless_net_memif_died(forward.interrupt())?.last_json();
        came_back?;
        assert!(counter(&summary, "tx_packets") >= 300, "{summary}");
        Ok(())
    });
}

#[test]
fn two_workers_use_separate_queues_of_dpdk_devices() {
    if !has_dpdk() || allowed_cpus().len() < 2 {
        println!("skipped: needs two cores, and DPDK");
        return;
    }
    let _turn = alone();
    undisturbed(|| -> Result<(), Complaint> {
        let sockets = Sockets::new();
        let [west, east] = sockets.paths();
        let of_two = |wait: &str, specs: [String; 2]| {
            let mut command = taut(&["forward", "--json", "--quiet", "--workers", "2"]);
            command.args(["--wait", wait]).args(ports(specs));
            Program::start(&mut command)
        };
        let memif = |path: &Path| format!("memif:{}", path.display());
        let mut sink = of_two("sleep(1ms)", [memif(&east), "null:".to_string()]);
        let mut source = of_two("poll", ["null:source=1".to_string(), memif(&west)]);
        // DPDK's memif client tries to connect only once, so the socket must exist before.
        wait_until_listened_on(&mut sink, std::slice::from_ref(&east));
        wait_until_listened_on(&mut source, std::slice::from_ref(&west));
        let devices = [
            memif_device(10, "client", &west),
            memif_device(11, "client", &east),
        ];
        let mut device = of_two("poll", devices);
        device.wait_until("both links up", |_, stderr| {
            stderr.matches(": up").count() >= 2
        });
        std::thread::sleep(Duration::from_millis(600));
        // Packets in flight when net_memif leaves are lost or seen twice: it rewinds its rings while the peer reads
        // them.
        source.signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(200));
        let ended = device.interrupt();
        source.signal(Signal::CONT);
        source.interrupt().success();
        let taken = sink.interrupt().success().last_json();
        let summary = unless_net_memif_died(ended)?.last_json();
        let workers = summary["workers"].as_array().unwrap();
        if workers.iter().any(|it| it["rx_packets"] == 0) {
            return Err(format!("a worker that had nothing: {summary}").into());
        }
        let (received, sent) = (
            counter(&summary, "rx_packets"),
            counter(&summary, "tx_packets"),
        );
        assert_eq!(
            received,
            sent + counter(&summary, "dropped_tx_full"),
            "{summary}"
        );
        // In one of 150 runs, the peer received a complete ring twice when net_memif left.
        let more = counter(&taken, "rx_packets").checked_sub(sent);
        assert!(
            more.is_some_and(|more| more.is_multiple_of(RING)),
            "{summary}\n{taken}"
        );
        Ok(())
    });
}

#[test]
fn our_memif_clients_are_served_by_dpdks_memif_servers() {
    if !has_dpdk() || !testpmd::is_here() {
        return;
    }
    let _turn = alone();
    undisturbed(|| {
        let sockets = Sockets::new();
        let paths = sockets.paths();
        let devices = paths.iter().enumerate();
        let devices = devices.map(|(i, path)| memif_device(i, "server", path));
        let mut forward = start_forward(&ports(devices));
        wait_until_listened_on(&mut forward, &paths);
        let came_back = all_came_back(run(&mut generate(&sockets.ports("client", ""), "64")));
        forward.wait_until("both links up", |_, stderr| {
            stderr.matches(": up").count() >= 2
        });
        unless_net_memif_died(forward.interrupt())?;
        // The servers removed their sockets.
        assert!(paths.iter().all(|path| !path.exists()));
        came_back
    });
}

#[test]
fn testpmd_on_virtio_user_returns_every_packet_to_vhost_ports() {
    if !has_dpdk() || !testpmd::is_here() || !testpmd::has_huge_pages(256) {
        return;
    }
    let _turn = alone();
    for mode in ["io", "macswap"] {
        undisturbed(|| {
            let sockets = Sockets::new();
            let paths = sockets.paths();
            let vhost = paths.iter().enumerate();
            let vhost =
                vhost.map(|(i, path)| format!("dpdk:net_vhost{i},iface={}", path.display()));
            let mut generator = Program::start(&mut generate(&ports(vhost), "64"));
            wait_until_listened_on(&mut generator, &paths);
            let user = paths.iter().enumerate().map(|(i, path)| {
                format!("net_virtio_user{i},path={},queue_size=1024", path.display())
            });
            let mut testpmd = Testpmd::start_devices(mode, &user.collect::<Vec<_>>());
            let finished = generator.finish();
            assert!(testpmd.is_running(), "{}", testpmd.output());
            assert!(paths.iter().all(|path| !path.exists()));
            all_came_back(finished)
        });
    }
}

#[test]
fn testpmd_on_vhost_returns_every_packet_to_virtio_user_ports() {
    if !has_dpdk() || !testpmd::is_here() || !testpmd::has_huge_pages(256) {
        return;
    }
    let _turn = alone();
    undisturbed(|| {
        let sockets = Sockets::new();
        let paths = sockets.paths();
        let vhost = paths.iter().enumerate();
        let vhost: Vec<_> = vhost
            .map(|(i, path)| format!("net_vhost{i},iface={}", path.display()))
            .collect();
        let mut testpmd = Testpmd::start_devices("io", &vhost);
        let user = paths.iter().enumerate();
        let user = user.map(|(i, path)| {
            format!(
                "dpdk:net_virtio_user{i},path={},queue_size=1024",
                path.display()
            )
        });
        let finished = run(&mut generate(&ports(user), "64"));
        assert!(testpmd.is_running(), "{}", testpmd.output());
        all_came_back(finished)
    });
}

#[test]
fn every_packet_crosses_veth_pairs_through_dpdk_drivers() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    if !has_dpdk() {
        return;
    }
    for driver in ["net_af_packet", "net_af_xdp"] {
        let testbed = Testbed::builder().build().unwrap();
        let mut command = testbed.command_in_device(env!("CARGO_BIN_EXE_taut"));
        let core = choose_cores().device.to_string();
        command.args(["forward", "--json", "--core", &core]);
        command.args(RESTING);
        command.args(ports(
            [0, 1].map(|i| format!("dpdk:{driver}{i},iface=dut{i}")),
        ));
        let mut forward = Program::start(&mut command);
        forward.wait_until("both links up", |_, stderr| {
            stderr.matches(": up").count() >= 2
        });
        undisturbed(|| {
            let ours = generate(&ports([0, 1].map(|i| format!("af_packet:gen{i}"))), "64");
            let mut command = Command::new("ip");
            command
                .args(["netns", "exec", testbed.generator_namespace()])
                .arg(ours.get_program())
                .args(ours.get_args());
            all_came_back(run(&mut command))
        });
        let summary = forward.interrupt().success().last_json();
        assert!(
            counter(&summary, "tx_packets") >= 300,
            "{driver}: {summary}"
        );
    }
}

#[test]
fn dpdk_ports_forward_without_huge_pages() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    if !has_dpdk() {
        return;
    }
    // taut counts the free huge pages in this folder, which the mount hides.
    let hidden = "mount -t tmpfs none /sys/kernel/mm/hugepages && exec \"$@\"";
    let inner = taut(&["forward", "--json", "--seconds", "0.5"]);
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", hidden, "sh"])
        .arg(inner.get_program())
        .args(inner.get_args())
        .args(ports([0, 1].map(|i| format!("dpdk:net_null{i},copy=0"))));
    let finished = run(&mut command).success();
    assert!(
        finished.stderr.contains("on ordinary pages"),
        "{finished:?}"
    );
    assert!(
        counter(&finished.last_json(), "tx_packets") > 100_000,
        "{finished:?}"
    );
}

/// Returns the files that DPDK programs leave: run-time folders, and huge pages under their mount.
fn traces() -> Vec<PathBuf> {
    ["/var/run/dpdk", "/dev/hugepages", "/run/dpdk"]
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten())
        .map(|entry| entry.path())
        .filter(|path| path.to_string_lossy().contains("taut-"))
        .collect()
}

#[test]
fn dpdk_files_are_removed_even_if_the_forwarder_is_killed() {
    if !has_dpdk() {
        return;
    }
    let _turn = alone();
    for signal in [Signal::INT, Signal::KILL] {
        let forward = start_forward(&ports(["dpdk:net_null0,size=64".to_string()]));
        let own = format!("taut-{}", forward.id());
        forward.signal(signal);
        forward.finish();
        let left: Vec<_> = traces()
            .into_iter()
            .filter(|path| path.to_string_lossy().contains(&own))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn unsupported_dpdk_settings_cause_a_one_line_error() {
    if !has_dpdk() {
        return;
    }
    let _turn = alone();
    for (spec, code, fragment) in [
        ("dpdk:net_nul0", 2, "has no device \"net_nul0\""),
        ("dpdk:", 2, "write dpdk:DEVICE"),
        ("dpdk:net_null0,ring=7", 2, "64 to 32768"),
        ("dpdk:net_null0,rate=100", 3, "a driver that limits rates"),
        ("dpdk:net_null0,nonsense=1", 2, "refuses"),
        ("dpdk:net_pcap0,rx_pcap=/nowhere/x.pcap", 2, "No such file"),
        (
            "dpdk:net_memif0,role=client,socket=/nowhere/x.sock,socket-abstract=no",
            2,
            "Invalid socket directory",
        ),
        ("dpdk:0000:ff:1f.7", 2, "no such device"),
    ] {
        let finished = run(&mut taut(&["forward", "--port", spec]));
        assert_eq!(finished.code(), Some(code), "{spec}: {finished:?}");
        let lines: Vec<_> = finished.stderr.lines().collect();
        assert_eq!(lines.len(), 1, "{finished:?}");
        let said = lines[0].to_lowercase();
        assert!(
            said.starts_with("taut: ") && said.contains(&fragment.to_lowercase()),
            "no `{fragment}`: {finished:?}"
        );
    }
    // The same device occurs twice in one command.
    let twice = [
        "forward",
        "--port",
        "dpdk:net_null0",
        "--port",
        "dpdk:net_null0",
    ];
    let finished = run(&mut taut(&twice));
    assert_eq!(finished.code(), Some(2), "{finished:?}");
    assert!(
        finished.stderr.contains("in use by another port"),
        "{finished:?}"
    );
}
