//! AES in counter mode: a key, and the addition of its key stream to a text.

use crate::kernel::{Kernel, RoundKeys, kernels};
use crate::portable::Portable;

/// AES in counter mode with one key. Encryption and decryption are the same operation, with the same number of the
/// first block.
pub struct CounterMode(Implementation);

/// An implementation of the cipher, with the expanded key in the format of that implementation.
#[expect(
    clippy::large_enum_variant,
    reason = "one per key; the usual one without a detour"
)]
enum Implementation {
    Vectors { kernel: Kernel, keys: RoundKeys },
    Portable(Box<Portable>),
}

impl CounterMode {
    /// Makes a cipher from a key of 16 or 32 bytes (AES-128, AES-256), with the fastest instructions of this machine.
    /// Returns none if the key has another length.
    pub fn new(key: &[u8]) -> Option<Self> {
        match kernels().first() {
            Some(kernel) => Self::with(*kernel, key),
            None => Some(Self(Implementation::Portable(Box::new(Portable::new(
                key,
            )?)))),
        }
    }

    fn with(kernel: Kernel, key: &[u8]) -> Option<Self> {
        let keys = (kernel.expand)(matches!(key.len(), 16 | 32).then_some(key)?);
        Some(Self(Implementation::Vectors { kernel, keys }))
    }

    /// Returns the instructions in use, for reports.
    pub fn name(&self) -> &'static str {
        match &self.0 {
            Implementation::Vectors { kernel, .. } => kernel.name,
            Implementation::Portable(_) => "portable",
        }
    }

    /// Adds the key stream to `text`, starting with block `first`. The block counter has 128 bits and wraps around.
    #[inline]
    pub fn add_key_stream(&self, first: u128, text: &mut [u8]) {
        match &self.0 {
            Implementation::Vectors { kernel, keys } => {
                // Kernels only increment the lower half of the counter, so a text whose counters cross a carry is
                // processed in two parts.
                let until_carry = (u64::MAX - first as u64) as usize;
                if text.len().div_ceil(16).saturating_sub(1) <= until_carry {
                    (kernel.add_key_stream)(keys, first, text);
                    return;
                }
                let (text, rest) = text.split_at_mut(until_carry * 16 + 16);
                (kernel.add_key_stream)(keys, first, text);
                let carried = ((first >> 64) + 1) << 64;
                (kernel.add_key_stream)(keys, carried, rest);
            }
            Implementation::Portable(key) => key.add_key_stream(first, text),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    /// Returns a cipher per implementation that this machine supports, all with the same key.
    fn every_way(key: &[u8]) -> Vec<CounterMode> {
        let vectors = kernels().into_iter();
        let mut all: Vec<CounterMode> = vectors
            .map(|kernel| CounterMode::with(kernel, key).unwrap())
            .collect();
        all.push(CounterMode(Implementation::Portable(Box::new(
            Portable::new(key).unwrap(),
        ))));
        all
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex
            .chars()
            .filter(char::is_ascii_hexdigit)
            .map(|c| c.to_digit(16).unwrap() as u8)
            .collect();
        digits.chunks(2).map(|d| d[0] << 4 | d[1]).collect()
    }

    fn random(length: usize, seed: u64) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(seed);
        std::iter::repeat_with(|| random.u8(..))
            .take(length)
            .collect()
    }

    #[test]
    fn all_implementations_reproduce_nist_sp_800_38a_test_vectors() {
        // The test vectors are those of NIST SP 800-38A, appendices F.5.1 and F.5.5.
        let plain = "6bc1bee22e409f96e93d7e117393172a ae2d8a571e03ac9c9eb76fac45af8e51 \
             30c81c46a35ce411e5fbc1191a0a52ef f69f2445df4f9b17ad2b417be66c3710";
        for (key, cipher) in [
            (
                "2b7e151628aed2a6abf7158809cf4f3c",
                "874d6191b620e3261bef6864990db6ce 9806f66b7970fdff8617187bb9fffdff \
                 5ae4df3edbd5d35e5b4f09020db03eab 1e031dda2fbe03d1792170a0f3009cee",
            ),
            (
                "603deb1015ca71be2b73aef0857d7781 1f352c073b6108d72d9810a30914dff4",
                "601ec313775789a5b7a7f504bbf3d228 f443e3ca4d62b59aca84e990cacaf5c5 \
                 2b0930daa23de94ce87017ba2d84988d dfc9c58db67aada613c2dd08457941a6",
            ),
        ] {
            for way in every_way(&bytes(key)) {
                let mut text = bytes(plain);
                let first = 0xf0f1_f2f3_f4f5_f6f7_f8f9_fafb_fcfd_feff;
                way.add_key_stream(first, &mut text);
                assert_eq!(text, bytes(cipher), "{}", way.name());
            }
        }
    }

    #[test]
    fn keys_have_16_or_32_bytes() {
        for length in [0, 15, 17, 24, 31, 33] {
            assert!(CounterMode::new(&random(length, 1)).is_none(), "{length}");
        }
        assert!(CounterMode::new(&random(16, 1)).is_some());
        assert!(CounterMode::new(&random(32, 1)).is_some());
    }

    /// Checks that all implementations give the same result for `text`, and returns this result.
    fn all_agree(key: &[u8], first: u128, text: &[u8]) -> Vec<u8> {
        let made = every_way(key).into_iter().map(|way| {
            let mut made = text.to_vec();
            way.add_key_stream(first, &mut made);
            (made, way.name())
        });
        let made: Vec<_> = made.collect();
        let (expected, _) = made.last().unwrap().clone();
        for (made, name) in made {
            assert_eq!(made, expected, "{name}");
        }
        expected
    }

    proptest! {
        #[test]
        fn all_implementations_give_equal_ciphertexts_for_texts_of_any_length(
            long: bool, seed: u64, first: u128, length in 0_usize..1600
        ) {
            let key = random(if long { 32 } else { 16 }, seed);
            let text = random(length, !seed);
            let made = all_agree(&key, first, &text);
            prop_assert_eq!(all_agree(&key, first, &made), text, "decrypts what it encrypted");
        }

        #[test]
        fn the_block_counter_carries_into_its_upper_half_and_wraps(
            seed: u64, upper: u64, before in 0_u64..12, length in 0_usize..400
        ) {
            let key = random(16, seed);
            let text = random(length, !seed);
            for upper in [upper, u64::MAX] {
                let first = u128::from(upper) << 64 | u128::from(u64::MAX - before);
                all_agree(&key, first, &text);
            }
        }
    }
}
