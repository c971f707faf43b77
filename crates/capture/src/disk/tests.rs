//! Tests of the ring on disk as a whole.
#![allow(clippy::unwrap_used)]

pub(super) mod faults {
    //! Simulated disk faults for the calling thread.
    use std::cell::Cell;
    use std::fs::File;
    use std::io;
    use std::os::unix::fs::FileExt;

    thread_local! {
        /// Number of bytes that can still be written before the disk is full.
        pub(in super::super) static ROOM: Cell<Option<usize>> = const { Cell::new(None) };
    }

    /// Writes to the file, or fails as on a full disk.
    pub(in super::super) fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<usize> {
        let Some(room) = ROOM.get() else {
            return file.write_at(bytes, at);
        };
        // Only complete sectors are written.
        let len = bytes.len().min(room / 4096 * 4096);
        ROOM.set(Some(room - len));
        if len == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        file.write_at(&bytes[..len], at)
    }
}

use super::folder::Folder;
use super::*;
use crate::pcapng::{Section, Statistics};
use crate::record::{DROPPED, Facts, Record};
use etherparse::PacketBuilder;
use proptest::prelude::*;
use std::fs::{self, File};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SMALLEST: u64 = 2 << 20;
pub(super) const ALWAYS: RangeInclusive<u64> = 0..=u64::MAX;
/// Time of the first packet of the tests, ns since 1970.
const START_NS: u64 = 1_700_000_000_000_000_000;

pub(super) fn place() -> (TempDir, PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let ring = parent.path().join("ring");
    (parent, ring)
}

/// Returns settings of a ring of two ports with the given number of the smallest segments.
pub(super) fn settings(folder: &Path, segments: u64) -> Settings {
    Settings {
        segment_bytes: SMALLEST,
        texts: Section {
            comment: "a test".into(),
            hardware: "a machine".into(),
            application: "taut".into(),
        },
        ..Settings::new(
            folder,
            Settings::least_bytes(SMALLEST) / 2 * segments,
            vec!["a".into(), "b".into()],
        )
    }
}

/// Returns a frame of a flow with the requested number of bytes, or the shortest possible frame if that is longer.
pub(super) fn frame(flow: u8, bytes: usize) -> Vec<u8> {
    let payload = vec![flow; bytes.saturating_sub(60)];
    let ethernet = PacketBuilder::ethernet2([2; 6], [4; 6]);
    let mut frame = Vec::new();
    let (one, other) = ([10, 0, 0, flow % 16], [10, 0, 1, flow % 5]);
    let written = match flow % 4 {
        0 => ethernet
            .ipv4(one, other, 64)
            .udp(1000 + u16::from(flow), 53)
            .write(&mut frame, &payload),
        1 => ethernet
            .ipv4(other, one, 64)
            .tcp(443, 2000 + u16::from(flow), 1, 1)
            .write(&mut frame, &payload),
        2 => ethernet
            .single_vlan(u16::from(flow).try_into().unwrap())
            .ipv6([flow % 3; 16], [7; 16], 64)
            .udp(53, u16::from(flow))
            .write(&mut frame, &payload),
        _ => ethernet
            .ipv4(one, other, 64)
            .icmpv4_echo_request(1, 2)
            .write(&mut frame, &payload),
    };
    written.unwrap();
    frame
}

/// Returns packets of random flows, microseconds apart, some out of order.
pub(super) fn traffic(seed: u64, packets: usize, longest: usize) -> Vec<(Facts, Vec<u8>)> {
    let mut random = fastrand::Rng::with_seed(seed);
    let one = |i: usize| {
        // Flows begin and end.
        let flow = (i / 700 * 3) as u8 ^ random.u8(..8);
        let whole = frame(flow, random.usize(60..=longest));
        let kept = random.usize(40..=whole.len());
        let facts = Facts {
            time_ns: START_NS + i as u64 * 1000 - random.u64(..3000).min(i as u64 * 1000),
            wire_bytes: whole.len() as u32,
            port: random.u8(..2),
            flags: if random.u8(..50) == 0 { DROPPED } else { 0 },
        };
        (facts, whole[..kept].to_vec())
    };
    (0..packets).map(one).collect()
}

