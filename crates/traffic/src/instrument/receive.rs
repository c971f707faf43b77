//! Receiving: reads the time immediately after a receive call, then identifies each packet and passes it to its record.

use super::neighbours::{answer, send_answers};
use super::running::Running;
use super::{Instrument, STREAM_BITS, Tally};
use crate::Record;
use crate::hand::{Arrival, Hand, Replies};
use crate::line::is_filler;
use taut_sys::ticks;
use taut_wire::resolution::may_be_about_neighbours;
use taut_wire::{Received, claimed_stamp, classify};

impl Instrument {
    /// Makes one receive call; returns the time of the call if packets of the trial arrived. Foreign packets are only
    /// counted, because a source that never stops would otherwise keep the trial from ending.
    #[inline(always)]
    pub(super) fn receive<R: Record, H: Hand>(
        &mut self,
        start: u64,
        records: &mut [R],
        running: &mut [Running],
        tallies: &mut [Tally],
        hand: &mut H,
    ) -> Option<u64> {
        let ends = (self.ports.len() == 1, true);
        if self.return_line_is_full() {
            self.note_handed(start, records, tallies);
            return None;
        }
        let arrived = self.ports.last_mut()?.rx(&mut self.arrived);
        let seen = if arrived > 0 { ticks() } else { 0 };
        self.note_handed(start, records, tallies);
        if arrived == 0 {
            return None;
        }
        let port = self.ports.last_mut()?;
        let (mut foreign, mut corrupt, mut fillers) = (0_u64, 0_u64, 0_u64);
        let mut earliest_ticks = seen;
        let stamps = self.stamps.as_mut();
        let reading = stamps.map(|stamps| stamps.at(seen, &self.clock));
        for (index, packet) in self.arrived.packets().iter().enumerate() {
            if H::ACTIVE {
                let stamp = port.arrival_stamps().get(index);
                let port_stamp = stamp.copied().filter(|stamp| *stamp != 0);
                let first = port_stamp.map(|at| *self.first_port_stamp.get_or_insert(at));
                self.arrivals[index] = Arrival {
                    stamp: None,
                    at_ns: self.clock.to_ns(seen),
                    port_stamp: port_stamp
                        .zip(first)
                        .map(|(at, first)| at.saturating_sub(first)),
                };
            }
            match classify(packet.bytes(), self.ports_of_flows) {
                Received::Stamped(stamp) => {
                    let stream = usize::from(stamp.flow & ((1 << STREAM_BITS) - 1));
                    if H::ACTIVE {
                        let latency = seen.wrapping_sub(stamp.stamp_ticks) as i64;
                        self.arrivals[index].stamp = Some((
                            stream as u16,
                            stamp.sequence,
                            latency as f64 * self.clock.to_ns(1),
                        ));
                    }
                    // A stamp from before the start of the trial is from another generator.
                    let of_trial = stamp.flow >> STREAM_BITS
                        == self.trial & (u16::MAX >> STREAM_BITS)
                        && stamp.stamp_ticks >= self.begun_ticks;
                    match running.get(stream) {
                        Some(running) if of_trial && stamp.sequence < running.schedule.next() => {
                            tallies[stream].received += 1;
                            earliest_ticks = earliest_ticks.min(stamp.stamp_ticks);
                            let Some(record) = records.get_mut(stream) else {
                                continue;
                            };
                            let sent = stamp.stamp_ticks;
                            if let Some(reading) = &reading
                                && let Some(&at_ns) = port.arrival_stamps().get(index)
                                && at_ns != 0
                            {
                                record.stamped(reading.elapsed_ns(&self.clock, sent, at_ns));
                            }
                            let (latency, at) =
                                (seen.wrapping_sub(sent), seen.saturating_sub(start));
                            record.received_frame(stamp.sequence, latency, at, packet.bytes());
                        }
                        _ => foreign += 1,
                    }
                }
                Received::Corrupt => {
                    corrupt += 1;
                    tell_damaged(packet.bytes(), self.trial, running, records);
                }
                Received::Foreign => {
                    foreign += 1;
                    if is_filler(packet.bytes()) {
                        fillers += 1;
                    } else if !H::ACTIVE && may_be_about_neighbours(packet.bytes()) {
                        let (stations, pool) = (&self.stations, &self.pool);
                        answer(stations, pool, packet.bytes(), ends, &mut self.answers);
                    }
                }
            }
        }
        self.longest_ticks = self.longest_ticks.max(seen.saturating_sub(earliest_ticks));
        let ours = self.arrived.len() as u64 > foreign;
        if !self.answers.is_empty() {
            let asked = self.answers.len() as u64;
            foreign -= asked;
            tallies[0].arp_answered += send_answers(&mut **port, &mut self.answers);
        }
        tallies[0].corrupt += corrupt;
        tallies[0].fillers_received += fillers;
        tallies[0].foreign += foreign - fillers;
        if H::ACTIVE {
            self.pass_to_script(hand);
        }
        if let Some(line) = &mut self.return_line {
            line.take(seen, &mut self.arrived);
        }
        self.arrived.clear();
        ours.then_some(seen)
    }

