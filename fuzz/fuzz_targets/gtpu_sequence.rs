//! A gateway between two ports: arbitrary sequences of frames and of changes of its bearers.
#![no_main]

#[path = "../bodies/gateway.rs"]
mod gateway;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gateway::sequence(bytes));