pub(super) fn append(writer: &mut Writer, packets: &[(Facts, Vec<u8>)]) {
    for (facts, frame) in packets {
        let facts = *facts;
        writer.append(&Record { facts, frame }).unwrap();
    }
}

pub(super) type Packets = Vec<(Facts, Vec<u8>)>;

pub(super) fn ask(
    folder: &Path,
    times: RangeInclusive<u64>,
    wanted: Vec<Vec<Key>>,
) -> (Packets, Found) {
    let mut packets = Vec::new();
    let found = query(
        folder,
        Query {
            from_ns: *times.start(),
            to_ns: *times.end(),
            wanted,
            matches: &mut |record| {
                packets.push((record.facts, record.frame.to_vec()));
                true
            },
            stop: &AtomicBool::new(false),
        },
    );
    (packets, found.unwrap())
}

pub(super) fn everything(folder: &Path) -> (Packets, Found) {
    ask(folder, ALWAYS, Vec::new())
}

/// Returns the files of a ring on disk whose names have the given suffix, in order.
pub(super) fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path());
    let mut paths: Vec<_> = paths
        .filter(|path| path.to_str().unwrap().ends_with(ending))
        .collect();
    paths.sort();
    paths
}

pub(super) fn bytes_in(folder: &Path) -> u64 {
    let files = files(folder, "").into_iter();
    // An index may be renamed after the files were listed.
    files
        .filter_map(|path| Some(fs::metadata(path).ok()?.len()))
        .sum()
}

/// Copies the folder of the ring in the state in which a writer leaves it if it is killed at this moment.
pub(super) fn killed(folder: &Path) -> (TempDir, PathBuf) {
    let (parent, copy) = place();
    fs::DirBuilder::new().create(&copy).unwrap();
    for path in files(folder, "") {
        fs::copy(&path, copy.join(path.file_name().unwrap())).unwrap();
    }
    (parent, copy)
}

#[test]
fn a_disk_ring_returns_packets_as_they_were_written() {
    let (_parent, folder) = place();
    let packets = traffic(1, 12_000, 1500);
    let mut writer = Writer::open(settings(&folder, 20)).unwrap();
    append(&mut writer, &packets);
    // During writing, all blocks except the buffered one are in the file; after a flush, the buffered block is in the
    // file, too.
    let (found, counts) = everything(&folder);
    assert!(!found.is_empty() && packets.starts_with(&found));
    assert_eq!(counts.damaged, 0);
    writer.flush().unwrap();
    let (found, counts) = everything(&folder);
    assert!(found == packets);
    assert_eq!((counts.damaged, counts.packets), (0, 12_000));
    let counts = writer.finish().unwrap();
    let want = Written {
        packets: 12_000,
        ..Written::default()
    };
    assert_eq!(counts, want);
    let (found, counts) = everything(&folder);
    assert!(found == packets);
    assert!(
        counts.segments == 3 && counts.without_index == 0,
        "{counts:?}"
    );
    let held = holdings(&folder).unwrap();
    let sum: u64 = held.iter().map(|it| it.packets.unwrap().0).sum();
    assert_eq!((held.len(), sum), (3, 12_000));
    assert_eq!(held[0].packets.unwrap().1, START_NS);
    // A second writer continues after the existing segments.
    let mut writer = Writer::open(settings(&folder, 20)).unwrap();
    append(&mut writer, &packets[..10]);
    writer.finish().unwrap();
    let (found, _) = everything(&folder);
    assert!(found == [&packets, &packets[..10]].concat());
}

