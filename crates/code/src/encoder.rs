//! The encoder sends source symbols unchanged, and inserts repairs, which are combinations of source symbols.

use crate::{Coefficients, Combination, MOST_COMBINED, kernel};

/// The source symbols that repairs combine, and the number of repairs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scheme {
    /// Blocks of `symbols` source symbols. The repairs after a block combine all of its symbols. The computation is
    /// spread over the source symbols, so that the last symbol of a block takes no longer than the others.
    Block {
        /// Source symbols of a block, 1 to 255.
        symbols: usize,
        /// Repairs per source symbol: 0.25 is 25 % redundancy.
        redundancy: f64,
    },
    /// Evenly spread repairs, each of which combines the latest source symbols.
    Window {
        /// Source symbols that a repair combines, 1 to 255.
        symbols: usize,
        /// Repair packets per source symbol.
        redundancy: f64,
    },
}

/// The reason why a coding scheme is invalid.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum WrongScheme {
    /// The number of symbols is out of range.
    #[error("a repair combines 1 to {MOST_COMBINED} source symbols, not {0}")]
    Symbols(usize),
    /// The redundancy is out of range.
    #[error("redundancy {0}: must be above 0 and at most 4 repairs per source packet")]
    Redundancy(f64),
    /// The redundancy is too low for a single repair per block of this length.
    #[error(
        "a block of {symbols} with redundancy {redundancy} is too small to contain a repair symbol: increase either"
    )]
    NoRepair {
        /// Source symbols of a block.
        symbols: usize,
        /// Repair packets per source symbol.
        redundancy: f64,
    },
}

/// Largest number of repairs per source symbol.
const MOST_REDUNDANCY: f64 = 4.0;

impl Scheme {
    /// Returns the number of source symbols that a repair combines.
    pub fn symbols(&self) -> usize {
        match self {
            Self::Block { symbols, .. } | Self::Window { symbols, .. } => *symbols,
        }
    }

    fn redundancy(&self) -> f64 {
        match self {
            Self::Block { redundancy, .. } | Self::Window { redundancy, .. } => *redundancy,
        }
    }

    /// Returns the number of repairs for a block of `symbols` source symbols: rounded, and at least one.
    fn repairs_of(&self, symbols: usize) -> usize {
        ((symbols as f64 * self.redundancy()).round() as usize).max(1)
    }

    fn check(&self) -> Result<(), WrongScheme> {
        let (symbols, redundancy) = (self.symbols(), self.redundancy());
        if !(1..=MOST_COMBINED).contains(&symbols) {
            return Err(WrongScheme::Symbols(symbols));
        }
        if !(redundancy > 0.0 && redundancy <= MOST_REDUNDANCY) {
            return Err(WrongScheme::Redundancy(redundancy));
        }
        let too_short = symbols as f64 * redundancy < 0.5;
        if matches!(self, Self::Block { .. }) && too_short {
            return Err(WrongScheme::NoRepair {
                symbols,
                redundancy,
            });
        }
        Ok(())
    }
}

/// Symbols in one allocation. Each symbol has `size` bytes, which are zeros after its used length.
#[derive(Debug, Clone)]
pub(crate) struct Symbols {
    size: usize,
    bytes: Vec<u8>,
    /// Used length of each symbol, bytes.
    lengths: Vec<usize>,
}

impl Symbols {
    pub(crate) fn new(count: usize, size: usize) -> Self {
        Self {
            size,
            bytes: vec![0; count * size],
            lengths: vec![0; count],
        }
    }

    pub(crate) fn length(&self, index: usize) -> usize {
        self.lengths[index]
    }

    /// Returns the first `length` bytes of a symbol; bytes after its used length are zeros.
    pub(crate) fn get(&self, index: usize, length: usize) -> &[u8] {
        &self.bytes[index * self.size..][..length]
    }

    pub(crate) fn set(&mut self, index: usize, symbol: &[u8]) {
        self.clear(index);
        self.bytes[index * self.size..][..symbol.len()].copy_from_slice(symbol);
        self.lengths[index] = symbol.len();
    }

    pub(crate) fn clear(&mut self, index: usize) {
        let used = self.lengths[index];
        self.bytes[index * self.size..][..used].fill(0);
        self.lengths[index] = 0;
    }

