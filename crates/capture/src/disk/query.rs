//! Finds packets in a ring on disk by its indexes, even while the ring is being written.

use super::folder::{Folder, Name};
use super::index::{Index, Where};
use super::segment::{Memory, each_block, records};
use super::{BLOCK_BYTES, Blocks, DiskError, Key};
use crate::record::Record;
use rustix::fs::{Advice, fadvise};
use serde::Serialize;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of blocks of a segment that the system is requested to read ahead.
const AHEAD: usize = 4;

/// A segment of a ring on disk, as listed for users.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Holding {
    /// Name of the file in the folder.
    pub file: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Time of the segment's first packet, nanoseconds since 1970.
    pub begun_ns: u64,
    /// Number of packets, and times of the earliest and the latest packet (nanoseconds since 1970); none if there is no
    /// index yet.
    pub packets: Option<(u64, u64, u64)>,
}

/// Lists the segments of a ring on disk, the oldest first.
///
/// # Errors
/// Returns an error if the folder cannot be read.
pub fn holdings(folder: &Path) -> Result<Vec<Holding>, DiskError> {
    let folder = Folder::look(folder)?;
    let names = folder.segments();
    let names = names.map_err(|e| DiskError::folder(folder.path(), e))?;
    let holding = |name: Name| {
        let file = name.segment();
        // A segment that cannot be opened was removed in the meantime, and is omitted.
        let bytes = folder.open(&file, false).ok()?.metadata().ok()?.len();
        let index = folder.open(&name.index(), false).and_then(Index::open);
        let index = index.ok().filter(|index| index.segment_bytes == bytes);
        Some(Holding {
            file,
            bytes,
            begun_ns: name.first_ns,
            packets: index.map(|index| (index.packets, index.first_ns, index.last_ns)),
        })
    };
    Ok(names.into_iter().filter_map(holding).collect())
}

/// A query for packets in a ring on disk.
pub struct Query<'a> {
    /// Time of the first requested packet, nanoseconds since 1970.
    pub from_ns: u64,
    /// Time of the last requested packet, nanoseconds since 1970.
    pub to_ns: u64,
    /// Required keys: a packet has all keys of at least one of these lists. Only blocks that may contain such packets
    /// are read. An empty list, or no lists at all, match every packet.
    pub wanted: Vec<Vec<Key>>,
    /// Callback for each packet between `from_ns` and `to_ns` in the blocks that are read, in the order of the files;
    /// returns true if the packet matches.
    pub matches: &'a mut dyn FnMut(&Record<'_>) -> bool,
    /// Flag that ends the query early; `matches` may set it too.
    pub stop: &'a AtomicBool,
}

/// The counts of files, blocks, bytes and packets that a query examined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Found {
    /// Segment files that the query examined.
    pub segments: u64,
    /// Examined segments without an index, which were read completely: usually the newest one.
    pub without_index: u64,
    /// Segments that were removed during the query.
    pub gone: u64,
    /// Blocks that the query read.
    pub blocks_read: u64,
    /// Bytes that were read from segments.
    pub bytes_read: u64,
    /// Bytes that were read from indexes.
    pub index_bytes_read: u64,
    /// Packets within the requested time in blocks that were read.
    pub packets: u64,
    /// Packets that match the filter of the query.
    pub matched: u64,
    /// Damaged blocks and index pages, which may contain more packets.
    pub damaged: u64,
}

/// Searches a ring on disk for the packets that a query requests.
///
/// # Errors
/// Returns an error if the folder or a file in it cannot be read. Damage is no error.
pub fn query(folder: &Path, mut query: Query<'_>) -> Result<Found, DiskError> {
    let folder = Folder::look(folder)?;
    let failed = |e| DiskError::folder(folder.path(), e);
    let mut found = Found::default();
    let mut memory = Memory::new().map_err(failed)?;
    let names = folder.segments().map_err(failed)?;
    for (i, name) in names.iter().enumerate() {
        if query.stop.load(Ordering::Relaxed) {
            break;
        }
        let is_newest = i + 1 == names.len();
        match look_into(
            &folder,
            *name,
            is_newest,
            &mut query,
            &mut found,
            &mut memory,
        ) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => found.gone += 1,
            looked => looked.map_err(failed)?,
        }
    }
    Ok(found)
}

