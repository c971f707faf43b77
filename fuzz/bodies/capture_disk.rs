//! The body of the fuzz target for captures on disk; `cargo test` runs the same body over seeded damage.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use taut_capture::disk::{Found, Key, Query, Settings, Writer, query};
use taut_capture::record::{Facts, Record};

const SEGMENT: &str = "000000000000-00000000000000000000.pcapng";
const INDEX: &str = "000000000000-00000000000000000000.index";
/// The smallest segment, bytes.
const SEGMENT_BYTES: u64 = 2 << 20;

fn settings(folder: &Path) -> Settings {
    Settings {
        segment_bytes: SEGMENT_BYTES,
        ..Settings::new(
            folder,
            2 * Settings::least_bytes(SEGMENT_BYTES),
            vec!["a".into()],
        )
    }
}

/// Writes a small segment and its index, and returns the bytes of both.
pub fn small(folder: &Path) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut writer = Writer::open(settings(folder)).ok()?;
    for i in 0..40_u8 {
        let mut frame = vec![i; 60 + usize::from(i)];
        frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        frame[23] = [6, 17][usize::from(i % 2)];
        let facts = Facts {
            time_ns: i.into(),
            wire_bytes: 200,
            port: 0,
            flags: u16::from(i % 4),
        };
        let _ = writer.append(&Record {
            facts,
            frame: &frame,
        });
    }
    writer.finish().ok()?;
    let files = (
        fs::read(folder.join(SEGMENT)).ok()?,
        fs::read(folder.join(INDEX)).ok()?,
    );
    Some(files)
}

/// Corrects the checksums of an index, if their positions can be found.
fn mend(index: &mut [u8]) {
    let Some(head_at) = index.len().checked_sub(8).and_then(|at| {
        let head: [u8; 4] = index.get(at..at + 4)?.try_into().ok()?;
        (at + 8).checked_sub(u32::from_le_bytes(head) as usize + 16)
    }) else {
        return;
    };
    for page in index[..head_at].chunks_exact_mut(4096) {
        let sum = crc32fast::hash(&page[..4092]).to_le_bytes();
        page[4092..].copy_from_slice(&sum);
    }
    let end = index.len() - 4;
    let sum = crc32fast::hash(&index[head_at..end]).to_le_bytes();
    index[end..].copy_from_slice(&sum);
}

/// Builds the two small files with some bytes changed, or two files of arbitrary bytes.
fn files(bytes: &[u8], small: &(Vec<u8>, Vec<u8>)) -> (Vec<u8>, Vec<u8>) {
    let Some((&kind, rest)) = bytes.split_first() else {
        return small.clone();
    };
    let (mut segment, mut index) = small.clone();
    if kind & 2 == 0 {
        let (length, rest) = rest.split_first().unwrap_or((&0, rest));
        let (one, other) = rest.split_at((usize::from(*length) * 8).min(rest.len()));
        (segment, index) = (one.to_vec(), other.to_vec());
    } else {
        for change in rest.chunks_exact(4) {
            let file = if change[0] & 1 == 0 {
                &mut segment
            } else {
                &mut index
            };
            let at = usize::from(u16::from_le_bytes([change[1], change[2]])) % (file.len() + 1);
            match (change[0] >> 1) % 8 {
                0 => file.truncate(at),
                1 => file.insert(at, change[3]),
                _ => file
                    .iter_mut()
                    .skip(at)
                    .take(1)
                    .for_each(|byte| *byte = change[3]),
            }
        }
    }
    if kind & 1 == 0 {
        mend(&mut index);
    }
    (segment, index)
}

type Packets = Vec<(Facts, Vec<u8>)>;

fn ask(folder: &Path, wanted: Vec<Vec<Key>>) -> (Packets, Found) {
    let mut packets = Vec::new();
    let found = query(
        folder,
        Query {
            from_ns: 0,
            to_ns: u64::MAX,
            wanted,
            matches: &mut |record| {
                packets.push((record.facts, record.frame.to_vec()));
                true
            },
            stop: &AtomicBool::new(false),
        },
    );
    (packets, found.unwrap_or_default())
}

thread_local! {
    /// The working folder: in memory, if there is such a folder.
    static PLACE: (tempfile::TempDir, (Vec<u8>, Vec<u8>)) = {
        let memory = Path::new("/dev/shm");
        let at = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let place = tempfile::tempdir_in(at).unwrap_or_else(|e| panic!("no place to work in: {e}"));
        let small = small(&place.path().join("small")).unwrap_or_else(|| panic!("no files"));
        (place, small)
    };
}

/// Queries a ring of one segment and its index, then lets a writer repair and continue it. Checks that no packet that
/// the query found is lost.
pub fn ring(bytes: &[u8]) {
    PLACE.with(|(place, small)| {
        let folder = place.path().join("ring");
        let _ = fs::remove_dir_all(&folder);
        let _ = fs::create_dir(&folder);
        let (segment, index) = files(bytes, small);
        let _ = fs::write(folder.join(SEGMENT), &segment);
        let _ = fs::write(folder.join(INDEX), &index);
        let keys = [
            Key::Protocol(17),
            Key::Address([1, 1, 1, 1].into()),
            Key::EtherType(0x0800),
        ];
        for wanted in [vec![], vec![keys[..2].to_vec(), keys[2..].to_vec()]] {
            let (packets, found) = ask(&folder, wanted);
            let total: usize = packets.iter().map(|(_, frame)| frame.len()).sum();
            assert!(total as u64 <= found.bytes_read && found.bytes_read <= segment.len() as u64);
        }
        // The packets that a query without an index finds must be the same before and after the repair.
        let _ = fs::remove_file(folder.join(INDEX));
        let (mut before, _) = ask(&folder, vec![]);
        let frame = [1; 60];
        let facts = Facts {
            wire_bytes: 60,
            ..Facts::default()
        };
        let mut writer = Writer::open(settings(&folder)).unwrap_or_else(|e| panic!("{e}"));
        writer.settle();
        let _ = writer.append(&Record {
            facts,
            frame: &frame,
        });
        let _ = writer.finish();
        before.push((facts, frame.to_vec()));
        let (after, found) = ask(&folder, vec![]);
        assert_eq!(found.without_index, 0);
        assert!(before == after, "{} {}", before.len(), after.len());
    });
}
