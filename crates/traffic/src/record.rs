//! Records of every packet: all of it ([`EveryPacket`]) or running summaries ([`Summaries`]).

use taut_measure::{GapRecorder, JitterRecorder, LatencyHistogram, SequenceTracker};
use taut_sys::Clock;

/// Record that is told about every packet of a trial, in the hot loop: inlined, no allocation.
pub trait Record {
    /// Packet `sequence`, due `due_ticks` after the start, is sent `slip_ticks` later than that.
    fn sent(&mut self, sequence: u64, due_ticks: u64, slip_ticks: u64);
    /// The outgoing port had no room for packet `sequence`.
    fn refused(&mut self, sequence: u64);
    /// Packet `sequence` came back `latency_ticks` after its stamp, `seen_ticks` after the start.
    fn received(&mut self, sequence: u64, latency_ticks: u64, seen_ticks: u64);
    /// Does as [`Record::received`], with the frame's bytes.
    #[inline(always)]
    fn received_frame(&mut self, sequence: u64, latency_ticks: u64, seen_ticks: u64, frame: &[u8]) {
        let _ = frame;
        self.received(sequence, latency_ticks, seen_ticks);
    }
    /// Different packets that came back, where that is known: once all are, nothing is waited for. Without it
    /// a packet that came twice stands for one that is still under way.
    fn received_unique(&self) -> Option<u64> {
        None
    }
    /// A packet came back, and its port's own clock says that it took so long from its stamp, ns.
    #[inline(always)]
    fn stamped(&mut self, latency_ns: f64) {
        let _ = latency_ns;
    }
    /// A damaged packet came back that bears this number.
    fn corrupt(&mut self, sequence: u64) {
        let _ = sequence;
    }
    /// The machine took the core away (2 µs or more) while the loop had nothing to do: the next packet is
    /// late for a reason that is neither the generator's nor the device's.
    fn interrupted(&mut self) {}
}

/// Fate of one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The packet came back after so many ticks.
    Received {
        /// Time from its stamp to its arrival.
        latency_ticks: u32,
    },
    /// The packet was sent and never came back.
    Lost,
    /// The device's receive ring had no room for it.
    Refused,
}

const LOST: u32 = u32::MAX;
const REFUSED: u32 = u32::MAX - 1;
const LONGEST: u32 = u32::MAX - 2;

/// Slip and latency of every single packet, in memory set aside before the trial (8 bytes each).
#[derive(Debug)]
pub struct EveryPacket {
    slip_ticks: Vec<u32>,
    latency_ticks: Vec<u32>,
    highest: Option<u64>,
    /// Packets that came back once more.
    pub duplicate: u64,
    /// Packets overtaken by a later one (RFC 4737).
    pub reordered: u64,
    /// Latencies cut to the longest that can be kept (over a second).
    pub saturated: u64,
    /// Sequence numbers that were never sent.
    pub impossible: u64,
    unique: u64,
}

impl EveryPacket {
    /// Room for `packets` packets; touches all of the memory now, so that the trial does not.
    pub fn new(packets: usize) -> Self {
        let mut slip_ticks = vec![1; packets];
        slip_ticks.clear();
        let mut latency_ticks = vec![LOST; packets];
        latency_ticks.clear();
        Self {
            slip_ticks,
            latency_ticks,
            highest: None,
            duplicate: 0,
            reordered: 0,
            saturated: 0,
            impossible: 0,
            unique: 0,
        }
    }

    /// Slip (ticks after due) and fate of every packet, by sequence number.
    pub fn packets(&self) -> impl ExactSizeIterator<Item = (u32, Fate)> + '_ {
        self.slip_ticks
            .iter()
            .zip(&self.latency_ticks)
            .map(|(slip, latency)| {
                let fate = match *latency {
                    LOST => Fate::Lost,
                    REFUSED => Fate::Refused,
                    latency_ticks => Fate::Received { latency_ticks },
                };
                (*slip, fate)
            })
    }
}

impl Record for EveryPacket {
    #[inline(always)]
    fn sent(&mut self, sequence: u64, _: u64, slip_ticks: u64) {
        // Beyond the room that was set aside nothing is kept; the trial never sends that many.
        if self.slip_ticks.len() as u64 == sequence
            && self.slip_ticks.len() < self.slip_ticks.capacity()
        {
            self.slip_ticks
                .push(u32::try_from(slip_ticks).unwrap_or(u32::MAX));
            self.latency_ticks.push(LOST);
        }
    }

    #[inline(always)]
    fn refused(&mut self, sequence: u64) {
        if let Some(latency) = self.latency_ticks.get_mut(sequence as usize) {
            *latency = REFUSED;
        }
    }

