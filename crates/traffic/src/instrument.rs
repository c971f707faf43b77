//! The instrument: one loop that sends when packets are due and receives whenever they come.
//!
//! Stamps: the send stamp is read once per burst, last before the frames are stamped and handed over;
//! the receive stamp first after packets were seen. Latency can also be had from the time a packet was
//! *due*, so that a late generator (or a device that pushes back) cannot hide waiting time.

use crate::{Pace, Record, Stream};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_port::{
    Batch, Clock, PoolHandle, Port, PortCounters, PortError, PortSpec, Resources, ticks,
};
use taut_wire::{Received, classify};

/// Packets handed over together at most when several are due at once.
const BURST: usize = 32;

/// How long to wait for stragglers after the last packet that came back.
const SETTLE: Duration = Duration::from_millis(20);

/// How long to go on receiving after the last packet was sent, however many still come: a device that
/// multiplies packets must not keep a trial from ending.
const ENDLESS: Duration = Duration::from_secs(2);

/// How late a generator may still send what it owes, as a share of the trial (and at least 1 ms):
/// a short stall of the machine is made good, too high a rate is not.
const GRACE: f64 = 0.01;

/// One trial: constant rate, for a while.
#[derive(Debug, Clone, Copy)]
pub struct Trial {
    /// Packets per second.
    pub rate_pps: f64,
    /// How long to send.
    pub duration: Duration,
}

impl Trial {
    /// Packets that the trial owes.
    pub fn packets(&self) -> u64 {
        (self.rate_pps * self.duration.as_secs_f64())
            .round()
            .max(1.0) as u64
    }
}

/// What a trial counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// Packets that were due in the trial.
    pub owed: u64,
    /// Handed over to the port.
    pub sent: u64,
    /// The port had no room for them: the device's receive ring was full.
    pub refused: u64,
    /// Due, but the generator never came to them.
    pub unsent: u64,
    /// Came back with a right stamp and checksum (copies included).
    pub received: u64,
    /// Came back damaged.
    pub corrupt: u64,
    /// Not ours, or left over from an earlier trial.
    pub foreign: u64,
    /// Seconds from the first packet due to the last one sent.
    pub seconds: f64,
    /// Ended early by a stop request.
    pub stopped: bool,
}

impl Tally {
    /// True if the generator could not offer the rate: the trial says nothing about the device.
    pub fn generator_behind(&self) -> bool {
        self.unsent > 0
    }
}

/// Why an instrument cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// A port cannot be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The other side did not come.
    #[error("{port}: {why} (waited {waited_s:.1} s)")]
    NoLink {
        /// The port's spec.
        port: String,
        /// What its link says.
        why: String,
        /// How long.
        waited_s: f64,
    },
    /// Told to stop while waiting.
    #[error("stopped")]
    Stopped,
}

/// Opens one port.
pub type OpenPort<'a> = dyn FnMut() -> Result<Box<dyn Port>, PortError> + 'a;

/// A generator and receiver over one or two ports, on the calling thread.
pub struct Instrument {
    names: Vec<String>,
    pub(crate) ports: Vec<Box<dyn Port>>,
    pub(crate) pool: PoolHandle,
    pub(crate) clock: Clock,
    pub(crate) stream: Stream,
    /// Number of the trial, carried in the stamps, so that stragglers of the last one are known.
    trial: u16,
    pub(crate) out: Batch,
    pub(crate) arrived: Batch,
}

impl Instrument {
    /// Opens `specs` (the first sends, the last receives; they may be the same one).
    ///
    /// # Errors
    /// What the ports say.
    pub fn open(specs: &[PortSpec], stream: Stream, clock: Clock) -> Result<Self, TrialError> {
        Self::open_with(specs, stream, clock, |_, open| {
            open().map_err(TrialError::from)
        })
    }

