//! A segment of a ring on disk: the file that is being written, block by block, and its reader.

use super::folder::{Folder, Name};
use super::index::{Finished, Gathered, Stored};
use super::{BLOCK_BYTES, MOST_BLOCKS};
use crate::compression::{Packer, Unpacker, content_bytes, frame_bytes, most_frame_bytes};
use crate::pcapng::{self, Block, LEAST_BLOCK_BYTES};
use crate::record::Record;
use rustix::fs::{Advice, OFlags, fadvise, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Alignment of direct I/O in memory and file, bytes; no disk has larger sectors.
const SECTOR_BYTES: usize = 4096;
/// Number of written bytes after which the page cache of the file is released; direct I/O does not use the page cache.
const CACHED_BYTES: u64 = 8 << 20;
/// Maximum number of bytes of all zstd frames of a block: in the worst case each frame contains one packet.
const MOST_STORED_BYTES: usize = 2 * BLOCK_BYTES;

/// A block that is being filled, aligned for direct I/O.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    /// Offset in `bytes` of the block's first byte: the first multiple of [`SECTOR_BYTES`] in memory.
    start: usize,
}

impl Buffer {
    pub(super) fn new() -> Self {
        // The extra bytes before the block align the block to a sector. The extra bytes after it complete the sector in
        // which a file ends.
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
///
/// The segment is written block by block. In an uncompressed file, the last block is written in place and grows. A
/// compressed file consists of successive frames, which together contain the bytes of the uncompressed file.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) name: Name,
    file: File,
    past_cache: bool,
    /// Offset of the buffered block in the uncompressed file.
    offset: u64,
    /// Number of the buffered block's bytes that are in the file already.
    in_file: usize,
    /// Number of the buffered block's packets that are in the file already.
    packets_in_file: u32,
    /// Number of packets in all earlier blocks of the segment.
    packets_before: u64,
    /// Maximum size of the segment in bytes; `end_bytes` is the number of bytes that its last block reserves for the
    /// pcapng blocks that end the file.
    most_bytes: u64,
    end_bytes: usize,
    /// True if the buffered block is the last one.
    is_last: bool,
    frames: Option<Written>,
}

/// The zstd frames of a compressed segment.
#[derive(Debug)]
struct Written {
    packer: Packer,
    /// Number of bytes of all frames; `before` is the number of bytes of the frames before the buffered block.
    bytes: u64,
    before: u64,
}

impl Segment {
    /// Begins a segment file with the pcapng blocks in `head`.
    pub(super) fn begin(
        folder: &Folder,
        name: Name,
        head: &[u8],
        most_bytes: u64,
        end_bytes: usize,
        buffer: &mut Buffer,
    ) -> io::Result<Self> {
        let packer = name.zstd.then(Packer::new).transpose()?;
        // Compressed files do not use direct I/O, because it allows only complete sectors and frames have any length.
        let (file, past_cache) = folder.create(&name.segment(), packer.is_none())?;
        buffer.cut(0);
        buffer.bytes.extend_from_slice(head);
        let mut segment = Self {
            name,
            file,
            past_cache,
            offset: 0,
            in_file: 0,
            packets_in_file: 0,
            packets_before: 0,
            most_bytes,
            end_bytes,
            is_last: false,
            frames: packer.map(|packer| Written {
                packer,
                bytes: 0,
                before: 0,
            }),
        };
        segment.is_last = segment.ends_with_block();
        Ok(segment)
    }

    /// Returns true if the segment has no space for another block after the buffered one.
    fn ends_with_block(&self) -> bool {
        let block_bytes = BLOCK_BYTES as u64;
        // Incompressible data grows a little when it is compressed, and both this block and the next one have to fit.
        let most_stored = block_bytes + block_bytes / 8;
        let is_full = |it: &Written| it.before + 2 * most_stored > self.most_bytes;
        self.offset + block_bytes >= self.most_bytes || self.frames.as_ref().is_some_and(is_full)
    }

    /// Returns true if the buffered block is the last block.
    #[inline]
    pub(super) fn is_last(&self) -> bool {
        self.is_last
    }

    /// Returns true if the buffered block has space for the given number of further bytes.
    #[inline]
    pub(super) fn has_room(&self, bytes: usize, buffer: &Buffer) -> bool {
        let end = if self.is_last { self.end_bytes } else { 0 };
        let wanted = buffer.used() + bytes + end;
        // The remaining space has to be large enough for the padding block that fills it.
        wanted == BLOCK_BYTES || wanted + LEAST_BLOCK_BYTES <= BLOCK_BYTES
    }

    /// Adds a packet to the buffered block, which has space for the packet.
    #[inline]
    pub(super) fn add(&mut self, record: &Record<'_>, buffer: &mut Buffer) {
        pcapng::packet(&mut buffer.bytes, record, "");
    }

