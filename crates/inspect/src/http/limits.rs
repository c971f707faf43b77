//! Limits on the bytes of an HTTP message that are stored.

/// Limits on the stored bytes of an HTTP message; bytes beyond a limit are skipped and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpLimits {
    /// Maximum number of stored bytes of a message's head, its first line and header lines.
    pub head: usize,
    /// Maximum number of stored bytes of the decoded body of a request.
    pub request_body: usize,
    /// Maximum number of stored bytes of the decoded body of a response.
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
    /// Returns the capacity for the bytes derived from a head of `head` bytes. The shortest line, a colon and LF,
    /// doubles its length, and no other line grows more. Values that are stored twice, such as the host, are included.
    pub(super) fn made_of(head: usize) -> usize {
        2 * head
    }

    /// Returns the maximum memory of a connection in bytes, reached only if all of its buffers are full.
    pub fn connection_bytes(&self) -> usize {
        2 * (self.head + Self::made_of(self.head)) + self.request_body + self.response_body
    }
}
