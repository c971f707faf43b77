//! The interfaces of a router, and their own addresses.

use super::prefix::Prefix;
use std::net::IpAddr;
use taut_wire::Mac;

/// The limit on addresses that the kernel may assign to one interface.
const MOST_KERNELS_ADDRESSES: usize = 1024;

/// An interface of the router: a port, or a VLAN on a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interface {
    /// The name by which routes refer to the interface; by default its index in the list of interfaces, from 0.
    pub name: String,
    /// The number of the port to which the interface belongs.
    pub port: u8,
    /// The VLAN in the tag of the interface's frames; none if its frames are untagged.
    pub vlan: Option<u16>,
    /// The number of the table in which packets from the interface are looked up.
    pub table: u8,
    pub mac: Mac,
    /// The configured addresses of the interface, before the kernel changes them.
    pub addresses: Addresses,
    /// The length of the longest IP packet that may leave through the interface, bytes.
    pub mtu: u16,
    /// The name of the kernel's interface (a tap) that receives packets for the router itself. Packets that the kernel
    /// sends through the tap leave through the router's interface.
    pub tap: Option<String>,
}

/// The router's own addresses on an interface, including the link-local IPv6 address, each with the prefix length of
/// its network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Addresses(Vec<(IpAddr, u8)>);

impl Addresses {
    pub fn own(&self) -> impl Iterator<Item = IpAddr> + Clone + '_ {
        self.0.iter().map(|(address, _)| *address)
    }

    /// Returns the addresses, each with the length of its network's prefix.
    pub fn with_lengths(&self) -> &[(IpAddr, u8)] {
        &self.0
    }

    /// Returns the networks in which the interface has addresses. Link-local ones exist on every interface, and are not
    /// included.
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

    /// Returns true if a network of the interface contains this address.
    pub fn are_near(&self, address: IpAddr) -> bool {
        self.networks().any(|network| network.holds(address))
    }

    /// Adds an address of the interface, or removes it if `is_there` is false.
    pub fn set(&mut self, address: (IpAddr, u8), is_there: bool) {
        self.0.retain(|(other, _)| *other != address.0);
        if is_there && self.0.len() < MOST_KERNELS_ADDRESSES {
            self.0.push(address);
        }
    }

    /// Returns one of the interface's addresses as the source of packets to `to`: an address of the same family, and of
    /// the same network if possible.
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

/// Returns true if an address is link-local: valid on its link only.
pub(super) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}
