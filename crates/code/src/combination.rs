//! A combination: the range of its source symbols, their coefficients, and the sum.

/// A sum of multiples of consecutive source symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Combination<'a> {
    /// Index of the first source symbol.
    pub first: u64,
    /// Coefficients, one for each source symbol from `first` on.
    pub coefficients: &'a [u8],
    /// The sum; if it is shorter than a symbol, the missing bytes are zeros.
    pub sum: &'a [u8],
}

impl Combination<'_> {
    /// Returns the index after the last source symbol.
    pub fn end(&self) -> u64 {
        self.first + self.coefficients.len() as u64
    }
}
