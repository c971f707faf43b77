//! Chain files: arbitrary text.
#![no_main]

#[path = "../bodies/chain.rs"]
mod chain;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| chain::file(bytes));