#[test]
fn frames_are_stored_completely_or_truncated_to_the_maximum_length() {
    let (_parent, folder) = place();
    let mut writer = Writer::open(settings(&folder, 40)).unwrap();
    let mut random = fastrand::Rng::with_seed(7);
    let mut want = Vec::new();
    for i in 0..300 {
        let len = match i % 3 {
            0 => random.usize(..70),
            1 => random.usize(..3000),
            _ => random.usize(260_000..264_000),
        };
        let record = Record {
            facts: Facts {
                time_ns: i,
                wire_bytes: len as u32,
                ..Facts::default()
            },
            frame: &vec![i as u8; len],
        };
        writer.append(&record).unwrap();
        if i % 11 == 0 {
            writer.flush().unwrap();
        }
        want.push(len.min(crate::pcapng::LONGEST_KEPT_BYTES));
    }
    writer.finish().unwrap();
    let (found, counts) = everything(&folder);
    let found: Vec<_> = found.iter().map(|(_, frame)| frame.len()).collect();
    assert_eq!((found, counts.damaged), (want, 0));
}

#[test]
fn disk_rings_store_the_newest_packets_within_their_size_limit() {
    let (_parent, folder) = place();
    let settings = settings(&folder, 4);
    let mut writer = Writer::open(settings.clone()).unwrap();
    let packets = traffic(2, 30_000, 1500);
    for part in packets.chunks(500) {
        append(&mut writer, part);
        assert!(bytes_in(&folder) <= settings.limit_bytes);
    }
    let counts = writer.finish().unwrap();
    assert!(bytes_in(&folder) <= settings.limit_bytes);
    assert!(counts.removed > 2 && counts.lost == 0, "{counts:?}");
    assert_eq!(counts.removed_early, 0);
    let (found, _) = everything(&folder);
    assert!(found.len() > 5000 && packets.ends_with(&found));
    assert_eq!(
        files(&folder, ".index").len(),
        files(&folder, ".pcapng").len()
    );
}

#[test]
fn a_killed_writer_loses_only_the_packets_in_memory() {
    let (_parent, folder) = place();
    let packets = traffic(3, 3000, 1500);
    let mut writer = Writer::open(settings(&folder, 20)).unwrap();
    append(&mut writer, &packets[..2900]);
    writer.flush().unwrap();
    append(&mut writer, &packets[2900..2950]);
    let (_copy, copy) = killed(&folder);
    let newest = files(&copy, ".pcapng").pop().unwrap();
    let before = fs::metadata(&newest).unwrap().len();
    let mut other = Writer::open(settings(&copy, 20)).unwrap();
    other.settle();
    assert_eq!(other.counts().without_index, 0);
    let (found, counts) = everything(&copy);
    assert!(found == packets[..2900]);
    assert_eq!((counts.without_index, counts.damaged), (0, 0));
    // The padding of the last sector was removed.
    assert!(fs::metadata(&newest).unwrap().len() < before);
    append(&mut other, &packets[2950..]);
    other.finish().unwrap();
    let (found, _) = everything(&copy);
    assert!(found == [&packets[..2900], &packets[2950..]].concat());
}

