//! GTP-U packets and messages: arbitrary bytes read, written and read again.
#![no_main]

#[path = "../bodies/wire.rs"]
mod wire;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire::gtpu(bytes));
