//! The state of a TCP connection at its endpoints (RFC 9293, RFC 5961), derived from the passing segments. It decides
//! which segments their receiver accepts.
//!
//! A connection begins with sequence numbers that the other end has acknowledged. Any other SYN is remembered until it
//! is answered, and changes nothing. Segments outside of the receive window, and acknowledgements of unsent bytes, are
//! distinguished: their receiver ignores them, so they must not count. For the inspection, a connection ends only when
//! a new connection between the same ports is answered by the other end. After a RST or both FINs it is still
//! inspected, as the receiver may have ignored them.
//!
//! `odd.rs` maps anomalies of a segment to their names in rules.

mod odd;

use crate::stream::is_before;

/// The fields of a segment that decide whether it is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SegmentHead {
    /// Lower eight flags of the TCP header.
    pub flags: u8,
    /// Sequence number of the segment.
    pub sequence: u32,
    /// Acknowledgement number; valid only with the flag ACK.
    pub acknowledgement: u32,
    /// Window field as sent, without scaling.
    pub window: u16,
    /// Window scale that a SYN offers (RFC 7323 section 2.2), up to 14.
    pub scale: Option<u8>,
    /// Timestamp of the segment (RFC 7323 section 3.2).
    pub timestamp: Option<u32>,
    /// Number of payload bytes of the segment.
    pub len: usize,
}

/// The flag FIN in a TCP header.
pub const FIN: u8 = 1;
/// The flag SYN in a TCP header.
pub const SYN: u8 = 2;
/// The flag RST in a TCP header.
pub const RST: u8 = 4;
/// The flag ACK in a TCP header.
pub const ACK: u8 = 16;
/// The flag URG in a TCP header.
pub const URG: u8 = 32;

/// The reason why a receiver discards a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The flags are a combination that no endpoint sends, or the segment has data and no acknowledgement.
    Flags,
    /// The segment is outside of the receive window.
    Window,
    /// The segment acknowledges bytes that were never sent.
    Acknowledgement,
    /// The timestamp of the segment is older than the latest one that the receiver has from this sender (RFC 7323
    /// section 5.3).
    Timestamp,
    /// The segment continues a handshake that is not answered, or is a SYN with data during a handshake or a
    /// connection.
    Opening,
    /// The segment belongs to a connection whose handshake was not observed.
    Midstream,
    /// The segment has data after a reset, or after a FIN in both directions.
    Over,
}

/// The policy for accepting segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// True if connections whose handshake was not observed are accepted.
    pub takes_midstream: bool,
    /// True if the inspection receives all segments and can withhold them from their receivers. A passive listener may
    /// miss segments, so it accepts any plausible segment.
    pub in_line: bool,
}

/// The changes that an accepted segment makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Change {
    /// True if a new connection began, so that the state of an earlier one is void. The client of the new connection is
    /// the receiver of this segment.
    pub is_new: bool,
    /// Sequence numbers of the first bytes of streams that begin with this segment, by direction; none for a stream
    /// that has already begun with the same number.
    pub begins: [Option<u32>; 2],
    /// Sequence number before which the sender of the segment has acknowledged all bytes of the other direction.
    pub acknowledged: Option<u32>,
}

/// A SYN that is not answered yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Opening {
    sequence: u32,
    window: u16,
    len: u16,
    scale: Option<u8>,
    timestamp: Option<u32>,
}

impl Opening {
    fn of(head: &SegmentHead) -> Self {
        Self {
            sequence: head.sequence,
            window: head.window,
            len: u16::try_from(head.len).unwrap_or(u16::MAX),
            scale: head.scale,
            timestamp: head.timestamp,
        }
    }

    /// Returns the sequence number of the first byte after the SYN.
    fn first(&self) -> u32 {
        self.sequence.wrapping_add(1)
    }

    /// Returns true if an acknowledgement answers the SYN, whether or not it covers the data of the SYN.
    fn is_answered_by(&self, acknowledgement: u32) -> bool {
        acknowledgement.wrapping_sub(self.first()) <= u32::from(self.len)
    }
}

/// The state of one endpoint of a TCP connection as a sender.
#[derive(Debug, Clone, Copy, Default)]
struct End {
    /// Sequence number of the endpoint's first byte.
    first: u32,
    /// Sequence number after the last one that the endpoint has used.
    sent: u32,
    /// First sequence number that the other endpoint has not acknowledged.
    acknowledged: u32,
    /// First sequence number that the other endpoint does not accept; none before the other endpoint's first segment.
    edge: Option<u32>,
    /// Window scale that the endpoint offers.
    scale: Option<u8>,
    /// Latest timestamp of the endpoint that the other endpoint has certainly received, if the endpoint's SYN has one.
    timestamp: Option<u32>,
    is_open: bool,
    /// Sequence number after the endpoint's FIN; none if a byte arrived with the sequence number of the FIN.
    end: Option<u32>,
    /// Unanswered SYNs of the endpoint, the latest first.
    openings: [Option<Opening>; 2],
}

