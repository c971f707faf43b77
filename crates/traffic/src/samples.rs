//! Samples of every packet of a stream, written to a file in blocks by another thread.
//!
//! Packets that may still come back stay in open blocks (the window). The loop never waits for the writing thread:
//! while there is no empty block, packets are not stored, but counted as not stored.

use crate::record::{Record, compiled_here};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Packets per block.
pub const BLOCK_PACKETS: usize = 4096;

/// Number of blocks for all streams together: 2 million packets, 48 MiB. At 5 million packets a second they suffice
/// while the disk writes nothing for 0.3 s.
const BLOCKS: usize = 512;

/// Number of blocks that stay open, for all streams together: half a million packets, 0.1 s at 5 million packets a
/// second.
const OPEN_BLOCKS: usize = 128;

const NEVER: u32 = u32::MAX;

/// The data of one measured packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampled {
    /// Intended send time of the packet, ticks after the start.
    pub due_ticks: u64,
    /// Send delay of the packet, ticks, at most 2^32 - 1.
    pub send_delay_ticks: u32,
    latency_ticks: u32,
    /// Number of times that the packet came back intact, at most 255.
    pub arrivals: u8,
    /// True if a later packet came back before this one (RFC 4737).
    pub reordered: bool,
    /// True if the packet did not fit into the port's ring.
    pub refused: bool,
    /// True if the packet came back corrupt, and not intact before. The sequence number in a corrupt packet may itself
    /// be wrong.
    pub corrupt: bool,
}

impl Sampled {
    const UNUSED: Self = Self {
        due_ticks: 0,
        send_delay_ticks: 0,
        latency_ticks: NEVER,
        arrivals: 0,
        reordered: false,
        refused: false,
        corrupt: false,
    };

    /// Returns the time from the packet's timestamp to its first arrival, ticks, at most 2^32 - 2; none if the packet
    /// never came back.
    pub fn latency_ticks(&self) -> Option<u32> {
        (self.latency_ticks != NEVER).then_some(self.latency_ticks)
    }

    /// Returns true if the latency was limited to the largest value that can be stored.
    pub fn is_cut(&self) -> bool {
        self.latency_ticks == NEVER - 1
    }
}

/// A block of samples of packets with successive sequence numbers.
#[derive(Debug)]
pub struct Block {
    /// Sequence number of the first packet.
    pub first: u64,
    /// Samples of the packets, at most [`BLOCK_PACKETS`].
    pub packets: Vec<Sampled>,
}

/// The loop's side of a sampler. It is a [`Record`] by itself, or a part of another record.
pub struct Sampler {
    /// Blocks with packets that may still change; none for a block without memory.
    open: VecDeque<Option<Box<Block>>>,
    window: usize,
    /// Index of the first open block: its first sequence number divided by [`BLOCK_PACKETS`].
    first_open: u64,
    highest: Option<u64>,
    unique: u64,
    full: SyncSender<Box<Block>>,
    empty: Receiver<Box<Block>>,
    account: SamplerAccount,
}

/// Counters of packets and arrivals that are missing from the samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SamplerAccount {
    /// Sent packets without a sample, because the disk was too slow or writing failed.
    pub not_kept: u64,
    /// Arrivals of packets whose samples had already been written; these samples count the packets as lost.
    pub too_late: u64,
}

/// The writing thread's side of a sampler: receives blocks in order, and returns them to the loop after writing.
pub struct Blocks {
    full: Receiver<Box<Block>>,
    empty: SyncSender<Box<Block>>,
}

impl Blocks {
    /// Returns the next block; none at the end of the trial.
    pub fn next(&self) -> Option<Box<Block>> {
        self.full.recv().ok()
    }

    /// Returns a written block to the loop, which reuses it for new packets.
    pub fn give_back(&self, block: Box<Block>) {
        // The channel has space for every block; after the trial it may be closed.
        let _ = self.empty.try_send(block);
    }
}

/// Makes both sides of a sampler for one of `streams` streams, which share the memory evenly. All memory is touched
/// now, so that the trial causes no page faults.
pub fn sampler(streams: usize) -> (Sampler, Blocks) {
    let streams = streams.max(1);
    sampler_of((BLOCKS / streams).max(4), (OPEN_BLOCKS / streams).max(2))
}

