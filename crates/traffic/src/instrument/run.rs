//! The loop of a trial: it sends due packets, polls for arrivals, and detects the end of the trial.

use super::running::{Running, choose};
use super::{Instrument, Tally, Trial};
use crate::Record;
use crate::hand::{Crafted, Hand};
use crate::line::Line;
use crate::stream::Stream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_sys::ticks;

/// Time to wait for late packets after the last arrival, in addition to the longest latency of the trial.
const SETTLE: Duration = Duration::from_millis(20);

/// Longest time of reception after the last packet was sent, so that a device that multiplies packets cannot keep a
/// trial from ending. It is also the timeout for the first packet that comes back, because the latency of the path is
/// unknown before (RFC 2544 section 23 waits two seconds).
const ENDLESS: Duration = Duration::from_secs(2);

/// Grace time after the end of a trial, in which pending packets may still be sent. It is a fraction of the trial (at
/// least 1 ms), plus a multiple of the stall time. It compensates for stalls, but not for a rate that is too high.
const GRACE: f64 = 0.01;
const SHORTEST_GRACE: Duration = Duration::from_millis(1);
const STALL_GRACE: u64 = 5;

/// An iteration longer than this is a stall: sending and receiving 32 packets takes a fraction of that on any port.
const STALL: Duration = Duration::from_micros(500);

/// Send delay that does not count as a stall: the length of an iteration under load.
const SLACK: Duration = Duration::from_micros(2);

/// An idle iteration longer than this contains an interruption.
const INTERRUPTION: Duration = Duration::from_micros(2);

/// Interval at which a port that only sends is polled for address requests.
const LOOK: Duration = Duration::from_millis(1);

/// A script is called for a stream only if the stream has no packet due within this time.
const AHEAD: Duration = Duration::from_micros(5);

/// Timeout after which packets in flight count as lost.
struct Patience {
    settle_ticks: u64,
    endless_ticks: u64,
    /// Longest latency of the earlier trials, ticks; 0 if no packet has come back yet.
    farthest_ticks: u64,
    /// True if any sent packet can be identified when it comes back.
    awaits: bool,
}

impl Patience {
    /// Returns the timeout, in ticks, of a trial in which the longest measured latency is `longest_ticks`. Before the
    /// first arrival `longest_ticks` is 0; the longest latency of earlier trials is then used instead.
    #[inline(always)]
    fn ticks(&self, longest_ticks: u64) -> u64 {
        match (longest_ticks, self.farthest_ticks) {
            (0, 0) if self.awaits => self.endless_ticks,
            (0, farthest) => self.settle_ticks + farthest,
            (longest, _) => self.settle_ticks + longest,
        }
    }
}

/// Returns true if every packet that was sent has come back or has been refused.
fn all_are_back<R: Record>(running: &[Running], tallies: &[Tally], records: &[R]) -> bool {
    let mut streams = tallies.iter().zip(running).enumerate();
    streams.all(|(stream, (tally, running))| {
        let unique = records.get(stream).and_then(Record::received_unique);
        let received = unique.unwrap_or(tally.received);
        received + tally.corrupt + tally.refused >= running.schedule.next()
    })
}

impl Instrument {
    /// Runs one trial and passes every packet of the first stream to `record`; the other streams are sent without a
    /// record.
    ///
    /// Sends each packet when it is due, or immediately if it is late, with up to 32 due packets per send call. Packets
    /// delayed by a stall of the machine are spaced at 4/3 of the stream's rate. Sending stops at the end of the trial,
    /// plus a grace time of 1 % and the compensation for stalls. The trial then waits until all packets are back, or
    /// none has arrived for 20 ms plus the longest latency of the trial (2 s at most). Before the first arrival it
    /// waits 2 s, unless `stop` is set or no sent packet can be identified.
    pub fn run<R: Record>(&mut self, trial: Trial, record: &mut R, stop: &AtomicBool) -> Tally {
        let tallies = self.run_streams(trial, std::slice::from_mut(record), stop);
        tallies.into_iter().next().unwrap_or_default()
    }

    /// Runs a trial like [`Instrument::run`], with one record per stream in the order of the streams; streams without a
    /// record are only counted. Returns the tallies of all streams.
    pub fn run_streams<R: Record>(
        &mut self,
        trial: Trial,
        records: &mut [R],
        stop: &AtomicBool,
    ) -> Vec<Tally> {
        R::run(self, trial, records, stop)
    }

