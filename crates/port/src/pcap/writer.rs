//! The writing side: frames are gathered in large blocks, which a thread writes to the file.
//!
//! The file is a valid capture at all times, unless the system has written a block only in part. If the disk is full,
//! the file is truncated after its last complete frame.

use super::record::Format;
use crate::{Batch, PortError};
use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};
use taut_sys::{Locked, spawn_background};

/// The number of bytes in one block, which the thread writes to the file with one call.
const BLOCK_BYTES: usize = 256 << 10;

/// The number of blocks of a writer, one of which is being filled: 16 MiB bridge the occasional pauses of a disk.
const BLOCKS: usize = 64;

/// The number of link checks after which a partly filled block is written. A worker makes ten checks per second.
const LINK_CALLS: u32 = 5;

/// A block of complete records, the number of its frames, and the sum of their lengths.
#[derive(Default)]
struct Block {
    records: Vec<u8>,
    frames: u64,
    frame_bytes: u64,
}

/// The progress that the writing thread reports to the data path.
#[derive(Default)]
struct Progress {
    /// Number of frames in the file.
    written: AtomicU64,
    /// Number of frames that were not written; `lost_bytes` is the sum of their lengths.
    lost: AtomicU64,
    lost_bytes: AtomicU64,
    failed: AtomicBool,
    why: Mutex<String>,
}

/// The end of the writer that the data path uses: it gathers frames in blocks for the writing thread.
pub(super) struct Writer {
    format: Format,
    block: Block,
    link_calls: u32,
    /// Time from arrival to sending of the last packet with an arrival time, ns. Packets without an arrival time are
    /// assigned the same age, so that the times of a replayed capture are not mixed with the current time.
    age_ns: u64,
    /// Channel for full blocks to the thread; None once the writer is closed.
    full: Option<SyncSender<Block>>,
    empty: Receiver<Block>,
    progress: Arc<Progress>,
    thread: Option<JoinHandle<()>>,
}

/// The frames of a writer that did not reach the file.
pub(super) struct Lost {
    pub(super) frames: u64,
    pub(super) bytes: u64,
}

impl Writer {
    /// Starts writing to `file`, which must be open for writing and is overwritten.
    ///
    /// # Errors
    /// The start of the file cannot be written, or the machine cannot start a thread.
    pub(super) fn start(mut file: File, format: Format, what: &str) -> Result<Self, PortError> {
        let failed = |e: io::Error| PortError::system(what, e);
        let regular = file.metadata().map_err(failed)?.is_file();
        if regular {
            file.set_len(0).map_err(failed)?;
        }
        let start = format.start();
        file.write_all(&start).map_err(failed)?;
        let (full, take_full) = sync_channel(BLOCKS);
        let (give_empty, empty) = sync_channel(BLOCKS);
        let block = || Block {
            records: Vec::with_capacity(BLOCK_BYTES),
            ..Block::default()
        };
        for _ in 1..BLOCKS {
            // The channel has space for every block.
            let _ = give_empty.try_send(block());
        }
        let progress = Arc::new(Progress::default());
        let thread = {
            let mut sink = Sink {
                file,
                format,
                regular,
                bytes: start.len() as u64,
                progress: Arc::clone(&progress),
            };
            spawn_background("pcap-write", move || {
                while let Ok(mut block) = take_full.recv() {
                    sink.put(&block);
                    block.records.clear();
                    (block.frames, block.frame_bytes) = (0, 0);
                    let _ = give_empty.try_send(block);
                }
            })?
        };
        Ok(Self {
            format,
            block: block(),
            link_calls: 0,
            age_ns: 0,
            full: Some(full),
            empty,
            progress,
            thread: Some(thread),
        })
    }

    /// Takes frames from the front of `batch` as long as there is memory for them. Returns their number and the sum of
    /// their lengths.
    #[inline]
    pub(super) fn tx(&mut self, batch: &mut Batch) -> (usize, u64) {
        // This is not a system call on the supported machines, and one time is used for the batch.
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ns = now.map_or(0, |t| t.as_nanos() as u64);
        let arrivals = batch.arrivals();
        let (mut taken, mut bytes) = (0, 0);
        for (index, packet) in batch.packets().iter().enumerate() {
            let frame = packet.bytes();
            if let Some(arrived_ns) = arrivals.get(index).filter(|it| **it > 0) {
                self.age_ns = now_ns.wrapping_sub(*arrived_ns);
            }
            let time_ns = now_ns.wrapping_sub(self.age_ns);
            let room = BLOCK_BYTES - self.block.records.len();
            if self.format.record_bytes(frame.len()) > room && !self.hand_over() {
                break;
            }
            self.format.append(&mut self.block.records, frame, time_ns);
            self.block.frames += 1;
            self.block.frame_bytes += frame.len() as u64;
            bytes += frame.len() as u64;
            taken += 1;
        }
        batch.take_front(taken, drop);
        (taken, bytes)
    }

