//! GTP-C messages: arbitrary bytes read, written and read again.
#![no_main]

#[path = "../bodies/gtpc.rs"]
mod gtpc;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gtpc::message(bytes));
