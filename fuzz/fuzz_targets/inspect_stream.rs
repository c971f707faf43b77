//! Segments of a TCP stream in arbitrary places put in order.
#![no_main]

#[path = "../bodies/inspect.rs"]
mod inspect;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| inspect::stream(bytes));