    /// Passes the current block to the writing thread and continues with an empty one; returns false if no block is
    /// empty.
    #[cold]
    fn hand_over(&mut self) -> bool {
        let (Some(full), Ok(empty)) = (&self.full, self.empty.try_recv()) else {
            return false;
        };
        self.link_calls = 0;
        // The channel has space for every block; the thread lives as long as this sender.
        let _ = full.try_send(std::mem::replace(&mut self.block, empty));
        true
    }

    /// Passes a partly filled block to the writing thread after [`LINK_CALLS`] calls; called at each link check.
    pub(super) fn look(&mut self) {
        if self.block.frames == 0 {
            return;
        }
        self.link_calls += 1;
        if self.link_calls >= LINK_CALLS {
            self.hand_over();
        }
    }

    /// Returns the frames that did not reach the file.
    pub(super) fn lost(&self) -> Lost {
        Lost {
            frames: self.progress.lost.load(Ordering::Relaxed),
            bytes: self.progress.lost_bytes.load(Ordering::Relaxed),
        }
    }

    /// Returns the reason why writing has failed, if it has.
    pub(super) fn failure(&self) -> Option<String> {
        // Acquire: the reason was stored before the flag.
        self.progress.failed.load(Ordering::Acquire).then(|| {
            let why = self.progress.why.lock();
            why.unwrap_or_else(PoisonError::into_inner).clone()
        })
    }

    /// Writes the remaining frames and waits until they are in the file.
    pub(super) fn close(&mut self) {
        if let Some(full) = self.full.take()
            && self.block.frames > 0
        {
            let _ = full.send(std::mem::take(&mut self.block));
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}

/// The state of the thread that writes frames to the file.
struct Sink {
    file: File,
    format: Format,
    /// True if the file is neither a device nor a pipe, so that it can be truncated.
    regular: bool,
    /// Number of bytes of complete records in the file.
    bytes: u64,
    progress: Arc<Progress>,
}

impl Sink {
    fn put(&mut self, block: &Block) {
        let (mut frames, mut frame_bytes, mut failure) = (0, 0, None);
        if !self.progress.failed.load(Ordering::Relaxed) {
            let (written, result) = write_most(&mut self.file, &block.records);
            let mut whole = written;
            (frames, frame_bytes) = (block.frames, block.frame_bytes);
            if let Err(error) = result {
                (whole, frames, frame_bytes) = self.format.whole(&block.records, written);
                failure = Some(error);
            }
            self.bytes += whole as u64;
        }
        let progress = &self.progress;
        progress.written.fetch_add(frames, Ordering::Relaxed);
        let lost = (block.frames - frames, block.frame_bytes - frame_bytes);
        progress.lost.fetch_add(lost.0, Ordering::Relaxed);
        progress.lost_bytes.fetch_add(lost.1, Ordering::Relaxed);
        if let Some(error) = failure {
            self.fail(&error);
        }
    }

    #[cold]
    fn fail(&self, error: &io::Error) {
        let written = self.progress.written.load(Ordering::Relaxed);
        let mut why = format!("{error}; {written} frames are in the file");
        if self.regular && self.file.set_len(self.bytes).is_err() {
            why += " and a part of one";
        }
        *self
            .progress
            .why
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = why;
        // Release: a thread that sees this flag sees the reason.
        self.progress.failed.store(true, Ordering::Release);
    }
}

/// Writes as many of `bytes` as possible. Returns the number of bytes written, and the error if that is not all.
fn write_most(file: &mut File, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(n) => written += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, Ok(()))
}

/// Locks a file for reading (by any number) or writing (by one) until the returned lock is dropped, so that no port
/// overwrites a file in use.
///
/// # Errors
/// Another program or port has a conflicting lock.
pub(super) fn claim(file: &File, writing: bool, what: &str) -> Result<Option<Locked>, PortError> {
    let copy = file.try_clone().map_err(|e| PortError::system(what, e))?;
    let locked = match writing {
        true => Locked::exclusive(copy),
        false => Locked::shared(copy),
    };
    match locked {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(PortError::missing(
            what,
            "a file that no other port reads or writes at this moment; choose another name",
        )),
        // Not every file system supports locks.
        locked => Ok(locked.ok()),
    }
}
