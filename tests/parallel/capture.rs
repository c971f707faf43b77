//! Tests that compare a capture with tcpdump and tshark, and with ordinary hosts.

use crate::support::hosts::{Hosts, Namespace, Transport, in_namespace, ping, pinged, transfer};
use crate::support::own_functions::write_capture;
use crate::support::program::{Finished, Program, run};
use crate::support::{is_installed, names, scratch, taut};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use taut_wire::UdpFlow;

const TOOLS: [(&str, &str); 5] = [
    ("ping", "iputils-ping"),
    ("iperf3", "iperf3"),
    ("tcpdump", "tcpdump"),
    ("tshark", "tshark"),
    ("capinfos", "wireshark-common"),
];

/// Creates two hosts and connects them by a cable, with offloads off so that frames have their real length. Returns
/// `None` if a requirement is missing.
fn two_hosts() -> Option<Hosts> {
    let hosts = Hosts::new(2, &TOOLS)?;
    hosts.join_two();
    for host in &hosts.all {
        let mut ethtool = in_namespace(&host.0, "ethtool");
        ethtool.args(["-K", "eth0", "gro", "off", "gso", "off", "tso", "off"]);
        run(&mut ethtool).success();
    }
    Some(hosts)
}

/// Builds a taut command in a host's namespace.
fn taut_in(host: &Namespace, arguments: &[&str]) -> Command {
    let mut command = in_namespace(&host.0, env!("CARGO_BIN_EXE_taut"));
    command.args(arguments);
    command
}

/// Sends exactly `count` echo requests, each after the reply to the previous one.
fn pings(host: &Namespace, count: usize) {
    for _ in 0..count {
        ping(host, "10.8.0.2", 1, &[], 1);
    }
}

/// Sends TCP segments and echo requests between both hosts.
fn traffic(hosts: &Hosts) {
    let [one, other] = [0, 1].map(|at| &hosts.all[at]);
    pings(one, 5);
    let server = (other.0.as_str(), 5301);
    let at = ("10.8.0.2", 5301);
    transfer(Transport::Tcp, server, &one.0, at);
}

/// Returns a line of tshark for each packet of a file.
fn packets(file: &Path) -> Vec<String> {
    let mut command = Command::new("tshark");
    command.args(["-T", "fields"]);
    for field in [
        "frame.len",
        "ip.src",
        "ip.id",
        "tcp.seq_raw",
        "tcp.flags",
        "icmp.seq",
    ] {
        command.args(["-e", field]);
    }
    let shown = run(command.arg("-r").arg(file)).success();
    shown.stdout.lines().map(str::to_string).collect()
}

fn ask(control: &Path, arguments: &[&str]) -> Finished {
    run(taut(&["capture"])
        .args(arguments)
        .arg("--control")
        .arg(control))
}

/// Waits until a query of the running capture finds `count` echo requests and replies. A host has its reply before the
/// capture's worker, which other tests may delay, has read it.
#[track_caller]
fn wait_for_echoes(capturing: &mut Program, control: &Path, count: u64) {
    let file = control.with_file_name("echoes.pcapng");
    let words = ["query", "icmp", "--json", "--write", file.to_str().unwrap()];
    capturing.wait_until("all echoes in the capture", |_, _| {
        let found = ask(control, &words).success().last_json();
        found["packets"].as_u64() >= Some(count)
    });
}