/// Makes both sides of a sampler for one stream of at most `packets` packets. All blocks stay open, and none is
/// written, until the trial is over, so that no writing thread takes time from the measuring cores. It allocates 24
/// bytes per packet now.
pub fn sampler_of_all(packets: u64) -> (Sampler, Blocks) {
    let blocks = packets.div_ceil(BLOCK_PACKETS as u64).max(1) as usize;
    sampler_of(blocks, blocks)
}

fn sampler_of(blocks: usize, window: usize) -> (Sampler, Blocks) {
    let (full, take_full) = sync_channel(blocks);
    let (give_empty, empty) = sync_channel(blocks);
    for _ in 0..blocks {
        let mut packets = vec![Sampled::UNUSED; BLOCK_PACKETS];
        packets.clear();
        // The channel has space for every block.
        let _ = give_empty.try_send(Box::new(Block { first: 0, packets }));
    }
    let sampler = Sampler {
        open: VecDeque::with_capacity(window + 1),
        window,
        first_open: 0,
        highest: None,
        unique: 0,
        full,
        empty,
        account: SamplerAccount::default(),
    };
    let blocks = Blocks {
        full: take_full,
        empty: give_empty,
    };
    (sampler, blocks)
}

impl Sampler {
    #[cold]
    fn next_block(&mut self, sequence: u64) {
        if self.open.len() == self.window {
            self.first_open += 1;
            if let Some(Some(block)) = self.open.pop_front() {
                // The channel has space for every block. If the writing thread has failed, that thread reports the
                // error.
                let _ = self.full.try_send(block);
            }
        }
        let next = self.empty.try_recv().ok().map(|mut block| {
            block.first = sequence;
            block.packets.clear();
            block
        });
        self.open.push_back(next);
    }

    /// Returns the sample of a packet, if the packet's block is still open.
    #[inline(always)]
    fn open_mut(&mut self, sequence: u64) -> Option<&mut Sampled> {
        let Some(index) = (sequence / BLOCK_PACKETS as u64).checked_sub(self.first_open) else {
            self.account.too_late += 1;
            return None;
        };
        let block = self.open.get_mut(index as usize)?.as_mut()?;
        block
            .packets
            .get_mut((sequence % BLOCK_PACKETS as u64) as usize)
    }

    /// Passes the remaining blocks to the writing thread, and waits for it if necessary. Call it when the trial is
    /// over.
    pub fn finish(mut self) -> SamplerAccount {
        for block in self.open.drain(..).flatten() {
            // If the writing thread has failed, that thread reports the error.
            let _ = self.full.send(block);
        }
        self.account
    }
}

impl Record for Sampler {
    compiled_here!(run, Self);

    #[inline(always)]
    fn sent(&mut self, sequence: u64, due_ticks: u64, send_delay_ticks: u64) {
        if sequence.is_multiple_of(BLOCK_PACKETS as u64) {
            self.next_block(sequence);
        }
        match self.open.back_mut() {
            Some(Some(block)) if block.packets.len() < BLOCK_PACKETS => {
                block.packets.push(Sampled {
                    due_ticks,
                    send_delay_ticks: u32::try_from(send_delay_ticks).unwrap_or(u32::MAX),
                    ..Sampled::UNUSED
                });
            }
            _ => self.account.not_kept += 1,
        }
    }

    #[inline(always)]
    fn refused(&mut self, sequence: u64) {
        if let Some(packet) = self.open_mut(sequence) {
            packet.refused = true;
        }
    }

    #[inline(always)]
    fn received(&mut self, sequence: u64, latency_ticks: u64, _: u64) {
        let overtaken = self.highest.is_some_and(|highest| sequence < highest);
        if !overtaken {
            self.highest = Some(sequence);
        }
        let mut is_first = false;
        if let Some(packet) = self.open_mut(sequence) {
            if packet.arrivals == 0 {
                packet.latency_ticks = latency_ticks.min(u64::from(NEVER - 1)) as u32;
                packet.reordered = overtaken;
                packet.corrupt = false;
                is_first = true;
            }
            packet.arrivals = packet.arrivals.saturating_add(1);
        }
        self.unique += u64::from(is_first);
    }

