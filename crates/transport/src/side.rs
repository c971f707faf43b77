//! The two sides of a connection.

/// The role of a side in a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The side that sends the hello.
    Opener,
    /// The side that replies with an accept.
    Answerer,
}
