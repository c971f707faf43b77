//! The anomalies of a TCP segment for `stream-event`. Their names depend on the state of the connection.

use super::{ACK, Connection, FIN, RST, SYN, SegmentHead, used_until};
use crate::anomaly::Anomaly;
use crate::stream::is_before;

/// A stage of a TCP connection, from its handshake to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// No segment of the connection is known.
    Nothing,
    /// The SYN is sent, and not answered.
    Asked,
    /// The SYN is answered, and the client has not acknowledged the answer.
    Answered,
    /// The connection is established.
    Open,
    /// The client has sent a FIN.
    ClientClosed,
    /// The server has sent a FIN after the client.
    Last,
    /// The server has sent a FIN.
    ServerClosed,
    /// The server has sent a FIN, and the client has acknowledged it.
    ServerHeard,
    /// The client has sent a FIN after the server, without an acknowledgement of the server's FIN.
    Crossed,
    /// The client has sent a FIN after the server.
    Waiting,
    /// The connection is over.
    Over,
}

/// The properties of a segment that are tested at several stages of a connection.
struct Asked {
    is_fin: bool,
    /// True if the segment acknowledges bytes that were never sent.
    is_bad: bool,
    /// True if the segment is outside the window.
    is_out: bool,
    /// True if the segment begins after the last byte that its sender has sent.
    is_behind: bool,
}

impl Connection {
    /// Returns the anomalies of a segment sent by the end `from` (0 for the client, 1 for the server), as bits of
    /// [`Anomaly`]. Call it before [`Connection::segment`], which changes the state. `in_line` is true if the caller
    /// sees all segments.
    pub fn oddities(&self, from: usize, head: &SegmentHead, in_line: bool) -> u64 {
        let from = from & 1;
        let has = |flag: u8| head.flags & flag != 0;
        let stage = self.stage();
        let mut odd = 0;
        let mut say = |is_so: bool, anomaly: Anomaly| odd |= if is_so { anomaly.bit() } else { 0 };
        say(
            !has(ACK) && head.acknowledgement != 0,
            Anomaly::BrokenAcknowledgement,
        );
        say(self.resets[from] && !has(RST), Anomaly::AfterReset);
        if stage == Stage::Nothing {
            say(has(RST), Anomaly::ResetOfNothing);
            say(has(FIN) && !has(RST), Anomaly::FinOfNothing);
            return odd;
        }
        if self.is_outdated(from, head) {
            say(true, Anomaly::Timestamp);
            return odd;
        }
        let is_bad = has(ACK) && self.acknowledges_too_much(from, head);
        say(
            is_bad && !has(SYN) && (!has(RST) || head.acknowledgement != 0),
            Anomaly::BadAcknowledgement,
        );
        if has(RST) {
            say(
                is_bad && head.acknowledgement != 0,
                Anomaly::ResetAcknowledgement,
            );
            return odd;
        }
        if has(SYN) && !(has(FIN) && stage == Stage::Open) {
            return odd | self.of_opening(stage, from, head).map_or(0, Anomaly::bit);
        }
        if !self.ends[from].is_open {
            return odd;
        }
        if stage == Stage::Answered {
            return odd
                | self
                    .of_handshake(from, head, in_line)
                    .map_or(0, Anomaly::bit);
        }
        odd | self.after_handshake(stage, from, head, is_bad)
    }

    /// Returns the anomalies of a segment after the handshake, as bits. `is_bad` is true if the segment acknowledges
    /// bytes that were never sent.
    #[inline]
    fn after_handshake(&self, stage: Stage, from: usize, head: &SegmentHead, is_bad: bool) -> u64 {
        let end = &self.ends[from];
        let until = used_until(head);
        let is_fin = head.flags & FIN != 0;
        let is_probe = head.len <= 1 && head.sequence == end.sent.wrapping_sub(1);
        let is_acknowledged = head.len > 0 && !is_before(end.acknowledged, until);
        let is_again = is_acknowledged && !is_probe;
        let again = is_again.then_some(Anomaly::SpuriousRetransmission);
        let asked = Asked {
            is_fin,
            is_bad,
            is_out: self.is_outside(from, head),
            is_behind: is_before(end.sent, head.sequence),
        };
        let found = match stage {
            Stage::Open => self.of_open(from, head, &asked, is_probe),
            Stage::ClientClosed if is_acknowledged && !is_fin => Some(Anomaly::ClientClosedBefore),
            _ => asked.in_end(stage),
        };
        again.map_or(0, Anomaly::bit) | found.map_or(0, Anomaly::bit)
    }

