//! A segment: the file that is being written, block by block, and how one is read.

use super::BLOCK_BYTES;
use super::folder::{Folder, Name};
use super::index::{Finished, Gathered};
use crate::pcapng::{self, Block, LEAST_BLOCK_BYTES};
use crate::record::Record;
use rustix::fs::{Advice, OFlags, fadvise, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, MetadataExt};

/// What is written past the page cache has to lie in memory and file at multiples of this; no disk has larger sectors.
const SECTOR_BYTES: usize = 4096;
/// Bytes of a file behind which the page cache is given back, where it is used.
const CACHED_BYTES: u64 = 8 << 20;

/// A block that is being filled, where the system can write it from past the page cache.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    /// Place in `bytes` of the block: the first multiple of [`SECTOR_BYTES`] in memory.
    start: usize,
}

impl Buffer {
    pub(super) fn new() -> Self {
        // In front as far as the first sector, behind for the sector in which a file ends.
        let mut bytes = Vec::<u8>::with_capacity(BLOCK_BYTES + 2 * SECTOR_BYTES);
        let start = bytes.as_ptr().align_offset(SECTOR_BYTES).min(SECTOR_BYTES);
        bytes.resize(start, 0);
        Self { bytes, start }
    }

    #[inline]
    fn used(&self) -> usize {
        self.bytes.len() - self.start
    }

    fn cut(&mut self, used: usize) {
        self.bytes.truncate(self.start + used);
    }
}

/// A segment that is being written.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) name: Name,
    file: File,
    past_cache: bool,
    /// Where the block in the buffer lies in the file.
    offset: u64,
    /// Bytes of the block in the buffer that are in the file already.
    in_file: usize,
    /// Packets of the block in the buffer that are in the file already.
    packets_in_file: u32,
    /// Packets in all blocks before it.
    packets_before: u64,
    /// Bytes that the segment has at most, and of those what its last block leaves free for its end.
    most_bytes: u64,
    end_bytes: usize,
}

impl Segment {
    /// Begins a file with the blocks in `head`.
    pub(super) fn begin(
        folder: &Folder,
        name: Name,
        head: &[u8],
        most_bytes: u64,
        end_bytes: usize,
        buffer: &mut Buffer,
    ) -> io::Result<Self> {
        let (file, past_cache) = folder.create(&name.segment(), true)?;
        buffer.cut(0);
        buffer.bytes.extend_from_slice(head);
        Ok(Self {
            name,
            file,
            past_cache,
            offset: 0,
            in_file: 0,
            packets_in_file: 0,
            packets_before: 0,
            most_bytes,
            end_bytes,
        })
    }

    /// Whether this is the last block.
    #[inline]
    pub(super) fn is_last(&self) -> bool {
        self.offset + BLOCK_BYTES as u64 >= self.most_bytes
    }

    /// Whether the block has room for so many bytes more.
    #[inline]
    pub(super) fn has_room(&self, bytes: usize, buffer: &Buffer) -> bool {
        let end = if self.is_last() { self.end_bytes } else { 0 };
        let wanted = buffer.used() + bytes + end;
        // What is left has to hold a block that fills it up.
        wanted == BLOCK_BYTES || wanted + LEAST_BLOCK_BYTES <= BLOCK_BYTES
    }

    /// Adds a packet for which there is room.
    #[inline]
    pub(super) fn add(&mut self, record: &Record<'_>, buffer: &mut Buffer) {
        pcapng::packet(&mut buffer.bytes, record, "");
    }

    /// Packets that are not in the file.
    pub(super) fn packets_outside(&self, gathered: &Gathered) -> u64 {
        (gathered.packets_in_block() - self.packets_in_file).into()
    }

    /// Packets that have been added.
    pub(super) fn packets(&self, gathered: &Gathered) -> u64 {
        self.packets_before + u64::from(gathered.packets_in_block())
    }

    /// Whether the file has been removed from its folder.
    pub(super) fn is_removed(&self) -> bool {
        self.file.metadata().is_ok_and(|found| found.nlink() == 0)
    }

    /// Writes what is there of the block, and fills up its last sector, so that the file ends with a whole block of
    /// pcapng. `free` is asked for room, once, when the disk is full; it says whether there is some now.
    pub(super) fn write_tail(
        &mut self,
        buffer: &mut Buffer,
        gathered: &Gathered,
        free: &mut dyn FnMut() -> bool,
    ) -> io::Result<()> {
        let used = buffer.used();
        if used == self.in_file {
            return Ok(());
        }
        let mut end = used.next_multiple_of(SECTOR_BYTES);
        if end > used && end - used < LEAST_BLOCK_BYTES {
            end += SECTOR_BYTES;
        }
        pcapng::padding(&mut buffer.bytes, end - used);
        let written = self.write(buffer, end, free);
        buffer.cut(used);
        written?;
        (self.in_file, self.packets_in_file) = (used, gathered.packets_in_block());
        Ok(())
    }

    /// Fills up the block, writes it, and begins the next one.
    pub(super) fn end_block(
        &mut self,
        buffer: &mut Buffer,
        gathered: &mut Gathered,
        free: &mut dyn FnMut() -> bool,
    ) -> io::Result<()> {
        let used = buffer.used();
        pcapng::padding(&mut buffer.bytes, BLOCK_BYTES - used);
        if let Err(e) = self.write(buffer, BLOCK_BYTES, free) {
            buffer.cut(used);
            return Err(e);
        }
        self.packets_before += u64::from(gathered.packets_in_block());
        gathered.end_block(used);
        self.offset += BLOCK_BYTES as u64;
        (self.in_file, self.packets_in_file) = (0, 0);
        buffer.cut(0);
        Ok(())
    }

