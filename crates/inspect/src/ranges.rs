//! Sets of numbers as ranges: addresses and ports in rules.

/// A set of numbers, stored as increasing ranges that neither overlap nor touch. IPv4 addresses are mapped into IPv6.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Ranges {
    ranges: Vec<(u128, u128)>,
}

/// Upper bits of an IPv4 address that is mapped into IPv6 (RFC 4291 section 2.5.5.2).
const MAPPED: u128 = 0xffff << 32;

impl Ranges {
    /// Returns the set of all numbers.
    pub fn all() -> Self {
        Self {
            ranges: vec![(0, u128::MAX)],
        }
    }

    /// Returns the set of the numbers from `first` to `last`, both included.
    pub fn of(first: u128, last: u128) -> Self {
        Self {
            ranges: vec![(first, last)],
        }
    }

    /// Returns the ranges of the set, each as its first and its last number.
    pub fn ranges(&self) -> &[(u128, u128)] {
        &self.ranges
    }

    /// Returns true if the set contains every number.
    pub fn is_all(&self) -> bool {
        self.ranges == [(0, u128::MAX)]
    }

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns true if the set contains that number.
    #[inline]
    pub fn has(&self, number: u128) -> bool {
        let after = self.ranges.partition_point(|range| range.0 <= number);
        after > 0 && number <= self.ranges[after - 1].1
    }

    /// Returns the union of both sets.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        let mut all: Vec<_> = self.ranges.iter().chain(&other.ranges).copied().collect();
        all.sort_unstable();
        let mut ranges: Vec<(u128, u128)> = Vec::with_capacity(all.len());
        for (first, last) in all {
            match ranges.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => {
                    before.1 = before.1.max(last)
                }
                _ => ranges.push((first, last)),
            }
        }
        Self { ranges }
    }

    /// Returns the set of all numbers that are not in this set.
    #[must_use]
    pub fn not(&self) -> Self {
        let mut ranges = Vec::with_capacity(self.ranges.len() + 1);
        let mut next = Some(0);
        for &(first, last) in &self.ranges {
            if let Some(from) = next.filter(|&from| from < first) {
                ranges.push((from, first - 1));
            }
            next = last.checked_add(1);
        }
        ranges.extend(next.map(|from| (from, u128::MAX)));
        Self { ranges }
    }

    /// Returns the intersection of both sets.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        self.not().or(&other.not()).not()
    }

    /// Reads an address, a network (host bits may be set), or a range of addresses: `10.0.0.0/8`, `fe80::/10`,
    /// `192.0.2.1-192.0.2.9`. Returns none if the text is invalid.
    pub fn addresses(text: &str) -> Option<Self> {
        if let Some((first, last)) = text.split_once('-') {
            let (first, last) = (mapped(first.trim())?, mapped(last.trim())?);
            return (first <= last).then(|| Self::of(first, last));
        }
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let is_ipv4 = !address.contains(':');
        let whole = if is_ipv4 { 32 } else { 128 };
        let length = match length {
            // Old rules have dotted masks.
            Some(mask) if is_ipv4 && mask.contains('.') => {
                let mask = u32::from(mask.parse::<std::net::Ipv4Addr>().ok()?);
                let length = mask.leading_ones();
                (mask.count_ones() == length).then_some(length)?
            }
            Some(length) => length.parse().ok().filter(|&length| length <= whole)?,
            None => whole,
        };
        let bits = mapped(address)?;
        let host = u128::MAX.checked_shr(128 - whole + length).unwrap_or(0);
        Some(Self::of(bits & !host, bits | host))
    }

    /// Reads a port or a range of ports: `80`, `1024:`, `:1023`, `6660:6669`. Returns none if the text is invalid.
    pub fn ports(text: &str) -> Option<Self> {
        let is_number = |text: &str| text.bytes().all(|it| it.is_ascii_digit());
        let port = |text: &str| {
            let text = text.trim();
            let port = is_number(text).then(|| text.parse::<u16>().ok())?;
            port.map(u128::from)
        };
        let (first, last) = match text.split_once(':').or_else(|| text.split_once('-')) {
            None => (port(text)?, port(text)?),
            Some(("", last)) => (0, port(last)?),
            Some((first, "")) => (port(first)?, u128::from(u16::MAX)),
            Some((first, last)) => (port(first)?, port(last)?),
        };
        (first <= last).then(|| Self::of(first, last))
    }
}

/// Reads an address; returns none if it is invalid. An IPv4 address is mapped into IPv6.
fn mapped(text: &str) -> Option<u128> {
    Some(match text.parse().ok()? {
        std::net::IpAddr::V4(address) => MAPPED | u128::from(u32::from(address)),
        std::net::IpAddr::V6(address) => u128::from(address),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn set() -> impl Strategy<Value = Ranges> {
        prop::collection::vec((0u128..40, 0u128..6), 0..6).prop_map(|ranges| {
            let each = ranges
                .iter()
                .map(|&(first, more)| Ranges::of(first, first + more));
            each.fold(Ranges::default(), |all, one| all.or(&one))
        })
    }

    proptest! {
        #[test]
        fn set_operations_on_address_ranges_agree_with_membership_tests(a in set(), b in set(), ends in any::<bool>()) {
            let a = if ends { a.or(&Ranges::of(u128::MAX - 1, u128::MAX)) } else { a };
            for n in (0..50).chain([u128::MAX]) {
                prop_assert_eq!(a.or(&b).has(n), a.has(n) || b.has(n));
                prop_assert_eq!(a.and(&b).has(n), a.has(n) && b.has(n));
                prop_assert_eq!(a.not().has(n), !a.has(n));
            }
            prop_assert_eq!(a.not().not(), a);
        }
    }

    #[test]
    fn address_and_port_ranges_are_parsed() {
        let net = Ranges::addresses("10.1.0.0/16").unwrap();
        assert!(net.has(mapped("10.1.255.255").unwrap()) && !net.has(mapped("10.2.0.0").unwrap()));
        assert_eq!(Ranges::addresses("10.1.0.0/255.255.0.0"), Some(net));
        assert!(Ranges::addresses("::/0").unwrap().is_all());
        let all4 = Ranges::addresses("0.0.0.0/0").unwrap();
        assert!(all4.has(mapped("255.255.255.255").unwrap()) && !all4.has(mapped("::1").unwrap()));
        for wrong in [
            "10.1.0.0/33",
            "10.1.0/8",
            "x",
            "10.0.0.9-10.0.0.1",
            "10.0.0.0/255.0.255.0",
        ] {
            assert_eq!(Ranges::addresses(wrong), None, "{wrong}");
        }
        assert_eq!(Ranges::ports("1024:"), Some(Ranges::of(1024, 65_535)));
        assert_eq!(Ranges::ports(":80"), Some(Ranges::of(0, 80)));
        for wrong in ["", "65536", "9:8", "http"] {
            assert_eq!(Ranges::ports(wrong), None, "{wrong}");
        }
    }
}
