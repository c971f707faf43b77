//! Experiment files of any text.
#![no_main]

#[path = "../bodies/experiment_file.rs"]
mod experiment_file;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| experiment_file::plan(bytes));
