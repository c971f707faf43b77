//! Captures replayed through every pair of ports that this machine supports, in the test process and by `taut forward`.
//! Other programs read the files that taut writes.

use crate::support::program::{Finished, PATIENCE, Program, run};
use crate::support::{alone_and_root, is_installed, scratch, taut};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use taut_host::Testbed;
use taut_port::{Batch, Port, PortSpec, Resources, backends, copies};
use tempfile::TempDir;

const SEED: u64 = 0x9ca9;

/// Builds frames of all lengths with any contents. The EtherType is experimental, so that nothing on the path
/// interprets these contents as a tag or an address.
fn frames(n: usize) -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(SEED);
    (0..n)
        .map(|_| {
            let mut frame: Vec<u8> = (0..random.usize(60..=1514))
                .map(|_| random.u8(..))
                .collect();
            frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
            frame
        })
        .collect()
}

/// Writes a capture in the format of a big-endian machine with timestamps in microseconds, 10 us apart.
fn write_capture(path: &Path, frames: &[Vec<u8>]) {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0002_0004, 0, 0, 65535, 1] {
        file.extend(word.to_be_bytes());
    }
    for (frame, i) in frames.iter().zip(0_u32..) {
        for word in [1_700_000_000 + i / 100_000, i % 100_000 * 10] {
            file.extend(word.to_be_bytes());
        }
        for _ in 0..2 {
            file.extend((frame.len() as u32).to_be_bytes());
        }
        file.extend(frame);
    }
    fs::write(path, file).unwrap();
}

/// Reads a capture as taut writes it (pcap in nanoseconds, little-endian), up to its end or an incomplete record.
/// Returns the frames, and whether the last record is complete.
fn read_capture(path: &Path) -> (Vec<Vec<u8>>, bool) {
    let file = fs::read(path).unwrap();
    assert_eq!(file[..4], [0x4d, 0x3c, 0xb2, 0xa1]);
    let (mut at, mut frames) = (24, Vec::new());
    while let Some(len) = file.get(at + 8..at + 12) {
        let len = u32::from_le_bytes(len.try_into().unwrap()) as usize;
        let Some(frame) = file.get(at + 16..at + 16 + len) else {
            break;
        };
        frames.push(frame.to_vec());
        at += 16 + len;
    }
    (frames, at == file.len())
}

/// The ports and memory of a worker that the test runs on its own thread, so that nothing depends on scheduling.
struct HandDriven {
    from: Box<dyn Port>,
    to: Box<dyn Port>,
    /// Packets that were received and not sent yet.
    under_way: Batch,
}

impl HandDriven {
    fn open(from: &str, to: &str) -> Self {
        let specs = [from, to].map(|spec| PortSpec::parse(spec).unwrap());
        let mut resources = Resources::for_ports(&specs).unwrap();
        let [from, to] =
            specs.map(|spec| spec.open(&mut resources).unwrap_or_else(|e| panic!("{e}")));
        Self {
            from,
            to,
            under_way: Batch::new(),
        }
    }

    fn is_ready(&mut self) -> bool {
        self.from.link().is_up() && self.to.link().is_up()
    }

    fn step(&mut self) {
        if self.under_way.is_empty() {
            self.from.rx(&mut self.under_way);
        }
        self.to.tx(&mut self.under_way);
    }
}

struct Replay {
    folder: TempDir,
    /// The testbed; `None` without root, and then only ports of user space are tried.
    testbed: Option<Testbed>,
}

/// The specs of a port and of the port at the other side of its link, and whether the latter is in the namespace of the
/// testbed's generator. A port that uses a file has no other side.
type Ends = (String, Option<(String, bool)>);

