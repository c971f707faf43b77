//! Errors in reading and writing headers.

/// An error in reading or writing a header. The error names the header or field, and the invalid value. All lengths are
/// in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There are fewer bytes than the header or its length field requires.
    #[error("{what} truncated: {need} bytes needed, {have} available")]
    Truncated {
        /// Name of the header with the error.
        what: &'static str,
        /// Number of bytes that the header needs.
        need: usize,
        /// Number of bytes that are available.
        have: usize,
    },
    /// A length field, or a requested length, is outside the range that the protocol allows.
    #[error("invalid length of {what}: {length}, must be {min} to {max}")]
    BadLength {
        /// Name of the header with the error.
        what: &'static str,
        /// Invalid length that was found, bytes.
        length: usize,
        /// Minimum allowed length, bytes.
        min: usize,
        /// Maximum allowed length, bytes.
        max: usize,
    },
    /// The version field has the value of another protocol version.
    #[error("unsupported version of {what}: {version}")]
    BadVersion {
        /// Name of the header with the error.
        what: &'static str,
        /// Version that was found in the header.
        version: u8,
    },
    /// The checksum does not match the bytes.
    #[error("{what} checksum is wrong")]
    BadChecksum {
        /// Name of the header with the error.
        what: &'static str,
    },
    /// A field has a value that this parser does not handle or the protocol does not define.
    #[error("invalid {what}: {value:#x}")]
    BadValue {
        /// Name of the field with the error.
        what: &'static str,
        /// Value that was found in the field.
        value: u32,
    },
    /// One of the two addresses of a flow is an IPv4 address, the other an IPv6 address.
    #[error("source and destination address are of different IP versions")]
    MixedIpVersions,
    /// A text is not a MAC address.
    #[error(
        "not a MAC address: write six two-digit hexadecimal numbers, such as 02:00:00:00:00:01"
    )]
    BadMac,
}
