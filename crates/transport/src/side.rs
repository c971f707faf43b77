//! The two sides of a connection.

/// Which side of a connection it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The one that says hello.
    Opener,
    /// The one that accepts.
    Answerer,
}
