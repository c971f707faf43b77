#![no_main]
#[path = "../../fuzz/bodies/inspect.rs"]
mod inspect;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| inspect::http(bytes));
