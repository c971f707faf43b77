//! The sum of many words, by vector instructions where the processor has them.

/// Words from which on vector instructions that are chosen while the program runs take less time than those that every processor has.
const WORTH_WORDS: usize = 16;

/// Adds the two halves of all words, each a number of 32 bits in the machine's order. The sum of 2^31 words fits.
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

/// The halves are added apart, so that no carry is lost and the loop becomes one of vectors.
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
    fn no_half_and_no_carry_is_lost_however_many_there_are() {
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
                assert_eq!(sum_of_halves(&words), each.map(u64::from).sum());
            }
        }
    }
}
