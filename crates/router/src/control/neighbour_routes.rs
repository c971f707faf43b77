//! The neighbours of the router, and the host routes of neighbours whose address is in the network of an interface.

use super::Control;
use super::key::Key;
use crate::hop::Hop;
use crate::interface::is_link_local;
use crate::neighbours::{At, Due, Learnt, Waiting, Wanted};
use crate::prefix::Network;
use crate::text::Target;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use taut_wire::Mac;

/// The interval at which the neighbours of next hops are checked. The MAC addresses of neighbours without an entry in
/// the neighbour table are then requested.
const LOOK: Duration = Duration::from_secs(1);

impl Control {
    /// Returns the MAC address of a known neighbour, or stores the frame until the neighbour is known
    /// ([`Neighbours::want`](crate::neighbours::Neighbours::want)).
    pub fn want(&mut self, at: At, frame: (u8, &[u8]), now: Instant) -> Wanted {
        self.neighbours.want(at, frame, now)
    }

    /// Returns the MAC address of a known neighbour.
    pub fn mac(&self, at: At) -> Option<Mac> {
        self.neighbours.mac(at)
    }

    /// Records a neighbour's MAC address; returns the packets that have waited for it. `asks_us` is true if the
    /// neighbour's message was a request for an address of the router.
    pub fn learn(&mut self, at: At, mac: Mac, asks_us: bool, now: Instant) -> Vec<Waiting> {
        let addresses = self.addresses.get(usize::from(at.0));
        let is_behind = addresses.is_some_and(|it| is_link_local(at.1) || it.are_near(at.1));
        let may_be_new = asks_us && is_behind;
        let learnt = self.neighbours.learn(at, mac, may_be_new, now);
        self.found(at, mac, learnt)
    }

    /// Records a kernel notification about a neighbour: `mac` is the neighbour's MAC address, or none if the kernel no
    /// longer knows one.
    pub fn hear_of(&mut self, at: At, mac: Option<Mac>, is_fixed: bool, now: Instant) {
        let Some(mac) = mac else {
            if self.neighbours.unfix(at) {
                self.lose(at);
            }
            return;
        };
        let learnt = match is_fixed {
            true => self.neighbours.fix(at, mac, now),
            false => self.neighbours.learn(at, mac, true, now),
        };
        let waited = self.found(at, mac, learnt);
        let waited = waited.into_iter().map(|frame| (at, mac, frame));
        self.released.extend(waited);
    }

    /// Updates the next hops of a neighbour that was resolved, so that packets go to it. Returns the packets that have
    /// waited for the neighbour.
    fn found(&mut self, at: At, mac: Mac, learnt: Option<Learnt>) -> Vec<Waiting> {
        let Some(Learnt { is_new, waited }) = learnt else {
            return Vec::new();
        };
        if is_new {
            self.add_station(at);
            self.lead_to(at, Hop::Forward { port: at.0, mac });
        }
        waited
    }

    /// Stops sending packets to a neighbour whose MAC address is no longer known.
    fn lose(&mut self, at: At) {
        self.lead_to(at, Hop::Unresolved);
        self.drop_station(self.station(at));
    }

    /// Returns the packets that can leave because their neighbour is resolved, each with its neighbour.
    pub fn take_released(&mut self) -> Vec<(At, Mac, Waiting)> {
        std::mem::take(&mut self.released)
    }

    /// Forgets the neighbours behind the interface `port`, whose link has failed, so that flows with an alternative
    /// next hop move to the alternative.
    pub fn cut_off(&mut self, port: u8) {
        let (known, waited) = self.neighbours.cut_off(port);
        for at in known {
            self.lose(at);
        }
        self.stranded.extend(waited);
    }

    /// Requests the MAC addresses of neighbours behind the interface `port` immediately when the link of the interface
    /// returns.
    pub fn join(&mut self, port: u8, now: Instant) {
        self.neighbours.join(port, now);
        self.next_look = now;
    }

    /// Forgets the MAC address of a neighbour, as if the neighbour had not replied.
    #[cfg(test)]
    pub fn forget(&mut self, at: At) {
        self.neighbours.forget(at);
        self.lose(at);
    }

