//! Errors of reading and writing headers.

/// Error of reading or writing a header: a small value that says what, where and which number was wrong. All lengths in
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fewer bytes are there than the header, or the length in it, calls for.
    #[error("{what} cut short: {need} bytes needed, {have} there")]
    Truncated {
        /// The header concerned.
        what: &'static str,
        /// Number of bytes needed.
        need: usize,
        /// Number of bytes there are.
        have: usize,
    },
    /// A length field, or a length asked for, is outside what the protocol allows.
    #[error("{what} has length {length}, allowed is {min} to {max}")]
    BadLength {
        /// The header concerned.
        what: &'static str,
        /// The length found.
        length: usize,
        /// The smallest one allowed.
        min: usize,
        /// The largest one allowed.
        max: usize,
    },
    /// The version field names another protocol version.
    #[error("{what} has version {version}")]
    BadVersion {
        /// The header concerned.
        what: &'static str,
        /// The version found.
        version: u8,
    },
    /// The checksum does not match the bytes.
    #[error("{what} checksum is wrong")]
    BadChecksum {
        /// The header concerned.
        what: &'static str,
    },
    /// A field holds a value that this code does not handle or the protocol does not know.
    #[error("{what} cannot be {value:#x}")]
    BadValue {
        /// The field concerned.
        what: &'static str,
        /// The value found.
        value: u32,
    },
    /// A flow names one IPv4 and one IPv6 address.
    #[error("source and destination address are of different IP versions")]
    MixedIpVersions,
    /// A text is not a MAC address.
    #[error(
        "not a MAC address: write six two-digit hexadecimal numbers, such as 02:00:00:00:00:01"
    )]
    BadMac,
}
