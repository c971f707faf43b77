//! Sets of blocks of a segment (a pcapng file of the ring on disk).

/// A set of blocks of a segment (a pcapng file of the ring on disk).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocks {
    words: Vec<u64>,
    len: usize,
}

impl Blocks {
    /// Returns the empty set for a segment of `len` blocks.
    pub fn none(len: usize) -> Self {
        Self {
            words: vec![0; len.div_ceil(64)],
            len,
        }
    }

    /// Returns the set of all blocks of a segment of `len` blocks.
    pub fn all(len: usize) -> Self {
        let mut all = Self::none(len);
        for block in 0..len {
            all.words[block / 64] |= 1 << (block % 64);
        }
        all
    }

    /// Returns the number of all blocks of the segment, in the set or not.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no block is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Adds a block; returns none if the index of the block is not below the number of blocks.
    pub fn add(&mut self, block: usize) -> Option<()> {
        (block < self.len).then(|| self.words[block / 64] |= 1 << (block % 64))
    }

    /// Removes from this set the blocks that are not in `other`.
    pub fn keep(&mut self, other: &Self) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= other;
        }
    }

    /// Adds all blocks of `other` to this set.
    pub fn join(&mut self, other: &Self) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word |= other;
        }
    }

    /// Iterates over the blocks in the set, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.len).filter(|block| self.words[block / 64] >> (block % 64) & 1 != 0)
    }
}
