//! Capture files: arbitrary bytes read as pcap and pcapng, in small blocks and in one block.
#![no_main]

#[path = "../bodies/pcap.rs"]
mod pcap;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pcap::capture(bytes));