#[test]
fn taut_and_tcpdump_capture_the_same_packets() {
    let Some(hosts) = two_hosts() else {
        return;
    };
    let folder = hosts.folder.path();
    let control = folder.join("sock");
    let mut dump = in_namespace(&hosts.all[0].0, "tcpdump");
    let theirs = folder.join("theirs.pcap");
    dump.args(["-i", "eth0", "-B", "16384", "--immediate-mode", "-U", "-w"])
        .arg(&theirs)
        .arg("ip");
    let mut dumping = Program::start(&mut dump);
    dumping.wait_for_stderr("listening on");
    let ours = folder.join("ours.pcapng");
    let arguments = [
        "capture",
        "eth0",
        "--ring",
        "256M",
        "--wait",
        "sleep(50us)",
        "--json",
        "--filter",
        "ip",
    ];
    let mut capture = taut_in(&hosts.all[0], &arguments);
    capture
        .arg("--write")
        .arg(&ours)
        .arg("--control")
        .arg(&control);
    let mut capturing = Program::start(&mut capture);
    capturing.wait_for_stdout("ring_bytes");
    traffic(&hosts);
    ping(&hosts.all[0], "10.8.0.2", 1, &[], 1);
    // Six echo requests and their replies are sent last, so tcpdump's file is complete once it contains all twelve.
    let has_all = |_: &str, _: &str| {
        let mut shown = Command::new("tshark");
        let shown = run(shown.args(["-Y", "icmp", "-r"]).arg(&theirs));
        shown.stdout.lines().count() >= 12
    };
    dumping.wait_until("all packets in tcpdump's file", has_all);
    wait_for_echoes(&mut capturing, &control, 12);
    let answered = ask(&control, &["status", "--json"]).success().last_json();
    assert_eq!(answered["status"]["lost"]["packets"], 0, "{answered}");
    let refused = ask(&control, &["query", "tcp port", "--write", "none.pcapng"]);
    assert_eq!(refused.code(), Some(2));
    assert!(refused.stderr.contains("column 9"), "{refused:?}");
    let found = folder.join("found.pcapng");
    let words = ["query", "icmp", "--write", found.to_str().unwrap()];
    let said = ask(&control, &words).success().stdout;
    assert!(said.starts_with("12 packets found"), "{said}");
    assert_eq!(packets(&found).len(), 12);
    let piped = ask(&control, &["query", "icmp[0] = 8", "--from", "-1h"]).success();
    assert!(piped.stderr.contains("6 packets found"), "{piped:?}");
    let resized = ask(&control, &["resize", "64M"]).success().stdout;
    assert!(resized.contains("64 MB"), "{resized}");
    let stopped = ask(&control, &["stop", "--json"]).success().last_json();
    assert_eq!(stopped["lost"]["packets"], 0, "{stopped}");
    assert!(stopped["kept"]["packets"].as_u64() > Some(200), "{stopped}");
    assert!(stopped["seconds"].as_f64() > Some(0.0), "{stopped}");
    let ended = capturing.finish().success();
    let last = ended.last_json();
    assert_eq!(last["lost"]["packets"], 0, "{last}");
    assert_eq!(last["ports"][0]["rx_overrun"], 0, "{last}");
    let status = dumping.interrupt();
    assert!(
        status.stderr.contains("0 packets dropped by kernel"),
        "{status:?}"
    );
    let (mut ours_seen, mut theirs_seen) = (packets(&ours), packets(&theirs));
    // Packets from before both captures ran, or after one ended, do not count.
    ours_seen.retain(|it| !it.contains("10.8.0.0"));
    theirs_seen.retain(|it| !it.contains("10.8.0.0"));
    assert!(ours_seen.len() > 200, "{}", ours_seen.len());
    ours_seen.sort();
    theirs_seen.sort();
    assert!(
        ours_seen == theirs_seen,
        "{} and {}",
        ours_seen.len(),
        theirs_seen.len()
    );
    run(Command::new("capinfos").arg(&ours)).success();
}

#[test]
fn triggers_write_earlier_packets_and_an_interrupt_ends_the_capture() {
    let Some(hosts) = two_hosts() else {
        return;
    };
    let folder = hosts.folder.path();
    let (control, dumps) = (folder.join("sock"), folder.join("dumps"));
    let arguments = [
        "capture",
        "eth0",
        "--ring",
        "64M",
        "--wait",
        "sleep(50us)",
        "--trigger",
        "end=icmp[0] = 8 and len = 142",
        "--trigger",
        "asked",
        "--before",
        "30s",
        "--after",
        "0s",
    ];
    let mut capture = taut_in(&hosts.all[0], &arguments);
    capture
        .arg("--dump")
        .arg(&dumps)
        .arg("--control")
        .arg(&control);
    let mut capturing = Program::start(&mut capture);
    capturing.wait_for_stdout("capturing");
    pings(&hosts.all[0], 2);
    ping(&hosts.all[0], "10.8.0.2", 1, &["-s", "100"], 1);
    capturing.wait_for_stdout(" end: ");
    let wrong = ask(&control, &["trigger", "nobody"]);
    assert_eq!(wrong.code(), Some(2));
    assert!(
        wrong.stderr.contains("the triggers are end, asked"),
        "{wrong:?}"
    );
    ask(&control, &["trigger", "asked", "--cause", "to see"]).success();
    capturing.wait_for_stdout(" asked: ");
    let listed = ask(&control, &["list"]).success().stdout;
    assert!(listed.contains(" end: "), "{listed}");
    // Invalid input of another client does not end the capture.
    let mut stream = std::os::unix::net::UnixStream::connect(&control).unwrap();
    std::io::Write::write_all(&mut stream, b"\x00\xff{\"op\":\"fly\"}\n").unwrap();
    drop(stream);
    let ended = capturing.interrupt().success();
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
    assert!(!control.exists());
    let files = names(&dumps);
    assert_eq!(files.len(), 2, "{files:?}");
    let all = files.iter().find(|it| it.starts_with("asked")).unwrap();
    let mut comment = Command::new("capinfos");
    let comment = run(comment.arg("-k").arg(dumps.join(all))).success().stdout;
    assert!(comment.contains("to see"), "{comment}");
    for file in &files {
        let echoes = packets(&dumps.join(file));
        // The two requests and two replies are among the hosts' other packets.
        assert_eq!(
            echoes.iter().filter(|it| it.starts_with("98\t")).count(),
            4,
            "{file}: {echoes:?}"
        );
    }
}

