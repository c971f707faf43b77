//! The routing information base: all routes in order, in a plain map. It is the master copy from which look-up tables
//! are built, and the reference of their tests.

use std::collections::BTreeMap;

use crate::{Address, NextHop, Prefix};

/// Routes ordered by prefix: each prefix precedes the longer prefixes within it.
#[derive(Debug, Clone)]
pub struct Rib<A: Address> {
    routes: BTreeMap<Prefix<A>, NextHop>,
}

/// A route: the prefix of its destinations, and their next hop.
pub type Route<A> = (Prefix<A>, NextHop);

impl<A: Address> Default for Rib<A> {
    fn default() -> Self {
        Self {
            routes: BTreeMap::new(),
        }
    }
}

impl<A: Address> FromIterator<Route<A>> for Rib<A> {
    /// Makes a routing information base. The last of several routes with the same prefix replaces the others.
    fn from_iter<I: IntoIterator<Item = Route<A>>>(routes: I) -> Self {
        Self {
            routes: routes.into_iter().collect(),
        }
    }
}

impl<A: Address> Rib<A> {
    /// Makes an empty routing information base.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of routes.
    pub fn len(&self) -> usize {
        self.routes.len()
    }

    /// Returns whether there are no routes.
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    /// Adds a route, or replaces the next hop of the route for the same prefix. Returns the replaced next hop, if any.
    pub fn insert(&mut self, prefix: Prefix<A>, hop: NextHop) -> Option<NextHop> {
        self.routes.insert(prefix, hop)
    }

    /// Deletes the route for exactly the given prefix. Returns its next hop; `None` if there is no such route.
    pub fn remove(&mut self, prefix: Prefix<A>) -> Option<NextHop> {
        self.routes.remove(&prefix)
    }

    /// Returns the next hop of the route for exactly the given prefix; `None` if there is no such route.
    pub fn get(&self, prefix: Prefix<A>) -> Option<NextHop> {
        self.routes.get(&prefix).copied()
    }

    /// Returns the route of an address: the route with the longest prefix that contains the address. Returns `None` if
    /// no route has such a prefix.
    pub fn lookup(&self, address: A) -> Option<Route<A>> {
        self.longest(Prefix::of(address, A::BITS))
    }

    /// Returns the route with the longest prefix that is shorter than `prefix` and covers `prefix`, if any. This route
    /// applies to those addresses of `prefix` for which neither `prefix` nor a prefix within `prefix` has a route.
    pub fn covering(&self, prefix: Prefix<A>) -> Option<Route<A>> {
        let length = prefix.length().checked_sub(1)?;
        self.longest(Prefix::of(prefix.network(), length))
    }

    /// Returns the routes for `prefix` and for all prefixes within it, ordered by prefix.
    pub fn within(&self, prefix: Prefix<A>) -> impl Iterator<Item = Route<A>> {
        let last = Prefix::of(prefix.last(), A::BITS);
        let routes = self.routes.range(prefix..=last);
        routes.map(|(prefix, hop)| (*prefix, *hop))
    }

    /// Returns all routes, ordered by prefix.
    pub fn iter(&self) -> impl Iterator<Item = Route<A>> {
        self.routes.iter().map(|(prefix, hop)| (*prefix, *hop))
    }

    /// Returns the route with the longest prefix that covers `prefix`, possibly `prefix` itself; `None` if there is no
    /// such route.
    ///
    /// In the map's order, the route directly before `prefix` either covers `prefix` or shares only some first bits
    /// with it. In the second case, a prefix that covers both has no more bits than they share.
    pub(crate) fn longest(&self, prefix: Prefix<A>) -> Option<Route<A>> {
        let mut bound = prefix;
        loop {
            let (before, hop) = self.routes.range(..=bound).next_back()?;
            if before.covers(prefix) {
                return Some((*before, *hop));
            }
            let shared = before.network().shared_bits(prefix.network());
            bound = Prefix::of(prefix.network(), shared.min(before.length()));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{PrefixV4, PrefixV6};
    use proptest::prelude::*;

    fn hop(number: u32) -> NextHop {
        NextHop::new(number).unwrap()
    }

    #[test]
    fn the_next_shorter_prefix_matches_after_the_longest_is_removed() {
        let prefix = |text: &str| text.parse::<PrefixV6>().unwrap();
        let mut rib = Rib::new();
        assert_eq!(rib.insert(prefix("::/0"), hop(1)), None);
        assert_eq!(rib.insert(prefix("2001:db8::/32"), hop(2)), None);
        assert_eq!(rib.insert(prefix("2001:db8:1::/48"), hop(3)), None);
        assert_eq!(rib.insert(prefix("2001:db8:1::/48"), hop(4)), Some(hop(3)));
        let address = prefix("2001:db8:1::1/128").network();
        assert_eq!(rib.lookup(address).unwrap().1, hop(4));
        assert_eq!(rib.covering(prefix("2001:db8:1::/48")).unwrap().1, hop(2));
        assert_eq!(rib.covering(prefix("::/0")), None);
        assert_eq!(rib.within(prefix("2001:db8::/32")).count(), 2);
        assert_eq!(rib.remove(prefix("2001:db8:1::/48")), Some(hop(4)));
        assert_eq!(rib.lookup(address), Some((prefix("2001:db8::/32"), hop(2))));
        assert_eq!((rib.len(), rib.is_empty()), (2, false));
    }

    proptest! {
        /// Only a few bits of the prefixes vary, so that many prefixes are within others.
        #[test]
        fn lookups_agree_with_a_linear_scan_of_all_routes(
            routes in proptest::collection::vec((0_u32..256, 0_u8..=8, 1_u32..9), 0..40), address in 0_u32..256,
        ) {
            let prefix = |address: u32, length| PrefixV4::of(address << 24, length);
            let routes = routes.iter().map(|(address, length, number)| (prefix(*address, *length), hop(*number)));
            let rib: Rib<u32> = routes.collect();
            let longest = rib.iter().filter(|(it, _)| it.holds(address << 24)).max_by_key(|(it, _)| it.length());
            prop_assert_eq!(rib.lookup(address << 24), longest);
            for (prefix, _) in rib.iter() {
                let shorter = rib.iter().filter(|(it, _)| *it != prefix && it.covers(prefix));
                prop_assert_eq!(rib.covering(prefix), shorter.max_by_key(|(it, _)| it.length()));
                let within: Vec<_> = rib.iter().filter(|(it, _)| prefix.covers(*it)).collect();
                prop_assert_eq!(rib.within(prefix).collect::<Vec<_>>(), within);
            }
        }
    }
}
