//! Address translation: arbitrary frames, out and back.
#![no_main]

#[path = "../bodies/nat.rs"]
mod nat;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nat::frame(bytes));
