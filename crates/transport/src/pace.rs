//! Computes the send rate: the highest rate at which packets were observed to arrive, with no more in flight than that
//! rate needs.
//!
//! The algorithm follows BBR (Cardwell et al., ACM Queue 14(5), 2016; draft-cardwell-iccrg-bbr-congestion-control),
//! which models the path by two numbers. One is the bottleneck's rate: the highest delivery rate of the last round
//! trips (draft-cheng-iccrg-delivery-rate-estimation). The other is the round trip without queues: the lowest of the
//! last ten seconds.
//!
//! Two things differ from BBR, as messages have deadlines. First, the load is usually lower than the path's rate, so
//! the application limits most samples. Such samples raise the estimated rate, and never lower it. Second, no message
//! may be delayed to probe for a change of the path, as BBR does by its cycle of gains and by `ProbeRTT`. Instead, the
//! pace is a quarter above the estimated rate while the path has no queue. While the path has a queue, the pace is a
//! fifth below that rate.

/// Gain during startup, 2/ln 2.
const STARTUP_GAIN: f64 = 2.885;
/// Factors from the estimated rate to the pace: `EMPTY_GAIN` while the path has no queue, `QUEUE_GAIN` while it has
/// one.
const EMPTY_GAIN: f64 = 1.25;
const QUEUE_GAIN: f64 = 0.8;
/// A queueing delay counts as a queue if it exceeds the target delay divided by `QUEUE_SHARE`. That threshold is
/// limited to the range `QUEUE_NS`, ns.
const QUEUE_SHARE: u64 = 2;
const QUEUE_NS: std::ops::RangeInclusive<u64> = 200_000..=5_000_000;
/// Limit on the data in flight, as a multiple of rate times round trip.
const WINDOW_GAIN: f64 = 2.0;
/// Number of packets that are always allowed in flight.
const FEWEST_PACKETS: f64 = 22.0;
/// The path counts as full after this number of rounds in which the rate has not grown by a quarter.
const FULL_ROUNDS: u32 = 3;
/// Number of latest round trips of which the highest rate is remembered.
const RATE_ROUNDS: usize = 10;
/// Time for which the lowest round trip is remembered, ns.
const RTT_MEMORY_NS: u64 = 10_000_000_000;
/// Packets that are due within this time, ns, are sent immediately, because sleeping threads wake no more precisely.
const SLACK_NS: u64 = 50_000;
/// Lowest pace, bytes per second.
const LOWEST_RATE: f64 = 10_000.0;

/// State of the path when a packet was sent.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Departed {
    pub sent_ns: u64,
    pub bytes: u32,
    delivered: f64,
    delivered_ns: u64,
    first_sent_ns: u64,
    is_limited: bool,
    round: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    Startup,
    Cruise,
}

/// The pace of one direction.
#[derive(Debug, Clone)]
pub(crate) struct Pace {
    mode: Mode,
    /// Highest delivery rate of each of the latest rounds with a queue, bytes per second (`rates`), and the index of
    /// the current round in this list (`slot`).
    rates: [f64; RATE_ROUNDS],
    slot: usize,
    round: u64,
    delivered: f64,
    delivered_ns: u64,
    first_sent_ns: u64,
    /// Rate samples are limited by the application, which sent less than the path carries, until this number of bytes
    /// is delivered; none if no sample is limited so.
    limited_until: Option<f64>,
    full_rate: f64,
    full_rounds: u32,
    /// Queueing delay on the path that counts as a queue, ns.
    queue_ns: u64,
    /// Smoothed round trip of the last few samples, ns; none before the first sample.
    recent_rtt: Option<f64>,
    lowest_rtt: Option<(u64, u64)>,
    smoothed_rtt: Option<f64>,
    rtt_variation: f64,
    /// Time at which the next packet may be sent, ns.
    next_ns: u64,
}

impl Pace {
    pub(crate) fn new(target_ns: u64) -> Self {
        Self {
            mode: Mode::Startup,
            rates: [0.0; RATE_ROUNDS],
            slot: 0,
            round: 0,
            delivered: 0.0,
            delivered_ns: 0,
            first_sent_ns: 0,
            limited_until: None,
            full_rate: 0.0,
            full_rounds: 0,
            queue_ns: queue_ns(target_ns),
            recent_rtt: None,
            lowest_rtt: None,
            smoothed_rtt: None,
            rtt_variation: 0.0,
            next_ns: 0,
        }
    }

    /// Sets the target delay, ns, which determines how long a queue may be.
    pub(crate) fn set_target(&mut self, target_ns: u64) {
        self.queue_ns = queue_ns(target_ns);
    }

