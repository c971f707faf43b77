//! Runs the body of this crate's fuzz target with seeded random inputs, on the stable toolchain.

#[path = "../../../fuzz/bodies/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/bodies/script.rs"]
mod script;

#[test]
fn random_scripts_stay_within_their_resource_limits() {
    let mut random = fastrand::Rng::with_seed(0x10A);
    for _ in 0..200 {
        let mut bytes = vec![0; random.usize(1..40)];
        random.fill(&mut bytes);
        bytes[0] |= 1;
        script::run(&bytes);
    }
    // The corpus runs in this test, because a separate test would run concurrently and open files at the same time.
    corpus::replay("lua_script", script::run);
}