    /// Returns the actions that are due now: requests for MAC addresses of neighbours, and packets whose wait for a
    /// neighbour has ended without a reply.
    pub fn tick(&mut self, now: Instant) -> Vec<Due> {
        self.move_on(now);
        if now >= self.next_look {
            self.next_look = now + LOOK;
            self.ask_for_gateways(now);
        }
        let mut due = self.neighbours.tick(now);
        let stranded = std::mem::take(&mut self.stranded);
        if !stranded.is_empty() {
            due.push(Due::Stranded(stranded));
        }
        for each in &due {
            if let Due::Gone(at) = each {
                self.lose(*at);
            }
        }
        due
    }

    /// Requests the MAC addresses of the neighbours to which routes lead, before packets for these neighbours arrive.
    fn ask_for_gateways(&mut self, now: Instant) {
        for key in self.in_use.keys() {
            if let Key::Neighbour(at) = key
                && !self.neighbours.has(*at)
                && !self.stations.contains_key(at)
            {
                self.neighbours.ask(*at, now);
            }
        }
    }

    /// Adds a host route for a neighbour in a network behind a port.
    fn add_station(&mut self, at: At) {
        let network = self.station(at);
        let route = self.route_of(network.table, at.1);
        let is_near = matches!(route, Some((_, Target::Connected(port))) if *port == at.0);
        if !is_near || self.stations.contains_key(&at) || self.routes.contains_key(&network) {
            return;
        }
        // If there is no space for a next hop, the neighbour's packets take the slow path.
        let Ok(hop) = self.take_key(Key::Neighbour(at)) else {
            return;
        };
        match self.write(network, Some(hop)) {
            Ok(()) => drop(self.stations.insert(at, ())),
            Err(_) => self.give_back_key(&Key::Neighbour(at)),
        }
    }

    /// Adds or removes the host routes of known neighbours in a network with a changed route. A neighbour has a host
    /// route only if the longest route to its address leads to its port. `of_port` is true if the changed route is, or
    /// was, that of a port's network. Any other changed route has an effect only if it lies within a port's network.
    pub(super) fn settle_stations(&mut self, network: Network, of_port: bool) {
        let parent = self
            .parent(network)
            .map(|prefix| Network { prefix, ..network });
        let parent = parent.and_then(|it| self.routes.get(&it));
        if !of_port && !matches!(parent, Some(Target::Connected(_))) {
            return;
        }
        let inside: Vec<At> = match network.prefix.host_address() {
            Some(address) => self.neighbours_at(network.table, address).collect(),
            None => {
                let known = self.neighbours.known();
                let is_inside =
                    |at: &At| self.table_of(at.0) == network.table && network.prefix.holds(at.1);
                known.filter(is_inside).collect()
            }
        };
        for at in inside {
            let route = self.route_of(network.table, at.1);
            match route {
                Some((_, Target::Connected(port))) if *port == at.0 => {
                    if self.neighbours.mac(at).is_some() {
                        self.add_station(at);
                    }
                }
                _ => self.drop_station(self.station(at)),
            }
        }
    }

    /// Returns a neighbour with the given address on each interface that uses a table.
    fn neighbours_at(&self, table: u8, address: IpAddr) -> impl Iterator<Item = At> + '_ {
        let interfaces = self.interfaces.iter().enumerate();
        let of_table = interfaces.filter(move |(_, interface)| interface.table == table);
        of_table.map(move |(number, _)| (number as u8, address))
    }

    /// Removes the host route of a neighbour if `network` is a single host. A configured route is not removed.
    pub(super) fn drop_station(&mut self, network: Network) {
        let Some(address) = network.prefix.host_address() else {
            return;
        };
        let mut stations = self.neighbours_at(network.table, address);
        let Some(at) = stations.find(|at| self.stations.contains_key(at)) else {
            return;
        };
        drop(stations);
        if !self.routes.contains_key(&network) && self.write(network, None).is_err() {
            return;
        }
        self.stations.remove(&at);
        self.give_back_key(&Key::Neighbour(at));
    }
}
