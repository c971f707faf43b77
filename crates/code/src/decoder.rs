//! The decoder: keeps what it knows and what combinations say of the rest, until they say all.
//!
//! Combinations are kept as rows of a matrix in reduced form over the unknown source symbols: each row begins with 1
//! in a column where all others have 0. As soon as a row has one column left, its symbol is known. (Gauss-Jordan
//! elimination, one row at a time.)

use crate::encoder::{Symbols, two};
use crate::field::inverse;
use crate::{Combination, MOST_COMBINED, kernel};

/// Returns how far ahead of all others a packet's numbers may be for a decoder that looks back on `span` source
/// symbols: half of them. So one packet, whatever its header says, leaves the newer half of them to be looked back on.
pub fn reach(span: usize) -> u64 {
    (span as u64 / 2).max(8)
}

/// Unknown symbols, of those that one packet has given up, that are taken out of the combinations they are in. For the
/// others these combinations are given up as well, which costs no arithmetic.
const MOST_TAKEN_OUT: usize = 8;

/// Reason why a packet cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A symbol longer than the decoder's.
    #[error("longer than a symbol")]
    TooLong,
    /// The packet has no coefficients, too many, or numbers that do not exist.
    #[error("a range that cannot be")]
    Range,
    /// The symbols that the packet is about were given up already.
    #[error("about symbols that were given up already")]
    TooOld,
    /// The packet's number is further ahead of all others than [`reach`]: whoever is sure that it is right has the
    /// decoder begin again.
    #[error("far ahead of all others")]
    TooFarAhead,
}

/// Counts of what became of the packets that came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Account {
    /// Source symbols that came.
    pub sources: u64,
    /// Source symbols that came and were known.
    pub duplicates: u64,
    /// Combinations that came.
    pub combinations: u64,
    /// Combinations that said something new.
    pub innovative: u64,
    /// Source symbols that combinations gave back.
    pub recovered: u64,
    /// Source symbols that were given up.
    pub lost: u64,
}

/// Decodes one stream in bounded memory. Nothing is allocated once it is made.
///
/// Work is bounded as well, whatever comes: one packet costs at most [`Decoder::most_row_operations`] additions of a
/// multiple of one row (`span` bytes of coefficients and one symbol) to another, beside looking at `span` x `span`
/// coefficients once or twice.
#[derive(Debug, Clone)]
pub struct Decoder {
    size: usize,
    /// Source symbols that it looks back on; older ones are given up.
    span: usize,
    /// The oldest number looked back on, and the one behind the newest heard of.
    base: u64,
    end: u64,
    /// Whether each symbol is known, by number modulo span.
    known: Vec<bool>,
    symbols: Symbols,
    /// Rows: their column with 1, none for a free row; coefficients by number modulo span; sums.
    pivots: Vec<Option<u64>>,
    coefficients: Vec<u8>,
    sums: Symbols,
    account: Account,
    /// Additions of rows and symbols.
    #[cfg(test)]
    operations: u64,
}

impl Decoder {
    /// Makes a decoder for symbols of up to `size` bytes, which looks back on `span` source symbols: at least what a
    /// combination covers, more where packets are reordered.
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

    /// Returns how many additions of one row's multiple to another a single packet costs at most.
    pub fn most_row_operations(&self) -> usize {
        // A combination: what is known is taken out, then what others have, then its column out of the others.
        (MOST_TAKEN_OUT + 3) * self.span
    }

    /// Forgets all but the account: another stream begins, or this one somewhere else. What was looked back on and is not
    /// known is lost. Costs no more than `span` steps.
    pub fn begin_again(&mut self) {
        let is_unknown = |number: &u64| !self.known[self.place(*number)];
        self.account.lost += (self.base..self.end).filter(is_unknown).count() as u64;
        (self.base, self.end) = (0, 0);
        self.known.fill(false);
        self.pivots.fill(None);
    }

    /// Returns the counts so far.
    pub fn account(&self) -> Account {
        self.account
    }

    /// The oldest number that may still come to be known, and the one behind the newest heard of.
    pub fn range(&self) -> std::ops::Range<u64> {
        self.base..self.end
    }

    /// A source symbol that is known and looked back on; zeros may be missing at its end.
    pub fn symbol(&self, number: u64) -> Option<&[u8]> {
        let place = self.place(number);
        ((self.base..self.end).contains(&number) && self.known[place])
            .then(|| self.symbols.get(place, self.symbols.length(place)))
    }

    /// Takes a source symbol in; `recovered` is told of others that are known by it. Whether it was unknown.
    ///
    /// # Errors
    /// If it cannot be used; nothing changes then.
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

    /// Takes a combination in; `recovered` is told of source symbols that are known by it. Whether it said anything
    /// new.
    ///
    /// # Errors
    /// If it cannot be used; nothing changes then.
    pub fn combination(
        &mut self,
        combination: &Combination<'_>,
        recovered: impl FnMut(u64, &[u8]),
    ) -> Result<bool, Refused> {
        if combination.sum.len() > self.size {
            return Err(Refused::TooLong);
        }
        // Zeros at either end say nothing of whether it is too old.
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
        // There are as many rows as there can be unknown symbols, and each has a column of its own.
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

    /// Looks back from `end` on, if that is new.
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
            // It may have begun before this decoder did: what came before the first packet is nobody's loss.
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

    /// Gives up the symbol of this number. Returns whether it was taken out of the rows, as `takes_out` asks; otherwise
    /// rows with it go.
    fn give_up(&mut self, number: u64, takes_out: bool) -> bool {
        let place = self.place(number);
        if number >= self.end {
            // Never heard of: lost with all that was said of it.
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
        // What a row says of it can't be used any more; one row can free the others of it.
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

    /// Notes a source symbol as known, and takes it out of all rows.
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

    /// Row `to` minus as much of row `from`, which has 1 in that column, as takes the column out of it.
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

    /// Gives a row that has no column of its own one, and takes that out of all others. Whether there was any left.
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

    /// Takes rows with one symbol left out: that symbol is known now. Its column is in no other row.
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
