//! The decoder stores known symbols. It also stores combinations of unknown symbols until it can solve for these
//! symbols. It has memory for a limited number of symbols, and *discards* the oldest when newer ones need the memory. A
//! symbol that is still unknown then counts as lost.
//!
//! Combinations are stored as rows of a matrix in reduced form over the unknown source symbols. Each row begins with 1
//! in a column in which all other rows have 0. A row with only one nonzero column gives the symbol of that column.
//! (Gauss-Jordan elimination, one row at a time.)

use crate::encoder::{Symbols, two};
use crate::field::inverse;
use crate::{Combination, MOST_COMBINED, kernel};

/// Returns the maximum difference between the highest symbol number in a packet and the highest one in all earlier
/// packets. The limit is half of `span`, the number of source symbols that the decoder stores, but at least 8. With
/// this limit, a single packet, whatever its header contains, displaces only the older half of the stored symbols.
pub fn reach(span: usize) -> u64 {
    (span as u64 / 2).max(8)
}

/// Maximum number of unknown symbols that are eliminated from stored combinations when one packet makes the decoder
/// discard old symbols. Combinations with further discarded symbols are discarded, which costs no arithmetic.
const MOST_TAKEN_OUT: usize = 8;

/// Reason why the decoder rejects a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The packet's symbol is longer than the decoder's symbol size.
    #[error("the packet is longer than a symbol")]
    TooLong,
    /// The packet has no coefficients, too many, or invalid numbers.
    #[error("the combination has no symbols, too many, or invalid symbol numbers")]
    Range,
    /// The packet contains only source symbols that the decoder has already discarded.
    #[error("the packet is too late: the decoder no longer waits for any of its symbols")]
    TooOld,
    /// The packet's symbol number is ahead of all earlier numbers by more than [`reach`]. A caller that knows the
    /// number to be correct restarts the decoder.
    #[error("the symbol number is too far ahead of the latest one")]
    TooFarAhead,
}

/// The numbers of packets and source symbols by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Account {
    /// Source symbols that arrived and were not rejected, duplicates included.
    pub sources: u64,
    /// Source symbols that arrived and were already known.
    pub duplicates: u64,
    /// Combinations that arrived and were not rejected, with or without new information.
    pub combinations: u64,
    /// Combinations with new information.
    pub innovative: u64,
    /// Source symbols recovered from combinations.
    pub recovered: u64,
    /// Source symbols that were still unknown when the decoder discarded them.
    pub lost: u64,
}

/// A decoder of one stream with bounded memory, which is allocated only when the decoder is made.
///
/// The work is bounded for any input. One packet costs at most [`Decoder::most_row_operations`] additions of a row's
/// multiple (`span` bytes of coefficients and one symbol) to another row. It also costs one or two passes over `span` x
/// `span` coefficients.
#[derive(Debug, Clone)]
pub struct Decoder {
    size: usize,
    /// Number of source symbols that are stored; older symbols are discarded.
    span: usize,
    /// Index of the oldest stored symbol; `end` is the index after the newest symbol in any packet.
    base: u64,
    end: u64,
    /// For each stored symbol, by symbol index modulo `span`: true if the symbol is known.
    known: Vec<bool>,
    symbols: Symbols,
    /// For each row of the matrix, the column in which the row has 1; `None` for a free row. `coefficients` has the
    /// coefficients of each row by index modulo span, `sums` the sum of each row.
    pivots: Vec<Option<u64>>,
    coefficients: Vec<u8>,
    sums: Symbols,
    account: Account,
    /// Number of additions of a multiple of a row or symbol to a row, which tests compare with the bound.
    #[cfg(test)]
    operations: u64,
}

impl Decoder {
    /// Makes a decoder for symbols of up to `size` bytes, which stores `span` source symbols. `span` must be at least
    /// the range of a combination, and larger if packets are reordered.
    pub fn new(size: usize, span: usize) -> Self {
        let span = span.max(1);
        Self {
            size,
            span,
            base: 0,
            end: 0,
            known: vec![false; span],
            symbols: Symbols::new(span, size),
            pivots: vec![None; span],
            coefficients: vec![0; span * span],
            sums: Symbols::new(span, size),
            account: Account::default(),
            #[cfg(test)]
            operations: 0,
        }
    }

    /// Returns the largest number of additions of one row's multiple to another for a single packet.
    pub fn most_row_operations(&self) -> usize {
        // For a combination, the decoder eliminates known symbols, then the columns of other rows, and then the column
        // of the new row from all other rows.
        (MOST_TAKEN_OUT + 3) * self.span
    }

