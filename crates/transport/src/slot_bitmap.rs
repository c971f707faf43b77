//! A bitmap of the used slots of a ring. It finds the next used slot in a few steps, however far away that is.

/// Slots per word.
const WORD: usize = u64::BITS as usize;

/// A bitmap with two levels: one bit for each slot, and one bit for each word of slots in which any bit is set.
#[derive(Debug)]
pub(crate) struct Present {
    words: Vec<u64>,
    above: Vec<u64>,
}

impl Present {
    /// Makes a bitmap of `places` unused slots, a power of two.
    pub fn new(places: usize) -> Self {
        let words = places.div_ceil(WORD);
        Self {
            words: vec![0; words],
            above: vec![0; words.div_ceil(WORD)],
        }
    }

    pub fn set(&mut self, place: usize) {
        let word = place / WORD;
        self.words[word] |= 1 << (place % WORD);
        self.above[word / WORD] |= 1 << (word % WORD);
    }

    pub fn clear(&mut self, place: usize) {
        let word = place / WORD;
        self.words[word] &= !(1 << (place % WORD));
        if self.words[word] == 0 {
            self.above[word / WORD] &= !(1 << (word % WORD));
        }
    }

    /// Returns the first used slot from `place` on, wrapping around at the end; none if no slot is used.
    pub fn first_from(&self, place: usize) -> Option<usize> {
        self.at_or_behind(place).or_else(|| self.at_or_behind(0))
    }

    fn at_or_behind(&self, place: usize) -> Option<usize> {
        let word = place / WORD;
        let here = self.words[word] & (u64::MAX << (place % WORD));
        if here != 0 {
            return Some(word * WORD + here.trailing_zeros() as usize);
        }
        let behind = word + 1;
        let mut mask = u64::MAX << (behind % WORD);
        for above in behind / WORD..self.above.len() {
            let words = self.above[above] & mask;
            if words != 0 {
                let word = above * WORD + words.trailing_zeros() as usize;
                return Some(word * WORD + self.words[word].trailing_zeros() as usize);
            }
            mask = u64::MAX;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bitmap_and_linear_search_find_the_same_set_slot(
            size in 0..=16_u32,
            changes in prop::collection::vec((any::<u32>(), any::<bool>()), 0..60),
            from in any::<u32>(),
        ) {
            let places = 1 << size;
            let mut present = Present::new(places);
            let mut all = std::collections::BTreeSet::new();
            for (place, is_set) in changes {
                let place = place as usize % places;
                if is_set {
                    present.set(place);
                    all.insert(place);
                } else {
                    present.clear(place);
                    all.remove(&place);
                }
            }
            let from = from as usize % places;
            let expected = all.range(from..).next().or_else(|| all.first());
            prop_assert_eq!(present.first_from(from), expected.copied());
        }
    }
}
