//! Captures on disk: arbitrary bytes as a segment and its index, queried, repaired and continued.
#![no_main]

#[path = "../bodies/capture_disk.rs"]
mod capture_disk;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| capture_disk::ring(bytes));
