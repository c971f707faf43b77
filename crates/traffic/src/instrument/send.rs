//! Sending: makes packets from templates or by a script, timestamps them last, and passes them to the first port.

use super::handover::{Handed, Pending};
use super::running::{Running, choose};
use super::trial::Tally;
use super::{BURST, Instrument, STREAM_BITS};
use crate::hand::{Hand, Made};
use crate::line::{Line, Next};
use crate::record::Record;
use std::ops::Range;
use taut_port::Packet;
use taut_sys::ticks;

/// Limit on the packets per stream that a script makes in advance, and the number per call during idle time.
const CRAFTED_AHEAD: usize = 64;
const CRAFTED_WHILE_IDLE: usize = 16;

impl Instrument {
    /// Lets the script make packets in advance for a stream that has no packet due before `until`. Returns true if the
    /// script made packets. Call it while no packet is due.
    #[inline(always)]
    pub(super) fn craft_ahead<H: Hand>(
        &mut self,
        until: u64,
        running: &[Running],
        hand: &mut H,
    ) -> bool {
        for (stream, running) in running.iter().enumerate() {
            let due = running.schedule.due_ticks();
            if hand.crafts(stream)
                && self.crafted[stream].len() <= CRAFTED_AHEAD - CRAFTED_WHILE_IDLE
                && due > until
                && due != u64::MAX
            {
                self.craft(stream, CRAFTED_WHILE_IDLE, hand);
                return true;
            }
        }
        false
    }

    /// Lets the script make up to `n` packets of a stream, fewer if the pool lacks memory.
    fn craft<H: Hand>(&mut self, stream: usize, n: usize, hand: &mut H) {
        let maker = &mut self.traffic.streams_mut()[stream];
        let measured = maker.is_measured() && hand.stamps(stream);
        for _ in 0..n.min(self.pool.available()) {
            let (template, len) = maker.next();
            let Some(mut packet) = self.pool.take(len) else {
                break;
            };
            maker.fill(template, &mut packet);
            self.making.push(packet);
        }
        hand.craft(stream, self.making.packets_mut());
        let made = self.making.len();
        let crafted = &mut self.crafted[stream];
        self.making
            .take_front(made, |packet| crafted.push(packet, measured));
    }

