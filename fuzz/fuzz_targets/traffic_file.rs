//! Traffic files: arbitrary text.
#![no_main]

#[path = "../bodies/traffic.rs"]
mod traffic;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| traffic::file(bytes));