#[test]
fn recovery_of_a_truncated_file_preserves_every_complete_packet() {
    let (_parent, folder) = place();
    let packets = traffic(4, 20, 1500);
    let mut writer = Writer::open(settings(&folder, 20)).unwrap();
    append(&mut writer, &packets);
    writer.finish().unwrap();
    let newest = files(&folder, ".pcapng").pop().unwrap();
    let whole = fs::read(&newest).unwrap();
    let mut ends = vec![0];
    while let Some((_, size)) = crate::pcapng::read(&whole[*ends.last().unwrap()..]) {
        ends.push(ends.last().unwrap() + size);
    }
    assert_eq!(ends.last(), Some(&whole.len()));
    let (parent, _) = place();
    let path = parent.path().join("cut");
    for len in whole.len() - 3000..=whole.len() {
        fs::write(&path, &whole[..len]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let (left, _) = segment::recover(&file, false).unwrap();
        let want = ends.iter().rfind(|end| **end <= len).unwrap();
        assert_eq!((left, file.metadata().unwrap().len()), (*want as u64, left));
    }
    // A file with only a head is no segment.
    for len in [0, 5, ends[1], ends[3]] {
        let (_copy, copy) = killed(&folder);
        let newest = files(&copy, ".pcapng").pop().unwrap();
        fs::write(&newest, &whole[..len]).unwrap();
        let mut writer = Writer::open(settings(&copy, 20)).unwrap();
        writer.settle();
        assert!(!newest.exists());
    }
}

#[test]
fn a_rebuilt_index_equals_the_original() {
    let (_parent, folder) = place();
    let mut writer = Writer::open(settings(&folder, 20)).unwrap();
    append(&mut writer, &traffic(5, 12_000, 1500));
    writer.finish().unwrap();
    let indexes = files(&folder, ".index");
    let written: Vec<_> = indexes.iter().map(|path| fs::read(path).unwrap()).collect();
    assert!(written.len() > 2);
    fs::remove_file(&indexes[0]).unwrap();
    let mut damaged = written[1].clone();
    let len = damaged.len();
    damaged[len - 40] ^= 1;
    fs::write(&indexes[1], damaged).unwrap();
    fs::write(&indexes[2], "").unwrap();
    let mut writer = Writer::open(settings(&folder, 20)).unwrap();
    assert_eq!(writer.counts().without_index, 3);
    writer.settle();
    for (path, written) in indexes.iter().zip(&written) {
        assert!(fs::read(path).unwrap() == *written, "{}", path.display());
    }
}

#[test]
fn a_damaged_block_is_counted_and_other_blocks_stay_readable() {
    let (_parent, folder) = place();
    let packets = traffic(6, 4000, 1500);
    let mut writer = Writer::open(settings(&folder, 20)).unwrap();
    append(&mut writer, &packets);
    writer.finish().unwrap();
    let change = |path: &Path, at: usize| {
        let mut bytes = fs::read(path).unwrap();
        bytes[at] ^= 0x55;
        fs::write(path, bytes).unwrap();
    };
    let wanted = vec![vec![Key::Protocol(17)]];
    let want: Vec<_> = ask(&folder, ALWAYS, wanted.clone()).0;
    for path in files(&folder, ".index") {
        change(&path, 50);
    }
    let (found, counts) = ask(&folder, ALWAYS, wanted);
    assert!(counts.damaged > 0 && found == want);
    // The first block is damaged: its later bytes are lost, but nothing of the next block.
    let first = &files(&folder, ".pcapng")[0];
    let bytes = fs::read(first).unwrap();
    let mut at = 0;
    while at < 100_000 {
        at += crate::pcapng::read(&bytes[at..]).unwrap().1;
    }
    change(first, at + 5);
    let (found, counts) = everything(&folder);
    assert_eq!(counts.damaged, 1);
    let intact = found
        .iter()
        .zip(&packets)
        .take_while(|(found, it)| found == it);
    let intact = intact.count();
    assert!(intact > 100 && intact < found.len() && packets.ends_with(&found[intact..]));
}

#[test]
fn a_disk_ring_refuses_a_second_writer() {
    let (_parent, folder) = place();
    let writer = Writer::open(settings(&folder, 4)).unwrap();
    let said = Writer::open(settings(&folder, 4)).unwrap_err().to_string();
    assert!(
        said.contains("another process captures into this folder"),
        "{said}"
    );
    drop(writer);
    Writer::open(settings(&folder, 4)).unwrap();
}

#[test]
fn invalid_disk_ring_settings_are_refused_with_the_reason() {
    let (_parent, folder) = place();
    let said = |change: &dyn Fn(&mut Settings)| {
        let mut settings = settings(&folder, 4);
        change(&mut settings);
        Writer::open(settings).unwrap_err().to_string()
    };
    assert!(said(&|it| it.limit_bytes = 4 << 20).contains("too small"));
    assert!(said(&|it| it.segment_bytes = 1 << 20).contains("from 2 MiB"));
    assert!(said(&|it| it.segment_bytes += 1).contains("whole MiB"));
    assert!(said(&|it| it.ports.clear()).contains("0 ports"));
    assert!(said(&|it| it.folder.push("x/y")).contains("x/y"));
    assert!(!folder.exists());
}

#[test]
fn a_full_disk_is_reported_once_and_writing_resumes_later() {
    let (_parent, folder) = place();
    let packets = traffic(8, 6000, 1500);
    let mut writer = Writer::open(settings(&folder, 20)).unwrap();
    let start = Instant::now();
    writer.tick(start).unwrap();
    faults::ROOM.set(Some((1 << 20) + (300 << 10)));
    let mut told = Vec::new();
    for (i, (facts, frame)) in packets[..4000].iter().enumerate() {
        let facts = *facts;
        told.extend(writer.append(&Record { facts, frame }).err());
        if i % 1000 == 999 {
            let now = start + Duration::from_secs(i as u64 / 500 + 1);
            told.extend(writer.tick(now).err());
        }
    }
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].to_string().contains("packets are lost until"),
        "{}",
        told[0]
    );
    let counts = writer.counts();
    assert!(counts.lost >= 1000 && counts.packets > 1000, "{counts:?}");
    assert_eq!(counts.lost + counts.packets, 4000);
    // All packets found are complete.
    let (found, there) = everything(&folder);
    assert_eq!(there.damaged, 0);
    assert!(found.len() as u64 == counts.packets && packets.starts_with(&found));
    faults::ROOM.set(None);
    writer.tick(start + Duration::from_secs(100)).unwrap();
    assert!(!writer.is_failing());
    append(&mut writer, &packets[4000..]);
    let counts = writer.finish().unwrap();
    assert_eq!(counts.packets + counts.lost, 6000);
    assert!(counts.packets > 3000);
    let (found, _) = everything(&folder);
    assert!(found.len() as u64 == counts.packets && found.ends_with(&packets[4000..]));
}

