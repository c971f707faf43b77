//! Retired memory of a table that readers may still access: it is freed after the caller reports that no reader
//! accesses it any more (a grace period).

use std::collections::VecDeque;

/// Retired items, oldest first.
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
    /// Keeps an item that no new look-up can find.
    pub fn retire(&mut self, thing: T) {
        self.generation += 1;
        self.waiting.push_back((self.generation, thing));
    }

    /// Returns the number of the last retired item.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the items that were retired up to `generation`, one by one.
    pub fn quiesced(&mut self, generation: u64) -> impl Iterator<Item = T> {
        let over = self
            .waiting
            .partition_point(|(retired, _)| *retired <= generation);
        self.waiting.drain(..over).map(|(_, thing)| thing)
    }

    /// Returns the number of waiting items.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }
}
