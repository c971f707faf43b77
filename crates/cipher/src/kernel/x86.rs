//! Kernels for x86-64: eight registers are processed at the same time, because the result of an AES round takes several
//! cycles.
#![allow(
    unsafe_code,
    reason = "vector loads and stores take raw pointers; calls need instructions that were found"
)]

use super::{Kernel, RoundKeys};
use std::arch::x86_64::{
    __m128i, __m512i, _mm_add_epi64, _mm_aesenc_si128, _mm_aesenclast_si128,
    _mm_aeskeygenassist_si128, _mm_cvtsi128_si32, _mm_loadu_si128, _mm_set_epi8, _mm_set_epi32,
    _mm_set_epi64x, _mm_setzero_si128, _mm_shuffle_epi8, _mm_storeu_si128, _mm_xor_si128,
    _mm512_add_epi64, _mm512_aesenc_epi128, _mm512_aesenclast_epi128, _mm512_broadcast_i32x4,
    _mm512_loadu_si512, _mm512_mask_storeu_epi8, _mm512_maskz_loadu_epi8, _mm512_set_epi64,
    _mm512_setzero_si512, _mm512_shuffle_epi8, _mm512_storeu_si512, _mm512_xor_si512,
};

const VAES: Kernel = Kernel {
    name: "VAES and AVX-512",
    // SAFETY: `kernels` returns this kernel only if the processor has its instructions.
    expand: |key| unsafe { expand(key) },
    // SAFETY: as above.
    add_key_stream: |keys, first, text| unsafe { vaes(keys, first, text) },
};

const AES_NI: Kernel = Kernel {
    name: "AES-NI",
    // SAFETY: as above.
    expand: |key| unsafe { expand(key) },
    // SAFETY: as above.
    add_key_stream: |keys, first, text| unsafe { aes_ni(keys, first, text) },
};

/// Returns the kernels that this machine can run, the fastest first.
pub(super) fn kernels() -> Vec<Kernel> {
    let aes = is_x86_feature_detected!("aes") && is_x86_feature_detected!("ssse3");
    let wide = is_x86_feature_detected!("vaes") && is_x86_feature_detected!("avx512bw");
    let all = [(aes && wide, VAES), (aes, AES_NI)];
    all.into_iter()
        .filter_map(|(here, kernel)| here.then_some(kernel))
        .collect()
}

