//! Datagrams with parity: packets from any source.
#![no_main]

#[path = "../bodies/transport.rs"]
mod transport;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    transport::parity(bytes);
});
