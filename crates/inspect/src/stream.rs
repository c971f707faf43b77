//! Bytes of one direction of a TCP connection, put in order (RFC 9293 section 3.4). What comes in order is handed on where it lies;
//! what comes early is kept until the bytes in front of it are there.
//!
//! A byte that has been handed on or is kept is fixed: until its receiver has acknowledged it, the stream remembers it, and a segment
//! that brings another byte for its place is told apart. So whatever makes the receiver refuse the first copy, it cannot be given
//! a second one with other bytes, and its stream is the one that was handed on. Urgent data counts as any.

use crate::arena::{Arena, CHUNK_BYTES, NONE};
use crate::overlap::Overlap;

/// Limits of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamLimits {
    /// Bytes in front of a segment that are handed on with it, [`MOST_WINDOW`] at most.
    pub window: usize,
    /// Bytes that are kept of those that are not acknowledged, and bytes that are kept of those that came early, in whole chunks of
    /// [`CHUNK_BYTES`]: however small the segments are, memory and the time to look through what is kept are bounded by it.
    pub kept: usize,
    /// What becomes of bytes that come twice and differ.
    pub overlap: Overlap,
    /// Whether segments can be refused, as in line. A listener gives up missing bytes where it has no room for what came behind
    /// them.
    pub in_line: bool,
}

/// Most bytes in front of a segment that are handed on with it.
pub const MOST_WINDOW: usize = CHUNK_BYTES;

/// Bytes of a chunk of early data in front of the data: its sequence number and its length.
const HEAD: usize = 6;
/// Bytes of early data of a chunk.
const ROOM: usize = CHUNK_BYTES - HEAD;

/// One direction of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    /// Sequence number of the byte that comes next, of the first one, and of the first one that is not acknowledged.
    next: u32,
    first: u32,
    acknowledged: u32,
    /// Bytes in front of `next` that are kept, and their chunks: the first one, of which so many bytes are kept no more, the last
    /// one, and the one in front of that.
    kept: u32,
    oldest: u32,
    skipped: u16,
    previous: u32,
    newest: u32,
    is_started: bool,
    /// Whether bytes are missing in front of `next`.
    gap: bool,
    /// First chunk of early data, in order of sequence numbers, and memory of those chunks.
    early: u32,
    early_bytes: u32,
    /// Behind the last byte that came early and was forgotten for want of memory: until all is acknowledged up to there, nothing
    /// is known of what comes.
    lost_until: Option<u32>,
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            next: 0,
            first: 0,
            acknowledged: 0,
            kept: 0,
            oldest: NONE,
            skipped: 0,
            previous: NONE,
            newest: NONE,
            is_started: false,
            gap: false,
            early: NONE,
            early_bytes: 0,
            lost_until: None,
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
    /// A part of it had come before, and was the same or is acknowledged.
    Overlap,
    /// It brings other bytes for places whose bytes are known.
    Differs,
    /// It repeats bytes that are not acknowledged and were forgotten for want of memory: nobody knows whether they are the same.
    Unknown,
    /// There was no memory to keep it. In line nothing of it is kept or handed on; a listener has given up what was
    /// missing in front of it.
    NoMemory,
    /// It is further ahead than any window reaches.
    TooFar,
}

/// Farthest that a segment may be ahead: the largest window (RFC 7323 section 2.3).
const FARTHEST: u32 = 1 << 30;

/// Whether a sequence number comes before another one.
#[inline]
pub fn is_before(sequence: u32, other: u32) -> bool {
    (sequence.wrapping_sub(other) as i32) < 0
}

impl Stream {
    /// Begins with the byte of that sequence number; what was kept has to be given back before.
    pub fn start(&mut self, sequence: u32) {
        *self = Self {
            next: sequence,
            first: sequence,
            acknowledged: sequence,
            is_started: true,
            ..Self::default()
        };
    }