impl End {
    fn open(opening: &Opening, edge: Option<u32>) -> Self {
        Self {
            first: opening.first(),
            sent: opening.first().wrapping_add(opening.len.into()),
            acknowledged: opening.first(),
            edge,
            scale: opening.scale,
            timestamp: opening.timestamp,
            is_open: true,
            ..Self::default()
        }
    }

    /// Notes a FIN. Also notes data with the sequence number of an earlier FIN: the receiver has ignored that FIN.
    fn ends_with(&mut self, head: &SegmentHead) {
        let behind_data = head.sequence.wrapping_add(head.len as u32);
        if head.flags & FIN != 0 {
            self.end = Some(behind_data.wrapping_add(1));
        } else if self.end.is_some_and(|end| !is_before(behind_data, end)) && head.len > 0 {
            self.end = None;
        }
    }

    fn is_known(&self) -> bool {
        self.is_open || self.openings != [None; 2]
    }
}

/// Window scale that is assumed if no SYN was observed: the largest valid one.
const UNSEEN_SCALE: u8 = 14;
/// Maximum distance of an acceptable sequence number from known ones. Numbers may be so far before the last acknowledged
/// one and, if no window is known, so far after the last sent one.
const FARTHEST: u32 = 1 << 30;

/// A connection with its two ends: first the client, which sends to the server, then the server.
#[derive(Debug, Clone, Copy, Default)]
pub struct Connection {
    ends: [End; 2],
    /// True if the SYN of the connection, or the answer to the SYN, was not observed.
    is_midstream: bool,
    is_established: bool,
    is_reset: bool,
    /// For each endpoint, true if its last segment was a reset.
    resets: [bool; 2],
    /// Index of the endpoint that sent the first FIN, 0 for the client; meaningless before the first FIN.
    first_to_end: u8,
}

impl Connection {
    /// Returns true if the handshake is complete, or, if it was not seen, if both ends have sent segments.
    #[inline]
    pub fn is_established(&self) -> bool {
        self.is_established
    }

    /// Returns true if the connection seems to be over: both FINs are acknowledged, or an endpoint has sent a reset.
    #[inline]
    pub fn may_be_over(&self) -> bool {
        self.is_reset || self.is_closed()
    }

    /// Returns true if both endpoints have sent a FIN and both FINs are acknowledged.
    pub fn is_closed(&self) -> bool {
        self.is_done(0) && self.is_done(1)
    }

    /// Returns true if the endpoint `end` (0 for the client, 1 for the server) has sent a FIN that the other endpoint
    /// has acknowledged.
    pub fn is_done(&self, end: usize) -> bool {
        let end = &self.ends[end & 1];
        end.end == Some(end.acknowledged)
    }

    /// Returns true if no segment of the connection is known.
    pub fn is_unknown(&self) -> bool {
        !self.ends.iter().any(End::is_known)
    }

    /// Exchanges client and server of the connection.
    pub fn turn(&mut self) {
        self.ends.swap(0, 1);
        self.resets.swap(0, 1);
        self.first_to_end = 1 - self.first_to_end;
    }

    /// Checks a segment sent by the end `from` (0 for the client, 1 for the server), and updates the state of the
    /// connection.
    ///
    /// # Errors
    /// Returns the reason why the receiver discards the segment. The state is then unchanged, except for whether the
    /// latest segment of that end was a RST.
    pub fn segment(
        &mut self,
        from: usize,
        head: &SegmentHead,
        policy: Policy,
    ) -> Result<Change, Refusal> {
        let from = from & 1;
        let has = |flag: u8| head.flags & flag != 0;
        self.resets[from] &= has(RST);
        match (has(SYN), has(RST), has(ACK)) {
            (true, _, _) if has(FIN) || has(RST) => Err(Refusal::Flags),
            (false, true, _) => self.reset(from, head),
            (true, _, false) => self.opening(from, head),
            (true, _, true) => self.answer(from, head, policy),
            (false, false, false) => Err(Refusal::Flags),
            (false, false, true) => self.ordinary(from, head, policy),
        }
    }

