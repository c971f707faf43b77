//! A ring on disk: packets of hours in a folder of pcapng files, and an index by which some of them are found in
//! seconds.
//!
//! A folder holds segments, files of one size, which any program reads. Next to each lies its index (`index.rs`), and
//! when the folder would grow beyond its limit, the oldest segment goes. A segment consists of blocks of
//! [`BLOCK_BYTES`], in each of which whole packets stand from its start on; so the index names blocks, a query reads
//! them alone, and damage in one stays there.
//!
//! [`Writer`] writes, one process for a folder. [`query()`] reads, also while it does. Begin with `writer.rs`, then
//! `query.rs`. Stenographer (Google) writes files of blocks of 1 MiB with an index beside each, too; here the files are
//! captures as they are, also when the writer is killed. Segments can be compressed by zstd: then a block lies where it lies,
//! in one or several frames, and the index says where.

mod bits;
mod counts;
mod folder;
mod index;
mod kept;
mod keys;
mod query;
mod segment;
#[cfg(test)]
mod tests;
mod writer;
#[cfg(test)]
mod zstd_tests;

pub use bits::Blocks;
pub use counts::Written;
pub use keys::Key;
pub use query::{Found, Holding, Query, holdings, query};
pub use writer::{Settings, Writer};

use std::io;
use std::path::{Path, PathBuf};

/// Bytes of a block: what is written at a time, and what an index tells apart.
pub const BLOCK_BYTES: usize = 1 << 20;
/// Most blocks of a segment.
pub const MOST_BLOCKS: usize = 8192;
/// Bytes of a segment where nobody says otherwise.
pub const SEGMENT_BYTES: u64 = 256 << 20;

/// Reason why a ring on disk cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The folder cannot be used.
    #[error("{}: {why}", path.display())]
    Folder {
        /// Its path.
        path: PathBuf,
        /// What the system says.
        why: io::Error,
    },
    /// Another process writes into the folder.
    #[error("{}: another process captures into it: stop that one or name another folder", path.display())]
    Held {
        /// Path of the folder.
        path: PathBuf,
    },
    /// The ring is too small.
    #[error(
        "{limit_bytes} bytes on disk are too few: with segments of {segment_bytes} it takes {least_bytes} at least"
    )]
    Small {
        /// Bytes that were given.
        limit_bytes: u64,
        /// Bytes of a segment.
        segment_bytes: u64,
        /// Bytes that are enough.
        least_bytes: u64,
    },
    /// The segments are of no use.
    #[error("segments of {segment_bytes} bytes: use whole MiB, from 2 MiB to 8 GiB")]
    Segment {
        /// Bytes that were given.
        segment_bytes: u64,
    },
    /// There are no ports, or too many.
    #[error("{ports} ports: capture 1 to 256")]
    Ports {
        /// Number that was given.
        ports: usize,
    },
    /// Packets cannot be written; it is tried again each second.
    #[error("{}: {why}; packets are lost until it can be written again", path.display())]
    Write {
        /// Path of the folder.
        path: PathBuf,
        /// What the system says.
        why: io::Error,
    },
}

impl DiskError {
    fn folder(path: &Path, why: io::Error) -> Self {
        Self::Folder {
            path: path.to_owned(),
            why,
        }
    }
}
