//! Both directions of a connection of a record-based protocol, and datagrams: arbitrary bytes.
#![no_main]

#[path = "../bodies/inspect.rs"]
mod inspect;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    inspect::records(bytes);
    inspect::datagrams(bytes);
});
