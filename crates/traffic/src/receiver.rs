//! A receiver that measures other load generators: it timestamps each arrival with its own clock, and needs no stamps
//! in the packets.
//!
//! An arrival lies between two polls of the port; its timestamp is the time of the later poll. Polls that were late
//! because the receiver was preempted are detected by the clock. The gaps around such polls are marked, because they
//! say nothing about the sender.

use crate::TrialError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_port::{BATCH_CAPACITY, Batch, Port, PortSpec, Resources};
use taut_sys::{Clock, ticks};

/// An iteration longer than this contains an interruption: receiving 64 frames takes a fraction of that time.
const LONGEST_ROUND: Duration = Duration::from_micros(2);

/// IPv4 UDP in a frame: offset and value of the EtherType, then offset and value of the IP protocol.
const UDP: (usize, [u8; 2], usize, u8) = (12, [0x08, 0x00], 23, 17);

/// The time between two successive arrivals, and a mark if an interruption of the receiver may have changed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap(u32);

impl Gap {
    const INTERRUPTED: u32 = 1 << 31;

    /// Makes a gap of `ticks`, limited to 2^31 - 1 ticks (nearly a second). `interrupted` is true if the receiver was
    /// interrupted at the beginning or the end of the gap.
    pub fn new(ticks: u64, interrupted: bool) -> Self {
        let length = ticks.min(u64::from(Self::INTERRUPTED - 1)) as u32;
        Self(if interrupted {
            length | Self::INTERRUPTED
        } else {
            length
        })
    }

    /// Returns the length of the gap, ticks.
    pub fn ticks(self) -> u32 {
        self.0 & !Self::INTERRUPTED
    }

    /// Returns true if the receiver was interrupted at the beginning or the end of the gap.
    pub fn is_interrupted(self) -> bool {
        self.0 & Self::INTERRUPTED != 0
    }
}

/// The frames that arrived at a receiver.
#[derive(Debug, Clone, Default)]
pub struct Arrivals {
    /// Number of frames that arrived.
    pub frames: u64,
    /// Total length of the frames, bytes, frame check sequences not included.
    pub bytes: u64,
    /// Time from the first to the last frame, s.
    pub seconds: f64,
    /// Gaps between successive frames, in order: one fewer than frames. Empty if frames were only counted.
    pub gaps: Vec<Gap>,
    /// Number of frames that are not IPv4 UDP, such as frames of the kernel; no other field includes them.
    pub foreign: u64,
    /// Number of iterations in which the receiver was interrupted.
    pub interruptions: u64,
    /// Duration of the interruptions, s.
    pub interrupted_seconds: f64,
    /// Mean time between two idle polls, ns: the resolution of a timestamp.
    pub resolution_ns: f64,
}

impl Arrivals {
    /// Returns the mean rate from the first to the last arrival, packets per second.
    pub fn pps(&self) -> f64 {
        self.frames.saturating_sub(1) as f64 / self.seconds.max(1e-9)
    }
}

/// Receives and measures arrivals at a port.
pub struct Receiver {
    port: Box<dyn Port>,
    arrived: Batch,
    clock: Clock,
}

impl Receiver {
    /// Opens the port of a receiver.
    ///
    /// # Errors
    /// The port cannot be opened.
    pub fn open(spec: &PortSpec, clock: Clock) -> Result<Self, TrialError> {
        let mut resources = Resources::for_ports(std::slice::from_ref(spec))?;
        Ok(Self {
            port: spec.open(&mut resources)?,
            arrived: Batch::new(),
            clock,
        })
    }

    /// Discards arrivals for `duration`; returns the number of IPv4 UDP frames.
    pub fn discard(&mut self, duration: Duration) -> u64 {
        let end = ticks() + self.clock.to_ticks(duration.as_nanos() as f64) as u64;
        let mut thrown = 0;
        while ticks() < end {
            // A handshake of the port that is in progress advances only in this call.
            self.port.link();
            self.port.rx(&mut self.arrived);
            let frames = self.arrived.packets().iter();
            thrown += frames.filter(|frame| is_udp(frame.bytes())).count() as u64;
            self.arrived.clear();
        }
        thrown
    }

