//! Tests of a ring whose segments are compressed.
#![allow(clippy::unwrap_used)]

use super::tests::{
    ALWAYS, append, ask, bytes_in, everything, faults, files, killed, place, settings, traffic,
};
use super::*;
use std::fs::{self, File};
use std::process::Command;
use std::time::{Duration, Instant};

/// Size of a segment in bytes: a few blocks.
const SEGMENT: u64 = 4 << 20;

fn compressed(folder: &Path) -> Settings {
    Settings {
        zstd: true,
        segment_bytes: SEGMENT,
        ..settings(folder, 400)
    }
}

#[test]
fn a_compressed_ring_is_readable_by_queries_and_by_zstd() {
    let (_parent, folder) = place();
    let packets = traffic(31, 30_000, 1500);
    let mut writer = Writer::open(compressed(&folder)).unwrap();
    append(&mut writer, &packets[..20_000]);
    writer.flush().unwrap();
    writer.flush().unwrap();
    let (found, counts) = everything(&folder);
    assert!(found == packets[..20_000]);
    assert_eq!(counts.damaged, 0);
    for part in packets[20_000..].chunks(100) {
        append(&mut writer, part);
        writer.flush().unwrap();
    }
    assert_eq!(writer.finish().unwrap().packets, 30_000);
    let (found, counts) = everything(&folder);
    assert!(found == packets);
    assert_eq!((counts.without_index, counts.damaged), (0, 0));
    assert!(counts.segments > 2, "{counts:?}");
    let files = files(&folder, ".pcapng.zst");
    assert_eq!(files.len() as u64, counts.segments);
    let (found, indexed) = ask(&folder, ALWAYS, vec![vec![Key::Protocol(1)]]);
    assert!(!found.is_empty() && indexed.bytes_read <= counts.bytes_read);
    // An independent program decompresses each file. The result must consist of undamaged blocks, as a file that was
    // written without compression does.
    for file in &files {
        let Ok(unpacked) = Command::new("zstd").arg("-dc").arg(file).output() else {
            println!("skipped: needs zstd");
            return;
        };
        assert!(unpacked.status.success(), "{unpacked:?}");
        let bytes = &unpacked.stdout[..];
        assert!(bytes.len() > fs::metadata(file).unwrap().len() as usize);
        for block in bytes.chunks(BLOCK_BYTES) {
            let found = segment::records(block, |_| true);
            assert!(!found.is_damaged && found.whole_bytes > 0);
        }
    }
}

#[test]
fn a_killed_zstd_writer_loses_only_the_packets_in_memory() {
    let (_parent, folder) = place();
    let packets = traffic(33, 3000, 1500);
    let mut writer = Writer::open(compressed(&folder)).unwrap();
    append(&mut writer, &packets[..1000]);
    writer.flush().unwrap();
    append(&mut writer, &packets[1000..2900]);
    writer.flush().unwrap();
    append(&mut writer, &packets[2900..2950]);
    let (_copy, copy) = killed(&folder);
    let mut other = Writer::open(compressed(&copy)).unwrap();
    other.settle();
    assert_eq!(other.counts().without_index, 0);
    let (found, counts) = everything(&copy);
    assert!(found == packets[..2900]);
    assert_eq!((counts.without_index, counts.damaged), (0, 0));
    append(&mut other, &packets[2950..]);
    other.finish().unwrap();
    let (found, _) = everything(&copy);
    assert!(found == [&packets[..2900], &packets[2950..]].concat());
}

