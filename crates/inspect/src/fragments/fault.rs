//! Faults of a fragment, and the limits that a fragment may exceed.

use crate::arena::CHUNK_BYTES;

/// Maximum number of fragments of a datagram: 64 KiB in fragments of 512 bytes. Small fragments cannot take more memory
/// than large ones, as those within the same 512 bytes share a chunk.
pub const MOST_FRAGMENTS: usize = 128;
/// Maximum number of header bytes of a fragment before its fragment header.
pub const MOST_HEADER_BYTES: usize = CHUNK_BYTES;
/// Maximum number of bytes of a packet, without the fixed header of IPv6.
pub(super) const MOST_BYTES: usize = 65_535;

/// The reason why a fragment was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FragmentFault {
    /// The packet is not a fragment.
    NotAFragment,
    /// The headers are invalid: the version, a length beyond the packet, the IPv4 checksum, or more than
    /// [`MOST_HEADER_BYTES`].
    Header,
    /// The fragment is empty, or it is not the last one and its length is no multiple of 8 bytes.
    Length,
    /// The fragment contradicts earlier ones, in bytes, in the end of the datagram, or in the protocol.
    Overlap,
    /// The fragment contradicts the end or the protocol of earlier ones, which have precedence
    /// ([`Overlap::First`](crate::overlap::Overlap::First)).
    Contradiction,
    /// The complete packet would be longer than the maximum.
    TooLong,
    /// The first fragment splits the TCP header.
    TinyFirst,
    /// The datagram has more than [`MOST_FRAGMENTS`].
    TooMany,
    /// The datagram needs more memory than one datagram may have.
    NoMemory,
    /// The datagram was given up before.
    GivenUp,
}

impl FragmentFault {
    /// Returns true if the fault ends the datagram, and not only the fragment.
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
