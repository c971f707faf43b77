//! The payload of the datagrams of `taut probe`: session, sequence number and send time, followed by filler of any
//! length. Numbers are big endian.
//!
//! | Bytes | |
//! |---|---|
//! | 0-1 | `tq` in a request, `ta` in a reply |
//! | 2-3 | session, a random number of the client |
//! | 4-7 | sequence number in the session |
//! | 8-15 | send time, ns on a clock of the client |
//!
//! A reply has the bytes of its request, except the first two. A reply is never a request, so two servers that send to
//! each other stop after one datagram.

/// The number of bytes before the filler, which is also the length of the shortest payload.
pub const PROBE_BYTES: usize = 16;

/// The content of a probe: a request or a reply of `taut probe`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Session: a random number that identifies one run of the client.
    pub session: u16,
    /// Sequence number, from 0.
    pub sequence: u32,
    /// Send time of the request, ns on a clock that only the client knows.
    pub sent_ns: u64,
}

/// The direction of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeWay {
    /// Request, to the server.
    Question,
    /// Reply, to the client.
    Answer,
}

const QUESTION: [u8; 2] = *b"tq";
const ANSWER: [u8; 2] = *b"ta";

impl Probe {
    /// Parses the start of a payload; None if the payload is not a probe.
    ///
    /// ```
    /// use taut_wire::probe::{Probe, ProbeWay, PROBE_BYTES, answer};
    /// let probe = Probe { session: 7, sequence: 1, sent_ns: 99 };
    /// let mut payload = [0; 20];
    /// probe.emit(&mut payload);
    /// assert_eq!(Probe::parse(&payload), Some((ProbeWay::Question, probe)));
    /// assert!(answer(&mut payload));
    /// assert_eq!(Probe::parse(&payload), Some((ProbeWay::Answer, probe)));
    /// assert!(!answer(&mut payload));
    /// ```
    pub fn parse(payload: &[u8]) -> Option<(ProbeWay, Self)> {
        let front: &[u8; PROBE_BYTES] = payload.first_chunk()?;
        let [a, b, c, d, e, f, g, h, stamp @ ..] = *front;
        let way = match [a, b] {
            QUESTION => ProbeWay::Question,
            ANSWER => ProbeWay::Answer,
            _ => return None,
        };
        let probe = Self {
            session: u16::from_be_bytes([c, d]),
            sequence: u32::from_be_bytes([e, f, g, h]),
            sent_ns: u64::from_be_bytes(stamp),
        };
        Some((way, probe))
    }

    /// Writes a request to the start of a payload of at least [`PROBE_BYTES`].
    ///
    /// # Panics
    /// Panics if the payload is shorter than [`PROBE_BYTES`].
    pub fn emit(&self, payload: &mut [u8]) {
        payload[..2].copy_from_slice(&QUESTION);
        payload[2..4].copy_from_slice(&self.session.to_be_bytes());
        payload[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        payload[8..16].copy_from_slice(&self.sent_ns.to_be_bytes());
    }
}

/// Turns a request into its reply, in place. Returns false and changes nothing if the payload is not a request.
pub fn answer(payload: &mut [u8]) -> bool {
    let is_question = matches!(Probe::parse(payload), Some((ProbeWay::Question, _)));
    if is_question {
        payload[..2].copy_from_slice(&ANSWER);
    }
    is_question
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_probe_header_has_the_documented_bytes() {
        let mut payload = [0xEE; 18];
        Probe {
            session: 0x0102,
            sequence: 0x0304_0506,
            sent_ns: 0x0708_090A_0B0C_0D0E,
        }
        .emit(&mut payload);
        assert_eq!(
            payload,
            *b"tq\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\xee\xee"
        );
        assert_eq!(Probe::parse(&payload[..15]), None);
        assert_eq!(Probe::parse(b"tx\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), None);
    }

    proptest! {
        #[test]
        fn probe_requests_get_a_reply_and_other_datagrams_none(
            mut payload in prop::collection::vec(any::<u8>(), 0..40), front in 0..3_usize
        ) {
            if payload.len() > 1 && front > 0 {
                payload[..2].copy_from_slice([b"tq", b"ta"][front - 1]);
            }
            let before = payload.clone();
            let answered = answer(&mut payload);
            prop_assert_eq!(answered, before.len() >= PROBE_BYTES && before.starts_with(b"tq"));
            prop_assert_eq!(payload.len(), before.len());
            if answered {
                prop_assert_eq!(&payload[2..], &before[2..]);
                prop_assert!(!answer(&mut payload));
            } else {
                prop_assert_eq!(payload, before);
            }
        }
    }
}
