//! Headers of encrypted packets: arbitrary bytes read, written and read again.
#![no_main]

#[path = "../bodies/aes.rs"]
mod aes;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| aes::header(bytes));
