//! Draining of a chain that reads a file: packets in flight at the end of the file still pass all segments.

use std::time::{Duration, Instant};
use taut_port::PortCounters;

/// Idle time after which a segment counts as drained although some packets have not arrived; these packets count as
/// lost.
const IDLE: Duration = Duration::from_secs(3);
/// Idle time after which a segment that has received all packets counts as drained. It is longer than the interval at
/// which counters are published, a tenth of a second.
const SETTLED: Duration = Duration::from_millis(400);
/// Interval between requests for the counters of the segment that is being drained.
const ASKED: Duration = Duration::from_millis(100);
/// Time limit for draining a segment; packets that remain in the segment are lost.
const LONGEST: Duration = Duration::from_secs(60);

/// The drain of a chain whose first segment has read its whole file: the following segments end in order.
#[derive(Debug)]
pub(super) struct Drain {
    /// True if packets pass eastward: from the first port of the chain to the last.
    eastward: bool,
    /// Index of the segment that is being drained.
    pub segment: usize,
    /// Number of packets that were sent to this segment.
    sent: u64,
    /// Number of packets that this segment had received, and number that it had forwarded, when it last reported its
    /// counters.
    passed: (u64, u64),
    changed: Instant,
    since: Instant,
    asked: Option<Instant>,
}

impl Drain {
    /// Begins the drain after the segment with index `end` out of `count`, which is at an end of the chain and has
    /// these counters. Returns none if no segment follows.
    pub(super) fn begin(
        end: usize,
        count: usize,
        counted: &[PortCounters],
        now: Instant,
    ) -> Option<Self> {
        let eastward = end == 0;
        Some(Self {
            eastward,
            segment: next(end, eastward, count)?,
            sent: sent(counted, eastward),
            passed: (0, 0),
            changed: now,
            since: now,
            asked: None,
        })
    }

    /// Returns true if the segment's counters must be requested.
    pub(super) fn asks(&mut self, now: Instant) -> bool {
        let due = self.asked.is_none_or(|asked| now - asked >= ASKED);
        if due {
            self.asked = Some(now);
        }
        due
    }

    /// Processes the segment's counters.
    pub(super) fn hear(&mut self, ports: &[PortCounters], now: Instant) {
        let received = side(ports, !self.eastward);
        let received = received.iter().map(|port| port.rx_packets).sum();
        let passed = (received, sent(ports, self.eastward));
        if passed != self.passed {
            self.passed = passed;
            self.changed = now;
        }
    }

    /// Returns true if the segment is drained: it sends no more packets.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        let idle = now - self.changed;
        let has_all = self.passed.0 >= self.sent;
        (has_all && idle >= SETTLED) || idle >= IDLE || now - self.since >= LONGEST
    }

    /// Continues with the next segment of `count`; returns none after the last.
    pub(super) fn next(self, count: usize, now: Instant) -> Option<Self> {
        Some(Self {
            segment: next(self.segment, self.eastward, count)?,
            sent: self.passed.1,
            passed: (0, 0),
            changed: now,
            since: now,
            asked: None,
            ..self
        })
    }
}

fn next(segment: usize, eastward: bool, count: usize) -> Option<usize> {
    let next = if eastward {
        segment + 1
    } else {
        segment.checked_sub(1)?
    };
    (next < count).then_some(next)
}

/// Returns the ports of a segment's east side or west side. The first port is the west side, the other ports are the
/// east side.
pub(super) fn side(ports: &[PortCounters], is_east: bool) -> &[PortCounters] {
    let (west, east) = ports.split_at(ports.len().min(1));
    if is_east { east } else { west }
}

/// Returns the number of packets that a segment sent eastward or westward.
fn sent(ports: &[PortCounters], eastward: bool) -> u64 {
    let ports = side(ports, eastward);
    ports.iter().map(|port| port.tx_packets).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn counted(rx: [u64; 2], tx: [u64; 2]) -> [PortCounters; 2] {
        [0, 1].map(|port| PortCounters {
            rx_packets: rx[port],
            tx_packets: tx[port],
            ..PortCounters::default()
        })
    }

    #[test]
    fn segments_drain_in_order_starting_next_to_the_file_port() {
        let mut now = Instant::now();
        let last = counted([0, 50], [50, 0]);
        let drain = Drain::begin(2, 3, &last, now).unwrap();
        assert_eq!((drain.segment, drain.sent), (1, 50));
        let mut drain = Drain::begin(0, 3, &counted([50, 0], [0, 50]), now).unwrap();
        assert_eq!((drain.segment, drain.sent), (1, 50));
        assert!(drain.asks(now) && !drain.asks(now) && drain.asks(now + ASKED));
        // The segment dropped one of the 50 packets; packets of the opposite direction do not count.
        drain.hear(&counted([50, 9], [8, 49]), now);
        assert!(!drain.is_over(now), "what was heard may be a moment old");
        now += SETTLED;
        drain.hear(&counted([50, 10], [9, 49]), now);
        assert!(drain.is_over(now));
        let mut drain = drain.next(3, now).unwrap();
        assert_eq!((drain.segment, drain.sent), (2, 49));
        drain.hear(&counted([48, 0], [0, 48]), now);
        now += SETTLED;
        assert!(!drain.is_over(now), "one is missing");
        now += IDLE;
        assert!(drain.is_over(now), "it is lost");
        assert!(drain.next(3, now).is_none());
        assert!(Drain::begin(0, 1, &last, now).is_none());
    }

    #[test]
    fn an_endless_drain_stops_at_its_time_limit() {
        let begun = Instant::now();
        let mut now = begun;
        let mut drain = Drain::begin(0, 2, &counted([9, 0], [0, 9]), now).unwrap();
        let mut number = 0;
        while !drain.is_over(now) {
            now += ASKED;
            number += 1;
            drain.hear(&counted([9, 0], [0, number]), now);
        }
        assert_eq!(now - begun, LONGEST);
    }
}
