//! Counts how often rules fit within a time: `detection_filter` and `threshold`.

use crate::rule::{Rate, RateKind};

/// What a rate has to say about a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rated {
    /// It counts, and is written down.
    Counts,
    /// It counts, and is not written down.
    Silent,
    /// It does not count yet.
    NotYet,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    key: u128,
    /// Rule, counted from 1; 0: free.
    rule: u32,
    count: u32,
    began_s: u32,
    seconds: u32,
}

/// Counters of one worker: a fixed number of them, in which the oldest of a few neighbours makes room. Workers count for
/// themselves.
#[derive(Debug)]
pub struct Rates {
    slots: Box<[Slot]>,
    /// Times that a counter was given away before its time was over.
    pub forgotten: u64,
}

/// Places that a counter can be at.
const WAYS: usize = 8;

impl Rates {
    /// Makes room for that many counters, rounded up to a power of two.
    pub fn new(counters: usize) -> Self {
        Self {
            slots: vec![Slot::default(); counters.next_power_of_two().max(WAYS)].into(),
            forgotten: 0,
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.slots.fill(Slot::default());
    }

    /// Counts a match of a rule at a time in seconds.
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
        }
    }

    fn slot(&mut self, rule: u32, key: u128, seconds: u32, now_s: u32) -> &mut Slot {
        let mixed = (key ^ (key >> 64)) as u64 ^ (u64::from(rule) << 32 | u64::from(rule));
        let hash = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let first = (hash as usize) & (self.slots.len() - 1) & !(WAYS - 1);
        let ways = &mut self.slots[first..first + WAYS];
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
    fn each_kind_counts_as_it_says() {
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
    fn a_million_senders_take_no_more_memory_and_are_told_apart_as_long_as_there_is_room() {
        let mut rates = Rates::new(1024);
        for key in 0..1_000_000 {
            assert_eq!(
                rates.count(3, &rate(RateKind::Filter), key, 5),
                Rated::NotYet
            );
        }
        assert!(rates.forgotten > 990_000);
        assert_eq!(rates.slots.len(), 1024);
    }
}