    /// Adds `coefficient` times `symbol` to a stored symbol.
    pub(crate) fn add_multiple(&mut self, index: usize, coefficient: u8, symbol: &[u8]) {
        let sum = &mut self.bytes[index * self.size..][..symbol.len()];
        kernel::add_multiple(sum, coefficient, symbol);
        self.lengths[index] = self.lengths[index].max(symbol.len());
    }

    /// Adds `coefficient` times the stored symbol with index `from` to that with index `to`; the two must differ.
    pub(crate) fn add_own_multiple(&mut self, to: usize, coefficient: u8, from: usize) {
        let length = self.lengths[from];
        let (sum, symbol) = two(&mut self.bytes, self.size, to, from);
        let (sum, symbol) = (&mut sum[..length], &symbol[..length]);
        kernel::add_multiple(sum, coefficient, symbol);
        self.lengths[to] = self.lengths[to].max(length);
    }

    pub(crate) fn scale(&mut self, index: usize, coefficient: u8) {
        let used = self.lengths[index];
        kernel::scale(&mut self.bytes[index * self.size..][..used], coefficient);
    }
}

/// Returns the slices with indices `to` (mutable) and `from`, which must differ. Each slice has `size` bytes.
pub(crate) fn two(bytes: &mut [u8], size: usize, to: usize, from: usize) -> (&mut [u8], &[u8]) {
    let (low, high) = (to.min(from), to.max(from));
    let (head, tail) = bytes.split_at_mut(high * size);
    let (low, high) = (&mut head[low * size..][..size], &mut tail[..size]);
    if to < from { (low, high) } else { (high, low) }
}

/// An encoder, which makes repairs for a stream of source symbols. Memory is allocated only when the encoder is made.
#[derive(Debug, Clone)]
pub struct Encoder {
    scheme: Scheme,
    size: usize,
    coefficients: Coefficients,
    /// Index of the next source symbol.
    next: u64,
    /// Number of source symbols in the current block, or in the current window.
    held: usize,
    /// For blocks, the sums of the current block. For a window, the latest source symbols, each at its index modulo the
    /// window length, and the sum.
    symbols: Symbols,
    /// For blocks, a row of coefficients for each sum. For a window, one row.
    rows: Vec<u8>,
    /// Number of repair packets to send; `out` is the number of these that were already returned.
    due: usize,
    out: usize,
    /// For a window, the accumulated fraction of the next repair, 0 to 1: each source symbol adds the redundancy.
    credit: f64,
}

impl Encoder {
    /// Makes an encoder for symbols of up to `size` bytes, in which the fraction `density` of coefficients is not 0;
    /// the seed makes it repeatable.
    ///
    /// # Errors
    /// The scheme is invalid.
    pub fn new(scheme: Scheme, size: usize, density: f64, seed: u64) -> Result<Self, WrongScheme> {
        scheme.check()?;
        let symbols = scheme.symbols();
        let (kept, rows) = match scheme {
            Scheme::Block { .. } => {
                let repairs = scheme.repairs_of(symbols);
                (repairs, repairs * symbols)
            }
            Scheme::Window { .. } => (symbols + 1, symbols),
        };
        Ok(Self {
            scheme,
            size,
            coefficients: Coefficients::new(density, seed),
            next: 0,
            held: 0,
            symbols: Symbols::new(kept, size),
            rows: vec![0; rows],
            due: 0,
            out: 0,
            credit: 0.0,
        })
    }

    /// Returns the largest length of a symbol, bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the index of the next source symbol.
    pub fn next_number(&self) -> u64 {
        self.next
    }

    /// Adds a source symbol and returns its index. Before the next call, repeat [`Self::next_repair`] until it returns
    /// `None`: repairs that were not returned by then are discarded.
    ///
    /// # Panics
    /// The symbol is too long.
    pub fn push(&mut self, symbol: &[u8]) -> u64 {
        assert!(symbol.len() <= self.size, "a symbol of the encoder's size");
        let number = self.next;
        self.next += 1;
        match self.scheme {
            Scheme::Block { symbols, .. } => {
                if self.due > 0 {
                    self.begin_block();
                }
                let repairs = self.rows.len() / symbols;
                for repair in 0..repairs {
                    let coefficient = &mut self.rows[repair * symbols + self.held];
                    self.coefficients
                        .draw_one(coefficient, self.held + 1 == symbols);
                    self.symbols.add_multiple(repair, *coefficient, symbol);
                }
                self.held += 1;
                if self.held == symbols {
                    self.due = repairs;
                }
            }
            Scheme::Window {
                symbols,
                redundancy,
            } => {
                self.symbols.set((number % symbols as u64) as usize, symbol);
                self.held = (self.held + 1).min(symbols);
                self.credit += redundancy;
                self.due = self.credit as usize;
                self.credit -= self.due as f64;
                self.out = 0;
            }
        }
        number
    }