/// Searches one segment file for matching packets.
fn look_into(
    folder: &Folder,
    name: Name,
    is_newest: bool,
    query: &mut Query<'_>,
    found: &mut Found,
    memory: &mut Memory,
) -> io::Result<()> {
    let index = folder.open(&name.index(), false).and_then(Index::open);
    if let Ok(index) = &index {
        found.index_bytes_read += index.bytes_read;
        if index.first_ns > query.to_ns || index.last_ns < query.from_ns {
            return Ok(());
        }
    }
    let file = folder.open(&name.segment(), false)?;
    let len = file.metadata()?.len();
    found.segments += 1;
    // An index that states another length of the segment is outdated.
    let is_of_it = |index: &Index<File>| {
        let blocks = len.div_ceil(BLOCK_BYTES as u64);
        index.segment_bytes == len && (name.zstd || index.blocks.len() as u64 == blocks)
    };
    let Some(mut index) = index.ok().filter(is_of_it) else {
        found.without_index += 1;
        let is_whole = each_block(&file, name.zstd, memory, |bytes, _, is_last| {
            found.bytes_read += bytes.len() as u64;
            // The segment may end in a block that is being written.
            look_through(bytes, is_last && is_newest, query, found)
        })?;
        found.damaged += u64::from(!is_whole && !is_newest);
        return Ok(());
    };
    let wanted = blocks_for(&mut index, query, found);
    let stored = |block: usize| index.blocks[block].stored;
    let mut ahead = wanted.iter();
    let advise = |next: Option<usize>| {
        if let Some(stored) = next.map(stored) {
            let len = NonZeroU64::new(stored.bytes.into());
            let _ = fadvise(&file, stored.at, len, Advice::WillNeed);
        }
    };
    (0..AHEAD).for_each(|_| advise(ahead.next()));
    for block in wanted.iter() {
        advise(ahead.next());
        found.bytes_read += u64::from(stored(block).bytes);
        let Some(bytes) = memory.read(&file, name.zstd, stored(block))? else {
            found.blocks_read += 1;
            found.damaged += 1;
            continue;
        };
        if !look_through(bytes, false, query, found) {
            break;
        }
    }
    Ok(())
}

/// Examines the packets of a block, whose last packet may be truncated (`may_be_cut`); returns false once the query is
/// stopped.
fn look_through(bytes: &[u8], may_be_cut: bool, query: &mut Query<'_>, found: &mut Found) -> bool {
    found.blocks_read += 1;
    let contents = records(bytes, |record| {
        if (query.from_ns..=query.to_ns).contains(&record.facts.time_ns) {
            found.packets += 1;
            found.matched += u64::from((query.matches)(&record));
        }
        !query.stop.load(Ordering::Relaxed)
    });
    found.damaged += u64::from(contents.is_damaged && !may_be_cut);
    !query.stop.load(Ordering::Relaxed)
}

/// Returns the blocks of a segment that may contain packets of a query, by time and keys.
fn blocks_for(index: &mut Index<File>, query: &Query<'_>, found: &mut Found) -> Blocks {
    let blocks = index.blocks.len();
    let before = index.bytes_read;
    let mut wanted = wanted(index, &query.wanted, found);
    found.index_bytes_read += index.bytes_read - before;
    let mut of_time = Blocks::none(blocks);
    for (block, facts) in index.blocks.iter().enumerate() {
        if facts.first_ns <= query.to_ns && facts.last_ns >= query.from_ns {
            of_time.add(block);
        }
    }
    wanted.keep(&of_time);
    wanted
}

/// Returns the blocks of a segment that may contain packets with all keys of at least one list.
fn wanted(index: &mut Index<File>, lists: &[Vec<Key>], found: &mut Found) -> Blocks {
    let len = index.blocks.len();
    if lists.is_empty() {
        return Blocks::all(len);
    }
    let mut any = Blocks::none(len);
    for list in lists {
        let mut all = Blocks::all(len);
        for key in list {
            match index.find(key.code()) {
                Where::In(blocks) => all.keep(&blocks),
                Where::Damaged => found.damaged += 1,
            }
            if all.is_empty() {
                break;
            }
        }
        any.join(&all);
    }
    any
}
