//! The result of one call of the HTTP parser: bytes read, buffers filled, faults.

use crate::buffer::BufferSet;

/// What became of bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Bytes that were read; the others are to come again.
    pub consumed: usize,
    /// Bytes taken of those that were held back in earlier calls.
    pub from_held: usize,
    /// Buffers that are new, or have more in them; a body also where no more of it will come.
    pub ready: BufferSet,
    /// The place in the body at which begins what is new in it.
    pub body_from: usize,
    /// Whether no more of the body will come.
    pub body_is_whole: bool,
    /// What is wrong.
    pub fault: Option<HttpFault>,
    /// A limit that was reached, told once for each message.
    pub limit: Option<HttpLimit>,
    /// Bytes that are of no message: those of a tunnel.
    pub unread: usize,
}

/// What is wrong with a message, all of whose bytes are given for all that: behind the last four those of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpFault {
    /// A header line without a colon, with white space in front of its name or in it, or a second `Host`. It is kept.
    HeaderLine,
    /// Lengths that contradict each other: chunks count (RFC 9112 section 6.3), or the first length.
    Lengths,
    /// A body that is not packed as its head says, or broken: what is left of it goes on as it is.
    Packing,
    /// A first line that is none: the head is given as a body, and the next message may begin behind it.
    FirstLine,
    /// A length of a chunk that is none: all that follows is given as the body.
    Chunk,
    /// A body where none may be.
    Body,
}

/// A limit that a message has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpLimit {
    /// That of heads: what follows up to the empty line is not kept.
    Head,
    /// That of bodies: what follows is not kept.
    Body,
    /// That of how many times longer a body may become by unpacking: what follows goes on as it is.
    Ratio,
    /// That of codings: those that were done first are not undone.
    Codings,
}

/// Whether the caller has to look at buffers before more is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    GoOn,
    Stop,
}