    /// Says whether it has begun.
    #[inline]
    pub fn is_started(&self) -> bool {
        self.is_started
    }

    /// Sequence number of its first byte.
    #[inline]
    pub fn first(&self) -> u32 {
        self.first
    }

    /// Sequence number of the byte that comes next.
    #[inline]
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Sequence numbers that it has taken so far, one of them for its SYN; 0 before it has begun.
    #[inline]
    pub fn taken(&self) -> u32 {
        match self.is_started {
            true => self.next.wrapping_sub(self.first).wrapping_add(1),
            false => 0,
        }
    }

    /// Bytes of memory that it holds.
    #[inline]
    pub fn memory_bytes(&self) -> usize {
        let kept = usize::from(self.skipped) + self.kept as usize;
        self.early_bytes as usize + kept.next_multiple_of(CHUNK_BYTES)
    }

    /// Bytes that have been handed on and are not acknowledged.
    fn in_flight(&self) -> usize {
        match self.next.wrapping_sub(self.acknowledged) {
            bytes if bytes > FARTHEST => 0,
            bytes => bytes as usize,
        }
    }

    /// Gives all that it keeps back.
    pub fn close(&mut self, arena: &mut Arena) {
        arena.give_back_all(self.oldest);
        arena.give_back_all(self.early);
        *self = Self::default();
    }

    /// Gives its memory back and goes on: bytes that are not acknowledged are not known any more. Returns whether bytes are
    /// among them that have not been handed on.
    pub fn forget(&mut self, arena: &mut Arena) -> bool {
        let mut chunk = self.early;
        while chunk != NONE {
            let (sequence, len) = head(arena, chunk);
            self.lost_until = Some(sequence.wrapping_add(len as u32));
            chunk = arena.next(chunk);
        }
        arena.give_back_all(self.early);
        (self.early, self.early_bytes) = (NONE, 0);
        self.forget_kept(arena);
        self.lost_until.is_some()
    }

    fn forget_kept(&mut self, arena: &mut Arena) {
        arena.give_back_all(self.oldest);
        (self.oldest, self.previous, self.newest) = (NONE, NONE, NONE);
        (self.kept, self.skipped) = (0, 0);
    }