    /// Ends the file with the blocks in `end`. Returns how long it is.
    pub(super) fn finish(
        &mut self,
        end: &[u8],
        buffer: &mut Buffer,
        gathered: &mut Gathered,
        free: &mut dyn FnMut() -> bool,
    ) -> io::Result<u64> {
        let packets_end = buffer.used();
        buffer.bytes.extend_from_slice(end);
        let used = buffer.used();
        let written = self.write_tail(buffer, gathered, free);
        let len = self.offset + used as u64;
        if let Err(e) = written.and_then(|()| self.file.set_len(len)) {
            buffer.cut(packets_end);
            return Err(e);
        }
        gathered.end_block(used);
        buffer.cut(0);
        Ok(len)
    }

    /// Cuts the file behind what is whole in it, after it could not be written on. Returns how long it is, and its
    /// packets.
    pub(super) fn give_up(&self) -> (u64, u64) {
        let len = self.offset + self.in_file as u64;
        // What cannot be cut off is cut off when the ring is opened again.
        let _ = self.file.set_len(len);
        (len, self.packets_before + u64::from(self.packets_in_file))
    }

    /// Writes the buffer up to `end`, from the last sector on that the file has whole.
    fn write(
        &mut self,
        buffer: &Buffer,
        end: usize,
        free: &mut dyn FnMut() -> bool,
    ) -> io::Result<()> {
        let end = end.min(buffer.used());
        let mut at = self.in_file / SECTOR_BYTES * SECTOR_BYTES;
        let mut asked = false;
        while at < end {
            let bytes = &buffer.bytes[buffer.start + at..buffer.start + end];
            match write_at(&self.file, bytes, self.offset + at as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => at += written,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // The file system takes it only through the page cache.
                Err(e) if self.past_cache && Errno::from_io_error(&e) == Some(Errno::INVAL) => {
                    let flags = fcntl_getfl(&self.file)?;
                    fcntl_setfl(&self.file, flags - OFlags::DIRECT)?;
                    self.past_cache = false;
                }
                Err(e)
                    if e.kind() == io::ErrorKind::StorageFull
                        && !std::mem::replace(&mut asked, true)
                        && free() => {}
                Err(e) => return Err(e),
            }
        }
        if !self.past_cache && end == BLOCK_BYTES {
            // Has what is dirty written, and lets go of what is clean: the block before, usually.
            let from = self.offset.saturating_sub(CACHED_BYTES);
            let len = NonZeroU64::new(self.offset + BLOCK_BYTES as u64 - from);
            let _ = fadvise(&self.file, from, len, Advice::DontNeed);
        }
        Ok(())
    }
}

#[cfg(not(test))]
fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<usize> {
    file.write_at(bytes, at)
}

#[cfg(test)]
use super::tests::faults::write_at;

/// What stands in a block of a segment, as far as it is whole.
pub(super) struct Contents {
    /// Bytes up to the padding, or to what is no whole block of pcapng.
    pub(super) whole_bytes: usize,
    /// Whether what is no whole block follows.
    pub(super) is_damaged: bool,
}

/// Goes through the records of a block, in order. Comes from outside: nothing is believed.
#[inline]
pub(super) fn records<'a>(block: &'a [u8], mut each: impl FnMut(Record<'a>) -> bool) -> Contents {
    let mut at = 0;
    while at < block.len() {
        let (kind, size) = match pcapng::read(&block[at..]) {
            Some((Block::Padding, _)) => break,
            Some(found) => found,
            None => {
                return Contents {
                    whole_bytes: at,
                    is_damaged: true,
                };
            }
        };
        at += size;
        if let Block::Packet(record) = kind
            && !each(record)
        {
            break;
        }
    }
    Contents {
        whole_bytes: at,
        is_damaged: false,
    }
}

/// Reads a block of a file into `to`; what is behind the end of the file is left out.
pub(super) fn read_block<'a>(file: &File, block: usize, to: &'a mut [u8]) -> io::Result<&'a [u8]> {
    let mut filled = 0;
    let offset = block as u64 * BLOCK_BYTES as u64;
    while filled < to.len() {
        match file.read_at(&mut to[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(&to[..filled])
}

/// Reads a whole segment, as after its writer was killed: cuts what is broken off its end, and gathers what its index
/// says. Returns how long it is.
pub(super) fn recover(file: &File) -> io::Result<(u64, Finished)> {
    let len = file.metadata()?.len();
    let blocks = len
        .div_ceil(BLOCK_BYTES as u64)
        .min(super::MOST_BLOCKS as u64) as usize;
    let mut gathered = Gathered::new();
    let mut bytes = vec![0; BLOCK_BYTES];
    let mut end = 0;
    for block in 0..blocks {
        let read = read_block(file, block, &mut bytes)?;
        let found = records(read, |record| {
            gathered.add(&record);
            true
        });
        let is_last = block + 1 == blocks;
        if is_last && found.whole_bytes == 0 {
            break;
        }
        gathered.end_block(found.whole_bytes);
        end = match is_last {
            true => (block * BLOCK_BYTES + found.whole_bytes) as u64,
            false => ((block + 1) * BLOCK_BYTES) as u64,
        };
    }
    if end < len {
        file.set_len(end)?;
    }
    Ok((end, gathered.take()))
}
