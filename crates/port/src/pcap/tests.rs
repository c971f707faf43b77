//! Tests of the backend on real files.
#![allow(clippy::unwrap_used)]

use super::record::Format;
use crate::interface_tests::{Opened, frame_bytes, open};
use crate::{Batch, Breakdown, Link, PortError, Supply};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The timeout after which a test fails because an expected frame or state has not arrived.
const PATIENCE: Duration = Duration::from_secs(10);

struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn spec(&self, name: &str, options: &str) -> String {
        format!("pcap:{}{options}", self.path(name).display())
    }

    /// Writes a capture with a frame for each of the given sequence numbers, `gap_ns` apart.
    fn capture(&self, name: &str, numbers: std::ops::Range<u64>, gap_ns: u64) -> Vec<u8> {
        let format = if name.ends_with("ng") {
            Format::Pcapng
        } else {
            Format::Pcap
        };
        let mut bytes = format.start();
        for number in numbers {
            let frame = frame_bytes(number, length(number));
            format.append(&mut bytes, &frame, 1_000_000_000 + number * gap_ns);
        }
        fs::write(self.path(name), &bytes).unwrap();
        bytes
    }
}

fn length(number: u64) -> usize {
    60 + (number * 97 % 1455) as usize
}

fn refused(text: &str) -> PortError {
    open(text).err().unwrap()
}

/// Receives to the end of the file, and checks that frames with the given sequence numbers arrive in order.
fn expect_all(port: &mut Opened, numbers: impl Iterator<Item = u64>) {
    let (mut batch, start) = (Batch::new(), Instant::now());
    for number in numbers {
        while batch.is_empty() {
            port.port.rx(&mut batch);
            assert!(start.elapsed() < PATIENCE, "frame {number} never came");
        }
        batch.take_front(1, |packet| {
            assert!(
                packet.bytes() == frame_bytes(number, length(number)),
                "frame {number}"
            );
        });
    }
    while port.port.supply() == Supply::Open {
        assert_eq!(port.port.rx(&mut batch), 0);
        assert!(start.elapsed() < PATIENCE, "never ends");
    }
    assert_eq!(port.port.rx(&mut batch), 0);
}

fn down(port: &mut Opened) -> String {
    match port.port.link() {
        Link::Up => panic!("up"),
        Link::Down(why) => why,
    }
}

fn frames_in(path: &Path) -> Vec<Vec<u8>> {
    let mut port = open(&format!("pcap:{}", path.display())).unwrap();
    let (mut batch, mut frames) = (Batch::new(), Vec::new());
    loop {
        if port.port.rx(&mut batch) == 0 && port.port.supply() != Supply::Open {
            return frames;
        }
        batch.take_front(batch.len(), |packet| frames.push(packet.bytes().to_vec()));
    }
}

#[test]
fn a_large_file_arrives_complete_without_copy_and_in_order() {
    let files = Files::new();
    for name in ["in.pcap", "in.pcapng"] {
        let bytes = files.capture(name, 0..8000, 0);
        assert!(bytes.len() > 5 << 20);
        let mut port = open(&files.spec(name, "")).unwrap();
        assert!(port.port.link().is_up());
        expect_all(&mut port, 0..8000);
        assert_eq!(port.resources.pool().outstanding(), 0);
        let why = down(&mut port);
        assert!(why.contains("after 8000 packets"), "{why}");
        assert_eq!(port.port.supply(), Supply::Ended);
    }
}

#[test]
fn blocks_with_packets_in_use_are_not_overwritten() {
    let files = Files::new();
    files.capture("in.pcap", 0..8000, 0);
    let mut port = open(&files.spec("in.pcap", "")).unwrap();
    let mut held = Vec::new();
    let start = Instant::now();
    // The received packets use all blocks, although the file has more frames.
    while held.len() < 5000 {
        let mut batch = Batch::new();
        port.port.rx(&mut batch);
        held.push(batch);
        assert!(start.elapsed() < PATIENCE);
        if held.iter().map(Batch::len).sum::<usize>() > 4000 && held.len().is_multiple_of(64) {
            std::thread::yield_now();
        }
    }
    let mut number = 0;
    for packet in held.iter().flat_map(Batch::packets) {
        assert!(packet.bytes() == frame_bytes(number, length(number)));
        number += 1;
    }
    assert!((4000..8000).contains(&number), "{number}");
    // The packets are dropped in another order than they were received.
    while let Some(batch) = held.pop() {
        drop(batch);
    }
    expect_all(&mut port, number..8000);
}

