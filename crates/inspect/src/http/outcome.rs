//! The result of one call of the HTTP parser: bytes read, buffers filled, faults.

use crate::buffer::BufferSet;

/// The result of parsing bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Number of bytes that were parsed; the caller passes the others again.
    pub consumed: usize,
    /// Number of parsed bytes that were held back in earlier calls.
    pub from_held: usize,
    /// Buffers that are new or have grown; a body also when it is complete.
    pub ready: BufferSet,
    /// Offset in the body at which its new part begins.
    pub body_from: usize,
    /// True if the body is complete.
    pub body_is_whole: bool,
    /// Fault of the message.
    pub fault: Option<HttpFault>,
    /// Limit that was reached, reported once for each message.
    pub limit: Option<HttpLimit>,
    /// Number of bytes that belong to no message but to a tunnel.
    pub unread: usize,
}

/// A fault of a message. All bytes of the message are still reported; after the last four of these faults, as bytes of
/// a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpFault {
    /// A header line without a colon, with white space in its name or before it, or a second `Host`. The line is kept.
    HeaderLine,
    /// Lengths that contradict each other: chunks have precedence (RFC 9112 section 6.3), else the first length.
    Lengths,
    /// A body that is broken or not encoded as its head announces: the rest of it is reported unchanged.
    Packing,
    /// An invalid first line: the head is reported as a body, and the next message may begin after it.
    FirstLine,
    /// An invalid chunk length: all later bytes are reported as the body.
    Chunk,
    /// A body where none is allowed.
    Body,
}

/// A limit that a message has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpLimit {
    /// The limit of a head: further bytes up to the empty line are not stored.
    Head,
    /// The limit of a body: further bytes are not stored.
    Body,
    /// The limit of the ratio between decoded and encoded length: further bytes are reported unchanged.
    Ratio,
    /// The limit of content codings: the innermost codings are not decoded.
    Codings,
}

/// The next step: whether the caller has to evaluate buffers before more bytes are parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    GoOn,
    Stop,
}
