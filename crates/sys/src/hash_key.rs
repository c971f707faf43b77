//! A keyed hash of a few numbers, for tables whose keys come from untrusted sources.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

/// The key of a hash. An attacker without the key cannot choose numbers that collide, or that hash to a chosen slot.
///
/// Each pair of numbers is combined with secret numbers by exclusive or and multiplied to 128 bits, and the halves of
/// the product are folded. This is the step of wyhash (Wang Yi 2019), as used in the hash tables of many languages. It
/// is not a cipher: it protects against an attacker who can see packets but cannot see their slots. It costs
/// three multiplications for two addresses and their ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashKey([u64; 4]);

impl Default for HashKey {
    /// Draws a random key.
    fn default() -> Self {
        Self([(); 4].map(|()| RandomState::new().hash_one(0)))
    }
}

impl HashKey {
    /// Returns the random key of this process, for hashes that must agree between threads.
    pub fn of_process() -> Self {
        static KEY: OnceLock<HashKey> = OnceLock::new();
        *KEY.get_or_init(Self::default)
    }

    /// Returns the first word of the key, as a seed for other hashes.
    #[inline]
    pub fn seed(&self) -> u64 {
        self.0[0]
    }

    /// Hashes pairs of numbers; the order of the numbers matters.
    #[inline(always)]
    pub fn hash<const PAIRS: usize>(&self, pairs: [(u64, u64); PAIRS]) -> u64 {
        let [start, one, other, last] = self.0;
        let mut state = start;
        for (a, b) in pairs {
            // The state enters both factors, so that no input alone determines one of them.
            state = fold(a ^ one ^ state, b ^ other ^ state.rotate_left(32));
        }
        fold(state ^ last, one)
    }
}

/// Multiplies two numbers to 128 bits, and combines the halves of the product by exclusive or.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_hash_depends_on_every_number_and_on_the_key() {
        let (one, other) = (HashKey::default(), HashKey::default());
        let of = |a, b, c| one.hash([(a, b), (c, 0)]);
        assert_eq!(of(1, 2, 3), of(1, 2, 3));
        for different in [of(2, 1, 3), of(1, 2, 0), of(1, 0, 3), of(0, 2, 3)] {
            assert_ne!(of(1, 2, 3), different);
        }
        assert_ne!(other.hash([(1, 2), (3, 0)]), of(1, 2, 3));
        assert_eq!(HashKey::of_process(), HashKey::of_process());
    }

    #[test]
    fn hashes_of_similar_numbers_are_spread_evenly_over_slots() {
        let key = HashKey::default();
        for shift in [0, 8, 32, 48] {
            for bits in [0, 16, 48] {
                let places =
                    (0..1_u64 << 16).map(|it| key.hash([(it << shift, 7)]) >> bits & 0xffff);
                // As many random numbers as slots, 2^16, hit 41,427 slots on average.
                let met = places.collect::<HashSet<_>>().len();
                assert!((40_500..42_300).contains(&met), "{shift} {bits}: {met}");
            }
        }
    }

    #[test]
    fn numbers_colliding_under_one_key_rarely_collide_under_other_keys() {
        let (one, other) = (HashKey::default(), HashKey::default());
        let place = |key: &HashKey, it: u64| key.hash([(it, 0)]) & 0xfff;
        let wanted = place(&one, 0);
        let chosen = (0..1 << 20).filter(|it| place(&one, *it) == wanted);
        let chosen: Vec<u64> = chosen.collect();
        assert!(chosen.len() > 100);
        let met = chosen
            .iter()
            .filter(|it| place(&other, **it) == place(&other, 0));
        assert!(met.count() < 10);
    }
}
