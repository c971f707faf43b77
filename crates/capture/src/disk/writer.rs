//! The writer of a ring on disk: appends packets to the newest segment file, and removes the oldest ones.

use super::complete_segments::Kept;
use super::counts::Written;
use super::folder::{Folder, Name};
use super::index::{Gathered, most_bytes};
use super::segment::{Buffer, Segment};
use super::{BLOCK_BYTES, DiskError, MOST_BLOCKS, SEGMENT_BYTES};
use crate::pcapng::{self, STATISTICS_BYTES, Section, Statistics};
use crate::record::{PORTS, Record};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Longest time for which a packet is only in memory, before it is written to disk. It is also the interval of retries
/// after a failure.
const PERIOD: Duration = Duration::from_secs(1);

/// The settings of the writer of a ring on disk.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Folder of the ring, which is created if it does not exist. This user has to own it.
    pub folder: PathBuf,
    /// Maximum number of bytes of all files in the folder, including indexes.
    pub limit_bytes: u64,
    /// Size of a segment in bytes: complete MiB, from 2 MiB to 8 GiB. A query reads the newest segment completely, as
    /// it has no index yet.
    pub segment_bytes: u64,
    /// Names of the ports; the index of a name is the port number in records.
    pub ports: Vec<String>,
    /// Snap length in bytes, as stated in the files; 0 for no limit.
    pub snap_bytes: u32,
    /// True if segments are compressed by zstd; their size then counts the uncompressed bytes.
    pub zstd: bool,
    /// Texts in the section header of each file.
    pub texts: Section,
}

impl Settings {
    /// Returns the settings of a ring in a folder, with segments of [`SEGMENT_BYTES`].
    pub fn new(folder: impl Into<PathBuf>, limit_bytes: u64, ports: Vec<String>) -> Self {
        Self {
            folder: folder.into(),
            limit_bytes,
            segment_bytes: SEGMENT_BYTES,
            ports,
            snap_bytes: 0,
            zstd: false,
            texts: Section::default(),
        }
    }

    /// Returns the minimum size in bytes of a ring of such segments: the segment that is being written, the previous
    /// one, and their indexes.
    pub fn least_bytes(segment_bytes: u64) -> u64 {
        2 * (segment_bytes + most_bytes(segment_bytes))
    }

    fn check(&self) -> Result<(), DiskError> {
        let segment_bytes = self.segment_bytes;
        let most = (MOST_BLOCKS * BLOCK_BYTES) as u64;
        if !(2 * BLOCK_BYTES as u64..=most).contains(&segment_bytes)
            || !segment_bytes.is_multiple_of(BLOCK_BYTES as u64)
        {
            return Err(DiskError::Segment { segment_bytes });
        }
        let ports = self.ports.len();
        if !(1..=PORTS).contains(&ports) {
            return Err(DiskError::Ports { ports });
        }
        let least_bytes = Self::least_bytes(segment_bytes);
        let limit_bytes = self.limit_bytes;
        if limit_bytes < least_bytes {
            return Err(DiskError::Small {
                limit_bytes,
                segment_bytes,
                least_bytes,
            });
        }
        Ok(())
    }
}

/// The writer of a ring on disk.
///
/// A writer belongs to one thread. The cost per packet is a copy and the parsing of the headers; a full block (1 MiB)
/// is written immediately, and the caller waits for that. A separate thread creates indexes. Memory: the block, and 8
/// bytes for each of at most 16,384 keys of each block (32 MiB for segments of 256 MiB). While an index is created, the
/// keys of its segment take the same amount again, and the index takes up to 48 MiB.
///
/// When the process is killed, the packets in memory are lost: up to one second. A power failure may also lose data
/// that the file system has not written yet (ext4: 5 s), because the writer does not wait for the disk.
#[derive(Debug)]
pub struct Writer {
    settings: Settings,
    /// Complete segments; none after a failure, until the next retry.
    kept: Option<Kept>,
    segment: Option<Segment>,
    buffer: Buffer,
    gathered: Gathered,
    statistics: Vec<Statistics>,
    /// Time of the latest packet that was appended, ns since 1970.
    last_ns: u64,
    counts: Written,
    last_tick: Option<Instant>,
    /// True if a failure was reported, and no write has succeeded since then.
    told: bool,
}

