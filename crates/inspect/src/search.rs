//! One search for all patterns of a group: with an automaton of the `aho-corasick` crate, or with Vectorscan if that is
//! installed.

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::dfa::DFA;
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, BuildError, Span};
use taut_sys::{PatternDatabase, PatternScratch};

/// The implementation of pattern searches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Matcher {
    /// Patterns are searched with an automaton that reads each byte once.
    #[default]
    AhoCorasick,
    /// Patterns are searched with Vectorscan, which reads many bytes in one step.
    Vectorscan,
}

impl Matcher {
    /// Checks whether the matcher is available on this machine.
    ///
    /// # Errors
    /// Returns a text about the missing library.
    pub fn check(self) -> Result<(), String> {
        Search::new(&[b"a pattern".to_vec()], self).map(drop)
    }
}

/// The compiled patterns of a group of rules; ASCII letters match in either case.
#[derive(Debug)]
pub enum Search {
    /// An automaton that is a table of states.
    Table(Started<DFA>),
    /// A smaller automaton that follows links from state to state.
    Links(Started<NFA>),
    /// A database of patterns that Vectorscan has compiled.
    Vectorscan(PatternDatabase),
}

/// An automaton and its start state.
#[derive(Debug)]
pub struct Started<A> {
    automaton: A,
    start: StateID,
}

impl<A: Automaton> Started<A> {
    fn new(automaton: Result<A, BuildError>) -> Result<Self, String> {
        let automaton = automaton.map_err(|e| e.to_string())?;
        let start = automaton.start_state(Anchored::No);
        start
            .map(|start| Self { automaton, start })
            .map_err(|e| e.to_string())
    }

    /// Calls `each` for every position at which a pattern ends. The search function of `aho-corasick` is not used: it
    /// returns at each match and is called through a function table. For most packets these calls would take longer
    /// than the search itself.
    #[inline]
    fn find(&self, data: &[u8], each: &mut impl FnMut(usize, usize)) {
        let Self { automaton, start } = self;
        let skip = automaton.prefilter();
        // Offset at which the next pattern may begin. The search skips the bytes before this offset while no pattern
        // has begun.
        let next = |at: usize| match skip {
            None => Some(at),
            Some(skip) => {
                let rest = Span::from(at..data.len());
                skip.find_in(data, rest).into_option()
            }
        };
        let Some(mut at) = next(0) else { return };
        let mut state = *start;
        while let Some(&byte) = data.get(at) {
            state = automaton.next_state(Anchored::No, state, byte);
            at += 1;
            if !automaton.is_special(state) {
                continue;
            }
            if automaton.is_match(state) {
                for which in 0..automaton.match_len(state) {
                    each(automaton.match_pattern(state, which).as_usize(), at);
                }
            } else if automaton.is_start(state) {
                match next(at) {
                    Some(place) => at = place,
                    None => return,
                }
            }
        }
    }
}

/// Maximum number of bytes of all patterns of a group for a table of states, which is faster, but larger.
const TABLE_BYTES: usize = 8 * 1024;

impl Search {
    /// Compiles patterns, which are identified by their positions.
    ///
    /// # Errors
    /// Returns a text if there are too many patterns, one is empty, or the matcher is unavailable on this machine.
    pub fn new(patterns: &[Vec<u8>], matcher: Matcher) -> Result<Self, String> {
        if matcher == Matcher::Vectorscan {
            let made = PatternDatabase::new(patterns).map(Self::Vectorscan);
            return made.map_err(|e| e.to_string());
        }
        let bytes: usize = patterns.iter().map(Vec::len).sum();
        if bytes <= TABLE_BYTES {
            let mut builder = DFA::builder();
            let table = builder.ascii_case_insensitive(true).build(patterns);
            Started::new(table).map(Self::Table)
        } else {
            let mut builder = NFA::builder();
            let links = builder.ascii_case_insensitive(true).build(patterns);
            Started::new(links).map(Self::Links)
        }
    }

