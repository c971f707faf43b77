//! Reassembly of a TCP stream from segments at arbitrary positions.
#![no_main]

#[path = "../bodies/inspect.rs"]
mod inspect;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| inspect::stream(bytes));
