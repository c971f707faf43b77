//! The body of the fuzz target for P4Runtime; `cargo test` runs the same body over seeded noise.

use taut_benchmarks::switch_bench::{fuzz_frames, fuzz_p4info};

/// Takes the bytes as what a P4Runtime server sends, and as the description of a pipeline. Returns the number of events
/// and of tables.
pub fn heard(bytes: &[u8]) -> [usize; 2] {
    [fuzz_frames(bytes), fuzz_p4info(bytes)]
}