    /// Sends due packets, 32 at most, and returns their timestamp; none if there is no memory for any packet.
    /// [`Instrument::note_handed`] passes them to their records, and must be called before the next call of `send`.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub(super) fn send<H: Hand>(
        &mut self,
        now: u64,
        slack_ticks: u64,
        running: &mut [Running],
        tallies: &mut [Tally],
        hand: &mut H,
    ) -> Option<u64> {
        while self.out.len() < BURST {
            let Some(stream) = choose(running, now) else {
                break;
            };
            let schedule = &running[stream].schedule;
            let (sequence, due) = (schedule.next(), schedule.due_ticks());
            let Some((packet, pending)) = self.make(stream, sequence, hand) else {
                tallies[stream].starved += running[stream].starve();
                break;
            };
            running[stream].sent(now, now - due, slack_ticks);
            self.pending[self.out.len()] = Pending {
                due,
                place: due,
                ..pending
            };
            self.out.push(packet);
        }
        // The call is made even without packets: a port may release memory in it.
        let made = self.out.len();
        let stamp = self.stamp(H::ACTIVE);
        self.ports[0].tx(&mut self.out);
        self.handed = Handed {
            made,
            refused: self.out.len(),
            stamp,
        };
        self.out.clear();
        (made > 0).then_some(stamp)
    }

    /// Passes the last sent packets to the records, unless that has already happened. Call it after polling for
    /// arrivals, so that recording adds nothing to a latency, and before the arrivals are recorded.
    #[inline(always)]
    pub(super) fn note_handed<R: Record>(
        &mut self,
        start: u64,
        records: &mut [R],
        tallies: &mut [Tally],
    ) {
        let Handed {
            made,
            refused,
            stamp,
        } = std::mem::take(&mut self.handed);
        if made > 0 {
            self.note_sent(made, stamp, start, records);
            self.note_refused(made - refused..made, records, tallies);
        }
    }

    /// Sends packets like [`Instrument::send`], but before they are due, to a line that does the pacing; fillers are
    /// sent where no packet is due. Packets that do not fit wait for the line. Returns none if nothing was sent.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub(super) fn send_on_line<R: Record, H: Hand>(
        &mut self,
        line: &mut Line,
        now: u64,
        start: u64,
        running: &mut [Running],
        records: &mut [R],
        tallies: &mut [Tally],
        hand: &mut H,
    ) -> Option<u64> {
        if !self.out.is_empty() {
            let (stamp, taken) = self.hand_to_line(start, records, H::ACTIVE);
            return (taken > 0).then_some(stamp);
        }
        while self.out.len() < BURST {
            let (packet, pending) = match line.next(running, now) {
                Next::Nothing => break,
                Next::Filler(len) => {
                    let Some(mut packet) = self.pool.take(len as u16) else {
                        break;
                    };
                    packet.bytes_mut().copy_from_slice(line.filler(len));
                    tallies[0].fillers_sent += 1;
                    let pending = Pending {
                        filler: true,
                        ..Pending::default()
                    };
                    (packet, pending)
                }
                Next::Packet { stream, late } => {
                    let schedule = &running[stream].schedule;
                    let (sequence, due) = (schedule.next(), schedule.due_ticks());
                    let Some((packet, pending)) = self.make(stream, sequence, hand) else {
                        tallies[stream].starved += running[stream].starve();
                        break;
                    };
                    running[stream].schedule.advance();
                    (
                        packet,
                        Pending {
                            due,
                            place: due + late,
                            ..pending
                        },
                    )
                }
            };
            line.take(packet.len());
            self.pending[self.out.len()] = pending;
            self.out.push(packet);
        }
        if self.out.is_empty() {
            return None;
        }
        let (stamp, _) = self.hand_to_line(start, records, H::ACTIVE);
        Some(stamp)
    }

    /// Passes packets to the line; returns the timestamp, and the number of accepted packets. Rejected packets get a
    /// new timestamp at the next call: a latency begins when a packet leaves, and waiting for the line is send delay.
    #[inline(always)]
    fn hand_to_line<R: Record>(
        &mut self,
        start: u64,
        records: &mut [R],
        hand_is_active: bool,
    ) -> (u64, usize) {
        let made = self.out.len();
        let stamp = self.stamp(hand_is_active);
        let taken = self.ports[0].tx(&mut self.out);
        self.note_sent(taken, stamp, start, records);
        self.pending.copy_within(taken..made, 0);
        (stamp, taken)
    }

    /// Passes the first `count` packets, which are sent at `stamp`, to the records. The send delay of a packet begins
    /// at its intended send time. It ends at its timestamp, or at the start of its transmission on the line if that is
    /// later. It includes waiting for the line, making packets, and preemption.
    #[inline(always)]
    pub(super) fn note_sent<R: Record>(
        &mut self,
        count: usize,
        stamp: u64,
        start: u64,
        records: &mut [R],
    ) {
        for pending in self.pending[..count].iter().filter(|p| !p.filler) {
            if let Some(record) = records.get_mut(pending.stream) {
                let leaves = pending.first_stamp.max(pending.place) + (stamp - pending.first_stamp);
                record.sent(pending.sequence, pending.due - start, leaves - pending.due);
            }
        }
    }

    /// Counts the packets that the port did not accept as refused: they are the last of the `made` packets.
    #[inline(always)]
    pub(super) fn refuse_left<R: Record>(
        &mut self,
        made: usize,
        records: &mut [R],
        tallies: &mut [Tally],
    ) {
        let left = self.out.len();
        self.note_refused(made - left..made, records, tallies);
        self.out.clear();
    }

    /// Counts the packets at the given indices of the last batch as refused.
    #[inline(always)]
    fn note_refused<R: Record>(
        &mut self,
        which: Range<usize>,
        records: &mut [R],
        tallies: &mut [Tally],
    ) {
        for pending in &self.pending[which] {
            if pending.filler {
                tallies[0].fillers_sent -= 1;
                continue;
            }
            tallies[pending.stream].refused += 1;
            if let Some(record) = records.get_mut(pending.stream) {
                record.refused(pending.sequence);
            }
        }
    }

    /// Writes the timestamp into the packets that are about to be sent, and returns it.
    #[inline(always)]
    fn stamp(&mut self, hand_is_active: bool) -> u64 {
        let stamp = ticks();
        for (pending, packet) in self.pending.iter_mut().zip(self.out.packets_mut()) {
            if pending.filler {
                continue;
            }
            if pending.first_stamp == 0 {
                pending.first_stamp = stamp;
            }
            let flow = self.trial << STREAM_BITS | pending.stream as u16;
            if hand_is_active && pending.crafted {
                if let Some(layout) = &pending.layout {
                    // This cannot fail: the layout was made for this very packet.
                    let _ = layout.write(packet.bytes_mut(), flow, pending.sequence, stamp);
                }
                continue;
            }
            self.traffic.streams()[pending.stream].stamp(
                pending.template,
                packet,
                pending.varied,
                flow,
                pending.sequence,
                stamp,
            );
        }
        stamp
    }

    /// Makes the next packet of a stream, from a template or by the script.
    #[inline(always)]
    fn make<H: Hand>(
        &mut self,
        stream: usize,
        sequence: u64,
        hand: &mut H,
    ) -> Option<(Packet, Pending)> {
        if H::ACTIVE && hand.crafts(stream) {
            if self.crafted[stream].len() == 0 {
                self.craft(stream, BURST, hand);
            }
            let Made { packet, layout } = self.crafted[stream].pop()?;
            let pending = Pending {
                stream,
                sequence,
                crafted: true,
                layout,
                ..Pending::default()
            };
            return Some((packet, pending));
        }
        // Without memory, the stream must not advance to its next template.
        if self.pool.available() == 0 {
            return None;
        }
        let maker = &mut self.traffic.streams_mut()[stream];
        let (template, len) = maker.next();
        let mut packet = self.pool.take(len)?;
        let pending = Pending {
            stream,
            template,
            varied: maker.fill(template, &mut packet),
            sequence,
            ..Pending::default()
        };
        Some((packet, pending))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::Trial;
    use super::super::wire::{Harm, Loop, TRIAL, instrument, instrument_on};
    use super::*;
    use crate::Stream;
    use crate::every_packet::{EveryPacket, Outcome};
    use crate::line::Pacing;
    use std::collections::VecDeque;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;
    use taut_port::{Batch, Link, Port, PortCounters};
    use taut_wire::{PortRange, Received, UdpFlow, classify};

    /// A script that needs time for each packet.
    struct Slow;

    /// Duration of a call of [`Slow`].
    const CRAFTING: Duration = Duration::from_millis(1);

    impl Hand for Slow {
        const ACTIVE: bool = true;

        fn crafts(&self, _: usize) -> bool {
            true
        }

        fn stamps(&self, _: usize) -> bool {
            true
        }

        fn craft(&mut self, _: usize, _: &mut [Packet]) {
            std::thread::sleep(CRAFTING);
        }

        fn arrived(
            &mut self,
            _: &mut [Packet],
            _: &[crate::hand::Arrival],
        ) -> crate::hand::Replies {
            crate::hand::Replies::default()
        }

        fn is_stopped(&self) -> bool {
            false
        }
    }

    /// Sends packets that are due at `now`, which is read before the packets are made. Returns the send delay of the
    /// first packet and the delay from `now` to its timestamp, in ticks.
    fn send_delay_from<H: Hand>(
        now: impl Fn(&Instrument) -> u64,
        due_before: u64,
        hand: &mut H,
    ) -> (u64, u64) {
        let mut instrument = instrument(256, |_, _| Harm::None);
        instrument.crafted.push(Default::default());
        let now = now(&instrument);
        let start = now - due_before;
        let mut running = instrument.schedules(TRIAL, start);
        let mut records = [EveryPacket::new(TRIAL.packets() as usize)];
        let mut tallies = [Tally::default()];
        let stamp = instrument.send(now, 0, &mut running, &mut tallies, hand);
        instrument.note_handed(start, &mut records, &mut tallies);
        let stamp = stamp.unwrap();
        let (send_delay, _) = records[0].packets().next().unwrap();
        (u64::from(send_delay), stamp - start)
    }

    #[test]
    fn the_time_to_create_packets_counts_as_send_delay() {
        let (send_delay, due_to_stamp) = send_delay_from(|_| ticks(), 10, &mut Slow);
        assert_eq!(send_delay, due_to_stamp);
        let crafting = instrument(256, |_, _| Harm::None)
            .clock()
            .to_ticks(CRAFTING.as_nanos() as f64 / 2.0);
        assert!(send_delay as f64 > crafting, "{send_delay} ticks");
    }

    #[test]
    fn preemption_after_reading_the_clock_counts_as_send_delay() {
        let stolen = |instrument: &Instrument| ticks() - instrument.clock().to_ticks(5e6) as u64;
        let (send_delay, due_to_stamp) = send_delay_from(stolen, 10, &mut crate::hand::NoHand);
        assert_eq!(send_delay, due_to_stamp);
    }

    #[test]
    fn filler_frames_fill_gaps_and_are_dropped_on_arrival() {
        let mut instrument = instrument(256, |_, _| Harm::None);
        instrument.set_pacing(Pacing::Fill {
            line_bits_per_s: 100e6,
        });
        let mut record = EveryPacket::new(200);
        let trial = Trial {
            rate_pps: 10_000.0,
            duration: Duration::from_millis(20),
        };
        let tally = instrument.run(trial, &mut record, &AtomicBool::new(false));
        assert_eq!((tally.owed, tally.received, tally.foreign), (200, 200, 0));
        assert_eq!(tally.fillers_received, tally.fillers_sent);
        // Packets are 1250 bytes apart if the loop is not interrupted, with two fillers in between. After an
        // interruption there are more and shorter fillers, but never more than fit as frames of 84 bytes.
        assert!((1..=200 * 14).contains(&tally.fillers_sent), "{tally:?}");
    }

    #[test]
    fn packets_that_never_left_a_full_nic_count_as_refused() {
        let ports = [40, 0].map(|capacity| -> Box<dyn Port> {
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
        instrument.set_pacing(Pacing::Nic);
        let mut record = EveryPacket::new(TRIAL.packets() as usize);
        let tally = instrument.run(TRIAL, &mut record, &AtomicBool::new(false));
        assert_eq!((tally.sent, tally.received), (40, 0));
        assert_eq!(tally.sent + tally.refused + tally.unsent, tally.owed);
        assert!(tally.unsent > 0 && tally.refused < 32, "{tally:?}");
    }

    /// A port that first accepts nothing for `shut_ticks`. After that, it compares the timestamps of accepted packets
    /// with the time of its last refusal.
    struct Shut {
        ports_of_flows: PortRange,
        /// Cycles, from the first packet on, for which the port accepts nothing.
        shut_ticks: u64,
        open_at: Option<u64>,
        wire: VecDeque<Packet>,
        last_refusal: u64,
        /// Shortest time from the line's last refusal to the timestamps of the packets that the line accepted later,
        /// ticks.
        oldest_stamp: i64,
    }

    impl Port for Shut {
        fn rx(&mut self, batch: &mut Batch) -> usize {
            let n = self.wire.len().min(batch.room());
            self.wire.drain(..n).for_each(|p| batch.push(p));
            n
        }

        fn tx(&mut self, batch: &mut Batch) -> usize {
            if batch.is_empty() {
                return 0;
            }
            // The time starts with the first packet, not with the test: the thread may sleep before it sends.
            let open_at = *self.open_at.get_or_insert(ticks() + self.shut_ticks);
            if ticks() < open_at {
                self.last_refusal = ticks();
                return 0;
            }
            let n = batch.len();
            let (last_refusal, ports) = (self.last_refusal, self.ports_of_flows);
            let wire = &mut self.wire;
            let mut oldest = self.oldest_stamp;
            batch.take_front(n, |packet| {
                let Received::Stamped(stamp) = classify(packet.bytes(), ports) else {
                    panic!("a packet without a stamp");
                };
                oldest = oldest.min(stamp.stamp_ticks.wrapping_sub(last_refusal) as i64);
                wire.push_back(packet);
            });
            self.oldest_stamp = oldest;
            assert!(
                oldest >= 0,
                "a stamp from before the line refused its packet: {oldest}"
            );
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
    fn a_packet_gets_its_timestamp_after_waiting_for_the_nic() {
        let stream = Stream::new(&UdpFlow::default(), 64).unwrap();
        let mut instrument = instrument_on(Vec::new(), stream.into());
        let shut_ticks = instrument.clock().to_ticks(2e6) as u64;
        instrument.ports.push(Box::new(Shut {
            ports_of_flows: instrument.ports_of_flows,
            shut_ticks,
            open_at: None,
            wire: VecDeque::new(),
            last_refusal: 0,
            oldest_stamp: i64::MAX,
        }));
        instrument.set_pacing(Pacing::Nic);
        let opened = ticks();
        let mut record = EveryPacket::new(TRIAL.packets() as usize);
        let tally = instrument.run(TRIAL, &mut record, &AtomicBool::new(false));
        assert_eq!(
            (tally.received, tally.refused),
            (tally.sent, 0),
            "{tally:?}"
        );
        // The first packet waited from its intended time to the end of the 2 ms in which the line was shut.
        let (send_delay, outcome) = record.packets().next().unwrap();
        let Outcome::Received { latency_ticks } = outcome else {
            panic!("{outcome:?}");
        };
        let since = ticks() - opened;
        assert!(u64::from(send_delay) + u64::from(latency_ticks) >= shut_ticks / 2);
        assert!(
            u64::from(send_delay) >= shut_ticks / 2,
            "{send_delay} of {since}"
        );
    }
}
