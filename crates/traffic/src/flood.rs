//! Throughput: offers a load, as fast as the port takes it or at a rate, and counts what comes through.
//!
//! Frames are of the first stream, and neither stamped nor looked at, so that the generator is the last to be the bottleneck. Only
//! while nothing is counted yet are questions for its stations answered.

use crate::Instrument;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_port::BATCH_CAPACITY;
use taut_sys::ticks;

/// Packets handed over together at most.
const BURST: u64 = 32;

/// Burst without a rate to hold: the fewer hand-overs, the fewer cache lines go back and forth.
const FULL_BURST: u64 = BATCH_CAPACITY as u64;

/// Delay that the generator may have before it gives up what it owes: to catch up after a stall would be a burst that
/// nobody asked for.
const FORGIVEN: Duration = Duration::from_millis(1);

/// Nothing is under way any more if nothing has come for so long: longer than a forwarder is kept from its core as a rule.
const QUIET: Duration = Duration::from_millis(20);

/// Packets that still come after so long never end.
const UNDER_WAY: Duration = Duration::from_millis(500);

/// Load to offer.
#[derive(Debug, Clone, Copy)]
pub struct Flood {
    /// Packets per second; none for as fast as the port takes them.
    pub rate_pps: Option<f64>,
    /// Offered before anything is counted.
    pub warm_up: Duration,
    /// Offered and counted.
    pub duration: Duration,
    /// Share of one of several workers that send together; none for one that sends everything.
    pub share: Option<Share>,
}

/// Share that one of several workers has of a flood: packet n of the schedule is of worker n mod `of`.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    /// Moment at which all of them begin, in ticks of the clock; those who come earlier wait for it.
    pub begin_ticks: u64,
    /// Number of this worker, from 0.
    pub number: usize,
    /// Number of workers.
    pub of: usize,
}

impl Share {
    /// Waits for the beginning; returns it.
    fn begin(self) -> u64 {
        while ticks() < self.begin_ticks {
            std::hint::spin_loop();
        }
        self.begin_ticks
    }
}

/// Counts of a flood.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// Length of the count, s.
    pub seconds: f64,
    /// Handed over to the port.
    pub sent: u64,
    /// Due, but the port had no room.
    pub refused: u64,
    /// Due, but the generator came too late.
    pub unsent: u64,
    /// Packets that came through.
    pub received: u64,
    /// Packets that came through, including what came during the warm-up, and what was waited for afterwards.
    pub received_in_all: u64,
    /// Ended early by a stop request.
    pub stopped: bool,
}

impl Flow {
    /// Packets per second that came through.
    pub fn received_pps(&self) -> f64 {
        self.received as f64 / self.seconds.max(1e-9)
    }

    /// Whether the generator left more than a hundredth of what was due unsent.
    pub fn is_behind(&self) -> bool {
        self.unsent * 100 > self.sent + self.refused + self.unsent
    }

    /// Counts of workers that sent together, as one.
    pub fn sum(flows: &[Self]) -> Self {
        let add = |sum: Self, flow: &Self| Self {
            seconds: sum.seconds.max(flow.seconds),
            sent: sum.sent + flow.sent,
            refused: sum.refused + flow.refused,
            unsent: sum.unsent + flow.unsent,
            received: sum.received + flow.received,
            received_in_all: sum.received_in_all + flow.received_in_all,
            stopped: sum.stopped || flow.stopped,
        };
        flows.iter().fold(Self::default(), add)
    }

    /// Packets per second that were handed over.
    pub fn sent_pps(&self) -> f64 {
        self.sent as f64 / self.seconds.max(1e-9)
    }
}

