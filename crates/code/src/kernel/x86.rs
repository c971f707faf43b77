//! Kernels for x86-64: GFNI multiplies by an 8 x 8 matrix of bits, 64 or 32 bytes per instruction; AVX2 looks up both
//! halves of each byte in tables by a shuffle.
#![allow(
    unsafe_code,
    reason = "vector loads and stores take raw pointers; calls need instructions that were found"
)]

use super::{AT_ONCE, Kernel, plain};
use crate::field::{HALVES, MATRICES};
use std::arch::x86_64::{
    __m256i, __m512i, _mm_loadu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256,
    _mm256_gf2p8affine_epi64_epi8, _mm256_loadu_si256, _mm256_set1_epi8, _mm256_set1_epi64x,
    _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi64, _mm256_storeu_si256,
    _mm256_xor_si256, _mm512_gf2p8affine_epi64_epi8, _mm512_loadu_si512, _mm512_set1_epi64,
    _mm512_setzero_si512, _mm512_storeu_si512, _mm512_xor_si512,
};

/// Returns the kernels that this machine can run, the fastest first.
pub(super) fn kernels() -> Vec<Kernel> {
    let gfni = is_x86_feature_detected!("gfni");
    let avx2 = is_x86_feature_detected!("avx2");
    let avx512 = is_x86_feature_detected!("avx512f");
    let all = [
        (gfni && avx512, GFNI_512),
        (gfni && avx2, GFNI_256),
        (avx2, AVX2),
    ];
    all.into_iter()
        .filter_map(|(here, kernel)| here.then_some(kernel))
        .collect()
}

/// Makes both functions of a kernel from its operations to load, store, add and multiply vectors of `$width` bytes.
macro_rules! kernel {
    ($name:ident, $title:literal, $features:literal, $width:literal, $columns:literal, $vector:ty, $zero:ident, $add:ident,
     $load:expr, $store:expr, $factor:ty, $factor_of:expr, $multiply:expr) => {
        const $name: Kernel = {
            #[target_feature(enable = $features)]
            fn add_multiple(sum: &mut [u8], coefficient: u8, symbol: &[u8]) {
                let factor: $factor = $factor_of(coefficient);
                let whole = sum.len().min(symbol.len()) / $width * $width;
                for at in (0..whole).step_by($width) {
                    let (sum, symbol) = (&mut sum[at..at + $width], &symbol[at..at + $width]);
                    let product = $multiply(factor, $load(symbol));
                    let total = $add($load(sum), product);
                    $store(sum, total);
                }
                let (sum, symbol) = (&mut sum[whole..], &symbol[whole..]);
                if sum.is_empty() {
                    return;
                }
                // The remaining bytes are padded with zeros to a complete vector.
                let (mut padded, mut other) = ([0; $width], [0; $width]);
                padded[..sum.len()].copy_from_slice(sum);
                other[..sum.len()].copy_from_slice(symbol);
                let product = $multiply(factor, $load(&other));
                let total = $add($load(&padded), product);
                $store(&mut padded, total);
                sum.copy_from_slice(&padded[..sum.len()]);
            }

            /// Computes `N` sums of `COLUMNS` vectors each in registers, in one pass over the sources: the lookup for a
            /// coefficient serves all columns. Returns the index of the first byte that was not computed.
            #[target_feature(enable = $features)]
            fn columns<const N: usize, const COLUMNS: usize>(
                start: usize,
                sums: &mut [&mut [u8]],
                coefficients: &[&[u8]],
                symbols: &[&[u8]],
            ) -> usize {
                let step = $width * COLUMNS;
                let count = symbols.len();
                let rows: [&[u8]; N] = std::array::from_fn(|n| &coefficients[n][..count]);
                let end = start + (sums[0].len() - start) / step * step;
                for at in (start..end).step_by(step) {
                    let mut totals: [[$vector; COLUMNS]; N] = [[$zero(); COLUMNS]; N];
                    for (index, symbol) in symbols.iter().enumerate() {
                        let symbol = &symbol[at..at + step];
                        let mut vectors: [$vector; COLUMNS] = [$zero(); COLUMNS];
                        for (vector, bytes) in vectors.iter_mut().zip(symbol.chunks_exact($width)) {
                            *vector = $load(bytes);
                        }
                        for n in 0..N {
                            let factor: $factor = $factor_of(rows[n][index]);
                            for (total, vector) in totals[n].iter_mut().zip(vectors) {
                                *total = $add(*total, $multiply(factor, vector));
                            }
                        }
                    }
                    for n in 0..N {
                        let sum = &mut sums[n][at..at + step];
                        for (bytes, total) in sum.chunks_exact_mut($width).zip(totals[n]) {
                            $store(bytes, total);
                        }
                    }
                }
                end
            }

            #[target_feature(enable = $features)]
            fn all_columns<const N: usize>(
                sums: &mut [&mut [u8]],
                coefficients: &[&[u8]],
                symbols: &[&[u8]],
            ) -> usize {
                let size = sums[0].len();
                let wide = columns::<N, $columns>(0, sums, coefficients, symbols);
                let end = columns::<N, 1>(wide, sums, coefficients, symbols);
                if end < size && size >= $width {
                    // The last vector overlaps the previous one, because computing a part twice is cheaper than
                    // computing the rest byte by byte.
                    return columns::<N, 1>(size - $width, sums, coefficients, symbols);
                }
                end
            }

            #[target_feature(enable = $features)]
            fn combine(sums: &mut [&mut [u8]], coefficients: &[&[u8]], symbols: &[&[u8]]) {
                const { assert!(AT_ONCE == 4) };
                let whole = match sums.len() {
                    0 => return,
                    1 => all_columns::<1>(sums, coefficients, symbols),
                    2 => all_columns::<2>(sums, coefficients, symbols),
                    3 => all_columns::<3>(sums, coefficients, symbols),
                    _ => all_columns::<4>(sums, coefficients, symbols),
                };
                plain::combine_from(whole, sums, coefficients, symbols);
            }

            Kernel {
                name: $title,
                // SAFETY: `kernels` returns this kernel only if the processor has its instructions.
                add_multiple: |sum, coefficient, symbol| unsafe {
                    add_multiple(sum, coefficient, symbol);
                },
                // SAFETY: as above.
                combine: |sums, coefficients, symbols| unsafe {
                    combine(sums, coefficients, symbols);
                },
            }
        };
    };
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_512(bytes: &[u8]) -> __m512i {
    let bytes: &[u8; 64] = bytes.try_into().unwrap_or(&[0; 64]);
    // SAFETY: reads the 64 bytes of the array, at any alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_512(bytes: &mut [u8], vector: __m512i) {
    let Ok(bytes) = <&mut [u8; 64]>::try_from(bytes) else {
        return;
    };
    // SAFETY: writes the 64 bytes of the array, at any alignment.
    unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), vector) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_256(bytes: &[u8]) -> __m256i {
    let bytes: &[u8; 32] = bytes.try_into().unwrap_or(&[0; 32]);
    // SAFETY: reads the 32 bytes of the array, at any alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_256(bytes: &mut [u8], vector: __m256i) {
    let Ok(bytes) = <&mut [u8; 32]>::try_from(bytes) else {
        return;
    };
    // SAFETY: writes the 32 bytes of the array, at any alignment.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), vector) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn matrix_512(coefficient: u8) -> __m512i {
    _mm512_set1_epi64(MATRICES[usize::from(coefficient)] as i64)
}

