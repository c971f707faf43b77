//! A record that has summaries and optionally a live view, samples of every packet, and the frames of the slowest
//! packets.

use super::{Record, Summaries, compiled_here};
use crate::{FromIntended, Live, Sampler, Slowest, WorstPackets};

/// The records of one stream.
pub struct Observed {
    /// Histograms and sequence statistics.
    pub summaries: Summaries,
    /// Latencies from the intended send time.
    pub intended: FromIntended,
    /// Latencies and arrival times of the slowest packets.
    pub slowest: Slowest,
    /// The numbers of the stream that a live view displays.
    pub live: Live,
    /// Sampler of every packet; none if no file of samples is written.
    pub sampler: Option<Sampler>,
    /// Frames of the slowest packets; none if these frames are not stored.
    pub worst: Option<WorstPackets>,
}

impl Record for Observed {
    compiled_here!(run, Self);

    #[inline(always)]
    fn sent(&mut self, sequence: u64, due_ticks: u64, send_delay_ticks: u64) {
        self.summaries.sent(sequence, due_ticks, send_delay_ticks);
        self.intended.sent(sequence, send_delay_ticks);
        let seen = &self.summaries.sequence;
        self.live.sent(sequence, due_ticks, send_delay_ticks, seen);
        if let Some(sampler) = &mut self.sampler {
            sampler.sent(sequence, due_ticks, send_delay_ticks);
        }
    }

    #[inline(always)]
    fn refused(&mut self, sequence: u64) {
        self.summaries.refused(sequence);
        self.live.refused();
        if let Some(sampler) = &mut self.sampler {
            sampler.refused(sequence);
        }
    }

    #[inline(always)]
    fn received(&mut self, sequence: u64, latency_ticks: u64, seen_ticks: u64) {
        self.arrived(sequence, latency_ticks, seen_ticks);
    }

    #[inline(always)]
    fn received_frame(&mut self, sequence: u64, latency_ticks: u64, seen_ticks: u64, frame: &[u8]) {
        let is_new = self.arrived(sequence, latency_ticks, seen_ticks);
        if let Some(worst) = &mut self.worst
            && is_new
        {
            worst.received(sequence, latency_ticks, seen_ticks, frame);
        }
    }

    fn received_unique(&self) -> Option<u64> {
        self.summaries.received_unique()
    }

    #[inline(always)]
    fn stamped(&mut self, latency_ns: f64) {
        self.summaries.stamped(latency_ns);
    }

    fn corrupt(&mut self, sequence: u64) {
        self.live.corrupt();
        if let Some(sampler) = &mut self.sampler {
            sampler.corrupt(sequence);
        }
    }

    #[inline(always)]
    fn interrupted(&mut self) {
        self.summaries.interrupted();
    }
}

impl Observed {
    /// Processes a packet that came back, and returns true if it is the first copy of the packet.
    #[inline(always)]
    fn arrived(&mut self, sequence: u64, latency_ticks: u64, seen_ticks: u64) -> bool {
        if let Some(sampler) = &mut self.sampler {
            sampler.received(sequence, latency_ticks, seen_ticks);
        }
        let is_new = self.summaries.arrived(sequence, latency_ticks);
        if is_new {
            self.intended.received(sequence, latency_ticks);
            self.slowest.received(latency_ticks, seen_ticks);
            self.live.received(sequence, latency_ticks, seen_ticks);
        }
        is_new
    }
}
