//! The body of the fuzz target for encrypted packets; `cargo test` runs the same body over seeded noise.

use taut_functions::aes::Header;

/// Checks that a parsed header is written unchanged.
pub fn header(bytes: &[u8]) {
    if let Some(header) = Header::parse(bytes) {
        assert_eq!(header.emit(), bytes[..Header::LEN_BYTES]);
        assert_eq!(Header::parse(&header.emit()), Some(header));
    }
}