#[test]
fn a_killed_capture_leaves_its_packets_on_disk() {
    let Some(hosts) = two_hosts() else {
        return;
    };
    let folder = hosts.folder.path();
    let (control, disk, small) = (
        folder.join("sock"),
        folder.join("disk"),
        folder.join("small"),
    );
    fs::create_dir(&small).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"])
        .arg(&small)
        .status();
    let begin = |more: &[&str]| {
        let arguments = ["capture", "eth0", "--ring", "64M", "--wait", "sleep(50us)"];
        let mut capture = taut_in(&hosts.all[0], &arguments);
        capture.args(more).arg("--control").arg(&control);
        let mut capturing = Program::start(&mut capture);
        capturing.wait_for_stdout("capturing");
        capturing
    };
    let kept = ["--disk", disk.to_str().unwrap(), "--disk-size", "1G"];
    let mut capturing = begin(&kept);
    pings(&hosts.all[0], 5);
    wait_for_echoes(&mut capturing, &control, 10);
    // A query first writes what is in memory to the disk, so the kill loses none of it.
    ask(&control, &["query", "icmp"]).success();
    capturing.kill();
    let query = [
        "capture",
        "query",
        "host 10.8.0.2 and icmp",
        "--disk",
        disk.to_str().unwrap(),
    ];
    let found = run(&mut taut(&query)).success();
    assert!(found.stderr.contains("10 packets found"), "{found:?}");
    // Another capture starts with the same control socket, whose file the killed capture left behind.
    let small = small.join("full.pcapng");
    let mut both = kept.to_vec();
    both.extend(["--write", small.to_str().unwrap()]);
    let mut capturing = begin(&both);
    let many = ["-c", "200", "-i", "0.002", "-s", "1000", "10.8.0.2"];
    pinged(&hosts.all[0], &many);
    // Packets stay in order, so this echo request arrives after all earlier ones.
    pings(&hosts.all[0], 1);
    if mounted.is_ok_and(|it| it.success()) {
        capturing.wait_for_stderr("No space left");
    }
    wait_for_echoes(&mut capturing, &control, 412);
    let ended = capturing.interrupt().success();
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
    let found = run(&mut taut(&query)).success();
    assert!(found.stderr.contains("412 packets found"), "{found:?}");
    let _ = Command::new("umount").arg(small.parent().unwrap()).status();
}

#[test]
fn packets_lost_before_the_disk_are_reported_at_the_end() {
    let Some(hosts) = two_hosts() else {
        return;
    };
    let disk = hosts.folder.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs"]);
    if !mount.arg(&disk).status().is_ok_and(|it| it.success()) {
        println!("skipped: needs mount");
        return;
    }
    let control = hosts.folder.path().join("sock");
    let arguments = ["capture", "eth0", "--ring", "64M", "--wait", "sleep(50us)"];
    let mut capture = taut_in(&hosts.all[0], &arguments);
    capture.args(["--disk-size", "1G", "--disk"]).arg(&disk);
    let mut capturing = Program::start(capture.arg("--control").arg(&control));
    capturing.wait_for_stdout("capturing");
    let many = ["-c", "200", "-i", "0.002", "-s", "1000", "10.8.0.2"];
    pinged(&hosts.all[0], &many);
    let has_lost = |_: &str, _: &str| {
        let status = ask(&control, &["status", "--json"]).success().last_json();
        status["status"]["disk"]["lost"].as_u64() > Some(0)
    };
    capturing.wait_until("packets that found no room", has_lost);
    let ended = capturing.interrupt().success();
    assert!(
        ended.stderr.contains(" packets are not on disk"),
        "{ended:?}"
    );
    let _ = Command::new("umount").arg(&disk).status();
}

