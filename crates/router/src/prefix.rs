//! Prefixes of IPv4 and IPv6, and prefixes in one of a router's tables.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use taut_lpm::{PrefixV4, PrefixV6};

/// An IPv4 or IPv6 prefix.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Prefix {
    V4(PrefixV4),
    V6(PrefixV6),
}

impl Prefix {
    /// Returns the prefix of `length` bits that contains an address.
    pub fn of(address: IpAddr, length: u8) -> Self {
        match address {
            IpAddr::V4(address) => Self::V4(PrefixV4::of(address.into(), length)),
            IpAddr::V6(address) => Self::V6(PrefixV6::of(address.into(), length)),
        }
    }

    /// Returns the prefix that contains only the address `address`.
    pub fn host(address: IpAddr) -> Self {
        Self::of(address, 128)
    }

    /// Returns true if an address is in the prefix.
    pub fn holds(self, address: IpAddr) -> bool {
        match (self, address) {
            (Self::V4(prefix), IpAddr::V4(address)) => prefix.holds(address.into()),
            (Self::V6(prefix), IpAddr::V6(address)) => prefix.holds(address.into()),
            _ => false,
        }
    }

    /// Returns the only address of the prefix; none if the prefix contains several.
    pub fn host_address(self) -> Option<IpAddr> {
        match self {
            _ if !self.is_host() => None,
            Self::V4(prefix) => Some(Ipv4Addr::from(prefix.network()).into()),
            Self::V6(prefix) => Some(Ipv6Addr::from(prefix.network()).into()),
        }
    }

    /// Returns true if the prefix contains only one address.
    pub fn is_host(self) -> bool {
        match self {
            Self::V4(prefix) => prefix.length() == 32,
            Self::V6(prefix) => prefix.length() == 128,
        }
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::V4(prefix) => prefix.fmt(f),
            Self::V6(prefix) => prefix.fmt(f),
        }
    }
}

impl std::fmt::Debug for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// A prefix in one of the tables of a router; `table` is the table's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Network {
    pub table: u8,
    pub prefix: Prefix,
}

impl Network {
    pub fn is_v4(&self) -> bool {
        matches!(self.prefix, Prefix::V4(_))
    }
}

impl From<Prefix> for Network {
    fn from(prefix: Prefix) -> Self {
        Self { table: 0, prefix }
    }
}
