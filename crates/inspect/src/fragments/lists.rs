//! Lists through the places of a table: doubly linked, in memory made once, so that each step costs the same however many there are.

/// Number of no place.
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

/// Lists of the places of a table. A place is in one of them at most.
#[derive(Debug)]
pub(super) struct Lists {
    ends: Box<[Ends]>,
    links: Box<[Links]>,
}

impl Lists {
    /// Makes that many empty lists through that many places.
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

    /// Puts a place that is in none of the lists at the end of one.
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

    /// Takes a place out of the list that it is in.
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

    /// Number of places in a list.
    #[inline]
    pub fn len(&self, list: usize) -> usize {
        self.ends[list].len as usize
    }

    /// Goes through a list from its first place on.
    #[inline]
    pub fn iter(&self, list: usize) -> impl Iterator<Item = usize> {
        let some = |place: u32| (place != NONE).then_some(place as usize);
        std::iter::successors(some(self.ends[list].first), move |&place| {
            some(self.links[place].behind)
        })
    }

    /// The place that has been in a list for the longest time.
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
        fn places_leave_from_anywhere_and_the_others_keep_their_order(
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
