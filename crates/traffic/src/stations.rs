//! The hosts that the generator emulates, and their replies to requests for their MAC addresses. The protocols are ARP
//! (RFC 826) and neighbour discovery (RFC 4861).

use crate::addresses::Addresses;
use crate::traffic::Traffic;
use std::net::IpAddr;
use taut_wire::resolution::{self, LONGEST_BYTES};
use taut_wire::{Mac, UdpFlow};

/// The emulated hosts: sources and destinations of the traffic.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stations {
    /// Addresses of hosts, their MAC address, and true if they are at the first port; otherwise they are at the last
    /// port.
    known: Vec<(Addresses, Mac, bool)>,
    gateways: Vec<IpAddr>,
}

impl Stations {
    /// Makes the hosts: sources are at the first port, destinations at the last one.
    pub(crate) fn of(traffic: &Traffic) -> Self {
        let mut stations = Self::default();
        for stream in traffic.streams() {
            let Some([from, to]) = stream.ends() else {
                continue;
            };
            stations.known.push((from, stream.src_mac(), true));
            stations.known.push((to, UdpFlow::default().dst_mac, false));
            stations
                .gateways
                .extend(stream.gateway().map(|gateway| gateway.ip));
        }
        stations
    }

    /// Returns the MAC address of `ip`, if it is an emulated host at one of the ports for which the flag is set.
    fn mac(&self, ip: IpAddr, first_port: bool, last_port: bool) -> Option<Mac> {
        let here = |first: bool| if first { first_port } else { last_port };
        let found = self
            .known
            .iter()
            .find(|(addresses, _, first)| here(*first) && addresses.contains(ip));
        found
            .filter(|_| !self.gateways.contains(&ip))
            .map(|(_, mac, _)| *mac)
    }

    /// Writes the reply to `frame`, if `frame` requests the address of an emulated host; returns the length of the
    /// reply in bytes.
    pub(crate) fn answer(
        &self,
        frame: &[u8],
        first_port: bool,
        last_port: bool,
        reply: &mut [u8; LONGEST_BYTES],
    ) -> Option<usize> {
        let mac = |ip| self.mac(ip, first_port, last_port);
        resolution::answer(frame, mac, reply)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::gateway::Gateway;
    use taut_wire::{Ethernet, Vlan};

    const ROUTER: Mac = Mac([2, 0, 0, 0, 0, 0x77]);

    fn stations(settings: &[(&str, &str)]) -> Stations {
        Stations::of(&Traffic::of_settings(settings).unwrap())
    }

    fn question(ip: &str, asker_ip: &str, vlan: Vlan) -> Vec<u8> {
        let gateway = Gateway {
            ip: ip.parse().unwrap(),
            asker_ip: asker_ip.parse().unwrap(),
            asker_mac: ROUTER,
            vlan,
        };
        let mut frame = [0; LONGEST_BYTES];
        let len = gateway.question(&mut frame).unwrap();
        frame[..len].to_vec()
    }

    /// Returns the MAC address that a reply to the router at `asker_ip` gives for `ip`.
    fn answered(
        stations: &Stations,
        (ip, asker_ip): (&str, &str),
        first_port: bool,
    ) -> Option<Mac> {
        let mut reply = [0; LONGEST_BYTES];
        let question = question(ip, asker_ip, Vlan::Untagged);
        let len = stations.answer(&question, first_port, !first_port, &mut reply)?;
        assert!(resolution::may_be_about_neighbours(&question));
        let ethernet = Ethernet::new(&reply[..len]).unwrap();
        assert_eq!(ethernet.destination(), ROUTER);
        let gateway = Gateway {
            ip: ip.parse().unwrap(),
            asker_ip: asker_ip.parse().unwrap(),
            asker_mac: ROUTER,
            vlan: Vlan::Untagged,
        };
        let mac = gateway.answer_in(&reply[..len]).unwrap();
        assert_eq!(ethernet.source(), mac);
        Some(mac)
    }

    #[test]
    fn each_port_replies_only_for_hosts_on_its_side() {
        let stations = stations(&[
            ("src_ip", "10.0.0.1-10.0.0.9"),
            ("dst_ip", "10.1.0.0-10.1.255.255 random"),
            ("src_mac", "02:00:00:00:00:05"),
        ]);
        let source = Some(Mac([2, 0, 0, 0, 0, 5]));
        let destination = Some(Mac([2, 0, 0, 0, 0, 2]));
        for (ip, first_port, mac) in [
            ("10.0.0.1", true, source),
            ("10.0.0.9", true, source),
            ("10.0.0.10", true, None),
            ("10.0.0.1", false, None),
            ("10.1.3.4", false, destination),
            ("10.1.3.4", true, None),
            ("10.2.0.0", false, None),
        ] {
            let found = answered(&stations, (ip, "10.9.9.9"), first_port);
            assert_eq!(found, mac, "{ip}");
        }
    }

    #[test]
    fn neighbour_solicitations_for_ipv6_addresses_get_replies() {
        let stations = stations(&[
            ("src_ip", "2001:2::1-2001:2::5"),
            ("dst_ip", "2001:2:0:1::1"),
            ("size", "100"),
        ]);
        let mac = |last| Some(Mac([2, 0, 0, 0, 0, last]));
        let router = "fe80::1";
        assert_eq!(answered(&stations, ("2001:2::5", router), true), mac(1));
        assert_eq!(answered(&stations, ("2001:2::6", router), true), None);
        let destination = ("2001:2:0:1::1", router);
        assert_eq!(answered(&stations, destination, false), mac(2));
        // The reply to a requester without an address goes to all nodes.
        let question = question("2001:2::1", "::", Vlan::Untagged);
        let mut reply = [0; LONGEST_BYTES];
        stations.answer(&question, true, true, &mut reply).unwrap();
        assert_eq!(reply[..6], [0x33, 0x33, 0, 0, 0, 1]);
    }

    #[test]
    fn arp_requests_for_a_gateway_get_no_reply() {
        let stations = stations(&[("dst_ip", "10.1.0.0-10.1.0.255"), ("gateway", "10.1.0.1")]);
        assert_eq!(answered(&stations, ("10.1.0.1", "10.1.0.9"), false), None);
        assert!(answered(&stations, ("10.1.0.2", "10.1.0.9"), false).is_some());
        let tag = Vlan::Single(taut_wire::VlanTag::new(7).unwrap());
        let mut reply = [0; LONGEST_BYTES];
        let question = question("10.1.0.2", "10.1.0.9", tag);
        let len = stations.answer(&question, true, true, &mut reply).unwrap();
        assert_eq!(Ethernet::new(&reply[..len]).unwrap().vlan(), tag);
    }

    #[test]
    fn malformed_requests_and_gratuitous_arp_get_no_reply() {
        let stations = stations(&[]);
        let mut random = fastrand::Rng::with_seed(7);
        let good = question("198.18.0.1", "198.18.0.9", Vlan::Untagged);
        let mut reply = [0; LONGEST_BYTES];
        assert!(stations.answer(&good, true, true, &mut reply).is_some());
        for _ in 0..10_000 {
            let mut frame = good.clone();
            frame.truncate(random.usize(..=frame.len()));
            for _ in 0..3 {
                if let Some(byte) = random.choice(&mut frame) {
                    *byte = random.u8(..);
                }
            }
            let _ = stations.answer(&frame, true, true, &mut reply);
        }
        // An announcement of one's own address requests nothing.
        let own = question("198.18.0.1", "198.18.0.1", Vlan::Untagged);
        assert!(stations.answer(&own, true, true, &mut reply).is_none());
    }
}
