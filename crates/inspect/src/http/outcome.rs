//! The result of one call of the HTTP parser: bytes read, buffers filled, faults.

use crate::buffer::BufferSet;

/// The result of parsing bytes of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Number of parsed bytes; the caller passes the remaining bytes again.
    pub consumed: usize,
    /// Number of parsed bytes that had been buffered in earlier calls.
    pub from_held: usize,
    /// Buffers that are new or have grown; also a body that is now complete.
    pub ready: BufferSet,
    /// Offset in the body at which its new bytes begin.
    pub body_from: usize,
    /// True if the body is complete.
    pub body_is_whole: bool,
    /// Fault of the message; none if this call found no fault.
    pub fault: Option<HttpFault>,
    /// Limit that the message has reached in this call, if any. A limit is reported once per message.
    pub limit: Option<HttpLimit>,
    /// Number of bytes that belong to a tunnel and not to a message.
    pub unread: usize,
}

/// A fault of a message. All bytes of the message are still reported. After `Packing`, `FirstLine`, `Chunk` or `Body`,
/// they are reported as bytes of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpFault {
    /// A header line without a colon, with white space before or in its name, or with a second `Host`. The line stays
    /// in the buffers.
    HeaderLine,
    /// Lengths that contradict each other: chunks have precedence (RFC 9112 section 6.3), otherwise the first length.
    Lengths,
    /// A body with invalid bytes, or in another coding than its head announces: the remaining bytes are reported
    /// unchanged.
    Packing,
    /// An invalid first line: the head is reported as a body, and the next message may begin after it.
    FirstLine,
    /// An invalid chunk length: all later bytes are reported as the body.
    Chunk,
    /// A body in a message that must not have one.
    Body,
}

/// A limit that a message has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpLimit {
    /// The highest length of a message's head; further bytes up to the empty line are not stored.
    Head,
    /// The highest length of a message's body; further bytes are not stored.
    Body,
    /// The highest ratio between the decoded and the encoded length of a body; further bytes are reported unchanged.
    Ratio,
    /// The highest number of content codings of a body; the innermost codings are not decoded.
    Codings,
}

/// The next step: whether the caller has to evaluate buffers first, or more bytes can be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    GoOn,
    Stop,
}