/// Returns the only file of a folder.
fn only_file(folder: &Path) -> PathBuf {
    let files: Vec<_> = names(folder).into_iter().collect();
    assert_eq!(files.len(), 1, "{files:?}");
    folder.join(&files[0])
}

/// Decompresses the complete part of a file with zstd, and returns the number of packets that tshark then reads.
fn unpacked(folder: &Path, file: &Path, filter: &str) -> usize {
    let plain = folder.join("unpacked.pcapng");
    let mut unpack = Command::new("zstd");
    unpack.args(["-d", "-c", "-q"]).arg(file);
    let bytes = unpack.output().unwrap().stdout;
    fs::write(&plain, bytes).unwrap();
    let mut shown = Command::new("tshark");
    let shown = run(shown.args(["-Y", filter, "-r"]).arg(&plain)).success();
    shown.stdout.lines().count()
}

#[test]
fn other_programs_read_compressed_captures_even_after_a_kill() {
    let Some(hosts) = two_hosts() else {
        return;
    };
    if !is_installed("zstd") {
        println!("skipped: needs zstd");
        return;
    }
    let folder = hosts.folder.path();
    let path = |name: &str| folder.join(name);
    let (control, disk, dumps) = (path("sock"), path("disk"), path("dumps"));
    let arguments = [
        "capture",
        "eth0",
        "--ring",
        "64M",
        "--wait",
        "sleep(50us)",
        "--zstd",
        "--disk-size",
        "1G",
        "--trigger",
        "echo=icmp",
        "--after",
        "60s",
        "--disk",
    ];
    let mut capture = taut_in(&hosts.all[0], &arguments);
    capture
        .arg(&disk)
        .arg("--dump")
        .arg(&dumps)
        .arg("--control")
        .arg(&control);
    let mut capturing = Program::start(&mut capture);
    capturing.wait_for_stdout("capturing");
    pings(&hosts.all[0], 5);
    let has_kept = |_: &str, _: &str| {
        let status = ask(&control, &["status", "--json"]).success().last_json();
        let dump = &status["status"]["dumping"][0];
        let is_flushed = names(&dumps).iter().any(|it| {
            it.ends_with(".pcapng.zst.part") && unpacked(folder, &dumps.join(it), "icmp") >= 10
        });
        is_flushed
            && status["status"]["disk"]["packets"].as_u64() >= Some(10)
            && dump["packets"].as_u64() >= Some(10)
    };
    capturing.wait_until("packets on disk", has_kept);
    let found = path("found.pcapng.zst");
    ask(
        &control,
        &["query", "icmp", "--write", found.to_str().unwrap()],
    )
    .success();
    assert_eq!(unpacked(folder, &found, "icmp"), 10);
    // Requested packets are written to the disk immediately, so the kill loses none of the earlier ones.
    ask(
        &control,
        &[
            "query",
            "icmp",
            "--write",
            path("again.pcapng").to_str().unwrap(),
        ],
    )
    .success();
    capturing.kill();
    let segments: Vec<_> = names(&disk)
        .into_iter()
        .filter(|it| it.ends_with(".pcapng.zst"))
        .collect();
    assert_eq!(segments.len(), 1, "{:?}", names(&disk));
    assert_eq!(unpacked(folder, &disk.join(&segments[0]), "icmp"), 10);
    let query = ["capture", "query", "icmp", "--disk", disk.to_str().unwrap()];
    let asked = run(&mut taut(&query)).success();
    assert!(asked.stderr.contains("10 packets found"), "{asked:?}");
    // The file is replayed and captured again.
    let port = format!("pcap:{}", found.display());
    let again = path("replayed.pcapng");
    let replay = [
        "capture",
        "--ring",
        "64M",
        "--seconds",
        "1",
        "--port",
        &port,
        "--write",
    ];
    run(taut(&replay).arg(&again)).success();
    assert_eq!(packets(&again), packets(&found));
    // If a file is truncated within a frame, all earlier frames are read.
    let bytes = fs::read(&found).unwrap();
    let cut = path("cut.pcapng.zst");
    fs::write(&cut, &bytes[..bytes.len() - 3]).unwrap();
    let port = format!("pcap:{}", cut.display());
    let forwarded = [
        "forward", "--port", &port, "--port", "null:", "--json", "--quiet",
    ];
    let ended = run(&mut taut(&forwarded)).success();
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
    // Packets that do not fit are reported, even if the captured file ends before any request.
    let full = run(&mut taut(&[
        "capture",
        "--ring",
        "64M",
        "--port",
        &port,
        "--write",
        "/dev/full",
    ]));
    assert!(
        full.success()
            .stderr
            .contains("packets were not written: No space left")
    );
    let wrong = ["capture", "--port", "null:", "--zstd"];
    let refused = run(&mut taut(&wrong));
    assert_eq!(refused.code(), Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("zstd: only with dump or disk"),
        "{refused:?}"
    );
}