impl Writer {
    /// Opens a ring on disk for writing, and continues an existing one.
    ///
    /// # Errors
    /// Returns an error if settings are wrong, this user does not own the folder, or another process writes into it.
    pub fn open(settings: Settings) -> Result<Self, DiskError> {
        settings.check()?;
        let folder = Folder::take(&settings.folder, true)?;
        let mut kept = Kept::find(folder, settings.segment_bytes)?;
        kept.work_off();
        Ok(Self {
            kept: Some(kept),
            segment: None,
            buffer: Buffer::new(),
            gathered: Gathered::new(),
            statistics: vec![Statistics::default(); settings.ports.len()],
            last_ns: 0,
            counts: Written::default(),
            last_tick: None,
            told: false,
            settings,
        })
    }

    /// Returns the counts of packets and segments since the writer was opened.
    pub fn counts(&self) -> Written {
        Written {
            without_index: self.kept.as_ref().map_or(0, Kept::without_index),
            ..self.counts
        }
    }

    /// Returns true while packets are lost because they cannot be written.
    pub fn is_failing(&self) -> bool {
        self.kept.is_none()
    }

    /// Sets the statistics of a port, which are written at the end of each segment.
    pub fn set_statistics(&mut self, port: usize, statistics: Statistics) {
        if let Some(place) = self.statistics.get_mut(port) {
            *place = statistics;
        }
    }

    /// Appends a packet. [`Writer::tick`] has to be called too.
    ///
    /// # Errors
    /// Returns an error once when packets cannot be written any more. From then on packets count as lost, until
    /// [`Writer::tick`] has retried with success.
    #[inline]
    pub fn append(&mut self, record: &Record<'_>) -> Result<(), DiskError> {
        let bytes = pcapng::packet_bytes(record, "");
        let has_room = match &self.segment {
            Some(segment) => segment.has_room(bytes, &self.buffer),
            None => false,
        };
        if usize::from(record.facts.port) >= self.statistics.len() {
            self.counts.lost += 1;
            return Ok(());
        }
        if !has_room && let Err(e) = self.make_room(record.facts.time_ns, bytes) {
            self.counts.lost += 1;
            return self.fail(e);
        }
        let Some(segment) = &mut self.segment else {
            self.counts.lost += 1;
            return Ok(());
        };
        segment.add(record, &mut self.buffer);
        self.gathered.add(record);
        self.counts.packets += 1;
        self.last_ns = self.last_ns.max(record.facts.time_ns);
        Ok(())
    }

    /// Makes sure that the buffered block has space for the given number of bytes; does nothing after a failure, until
    /// the next retry.
    #[cold]
    fn make_room(&mut self, time_ns: u64, bytes: usize) -> io::Result<()> {
        let (Some(segment), Some(kept)) = (&mut self.segment, &mut self.kept) else {
            return self.begin(time_ns);
        };
        if segment.is_last() {
            self.end_segment()?;
            return self.begin(time_ns);
        }
        let mut free = || free(kept, &mut self.counts);
        segment.end_block(&mut self.buffer, &mut self.gathered, &mut free)?;
        self.told = false;
        // The last block reserves space for the end of the file, but the longest frame still fits.
        debug_assert!(segment.has_room(bytes, &self.buffer));
        Ok(())
    }

    /// Begins a segment file; does nothing after a failure, until the next retry.
    fn begin(&mut self, first_ns: u64) -> io::Result<()> {
        let Some(kept) = &mut self.kept else {
            return Ok(());
        };
        let segment_bytes = self.settings.segment_bytes;
        kept.end_job(false);
        let wanted = segment_bytes + most_bytes(segment_bytes);
        while kept.bytes() + wanted > self.settings.limit_bytes
            && kept.remove_oldest(&mut self.counts)?
        {}
        let mut head = Vec::new();
        pcapng::section(&mut head, &self.settings.texts);
        for name in &self.settings.ports {
            pcapng::interface(&mut head, name, self.settings.snap_bytes);
        }
        let name = Name {
            number: kept.next_number(),
            first_ns,
            zstd: self.settings.zstd,
        };
        let segment = Segment::begin(
            kept.folder(),
            name,
            &head,
            segment_bytes,
            self.statistics.len() * STATISTICS_BYTES,
            &mut self.buffer,
        )?;
        self.segment = Some(segment);
        self.write_tail()
    }

    fn write_tail(&mut self) -> io::Result<()> {
        let (Some(segment), Some(kept)) = (&mut self.segment, &mut self.kept) else {
            return Ok(());
        };
        let mut free = || free(kept, &mut self.counts);
        segment.write_tail(&mut self.buffer, &self.gathered, &mut free)
    }

