//! Bytes of one direction of a TCP connection, put in order (RFC 9293 section 3.4). Bytes in order are delivered
//! without a copy; early bytes, those out of order, are stored until the bytes before them arrive.
//!
//! A byte that has been delivered or stored is fixed. The stream remembers it until its receiver has acknowledged it,
//! and detects a segment with a different byte for the same sequence number. Even if the receiver refuses the first
//! copy, it cannot get a second one with other bytes, so it reads the same stream that was delivered here. Urgent data
//! counts as ordinary data.

use crate::arena::{Arena, CHUNK_BYTES, NONE};
use crate::overlap::Overlap;

/// The limits on the stored bytes of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamLimits {
    /// Number of earlier bytes that are delivered together with a segment, up to [`MOST_WINDOW`].
    pub window: usize,
    /// Maximum number of stored unacknowledged bytes, and separately of stored early bytes. Each chunk of early bytes
    /// counts as [`CHUNK_BYTES`]. The limit bounds memory and the time to search the stored bytes, even if segments are
    /// small.
    pub kept: usize,
    /// Policy for bytes of the stream that arrive twice with different content.
    pub overlap: Overlap,
    /// True if taut is inline and can refuse segments. A passive listener cannot: if it has no memory for a segment, it
    /// skips the missing bytes before the segment.
    pub in_line: bool,
}

/// Maximum number of earlier bytes that are delivered together with a segment.
pub const MOST_WINDOW: usize = CHUNK_BYTES;

/// Length of the header of a chunk of early data, in bytes: sequence number and length.
const HEAD: usize = 6;
/// Number of bytes of early data in a chunk.
const ROOM: usize = CHUNK_BYTES - HEAD;

/// One direction of a TCP connection.
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    /// Sequence number of the next byte. The next two fields are the sequence numbers of the first byte and of the
    /// first unacknowledged byte.
    next: u32,
    first: u32,
    acknowledged: u32,
    /// Number of stored bytes before `next`. The four fields below are the first chunk of these bytes, the number of
    /// released bytes in that chunk, the chunk before the last one, and the last chunk.
    kept: u32,
    oldest: u32,
    skipped: u16,
    previous: u32,
    newest: u32,
    is_started: bool,
    /// True if bytes before `next` are missing.
    gap: bool,
    /// First chunk of early data; the chunks are in order of sequence numbers. `early_bytes` is the memory of these
    /// chunks in bytes.
    early: u32,
    early_bytes: u32,
    /// Sequence number after the last early byte that was discarded for lack of memory; none if all discarded bytes are
    /// acknowledged. Until then, repeated bytes cannot be compared.
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

/// Bytes that are delivered in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Bytes of the stream directly before `data`, at most [`StreamLimits::window`] of them.
    pub before: &'a [u8],
    /// New bytes of the stream, in order.
    pub data: &'a [u8],
    /// True if bytes are missing directly before `data`.
    pub gap: bool,
    /// Number of sequence numbers that the stream has used up to the end of `data` ([`Stream::taken`]).
    pub taken: u32,
}

/// The result of pushing a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment {
    /// The segment was in order.
    InOrder,
    /// The segment was out of order; the value is the number of its bytes that were stored.
    OutOfOrder(usize),
    /// All bytes of the segment had arrived before.
    Old,
    /// A part of the segment had arrived before with the same bytes, or is already acknowledged.
    Overlap,
    /// The segment has other bytes than an earlier one for the same sequence numbers.
    Differs,
    /// The segment repeats bytes that are not acknowledged and were discarded for lack of memory, so they cannot be
    /// compared.
    Unknown,
    /// There was no memory to store the segment. If taut is inline, nothing of the segment is stored or delivered. A
    /// passive listener has skipped the bytes that are missing before the segment.
    NoMemory,
    /// The segment is further ahead than any window reaches.
    TooFar,
}

/// Maximum distance of a segment ahead of the stream: the largest window (RFC 7323 section 2.3).
const FARTHEST: u32 = 1 << 30;

/// Returns true if a sequence number comes before another one.
#[inline]
pub fn is_before(sequence: u32, other: u32) -> bool {
    (sequence.wrapping_sub(other) as i32) < 0
}

impl Stream {
    /// Begins the stream: `sequence` is the sequence number of its first byte. Before this call, the caller has to
    /// release the stored bytes of an earlier stream.
    pub fn start(&mut self, sequence: u32) {
        *self = Self {
            next: sequence,
            first: sequence,
            acknowledged: sequence,
            is_started: true,
            ..Self::default()
        };
    }