    /// Returns the number of packets that were added and are not in the file yet.
    pub(super) fn packets_outside(&self, gathered: &Gathered) -> u64 {
        (gathered.packets_in_block() - self.packets_in_file).into()
    }

    /// Returns the number of packets that were added to the segment.
    pub(super) fn packets(&self, gathered: &Gathered) -> u64 {
        self.packets_before + u64::from(gathered.packets_in_block())
    }

    /// Returns true if the segment file has been removed from its folder.
    pub(super) fn is_removed(&self) -> bool {
        self.file.metadata().is_ok_and(|found| found.nlink() == 0)
    }

    /// Returns the location that the buffered block, with the given number of bytes in use, has in the file once it is
    /// written.
    fn stored(&self, used: usize) -> Stored {
        match &self.frames {
            None => Stored {
                at: self.offset,
                bytes: used as u32,
            },
            Some(frames) => Stored {
                at: frames.before,
                bytes: (frames.bytes - frames.before) as u32,
            },
        }
    }

    /// Writes the filled part of the buffered block, and pads its last sector, so that the file ends with a complete
    /// pcapng block, or with a complete zstd frame. If the disk is full, `free` is called once to free space; it
    /// returns true if it freed some.
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
        if self.frames.is_some() {
            self.write_frame(buffer, used, free)?;
        } else {
            let mut end = used.next_multiple_of(SECTOR_BYTES);
            if end > used && end - used < LEAST_BLOCK_BYTES {
                end += SECTOR_BYTES;
            }
            pcapng::padding(&mut buffer.bytes, end - used);
            let written = self.write(buffer, end, free);
            buffer.cut(used);
            written?;
        }
        (self.in_file, self.packets_in_file) = (used, gathered.packets_in_block());
        Ok(())
    }

    /// Pads the buffered block, writes the block to the file, and begins the next block.
    pub(super) fn end_block(
        &mut self,
        buffer: &mut Buffer,
        gathered: &mut Gathered,
        free: &mut dyn FnMut() -> bool,
    ) -> io::Result<()> {
        let used = buffer.used();
        pcapng::padding(&mut buffer.bytes, BLOCK_BYTES - used);
        let written = match self.frames {
            None => self.write(buffer, BLOCK_BYTES, free),
            Some(_) => self.write_frame(buffer, BLOCK_BYTES, free),
        };
        if let Err(e) = written {
            buffer.cut(used);
            return Err(e);
        }
        self.packets_before += u64::from(gathered.packets_in_block());
        gathered.end_block(used, self.stored(used));
        self.offset += BLOCK_BYTES as u64;
        (self.in_file, self.packets_in_file) = (0, 0);
        if let Some(frames) = &mut self.frames {
            frames.before = frames.bytes;
        }
        self.is_last = self.ends_with_block();
        buffer.cut(0);
        self.let_go();
        Ok(())
    }

    /// Ends the segment file with the pcapng blocks in `end`, and returns the length of the file in bytes.
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
        let stored = self.stored(used);
        let len = stored.at + u64::from(stored.bytes);
        if let Err(e) = written.and_then(|()| self.file.set_len(len)) {
            buffer.cut(packets_end);
            return Err(e);
        }
        gathered.end_block(used, stored);
        buffer.cut(0);
        Ok(len)
    }

    /// Truncates the file after its last complete block or frame, because a write has failed. Returns the new length of
    /// the file in bytes and its number of packets.
    pub(super) fn give_up(&self) -> (u64, u64) {
        let len = match &self.frames {
            None => self.offset + self.in_file as u64,
            Some(frames) => frames.bytes,
        };
        // If this fails, the file is truncated when the ring is opened again.
        let _ = self.file.set_len(len);
        (len, self.packets_before + u64::from(self.packets_in_file))
    }

    /// Writes the buffer up to `end`, beginning with the last complete sector of the file.
    fn write(
        &mut self,
        buffer: &Buffer,
        end: usize,
        free: &mut dyn FnMut() -> bool,
    ) -> io::Result<()> {
        let end = end.min(buffer.used());
        let at = self.in_file / SECTOR_BYTES * SECTOR_BYTES;
        let bytes = &buffer.bytes[buffer.start + at..buffer.start + end];
        let offset = self.offset + at as u64;
        write_all(&self.file, &mut self.past_cache, bytes, offset, free)
    }

    /// Writes one zstd frame with the content of the buffer up to `end` that is not in earlier frames.
    fn write_frame(
        &mut self,
        buffer: &Buffer,
        end: usize,
        free: &mut dyn FnMut() -> bool,
    ) -> io::Result<()> {
        let Some(frames) = &mut self.frames else {
            return Ok(());
        };
        let bytes = &buffer.bytes[buffer.start + self.in_file..buffer.start + end];
        // Empty frames are omitted, because a reader assigns a frame after a full block to the next block.
        if bytes.is_empty() {
            return Ok(());
        }
        let frame = frames.packer.pack(bytes)?;
        let past_cache = &mut self.past_cache;
        write_all(&self.file, past_cache, frame, frames.bytes, free)?;
        frames.bytes += frame.len() as u64;
        Ok(())
    }

    /// Releases the page cache if it is used: starts writing dirty pages, and discards clean ones, usually those of the
    /// block before.
    fn let_go(&self) {
        if !self.past_cache {
            let end = self.frames.as_ref().map_or(self.offset, |it| it.bytes);
            let from = end.saturating_sub(CACHED_BYTES);
            let _ = fadvise(
                &self.file,
                from,
                NonZeroU64::new(end - from),
                Advice::DontNeed,
            );
        }
    }
}

