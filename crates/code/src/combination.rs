//! A combination as it travels: of which source symbols, with which coefficients, and the sum.

/// A sum of multiples of consecutive source symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Combination<'a> {
    /// Number of the first source symbol.
    pub first: u64,
    /// Coefficients, one for each source symbol from there on.
    pub coefficients: &'a [u8],
    /// The sum; shorter than a symbol means zeros at its end.
    pub sum: &'a [u8],
}

impl Combination<'_> {
    /// Number of the source symbol behind the last.
    pub fn end(&self) -> u64 {
        self.first + self.coefficients.len() as u64
    }
}
