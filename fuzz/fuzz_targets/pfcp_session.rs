//! PFCP of several peers, into a gateway with sessions: arbitrary sequences of messages.
#![no_main]

#[path = "../bodies/gateway.rs"]
mod gateway;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gateway::sessions(bytes));