    /// Handles a SYN: it is remembered until it is answered.
    fn opening(&mut self, from: usize, head: &SegmentHead) -> Result<Change, Refusal> {
        let opening = Opening::of(head);
        let mut change = Change::default();
        let end = &mut self.ends[from];
        if end.is_open && !self.is_midstream && end.first == opening.first() {
            // The SYN is a retransmission, because its answer was late.
            return Ok(change);
        }
        let known = end.openings.iter().flatten();
        if known.clone().any(|it| it.sequence == opening.sequence) {
            return Ok(change);
        }
        let is_first = !self.ends.iter().any(End::is_known);
        if head.len > 0 && !is_first {
            return Err(Refusal::Opening);
        }
        if is_first {
            change.begins[from] = Some(opening.first());
        }
        let end = &mut self.ends[from];
        end.openings = [Some(opening), end.openings[0]];
        Ok(change)
    }

    /// Handles a SYN that answers the other endpoint's SYN: a new connection begins.
    fn answer(
        &mut self,
        from: usize,
        head: &SegmentHead,
        policy: Policy,
    ) -> Result<Change, Refusal> {
        let other = 1 - from;
        let mut openings = self.ends[other].openings.into_iter().flatten();
        let answered = openings.rfind(|it| it.is_answered_by(head.acknowledgement));
        let own = Opening::of(head);
        let Some(opening) = answered else {
            let end = &self.ends[from];
            let is_again = end.is_open && end.first == own.first();
            if is_again && !self.acknowledges_too_much(from, head) {
                // The SYN+ACK is a retransmission.
                return Ok(Change::default());
            }
            if self.ends[other].is_known() && !self.is_midstream {
                return Err(Refusal::Acknowledgement);
            }
            if !policy.takes_midstream {
                return Err(Refusal::Midstream);
            }
            return Ok(self.midstream(from, head, own.first()));
        };
        let mut change = Change {
            is_new: self.ends.iter().any(|end| end.is_open),
            ..Change::default()
        };
        change.begins[from] = Some(own.first());
        change.begins[other] = Some(opening.first());
        let edge = |of: &Opening, first: u32| Some(first.wrapping_add(of.window.into()));
        *self = Self::default();
        self.ends[from] = End::open(&own, edge(&opening, own.first()));
        self.ends[other] = End::open(&opening, edge(&own, head.acknowledgement));
        self.ends[other].acknowledged = head.acknowledgement;
        change.acknowledged = Some(head.acknowledgement);
        Ok(change)
    }

    fn reset(&mut self, from: usize, head: &SegmentHead) -> Result<Change, Refusal> {
        let (end, other) = (&self.ends[from], &self.ends[1 - from]);
        if !end.is_open {
            // The RST refuses a SYN, or belongs to a connection whose handshake was not seen.
            let mut openings = other.openings.iter().flatten();
            self.is_reset |= openings.any(|it| it.is_answered_by(head.acknowledgement));
            return Ok(Change::default());
        }
        if is_before(head.sequence, end.acknowledged) || self.is_ahead(from, head) {
            return Err(Refusal::Window);
        }
        // A RST counts only with the sequence number that its receiver expects next (RFC 5961 section 3). That number
        // is not known here, but it is between the acknowledged and the sent sequence numbers. A RST after the sent
        // ones therefore has no effect.
        if !is_before(end.sent, head.sequence) {
            self.is_reset = true;
            self.resets[from] = true;
        }
        Ok(Change::default())
    }

    fn ordinary(
        &mut self,
        from: usize,
        head: &SegmentHead,
        policy: Policy,
    ) -> Result<Change, Refusal> {
        let other = 1 - from;
        if !self.ends[from].is_open {
            return self.unopened(from, head, policy);
        }
        let end = &self.ends[from];
        let until = used_until(head);
        if self.is_outside(from, head) {
            return Err(Refusal::Window);
        }
        if policy.in_line && self.is_outdated(from, head) {
            return Err(Refusal::Timestamp);
        }
        if policy.in_line && self.acknowledges_too_much(from, head) {
            return Err(Refusal::Acknowledgement);
        }
        let is_new = head.len > 0 && is_before(end.acknowledged, until);
        if policy.in_line && is_new && self.may_be_over() {
            return Err(Refusal::Over);
        }
        let mut change = Change::default();
        // A receiver that already has all bytes of a segment ignores the segment, including its acknowledgement.
        if !is_before(until, end.acknowledged) {
            change.acknowledged = self.acknowledge(from, head);
            self.is_established |= self.ends[other].is_open;
        }
        if head.flags & FIN != 0 && self.ends[other].end.is_none() {
            self.first_to_end = from as u8;
        }
        let end = &mut self.ends[from];
        if is_before(end.sent, until) {
            end.sent = until;
        }
        if let (Some(known), Some(new)) = (end.timestamp, head.timestamp)
            && is_before(known, new)
            && !is_before(end.acknowledged, head.sequence)
        {
            end.timestamp = Some(new);
        }
        end.ends_with(head);
        Ok(change)
    }

