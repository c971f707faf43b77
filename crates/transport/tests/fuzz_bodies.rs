//! What the fuzz target of this crate does, by random steps: so that it is tried where no fuzzer is.

#[path = "../../../fuzz/bodies/transport.rs"]
mod transport;

#[test]
fn whatever_strangers_do_nothing_comes_out_of_order_and_no_side_goes_on_forever() {
    for seed in 0..2_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let bytes: Vec<u8> = (0..random.usize(0..600)).map(|_| random.u8(..)).collect();
        transport::packets(&bytes);
    }
}

#[test]
fn packets_with_parity_that_are_made_up_bring_nothing_longer_than_a_message() {
    for seed in 0..2_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let bytes: Vec<u8> = (0..random.usize(0..600)).map(|_| random.u8(..)).collect();
        transport::parity(&bytes);
    }
}
