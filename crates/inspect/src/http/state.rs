//! The parser state of one direction of an HTTP connection, and the bodies that may follow a message's head.

/// The parser state of one direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum State {
    /// In the head of a message (first line and header lines), or between messages.
    #[default]
    Head,
    /// In a head (first line and header lines) whose limit is reached. The values are the number of bytes of the
    /// current line, and the kind of body that may follow.
    LongHead(u32, Option<Ahead>),
    /// After the head of a message, before bytes that may or may not be a body of this kind.
    Ahead(Ahead),
    /// In a body; the value is the number of remaining bytes.
    Body(u64),
    /// In a body that ends with the connection, or in bytes that are not a message.
    UntilClose,
    /// In the line with the length of a chunk: the length read so far, and the position relative to the digits of that
    /// length.
    ChunkLine(u64, Digits),
    /// In a chunk; the value is the number of remaining bytes.
    Chunk(u64),
    /// In the line end after a chunk.
    ChunkEnd,
    /// In the trailer after the last chunk: the number of bytes of the current line.
    Trailer(u32),
    /// In a tunnel, or in bytes of another protocol.
    Tunnel,
}

/// The data that may follow the head of a message; the first bytes after the head decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ahead {
    /// Chunks. If the next bytes are no chunk: a body of this length, or without a length, a body up to the end of the
    /// connection.
    Chunks(Option<u64>),
    /// A body; the value is its length in bytes.
    Body(u64),
    /// Another message, because this message should have no body. If the next bytes begin no message: the body that the
    /// head describes.
    Message {
        is_chunked: bool,
        length: Option<u64>,
    },
}

/// The position of the parser relative to the digits of a chunk length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Digits {
    Ahead,
    Here,
    Over,
}
