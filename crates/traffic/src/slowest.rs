//! The packets with the longest latencies and their times, in bounded memory.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Fraction of the packets that are stored: those with latencies above the 99.9th percentile.
const SHARE: f64 = 1e-3;

/// Limit on the stored packets, so that the heap fits into a core's cache.
const MOST: usize = 4_096;

/// The slowest packets of a trial. Recording any other packet costs one comparison.
#[derive(Debug)]
pub struct Slowest {
    most: usize,
    /// Latency, and arrival time after the start of the trial, ticks: one pair per stored packet.
    kept: BinaryHeap<Reverse<(u64, u64)>>,
    least_ticks: u64,
}

impl Slowest {
    /// Makes the record of a trial of `packets` packets: one in a thousand is stored, at most 4096.
    pub fn of(packets: u64) -> Self {
        let most = ((packets as f64 * SHARE) as usize).clamp(1, MOST);
        Self {
            most,
            kept: BinaryHeap::with_capacity(most + 1),
            least_ticks: 0,
        }
    }

    /// Records a packet that came back `seen_ticks` after the start.
    #[inline(always)]
    pub fn received(&mut self, latency_ticks: u64, seen_ticks: u64) {
        if latency_ticks > self.least_ticks {
            self.keep(latency_ticks, seen_ticks);
        }
    }

    #[cold]
    fn keep(&mut self, latency_ticks: u64, seen_ticks: u64) {
        self.kept.push(Reverse((latency_ticks, seen_ticks)));
        if self.kept.len() > self.most {
            self.kept.pop();
        }
        if self.kept.len() == self.most {
            self.least_ticks = self.kept.peek().map_or(0, |Reverse((least, _))| *least);
        }
    }

    /// Returns for each stored packet its send time after the start and its latency, ticks, in the order of sending.
    pub fn packets(&self) -> Vec<(u64, u64)> {
        let sent = |Reverse((latency, seen)): &Reverse<(u64, u64)>| {
            (seen.saturating_sub(*latency), *latency)
        };
        let mut packets: Vec<_> = self.kept.iter().map(sent).collect();
        packets.sort_unstable();
        packets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_thousandth_of_all_packets_is_stored() {
        let mut slowest = Slowest::of(10_000);
        for packet in 0..10_000_u64 {
            // Each latency occurs once, and the latencies are in mixed order.
            slowest.received(packet * 7_919 % 10_000, 20_000 + packet);
        }
        let mut latencies: Vec<u64> = slowest.packets().iter().map(|packet| packet.1).collect();
        latencies.sort_unstable();
        assert_eq!(latencies, (9_990..10_000).collect::<Vec<_>>());
        assert!(slowest.packets().is_sorted());
        assert_eq!(Slowest::of(0).packets(), []);
    }
}
