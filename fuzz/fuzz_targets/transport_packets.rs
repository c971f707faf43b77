//! The deadline transport: packets from whoever, in whatever state, between good ones.
#![no_main]

#[path = "../bodies/transport.rs"]
mod transport;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    transport::packets(bytes);
});
