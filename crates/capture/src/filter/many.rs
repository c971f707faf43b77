//! Evaluates many filters on a frame. For each position in the frame that filters test, one look-up in a small table
//! selects the filters to run.
//!
//! The needs of a filter (`needs.rs`) are alternatives, each a list of constraints. From each alternative, one
//! constraint is chosen: the one that the fewest frames meet and the fewest other filters require. A filter without
//! known needs is run for every frame.

use super::needs::{Constraint, Place, Size};
use super::{Filter, Needs};
use std::collections::HashMap;

/// Maximum number of filters in a set.
pub const MOST_FILTERS: usize = 4096;

const WORDS: usize = MOST_FILTERS / 64;

/// A set of filters that are evaluated together.
#[derive(Debug, Default)]
pub struct Many {
    filters: Vec<Filter>,
    /// Filters that are run for every frame.
    always: Vec<u16>,
    lookups: Vec<Lookup>,
    /// Indices of the filters to run; each slot of the hash table refers to a range of this list.
    candidates: Vec<u16>,
}

/// The error for too many filters in a set; the value is their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many filters ({0}): the maximum is {MOST_FILTERS}")]
pub struct TooManyFilters(pub usize);

/// The set of filters that match a frame. It is allocated once and filled for each frame.
#[derive(Debug, Clone)]
pub struct Matches {
    words: Box<[u64; WORDS]>,
    /// Number of words of the set, from the start, that may differ from 0.
    used: usize,
}

impl Default for Matches {
    fn default() -> Self {
        Self {
            words: Box::new([0; WORDS]),
            used: 0,
        }
    }
}

impl Matches {
    /// Returns true if no filter matches the frame.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.words[..self.used].iter().all(|word| *word == 0)
    }

    /// Returns true if the filter with the given index matches the frame.
    #[inline]
    pub fn contains(&self, filter: usize) -> bool {
        let word = self.words.get(filter / 64);
        word.is_some_and(|word| word & 1 << (filter % 64) != 0)
    }

    /// Iterates over the filters that match the frame, in ascending order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        let words = self.words[..self.used].iter().enumerate();
        words.flat_map(|(at, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(at * 64 + bit)
            })
        })
    }

    #[inline(always)]
    fn clear(&mut self, filters: usize) {
        self.words[..self.used].fill(0);
        self.used = filters.div_ceil(64);
    }

    #[inline(always)]
    fn insert(&mut self, filter: usize) {
        self.words[filter / 64 % WORDS] |= 1 << (filter % 64);
    }
}

impl Many {
    /// Creates a set of filters, which are identified by their positions in the list.
    ///
    /// # Errors
    /// Returns [`TooManyFilters`] if there are more than [`MOST_FILTERS`].
    pub fn new(filters: Vec<Filter>) -> Result<Self, TooManyFilters> {
        if filters.len() > MOST_FILTERS {
            return Err(TooManyFilters(filters.len()));
        }
        let mut many = Self {
            always: Vec::new(),
            lookups: Vec::new(),
            candidates: Vec::new(),
            filters,
        };
        let mut chosen: HashMap<Asked, HashMap<u32, Vec<u16>>> = HashMap::new();
        let shared = shared(many.filters.iter().map(Filter::needs));
        for (filter, needs) in (0..).zip(many.filters.iter().map(Filter::needs)) {
            if needs.are_met_by_all() {
                many.always.push(filter);
                continue;
            }
            for alternative in needs.alternatives() {
                // Among equally rare constraints, the one with the last position is chosen for every filter, so that
                // few positions have to be read.
                let rarest = alternative.iter().min_by_key(|c| {
                    let asked = Asked::by(c);
                    (shared[c] * commonness(c), std::cmp::Reverse(asked))
                });
                let Some(rarest) = rarest else { continue };
                let values = chosen.entry(Asked::by(rarest)).or_default();
                let filters = values.entry(rarest.value).or_default();
                if filters.last() != Some(&filter) {
                    filters.push(filter);
                }
            }
        }
        let mut chosen: Vec<_> = chosen.into_iter().collect();
        chosen.sort_unstable_by_key(|(asked, _)| *asked);
        for (asked, values) in chosen {
            let lookup = Lookup::new(asked, &values, &mut many.candidates);
            many.lookups.push(lookup);
        }
        Ok(many)
    }

    /// Returns the filters of the set, by index.
    pub fn filters(&self) -> &[Filter] {
        &self.filters
    }

