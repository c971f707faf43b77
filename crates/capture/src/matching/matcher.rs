//! Matcher: matches the observations of packets at two places, A and B, in memory of a fixed size.

use super::Identity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use taut_sys::HashKey;

/// The settings of a [`Matcher`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Maximum time from the observation of a packet at A to that at B, ns. A packet that takes longer counts as lost.
    pub within_ns: u64,
    /// Maximum time by which a packet may be seen at B before it is seen at A, ns: the uncertainty of the order of
    /// observations. The setting has no effect if packets travel in both directions.
    pub before_ns: u64,
    /// True if packets travel in both directions: a packet that is first seen at B comes from B, and may arrive at A
    /// within the same time limit.
    pub both: bool,
    /// Maximum number of waiting packets at each place: packets that were seen at A and not yet at B, or at B and not
    /// yet at A.
    pub open: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            within_ns: Duration::from_secs(1).as_nanos() as u64,
            before_ns: Duration::from_millis(1).as_nanos() as u64,
            both: false,
            open: 1 << 20,
        }
    }
}

/// The result of matching a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The packet was seen at both places.
    Matched {
        /// True if the packet came from B; always false if packets travel in one direction only.
        from_b: bool,
        /// Index among all packets seen at the packet's origin, from 0.
        number: u64,
        /// Time from the observation at the packet's origin to that at the other place, ns; negative if the packet was
        /// seen at the other place first.
        time_ns: u64,
        /// Time from the packet's origin to the other place, ns; negative if the packet was seen at the other place
        /// first.
        delay_ns: i64,
        /// True if a packet that left the same origin later was seen earlier at the other place (RFC 4737, section
        /// 3.4).
        reordered: bool,
    },
    /// The packet was seen at A, and not at B within [`Settings::within_ns`].
    Lost {
        /// Index among all packets seen at A.
        number: u64,
        /// Time at which the packet was seen at A, ns.
        time_ns: u64,
    },
    /// The packet was seen at B and not at A: the device created or duplicated it, or it was seen at A too long ago. If
    /// packets travel in both directions, it may also have been lost on the path from B to A.
    Extra {
        /// Index among all packets seen at B.
        number: u64,
        /// Time at which the packet was seen at B, ns.
        time_ns: u64,
    },
}

/// The numbers of packets by the result of matching. At any time `seen_a` is `matched + lost + gave_up` plus the
/// [open](Matcher::open) packets, and `seen_b` is `matched + extra` plus the packets that wait at B.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    /// Packets seen at A.
    pub seen_a: u64,
    /// Packets seen at B.
    pub seen_b: u64,
    /// Packets seen at A and at B.
    pub matched: u64,
    /// Packets seen at A, and not at B within [`Settings::within_ns`].
    pub lost: u64,
    /// Packets seen at B but not at A, including those that were discarded at A.
    pub extra: u64,
    /// Observations made while an earlier packet with the same identity was still unmatched. They are matched first-in
    /// first-out, which may be wrong if a packet was lost or packets were reordered.
    pub ambiguous: u64,
    /// Packets seen at A that were discarded because the memory for waiting packets was full.
    pub gave_up: u64,
    /// Matched packets that were reordered.
    pub reordered: u64,
    /// Matched packets that were seen at their destination before they were seen at their origin.
    pub early: u64,
}

/// A matcher of packets seen at place A with the same packets seen at place B. Observations of both arrive in the order
/// of their times, except that one at B may be up to [`Settings::before_ns`] ahead of A.
///
/// Several observations of one identity are matched first-in first-out. Memory is allocated at the start, 56 bytes for
/// each packet that can wait at a place (the kernel provides it at first use). An observation takes constant time.
#[derive(Debug)]
pub struct Matcher {
    settings: Settings,
    /// Packets seen at A and not yet matched with an observation at B.
    at_a: Open,
    /// Packets seen at B and not yet matched with an observation at A.
    at_b: Open,
    counts: Counts,
    now_ns: u64,
    /// Highest index among the packets from A that arrived at B, and among the packets from B that arrived at A.
    highest: [Option<u64>; 2],
}

