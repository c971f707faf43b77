//! The kernel for every machine: two lookups per byte in a table of 32 bytes.

use super::Kernel;
use crate::field::HALVES;

pub(super) const KERNEL: Kernel = Kernel {
    name: "portable",
    add_multiple,
    combine,
};

/// Computes `sum += coefficient * symbol`. Other kernels use this function for the remaining bytes at the end.
pub(super) fn add_multiple(sum: &mut [u8], coefficient: u8, symbol: &[u8]) {
    let halves = &HALVES[usize::from(coefficient)];
    for (sum, byte) in sum.iter_mut().zip(symbol) {
        *sum ^= halves[usize::from(byte & 15)] ^ halves[16 + usize::from(byte >> 4)];
    }
}

fn combine(sums: &mut [&mut [u8]], coefficients: &[&[u8]], symbols: &[&[u8]]) {
    combine_from(0, sums, coefficients, symbols);
}

/// Computes the sums of `combine` for the bytes from index `start` on.
pub(super) fn combine_from(
    start: usize,
    sums: &mut [&mut [u8]],
    coefficients: &[&[u8]],
    symbols: &[&[u8]],
) {
    for (sum, row) in sums.iter_mut().zip(coefficients) {
        let sum = &mut sum[start..];
        sum.fill(0);
        for (symbol, coefficient) in symbols.iter().zip(*row) {
            add_multiple(sum, *coefficient, &symbol[start..]);
        }
    }
}
