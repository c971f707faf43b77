//! Decides which packets belong to the decoded stream: those of its session with numbers near the latest one.
//!
//! Headers are not authenticated, so no single packet moves a decoder to another session or to distant numbers. Several
//! consecutive source packets do that. They must agree, and no packet of the current stream may arrive between them.
//! This happens after the sender restarted, or after an outage.

use super::header::{Header, Kind};
use taut_code::reach;

/// The number of consecutive source packets that move the decoder to another session, or to numbers far ahead.
const PROOF: u64 = 4;

/// The position of a packet: its session and numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct At {
    session: u32,
    /// One more than the number of the last source packet that the packet contains or combines.
    end: u64,
}

/// The relation of a packet to the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamRelation {
    Present,
    /// The decoder follows the stream of this packet from now on. Within the same session, `missed` is the number of
    /// source packets that were skipped.
    Begins {
        missed: u64,
    },
    /// The packet belongs to the stream, but is too old.
    Late,
    /// The packet belongs to another stream, or its number is far ahead.
    Elsewhere,
}

#[derive(Debug)]
pub(super) struct Following {
    span: u64,
    reach: u64,
    present: Option<At>,
    /// The position of the latest packet of another stream, and the number of that stream's consecutive source packets;
    /// none if no such packets have arrived.
    other: Option<(At, u64)>,
}

impl Following {
    /// Creates the state of a decoder with a history of `span` source packets.
    pub(super) fn new(span: usize) -> Self {
        Self {
            span: span as u64,
            reach: reach(span),
            present: None,
            other: None,
        }
    }

    pub(super) fn see(&mut self, header: &Header) -> StreamRelation {
        let is_source = header.kind == Kind::Source;
        let at = At {
            session: header.session,
            end: header.end(),
        };
        let Some(present) = self.present else {
            self.present = Some(at);
            return StreamRelation::Begins { missed: 0 };
        };
        if self.is_near(present, at) {
            self.other = None;
            return StreamRelation::Present;
        }
        let before = self.other.filter(|(other, _)| self.is_near(*other, at));
        let (other, seen) = before.unwrap_or((at, 0));
        let other = At {
            end: other.end.max(at.end),
            ..at
        };
        let seen = seen + u64::from(is_source);
        let is_same = at.session == present.session;
        let is_behind = is_same && at.end < present.end;
        // Late packets arrive in bursts: a delayed one delays those after it.
        let needed = if is_behind { self.span } else { PROOF };
        // A repair packet does not move the decoder: the source packets that it combines may have left already.
        if is_source && seen >= needed {
            self.present = Some(at);
            self.other = None;
            let between = if is_same {
                header.number.saturating_sub(present.end)
            } else {
                0
            };
            return StreamRelation::Begins {
                missed: between.saturating_sub(seen - 1),
            };
        }
        self.other = Some((other, seen));
        if is_behind {
            StreamRelation::Late
        } else {
            StreamRelation::Elsewhere
        }
    }

    /// Records `end` as the end of the stream after one of its packets was used. If `end` is none, the packet was
    /// refused, and the stream has not begun.
    pub(super) fn reached(&mut self, end: Option<u64>) {
        self.present = self.present.and_then(|present| {
            Some(At {
                end: end?,
                ..present
            })
        });
    }

    fn is_near(&self, stream: At, at: At) -> bool {
        let is_near = at.end + self.span > stream.end && at.end <= stream.end + self.reach;
        stream.session == at.session && is_near
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(session: u32, number: u64) -> Header {
        Header {
            kind: Kind::Source,
            session,
            number,
        }
    }

    /// Processes a header like a decoder that accepts it.
    fn see(following: &mut Following, header: Header) -> StreamRelation {
        let relation = following.see(&header);
        if relation == StreamRelation::Present {
            let end = following.present.map(|it| it.end.max(header.number + 1));
            following.reached(end);
        }
        relation
    }

    const BEGINS: StreamRelation = StreamRelation::Begins { missed: 0 };

    #[test]
    fn the_decoder_switches_streams_only_after_several_consecutive_sequence_numbers() {
        let mut following = Following::new(64);
        assert_eq!(see(&mut following, source(1, 1000)), BEGINS);
        for number in [1001, 1005, 1004, 1037, 1069, 1006] {
            assert_eq!(
                see(&mut following, source(1, number)),
                StreamRelation::Present,
                "{number}"
            );
        }
        // Forged packets in between, in any number, are never consecutive.
        for number in 0..200 {
            for elsewhere in [
                source(1, u64::MAX >> 2),
                source(1, 1200 + number),
                source(2, 7 + number),
            ] {
                assert_eq!(see(&mut following, elsewhere), StreamRelation::Elsewhere);
            }
            assert_eq!(see(&mut following, source(1, 1)), StreamRelation::Late);
            assert_eq!(
                see(&mut following, source(1, 1030 + number)),
                StreamRelation::Present
            );
        }
        // Packets that disagree are not consecutive either.
        for number in 0..50 {
            assert_eq!(
                see(&mut following, source(3, number * 1000)),
                StreamRelation::Elsewhere
            );
        }
        let repair = Header {
            kind: Kind::Repair(8),
            ..source(1, 5003)
        };
        for _ in 0..9 {
            assert_eq!(see(&mut following, repair), StreamRelation::Elsewhere);
        }
        for number in 5000..5003 {
            assert_eq!(
                see(&mut following, source(1, number)),
                StreamRelation::Elsewhere
            );
        }
        let missed = 5003 - 1230 - 3;
        assert_eq!(
            see(&mut following, source(1, 5003)),
            StreamRelation::Begins { missed }
        );
        assert_eq!(
            see(&mut following, source(1, 5001)),
            StreamRelation::Present
        );
        for number in 0..3 {
            assert_eq!(
                see(&mut following, source(9, number)),
                StreamRelation::Elsewhere
            );
        }
        assert_eq!(see(&mut following, source(9, 3)), BEGINS);
        // The unusable packet did not begin a stream.
        following.reached(None);
        assert_eq!(see(&mut following, source(1, 77)), BEGINS);
    }

    #[test]
    fn the_decoder_returns_to_a_stream_after_forged_sequence_numbers() {
        let mut following = Following::new(64);
        see(&mut following, source(1, 10));
        for number in 0..3 {
            assert_eq!(
                see(&mut following, source(1, (1 << 62) + number)),
                StreamRelation::Elsewhere
            );
        }
        let end = see(&mut following, source(1, (1 << 62) + 3));
        assert!(matches!(end, StreamRelation::Begins { .. }));
        for number in 11..74 {
            assert_eq!(
                see(&mut following, source(1, number)),
                StreamRelation::Late,
                "{number}"
            );
        }
        assert_eq!(see(&mut following, source(1, 74)), BEGINS);
        assert_eq!(see(&mut following, source(1, 75)), StreamRelation::Present);
    }
}
