//! Vectors of sixteen 32-bit numbers, and gather loads of sixteen table entries, by AVX-512. A gather load has more
//! cache misses in progress at a time than a loop of single loads.
//!
//! Code that uses these vectors implements [`OnLanes`]. All of that code is compiled for AVX-512, and may run only if
//! [`Wide::found`] has found the AVX-512 instructions.

use std::arch::x86_64 as cpu;
use std::sync::atomic::{AtomicU16, AtomicU32};

/// The number of lanes of a vector.
pub const LANES: usize = 16;

/// A set of lanes; the lowest bit is the first lane.
pub type Which = u16;

/// The set of all lanes.
pub const ALL_LANES: Which = u16::MAX;

/// Proof that the processor has the AVX-512 instructions.
#[derive(Debug, Clone, Copy)]
pub struct Wide(());

/// Code that uses the AVX-512 instructions. Its `run` is marked `#[inline(always)]`, so that it is compiled for them.
pub trait OnLanes {
    /// Result of the vector code.
    type Output;

    /// Runs the vector code.
    fn run(self, wide: Wide) -> Self::Output;
}

/// A vector of sixteen numbers. Each operation applies to every lane.
#[derive(Debug, Clone, Copy)]
pub struct Lanes(cpu::__m512i);

/// Calls AVX-512 instructions; their operands exist only if the processor has these instructions.
macro_rules! instructions {
    ($call:expr) => {
        // SAFETY: vectors and `Wide` exist only if `Wide::found` has found these instructions, and none of the
        // instructions takes a pointer.
        unsafe { $call }
    };
}

impl Wide {
    /// Returns a proof if the processor has the AVX-512 instructions.
    #[inline]
    pub fn found() -> Option<Self> {
        let has_them = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl");
        has_them.then_some(Self(()))
    }

    /// Runs `work`, compiled for the AVX-512 instructions.
    #[inline]
    pub fn run<W: OnLanes>(self, work: W) -> W::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
        fn compiled<W: OnLanes>(work: W, wide: Wide) -> W::Output {
            work.run(wide)
        }
        // SAFETY: `self` is made only if the processor has the AVX-512 instructions, and every processor that has them
        // also has the other enabled instructions.
        unsafe { compiled(work, self) }
    }

    /// Returns a vector with one number in all lanes.
    #[inline(always)]
    pub fn all(self, number: u32) -> Lanes {
        Lanes(instructions!(cpu::_mm512_set1_epi32(number.cast_signed())))
    }

    /// Returns a vector of the given numbers.
    #[inline(always)]
    pub fn lanes(self, numbers: &[u32; LANES]) -> Lanes {
        // SAFETY: the array is as long as the vector, and the load needs no alignment.
        Lanes(unsafe { cpu::_mm512_loadu_si512(numbers.as_ptr().cast()) })
    }

    /// Returns a vector of four blocks of 16 bytes, in memory order.
    #[inline(always)]
    pub fn four(self, bytes: &[[u8; 16]; 4]) -> Lanes {
        // SAFETY: the array is as long as the vector, and the load needs no alignment.
        Lanes(unsafe { cpu::_mm512_loadu_si512(bytes.as_ptr().cast()) })
    }

    /// Returns, for each lane, the element of the 32 numbers in `low` followed by `high` at the index in `places`.
    #[inline(always)]
    pub fn pick(self, low: Lanes, places: Lanes, high: Lanes) -> Lanes {
        Lanes(instructions!(cpu::_mm512_permutex2var_epi32(
            low.0, places.0, high.0
        )))
    }
}

impl Lanes {
    /// Returns the bitwise AND of both vectors.
    #[inline(always)]
    pub fn and(self, other: Self) -> Self {
        Self(instructions!(cpu::_mm512_and_si512(self.0, other.0)))
    }

    /// Returns the bitwise OR of both vectors.
    #[inline(always)]
    pub fn or(self, other: Self) -> Self {
        Self(instructions!(cpu::_mm512_or_si512(self.0, other.0)))
    }

    /// Returns this vector minus `other`, wrapping at 2^32.
    #[inline(always)]
    pub fn minus(self, other: Self) -> Self {
        Self(instructions!(cpu::_mm512_sub_epi32(self.0, other.0)))
    }