/// Writes all bytes at the given offset of a file.
fn write_all(
    file: &File,
    past_cache: &mut bool,
    bytes: &[u8],
    offset: u64,
    free: &mut dyn FnMut() -> bool,
) -> io::Result<()> {
    let (mut at, mut asked) = (0, false);
    while at < bytes.len() {
        match write_at(file, &bytes[at..], offset + at as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => at += written,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // The file system does not support direct I/O for this write, so it is repeated without.
            Err(e) if *past_cache && Errno::from_io_error(&e) == Some(Errno::INVAL) => {
                let flags = fcntl_getfl(file)?;
                fcntl_setfl(file, flags - OFlags::DIRECT)?;
                *past_cache = false;
            }
            Err(e)
                if e.kind() == io::ErrorKind::StorageFull
                    && !std::mem::replace(&mut asked, true)
                    && free() => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(not(test))]
fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<usize> {
    file.write_at(bytes, at)
}

#[cfg(test)]
use super::tests::faults::write_at;

/// The complete part of the content of a block of a segment.
pub(super) struct Contents {
    /// Number of bytes up to the padding, or to an incomplete pcapng block.
    pub(super) whole_bytes: usize,
    /// True if an incomplete pcapng block follows the complete part.
    pub(super) is_damaged: bool,
}

/// Calls `each` with the records of a block, in order, until it returns false; returns the complete part of the block.
/// The bytes are untrusted.
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

/// The buffers for reading and decompressing the blocks of a segment.
pub(super) struct Memory {
    block: Vec<u8>,
    frames: Vec<u8>,
    unpacker: Unpacker,
}

impl Memory {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            block: vec![0; BLOCK_BYTES],
            frames: Vec::new(),
            unpacker: Unpacker::new()?,
        })
    }

    /// Reads a block of a segment file; bytes after the end of the file are missing. Returns `None` if the block is
    /// damaged and cannot be decompressed.
    pub(super) fn read(
        &mut self,
        file: &File,
        zstd: bool,
        stored: Stored,
    ) -> io::Result<Option<&[u8]>> {
        let bytes = stored.bytes as usize;
        if !zstd {
            let block = &mut self.block[..bytes.min(BLOCK_BYTES)];
            return read_at(file, block, stored.at).map(Some);
        }
        self.frames.resize(bytes.min(MOST_STORED_BYTES), 0);
        let frames = read_at(file, &mut self.frames, stored.at)?;
        let unpacked = self.unpacker.unpack(frames, &mut self.block);
        Ok(unpacked.ok().map(|len| &self.block[..len]))
    }
}

