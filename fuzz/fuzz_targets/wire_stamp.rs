//! Classifies arbitrary frames, and stamps those that can be stamped.
#![no_main]

#[path = "../bodies/wire.rs"]
mod wire;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire::stamp(bytes));