    /// Finds the filters that match a frame, which had `wire_bytes` bytes on the wire; the stored frame may be shorter.
    #[inline]
    pub fn matches(&self, frame: &[u8], wire_bytes: u32, out: &mut Matches) {
        out.clear(self.filters.len());
        self.run(&self.always, frame, wire_bytes, out);
        for lookup in &self.lookups {
            if let Some((from, to)) = lookup.candidates(frame) {
                self.run(&self.candidates[from..to], frame, wire_bytes, out);
            }
        }
    }

    fn run(&self, candidates: &[u16], frame: &[u8], wire_bytes: u32, out: &mut Matches) {
        for candidate in candidates {
            let candidate = usize::from(*candidate);
            if self.filters[candidate].matches(frame, wire_bytes) {
                out.insert(candidate);
            }
        }
    }
}

/// Returns, for each constraint, the number of filters that require it.
fn shared<'a>(all: impl Iterator<Item = &'a Needs>) -> HashMap<&'a Constraint, u64> {
    let mut latest: HashMap<&Constraint, (u64, usize)> = HashMap::new();
    for (filter, needs) in all.enumerate() {
        for constraint in needs.alternatives().iter().flatten() {
            let (count, by) = latest.entry(constraint).or_insert((0, usize::MAX));
            *count += u64::from(*by != filter);
            *by = filter;
        }
    }
    let counted = latest.into_iter();
    counted
        .map(|(constraint, (count, _))| (constraint, count))
        .collect()
}

/// Returns a rough estimate of how common a constraint is among frames: addresses are rare, ports more frequent, and a
/// protocol occurs in every other frame.
fn commonness(constraint: &Constraint) -> u64 {
    let is_whole = constraint.mask == constraint.size.mask();
    match (constraint.size, constraint.place) {
        // The number is an EtherType, possibly after VLAN tags.
        (Size::Half, Place::Fixed(12 | 16 | 20 | 24)) => 256,
        // Complete words mostly belong to IPv6 addresses, in which zeros are common and other values are rare.
        (Size::Word, _) if is_whole && constraint.value == 0 => 64,
        (Size::Word, _) if is_whole => 1,
        (Size::Half, _) if is_whole => 4,
        (Size::Word, _) if constraint.value != 0 => 16,
        _ => 256,
    }
}

/// A number in a frame (its position, its size and the mask of its compared bits) whose value selects filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Asked {
    place: Place,
    size: Size,
    mask: u32,
}

impl Asked {
    fn by(constraint: &Constraint) -> Self {
        Self {
            place: constraint.place,
            size: constraint.size,
            mask: constraint.mask,
        }
    }
}

/// A hash table, with open addressing, from values at a position in the frame to the filters that require them.
#[derive(Debug)]
struct Lookup {
    asked: Asked,
    /// Slots of the table, a power of two, at least half of which are empty.
    slots: Box<[Slot]>,
    /// Number of bits by which a 32-bit hash is shifted right to give a slot.
    shift: u32,
}

/// A value, and the range of its filters in `candidates`. A slot without candidates is empty.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    value: u32,
    from: u32,
    to: u32,
}

impl Lookup {
    fn new(asked: Asked, values: &HashMap<u32, Vec<u16>>, candidates: &mut Vec<u16>) -> Self {
        let slots = (2 * values.len()).next_power_of_two();
        let mut lookup = Self {
            asked,
            slots: vec![Slot::default(); slots].into(),
            shift: 32 - slots.ilog2(),
        };
        let mut values: Vec<_> = values.iter().collect();
        values.sort_unstable();
        for (value, filters) in values {
            let from = candidates.len() as u32;
            candidates.extend(filters);
            let mut at = lookup.first(*value);
            while lookup.slots[at].to != 0 {
                at = (at + 1) % slots;
            }
            lookup.slots[at] = Slot {
                value: *value,
                from,
                to: candidates.len() as u32,
            };
        }
        lookup
    }

    /// Returns the slot at which the search for a value begins (D. Knuth, The Art of Computer Programming, volume 3,
    /// section 6.4: multiplicative hashing).
    #[inline(always)]
    fn first(&self, value: u32) -> usize {
        (value.wrapping_mul(0x9e37_79b1) >> self.shift) as usize
    }

    #[inline(always)]
    fn candidates(&self, frame: &[u8]) -> Option<(usize, usize)> {
        let Asked { place, size, mask } = self.asked;
        let value = place.load(size, frame)? & mask;
        let mut at = self.first(value);
        loop {
            let slot = self.slots[at & (self.slots.len() - 1)];
            if slot.to == 0 {
                return None;
            }
            if slot.value == value {
                return Some((slot.from as usize, slot.to as usize));
            }
            at += 1;
        }
    }
}
