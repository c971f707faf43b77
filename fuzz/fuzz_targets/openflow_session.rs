//! OpenFlow: a controller's bytes, in arbitrary pieces.
#![no_main]

#[path = "../bodies/openflow.rs"]
mod openflow;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    openflow::session(bytes);
});