impl Instrument {
    /// Offers `flood`, or the share of it that it names, to the first port and counts what arrives at the last one.
    pub fn flood(&mut self, flood: Flood, stop: &AtomicBool) -> Flow {
        self.discard_arrived();
        let clock = self.clock;
        let ticks_in = |t: Duration| clock.to_ticks(t.as_nanos() as f64) as u64;
        let begin = flood.share.map_or_else(ticks, Share::begin);
        let counted_from = begin + ticks_in(flood.warm_up);
        let counted_ticks = ticks_in(flood.duration).max(1);
        let (number, of) = flood.share.map_or((0, 1), |share| (share.number, share.of));
        let rate_pps = flood.rate_pps.map(|rate| rate / of as f64);
        let per_tick = rate_pps.map(|rate| rate / clock.hz);
        // Of n packets that are due of the whole schedule, (n + of - 1 - number) / of are this worker's.
        let ahead = (of - 1 - number) as f64 / of as f64;
        let forgiven =
            rate_pps.map_or(0, |rate| (rate * FORGIVEN.as_secs_f64()) as u64) + 2 * BURST;
        let mut made = 0_u64;
        let mut flow = Flow::default();
        let mut received_in_all = 0;
        let mut counted_since = None;
        let due = |now: u64| {
            per_tick.map_or(0, |per_tick| {
                ((now - begin) as f64 * per_tick + ahead) as u64
            })
        };
        // Workers count between the same two moments. One alone counts for as long, however late it is.
        let moment = |planned: u64, now: u64| if flood.share.is_some() { planned } else { now };
        loop {
            let now = ticks();
            if counted_since.is_none() && now >= counted_from {
                let since = moment(counted_from, now);
                counted_since = Some(since);
                flow = Flow::default();
                made = due(since);
            }
            // Who was off the core for long may come to both at once.
            if let Some(since) = counted_since
                && now >= since + counted_ticks
            {
                let end = moment(since + counted_ticks, now);
                flow.seconds = clock.to_ns(end - since) / 1e9;
                flow.unsent += due(end).saturating_sub(made);
                break;
            }
            if stop.load(Ordering::Relaxed) {
                flow.stopped = true;
                flow.seconds = clock.to_ns(now - counted_since.unwrap_or(begin)) / 1e9;
                break;
            }
            let burst = if per_tick.is_none() {
                FULL_BURST
            } else {
                BURST
            };
            let room = burst - (self.out.len() as u64).min(burst);
            let wanted = match per_tick {
                None => room,
                Some(_) => {
                    let owed = due(now) - made;
                    let late = owed.saturating_sub(forgiven);
                    flow.unsent += late;
                    made += late;
                    (owed - late).min(room)
                }
            };
            for _ in 0..wanted {
                let Some(stream) = self.traffic.streams_mut().first_mut() else {
                    break;
                };
                let (template, len_bytes) = stream.next();
                let Some(mut packet) = self.pool.take(len_bytes) else {
                    break;
                };
                stream.fill(template, &mut packet);
                self.out.push(packet);
                made += 1;
            }
            if !self.out.is_empty() {
                flow.sent += self.ports[0].tx(&mut self.out) as u64;
                if per_tick.is_some() {
                    // At a rate, what does not fit is gone; at full speed it is next.
                    flow.refused += self.out.len() as u64;
                    self.out.clear();
                }
            }
            if let Some(port) = self.ports.last_mut() {
                let arrived = port.rx(&mut self.arrived) as u64;
                flow.received += arrived;
                received_in_all += arrived;
                if counted_since.is_none() {
                    // A router asks for its neighbours by the first packets.
                    self.answer_arrived(self.ports.len() - 1);
                }
                self.arrived.clear();
            }
        }
        self.out.clear();
        flow.received_in_all = received_in_all;
        flow
    }