#[test]
fn scripts_fire_triggers_and_endless_scripts_are_stopped() {
    let Some(hosts) = two_hosts() else {
        return;
    };
    let folder = hosts.folder.path();
    let (control, dumps) = (folder.join("sock"), folder.join("dumps"));
    let ttl = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/capture/ttl.lua");
    let looping = folder.join("looping.lua");
    fs::write(
        &looping,
        "function analyse(packet) if packet.wire_len > 120 then while true do end end end",
    )
    .unwrap();
    let arguments = [
        "capture",
        "eth0",
        "--ring",
        "64M",
        "--wait",
        "sleep(50us)",
        "--trigger",
        "ttl",
        "--before",
        "0s",
        "--after",
        "0s",
        "--stamps",
        "kernel",
        "--analyse",
        ttl,
        "--analyse",
    ];
    let mut capture = taut_in(&hosts.all[0], &arguments);
    capture
        .arg(&looping)
        .arg("--dump")
        .arg(&dumps)
        .arg("--control")
        .arg(&control);
    let mut capturing = Program::start(&mut capture);
    capturing.wait_for_stdout("capturing");
    pings(&hosts.all[0], 6);
    ping(&hosts.all[0], "10.8.0.2", 1, &["-s", "100"], 1);
    capturing.wait_for_stderr("did not finish within 1 s");
    ping(&hosts.all[0], "10.8.0.2", 1, &["-t", "50"], 1);
    capturing.wait_for_stdout(" ttl: 1 packets");
    let status = ask(&control, &["status", "--json"]).success().last_json();
    let analysers = &status["status"]["analysers"];
    assert_eq!(analysers[0]["name"], "ttl");
    assert_eq!(
        (&analysers[0]["fired"], &analysers[0]["failed"]),
        (&1.into(), &0.into()),
        "{status}"
    );
    assert!(
        analysers[1]["error"]
            .as_str()
            .unwrap()
            .contains("not called again"),
        "{status}"
    );
    let shown = ask(&control, &["status"]).success().stdout;
    assert!(shown.contains("looping: "), "{shown}");
    capturing.interrupt().success();
    let file = only_file(&dumps);
    let mut shown = Command::new("tshark");
    let shown = run(shown
        .args(["-T", "fields", "-e", "ip.ttl", "-r"])
        .arg(&file))
    .success();
    assert_eq!(shown.stdout.trim(), "50");
    let mut comment = Command::new("capinfos");
    let comment = run(comment.arg("-k").arg(&file)).success().stdout;
    assert!(
        comment.contains("analyser ttl: TTL 50 after a mean of 64.0"),
        "{comment}"
    );
    assert!(
        comment.contains("times are stamps of the ports on arrival"),
        "{comment}"
    );
    let wrong = folder.join("wrong.lua");
    fs::write(&wrong, "analyse = 1").unwrap();
    let refused = ["capture", "--port", "null:", "--ring", "64M", "--analyse"];
    let refused = run(taut(&refused).arg(&wrong));
    assert!(
        refused.code() == Some(2) && refused.stderr.contains("has no function analyse"),
        "{refused:?}"
    );
}

