//! Ranges of IP addresses.

use std::net::IpAddr;

/// A range of successive IP addresses, the last included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) first: IpAddr,
    /// Number of addresses in the range after the first.
    pub(crate) more: u64,
}

impl Addresses {
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let offset = match (self.first, address) {
            (IpAddr::V4(first), IpAddr::V4(ip)) => {
                u128::from(ip.to_bits()).checked_sub(u128::from(first.to_bits()))
            }
            (IpAddr::V6(first), IpAddr::V6(ip)) => ip.to_bits().checked_sub(first.to_bits()),
            _ => None,
        };
        offset.is_some_and(|offset| offset <= u128::from(self.more))
    }
}