    /// Handles a segment of an end whose SYN is unknown or not answered.
    #[inline]
    fn unopened(
        &mut self,
        from: usize,
        head: &SegmentHead,
        policy: Policy,
    ) -> Result<Change, Refusal> {
        let other = 1 - from;
        match self.ends[from].openings[0] {
            // The other direction is unknown: it takes another path, or the other end has not answered yet.
            Some(opening) if !self.ends[other].is_known() && policy.takes_midstream => {
                // The SYNs are kept, because a late answer of the other end will count.
                let openings = self.ends[from].openings;
                self.ends[from] = End {
                    openings,
                    ..End::open(&opening, None)
                };
                self.is_midstream = true;
                self.ordinary(from, head, policy)
            }
            Some(_) => Err(Refusal::Opening),
            None if !policy.takes_midstream => Err(Refusal::Midstream),
            None if self.ends[other].openings != [None; 2] => Err(Refusal::Acknowledgement),
            None => Ok(self.midstream(from, head, head.sequence)),
        }
    }

    /// Handles the first segment of a direction, if the handshake was not seen.
    fn midstream(&mut self, from: usize, head: &SegmentHead, first: u32) -> Change {
        let mut change = Change::default();
        self.is_midstream = true;
        self.ends[from] = End {
            first,
            sent: used_until(head),
            acknowledged: first,
            scale: Some(UNSEEN_SCALE),
            is_open: true,
            ..End::default()
        };
        self.ends[from].ends_with(head);
        change.begins[from] = Some(first);
        if self.ends[1 - from].is_open {
            self.is_established = true;
            change.acknowledged = self.acknowledge(from, head);
        }
        change
    }

    /// Returns true if a segment is outside of the range that its receiver may accept.
    fn is_outside(&self, from: usize, head: &SegmentHead) -> bool {
        let farthest = self.ends[from].acknowledged.wrapping_sub(FARTHEST);
        self.is_ahead(from, head) || is_before(used_until(head), farthest)
    }

    /// Returns true if the timestamp of a segment is older than the latest one that its receiver has certainly received
    /// from the same sender. A difference of one is allowed, as in Linux. Returns false unless both ends use
    /// timestamps.
    fn is_outdated(&self, from: usize, head: &SegmentHead) -> bool {
        match (
            self.ends[from].timestamp,
            self.ends[1 - from].timestamp,
            head.timestamp,
        ) {
            (Some(known), Some(_), Some(new)) if self.ends[from].is_open => {
                head.flags & (SYN | RST) == 0 && is_before(new.wrapping_add(1), known)
            }
            _ => false,
        }
    }

    /// Returns true if a segment begins after the range that its receiver accepts. A zero-window probe begins at the
    /// end of that range, so the result for a probe is false.
    fn is_ahead(&self, from: usize, head: &SegmentHead) -> bool {
        let end = &self.ends[from];
        let edge = end.edge.unwrap_or(end.sent.wrapping_add(FARTHEST));
        is_before(edge, head.sequence)
    }

    /// Returns true if a segment acknowledges bytes that its receiver has not sent. Returns false if not all sent
    /// segments were seen, because the result is unknown then.
    fn acknowledges_too_much(&self, from: usize, head: &SegmentHead) -> bool {
        let other = &self.ends[1 - from];
        other.is_open && !self.is_midstream && is_before(other.sent, head.acknowledgement)
    }

    /// Notes an acknowledgement and its window. Returns the acknowledgement number if it acknowledges new bytes.
    fn acknowledge(&mut self, from: usize, head: &SegmentHead) -> Option<u32> {
        let shift = match self.is_midstream {
            true => UNSEEN_SCALE,
            false => match self.ends.map(|end| end.scale) {
                [Some(_), Some(_)] => self.ends[from].scale.unwrap_or(0),
                _ => 0,
            },
        };
        let other = &mut self.ends[1 - from];
        if !other.is_open || is_before(head.acknowledgement, other.acknowledged) {
            return None;
        }
        if is_before(other.sent, head.acknowledgement) {
            other.sent = head.acknowledgement;
        }
        // The edge never goes back, as the other end may not have received the smaller window.
        let window = u32::from(head.window) << shift.min(UNSEEN_SCALE);
        let edge = head.acknowledgement.wrapping_add(window);
        if other.edge.is_none_or(|old| is_before(old, edge)) {
            other.edge = Some(edge);
        }
        let is_new = other.acknowledged != head.acknowledgement;
        other.acknowledged = head.acknowledgement;
        is_new.then_some(head.acknowledgement)
    }
}