    /// Runs a trial like [`Instrument::run_streams`], with a script that makes packets and gets the packets that
    /// arrive. Without streams the trial only receives, for its duration.
    pub fn run_with<R: Record, H: Hand>(
        &mut self,
        trial: Trial,
        records: &mut [R],
        hand: &mut H,
        stop: &AtomicBool,
    ) -> Vec<Tally> {
        let clock = self.clock;
        let ticks_in = |t: Duration| clock.to_ticks(t.as_nanos() as f64) as u64;
        let patience = self.patience(hand);
        let endless_ticks = patience.endless_ticks;
        let times = [SLACK, INTERRUPTION, STALL, AHEAD, LOOK].map(ticks_in);
        let [
            slack_ticks,
            interruption_ticks,
            stall_ticks,
            ahead_ticks,
            look_ticks,
        ] = times;
        let grace_ticks = ticks_in(trial.duration.mul_f64(GRACE).max(SHORTEST_GRACE));
        let (start, mut running) = self.begin::<H>(trial, &patience);
        // Without streams, a single tally counts foreign packets.
        let mut tallies = vec![Tally::default(); running.len().max(1)];
        let mut line = Line::of(self.pacing, &self.traffic, &clock, self.pool.room());
        let end = start + ticks_in(trial.duration);
        let mut listen_until = match self.listen {
            Some(listen) => end + ticks_in(listen),
            None if running.is_empty() => end,
            None => start,
        };
        let mut give_up = end + grace_ticks;
        let [mut last_event, mut last_sent, mut last_round, mut last_look] = [start; 4];
        let (mut was_idle, mut stopped, mut all_sent) = (false, false, None);
        let mut all_have_sent = !H::ACTIVE;
        loop {
            let now = ticks();
            if was_idle && now.saturating_sub(last_round) > interruption_ticks {
                records.iter_mut().for_each(Record::interrupted);
            }
            let round_ticks = now.saturating_sub(last_round);
            self.interruptions.round(!was_idle, last_round, round_ticks);
            // Stalls count only within the trial; otherwise a busy machine would extend it without end.
            if round_ticks > stall_ticks && last_round < end {
                give_up += STALL_GRACE * round_ticks;
            }
            last_round = now;
            was_idle = true;
            let sent = if let Some(line) = &mut line {
                let over = running.iter().all(|r| r.schedule.is_over());
                // A line that accepts no packets is given up, even on a busy machine.
                let stuck = !self.out.is_empty() && now.saturating_sub(last_sent) > endless_ticks;
                if (now > give_up || stuck) && !over {
                    break;
                }
                self.send_on_line(line, now, start, &mut running, records, &mut tallies, hand)
            } else if choose(&running, now).is_some() {
                if now > give_up {
                    break;
                }
                was_idle = false;
                self.send(now, slack_ticks, &mut running, &mut tallies, hand)
            } else {
                was_idle = !(H::ACTIVE && self.craft_ahead(now + ahead_ticks, &running, hand));
                None
            };
            if let Some(sent) = sent {
                was_idle = false;
                (last_sent, last_event) = (sent, sent);
            }
            if !H::ACTIVE && now.saturating_sub(last_look) > look_ticks {
                last_look = now;
                tallies[0].arp_answered += self.look_at_first_port();
            }
            let seen = self.receive(start, records, &mut running, &mut tallies, hand);
            if let Some(seen) = seen {
                was_idle = false;
                last_event = seen;
            }
            if running.iter().all(|r| r.schedule.is_over()) {
                // The last packets count as sent at the end of their iteration, as all earlier packets do.
                all_sent.get_or_insert_with(ticks);
                if H::ACTIVE && !all_have_sent && hand.all_have_sent() {
                    all_have_sent = true;
                    listen_until =
                        listen_until.max(now + ticks_in(self.listen.unwrap_or_default()));
                }
                let all_back = all_are_back(&running, &tallies, records);
                let silent = now.saturating_sub(last_event) > patience.ticks(self.longest_ticks);
                let endless = now.saturating_sub(last_sent) > endless_ticks;
                let ended = seen.is_none() && (all_back || silent) || endless;
                if ended && all_have_sent && now >= listen_until {
                    break;
                }
            }
            if stop.load(Ordering::Relaxed) || H::ACTIVE && hand.is_stopped() {
                stopped = true;
                break;
            }
        }
        if running.iter().any(|r| !r.schedule.is_over()) {
            let mut receive = |this: &mut Self| {
                let seen = this.receive(start, records, &mut running, &mut tallies, hand);
                // As long as others send, packets may arrive.
                let waits = H::ACTIVE && !stopped && !hand.all_have_sent();
                if waits { Some(ticks()) } else { seen }
            };
            self.receive_late(&mut receive, patience, stopped, last_event, last_sent);
        }
        // The last packets still wait for the line.
        self.note_sent(self.out.len(), ticks(), start, records);
        self.refuse_left(self.out.len(), records, &mut tallies);
        let sending_ticks = all_sent.unwrap_or(last_sent).saturating_sub(start);
        let seconds = clock.to_ns(sending_ticks).max(1.0) / 1e9;
        for (tally, running) in tallies.iter_mut().zip(&running) {
            tally.finish(&running.schedule, seconds, stopped);
        }
        // The packets that were made in advance and never sent are released to the pool.
        self.crafted.clear();
        tallies
    }

