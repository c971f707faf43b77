//! The router: packets, neighbours, requests and time in any order.
#![no_main]

#[path = "../bodies/route.rs"]
mod route;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    route::sequence(bytes);
});
