//! Bytes of one direction of a TCP connection, put in order (RFC 9293 section 3.4). What comes in order is handed on where it lies;
//! what comes early is kept until the bytes in front of it are there, or have to be given up.
//!
//! Where bytes come twice, those that came first count, as the packet that brought them has been passed on. Urgent data counts as any.

use crate::arena::{Arena, CHUNK_BYTES, NONE};

/// Limits of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamLimits {
    /// Bytes in front of a segment that are kept for it, [`MOST_WINDOW`] at most.
    pub window: usize,
    /// Bytes that are kept out of order, in whole chunks of [`CHUNK_BYTES`]: however small the segments are, memory and the time to look
    /// through what is kept are bounded by it.
    pub out_of_order: usize,
}

/// Most bytes in front of a segment that are kept.
pub const MOST_WINDOW: usize = CHUNK_BYTES;

/// Bytes of a chunk of early data in front of the data: its sequence number and its length.
const HEAD: usize = 6;
/// Bytes of early data of a chunk.
const ROOM: usize = CHUNK_BYTES - HEAD;

/// One direction of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    /// Sequence number of the byte that comes next, and of the first one.
    next: u32,
    first: u32,
    /// Chunk with the bytes that came last.
    window: u32,
    window_len: u16,
    is_started: bool,
    /// First chunk of early data, in order of sequence numbers.
    early: u32,
    early_bytes: u32,
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            next: 0,
            first: 0,
            window: NONE,
            window_len: 0,
            is_started: false,
            early: NONE,
            early_bytes: 0,
        }
    }
}

/// Bytes in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Bytes that came right in front of them, a few at most.
    pub before: &'a [u8],
    /// New bytes.
    pub data: &'a [u8],
    /// Whether bytes are missing between them and all that came before.
    pub gap: bool,
    /// Sequence numbers that the stream has taken with them ([`Stream::taken`]).
    pub taken: u32,
}

/// What became of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment {
    /// It came in order.
    InOrder,
    /// It came early; so many bytes of it are kept.
    OutOfOrder(usize),
    /// All of it had come before.
    Old,
    /// A part of it had come before.
    Overlap {
        /// Whether that part was different, as far as it is still known.
        differs: bool,
    },
    /// It came early, and there was no memory to keep it.
    NoMemory,
    /// It is further ahead than any window reaches.
    TooFar,
}

/// Farthest that a segment may be ahead: the largest window (RFC 7323 section 2.3).
const FARTHEST: u32 = 1 << 30;

impl Stream {
    /// Begins with the byte of that sequence number; what was kept has to be given back before.
    pub fn start(&mut self, sequence: u32) {
        *self = Self {
            next: sequence,
            first: sequence,
            is_started: true,
            ..Self::default()
        };
    }

    /// Says whether it has begun.
    #[inline]
    pub fn is_started(&self) -> bool {
        self.is_started
    }

    /// Sequence numbers that it has taken so far, one of them for its SYN; 0 before it has begun.
    #[inline]
    pub fn taken(&self) -> u32 {
        match self.is_started {
            true => self.next.wrapping_sub(self.first).wrapping_add(1),
            false => 0,
        }
    }

    /// Gives all that it keeps back.
    pub fn close(&mut self, arena: &mut Arena) {
        if self.window != NONE {
            arena.give_back(self.window);
        }
        let mut chunk = self.early;
        while chunk != NONE {
            let next = arena.next(chunk);
            arena.give_back(chunk);
            chunk = next;
        }
        *self = Self::default();
    }

