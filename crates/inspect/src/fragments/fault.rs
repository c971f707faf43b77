//! Faults of a fragment, and the limits that a fragment may exceed.

use crate::arena::CHUNK_BYTES;

/// Maximum number of fragments of a datagram: 64 KiB in fragments of 512 bytes. Small fragments take no more memory
/// than large ones, because all fragments within the same 512 bytes share a chunk.
pub const MOST_FRAGMENTS: usize = 128;
/// Maximum number of header bytes before the fragment header.
pub const MOST_HEADER_BYTES: usize = CHUNK_BYTES;
/// Maximum length of a packet in bytes; the fixed header of IPv6 does not count.
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
    /// The fragment contradicts earlier fragments of its datagram, in overlapping bytes, the total length, or the
    /// protocol.
    Overlap,
    /// The fragment contradicts earlier fragments in the total length or the protocol. The earlier fragments have
    /// precedence ([`Overlap::First`](crate::overlap::Overlap::First)).
    Contradiction,
    /// The complete packet would be longer than the maximum.
    TooLong,
    /// The first fragment splits the TCP header.
    TinyFirst,
    /// The datagram has more than [`MOST_FRAGMENTS`] fragments.
    TooMany,
    /// The datagram needs more memory than one datagram may have.
    NoMemory,
    /// The datagram was abandoned because of an earlier fragment.
    GivenUp,
}

impl FragmentFault {
    /// Returns true if the fault ends the whole datagram, false if it concerns only the fragment.
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
