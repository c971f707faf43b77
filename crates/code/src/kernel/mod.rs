//! The two expensive operations on whole symbols: adding a multiple, and sums of many multiples.
//!
//! Both operations are implemented once per instruction set: GFNI with AVX-512, GFNI with AVX2, AVX2 by shuffles, and
//! plain code for every other machine. The implementation is chosen when the program starts.

mod plain;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::OnceLock;

/// Number of sums that [`combine`] computes in one pass over the sources.
const AT_ONCE: usize = 4;

/// A function with the behaviour of [`combine`].
type Combine = fn(sums: &mut [&mut [u8]], coefficients: &[&[u8]], symbols: &[&[u8]]);

/// An implementation of both operations with one instruction set.
#[derive(Clone, Copy)]
struct Kernel {
    name: &'static str,
    /// Computes `sum += coefficient * symbol`.
    add_multiple: fn(sum: &mut [u8], coefficient: u8, symbol: &[u8]),
    /// A function with the behaviour of [`combine`], for at most [`AT_ONCE`] sums.
    combine: Combine,
}

/// Returns the kernels that this machine can run, the fastest first.
fn kernels() -> Vec<Kernel> {
    let mut all = Vec::new();
    #[cfg(target_arch = "x86_64")]
    all.extend(x86::kernels());
    all.push(plain::KERNEL);
    all
}

fn chosen() -> &'static Kernel {
    static CHOSEN: OnceLock<Kernel> = OnceLock::new();
    CHOSEN.get_or_init(|| kernels()[0])
}

/// Returns the instruction set in use, for reports.
pub fn name() -> &'static str {
    chosen().name
}

/// Adds `coefficient` times `symbol` to `sum`, byte by byte.
///
/// # Panics
/// The lengths of `sum` and `symbol` differ.
pub fn add_multiple(sum: &mut [u8], coefficient: u8, symbol: &[u8]) {
    assert_eq!(sum.len(), symbol.len(), "symbols of one size");
    if coefficient != 0 {
        (chosen().add_multiple)(sum, coefficient, symbol);
    }
}

/// Multiplies `symbol` by `coefficient`.
pub fn scale(symbol: &mut [u8], coefficient: u8) {
    if coefficient == 1 {
        return;
    }
    // The product of a byte is the sum of the products of its low and its high half.
    let halves = &crate::field::HALVES[usize::from(coefficient)];
    for byte in symbol {
        *byte = halves[usize::from(*byte & 15)] ^ halves[16 + usize::from(*byte >> 4)];
    }
}

/// Sets each of `sums` to the sum over `symbols`, each multiplied by its coefficient in the row of that sum.
///
/// # Panics
/// Sums and symbols differ in length, a row has another length than the list of symbols, or the numbers of sums and
/// rows differ.
pub fn combine(sums: &mut [&mut [u8]], coefficients: &[&[u8]], symbols: &[&[u8]]) {
    assert_eq!(sums.len(), coefficients.len(), "a row for each sum");
    let size = sums.first().map_or(0, |sum| sum.len());
    assert!(
        sums.iter().all(|sum| sum.len() == size) && symbols.iter().all(|it| it.len() == size),
        "symbols of one size"
    );
    assert!(
        coefficients.iter().all(|row| row.len() == symbols.len()),
        "a coefficient for each symbol"
    );
    let combine = chosen().combine;
    for (sums, rows) in sums.chunks_mut(AT_ONCE).zip(coefficients.chunks(AT_ONCE)) {
        combine(sums, rows, symbols);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::product;
    use proptest::prelude::*;

    fn symbols(count: usize, size: usize, seed: u64) -> Vec<Vec<u8>> {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..count)
            .map(|_| {
                std::iter::repeat_with(|| random.u8(..))
                    .take(size)
                    .collect()
            })
            .collect()
    }

    proptest! {
        #[test]
        fn every_kernel_adds_multiples_of_symbols_of_any_length(size in 0_usize..300, c: u8, seed: u64) {
            let all = symbols(2, size, seed);
            let expected: Vec<u8> = all[0].iter().zip(&all[1]).map(|(a, b)| a ^ product(c, *b)).collect();
            for kernel in kernels() {
                let mut sum = all[0].clone();
                (kernel.add_multiple)(&mut sum, c, &all[1]);
                prop_assert_eq!(&sum, &expected, "{}", kernel.name);
            }
            let mut scaled = all[0].clone();
            scale(&mut scaled, c);
            let expected: Vec<u8> = all[0].iter().map(|a| product(c, *a)).collect();
            prop_assert_eq!(scaled, expected);
        }

        #[test]
        fn every_kernel_computes_one_to_four_sums_at_once(
            size in 0_usize..300, count in 0_usize..40, sums in 1_usize..=4, seed: u64
        ) {
            let sources = symbols(count, size, seed);
            let rows = symbols(sums, count, !seed);
            let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
            let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
            let mut expected = vec![vec![0; size]; sums];
            for (sum, row) in expected.iter_mut().zip(&rows) {
                for (source, c) in sources.iter().zip(*row) {
                    sum.iter_mut().zip(*source).for_each(|(s, a)| *s ^= product(*c, *a));
                }
            }
            for kernel in kernels() {
                let mut made = vec![vec![0xAA; size]; sums];
                let mut outputs: Vec<&mut [u8]> = made.iter_mut().map(Vec::as_mut_slice).collect();
                (kernel.combine)(&mut outputs, &rows, &sources);
                prop_assert_eq!(&made, &expected, "{}", kernel.name);
            }
        }
    }

    #[test]
    fn outputs_beyond_the_size_of_a_pass_use_several_passes() {
        let sources = symbols(5, 100, 1);
        let rows = symbols(11, 5, 2);
        let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
        let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
        let mut sums = vec![vec![0; 100]; 11];
        let mut outputs: Vec<&mut [u8]> = sums.iter_mut().map(Vec::as_mut_slice).collect();
        combine(&mut outputs, &rows, &sources);
        for (sum, row) in sums.iter().zip(&rows) {
            let mut expected = vec![0; 100];
            for (source, c) in sources.iter().zip(*row) {
                add_multiple(&mut expected, *c, source);
            }
            assert_eq!(*sum, expected);
        }
    }
}
