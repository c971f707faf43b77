//! Triggers: conditions on packets. Each has a filter and a time span for the packets that are stored when the
//! condition holds.

use crate::clock::PacketClock;
use crate::filter::Filter;
use crate::record::{DROPPED, PUNTED, Record};
use std::time::Duration;

/// The condition of a trigger.
#[derive(Debug, Clone)]
pub enum When {
    /// Any packet that matches the filter fires the trigger.
    Packet(Filter),
    /// More than `packets` packets that match the filter arrive within the time `over`.
    Rate {
        /// Filter of the packets that are counted.
        filter: Filter,
        /// Threshold: the trigger fires when more packets than this are counted.
        packets: u64,
        /// Length of the period in which the packets are counted.
        over: Duration,
    },
    /// No packet that matches the filter arrives for the time `over` after a matching packet: an active source has
    /// become idle.
    Silence {
        /// Filter of the packets that must be absent for the trigger to fire.
        filter: Filter,
        /// Time without a matching packet after which the trigger fires.
        over: Duration,
    },
    /// A measurement packet (of `taut generate` on this machine) arrives later than `over` after its timestamp.
    Late {
        /// Filter of the packets whose latency is checked.
        filter: Filter,
        /// Latency above which a packet fires the trigger.
        over: Duration,
    },
    /// A packet is captured that an earlier function has dropped, or punted to the slow path.
    Fate {
        /// Filter of the packets whose flags are checked.
        filter: Filter,
        /// Flags of which the packet must have at least one.
        flags: u16,
    },
    /// The growth of a count with this name, reported by the capturing program ([`crate::capture::Capture::grew`]).
    Count(String),
    /// A request through the control socket or the web page, or by an analyser.
    Asked,
    /// The start of the capture: packets are stored until the capture ends.
    Always,
}

/// The settings of a trigger.
#[derive(Debug, Clone)]
pub struct Trigger {
    /// Name of the trigger, also used in the names of dump files.
    pub name: String,
    /// Condition on which the trigger fires.
    pub when: When,
    /// Filter of the packets that are stored when the trigger fires.
    pub keep: Filter,
    /// Length of the period before the time at which the trigger fires whose packets are stored.
    pub before: Duration,
    /// Length of the period after the time at which the trigger fires whose packets are stored.
    pub after: Duration,
    /// Cutoff: number of bytes on the wire that a dump stores of each flow; none for all.
    pub cutoff_bytes: Option<u64>,
    /// Maximum number of dumps that the trigger begins per minute.
    pub most_per_minute: u32,
}

/// Returns the flag that a packet has after the fate `dropped` or `punted`; none for any other name.
pub fn flags_of(fate: &str) -> Option<u16> {
    match fate {
        "dropped" => Some(DROPPED),
        "punted" => Some(PUNTED),
        _ => None,
    }
}

/// The state of a trigger while packets are processed.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Number of matching packets since `since_ns`, the start of the current period of a rate condition.
    counted: u64,
    since_ns: u64,
    /// Time of the last packet that matches, for a silence condition, ns since 1970; 0 before the first packet, and
    /// after the trigger has fired.
    last_ns: u64,
}

impl When {
    /// Returns the filter of the condition; none if the condition has no filter.
    pub fn filter(&self) -> Option<&Filter> {
        match self {
            Self::Packet(filter)
            | Self::Rate { filter, .. }
            | Self::Silence { filter, .. }
            | Self::Late { filter, .. }
            | Self::Fate { filter, .. } => Some(filter),
            Self::Count(_) | Self::Asked | Self::Always => None,
        }
    }
}

impl Watch {
    /// Returns true if a packet that matches the condition's filter fires the trigger.
    pub(crate) fn sees(&mut self, when: &When, record: &Record<'_>, clock: &PacketClock) -> bool {
        let now_ns = record.facts.time_ns;
        match when {
            When::Packet(_) => true,
            When::Fate { flags, .. } => record.facts.flags & flags != 0,
            When::Rate { packets, over, .. } => {
                if now_ns.saturating_sub(self.since_ns) >= over.as_nanos() as u64 {
                    (self.since_ns, self.counted) = (now_ns, 0);
                }
                self.counted += 1;
                self.counted == packets + 1
            }
            When::Late { over, .. } => {
                let stamp = taut_wire::claimed_stamp(record.frame);
                let sent_ns = stamp.map(|(stamp, _)| clock.of(stamp.stamp_ticks));
                // A packet whose timestamp is later than its arrival was timestamped by the clock of another machine.
                sent_ns
                    .is_some_and(|sent_ns| now_ns.saturating_sub(sent_ns) > over.as_nanos() as u64)
            }
            When::Silence { .. } => {
                self.last_ns = now_ns;
                false
            }
            When::Count(_) | When::Asked | When::Always => false,
        }
    }