#[test]
fn old_segments_are_deleted_early_when_the_disk_is_small() {
    let (_parent, folder) = place();
    let packets = traffic(9, 12_000, 1500);
    let mut writer = Writer::open(settings(&folder, 20)).unwrap();
    append(&mut writer, &packets[..6000]);
    // The simulated full disk does not notice that a removed file frees its bytes. The test therefore ends the fault as
    // soon as a file was removed.
    let before = files(&folder, ".pcapng").len();
    faults::ROOM.set(Some(0));
    let mut told = 0;
    for (facts, frame) in &packets[6000..] {
        let facts = *facts;
        if faults::ROOM.get() == Some(0) && files(&folder, ".pcapng").len() < before {
            faults::ROOM.set(None);
        }
        told += u32::from(writer.append(&Record { facts, frame }).is_err());
    }
    faults::ROOM.set(None);
    let counts = writer.counts();
    assert_eq!((told, counts.removed_early, counts.removed), (1, 1, 1));
}

#[test]
fn the_writer_recovers_after_its_file_or_folder_is_removed() {
    let (parent, folder) = place();
    let packets = traffic(10, 300, 1500);
    let mut writer = Writer::open(settings(&folder, 20)).unwrap();
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    writer.tick(at(0)).unwrap();
    append(&mut writer, &packets[..100]);
    fs::remove_file(&files(&folder, ".pcapng")[0]).unwrap();
    let said = writer.tick(at(1)).unwrap_err().to_string();
    assert!(said.contains("was removed"), "{said}");
    assert_eq!((writer.counts().packets, writer.counts().lost), (0, 100));
    writer.tick(at(2)).unwrap();
    append(&mut writer, &packets[100..200]);
    let elsewhere = parent.path().join("elsewhere");
    fs::rename(&folder, &elsewhere).unwrap();
    // A renamed folder stays open, so writing succeeds.
    writer.tick(at(3)).unwrap();
    fs::remove_dir_all(&elsewhere).unwrap();
    assert!(writer.tick(at(4)).is_ok(), "told already");
    assert!(writer.is_failing());
    writer.tick(at(5)).unwrap();
    append(&mut writer, &packets[200..250]);
    assert_eq!((writer.counts().packets, writer.counts().lost), (0, 250));
    drop(Folder::take(&folder, true).unwrap());
    writer.tick(at(6)).unwrap();
    append(&mut writer, &packets[250..]);
    let counts = writer.finish().unwrap();
    assert_eq!((counts.packets, counts.lost), (50, 250));
    assert!(everything(&folder).0 == packets[250..]);
}

