//! Groups of next hops that share the flows of one route. A flow keeps its next hop for as long as the next hop exists.
//! (RFC 2992 describes hashing of flows; Linux calls groups resilient if only the flows of a removed next hop move.)

use super::hop::BUCKETS;

/// A next hop as a member of a group.
#[derive(Debug, Clone, PartialEq)]
struct Member {
    is_there: bool,
    /// The weight of the member relative to those of the other members.
    weight: u16,
}

/// A group of next hops: the member that owns each bucket of flows.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Group {
    members: Vec<Member>,
    buckets: [u8; BUCKETS],
}

impl Group {
    /// Creates a group. `members` has, for each member, true if it is present, and its weight.
    pub fn new(members: impl Iterator<Item = (bool, u16)>) -> Self {
        let member = |(is_there, weight)| Member { is_there, weight };
        let members: Vec<_> = members.map(member).collect();
        let count = members.len().max(1);
        let mut group = Self {
            members,
            buckets: std::array::from_fn(|bucket| (bucket % count) as u8),
        };
        group.share_out();
        group
    }

    pub fn buckets(&self) -> &[u8; BUCKETS] {
        &self.buckets
    }

    /// Sets whether a member of the group is present.
    pub fn set(&mut self, member: usize, is_there: bool) {
        if let Some(member) = self.members.get_mut(member)
            && member.is_there != is_there
        {
            member.is_there = is_there;
            self.share_out();
        }
    }

    /// Returns the number of buckets to which each member is entitled (may be a fraction), in proportion to its weight,
    /// but at least one; none for absent members.
    fn due(&self) -> Vec<Option<f64>> {
        let members = self.members.iter();
        let mut due: Vec<Option<f64>> = members.map(|it| it.is_there.then_some(0.0)).collect();
        loop {
            // The members entitled to more than one bucket divide the rest.
            let more = due.iter().zip(&self.members);
            let more = more.filter(|(due, member)| member.is_there && **due != Some(1.0));
            let weights: f64 = more.map(|(_, member)| f64::from(member.weight)).sum();
            let ones = due.iter().filter(|due| **due == Some(1.0)).count();
            let rest = BUCKETS.saturating_sub(ones) as f64;
            let mut are_all_heavy = true;
            for (due, member) in due.iter_mut().zip(&self.members) {
                if let Some(due) = due.as_mut().filter(|due| **due != 1.0) {
                    let wanted = rest * f64::from(member.weight) / weights;
                    are_all_heavy &= wanted >= 1.0;
                    *due = wanted.max(1.0);
                }
            }
            if are_all_heavy {
                return due;
            }
        }
    }

    /// Assigns buckets to the members that are present. The excess of a member is the number of its buckets minus the
    /// number from [`Group::due`]. Each bucket of an absent member goes to the member with the least excess. Other
    /// buckets move only while the excess of one member is more than one above that of another. Nothing changes while
    /// no member is present.
    fn share_out(&mut self) {
        /// The tolerance for sums of fractions, which are not exact.
        const CLOSE: f64 = 1e-6;
        // This is the excess of each member; none for absent members.
        let mut excess: Vec<Option<f64>> = self.due();
        for due in excess.iter_mut().flatten() {
            *due = -*due;
        }
        for member in self.buckets {
            if let Some(excess) = &mut excess[usize::from(member)] {
                *excess += 1.0;
            }
        }
        loop {
            let mut least: Option<(usize, f64)> = None;
            let mut most: Option<(usize, f64)> = None;
            for (member, excess) in excess.iter().enumerate() {
                let Some(excess) = *excess else { continue };
                if least.is_none_or(|(_, it)| excess < it) {
                    least = Some((member, excess));
                }
                if most.is_none_or(|(_, it)| excess > it) {
                    most = Some((member, excess));
                }
            }
            let (Some((to, least)), Some((from, most))) = (least, most) else {
                return;
            };
            let absent = |member: &u8| excess[usize::from(*member)].is_none();
            let bucket = match self.buckets.iter().position(absent) {
                None if most - least > 1.0 + CLOSE => {
                    let of_from = |it: &u8| usize::from(*it) == from;
                    self.buckets.iter().position(of_from)
                }
                from_absent => from_absent,
            };
            let Some(bucket) = bucket else { return };
            for (member, change) in [(usize::from(self.buckets[bucket]), -1.0), (to, 1.0)] {
                if let Some(excess) = &mut excess[member] {
                    *excess += change;
                }
            }
            self.buckets[bucket] = to as u8;
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
        (0..group.members.len())
            .map(|member| of(member).count())
            .collect()
    }

    #[test]
    fn flows_move_only_while_their_next_hop_is_unavailable() {
        let mut group = Group::new([(true, 1); 4].into_iter());
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
        // A group without present members stays unchanged, so that the slow path knows which neighbours to request.
        (0..4).for_each(|member| group.set(member, false));
        assert_eq!(shares(&group).iter().sum::<usize>(), BUCKETS);
    }

    #[test]
    fn the_only_available_next_hop_receives_all_buckets() {
        let group = Group::new([(false, 1), (true, 1), (false, 1)].into_iter());
        assert_eq!(shares(&group), [0, BUCKETS, 0]);
    }

    #[test]
    fn buckets_are_proportional_to_weights_with_at_least_one_each() {
        let mut group = Group::new([(true, 3), (true, 1)].into_iter());
        assert_eq!(shares(&group), [48, 16]);
        group.set(0, false);
        assert_eq!(shares(&group), [0, BUCKETS]);
        group.set(0, true);
        assert_eq!(shares(&group), [48, 16]);
        let group = Group::new([(true, 256), (true, 1), (true, 2)].into_iter());
        assert_eq!(shares(&group), [62, 1, 1]);
    }

    #[test]
    fn bucket_counts_stay_near_the_weights_as_next_hops_change() {
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..200 {
            let count = random.usize(1..=80);
            let members: Vec<_> = (0..count)
                .map(|_| (random.bool(), random.u16(1..=256)))
                .collect();
            let mut group = Group::new(members.into_iter());
            for _ in 0..20 {
                let before = group.clone();
                let member = random.usize(..count);
                group.set(member, !before.members[member].is_there);
                let of_present = |group: &Group| {
                    let there = |it: &&u8| group.members[usize::from(**it)].is_there;
                    group.buckets.iter().filter(there).count()
                };
                let present = group.members.iter().filter(|it| it.is_there);
                let weights: f64 = present.clone().map(|it| f64::from(it.weight)).sum();
                if weights == 0.0 {
                    assert_eq!(group.buckets, before.buckets);
                    continue;
                }
                assert_eq!(of_present(&group), BUCKETS);
                let light = present
                    .clone()
                    .filter(|it| BUCKETS as f64 * f64::from(it.weight) / weights < 1.0);
                // Members that are entitled to less than one bucket get a complete one at the expense of the others.
                let bound = 1.0 + light.count() as f64;
                let has_room = present.clone().count() <= BUCKETS;
                let all = group.members.iter().zip(shares(&group));
                for (member, shares) in all.filter(|(member, _)| member.is_there) {
                    assert!(shares > 0 || !has_room);
                    let due = BUCKETS as f64 * f64::from(member.weight) / weights;
                    assert!((shares as f64 - due).abs() <= bound, "{shares} of {due}");
                }
            }
        }
    }
}