    /// Returns the number of frames that the port lost since it was opened, because its ring was full.
    pub fn overrun(&mut self) -> u64 {
        self.port.counters().rx_overrun
    }

    /// Counts arrivals for `duration`, with as little work per frame as possible.
    pub fn count(&mut self, duration: Duration, stop: &AtomicBool) -> Arrivals {
        let length = self.clock.to_ticks(duration.as_nanos() as f64) as u64;
        let mut found = Arrivals::default();
        let (mut first, mut last) = (None, 0);
        let begin = ticks();
        while !stop.load(Ordering::Relaxed) {
            let n = self.port.rx(&mut self.arrived);
            let seen = ticks();
            if n > 0 {
                // All frames of the first poll arrived before its timestamp, over an unknown time. Only one of them
                // counts, so that there is one frame more than there are gaps, as with single timestamps.
                let counted = if first.is_none() { 1 } else { n };
                first.get_or_insert(seen);
                found.frames += counted as u64;
                let packets = self.arrived.packets().iter().take(counted);
                found.bytes += packets.map(|packet| packet.len() as u64).sum::<u64>();
                self.arrived.clear();
                last = seen;
            }
            if seen - begin > length {
                break;
            }
        }
        found.seconds = self.clock.to_ns(last - first.unwrap_or(last)) / 1e9;
        found
    }

    /// Timestamps every arrival for `duration`, or until `room` gaps are stored.
    pub fn watch(&mut self, duration: Duration, room: usize, stop: &AtomicBool) -> Arrivals {
        // The memory is touched now, because otherwise each page would cause a page fault during the measurement.
        let mut gaps = vec![Gap(0); room];
        gaps.clear();
        let mut found = Arrivals::default();
        let length = self.clock.to_ticks(duration.as_nanos() as f64) as u64;
        let longest = self.clock.to_ticks(LONGEST_ROUND.as_nanos() as f64) as u64;
        let (mut empty_rounds, mut empty_ticks, mut lost_ticks) = (0_u64, 0_u64, 0_u64);
        let mut first = None;
        let mut last = 0;
        let mut marked = Marks::default();
        let begin = ticks();
        let mut looked = begin;
        while !stop.load(Ordering::Relaxed) && looked - begin < length && gaps.len() < room {
            let n = self.port.rx(&mut self.arrived);
            let seen = ticks();
            let round = seen - looked;
            looked = seen;
            if round > longest {
                found.interruptions += 1;
                lost_ticks += round;
            }
            if n == 0 {
                empty_rounds += 1;
                empty_ticks += round;
                continue;
            }
            marked.look(round > longest, n);
            for packet in self.arrived.packets() {
                let frame = packet.bytes();
                if !is_udp(frame) {
                    found.foreign += 1;
                    continue;
                }
                found.bytes += frame.len() as u64;
                found.frames += 1;
                if first.is_none() {
                    first = Some(seen);
                } else if gaps.len() < room {
                    gaps.push(Gap::new(seen - last, marked.next()));
                }
                last = seen;
            }
            self.arrived.clear();
        }
        found.seconds = self.clock.to_ns(last - first.unwrap_or(last)) / 1e9;
        found.interrupted_seconds = self.clock.to_ns(lost_ticks) / 1e9;
        found.resolution_ns = self.clock.to_ns(empty_ticks) / empty_rounds.max(1) as f64;
        found.gaps = gaps;
        found
    }
}

fn is_udp(frame: &[u8]) -> bool {
    let (ethertype_at, ethertype, protocol_at, protocol) = UDP;
    frame.get(ethertype_at..ethertype_at + 2) == Some(&ethertype)
        && frame.get(protocol_at) == Some(&protocol)
}

/// Marks the gaps around an interruption: the gaps of all frames that were queued during it, and the gap after them,
/// because its first timestamp is too late.
#[derive(Debug, Default)]
struct Marks {
    /// True if this poll was late, or if the previous poll was late and left some of the queued frames.
    late: bool,
    /// True if the last poll filled its batch.
    full: bool,
    /// True if the timestamp of the last frame is too late.
    after: bool,
}

