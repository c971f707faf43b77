//! Plan of the structure for a set of routes: a next hop, a line of ranges, or a node, whose entries are plans again.
//! Pure functions.

use super::{LINE_BITS, NODE_BITS, NODE_ENTRIES, RANGES};
use crate::{Address, NextHop, Route};

/// The planned content of an entry.
#[derive(Debug, PartialEq)]
pub(super) enum Plan {
    /// All addresses have the same next hop, perhaps none.
    Hop(NextHop),
    /// Ranges of the next 32 bits: the first value and the plan of each.
    Line(Vec<(u32, Plan)>),
    /// One plan for each value of the next byte.
    Node(Vec<Plan>),
}

/// A planned range of a line, with the routes within it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Range<'a> {
    /// All addresses of the range have the same next hop.
    Hop(NextHop),
    /// The range is a single value of the 32 bits. The list has the routes with longer prefixes within it; the other
    /// addresses of the range have this next hop.
    Deeper(&'a [Route<u128>], NextHop),
}

impl Plan {
    /// Makes the plan for addresses that share their first `depth` bits. `routes` are the routes with longer prefixes,
    /// in order; `inherited` is the next hop of all other addresses.
    pub fn new(routes: &[Route<u128>], depth: u8, inherited: NextHop) -> Self {
        match ranges(routes, depth, inherited) {
            Some(ranges) => Self::of_ranges(&ranges, depth),
            None => Self::Node(
                split(routes, depth, inherited)
                    .map(|(routes, inherited)| Self::new(routes, depth + NODE_BITS, inherited))
                    .collect(),
            ),
        }
    }

    pub fn of_range(range: Range<'_>, depth: u8) -> Self {
        match range {
            Range::Hop(hop) => Self::Hop(hop),
            Range::Deeper(routes, inherited) => Self::new(routes, depth + LINE_BITS, inherited),
        }
    }

    pub fn of_ranges(ranges: &[(u32, Range<'_>)], depth: u8) -> Self {
        if let [(_, Range::Hop(hop))] = ranges {
            return Self::Hop(*hop);
        }
        let plans = ranges
            .iter()
            .map(|(start, range)| (*start, Self::of_range(*range, depth)));
        Self::Line(plans.collect())
    }

    /// Returns the number of nodes and lines that the plan needs.
    pub fn needs(&self) -> (usize, usize) {
        let sum = |all: &mut dyn Iterator<Item = &Self>| {
            all.map(Self::needs)
                .fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1))
        };
        match self {
            Self::Hop(_) => (0, 0),
            Self::Line(ranges) => {
                let (nodes, lines) = sum(&mut ranges.iter().map(|(_, plan)| plan));
                (nodes, lines + 1)
            }
            Self::Node(plans) => {
                let (nodes, lines) = sum(&mut plans.iter());
                (nodes + 1, lines)
            }
        }
    }
}

/// Returns the 32 bits after the first `depth`, padded with zeros at the end of the address.
pub(super) fn key(address: u128, depth: u8) -> u32 {
    (address.checked_shl(depth.into()).unwrap_or(0) >> 96) as u32
}

/// Returns the ranges of the 32 bits after the first `depth` bits; neighbouring equal ranges are merged. Returns `None`
/// if there are too many ranges for a line.
pub(super) fn ranges(
    routes: &[Route<u128>],
    depth: u8,
    inherited: NextHop,
) -> Option<Vec<(u32, Range<'_>)>> {
    let mut found = Found(Vec::with_capacity(RANGES + 2));
    found.begin(0, Range::Hop(inherited));
    // The prefixes that contain the current position, the longest last: the last value and the next hop of each.
    let mut around = vec![(u32::MAX, inherited)];
    let mut rest = routes;
    while let [(prefix, hop), behind @ ..] = rest {
        let start = key(prefix.network(), depth);
        found.close(&mut around, start);
        if prefix.length() <= depth + LINE_BITS {
            found.begin(start, Range::Hop(*hop));
            around.push((start.last(prefix.length() - depth), *hop));
            rest = behind;
        } else {
            let here = |it: &Route<u128>| key(it.0.network(), depth) == start;
            let (deeper, behind) = rest.split_at(rest.partition_point(here));
            let inherited = around.last().map_or(inherited, |(_, hop)| *hop);
            found.begin(start, Range::Deeper(deeper, inherited));
            around.push((start, inherited));
            rest = behind;
        }
        if found.0.len() > RANGES + 1 {
            return None;
        }
    }
    found.close(&mut around, u32::MAX);
    (found.0.len() <= RANGES).then_some(found.0)
}

struct Found<'a>(Vec<(u32, Range<'a>)>);

