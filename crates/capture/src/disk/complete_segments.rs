//! The complete segments of a ring on disk, and the thread that creates their indexes.

use super::counts::Written;
use super::folder::{Folder, Name};
use super::index::{Finished, Index, most_bytes};
use super::segment::recover;
use super::{BLOCK_BYTES, DiskError};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use taut_sys::spawn_background;

/// A complete segment: a pcapng file that is not written any more.
#[derive(Debug)]
struct Complete {
    name: Name,
    bytes: u64,
    /// Size of the segment's index in bytes; none if the segment has no index yet.
    index_bytes: Option<u64>,
}

/// The size of a segment and the size of the index that was made for it, in bytes; none if the segment contains no
/// packet.
type Made = Option<(u64, u64)>;

/// The creation of one segment's index by a thread.
#[derive(Debug)]
struct Job {
    name: Name,
    thread: JoinHandle<()>,
    result: Receiver<io::Result<Made>>,
}

/// The complete segments of a ring on disk.
#[derive(Debug)]
pub(super) struct Kept {
    folder: Arc<Folder>,
    segment_bytes: u64,
    /// Segment files of the ring, the oldest first.
    segments: VecDeque<Complete>,
    job: Option<Job>,
    /// Segments that wait for a thread to create their index.
    owed: VecDeque<Name>,
    /// Remaining calls of [`Kept::work_off`] before another attempt to create an index that could not be created: each
    /// attempt reads a segment.
    pause: u32,
}

/// Number of calls of [`Kept::work_off`] before another attempt to create an index after a failure.
const PAUSE: u32 = 60;

impl Kept {
    /// Lists the segments and indexes in a folder. Removes incomplete indexes, and indexes without a segment.
    pub(super) fn find(folder: Folder, segment_bytes: u64) -> Result<Self, DiskError> {
        let failed = |e| DiskError::folder(folder.path(), e);
        let names = folder.segments().map_err(failed)?;
        folder.sweep(&names).map_err(failed)?;
        let (mut segments, mut owed) = (VecDeque::new(), VecDeque::new());
        for name in names {
            let bytes = match folder.open(&name.segment(), false) {
                Ok(file) => file.metadata().map_err(failed)?.len(),
                // The file is not a segment of this program: its size counts as 0, and it is removed like any other
                // file.
                Err(_) => 0,
            };
            let index_bytes = folder.open(&name.index(), false).and_then(|file| {
                let len = file.metadata()?.len();
                Ok((Index::open(file)?.segment_bytes == bytes).then_some(len))
            });
            let index_bytes = index_bytes.ok().flatten();
            if index_bytes.is_none() {
                owed.push_back(name);
            }
            segments.push_back(Complete {
                name,
                bytes,
                index_bytes,
            });
        }
        Ok(Self {
            folder: Arc::new(folder),
            segment_bytes,
            segments,
            job: None,
            owed,
            pause: 0,
        })
    }

    pub(super) fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Returns the number for the next segment: one more than the highest number of a segment.
    pub(super) fn next_number(&self) -> u64 {
        let newest = self.segments.back();
        newest.map_or(0, |newest| newest.name.number.saturating_add(1))
    }

    /// Returns the number of segments without an index.
    pub(super) fn without_index(&self) -> u64 {
        (self.owed.len() + usize::from(self.job.is_some())) as u64
    }

    /// Returns the size in bytes of all segments and their indexes; an index that is missing counts with the maximum size.
    pub(super) fn bytes(&self) -> u64 {
        let index_bytes = most_bytes(self.segment_bytes);
        let bytes = |it: &Complete| it.bytes + it.index_bytes.unwrap_or(index_bytes);
        self.segments.iter().map(bytes).sum()
    }

    /// Adds a complete segment; a thread creates the segment's index from the collected data `finished`.
    pub(super) fn add(&mut self, name: Name, bytes: u64, finished: Finished) {
        self.push(name, bytes);
        // An index usually takes less time than a segment takes to fill; otherwise the caller waits here.
        self.end_job(true);
        self.start_job(name, move |folder| {
            write_index(folder, name, bytes, &finished)
        });
    }

