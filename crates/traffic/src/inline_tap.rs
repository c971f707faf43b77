//! An inline wiretap relays packets between a load generator and a device, and records when each measurement packet
//! enters and leaves the device.

use crate::sightings::SightingWriter;
use std::sync::atomic::{AtomicBool, Ordering};
use taut_port::{BATCH_CAPACITY, Batch, Link, Port, PortCounters};
use taut_sys::{Clock, ticks};
use taut_wire::{Stamp, claimed_stamp};

/// Largest burst that is received from a port.
const BURST: usize = 32;

/// Interval at which the state of the links is checked, s.
const LOOK_SECONDS: f64 = 0.1;

/// A link to the device, which the wiretap splits into two ports.
pub struct TappedWire {
    /// Port on the load generator's side of the link.
    pub generator: Box<dyn Port>,
    /// Port on the device's side of the link.
    pub device: Box<dyn Port>,
}

/// Statistics of an inline wiretap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RelayAccount {
    /// Packets that were dropped because the device's ring was full; they are not counted as entered.
    pub refused: u64,
    /// Packets from the device that were dropped because the load generator's ring was full.
    pub undelivered: u64,
    /// Counters of the ports, in this order: load generator and device of the first link, then of the second link.
    pub ports: Vec<PortCounters>,
}

/// An inline wiretap: relays packets between load generator and device on one core, and records each packet. The clock
/// is read immediately before packets are sent to the device and immediately after they are received from it. Up to 32
/// packets that are sent or received together share a reading.
///
/// The loop allocates nothing, locks nothing and makes no system call of its own.
pub struct InlineTap {
    wires: Vec<TappedWire>,
    sightings: SightingWriter,
    look_ticks: u64,
    account: RelayAccount,
}

/// The stamps (flow, sequence number and send timestamp) of the packets in a batch, at the packets' indices; none for a
/// packet without a stamp.
type Stamps = [Option<Stamp>; BATCH_CAPACITY];

impl InlineTap {
    /// Makes an inline wiretap on the given links, at most two. `sightings` gets a sample of each packet: time,
    /// direction and side; packets on link `i` are recorded as side `i`.
    pub fn new(wires: Vec<TappedWire>, sightings: SightingWriter, clock: &Clock) -> Self {
        Self {
            wires,
            sightings,
            look_ticks: clock.to_ticks(LOOK_SECONDS * 1e9) as u64,
            account: RelayAccount::default(),
        }
    }

    /// Relays until `stop` is set. When a link changes, `on_link` gets the index of the port (in the order of
    /// [`RelayAccount::ports`]) and the new state of the link, within 100 ms.
    pub fn run(mut self, stop: &AtomicBool, mut on_link: impl FnMut(usize, &Link)) -> RelayAccount {
        let mut batch = Batch::limited(BURST);
        let mut stamps = [None; BATCH_CAPACITY];
        let mut links: Vec<Option<Link>> = vec![None; self.wires.len() * 2];
        let mut look_at = ticks();
        while !stop.load(Ordering::Relaxed) {
            for side in 0..self.wires.len() {
                self.relay_in(side, &mut batch, &mut stamps);
                self.relay_out(side, &mut batch, &mut stamps);
            }
            let now = ticks();
            if now.wrapping_sub(look_at) < u64::MAX / 2 {
                self.look(&mut links, &mut on_link);
                look_at = now + self.look_ticks;
            }
        }
        for port in self.ports() {
            port.close();
        }
        let counters = self.ports().map(|port| port.counters()).collect();
        self.account.ports = counters;
        self.account
    }

    #[inline(always)]
    fn relay_in(&mut self, side: usize, batch: &mut Batch, stamps: &mut Stamps) {
        let wire = &mut self.wires[side];
        if wire.generator.rx(batch) == 0 {
            return;
        }
        read_stamps(batch, stamps);
        let now_ticks = ticks();
        let entered = wire.device.tx(batch);
        self.sightings
            .note(&stamps[..entered], side, false, now_ticks);
        self.account.refused += batch.len() as u64;
        batch.clear();
    }

    #[inline(always)]
    fn relay_out(&mut self, side: usize, batch: &mut Batch, stamps: &mut Stamps) {
        let wire = &mut self.wires[side];
        let left = wire.device.rx(batch);
        if left == 0 {
            return;
        }
        let now_ticks = ticks();
        read_stamps(batch, stamps);
        wire.generator.tx(batch);
        self.sightings.note(&stamps[..left], side, true, now_ticks);
        self.account.undelivered += batch.len() as u64;
        batch.clear();
    }

    fn ports(&mut self) -> impl Iterator<Item = &mut Box<dyn Port>> {
        let wires = self.wires.iter_mut();
        wires.flat_map(|wire| [&mut wire.generator, &mut wire.device])
    }

    #[cold]
    fn look(&mut self, links: &mut [Option<Link>], on_link: &mut impl FnMut(usize, &Link)) {
        for (index, (port, known)) in self.ports().zip(links).enumerate() {
            let link = port.link();
            if known.as_ref() != Some(&link) {
                on_link(index, &link);
                *known = Some(link);
            }
        }
    }
}

