//! Interruptions of a worker: iterations that took much longer than usual.

use crate::CountersView;
use crate::outbox::Outbox;
use taut_sys::{Clock, Interruption, InterruptionLog, RoundWatch, Work};

/// Counts interruptions, and logs each if a log was requested.
pub(crate) struct Interrupted {
    watch: RoundWatch,
    log: Option<InterruptionLog>,
    /// Number of packets, and cycles of all iterations with packets, at the last update of the estimate of the usual
    /// time.
    learnt: [u64; 2],
    ticks_per_packet: u64,
}

impl Interrupted {
    pub(crate) fn new(clock: &Clock) -> Self {
        Self {
            watch: RoundWatch::new(clock),
            log: None,
            learnt: [0; 2],
            ticks_per_packet: 0,
        }
    }

    pub(crate) fn log_to(&mut self, log: InterruptionLog) {
        self.log = Some(log);
    }

    /// Returns true if an iteration took suspiciously long. This comparison is the only cost per iteration.
    #[inline(always)]
    pub(crate) fn is_suspected(&self, had_packets: bool, round_ticks: u64) -> bool {
        self.watch.is_interrupted(had_packets, round_ticks)
    }

    /// Checks whether a suspected iteration was interrupted, and if so counts it. `packets` is the number of packets
    /// that arrived, which explains a part of the iteration's length; None if no packets arrived. An iteration whose
    /// timer flushed packets counts as busy, even if none arrived.
    #[cold]
    pub(crate) fn note(
        &mut self,
        packets: Option<u64>,
        start_ticks: u64,
        length_ticks: u64,
        outboxes: &[Outbox],
        own: &mut CountersView,
    ) {
        let sent = outboxes.iter().any(|o| o.timer_fired_in(start_ticks));
        if sent && !self.watch.is_interrupted(true, length_ticks) {
            return;
        }
        if let Some(packets) = packets {
            let usual = packets.saturating_mul(self.ticks_per_packet);
            let taken = self.watch.taken_ticks(usual, length_ticks);
            // The iteration was long only because it had many packets, for example those that an interruption left
            // waiting.
            if taken == 0 {
                return;
            }
            own.taken_busy_ticks += taken;
        }
        own.interruptions += 1;
        own.interrupted_ticks += length_ticks;
        if let Some(log) = &mut self.log {
            log.push(Interruption {
                start_ticks,
                length_ticks,
            });
        }
    }

    /// Updates the estimate of an iteration's usual time from the worker's counters, and logs the worker's total work.
    pub(crate) fn adapt(&mut self, own: &CountersView) {
        if let Some(log) = &mut self.log {
            log.note_work(Work {
                packets: own.rx_packets,
                batches: own.batches,
                ticks: own.busy_ticks.saturating_sub(own.taken_busy_ticks),
            });
        }
        let [packets, ticks] = [own.rx_packets, own.busy_ticks];
        let since = |now: u64, then: u64| now.saturating_sub(then);
        let ticks_since = since(ticks, self.learnt[1]);
        if let Some(each) = ticks_since.checked_div(since(packets, self.learnt[0])) {
            self.ticks_per_packet = each;
        }
        self.learnt = [packets, ticks];
        let idle = own.rounds.saturating_sub(own.batches);
        let elsewhere = own.busy_ticks + own.asleep_ticks;
        let idle_ticks = own.total_ticks.saturating_sub(elsewhere);
        self.watch
            .adapt([idle, own.batches], [idle_ticks, own.busy_ticks]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_iteration_counts_as_interruption_only_with_few_packets() {
        let clock = Clock {
            hz: 1e9,
            error_ppm: 0.0,
        };
        let mut interrupted = Interrupted::new(&clock);
        let mut own = CountersView {
            rounds: 100,
            batches: 100,
            rx_packets: 400,
            busy_ticks: 40_000,
            total_ticks: 40_000,
            ..CountersView::default()
        };
        interrupted.adapt(&own);
        // At 100 cycles per packet and 400 per iteration, 64 packets may take 6,400.
        interrupted.note(Some(64), 0, 7_000, &[], &mut own);
        assert_eq!((own.interruptions, own.taken_busy_ticks), (0, 0));
        interrupted.note(Some(8), 0, 7_000, &[], &mut own);
        assert_eq!(own.taken_busy_ticks, 6_200);
        interrupted.note(Some(1), 0, 7_000, &[], &mut own);
        assert_eq!(own.taken_busy_ticks, 6_200 + 6_600);
        // An interruption in an iteration without packets counts, but takes no time from packets.
        interrupted.note(None, 0, 7_000, &[], &mut own);
        assert_eq!((own.interruptions, own.taken_busy_ticks), (3, 12_800));
    }
}