    /// Processes a measured round trip (smoothed as in RFC 6298, section 2).
    pub(crate) fn round_trip(&mut self, now_ns: u64, rtt_ns: u64) {
        let is_lower = |(lowest, at): (u64, u64)| {
            rtt_ns <= lowest || now_ns.saturating_sub(at) > RTT_MEMORY_NS
        };
        if self.lowest_rtt.is_none_or(is_lower) {
            self.lowest_rtt = Some((rtt_ns, now_ns));
        }
        let rtt = rtt_ns as f64;
        let recent = self.recent_rtt.unwrap_or(rtt);
        self.recent_rtt = Some(recent + 0.25 * (rtt - recent));
        match self.smoothed_rtt {
            None => (self.smoothed_rtt, self.rtt_variation) = (Some(rtt), rtt / 2.0),
            Some(smoothed) => {
                self.rtt_variation = 0.75 * self.rtt_variation + 0.25 * (smoothed - rtt).abs();
                self.smoothed_rtt = Some(0.875 * smoothed + 0.125 * rtt);
            }
        }
    }

    pub(crate) fn lowest_rtt_ns(&self) -> Option<u64> {
        self.lowest_rtt.map(|(ns, _)| ns)
    }

    /// Returns the time after which an unacknowledged packet counts as lost, or feedback on it is requested, ns; none
    /// before the first round trip. The peer's feedback delay is not included.
    pub(crate) fn patience_ns(&self) -> Option<u64> {
        self.smoothed_rtt
            .map(|ns| (ns + 4.0 * self.rtt_variation) as u64 + 100_000)
    }

