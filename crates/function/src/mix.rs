//! A hash of 64 bits, the same here and in the kernel (crates/xdp/ebpf/function/mix.h).

/// Spreads every bit of both over all of the result. (The last step of SplitMix64: Steele et al., OOPSLA 2014.)
#[inline]
pub(crate) fn mix(state: u64, word: u64) -> u64 {
    let mut z = state.wrapping_add(0x9E37_79B9_7F4A_7C15) ^ word;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