    /// Makes repairs without waiting for more symbols, for example during a pause of the source. A block ends early and
    /// gets its repairs. A window gets one repair if a fraction of a repair has accumulated since the last one. While
    /// repairs wait for [`Self::next_repair`], the call has no effect.
    pub fn flush(&mut self) {
        if self.held == 0 || self.due > self.out {
            return;
        }
        match self.scheme {
            Scheme::Block { .. } if self.due == 0 => self.due = self.scheme.repairs_of(self.held),
            Scheme::Block { .. } => {}
            Scheme::Window { .. } => {
                if self.credit > 0.0 {
                    (self.credit, self.due, self.out) = (0.0, 1, 0);
                }
            }
        }
    }

    /// Limits the window of repairs to the latest `symbols` source symbols, at least one. Callers use it when older
    /// symbols have arrived or are useless, as these would only make a repair harder to decode. New symbols widen the
    /// window again.
    pub fn narrow(&mut self, symbols: usize) {
        if matches!(self.scheme, Scheme::Window { .. }) {
            self.held = self.held.min(symbols.max(1));
        }
    }

    /// Returns the next repair to send; `None` until another symbol or [`Self::flush`] makes a repair due.
    pub fn next_repair(&mut self) -> Option<Combination<'_>> {
        if self.out == self.due {
            if matches!(self.scheme, Scheme::Block { .. }) && self.due > 0 {
                self.begin_block();
            }
            return None;
        }
        let index = self.out;
        self.out += 1;
        match self.scheme {
            Scheme::Block { symbols, .. } => Some(Combination {
                first: self.next - self.held as u64,
                coefficients: &self.rows[index * symbols..][..self.held],
                sum: self.symbols.get(index, self.symbols.length(index)),
            }),
            Scheme::Window { symbols, .. } => Some(self.window_repair(symbols)),
        }
    }

    fn begin_block(&mut self) {
        (self.held, self.due, self.out) = (0, 0, 0);
        (0..self.symbols.lengths.len()).for_each(|index| self.symbols.clear(index));
    }

    fn window_repair(&mut self, window: usize) -> Combination<'_> {
        let row = &mut self.rows[..self.held];
        self.coefficients.draw(row);
        let first = self.next - self.held as u64;
        let place = |number: u64| (number % window as u64) as usize;
        let places = (first..self.next).map(place);
        let longest = places
            .clone()
            .map(|place| self.symbols.length(place))
            .max()
            .unwrap_or(0);
        self.symbols.clear(window);
        self.symbols.lengths[window] = longest;
        let (kept, sum) = self.symbols.bytes.split_at_mut(window * self.size);
        let mut sources: [&[u8]; MOST_COMBINED] = [&[]; MOST_COMBINED];
        for (source, place) in sources.iter_mut().zip(places) {
            *source = &kept[place * self.size..][..longest];
        }
        kernel::combine(&mut [&mut sum[..longest]], &[row], &sources[..self.held]);
        Combination {
            first,
            coefficients: &self.rows[..self.held],
            sum: self.symbols.get(window, longest),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::field::product;

    fn repairs(encoder: &mut Encoder) -> Vec<(u64, Vec<u8>, Vec<u8>)> {
        std::iter::from_fn(|| {
            encoder
                .next_repair()
                .map(|it| (it.first, it.coefficients.to_vec(), it.sum.to_vec()))
        })
        .collect()
    }

    fn encoder(scheme: Scheme) -> Encoder {
        Encoder::new(scheme, 40, 1.0, 7).unwrap()
    }

    /// Returns the content of the source symbol `number`. Symbols have different lengths.
    fn symbol(number: u64) -> Vec<u8> {
        (0..10 + number % 30)
            .map(|i| (number * 31 + i * 7 + 1) as u8)
            .collect()
    }

    fn is_right(first: u64, coefficients: &[u8], sum: &[u8]) {
        let mut expected = [0; 40];
        for (number, coefficient) in (first..).zip(coefficients) {
            for (total, byte) in expected.iter_mut().zip(symbol(number)) {
                *total ^= product(*coefficient, byte);
            }
        }
        assert_eq!(*sum, expected[..sum.len()]);
        assert!(expected[sum.len()..].iter().all(|it| *it == 0));
    }

    #[test]
    fn flushed_generations_get_fewer_repair_packets_than_full_generations() {
        let mut encoder = encoder(Scheme::Block {
            symbols: 32,
            redundancy: 0.25,
        });
        for number in 0..80 {
            assert_eq!(encoder.push(&symbol(number)), number);
            let made = repairs(&mut encoder);
            assert_eq!(made.len(), if number % 32 == 31 { 8 } else { 0 });
            for (first, coefficients, sum) in made {
                assert_eq!((first, coefficients.len()), (number - 31, 32));
                is_right(first, &coefficients, &sum);
            }
        }
        encoder.flush();
        let made = repairs(&mut encoder);
        assert_eq!(made.len(), 4);
        made.iter()
            .for_each(|(first, row, sum)| is_right(*first, row, sum));
        assert_eq!((made[0].0, made[0].1.len()), (64, 16));
        encoder.flush();
        assert!(repairs(&mut encoder).is_empty());
        assert_eq!(encoder.push(&symbol(80)), 80);
    }

    #[test]
    fn repair_packets_of_a_sliding_window_are_spread_evenly() {
        let mut encoder = encoder(Scheme::Window {
            symbols: 8,
            redundancy: 0.25,
        });
        for number in 0..50 {
            encoder.push(&symbol(number));
            let made = repairs(&mut encoder);
            assert_eq!(made.len(), usize::from(number % 4 == 3));
            for (first, coefficients, sum) in made {
                assert_eq!(first, (number + 1).saturating_sub(8));
                assert_eq!(first + coefficients.len() as u64, number + 1);
                is_right(first, &coefficients, &sum);
            }
        }
        encoder.flush();
        assert_eq!(repairs(&mut encoder).len(), 1);
        encoder.flush();
        assert!(repairs(&mut encoder).is_empty());
    }

    #[test]
    fn the_number_of_repair_packets_follows_the_configured_redundancy() {
        for (redundancy, of_100) in [(2.5, 250), (1.0 / 3.0, 33), (0.01, 1)] {
            let mut encoder = encoder(Scheme::Window {
                symbols: 4,
                redundancy,
            });
            let made: usize = (0..100)
                .map(|number| {
                    encoder.push(&symbol(number));
                    repairs(&mut encoder).len()
                })
                .sum();
            assert!(made.abs_diff(of_100) <= 1, "{redundancy}: {made}");
        }
    }

    #[test]
    fn a_narrowed_window_combines_only_the_latest_symbols() {
        let scheme = Scheme::Window {
            symbols: 4,
            redundancy: 1.0,
        };
        let mut encoder = Encoder::new(scheme, 4, 1.0, 1).unwrap();
        (0..4).for_each(|number| {
            encoder.push(&[number; 4]);
        });
        encoder.narrow(1);
        let [(first, coefficients, sum)] = &repairs(&mut encoder)[..] else {
            panic!("one repair");
        };
        assert_eq!((*first, coefficients.len()), (3, 1));
        assert_eq!(*sum, [product(coefficients[0], 3); 4]);
        encoder.push(&[9; 4]);
        assert_eq!(repairs(&mut encoder)[0].1.len(), 2);
        encoder.push(&[9; 4]);
        encoder.narrow(0);
        assert_eq!(repairs(&mut encoder)[0].1.len(), 1);
    }

    #[test]
    fn invalid_coding_schemes_are_refused_with_the_reason() {
        let block = |symbols, redundancy| {
            let scheme = Scheme::Block {
                symbols,
                redundancy,
            };
            Encoder::new(scheme, 10, 1.0, 0)
                .err()
                .map(|e| e.to_string())
        };
        assert!(block(0, 0.25).unwrap().contains("1 to 255"));
        assert!(block(256, 0.25).unwrap().contains("256"));
        assert!(block(32, f64::NAN).unwrap().contains("redundancy"));
        assert!(block(32, 5.0).unwrap().contains("at most 4"));
        assert!(block(4, 0.1).unwrap().contains("a repair symbol"));
        assert_eq!(block(32, 0.25), None);
    }
}
