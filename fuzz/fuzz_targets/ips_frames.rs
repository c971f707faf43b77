//! The function `ips`: arbitrary frames one after the other.
#![no_main]

#[path = "../bodies/ips.rs"]
mod ips;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    ips::frames(bytes);
});
