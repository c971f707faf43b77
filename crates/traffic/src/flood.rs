//! Measures throughput: offers a load, at a rate or as fast as the port accepts packets, and counts the packets that
//! arrive at the last port.
//!
//! All frames are those of the traffic's first stream. They carry no timestamps and are not checked on arrival, so that
//! the generator is unlikely to be the bottleneck. Requests for the MAC addresses of the emulated hosts get replies
//! only until the count begins.

use crate::Instrument;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_port::BATCH_CAPACITY;
use taut_sys::ticks;

/// Largest number of packets that are sent together when a rate is requested.
const BURST: u64 = 32;

/// Number of packets per send call when no rate is requested: fewer calls move fewer cache lines between cores.
const FULL_BURST: u64 = BATCH_CAPACITY as u64;

/// Delay beyond which the generator skips pending packets: catching up after a stall would be an unrequested burst.
const FORGIVEN: Duration = Duration::from_millis(1);

/// Idle time after which no packet is assumed to be in flight: longer than a typical preemption of a forwarder.
const QUIET: Duration = Duration::from_millis(20);

/// Longest duration of a drain: a device that still sends packets after this time is assumed never to stop.
const UNDER_WAY: Duration = Duration::from_millis(500);

/// The load that a flood offers.
#[derive(Debug, Clone, Copy)]
pub struct Flood {
    /// Packets per second; none to send as fast as the port accepts packets.
    pub rate_pps: Option<f64>,
    /// Duration of the load before counting begins.
    pub warm_up: Duration,
    /// Duration of the load while packets are counted.
    pub duration: Duration,
    /// The part of the flood that this worker sends; none if it sends all packets.
    pub share: Option<Share>,
}

/// The part of one of several workers in a flood: a worker sends those packets of the schedule whose index modulo `of`
/// is `number`.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    /// Time at which all workers begin, in ticks of the clock; a worker that is ready earlier waits until then.
    pub begin_ticks: u64,
    /// Index of this worker, from 0.
    pub number: usize,
    /// Number of workers in the flood.
    pub of: usize,
}

impl Share {
    /// Waits until the flood begins, and returns the time of its beginning, ticks.
    fn begin(self) -> u64 {
        while ticks() < self.begin_ticks {
            std::hint::spin_loop();
        }
        self.begin_ticks
    }
}

/// Counters of a flood.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Flow {
    /// Time during which packets were counted, s.
    pub seconds: f64,
    /// Packets that the port accepted.
    pub sent: u64,
    /// Packets that were due but did not fit into the port's ring.
    pub refused: u64,
    /// Packets that were due but never sent, because the generator was late.
    pub unsent: u64,
    /// Packets that arrived during the count.
    pub received: u64,
    /// Packets that arrived in all, including those of the warm-up and of the drain at the end.
    pub received_in_all: u64,
    /// True if a stop request ended the flood early.
    pub stopped: bool,
}

impl Flow {
    /// Returns the rate of received packets, packets per second.
    pub fn received_pps(&self) -> f64 {
        self.received as f64 / self.seconds.max(1e-9)
    }

    /// Returns true if the generator left more than a hundredth of the due packets unsent.
    pub fn is_behind(&self) -> bool {
        self.unsent * 100 > self.sent + self.refused + self.unsent
    }

    /// Returns the summed counters of workers that sent together.
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

    /// Returns the rate of sent packets, packets per second.
    pub fn sent_pps(&self) -> f64 {
        self.sent as f64 / self.seconds.max(1e-9)
    }
}

impl Instrument {
    /// Offers the load `flood`, or this worker's part of it, to the first port, and counts the packets that arrive at
    /// the last port.
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
        // This worker sends `(n + of - 1 - number) / of` of the first n packets of the schedule.
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
        // Workers count between the same two times. A single worker counts for the same duration, even if it starts
        // late.
        let moment = |planned: u64, now: u64| if flood.share.is_some() { planned } else { now };
        loop {
            let now = ticks();
            if counted_since.is_none() && now >= counted_from {
                let since = moment(counted_from, now);
                counted_since = Some(since);
                flow = Flow::default();
                made = due(since);
            }
            // After a long preemption both times may have passed.
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
                    // At a fixed rate, packets that do not fit are refused; at full speed the next send call sends
                    // them.
                    flow.refused += self.out.len() as u64;
                    self.out.clear();
                }
            }
            if let Some(port) = self.ports.last_mut() {
                let arrived = port.rx(&mut self.arrived) as u64;
                flow.received += arrived;
                received_in_all += arrived;
                if counted_since.is_none() {
                    // A router requests its neighbours' addresses with the first packets.
                    self.answer_arrived(self.ports.len() - 1);
                }
                self.arrived.clear();
            }
        }
        self.out.clear();
        flow.received_in_all = received_in_all;
        flow
    }

    /// Receives and discards the packets in flight, and returns their number. The call ends when no packet has arrived
    /// for `QUIET`, or after `UNDER_WAY` even if packets still arrive.
    pub fn drain(&mut self) -> u64 {
        let clock = self.clock;
        let ticks_in = |t: Duration| clock.to_ticks(t.as_nanos() as f64) as u64;
        let begin = ticks();
        let (mut last, mut drained) = (begin, 0);
        loop {
            // The time is read before the receive call: after a preemption, an old time does not count as idle.
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
    fn sent_refused_and_unsent_packets_add_up_to_all_packets() {
        let flow = instrument().flood(flood(Some(100_000.0)), &AtomicBool::new(false));
        let due = flow.sent + flow.refused + flow.unsent;
        let expected = flow.seconds * 100_000.0;
        assert!((due as f64 - expected).abs() <= 2.0, "{flow:?}");
        assert!(flow.received > 0 && !flow.stopped);
    }

    #[test]
    fn workers_jointly_send_the_configured_rate_over_the_same_period() {
        let clock = Clock::calibrate(Duration::from_millis(5));
        // At this rate, neither the warm-up nor the count has a whole number of packets, and the workers send different
        // numbers.
        let (rate_pps, of) = (123_457.0, 3);
        // The last worker starts after the end of the flood.
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
    fn the_port_limits_a_flood_without_a_configured_rate() {
        let flow = instrument().flood(flood(None), &AtomicBool::new(false));
        assert_eq!((flow.refused, flow.unsent, flow.sent % 32), (0, 0, 0));
        assert!(
            flow.sent_pps() > 0.0 && flow.received_pps() > 0.0,
            "{flow:?}"
        );
    }

    #[test]
    fn a_stop_request_ends_the_flood_immediately() {
        let mut instrument = instrument();
        let flow = instrument.flood(flood(None), &AtomicBool::new(true));
        assert!(flow.stopped);
    }
}
