//! GTP-C of an MME and a PDN gateway, into a gateway with sessions: arbitrary sequences of messages.
#![no_main]

#[path = "../bodies/gtpc_session.rs"]
mod gtpc_session;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gtpc_session::sessions(bytes));
