//! Latency over time in bounded memory: the slowest packets and a thinned selection of all others. The number of
//! slowest packets, 5000, is from Gallenmüller (dissertation, TU München 2021), section 5.4.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fastrand::Rng;
use taut_model::Cause;

use taut_results::Sample;

/// Maximum number of slowest packets per device.
const WORST: usize = 5_000;
/// Maximum number of packets per device that are drawn evenly from all packets.
const BACKGROUND: u64 = 2_000;
/// Ratio of all packets of a measurement to those that count as the slowest ones.
const SLOWEST_OF: u64 = 1_000;

/// The latency of packets over time. The repetitions follow one another without gaps.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Timeline {
    /// Up to 5000 packets with the highest latencies, in the order of time: intended send time in s, latency in ns.
    pub worst: Vec<(f64, f64)>,
    /// The cause of each packet in `worst`, if it was examined.
    pub causes: Vec<Option<Cause>>,
    /// Up to 2000 packets drawn evenly from all, in the order of time: intended send time in s, latency in ns.
    pub background: Vec<(f64, f64)>,
    /// Time at which each repetition ends, s.
    pub ends: Vec<f64>,
}

impl Timeline {
    /// Returns the slowest of `packets` packets in the order of time: one in a thousand, at least one.
    pub fn slowest(&self, packets: u64) -> Vec<(f64, f64)> {
        let mut worst = self.worst.clone();
        worst.sort_by(|a, b| b.1.total_cmp(&a.1));
        worst.truncate(packets.div_ceil(SLOWEST_OF) as usize);
        worst.sort_by(|a, b| a.0.total_cmp(&b.0));
        worst
    }
}

/// Collects a timeline from all samples in order.
pub struct Collector {
    worst: BinaryHeap<Reverse<(u32, i64, Option<Cause>)>>,
    timeline: Timeline,
    stride: u64,
    until_draw: u64,
    left_in_stride: u64,
    random: Rng,
    /// Time at which the previous repetition ended, ns; times of the current repetition are added to it.
    offset_ns: i64,
    last_ns: i64,
    step_ns: i64,
}

impl Collector {
    /// Prepares a collector for `total` samples in all repetitions.
    pub fn new(total: u64) -> Collector {
        Collector {
            worst: BinaryHeap::with_capacity(WORST + 1),
            timeline: Timeline::default(),
            stride: total.div_ceil(BACKGROUND).max(1),
            until_draw: 0,
            left_in_stride: 0,
            // The sample is random within each stride, because a fixed step would alias with periodic traffic.
            random: Rng::with_seed(0x7a75),
            offset_ns: 0,
            last_ns: 0,
            step_ns: 0,
        }
    }

    /// Begins the next repetition; later samples belong to it.
    pub fn begin_repetition(&mut self) {
        self.close_repetition();
        self.offset_ns = self.last_ns;
    }

    /// Adds the next packet's sample, with its cause if it was examined.
    pub fn record(&mut self, sample: &Sample, cause: Option<Cause>) {
        let at_ns = self
            .offset_ns
            .saturating_add(sample.intended_send_ns.max(0));
        self.step_ns = at_ns.saturating_sub(self.last_ns).max(0);
        self.last_ns = at_ns;
        if self.left_in_stride == 0 {
            self.left_in_stride = self.stride;
            self.until_draw = self.random.u64(0..self.stride);
        }
        self.left_in_stride -= 1;
        let drawn = self.until_draw == 0;
        self.until_draw = self.until_draw.wrapping_sub(1);
        let Some(latency_ns) = sample.latency_ns else {
            return;
        };
        if drawn {
            self.timeline
                .background
                .push((seconds(at_ns), f64::from(latency_ns)));
        }
        let least = self.worst.peek().map_or(0, |Reverse((least, ..))| *least);
        if self.worst.len() < WORST || latency_ns > least {
            self.worst.push(Reverse((latency_ns, at_ns, cause)));
            if self.worst.len() > WORST {
                self.worst.pop();
            }
        }
    }

    /// Returns the timeline of all samples that were added.
    pub fn finish(mut self) -> Timeline {
        self.close_repetition();
        let mut worst: Vec<(i64, u32, Option<Cause>)> = self
            .worst
            .into_iter()
            .map(|Reverse((latency, at, cause))| (at, latency, cause))
            .collect();
        worst.sort_unstable();
        self.timeline.causes = worst.iter().map(|(_, _, cause)| *cause).collect();
        self.timeline.worst = worst
            .into_iter()
            .map(|(at, latency, _)| (seconds(at), f64::from(latency)))
            .collect();
        self.timeline
    }

    fn close_repetition(&mut self) {
        // A repetition also includes the interval after its last packet.
        self.last_ns = self.last_ns.saturating_add(self.step_ns);
        self.step_ns = 0;
        if self.last_ns > self.offset_ns {
            self.timeline.ends.push(seconds(self.last_ns));
        }
    }
}

fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(repetitions: u64, packets: u64) -> Timeline {
        let mut collector = Collector::new(repetitions * packets);
        for _ in 0..repetitions {
            collector.begin_repetition();
            for sequence in 0..packets {
                let latency_ns = (sequence % 7 != 0).then_some(sequence as u32);
                let sample = Sample {
                    sequence,
                    intended_send_ns: sequence as i64 * 10_000,
                    send_delay_ns: 0,
                    latency_ns,
                };
                collector.record(&sample, None);
            }
        }
        collector.finish()
    }

    #[test]
    fn a_timeline_contains_the_worst_packets_and_a_bounded_background() {
        let timeline = timeline(2, 50_000);
        assert_eq!(timeline.worst.len(), WORST);
        let least = timeline
            .worst
            .iter()
            .map(|point| point.1)
            .fold(f64::MAX, f64::min);
        assert!((47_000.0..47_200.0).contains(&least), "{least}");
        assert!(timeline.background.len() > 1_500 && timeline.background.len() <= 2_000);
        assert_eq!(timeline.ends, [0.5, 1.0]);
        assert!(timeline.worst.is_sorted() && timeline.background.is_sorted());
    }

    #[test]
    fn timelines_of_few_packets_contain_every_received_packet() {
        let timeline = timeline(1, 10);
        assert_eq!((timeline.worst.len(), timeline.background.len()), (8, 8));
        assert_eq!(Collector::new(0).finish(), Timeline::default());
    }
}
