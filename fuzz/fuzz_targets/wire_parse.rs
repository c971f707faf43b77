//! Header views of all layers over arbitrary bytes.
#![no_main]

#[path = "../bodies/wire.rs"]
mod wire;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire::parse(bytes));
