//! Control messages of a memif peer: arbitrary bytes decoded, encoded and decoded again.
#![no_main]

#[path = "../bodies/memif.rs"]
mod memif;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| memif::message(bytes));