    fn received_unique(&self) -> Option<u64> {
        Some(self.unique)
    }

    #[cold]
    fn corrupt(&mut self, sequence: u64) {
        if let Some(packet) = self.open_mut(sequence) {
            packet.corrupt = packet.arrivals == 0;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn drain(blocks: Blocks) -> Vec<(u64, Sampled)> {
        let mut all = Vec::new();
        while let Some(block) = blocks.next() {
            all.extend((block.first..).zip(block.packets.iter().copied()));
            blocks.give_back(block);
        }
        all
    }

    #[test]
    fn packet_outcomes_are_stored_in_order_across_blocks() {
        let (mut sampler, blocks) = sampler_of(8, 2);
        let n = BLOCK_PACKETS as u64 * 3 + 5;
        for sequence in 0..n {
            sampler.sent(sequence, sequence * 10, 1);
            match sequence % 10 {
                1 => {}
                2 => sampler.refused(sequence),
                3 => sampler.corrupt(sequence),
                4 => (0..2).for_each(|_| sampler.received(sequence, 7, 0)),
                6 => {
                    sampler.received(sequence, 7, 0);
                    sampler.received(sequence - 1, 9, 0);
                }
                5 => {}
                _ => sampler.received(sequence, 7, 0),
            }
        }
        assert_eq!(sampler.finish(), SamplerAccount::default());
        let all = drain(blocks);
        assert_eq!(all.len() as u64, n);
        for (index, (sequence, packet)) in all.iter().enumerate() {
            assert_eq!(
                (*sequence, packet.due_ticks),
                (index as u64, index as u64 * 10)
            );
            let arrivals = [1, 0, 0, 0, 2, 1, 1, 1, 1, 1][index % 10];
            let last = index as u64 == n - 1;
            if !last || index % 10 != 5 {
                assert_eq!(packet.arrivals, arrivals, "{index}");
                assert_eq!(packet.reordered, index % 10 == 5, "{index}");
            }
            assert_eq!(packet.latency_ticks().is_some(), packet.arrivals > 0);
            assert_eq!(packet.refused, index % 10 == 2);
            assert_eq!(packet.corrupt, index % 10 == 3);
        }
    }

    #[test]
    fn samples_without_a_writer_are_dropped_and_counted() {
        let (mut sampler, blocks) = sampler_of(4, 2);
        let n = BLOCK_PACKETS as u64 * 10;
        for sequence in 0..n {
            sampler.sent(sequence, 0, 0);
            sampler.received(sequence, 1, 0);
        }
        sampler.received(0, 1, 0);
        let account = sampler.finish();
        assert_eq!(account.not_kept, BLOCK_PACKETS as u64 * 6);
        assert_eq!(account.too_late, 1);
        assert_eq!(drain(blocks).len() as u64 + account.not_kept, n);
    }

    #[test]
    fn a_sampler_of_all_packets_stores_nothing_until_it_finishes() {
        let n = BLOCK_PACKETS as u64 + 1;
        let (mut sampler, blocks) = sampler_of_all(n);
        for sequence in 0..n {
            sampler.sent(sequence, 0, 0);
        }
        assert!(blocks.full.try_recv().is_err());
        sampler.received(1, u64::MAX, 0);
        sampler.received(0, 7, 0);
        sampler.received(0, 9, 0);
        assert_eq!(sampler.received_unique(), Some(2));
        assert_eq!(sampler.finish(), SamplerAccount::default());
        let all = drain(blocks);
        let (first, second) = (all[0].1, all[1].1);
        assert_eq!(all.len() as u64, n);
        assert_eq!((first.latency_ticks(), first.arrivals), (Some(7), 2));
        assert!(first.reordered && second.is_cut());
    }

    #[test]
    fn sampling_continues_and_counts_losses_after_the_writer_dies() {
        let (mut sampler, blocks) = sampler_of(4, 2);
        drop(blocks);
        for sequence in 0..BLOCK_PACKETS as u64 * 6 {
            sampler.sent(sequence, 0, 0);
        }
        // The writing thread may have written the blocks that it had received when it failed; all other packets count
        // as not stored.
        assert!(sampler.finish().not_kept >= BLOCK_PACKETS as u64 * 2);
    }
}
