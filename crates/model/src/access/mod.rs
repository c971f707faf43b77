//! The access model: the cycles of one random memory access, by the size of the accessed structure. It follows from the
//! sizes and latencies of caches and memory. (Gallenmüller 2021, section 4.1.3, Table 4.2, Fig. 4.4; section 5.2.2 for
//! effective sizes.)
//!
//! Accesses are uniform, and the fastest caches hold as much of the structure as they can. For a structure of `S`
//! bytes, level `i` serves the share `h_i = (min(S, C_i) - min(S, C_(i-1))) / S` of the accesses. `C_i` is the total
//! capacity of the levels up to level `i`, and `l_i` is the latency of level `i`. An access costs `sum h_i l_i`.
//!
//! The model extends the paper by exclusive caches, whose sizes add up, and by the share of each cache that a structure
//! really gets. It also covers the reach of translation buffers, and several structures that share the caches. With the
//! steepness `k`, the share `(C_i / S)^k` of the accesses hits in the caches up to level `i`; `k` is 1 for independent
//! accesses. Costs are measured by walking a list in a cycle, which returns to each element after all others. If the
//! list is a little longer than a cache that evicts the oldest element, the cache always evicts the element that is
//! needed next. The cost then rises more steeply with the size of the structure.

mod edge;
mod error;
mod fit;
mod point;
mod trial;

pub use edge::Edge;
pub use error::{LevelErrors, errors_by_level};
pub use fit::fit;
pub use point::Point;
pub use trial::AccessFit;

use crate::estimate::{WrongValue, not_negative, positive};
use crate::model_file::{Factor, Shape};

/// Caches of Sandy and Ivy Bridge: name, bytes, cycles of an access. (Gallenmüller 2021, Table 4.2. For L3 the table
/// states 26 to 31 cycles; 29 is the middle, 28.5, rounded up.)
pub const TABLE_4_2: [(&str, f64, f64); 3] = [
    ("L1", 32.0 * 1024.0, 4.0),
    ("L2", 256.0 * 1024.0, 12.0),
    ("L3", 8.0 * 1024.0 * 1024.0, 29.0),
];
/// Cycles of an access to memory (DDR3-1333), as measured on the machines of Table 4.2.
pub const TABLE_4_2_MEMORY_CYCLES: f64 = 250.0;
/// Cycles that the loop around an access takes in the published chain model.
pub const PUBLISHED_LOADER_CYCLES: f64 = 10.0;
/// Share of each cache that the published chain model assumes.
pub const PUBLISHED_SHARE: f64 = 0.85;

/// Name of the variable that contains the size of a structure, bytes, in models and tables.
pub const STRUCTURE: &str = "structure_bytes";

/// Relation of a cache to the smaller caches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Inclusion {
    /// The cache also holds the contents of the smaller caches: the levels up to it hold as much as its own size.
    #[default]
    Inclusive,
    /// The cache does not hold the contents of the smaller caches: the levels up to it hold the sum of their sizes.
    Exclusive,
}

/// A cache of a memory hierarchy.
#[derive(Debug, Clone, PartialEq)]
pub struct Level {
    /// Name of the cache, such as `L2`.
    pub name: String,
    /// Size of the cache, bytes.
    pub size_bytes: f64,
    /// Cycles of an access that hits the cache.
    pub latency_cycles: f64,
    /// Share of the cache that the structure gets, as a fraction of its size.
    pub share: f64,
    /// Steepness of the rise in cycles where structures outgrow the cache: 1 for independent accesses.
    pub steepness: f64,
}

impl Level {
    /// Returns a cache that a single structure uses entirely.
    pub fn whole(name: &str, size_bytes: f64, latency_cycles: f64) -> Self {
        Self {
            name: name.to_owned(),
            size_bytes,
            latency_cycles,
            share: 1.0,
            steepness: 1.0,
        }
    }
}

/// A translation lookaside buffer (TLB).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Translation {
    /// Number of pages that the buffer holds.
    pub entries: u32,
    /// Size of a page, bytes.
    pub page_bytes: f64,
    /// Cycles that a translation miss adds to an access.
    pub miss_cycles: f64,
}