    /// Returns the estimated rate of the bottleneck, bytes per second.
    fn rate(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    /// Returns true if the path has a queue: recent round trips exceed the lowest one by more than `queue_ns`.
    fn has_queue(&self) -> bool {
        let lowest_ns = self.lowest_rtt_ns().unwrap_or(0);
        self.recent_rtt
            .is_some_and(|ns| ns as u64 > lowest_ns + self.queue_ns)
    }

    fn gain(&self) -> f64 {
        match self.mode {
            Mode::Startup => STARTUP_GAIN,
            Mode::Cruise if self.has_queue() => QUEUE_GAIN,
            Mode::Cruise => EMPTY_GAIN,
        }
    }

    /// Returns the bandwidth-delay product (rate times lowest round trip), bytes; none before both are measured.
    fn product(&self) -> Option<f64> {
        let rtt_ns = self.lowest_rtt_ns()? as f64;
        let rate = self.rate();
        (rate > 0.0).then_some(rate * rtt_ns / 1e9)
    }

    /// Returns true if one more packet may be sent with `in_flight` bytes in flight, in packets of `packet_bytes`.
    pub(crate) fn has_room(&self, in_flight: u64, packet_bytes: usize) -> bool {
        let fewest = FEWEST_PACKETS * packet_bytes as f64;
        let most = match (self.product(), self.mode) {
            (None, _) => fewest,
            (Some(product), Mode::Startup) => product * STARTUP_GAIN.max(WINDOW_GAIN),
            (Some(product), _) => product * WINDOW_GAIN,
        };
        // Packets that are acknowledged in groups need one more group in flight.
        in_flight as f64 <= most + fewest
    }

    /// Returns the time at which the next packet may leave.
    pub(crate) fn next_ns(&self) -> u64 {
        self.next_ns.saturating_sub(SLACK_NS)
    }

    /// Records that a packet is sent; `is_alone` is true if no other packet is in flight. Returns the state of the
    /// path, which [`Pace::acknowledged`] needs.
    pub(crate) fn departs(&mut self, now_ns: u64, bytes: usize, is_alone: bool) -> Departed {
        if is_alone {
            (self.first_sent_ns, self.delivered_ns) = (now_ns, now_ns);
        }
        let rate = self.rate();
        let mut pace = (rate * self.gain()).max(LOWEST_RATE);
        if self.mode == Mode::Startup {
            // Until the path is full, its rate is assumed to allow the minimum number of packets in flight.
            let rtt_ns = self.lowest_rtt_ns().unwrap_or(0).max(1) as f64;
            pace = pace.max(FEWEST_PACKETS * bytes as f64 * 1e9 / rtt_ns);
        }
        let takes_ns = (bytes as f64 / pace * 1e9) as u64;
        // Unused send time does not allow a later burst.
        self.next_ns = self.next_ns.max(now_ns) + takes_ns;
        Departed {
            sent_ns: now_ns,
            bytes: bytes as u32,
            delivered: self.delivered,
            delivered_ns: self.delivered_ns,
            first_sent_ns: self.first_sent_ns,
            is_limited: self.limited_until.is_some(),
            round: self.round,
        }
    }

    /// Records that the sender has nothing to send although the window is open. Until the packets in flight are
    /// delivered, samples then count as limited by the application.
    pub(crate) fn is_idle(&mut self, in_flight: u64) {
        self.limited_until = Some(self.delivered + in_flight as f64);
    }

    /// Processes an acknowledgement of `bytes` more bytes; `latest` is the state of the latest acknowledged packet.
    pub(crate) fn acknowledged(&mut self, now_ns: u64, latest: &Departed, bytes: f64) {
        self.delivered += bytes;
        self.delivered_ns = now_ns;
        if self.limited_until.is_some_and(|it| self.delivered > it) {
            self.limited_until = None;
        }
        self.first_sent_ns = latest.sent_ns;
        let begins_round = latest.round >= self.round;
        if begins_round {
            self.round += 1;
            // Only a sample taken while the path has a queue can show a lower rate of the path. Without a queue, the
            // application may simply have sent less.
            if self.has_queue() {
                self.slot = (self.slot + 1) % RATE_ROUNDS;
                self.rates[self.slot] = 0.0;
            }
        }
        let send_ns = latest.sent_ns.saturating_sub(latest.first_sent_ns);
        let come_ns = now_ns.saturating_sub(latest.delivered_ns);
        let interval_ns = send_ns.max(come_ns);
        let at_least = self.lowest_rtt_ns().unwrap_or(1);
        // An interval shorter than a round trip comes from a burst of acknowledgements, which shows no rate.
        if interval_ns >= at_least.max(1) {
            let rate = (self.delivered - latest.delivered) * 1e9 / interval_ns as f64;
            if self.has_queue() || rate > self.rate() {
                self.rates[self.slot] = self.rates[self.slot].max(rate);
            }
        }
        self.advance(begins_round, latest.is_limited);
    }

    /// Ends the startup after [`FULL_ROUNDS`] rounds in which the rate has not grown by a quarter.
    fn advance(&mut self, begins_round: bool, is_limited: bool) {
        if self.mode != Mode::Startup {
            return;
        }
        if !begins_round || is_limited {
            return;
        }
        if self.rate() >= self.full_rate * 1.25 {
            (self.full_rate, self.full_rounds) = (self.rate(), 0);
            return;
        }
        self.full_rounds += 1;
        if self.full_rounds >= FULL_ROUNDS {
            self.mode = Mode::Cruise;
        }
    }
}

/// Returns the queueing delay on the path that counts as a queue for a target delay, ns.
fn queue_ns(target_ns: u64) -> u64 {
    (target_ns / QUEUE_SHARE).clamp(*QUEUE_NS.start(), *QUEUE_NS.end())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::VecDeque;

    /// Sends as fast as allowed through a bottleneck with a queue for `seconds`; returns the number of packets that
    /// arrived in the last half, and their longest queueing delay.
    fn through(
        rate_bytes: f64,
        rtt_ns: u64,
        seconds: f64,
        every_ns: Option<u64>,
    ) -> (f64, u64, Pace) {
        const BYTES: usize = 1_000;
        let mut pace = Pace::new(10_000_000);
        let mut under_way: VecDeque<(u64, Departed)> = VecDeque::new();
        let takes_ns = (BYTES as f64 / rate_bytes * 1e9) as u64;
        let (mut now, mut free_ns, mut due_ns) = (0_u64, 0_u64, 0_u64);
        let end_ns = (seconds * 1e9) as u64;
        let (mut came, mut longest) = (0_u64, 0);
        while now < end_ns {
            let in_flight = (under_way.len() * BYTES) as u64;
            let may_send = pace.has_room(in_flight, BYTES);
            let sends_ns = pace.next_ns().max(due_ns);
            let acknowledged_ns = under_way.front().map(|(ns, _)| *ns);
            if may_send && acknowledged_ns.is_none_or(|ns| sends_ns <= ns) {
                now = now.max(sends_ns);
                let departed = pace.departs(now, BYTES, under_way.is_empty());
                let starts = free_ns.max(now);
                if now > end_ns / 2 {
                    longest = longest.max(starts - now);
                }
                free_ns = starts + takes_ns;
                under_way.push_back((free_ns + rtt_ns, departed));
                if let Some(every) = every_ns {
                    due_ns = now + every;
                    pace.is_idle(in_flight + BYTES as u64);
                }
            } else {
                let (ns, departed) = under_way.pop_front().unwrap();
                now = now.max(ns);
                pace.round_trip(now, now - departed.sent_ns);
                pace.acknowledged(now, &departed, BYTES as f64);
                came += u64::from(now > end_ns / 2);
            }
        }
        (came as f64 / (seconds / 2.0), longest, pace)
    }

    #[test]
    fn pacing_uses_the_path_rate_without_a_long_queue() {
        for (rate, rtt_ns, seconds) in [
            (1e6, 10_000_000, 5.0),
            (1e8, 1_000_000, 2.0),
            (1e7, 50_000_000, 5.0),
        ] {
            let (came, longest, pace) = through(rate, rtt_ns, seconds, None);
            let share = came * 1_000.0 / rate;
            assert!(share > 0.9, "{rate} {rtt_ns}: {share} {pace:?}");
            // The queue may be longer by the packets that are acknowledged together in a group.
            let most_ns = rtt_ns * 3 / 2 + (32_000.0 / rate * 1e9) as u64;
            assert!(longest < most_ns, "{rate} {rtt_ns}: {longest}");
        }
    }

    #[test]
    fn a_sender_below_the_path_rate_is_not_delayed() {
        let (came, longest, pace) = through(1e7, 2_000_000, 5.0, Some(1_000_000));
        assert!((came - 1_000.0).abs() < 20.0, "{came} {pace:?}");
        assert_eq!(longest, 0);
    }
}
