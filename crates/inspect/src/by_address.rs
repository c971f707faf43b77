//! An index of rules by the addresses in their headers. Lists of known malicious hosts are long, so a packet is checked
//! only against the rules whose addresses include its sender or receiver.

use crate::ranges::Ranges;

/// An index of rules by intervals of addresses.
#[derive(Debug, Default)]
pub(crate) struct ByAddress {
    /// First address of each interval, in increasing order.
    first: Box<[u128]>,
    /// Offset in `rules` at which the rules of each interval begin, followed by the offset after the last interval's
    /// rules.
    places: Box<[u32]>,
    rules: Box<[u32]>,
}

/// Maximum number of addresses in one IPv4 range of an indexed rule; a rule with a wider range would match most packets
/// anyway.
const WIDEST: u128 = 1 << 20;
/// Maximum number of addresses in one IPv6 range of an indexed rule.
const WIDEST_6: u128 = 1 << 96;
/// The range of all IPv4 addresses, mapped into IPv6.
const MAPPED: std::ops::RangeInclusive<u128> = 0xffff_0000_0000..=0xffff_ffff_ffff;
/// Maximum number of entries: the rules of an interval, summed over all intervals. If address lists overlap so much
/// that the index would exceed this number, the rules are evaluated for every packet instead.
const MOST_ENTRIES: usize = 1 << 22;

/// Returns true if no range of the set has more than [`WIDEST`] addresses (IPv4) or [`WIDEST_6`] addresses (IPv6).
pub(crate) fn is_narrow(addresses: &Ranges) -> bool {
    addresses.ranges().iter().all(|(first, last)| {
        let widest = if MAPPED.contains(first) {
            WIDEST
        } else {
            WIDEST_6
        };
        last - first < widest
    })
}

impl ByAddress {
    /// Builds the index of rules by their addresses; returns none if the addresses overlap too much.
    pub fn new(rules: &[(u32, &Ranges)]) -> Option<Self> {
        let ranges = || {
            rules
                .iter()
                .flat_map(|&(rule, it)| it.ranges().iter().map(move |range| (rule, *range)))
        };
        let mut first: Vec<_> = ranges()
            .flat_map(|(_, (first, last))| [Some(first), last.checked_add(1)])
            .flatten()
            .collect();
        first.sort_unstable();
        first.dedup();
        let mut all: Vec<Vec<u32>> = vec![Vec::new(); first.len()];
        let mut entries = 0;
        for (rule, (from, to)) in ranges() {
            let begin = first.partition_point(|it| *it < from);
            let end = first.partition_point(|it| *it <= to);
            entries += end - begin;
            if entries > MOST_ENTRIES {
                return None;
            }
            all[begin..end].iter_mut().for_each(|it| it.push(rule));
        }
        let mut places = vec![0];
        let mut together = Vec::with_capacity(entries);
        for of_interval in all {
            together.extend(of_interval);
            places.push(together.len() as u32);
        }
        Some(Self {
            first: first.into(),
            places: places.into(),
            rules: together.into(),
        })
    }

    /// Returns the rules whose addresses include `address`.
    #[inline]
    pub fn rules_of(&self, address: u128) -> &[u32] {
        let Some(interval) = self
            .first
            .partition_point(|it| *it <= address)
            .checked_sub(1)
        else {
            return &[];
        };
        let place = |at: usize| self.places.get(at).map_or(0, |it| *it as usize);
        let rules = place(interval)..place(interval + 1);
        self.rules.get(rules).unwrap_or_default()
    }

    /// Returns the number of bytes of memory that the index uses.
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.first) + size_of_val(&*self.places) + size_of_val(&*self.rules)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn ranges(text: &str) -> Ranges {
        let parts = text.split(' ').map(|it| Ranges::addresses(it).unwrap());
        parts.reduce(|all, it| all.or(&it)).unwrap()
    }

    #[test]
    fn only_address_lists_of_small_networks_are_indexed_by_address() {
        for (text, narrow) in [
            ("192.0.2.1 198.51.100.0/24 2001:db8::/48", true),
            ("10.0.0.0/12", true),
            ("10.0.0.0/8 192.0.2.1", false),
            ("2001::/16", false),
        ] {
            assert_eq!(is_narrow(&ranges(text)), narrow, "{text}");
        }
        assert!(!is_narrow(&Ranges::all()) && !is_narrow(&ranges("192.0.2.1").not()));
    }

    #[test]
    fn rules_with_heavily_overlapping_address_lists_get_no_address_index() {
        // Each range is within all earlier ones.
        let nested: Vec<_> = (0..3000).map(|it| Ranges::of(it, 100_000 - it)).collect();
        let rules: Vec<_> = (0..).zip(&nested).collect();
        assert!(ByAddress::new(&rules).is_none());
        assert!(ByAddress::new(&rules[..100]).is_some());
        assert!(ByAddress::new(&[]).unwrap().rules_of(7).is_empty());
    }

    proptest! {
        #[test]
        fn lookup_by_address_finds_exactly_the_matching_rules(
            lists in prop::collection::vec(prop::collection::vec((0u128..60, 0u128..9), 0..4), 0..8),
            top in any::<bool>(),
        ) {
            // The end of the address space is tested as well.
            let base = if top { u128::MAX - 70 } else { 0 };
            let lists: Vec<_> = lists
                .into_iter()
                .map(|list| {
                    let parts = list.into_iter().map(|(from, len)| Ranges::of(base + from, base + from + len));
                    parts.reduce(|all, it| all.or(&it)).unwrap_or_else(|| Ranges::all().not())
                })
                .collect();
            let rules: Vec<_> = (0..).zip(&lists).collect();
            let sorted = ByAddress::new(&rules).unwrap();
            for address in base..=base + 70 {
                let mut found = sorted.rules_of(address).to_vec();
                found.sort_unstable();
                let about = rules.iter().filter(|(_, it)| it.has(address));
                let want: Vec<_> = about.map(|(rule, _)| *rule).collect();
                prop_assert_eq!(found, want);
            }
        }
    }
}