#[inline]
#[target_feature(enable = "gfni,avx512f")]
fn multiply_512(matrix: __m512i, symbol: __m512i) -> __m512i {
    _mm512_gf2p8affine_epi64_epi8::<0>(symbol, matrix)
}

#[inline]
#[target_feature(enable = "avx2")]
fn matrix_256(coefficient: u8) -> __m256i {
    _mm256_set1_epi64x(MATRICES[usize::from(coefficient)] as i64)
}

#[inline]
#[target_feature(enable = "gfni,avx2")]
fn multiply_256(matrix: __m256i, symbol: __m256i) -> __m256i {
    _mm256_gf2p8affine_epi64_epi8::<0>(symbol, matrix)
}

/// Returns the products of the coefficient with each low half and with each high half of a byte.
#[inline]
#[target_feature(enable = "avx2")]
fn tables(coefficient: u8) -> [__m256i; 2] {
    let halves = &HALVES[usize::from(coefficient)];
    [0, 16].map(|start| {
        // SAFETY: both halves have 16 bytes, which are read at any alignment.
        let half = unsafe { _mm_loadu_si128(halves[start..start + 16].as_ptr().cast()) };
        _mm256_broadcastsi128_si256(half)
    })
}

#[inline]
#[target_feature(enable = "avx2")]
fn look_up(tables: [__m256i; 2], symbol: __m256i) -> __m256i {
    let mask = _mm256_set1_epi8(15);
    let low = _mm256_and_si256(symbol, mask);
    let high = _mm256_and_si256(_mm256_srli_epi64::<4>(symbol), mask);
    _mm256_xor_si256(
        _mm256_shuffle_epi8(tables[0], low),
        _mm256_shuffle_epi8(tables[1], high),
    )
}

kernel!(
    GFNI_512,
    "GFNI and AVX-512",
    "gfni,avx512f",
    64,
    4,
    __m512i,
    _mm512_setzero_si512,
    _mm512_xor_si512,
    load_512,
    store_512,
    __m512i,
    matrix_512,
    multiply_512
);
kernel!(
    GFNI_256,
    "GFNI and AVX2",
    "gfni,avx2",
    32,
    2,
    __m256i,
    _mm256_setzero_si256,
    _mm256_xor_si256,
    load_256,
    store_256,
    __m256i,
    matrix_256,
    multiply_256
);
kernel!(
    AVX2,
    "AVX2",
    "avx2",
    32,
    2,
    __m256i,
    _mm256_setzero_si256,
    _mm256_xor_si256,
    load_256,
    store_256,
    [__m256i; 2],
    tables,
    look_up
);
