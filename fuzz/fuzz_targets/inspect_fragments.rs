//! Reassembly of IP fragments from arbitrary bytes.
#![no_main]

#[path = "../bodies/inspect.rs"]
mod inspect;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| inspect::fragments(bytes));
