//! Encrypted sessions: senders and a receiver that restart, with recorded, reflected, changed and forged packets.
#![no_main]

#[path = "../bodies/aes_session.rs"]
mod aes_session;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    aes_session::session(bytes);
});