impl Translation {
    /// Returns the bytes that the buffer's pages cover.
    pub fn reach_bytes(&self) -> f64 {
        f64::from(self.entries) * self.page_bytes
    }
}

/// The caches and the memory that a core accesses.
#[derive(Debug, Clone, PartialEq)]
pub struct Hierarchy {
    levels: Vec<Level>,
    memory_cycles: f64,
    inclusion: Inclusion,
    loader_cycles: f64,
    translations: Vec<Translation>,
}

/// A structure that packets access.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Structure {
    /// Size of the structure, bytes.
    pub bytes: f64,
    /// Accesses to the structure per packet.
    pub accesses: f64,
}

impl Hierarchy {
    /// Returns a hierarchy of `levels`, the smallest cache first, followed by memory.
    ///
    /// # Errors
    /// [`WrongValue`] for sizes, latencies, shares and steepness that are not above 0 and sizes that do not ascend.
    pub fn new(
        levels: Vec<Level>,
        memory_cycles: f64,
        inclusion: Inclusion,
    ) -> Result<Self, WrongValue> {
        let mut before = 0.0;
        for level in &levels {
            let size = positive("a cache (bytes)", level.size_bytes)?;
            positive("bytes of a cache beyond the one before it", size - before)?;
            positive("latency of a cache (cycles)", level.latency_cycles)?;
            positive("share of a cache", level.share)?;
            positive("steepness of a step", level.steepness)?;
            before = size;
        }
        Ok(Self {
            levels,
            memory_cycles: positive("latency of memory (cycles)", memory_cycles)?,
            inclusion,
            loader_cycles: 0.0,
            translations: Vec::new(),
        })
    }

    /// Returns the hierarchy of Table 4.2; the structure gets `share` of each cache.
    ///
    /// # Errors
    /// [`WrongValue`] for a share that is not above 0.
    pub fn published(share: f64) -> Result<Self, WrongValue> {
        let level = |(name, size_bytes, latency_cycles): (&str, f64, f64)| Level {
            name: name.to_owned(),
            size_bytes,
            latency_cycles,
            share,
            steepness: 1.0,
        };
        let levels = TABLE_4_2.map(level).into();
        Self::new(levels, TABLE_4_2_MEMORY_CYCLES, Inclusion::Inclusive)
    }

    /// Adds `cycles` to each access: the cost of the loop around it in the measurement.
    ///
    /// # Errors
    /// [`WrongValue`] for negative cycles.
    pub fn with_loader(mut self, cycles: f64) -> Result<Self, WrongValue> {
        self.loader_cycles = not_negative("cycles of the loop around an access", cycles)?;
        Ok(self)
    }

    /// Adds a translation buffer (TLB).
    ///
    /// # Errors
    /// [`WrongValue`] for a buffer without pages, and for negative cycles.
    pub fn with_translation(mut self, translation: Translation) -> Result<Self, WrongValue> {
        positive(
            "reach of a translation buffer (bytes)",
            translation.reach_bytes(),
        )?;
        not_negative("a missed translation (cycles)", translation.miss_cycles)?;
        self.translations.push(translation);
        Ok(self)
    }

    /// Returns the caches, the smallest first.
    pub fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// Returns the cycles of an access to memory.
    pub fn memory_cycles(&self) -> f64 {
        self.memory_cycles
    }

    /// Returns the cycles of an access that hits in the cache with index `level`, or in memory for the index after the
    /// last cache. The loop around the access is included.
    pub fn level_cycles(&self, level: usize) -> f64 {
        let latency = self
            .levels
            .get(level)
            .map_or(self.memory_cycles, |level| level.latency_cycles);
        latency + self.loader_cycles
    }

    /// Returns the cycles of a random access to a structure that shares the caches with no other structure.
    ///
    /// # Errors
    /// [`WrongValue`] for a size that is not above 0.
    pub fn cycles(&self, bytes: f64) -> Result<f64, WrongValue> {
        let bytes = positive("a structure (bytes)", bytes)?;
        Ok(self.sum(|capacity| (capacity / bytes).min(1.0)))
    }

