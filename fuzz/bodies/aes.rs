//! The body of the fuzz target of encrypted packets; `cargo test` runs the same over seeded noise.

use taut_functions::aes::Header;

/// Checks that a header that was read is written again unchanged.
pub fn header(bytes: &[u8]) {
    if let Some(header) = Header::parse(bytes) {
        assert_eq!(header.emit(), bytes[..Header::LEN_BYTES]);
        assert_eq!(Header::parse(&header.emit()), Some(header));
    }
}
