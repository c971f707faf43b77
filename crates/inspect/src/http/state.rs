//! The parser state of a direction of a connection, and the bodies that may follow a head.

/// The parser state of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum State {
    /// In the head, or before one.
    #[default]
    Head,
    /// In a head of which no more is stored: bytes of the current line, and the possible body.
    LongHead(u32, Option<Ahead>),
    /// Before bytes that may or may not be a body of this kind.
    Ahead(Ahead),
    /// In a body with this number of remaining bytes.
    Body(u64),
    /// In a body that ends with the connection, or in bytes that form no message.
    UntilClose,
    /// In the line with the length of a chunk, after optional white space; the length as far as it was read.
    ChunkLine(u64, Digits),
    /// In a chunk with this number of remaining bytes.
    Chunk(u64),
    /// In the line end after a chunk.
    ChunkEnd,
    /// In the lines after the last chunk; bytes of the current line.
    Trailer(u32),
    /// In another protocol.
    Tunnel,
}

/// The part that may follow if its bytes look like it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ahead {
    /// Chunks, or else a body of that length or up to the end of the connection.
    Chunks(Option<u64>),
    /// A body of that length.
    Body(u64),
    /// Another message, as this one should have no body, or else its body as its head describes it.
    Message {
        is_chunked: bool,
        length: Option<u64>,
    },
}

/// The position relative to the digits of a chunk's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Digits {
    Ahead,
    Here,
    Over,
}
