//! Doubly linked lists of the entries of a table. All memory is allocated once, and each operation takes constant time.

/// The index that means "no entry".
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Ends {
    first: u32,
    last: u32,
    len: u32,
}

#[derive(Debug, Clone, Copy)]
struct Links {
    before: u32,
    behind: u32,
}

/// Lists of the entries of a table. An entry is in at most one of the lists.
#[derive(Debug)]
pub(super) struct Lists {
    ends: Box<[Ends]>,
    links: Box<[Links]>,
}

impl Lists {
    /// Creates `lists` empty lists for a table with `places` entries.
    pub fn new(lists: usize, places: usize) -> Self {
        let empty = Ends {
            first: NONE,
            last: NONE,
            len: 0,
        };
        let alone = Links {
            before: NONE,
            behind: NONE,
        };
        Self {
            ends: vec![empty; lists].into(),
            links: vec![alone; places].into(),
        }
    }

    /// Appends an entry to a list. The entry must not be in any list.
    #[inline]
    pub fn push(&mut self, list: usize, place: usize) {
        let before = self.ends[list].last;
        self.links[place] = Links {
            before,
            behind: NONE,
        };
        match self.links.get_mut(before as usize) {
            Some(last) => last.behind = place as u32,
            None => self.ends[list].first = place as u32,
        }
        self.ends[list].last = place as u32;
        self.ends[list].len += 1;
    }

    /// Removes an entry from its list.
    #[inline]
    pub fn remove(&mut self, list: usize, place: usize) {
        let Links { before, behind } = self.links[place];
        match self.links.get_mut(before as usize) {
            Some(it) => it.behind = behind,
            None => self.ends[list].first = behind,
        }
        match self.links.get_mut(behind as usize) {
            Some(it) => it.before = before,
            None => self.ends[list].last = before,
        }
        self.ends[list].len -= 1;
    }

    /// Returns the number of entries in a list.
    #[inline]
    pub fn len(&self, list: usize) -> usize {
        self.ends[list].len as usize
    }

    /// Iterates over a list from its first entry on.
    #[inline]
    pub fn iter(&self, list: usize) -> impl Iterator<Item = usize> {
        let some = |place: u32| (place != NONE).then_some(place as usize);
        std::iter::successors(some(self.ends[list].first), move |&place| {
            some(self.links[place].behind)
        })
    }

    /// Returns the entry that has been in a list for the longest time; none if the list is empty.
    #[inline]
    pub fn first(&self, list: usize) -> Option<usize> {
        self.iter(list).next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn removing_an_entry_preserves_the_order_of_other_entries(
            steps in prop::collection::vec((0..3usize, 0..8usize), 0..100),
        ) {
            let mut lists = Lists::new(3, 8);
            let mut model = vec![Vec::new(); 3];
            for (list, place) in steps {
                match model.iter().position(|it: &Vec<usize>| it.contains(&place)) {
                    Some(here) => {
                        lists.remove(here, place);
                        model[here].retain(|it| *it != place);
                    }
                    None => {
                        lists.push(list, place);
                        model[list].push(place);
                    }
                }
                for (list, places) in model.iter().enumerate() {
                    prop_assert!(lists.iter(list).eq(places.iter().copied()));
                    prop_assert_eq!(lists.len(list), places.len());
                    prop_assert_eq!(lists.first(list), places.first().copied());
                }
            }
        }
    }
}
