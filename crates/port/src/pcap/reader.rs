//! The reading side: a thread reads and indexes the file ahead of the data path, which makes packets of the indexed
//! frames in place.

use super::blocks::{BLOCKS, Blocks};
use super::capture_file::CaptureFile;
use super::index::{End, Entry, Filled, Index};
use crate::{BATCH_CAPACITY, Batch, Packet, PoolHandle, PortCounters, PortError};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use taut_sys::spawn_background;
use taut_sys::{Clock, ticks};

/// The index of an empty block that the reading thread is to fill, and an empty list for the block's frames.
type Empty = (usize, Vec<Entry>);

/// The index of a block that the reading thread has filled, and the frames in the block.
type Full = (usize, Filled);

/// The end of the reader that the data path uses: it makes packets of the frames in blocks that the reading thread has
/// filled.
pub(super) struct Reader {
    blocks: Arc<Blocks>,
    full: Receiver<Full>,
    /// Channel for empty blocks to the reading thread; None once there is nothing left to read.
    empty: Option<SyncSender<Empty>>,
    thread: Option<JoinHandle<()>>,
    current: Option<Current>,
    /// For each block, the number of frames that are still to be delivered or that packets use.
    in_use: [u32; BLOCKS],
    /// List of the frames of each block, while packets use them.
    lists: [Vec<Entry>; BLOCKS],
    /// Record of the frames that packets still use. It owns the memory of the blocks.
    ledger: PoolHandle,
    pace: Pace,
    /// Capture times of the last delivered frames, ns since 1970; 0 if the file has none.
    times_ns: Vec<u64>,
    /// Reason why reading stopped (end of the file, or damage); None until the last frame has been delivered.
    ended: Option<End>,
}

/// The block with the frames that are delivered now.
struct Current {
    number: usize,
    entries: Vec<Entry>,
    next: usize,
    end: Option<End>,
}

/// The clock by which frames are delivered at their send times.
struct Pace {
    /// Nanoseconds per clock cycle; 0 if every frame is delivered immediately.
    ns_per_tick: f64,
    /// Cycle count at which the first frame was requested; None before.
    start_ticks: Option<u64>,
}

impl Pace {
    /// Returns the nanoseconds since the first call.
    #[inline(always)]
    fn now_ns(&mut self) -> u64 {
        if self.ns_per_tick == 0.0 {
            return u64::MAX;
        }
        let now = ticks();
        let start = *self.start_ticks.get_or_insert(now);
        (now.wrapping_sub(start) as f64 * self.ns_per_tick) as u64
    }
}

impl Reader {
    /// Starts reading `file`, `rounds` times. With `clock`, frames are paced by their capture times, otherwise they are
    /// delivered as fast as they are requested.
    ///
    /// # Errors
    /// The machine lacks the memory or the thread, or the start of the file is invalid, as described by `wrong`.
    pub(super) fn start(
        file: CaptureFile,
        rounds: u64,
        clock: Option<Clock>,
        wrong: impl FnOnce(&End) -> PortError,
    ) -> Result<Self, PortError> {
        let blocks = Arc::new(Blocks::new()?);
        let (give_full, full) = sync_channel(BLOCKS);
        let (empty, take_empty) = sync_channel(BLOCKS);
        let mut index = Index::new(file, rounds);
        let list = || Vec::with_capacity(super::index::ENTRIES);
        // SAFETY: no other code has the number of a block yet.
        let filled = index.fill(unsafe { blocks.bytes(0) }, list());
        let bad = matches!(
            filled.end,
            Some(End::Damaged(..) | End::Unreadable(..) | End::Truncated(0))
        );
        if let Some(end) = &filled.end
            && bad
            && filled.entries.is_empty()
        {
            return Err(wrong(end));
        }
        let done = filled.end.is_some();
        // The channel has space for every block.
        let _ = give_full.try_send((0, filled));
        for number in 1..BLOCKS {
            let _ = empty.try_send((number, list()));
        }
        let thread = if done {
            None
        } else {
            let blocks = Arc::clone(&blocks);
            Some(spawn_background("pcap-read", move || {
                read_ahead(index, &blocks, &take_empty, &give_full);
            })?)
        };
        let most = BLOCKS * super::index::ENTRIES;
        Ok(Self {
            ledger: PoolHandle::ledger_keeping(most as u32, Box::new(Arc::clone(&blocks))),
            blocks,
            full,
            empty: Some(empty),
            thread,
            current: None,
            in_use: [0; BLOCKS],
            lists: Default::default(),
            times_ns: Vec::with_capacity(BATCH_CAPACITY),
            pace: Pace {
                ns_per_tick: clock.map_or(0.0, |c| c.to_ns(1 << 32) / (1_u64 << 32) as f64),
                start_ticks: None,
            },
            ended: None,
        })
    }

