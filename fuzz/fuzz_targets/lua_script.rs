//! Untrusted Lua scripts: arbitrary text, and words of the language.
#![no_main]

#[path = "../bodies/script.rs"]
mod script;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| script::run(bytes));