    /// Calls `each` for every position at which a pattern ends, with the index of the pattern and the offset after its
    /// last byte. If there is no memory for the search, returns false and calls nothing.
    #[inline]
    pub fn find(
        &self,
        scratch: &mut Scratch,
        data: &[u8],
        each: &mut impl FnMut(usize, usize),
    ) -> bool {
        match self {
            Self::Table(table) => table.find(data, each),
            Self::Links(links) => links.find(data, each),
            Self::Vectorscan(database) => return database.find(&mut scratch.0, data, each),
        }
        true
    }

    /// Returns the number of bytes of memory that the compiled patterns use.
    pub fn memory_bytes(&self) -> usize {
        match self {
            Self::Table(table) => table.automaton.memory_usage(),
            Self::Links(links) => links.automaton.memory_usage(),
            Self::Vectorscan(database) => database.memory_bytes(),
        }
    }
}

/// The scratch memory of searches, for one worker.
#[derive(Debug, Default)]
pub struct Scratch(PatternScratch);

impl Scratch {
    /// Allocates the scratch memory for the given searches.
    pub fn new<'a>(searches: impl Iterator<Item = &'a Search>) -> Self {
        let mut scratch = PatternScratch::default();
        for search in searches {
            if let Search::Vectorscan(database) = search
                && scratch.make_room(database).is_err()
            {
                // With empty scratch memory, each search reports that it has no memory.
                return Self::default();
            }
        }
        Self(scratch)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn ends(search: &Search, data: &[u8]) -> Vec<(usize, usize)> {
        let mut scratch = Scratch::new(std::iter::once(search));
        let mut ends = Vec::new();
        let each = &mut |pattern, end| ends.push((end, pattern));
        assert!(search.find(&mut scratch, data, each));
        ends.sort_unstable();
        ends
    }

    /// Returns bytes of which some differ only by case.
    fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![4 => prop::sample::select(&b"abAB\0\xff[\\."[..]), 1 => any::<u8>()];
        vec(byte, 1..most)
    }

    #[test]
    fn patterns_near_the_end_of_the_data_are_found() {
        let mut random = fastrand::Rng::with_seed(7);
        let patterns: Vec<Vec<u8>> = (0..300)
            .map(|number| {
                let word: String = (0..random.usize(2..10))
                    .map(|_| random.lowercase())
                    .collect();
                format!("{word}{number:04x}").into_bytes()
            })
            .collect();
        let searches = match Search::new(&patterns, Matcher::Vectorscan) {
            Err(reason) => return println!("skipped: {reason}"),
            Ok(other) => [Search::new(&patterns, Matcher::AhoCorasick).unwrap(), other],
        };
        let text =
            b"Accept: text/html, and what else is written here is of no importance.\r\n".repeat(7);
        for (number, pattern) in patterns.iter().enumerate() {
            for len in [pattern.len() + number % 9, 22, 100, 470] {
                let len = len.max(pattern.len());
                let mut data = text[..len].to_vec();
                let at = (len - pattern.len()).saturating_sub(number % 40);
                data[at..][..pattern.len()].copy_from_slice(pattern);
                let found = searches.each_ref().map(|search| ends(search, &data));
                assert_eq!(found[0], found[1], "{:?}", String::from_utf8_lossy(&data));
                assert!(found[0].contains(&(at + pattern.len(), number)));
            }
        }
    }

    proptest! {
        #[test]
        fn vectorscan_and_aho_corasick_find_equal_patterns_at_equal_offsets(
            patterns in vec(bytes(6), 1..12),
            data in vec(bytes(40), 0..4),
        ) {
            let mut patterns = patterns;
            for pattern in &mut patterns {
                pattern.make_ascii_lowercase();
            }
            patterns.sort();
            patterns.dedup();
            let data = data.concat();
            let automaton = Search::new(&patterns, Matcher::AhoCorasick).unwrap();
            match Search::new(&patterns, Matcher::Vectorscan) {
                Err(reason) if reason.starts_with("needs") => println!("skipped: {reason}"),
                other => {
                    let other = other.unwrap();
                    prop_assert_eq!(ends(&automaton, &data), ends(&other, &data));
                }
            }
        }
    }
}