    #[inline(always)]
    fn received(&mut self, sequence: u64, latency_ticks: u64, _: u64) {
        match self.latency_ticks.get_mut(sequence as usize) {
            None | Some(&mut REFUSED) => self.impossible += 1,
            Some(latency) if *latency != LOST => self.duplicate += 1,
            Some(latency) => {
                self.saturated += u64::from(latency_ticks > u64::from(LONGEST));
                *latency = latency_ticks.min(u64::from(LONGEST)) as u32;
                self.unique += 1;
                match self.highest {
                    Some(highest) if sequence < highest => self.reordered += 1,
                    _ => self.highest = Some(sequence),
                }
            }
        }
    }

    fn received_unique(&self) -> Option<u64> {
        Some(self.unique)
    }
}

/// Histograms and sequence accounts in constant memory, for rates at which keeping everything costs
/// too much.
#[derive(Debug)]
pub struct Summaries {
    ns_per_tick: f64,
    /// Latencies from stamp to arrival.
    pub latency: LatencyHistogram,
    /// Latencies from stamp to arrival by the receiving port's own stamps.
    pub stamped_latency: LatencyHistogram,
    /// Delays from due to stamp.
    pub slip: LatencyHistogram,
    /// Difference of successive latencies.
    pub jitter: JitterRecorder,
    /// Loss, duplicates, order.
    pub sequence: SequenceTracker,
    /// Gaps between sent packets against those asked for, but for the ones in `interrupted_gaps`.
    pub gaps: GapRecorder,
    /// Gaps in which the machine had taken the core away.
    pub interrupted_gaps: GapRecorder,
    /// Time at which the last packet was due and time at which it was sent, ticks after the start.
    last: Option<(u64, u64)>,
    interrupted: bool,
}

impl Summaries {
    /// Empty summaries, in nanoseconds of `clock`.
    pub fn new(clock: &Clock) -> Self {
        Self {
            ns_per_tick: clock.to_ns(1),
            latency: LatencyHistogram::new(),
            stamped_latency: LatencyHistogram::new(),
            slip: LatencyHistogram::new(),
            jitter: JitterRecorder::new(),
            sequence: SequenceTracker::new(),
            gaps: GapRecorder::new(0.0),
            interrupted_gaps: GapRecorder::new(0.0),
            last: None,
            interrupted: false,
        }
    }
}

impl Record for Summaries {
    #[inline(always)]
    fn sent(&mut self, _: u64, due_ticks: u64, slip_ticks: u64) {
        let sent_ticks = due_ticks + slip_ticks;
        if let Some((last_due, last_sent)) = self.last.replace((due_ticks, sent_ticks)) {
            let gap_ns = sent_ticks.saturating_sub(last_sent) as f64 * self.ns_per_tick;
            let asked_ns = due_ticks.saturating_sub(last_due) as f64 * self.ns_per_tick;
            let gaps = if std::mem::take(&mut self.interrupted) {
                &mut self.interrupted_gaps
            } else {
                &mut self.gaps
            };
            gaps.record_asked(gap_ns.round() as u64, asked_ns);
        }
        self.slip
            .record((slip_ticks as f64 * self.ns_per_tick) as u64);
    }

    #[inline(always)]
    fn refused(&mut self, _: u64) {}

    #[inline(always)]
    fn received(&mut self, sequence: u64, latency_ticks: u64, _: u64) {
        let latency_ns = (latency_ticks as f64 * self.ns_per_tick) as u64;
        self.latency.record(latency_ns);
        self.jitter.record(sequence, latency_ns);
        self.sequence.record(sequence);
    }

    fn received_unique(&self) -> Option<u64> {
        Some(self.sequence.received_unique())
    }

    #[inline(always)]
    fn stamped(&mut self, latency_ns: f64) {
        // Less than nothing is the clocks' error.
        self.stamped_latency.record(latency_ns.max(0.0) as u64);
    }

    #[inline(always)]
    fn interrupted(&mut self) {
        self.interrupted = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packets_fate_is_kept() {
        let mut record = EveryPacket::new(5);
        for sequence in 0..5 {
            record.sent(sequence, 0, 10 * sequence);
        }
        record.refused(1);
        record.received(0, 100, 0);
        record.received(4, 400, 0);
        record.received(3, u64::MAX, 0);
        record.received(3, 5, 0);
        record.received(1, 5, 0);
        record.received(9, 5, 0);
        let packets: Vec<_> = record.packets().collect();
        let received = |latency_ticks| Fate::Received { latency_ticks };
        assert_eq!(
            packets,
            [
                (0, received(100)),
                (10, Fate::Refused),
                (20, Fate::Lost),
                (30, received(LONGEST)),
                (40, received(400))
            ]
        );
        assert_eq!(
            (
                record.duplicate,
                record.reordered,
                record.saturated,
                record.impossible
            ),
            (1, 1, 1, 2)
        );
    }
}