impl<'a> Found<'a> {
    /// Begins a range at `start`, in place of a range that began at the same value.
    fn begin(&mut self, start: u32, range: Range<'a>) {
        if self.0.last().is_some_and(|(before, _)| *before == start) {
            self.0.pop();
        }
        let is_same = |(_, before): &(u32, Range<'_>)| {
            let both = (*before, range);
            matches!(both, (Range::Hop(a), Range::Hop(b)) if a == b)
        };
        if !self.0.last().is_some_and(is_same) {
            self.0.push((start, range));
        }
    }

    /// Removes from `around` the prefixes that end before `place`. After the end of each removed prefix, begins a range
    /// with the next hop of the next larger prefix around it.
    fn close(&mut self, around: &mut Vec<(u32, NextHop)>, place: u32) {
        while let [.., (_, outer), (last, _)] = around[..]
            && last < place
        {
            self.begin(last + 1, Range::Hop(outer));
            around.pop();
        }
    }
}

/// Returns, for each value of the byte after the first `depth` bits, the routes with longer prefixes than this byte,
/// and the next hop of all other addresses.
pub(super) fn split(
    routes: &[Route<u128>],
    depth: u8,
    inherited: NextHop,
) -> impl Iterator<Item = (&[Route<u128>], NextHop)> {
    let byte = move |address: u128| (key(address, depth) >> 24) as usize;
    let mut hops = [inherited; NODE_ENTRIES];
    for (prefix, hop) in routes {
        if prefix.length() <= depth + NODE_BITS {
            hops[byte(prefix.network())..=byte(prefix.last())].fill(*hop);
        }
    }
    let mut rest = routes;
    (0..NODE_ENTRIES).map(move |value| {
        // Prefixes that end within the byte are skipped here: they are already in `hops`, and in the order of prefixes
        // they precede the longer prefixes of the same value.
        let short = rest
            .iter()
            .take_while(|(it, _)| it.length() <= depth + NODE_BITS && byte(it.network()) <= value);
        rest = &rest[short.count()..];
        let (here, behind) = rest.split_at(rest.partition_point(|(it, _)| {
            byte(it.network()) == value && it.length() > depth + NODE_BITS
        }));
        rest = behind;
        (here, hops[value])
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Rib;

    fn routes(texts: &[(&str, u32)]) -> Vec<Route<u128>> {
        let route =
            |(text, hop): &(&str, u32)| (text.parse().unwrap(), NextHop::new(*hop).unwrap());
        let rib: Rib<u128> = texts.iter().map(route).collect();
        rib.iter().collect()
    }

    fn hop(number: u32) -> Plan {
        Plan::Hop(NextHop::new(number).unwrap())
    }

    #[test]
    fn sparse_ipv6_routes_are_stored_as_ranges_in_one_line() {
        let routes = routes(&[
            ("2001:db8::/32", 2),
            ("2001:db8:1::/48", 3),
            ("2001:db8:1:2::/64", 4),
        ]);
        let inherited = NextHop::new(1).unwrap();
        let below = Plan::Line(vec![(0, hop(3)), (2 << 16, hop(4)), (3 << 16, hop(3))]);
        let plan = Plan::new(&routes, 16, inherited);
        assert_eq!(plan.needs(), (0, 2));
        let line = Plan::Line(vec![
            (0, hop(1)),
            (0x0db8_0000, hop(2)),
            (0x0db8_0001, below),
            (0x0db8_0002, hop(2)),
            (0x0db9_0000, hop(1)),
        ]);
        assert_eq!(plan, line);
    }

    #[test]
    fn adjacent_ipv6_ranges_with_the_same_next_hop_are_merged() {
        let routes = routes(&[
            ("2001:8000::/17", 2),
            ("2001:8000::/18", 2),
            ("2001::/17", 2),
        ]);
        assert_eq!(Plan::new(&routes, 16, NextHop::NONE), hop(2));
    }

    #[test]
    fn more_ipv6_ranges_than_fit_a_line_become_a_node() {
        let texts: Vec<String> = (0..16)
            .map(|i| format!("2001:{:x}::/32", i * 0x200))
            .collect();
        let texts: Vec<_> = texts.iter().map(|it| (it.as_str(), 5)).collect();
        let plan = Plan::new(&routes(&texts), 16, NextHop::NONE);
        assert_eq!(plan.needs(), (1, 16));
        let Plan::Node(plans) = plan else {
            panic!("{plan:?}")
        };
        assert_eq!(
            plans[2],
            Plan::Line(vec![(0, hop(5)), (1 << 24, Plan::Hop(NextHop::NONE))])
        );
        assert_eq!(plans[3], Plan::Hop(NextHop::NONE));
    }
}
