//! Tables of routes from other programs: MRT dumps, and the output of BIRD and FRR.
#![no_main]

#[path = "../bodies/route_table.rs"]
mod route_table;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    route_table::table(bytes);
});