    /// Returns the anomaly of a segment while neither endpoint has sent a FIN.
    fn of_open(
        &self,
        from: usize,
        head: &SegmentHead,
        asked: &Asked,
        is_probe: bool,
    ) -> Option<Anomaly> {
        let end = &self.ends[from];
        let behind_data = head.sequence.wrapping_add(head.len as u32);
        if asked.is_fin {
            let ends_ahead = end.edge.is_some_and(|edge| is_before(edge, behind_data));
            let is_out = is_before(head.sequence, end.acknowledged) || ends_ahead;
            return match (asked.is_bad, is_out) {
                (true, _) => Some(Anomaly::FinAcknowledgement),
                (_, true) => Some(Anomaly::FinOutOfWindow),
                _ => (head.flags & SYN != 0).then_some(Anomaly::FinWithSyn),
            };
        }
        match (asked.is_bad, asked.is_out) {
            (true, _) => Some(Anomaly::OpenAcknowledgement),
            (_, true) => Some(Anomaly::OutOfWindow),
            _ => {
                let is_old = is_before(behind_data, end.acknowledged) && !is_probe;
                is_old.then_some(Anomaly::OpenBefore)
            }
        }
    }

    fn stage(&self) -> Stage {
        let [client, server] = &self.ends;
        match (client.end, server.end) {
            _ if self.is_unknown() => Stage::Nothing,
            _ if !client.is_open && !server.is_open => Stage::Asked,
            _ if self.is_reset || self.is_closed() => Stage::Over,
            (None, None) if !self.is_established && !self.is_midstream => Stage::Answered,
            (None, None) => Stage::Open,
            (Some(_), None) => Stage::ClientClosed,
            (None, Some(_)) if self.is_done(1) => Stage::ServerHeard,
            (None, Some(_)) => Stage::ServerClosed,
            (Some(_), Some(_)) if self.first_to_end == 0 => Stage::Last,
            (Some(_), Some(_)) if self.is_done(1) => Stage::Waiting,
            (Some(_), Some(_)) => Stage::Crossed,
        }
    }

    /// Returns the anomaly of a SYN or a SYN+ACK, if it has one.
    fn of_opening(&self, stage: Stage, from: usize, head: &SegmentHead) -> Option<Anomaly> {
        let is_client = from == 0;
        let [client, server] = &self.ends;
        let first = head.sequence.wrapping_add(1);
        let answers = |end: usize| {
            let mut openings = self.ends[end].openings.iter().flatten();
            openings.any(|it| it.is_answered_by(head.acknowledgement))
        };
        let is_known = || {
            let mut own = self.ends[from].openings.iter().flatten();
            own.any(|it| it.sequence == head.sequence)
        };
        let is_confirmed = server.sent != server.first || client.acknowledged != client.first;
        let is_other_answer = head.acknowledgement != client.acknowledged;
        match (stage, head.flags & ACK != 0) {
            (Stage::Asked, true) if !is_client => {
                (!answers(0)).then_some(Anomaly::AskedAnswerOther)
            }
            (Stage::Asked, true) if server.openings == [None; 2] => {
                Some(Anomaly::AskedAnswerFromClient)
            }
            (Stage::Asked, true) if !answers(1) => Some(Anomaly::BothAnswerOther),
            (Stage::Asked, true) => (!is_known()).then_some(Anomaly::BothAnswerOtherNumber),
            (Stage::Answered, true) if is_client => {
                // In a simultaneous open both ends answer.
                let is_own = first == client.first && head.acknowledgement == server.first;
                (!is_own).then_some(Anomaly::AnsweredAnswerToServer)
            }
            (Stage::Answered, true) if is_other_answer => Some(Anomaly::AnsweredAnswerOther),
            (Stage::Answered, true) => {
                (first != server.first).then_some(Anomaly::AnsweredAnswerOtherNumber)
            }
            (Stage::Answered, false) if !is_client => Some(Anomaly::AnsweredOpeningToClient),
            (Stage::Answered, false) => {
                (first != client.first).then_some(Anomaly::AnsweredOpeningOther)
            }
            (Stage::Open, true) if is_client => Some(Anomaly::OpenAnswerToServer),
            (Stage::Open, true) if is_other_answer => Some(Anomaly::OpenAnswerOther),
            (Stage::Open, true) if first != server.first => Some(Anomaly::OpenAnswerOtherNumber),
            (Stage::Open, true) => is_confirmed.then_some(Anomaly::OpenAnswerAgain),
            (Stage::Open, false) if !is_client => Some(Anomaly::OpenOpeningToClient),
            (Stage::Open, false) if first != client.first => Some(Anomaly::OpenOpeningOther),
            (Stage::Open, false) => Some(Anomaly::OpenOpeningAgain),
            (Stage::Nothing | Stage::Asked | Stage::Over, _) => None,
            _ => Some(Anomaly::ClosingOpening),
        }
    }

