//! The policy for bytes that arrive twice with different content.

/// The policy for bytes of a TCP stream, or of a fragmented datagram, that arrive twice with different content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overlap {
    /// The segment or the whole datagram is dropped. A datagram is also dropped if its fragments contradict each other
    /// in its length or its protocol.
    #[default]
    Drop,
    /// The bytes that arrived first are inspected; a later segment adds only bytes that had not arrived before. A
    /// fragment that contradicts earlier ones in the length or the protocol of its datagram is dropped.
    First,
}