impl Marks {
    /// Processes a poll that found `n` frames.
    #[inline(always)]
    fn look(&mut self, was_late: bool, n: usize) {
        let more_of_the_pile = self.late && self.full;
        self.late = was_late || more_of_the_pile;
        self.full = n == BATCH_CAPACITY;
    }

    /// Returns true if the next gap of this poll is marked.
    #[inline(always)]
    fn next(&mut self) -> bool {
        let marked = self.late || self.after;
        self.after = self.late;
        marked
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_gaps_next_to_an_interruption_are_marked() {
        let mut marks = Marks::default();
        let mut seen = Vec::new();
        let mut look = |late, n| {
            marks.look(late, n);
            (0..n).map(|_| marks.next()).collect::<Vec<_>>()
        };
        seen.extend(look(false, 1));
        // This poll fills its batch, so more frames may be queued than fit in the batch.
        let pile = look(true, BATCH_CAPACITY);
        assert!(pile.iter().all(|marked| *marked));
        seen.extend(look(false, 2));
        seen.extend(look(false, 2));
        assert_eq!(seen, [false, true, true, true, false]);
    }

    #[test]
    fn a_gap_stores_its_length_and_its_interruption_flag() {
        assert_eq!(Gap::new(5, true).ticks(), 5);
        assert!(Gap::new(5, true).is_interrupted() && !Gap::new(5, false).is_interrupted());
        assert_eq!(Gap::new(u64::MAX, false).ticks(), (1 << 31) - 1);
        assert!(!Gap::new(u64::MAX, false).is_interrupted());
    }

    #[test]
    fn packets_sent_within_the_same_process_arrive_in_order() {
        use crate::{Instrument, Stream, Summaries, Trial};
        let name = format!("receiver-{}", std::process::id());
        let spec = PortSpec::parse(&format!("pair:{name}")).unwrap();
        let clock = Clock::calibrate(Duration::from_millis(5));
        let receiving = spec.clone();
        let [done, stop] = [(); 2].map(|()| std::sync::Arc::new(AtomicBool::new(false)));
        let (is_done, has_all) = (std::sync::Arc::clone(&done), std::sync::Arc::clone(&stop));
        // A port and its packets cannot move between threads, so the receiving thread opens its own port.
        let thread = std::thread::spawn(move || {
            let mut receiver = Receiver::open(&receiving, clock).unwrap();
            let watched = receiver.watch(Duration::from_secs(20), 500, &done);
            // The flag ends the sender's trial, which would otherwise wait for the packets to come back.
            has_all.store(true, Ordering::Relaxed);
            (watched, receiver.overrun())
        });
        let stream = Stream::new(&taut_wire::UdpFlow::default(), 64).unwrap();
        let mut sender = Instrument::open(&[spec], stream, clock).unwrap();
        sender
            .wait_for_links(Duration::from_secs(10), &stop)
            .unwrap();
        let trial = Trial {
            rate_pps: 10_000.0,
            duration: Duration::from_millis(100),
        };
        let tally = sender.run(trial, &mut Summaries::new(&clock), &stop);
        is_done.store(true, Ordering::Relaxed);
        let (watched, overrun) = thread.join().unwrap();
        assert_eq!(overrun, 0);
        // The receiver may begin late, and ends when it has stored the requested number of gaps.
        assert!(
            watched.frames >= 2 && watched.frames <= tally.sent,
            "{watched:?}"
        );
        // The burst that completes the requested number of gaps may contain further frames.
        assert_eq!(watched.gaps.len() as u64, (watched.frames - 1).min(500));
        assert_eq!(watched.bytes, watched.frames * 60);
        let sum: f64 = watched
            .gaps
            .iter()
            .map(|gap| clock.to_ns(gap.ticks().into()))
            .sum();
        if watched.frames <= 501 {
            assert!((sum / 1e9 - watched.seconds).abs() < 1e-6, "{watched:?}");
        }
    }
}