/// Returns the sequence number after the last one that a segment uses.
fn used_until(head: &SegmentHead) -> u32 {
    let flags = u32::from(head.flags & SYN != 0) + u32::from(head.flags & FIN != 0);
    head.sequence
        .wrapping_add(head.len as u32)
        .wrapping_add(flags)
}

/// Returns the window scale among the options of a SYN (RFC 7323 section 2.2): 14 at most.
pub fn scale_of(options: &[u8]) -> Option<u8> {
    option::<1>(3, options).map(|[shift]| shift.min(UNSEEN_SCALE))
}

/// Returns the timestamp among the options of a segment (RFC 7323 section 3.2).
pub fn timestamp_of(options: &[u8]) -> Option<u32> {
    option::<8>(8, options).map(|[a, b, c, d, ..]| u32::from_be_bytes([a, b, c, d]))
}

/// Returns the content of the first option of the kind `wanted` with a content of `BYTES` bytes.
fn option<const BYTES: usize>(wanted: u8, mut options: &[u8]) -> Option<[u8; BYTES]> {
    loop {
        match *options {
            [0, ..] | [] => return None,
            [1, ref rest @ ..] => options = rest,
            [kind, len, ..] if len >= 2 => {
                let (whole, rest) = options.split_at_checked(len.into())?;
                match whole[2..].try_into() {
                    Ok(found) if kind == wanted => return Some(found),
                    _ => options = rest,
                }
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const CLIENT: usize = 0;
    const SERVER: usize = 1;
    const STRICT: Policy = Policy {
        takes_midstream: false,
        in_line: true,
    };
    const MIDSTREAM: Policy = Policy {
        takes_midstream: true,
        ..STRICT
    };

    fn head(flags: u8, sequence: u32, acknowledgement: u32, len: usize) -> SegmentHead {
        SegmentHead {
            flags,
            sequence,
            acknowledgement,
            window: 1000,
            scale: None,
            timestamp: None,
            len,
        }
    }

    /// Returns a connection; the first byte of the client has the sequence number 101, that of the server 501.
    fn open() -> Connection {
        let mut it = Connection::default();
        let change = it.segment(CLIENT, &head(SYN, 100, 0, 0), STRICT).unwrap();
        assert_eq!(change.begins, [Some(101), None]);
        let answer = head(SYN | ACK, 500, 101, 0);
        let change = it.segment(SERVER, &answer, STRICT).unwrap();
        assert_eq!(change.begins, [Some(101), Some(501)]);
        assert!(!it.is_established());
        it.segment(CLIENT, &head(ACK, 101, 501, 0), STRICT).unwrap();
        assert!(it.is_established());
        it
    }

    #[test]
    fn a_handshake_sets_sequence_numbers_and_window_scaling() {
        let mut it = open();
        let data = |at, len| head(ACK, at, 501, len);
        assert!(it.segment(CLIENT, &data(101, 500), STRICT).is_ok());
        assert!(it.segment(CLIENT, &data(1101, 1), STRICT).is_ok());
        assert_eq!(
            it.segment(CLIENT, &data(1102, 1), STRICT),
            Err(Refusal::Window)
        );
        let change = it.segment(SERVER, &head(ACK, 501, 601, 0), STRICT).unwrap();
        assert_eq!(change.acknowledged, Some(601));
        assert!(it.segment(CLIENT, &data(1600, 1), STRICT).is_ok());
        // Windows are scaled only after the handshake, and only if both ends offered scaling.
        let mut it = Connection::default();
        let with = |mut head: SegmentHead, scale| {
            head.scale = Some(scale);
            head
        };
        let syn = with(head(SYN, 100, 0, 0), 2);
        it.segment(CLIENT, &syn, STRICT).unwrap();
        let answer = with(head(SYN | ACK, 500, 101, 0), 3);
        it.segment(SERVER, &answer, STRICT).unwrap();
        assert_eq!(
            it.segment(CLIENT, &data(1102, 1), STRICT),
            Err(Refusal::Window)
        );
        it.segment(CLIENT, &data(101, 10), STRICT).unwrap();
        it.segment(SERVER, &head(ACK, 501, 111, 0), STRICT).unwrap();
        assert!(it.segment(CLIENT, &data(111 + 8000, 1), STRICT).is_ok());
        assert_eq!(
            it.segment(CLIENT, &data(112 + 8000, 1), STRICT),
            Err(Refusal::Window)
        );
    }

    #[test]
    fn the_syn_acknowledged_by_the_server_opens_the_connection() {
        for answered in [100u32, 9000] {
            let mut it = Connection::default();
            it.segment(CLIENT, &head(SYN, 100, 0, 0), STRICT).unwrap();
            it.segment(CLIENT, &head(SYN, 9000, 0, 0), STRICT).unwrap();
            let early = head(ACK, answered + 1, 501, 5);
            assert_eq!(it.segment(CLIENT, &early, STRICT), Err(Refusal::Opening));
            let wrong = head(SYN | ACK, 500, 77, 0);
            assert_eq!(
                it.segment(SERVER, &wrong, MIDSTREAM),
                Err(Refusal::Acknowledgement)
            );
            let answer = head(SYN | ACK, 500, answered + 1, 0);
            let change = it.segment(SERVER, &answer, STRICT).unwrap();
            assert_eq!(change.begins, [Some(answered + 1), Some(501)]);
            assert!(it.segment(CLIENT, &early, STRICT).is_ok());
            assert!(it.is_established());
        }
    }

    #[test]
    fn a_second_syn_with_data_is_refused() {
        let mut it = Connection::default();
        it.segment(CLIENT, &head(SYN, 100, 0, 7), STRICT).unwrap();
        let other = head(SYN, 200, 0, 7);
        assert_eq!(it.segment(CLIENT, &other, STRICT), Err(Refusal::Opening));
        it.segment(CLIENT, &head(SYN, 200, 0, 0), STRICT).unwrap();
        // The answer acknowledges the data in the SYN.
        let change = it.segment(SERVER, &head(SYN | ACK, 500, 108, 0), STRICT);
        assert_eq!(change.unwrap().acknowledged, Some(108));
        let mut it = open();
        assert_eq!(it.segment(CLIENT, &other, STRICT), Err(Refusal::Opening));
    }

    #[test]
    fn an_rst_closes_a_connection_only_at_the_exact_number() {
        let mut it = open();
        it.segment(CLIENT, &head(ACK, 101, 501, 10), STRICT)
            .unwrap();
        // A RST is refused outside of the window, answered by a challenge within it, and accepted with the next number
        // (RFC 5961).
        for sequence in [50, 100, 5000] {
            let reset = head(RST, sequence, 0, 0);
            assert_eq!(it.segment(CLIENT, &reset, STRICT), Err(Refusal::Window));
        }
        it.segment(CLIENT, &head(RST, 500, 0, 0), STRICT).unwrap();
        assert!(!it.may_be_over());
        it.segment(CLIENT, &head(RST, 111, 0, 0), STRICT).unwrap();
        assert!(it.may_be_over());
        // Only a new connection can follow; a listener still inspects later segments.
        let data = head(ACK, 111, 501, 10);
        for from in [CLIENT, SERVER] {
            let data = if from == CLIENT {
                data
            } else {
                head(ACK, 501, 111, 10)
            };
            assert_eq!(it.segment(from, &data, STRICT), Err(Refusal::Over));
        }
        let listener = Policy {
            in_line: false,
            ..STRICT
        };
        assert!(it.segment(CLIENT, &data, listener).is_ok());
        let change = it.segment(CLIENT, &head(SYN, 7000, 0, 0), STRICT).unwrap();
        assert_eq!(change, Change::default());
        let change = it.segment(SERVER, &head(SYN | ACK, 9000, 7001, 0), STRICT);
        let change = change.unwrap();
        assert!(change.is_new && !it.may_be_over() && !it.is_established());
        assert_eq!(change.begins, [Some(7001), Some(9001)]);
        // Delayed segments of the earlier connection change nothing.
        let old = head(ACK, 131, 501, 10);
        assert_eq!(it.segment(CLIENT, &old, STRICT), Ok(Change::default()));
    }

    #[test]
    fn a_connection_ends_when_both_fins_are_acknowledged() {
        let mut it = open();
        it.segment(CLIENT, &head(ACK | FIN, 101, 501, 0), STRICT)
            .unwrap();
        it.segment(SERVER, &head(ACK | FIN, 501, 102, 0), STRICT)
            .unwrap();
        assert!(!it.may_be_over());
        it.segment(CLIENT, &head(ACK, 102, 502, 0), STRICT).unwrap();
        assert!(it.may_be_over());
        // Data with the sequence number of a FIN shows that the receiver has ignored the FIN.
        let mut it = open();
        it.segment(CLIENT, &head(ACK | FIN, 101, 501, 0), STRICT)
            .unwrap();
        it.segment(CLIENT, &head(ACK, 101, 501, 1), STRICT).unwrap();
        it.segment(SERVER, &head(ACK | FIN, 501, 102, 0), STRICT)
            .unwrap();
        it.segment(CLIENT, &head(ACK, 102, 502, 0), STRICT).unwrap();
        assert!(!it.is_done(CLIENT) && it.is_done(SERVER));
    }

    #[test]
    fn segments_that_acknowledge_unsent_bytes_are_refused() {
        let mut it = open();
        let much = head(ACK, 101, 502, 10);
        assert_eq!(
            it.segment(CLIENT, &much, STRICT),
            Err(Refusal::Acknowledgement)
        );
        for flags in [0, FIN, FIN | SYN, SYN | RST, URG] {
            let odd = head(flags, 101, 501, 10);
            assert_eq!(it.segment(CLIENT, &odd, STRICT), Err(Refusal::Flags));
        }
    }

    #[test]
    fn a_connection_without_handshake_is_tracked_only_if_configured() {
        let mut it = Connection::default();
        let first = head(ACK, 5000, 900, 10);
        assert_eq!(it.segment(CLIENT, &first, STRICT), Err(Refusal::Midstream));
        let change = it.segment(CLIENT, &first, MIDSTREAM).unwrap();
        assert_eq!(change.begins, [Some(5000), None]);
        assert!(!it.is_established());
        // More bytes are in flight than were seen.
        let answer = head(ACK, 2000, 5900, 10);
        let change = it.segment(SERVER, &answer, MIDSTREAM).unwrap();
        assert_eq!(
            (change.begins, change.acknowledged),
            ([None, Some(2000)], Some(5900))
        );
        assert!(it.is_established());
        // A handshake ends the connection and begins a new one.
        it.segment(CLIENT, &head(SYN, 1, 0, 0), MIDSTREAM).unwrap();
        let change = it
            .segment(SERVER, &head(SYN | ACK, 3, 2, 0), MIDSTREAM)
            .unwrap();
        assert_eq!((change.is_new, change.begins), (true, [Some(2), Some(4)]));
    }

    #[test]
    fn a_simultaneous_open_and_a_one_sided_handshake_are_accepted() {
        let mut it = Connection::default();
        it.segment(CLIENT, &head(SYN, 100, 0, 0), STRICT).unwrap();
        it.segment(SERVER, &head(SYN, 500, 0, 0), STRICT).unwrap();
        let change = it.segment(CLIENT, &head(SYN | ACK, 100, 501, 0), STRICT);
        assert_eq!(change.unwrap().begins, [Some(101), Some(501)]);
        it.segment(SERVER, &head(SYN | ACK, 500, 101, 0), STRICT)
            .unwrap();
        it.segment(CLIENT, &head(ACK, 101, 501, 0), STRICT).unwrap();
        assert!(it.is_established());
        let mut it = Connection::default();
        it.segment(CLIENT, &head(SYN, 100, 0, 0), MIDSTREAM)
            .unwrap();
        it.segment(CLIENT, &head(ACK, 101, 501, 0), MIDSTREAM)
            .unwrap();
        assert!(
            it.segment(CLIENT, &head(ACK, 101, 501, 900), MIDSTREAM)
                .is_ok()
        );
        let far = head(ACK, 101 + FARTHEST + 1000, 501, 9);
        assert_eq!(it.segment(CLIENT, &far, MIDSTREAM), Err(Refusal::Window));
        // The state of the client's SYNs is kept until the server answers one of them.
        it.segment(CLIENT, &head(SYN, 7000, 0, 0), MIDSTREAM)
            .unwrap();
        for answered in [100, 7000] {
            let answer = head(SYN | ACK, 500, answered + 1, 0);
            let change = it.clone().segment(SERVER, &answer, MIDSTREAM).unwrap();
            assert!(change.is_new);
            assert_eq!(change.begins, [Some(answered + 1), Some(501)]);
        }
    }

    #[test]
    fn a_segment_with_an_older_timestamp_is_refused() {
        let with = |mut head: SegmentHead, timestamp| {
            head.timestamp = Some(timestamp);
            head
        };
        let mut it = Connection::default();
        let client = u32::MAX - 1;
        it.segment(CLIENT, &with(head(SYN, 100, 0, 0), client), STRICT)
            .unwrap();
        it.segment(SERVER, &with(head(SYN | ACK, 500, 101, 0), 9000), STRICT)
            .unwrap();
        let data = |at, timestamp| with(head(ACK, at, 501, 10), timestamp);
        it.segment(CLIENT, &data(101, 7), STRICT).unwrap();
        let old = Err(Refusal::Timestamp);
        for (at, timestamp, wanted) in [(111, 5, old), (111, 6, Ok(())), (111, client, old)] {
            let found = it.clone().segment(CLIENT, &data(at, timestamp), STRICT);
            assert_eq!(found.map(drop), wanted, "{timestamp}");
        }
        // The receiver has no timestamp of an early segment, a listener may have missed segments, and a reset has none.
        it.segment(CLIENT, &data(121, 50), STRICT).unwrap();
        it.segment(CLIENT, &data(111, 20), STRICT).unwrap();
        let listener = Policy {
            in_line: false,
            ..STRICT
        };
        assert!(it.clone().segment(CLIENT, &data(131, 1), listener).is_ok());
        it.segment(SERVER, &with(head(ACK, 501, 131, 0), 9001), STRICT)
            .unwrap();
        it.segment(CLIENT, &data(131, 60), STRICT).unwrap();
        assert_eq!(it.segment(CLIENT, &data(141, 50), STRICT).map(drop), old);
        assert!(it.segment(CLIENT, &head(ACK, 141, 501, 1), STRICT).is_ok());
        let reset = with(head(RST | ACK, 142, 501, 0), 1);
        assert!(it.segment(CLIENT, &reset, STRICT).is_ok() && it.may_be_over());
    }

    #[test]
    fn timestamps_are_found_among_options() {
        let timestamp = [1, 1, 8, 10, 0, 0, 1, 2, 0, 0, 0, 0];
        assert_eq!(timestamp_of(&timestamp), Some(0x102));
        assert_eq!(timestamp_of(&timestamp[..11]), None);
        assert_eq!(timestamp_of(&[8, 6, 0, 0, 1, 2]), None);
        assert_eq!(scale_of(&[3, 4, 9, 9, 3, 3, 7]), Some(7));
    }

    #[test]
    fn the_window_scale_option_is_parsed() {
        assert_eq!(scale_of(&[2, 4, 5, 0xb4, 1, 3, 3, 7]), Some(7));
        assert_eq!(scale_of(&[3, 3, 200]), Some(14));
        for none in [
            &[][..],
            &[0, 3, 3, 7],
            &[2, 0, 3, 3, 7],
            &[3, 3],
            &[8],
            &[2, 40],
        ] {
            assert_eq!(scale_of(none), None);
        }
    }

    proptest! {
        #[test]
        fn segments_of_two_correct_endpoints_are_never_refused(seed in any::<u64>(), first in any::<(u32, u32)>()) {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut it = Connection::default();
            let segment = |from, flags, sequence, ack, len, it: &mut Connection| {
                let head = SegmentHead { window: 60_000, ..head(flags, sequence, ack, len) };
                it.segment(from, &head, STRICT).map(drop)
            };
            prop_assert_eq!(segment(CLIENT, SYN, first.0, 0, 0, &mut it), Ok(()));
            prop_assert_eq!(segment(SERVER, SYN | ACK, first.1, first.0.wrapping_add(1), 0, &mut it), Ok(()));
            let mut next = [first.0.wrapping_add(1), first.1.wrapping_add(1)];
            let mut heard = next;
            prop_assert_eq!(segment(CLIENT, ACK, next[0], next[1], 0, &mut it), Ok(()));
            for _ in 0..200 {
                let from = rng.usize(0..2);
                let in_flight = next[from].wrapping_sub(heard[from]);
                let len = rng.u32(0..2000).min(50_000 - in_flight.min(50_000));
                // Some bytes are retransmitted.
                let again = rng.u32(0..=in_flight.min(3000));
                let at = if rng.bool() { next[from] } else { next[from].wrapping_sub(again) };
                prop_assert_eq!(segment(from, ACK, at, heard[1 - from], len as usize, &mut it), Ok(()));
                let until = at.wrapping_add(len);
                if is_before(next[from], until) {
                    next[from] = until;
                }
                let more = next[from].wrapping_sub(heard[from]);
                heard[from] = heard[from].wrapping_add(rng.u32(0..=more));
            }
        }
    }
}
