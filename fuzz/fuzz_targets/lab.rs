//! Requests to a laboratory, its file, and replies to its client, of any bytes.
#![no_main]

#[path = "../bodies/lab.rs"]
mod lab;

thread_local! {
    static BENCH: lab::Bench = lab::Bench::new();
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else {
        return;
    };
    match kind % 3 {
        0 => BENCH.with(|bench| drop(bench.request(rest))),
        1 => lab::file(rest),
        _ => drop(lab::reply(rest)),
    }
});
