//! What the fuzz target of traffic files does with its bytes; `cargo test` runs the same over seeded damage.

use taut_traffic::Traffic;

/// A traffic file: read as `taut generate` reads it; what is wrong is said on one line.
pub fn file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    // Names a file, and those of a system can be without end.
    if text.contains("trace") {
        return;
    }
    match Traffic::parse(text, "x.toml") {
        Ok(traffic) => {
            assert!(traffic.average_bytes() >= 64.0);
            for stream in traffic.streams() {
                assert!(!stream.name().is_empty());
            }
        }
        Err(e) => {
            let said = e.to_string();
            assert!(!said.is_empty() && !said.contains('\n'), "{said:?}");
        }
    }
}
