//! The peer of a memif port, with both hands on the shared memory: rings that tell anything, in both roles.
#![no_main]

#[path = "../bodies/memif_rings.rs"]
mod memif_rings;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| memif_rings::rings(bytes));