    /// Ends the segment that is being written, and starts the creation of its index.
    fn end_segment(&mut self) -> io::Result<()> {
        let (Some(segment), Some(kept)) = (&mut self.segment, &mut self.kept) else {
            return Ok(());
        };
        let mut end = Vec::new();
        for (port, statistics) in self.statistics.iter().enumerate() {
            pcapng::statistics(&mut end, port as u8, self.last_ns, statistics);
        }
        let mut free = || free(kept, &mut self.counts);
        let bytes = segment.finish(&end, &mut self.buffer, &mut self.gathered, &mut free)?;
        kept.add(segment.name, bytes, self.gathered.take());
        self.segment = None;
        self.told = false;
        Ok(())
    }

    /// Does periodic work: writes packets that have been in memory for a second, and retries failed work. The caller
    /// calls this function about ten times a second with the current time.
    ///
    /// # Errors
    /// Returns the same errors as [`Writer::append`].
    pub fn tick(&mut self, now: Instant) -> Result<(), DiskError> {
        let last = *self.last_tick.get_or_insert(now);
        if now.saturating_duration_since(last) < PERIOD {
            return Ok(());
        }
        self.last_tick = Some(now);
        if let Some(kept) = &mut self.kept {
            kept.work_off();
            return self.flush();
        }
        // The failure has been reported already.
        self.kept = Folder::take(&self.settings.folder, false)
            .and_then(|folder| Kept::find(folder, self.settings.segment_bytes))
            .ok();
        Ok(())
    }

    /// Writes all buffered packets, and checks that the file is still in the folder.
    ///
    /// # Errors
    /// Returns the same errors as [`Writer::append`].
    pub fn flush(&mut self) -> Result<(), DiskError> {
        let Some(segment) = &self.segment else {
            return Ok(());
        };
        if segment.is_removed() {
            let packets = segment.packets(&self.gathered);
            self.segment = None;
            self.lose(packets);
            let why = "its newest file was removed";
            return self.fail(io::Error::new(io::ErrorKind::NotFound, why));
        }
        match self.write_tail() {
            Ok(()) => Ok(()),
            Err(e) => self.fail(e),
        }
    }

    /// Waits until each complete segment has an index or the attempt to create its index has failed.
    pub fn settle(&mut self) {
        if let Some(kept) = &mut self.kept {
            kept.settle();
        }
    }

    /// Writes all packets, ends the segment, and waits for the index that is being created.
    ///
    /// # Errors
    /// Returns the error with which a write failed.
    pub fn finish(mut self) -> Result<Written, DiskError> {
        self.close()?;
        Ok(self.counts())
    }

    /// Ends the last segment as [`Writer::finish`] does, and keeps the counts of the writer available.
    pub(crate) fn close(&mut self) -> Result<(), DiskError> {
        let flushed = self.flush();
        let ended = self.end_segment().or_else(|e| self.fail(e));
        let ended = flushed.and(ended);
        if let Some(kept) = &mut self.kept {
            kept.end_job(true);
        }
        ended
    }

    /// Counts packets that were accepted, but could not be written, as lost.
    fn lose(&mut self, packets: u64) {
        self.counts.packets -= packets.min(self.counts.packets);
        self.counts.lost += packets;
    }

    /// Closes the segment and the folder after a failure, until the next retry. Packets that are not in the file count
    /// as lost.
    fn fail(&mut self, why: io::Error) -> Result<(), DiskError> {
        if let (Some(segment), Some(kept)) = (self.segment.take(), &mut self.kept) {
            let lost = segment.packets_outside(&self.gathered);
            match segment.give_up() {
                (_, 0) => drop(kept.folder().remove(segment.name)),
                (bytes, _) => kept.add_unread(segment.name, bytes),
            }
            self.lose(lost);
        }
        self.gathered.take();
        if let Some(mut kept) = self.kept.take() {
            // The thread also holds the folder open, and with it the lock, so the retry has to wait for the thread.
            kept.end_job(true);
        }
        if std::mem::replace(&mut self.told, true) {
            return Ok(());
        }
        Err(DiskError::Write {
            path: self.settings.folder.clone(),
            why,
        })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The result is ignored, because a caller that needs it calls `finish`.
        let _ = self.close();
    }
}

/// Removes the oldest segment when the disk is full before the limit of the ring. Returns true if a segment was
/// removed.
fn free(kept: &mut Kept, counts: &mut Written) -> bool {
    let is_freed = kept.remove_oldest(counts).is_ok_and(|it| it);
    counts.removed_early += u64::from(is_freed);
    is_freed
}