#[test]
fn packets_outlive_their_port_and_never_change_the_file() {
    let files = Files::new();
    let bytes = files.capture("in.pcapng", 0..2, 0);
    let mut port = open(&files.spec("in.pcapng", "")).unwrap();
    let mut batch = Batch::new();
    port.receive(&mut batch, 2);
    let headroom = batch.packets()[1].headroom() as u16;
    assert!(batch.packets_mut()[1].prepend(headroom));
    batch.packets_mut()[1].bytes_mut().fill(0xee);
    drop(port);
    assert!(batch.packets()[0].bytes() == frame_bytes(0, length(0)));
    assert_eq!(fs::read(files.path("in.pcapng")).unwrap(), bytes);
}

#[test]
fn a_capture_is_replayed_the_configured_number_of_times() {
    let files = Files::new();
    files.capture("in.pcap", 0..700, 0);
    let mut port = open(&files.spec("in.pcap", ",repeat=3")).unwrap();
    expect_all(&mut port, (0..3).flat_map(|_| 0..700));
    let mut endless = open(&files.spec("in.pcap", ",repeat=0")).unwrap();
    let mut batch = Batch::new();
    for number in (0..20).flat_map(|_| 0..700) {
        if batch.is_empty() {
            endless.receive(&mut batch, 1);
        }
        batch.take_front(1, |packet| {
            assert!(packet.bytes() == frame_bytes(number, length(number)));
        });
    }
    // A file without frames does not repeat forever.
    files.capture("empty.pcap", 0..0, 0);
    let mut port = open(&files.spec("empty.pcap", ",repeat=0")).unwrap();
    expect_all(&mut port, 0..0);
}

#[test]
fn original_timing_delivers_no_frame_before_its_capture_time() {
    let files = Files::new();
    let gap = Duration::from_millis(20);
    files.capture("in.pcapng", 0..6, gap.as_nanos() as u64);
    let spec = files.spec("in.pcapng", ",timing=original,repeat=2");
    let mut port = open(&spec).unwrap();
    let (mut batch, mut start) = (Batch::new(), None);
    // The second round begins at the send time of the first round's last frame.
    for steps in (0..6).chain(5..11) {
        if batch.is_empty() {
            start.get_or_insert_with(Instant::now);
            port.receive(&mut batch, 1);
        }
        // The clocks agree to within a part in a thousand.
        let earliest = gap.mul_f64(f64::from(steps) * 0.999);
        let elapsed = start.unwrap().elapsed();
        assert!(elapsed >= earliest, "step {steps} after {elapsed:?}");
        batch.take_front(1, drop);
    }
}

#[test]
fn truncated_and_oversized_frames_are_counted_and_later_frames_received() {
    let files = Files::new();
    let mut bytes = files.capture("in.pcap", 0..3, 0);
    // The second record states a longer frame than was captured.
    let second = 24 + 16 + length(0);
    bytes[second + 13] += 1;
    Format::Pcap.append(&mut bytes, &[7; 20_000], 0);
    fs::write(files.path("in.pcap"), &bytes).unwrap();
    let mut port = open(&files.spec("in.pcap", "")).unwrap();
    expect_all(&mut port, [0, 2].into_iter());
    let counters = port.port.counters();
    assert_eq!(
        (
            counters.rx_packets,
            counters.rx_malformed,
            counters.rx_too_long
        ),
        (2, 1, 1)
    );
}

#[test]
fn ip_packets_get_an_ethernet_header_and_their_capture_timestamp() {
    let files = Files::new();
    // IP of either version, and an unknown protocol.
    let packets = [&[0x45, 7, 7][..], &[0x60, 8], &[0x10, 9]];
    for (name, link_type_at) in [("in.pcap", 20), ("in.pcapng", 28 + 8)] {
        let format = if name.ends_with("ng") {
            Format::Pcapng
        } else {
            Format::Pcap
        };
        let mut bytes = format.start();
        bytes[link_type_at..link_type_at + 2].copy_from_slice(&101_u16.to_le_bytes());
        for (packet, time_ns) in packets.into_iter().zip([1_700_000_000_000_000_000, 5, 6]) {
            format.append(&mut bytes, packet, time_ns);
        }
        fs::write(files.path(name), &bytes).unwrap();
        let mut port = open(&files.spec(name, "")).unwrap();
        let mut batch = Batch::new();
        while batch.len() < 2 {
            port.port.rx(&mut batch);
        }
        let frames: Vec<_> = batch
            .packets()
            .iter()
            .map(|it| it.bytes().to_vec())
            .collect();
        let header = |kind: [u8; 2]| [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1][..], &kind].concat();
        assert_eq!(frames[0], [&header([8, 0]), packets[0]].concat());
        assert_eq!(frames[1], [&header([0x86, 0xdd]), packets[1]].concat());
        assert_eq!(port.port.arrival_stamps(), [1_700_000_000_000_000_000, 5]);
        assert_eq!(
            port.port.stamp_clock(),
            Some(taut_sys::StampClock::Recorded)
        );
        assert_eq!(port.port.counters().rx_malformed, 1);
    }
}