impl Matcher {
    /// Creates a matcher without observations.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            at_a: Open::new(settings.open),
            at_b: Open::new(settings.open),
            counts: Counts::default(),
            now_ns: 0,
            highest: [None; 2],
        }
    }

    /// Processes an observation of a packet at A; passes each result of matching to `each`.
    #[inline]
    pub fn at_a(&mut self, identity: Identity, time_ns: u64, each: &mut impl FnMut(Outcome)) {
        self.settle(time_ns, each);
        let number = self.counts.seen_a;
        self.counts.seen_a += 1;
        if let Some(seen) = self.at_b.take(identity) {
            self.matched(Seen { number, time_ns }, seen, each);
            return;
        }
        match self.at_a.put(identity, time_ns, number) {
            Put::Alone => {}
            Put::Behind => self.counts.ambiguous += 1,
            Put::Full => self.counts.gave_up += 1,
        }
    }

    /// Processes an observation of a packet at B; passes each result of matching to `each`.
    #[inline]
    pub fn at_b(&mut self, identity: Identity, time_ns: u64, each: &mut impl FnMut(Outcome)) {
        self.settle(time_ns, each);
        let number = self.counts.seen_b;
        self.counts.seen_b += 1;
        if let Some(seen) = self.at_a.take(identity) {
            self.matched(seen, Seen { number, time_ns }, each);
            return;
        }
        match self.at_b.put(identity, time_ns, number) {
            Put::Alone => {}
            Put::Behind => self.counts.ambiguous += 1,
            Put::Full => {
                self.counts.extra += 1;
                each(Outcome::Extra { number, time_ns });
            }
        }
    }

    #[inline]
    fn matched(&mut self, a: Seen, b: Seen, each: &mut impl FnMut(Outcome)) {
        let from_b = self.settings.both && b.time_ns < a.time_ns;
        let (from, to) = if from_b { (b, a) } else { (a, b) };
        let highest = &mut self.highest[usize::from(from_b)];
        let reordered = highest.is_some_and(|highest| from.number < highest);
        *highest = (*highest).max(Some(from.number));
        self.counts.matched += 1;
        self.counts.reordered += u64::from(reordered);
        self.counts.early += u64::from(to.time_ns < from.time_ns);
        each(Outcome::Matched {
            from_b,
            number: from.number,
            time_ns: from.time_ns,
            delay_ns: to.time_ns.wrapping_sub(from.time_ns) as i64,
            reordered,
        });
    }

    /// Returns true if an observation at B (`at_b`) or at A would match a packet of the given identity that waits at
    /// the other place.
    pub fn is_awaited(&mut self, at_b: bool, identity: Identity) -> bool {
        let other = if at_b { &mut self.at_a } else { &mut self.at_b };
        other.find(identity).is_some()
    }

    /// Passes to `each` the packets that can no longer be matched at `now_ns`, because their time limit has passed.
    #[inline]
    pub fn settle(&mut self, now_ns: u64, each: &mut impl FnMut(Outcome)) {
        self.now_ns = self.now_ns.max(now_ns);
        let Settings {
            within_ns,
            before_ns,
            both,
            ..
        } = self.settings;
        let before_ns = if both { within_ns } else { before_ns };
        let until_b = self.now_ns.saturating_sub(before_ns);
        let until_a = self.now_ns.saturating_sub(within_ns);
        self.settle_until(until_a, until_b, each);
    }

    /// Passes all packets that wait for a match to `each` as lost or extra: no more observations will arrive.
    pub fn finish(&mut self, each: &mut impl FnMut(Outcome)) {
        self.settle_until(u64::MAX, u64::MAX, each);
    }

    #[inline]
    fn settle_until(&mut self, until_a: u64, until_b: u64, each: &mut impl FnMut(Outcome)) {
        while let Some(Seen { number, time_ns }) = self.at_a.take_before(until_a) {
            self.counts.lost += 1;
            each(Outcome::Lost { number, time_ns });
        }
        while let Some(Seen { number, time_ns }) = self.at_b.take_before(until_b) {
            self.counts.extra += 1;
            each(Outcome::Extra { number, time_ns });
        }
    }

    /// Returns the numbers of packets by the result of matching, since the matcher was created.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the number of packets that were seen at A and not yet at B, and the number seen at B and not yet at A.
    pub fn open(&self) -> (u64, u64) {
        (u64::from(self.at_a.len), u64::from(self.at_b.len))
    }
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    number: u64,
    time_ns: u64,
}