#[test]
fn a_truncated_compressed_file_loses_only_its_last_zstd_frame() {
    let (_parent, folder) = place();
    let packets = traffic(34, 200, 400);
    let mut writer = Writer::open(compressed(&folder)).unwrap();
    for part in packets.chunks(20) {
        append(&mut writer, part);
        writer.flush().unwrap();
    }
    writer.finish().unwrap();
    let newest = files(&folder, ".pcapng.zst").pop().unwrap();
    let whole = fs::read(&newest).unwrap();
    let mut ends = vec![0];
    while let Some(size) = crate::compression::frame_bytes(&whole[*ends.last().unwrap()..]) {
        ends.push(ends.last().unwrap() + size);
    }
    assert!(ends.len() > 10 && ends.last() == Some(&whole.len()));
    let (parent, _) = place();
    let path = parent.path().join("cut");
    // The tested lengths include those around the ends of the frames.
    let around = ends.iter().flat_map(|end| end.saturating_sub(1)..=end + 1);
    let around = around.filter(|len| *len <= whole.len());
    for len in (0..=whole.len()).step_by(31).chain(around) {
        fs::write(&path, &whole[..len]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let (left, found) = segment::recover(&file, true).unwrap();
        let want = ends.iter().rfind(|end| **end <= len).unwrap();
        assert_eq!((left, file.metadata().unwrap().len()), (*want as u64, left));
        let frames = ends.iter().position(|end| end == want).unwrap();
        // The first frame contains only the head of the file, and the last one its end.
        let packets = (frames.saturating_sub(1) * 20).min(200) as u64;
        assert_eq!(found.packets(), packets);
    }
}

#[test]
fn a_rebuilt_index_of_zstd_frames_equals_the_original() {
    let (_parent, folder) = place();
    let mut writer = Writer::open(compressed(&folder)).unwrap();
    for part in traffic(35, 30_000, 1500).chunks(777) {
        append(&mut writer, part);
        writer.flush().unwrap();
    }
    writer.finish().unwrap();
    let indexes = files(&folder, ".zst.index");
    let written: Vec<_> = indexes.iter().map(|path| fs::read(path).unwrap()).collect();
    assert!(written.len() > 2);
    for path in &indexes {
        fs::remove_file(path).unwrap();
    }
    let mut writer = Writer::open(compressed(&folder)).unwrap();
    assert_eq!(writer.counts().without_index, written.len() as u64);
    writer.settle();
    for (path, written) in indexes.iter().zip(&written) {
        assert!(fs::read(path).unwrap() == *written, "{}", path.display());
    }
}

#[test]
fn a_damaged_zstd_frame_is_counted_and_loses_one_block() {
    let (_parent, folder) = place();
    let packets = traffic(36, 10_000, 1500);
    let mut writer = Writer::open(compressed(&folder)).unwrap();
    append(&mut writer, &packets);
    writer.finish().unwrap();
    let first = &files(&folder, ".pcapng.zst")[0];
    let mut bytes = fs::read(first).unwrap();
    bytes[10_000] ^= 0x55;
    fs::write(first, &bytes).unwrap();
    let (found, counts) = everything(&folder);
    assert_eq!(counts.damaged, 1);
    assert!(found.len() > 1000 && packets.ends_with(&found));
    // A query finds the same packets without an index, and with an index created from the segment; creating the index
    // truncates nothing.
    fs::remove_file(&files(&folder, ".zst.index")[0]).unwrap();
    let (again, counts) = everything(&folder);
    assert_eq!((counts.damaged, counts.without_index), (1, 1));
    assert!(again == found);
    let mut writer = Writer::open(compressed(&folder)).unwrap();
    writer.settle();
    drop(writer);
    let (again, counts) = everything(&folder);
    assert_eq!((counts.damaged, counts.without_index), (1, 0));
    assert!(again == found);
    assert_eq!(fs::metadata(first).unwrap().len(), bytes.len() as u64);
}

#[test]
fn a_full_disk_leaves_complete_zstd_frames_and_writing_resumes() {
    let (_parent, folder) = place();
    let packets = traffic(38, 6000, 1500);
    let mut writer = Writer::open(compressed(&folder)).unwrap();
    let start = Instant::now();
    writer.tick(start).unwrap();
    append(&mut writer, &packets[..1000]);
    writer.flush().unwrap();
    faults::ROOM.set(Some(4096));
    let mut told = 0;
    for (facts, frame) in &packets[1000..4000] {
        let facts = *facts;
        told += u32::from(
            writer
                .append(&crate::record::Record { facts, frame })
                .is_err(),
        );
    }
    assert!(told == 1 && writer.is_failing());
    let (found, there) = everything(&folder);
    assert_eq!(there.damaged, 0);
    assert!(found.len() as u64 == writer.counts().packets && packets.starts_with(&found));
    faults::ROOM.set(None);
    writer.tick(start + Duration::from_secs(100)).unwrap();
    append(&mut writer, &packets[4000..]);
    let counts = writer.finish().unwrap();
    assert_eq!(counts.packets + counts.lost, 6000);
    let (found, _) = everything(&folder);
    assert!(found.len() as u64 == counts.packets && found.ends_with(&packets[4000..]));
}

#[test]
fn compressed_and_plain_segments_share_their_folders_size_limit() {
    let (_parent, folder) = place();
    let plain = traffic(39, 2000, 1500);
    let mut writer = Writer::open(settings(&folder, 400)).unwrap();
    append(&mut writer, &plain);
    writer.finish().unwrap();
    let least = Settings::least_bytes(SEGMENT);
    let small = Settings {
        limit_bytes: least,
        ..compressed(&folder)
    };
    let mut writer = Writer::open(small).unwrap();
    let mut random = fastrand::Rng::with_seed(39);
    let mut sent = 0;
    // Noise cannot be compressed.
    for _ in 0..200 {
        for _ in 0..100 {
            let frame: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
                .take(1400)
                .collect();
            let facts = crate::record::Facts {
                time_ns: 1 + sent,
                wire_bytes: 1400,
                ..Default::default()
            };
            writer
                .append(&crate::record::Record {
                    facts,
                    frame: &frame,
                })
                .unwrap();
            sent += 1;
        }
        assert!(bytes_in(&folder) <= least, "{}", bytes_in(&folder));
    }
    let counts = writer.finish().unwrap();
    assert!(counts.removed > 0 && counts.lost == 0, "{counts:?}");
    assert!(bytes_in(&folder) <= least);
    let (found, counts) = everything(&folder);
    assert_eq!(counts.damaged, 0);
    assert_eq!(found.last().unwrap().0.time_ns, sent);
    assert!(found.len() > 2000);
}
