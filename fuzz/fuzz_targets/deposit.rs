//! Replies of archives and forges to deposits, and of daemons about a clock, of any bytes.
#![no_main]

#[path = "../bodies/deposit.rs"]
mod deposit;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| deposit::reply(bytes));
