//! The findings of a record parser in one piece of a stream: messages, counts, and bytes kept for the next piece.

use crate::buffer::BufferSet;
use crate::record::Record;

/// The most messages of one piece of a stream that rules are asked about: as many as a frame of 16 KiB has, so that none goes unread, and
/// rules are asked for no longer than they have time.
pub const MOST_MESSAGES: u64 = 8192;

/// The place where a parser puts what it finds in one piece of a stream: it calls `each` with each message and the
/// buffers of it that are new.
pub struct Findings<F> {
    each: F,
    counts: Counts,
}

/// The counts of one piece of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that rules were asked about.
    pub told: u64,
    /// Messages beyond [`MOST_MESSAGES`], and those of which a part did not fit.
    pub left_out: u64,
    /// Messages that were not as they have to be.
    pub faults: u64,
}

impl<F: FnMut(&Record, BufferSet)> Findings<F> {
    /// Makes one for a piece of a stream.
    pub(crate) fn new(each: F) -> Self {
        Self {
            each,
            counts: Counts::default(),
        }
    }

    /// Tells of a message, of which these buffers are new.
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

    /// Counts messages that were not as they have to be.
    pub(crate) fn faults(&mut self, more: u64) {
        self.counts.faults += more;
    }
}

/// What a parser has to keep for what comes next of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// It is in the middle of something.
    Within,
    /// It has nothing to keep: another one can read what comes next.
    Between,
    /// Nothing more is read of this connection.
    Over,
}
