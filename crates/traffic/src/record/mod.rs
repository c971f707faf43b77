//! What is kept of packets: the trait that every record has, and running summaries of all packets ([`Summaries`]).
//!
//! A trial's loop is compiled once for each record, here, where packets are what everything is optimised for: who runs trials
//! calls that and is compiled for other ends.

mod observed;
mod sequence;
mod sliced;
mod soaking;
mod stretches;
mod watched;

pub use observed::Observed;
pub use sequence::Sequence;
pub use sliced::Sliced;
pub use soaking::{Soaked, SoakedInterval, Soaking};
pub use stretches::Stretches;
pub use watched::{Account, WithLive};

use crate::hand::NoHand;
use crate::instrument::{Instrument, Tally, Trial};
use std::sync::atomic::AtomicBool;
use taut_measure::{Arrival, GapRecorder, JitterRecorder, LatencyHistogram, SequenceTracker};
use taut_sys::Clock;

/// Writes a method that runs trials with records of a type, so that its loop is compiled in this crate: a default method, which is
/// generic, would be compiled by who calls it.
macro_rules! compiled_here {
    ($run:ident, $record:ty) => {
        #[inline(never)]
        fn $run(
            instrument: &mut $crate::Instrument,
            trial: $crate::Trial,
            records: &mut [$record],
            stop: &std::sync::atomic::AtomicBool,
        ) -> Vec<$crate::Tally> {
            instrument.run_with(trial, records, &mut $crate::hand::NoHand, stop)
        }
    };
}
pub(crate) use compiled_here;

/// Record that is told about every packet of a trial, in the hot loop: inlined, no allocation.
pub trait Record: Sized {
    /// Runs a trial with records of this kind, as [`Instrument::run_streams`] does, which calls it.
    fn run(
        instrument: &mut Instrument,
        trial: Trial,
        records: &mut [Self],
        stop: &AtomicBool,
    ) -> Vec<Tally> {
        instrument.run_with(trial, records, &mut NoHand, stop)
    }

    /// Packet `sequence`, due `due_ticks` after the start, is sent `send_delay_ticks` later than that.
    fn sent(&mut self, sequence: u64, due_ticks: u64, send_delay_ticks: u64);
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
    pub send_delay: LatencyHistogram,
    /// Difference of successive latencies.
    pub jitter: JitterRecorder,
    /// Loss, duplicates, order.
    pub sequence: SequenceTracker,
    /// Gaps between sent packets against those asked for, all of them.
    pub gaps: GapRecorder,
    /// Those among them in which the machine had taken the core away.
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
            send_delay: LatencyHistogram::new(),
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
    compiled_here!(run, Self);

    #[inline(always)]
    fn sent(&mut self, _: u64, due_ticks: u64, send_delay_ticks: u64) {
        let sent_ticks = due_ticks + send_delay_ticks;
        if let Some((last_due, last_sent)) = self.last.replace((due_ticks, sent_ticks)) {
            let gap_ns = sent_ticks.saturating_sub(last_sent) as f64 * self.ns_per_tick;
            let asked_ns = due_ticks.saturating_sub(last_due) as f64 * self.ns_per_tick;
            let gap_ns = gap_ns.round() as u64;
            self.gaps.record_asked(gap_ns, asked_ns);
            if std::mem::take(&mut self.interrupted) {
                self.interrupted_gaps.record_asked(gap_ns, asked_ns);
            }
        }
        self.send_delay
            .record((send_delay_ticks as f64 * self.ns_per_tick) as u64);
    }

    #[inline(always)]
    fn refused(&mut self, _: u64) {}

    #[inline(always)]
    fn received(&mut self, sequence: u64, latency_ticks: u64, _: u64) {
        self.arrived(sequence, latency_ticks);
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

impl Summaries {
    /// Takes a packet that came back, and returns whether it is another one than those so far. A copy has no latency of its own: the
    /// share of packets that came in time, and the percentiles, are of packets.
    #[inline(always)]
    pub(crate) fn arrived(&mut self, sequence: u64, latency_ticks: u64) -> bool {
        if self.sequence.record(sequence) == Arrival::Duplicate {
            return false;
        }
        let latency_ns = (latency_ticks as f64 * self.ns_per_tick) as u64;
        self.latency.record(latency_ns);
        self.jitter.record(sequence, latency_ns);
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn copies_stand_for_no_packet_that_was_lost() {
        let clock = Clock {
            hz: 1e9,
            error_ppm: 0.0,
        };
        let mut summaries = Summaries::new(&clock);
        let mut sliced = Sliced::new(&clock, 1.0, 1, 5.0);
        // The last of a hundred packets is lost, and one comes twice.
        for sequence in (0..99).chain([3]) {
            summaries.received(sequence, 1_000, 0);
            sliced.received(sequence, 1_000, 0);
        }
        assert_eq!(summaries.latency.count(), 99);
        assert_eq!(sliced.slices[0].count(), 99);
        assert_eq!(summaries.received_unique(), Some(99));
    }

    #[test]
    fn gaps_are_of_all_packets_also_where_the_machine_had_the_core() {
        let clock = Clock {
            hz: 1e9,
            error_ppm: 0.0,
        };
        let mut summaries = Summaries::new(&clock);
        // Due each microsecond; the machine takes the core for 8 of them, and what is late is sent close together.
        for number in 0..=1000_u64 {
            let due = number * 1000;
            let send_delay = match number % 10 {
                at @ 1..9 => (9 - at) * 900,
                _ => 0,
            };
            if number % 10 == 1 {
                summaries.interrupted();
            }
            summaries.sent(number, due, send_delay);
        }
        let all = summaries.gaps.summary().unwrap();
        assert_eq!((all.count, all.mean_gap_ns), (1000, 1000.0), "{all:?}");
        assert_eq!(all.asked_gap_ns, 1000.0);
        let interrupted = summaries.interrupted_gaps.summary().unwrap();
        assert_eq!((interrupted.count, interrupted.mean_gap_ns), (100, 8200.0));
    }
}