    /// Returns the time at which a silence trigger fires because no matching packet has arrived until `now_ns`; none if
    /// it does not fire.
    pub(crate) fn misses(&mut self, when: &When, now_ns: u64) -> Option<u64> {
        let When::Silence { over, .. } = when else {
            return None;
        };
        let fires_ns = self.last_ns + over.as_nanos() as u64;
        (self.last_ns > 0 && now_ns > fires_ns).then(|| {
            self.last_ns = 0;
            fires_ns
        })
    }
}

/// The limit on how often a trigger begins a dump.
#[derive(Debug)]
pub(crate) struct Limit {
    begins: std::collections::VecDeque<u64>,
    most: usize,
}

impl Limit {
    const MINUTE_NS: u64 = 60_000_000_000;

    pub(crate) fn new(most_per_minute: u32) -> Self {
        let most = most_per_minute as usize;
        Self {
            begins: std::collections::VecDeque::with_capacity(most),
            most,
        }
    }

    /// Returns true if the limit allows the trigger to begin a dump at `now_ns`; the dump is then counted.
    pub(crate) fn lets(&mut self, now_ns: u64) -> bool {
        let is_old = |at: &u64| now_ns.saturating_sub(*at) >= Self::MINUTE_NS;
        while self.begins.front().is_some_and(is_old) {
            self.begins.pop_front();
        }
        let lets = self.begins.len() < self.most;
        if lets {
            self.begins.push_back(now_ns);
        }
        lets
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::record::Facts;

    fn at(time_ns: u64, flags: u16) -> Record<'static> {
        Record {
            facts: Facts {
                time_ns,
                flags,
                ..Facts::default()
            },
            frame: &[],
        }
    }

    #[test]
    fn a_rate_trigger_fires_at_most_once_per_period() {
        let filter = || Filter::new("").unwrap();
        let over = Duration::from_nanos(100);
        let clock = PacketClock::new(taut_sys::Clock::calibrate(Duration::from_millis(1)));
        let rate = When::Rate {
            filter: filter(),
            packets: 2,
            over,
        };
        let mut watch = Watch::default();
        let times = [1000, 1010, 1020, 1030, 1100, 1110, 1120, 1300];
        let fired: Vec<_> = times.map(|ns| watch.sees(&rate, &at(ns, 0), &clock)).into();
        let wanted = [false, false, true, false, false, false, true, false];
        assert_eq!(fired, wanted);
        let silence = When::Silence {
            filter: filter(),
            over,
        };
        let mut watch = Watch::default();
        assert_eq!(watch.misses(&silence, 5000), None);
        watch.sees(&silence, &at(5000, 0), &clock);
        assert_eq!(watch.misses(&silence, 5100), None);
        assert_eq!(watch.misses(&silence, 5101), Some(5100));
        assert_eq!(watch.misses(&silence, 9000), None);
        let fate = When::Fate {
            filter: filter(),
            flags: flags_of("dropped").unwrap(),
        };
        assert!(!Watch::default().sees(&fate, &at(1, PUNTED), &clock));
        assert!(Watch::default().sees(&fate, &at(1, DROPPED | PUNTED), &clock));
    }

    #[test]
    fn packet_latency_is_measured_from_the_timestamp_in_the_frame() {
        let calibrated = taut_sys::Clock::calibrate(Duration::from_millis(20));
        let mut clock = PacketClock::new(calibrated);
        let mut template = Vec::new();
        etherparse::PacketBuilder::ethernet2([1; 6], [2; 6])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .udp(1, 2)
            .write(&mut template, &[0; 18])
            .unwrap();
        let layout = taut_wire::StampLayout::new(&template).unwrap();
        let late = When::Late {
            filter: Filter::new("").unwrap(),
            over: Duration::from_millis(3),
        };
        let now = taut_sys::ticks();
        let mut sees = |sent_ms: f64| {
            let sent = now.wrapping_sub(calibrated.to_ticks(sent_ms * 1e6) as i64 as u64);
            let mut frame = template.clone();
            layout.write(&mut frame, 0, 1, sent).unwrap();
            let facts = Facts {
                time_ns: clock.at(now),
                ..Facts::default()
            };
            let record = Record {
                facts,
                frame: &frame,
            };
            Watch::default().sees(&late, &record, &clock)
        };
        let seen: Vec<_> = [4.0, 2.0, 0.0, 4000.0].map(&mut sees).into();
        assert_eq!(seen, [true, false, false, true]);
        // The first packet was timestamped by a clock that is ahead, and the second is not a measurement packet.
        assert!(!sees(-5.0));
        let clock = PacketClock::new(calibrated);
        assert!(!Watch::default().sees(&late, &at(u64::MAX, 0), &clock));
    }

    #[test]
    fn triggers_beyond_the_limit_per_minute_are_suppressed() {
        let mut limit = Limit::new(2);
        let second = 1_000_000_000;
        let lets: Vec<_> = [0, 1, 2, 60, 60, 61]
            .map(|at| limit.lets(at * second))
            .into();
        assert_eq!(lets, [true, true, false, true, false, true]);
    }
}