impl Replay {
    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the specs for a kind of port; `None` if this machine lacks it. `place` is 0 for the port that receives
    /// and 1 for the port that sends.
    fn ends(&self, kind: &str, place: usize) -> Option<Ends> {
        let unique = self.file(&format!("{kind}-{place}").replace([',', '='], "-"));
        let unique = unique.display();
        match kind {
            "pcap" => Some((self.capture(place), None)),
            "pair" => Some((
                format!("pair:{unique}"),
                Some((format!("pair:{unique}"), false)),
            )),
            "memif,role=client" => {
                let far = format!("memif:{unique}");
                Some((format!("{far},role=client"), Some((far, false))))
            }
            "memif,role=server" => {
                let near = format!("memif:{unique}");
                let far = format!("{near},role=client");
                Some((near, Some((far, false))))
            }
            "af_packet" | "af_xdp" => {
                self.testbed.as_ref()?;
                let far = format!("af_packet:gen{place}");
                Some((format!("{kind}:dut{place}"), Some((far, true))))
            }
            "tap" => {
                // Each interface gets a new name, as the previous one may exist for a moment longer: a program that
                // another test starts inherits its descriptor.
                static NUMBER: AtomicU32 = AtomicU32::new(0);
                self.testbed.as_ref()?;
                let name = format!("tap{place}-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
                let far = format!("af_packet:{name}");
                Some((format!("tap:{name}"), Some((far, false))))
            }
            // The DPDK device needs no hardware, and gets a new name each time.
            "dpdk" => {
                static NUMBER: AtomicU32 = AtomicU32::new(0);
                let number = NUMBER.fetch_add(1, Ordering::Relaxed);
                let socket = format!("{unique}-{number}");
                let options = format!("role=server,id=0,socket={socket},socket-abstract=no");
                let far = format!("memif:{socket},role=client");
                Some((
                    format!("dpdk:net_memif{number},{options}"),
                    Some((far, false)),
                ))
            }
            _ => None,
        }
    }

    /// Returns the port spec of the capture file that is read (`place` 0) or written (`place` 1).
    fn capture(&self, place: usize) -> String {
        let name = ["in.pcap", "out.pcap"][place];
        let role = ["read", "write"][place];
        format!("pcap:{},role={role}", self.file(name).display())
    }

    /// Replays the capture through a port of kind `from` and a port of kind `to`, and checks the frames that arrive.
    /// The peers of the ports read and write the files, unless the ports do so themselves (`pcap`). Returns false if
    /// this machine lacks one of the ports.
    fn through(&self, from: &str, to: &str, frames: &[Vec<u8>]) -> bool {
        let (Some(source), Some(sink)) = (self.ends(from, 0), self.ends(to, 1)) else {
            return false;
        };
        let far = |end: &(String, bool), open: &dyn Fn(&str) -> HandDriven| {
            let testbed = self.testbed.as_ref().filter(|_| end.1);
            let _inside = testbed.map(|testbed| testbed.enter_generator().unwrap());
            open(&end.0)
        };
        let inside = self
            .testbed
            .as_ref()
            .map(|testbed| testbed.enter_device().unwrap());
        let mut middle = HandDriven::open(&source.0, &sink.0);
        let feeder = source
            .1
            .map(|end| far(&end, &|spec| HandDriven::open(&self.capture(0), spec)));
        let collector = sink
            .1
            .map(|end| far(&end, &|spec| HandDriven::open(spec, &self.capture(1))));
        drop(inside);
        let mut outer: Vec<HandDriven> = feeder.into_iter().chain(collector).collect();
        let start = Instant::now();
        let ready = |stages: &mut Vec<HandDriven>| stages.iter_mut().all(HandDriven::is_ready);
        while !(middle.is_ready() && ready(&mut outer)) {
            assert!(start.elapsed() < PATIENCE, "{from} to {to}: no link");
        }
        let written = |middle: &mut HandDriven, outer: &mut Vec<HandDriven>| {
            let last = if sink_is_file(to) {
                middle
            } else {
                outer.last_mut().unwrap()
            };
            last.to.counters().tx_packets
        };
        let start = Instant::now();
        while written(&mut middle, &mut outer) < frames.len() as u64 {
            outer.iter_mut().for_each(HandDriven::step);
            middle.step();
            assert!(
                start.elapsed() < PATIENCE,
                "{from} to {to}: {} of {} frames; received {:?}, sent {:?}",
                written(&mut middle, &mut outer),
                frames.len(),
                middle.from.counters(),
                middle.to.counters()
            );
        }
        // Files are complete once their ports are closed.
        drop((middle, outer));
        let (found, whole) = read_capture(&self.file("out.pcap"));
        assert_eq!(found.len(), frames.len(), "{from} to {to}");
        for (i, (found, want)) in found.iter().zip(frames).enumerate() {
            assert!(found == want, "{from} to {to}: frame {i}");
        }
        assert!(whole);
        true
    }
}

fn sink_is_file(kind: &str) -> bool {
    kind == "pcap"
}

#[test]
fn a_capture_passes_every_pair_of_ports_unchanged() {
    let testbed = if taut_host::permissions::is_root() {
        Some(Testbed::builder().build().unwrap())
    } else {
        println!("skipped: needs root (network namespaces) for ports on interfaces");
        None
    };
    let replay = Replay {
        folder: scratch(),
        testbed,
    };
    let frames = frames(1500);
    write_capture(&replay.file("in.pcap"), &frames);
    let usable = |kind: &str| {
        let name = kind.split(',').next().unwrap_or_default();
        let backend = backends()
            .iter()
            .find(|backend| backend.name == name)
            .unwrap();
        (backend.probe)().is_ok()
    };
    let mut done = 0;
    for pair in copies(backends()) {
        // The null port stores nothing.
        if pair.from == "null" || pair.to == "null" || !usable(&pair.from) || !usable(&pair.to) {
            continue;
        }
        done += usize::from(replay.through(&pair.from, &pair.to, &frames));
    }
    // Every machine supports at least memif in both roles, pair and pcap: 16 pairs.
    assert!(done >= 16, "{done}");
    println!("{done} pairs of ports");
}

/// Builds the command `taut forward` with the given ports in `folder`.
fn forward(folder: &Path, ports: &[&str]) -> Command {
    let mut command = taut(&["forward", "--quiet", "--json"]);
    command.current_dir(folder);
    for port in ports {
        command.args(["--port", port]);
    }
    command
}

fn one_capture(n: usize) -> (TempDir, Vec<Vec<u8>>) {
    let (folder, frames) = (scratch(), frames(n));
    write_capture(&folder.path().join("in.pcap"), &frames);
    (folder, frames)
}

fn no_panic(finished: &Finished) {
    assert!(!finished.stderr.contains("panicked"), "{finished:?}");
}

#[test]
fn replay_ends_after_the_last_packet_and_tshark_reads_it() {
    let (folder, frames) = one_capture(5000);
    for (out, flush) in [
        ("out.pcap", "idle(32)"),
        ("out.pcapng", "full(64, 1ms)"),
        ("b.pcap", "each"),
    ] {
        let write = format!("pcap:{out},role=write");
        let mut command = forward(folder.path(), &["pcap:in.pcap", &write]);
        let finished = run(command.args(["--flush", flush])).success();
        no_panic(&finished);
        let counters = &finished.last_json()["counters"];
        assert_eq!(counters["rx_packets"], 5000);
        assert_eq!(counters["tx_packets"], 5000);
        assert!(
            finished.stderr.contains("after 5000 packets"),
            "{finished:?}"
        );
        if out.ends_with("ng") {
            continue;
        }
        let (found, whole) = read_capture(&folder.path().join(out));
        assert!(whole && found == frames, "{out}");
    }
    if !is_installed("tshark") || !is_installed("capinfos") {
        println!("skipped: needs tshark");
        return;
    }
    // The output has name, type and number of packets, then every frame's length and bytes.
    let program = |name: &str, arguments: &[&str]| {
        let mut command = Command::new(name);
        run(command.args(arguments).current_dir(folder.path()))
            .success()
            .stdout
    };
    for (out, kind) in [("out.pcap", "nanosecond pcap"), ("out.pcapng", "pcapng")] {
        let about = program("capinfos", &["-t", "-c", "-E", out]);
        assert!(
            about.contains(kind) && about.contains("Ethernet"),
            "{about}"
        );
        assert!(about.contains("5000"), "{about}");
        // The packets keep the times of the file that was replayed, in order.
        let strict = program("capinfos", &["-o", "-S", "-a", "-T", "-r", "-M", out]);
        assert!(strict.contains("True"), "{strict}");
        let first: f64 = strict
            .split('\t')
            .nth(1)
            .and_then(|n| n.trim().parse().ok())
            .unwrap();
        assert_eq!(first, 1_700_000_000.0);
        // The dump has a line for every 16 bytes of each frame.
        let dump = program(
            "tshark",
            &[
                "-r",
                out,
                "-T",
                "fields",
                "-e",
                "frame.len",
                "-e",
                "data.data",
            ],
        );
        let mut lines = dump.lines();
        for frame in &frames {
            let payload: String = frame[14..]
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            let (len, data) = lines.next().unwrap().split_once('\t').unwrap();
            assert_eq!(len, frame.len().to_string());
            assert!(data.replace(':', "") == payload);
        }
    }
}

#[test]
fn formats_that_other_programs_write_are_read() {
    if !is_installed("editcap") {
        println!("skipped: needs editcap (package tshark)");
        return;
    }
    let (folder, frames) = one_capture(300);
    for format in ["pcap", "nsecpcap", "pcapng"] {
        let other = format!("other.{format}");
        run(Command::new("editcap")
            .args(["-F", format, "in.pcap", &other])
            .current_dir(folder.path()))
        .success();
        let ports = [&format!("pcap:{other}"), "pcap:out.pcap,role=write"];
        run(&mut forward(folder.path(), &ports)).success();
        let (found, _) = read_capture(&folder.path().join("out.pcap"));
        assert!(found == frames, "{format}");
    }
}

#[test]
fn a_single_pcap_port_reads_and_writes_different_files() {
    let (folder, frames) = one_capture(200);
    let mut command = forward(folder.path(), &["pcap:in.pcap,repeat=2,out=out.pcap"]);
    run(command.args(["--function", "mac-swap"])).success();
    let (found, _) = read_capture(&folder.path().join("out.pcap"));
    assert_eq!(found.len(), 400);
    for (found, sent) in found.iter().zip(frames.iter().cycle()) {
        assert_eq!((&found[..6], &found[6..12]), (&sent[6..12], &sent[..6]));
        assert_eq!(found[12..], sent[12..]);
    }
}

#[test]
fn replay_waits_for_the_peers_link_and_loses_no_packet() {
    let (folder, frames) = one_capture(2000);
    // The ring is far smaller than the file, and the receiver, which can buffer all of it, starts later.
    let ports = ["pcap:in.pcap", "memif:a.sock,role=client,ring=32"];
    let mut sender = Program::start(&mut forward(folder.path(), &ports));
    sender.wait_for_stderr("down: ");
    let ports = ["memif:a.sock,ring=32", "pcap:out.pcap,role=write"];
    let mut receiver = Program::start(&mut forward(folder.path(), &ports));
    let counters = sender.finish().success().last_json()["counters"].clone();
    assert_eq!(counters["tx_packets"], 2000, "{counters}");
    assert_eq!(counters["dropped_tx_full"], 0, "{counters}");
    receiver.wait_for_stderr("a.sock,ring=32: down: ");
    // The receiver continues when the peer of its link ends.
    assert!(receiver.is_running());
    receiver.interrupt().success();
    let (found, whole) = read_capture(&folder.path().join("out.pcap"));
    assert!(whole && found == frames);
}

#[test]
fn captures_are_complete_after_an_interrupt_and_readable_after_sigkill() {
    for kill in [false, true] {
        let (folder, frames) = one_capture(100);
        let ports = ["pcap:in.pcap,repeat=0", "pcap:out.pcap,role=write"];
        let mut command = forward(folder.path(), &ports);
        // The time limit bounds the file, which grows fast, if this test is stopped.
        let mut program = Program::start(command.args(["--seconds", "20"]));
        let out = folder.path().join("out.pcap");
        let size = || fs::metadata(&out).map_or(0, |m| m.len());
        program.wait_until("a megabyte", |_, _| size() > 1 << 20);
        let finished = if kill {
            program.kill()
        } else {
            program.interrupt()
        };
        let (found, whole) = read_capture(&out);
        for (found, sent) in found.iter().zip(frames.iter().cycle()) {
            assert!(found == sent);
        }
        assert!(found.len() > 1000);
        if !kill {
            let counters = &finished.success().last_json()["counters"];
            assert!(whole);
            assert_eq!(counters["tx_packets"], found.len());
        }
    }
}

#[test]
fn truncated_and_damaged_files_are_reported_with_name_and_offset() {
    let (folder, frames) = one_capture(10);
    let whole = fs::read(folder.path().join("in.pcap")).unwrap();
    let last = whole.len() - 16 - frames[9].len();
    let mut damaged = whole.clone();
    damaged[last + 8] = 0x7f;
    fs::write(folder.path().join("cut.pcap"), &whole[..whole.len() - 5]).unwrap();
    fs::write(folder.path().join("damaged.pcap"), damaged).unwrap();
    for (name, code, said) in [
        (
            "cut.pcap",
            0,
            format!("cut off in the record at byte {last}"),
        ),
        (
            "damaged.pcap",
            2,
            format!("damaged.pcap is damaged: at byte {last} "),
        ),
    ] {
        let ports = [&format!("pcap:{name}"), "pcap:out.pcap,role=write"];
        let finished = run(&mut forward(folder.path(), &ports));
        no_panic(&finished);
        assert_eq!(finished.code(), Some(code), "{finished:?}");
        assert!(finished.stderr.contains(&said), "{finished:?}");
        let (found, _) = read_capture(&folder.path().join("out.pcap"));
        assert!(found == frames[..9], "{name}");
    }
}

#[test]
fn a_full_disk_ends_forwarding_after_a_complete_frame() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let (folder, frames) = one_capture(1000);
    // The script mounts a small disk that only this command sees, and lists its files at the end.
    let script = "mkdir small && mount -t tmpfs -o size=512k taut-test small || exit 77
        \"$@\"
        code=$?
        cp small/out.pcap out.pcap
        exit $code";
    let command = forward(
        folder.path(),
        &["pcap:in.pcap", "pcap:small/out.pcap,role=write"],
    );
    let mut small = Command::new("unshare");
    small.args(["--mount", "sh", "-c", script, "sh"]);
    small.arg(command.get_program()).args(command.get_args());
    let finished = run(small.current_dir(folder.path()));
    if finished.code() == Some(77) || finished.stderr.contains("unshare:") {
        println!("skipped: needs permission to mount: {}", finished.stderr);
        return;
    }
    no_panic(&finished);
    assert_eq!(finished.code(), Some(3), "{finished:?}");
    assert!(
        finished.stderr.contains("No space left on device"),
        "{finished:?}"
    );
    let (found, whole) = read_capture(&folder.path().join("out.pcap"));
    assert!(whole && !found.is_empty() && found == frames[..found.len()]);
    let counters = &finished.last_json()["counters"];
    assert_eq!(counters["tx_packets"], found.len(), "{finished:?}");
    let said = format!("{} frames are in the file", found.len());
    assert!(finished.stderr.contains(&said), "{finished:?}");
}

#[test]
fn a_tap_interface_is_removed_even_if_forwarding_is_killed() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let tap = backends()
        .iter()
        .find(|backend| backend.name == "tap")
        .unwrap();
    if let Err(error) = (tap.probe)() {
        println!("skipped: needs {error}");
        return;
    }
    let testbed = Testbed::builder().build().unwrap();
    let shown = || {
        let mut command = testbed.command_in_device("ip");
        run(command.args(["-o", "link", "show", "type", "tun"])).stdout
    };
    for kill in [false, true] {
        let mut command = testbed.command_in_device(env!("CARGO_BIN_EXE_taut"));
        command.args([
            "forward",
            "--quiet",
            "--port",
            "tap:taut-test0",
            "--port",
            "null:",
        ]);
        let mut program = Program::start(&mut command);
        program.wait_for_stderr("tap:taut-test0: up");
        assert!(shown().contains("taut-test0"));
        if kill {
            program.kill();
        } else {
            program.interrupt().success();
        }
        assert_eq!(shown(), "");
    }
}
