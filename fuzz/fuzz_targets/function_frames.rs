//! All functions: runts, and truncated or damaged frames, through chains of one or two of them.
#![no_main]

#[path = "../bodies/functions.rs"]
mod functions;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    functions::frames(bytes);
});