    /// Returns why reading stopped (end or damage), once the last frame has been delivered; None before.
    pub(super) fn ended(&self) -> Option<&End> {
        self.ended.as_ref()
    }

    /// Returns the capture times of the last delivered frames, ns since 1970; 0 if the file has none.
    pub(super) fn times_ns(&self) -> &[u64] {
        &self.times_ns
    }

    /// Appends to `batch` the frames whose send time has been reached; returns their number.
    #[inline]
    pub(super) fn rx(&mut self, batch: &mut Batch, counters: &mut PortCounters) -> usize {
        if self.ledger.has_returned() {
            self.take_back();
        }
        let now_ns = self.pace.now_ns();
        let before = batch.len();
        let mut bytes = 0;
        self.times_ns.clear();
        while batch.room() > 0 {
            let Some(current) = &mut self.current else {
                if self.next_block(counters) {
                    continue;
                }
                break;
            };
            let Some(&entry) = current.entries.get(current.next) else {
                self.finish_block();
                continue;
            };
            if entry.due_ns > now_ns {
                break;
            }
            current.next += 1;
            self.times_ns.push(entry.time_ns);
            bytes += u64::from(entry.len);
            let number = current.number;
            // SAFETY: the index checked that the frame and the header before it are inside the block. This side owns
            // the block until the ledger has all of its frames back. Each frame has one entry, and the ledger keeps the
            // memory.
            batch.push(unsafe {
                let data = self.blocks.start(number).add(entry.at as usize);
                self.ledger.count_out(1);
                Packet::new(
                    data,
                    entry.len,
                    entry.headroom,
                    self.ledger.raw(),
                    number as u32,
                )
            });
        }
        let received = batch.len() - before;
        counters.rx_packets += received as u64;
        counters.rx_bytes += bytes;
        received
    }

    /// Processes the frames that packets have released, and returns to the reading thread all blocks without a frame in
    /// use.
    #[inline(always)]
    fn take_back(&mut self) {
        let ledger = self.ledger.clone();
        ledger.drain_returned(|number| self.release(number as usize));
    }

    #[inline(always)]
    fn release(&mut self, number: usize) {
        self.in_use[number] -= 1;
        if self.in_use[number] == 0 {
            self.pass_on(number);
        }
    }

    /// Returns a block to the reading thread; called when no frame of the block is in use any more.
    #[cold]
    fn pass_on(&mut self, number: usize) {
        let list = std::mem::take(&mut self.lists[number]);
        if let Some(empty) = &self.empty {
            // The channel has space for every block; the thread may have ended.
            let _ = empty.try_send((number, list));
        }
    }

    /// Advances to the next block that the reading thread has filled; returns false if there is none.
    #[cold]
    fn next_block(&mut self, counters: &mut PortCounters) -> bool {
        if self.ended.is_some() {
            return false;
        }
        match self.full.try_recv() {
            Ok((number, filled)) => {
                counters.rx_malformed += filled.cut_frames + filled.other_frames;
                counters.rx_too_long += filled.long_frames;
                // The count is one too high until all frames of the block are delivered, so that the block is not
                // returned before.
                self.in_use[number] = filled.entries.len() as u32 + 1;
                self.current = Some(Current {
                    number,
                    entries: filled.entries,
                    next: 0,
                    end: filled.end,
                });
                true
            }
            Err(TryRecvError::Empty) => false,
            Err(TryRecvError::Disconnected) => {
                self.ended = Some(End::Unreadable(0, "the reading thread died".to_string()));
                false
            }
        }
    }

    #[cold]
    fn finish_block(&mut self) {
        if let Some(current) = self.current.take() {
            self.lists[current.number] = current.entries;
            self.ended = current.end;
            self.release(current.number);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // The thread waits for empty blocks, and ends when the channel is closed.
        self.empty = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn read_ahead(
    mut index: Index<CaptureFile>,
    blocks: &Blocks,
    empty: &Receiver<Empty>,
    full: &SyncSender<Full>,
) {
    let mut filled = Filled::default();
    while let Ok((number, list)) = empty.recv() {
        let mut list = list;
        loop {
            // SAFETY: this thread owns the block, because it received the block's number and has not passed it on yet.
            let next = index.fill(unsafe { blocks.bytes(number) }, list);
            filled.cut_frames += next.cut_frames;
            filled.long_frames += next.long_frames;
            filled.other_frames += next.other_frames;
            filled.end = next.end;
            if !next.entries.is_empty() || filled.end.is_some() {
                filled.entries = next.entries;
                break;
            }
            list = next.entries;
        }
        let done = filled.end.is_some();
        // Sending fails only if the port is closed.
        if full.send((number, std::mem::take(&mut filled))).is_err() || done {
            return;
        }
    }
}
