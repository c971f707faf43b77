//! The recoder combines the packets that pass a hop, without decoding them.

use crate::encoder::Symbols;
use crate::field::product;
use crate::{Combination, MOST_COMBINED, Refused};
use fastrand::Rng;

/// A recoder, which stores and combines the latest packets of a stream, both source symbols and combinations. Memory is
/// allocated only when the recoder is made.
#[derive(Debug, Clone)]
pub struct Recoder {
    size: usize,
    /// The range of source symbols that each stored packet combines, by slot: index of the first symbol, and number of
    /// symbols. The number is 0 for a free slot.
    ranges: Vec<(u64, usize)>,
    /// Coefficients of the stored packets, by slot: those of slot i begin at index i * [`MOST_COMBINED`].
    coefficients: Vec<u8>,
    /// Sums of the stored packets, by slot, and after them the sum of the packet that the recoder makes.
    sums: Symbols,
    /// Slot in which the next packet is stored.
    next: usize,
    made: Vec<u8>,
    random: Rng,
}

impl Recoder {
    /// Makes a recoder for symbols of up to `size` bytes, which stores and combines the latest `packets` packets (1 to
    /// [`MOST_COMBINED`]; other values are limited to this range). The same seed gives the same combinations.
    pub fn new(size: usize, packets: usize, seed: u64) -> Self {
        let packets = packets.clamp(1, MOST_COMBINED);
        Self {
            size,
            ranges: vec![(0, 0); packets],
            coefficients: vec![0; packets * MOST_COMBINED],
            sums: Symbols::new(packets + 1, size),
            next: 0,
            made: vec![0; MOST_COMBINED],
            random: Rng::with_seed(seed),
        }
    }

    /// Discards the stored packets, because another stream begins.
    pub fn begin_again(&mut self) {
        self.ranges.fill((0, 0));
        self.next = 0;
    }

    /// Adds a source symbol to the stored packets.
    ///
    /// # Errors
    /// The source symbol is longer than the recoder's symbol size.
    pub fn push_source(&mut self, number: u64, symbol: &[u8]) -> Result<(), Refused> {
        self.push(&Combination {
            first: number,
            coefficients: &[1],
            sum: symbol,
        })
    }

    /// Adds a combination to the stored packets.
    ///
    /// # Errors
    /// The combination is longer than the recoder's symbol size or has an invalid range; nothing changes then.
    pub fn push(&mut self, combination: &Combination<'_>) -> Result<(), Refused> {
        let Combination {
            first,
            coefficients,
            sum,
        } = *combination;
        if sum.len() > self.size {
            return Err(Refused::TooLong);
        }
        let fits = (1..=MOST_COMBINED).contains(&coefficients.len());
        if !fits || first.checked_add(coefficients.len() as u64).is_none() {
            return Err(Refused::Range);
        }
        let place = self.next;
        self.next = (place + 1) % self.ranges.len();
        self.ranges[place] = (first, coefficients.len());
        self.coefficients[place * MOST_COMBINED..][..coefficients.len()]
            .copy_from_slice(coefficients);
        self.sums.set(place, sum);
        Ok(())
    }

    /// Returns a random combination of those stored packets whose source symbols are all among the newest
    /// [`MOST_COMBINED`], the largest range of one combination. Returns none before the first packet.
    pub fn combine(&mut self) -> Option<Combination<'_>> {
        let held = || self.ranges.iter().filter(|(_, length)| *length > 0);
        let end = held().map(|(first, length)| first + *length as u64).max()?;
        let oldest = end.saturating_sub(MOST_COMBINED as u64);
        let within = |first: u64, length: usize| length > 0 && first >= oldest;
        let begin = held()
            .filter(|(first, length)| within(*first, *length))
            .map(|(first, _)| *first)
            .min()?;
        let count = (end - begin) as usize;
        self.made[..count].fill(0);
        let sum = self.ranges.len();
        self.sums.clear(sum);
        for (place, (first, length)) in self.ranges.iter().enumerate() {
            if !within(*first, *length) {
                continue;
            }
            let factor = self.random.u8(1..);
            let start = (first - begin) as usize;
            let own = &self.coefficients[place * MOST_COMBINED..][..*length];
            for (made, own) in self.made[start..].iter_mut().zip(own) {
                *made ^= product(factor, *own);
            }
            self.sums.add_own_multiple(sum, factor, place);
        }
        Some(Combination {
            first: begin,
            coefficients: &self.made[..count],
            sum: self.sums.get(sum, self.sums.length(sum)),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_recoder_combines_only_near_packets_and_refuses_invalid_packets() {
        let mut recoder = Recoder::new(4, 8, 1);
        assert_eq!(recoder.combine(), None);
        recoder.push_source(1, &[1, 2, 3]).unwrap();
        recoder.push_source(1_000, &[4]).unwrap();
        recoder.push_source(1_100, &[5, 6]).unwrap();
        let made = recoder.combine().unwrap();
        assert_eq!(
            (made.first, made.coefficients.len(), made.sum.len()),
            (1_000, 101, 2)
        );
        assert_eq!(recoder.push_source(1, &[0; 5]), Err(Refused::TooLong));
        assert_eq!(recoder.push_source(u64::MAX, &[]), Err(Refused::Range));
        let none = Combination {
            first: 0,
            coefficients: &[],
            sum: &[],
        };
        assert_eq!(recoder.push(&none), Err(Refused::Range));
        assert_eq!(recoder.combine().unwrap().first, 1_000);
        recoder.begin_again();
        assert_eq!(recoder.combine(), None);
    }
}
