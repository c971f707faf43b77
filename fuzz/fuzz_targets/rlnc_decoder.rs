//! The network decoder: coded packets that are lost, overtaken, doubled and forged, of encoders that start again.
#![no_main]

#[path = "../bodies/rlnc.rs"]
mod rlnc;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    rlnc::decoder(bytes);
});