    /// Shifts the bits of each number left by the number in `by`; the result is 0 for 32 or more.
    #[inline(always)]
    pub fn up(self, by: Self) -> Self {
        Self(instructions!(cpu::_mm512_sllv_epi32(self.0, by.0)))
    }

    /// Shifts the bits of each number right by the number in `by`; the result is 0 for 32 or more.
    #[inline(always)]
    pub fn down(self, by: Self) -> Self {
        Self(instructions!(cpu::_mm512_srlv_epi32(self.0, by.0)))
    }

    /// Adds `other` in the lanes of `which`; the other lanes keep their numbers.
    #[inline(always)]
    pub fn plus_in(self, which: Which, other: Self) -> Self {
        Self(instructions!(cpu::_mm512_mask_add_epi32(
            self.0, which, self.0, other.0
        )))
    }

    /// Returns the lanes in which this vector's number and the number in `bits` have a 1 bit in common.
    #[inline(always)]
    pub fn having(self, bits: Self) -> Which {
        instructions!(cpu::_mm512_test_epi32_mask(self.0, bits.0))
    }

    /// Returns the lanes in which this vector's number is at most the number in `others` (unsigned).
    #[inline(always)]
    pub fn at_most(self, others: Self) -> Which {
        instructions!(cpu::_mm512_cmple_epu32_mask(self.0, others.0))
    }

    /// Reverses the bytes of each number.
    #[inline(always)]
    pub fn swapped(self) -> Self {
        let order = instructions!(cpu::_mm512_set4_epi32(
            0x0c0d_0e0f,
            0x0809_0a0b,
            0x0405_0607,
            0x0001_0203
        ));
        Self(instructions!(cpu::_mm512_shuffle_epi8(self.0, order)))
    }

    /// Returns the lower 16 bits of each number.
    #[inline(always)]
    pub fn halves(self) -> [u16; LANES] {
        let mut halves = [0; LANES];
        let half = instructions!(cpu::_mm512_cvtepi32_epi16(self.0));
        // SAFETY: the array is as long as the vector, and the store needs no alignment.
        unsafe { cpu::_mm256_storeu_si256(halves.as_mut_ptr().cast(), half) };
        halves
    }

    /// Returns the numbers in the lanes of the vector.
    #[inline(always)]
    pub fn numbers(self) -> [u32; LANES] {
        let mut numbers = [0; LANES];
        // SAFETY: the array is as long as the vector, and the store needs no alignment.
        unsafe { cpu::_mm512_storeu_si512(numbers.as_mut_ptr().cast(), self.0) };
        numbers
    }

    /// Loads the entries of `table` at `places` for the lanes of `which`; the other lanes keep their numbers. Other
    /// threads may store into the table at the same time: each loaded number is the old or the new one.
    ///
    /// # Panics
    /// Panics if a place is beyond the table, or beyond 2^31.
    #[inline(always)]
    pub fn loaded(self, which: Which, table: &[AtomicU32], places: Self) -> Self {
        within(which, table.len(), places);
        // SAFETY: all places are within the table. Each lane is one aligned load of 32 bits, which the processor
        // performs as one access, as a relaxed load does.
        Self(unsafe {
            cpu::_mm512_mask_i32gather_epi32::<4>(self.0, which, places.0, table.as_ptr().cast())
        })
    }

    /// Loads from a table of `N` 16-bit entries. The index of a lane is the upper log2(`N`) bits of its number. The
    /// entry is the lower half of the loaded number; the upper half has arbitrary bits.
    #[inline(always)]
    pub fn loaded_by_upper_bits<const N: usize>(self, wide: Wide, table: &[AtomicU16; N]) -> Self {
        const { assert!(N.is_power_of_two() && N > 1 && N.ilog2() <= 28) }
        let bits = N.ilog2();
        let pairs = self.down(wide.all(32 - bits + 1));
        // SAFETY: the table has half as many pairs as entries, and the index of a pair has one bit less than the index
        // of an entry.
        let pairs =
            Self(unsafe { cpu::_mm512_i32gather_epi32::<4>(pairs.0, table.as_ptr().cast()) });
        pairs.down(self.down(wide.all(32 - bits - 4)).and(wide.all(16)))
    }
}

