//! Faults of a fragment, and the limits that make some of them.

use crate::arena::CHUNK_BYTES;

/// Fragments of a datagram at most: 64 KiB in pieces of 512 bytes. Small ones cannot take more memory than large ones, as those that lie
/// within the same 512 bytes share a chunk.
pub const MOST_FRAGMENTS: usize = 128;
/// Bytes of headers at most that a fragment may have in front of its fragment header.
pub const MOST_HEADER_BYTES: usize = CHUNK_BYTES;
/// Bytes of a packet at most, without the fixed header of IPv6.
pub(super) const MOST_BYTES: usize = 65_535;

/// Why a fragment was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FragmentFault {
    /// The packet is not a fragment.
    NotAFragment,
    /// Its headers are wrong: a version, a length that leads out of the packet, an IPv4 checksum, more than [`MOST_HEADER_BYTES`].
    Header,
    /// It is empty, or another follows and its length is no multiple of 8 bytes.
    Length,
    /// It differs from what has come before, in bytes, in the end of the datagram, or in the protocol that this begins with.
    Overlap,
    /// It says another end or another protocol than what came before and counts ([`Overlap::First`](crate::overlap::Overlap::First)).
    Contradiction,
    /// The whole packet would be longer than a packet can be.
    TooLong,
    /// The first fragment cuts the TCP header.
    TinyFirst,
    /// There are more than [`MOST_FRAGMENTS`].
    TooMany,
    /// The datagram takes more memory than there is for one.
    NoMemory,
    /// Its datagram was given up before.
    GivenUp,
}

impl FragmentFault {
    /// Says whether it ends the datagram, not just the fragment.
    pub fn ends_datagram(self) -> bool {
        matches!(
            self,
            Self::Length
                | Self::Overlap
                | Self::TooLong
                | Self::TinyFirst
                | Self::TooMany
                | Self::NoMemory
        )
    }
}
