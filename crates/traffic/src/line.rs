//! Pacing ahead of time: packets are sent before they are due, so that their gaps do not depend on the loop of the
//! generator. The gaps are produced by filler frames on a line of known speed (gap filling; Gallenmüller 2021, section
//! 3.2), or by the rate limiter of a NIC.

use crate::instrument::{Running, choose};
use crate::traffic::Traffic;
use std::time::Duration;
use taut_sys::Clock;
use taut_wire::frame::{FRAME_CHECK_SEQUENCE_BYTES, MIN_FRAME_SIZE_BYTES};

/// Time by which packets are sent ahead of the line: the longest stall of the loop that leaves no gap on the line.
const AHEAD: Duration = Duration::from_micros(200);

/// Bytes that a frame takes on the line in addition to its own length: check sequence, preamble, start delimiter,
/// shortest inter-frame gap.
const OVERHEAD_BYTES: usize = FRAME_CHECK_SEQUENCE_BYTES + 20;

const SHORTEST_FILLER_BYTES: usize = MIN_FRAME_SIZE_BYTES - FRAME_CHECK_SEQUENCE_BYTES;
const LONGEST_FILLER_BYTES: usize = 1514;

/// EtherType of fillers (IEEE's for local experiments). `MARK` distinguishes fillers from other frames with this
/// EtherType.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
const MARK: &[u8] = b"taut filler";

/// A method of pacing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pacing {
    /// The loop sends each packet when it is due.
    Software,
    /// The send ring is filled without gaps: filler frames are sent where no packet is due.
    Fill {
        /// Speed of the line, bit/s, preambles and inter-frame gaps included.
        line_bits_per_s: f64,
    },
    /// The rate limiter of the NIC; the rate was set when the port was opened.
    Nic,
}

/// The next item to send on the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// A packet of stream `stream`, which is due; it is `late` ticks behind its intended send time.
    Packet { stream: usize, late: u64 },
    /// A filler frame; the value is its length in bytes.
    Filler(usize),
    /// No item is due.
    Nothing,
}

/// State of the line: the time until which it is occupied.
#[derive(Debug)]
pub(crate) struct Line {
    /// Transmission time of a byte, ticks; 0 without fillers.
    ticks_per_byte: f64,
    ahead_ticks: u64,
    /// Time at which the transmission of the next frame begins, ticks.
    at_ticks: f64,
    filler: Vec<u8>,
}

impl Line {
    pub(crate) fn of(
        pacing: Pacing,
        traffic: &Traffic,
        clock: &Clock,
        room: usize,
    ) -> Option<Self> {
        let ticks_per_byte = match pacing {
            Pacing::Software => return None,
            Pacing::Fill { line_bits_per_s } => clock.hz * 8.0 / line_bits_per_s,
            Pacing::Nic => 0.0,
        };
        let mut filler = vec![0; LONGEST_FILLER_BYTES.min(room)];
        if let Some(addresses) = traffic.streams().first().and_then(|s| s.mac_addresses()) {
            filler[..12].copy_from_slice(addresses);
        }
        filler[12..14].copy_from_slice(&ETHERTYPE);
        filler[14..14 + MARK.len()].copy_from_slice(MARK);
        Some(Self {
            ticks_per_byte,
            ahead_ticks: clock.to_ticks(AHEAD.as_nanos() as f64) as u64,
            at_ticks: 0.0,
            filler,
        })
    }

    /// Returns the next item for the line. No packet begins before its intended send time. A packet may begin late, by
    /// up to the length of the shortest filler.
    #[inline(always)]
    pub(crate) fn next(&mut self, running: &[Running], now: u64) -> Next {
        let until = now + self.ahead_ticks;
        if self.ticks_per_byte == 0.0 {
            return match choose(running, until) {
                Some(stream) => Next::Packet {
                    stream,
                    late: now.saturating_sub(running[stream].schedule.due_ticks()),
                },
                None => Next::Nothing,
            };
        }
        // If the line was idle, its next frame begins at the present time.
        self.at_ticks = self.at_ticks.max(now as f64);
        let at = self.at_ticks as u64;
        if at >= until {
            return Next::Nothing;
        }
        if let Some(stream) = choose(running, at) {
            let late = at - running[stream].schedule.due_ticks();
            return Next::Packet { stream, late };
        }
        let dues = running.iter().map(|r| r.schedule.due_ticks());
        match dues.min().filter(|due| *due != u64::MAX) {
            Some(due) => Next::Filler(self.filler_for(due as f64 - self.at_ticks)),
            None => Next::Nothing,
        }
    }

