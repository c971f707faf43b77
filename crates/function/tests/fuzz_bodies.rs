//! Runs the bodies of this crate's fuzz targets over seeded noise, on the stable toolchain.

#[path = "../../../fuzz/bodies/aes.rs"]
mod aes;

#[test]
fn headers_of_encrypted_packets_survive_seeded_noise() {
    let mut random = fastrand::Rng::with_seed(0xAE5);
    for _ in 0..100_000 {
        let mut bytes = vec![0; random.usize(..40)];
        random.fill(&mut bytes);
        if let Some(first) = bytes.first_mut() {
            *first &= 0x13;
        }
        aes::header(&bytes);
    }
}