/// Checks that the places of some lanes are within a table of `len` entries.
#[inline(always)]
fn within(which: Which, len: usize, places: Lanes) {
    let len = len.min(1 << 31) as u32;
    let beyond = instructions!(cpu::_mm512_mask_cmpge_epu32_mask(
        which,
        places.0,
        cpu::_mm512_set1_epi32(len.cast_signed())
    ));
    assert!(beyond == 0, "a place is beyond the table");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    struct Work<F>(F);

    impl<F: FnOnce(Wide)> OnLanes for Work<F> {
        type Output = ();
        #[inline(always)]
        fn run(self, wide: Wide) {
            (self.0)(wide);
        }
    }

    /// Runs `work` if the machine has the AVX-512 instructions.
    fn on_lanes(work: impl FnOnce(Wide)) {
        match Wide::found() {
            Some(wide) => wide.run(Work(work)),
            None => println!("skipped: needs AVX-512"),
        }
    }

    const COUNTING: [u32; LANES] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

    #[test]
    fn vector_operations_equal_scalar_operations_in_every_lane() {
        on_lanes(|wide| {
            let numbers = COUNTING.map(|i| i.wrapping_mul(0x9e37_79b9));
            let (a, b) = (wide.lanes(&numbers), wide.lanes(&COUNTING));
            let of = |f: &dyn Fn(u32, u32) -> u32| -> [u32; LANES] {
                std::array::from_fn(|i| f(numbers[i], i as u32))
            };
            assert_eq!(a.and(b).numbers(), of(&|a, b| a & b));
            assert_eq!(a.or(b).numbers(), of(&|a, b| a | b));
            assert_eq!(b.minus(a).numbers(), of(&|a, b| b.wrapping_sub(a)));
            assert_eq!(a.up(b).numbers(), of(&|a, b| a << b));
            assert_eq!(a.down(b).numbers(), of(&|a, b| a >> b));
            assert_eq!(a.down(wide.all(32)).numbers(), [0; LANES]);
            assert_eq!(a.swapped().numbers(), of(&|a, _| a.swap_bytes()));
            assert_eq!(a.halves(), numbers.map(|it| it as u16));
            let even = a.plus_in(0x5555, b).numbers();
            assert_eq!(
                even,
                of(&|a, b| if b % 2 == 0 { a.wrapping_add(b) } else { a })
            );
            assert_eq!(b.at_most(wide.all(3)), 0b1111);
            assert_eq!(b.having(wide.all(8)), 0xff00);
            let picked = wide.pick(a, wide.all(16 + 2), b);
            assert_eq!(picked.numbers(), [2; LANES]);
        });
    }

    #[test]
    fn vector_lookups_load_every_table_entry_including_the_last() {
        on_lanes(|wide| {
            let wider: Vec<AtomicU32> = (100..133).map(AtomicU32::new).collect();
            let narrow: [AtomicU16; 32] = std::array::from_fn(|it| AtomicU16::new(100 + it as u16));
            wider[32].store(u32::MAX, Ordering::Relaxed);
            narrow[31].store(u16::MAX, Ordering::Relaxed);
            for first in 0..=16 {
                let places = COUNTING.map(|it| it + first);
                let lanes = wide.lanes(&places);
                let loaded = wide.all(7).loaded(0x7fff, &wider, lanes).numbers();
                let stands = |table: &dyn Fn(usize) -> u32| places.map(|it| table(it as usize));
                let mut expected = stands(&|it| wider[it].load(Ordering::Relaxed));
                expected[15] = 7;
                assert_eq!(loaded, expected);
                let low = |lanes: Lanes| lanes.and(wide.all(0xffff)).numbers();
                let expected = stands(&|it| narrow[it].load(Ordering::Relaxed).into());
                let upper = wide.lanes(&places.map(|it| it << 27 | 0x7ff_ffff));
                assert_eq!(low(upper.loaded_by_upper_bits(wide, &narrow)), expected);
            }
        });
    }

    #[test]
    fn a_vector_lookup_beyond_the_table_panics() {
        on_lanes(|wide| {
            let table: Vec<AtomicU32> = (0..4).map(AtomicU32::new).collect();
            // Lanes that do not load may have any index.
            let kept = wide.all(1).loaded(0, &table, wide.all(u32::MAX));
            assert_eq!(kept.numbers(), [1; LANES]);
            let beyond = std::panic::catch_unwind(|| wide.all(0).loaded(1, &table, wide.all(4)));
            assert!(beyond.is_err());
        });
    }
}
