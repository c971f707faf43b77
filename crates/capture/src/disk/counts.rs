//! Counts of a writer of a ring on disk: the packets that it wrote and lost, and the segments that it removed.

use serde::Serialize;

/// The counts of the writer of a ring on disk since the writer was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Written {
    /// Packets that were accepted: packets in files, and packets that are still to be written.
    pub packets: u64,
    /// Packets that could not be written, or are of an undefined port.
    pub lost: u64,
    /// Segment files that were removed because of the ring's size limit.
    pub removed: u64,
    /// Segments that were removed because the disk was full before the ring had reached its limit.
    pub removed_early: u64,
    /// Current number of segments without an index, which queries read completely.
    pub without_index: u64,
}
