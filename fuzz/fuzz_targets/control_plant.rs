//! Plant files: arbitrary bytes parsed as one, and the plant controlled for some periods.
#![no_main]

#[path = "../bodies/control.rs"]
mod control;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| control::plant(bytes));
