//! Every view over arbitrary bytes, all the way down.
#![no_main]

#[path = "../bodies/wire.rs"]
mod wire;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire::parse(bytes));