    /// Returns the anomaly, if any, of a segment after the answer to a SYN.
    fn of_handshake(&self, from: usize, head: &SegmentHead, in_line: bool) -> Option<Anomaly> {
        let [client, server] = &self.ends;
        // The server may respond to the data that arrived with the SYN.
        let is_fast = client.sent != client.first;
        if from == 1 {
            if is_fast || !in_line {
                return None;
            }
            let fits = head.acknowledgement == client.acknowledged && head.sequence == server.sent;
            return match head.len > 0 && fits {
                true => Some(Anomaly::AnsweredData),
                false => Some(Anomaly::AnsweredFromServer),
            };
        }
        let is_next = head.sequence == client.sent;
        if head.acknowledgement != server.sent {
            return Some(match is_next {
                true => Anomaly::AnsweredWrongAcknowledgement,
                false => Anomaly::AnsweredWrongNumbers,
            });
        }
        let is_old = is_before(head.sequence, client.sent) && !is_fast;
        (is_old || self.is_outside(from, head)).then_some(Anomaly::AnsweredWrongNumbers)
    }
}

impl Asked {
    /// Returns the anomaly, if any, of a segment in a connection with at least one FIN.
    fn in_end(&self, stage: Stage) -> Option<Anomaly> {
        let Self {
            is_fin,
            is_bad,
            is_out,
            is_behind,
        } = *self;
        // The anomalies of the acknowledgement, the sequence number, and the sequence number of a FIN.
        let (of_acknowledgement, of_number, of_fin, is_wrong) = match stage {
            Stage::ClientClosed => (
                Anomaly::ClientClosedAcknowledgement,
                Anomaly::ClientClosedOutOfWindow,
                Anomaly::ClientClosedFinOutOfWindow,
                is_out,
            ),
            Stage::ServerClosed => (
                Anomaly::ServerClosedAcknowledgement,
                Anomaly::ServerClosedNumber,
                Anomaly::ServerClosedFinNumber,
                is_out,
            ),
            Stage::ServerHeard => (
                Anomaly::ServerHeardAcknowledgement,
                Anomaly::ServerHeardNumber,
                Anomaly::ServerHeardFinNumber,
                is_out,
            ),
            Stage::Crossed => (
                Anomaly::ClosingAcknowledgement,
                Anomaly::ClosingNumber,
                Anomaly::ClosingNumber,
                is_behind,
            ),
            Stage::Last => (
                Anomaly::LastAcknowledgement,
                Anomaly::LastNumber,
                Anomaly::LastNumber,
                is_behind,
            ),
            Stage::Waiting => (
                Anomaly::WaitingAcknowledgement,
                Anomaly::WaitingNumber,
                Anomaly::WaitingNumber,
                is_behind,
            ),
            _ => return None,
        };
        match (is_bad, is_wrong) {
            (true, _) => Some(of_acknowledgement),
            (_, true) if is_fin => Some(of_fin),
            (_, true) => Some(of_number),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::Policy;
    use super::*;

    const CLIENT: usize = 0;
    const SERVER: usize = 1;
    const STRICT: Policy = Policy {
        takes_midstream: true,
        in_line: true,
    };

    fn head(flags: u8, sequence: u32, acknowledgement: u32, len: usize) -> SegmentHead {
        SegmentHead {
            flags,
            sequence,
            acknowledgement,
            window: 1000,
            len,
            ..SegmentHead::default()
        }
    }

    /// A segment: sending endpoint, flags, sequence number, acknowledgement number, payload length.
    type Sent = (usize, u8, u32, u32, usize);

    /// Returns the anomalies of the last of `segments`, which arrives after the other segments.
    fn odd(segments: &[Sent]) -> u64 {
        let mut it = Connection::default();
        let mut odd = 0;
        for &(from, flags, sequence, acknowledgement, len) in segments {
            let head = head(flags, sequence, acknowledgement, len);
            odd = it.oddities(from, &head, true);
            let _ = it.segment(from, &head, STRICT);
        }
        odd
    }

    const SYN_: Sent = (CLIENT, SYN, 100, 0, 0);
    const ANSWER: Sent = (SERVER, SYN | ACK, 500, 101, 0);
    const LAST: Sent = (CLIENT, ACK, 101, 501, 0);
    const OPEN: [Sent; 3] = [SYN_, ANSWER, LAST];
    const OF_CLIENT: Sent = (CLIENT, ACK | FIN, 101, 501, 0);
    const OF_SERVER: Sent = (SERVER, ACK | FIN, 501, 101, 0);

    fn behind(before: &[Sent], last: Sent) -> u64 {
        odd(&[before, &[last]].concat())
    }

    #[test]
    fn a_correct_connection_has_no_anomaly() {
        let all = [
            &OPEN[..],
            &[
                (CLIENT, ACK, 101, 501, 10),
                (SERVER, ACK, 501, 111, 20),
                (CLIENT, ACK | FIN, 111, 521, 0),
                (SERVER, ACK, 521, 112, 0),
                (SERVER, ACK | FIN, 521, 112, 5),
                (CLIENT, ACK, 112, 527, 0),
            ],
        ]
        .concat();
        for upto in 1..=all.len() {
            assert_eq!(odd(&all[..upto]), 0, "{upto}");
        }
        // The server closes first; then both endpoints close at the same time.
        for client_hears in [101, 102] {
            let all = [
                &OPEN[..],
                &[OF_SERVER, (CLIENT, ACK | FIN, 101, 502, 0)],
                &[(SERVER, ACK, 502, client_hears, 0)],
            ]
            .concat();
            for upto in 1..=all.len() {
                assert_eq!(odd(&all[..upto]), 0, "{upto}");
            }
        }
        // In a simultaneous open, both ends send a SYN.
        let both = [
            SYN_,
            (SERVER, SYN, 500, 0, 0),
            (CLIENT, SYN | ACK, 100, 501, 0),
            ANSWER,
        ];
        for upto in 1..=both.len() {
            assert_eq!(odd(&both[..upto]), 0, "{upto}");
        }
    }

    #[test]
    fn each_anomaly_of_a_handshake_is_identified() {
        let asked = [SYN_];
        let both = [SYN_, (SERVER, SYN, 500, 0, 0)];
        let answered = [SYN_, ANSWER];
        for (before, last, wanted) in [
            (&[][..], (CLIENT, RST, 1, 0, 0), Anomaly::ResetOfNothing),
            (&[], (CLIENT, FIN | ACK, 1, 2, 0), Anomaly::FinOfNothing),
            (&[], (CLIENT, SYN, 1, 7, 0), Anomaly::BrokenAcknowledgement),
            (
                &asked,
                (CLIENT, SYN | ACK, 7, 101, 0),
                Anomaly::AskedAnswerFromClient,
            ),
            (
                &asked,
                (SERVER, SYN | ACK, 7, 102, 0),
                Anomaly::AskedAnswerOther,
            ),
            (
                &both,
                (CLIENT, SYN | ACK, 100, 502, 0),
                Anomaly::BothAnswerOther,
            ),
            (
                &both,
                (CLIENT, SYN | ACK, 99, 501, 0),
                Anomaly::BothAnswerOtherNumber,
            ),
            (
                &answered,
                (CLIENT, SYN | ACK, 100, 777, 0),
                Anomaly::AnsweredAnswerToServer,
            ),
            (
                &answered,
                (SERVER, SYN | ACK, 500, 102, 0),
                Anomaly::AnsweredAnswerOther,
            ),
            (
                &answered,
                (SERVER, SYN | ACK, 900, 101, 0),
                Anomaly::AnsweredAnswerOtherNumber,
            ),
            (
                &answered,
                (SERVER, SYN, 900, 0, 0),
                Anomaly::AnsweredOpeningToClient,
            ),
            (
                &answered,
                (CLIENT, SYN, 900, 0, 0),
                Anomaly::AnsweredOpeningOther,
            ),
            (&answered, (SERVER, ACK, 501, 101, 9), Anomaly::AnsweredData),
            (
                &answered,
                (SERVER, ACK, 501, 101, 0),
                Anomaly::AnsweredFromServer,
            ),
            (
                &answered,
                (CLIENT, ACK, 101, 500, 0),
                Anomaly::AnsweredWrongAcknowledgement,
            ),
            (
                &answered,
                (CLIENT, ACK, 90, 501, 0),
                Anomaly::AnsweredWrongNumbers,
            ),
        ] {
            assert_eq!(behind(before, last), wanted.bit(), "{wanted:?}");
        }
        // Segments of the handshake are no anomaly, with or without data.
        for last in [ANSWER, SYN_, LAST, (CLIENT, ACK, 101, 501, 9)] {
            assert_eq!(behind(&answered, last), 0);
        }
    }

    #[test]
    fn each_anomaly_of_an_established_connection_is_identified() {
        let used = [
            &OPEN[..],
            &[(CLIENT, ACK, 101, 501, 10), (SERVER, ACK, 501, 111, 0)],
        ]
        .concat();
        let bad = Anomaly::BadAcknowledgement.bit();
        for (before, last, wanted, more) in [
            (
                &OPEN[..],
                (CLIENT, SYN | ACK, 100, 501, 0),
                Anomaly::OpenAnswerToServer,
                0,
            ),
            (
                &OPEN,
                (SERVER, SYN | ACK, 500, 99, 0),
                Anomaly::OpenAnswerOther,
                0,
            ),
            (
                &OPEN,
                (SERVER, SYN | ACK, 501, 101, 0),
                Anomaly::OpenAnswerOtherNumber,
                0,
            ),
            (
                &used,
                (SERVER, SYN | ACK, 500, 111, 0),
                Anomaly::OpenAnswerAgain,
                0,
            ),
            (
                &OPEN,
                (SERVER, SYN, 1, 0, 0),
                Anomaly::OpenOpeningToClient,
                0,
            ),
            (&OPEN, (CLIENT, SYN, 1, 0, 0), Anomaly::OpenOpeningOther, 0),
            (&OPEN, SYN_, Anomaly::OpenOpeningAgain, 0),
            (
                &OPEN,
                (CLIENT, ACK, 101, 502, 1),
                Anomaly::OpenAcknowledgement,
                bad,
            ),
            (&OPEN, (CLIENT, ACK, 9999, 501, 1), Anomaly::OutOfWindow, 0),
            (
                &used,
                (CLIENT, ACK, 101, 501, 5),
                Anomaly::OpenBefore,
                Anomaly::SpuriousRetransmission.bit(),
            ),
            (
                &used,
                (CLIENT, ACK | FIN, 111, 502, 0),
                Anomaly::FinAcknowledgement,
                bad,
            ),
            (
                &used,
                (CLIENT, ACK | FIN, 9999, 501, 0),
                Anomaly::FinOutOfWindow,
                0,
            ),
            (
                &used,
                (CLIENT, ACK | FIN | SYN, 111, 501, 0),
                Anomaly::FinWithSyn,
                0,
            ),
            (
                &OPEN,
                (SERVER, RST | ACK, 501, 999, 0),
                Anomaly::ResetAcknowledgement,
                bad,
            ),
        ] {
            assert_eq!(behind(before, last), wanted.bit() | more, "{wanted:?}");
        }
        // A probe is no anomaly, nor is a retransmitted answer before the server has continued.
        assert_eq!(behind(&used, (CLIENT, ACK, 110, 501, 1)), 0);
        assert_eq!(behind(&OPEN, ANSWER), 0);
        let reset = [&OPEN[..], &[(SERVER, RST, 501, 0, 0)]].concat();
        let after = Anomaly::AfterReset.bit();
        assert_eq!(behind(&reset, (SERVER, ACK, 501, 101, 4)), after);
        assert_eq!(behind(&reset, (SERVER, RST, 501, 0, 0)), 0);
        assert_eq!(behind(&reset, (CLIENT, ACK, 101, 501, 4)), 0);
        // The anomaly is reported once.
        let again = [&reset[..], &[(SERVER, ACK, 501, 101, 4)]].concat();
        assert_eq!(behind(&again, (SERVER, ACK, 501, 101, 4)), 0);
    }

    #[test]
    fn each_anomaly_of_a_closing_connection_is_identified() {
        let client_closed = [&OPEN[..], &[(CLIENT, ACK, 101, 501, 10)]].concat();
        let client_closed = [
            &client_closed[..],
            &[(SERVER, ACK, 501, 111, 0), (CLIENT, ACK | FIN, 111, 501, 0)],
        ]
        .concat();
        let last = [&OPEN[..], &[OF_CLIENT, OF_SERVER]].concat();
        let server_closed = [&OPEN[..], &[OF_SERVER]].concat();
        let server_heard = [&server_closed[..], &[(CLIENT, ACK, 101, 502, 0)]].concat();
        let crossed = [&server_closed[..], &[OF_CLIENT]].concat();
        let waiting = [&server_heard[..], &[(CLIENT, ACK | FIN, 101, 502, 0)]].concat();
        let bad = Anomaly::BadAcknowledgement.bit();
        let fin = ACK | FIN;
        for (before, last, wanted, more) in [
            (
                &client_closed,
                (CLIENT, SYN, 1, 0, 0),
                Anomaly::ClosingOpening,
                0,
            ),
            (
                &client_closed,
                (CLIENT, ACK, 101, 501, 5),
                Anomaly::ClientClosedBefore,
                Anomaly::SpuriousRetransmission.bit(),
            ),
            (
                &client_closed,
                (SERVER, fin, 9999, 112, 0),
                Anomaly::ClientClosedFinOutOfWindow,
                0,
            ),
            (
                &client_closed,
                (SERVER, ACK, 9999, 112, 0),
                Anomaly::ClientClosedOutOfWindow,
                0,
            ),
            (
                &client_closed,
                (SERVER, ACK, 501, 113, 0),
                Anomaly::ClientClosedAcknowledgement,
                bad,
            ),
            (
                &server_closed,
                (CLIENT, fin, 9999, 502, 0),
                Anomaly::ServerClosedFinNumber,
                0,
            ),
            (
                &server_closed,
                (CLIENT, ACK, 9999, 502, 0),
                Anomaly::ServerClosedNumber,
                0,
            ),
            (
                &server_closed,
                (CLIENT, ACK, 101, 503, 0),
                Anomaly::ServerClosedAcknowledgement,
                bad,
            ),
            (
                &server_heard,
                (CLIENT, fin, 9999, 502, 0),
                Anomaly::ServerHeardFinNumber,
                0,
            ),
            (
                &server_heard,
                (CLIENT, ACK, 9999, 502, 0),
                Anomaly::ServerHeardNumber,
                0,
            ),
            (
                &server_heard,
                (CLIENT, ACK, 101, 503, 0),
                Anomaly::ServerHeardAcknowledgement,
                bad,
            ),
            (
                &crossed,
                (CLIENT, ACK, 103, 502, 0),
                Anomaly::ClosingNumber,
                0,
            ),
            (
                &crossed,
                (CLIENT, ACK, 102, 503, 0),
                Anomaly::ClosingAcknowledgement,
                bad,
            ),
            (&last, (CLIENT, ACK, 103, 502, 0), Anomaly::LastNumber, 0),
            (
                &last,
                (CLIENT, ACK, 102, 503, 0),
                Anomaly::LastAcknowledgement,
                bad,
            ),
            (
                &waiting,
                (SERVER, ACK, 503, 102, 0),
                Anomaly::WaitingNumber,
                0,
            ),
            (
                &waiting,
                (SERVER, ACK, 502, 103, 0),
                Anomaly::WaitingAcknowledgement,
                bad,
            ),
        ] {
            assert_eq!(behind(before, last), wanted.bit() | more, "{wanted:?}");
        }
    }
}
