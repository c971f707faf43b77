//! Memory that has left a table but that readers may still look at: kept until whoever calls says that none does.

use std::collections::VecDeque;

/// What has been retired, oldest first.
#[derive(Debug)]
pub(crate) struct Grace<T> {
    /// Number of things that were ever retired.
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
    /// Keeps what no new look-up can find.
    pub fn retire(&mut self, thing: T) {
        self.generation += 1;
        self.waiting.push_back((self.generation, thing));
    }

    /// Returns the number of the last thing that was retired.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns one thing after the other that was retired up to `generation`.
    pub fn quiesced(&mut self, generation: u64) -> impl Iterator<Item = T> {
        let over = self
            .waiting
            .partition_point(|(retired, _)| *retired <= generation);
        self.waiting.drain(..over).map(|(_, thing)| thing)
    }

    /// Returns how many things wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }
}
