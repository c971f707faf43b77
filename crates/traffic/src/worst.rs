//! The packets with the longest latencies: their frames, and the frames that arrived immediately before and after.

/// Number of frames that are stored before and after each of the worst packets.
pub const CONTEXT_FRAMES: usize = 4;

/// Limit on the stored bytes of a frame.
pub const KEPT_BYTES: usize = 2048;

/// A frame that came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrived {
    /// Number of packets that had arrived before this frame.
    pub arrival: u64,
    /// Sequence number of the packet.
    pub sequence: u64,
    /// Time from the frame's stamp to its arrival, ticks.
    pub latency_ticks: u64,
    /// Time of the frame's arrival, ticks after the start.
    pub seen_ticks: u64,
    /// Length of the frame, bytes; the first [`KEPT_BYTES`] bytes are stored.
    pub len_bytes: usize,
    /// The stored bytes of the frame.
    pub bytes: Vec<u8>,
    /// Rank of the packet among the worst packets, from 1; none for the frames before and after them.
    pub rank: Option<usize>,
}

impl Arrived {
    fn room() -> Self {
        // The memory is touched now, so that the trial causes no page faults.
        let mut bytes = vec![1; KEPT_BYTES];
        bytes.clear();
        Self {
            arrival: 0,
            sequence: 0,
            latency_ticks: 0,
            seen_ticks: 0,
            len_bytes: 0,
            bytes,
            rank: None,
        }
    }

    #[inline]
    fn copy_from(&mut self, other: &Arrival<'_>) {
        self.arrival = other.arrival;
        self.sequence = other.sequence;
        self.latency_ticks = other.latency_ticks;
        self.seen_ticks = other.seen_ticks;
        self.len_bytes = other.frame.len();
        self.bytes.clear();
        let kept = other.frame.len().min(KEPT_BYTES);
        self.bytes.extend_from_slice(&other.frame[..kept]);
    }

    fn borrow(&self) -> Arrival<'_> {
        Arrival {
            arrival: self.arrival,
            sequence: self.sequence,
            latency_ticks: self.latency_ticks,
            seen_ticks: self.seen_ticks,
            frame: &self.bytes,
        }
    }
}

struct Arrival<'a> {
    arrival: u64,
    sequence: u64,
    latency_ticks: u64,
    seen_ticks: u64,
    frame: &'a [u8],
}

/// One of the worst packets, and the frames before and after it.
struct Case {
    latency_ticks: u64,
    arrival: u64,
    /// Stored frames, of which the first `used` are valid.
    frames: Vec<Arrived>,
    used: usize,
    /// Number of frames after the packet that have not arrived yet.
    to_come: usize,
}

/// Stores the `n` worst packets in memory allocated before the trial: about 18 KiB each.
pub struct WorstPackets {
    n: usize,
    cases: Vec<Case>,
    /// Number of used elements of `cases`.
    made: usize,
    /// Lowest latency among the stored packets, once `n` packets are stored.
    threshold: u64,
    /// Indices of the stored packets that wait for later frames.
    waiting: Vec<usize>,
    /// The last frames that arrived. The index of a frame is its arrival number modulo the length of this list.
    recent: Vec<Arrived>,
    arrivals: u64,
}

impl WorstPackets {
    /// Allocates memory for the `n` worst packets.
    pub fn new(n: usize) -> Self {
        let room = |n: usize| (0..n).map(|_| Arrived::room()).collect::<Vec<_>>();
        Self {
            n,
            cases: (0..n)
                .map(|_| Case {
                    latency_ticks: 0,
                    arrival: 0,
                    frames: room(2 * CONTEXT_FRAMES + 1),
                    used: 0,
                    to_come: 0,
                })
                .collect(),
            made: 0,
            threshold: 0,
            waiting: Vec::with_capacity(2 * CONTEXT_FRAMES),
            recent: room(CONTEXT_FRAMES),
            arrivals: 0,
        }
    }

    /// Records the next intact frame that came back.
    #[inline(always)]
    pub fn received(&mut self, sequence: u64, latency_ticks: u64, seen_ticks: u64, frame: &[u8]) {
        let arrival = Arrival {
            arrival: self.arrivals,
            sequence,
            latency_ticks,
            seen_ticks,
            frame,
        };
        if !self.waiting.is_empty() {
            self.add_to_waiting(&arrival);
        }
        if latency_ticks > self.threshold || self.made < self.n {
            self.add_case(&arrival);
        }
        self.recent[(self.arrivals % CONTEXT_FRAMES as u64) as usize].copy_from(&arrival);
        self.arrivals += 1;
    }