    /// Begins a trial: discards earlier packets, and returns the time of the first packet and the streams' schedules.
    fn begin<H: Hand>(&mut self, trial: Trial, patience: &Patience) -> (u64, Vec<Running>) {
        self.trial = self.trial.wrapping_add(1);
        self.trials += 1;
        if !std::mem::take(&mut self.is_ready) {
            self.discard_arrived();
        }
        (self.longest_ticks, self.farthest_ticks) = (0, patience.farthest_ticks);
        self.begun_ticks = ticks();
        let lead = Duration::from_micros(20);
        let start = self.begun_ticks + self.clock.to_ticks(lead.as_nanos() as f64) as u64;
        self.replies_lost = 0;
        let streams = self.traffic.streams_mut();
        streams.iter_mut().for_each(Stream::restart);
        self.interruptions.begin(start);
        let running = self.schedules(trial, start);
        self.crafted.clear();
        if H::ACTIVE {
            self.crafted.resize_with(running.len(), Crafted::default);
        }
        (start, running)
    }

    /// Returns the timeouts for packets in flight.
    fn patience<H: Hand>(&self, hand: &H) -> Patience {
        let ticks_in = |t: Duration| self.clock.to_ticks(t.as_nanos() as f64) as u64;
        let mut streams = self.traffic.streams().iter().enumerate();
        Patience {
            settle_ticks: ticks_in(SETTLE),
            endless_ticks: ticks_in(ENDLESS),
            farthest_ticks: self.farthest_ticks.max(self.longest_ticks),
            awaits: streams.any(|(index, stream)| {
                self.listen.is_none()
                    && stream.is_measured()
                    && (!hand.crafts(index) || hand.stamps(index))
            }),
        }
    }

