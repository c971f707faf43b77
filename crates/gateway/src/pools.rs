//! Pools of user addresses, from which the gateway assigns one when a control plane requests it (3GPP TS 29.244 section
//! 5.21, TS 23.401 section 5.3.1). IPv4 users get an address, IPv6 users a prefix of 64 bits.

use super::{Control, Match};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The maximum number of host bits that a pool uses: 2^24 addresses, such as those of 10.0.0.0/8. A larger range is
/// used in part.
const MOST_BITS: u32 = 24;

/// A range of user addresses, such as 10.45.0.0/16 or 2001:db8:45::/48.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    /// The first address of the range: 32 bits of IPv4, or the first 64 bits of IPv6.
    first: u64,
    bits: u32,
    is_v4: bool,
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("pools: \"{text}\": expected a prefix such as 10.45.0.0/16 or 2001:db8:45::/48")
        };
        let (address, length) = text.split_once('/').ok_or_else(wrong)?;
        let length: u32 = length.parse().map_err(|_| wrong())?;
        let (first, whole, is_v4) = match address.parse().map_err(|_| wrong())? {
            IpAddr::V4(address) => (u64::from(address.to_bits()), 32, true),
            IpAddr::V6(address) => ((address.to_bits() >> 64) as u64, 64, false),
        };
        let bits = u32::checked_sub(whole, length).ok_or_else(wrong)?;
        let inside = (1_u64.checked_shl(bits).unwrap_or(0)).wrapping_sub(1);
        if first & inside != 0 || first == 0 {
            return Err(format!(
                "pools: {text} is not the first address of its prefix"
            ));
        }
        Ok(Self { first, bits, is_v4 })
    }
}

impl Range {
    /// Returns the number of addresses that users can get. The first and the last address of an IPv4 prefix are
    /// excluded, because hosts use them for the network itself and for broadcasts.
    fn size(self) -> u32 {
        let all = 1 << self.bits.min(MOST_BITS);
        match self.is_v4 && self.bits > 1 {
            true => all - 2,
            false => all,
        }
    }

    fn address(self, place: u32) -> IpAddr {
        if self.is_v4 {
            let skipped = u64::from(self.bits > 1);
            Ipv4Addr::from_bits((self.first + skipped + u64::from(place)) as u32).into()
        } else {
            let prefix = self.first + u64::from(place);
            Ipv6Addr::from_bits(u128::from(prefix) << 64).into()
        }
    }

    fn place(self, address: IpAddr) -> Option<u32> {
        let (value, is_v4) = match address {
            IpAddr::V4(address) => (u64::from(address.to_bits()), true),
            IpAddr::V6(address) => ((address.to_bits() >> 64) as u64, false),
        };
        let skipped = u64::from(is_v4 && self.bits > 1);
        let place = value.checked_sub(self.first + skipped)?;
        (is_v4 == self.is_v4 && place < u64::from(self.size())).then_some(place as u32)
    }
}

/// A pool of user addresses, with one bit for each of its addresses.
#[derive(Debug)]
struct Pool {
    range: Range,
    given: Vec<u64>,
    count: u32,
    /// The index at which the search for a free address begins, so that a released address is not reassigned soon.
    next: u32,
}

impl Pool {
    fn take(&mut self, is_free: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let size = self.range.size();
        if self.count == size {
            return None;
        }
        for step in 0..size {
            let place = (self.next + step) % size;
            let (word, bit) = (place as usize / 64, 1 << (place % 64));
            if self.given[word] & bit != 0 {
                continue;
            }
            let address = self.range.address(place);
            if is_free(address) {
                self.given[word] |= bit;
                self.count += 1;
                self.next = place + 1;
                return Some(address);
            }
        }
        None
    }

    fn release(&mut self, place: u32) {
        let (word, bit) = (place as usize / 64, 1 << (place % 64));
        self.count -= u32::from(self.given[word] & bit != 0);
        self.given[word] &= !bit;
    }
}

/// The pools of a gateway, tried in order.
#[derive(Debug, Default)]
pub(super) struct Pools(Vec<Pool>);

impl Pools {
    pub fn new(ranges: &[Range]) -> Self {
        let pool = |range: &Range| Pool {
            range: *range,
            given: vec![0; (range.size() as usize).div_ceil(64)],
            count: 0,
            next: 0,
        };
        Self(ranges.iter().map(pool).collect())
    }

    /// Returns true if there is a pool of this IP version.
    pub fn has(&self, is_v4: bool) -> bool {
        self.0.iter().any(|pool| pool.range.is_v4 == is_v4)
    }

    /// Reserves and returns an address that no user of the gateway has; none if all are in use.
    pub fn take(&mut self, is_v4: bool, control: &Control) -> Option<IpAddr> {
        let is_free = |address| control.get(Match::User(address)).is_none();
        let mut pools = self.0.iter_mut().filter(|pool| pool.range.is_v4 == is_v4);
        pools.find_map(|pool| pool.take(is_free))
    }

    /// Releases an address; an address outside all pools is ignored.
    pub fn release(&mut self, address: IpAddr) {
        for pool in &mut self.0 {
            if let Some(place) = pool.range.place(address) {
                pool.release(place);
            }
        }
    }

    /// Returns the number of assigned addresses.
    pub fn given(&self) -> usize {
        self.0.iter().map(|pool| pool.count as usize).sum()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn pool(text: &str) -> Pool {
        let mut pools = Pools::new(&[text.parse().unwrap()]).0;
        pools.pop().unwrap()
    }

    #[test]
    fn every_address_of_a_pool_is_assigned_once() {
        let mut pool4 = pool("10.45.0.0/29");
        let all: Vec<_> = std::iter::from_fn(|| pool4.take(|_| true)).collect();
        let want: Vec<IpAddr> = (1..7).map(|host| [10, 45, 0, host].into()).collect();
        assert_eq!(all, want);
        let place = pool4.range.place(want[3]).unwrap();
        pool4.release(place);
        pool4.release(place);
        assert_eq!(pool4.take(|_| true), Some(want[3]));
        assert_eq!(pool4.take(|_| true), None);
        let mut pool6 = pool("2001:db8:45::/63");
        let all: Vec<_> = std::iter::from_fn(|| pool6.take(|_| true)).collect();
        let want = ["2001:db8:45::", "2001:db8:45:1::"].map(|it| it.parse::<IpAddr>().unwrap());
        assert_eq!(all, want);
    }

    #[test]
    fn addresses_of_other_users_are_not_assigned() {
        let mut pool = pool("10.45.0.0/30");
        let second: IpAddr = [10, 45, 0, 2].into();
        assert_eq!(pool.take(|it| it == second), Some(second));
        assert_eq!(pool.take(|_| false), None);
        assert_eq!(pool.count, 1);
    }

    #[test]
    fn ranges_other_than_prefixes_are_refused() {
        for text in [
            "10.45.0.1/16",
            "10.45.0.0",
            "x/8",
            "10.0.0.0/33",
            "::/0",
            "2001:db8::/65",
        ] {
            let error = text.parse::<Range>().unwrap_err();
            assert!(
                error.starts_with("pools: ") && error.contains(text),
                "{error}"
            );
        }
        let wide: Range = "2001:db8::/32".parse().unwrap();
        assert_eq!(wide.size(), 1 << 24);
        assert_eq!(wide.address(5), "2001:db8:0:5::".parse::<IpAddr>().unwrap());
    }
}
