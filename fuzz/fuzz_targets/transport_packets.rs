//! The deadline transport: packets from any source, in any state, between valid ones.
#![no_main]

#[path = "../bodies/transport.rs"]
mod transport;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    transport::packets(bytes);
});