    /// Returns the length of the filler for a gap, or for the first part of a long gap, bytes.
    fn filler_for(&self, gap_ticks: f64) -> usize {
        let (shortest, longest) = (
            SHORTEST_FILLER_BYTES + OVERHEAD_BYTES,
            self.filler.len() + OVERHEAD_BYTES,
        );
        let gap_bytes = (gap_ticks / self.ticks_per_byte).round().min(1e9) as usize;
        let bytes = match gap_bytes {
            gap if gap <= longest => gap.max(shortest),
            // The remaining gap must also be long enough for a filler.
            gap => longest.min(gap - shortest),
        };
        bytes - OVERHEAD_BYTES
    }

    /// Advances the line by a frame of the given length.
    #[inline(always)]
    pub(crate) fn take(&mut self, frame_bytes: usize) {
        self.at_ticks += (frame_bytes + OVERHEAD_BYTES) as f64 * self.ticks_per_byte;
    }

    /// Returns the bytes of a filler of the given length.
    pub(crate) fn filler(&self, frame_bytes: usize) -> &[u8] {
        &self.filler[..frame_bytes]
    }
}

/// Returns true if a frame is a filler; its receiver drops it.
#[inline(always)]
pub(crate) fn is_filler(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&ETHERTYPE) && frame[14..].starts_with(MARK)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Pattern, Schedule, Stream};
    use taut_wire::UdpFlow;

    /// A byte takes 8 ticks: 1 Gbit/s at 1 GHz.
    fn line() -> Line {
        let stream = Stream::new(&UdpFlow::default(), 64).unwrap();
        let clock = Clock {
            hz: 1e9,
            ..Clock::calibrate(Duration::from_millis(1))
        };
        let pacing = Pacing::Fill {
            line_bits_per_s: 1e9,
        };
        Line::of(pacing, &stream.into(), &clock, 2048).unwrap()
    }

    /// Returns the frame lengths on the line in a millisecond, and the send delays of the packets. The length is 0 for
    /// packets, which have 60 bytes.
    fn on_the_line(rate_pps: f64) -> (Vec<usize>, Vec<u64>) {
        let mut line = line();
        let length = Duration::from_millis(1);
        let schedule = Schedule::new(&Pattern::Constant, rate_pps, length, 0, 1e9, 0);
        let mut running = [Running::of(schedule)];
        let (mut frames, mut lates) = (Vec::new(), Vec::new());
        for now in (0..2_000_000).step_by(1000) {
            loop {
                match line.next(&running, now) {
                    Next::Nothing => break,
                    Next::Filler(len) => {
                        line.take(len);
                        frames.push(len);
                    }
                    Next::Packet { late, .. } => {
                        line.take(60);
                        frames.push(0);
                        lates.push(late);
                        running[0].schedule.advance();
                    }
                }
            }
        }
        (frames, lates)
    }

    #[test]
    fn packets_leave_at_their_intended_send_times_at_line_rate() {
        // The line carries 6250 bytes every 50 us.
        let (frames, lates) = on_the_line(20_000.0);
        assert_eq!(lates.len(), 20);
        let between: usize = frames[1..]
            .iter()
            .take_while(|len| **len > 0)
            .map(|len| len + 24)
            .sum();
        assert_eq!(between, 6250 - 84);
        assert!(lates.iter().all(|late| *late <= 8), "{lates:?}");
        assert!(
            frames
                .iter()
                .all(|len| *len == 0 || (60..=1514).contains(len))
        );
    }

    #[test]
    fn delays_from_gaps_shorter_than_a_filler_do_not_accumulate() {
        // A packet begins every 100 bytes and occupies 84 of them. The other 16 bytes are too few for a filler of 84
        // bytes.
        let (frames, lates) = on_the_line(1.25e6);
        assert_eq!(lates.len(), 1_250);
        assert!(lates.iter().all(|late| *late <= 84 * 8 + 8), "{lates:?}");
        let fillers = frames.iter().filter(|len| **len > 0).count();
        assert!((200..260).contains(&fillers), "{fillers}");
    }

    #[test]
    fn only_complete_filler_frames_are_recognized_as_fillers() {
        let line = line();
        assert!(is_filler(line.filler(60)));
        assert!(!is_filler(&UdpFlow::default().frame(64).unwrap()));
        assert!(!is_filler(&line.filler(60)[..20]));
        assert!(!is_filler(&[]));
    }
}