    /// Receives packets that were sent before a trial ended early, until no packet has arrived for the duration of the
    /// timeout.
    fn receive_late(
        &mut self,
        receive: &mut impl FnMut(&mut Self) -> Option<u64>,
        patience: Patience,
        stopped: bool,
        mut last_event: u64,
        last_sent: u64,
    ) {
        loop {
            let now = ticks();
            let seen = receive(self);
            last_event = seen.unwrap_or(last_event);
            // Time in which the loop did not poll does not count as idle.
            let patience_ticks = match stopped {
                true => patience.settle_ticks + self.longest_ticks,
                false => patience.ticks(self.longest_ticks),
            };
            let silent = seen.is_none() && now.saturating_sub(last_event) > patience_ticks;
            if silent || now.saturating_sub(last_sent) > patience.endless_ticks {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::wire::{Harm, Loop, TRIAL, instrument, instrument_of, instrument_on};
    use super::*;
    use crate::every_packet::{EveryPacket, Outcome};
    use crate::line::Pacing;
    use crate::{Pattern, Plan, Summaries, Traffic};
    use std::collections::VecDeque;
    use std::time::Instant;
    use taut_port::{Batch, Link, Packet, Port, PortCounters, PortSpec};
    use taut_sys::Clock;
    use taut_wire::UdpFlow;

    fn run(capacity: usize, harm: fn(u64, &mut Packet) -> Harm) -> (Tally, EveryPacket) {
        let mut record = EveryPacket::new(TRIAL.packets() as usize);
        let tally = instrument(capacity, harm).run(TRIAL, &mut record, &AtomicBool::new(false));
        (tally, record)
    }

    #[test]
    fn every_packet_sent_over_a_lossless_wire_is_received() {
        let (tally, record) = run(256, |_, _| Harm::None);
        assert_eq!(tally.owed, 2_000);
        assert_eq!(tally.received, tally.sent);
        assert_eq!(tally.sent + tally.unsent, tally.owed);
        assert_eq!((tally.refused, tally.corrupt, tally.foreign), (0, 0, 0));
        assert!(
            record
                .packets()
                .all(|(_, outcome)| matches!(outcome, Outcome::Received { .. }))
        );
    }

    #[test]
    fn lost_corrupt_and_foreign_packets_are_counted_separately() {
        let (tally, record) = run(256, |n, packet| match n {
            7 => Harm::Lose,
            9 => {
                packet.bytes_mut()[50] ^= 1;
                Harm::None
            }
            11 => {
                packet.bytes_mut()[12] = 0x99;
                Harm::None
            }
            _ => Harm::None,
        });
        assert_eq!(tally.sent - tally.received, 3);
        assert_eq!((tally.corrupt, tally.foreign), (1, 1));
        let lost: Vec<usize> = record
            .packets()
            .enumerate()
            .filter(|(_, (_, f))| *f == Outcome::Lost)
            .map(|(i, _)| i)
            .collect();
        assert_eq!(lost, [7, 9, 11]);
    }

    /// A link that delays packets: the first packet comes back in one burst with the 61st, and the last of 100 comes
    /// back 40 ms late.
    #[derive(Default)]
    struct Late {
        first: Option<Packet>,
        wire: VecDeque<(Instant, Packet)>,
        sent: u64,
    }

    impl Port for Late {
        fn rx(&mut self, batch: &mut Batch) -> usize {
            let mut received = 0;
            for _ in 0..self.wire.len() {
                let (due, packet) = self.wire.pop_front().unwrap();
                if due <= Instant::now() && batch.room() > 0 {
                    batch.push(packet);
                    received += 1;
                } else {
                    self.wire.push_back((due, packet));
                }
            }
            received
        }

        fn tx(&mut self, batch: &mut Batch) -> usize {
            let n = batch.len();
            batch.take_front(n, |packet| {
                let now = Instant::now();
                match self.sent {
                    0 => self.first = Some(packet),
                    60 => {
                        let first = self.first.take().unwrap();
                        self.wire.extend([(now, first), (now, packet)]);
                    }
                    99 => self
                        .wire
                        .push_back((now + Duration::from_millis(40), packet)),
                    _ => self.wire.push_back((now, packet)),
                }
                self.sent += 1;
            });
            n
        }

        fn link(&mut self) -> Link {
            Link::Up
        }

        fn counters(&mut self) -> PortCounters {
            PortCounters::default()
        }
    }

    #[test]
    fn a_trial_waits_for_packets_with_a_late_first_arrival() {
        let stream = Stream::new(&UdpFlow::default(), 64).unwrap();
        let mut instrument = instrument_on(vec![Box::<Late>::default()], stream.into());
        let mut record = EveryPacket::new(100);
        let trial = Trial {
            rate_pps: 1_000.0,
            duration: Duration::from_millis(100),
        };
        let tally = instrument.run(trial, &mut record, &AtomicBool::new(false));
        assert_eq!((tally.sent, tally.received), (100, 100), "{tally:?}");
    }

    /// A link that returns every packet 60 ms after the packet was sent.
    #[derive(Default)]
    struct Far(VecDeque<(Instant, Packet)>);

    impl Port for Far {
        fn rx(&mut self, batch: &mut Batch) -> usize {
            let now = Instant::now();
            let mut received = 0;
            while self.0.front().is_some_and(|(due, _)| *due <= now) && batch.room() > 0 {
                batch.push(self.0.pop_front().unwrap().1);
                received += 1;
            }
            received
        }

        fn tx(&mut self, batch: &mut Batch) -> usize {
            let (n, due) = (batch.len(), Instant::now() + Duration::from_millis(60));
            batch.take_front(n, |packet| self.0.push_back((due, packet)));
            n
        }

        fn link(&mut self) -> Link {
            Link::Up
        }

        fn counters(&mut self) -> PortCounters {
            PortCounters::default()
        }
    }

    #[test]
    fn a_path_delay_longer_than_the_trial_causes_no_loss() {
        let stream = Stream::new(&UdpFlow::default(), 64).unwrap();
        let mut instrument = instrument_on(vec![Box::<Far>::default()], stream.into());
        let mut record = EveryPacket::new(20);
        let trial = Trial {
            rate_pps: 20_000.0,
            duration: Duration::from_millis(1),
        };
        let tally = instrument.run(trial, &mut record, &AtomicBool::new(false));
        assert_eq!((tally.sent, tally.received), (20, 20), "{tally:?}");
    }

    /// A link on which each send call takes a millisecond.
    #[derive(Default)]
    struct Heavy(VecDeque<Packet>);

    impl Port for Heavy {
        fn rx(&mut self, batch: &mut Batch) -> usize {
            let n = self.0.len().min(batch.room());
            self.0.drain(..n).for_each(|packet| batch.push(packet));
            n
        }

        fn tx(&mut self, batch: &mut Batch) -> usize {
            let n = batch.len();
            if n > 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            batch.take_front(n, |packet| self.0.push_back(packet));
            n
        }

        fn link(&mut self) -> Link {
            Link::Up
        }

        fn counters(&mut self) -> PortCounters {
            PortCounters::default()
        }
    }

    #[test]
    fn the_trial_duration_includes_the_last_batch_of_a_burst() {
        let burst = Pattern::Burst {
            packets: 128,
            gap: Duration::ZERO,
        };
        let stream = Stream::of(Plan {
            pattern: burst,
            ..Plan::default()
        });
        let stream = stream.unwrap();
        let mut instrument = instrument_on(vec![Box::<Heavy>::default()], stream.into());
        // The trial has four batches of 1 ms each. A duration without the last batch would be a quarter too short.
        let trial = Trial {
            rate_pps: 128e3,
            duration: Duration::from_millis(1),
        };
        let mut record = Summaries::new(instrument.clock());
        let tally = instrument.run(trial, &mut record, &AtomicBool::new(false));
        assert_eq!((tally.sent, tally.unsent), (128, 0), "{tally:?}");
        assert!(tally.seconds >= 0.0039, "{tally:?}");
    }

    #[test]
    fn the_receive_timeout_adapts_to_the_highest_latency_so_far() {
        let patience = |awaits, farthest_ticks| Patience {
            settle_ticks: 20,
            endless_ticks: 2_000,
            farthest_ticks,
            awaits,
        };
        assert_eq!(patience(true, 0).ticks(0), 2_000);
        assert_eq!(patience(true, 0).ticks(7), 27);
        assert_eq!(patience(false, 0).ticks(0), 20);
        // The earlier trials give the latency of the path.
        assert_eq!(patience(true, 50).ticks(0), 70);
        assert_eq!(patience(true, 50).ticks(7), 27);
    }

    /// Simulates an earlier trial with a short path, so that the next trial does not wait for seconds.
    fn know_the_path(instrument: &mut Instrument) {
        instrument.farthest_ticks = 1;
    }

    #[test]
    fn packets_refused_by_full_rings_do_not_count_as_lost() {
        // No packet comes back, so the link fills up.
        let ports = [10, 0].map(|capacity| -> Box<dyn Port> {
            Box::new(Loop {
                wire: VecDeque::new(),
                capacity,
                delivers: false,
                sent: 0,
                harm: |_, _| Harm::None,
            })
        });
        let stream = Stream::new(&UdpFlow::default(), 64).unwrap();
        let mut instrument = instrument_on(ports.into(), stream.into());
        know_the_path(&mut instrument);
        let mut record = EveryPacket::new(TRIAL.packets() as usize);
        let tally = instrument.run(TRIAL, &mut record, &AtomicBool::new(false));
        assert_eq!((tally.sent, tally.received), (10, 0));
        assert_eq!(tally.refused + tally.unsent, tally.owed - 10);
        let refused = record
            .packets()
            .filter(|(_, f)| *f == Outcome::Refused)
            .count();
        assert_eq!(refused as u64, tally.refused);
    }

    #[test]
    fn a_rate_beyond_the_generator_leaves_packets_unsent() {
        let mut instrument = instrument(256, |_, _| Harm::None);
        let mut record = Summaries::new(instrument.clock());
        let trial = Trial {
            rate_pps: 1e10,
            duration: Duration::from_micros(500),
        };
        let tally = instrument.run(trial, &mut record, &AtomicBool::new(false));
        assert!(tally.generator_behind());
        assert_eq!(tally.sent, tally.received);
        assert_eq!(record.sequence.finish(tally.sent).lost, 0);
    }

    #[test]
    fn a_trial_ends_although_the_device_never_stops_sending() {
        // The source sends frames of the pool, some of which carry stamps of this very trial.
        let specs = ["null:", "null:source=32"].map(|s| PortSpec::parse(s).unwrap());
        let stream = Stream::new(&UdpFlow::default(), 64).unwrap();
        let clock = Clock::calibrate(Duration::from_millis(2));
        let mut instrument = Instrument::open(&specs, stream, clock).unwrap();
        let mut record = Summaries::new(&clock);
        let tally = instrument.run(TRIAL, &mut record, &AtomicBool::new(false));
        assert!(tally.sent > 0 && tally.received + tally.foreign > tally.sent);
    }

    #[test]
    fn packets_without_a_free_buffer_do_not_count_as_lost() {
        // The device stores all packets, and has space for more than are sent.
        for pacing in [Pacing::Software, Pacing::Nic] {
            let stream = Stream::new(&UdpFlow::default(), 64).unwrap();
            let ports = [10_000, 0].map(|capacity| -> Box<dyn Port> {
                Box::new(Loop {
                    wire: VecDeque::new(),
                    capacity,
                    delivers: false,
                    sent: 0,
                    harm: |_, _| Harm::None,
                })
            });
            let mut instrument = instrument_on(ports.into(), stream.into());
            instrument.set_pacing(pacing);
            know_the_path(&mut instrument);
            let mut record = EveryPacket::new(TRIAL.packets() as usize);
            let tally = instrument.run(TRIAL, &mut record, &AtomicBool::new(false));
            assert_eq!((tally.sent, tally.refused), (256, 0), "{tally:?}");
            assert_eq!((tally.unsent, tally.owed), (2_000 - 256, 2_000));
            // One unsent packet was retried until the end, and counts once as starved.
            assert!(tally.generator_behind() && tally.starved == 1);
        }
    }

    #[test]
    fn each_stream_has_a_separate_rate_and_record() {
        let traffic = Traffic::parse(
            "[[stream]]\nrate = \"20k\"\n[[stream]]\nsize = \"imix\"\npattern = \"poisson\"\n\
             [[stream]]\nrate = \"5k\"\nprotocol = \"tcp\"\n",
            "x.toml",
        )
        .unwrap();
        let mut instrument = instrument_of(traffic, 256, |_, _| Harm::None);
        let mut records = [EveryPacket::new(400), EveryPacket::new(10_000)];
        let stop = AtomicBool::new(false);
        let tallies = instrument.run_streams(TRIAL, &mut records, &stop);
        assert_eq!((tallies[0].owed, tallies[2].owed), (400, 100));
        assert!((1_500..2_500).contains(&tallies[1].owed));
        assert_eq!(tallies[0].received, tallies[0].sent);
        assert_eq!(tallies[1].received, tallies[1].sent);
        // TCP carries no stamp.
        assert_eq!(tallies[0].foreign, tallies[2].sent);
        assert_eq!(records[0].packets().len() as u64, tallies[0].sent);
        assert_eq!(records[1].packets().len() as u64, tallies[1].sent);
    }

    #[test]
    fn a_stop_request_ends_the_trial() {
        let mut instrument = instrument(256, |_, _| Harm::None);
        let mut record = Summaries::new(instrument.clock());
        let trial = Trial {
            rate_pps: 1_000.0,
            duration: Duration::from_secs(3600),
        };
        let tally = instrument.run(trial, &mut record, &AtomicBool::new(true));
        assert!(tally.stopped && tally.unsent > 0);
    }
}
