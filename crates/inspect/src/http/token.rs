//! Tokens of HTTP, such as methods and names of header lines.

/// Returns true if a byte may be part of a token such as a method (RFC 9110 section 5.6.2).
pub(crate) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
