//! The results of one call of a record parser: messages, counters, and whether the parser still needs its state.

use crate::buffer::BufferSet;
use crate::record::Record;

/// Maximum number of messages per call of a parser on which rules are evaluated. A frame of 16 KiB contains no more, so
/// all of its messages are read within the time limit of the rules.
pub const MOST_MESSAGES: u64 = 8192;

/// Collects the results of one call of a parser. The closure `each` gets every message with the buffers that were added
/// to it.
pub struct Findings<F> {
    each: F,
    counts: Counts,
}

/// The counts of one call of a parser.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages on which rules were evaluated.
    pub told: u64,
    /// Messages beyond [`MOST_MESSAGES`], and messages of which a part did not fit into a record.
    pub left_out: u64,
    /// Number of messages that the parser found to be invalid.
    pub faults: u64,
}

impl<F: FnMut(&Record, BufferSet)> Findings<F> {
    /// Creates a collector for one call of a parser.
    pub(crate) fn new(each: F) -> Self {
        Self {
            each,
            counts: Counts::default(),
        }
    }

    /// Reports a message and the buffers that are new in it.
    pub(crate) fn tell(&mut self, record: &Record, ready: BufferSet) {
        let is_one_more = self.counts.told == MOST_MESSAGES;
        self.counts.left_out += u64::from(is_one_more || record.is_cut());
        if !is_one_more {
            self.counts.told += 1;
            (self.each)(record, ready);
        }
    }

    /// Returns the counts of this call of the parser.
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Adds `more` to the number of invalid messages.
    pub(crate) fn faults(&mut self, more: u64) {
        self.counts.faults += more;
    }
}

/// The extent to which the connection still needs the parser and its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// The state is needed: the parser is inside a message or an exchange.
    Within,
    /// The state is not needed: another parser may parse the next bytes.
    Between,
    /// The connection needs no parser any more.
    Over,
}
