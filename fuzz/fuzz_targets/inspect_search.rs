//! Patterns and a text: both matchers find what a search by hand finds.
#![no_main]

#[path = "../bodies/inspect.rs"]
mod inspect;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| inspect::search(bytes));