    /// Adds a segment that has to be read before its index can be created.
    pub(super) fn add_unread(&mut self, name: Name, bytes: u64) {
        self.push(name, bytes);
        self.owed.push_back(name);
    }

    fn push(&mut self, name: Name, bytes: u64) {
        self.segments.push_back(Complete {
            name,
            bytes,
            index_bytes: None,
        });
    }

    /// Removes the oldest segment. Returns false if there is no segment.
    pub(super) fn remove_oldest(&mut self, counts: &mut Written) -> io::Result<bool> {
        let Some(name) = self.segments.front().map(|oldest| oldest.name) else {
            return Ok(false);
        };
        // The thread is awaited, because otherwise it could write an index for a segment that has been removed.
        if let Some(job) = self.job.take_if(|job| job.name == name) {
            let _ = job.thread.join();
        }
        self.folder.remove(name)?;
        self.owed.retain(|owed| *owed != name);
        self.segments.pop_front();
        counts.removed += 1;
        Ok(true)
    }

    /// Stores the index that the indexing thread has finished, and starts the next pending index.
    pub(super) fn work_off(&mut self) {
        self.end_job(false);
        self.pause = self.pause.saturating_sub(1);
        if self.job.is_none()
            && self.pause == 0
            && let Some(name) = self.owed.pop_front()
        {
            self.start_job(name, move |folder| mend(folder, name));
        }
    }

    /// Waits until each segment has an index, or the attempt to create the index has failed.
    pub(super) fn settle(&mut self) {
        self.end_job(true);
        for _ in 0..self.owed.len() {
            self.pause = 0;
            self.work_off();
            self.end_job(true);
        }
    }

    fn start_job(
        &mut self,
        name: Name,
        make: impl FnOnce(&Folder) -> io::Result<Made> + Send + 'static,
    ) {
        let folder = Arc::clone(&self.folder);
        let (give, result) = channel();
        let started = spawn_background("capture-index", move || {
            let _ = give.send(make(&folder));
        });
        match started {
            Ok(thread) => {
                self.job = Some(Job {
                    name,
                    thread,
                    result,
                });
            }
            Err(_) => self.owed.push_back(name),
        }
    }

    /// Accepts the result of the indexing thread, if it has ended; waits for the thread if `wait` is set.
    pub(super) fn end_job(&mut self, wait: bool) {
        let is_over = |job: &mut Job| wait || job.thread.is_finished();
        let Some(job) = self.job.take_if(is_over) else {
            return;
        };
        // A thread that panicked has sent nothing.
        let _ = job.thread.join();
        let is_it = |it: &Complete| it.name == job.name;
        let Some(place) = self.segments.iter().position(is_it) else {
            return;
        };
        match job.result.try_recv() {
            Ok(Ok(Some((bytes, index_bytes)))) => {
                self.segments[place].bytes = bytes;
                self.segments[place].index_bytes = Some(index_bytes);
            }
            Ok(Ok(None)) => drop(self.segments.remove(place)),
            _ => {
                self.owed.push_back(job.name);
                self.pause = PAUSE;
            }
        }
    }
}

/// Writes the index of a segment of `bytes` bytes; returns the sizes of the segment and the index.
fn write_index(folder: &Folder, name: Name, bytes: u64, finished: &Finished) -> io::Result<Made> {
    let index = finished.encode(bytes);
    folder.write_index(name, &index)?;
    Ok(Some((bytes, index.len() as u64)))
}

/// Repairs a segment that a killed writer left, and creates its index; returns the sizes of both.
fn mend(folder: &Folder, name: Name) -> io::Result<Made> {
    let file = folder.open(&name.segment(), true)?;
    let (bytes, finished) = recover(&file, name.zstd)?;
    // A compressed segment that is damaged at its start is not removed, as other tools may recover a part of it.
    let is_beyond_us = name.zstd && bytes > BLOCK_BYTES as u64;
    if finished.packets() == 0 && !is_beyond_us {
        folder.remove(name)?;
        return Ok(None);
    }
    write_index(folder, name, bytes, &finished)
}
