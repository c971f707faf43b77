//! The peer of a memif port, with full access to the shared memory: rings with arbitrary contents, in both roles.
#![no_main]

#[path = "../bodies/memif_rings.rs"]
mod memif_rings;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| memif_rings::rings(bytes));