enum Put {
    Alone,
    /// The entry was appended to the list of an older entry with the same identity.
    Behind,
    Full,
}

/// The index that means no entry. Entries have indices from 1, so that zeroed memory is an empty table.
const NONE: u32 = 0;

/// An observation that waits for a match. The bucket contains the oldest entry of each identity, which links to the
/// other entries of that identity.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    identity: Identity,
    time_ns: u64,
    number: u64,
    /// Index of the next entry of the hash bucket; in a free entry, the next free entry.
    next: u32,
    /// Index of the next entry of the same identity. In the oldest entry of an identity, `last` is the newest one.
    same: u32,
    last: u32,
    /// Index of the entry of any identity that was seen just before this one; `newer` is the entry that was seen just
    /// after it.
    older: u32,
    newer: u32,
}

/// The observations at one place that wait for a match: a hash table with chains, whose entries are also linked in
/// order of time.
#[derive(Debug)]
struct Open {
    /// Table entries in use, after a dummy entry at index 0.
    entries: Vec<Entry>,
    /// Maximum number of entries, without the dummy entry at index 0.
    most: usize,
    buckets: Vec<u32>,
    /// Secret key of the bucket hash: an attacker can compute identities, but not their buckets.
    hash_key: HashKey,
    /// Index of the first free entry. The entry that was released last is reused first, because its memory is in the
    /// cache.
    free: u32,
    len: u32,
    oldest: u32,
    newest: u32,
}

impl Open {
    fn new(most: u32) -> Self {
        let most = most.clamp(1, 1 << 28) as usize;
        // The vector never grows beyond this capacity, so it never moves; the kernel provides the memory at first use.
        let mut entries = Vec::with_capacity(most + 1);
        entries.push(Entry::default());
        Self {
            entries,
            most,
            buckets: vec![NONE; most.next_power_of_two()],
            hash_key: HashKey::default(),
            free: NONE,
            len: 0,
            oldest: NONE,
            newest: NONE,
        }
    }

    #[inline(always)]
    fn place_of(&self, identity: Identity) -> usize {
        let [one, other] = identity.0;
        let hash = self.hash_key.hash([(one, other)]);
        hash as usize & (self.buckets.len() - 1)
    }

    #[inline(always)]
    fn bucket(&mut self, identity: Identity) -> &mut u32 {
        let place = self.place_of(identity);
        &mut self.buckets[place]
    }

    #[inline(always)]
    fn entry(&mut self, at: u32) -> &mut Entry {
        &mut self.entries[at as usize]
    }

    /// Returns the oldest entry of an identity, and the entry before it in its bucket.
    #[inline]
    fn find(&mut self, identity: Identity) -> Option<(u32, u32)> {
        let (mut before, mut at) = (NONE, *self.bucket(identity));
        while at != NONE {
            let entry = &self.entries[at as usize];
            if entry.identity == identity {
                return Some((before, at));
            }
            (before, at) = (at, entry.next);
        }
        None
    }

