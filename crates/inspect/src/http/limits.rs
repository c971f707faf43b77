//! Limits of what is kept of messages.

/// How much of messages is kept; what is beyond is passed over, and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpLimits {
    /// Bytes of a head.
    pub head: usize,
    /// Bytes of the body of a request, unpacked.
    pub request_body: usize,
    /// Bytes of the body of a response, unpacked.
    pub response_body: usize,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            head: 64 * 1024,
            request_body: 100_000,
            response_body: 100_000,
        }
    }
}

impl HttpLimits {
    /// Bytes that are made of a head: the shortest line, a colon and LF, becomes twice as long, and none more than that, with values
    /// that are there a second time, such as the host's.
    pub(super) fn made_of(head: usize) -> usize {
        2 * head
    }

    /// The most memory that a connection takes, all of which it has to fill for that.
    pub fn connection_bytes(&self) -> usize {
        2 * (self.head + Self::made_of(self.head)) + self.request_body + self.response_body
    }
}
