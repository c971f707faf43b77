//! The body of the fuzz target for tables of routes; `cargo test` runs the same body over seeded noise.

use std::io;
use taut_router::convert;

/// Reads a table, with and without replacing its next hops by neighbours. Checks that every output line has a prefix.
/// Returns the number of lines.
pub fn table(bytes: &[u8]) -> usize {
    let mut lines = 0;
    let via = [[10, 0, 0, 2].into(), [10, 0, 0, 3].into()];
    for via in [&via[..], &[]] {
        let mut each = |line: &str| -> io::Result<()> {
            assert!(line.contains('/') && !line.contains('\n'), "{line}");
            lines += 1;
            Ok(())
        };
        let mut input = bytes;
        // An invalid table is no error of the reader.
        if let Err(e) = convert(&mut input, via, &mut each) {
            assert!(!e.to_string().contains('\n'), "{e}");
        }
    }
    lines
}
