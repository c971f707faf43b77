//! Records of packets: the trait of every record, and running summaries of all packets ([`Summaries`]).
//!
//! The loop of a trial is compiled in this crate, once for each type of record, and not in the caller's crate. Only this
//! crate is certain to be compiled with the optimisations that packet processing needs.

mod live_run;
mod observation;
mod sequence;
mod slices;
mod soaking;
mod stretches;

pub use live_run::{Account, WithLive};
pub use observation::Observed;
pub use sequence::Sequence;
pub use slices::Sliced;
pub use soaking::{Soaked, SoakedInterval, Soaking};
pub use stretches::Stretches;

use crate::hand::NoHand;
use crate::instrument::{Instrument, Tally, Trial};
use std::sync::atomic::AtomicBool;
use taut_measure::{Arrival, GapRecorder, JitterRecorder, LatencyHistogram, SequenceTracker};
use taut_sys::Clock;

/// Writes a method that runs trials with one type of record, so that the loop for this type is compiled in this crate.
/// A generic default method would be compiled by the caller's crate.
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

/// A record of every packet of a trial. The loop of the trial calls its methods for each packet, so they are inlined
/// and do not allocate.
pub trait Record: Sized {
    /// Runs a trial with records of this type by [`Instrument::run_streams`].
    fn run(
        instrument: &mut Instrument,
        trial: Trial,
        records: &mut [Self],
        stop: &AtomicBool,
    ) -> Vec<Tally> {
        instrument.run_with(trial, records, &mut NoHand, stop)
    }

    /// Records that packet `sequence`, due `due_ticks` after the start, is passed to the port with send delay
    /// `send_delay_ticks`. If the port refuses the packet, a call of [`Record::refused`] follows.
    fn sent(&mut self, sequence: u64, due_ticks: u64, send_delay_ticks: u64);
    /// Records that packet `sequence` did not fit into the egress port.
    fn refused(&mut self, sequence: u64);
    /// Records that packet `sequence` came back `seen_ticks` after the start, `latency_ticks` after its send timestamp.
    fn received(&mut self, sequence: u64, latency_ticks: u64, seen_ticks: u64);
    /// Records a packet like [`Record::received`], with the bytes of the received frame.
    #[inline(always)]
    fn received_frame(&mut self, sequence: u64, latency_ticks: u64, seen_ticks: u64, frame: &[u8]) {
        let _ = frame;
        self.received(sequence, latency_ticks, seen_ticks);
    }
    /// Returns the number of distinct packets that came back, if the record counts them. The trial stops waiting when
    /// all packets are back. Without the number of distinct packets, a duplicate counts in place of a packet that is
    /// still in flight.
    fn received_unique(&self) -> Option<u64> {
        None
    }
    /// Records the latency of a packet that came back, ns, by the timestamps of the receiving port.
    #[inline(always)]
    fn stamped(&mut self, latency_ns: f64) {
        let _ = latency_ns;
    }
    /// Records a corrupt packet that came back with sequence number `sequence`.
    fn corrupt(&mut self, sequence: u64) {
        let _ = sequence;
    }
    /// Records an interruption of 2 µs or more while the loop was idle. The next packet is then late for a reason
    /// outside of the generator and the device.
    fn interrupted(&mut self) {}
}

/// Histograms and sequence statistics in constant memory, for rates at which storing every packet costs too much.
#[derive(Debug)]
pub struct Summaries {
    ns_per_tick: f64,
    /// Latencies from send timestamp to arrival.
    pub latency: LatencyHistogram,
    /// Latencies from send timestamp to arrival by the receiving port's own timestamps.
    pub stamped_latency: LatencyHistogram,
    /// Send delays: send timestamp minus intended send time.
    pub send_delay: LatencyHistogram,
    /// Differences of successive latencies.
    pub jitter: JitterRecorder,
    /// Loss, duplicates and reordering.
    pub sequence: SequenceTracker,
    /// Gaps between successive sent packets, compared with the intended gaps.
    pub gaps: GapRecorder,
    /// The subset of `gaps` during which the loop was interrupted.
    pub interrupted_gaps: GapRecorder,
    /// Intended and actual send time of the last packet, ticks after the start; none before the first packet.
    last: Option<(u64, u64)>,
    interrupted: bool,
}

impl Summaries {
    /// Makes empty summaries in nanoseconds, converted with `clock`.
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
        // A value below 0 is due to the error of the clocks.
        self.stamped_latency.record(latency_ns.max(0.0) as u64);
    }

    #[inline(always)]
    fn interrupted(&mut self) {
        self.interrupted = true;
    }
}

impl Summaries {
    /// Processes a packet that came back, and returns true if it is the first copy. Latencies of duplicates are not
    /// recorded, because each packet counts once in percentiles.
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
    fn duplicated_packets_do_not_hide_lost_packets() {
        let clock = Clock {
            hz: 1e9,
            error_ppm: 0.0,
        };
        let mut summaries = Summaries::new(&clock);
        let mut sliced = Sliced::new(&clock, 1.0, 1, 5.0);
        // The last of a hundred packets is lost, and one is duplicated.
        for sequence in (0..99).chain([3]) {
            summaries.received(sequence, 1_000, 0);
            sliced.received(sequence, 1_000, 0);
        }
        assert_eq!(summaries.latency.count(), 99);
        assert_eq!(sliced.slices[0].count(), 99);
        assert_eq!(summaries.received_unique(), Some(99));
    }

    #[test]
    fn the_inter_departure_summary_includes_packets_sent_after_interruptions() {
        let clock = Clock {
            hz: 1e9,
            error_ppm: 0.0,
        };
        let mut summaries = Summaries::new(&clock);
        // Packets are due each microsecond. An interruption lasts 8 µs, and the packets that it delays are sent close
        // together.
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