    /// Resets everything except the counters, because another stream begins or this stream continues at another
    /// position. Symbols within the span that are still unknown count as lost. The reset takes at most `span` steps.
    pub fn begin_again(&mut self) {
        let is_unknown = |number: &u64| !self.known[self.place(*number)];
        self.account.lost += (self.base..self.end).filter(is_unknown).count() as u64;
        (self.base, self.end) = (0, 0);
        self.known.fill(false);
        self.pivots.fill(None);
    }

    /// Returns the counters.
    pub fn account(&self) -> Account {
        self.account
    }

    /// Returns the range of numbers from the oldest symbol that may still be recovered to the newest symbol in any
    /// packet.
    pub fn range(&self) -> std::ops::Range<u64> {
        self.base..self.end
    }

    /// Returns a source symbol; none if it is unknown or not stored. Zeros may be missing at its end.
    pub fn symbol(&self, number: u64) -> Option<&[u8]> {
        let place = self.place(number);
        ((self.base..self.end).contains(&number) && self.known[place])
            .then(|| self.symbols.get(place, self.symbols.length(place)))
    }

    /// Processes a source symbol; `recovered` is called for other symbols that can be recovered with it. Returns true
    /// if the symbol was unknown.
    ///
    /// # Errors
    /// The source symbol is invalid; the decoder does not change then.
    pub fn source(
        &mut self,
        number: u64,
        symbol: &[u8],
        recovered: impl FnMut(u64, &[u8]),
    ) -> Result<bool, Refused> {
        if symbol.len() > self.size {
            return Err(Refused::TooLong);
        }
        let end = number.checked_add(1).ok_or(Refused::Range)?;
        self.make_room(number, end)?;
        self.account.sources += 1;
        if self.known[self.place(number)] {
            self.account.duplicates += 1;
            return Ok(false);
        }
        self.learn(number, symbol);
        self.take_out(recovered);
        Ok(true)
    }

    /// Processes a combination; `recovered` is called for source symbols that can be recovered with it. Returns true if
    /// the combination had new information.
    ///
    /// # Errors
    /// The combination is invalid; the decoder does not change then.
    pub fn combination(
        &mut self,
        combination: &Combination<'_>,
        recovered: impl FnMut(u64, &[u8]),
    ) -> Result<bool, Refused> {
        if combination.sum.len() > self.size {
            return Err(Refused::TooLong);
        }
        // Zero coefficients at either end are removed first, so that they do not make the combination too old.
        let coefficients = combination.coefficients;
        let is_part = |it: &u8| *it != 0;
        let (Some(start), Some(last)) = (
            coefficients.iter().position(is_part),
            coefficients.iter().rposition(is_part),
        ) else {
            return Err(Refused::Range);
        };
        let coefficients = &coefficients[start..=last];
        let first = combination.first.checked_add(start as u64);
        let first = first.ok_or(Refused::Range)?;
        let end = first.checked_add(coefficients.len() as u64);
        let end = end.ok_or(Refused::Range)?;
        if coefficients.len() > self.span.min(MOST_COMBINED) {
            return Err(Refused::Range);
        }
        self.make_room(first, end)?;
        self.account.combinations += 1;
        let unknown = |(number, coefficient): (u64, &u8)| {
            *coefficient != 0 && !self.known[self.place(number)]
        };
        if !(first..).zip(coefficients).any(unknown) {
            return Ok(false);
        }
        // Without a free row the combination has no new information: there are as many rows as there can be unknown
        // symbols, and each row has a column of its own.
        let Some(row) = self.pivots.iter().position(Option::is_none) else {
            return Ok(false);
        };
        self.sums.set(row, combination.sum);
        self.coefficients[row * self.span..][..self.span].fill(0);
        for (number, coefficient) in (first..).zip(coefficients) {
            let place = self.place(number);
            if self.known[place] {
                let symbol = self.symbols.get(place, self.symbols.length(place));
                self.sums.add_multiple(row, *coefficient, symbol);
                #[cfg(test)]
                (self.operations += 1);
            } else {
                self.coefficients[row * self.span + place] = *coefficient;
            }
        }
        for other in 0..self.span {
            if let Some(pivot) = self.pivots[other] {
                self.subtract(row, other, self.place(pivot));
            }
        }
        let innovative = self.reduce(row);
        self.account.innovative += u64::from(innovative);
        self.take_out(recovered);
        Ok(innovative)
    }

    fn place(&self, number: u64) -> usize {
        (number % self.span as u64) as usize
    }

    /// Extends the range of stored symbols to index `end` if the range ends earlier, and discards the oldest symbols if
    /// the range becomes too long. Refuses a packet whose first symbol `first` was already discarded, or whose end is
    /// too far ahead.
    fn make_room(&mut self, first: u64, end: u64) -> Result<(), Refused> {
        if first < self.base {
            return Err(Refused::TooOld);
        }
        if end <= self.end {
            return Ok(());
        }
        if end - self.end > reach(self.span) && self.end > 0 {
            return Err(Refused::TooFarAhead);
        }
        if self.end == 0 {
            // The stream may have begun before this decoder: symbols before the first packet are not lost.
            self.base = first;
            self.end = first;
        }
        let base = end.saturating_sub(self.span as u64).max(self.base);
        let mut taken_out = 0;
        for number in self.base..base {
            taken_out += usize::from(self.give_up(number, taken_out < MOST_TAKEN_OUT));
        }
        self.base = base;
        self.end = end;
        Ok(())
    }

