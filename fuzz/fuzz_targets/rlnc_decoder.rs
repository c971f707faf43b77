//! The network decoder: coded packets that are lost, reordered, duplicated and forged, from encoders that restart.
#![no_main]

#[path = "../bodies/rlnc.rs"]
mod rlnc;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    rlnc::decoder(bytes);
});
