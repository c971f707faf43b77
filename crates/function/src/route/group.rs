//! Next hops of one route that share its flows: a flow keeps its next hop for as long as that is there. (RFC 2992 has
//! hashing of flows; that only flows of a next hop that goes move is what Linux calls resilient next-hop groups.)

use super::hop::BUCKETS;

/// Who has which share of the flows, by number of the member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    is_there: Vec<bool>,
    buckets: [u8; BUCKETS],
}

impl Group {
    /// A group of as many members as there are values, which say who is there.
    pub fn new(is_there: Vec<bool>) -> Self {
        let members = is_there.len().max(1);
        let mut group = Self {
            is_there,
            buckets: std::array::from_fn(|bucket| (bucket % members) as u8),
        };
        group.share_out();
        group
    }

    pub fn buckets(&self) -> &[u8; BUCKETS] {
        &self.buckets
    }

    /// Says whether a member is there from now on.
    pub fn set(&mut self, member: usize, is_there: bool) {
        if let Some(before) = self.is_there.get_mut(member)
            && *before != is_there
        {
            *before = is_there;
            self.share_out();
        }
    }

    /// Gives shares of members that are not there to those who have fewest, and so many to those who are new that nobody
    /// has more than one share more than another one. While nobody is there, all stays as it is.
    fn share_out(&mut self) {
        let present: Vec<usize> = (0..self.is_there.len())
            .filter(|member| self.is_there[*member])
            .collect();
        if present.is_empty() {
            return;
        }
        let mut shares = vec![0_usize; self.is_there.len()];
        for member in self.buckets {
            shares[usize::from(member)] += 1;
        }
        loop {
            let fewest = present.iter().copied().min_by_key(|member| shares[*member]);
            let most = present.iter().copied().max_by_key(|member| shares[*member]);
            let (Some(fewest), Some(most)) = (fewest, most) else {
                return;
            };
            let absent = |member: u8| !self.is_there[usize::from(member)];
            let from_absent = self.buckets.iter().position(|member| absent(*member));
            let bucket = match from_absent {
                Some(bucket) => bucket,
                None if shares[most] > shares[fewest] + 1 => {
                    match self.buckets.iter().position(|it| usize::from(*it) == most) {
                        Some(bucket) => bucket,
                        None => return,
                    }
                }
                None => return,
            };
            shares[usize::from(self.buckets[bucket])] -= 1;
            shares[fewest] += 1;
            self.buckets[bucket] = fewest as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(group: &Group) -> Vec<usize> {
        let of = |member: usize| {
            group
                .buckets
                .iter()
                .filter(move |it| usize::from(**it) == member)
        };
        (0..group.is_there.len())
            .map(|member| of(member).count())
            .collect()
    }

    #[test]
    fn only_flows_of_who_goes_move_and_who_comes_gets_its_part() {
        let mut group = Group::new(vec![true; 4]);
        assert_eq!(shares(&group), [16; 4]);
        let before = group.clone();
        group.set(2, false);
        assert_eq!(shares(&group)[2], 0);
        for (bucket, (now, then)) in group.buckets.iter().zip(before.buckets).enumerate() {
            assert!(*now == then || then == 2, "bucket {bucket}");
        }
        let few = shares(&group);
        assert!(
            few.iter()
                .enumerate()
                .all(|(member, n)| member == 2 || (21..=22).contains(n)),
            "{few:?}"
        );
        let before = group.clone();
        group.set(2, true);
        assert_eq!(shares(&group), [16; 4]);
        let moved = group
            .buckets
            .iter()
            .zip(before.buckets)
            .filter(|(now, then)| *now != then);
        assert_eq!(moved.count(), 16);
        // With nobody there all stays, so that the slow path sees whom to ask for.
        (0..4).for_each(|member| group.set(member, false));
        assert_eq!(shares(&group).iter().sum::<usize>(), BUCKETS);
    }

    #[test]
    fn one_who_is_there_has_all() {
        let group = Group::new(vec![false, true, false]);
        assert_eq!(shares(&group), [0, BUCKETS, 0]);
    }
}
