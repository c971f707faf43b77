//! Patterns and a text: both matchers agree with a naive search.
#![no_main]

#[path = "../bodies/inspect.rs"]
mod inspect;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| inspect::search(bytes));
