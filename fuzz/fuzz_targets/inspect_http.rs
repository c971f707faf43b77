//! HTTP messages of both directions: arbitrary bytes, split in several ways.
#![no_main]

#[path = "../bodies/inspect.rs"]
mod inspect;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| inspect::http(bytes));
