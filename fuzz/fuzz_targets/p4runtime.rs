//! Bytes of a P4Runtime server, and descriptions of pipelines.
#![no_main]

#[path = "../bodies/p4runtime.rs"]
mod p4runtime;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    p4runtime::heard(bytes);
});
