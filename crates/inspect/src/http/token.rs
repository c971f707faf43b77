//! Tokens of HTTP, which methods and names of header lines are.

/// Whether a byte may be part of a method (RFC 9110 section 5.6.2).
pub(crate) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