    /// Returns the cycles of a random access to each of several structures that share the caches. Structures with more
    /// accesses per byte get more cache space. (Che, Tung and Wang's approximation of an LRU cache, 2002; for a single
    /// structure it equals [`Hierarchy::cycles`].)
    ///
    /// # Errors
    /// [`WrongValue`] for sizes that are not above 0 and accesses that are negative.
    pub fn cycles_shared(&self, structures: &[Structure]) -> Result<Vec<f64>, WrongValue> {
        for structure in structures {
            positive("a structure (bytes)", structure.bytes)?;
            not_negative("accesses per packet", structure.accesses)?;
        }
        let of = |index: usize| self.sum(|capacity| shared(structures, capacity)[index]);
        Ok((0..structures.len()).map(of).collect())
    }

    /// Returns the terms of the model for a model file: one for each level, for memory and for translation misses. A
    /// term is the cycles of one access, by `structure_bytes`, with the shares of this hierarchy.
    pub fn shapes(&self) -> Vec<Shape> {
        let shape = |name: &str, from: Edge, to: Edge| {
            let variable = STRUCTURE.to_owned();
            Shape::new(
                name,
                "cycles/access",
                vec![Factor::Level { variable, from, to }],
            )
        };
        let mut shapes = Vec::new();
        let mut from = Edge::NOTHING;
        for (level, to) in self.levels.iter().zip(self.edges()) {
            shapes.push(shape(&level.name, from, to));
            from = to;
        }
        shapes.push(shape("memory", from, Edge::ALL));
        for (number, translation) in (1..).zip(&self.translations) {
            let known = Edge::new(translation.reach_bytes());
            shapes.push(shape(&format!("translation {number}"), known, Edge::ALL));
        }
        shapes
    }

    /// Returns the mean cycles of an access: the sum over all levels of memory and over translation misses. `found`
    /// returns the share of accesses that hit in levels of a given total capacity, bytes.
    fn sum(&self, found: impl Fn(f64) -> f64) -> f64 {
        let (mut cycles, mut so_far) = (self.loader_cycles, 0.0);
        for (level, capacity) in self.levels.iter().zip(self.capacities()) {
            let within = found(capacity).powf(level.steepness);
            cycles += (within - so_far) * level.latency_cycles;
            so_far = within;
        }
        cycles += (1.0 - so_far) * self.memory_cycles;
        let missed = self
            .translations
            .iter()
            .map(|translation| (1.0 - found(translation.reach_bytes())) * translation.miss_cycles);
        cycles + missed.sum::<f64>()
    }

    /// Returns the upper edge of each level.
    fn edges(&self) -> Vec<Edge> {
        let edges = self.levels.iter().zip(self.capacities());
        edges
            .map(|(level, bytes)| Edge {
                bytes,
                steepness: level.steepness,
            })
            .collect()
    }

    /// Returns, for each level, how many bytes of a structure this level and the faster ones hold together.
    fn capacities(&self) -> Vec<f64> {
        let mut so_far: f64 = 0.0;
        let capacities = self.levels.iter().map(|level| {
            let own = level.share * level.size_bytes;
            so_far = match self.inclusion {
                Inclusion::Inclusive => so_far.max(own),
                Inclusion::Exclusive => so_far + own,
            };
            so_far
        });
        capacities.collect()
    }
}

/// Returns, for each structure, the share of its accesses that hit in a shared cache of the given capacity.
fn shared(structures: &[Structure], capacity: f64) -> Vec<f64> {
    const HALVINGS: usize = 200;
    let all: f64 = structures.iter().map(|structure| structure.bytes).sum();
    if all <= capacity {
        return vec![1.0; structures.len()];
    }
    // Under LRU, a byte stays in the cache until other accesses have filled the cache. The search finds the time that
    // this takes.
    let found = |log_time: f64| {
        let time = log_time.exp();
        let share = |s: &Structure| 1.0 - (-s.accesses / s.bytes * time).exp();
        structures.iter().map(share).collect::<Vec<f64>>()
    };
    let (mut low, mut high) = (-50.0_f64, 100.0_f64);
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        let shares = found(middle);
        let held = shares
            .iter()
            .zip(structures)
            .map(|(share, s)| share * s.bytes);
        if held.sum::<f64>() < capacity {
            low = middle;
        } else {
            high = middle;
        }
    }
    found(low)
}

#[cfg(test)]
mod tests;
