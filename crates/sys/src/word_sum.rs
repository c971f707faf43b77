//! The sum of many words, by vector instructions if the processor has them.

/// The minimum number of words for which runtime-selected vector instructions are faster than the baseline ones.
#[cfg(target_arch = "x86_64")]
const WORTH_WORDS: usize = 16;

/// Returns the sum of both halves of all words; each half is a 32-bit number in the machine's byte order. The sum of up
/// to 2^31 words fits.
#[inline]
pub fn sum_of_halves(words: &[[u8; 8]]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if words.len() >= WORTH_WORDS && is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the instructions that it is compiled for.
        return unsafe { by_avx2(words) };
    }
    sum(words)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn by_avx2(words: &[[u8; 8]]) -> u64 {
    sum(words)
}

/// Adds the two halves of each word separately, so that no carry is lost and the compiler vectorises the loop.
#[inline(always)]
fn sum(words: &[[u8; 8]]) -> u64 {
    words.iter().fold(0, |sum, word| {
        let word = u64::from_ne_bytes(*word);
        sum + ((word & 0xffff_ffff) + (word >> 32))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_sum_loses_no_carry_at_any_length() {
        let mut number = 1u64;
        for len in (0..70).chain([1000, 8192]) {
            for ones in [true, false] {
                let mut word = || {
                    number = number
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(9);
                    if ones {
                        [0xff; 8]
                    } else {
                        number.to_ne_bytes()
                    }
                };
                let words: Vec<[u8; 8]> = (0..len).map(|_| word()).collect();
                let halves = words.iter().flat_map(|word| word.chunks(4));
                let each =
                    halves.map(|half| u32::from_ne_bytes([half[0], half[1], half[2], half[3]]));
                let expected: u64 = each.map(u64::from).sum();
                assert_eq!(sum_of_halves(&words), expected);
                // The portable code must return the same sum.
                assert_eq!(sum(&words), expected);
            }
        }
    }
}
