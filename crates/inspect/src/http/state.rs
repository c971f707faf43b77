//! Where a direction of a connection is, and what may follow there.

/// Where a direction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum State {
    /// In the head, or in front of one.
    #[default]
    Head,
    /// In a head of which no more is kept; bytes of the present line, and what follows.
    LongHead(u32, Option<Ahead>),
    /// In front of what may be a body, or not one of that kind.
    Ahead(Ahead),
    /// In a body of so many bytes more.
    Body(u64),
    /// In a body that ends with the connection, or in bytes of which no message can be made.
    UntilClose,
    /// In the line with the length of a chunk, which may have white space in front; the length as far as it was read.
    ChunkLine(u64, Digits),
    /// In a chunk of so many bytes more.
    Chunk(u64),
    /// In the line end behind a chunk.
    ChunkEnd,
    /// In the lines behind the last chunk; bytes of the present line.
    Trailer(u32),
    /// In another protocol.
    Tunnel,
}

/// What may follow, if the bytes look like it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ahead {
    /// Chunks; else a body of that length, or up to the end of the connection.
    Chunks(Option<u64>),
    /// A body of that length.
    Body(u64),
    /// Another message, as this one has no body; else its body, with what its head says of it.
    Message {
        is_chunked: bool,
        length: Option<u64>,
    },
}

/// Where the digits of a chunk's length are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Digits {
    Ahead,
    Here,
    Over,
}
