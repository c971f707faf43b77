//! The two endpoints of a connection.

/// The role of an endpoint in a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The endpoint that sends the hello.
    Opener,
    /// The endpoint that replies with an accept.
    Answerer,
}
