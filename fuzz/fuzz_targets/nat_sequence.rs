//! Address translation: sequences of frames in both directions while time passes.
#![no_main]

#[path = "../bodies/nat_sequence.rs"]
mod nat_sequence;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nat_sequence::sequence(bytes));