    /// Notes that the receiver has all bytes in front of that number: they need not be remembered. Where some of them
    /// never came here they are given up, and what came early behind them is handed on.
    pub fn acknowledge(
        &mut self,
        arena: &mut Arena,
        number: u32,
        limits: &StreamLimits,
        take: &mut dyn FnMut(Piece<'_>),
    ) {
        if !self.is_started || !is_before(self.acknowledged, number) {
            return;
        }
        self.acknowledged = number;
        if self.lost_until.is_some_and(|it| !is_before(number, it)) {
            self.lost_until = None;
        }
        if is_before(self.next, number) {
            self.give_up(arena, number, limits, take);
            self.drain(arena, limits, take);
        }
        self.release(arena, limits);
    }

    /// Gives memory of bytes back that are acknowledged and further back than the window.
    fn release(&mut self, arena: &mut Arena, limits: &StreamLimits) {
        let window = limits.window.min(MOST_WINDOW);
        let wanted = self.in_flight().min(limits.kept).max(window) as u32;
        while self.kept > wanted {
            let here = CHUNK_BYTES as u32 - u32::from(self.skipped);
            let over = self.kept - wanted;
            if over < here || self.oldest == self.newest {
                self.skipped += over as u16;
                self.kept = wanted;
                return;
            }
            let chunk = self.oldest;
            self.oldest = arena.next(chunk);
            if self.oldest == self.newest {
                self.previous = NONE;
            }
            arena.give_back(chunk);
            self.kept -= here;
            self.skipped = 0;
        }
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
        if ahead > FARTHEST && ahead < 0u32.wrapping_sub(FARTHEST) {
            return Segment::TooFar;
        }
        let end = sequence.wrapping_add(payload.len() as u32);
        if self.lost_until.is_some() && is_before(self.acknowledged, end) {
            return Segment::Unknown;
        }
        if (ahead as i32) > 0 {
            return self.keep(arena, sequence, payload, limits, take);
        }
        // It begins at the next byte or before it.
        let old = 0u32.wrapping_sub(ahead) as usize;
        let new = payload.len().saturating_sub(old);
        if limits.in_line && new > 0 && !self.has_room(arena, new, limits) {
            return Segment::NoMemory;
        }
        if ahead == 0 && self.early == NONE {
            self.hand_on(arena, payload, limits, take);
            return Segment::InOrder;
        }
        let fault = self.fault_of_old(arena, payload, old);
        let Some(new) = payload.get(old..).filter(|new| !new.is_empty()) else {
            return fault.unwrap_or(Segment::Old);
        };
        let differs_ahead = self.differs_from_early(arena, new);
        let fault = fault.or(differs_ahead.then_some(Segment::Differs));
        if limits.refuses()
            && let Some(fault) = fault
        {
            return fault;
        }
        self.hand_on_before_early(arena, new, limits, take);
        self.drain(arena, limits, take);
        match fault {
            Some(fault) => fault,
            None if old > 0 => Segment::Overlap,
            None => Segment::InOrder,
        }
    }

    /// Says whether there is memory for `bytes` more bytes in order. Bytes that came early do not count, as they wait for these; neither do
    /// retransmitted ones, of which the acknowledgement may be lost. Where nothing is ever acknowledged, as the other direction goes another
    /// way, the oldest bytes make room.
    fn has_room(&self, arena: &Arena, bytes: usize, limits: &StreamLimits) -> bool {
        let is_acknowledged = self.acknowledged != self.first;
        let own = self.in_flight() + bytes <= limits.kept || !is_acknowledged;
        own && arena.has(bytes / CHUNK_BYTES + 2)
    }

    /// What is to be said against the first `old` bytes of a segment, which came before. Those that are acknowledged do not
    /// matter; all others have to be those that are kept.
    fn fault_of_old(&self, arena: &Arena, payload: &[u8], old: usize) -> Option<Segment> {
        // The segment's byte `i` lies `old - i` in front of the next one.
        let last = old.min(payload.len());
        let in_flight = old.saturating_sub(self.in_flight());
        let known = old.saturating_sub(self.kept as usize).max(in_flight);
        if in_flight < known.min(last) {
            return Some(Segment::Unknown);
        }
        let repeated = payload.get(known..last).unwrap_or_default();
        self.differs(arena, repeated, old - known)
            .then_some(Segment::Differs)
    }

    /// Whether bytes that begin `back` in front of the next one are others than those that are kept.
    fn differs(&self, arena: &Arena, mut bytes: &[u8], back: usize) -> bool {
        let mut at = usize::from(self.skipped) + self.kept as usize - back.min(self.kept as usize);
        let mut chunk = self.oldest;
        while !bytes.is_empty() && chunk != NONE {
            if at >= CHUNK_BYTES {
                at -= CHUNK_BYTES;
            } else {
                let both = bytes.len().min(CHUNK_BYTES - at);
                if arena.bytes(chunk)[at..at + both] != bytes[..both] {
                    return true;
                }
                (bytes, at) = (&bytes[both..], 0);
            }
            chunk = arena.next(chunk);
        }
        false
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
                self.hand_on(arena, &new[..here], limits, take);
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

    /// Hands on bytes that are next, and keeps them.
    fn hand_on(
        &mut self,
        arena: &mut Arena,
        data: &[u8],
        limits: &StreamLimits,
        take: &mut dyn FnMut(Piece<'_>),
    ) {
        if data.is_empty() {
            return;
        }
        let gap = std::mem::take(&mut self.gap);
        if gap {
            self.forget_kept(arena);
        }
        let mut before = [0; MOST_WINDOW];
        let len = self.last_kept(arena, limits, &mut before);
        take(Piece {
            before: &before[..len],
            data,
            gap,
            taken: self.taken().wrapping_add(data.len() as u32),
        });
        self.next = self.next.wrapping_add(data.len() as u32);
        self.append(arena, data);
        self.release(arena, limits);
    }

    /// Copies the last bytes that are kept, as many as the window takes. Returns how many.
    fn last_kept(
        &self,
        arena: &Arena,
        limits: &StreamLimits,
        into: &mut [u8; MOST_WINDOW],
    ) -> usize {
        let len = limits.window.min(MOST_WINDOW).min(self.kept as usize);
        if len == 0 {
            return 0;
        }
        let filled = self.filled();
        let of_newest = len.min(filled);
        let of_previous = len - of_newest;
        if of_previous > 0 {
            let bytes = arena.bytes(self.previous);
            into[..of_previous].copy_from_slice(&bytes[CHUNK_BYTES - of_previous..]);
        }
        let bytes = arena.bytes(self.newest);
        into[of_previous..len].copy_from_slice(&bytes[filled - of_newest..filled]);
        len
    }

    /// Bytes of the newest chunk that are in use, those that are kept no more among them.
    fn filled(&self) -> usize {
        let bytes = usize::from(self.skipped) + self.kept as usize;
        match bytes % CHUNK_BYTES {
            0 if bytes > 0 => CHUNK_BYTES,
            rest => rest,
        }
    }

    /// Keeps bytes that have been handed on. Without memory for them, none are kept from here on back.
    fn append(&mut self, arena: &mut Arena, mut data: &[u8]) {
        while !data.is_empty() {
            let mut filled = self.filled();
            if self.newest == NONE || filled == CHUNK_BYTES {
                let Some(chunk) = arena.take() else {
                    return self.forget_kept(arena);
                };
                match self.newest {
                    NONE => (self.oldest, self.skipped) = (chunk, 0),
                    newest => arena.link(newest, chunk),
                }
                (self.previous, self.newest, filled) = (self.newest, chunk, 0);
            }
            let here = data.len().min(CHUNK_BYTES - filled);
            arena.bytes_mut(self.newest)[filled..filled + here].copy_from_slice(&data[..here]);
            self.kept += here as u32;
            data = &data[here..];
        }
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
                let bytes = &bytes[HEAD + old as usize..HEAD + len];
                self.hand_on(arena, bytes, limits, take);
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
        if limits.refuses() && self.differs_from_kept_early(arena, sequence, payload) {
            return Segment::Differs;
        }
        let mut outcome = Keeping::default();
        let mut from = 0;
        // The chunk behind which the next bytes belong.
        let mut before = NONE;
        let mut chunk = self.early;
        while from < payload.len() {
            let at = sequence.wrapping_add(from as u32);
            // Chunks that end before these bytes.
            while chunk != NONE {
                let (begin, len) = head(arena, chunk);
                if is_before(at, begin.wrapping_add(len as u32)) {
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
                    outcome.overlaps = true;
                    outcome.differs |= *known != payload[from..from + both];
                    from += both;
                    continue;
                }
                until = until.min(from + ahead as usize);
            }
            let len = (until - from).min(ROOM);
            let has_room = self.early_bytes as usize + CHUNK_BYTES <= limits.kept;
            let Some(new) = has_room.then(|| arena.take()).flatten() else {
                if !limits.in_line {
                    self.go_on_without(arena, at, &payload[from..], limits, take);
                }
                return Segment::NoMemory;
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
            outcome.kept += len;
            from += len;
        }
        outcome.segment()
    }

    /// Whether bytes are others than those that came early and are kept for their places.
    fn differs_from_kept_early(&self, arena: &Arena, sequence: u32, payload: &[u8]) -> bool {
        let mut chunk = self.early;
        while chunk != NONE {
            let (begin, len) = head(arena, chunk);
            let early = &arena.bytes(chunk)[HEAD..][..len];
            let ahead = begin.wrapping_sub(sequence) as i32;
            let (here, known) = match usize::try_from(ahead) {
                Ok(ahead) if ahead >= payload.len() => return false,
                Ok(ahead) => (&payload[ahead..], early),
                Err(_) => (
                    payload,
                    early
                        .get(ahead.unsigned_abs() as usize..)
                        .unwrap_or_default(),
                ),
            };
            let both = here.len().min(known.len());
            if here[..both] != known[..both] {
                return true;
            }
            chunk = arena.next(chunk);
        }
        false
    }

    /// Gives up what is missing in front of bytes for which there is no memory: on with what is there of that, then with these
    /// bytes.
    fn go_on_without(
        &mut self,
        arena: &mut Arena,
        at: u32,
        rest: &[u8],
        limits: &StreamLimits,
        take: &mut dyn FnMut(Piece<'_>),
    ) {
        self.give_up(arena, at, limits, take);
        self.hand_on_before_early(arena, rest, limits, take);
        self.drain(arena, limits, take);
    }

    /// Hands on what came early in front of a byte, with a gap wherever bytes are missing; that byte is next.
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
            if !is_before(sequence, until) {
                break;
            }
            if is_before(self.next, sequence) {
                (self.next, self.gap) = (sequence, true);
            }
            let old = (self.next.wrapping_sub(sequence) as usize).min(len);
            self.unlink_first(arena);
            let bytes = *arena.bytes(chunk);
            self.hand_on(arena, &bytes[HEAD + old..HEAD + len], limits, take);
            arena.give_back(chunk);
        }
        if is_before(self.next, until) {
            (self.next, self.gap) = (until, true);
        }
    }
}

impl StreamLimits {
    /// Whether a segment with other bytes for known places is refused.
    fn refuses(&self) -> bool {
        self.in_line && self.overlap == Overlap::Drop
    }
}

/// What has become of early bytes so far.
#[derive(Default)]
struct Keeping {
    overlaps: bool,
    differs: bool,
    kept: usize,
}

impl Keeping {
    fn segment(&self) -> Segment {
        match (self.differs, self.overlaps) {
            (true, _) => Segment::Differs,
            (_, true) => Segment::Overlap,
            _ => Segment::OutOfOrder(self.kept),
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
        kept: 1 << 20,
        overlap: Overlap::Drop,
        in_line: true,
    };
    const LISTENER: StreamLimits = StreamLimits {
        in_line: false,
        ..LIMITS
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
                let differs = matches!(segment, Segment::Differs | Segment::Unknown | Segment::NoMemory | Segment::TooFar);
                prop_assert!(!differs);
            }
            prop_assert_eq!(taken.gaps, 0);
            prop_assert_eq!(&taken.bytes, &bytes);
            stream.close(&mut arena);
            prop_assert_eq!(arena.used(), 0);
        }

        #[test]
        fn whatever_comes_memory_stays_within_its_limit(seed in any::<u64>(), chunks in 1usize..40, in_line in any::<bool>()) {
            let mut rng = fastrand(seed);
            let bytes = original(4000);
            let mut arena = Arena::new(chunks * CHUNK_BYTES);
            let mut stream = Stream::default();
            stream.start(7);
            let limits = StreamLimits { window: 256, kept: 3000, in_line, ..LIMITS };
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
            Segment::Differs
        );
        let (segment, new) = pushed(&mut stream, &mut arena, 103, b"defgh");
        assert_eq!((segment, &new[..]), (Segment::Overlap, &b"gh"[..]));
        assert_eq!(
            pushed(&mut stream, &mut arena, 110, b"klm").0,
            Segment::OutOfOrder(3)
        );
        assert_eq!(
            pushed(&mut stream, &mut arena, 109, b"jkX").0,
            Segment::Differs
        );
        // In line nothing of it counts.
        let (segment, new) = pushed(&mut stream, &mut arena, 108, b"iJK");
        assert_eq!((segment, &new[..]), (Segment::Differs, &b""[..]));
        let (segment, new) = pushed(&mut stream, &mut arena, 107, b"Hijk");
        assert_eq!((segment, &new[..]), (Segment::Differs, &b""[..]));
        let mut all = Vec::new();
        let first = StreamLimits {
            overlap: Overlap::First,
            ..LIMITS
        };
        let segment = stream.push(&mut arena, 108, b"iJK", &first, &mut |piece| {
            all.extend_from_slice(piece.data)
        });
        assert_eq!((segment, &all[..]), (Segment::Differs, &b"iJklm"[..]));
    }

    #[test]
    fn a_byte_is_fixed_until_its_receiver_has_it() {
        let mut arena = Arena::new(1 << 16);
        let mut stream = Stream::default();
        stream.start(u32::MAX - 3000);
        let bytes = original(8000);
        for (number, part) in bytes.chunks(1000).enumerate() {
            let at = (u32::MAX - 3000).wrapping_add(1000 * number as u32);
            assert_eq!(
                pushed(&mut stream, &mut arena, at, part).0,
                Segment::InOrder
            );
        }
        let begin = u32::MAX - 3000;
        // However far back, and however it is cut.
        for (from, to) in [
            (0, 1),
            (0, 8000),
            (511, 513),
            (700, 2400),
            (7999, 8000),
            (5000, 5001),
        ] {
            let at = begin.wrapping_add(from as u32);
            let same = bytes[from..to].to_vec();
            assert_eq!(pushed(&mut stream, &mut arena, at, &same).0, Segment::Old);
            let mut other = same.clone();
            *other.last_mut().unwrap() ^= 1;
            assert_eq!(
                pushed(&mut stream, &mut arena, at, &other).0,
                Segment::Differs
            );
        }
        let mut none = |_: Piece<'_>| panic!("nothing is new");
        stream.acknowledge(&mut arena, begin.wrapping_add(6000), &LIMITS, &mut none);
        assert!(arena.used() <= 5, "{}", arena.used());
        assert_eq!(
            pushed(&mut stream, &mut arena, begin, &[0; 6000]).0,
            Segment::Old
        );
        let at = begin.wrapping_add(5999);
        assert_eq!(
            pushed(&mut stream, &mut arena, at, &[0, 0]).0,
            Segment::Differs
        );
        // Numbers that go back, or to where nothing was sent, are not believed.
        stream.acknowledge(&mut arena, begin, &LIMITS, &mut none);
        let at = begin.wrapping_add(6000);
        assert_eq!(
            pushed(&mut stream, &mut arena, at, &bytes[6000..]).0,
            Segment::Old
        );
        stream.close(&mut arena);
        assert_eq!(arena.used(), 0);
    }

    #[test]
    fn what_was_forgotten_is_not_believed_until_it_is_acknowledged() {
        let mut arena = Arena::new(1 << 16);
        let mut stream = Stream::default();
        stream.start(0);
        let bytes = original(3000);
        pushed(&mut stream, &mut arena, 0, &bytes[..1000]);
        pushed(&mut stream, &mut arena, 2000, &bytes[2000..]);
        stream.forget(&mut arena);
        assert_eq!(arena.used(), 0);
        for at in [0, 500, 1000, 2500] {
            assert_eq!(
                pushed(&mut stream, &mut arena, at, &[1; 100]).0,
                Segment::Unknown
            );
        }
        let mut gaps = 0;
        let take = &mut |piece: Piece<'_>| gaps += usize::from(piece.gap);
        stream.acknowledge(&mut arena, 3000, &LIMITS, take);
        let segment = stream.push(&mut arena, 3000, b"more", &LIMITS, take);
        assert_eq!((segment, gaps), (Segment::InOrder, 1));
        stream.close(&mut arena);
        assert_eq!(arena.used(), 0);
    }

    /// Memory, and a stream whose first byte has the number 0.
    fn begun() -> (Arena, Stream) {
        let mut stream = Stream::default();
        stream.start(0);
        (Arena::new(1 << 20), stream)
    }

    #[test]
    fn in_line_there_is_always_room_for_what_fills_a_gap() {
        let (mut arena, mut stream) = begun();
        let limits = StreamLimits {
            kept: 4 * CHUNK_BYTES,
            ..LIMITS
        };
        let mut handed = 0;
        let take = &mut |piece: Piece<'_>| handed += piece.data.len();
        let data = original(4000);
        let kept = stream.push(&mut arena, 100, &data[100..2000], &limits, take);
        assert_eq!(kept, Segment::OutOfOrder(1900));
        let kept = stream.push(&mut arena, 2000, &data[2000..], &limits, take);
        assert_eq!(kept, Segment::NoMemory);
        let kept = stream.push(&mut arena, 0, &data[..100], &limits, take);
        assert_eq!(kept, Segment::InOrder);
        assert_eq!(handed, 2000);
        stream.acknowledge(&mut arena, 1000, &limits, &mut |_| {});
        // More in flight than is kept is not let on.
        let data = [7; 1500];
        assert_eq!(
            stream.push(&mut arena, 2000, &data, &limits, &mut |_| {}),
            Segment::NoMemory
        );
        stream.acknowledge(&mut arena, 2000, &limits, &mut |_| {});
        assert_eq!(
            stream.push(&mut arena, 2000, &data, &limits, &mut |_| {}),
            Segment::InOrder
        );
    }

    /// A sender whose acknowledgement is lost retransmits until one arrives.
    #[test]
    fn in_line_what_comes_again_needs_no_room() {
        let (mut arena, mut stream) = begun();
        let limits = StreamLimits {
            kept: 4 * CHUNK_BYTES,
            ..LIMITS
        };
        let data = original(4000);
        let mut push = |stream: &mut Stream, from: usize, until: usize| {
            stream.push(
                &mut arena,
                from as u32,
                &data[from..until],
                &limits,
                &mut |_| {},
            )
        };
        assert_eq!(push(&mut stream, 0, 1000), Segment::InOrder);
        stream.acknowledged = 10;
        assert_eq!(push(&mut stream, 1000, 2000), Segment::InOrder);
        assert_eq!(push(&mut stream, 2000, 3000), Segment::NoMemory);
        assert_eq!(push(&mut stream, 10, 1010), Segment::Old);
        assert_eq!(push(&mut stream, 1000, 2000), Segment::Old);
        // As much of it as is new counts.
        assert_eq!(push(&mut stream, 1000, 2040), Segment::Overlap);
        assert_eq!(push(&mut stream, 1000, 2200), Segment::NoMemory);
        stream.close(&mut arena);
    }

    #[test]
    fn what_never_comes_is_given_up_when_too_much_waits_for_it() {
        let (mut arena, mut stream) = begun();
        let limits = StreamLimits {
            window: 16,
            kept: 4 * CHUNK_BYTES,
            ..LISTENER
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
        let (mut arena, mut stream) = begun();
        let limits = StreamLimits {
            window: 0,
            kept: 16 * CHUNK_BYTES,
            ..LISTENER
        };
        let mut handed = 0;
        for at in 0..1000 {
            let take = &mut |piece: Piece<'_>| handed += piece.data.len();
            stream.push(&mut arena, 2 + 2 * at, b"x", &limits, take);
            // As much of what came early, and of what was handed on.
            assert!(arena.used() <= 2 * 16 + 1);
        }
        assert!(handed >= 1000 - 16);
    }

    #[test]
    fn a_segment_without_room_is_handed_on_in_its_place() {
        let (mut arena, mut stream) = begun();
        let limits = StreamLimits {
            window: 16,
            kept: CHUNK_BYTES,
            ..LISTENER
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