    /// Returns true if the stream has begun.
    #[inline]
    pub fn is_started(&self) -> bool {
        self.is_started
    }

    /// Returns the sequence number of the first byte of the stream.
    #[inline]
    pub fn first(&self) -> u32 {
        self.first
    }

    /// Returns the sequence number of the next byte to deliver.
    #[inline]
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Returns the number of sequence numbers from the SYN, included, up to the next byte to deliver; 0 before the
    /// stream has begun.
    #[inline]
    pub fn taken(&self) -> u32 {
        match self.is_started {
            true => self.next.wrapping_sub(self.first).wrapping_add(1),
            false => 0,
        }
    }

    /// Returns the number of bytes of memory that the stream uses.
    #[inline]
    pub fn memory_bytes(&self) -> usize {
        let kept = usize::from(self.skipped) + self.kept as usize;
        self.early_bytes as usize + kept.next_multiple_of(CHUNK_BYTES)
    }

    /// Returns the number of delivered bytes that are not acknowledged.
    fn in_flight(&self) -> usize {
        match self.next.wrapping_sub(self.acknowledged) {
            bytes if bytes > FARTHEST => 0,
            bytes => bytes as usize,
        }
    }

    /// Releases all memory of the stream.
    pub fn close(&mut self, arena: &mut Arena) {
        arena.give_back_all(self.oldest);
        arena.give_back_all(self.early);
        *self = Self::default();
    }

    /// Releases the memory of the stream without ending the stream. Bytes that are not acknowledged can no longer be
    /// compared. Returns true if some of the released bytes were not delivered.
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

    /// Notes that the receiver has acknowledged all bytes before a sequence number, so that they need not be stored.
    /// Bytes among them that never arrived here are skipped, and the early bytes after them are delivered.
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

    /// Releases the memory of acknowledged bytes that are outside the window.
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

    /// Accepts a segment. Calls `take` with its new bytes if they are next in order, and then with the early bytes that
    /// are now in order.
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
        // The segment begins at the next byte or before it.
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

    /// Returns true if there is memory for `bytes` more bytes in order. Early bytes do not count, because they wait for
    /// the bytes in order. Retransmitted bytes do not count either, because their acknowledgement may be lost. If
    /// nothing is ever acknowledged, because the other direction takes another path, the oldest bytes are replaced.
    fn has_room(&self, arena: &Arena, bytes: usize, limits: &StreamLimits) -> bool {
        let is_acknowledged = self.acknowledged != self.first;
        let own = self.in_flight() + bytes <= limits.kept || !is_acknowledged;
        own && arena.has(bytes / CHUNK_BYTES + 2)
    }