    #[inline]
    fn put(&mut self, identity: Identity, time_ns: u64, number: u64) -> Put {
        let at = match self.free {
            NONE if self.entries.len() > self.most => return Put::Full,
            NONE => {
                self.entries.push(Entry::default());
                self.entries.len() as u32 - 1
            }
            free => {
                self.free = self.entry(free).next;
                free
            }
        };
        let oldest = self.find(identity);
        let newest = self.newest;
        *self.entry(at) = Entry {
            identity,
            time_ns,
            number,
            last: at,
            older: newest,
            ..Entry::default()
        };
        match newest {
            NONE => self.oldest = at,
            _ => self.entry(newest).newer = at,
        }
        self.newest = at;
        self.len += 1;
        if let Some((_, oldest)) = oldest {
            let last = std::mem::replace(&mut self.entry(oldest).last, at);
            self.entry(last).same = at;
            return Put::Behind;
        }
        let first = std::mem::replace(self.bucket(identity), at);
        self.entry(at).next = first;
        Put::Alone
    }

    /// Removes the oldest entry of an identity.
    #[inline]
    fn take(&mut self, identity: Identity) -> Option<Seen> {
        if self.len == 0 {
            return None;
        }
        let (before, at) = self.find(identity)?;
        let entry = *self.entry(at);
        // The next entry of the same identity replaces the removed one in the bucket.
        let heir = match entry.same {
            NONE => entry.next,
            same => {
                (self.entry(same).next, self.entry(same).last) = (entry.next, entry.last);
                same
            }
        };
        match before {
            NONE => *self.bucket(identity) = heir,
            before => self.entry(before).next = heir,
        }
        match entry.older {
            NONE => self.oldest = entry.newer,
            older => self.entry(older).newer = entry.newer,
        }
        match entry.newer {
            NONE => self.newest = entry.older,
            newer => self.entry(newer).older = entry.older,
        }
        self.entry(at).next = self.free;
        self.free = at;
        self.len -= 1;
        Some(Seen {
            number: entry.number,
            time_ns: entry.time_ns,
        })
    }