    #[cold]
    fn add_to_waiting(&mut self, arrival: &Arrival<'_>) {
        let cases = &mut self.cases;
        self.waiting.retain(|index| {
            let case = &mut cases[*index];
            case.frames[case.used].copy_from(arrival);
            case.used += 1;
            case.to_come -= 1;
            case.to_come > 0
        });
    }

    #[cold]
    fn add_case(&mut self, arrival: &Arrival<'_>) {
        let index = if self.made < self.n {
            self.made += 1;
            self.made - 1
        } else {
            let least = (0..self.n).min_by_key(|index| self.cases[*index].latency_ticks);
            let Some(least) = least else {
                return;
            };
            self.waiting.retain(|index| *index != least);
            least
        };
        let case = &mut self.cases[index];
        case.latency_ticks = arrival.latency_ticks;
        case.arrival = arrival.arrival;
        case.used = 0;
        case.to_come = CONTEXT_FRAMES;
        let before = arrival.arrival.min(CONTEXT_FRAMES as u64);
        for earlier in arrival.arrival - before..arrival.arrival {
            let recent = &self.recent[(earlier % CONTEXT_FRAMES as u64) as usize];
            case.frames[case.used].copy_from(&recent.borrow());
            case.frames[case.used].len_bytes = recent.len_bytes;
            case.used += 1;
        }
        case.frames[case.used].copy_from(arrival);
        case.used += 1;
        self.waiting.push(index);
        if self.made == self.n {
            let least = self.cases.iter().map(|case| case.latency_ticks).min();
            self.threshold = least.unwrap_or(u64::MAX);
        }
    }

    /// Returns all stored frames, in the order of their arrival, each once.
    pub fn into_frames(mut self) -> Vec<Arrived> {
        self.cases.truncate(self.made);
        self.cases
            .sort_by_key(|case| (std::cmp::Reverse(case.latency_ticks), case.arrival));
        let mut frames = std::collections::BTreeMap::new();
        for (index, case) in self.cases.into_iter().enumerate() {
            for frame in case.frames.into_iter().take(case.used) {
                let is_worst = frame.arrival == case.arrival;
                let kept = frames.entry(frame.arrival).or_insert(frame);
                if is_worst {
                    kept.rank = Some(index + 1);
                }
            }
        }
        frames.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn of(latencies: &[u64], n: usize) -> Vec<Arrived> {
        let mut worst = WorstPackets::new(n);
        for (index, latency) in latencies.iter().enumerate() {
            let frame = vec![index as u8; 60 + index];
            worst.received(index as u64, *latency, index as u64, &frame);
        }
        worst.into_frames()
    }

    #[test]
    fn the_slowest_packet_is_stored_with_its_neighbouring_packets() {
        let mut latencies = vec![10; 40];
        latencies[20] = 99;
        let frames = of(&latencies, 1);
        let around: Vec<u64> = frames.iter().map(|f| f.sequence).collect();
        assert_eq!(around, [16, 17, 18, 19, 20, 21, 22, 23, 24]);
        let ranks: Vec<_> = frames
            .iter()
            .filter_map(|f| Some((f.rank?, f.sequence)))
            .collect();
        assert_eq!(ranks, [(1, 20)]);
        assert_eq!(frames[4].bytes, vec![20; 80]);
    }

    #[test]
    fn long_frames_are_truncated_but_their_length_is_stored() {
        let mut worst = WorstPackets::new(2);
        worst.received(0, 1, 1, &[7; 9000]);
        worst.received(1, 1, 1, &[7; 60]);
        let frames = worst.into_frames();
        assert_eq!(
            (frames[0].len_bytes, frames[0].bytes.len()),
            (9000, KEPT_BYTES)
        );
    }

    #[test]
    fn no_frame_is_stored_if_no_packet_was_received() {
        assert!(WorstPackets::new(3).into_frames().is_empty());
    }

    proptest! {
        #[test]
        fn the_ranked_packets_have_the_highest_latencies(
            latencies in prop::collection::vec(0_u64..50, 0..150), n in 1_usize..12,
        ) {
            let frames = of(&latencies, n);
            let mut ranked: Vec<_> = frames.iter().filter(|f| f.rank.is_some()).collect();
            ranked.sort_by_key(|f| f.rank);
            let found: Vec<u64> = ranked.iter().map(|f| f.latency_ticks).collect();
            let mut sorted = latencies.clone();
            sorted.sort_unstable_by(|a, b| b.cmp(a));
            sorted.truncate(n);
            prop_assert_eq!(found, sorted);
            for frame in &frames {
                let near = ranked.iter().any(|r| r.arrival.abs_diff(frame.arrival) <= CONTEXT_FRAMES as u64);
                prop_assert!(near);
                prop_assert_eq!(frame.bytes.len(), 60 + frame.sequence as usize);
            }
        }
    }
}
