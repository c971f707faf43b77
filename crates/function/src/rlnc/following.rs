//! Packets of the stream that is decoded: those of its session whose numbers are near its latest.
//!
//! Nothing in a header is proved, so no single packet moves a decoder elsewhere, to another session or to far numbers of
//! its own. Several source packets in a row do that all agree and between which none came of the stream so far: after
//! the sender began again, or after an outage.

use super::header::{Header, Kind};
use taut_code::reach;

/// Source packets in a row of another session, or far ahead.
const PROOF: u64 = 4;

/// Position of a packet: its session and numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct At {
    session: u32,
    /// Number behind the last one that the packet is about.
    end: u64,
}

/// Relation of a packet to the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamRelation {
    Present,
    /// The packet begins the stream from now on; if it is of the same session, so many source packets were missed in
    /// between.
    Begins {
        missed: u64,
    },
    /// The packet is of the stream, but too old.
    Late,
    /// The packet is of another stream, or far ahead.
    Elsewhere,
}

#[derive(Debug)]
pub(super) struct Following {
    span: u64,
    reach: u64,
    present: Option<At>,
    /// Position of the latest packets that were not of the present stream, and how many source packets of it came.
    other: Option<(At, u64)>,
}

impl Following {
    /// Makes the following of a decoder that looks back on `span` source packets.
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
        // Late packets come in bunches: one that is held up somewhere takes those behind it along.
        let needed = if is_behind { self.span } else { PROOF };
        // What a repair is about may have left already.
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

    /// A packet of the stream was used, or refused: it has come so far, or not yet begun.
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

    /// Sees a header as a decoder does that takes it.
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
    fn a_stream_is_followed_over_losses_and_left_only_for_packets_in_a_row() {
        let mut following = Following::new(64);
        assert_eq!(see(&mut following, source(1, 1000)), BEGINS);
        for number in [1001, 1005, 1004, 1037, 1069, 1006] {
            assert_eq!(
                see(&mut following, source(1, number)),
                StreamRelation::Present,
                "{number}"
            );
        }
        // Forged ones in between, as many as there are, are never in a row.
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
        // Those that do not agree are not either.
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
        // One that could not be used began nothing.
        following.reached(None);
        assert_eq!(see(&mut following, source(1, 77)), BEGINS);
    }

    #[test]
    fn far_numbers_that_were_forged_in_a_row_are_left_again() {
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