/// Returns the dumps that triggers have written while an example's analyser runs: names of triggers, and comments of
/// files.
fn analysed(
    example: &str,
    triggers: &[&str],
    settings: &str,
    frames: &[Vec<u8>],
    apart_us: u32,
) -> Vec<(String, String)> {
    let folder = scratch();
    let path = |name: &str| folder.path().join(name);
    let (file, dumps, chain) = (path("in.pcap"), path("dumps"), path("chain.toml"));
    write_capture(&file, frames, apart_us);
    let mut text = format!(
        "ports = [\"pcap:{},timing=original\", \"null:\"]\nwait = \"sleep(200us)\"\n[[function]]\nname = \"record\"\nring = \"64 MB\"\n\
        dump = \"{}\"\n[[function.analyser]]\nfile = \"{}/examples/capture/{example}.lua\"\n{settings}\n",
        file.display(),
        dumps.display(),
        env!("CARGO_MANIFEST_DIR")
    );
    for name in triggers {
        text += &format!(
            "[[function.trigger]]\nname = \"{name}\"\nasked = true\nbefore = \"0s\"\nafter = \"0s\"\n"
        );
    }
    fs::write(&chain, text).unwrap();
    // Packets of one burst have the same timestamp, so two triggers within a burst would share one dump.
    let ended = run(taut(&["forward", "--quiet", "--burst", "1"]).arg(&chain)).success();
    assert!(!ended.stderr.contains("taut: capture"), "{ended:?}");
    let written = names(&dumps).into_iter().map(|name| {
        let bytes = fs::read(dumps.join(&name)).unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let comment = text
            .split_once("trigger ")
            .unwrap()
            .1
            .split_once(" at ")
            .unwrap()
            .0
            .to_string();
        (name.split('-').next().unwrap().to_string(), comment)
    });
    written.collect()
}

/// Builds a datagram of the flow to `port`, or of the reverse direction if `back` is true. Its payload begins with
/// `payload`.
fn datagram(port: u16, back: bool, payload: &[u8]) -> Vec<u8> {
    let there = UdpFlow {
        dst_port: port,
        ..UdpFlow::default()
    };
    let flow = match back {
        false => there,
        true => UdpFlow {
            src_ip: there.dst_ip,
            dst_ip: there.src_ip,
            src_port: port,
            dst_port: there.src_port,
            ..there
        },
    };
    let mut frame = flow.frame(200).unwrap();
    frame[42..42 + payload.len()].copy_from_slice(payload);
    frame
}

#[test]
fn the_example_scripts_detect_quic_and_idle_flows() {
    let long = [0xc3, 0, 0, 0, 1, 8];
    let frames = [
        datagram(4433, false, &[0x40, 0, 0, 0, 1, 8]),
        datagram(443, false, &[0xc3, 0, 0, 0, 3, 8]),
        datagram(443, false, &[0xc3, 0, 0, 0, 1, 21]),
        datagram(4433, false, &long),
        datagram(4433, true, &long),
        datagram(53, true, &[0xc3, 0x6b, 0x33, 0x43, 0xcf, 20]),
    ];
    let found = analysed("quic", &["quic"], "", &frames, 1000);
    let said = |trigger: &str, cause: &str| (trigger.to_string(), cause.to_string());
    let want = [
        said("quic", "quic: analyser quic: version 1 to port 4433"),
        said("quic", "quic: analyser quic: version 2 to port 31238"),
    ];
    assert_eq!(found, want);
    // The flow of port 9 is silent for almost four seconds while another flow continues, and then sends again. Programs
    // with real-time priority may stop this program for almost two seconds. The same number of flows counts as silent
    // even then.
    let mut frames = [false, true, false]
        .map(|back| datagram(9, back, &[]))
        .to_vec();
    frames.resize(40, datagram(10, false, &[]));
    frames.extend([false, true].map(|back| datagram(9, back, &[])));
    let settings = "settings = { seconds = 2 }";
    let found = analysed("alive", &["dead", "alive"], settings, &frames, 100_000);
    let found: Vec<_> = found
        .iter()
        .map(|it| (it.0.as_str(), it.1.split(" for ").next().unwrap()))
        .collect();
    let want = [
        ("alive", "alive: analyser alive: silent"),
        ("dead", "dead: analyser alive: nothing"),
    ];
    assert_eq!(found, want);
}