#[test]
fn buffered_packets_are_written_after_one_second() {
    let (_parent, folder) = place();
    let packets = traffic(11, 20, 1500);
    let mut writer = Writer::open(settings(&folder, 20)).unwrap();
    let start = Instant::now();
    writer.tick(start).unwrap();
    append(&mut writer, &packets);
    writer.tick(start + Duration::from_millis(999)).unwrap();
    assert!(everything(&folder).0.is_empty());
    writer.tick(start + Duration::from_millis(1000)).unwrap();
    assert!(everything(&folder).0 == packets);
    // A packet of an undefined port would be no packet to other programs.
    let facts = Facts {
        port: 2,
        ..Facts::default()
    };
    writer.append(&Record { facts, frame: &[] }).unwrap();
    assert_eq!(writer.counts().lost, 1);
}

#[test]
fn queries_during_writing_find_a_prefix_of_the_written_packets() {
    let (_parent, folder) = place();
    let packets = traffic(14, 8_000, 1500);
    let mut writer = Writer::open(settings(&folder, 20)).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for part in packets.chunks(37) {
                append(&mut writer, part);
                writer.flush().unwrap();
            }
            drop(writer);
            is_over.store(true, Ordering::Release);
        });
        let mut before = 0;
        loop {
            let was_over = is_over.load(Ordering::Acquire);
            let (found, counts) = everything(&folder);
            assert_eq!(counts.damaged, 0);
            assert!(packets.starts_with(&found) && found.len() >= before);
            before = found.len();
            if was_over {
                assert_eq!(before, packets.len());
                break;
            }
        }
    });
}

#[test]
fn a_query_stops_when_its_stop_flag_is_set() {
    let (_parent, folder) = place();
    let mut writer = Writer::open(settings(&folder, 20)).unwrap();
    append(&mut writer, &traffic(12, 5000, 1500));
    writer.finish().unwrap();
    let stop = AtomicBool::new(false);
    let mut seen = 0;
    let mut matches = |_: &Record<'_>| {
        seen += 1;
        stop.store(seen == 10, Ordering::Relaxed);
        true
    };
    let found = query(
        &folder,
        Query {
            from_ns: 0,
            to_ns: u64::MAX,
            wanted: vec![vec![]],
            matches: &mut matches,
            stop: &stop,
        },
    )
    .unwrap();
    assert_eq!((found.matched, found.blocks_read), (10, 1));
}

/// Returns true if a frame has a key, according to etherparse, which shares no code with this crate.
fn has(frame: &[u8], key: Key) -> bool {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice, VlanSlice};
    let Ok(packet) = SlicedPacket::from_ethernet(frame) else {
        // Truncated frames are not compared.
        return false;
    };
    let (ends, protocol, ethertype) = match &packet.net {
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header();
            let ends = (
                IpAddr::from(header.source()),
                IpAddr::from(header.destination()),
            );
            (Some(ends), Some(header.protocol().0), 0x0800)
        }
        Some(NetSlice::Ipv6(ip)) => {
            let header = ip.header();
            let ends = (
                IpAddr::from(header.source()),
                IpAddr::from(header.destination()),
            );
            (Some(ends), Some(header.next_header().0), 0x86dd)
        }
        _ => (None, None, 0),
    };
    let ports = match &packet.transport {
        Some(TransportSlice::Udp(udp)) => Some((udp.source_port(), udp.destination_port())),
        Some(TransportSlice::Tcp(tcp)) => Some((tcp.source_port(), tcp.destination_port())),
        _ => None,
    };
    match key {
        Key::Address(address) => ends.is_some_and(|(one, other)| [one, other].contains(&address)),
        Key::Port { protocol: of, port } => {
            protocol == Some(of) && ports.is_some_and(|(one, other)| [one, other].contains(&port))
        }
        Key::Protocol(of) => protocol == Some(of),
        Key::EtherType(of) => of == ethertype,
        Key::Vlan(of) => matches!(
            packet.vlan(),
            Some(VlanSlice::SingleVlan(tag)) if tag.vlan_identifier().value() == of
        ),
        Key::Flow {
            one,
            other,
            protocol: of,
        } => {
            let ports = ports.unwrap_or_default();
            protocol == Some(of)
                && ends.is_some_and(|ends| {
                    let (a, b) = ((ends.0, ports.0), (ends.1, ports.1));
                    (a, b) == (one, other) || (b, a) == (one, other)
                })
        }
    }
}