    /// Takes what is still under way, until nothing has come for `QUIET` or something still comes after `UNDER_WAY`; how much
    /// it was.
    pub fn drain(&mut self) -> u64 {
        let clock = self.clock;
        let ticks_in = |t: Duration| clock.to_ticks(t.as_nanos() as f64) as u64;
        let begin = ticks();
        let (mut last, mut drained) = (begin, 0);
        loop {
            // Before it looks: who was off the core for so long has not found that nothing came.
            let now = ticks();
            let port = self.ports.last_mut();
            let arrived = port.map_or(0, |port| port.rx(&mut self.arrived) as u64);
            self.arrived.clear();
            drained += arrived;
            if arrived > 0 {
                last = now;
            }
            if now - last >= ticks_in(QUIET) || now - begin >= ticks_in(UNDER_WAY) {
                return drained;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Stream;
    use taut_port::PortSpec;
    use taut_sys::Clock;
    use taut_wire::UdpFlow;

    fn instrument() -> Instrument {
        let specs = ["null:", "null:source=4"].map(|s| PortSpec::parse(s).unwrap());
        let stream = Stream::new(&UdpFlow::default(), 64).unwrap();
        Instrument::open(&specs, stream, Clock::calibrate(Duration::from_millis(5))).unwrap()
    }

    fn flood(rate_pps: Option<f64>) -> Flood {
        Flood {
            rate_pps,
            warm_up: Duration::from_millis(2),
            duration: Duration::from_millis(20),
            share: None,
        }
    }

    #[test]
    fn at_a_rate_what_is_due_is_sent_refused_or_owned_up_to() {
        let flow = instrument().flood(flood(Some(100_000.0)), &AtomicBool::new(false));
        let due = flow.sent + flow.refused + flow.unsent;
        let expected = flow.seconds * 100_000.0;
        assert!((due as f64 - expected).abs() <= 2.0, "{flow:?}");
        assert!(flow.received > 0 && !flow.stopped);
    }

    #[test]
    fn workers_together_owe_what_one_does_and_count_between_the_same_moments() {
        let clock = Clock::calibrate(Duration::from_millis(5));
        // Neither a whole number of packets in the warm-up or the count, nor one for each of the workers.
        let (rate_pps, of) = (123_457.0, 3);
        // The last one comes when all is over.
        let flows = std::thread::scope(|scope| {
            let begin_ticks = ticks() + clock.to_ticks(5e6) as u64;
            let worker = |number| {
                move || {
                    if number == of - 1 {
                        std::thread::sleep(Duration::from_millis(100));
                    }
                    let specs = [PortSpec::parse("null:source=4").unwrap()];
                    let stream = Stream::new(&UdpFlow::default(), 64).unwrap();
                    let share = Share {
                        begin_ticks,
                        number,
                        of,
                    };
                    let flood = Flood {
                        share: Some(share),
                        ..flood(Some(rate_pps))
                    };
                    let mut instrument = Instrument::open(&specs, stream, clock).unwrap();
                    instrument.flood(flood, &AtomicBool::new(false))
                }
            };
            let threads: Vec<_> = (0..of).map(|number| scope.spawn(worker(number))).collect();
            let flows = threads.into_iter().map(|thread| thread.join().unwrap());
            flows.collect::<Vec<_>>()
        });
        let due = |flow: &Flow| flow.sent + flow.refused + flow.unsent;
        let all = Flow::sum(&flows);
        assert_eq!(due(&all), flows.iter().map(due).sum::<u64>());
        assert!(
            flows.iter().all(|flow| flow.seconds == all.seconds),
            "{flows:?}"
        );
        assert!(
            (due(&all) as f64 - rate_pps * 0.02).abs() <= of as f64,
            "{flows:?}"
        );
        let (least, most) = (flows.iter().map(due).min(), flows.iter().map(due).max());
        assert!(most.unwrap() - least.unwrap() <= 1, "{flows:?}");
    }

    #[test]
    fn without_a_rate_the_port_decides() {
        let flow = instrument().flood(flood(None), &AtomicBool::new(false));
        assert_eq!((flow.refused, flow.unsent, flow.sent % 32), (0, 0, 0));
        assert!(
            flow.sent_pps() > 0.0 && flow.received_pps() > 0.0,
            "{flow:?}"
        );
    }

    #[test]
    fn a_stop_ends_it_at_once() {
        let mut instrument = instrument();
        let flow = instrument.flood(flood(None), &AtomicBool::new(true));
        assert!(flow.stopped);
    }
}
