//! A DNS message, alone and in a stream: arbitrary bytes.
#![no_main]

#[path = "../bodies/inspect.rs"]
mod inspect;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| inspect::dns(bytes));
