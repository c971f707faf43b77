//! Tables of routes from elsewhere: MRT dumps, and what BIRD and FRR print.
#![no_main]

#[path = "../bodies/route_table.rs"]
mod route_table;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    route_table::table(bytes);
});
