//! Runs the body of this crate's fuzz target over seeded noise, on the stable toolchain.

#[path = "../../../fuzz/bodies/lua_function.rs"]
mod lua_function;

#[test]
fn every_packet_is_counted_when_random_lua_functions_run() {
    let mut random = fastrand::Rng::with_seed(0xF0);
    for _ in 0..500 {
        let mut bytes = vec![0; random.usize(1..12)];
        random.fill(&mut bytes);
        bytes[0] |= 1;
        lua_function::run(&bytes);
    }
}
