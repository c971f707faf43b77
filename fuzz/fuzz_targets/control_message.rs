//! Messages between plant and controller: arbitrary bytes read, written and read again.
#![no_main]

#[path = "../bodies/control.rs"]
mod control;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| control::message(bytes));
