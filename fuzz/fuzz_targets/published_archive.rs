//! Untrusted results: any bytes as an archive, and small results with changes of any kind.
#![no_main]

#[path = "../bodies/published.rs"]
mod published;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| published::archive(bytes));