    /// Takes a segment. `take` gets its new bytes if they are next in order, and then what came early and is now in order.
    pub fn push(
        &mut self,
        arena: &mut Arena,
        sequence: u32,
        payload: &[u8],
        limits: &StreamLimits,
        take: &mut dyn FnMut(Piece<'_>),
    ) -> Segment {
        let ahead = sequence.wrapping_sub(self.next);
        if ahead == 0 && self.early == NONE {
            self.hand_on(arena, payload, false, limits, take);
            return Segment::InOrder;
        }
        if ahead > FARTHEST && ahead < 0u32.wrapping_sub(FARTHEST) {
            return Segment::TooFar;
        }
        if (ahead as i32) > 0 {
            return self.keep(arena, sequence, payload, limits, take);
        }
        // It begins at the next byte or before it.
        let old = 0u32.wrapping_sub(ahead) as usize;
        let differs = self.differs(arena, payload, old);
        if payload.len() <= old {
            return match differs {
                true => Segment::Overlap { differs },
                false => Segment::Old,
            };
        }
        let new = &payload[old..];
        let differs_ahead = self.differs_from_early(arena, new);
        self.hand_on_before_early(arena, new, limits, take);
        self.drain(arena, limits, take);
        match old > 0 || differs_ahead {
            true => Segment::Overlap {
                differs: differs || differs_ahead,
            },
            false => Segment::InOrder,
        }
    }

    /// Hands on new bytes up to those that came early, which came first; then those, and what is behind them.
    fn hand_on_before_early(
        &mut self,
        arena: &mut Arena,
        mut new: &[u8],
        limits: &StreamLimits,
        take: &mut dyn FnMut(Piece<'_>),
    ) {
        while !new.is_empty() {
            let until = match self.early {
                NONE => new.len(),
                chunk => (head(arena, chunk).0.wrapping_sub(self.next) as i32).max(0) as usize,
            };
            let here = until.min(new.len());
            if here > 0 {
                self.hand_on(arena, &new[..here], false, limits, take);
                new = &new[here..];
            }
            let before = self.next;
            self.drain(arena, limits, take);
            let early = self.next.wrapping_sub(before) as usize;
            if here == 0 && early == 0 {
                return;
            }
            new = new.get(early..).unwrap_or_default();
        }
    }

    /// Hands on bytes that are next, and keeps the last of them.
    fn hand_on(
        &mut self,
        arena: &mut Arena,
        data: &[u8],
        gap: bool,
        limits: &StreamLimits,
        take: &mut dyn FnMut(Piece<'_>),
    ) {
        if data.is_empty() {
            return;
        }
        if gap {
            self.window_len = 0;
        }
        let mut before = [0; MOST_WINDOW];
        let kept = usize::from(self.window_len);
        if kept > 0 {
            before[..kept].copy_from_slice(&arena.bytes(self.window)[..kept]);
        }
        take(Piece {
            before: &before[..kept],
            data,
            gap,
            taken: self.taken().wrapping_add(data.len() as u32),
        });
        self.next = self.next.wrapping_add(data.len() as u32);
        let most = limits.window.min(MOST_WINDOW);
        if most == 0 {
            return;
        }
        if self.window == NONE {
            self.window = arena.take().unwrap_or(NONE);
            if self.window == NONE {
                self.window_len = 0;
                return;
            }
        }
        let window = arena.bytes_mut(self.window);
        if data.len() >= most {
            window[..most].copy_from_slice(&data[data.len() - most..]);
            self.window_len = most as u16;
        } else {
            let old = kept.min(most - data.len());
            window.copy_within(kept - old..kept, 0);
            window[old..][..data.len()].copy_from_slice(data);
            self.window_len = (old + data.len()) as u16;
        }
    }

    /// Whether the first `old` bytes of a segment, which came before, are others than those that are kept.
    fn differs(&self, arena: &Arena, payload: &[u8], old: usize) -> bool {
        let kept = usize::from(self.window_len);
        if kept == 0 {
            return false;
        }
        let window = &arena.bytes(self.window)[..kept];
        // The segment's byte `i` lies `old - i` before the next one.
        let first = old.saturating_sub(kept);
        let last = old.min(payload.len());
        (first..last).any(|i| payload[i] != window[kept + i - old])
    }

    /// Whether bytes that begin with the next one are others than those that came early.
    fn differs_from_early(&self, arena: &Arena, new: &[u8]) -> bool {
        let mut chunk = self.early;
        while chunk != NONE {
            let (sequence, len) = head(arena, chunk);
            let at = sequence.wrapping_sub(self.next) as usize;
            let early = &arena.bytes(chunk)[HEAD..][..len];
            if at >= new.len() {
                return false;
            }
            let both = len.min(new.len() - at);
            if new[at..at + both] != early[..both] {
                return true;
            }
            chunk = arena.next(chunk);
        }
        false
    }

    /// Hands on what came early and is next.
    fn drain(&mut self, arena: &mut Arena, limits: &StreamLimits, take: &mut dyn FnMut(Piece<'_>)) {
        while self.early != NONE {
            let chunk = self.early;
            let (sequence, len) = head(arena, chunk);
            let old = self.next.wrapping_sub(sequence);
            if (old as i32) < 0 {
                return;
            }
            self.unlink_first(arena);
            if (old as usize) < len {
                let bytes = *arena.bytes(chunk);
                self.hand_on(
                    arena,
                    &bytes[HEAD + old as usize..HEAD + len],
                    false,
                    limits,
                    take,
                );
            }
            arena.give_back(chunk);
        }
    }

    fn unlink_first(&mut self, arena: &Arena) {
        self.early = arena.next(self.early);
        self.early_bytes -= CHUNK_BYTES as u32;
    }

    /// Keeps bytes that came early, those that are not kept already.
    fn keep(
        &mut self,
        arena: &mut Arena,
        sequence: u32,
        payload: &[u8],
        limits: &StreamLimits,
        take: &mut dyn FnMut(Piece<'_>),
    ) -> Segment {
        let mut differs = false;
        let mut overlaps = false;
        let mut kept = 0;
        let mut from = 0;
        let mut has_failed = false;
        // The chunk behind which the next bytes belong.
        let mut before = NONE;
        let mut chunk = self.early;
        while from < payload.len() {
            let at = sequence.wrapping_add(from as u32);
            // Chunks that end before these bytes.
            while chunk != NONE {
                let (begin, len) = head(arena, chunk);
                if (begin.wrapping_add(len as u32).wrapping_sub(at) as i32) > 0 {
                    break;
                }
                (before, chunk) = (chunk, arena.next(chunk));
            }
            let mut until = payload.len();
            if chunk != NONE {
                let (begin, len) = head(arena, chunk);
                let ahead = begin.wrapping_sub(at) as i32;
                if ahead <= 0 {
                    // These are kept already.
                    let inside = ahead.unsigned_abs() as usize;
                    let both = (len - inside).min(payload.len() - from);
                    let known = &arena.bytes(chunk)[HEAD + inside..][..both];
                    overlaps = true;
                    differs |= *known != payload[from..from + both];
                    from += both;
                    continue;
                }
                until = until.min(from + ahead as usize);
            }
            let len = (until - from).min(ROOM);
            if self.early_bytes as usize + CHUNK_BYTES > limits.out_of_order {
                has_failed = true;
                break;
            }
            let Some(new) = arena.take() else {
                has_failed = true;
                break;
            };
            let bytes = arena.bytes_mut(new);
            bytes[..4].copy_from_slice(&at.to_be_bytes());
            bytes[4..HEAD].copy_from_slice(&(len as u16).to_be_bytes());
            bytes[HEAD..][..len].copy_from_slice(&payload[from..from + len]);
            arena.link(new, chunk);
            match before {
                NONE => self.early = new,
                before => arena.link(before, new),
            }
            before = new;
            self.early_bytes += CHUNK_BYTES as u32;
            kept += len;
            from += len;
        }
        if has_failed {
            // What is missing in front of these bytes is given up: on with what is there of that, then with these bytes.
            let at = sequence.wrapping_add(from as u32);
            self.give_up(arena, at, limits, take);
            let gap = self.next != at;
            self.next = at;
            let rest = &payload[from..];
            let until = match self.early {
                NONE => rest.len(),
                chunk => (head(arena, chunk).0.wrapping_sub(at) as usize).min(rest.len()),
            };
            self.hand_on(arena, &rest[..until], gap, limits, take);
            self.drain(arena, limits, take);
            let handed = self.next.wrapping_sub(at) as usize;
            let rest = rest.get(handed..).unwrap_or_default();
            self.hand_on_before_early(arena, rest, limits, take);
            return Segment::NoMemory;
        }
        match overlaps {
            true => Segment::Overlap { differs },
            false => Segment::OutOfOrder(kept),
        }
    }

    /// Hands on what came early in front of a byte, with a gap wherever bytes are missing.
    fn give_up(
        &mut self,
        arena: &mut Arena,
        until: u32,
        limits: &StreamLimits,
        take: &mut dyn FnMut(Piece<'_>),
    ) {
        while self.early != NONE {
            let chunk = self.early;
            let (sequence, len) = head(arena, chunk);
            if (sequence.wrapping_sub(until) as i32) >= 0 {
                return;
            }
            let gap = (sequence.wrapping_sub(self.next) as i32) > 0;
            if gap {
                self.next = sequence;
            }
            let old = (self.next.wrapping_sub(sequence) as usize).min(len);
            self.unlink_first(arena);
            let bytes = *arena.bytes(chunk);
            self.hand_on(arena, &bytes[HEAD + old..HEAD + len], gap, limits, take);
            arena.give_back(chunk);
        }
    }
}

/// Sequence number and length of a chunk of early data.
fn head(arena: &Arena, chunk: u32) -> (u32, usize) {
    let bytes = arena.bytes(chunk);
    let sequence = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    (
        sequence,
        usize::from(u16::from_be_bytes([bytes[4], bytes[5]])),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const LIMITS: StreamLimits = StreamLimits {
        window: 256,
        out_of_order: 1 << 20,
    };

    /// What a stream hands on: its bytes, with a mark where some are missing.
    struct Taken {
        bytes: Vec<u8>,
        gaps: usize,
    }

    impl Taken {
        fn take(&mut self, piece: Piece<'_>) {
            if piece.gap {
                self.gaps += 1;
                assert!(piece.before.is_empty());
            }
            assert!(self.bytes.ends_with(piece.before));
            self.bytes.extend_from_slice(piece.data);
        }
    }

    fn original(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn segments_in_any_order_and_number_become_the_bytes_that_were_sent(
            seed in any::<u64>(), len in 1usize..6000, start in prop_oneof![Just(0u32), Just(u32::MAX - 900), any::<u32>()],
        ) {
            let mut rng = fastrand(seed);
            let bytes = original(len);
            // Cuts, copies and overlaps.
            let mut segments = Vec::new();
            let mut at = 0;
            while at < len {
                let n = 1 + rng() % 700;
                segments.push((at, (at + n).min(len)));
                at += n;
            }
            for _ in 0..rng() % 6 {
                let from = rng() % len;
                segments.push((from, (from + 1 + rng() % 900).min(len)));
            }
            for i in (1..segments.len()).rev() {
                segments.swap(i, rng() % (i + 1));
            }
            let mut arena = Arena::new(1 << 16);
            let mut stream = Stream::default();
            stream.start(start);
            let mut taken = Taken { bytes: Vec::new(), gaps: 0 };
            for (from, to) in segments {
                let sequence = start.wrapping_add(from as u32);
                let segment = stream.push(&mut arena, sequence, &bytes[from..to], &LIMITS, &mut |piece| taken.take(piece));
                let differs = matches!(segment, Segment::Overlap { differs: true } | Segment::NoMemory | Segment::TooFar);
                prop_assert!(!differs);
            }
            prop_assert_eq!(taken.gaps, 0);
            prop_assert_eq!(&taken.bytes, &bytes);
            stream.close(&mut arena);
            prop_assert_eq!(arena.used(), 0);
        }

        #[test]
        fn whatever_comes_memory_stays_within_its_limit(seed in any::<u64>(), chunks in 1usize..40) {
            let mut rng = fastrand(seed);
            let bytes = original(4000);
            let mut arena = Arena::new(chunks * CHUNK_BYTES);
            let mut stream = Stream::default();
            stream.start(7);
            let limits = StreamLimits { window: 256, out_of_order: 3000 };
            let mut handed = 0usize;
            for _ in 0..60 {
                let from = rng() % 4000;
                let to = (from + rng() % 1500).min(4000);
                let segment = &bytes[from..to];
                stream.push(&mut arena, 7 + from as u32, segment, &limits, &mut |piece| handed += piece.data.len());
                prop_assert!(stream.early_bytes as usize <= 3000);
            }
            prop_assert!(handed <= 4000);
            stream.close(&mut arena);
            prop_assert_eq!(arena.used(), 0);
        }
    }

    /// Numbers that look random.
    fn fastrand(mut seed: u64) -> impl FnMut() -> usize {
        move || {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize
        }
    }

    fn pushed(
        stream: &mut Stream,
        arena: &mut Arena,
        sequence: u32,
        data: &[u8],
    ) -> (Segment, Vec<u8>) {
        let mut all = Vec::new();
        let segment = stream.push(arena, sequence, data, &LIMITS, &mut |piece| {
            all.extend_from_slice(piece.data)
        });
        (segment, all)
    }

    #[test]
    fn other_bytes_in_the_place_of_known_ones_are_noticed_and_do_not_count() {
        let mut arena = Arena::new(1 << 14);
        let mut stream = Stream::default();
        stream.start(100);
        assert_eq!(
            pushed(&mut stream, &mut arena, 100, b"abcdef").0,
            Segment::InOrder
        );
        assert_eq!(pushed(&mut stream, &mut arena, 100, b"abc").0, Segment::Old);
        assert_eq!(
            pushed(&mut stream, &mut arena, 102, b"xd").0,
            Segment::Overlap { differs: true }
        );
        let (segment, new) = pushed(&mut stream, &mut arena, 103, b"defgh");
        assert_eq!(
            (segment, &new[..]),
            (Segment::Overlap { differs: false }, &b"gh"[..])
        );
        assert_eq!(
            pushed(&mut stream, &mut arena, 110, b"klm").0,
            Segment::OutOfOrder(3)
        );
        assert_eq!(
            pushed(&mut stream, &mut arena, 109, b"jkX").0,
            Segment::Overlap { differs: true }
        );
        let (segment, new) = pushed(&mut stream, &mut arena, 108, b"iJK");
        assert_eq!(
            (segment, &new[..]),
            (Segment::Overlap { differs: true }, &b"ijklm"[..])
        );
    }

    #[test]
    fn what_never_comes_is_given_up_when_too_much_waits_for_it() {
        let mut arena = Arena::new(1 << 20);
        let mut stream = Stream::default();
        stream.start(0);
        let limits = StreamLimits {
            window: 16,
            out_of_order: 4 * CHUNK_BYTES,
        };
        let mut taken = Taken {
            bytes: Vec::new(),
            gaps: 0,
        };
        let data = [7; 1000];
        for sequence in [1, 1001] {
            stream.push(&mut arena, sequence, &data, &limits, &mut |piece| {
                taken.take(piece)
            });
        }
        assert!(taken.bytes.is_empty());
        let segment = stream.push(&mut arena, 2001, &data, &limits, &mut |piece| {
            taken.take(piece)
        });
        assert_eq!(
            (segment, taken.bytes.len(), taken.gaps),
            (Segment::NoMemory, 3000, 1)
        );
        assert_eq!(
            stream.push(&mut arena, 1 << 31, &data, &limits, &mut |_| {}),
            Segment::TooFar
        );
    }

    #[test]
    fn segments_of_one_byte_take_no_more_memory_than_others() {
        let mut arena = Arena::new(1 << 20);
        let mut stream = Stream::default();
        stream.start(0);
        let limits = StreamLimits {
            window: 0,
            out_of_order: 16 * CHUNK_BYTES,
        };
        let mut handed = 0;
        for at in 0..1000 {
            let take = &mut |piece: Piece<'_>| handed += piece.data.len();
            stream.push(&mut arena, 2 + 2 * at, b"x", &limits, take);
            assert!(arena.used() <= 16);
        }
        assert!(handed >= 1000 - 16);
    }

    #[test]
    fn a_segment_without_room_is_handed_on_in_its_place() {
        let mut arena = Arena::new(1 << 20);
        let mut stream = Stream::default();
        stream.start(0);
        let limits = StreamLimits {
            window: 16,
            out_of_order: CHUNK_BYTES,
        };
        let mut taken = Vec::new();
        let take = &mut |piece: Piece<'_>| taken.push((piece.data.to_vec(), piece.gap));
        let kept = stream.push(&mut arena, 10, b"late", &limits, take);
        assert_eq!(kept, Segment::OutOfOrder(4));
        // It lies in front of what is kept, and reaches into it and beyond.
        let segment = stream.push(&mut arena, 5, b"firstYYYYbehind", &limits, take);
        assert_eq!(segment, Segment::NoMemory);
        let expected = [
            (b"first".to_vec(), true),
            (b"late".to_vec(), false),
            (b"behind".to_vec(), false),
        ];
        assert_eq!(taken, expected);
        stream.close(&mut arena);
        assert_eq!(arena.used(), 0);
    }
}