    /// As [`Instrument::open`], but each port, by index, is opened inside `around`, which may enter the
    /// network namespace that it belongs to.
    ///
    /// # Errors
    /// What `around` says.
    pub fn open_with<E: From<PortError>>(
        specs: &[PortSpec],
        stream: Stream,
        clock: Clock,
        around: impl Fn(usize, &mut OpenPort<'_>) -> Result<Box<dyn Port>, E>,
    ) -> Result<Self, E> {
        let mut resources = Resources::for_ports(specs)?;
        let room_bytes = resources.pool().room();
        if usize::from(stream.len_bytes()) > room_bytes {
            return Err(specs[0]
                .error(format!(
                    "frames of {} bytes do not fit its buffers of {room_bytes}",
                    stream.len_bytes()
                ))
                .into());
        }
        let mut ports = Vec::new();
        for (index, spec) in specs.iter().enumerate() {
            ports.push(around(index, &mut || spec.open(&mut resources))?);
        }
        Ok(Self {
            names: specs.iter().map(|s| s.text().to_string()).collect(),
            ports,
            pool: resources.pool(),
            clock,
            stream,
            trial: 0,
            out: Batch::new(),
            arrived: Batch::new(),
        })
    }

    /// Waits until all ports' other sides are there.
    ///
    /// # Errors
    /// When they are not after `patience`, or `stop` is set.
    pub fn wait_for_links(
        &mut self,
        patience: Duration,
        stop: &AtomicBool,
    ) -> Result<(), TrialError> {
        let begun = std::time::Instant::now();
        loop {
            let down = self
                .ports
                .iter_mut()
                .zip(&self.names)
                .find_map(|(port, name)| match port.link() {
                    taut_port::Link::Up => None,
                    taut_port::Link::Down(why) => Some((name.clone(), why)),
                });
            let Some((port, why)) = down else {
                return Ok(());
            };
            if stop.load(Ordering::Relaxed) {
                return Err(TrialError::Stopped);
            }
            if begun.elapsed() >= patience {
                return Err(TrialError::NoLink {
                    port,
                    why,
                    waited_s: patience.as_secs_f64(),
                });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What each port counted since it was opened.
    pub fn counters(&mut self) -> Vec<PortCounters> {
        self.ports.iter_mut().map(|p| p.counters()).collect()
    }

    /// The clock of its stamps.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Runs one trial and tells `record` about every packet.
    ///
    /// Sends packet k when it is due (k / rate after the start), at once if that is past; up to 32 due
    /// ones together. Stops sending at the end of the trial (plus a grace of 1 %), then waits until
    /// all packets are back or none came for 20 ms (2 s at most).
    pub fn run<R: Record>(&mut self, trial: Trial, record: &mut R, stop: &AtomicBool) -> Tally {
        self.trial = self.trial.wrapping_add(1);
        let flow = self.trial;
        let clock = self.clock;
        let ticks_in = |t: Duration| clock.to_ticks(t.as_nanos() as f64) as u64;
        let settle_ticks = ticks_in(SETTLE);
        let endless_ticks = ticks_in(ENDLESS);
        let grace_ticks = ticks_in(trial.duration.mul_f64(GRACE).max(Duration::from_millis(1)));
        let total = trial.packets();
        let gap_ticks = clock.hz / trial.rate_pps;
        let mut tally = Tally {
            owed: total,
            ..Tally::default()
        };
        self.discard_arrived();

        let start = ticks() + ticks_in(Duration::from_micros(20));
        let mut pace = Pace::new(start, gap_ticks);
        let give_up = start + ticks_in(trial.duration) + grace_ticks;
        let mut next = 0_u64;
        let mut last_event = start;
        let mut last_sent = start;
        loop {
            let now = ticks();
            if next < total && pace.due_ticks() <= now {
                if now > give_up {
                    break;
                }
                let first = next;
                while self.out.len() < BURST && next < total && pace.due_ticks() <= now {
                    let Some(mut packet) = self.pool.take(self.stream.len_bytes()) else {
                        break;
                    };
                    self.stream.copy_to(&mut packet);
                    self.out.push(packet);
                    record.sent(next, now - pace.due_ticks());
                    pace.advance();
                    next += 1;
                }
                let stamp = ticks();
                for (sequence, packet) in (first..).zip(self.out.packets_mut()) {
                    self.stream.stamp(packet, flow, sequence, stamp);
                }
                self.ports[0].tx(&mut self.out);
                last_sent = stamp;
                last_event = stamp;
                let refused = self.out.len() as u64;
                if refused > 0 {
                    tally.refused += refused;
                    (next - refused..next).for_each(|sequence| record.refused(sequence));
                    self.out.clear();
                }
                if next == first {
                    // No free frame: every one of them is stuck in a ring of a device that does not move.
                    tally.refused += 1;
                    record.sent(next, now - pace.due_ticks());
                    record.refused(next);
                    pace.advance();
                    next += 1;
                }
            }
            let seen = self.receive(next, record, &mut tally);
            last_event = seen.unwrap_or(last_event);
            if next == total {
                let all_back = tally.received + tally.corrupt + tally.refused >= total;
                let silent = now.saturating_sub(last_event) > settle_ticks;
                let endless = now.saturating_sub(last_sent) > endless_ticks;
                if seen.is_none() && (all_back || silent) || endless {
                    break;
                }
            }
            if stop.load(Ordering::Relaxed) {
                tally.stopped = true;
                break;
            }
        }
        // What was sent before the loop was left early may still come back.
        while next < total && ticks().saturating_sub(last_event) <= settle_ticks {
            last_event = self.receive(next, record, &mut tally).unwrap_or(last_event);
        }
        tally.unsent = total - next;
        tally.sent = next - tally.refused;
        tally.seconds = self.clock.to_ns(last_sent.saturating_sub(start)).max(1.0) / 1e9;
        tally
    }

    /// One receive call; when packets of the trial came, the time at which they were seen. Foreign ones
    /// are counted and nothing else, or a source that never runs dry would keep the trial from ending.
    #[inline(always)]
    fn receive<R: Record>(&mut self, sent: u64, record: &mut R, tally: &mut Tally) -> Option<u64> {
        let port = self.ports.last_mut()?;
        if port.rx(&mut self.arrived) == 0 {
            return None;
        }
        let seen = ticks();
        let foreign_before = tally.foreign;
        for packet in self.arrived.packets() {
            match classify(packet.bytes(), self.stream.udp_port()) {
                Received::Stamped(stamp) if stamp.flow == self.trial && stamp.sequence < sent => {
                    tally.received += 1;
                    record.received(stamp.sequence, seen.wrapping_sub(stamp.stamp_ticks));
                }
                Received::Corrupt => tally.corrupt += 1,
                Received::Stamped(_) | Received::Foreign => tally.foreign += 1,
            }
        }
        let foreign = tally.foreign - foreign_before;
        let ours = self.arrived.len() as u64 > foreign;
        self.arrived.clear();
        ours.then_some(seen)
    }

    /// Throws away what arrived before the trial (a bounded amount: some sources never run dry).
    pub(crate) fn discard_arrived(&mut self) {
        for port in &mut self.ports {
            for _ in 0..1024 {
                if port.rx(&mut self.arrived) == 0 {
                    break;
                }
                self.arrived.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{EveryPacket, Fate, Summaries};
    use std::collections::VecDeque;
    use taut_port::{Link, Packet};
    use taut_wire::UdpFlow;

    /// A wire in a loop that does something to every packet.
    struct Loop {
        wire: VecDeque<Packet>,
        capacity: usize,
        sent: u64,
        harm: fn(u64, &mut Packet) -> Harm,
    }

    enum Harm {
        None,
        Lose,
        Hold,
    }

    impl Port for Loop {
        fn rx(&mut self, batch: &mut Batch) -> usize {
            let n = self.wire.len().min(batch.room());
            self.wire.drain(..n).for_each(|p| batch.push(p));
            n
        }

        fn tx(&mut self, batch: &mut Batch) -> usize {
            let n = batch.len().min(self.capacity - self.wire.len());
            batch.take_front(n, |mut packet| {
                match (self.harm)(self.sent, &mut packet) {
                    Harm::None => self.wire.push_back(packet),
                    Harm::Hold => self.wire.push_front(packet),
                    Harm::Lose => {}
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

    fn instrument(capacity: usize, harm: fn(u64, &mut Packet) -> Harm) -> Instrument {
        let wire = Loop {
            wire: VecDeque::new(),
            capacity,
            sent: 0,
            harm,
        };
        Instrument {
            names: vec!["loop".to_string()],
            ports: vec![Box::new(wire)],
            pool: PoolHandle::new(256, false).unwrap(),
            clock: Clock::calibrate(Duration::from_millis(5)),
            stream: Stream::new(&UdpFlow::default(), 64).unwrap(),
            trial: 0,
            out: Batch::new(),
            arrived: Batch::new(),
        }
    }

    const TRIAL: Trial = Trial {
        rate_pps: 100_000.0,
        duration: Duration::from_millis(20),
    };

    fn run(capacity: usize, harm: fn(u64, &mut Packet) -> Harm) -> (Tally, EveryPacket) {
        let mut record = EveryPacket::new(TRIAL.packets() as usize);
        let tally = instrument(capacity, harm).run(TRIAL, &mut record, &AtomicBool::new(false));
        (tally, record)
    }

    #[test]
    fn every_packet_of_a_good_wire_comes_back() {
        let (tally, record) = run(256, |_, _| Harm::None);
        assert_eq!(tally.owed, 2_000);
        assert_eq!(tally.received, tally.sent);
        assert_eq!(tally.sent + tally.unsent, tally.owed);
        assert_eq!((tally.refused, tally.corrupt, tally.foreign), (0, 0, 0));
        assert!(
            record
                .packets()
                .all(|(_, fate)| matches!(fate, Fate::Received { .. }))
        );
    }

    #[test]
    fn loss_and_damage_are_told_apart_packet_by_packet() {
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
            .filter(|(_, (_, f))| *f == Fate::Lost)
            .map(|(i, _)| i)
            .collect();
        assert_eq!(lost, [7, 9, 11]);
    }

    #[test]
    fn packets_that_find_a_full_ring_are_refused_not_lost() {
        // Nothing ever comes back, so the wire fills up.
        let mut instrument = instrument(10, |_, _| Harm::Hold);
        instrument.ports.push(Box::new(Loop {
            wire: VecDeque::new(),
            capacity: 0,
            sent: 0,
            harm: |_, _| Harm::None,
        }));
        let mut record = EveryPacket::new(TRIAL.packets() as usize);
        let tally = instrument.run(TRIAL, &mut record, &AtomicBool::new(false));
        assert_eq!((tally.sent, tally.received), (10, 0));
        assert_eq!(tally.refused + tally.unsent, tally.owed - 10);
        let refused = record
            .packets()
            .filter(|(_, f)| *f == Fate::Refused)
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
    fn stragglers_of_the_last_trial_are_foreign_to_the_next() {
        let mut instrument = instrument(256, |n, _| if n == 0 { Harm::Hold } else { Harm::None });
        let mut packet = instrument.pool.take(60).unwrap();
        instrument.stream.copy_to(&mut packet);
        instrument.stream.stamp(&mut packet, 77, 0, ticks());
        let mut record = EveryPacket::new(TRIAL.packets() as usize);
        let mut tally = Tally::default();
        instrument.arrived.push(packet);
        let mut arrived = Batch::new();
        std::mem::swap(&mut arrived, &mut instrument.arrived);
        instrument.ports[0].tx(&mut arrived);
        instrument.trial = 78;
        instrument.receive(10, &mut record, &mut tally);
        assert_eq!((tally.foreign, tally.received), (1, 0));
    }

    #[test]
    fn a_device_that_never_stops_sending_does_not_keep_a_trial_from_ending() {
        // The source delivers frames of the pool, some of which carry stamps of this very trial.
        let specs = ["null:", "null:source=32"].map(|s| PortSpec::parse(s).unwrap());
        let stream = Stream::new(&UdpFlow::default(), 64).unwrap();
        let clock = Clock::calibrate(Duration::from_millis(2));
        let mut instrument = Instrument::open(&specs, stream, clock).unwrap();
        let mut record = Summaries::new(&clock);
        let tally = instrument.run(TRIAL, &mut record, &AtomicBool::new(false));
        assert!(tally.sent > 0 && tally.received + tally.foreign > tally.sent);
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
