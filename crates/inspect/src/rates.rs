//! Counts how often rules match within a time: `detection_filter` and `threshold`.

use crate::rule::{Rate, RateKind};
use std::ops::Range;
use taut_sys::HashKey;

/// The effect of a rule's rate on a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rated {
    /// The match takes effect and is logged.
    Counts,
    /// The match takes effect but is not logged.
    Silent,
    /// The match has no effect, because the rule has not matched often enough.
    NotYet,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    key: u128,
    /// Rule index plus 1; 0 if the entry is free.
    rule: u32,
    count: u32,
    began_s: u32,
    seconds: u32,
}

/// The rate counters of one worker, in a table of fixed size. A counter can be in any of a few entries. If all of these
/// entries are in use, a new counter replaces the oldest one. Workers do not share counters.
#[derive(Debug)]
pub struct Rates {
    slots: Box<[Slot]>,
    hash_key: HashKey,
    /// Number of counters that were replaced before their period had ended.
    pub forgotten: u64,
}

/// Number of entries in which a given counter can be stored.
const WAYS: usize = 8;

impl Rates {
    /// Creates a table for `counters` counters, rounded up to a power of two.
    pub fn new(counters: usize) -> Self {
        Self {
            slots: vec![Slot::default(); counters.next_power_of_two().max(WAYS)].into(),
            hash_key: HashKey::default(),
            forgotten: 0,
        }
    }

    /// Clears the counters of all rules.
    pub fn clear(&mut self) {
        self.slots.fill(Slot::default());
    }

    /// Counts a match of a rule for `key` at the time `now_s`, and returns the effect of the rate on that match.
    pub fn count(&mut self, rule: u32, rate: &Rate, key: u128, now_s: u32) -> Rated {
        let slot = self.slot(rule + 1, key, rate.seconds, now_s);
        if now_s.wrapping_sub(slot.began_s) >= rate.seconds {
            (slot.began_s, slot.count) = (now_s, 0);
        }
        slot.count = slot.count.saturating_add(1);
        let counts = |it| if it { Rated::Counts } else { Rated::Silent };
        match rate.kind {
            RateKind::Filter if slot.count > rate.count => Rated::Counts,
            RateKind::Filter => Rated::NotYet,
            RateKind::Limit => counts(slot.count <= rate.count),
            RateKind::Every => counts(slot.count.is_multiple_of(rate.count.max(1))),
            RateKind::Once => counts(slot.count == rate.count),
            RateKind::Backoff { multiplier } => counts(is_step(rate.count, multiplier, slot.count)),
        }
    }

    fn slot(&mut self, rule: u32, key: u128, seconds: u32, now_s: u32) -> &mut Slot {
        let ways = self.ways_of(rule, key);
        let ways = &mut self.slots[ways];
        let is_old =
            |slot: &Slot| slot.rule == 0 || now_s.wrapping_sub(slot.began_s) >= slot.seconds;
        let place = ways
            .iter()
            .position(|slot| slot.rule == rule && slot.key == key);
        let place = place.unwrap_or_else(|| {
            let free = ways.iter().position(is_old);
            let place = free.unwrap_or_else(|| {
                self.forgotten += 1;
                (0..WAYS)
                    .max_by_key(|&i| now_s.wrapping_sub(ways[i].began_s))
                    .unwrap_or(0)
            });
            ways[place] = Slot {
                key,
                rule,
                count: 0,
                began_s: now_s,
                seconds,
            };
            place
        });
        &mut ways[place]
    }

    fn ways_of(&self, rule: u32, key: u128) -> Range<usize> {
        let halves = (key as u64, (key >> 64) as u64);
        let hash = self.hash_key.hash([halves, (rule.into(), 0)]);
        let first = (hash as usize) & (self.slots.len() - 1) & !(WAYS - 1);
        first..first + WAYS
    }
}

/// Returns true if a count is `first`, or `first` times a power of `multiplier`.
fn is_step(first: u32, multiplier: u32, count: u32) -> bool {
    let mut step = first.max(1);
    while step < count {
        match step.checked_mul(multiplier.max(2)) {
            Some(next) => step = next,
            None => return false,
        }
    }
    step == count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Track;

    fn rate(kind: RateKind) -> Rate {
        Rate {
            kind,
            track: Track::Source,
            count: 2,
            seconds: 10,
        }
    }

    #[test]
    fn each_kind_of_rate_limit_alerts_on_the_documented_packets() {
        use Rated::{Counts, NotYet, Silent};
        for (kind, want) in [
            (RateKind::Filter, [NotYet, NotYet, Counts, Counts, NotYet]),
            (RateKind::Limit, [Counts, Counts, Silent, Silent, Counts]),
            (RateKind::Every, [Silent, Counts, Silent, Counts, Silent]),
            (RateKind::Once, [Silent, Counts, Silent, Silent, Silent]),
        ] {
            let mut rates = Rates::new(64);
            let times = [0, 1, 2, 3, 10];
            let said = times.map(|now_s| rates.count(0, &rate(kind), 7, now_s));
            assert_eq!(said, want, "{kind:?}");
        }
    }

    #[test]
    fn a_backoff_rule_alerts_after_exponentially_growing_counts() {
        let kind = RateKind::Backoff { multiplier: 3 };
        let rate = Rate {
            seconds: u32::MAX,
            ..rate(kind)
        };
        let mut rates = Rates::new(64);
        let counted = |it: &u32| rates.count(0, &rate, 7, *it) == Rated::Counts;
        assert!((1..60).filter(counted).eq([2, 6, 18, 54]));
        assert!(!is_step(3, 2, u32::MAX) && !is_step(0, 0, 3));
    }

    #[test]
    fn senders_rarely_collide_in_two_tables_with_different_keys() {
        let (one, other) = (Rates::new(1 << 13), Rates::new(1 << 13));
        let meets = |rates: &Rates, sender| rates.ways_of(1, sender) == rates.ways_of(1, 0);
        let chosen: Vec<u128> = (1..100_000).filter(|sender| meets(&one, *sender)).collect();
        assert!((40..200).contains(&chosen.len()), "{}", chosen.len());
        let met = chosen.iter().filter(|sender| meets(&other, **sender));
        assert!(met.count() < 20);
    }

    #[test]
    fn many_senders_need_no_more_memory_than_the_table() {
        let mut rates = Rates::new(1024);
        for key in 0..100_000 {
            assert_eq!(
                rates.count(3, &rate(RateKind::Filter), key, 5),
                Rated::NotYet
            );
        }
        assert!(rates.forgotten > 90_000);
        assert_eq!(rates.slots.len(), 1024);
    }
}