    /// Discards the symbol with the given index. With `takes_out` the symbol is eliminated from the rows that contain
    /// it; otherwise those rows are freed. Returns true if a row was used for the elimination.
    fn give_up(&mut self, number: u64, takes_out: bool) -> bool {
        let place = self.place(number);
        if number >= self.end {
            // No packet has reached this number yet, so the symbol is unknown and therefore lost.
            self.account.lost += 1;
            return false;
        }
        if self.known[place] {
            self.known[place] = false;
            return false;
        }
        self.account.lost += 1;
        let span = self.span;
        if !takes_out {
            for row in 0..span {
                if self.coefficients[row * span + place] != 0 {
                    self.pivots[row] = None;
                }
            }
            return false;
        }
        // The symbol is not needed any more, so one row that contains it is used to eliminate it from the other rows.
        let column = |row: usize| self.coefficients[row * span + place] != 0;
        let with_it = |row: &usize| self.pivots[*row].is_some() && column(*row);
        let Some(row) = (0..span).find(with_it) else {
            return false;
        };
        let own = self.coefficients[row * self.span + place];
        self.scale(row, inverse(own));
        for other in 0..self.span {
            if other != row && self.pivots[other].is_some() {
                self.subtract(other, row, place);
            }
        }
        self.pivots[row] = None;
        true
    }

    /// Stores a source symbol as known, and eliminates it from all rows.
    fn learn(&mut self, number: u64, symbol: &[u8]) {
        let place = self.place(number);
        self.known[place] = true;
        self.symbols.set(place, symbol);
        for row in 0..self.span {
            let column = row * self.span + place;
            let coefficient = self.coefficients[column];
            if self.pivots[row].is_none() || coefficient == 0 {
                continue;
            }
            self.coefficients[column] = 0;
            self.sums.add_multiple(row, coefficient, symbol);
            #[cfg(test)]
            (self.operations += 1);
            if self.pivots[row] == Some(number) {
                self.pivots[row] = None;
                self.reduce(row);
            }
        }
    }

    /// Subtracts a multiple of row `from` from row `to`, so that `column` becomes 0 in row `to`. Row `from` must have 1
    /// in that column.
    fn subtract(&mut self, to: usize, from: usize, column: usize) {
        let coefficient = self.coefficients[to * self.span + column];
        if coefficient == 0 || to == from {
            return;
        }
        let (sum, row) = two(&mut self.coefficients, self.span, to, from);
        kernel::add_multiple(sum, coefficient, row);
        self.sums.add_own_multiple(to, coefficient, from);
        #[cfg(test)]
        (self.operations += 1);
    }

    fn scale(&mut self, row: usize, factor: u8) {
        kernel::scale(
            &mut self.coefficients[row * self.span..][..self.span],
            factor,
        );
        self.sums.scale(row, factor);
    }

    /// Chooses the column in which a new row has 1, and eliminates that column from all other rows. Returns true if the
    /// new row has such a column, false if all its coefficients are 0.
    fn reduce(&mut self, row: usize) -> bool {
        let coefficient = |number: u64| self.coefficients[row * self.span + self.place(number)];
        let Some(pivot) = (self.base..self.end).find(|number| coefficient(*number) != 0) else {
            return false;
        };
        self.scale(row, inverse(coefficient(pivot)));
        self.pivots[row] = Some(pivot);
        let place = self.place(pivot);
        for other in 0..self.span {
            if self.pivots[other].is_some() {
                self.subtract(other, row, place);
            }
        }
        true
    }

    /// Removes each row with only one symbol left, stores that symbol as known, and passes it to `recovered`. All other
    /// rows have 0 in the symbol's column, so they need no change.
    fn take_out(&mut self, mut recovered: impl FnMut(u64, &[u8])) {
        for row in 0..self.span {
            let Some(number) = self.pivots[row] else {
                continue;
            };
            let coefficients = &self.coefficients[row * self.span..][..self.span];
            if coefficients.iter().filter(|it| **it != 0).count() > 1 {
                continue;
            }
            let place = self.place(number);
            let sum = self.sums.get(row, self.sums.length(row));
            self.symbols.set(place, sum);
            self.known[place] = true;
            self.pivots[row] = None;
            self.account.recovered += 1;
            recovered(number, sum);
        }
    }
}

#[cfg(test)]
mod tests;