#[inline(always)]
fn read_stamps(batch: &Batch, stamps: &mut Stamps) {
    for (packet, stamp) in batch.packets().iter().zip(stamps) {
        *stamp = claimed_stamp(packet.bytes()).map(|(stamp, _)| stamp);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sightings::sightings;
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;
    use taut_port::PoolHandle;
    use taut_wire::{StampLayout, UdpFlow};
    use taut_xdp::wire_tap::Sighting;

    /// Frames in flight in one direction of a link.
    type Lane = Arc<Mutex<VecDeque<Vec<u8>>>>;

    /// One side of a link: a queue of frames for each direction.
    struct End {
        pool: PoolHandle,
        from: Lane,
        to: Lane,
        room: usize,
    }

    impl Port for End {
        fn rx(&mut self, batch: &mut Batch) -> usize {
            let frame = self.from.lock().unwrap().pop_front();
            let Some(frame) = frame else { return 0 };
            let mut packet = self.pool.take(frame.len() as u16).unwrap();
            packet.bytes_mut().copy_from_slice(&frame);
            batch.push(packet);
            1
        }

        fn tx(&mut self, batch: &mut Batch) -> usize {
            let mut to = self.to.lock().unwrap();
            let sent = batch.len().min(self.room - to.len());
            batch.take_front(sent, |packet| to.push_back(packet.bytes().to_vec()));
            sent
        }

        fn link(&mut self) -> Link {
            Link::Up
        }

        fn counters(&mut self) -> PortCounters {
            PortCounters::default()
        }
    }

    fn frames(sequences: std::ops::Range<u64>) -> Vec<Vec<u8>> {
        let template = UdpFlow::default().frame(64).unwrap();
        let layout = StampLayout::new(&template).unwrap();
        let stamped = sequences.map(|sequence| {
            let mut frame = template.clone();
            layout.write(&mut frame, 5, sequence, 0).unwrap();
            frame
        });
        stamped.collect()
    }

    /// Relays the packets of `west` to a device, and the packets of `answers` from the device to the generator. The
    /// rings of device and generator have space for `room` packets each. Returns the samples, the statistics, and the
    /// numbers of packets that arrived at each side.
    fn relay(
        room: usize,
        west: &[Vec<u8>],
        answers: &[Vec<u8>],
    ) -> (Vec<Sighting>, RelayAccount, [usize; 2]) {
        let lane = |frames: &[Vec<u8>]| Lane::new(Mutex::new(frames.to_vec().into()));
        let [sent, entered, left, received] = [west, &[], answers, &[]].map(lane);
        let clock = Clock::calibrate(Duration::from_millis(1));
        let (writer, mut reader) = sightings(64);
        let end = |from: &Lane, to: &Lane, room| -> Box<dyn Port> {
            Box::new(End {
                pool: PoolHandle::new(64, false).unwrap(),
                from: Arc::clone(from),
                to: Arc::clone(to),
                room,
            })
        };
        let wire = TappedWire {
            generator: end(&sent, &received, room),
            device: end(&left, &entered, room),
        };
        let stop = AtomicBool::new(false);
        let tap = InlineTap::new(vec![wire], writer, &clock);
        let mut ups = 0;
        let account = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !(sent.lock().unwrap().is_empty() && left.lock().unwrap().is_empty()) {
                    std::thread::yield_now();
                }
                // The loop completes its current iteration before it ends.
                stop.store(true, Ordering::Relaxed);
            });
            tap.run(&stop, |_, link| ups += usize::from(link.is_up()))
        });
        assert_eq!(ups, 2);
        let mut seen = Vec::new();
        reader.take(&clock, |sighting| seen.push(sighting));
        let got = [&entered, &received].map(|lane| lane.lock().unwrap().len());
        (seen, account, got)
    }

    #[test]
    fn the_inline_tap_forwards_and_records_each_packet_once() {
        let (seen, account, got) = relay(64, &frames(0..5), &frames(3..5));
        assert_eq!(got, [5, 2]);
        let of = |leaving: bool| -> Vec<u64> {
            let of = seen.iter().filter(|s| s.leaving == leaving);
            of.map(|s| s.sequence).collect()
        };
        assert_eq!((of(false), of(true)), (vec![0, 1, 2, 3, 4], vec![3, 4]));
        assert!(seen.iter().all(|s| s.flow == 5 && s.side == 0));
        assert!(seen.is_sorted_by_key(|s| s.time_ns));
        assert_eq!((account.refused, account.undelivered), (0, 0));
        assert_eq!(account.ports.len(), 2);
    }

    #[test]
    fn packets_that_the_device_refuses_are_not_recorded_as_entered() {
        let (seen, account, got) = relay(3, &frames(0..8), &frames(0..4));
        assert_eq!(got, [3, 3]);
        assert_eq!(seen.iter().filter(|s| !s.leaving).count(), 3);
        // All four packets left the device, although the load generator's ring had space for only three.
        assert_eq!(seen.iter().filter(|s| s.leaving).count(), 4);
        assert_eq!((account.refused, account.undelivered), (5, 1));
    }

    #[test]
    fn foreign_frames_are_forwarded_without_being_recorded() {
        let (seen, _, got) = relay(64, &[vec![7; 60], vec![0; 14]], &[]);
        assert_eq!((seen.len(), got), (0, [2, 0]));
    }
}