    /// Returns the fault of the first `old` bytes of a segment, which repeat earlier bytes; none if they have no fault.
    /// Acknowledged bytes are not compared; all others have to equal the stored bytes.
    fn fault_of_old(&self, arena: &Arena, payload: &[u8], old: usize) -> Option<Segment> {
        // Byte `i` of the segment is `old - i` bytes before the next one.
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

    /// Returns true if `bytes` differ from the stored bytes with the same sequence numbers. The first of them is `back`
    /// bytes before the next byte of the stream.
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

    /// Delivers new bytes up to the first early bytes, then the early bytes, then the rest of the new bytes. Where both
    /// have the same sequence numbers, the early bytes are delivered, because they arrived first.
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

    /// Delivers `data`, which begins at the next byte of the stream, and stores it.
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

    /// Copies the last stored bytes, at most [`StreamLimits::window`] of them, to the beginning of `into`. Returns the
    /// number of bytes copied.
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

    /// Returns the number of bytes in use in the newest chunk, including released ones.
    fn filled(&self) -> usize {
        let bytes = usize::from(self.skipped) + self.kept as usize;
        match bytes % CHUNK_BYTES {
            0 if bytes > 0 => CHUNK_BYTES,
            rest => rest,
        }
    }

    /// Stores bytes that have been delivered. If there is no memory for them, earlier delivered bytes are released as
    /// well.
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

    /// Returns true if `new`, which begins at the next byte in order, differs from the stored early bytes.
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

    /// Delivers the early bytes that are now next in order.
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

    /// Stores the early bytes that are not stored already.
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
        // The chunk after which the next bytes belong.
        let mut before = NONE;
        let mut chunk = self.early;
        while from < payload.len() {
            let at = sequence.wrapping_add(from as u32);
            (before, chunk) = pass_over(arena, at, (before, chunk));
            let mut until = payload.len();
            if chunk != NONE {
                let (begin, len) = head(arena, chunk);
                let ahead = begin.wrapping_sub(at) as i32;
                if ahead <= 0 {
                    // These bytes are stored already.
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
            fill(arena, new, at, &payload[from..from + len]);
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

    /// Returns true if bytes differ from the early bytes that are stored for the same sequence numbers.
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

    /// Delivers `rest`, which begins at the sequence number `at` and for which there is no memory. First delivers the
    /// early bytes before `at`; missing bytes before `at` are skipped.
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

    /// Delivers the out-of-order bytes with sequence numbers before `until`, and marks a gap wherever bytes are
    /// missing. In-order delivery continues at `until`.
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
    /// Returns true if segments with different bytes for known sequence numbers are refused.
    fn refuses(&self) -> bool {
        self.in_line && self.overlap == Overlap::Drop
    }
}

/// The progress of storing the early bytes of a segment: what comparisons have found, and the number of bytes stored.
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

/// Returns the sequence number and the length, in bytes, of the early data in a chunk.
fn head(arena: &Arena, chunk: u32) -> (u32, usize) {
    let bytes = arena.bytes(chunk);
    let sequence = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    (
        sequence,
        usize::from(u16::from_be_bytes([bytes[4], bytes[5]])),
    )
}

/// Stores early data with its sequence number and its length in a chunk.
#[inline]
fn fill(arena: &mut Arena, chunk: u32, sequence: u32, data: &[u8]) {
    let bytes = arena.bytes_mut(chunk);
    bytes[..4].copy_from_slice(&sequence.to_be_bytes());
    bytes[4..HEAD].copy_from_slice(&(data.len() as u16).to_be_bytes());
    bytes[HEAD..][..data.len()].copy_from_slice(data);
}

/// Passes over chunks of early data that end before the sequence number `at`. Returns the last of them and the next
/// chunk.
#[inline]
fn pass_over(arena: &Arena, at: u32, (mut before, mut chunk): (u32, u32)) -> (u32, u32) {
    while chunk != NONE {
        let (begin, len) = head(arena, chunk);
        if is_before(at, begin.wrapping_add(len as u32)) {
            break;
        }
        (before, chunk) = (chunk, arena.next(chunk));
    }
    (before, chunk)
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

    /// The bytes that a stream delivers, with a mark where some are missing.
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
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn reordered_and_overlapping_segments_are_reassembled_to_the_sent_bytes(
            seed in any::<u64>(), len in 1usize..6000, start in prop_oneof![Just(0u32), Just(u32::MAX - 900), any::<u32>()],
        ) {
            let mut rng = fastrand(seed);
            let bytes = original(len);
            // The data is sent in segments that are split, repeated and overlapping.
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
        fn stored_bytes_stay_within_the_limit_for_any_segments(seed in any::<u64>(), chunks in 1usize..40, in_line in any::<bool>()) {
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

    /// Returns a generator of pseudo-random numbers.
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
    fn overlapping_segments_with_different_bytes_are_detected_and_ignored() {
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
        // If taut is inline, it delivers no byte of such a segment.
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
    fn a_retransmitted_byte_cannot_change_before_its_acknowledgement() {
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
        // The results do not depend on the distance from the end of the stream, or on how the segment is split.
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
        // Acknowledgements that go back, or that cover unsent bytes, are ignored.
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
    fn segments_that_repeat_discarded_bytes_are_classified_as_unknown() {
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

    /// Returns an arena, and a stream whose first byte has the sequence number 0.
    fn begun() -> (Arena, Stream) {
        let mut stream = Stream::default();
        stream.start(0);
        (Arena::new(1 << 20), stream)
    }

    #[test]
    fn an_inline_stream_always_has_space_to_fill_a_gap() {
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
        // More bytes in flight than can be stored are refused.
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

    /// A sender retransmits until an acknowledgement arrives, so lost acknowledgements cause retransmissions.
    #[test]
    fn inline_retransmissions_need_no_buffer_space() {
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
        // Only the new bytes of the segment need memory.
        assert_eq!(push(&mut stream, 1000, 2040), Segment::Overlap);
        assert_eq!(push(&mut stream, 1000, 2200), Segment::NoMemory);
        stream.close(&mut arena);
    }

    #[test]
    fn missing_bytes_are_skipped_when_buffered_bytes_exceed_the_limit() {
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
    fn one_byte_segments_stay_within_the_memory_limit_of_streams() {
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
            // The limit holds for early bytes and for delivered bytes.
            assert!(arena.used() <= 2 * 16 + 1);
        }
        assert!(handed >= 1000 - 16);
    }

    #[test]
    fn a_segment_that_fills_a_gap_needs_no_buffer() {
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
        // The segment begins before the stored bytes, covers them and ends after them.
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
