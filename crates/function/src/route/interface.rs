//! Interfaces of a router, and their own addresses.

use super::prefix::Prefix;
use std::net::IpAddr;
use taut_wire::Mac;

/// Addresses of one interface that the kernel may give it.
const MOST_KERNELS_ADDRESSES: usize = 1024;

/// The router's end of a port, or of a VLAN on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interface {
    /// Name in routes: its number unless it is given one.
    pub name: String,
    /// Number of the port that it is on.
    pub port: u8,
    /// VLAN whose tag its frames have, if they have one.
    pub vlan: Option<u16>,
    /// Number of the table that its packets are looked up in.
    pub table: u8,
    pub mac: Mac,
    /// Addresses that it begins with.
    pub addresses: Addresses,
    /// Longest IP packet that may leave, bytes.
    pub mtu: u16,
    /// Name of the kernel's interface which gets what is for the router itself, and whose packets leave here.
    pub tap: Option<String>,
}

/// Own addresses of an interface, the link-local one of IPv6 among them, each with the length of its network's prefix.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Addresses(Vec<(IpAddr, u8)>);

impl Addresses {
    pub fn own(&self) -> impl Iterator<Item = IpAddr> + Clone + '_ {
        self.0.iter().map(|(address, _)| *address)
    }

    /// The addresses as they are given to the kernel.
    pub fn with_lengths(&self) -> &[(IpAddr, u8)] {
        &self.0
    }

    /// Networks behind the interface. Link-local ones are behind every one, and are none of these.
    pub fn networks(&self) -> impl Iterator<Item = Prefix> + '_ {
        let routed = self
            .0
            .iter()
            .filter(|(address, _)| !is_link_local(*address));
        routed.map(|(address, length)| Prefix::of(*address, *length))
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        self.own().any(|own| own == address)
    }

    /// Whether a network behind the interface holds this address.
    pub fn are_near(&self, address: IpAddr) -> bool {
        self.networks().any(|network| network.holds(address))
    }

    /// Adds an address or takes it away.
    pub fn set(&mut self, address: (IpAddr, u8), is_there: bool) {
        self.0.retain(|(other, _)| *other != address.0);
        if is_there && self.0.len() < MOST_KERNELS_ADDRESSES {
            self.0.push(address);
        }
    }

    /// An own address for packets that go to an address, of its family: one of the same network, if there is one.
    pub fn towards(&self, to: IpAddr) -> Option<IpAddr> {
        let own = self
            .own()
            .filter(|address| address.is_ipv4() == to.is_ipv4());
        let mut alike = own
            .clone()
            .filter(|address| is_link_local(*address) == is_link_local(to));
        let near = alike.clone().find(|address| {
            self.networks()
                .any(|network| network.holds(*address) && network.holds(to))
        });
        near.or(alike.next()).or(own.clone().next())
    }
}

/// Whether an address means something on its link only.
pub(super) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}