/// Expands a key into its round keys. (FIPS 197 section 5.2, on words whose lowest byte comes first.)
#[target_feature(enable = "aes")]
fn expand(key: &[u8]) -> RoundKeys {
    let in_key = key.len() / 4;
    let rounds = in_key + 6;
    let mut words = [0_u32; 60];
    for (word, bytes) in words.iter_mut().zip(key.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    let mut round_constant = 1_u8;
    for i in in_key..4 * (rounds + 1) {
        let mut word = words[i - 1];
        if i % in_key == 0 {
            word = substitute(word.rotate_right(8)) ^ u32::from(round_constant);
            round_constant = (round_constant << 1) ^ ((round_constant >> 7) * 0x1B);
        } else if in_key == 8 && i % in_key == 4 {
            word = substitute(word);
        }
        words[i] = words[i - in_key] ^ word;
    }
    let mut keys = [[0; 16]; 15];
    for (bytes, word) in keys
        .as_flattened_mut()
        .as_chunks_mut()
        .0
        .iter_mut()
        .zip(words)
    {
        *bytes = word.to_le_bytes();
    }
    RoundKeys { keys, rounds }
}

/// Applies the S-box to each byte.
#[target_feature(enable = "aes")]
fn substitute(word: u32) -> u32 {
    let at_second = _mm_set_epi32(0, 0, word as i32, 0);
    _mm_cvtsi128_si32(_mm_aeskeygenassist_si128::<0>(at_second)) as u32
}

#[inline]
#[target_feature(enable = "sse2")]
fn load_128(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: reads the 16 bytes of the array, at any alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// Returns the shuffle control that reverses the bytes of the counter, so that the highest byte comes first.
#[inline]
#[target_feature(enable = "sse2")]
fn reversed() -> __m128i {
    _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
}

/// Calls `$part` with each `$width` x 8 bytes of `$text`, and then with the remaining bytes and as many registers as
/// they need.
macro_rules! in_parts {
    ($text:ident, $width:literal, $part:ident, $keys:ident, $counters:ident) => {
        for some in $text.chunks_mut($width * 8) {
            $counters = match some.len().div_ceil($width) {
                1 => $part::<1>($keys, $counters, some),
                2 => $part::<2>($keys, $counters, some),
                3 => $part::<3>($keys, $counters, some),
                4 => $part::<4>($keys, $counters, some),
                5 => $part::<5>($keys, $counters, some),
                6 => $part::<6>($keys, $counters, some),
                7 => $part::<7>($keys, $counters, some),
                _ => $part::<8>($keys, $counters, some),
            };
        }
    };
}

#[target_feature(enable = "vaes,avx512f,avx512bw")]
fn vaes(keys: &RoundKeys, first: u128, text: &mut [u8]) {
    let first = _mm512_broadcast_i32x4(load_128(&first.to_le_bytes()));
    let mut counters = _mm512_add_epi64(first, _mm512_set_epi64(0, 3, 0, 2, 0, 1, 0, 0));
    in_parts!(text, 64, vaes_part, keys, counters);
}

/// Processes `text`, which fills `N` registers, the last one possibly in part. Returns the next counters.
#[inline]
#[target_feature(enable = "vaes,avx512f,avx512bw")]
fn vaes_part<const N: usize>(keys: &RoundKeys, mut counters: __m512i, text: &mut [u8]) -> __m512i {
    let RoundKeys { keys, rounds } = keys;
    let reversed = _mm512_broadcast_i32x4(reversed());
    let four = _mm512_set_epi64(0, 4, 0, 4, 0, 4, 0, 4);
    let key = _mm512_broadcast_i32x4(load_128(&keys[0]));
    let mut streams = [_mm512_setzero_si512(); N];
    for stream in &mut streams {
        *stream = _mm512_xor_si512(_mm512_shuffle_epi8(counters, reversed), key);
        counters = _mm512_add_epi64(counters, four);
    }
    for key in &keys[1..*rounds] {
        let key = _mm512_broadcast_i32x4(load_128(key));
        for stream in &mut streams {
            *stream = _mm512_aesenc_epi128(*stream, key);
        }
    }
    let key = _mm512_broadcast_i32x4(load_128(&keys[*rounds]));
    for (stream, bytes) in streams.into_iter().zip(text.chunks_mut(64)) {
        let stream = _mm512_aesenclast_epi128(stream, key);
        let pointer = bytes.as_mut_ptr();
        if bytes.len() == 64 {
            // SAFETY: reads and writes the 64 bytes of the slice, at any alignment.
            unsafe {
                let sum = _mm512_xor_si512(_mm512_loadu_si512(pointer.cast()), stream);
                _mm512_storeu_si512(pointer.cast(), sum);
            }
        } else {
            let mask = (1 << bytes.len()) - 1;
            // SAFETY: reads and writes only the bytes in the mask, which are those of the slice.
            unsafe {
                let part = _mm512_maskz_loadu_epi8(mask, pointer.cast());
                _mm512_mask_storeu_epi8(pointer.cast(), mask, _mm512_xor_si512(part, stream));
            }
        }
    }
    counters
}

#[target_feature(enable = "aes,ssse3")]
fn aes_ni(keys: &RoundKeys, first: u128, text: &mut [u8]) {
    let mut counters = load_128(&first.to_le_bytes());
    in_parts!(text, 16, aes_ni_part, keys, counters);
}

/// Processes `text`, which fills `N` registers, the last one possibly in part. Returns the next counter.
#[inline]
#[target_feature(enable = "aes,ssse3")]
fn aes_ni_part<const N: usize>(keys: &RoundKeys, mut counter: __m128i, text: &mut [u8]) -> __m128i {
    let RoundKeys { keys, rounds } = keys;
    let (reversed, one) = (reversed(), _mm_set_epi64x(0, 1));
    let key = load_128(&keys[0]);
    let mut streams = [_mm_setzero_si128(); N];
    for stream in &mut streams {
        *stream = _mm_xor_si128(_mm_shuffle_epi8(counter, reversed), key);
        counter = _mm_add_epi64(counter, one);
    }
    for key in &keys[1..*rounds] {
        let key = load_128(key);
        for stream in &mut streams {
            *stream = _mm_aesenc_si128(*stream, key);
        }
    }
    let key = load_128(&keys[*rounds]);
    for (stream, bytes) in streams.into_iter().zip(text.chunks_mut(16)) {
        let stream = _mm_aesenclast_si128(stream, key);
        let mut block = [0; 16];
        block[..bytes.len()].copy_from_slice(bytes);
        let sum = _mm_xor_si128(load_128(&block), stream);
        // SAFETY: writes the 16 bytes of the array, at any alignment.
        unsafe { _mm_storeu_si128(block.as_mut_ptr().cast(), sum) };
        bytes.copy_from_slice(&block[..bytes.len()]);
    }
    counter
}