    /// Limits the next receive call to the number of packets that the return line (`return_line.rs`) accepts; returns
    /// true if the line accepts none now.
    #[inline(always)]
    fn return_line_is_full(&mut self) -> bool {
        let Some(line) = &self.return_line else {
            return false;
        };
        let room = line.room(ticks());
        if room > 0 {
            self.arrived.set_limit(room);
        }
        room == 0
    }

    /// Passes the arrived packets to a script, and sends those back that it returns.
    fn pass_to_script<H: Hand>(&mut self, hand: &mut H) {
        if !hand.listens() {
            return;
        }
        // Packets in a port's ring have no room.
        for packet in self.arrived.packets_mut() {
            if packet.is_in_ring()
                && let Some(mut copy) = self.pool.take(packet.len() as u16)
            {
                copy.bytes_mut().copy_from_slice(packet.bytes());
                *packet = copy;
            }
        }
        let arrivals = &self.arrivals[..self.arrived.len()];
        let Replies { back, on } = hand.arrived(self.arrived.packets_mut(), arrivals);
        if back | on == 0 {
            return;
        }
        let (answers, onward) = (&mut self.answers, &mut self.making);
        let mut bit = 1_u64;
        self.arrived.take_front(self.arrived.len(), |packet| {
            if back & bit != 0 {
                answers.push(packet);
            } else if on & bit != 0 {
                onward.push(packet);
            }
            bit = bit.wrapping_shl(1);
        });
        // A reply that does not fit is lost, as from any host.
        if let Some(port) = self.ports.last_mut() {
            port.tx(answers);
        }
        self.ports[0].tx(onward);
        self.replies_lost += (answers.len() + onward.len()) as u64;
        answers.clear();
        onward.clear();
    }

    /// Discards packets from before the trial, after replying to address requests among them. The number of discarded
    /// packets is bounded, as some sources never stop.
    pub(crate) fn discard_arrived(&mut self) {
        for port in 0..self.ports.len() {
            // The packets of a file are not from before.
            if self.ports[port].waits() {
                continue;
            }
            for _ in 0..1024 {
                if self.ports[port].rx(&mut self.arrived) == 0 {
                    break;
                }
                self.answer_arrived(port);
                self.arrived.clear();
            }
        }
    }
}

/// Passes a corrupt packet to the record of the stream that the packet's stamp names.
#[cold]
fn tell_damaged<R: Record>(frame: &[u8], trial: u16, running: &[Running], records: &mut [R]) {
    let Some((stamp, _)) = claimed_stamp(frame) else {
        return;
    };
    let stream = usize::from(stamp.flow & ((1 << STREAM_BITS) - 1));
    let of_trial = stamp.flow >> STREAM_BITS == trial & (u16::MAX >> STREAM_BITS);
    if let (Some(running), Some(record)) = (running.get(stream), records.get_mut(stream))
        && of_trial
        && stamp.sequence < running.schedule.next()
    {
        record.corrupt(stamp.sequence);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::wire::{Harm, TRIAL, instrument};
    use super::*;
    use crate::every_packet::EveryPacket;
    use crate::hand::NoHand;
    use taut_port::Batch;

    #[test]
    fn late_packets_of_an_earlier_trial_count_as_foreign() {
        let mut instrument = instrument(256, |n, _| if n == 0 { Harm::Hold } else { Harm::None });
        let stream = &mut instrument.traffic.streams_mut()[0];
        let (template, len) = stream.next();
        let mut packet = instrument.pool.take(len).unwrap();
        let varied = stream.fill(template, &mut packet);
        stream.stamp(template, &mut packet, varied, 77 << STREAM_BITS, 0, ticks());
        let mut arrived = Batch::new();
        arrived.push(packet);
        instrument.ports[0].tx(&mut arrived);
        instrument.trial = 78;
        let mut running = instrument.schedules(TRIAL, 0);
        running[0].schedule.advance();
        let mut records = [EveryPacket::new(TRIAL.packets() as usize)];
        let mut tallies = [Tally::default()];
        instrument.receive(0, &mut records, &mut running, &mut tallies, &mut NoHand);
        let [tally] = tallies;
        assert_eq!((tally.foreign, tally.received), (1, 0));
    }
}
