//! Latency measured from the intended instead of the actual send time, so that a late generator cannot hide waiting
//! time. (G. Tene, "How NOT to measure latency": coordinated omission.)

use taut_measure::LatencyHistogram;
use taut_sys::Clock;

/// Number of the latest packets whose send delays are stored.
const REMEMBERED: usize = 1 << 16;

/// A record of latencies from the intended send time: it adds each packet's send delay to the packet's latency.
pub struct FromIntended {
    ns_per_tick: f64,
    send_delays: Box<[u32]>,
    next: u64,
    latency: LatencyHistogram,
}

impl FromIntended {
    /// Makes an empty record in nanoseconds, converted with `clock`.
    pub fn new(clock: &Clock) -> Self {
        Self {
            ns_per_tick: clock.to_ns(1),
            send_delays: vec![0; REMEMBERED].into(),
            next: 0,
            latency: LatencyHistogram::new(),
        }
    }

    /// Returns the latencies from intended send time to arrival. For a packet that came back after 65,536 later packets
    /// were sent, the latency is only measured from the timestamp.
    pub fn latency(&self) -> &LatencyHistogram {
        &self.latency
    }

    #[inline(always)]
    pub(crate) fn sent(&mut self, sequence: u64, send_delay_ticks: u64) {
        self.send_delays[sequence as usize % REMEMBERED] =
            u32::try_from(send_delay_ticks).unwrap_or(u32::MAX);
        self.next = sequence + 1;
    }

    #[inline(always)]
    pub(crate) fn received(&mut self, sequence: u64, latency_ticks: u64) {
        let is_remembered = self.next.saturating_sub(sequence) <= REMEMBERED as u64;
        let send_delay_ticks = if is_remembered {
            u64::from(self.send_delays[sequence as usize % REMEMBERED])
        } else {
            0
        };
        let ns = (latency_ticks + send_delay_ticks) as f64 * self.ns_per_tick;
        self.latency.record(ns as u64);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_measure::Summary;

    #[test]
    fn latency_from_intended_send_time_includes_the_send_delay() {
        let clock = Clock {
            hz: 1e9,
            error_ppm: 0.0,
        };
        let mut intended = FromIntended::new(&clock);
        intended.sent(0, 40);
        intended.received(0, 100);
        let seen = |intended: &FromIntended| {
            let summary = Summary::from_histogram(intended.latency()).unwrap();
            (summary.count, summary.max_ns)
        };
        assert_eq!(seen(&intended), (1, 140));
        intended.sent(1, 1_000);
        for sequence in 2..=REMEMBERED as u64 + 1 {
            intended.sent(sequence, 7);
        }
        // A later packet has replaced the entry of packet 1, so its latency begins at its timestamp.
        intended.received(1, 200);
        assert_eq!(seen(&intended), (2, 200));
    }
}
