//! A ring on disk: hours of packets in a folder of pcapng files, and an index by which a query finds packets in
//! seconds.
//!
//! A folder contains *segments*: pcapng files of equal size, which any program can read. Each segment has an index
//! (`index.rs`). The oldest segment is removed when the folder would otherwise exceed its limit. A segment consists of
//! blocks of [`BLOCK_BYTES`], each of which contains complete packets from its start on. Therefore the index can refer
//! to blocks, a query reads only blocks that may contain its packets, and damage stays within one block.
//!
//! [`Writer`] writes, in one process per folder. [`query()`] reads, even while a writer runs. Read `writer.rs` first,
//! then `query.rs`. Stenographer (Google) also writes files of blocks of 1 MiB with an index each. Here the files are
//! ordinary captures, even after the writer is killed. Segments can be compressed by zstd: then a block is stored in
//! one or several frames, and the index contains its location.

mod bits;
mod complete_segments;
mod counts;
mod folder;
mod index;
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

/// Size in bytes of a block of a segment: the unit of writing and of the index.
pub const BLOCK_BYTES: usize = 1 << 20;
/// Maximum number of blocks of a segment.
pub const MOST_BLOCKS: usize = 8192;
/// Default size of a segment in bytes.
pub const SEGMENT_BYTES: u64 = 256 << 20;

/// The reason why a ring on disk cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The folder of the ring cannot be used.
    #[error("{}: {why}", path.display())]
    Folder {
        /// Path of the folder.
        path: PathBuf,
        /// Error that the operating system reported.
        why: io::Error,
    },
    /// Another process writes into the folder of the ring.
    #[error("{}: another process captures into this folder: stop it or name another folder", path.display())]
    Held {
        /// Path of the folder that another process writes into.
        path: PathBuf,
    },
    /// The configured size of the ring on disk is too small.
    #[error(
        "a disk limit of {limit_bytes} bytes is too small: segments of {segment_bytes} bytes need at least {least_bytes}"
    )]
    Small {
        /// Configured limit in bytes.
        limit_bytes: u64,
        /// Size of a segment in bytes.
        segment_bytes: u64,
        /// Minimum limit in bytes for segments of this size.
        least_bytes: u64,
    },
    /// The size of the segments is invalid.
    #[error("segments of {segment_bytes} bytes: use whole MiB, from 2 MiB to 8 GiB")]
    Segment {
        /// Configured size in bytes.
        segment_bytes: u64,
    },
    /// The number of ports is 0 or too large.
    #[error("cannot capture on {ports} ports at the same time: use 1 to 256")]
    Ports {
        /// Configured number of ports.
        ports: usize,
    },
    /// Packets cannot be written; the writer tries again each second.
    #[error("{}: {why}; packets are lost until it can be written again", path.display())]
    Write {
        /// Path of the folder that cannot be written to.
        path: PathBuf,
        /// Error that the operating system reported.
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
