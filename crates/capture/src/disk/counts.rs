//! Counts of a writer: the packets that it took and lost, the segments that it removed.

use serde::Serialize;

/// Counts of a writer, since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Written {
    /// Packets that were taken, and are in files or on their way there.
    pub packets: u64,
    /// Packets that could not be written, or are of a port that there is not.
    pub lost: u64,
    /// Segments that were removed to make room.
    pub removed: u64,
    /// Segments among those because the disk was full before the ring was.
    pub removed_early: u64,
    /// Segments without an index, for now: queries read all of them.
    pub without_index: u64,
}