#[test]
fn every_complete_record_of_a_truncated_file_is_delivered() {
    let files = Files::new();
    for name in ["in.pcap", "in.pcapng"] {
        let bytes = files.capture(name, 0..3, 0);
        fs::write(files.path(name), &bytes[..bytes.len() - 1]).unwrap();
        let mut port = open(&files.spec(name, "")).unwrap();
        expect_all(&mut port, 0..2);
        assert_eq!(port.port.supply(), Supply::Ended);
        let why = down(&mut port);
        let record = bytes.len()
            - if name.ends_with("ng") {
                28 + 256 + 4
            } else {
                16 + 254
            };
        assert!(
            why.contains(&format!("cut off in the record at byte {record}")),
            "{why}"
        );
    }
}

#[test]
fn a_block_longer_than_the_file_is_reported_as_truncation() {
    let files = Files::new();
    for claimed in [400, 40_000_000_u32] {
        let mut bytes = files.capture("in.pcapng", 0..1, 0);
        let at = bytes.len();
        bytes.extend(99_u32.to_le_bytes());
        bytes.extend(claimed.to_le_bytes());
        bytes.extend([0; 100]);
        fs::write(files.path("in.pcapng"), &bytes).unwrap();
        let mut port = open(&files.spec("in.pcapng", "")).unwrap();
        expect_all(&mut port, 0..1);
        let why = down(&mut port);
        assert!(why.contains(&format!("at byte {at},")), "{why}");
    }
}

#[test]
fn frames_before_damage_are_received_and_the_offset_is_reported() {
    let files = Files::new();
    let mut bytes = files.capture("in.pcap", 0..3, 0);
    let third = bytes.len() - 16 - length(2);
    bytes[third + 10] = 0xff;
    fs::write(files.path("in.pcap"), &bytes).unwrap();
    let mut port = open(&files.spec("in.pcap", "")).unwrap();
    expect_all(&mut port, 0..2);
    let Supply::Broken(Breakdown { why, is_machines }) = port.port.supply() else {
        panic!("{:?}", port.port.supply())
    };
    assert!(!is_machines);
    assert!(
        why.contains("in.pcap is damaged") && why.contains(&format!("at byte {third} ")),
        "{why}"
    );
    assert!(down(&mut port).contains(&why));
}

#[test]
fn files_other_than_captures_are_refused_at_open() {
    let files = Files::new();
    let mut other = Format::Pcap.start();
    other[20] = 105;
    for (content, want) in [
        (&b""[..], "empty"),
        (b"\xd4\xc3\xb2", "empty, or ends before"),
        (b"GIF89a, says the file", "is neither pcap nor pcapng"),
        (b"\x1f\x8b\x08\x00\x00\x00", "gunzip"),
        (&other, "link type 105"),
    ] {
        fs::write(files.path("file"), content).unwrap();
        let error = refused(&files.spec("file", ""));
        assert!(!error.is_missing(), "{error}");
        let text = error.to_string();
        assert!(text.contains(want) && text.contains("file"), "{text}");
    }
}

#[test]
fn invalid_specs_are_refused_with_the_valid_values() {
    let files = Files::new();
    files.capture("in.pcap", 0..1, 0);
    for (name, options, want) in [
        ("nowhere.pcap", "", "No such file"),
        ("nowhere/out.pcap", ",role=write", "No such file"),
        ("", "", "not a file"),
        ("in.pcap", ",role=copy", "expected read or write"),
        ("in.pcap", ",timing=slow", "expected fast or original"),
        ("in.pcap", ",format=pcap", "formats read are recognised"),
        ("in.pcap", ",repeat=x", "expected a number"),
        (
            "out.pcap",
            ",role=write,format=cap",
            "expected pcap or pcapng",
        ),
        ("out.pcap", ",role=write,repeat=2", "files that are read"),
        ("out.pcap", ",role=write,out=x", "one or the other"),
    ] {
        let text = refused(&files.spec(name, options)).to_string();
        assert!(text.contains(want), "{text}");
    }
}

