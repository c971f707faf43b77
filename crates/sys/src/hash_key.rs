//! A keyed hash of a few numbers, for tables in which strangers choose what is kept.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

/// Key of a hash. Who does not know it cannot choose numbers that fall onto each other, or onto a place of their choice.
///
/// Each two numbers are multiplied with each other to 128 bits, both behind an exclusive or with secret numbers, and the halves
/// of the product folded (the step of wyhash, Wang Yi 2019, as in the hashers that many languages have for this purpose). It is no
/// cipher: it holds against who sees packets pass and not where they lie, and costs three multiplications for two addresses and their
/// ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashKey([u64; 4]);

impl Default for HashKey {
    /// Draws a key at random.
    fn default() -> Self {
        Self([(); 4].map(|()| RandomState::new().hash_one(0)))
    }
}

impl HashKey {
    /// Returns the key of this process, drawn at random once: for what all threads have to hash alike.
    pub fn of_process() -> Self {
        static KEY: OnceLock<HashKey> = OnceLock::new();
        *KEY.get_or_init(Self::default)
    }

    /// The first number of the key, for hashes that begin with one.
    #[inline]
    pub fn seed(&self) -> u64 {
        self.0[0]
    }

    /// Hashes pairs of numbers; their order counts.
    #[inline(always)]
    pub fn hash<const PAIRS: usize>(&self, pairs: [(u64, u64); PAIRS]) -> u64 {
        let [start, one, other, last] = self.0;
        let mut state = start;
        for (a, b) in pairs {
            // The state goes in on both sides, so that no number alone makes one of them known.
            state = fold(a ^ one ^ state, b ^ other ^ state.rotate_left(32));
        }
        fold(state ^ last, one)
    }
}

/// Multiplies to 128 bits, and brings both halves together.
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
    fn all_of_the_numbers_and_the_key_count() {
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
    fn numbers_that_differ_little_fall_onto_places_evenly() {
        let key = HashKey::default();
        for shift in [0, 8, 32, 48] {
            for bits in [0, 16, 48] {
                let places =
                    (0..1_u64 << 16).map(|it| key.hash([(it << shift, 7)]) >> bits & 0xffff);
                // Of 2^16 places 41,427 are met by as many random numbers.
                let met = places.collect::<HashSet<_>>().len();
                assert!((40_500..42_300).contains(&met), "{shift} {bits}: {met}");
            }
        }
    }

    #[test]
    fn numbers_that_collide_under_one_key_do_not_under_another() {
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