#[test]
fn an_alert_of_an_earlier_inspection_function_fires_a_trigger() {
    let Some(hosts) = two_hosts() else {
        return;
    };
    let folder = hosts.folder.path();
    let (control, dumps) = (folder.join("sock"), folder.join("dumps"));
    let rules = folder.join("some.rules");
    let rule = "alert icmp any any -> any any (msg:\"long\"; itype:8; dsize:>90; sid:7; rev:1;)\n";
    fs::write(&rules, rule).unwrap();
    let chain = folder.join("chain.toml");
    let text = format!(
        "ports = [\"af_packet:eth0,outgoing=yes\"]\nwait = \"sleep(50us)\"\n\
        [[function]]\nname = \"ips\"\nrules = [\"{}\"]\n\
        [[function]]\nname = \"record\"\nring = \"64 MB\"\ndrop = true\ndump = \"{}\"\ncontrol = \"{}\"\n\
        [[function.trigger]]\nname = \"alert\"\ncounter = \"alert 7\"\nkeep = \"icmp\"\nafter = \"0s\"\n\
        [[function.trigger]]\nname = \"never\"\ncounter = \"alerts of nobody\"\n",
        rules.display(),
        dumps.display(),
        control.display()
    );
    fs::write(&chain, text).unwrap();
    let mut forward = taut_in(&hosts.all[0], &["forward"]);
    let mut forwarding = Program::start(forward.arg(&chain));
    forwarding.wait_for_stderr("no function of this chain has a counter \"alerts of nobody\"");
    pings(&hosts.all[0], 2);
    let fired = || {
        let status = ask(&control, &["status", "--json"]).success().last_json();
        status["status"]["triggers"][0]["fired"].as_u64().unwrap()
    };
    assert_eq!(fired(), 0);
    ping(&hosts.all[0], "10.8.0.2", 1, &["-s", "100"], 1);
    forwarding.wait_until("a trigger that has fired", |_, _| fired() > 0);
    forwarding.interrupt().success();
    let file = only_file(&dumps);
    assert_eq!(packets(&file).len(), 6);
    let mut comment = Command::new("capinfos");
    let comment = run(comment.arg("-k").arg(&file)).success().stdout;
    assert!(comment.contains("alert 7 grew by 1"), "{comment}");
}

#[test]
fn invalid_capture_options_are_refused_with_a_one_line_error() {
    let folder = scratch();
    let path = folder.path().to_str().unwrap();
    for (arguments, code, said) in [
        (&["capture"][..], 2, "no capture source"),
        (
            &["capture", "--port", "null:", "--analyse", "/none.lua"],
            2,
            "cannot read /none.lua",
        ),
        (
            &["capture", "--port", "null:", "--ring", "1M"],
            2,
            "ring: 1048576 bytes",
        ),
        (
            &["capture", "--port", "null:", "--ring", "900000G"],
            2,
            "memory are free",
        ),
        (
            &["capture", "--port", "null:", "--filter", "tcp and"],
            2,
            "column 8",
        ),
        (
            &["capture", "--port", "null:", "--trigger", "a/b=udp"],
            2,
            "names of files",
        ),
        (&["capture", "--port", "nowhere:"], 2, "nowhere"),
        (
            &["capture", "--port", "null:", "--flows", "100000001"],
            2,
            "flows = 100000001",
        ),
        (
            &["capture", "--port", "null:", "--page", "here"],
            2,
            "page address \"here\"",
        ),
        (
            &["capture", "no-such-interface", "--ring", "64M"],
            3,
            "no-such-interface",
        ),
        (
            &["capture", "query", "udp", "--from", "soon"],
            2,
            "a time ago",
        ),
        (
            &["capture", "status", "--control", "/nowhere"],
            3,
            "no capture at /nowhere",
        ),
        (
            &["capture", "query", "udp", "--disk", "/nowhere/at/all"],
            2,
            "/nowhere/at/all",
        ),
        (
            &[
                "capture",
                "--port",
                "null:",
                "--ring",
                "64M",
                "--disk",
                path,
                "--disk-size",
                "1M",
            ],
            2,
            "too small",
        ),
    ] {
        let ended = run(&mut taut(arguments));
        let lines = ended.stderr.lines().count();
        assert!(
            ended.code() == Some(code) && ended.stderr.contains(said),
            "{arguments:?}: {ended:?}"
        );
        assert!(said == "a time ago" || lines == 1, "{ended:?}");
    }
}
