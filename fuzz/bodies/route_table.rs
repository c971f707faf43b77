//! What the fuzz target of tables of routes does with its bytes; `cargo test` runs the same over seeded noise.

use std::io;
use taut_function::route::convert;

/// Reads a table, with and without neighbours in the place of its next hops: every line is one that says a prefix. The number of lines.
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
        // What is wrong with the table is no fault of the reader's.
        if let Err(e) = convert(&mut input, via, &mut each) {
            assert!(!e.to_string().contains('\n'), "{e}");
        }
    }
    lines
}