/// Reads from an offset of a file until `to` is full or the file ends; returns the bytes.
fn read_at<'a>(file: &File, to: &'a mut [u8], at: u64) -> io::Result<&'a [u8]> {
    let mut filled = 0;
    while filled < to.len() {
        match file.read_at(&mut to[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(&to[..filled])
}

/// Calls `each` with all blocks of a segment file whose locations are unknown, until it returns false. `each` gets the
/// bytes of a block, the block's location, and whether the block is the last one. Returns true if the file ends with a
/// complete frame.
pub(super) fn each_block(
    file: &File,
    zstd: bool,
    memory: &mut Memory,
    mut each: impl FnMut(&[u8], Stored, bool) -> bool,
) -> io::Result<bool> {
    if zstd {
        return each_packed_block(file, memory, each);
    }
    let blocks = file.metadata()?.len().div_ceil(BLOCK_BYTES as u64);
    let blocks = blocks.min(MOST_BLOCKS as u64);
    for block in 0..blocks {
        let stored = Stored {
            at: block * BLOCK_BYTES as u64,
            bytes: BLOCK_BYTES as u32,
        };
        if let Some(bytes) = memory.read(file, false, stored)?
            && !each(bytes, stored, block + 1 == blocks)
        {
            break;
        }
    }
    Ok(true)
}

fn each_packed_block(
    file: &File,
    memory: &mut Memory,
    mut each: impl FnMut(&[u8], Stored, bool) -> bool,
) -> io::Result<bool> {
    let Memory {
        block, unpacker, ..
    } = memory;
    let mut frames = Frames::of(file);
    let (mut filled, mut stored, mut blocks) = (0, Stored::default(), 0);
    while let Some((at, frame)) = frames.next()? {
        let len = match unpacker.unpack(frame, &mut block[filled..]) {
            Ok(len) => len,
            // The content of a damaged frame is skipped, so that later content keeps its offset.
            Err(_) => match content_bytes(frame).filter(|len| filled + len <= BLOCK_BYTES) {
                Some(len) => {
                    block[filled..filled + len].fill(0);
                    len
                }
                None => {
                    frames.is_broken = true;
                    break;
                }
            },
        };
        filled += len;
        stored.bytes = stored.bytes.saturating_add(frame.len() as u32);
        if filled == BLOCK_BYTES {
            let end = at + frame.len() as u64;
            blocks += 1;
            if !each(block, stored, false) || blocks == MOST_BLOCKS {
                return Ok(true);
            }
            (filled, stored) = (0, Stored { at: end, bytes: 0 });
        }
    }
    if filled > 0 {
        each(&block[..filled], stored, true);
    }
    Ok(!frames.is_broken)
}

/// The successive zstd frames of a compressed segment file.
struct Frames<'a> {
    file: &'a File,
    bytes: Vec<u8>,
    /// Offset in the file of the first byte in `bytes`; `at` is the offset in `bytes` of the next frame.
    start: u64,
    at: usize,
    /// True if the next bytes of the file are no complete zstd frame.
    is_broken: bool,
}

impl<'a> Frames<'a> {
    fn of(file: &'a File) -> Self {
        Self {
            file,
            bytes: Vec::new(),
            start: 0,
            at: 0,
            is_broken: false,
        }
    }

    /// Returns the next zstd frame and its offset in the file; none at the end, and at an incomplete frame.
    fn next(&mut self) -> io::Result<Option<(u64, &[u8])>> {
        let size = loop {
            let rest = &self.bytes[self.at..];
            if let Some(size) = frame_bytes(rest) {
                break size;
            }
            if rest.len() >= most_frame_bytes(BLOCK_BYTES) || !self.read_on()? {
                self.is_broken = self.at < self.bytes.len();
                return Ok(None);
            }
        };
        let at = self.at;
        self.at += size;
        Ok(Some((self.start + at as u64, &self.bytes[at..at + size])))
    }

    /// Reads more bytes of the file; returns false at its end.
    fn read_on(&mut self) -> io::Result<bool> {
        self.bytes.drain(..self.at);
        self.start += std::mem::take(&mut self.at) as u64;
        let before = self.bytes.len();
        self.bytes.resize(before + BLOCK_BYTES, 0);
        let place = self.start + before as u64;
        let read = read_at(self.file, &mut self.bytes[before..], place).map(<[u8]>::len);
        self.bytes.truncate(before + *read.as_ref().unwrap_or(&0));
        Ok(read? > 0)
    }
}

/// Reads a complete segment, for example after its writer was killed. Truncates broken bytes at the segment's end, and
/// returns the resulting length and the data for its index.
pub(super) fn recover(file: &File, zstd: bool) -> io::Result<(u64, Finished)> {
    let len = file.metadata()?.len();
    let mut gathered = Gathered::new();
    let mut end = 0;
    each_block(file, zstd, &mut Memory::new()?, |bytes, stored, is_last| {
        let found = records(bytes, |record| {
            gathered.add(&record);
            true
        });
        if is_last && found.whole_bytes == 0 {
            return true;
        }
        let stored = match zstd {
            true => stored,
            false => Stored {
                bytes: found.whole_bytes as u32,
                ..stored
            },
        };
        gathered.end_block(found.whole_bytes, stored);
        end = match zstd || is_last {
            true => stored.at + u64::from(stored.bytes),
            false => stored.at + BLOCK_BYTES as u64,
        };
        true
    })?;
    // A short rest is a part of a frame that a killed writer left. A longer rest may contain intact frames after a
    // frame with a damaged header; they cannot be found, but stay in the file.
    let is_rest = !zstd || len - end <= most_frame_bytes(BLOCK_BYTES) as u64;
    if end < len && is_rest {
        file.set_len(end)?;
    } else {
        end = len;
    }
    Ok((end, gathered.take()))
}
