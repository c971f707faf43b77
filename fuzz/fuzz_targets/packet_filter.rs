//! Programs of packet filters, and frames that they evaluate.
#![no_main]

#[path = "../bodies/packet_filter.rs"]
mod packet_filter;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    packet_filter::program(bytes);
});
