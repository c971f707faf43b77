//! Datagrams with parity: packets from whoever.
#![no_main]

#[path = "../bodies/transport.rs"]
mod transport;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    transport::parity(bytes);
});