#[test]
fn a_file_in_use_is_not_overwritten() {
    let files = Files::new();
    let bytes = files.capture("a.pcap", 0..3, 0);
    let (reading, writing) = (
        files.spec("a.pcap", ""),
        files.spec("a.pcap", ",role=write"),
    );
    let onto_itself = format!(",out={}", files.path("a.pcap").display());
    let reader = open(&reading).unwrap();
    let second = open(&reading).unwrap();
    for text in [&writing, &files.spec("a.pcap", &onto_itself)] {
        let error = refused(text).to_string();
        assert!(error.contains("choose another name"), "{error}");
    }
    assert_eq!(fs::read(files.path("a.pcap")).unwrap(), bytes);
    drop((reader, second));
    let writer = open(&writing).unwrap();
    for text in [&reading, &writing] {
        let error = refused(text).to_string();
        assert!(error.contains("choose another name"), "{error}");
    }
    drop(writer);
    assert!(frames_in(&files.path("a.pcap")).is_empty());
}

#[test]
fn sent_frames_are_in_the_file_after_close() {
    let files = Files::new();
    for name in ["out.pcap", "out.pcapng", "out"] {
        let mut port = open(&files.spec(name, ",role=write")).unwrap();
        assert_eq!(port.port.supply(), Supply::None);
        for number in 0..3000 {
            port.send(&frame_bytes(number, length(number)));
        }
        port.port.close();
        let counters = port.port.counters();
        assert_eq!((counters.tx_packets, counters.tx_failed), (3000, 0));
        let path = files.path(name);
        let magic = fs::read(&path).unwrap()[0];
        assert_eq!(magic == 0x0a, name.ends_with("ng"));
        let frames = frames_in_while_open(&path);
        assert_eq!(frames.len(), 3000);
        drop(port);
        for (frame, number) in frames_in(&path).iter().zip(0..) {
            assert!(*frame == frame_bytes(number, length(number)));
        }
    }
}

#[test]
fn written_frames_keep_their_arrival_times() {
    let files = Files::new();
    let first_ns = 1_700_000_000_000_000_000;
    let mut batch = Batch::new();
    let mut port = open(&files.spec("out.pcap", ",role=write")).unwrap();
    port.resources.pool().fill(&mut batch, 3, 60);
    batch.set_arrivals(&[first_ns, 0, first_ns + 5], 1);
    port.port.tx(&mut batch);
    drop(port);
    let mut port = open(&files.spec("out.pcap", "")).unwrap();
    while batch.len() < 3 {
        port.port.rx(&mut batch);
    }
    let times = [first_ns, first_ns, first_ns + 5];
    assert_eq!(port.port.arrival_stamps(), times);
}

/// Reads frames as [`frames_in`] does, from a file that a port still has open for writing.
fn frames_in_while_open(path: &Path) -> Vec<Vec<u8>> {
    let copy = path.with_extension("copy");
    fs::copy(path, &copy).unwrap();
    frames_in(&copy)
}

#[test]
fn checking_the_link_writes_pending_frames_to_the_file() {
    let files = Files::new();
    let mut port = open(&files.spec("out.pcap", ",role=write")).unwrap();
    port.send(&frame_bytes(0, length(0)));
    let start = Instant::now();
    while frames_in_while_open(&files.path("out.pcap")).is_empty() {
        assert!(port.port.link().is_up());
        assert!(start.elapsed() < PATIENCE, "never written");
    }
    port.send(&frame_bytes(1, length(1)));
    drop(port);
    assert_eq!(frames_in(&files.path("out.pcap")).len(), 2);
}

#[test]
fn a_pcap_port_can_read_and_write_different_files() {
    let files = Files::new();
    files.capture("in.pcap", 0..100, 0);
    let out = format!(",out={}", files.path("out.pcapng").display());
    let mut port = open(&files.spec("in.pcap", &out)).unwrap();
    let mut batch = Batch::new();
    while port.port.supply() == Supply::Open {
        port.port.rx(&mut batch);
        port.port.tx(&mut batch);
    }
    assert!(port.port.takes() && port.port.link().is_up());
    drop(port);
    assert_eq!(
        frames_in(&files.path("in.pcap")),
        frames_in(&files.path("out.pcapng"))
    );
}

#[test]
fn frames_sent_to_an_input_file_are_counted_as_failed() {
    let files = Files::new();
    let before = files.capture("in.pcap", 0..1, 0);
    let mut port = open(&files.spec("in.pcap", "")).unwrap();
    assert!(!port.port.takes() && port.port.waits());
    port.send(&frame_bytes(1, 60));
    let counters = port.port.counters();
    assert_eq!((counters.tx_packets, counters.tx_failed), (0, 1));
    drop(port);
    assert_eq!(fs::read(files.path("in.pcap")).unwrap(), before);
}
