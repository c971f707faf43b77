//! Retired memory of a table, which readers may still access. It is freed after a grace period: when the caller reports
//! that no reader accesses it any more.

use std::collections::VecDeque;

/// Retired items that wait for the end of their grace period, oldest first.
#[derive(Debug)]
pub(crate) struct Grace<T> {
    /// Number of items ever retired.
    generation: u64,
    waiting: VecDeque<(u64, T)>,
}

impl<T> Default for Grace<T> {
    fn default() -> Self {
        Self {
            generation: 0,
            waiting: VecDeque::new(),
        }
    }
}

impl<T> Grace<T> {
    /// Retires an item that new look-ups can no longer find.
    pub fn retire(&mut self, thing: T) {
        self.generation += 1;
        self.waiting.push_back((self.generation, thing));
    }

    /// Returns the number of items ever retired, which is the sequence number of the item that was retired last.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Removes the items whose sequence numbers are at most `generation`, and returns them one by one, oldest first.
    pub fn quiesced(&mut self, generation: u64) -> impl Iterator<Item = T> {
        let over = self
            .waiting
            .partition_point(|(retired, _)| *retired <= generation);
        self.waiting.drain(..over).map(|(_, thing)| thing)
    }

    /// Returns the number of retired items that are not freed yet.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }
}
