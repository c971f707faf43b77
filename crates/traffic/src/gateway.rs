//! Requests the MAC address of a gateway: ARP (RFC 826) and neighbour discovery (RFC 4861).

use std::net::IpAddr;
use taut_wire::arp::Operation;
use taut_wire::resolution::{LONGEST_BYTES, arp_frame, neighbour_frame, neighbour_message};
use taut_wire::{
    Arp, ArpRepr, EtherType, Ethernet, EthernetRepr, Mac, NeighbourRepr, Vlan, neighbour,
};

/// The addresses of a request for a MAC address: those of the requesting host and of the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gateway {
    pub(crate) ip: IpAddr,
    /// Address of the requesting host, of the same IP version as the gateway's address.
    pub(crate) asker_ip: IpAddr,
    pub(crate) asker_mac: Mac,
    pub(crate) vlan: Vlan,
}

impl Gateway {
    /// Writes the request into `frame`, and returns its length in bytes; none if the addresses differ in IP version.
    pub(crate) fn question(&self, frame: &mut [u8; LONGEST_BYTES]) -> Option<usize> {
        let mut header = EthernetRepr {
            destination: Mac::BROADCAST,
            source: self.asker_mac,
            vlan: self.vlan,
            ethertype: EtherType::ARP,
        };
        match (self.ip, self.asker_ip) {
            (IpAddr::V4(ip), IpAddr::V4(asker)) => {
                let question = ArpRepr {
                    operation: Operation::REQUEST,
                    sender_mac: self.asker_mac,
                    sender_ip: asker,
                    target_mac: Mac::default(),
                    target_ip: ip,
                };
                arp_frame(&header, &question, frame)
            }
            (IpAddr::V6(ip), IpAddr::V6(asker)) => {
                let (group, group_mac) = neighbour::solicited_node(ip);
                header.destination = group_mac;
                header.ethertype = EtherType::IPV6;
                let question = NeighbourRepr::Solicitation {
                    target: ip,
                    mac: self.asker_mac,
                };
                neighbour_frame(&header, (asker, group), &question, frame)
            }
            _ => None,
        }
    }

    /// Returns the gateway's MAC address, if `frame` is the gateway's reply.
    pub(crate) fn answer_in(&self, frame: &[u8]) -> Option<Mac> {
        let ethernet = Ethernet::new(frame).ok()?;
        match (ethernet.ethertype(), self.ip) {
            (EtherType::ARP, IpAddr::V4(ip)) => {
                let arp = Arp::new(ethernet.payload()).ok()?;
                let is_it = arp.operation() == Operation::REPLY && arp.sender_ip() == ip;
                is_it.then(|| arp.sender_mac())
            }
            (EtherType::IPV6, IpAddr::V6(ip)) => {
                let (_, message) = neighbour_message(&ethernet)?;
                let is_it = !message.is_solicitation() && message.target() == ip;
                is_it.then(|| message.mac().unwrap_or(ethernet.source()))
            }
            _ => None,
        }
        .filter(|mac| !mac.is_multicast() && *mac != Mac::default())
    }
}
