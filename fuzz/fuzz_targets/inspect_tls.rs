//! The first bytes of a TLS connection: arbitrary bytes, complete and growing.
#![no_main]

#[path = "../bodies/inspect.rs"]
mod inspect;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| inspect::tls(bytes));
