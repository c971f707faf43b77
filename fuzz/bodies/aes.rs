//! What the fuzz target of encrypted packets does with its bytes; `cargo test` runs the same over seeded noise.

use taut_function::aes::Header;

/// What is read as a header is written again as it was.
pub fn header(bytes: &[u8]) {
    if let Some(header) = Header::parse(bytes) {
        assert_eq!(header.emit(), bytes[..Header::LEN_BYTES]);
        assert_eq!(Header::parse(&header.emit()), Some(header));
    }
}
