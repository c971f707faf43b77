//! PFCP messages: arbitrary bytes read, written and read again.
#![no_main]

#[path = "../bodies/pfcp.rs"]
mod pfcp;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pfcp::message(bytes));
