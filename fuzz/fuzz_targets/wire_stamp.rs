//! Classifies arbitrary frames, and writes a stamp (flow, sequence number and timestamp) into those that have space for
//! one.
#![no_main]

#[path = "../bodies/wire.rs"]
mod wire;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire::stamp(bytes));