    /// Removes the oldest entry if it was seen before `until_ns`. The oldest entry of all is also the oldest one of its
    /// identity, so [`Open::take`] finds it.
    #[inline(always)]
    fn take_before(&mut self, until_ns: u64) -> Option<Seen> {
        if self.oldest == NONE {
            return None;
        }
        let entry = &self.entries[self.oldest as usize];
        if entry.time_ns >= until_ns {
            return None;
        }
        self.take(entry.identity)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn id(number: u64) -> Identity {
        Identity([number, !number])
    }

    /// Passes observations (true for one at B, identity, time in ns) to a matcher, and returns the results of matching.
    fn run(matcher: &mut Matcher, sightings: &[(bool, u64, u64)]) -> Vec<Outcome> {
        let mut found = Vec::new();
        for &(is_b, identity, time_ns) in sightings {
            let mut each = |it| found.push(it);
            match is_b {
                false => matcher.at_a(id(identity), time_ns, &mut each),
                true => matcher.at_b(id(identity), time_ns, &mut each),
            }
            assert_sums(matcher);
        }
        matcher.finish(&mut |it| found.push(it));
        assert_sums(matcher);
        assert_eq!(matcher.open(), (0, 0));
        found
    }

    #[track_caller]
    fn assert_sums(matcher: &Matcher) {
        let (counts, (a, b)) = (matcher.counts(), matcher.open());
        assert_eq!(
            counts.matched + counts.lost + counts.gave_up + a,
            counts.seen_a,
            "{counts:?}"
        );
        assert_eq!(
            counts.matched + counts.extra + b,
            counts.seen_b,
            "{counts:?}"
        );
    }

    fn matched(number: u64, time_ns: u64, delay_ns: i64, reordered: bool) -> Outcome {
        Outcome::Matched {
            from_b: false,
            number,
            time_ns,
            delay_ns,
            reordered,
        }
    }

    proptest! {
        /// The test device delays, drops, duplicates and reorders packets that all differ.
        #[test]
        fn packets_through_a_device_count_as_matched_lost_or_extra(
            packets in prop::collection::vec((0..200_u64, 0..900_000_u64, 0..20_u8), 1..300), made in 0..20_u64,
        ) {
            // (time, is at B, identity), and the expected outcomes.
            let (mut sightings, mut delays, mut lost, mut doubled) = (Vec::new(), Vec::new(), 0, 0);
            let mut time_ns = MS;
            for (number, (gap, delay, fate)) in packets.into_iter().enumerate() {
                time_ns += gap;
                sightings.push((time_ns, false, number as u64));
                if fate == 0 {
                    lost += 1;
                    continue;
                }
                let seen = time_ns + delay;
                sightings.push((seen, true, number as u64));
                delays.push((number as u64, seen, time_ns, delay as i64));
                if fate == 1 {
                    sightings.push((seen + 5, true, number as u64));
                    doubled += 1;
                }
            }
            for number in 0..made {
                sightings.push((number, true, 1_000_000 + number));
            }
            // At equal times A comes first, as a packet is at A before it is at B.
            sightings.sort();
            delays.sort();
            let mut overtaken = 0;
            let mut by_departure = delays.clone();
            by_departure.sort_by_key(|it| (it.1, it.0));
            let mut highest = None;
            for it in &by_departure {
                overtaken += u64::from(highest.is_some_and(|highest| it.0 < highest));
                highest = highest.max(Some(it.0));
            }
            let sightings: Vec<_> = sightings.into_iter().map(|(time, is_b, it)| (is_b, it, time)).collect();
            let mut matcher = Matcher::new(Settings { within_ns: MS, open: 1024, ..Settings::default() });
            let found = run(&mut matcher, &sightings);
            let mut seen: Vec<_> = found.iter().filter_map(|it| match *it {
                Outcome::Matched { number, time_ns, delay_ns, .. } => Some((number, time_ns, delay_ns)),
                _ => None,
            }).collect();
            seen.sort();
            let expected: Vec<_> = delays.iter().map(|it| (it.0, it.2, it.3)).collect();
            prop_assert_eq!(seen, expected);
            let counts = matcher.counts();
            prop_assert_eq!((counts.lost, counts.extra, counts.reordered), (lost, doubled + made, overtaken));
            prop_assert_eq!((counts.ambiguous, counts.gave_up, counts.early), (0, 0, 0));
        }

        /// With few identities, little space and any order of observations, the sums of counts are consistent, and an
        /// exhaustive search finds the same matches.
        #[test]
        fn the_matcher_finds_the_same_matches_as_an_exhaustive_search(
            steps in prop::collection::vec((any::<bool>(), 0..6_u64, 0..400_000_u64), 1..300), open in 1..12_u32,
        ) {
            let settings = Settings { within_ns: 2 * MS, before_ns: MS, open, ..Settings::default() };
            let mut time_ns = 10 * MS;
            let sightings: Vec<_> = steps.into_iter().map(|(is_b, identity, gap)| {
                time_ns += gap;
                (is_b, identity, time_ns)
            }).collect();
            let mut matcher = Matcher::new(settings);
            let found = run(&mut matcher, &sightings);
            let (mut waiting, mut pairs) = ([Vec::new(), Vec::new()], Vec::new());
            let mut number = 0;
            for &(is_b, identity, now_ns) in &sightings {
                for (waiting, most) in waiting.iter_mut().zip([settings.within_ns, settings.before_ns]) {
                    waiting.retain(|it: &(u64, u64, u64)| it.1 + most >= now_ns);
                }
                let [here, there] = match is_b { false => [0, 1], true => [1, 0] };
                let own = number;
                number += u64::from(!is_b);
                if let Some(at) = waiting[there].iter().position(|it| it.0 == identity) {
                    let (_, then_ns, other) = waiting[there].remove(at);
                    pairs.push(match is_b {
                        false => (own, now_ns, then_ns as i64 - now_ns as i64),
                        true => (other, then_ns, now_ns as i64 - then_ns as i64),
                    });
                } else if waiting[here].len() < open as usize {
                    waiting[here].push((identity, now_ns, own));
                }
            }
            let seen: Vec<_> = found.iter().filter_map(|it| match *it {
                Outcome::Matched { number, time_ns, delay_ns, .. } => Some((number, time_ns, delay_ns)),
                _ => None,
            }).collect();
            prop_assert_eq!(seen, pairs);
        }
    }

    #[test]
    fn colliding_identities_do_not_collide_under_another_hash_key() {
        let (one, other) = (Open::new(1 << 10), Open::new(1 << 10));
        let place = |open: &Open, it: u64| open.place_of(Identity([it, 0]));
        let meets = |open: &Open, it: u64| place(open, it) == place(open, 0);
        let chosen: Vec<u64> = (1..100_000).filter(|it| meets(&one, *it)).collect();
        assert!((40..200).contains(&chosen.len()), "{}", chosen.len());
        let met = chosen.iter().filter(|it| meets(&other, **it));
        assert!(met.count() < 20);
    }

    #[test]
    fn duplicates_are_matched_first_in_first_out() {
        let mut matcher = Matcher::new(Settings::default());
        let sightings = [
            (false, 7, 100),
            (false, 7, 110),
            (true, 7, 150),
            (true, 7, 190),
        ];
        let found = run(&mut matcher, &sightings);
        assert_eq!(
            found,
            [matched(0, 100, 50, false), matched(1, 110, 80, false)]
        );
        assert_eq!(matcher.counts().ambiguous, 1);
    }

    #[test]
    fn packets_with_negative_delay_match_within_the_clock_uncertainty() {
        let mut matcher = Matcher::new(Settings::default());
        let sightings = [
            (true, 1, 1_000),
            (false, 1, 1_400),
            (true, 2, 2_000),
            (false, 2, 3 * MS),
            (true, 2, 3 * MS + 5),
        ];
        let found = run(&mut matcher, &sightings);
        let extra = Outcome::Extra {
            number: 1,
            time_ns: 2_000,
        };
        assert_eq!(
            found,
            [
                matched(0, 1_400, -400, false),
                extra,
                matched(1, 3 * MS, 5, false)
            ]
        );
        assert_eq!(matcher.counts().early, 1);
    }

    #[test]
    fn in_bidirectional_mode_the_first_capture_point_defines_the_direction() {
        let mut matcher = Matcher::new(Settings {
            both: true,
            ..Settings::default()
        });
        let sightings = [
            (false, 1, 100),
            (true, 2, 120),
            (true, 1, 150),
            (true, 3, 160),
            (false, 3, 170),
            (false, 2, 5 * MS),
            (true, 4, 6 * MS),
        ];
        let found = run(&mut matcher, &sightings);
        let back = |number, time_ns, delay_ns, reordered| Outcome::Matched {
            from_b: true,
            number,
            time_ns,
            delay_ns,
            reordered,
        };
        let lost = Outcome::Extra {
            number: 3,
            time_ns: 6 * MS,
        };
        // Index 1 is that of the second packet that was seen at B.
        let delay_ns = 5 * MS as i64 - 120;
        let expected = [
            matched(0, 100, 50, false),
            back(2, 160, 10, false),
            back(0, 120, delay_ns, true),
            lost,
        ];
        assert_eq!(found, expected);
        assert_eq!(matcher.counts().early, 0);
    }

    #[test]
    fn late_packets_and_table_overflows_are_counted() {
        let settings = Settings {
            within_ns: 1_000,
            before_ns: 10,
            open: 2,
            ..Settings::default()
        };
        let mut matcher = Matcher::new(settings);
        let sightings = [
            (false, 1, 0),
            (false, 2, 1),
            (false, 3, 2),
            (true, 2, 900),
            (true, 1, 1_002),
            (false, 4, 1_100),
        ];
        run(&mut matcher, &sightings);
        let counts = matcher.counts();
        assert_eq!(
            (counts.matched, counts.lost, counts.extra, counts.gave_up),
            (1, 2, 1, 1)
        );
    }
}
