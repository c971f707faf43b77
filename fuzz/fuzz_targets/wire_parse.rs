//! Every view over arbitrary bytes, through all layers.
#![no_main]

#[path = "../bodies/wire.rs"]
mod wire;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire::parse(bytes));
