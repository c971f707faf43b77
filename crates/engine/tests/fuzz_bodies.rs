//! Runs the body of this crate's fuzz target on seeded random input, on the stable toolchain.

#[path = "../../../fuzz/bodies/chain.rs"]
mod chain;
#[path = "../../../fuzz/bodies/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/bodies/damage.rs"]
mod damage;

const WHOLE: &str = r#"
flush = "full(32, 100us)"
wait = "sleep(50us)"
burst = 32
core = 1
ports = ["memif:/run/a.sock,role=client", "null:source=32"]
name = "x"
budget = "350us"
placement = "threads"

[[function]]
name = "resize"
add = 20

[[function]]
name = "impair"
loss = "1%"
delay = "1ms"
"#;

#[test]
fn parsing_randomly_damaged_chain_files_never_panics() {
    let mut random = fastrand::Rng::with_seed(0xC4A1);
    for _ in 0..8_000 {
        chain::file(&damage::damaged(WHOLE, &mut random));
    }
}

#[test]
fn the_fuzzing_corpus_replays_without_panics() {
    corpus::replay("chain_file", chain::file);
}
