//! The results of a record parser for one piece of a stream: messages, counts, and the state it needs for the next
//! piece.

use crate::buffer::BufferSet;
use crate::record::Record;

/// Maximum number of messages in one piece of a stream on which rules are evaluated. A frame of 16 KiB contains no
/// more, so all of them are read within the time limit of the rules.
pub const MOST_MESSAGES: u64 = 8192;

/// The collector of a parser's results for one piece of a stream: it calls `each` with each message and its new
/// buffers.
pub struct Findings<F> {
    each: F,
    counts: Counts,
}

/// The counts of one piece of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages on which rules were evaluated.
    pub told: u64,
    /// Messages beyond [`MOST_MESSAGES`], and those that did not completely fit into a record.
    pub left_out: u64,
    /// Invalid messages.
    pub faults: u64,
}

impl<F: FnMut(&Record, BufferSet)> Findings<F> {
    /// Creates a collector for a piece of a stream.
    pub(crate) fn new(each: F) -> Self {
        Self {
            each,
            counts: Counts::default(),
        }
    }

    /// Reports a message with these new buffers.
    pub(crate) fn tell(&mut self, record: &Record, ready: BufferSet) {
        let is_one_more = self.counts.told == MOST_MESSAGES;
        self.counts.left_out += u64::from(is_one_more || record.is_cut());
        if !is_one_more {
            self.counts.told += 1;
            (self.each)(record, ready);
        }
    }

    /// Returns the counts so far.
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Counts invalid messages.
    pub(crate) fn faults(&mut self, more: u64) {
        self.counts.faults += more;
    }
}

/// The state that a parser has to keep for the next bytes of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// The parser is inside a message or an exchange.
    Within,
    /// The parser has no state to keep: another one can parse the next bytes.
    Between,
    /// The parser reads no more of this connection.
    Over,
}
