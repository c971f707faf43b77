//! Runs the body of this crate's fuzz target with random steps, so that it is tested without a fuzzer.

#[path = "../../../fuzz/bodies/transport.rs"]
mod transport;

#[test]
fn untrusted_packets_do_not_break_message_order_or_hang_endpoints() {
    for seed in 0..2_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let bytes: Vec<u8> = (0..random.usize(0..600)).map(|_| random.u8(..)).collect();
        transport::packets(&bytes);
    }
}

#[test]
fn random_parity_packets_yield_no_message_above_the_maximum_length() {
    for seed in 0..2_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let bytes: Vec<u8> = (0..random.usize(0..600)).map(|_| random.u8(..)).collect();
        transport::parity(&bytes);
    }
}