fn any_key() -> impl Strategy<Value = Key> {
    let four = |net| (0..16_u8).prop_map(move |last| IpAddr::from([10, 0, net, last]));
    let six = (0..8_u8).prop_map(|byte| IpAddr::from([byte; 16]));
    let protocol = prop::sample::select(vec![1_u8, 6, 17, 58]);
    let port = prop_oneof![
        Just(53_u16),
        Just(443),
        0..256_u16,
        1000..1256_u16,
        2000..2256_u16
    ];
    prop_oneof![
        prop_oneof![four(0), four(1), six].prop_map(Key::Address),
        (protocol.clone(), port).prop_map(|(protocol, port)| Key::Port { protocol, port }),
        protocol.prop_map(Key::Protocol),
        prop::sample::select(vec![0x0800, 0x86dd, 0x0806]).prop_map(Key::EtherType),
        (0..256_u16).prop_map(Key::Vlan),
        (0..64_u8).prop_map(|i| {
            let flow = i * 4;
            Key::Flow {
                one: ([10, 0, 1, flow % 5].into(), 53),
                other: ([10, 0, 0, flow % 16].into(), 1000 + u16::from(flow)),
                protocol: 17,
            }
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    /// A query with an exact filter on an indexed ring finds the same packets as a search through all packets.
    #[test]
    fn indexed_queries_find_the_same_packets_as_an_exhaustive_search(
        seed: u64,
        packets in 1..9000_usize,
        is_finished: bool,
        questions in proptest::collection::vec(
            (
                proptest::collection::vec(proptest::collection::vec(any_key(), 0..3), 0..3),
                0..9000_u64,
                0..9000_u64,
            ),
            1..20,
        ),
    ) {
        let (_parent, folder) = place();
        let packets = traffic(seed, packets, 1500);
        let mut writer = Writer::open(settings(&folder, 20)).unwrap();
        append(&mut writer, &packets);
        writer.flush().unwrap();
        if is_finished {
            drop(writer);
        }
        for (wanted, from, len) in questions {
            let (from_ns, to_ns) = (START_NS + from * 1000, START_NS + (from + len) * 1000);
            let is_wanted = |frame: &[u8]| {
                wanted.is_empty() || wanted.iter().any(|list| list.iter().all(|key| has(frame, *key)))
            };
            let want: Vec<_> = packets
                .iter()
                .filter(|(facts, frame)| (from_ns..=to_ns).contains(&facts.time_ns) && is_wanted(frame))
                .cloned()
                .collect();
            let (mut found, counts) = ask(&folder, from_ns..=to_ns, wanted.clone());
            prop_assert_eq!((counts.damaged, counts.packets), (0, found.len() as u64));
            found.retain(|(_, frame)| is_wanted(frame));
            prop_assert!(found == want, "{:?}: {} of {}", wanted, found.len(), want.len());
        }
    }
}

#[test]
fn a_query_reads_only_the_blocks_that_can_match() {
    let (_parent, folder) = place();
    let mut writer = Writer::open(settings(&folder, 40)).unwrap();
    let mut packets = Vec::new();
    for i in 0..20_000_u64 {
        let flow = if i == 11_000 {
            200
        } else {
            (i % 3) as u8 * 4 + 1
        };
        let facts = Facts {
            time_ns: START_NS + i * 1000,
            wire_bytes: 1000,
            ..Facts::default()
        };
        packets.push((facts, frame(flow, 1000)));
    }
    append(&mut writer, &packets);
    writer.finish().unwrap();
    let wanted = vec![vec![Key::Port {
        protocol: 17,
        port: 1200,
    }]];
    let (found, counts) = ask(&folder, ALWAYS, wanted.clone());
    assert!(found.contains(&packets[11_000]));
    assert_eq!((counts.blocks_read, counts.damaged), (1, 0));
    assert!(counts.segments >= 9 && counts.bytes_read <= 1 << 20);
    let before = START_NS..=START_NS + 5_000_000;
    let (_, counts) = ask(&folder, before.clone(), wanted);
    assert_eq!(counts.blocks_read, 0);
    let (found, counts) = ask(&folder, before, Vec::new());
    assert_eq!(found.len(), 5001);
    assert!(
        counts.blocks_read <= 6 && counts.segments <= 3,
        "{counts:?}"
    );
}

/// Returns the lines that the program `program` prints about a file; none if the program is not installed.
fn lines_of(program: &str, arguments: &[&str], file: &Path) -> Option<String> {
    let output = Command::new(program).args(arguments).arg(file).output();
    let output = match output {
        Ok(output) => output,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            println!("skipped: needs tshark");
            return None;
        }
        Err(e) => panic!("{program}: {e}"),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {said}");
    // The program warns if it is run by root; this warning is ignored.
    let complaint = said.lines().find(|line| !line.contains("dangerous"));
    assert_eq!(complaint, None);
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn tshark_reads_each_capture_file_at_any_time_during_writing() {
    let (_parent, folder) = place();
    let packets = traffic(13, 2500, 1500);
    let mut writer = Writer::open(settings(&folder, 20)).unwrap();
    let counted = Statistics {
        received: 12,
        dropped_by_interface: 3,
        dropped_by_system: 4,
    };
    writer.set_statistics(1, counted);
    let check = |folder: &Path, packets: &[(Facts, Vec<u8>)]| -> Option<()> {
        let mut times = Vec::new();
        for path in files(folder, ".pcapng") {
            let fields = [
                "frame.time_epoch",
                "frame.cap_len",
                "frame.len",
                "frame.interface_name",
            ];
            let mut arguments = vec!["-n", "-T", "fields"];
            fields
                .iter()
                .for_each(|field| arguments.extend(["-e", field]));
            arguments.push("-r");
            times.extend(
                lines_of("tshark", &arguments, &path)?
                    .lines()
                    .map(str::to_owned),
            );
            let about = lines_of("capinfos", &["-M"], &path)?;
            for text in [
                "a test",
                "a machine",
                "Name = a",
                "Name = b",
                "time precision = nanoseconds",
            ] {
                assert!(
                    about.to_lowercase().contains(&text.to_lowercase()),
                    "{text}: {about}"
                );
            }
        }
        let want: Vec<_> = packets
            .iter()
            .map(|(facts, frame)| {
                let (seconds, ns) = (facts.time_ns / 1_000_000_000, facts.time_ns % 1_000_000_000);
                let name = ["a", "b"][usize::from(facts.port)];
                format!(
                    "{seconds}.{ns:09}\t{}\t{}\t{name}",
                    frame.len(),
                    facts.wire_bytes
                )
            })
            .collect();
        assert_eq!(times.len(), want.len());
        let wrong = times.iter().zip(&want).find(|(found, want)| found != want);
        assert_eq!(wrong, None);
        Some(())
    };
    append(&mut writer, &packets[..1]);
    writer.flush().unwrap();
    let Some(()) = check(&folder, &packets[..1]) else {
        return;
    };
    append(&mut writer, &packets[1..2000]);
    writer.flush().unwrap();
    check(&folder, &packets[..2000]);
    append(&mut writer, &packets[2000..]);
    let (_killed, killed) = killed(&folder);
    let flushed = everything(&killed).0.len();
    check(&killed, &packets[..flushed]);
    drop(Writer::open(settings(&killed, 20)).unwrap());
    check(&killed, &packets[..flushed]);
    writer.finish().unwrap();
    check(&folder, &packets);
    let newest = files(&folder, ".pcapng").pop().unwrap();
    let about = lines_of("capinfos", &["-M"], &newest).unwrap();
    assert!(about.contains("Number of stat entries = 1"), "{about}");
}
