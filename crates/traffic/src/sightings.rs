//! A ring that passes samples of packets from the loop that forwards the packets to a thread that evaluates the
//! samples. A sample (type `Sighting`) is the time, side and direction of one packet.
//!
//! The ring has one writer and one reader. The writer never waits: samples that do not fit are only counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use taut_sys::{Clock, ticks};
use taut_wire::Stamp;
use taut_xdp::wire_tap::Sighting;

/// Number of low bits in a slot's first word, which store side and direction; the higher bits store the ticks.
const PLACE_BITS: u32 = 2;

/// A slot with the sample of one packet. The first word contains ticks, side and direction; the second word contains
/// sequence number (48 bits) and flow (16 bits).
#[derive(Default)]
struct Slot {
    moment: AtomicU64,
    packet: AtomicU64,
}

struct Ring {
    slots: Box<[Slot]>,
    /// Number of samples written since the ring was created.
    written: AtomicU64,
    /// Number of samples read since the ring was created.
    taken: AtomicU64,
    ring_full: AtomicU64,
}

impl Ring {
    fn slot(&self, number: u64) -> &Slot {
        &self.slots[number as usize % self.slots.len()]
    }
}

/// The writing side of the ring of samples, for the loop that receives and sends the packets.
pub struct SightingWriter {
    ring: Arc<Ring>,
    written: u64,
    /// Value of the ring's `taken` when the writer last read it.
    taken: u64,
}

/// The reading side of the ring of samples.
pub struct SightingReader {
    ring: Arc<Ring>,
    begun_ticks: u64,
}

/// Makes a ring with space for `room` samples, 16 bytes each.
pub fn sightings(room: usize) -> (SightingWriter, SightingReader) {
    let ring = Arc::new(Ring {
        slots: (0..room.max(1)).map(|_| Slot::default()).collect(),
        written: AtomicU64::new(0),
        taken: AtomicU64::new(0),
        ring_full: AtomicU64::new(0),
    });
    let writer = SightingWriter {
        ring: Arc::clone(&ring),
        written: 0,
        taken: 0,
    };
    let begun_ticks = ticks();
    (writer, SightingReader { ring, begun_ticks })
}

impl SightingWriter {
    /// Adds samples of the packets of one batch at side 0 or 1; `leaving` is true for packets that leave the device.
    /// Entries without a stamp are frames of other kinds, and are skipped.
    #[inline]
    pub fn note(&mut self, stamps: &[Option<Stamp>], side: usize, leaving: bool, now_ticks: u64) {
        let place = (side as u64 & 1) << 1 | u64::from(leaving);
        let moment = now_ticks << PLACE_BITS | place;
        let room = self.ring.slots.len() as u64;
        let mut full = 0;
        for stamp in stamps.iter().flatten() {
            if self.written - self.taken >= room {
                // Acquire: the reader has finished with the slots that it has counted as read.
                self.taken = self.ring.taken.load(Ordering::Acquire);
                if self.written - self.taken >= room {
                    full += 1;
                    continue;
                }
            }
            let slot = self.ring.slot(self.written);
            slot.moment.store(moment, Ordering::Relaxed);
            let packet = stamp.sequence << 16 | u64::from(stamp.flow);
            slot.packet.store(packet, Ordering::Relaxed);
            self.written += 1;
        }
        if full > 0 {
            self.ring.ring_full.fetch_add(full, Ordering::Relaxed);
        }
        // Release: a reader that sees the number sees the content of the slots.
        self.ring.written.store(self.written, Ordering::Release);
    }
}

impl SightingReader {
    /// Passes the samples since the last call to `each`, in order. Their times are relative to the creation of the
    /// ring.
    pub fn take(&mut self, clock: &Clock, mut each: impl FnMut(Sighting)) {
        let from = self.ring.taken.load(Ordering::Relaxed);
        let to = self.ring.written.load(Ordering::Acquire);
        for number in from..to {
            let slot = self.ring.slot(number);
            let moment = slot.moment.load(Ordering::Relaxed);
            let packet = slot.packet.load(Ordering::Relaxed);
            // The two highest bits of the time-stamp counter were shifted out: no machine runs for long enough to set
            // them.
            let since = (moment >> PLACE_BITS).saturating_sub(self.begun_ticks);
            each(Sighting {
                time_ns: clock.to_ns(since) as u64,
                sequence: packet >> 16,
                flow: packet as u16,
                side: (moment >> 1 & 1) as usize,
                leaving: moment & 1 == 1,
            });
        }
        self.ring.taken.store(to, Ordering::Release);
    }

    /// Returns the number of samples that were discarded because the ring was full.
    pub fn ring_full(&self) -> u64 {
        self.ring.ring_full.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn stamp(sequence: u64) -> Option<Stamp> {
        Some(Stamp {
            flow: 0xfffe,
            sequence,
            stamp_ticks: 0,
        })
    }

    #[test]
    fn a_reader_gets_every_sample_except_counted_ring_overflows() {
        let clock = Clock::calibrate(Duration::from_millis(1));
        let (mut writer, mut reader) = sightings(4);
        let last = (1 << 48) - 1;
        for round in 0..3 {
            let now_ticks = ticks();
            writer.note(&[stamp(last), None, stamp(1)], 1, false, now_ticks);
            writer.note(&[stamp(2), stamp(3), stamp(4)], 0, true, now_ticks);
            let mut seen = Vec::new();
            reader.take(&clock, |s| {
                seen.push((s.sequence, s.flow, s.side, s.leaving));
            });
            let want = [(last, 1, false), (1, 1, false), (2, 0, true), (3, 0, true)];
            assert_eq!(seen, want.map(|(n, side, out)| (n, 0xfffe, side, out)));
            assert_eq!(reader.ring_full(), round + 1);
        }
    }

    #[test]
    fn entries_are_read_intact_while_another_thread_writes() {
        const PACKETS: u64 = 200_000;
        let clock = Clock::calibrate(Duration::from_millis(1));
        let (mut writer, mut reader) = sightings(1000);
        let mut next = 0;
        let mut taken = 0;
        std::thread::scope(|scope| {
            let writing = scope.spawn(move || {
                for sequence in 0..PACKETS {
                    let side = sequence as usize & 1;
                    writer.note(&[stamp(sequence)], side, side == 0, ticks());
                }
            });
            loop {
                let over = writing.is_finished();
                reader.take(&clock, |s| {
                    assert!(s.sequence >= next);
                    assert_eq!((s.side, s.leaving), (s.sequence as usize & 1, s.side == 0));
                    next = s.sequence + 1;
                    taken += 1;
                });
                if over {
                    break;
                }
            }
        });
        assert_eq!(taken + reader.ring_full(), PACKETS);
    }
}
