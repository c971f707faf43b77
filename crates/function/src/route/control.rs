//! The side of a router that decides: which routes there are, where they lead, and which neighbours are known. It keeps the
//! tables that the workers look up in (`taut-lpm`), and what becomes of each next hop ([`Hops`]).

use super::group::Group;
use super::hop::{Hop, Hops, MOST_GROUPS, MOST_HOPS, Used};
use super::in_kernel::{Kernel, LONGEST_RUN, copy_v4, set_v6};
use super::interface::{Addresses, Interface, is_link_local};
use super::neighbours::{At, Due, Learnt, Neighbours, Waiting, Wanted};
use super::prefix::{Network, Prefix};
use super::refusal::Refused;
use super::settings::Checked;
use super::status::{KernelStatus, NeighbourText, RouteText, Status};
use super::text::{Asked, Target, Way, text_of};
use crate::changes::Sender;
use crate::mix::Seeded;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use taut_lpm::{NextHop, PrefixV4, Rib, v4, v6};
use taut_wire::Mac;
use taut_xdp::router::KernelRouter;

/// /24 networks that may have longer prefixes in them: all that there can be.
const BLOCKS: usize = v4::MOST_BLOCKS;
/// Room for routes of IPv6 that come later, beside those that are there at first: for a full table, which takes some
/// 13,000 nodes and 73,000 lines, and most of another one.
const SPARE_NODES: usize = 1 << 15;
const SPARE_LINES: usize = 1 << 17;
/// Next hops are looked at so often, whether all are asked for.
const LOOK: Duration = Duration::from_secs(1);

/// What next hops are told apart by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Neighbour(At),
    /// Stations of a network that are not known.
    Connected,
    /// Several neighbours in their order, none of them twice, with their weights without a common factor.
    Group(Vec<Way>),
    Local,
    Blackhole,
    Unreachable,
    Prohibited,
}

/// A next hop in use, and by how many routes.
#[derive(Debug)]
struct InUse {
    number: NextHop,
    uses: usize,
    /// Packets that others of its number have sent before it.
    before: u64,
}

/// Next hops and what else a change has put out of use, until no worker looks there any more.
#[derive(Debug)]
struct Retiring {
    /// Generations of both families of each table.
    tables: Vec<(u64, u64)>,
    hops: Vec<NextHop>,
    since: Instant,
}

/// A table of both families.
#[derive(Debug)]
struct Table {
    v4: v4::Table,
    v6: v6::Table,
}

impl Table {
    fn new() -> Result<Self, Refused> {
        Ok(Self {
            v4: v4::Table::new(BLOCKS)?,
            v6: v6::Table::new(v6::Capacity::default()),
        })
    }

    fn write(&mut self, prefix: Prefix, hop: Option<NextHop>) -> Result<(), Refused> {
        match (prefix, hop) {
            (Prefix::V4(prefix), Some(hop)) => drop(self.v4.insert(prefix, hop)?),
            (Prefix::V4(prefix), None) => drop(self.v4.remove(prefix)),
            (Prefix::V6(prefix), Some(hop)) => drop(self.v6.insert(prefix, hop)?),
            (Prefix::V6(prefix), None) => drop(self.v6.remove(prefix)?),
        }
        Ok(())
    }

    fn has_retired(&self) -> bool {
        self.v4.retired_blocks() > 0 || self.v6.retired() > 0
    }

    fn memory_bytes(&self) -> usize {
        self.v4.fib().memory_bytes() + self.v6.fib().memory_bytes()
    }
}

/// The tables of both families that workers look up in, in order of their numbers.
pub(super) type Fibs = Vec<(Arc<v4::Fib>, Arc<v6::Fib>)>;

#[derive(Debug)]
pub(super) struct Control {
    interfaces: Arc<[Interface]>,
    /// Own addresses of each interface.
    addresses: Vec<Addresses>,
    /// Whether the kernel says which routes there are, and nobody else.
    are_kernels: bool,
    tables: Vec<Table>,
    /// What stands for each table in texts.
    table_ids: Arc<[u32]>,
    hops: Arc<Hops>,
    in_use: HashMap<Key, InUse, Seeded>,
    groups: HashMap<Vec<Way>, (u8, Group)>,
    free_groups: Vec<u8>,
    free: Vec<NextHop>,
    /// Next hops that no route leads to since the last time that workers were asked to move on.
    left: Vec<NextHop>,
    retiring: Option<Retiring>,
    /// Routes as they are asked for.
    routes: HashMap<Network, Target, Seeded>,
    /// How many of them are IPv4's: there may be a million to count.
    routes_v4: usize,
    /// Neighbours that have a route of their own, as they are stations of a network behind a port.
    stations: HashMap<At, ()>,
    neighbours: Neighbours,
    /// Packets that waited for neighbours behind a port that was cut off.
    stranded: Vec<Waiting>,
    /// Packets that waited for neighbours that somebody else has learnt of, with where they go.
    released: Vec<(At, Mac, Waiting)>,
    /// State of the picture of the kernel, where its routes are followed.
    followed: Option<KernelStatus>,
    next_look: Instant,
    /// Times that routes were added, changed or taken away, since the start.
    changes: Arc<AtomicU64>,
    workers: Vec<Sender<()>>,
    /// Packets by next hop, of each worker.
    used: Vec<Used>,
    /// Programs in the kernel that look up as well.
    kernel: Kernel,
}

impl Control {
    /// The routes of the interfaces, and those asked for.
    ///
    /// # Errors
    /// When there are too many.
    pub fn new(checked: &Checked, now: Instant) -> Result<Self, Refused> {
        let mut control = Self {
            interfaces: Arc::clone(&checked.interfaces),
            addresses: checked
                .interfaces
                .iter()
                .map(|it| it.addresses.clone())
                .collect(),
            are_kernels: checked.are_kernels,
            tables: checked
                .tables
                .iter()
                .map(|_| Table::new())
                .collect::<Result<_, _>>()?,
            table_ids: Arc::clone(&checked.tables),
            hops: Arc::new(Hops::new()),
            in_use: HashMap::default(),
            groups: HashMap::new(),
            free_groups: (0..MOST_GROUPS as u32).rev().map(|it| it as u8).collect(),
            free: (1..MOST_HOPS as u32)
                .rev()
                .filter_map(|number| NextHop::new(number).ok())
                .collect(),
            left: Vec::new(),
            retiring: None,
            routes: HashMap::default(),
            routes_v4: 0,
            stations: HashMap::new(),
            neighbours: Neighbours::default(),
            stranded: Vec::new(),
            released: Vec::new(),
            followed: None,
            next_look: now,
            changes: Arc::default(),
            workers: Vec::new(),
            used: Vec::new(),
            kernel: None,
        };
        control.begin(&checked.routes)?;
        Ok(control)
    }

    /// Fills the empty tables, in the time that their entries take.
    fn begin(&mut self, asked: &[Asked]) -> Result<(), Refused> {
        for (network, target) in self.own_routes() {
            self.routes.insert(network, target);
        }
        for route in asked {
            // Those of the interfaces are not to be taken away.
            self.routes
                .entry(route.network)
                .or_insert_with(|| route.target.clone());
        }
        let mut ribs: Vec<(Rib<u32>, Rib<u128>)> = Vec::new();
        ribs.resize_with(self.tables.len(), Default::default);
        let routes = std::mem::take(&mut self.routes);
        for (network, target) in &routes {
            let hop = self.take(target)?;
            let (four, six) = &mut ribs[usize::from(network.table)];
            match network.prefix {
                Prefix::V4(prefix) => drop(four.insert(prefix, hop)),
                Prefix::V6(prefix) => drop(six.insert(prefix, hop)),
            }
        }
        self.routes_v4 = routes.keys().filter(|it| it.is_v4()).count();
        self.routes = routes;
        for (table, (four, six)) in self.tables.iter_mut().zip(&ribs) {
            let needed = v6::Capacity::of(six);
            // Large changes have old and new beside each other for a moment.
            table.v6 = v6::Table::new(v6::Capacity {
                nodes: 2 * needed.nodes + SPARE_NODES,
                lines: 2 * needed.lines + SPARE_LINES,
            });
            table.v4.extend(four)?;
            table.v6.extend(six)?;
        }
        Ok(())
    }

    fn own_routes(&self) -> Vec<(Network, Target)> {
        let mut routes = Vec::new();
        // The kernel makes those of its interfaces itself.
        let all = self.addresses.iter().zip(&*self.interfaces).enumerate();
        for (number, (addresses, Interface { table, .. })) in all.filter(|_| !self.are_kernels) {
            let table = *table;
            let network = |prefix| Network { table, prefix };
            let networks = addresses.networks();
            routes.extend(networks.map(|it| (network(it), Target::Connected(number as u8))));
            let own = addresses.own();
            routes.extend(own.map(|address| (network(Prefix::host(address)), Target::Local)));
        }
        // Behind those of the networks: an address may be all of its network.
        routes
    }

    /// What a worker looks up in.
    pub fn tables(&self) -> (Fibs, Arc<Hops>) {
        let fibs = |table: &Table| (Arc::clone(table.v4.fib()), Arc::clone(table.v6.fib()));
        let fibs = self.tables.iter().map(fibs).collect();
        (fibs, Arc::clone(&self.hops))
    }

    /// Has programs in the kernel go by the same routes from now on.
    ///
    /// # Errors
    /// When there is no room for them there.
    pub fn mirror(&mut self, kernel: Arc<KernelRouter>) -> Result<(), Refused> {
        self.hops.mirror(Arc::clone(&kernel));
        let main = &self.tables[0];
        copy_v4(&kernel, main.v4.fib(), PrefixV4::ALL);
        for (prefix, hop) in main.v6.rib().iter() {
            set_v6(&kernel, prefix, Some(hop))?;
        }
        self.kernel = Some(kernel);
        Ok(())
    }

    /// Has a worker asked to move on before memory that it may look into is used again.
    pub fn add_worker(&mut self, mut sender: Sender<()>, used: Used) {
        sender.patience = Duration::ZERO;
        self.workers.push(sender);
        self.used.push(used);
    }

    /// Packets that all workers have sent by the next hop of that number.
    fn sent_by(&self, number: NextHop) -> u64 {
        let of_worker = |used: &Used| {
            used.get(number.index())
                .map(|it| it.load(Ordering::Relaxed))
        };
        self.used.iter().filter_map(of_worker).sum()
    }

    /// Packets that workers have sent by the next hop that an address leads to, by whichever route; none where programs in the kernel
    /// send most of them.
    pub fn packets_towards(&self, table: u8, address: IpAddr) -> Option<u64> {
        let (_, target) = self.route_of(table, address)?;
        let station = match target {
            Target::Connected(port) => self.in_use.get(&Key::Neighbour((*port, address))),
            _ => None,
        };
        let in_use = station.or_else(|| self.in_use.get(&key(target)))?;
        let sent = self.sent_by(in_use.number).saturating_sub(in_use.before);
        self.kernel.is_none().then_some(sent)
    }

    /// The shorter routes that hold an address as well, the longest of them first.
    pub fn covering(&self, table: u8, address: IpAddr) -> Vec<RouteText> {
        let Some((found, _)) = self.route_of(table, address) else {
            return Vec::new();
        };
        let length = match found.prefix {
            Prefix::V4(prefix) => prefix.length(),
            Prefix::V6(prefix) => prefix.length(),
        };
        let shorter = (0..length).rev().map(|length| Network {
            table,
            prefix: Prefix::of(address, length),
        });
        let there = shorter.filter_map(|network| Some((network, self.routes.get(&network)?)));
        there
            .map(|(network, target)| self.text_of(network, target))
            .collect()
    }

    pub fn interfaces(&self) -> Arc<[Interface]> {
        Arc::clone(&self.interfaces)
    }

    /// What stands for each table in texts.
    pub fn table_ids(&self) -> Arc<[u32]> {
        Arc::clone(&self.table_ids)
    }

    /// The table of an interface.
    pub fn table_of(&self, interface: u8) -> u8 {
        let interface = self.interfaces.get(usize::from(interface));
        interface.map_or(0, |it| it.table)
    }

    /// The network of one station behind an interface.
    fn station(&self, at: At) -> Network {
        Network {
            table: self.table_of(at.0),
            prefix: Prefix::host(at.1),
        }
    }

    /// Where the route of a prefix leads.
    pub fn get(&self, network: impl Into<Network>) -> Option<&Target> {
        self.routes.get(&network.into())
    }

    pub fn is_network_of_interface(&self, network: Network) -> bool {
        let mut all = self.addresses.iter().zip(&*self.interfaces);
        all.any(|(addresses, interface)| {
            let is_it = |prefix| prefix == network.prefix;
            interface.table == network.table && addresses.networks().any(is_it)
        })
    }

    /// Whether the kernel says which routes there are.
    pub fn are_kernels(&self) -> bool {
        self.are_kernels
    }

    /// An own address of an interface for packets that go to an address.
    pub fn address_towards(&self, interface: u8, to: IpAddr) -> Option<IpAddr> {
        self.addresses.get(usize::from(interface))?.towards(to)
    }

    /// Whether an address is the router's own on an interface.
    pub fn is_own(&self, interface: u8, address: IpAddr) -> bool {
        let addresses = self.addresses.get(usize::from(interface));
        addresses.is_some_and(|it| it.contains(address))
    }

    /// Takes note that an interface has an address, or has it no more.
    pub fn set_address(&mut self, interface: u8, address: (IpAddr, u8), is_there: bool) {
        if let Some(addresses) = self.addresses.get_mut(usize::from(interface)) {
            addresses.set(address, is_there);
        }
    }

    pub fn networks(&self) -> impl Iterator<Item = Network> + '_ {
        self.routes.keys().copied()
    }

    fn text_of(&self, network: Network, target: &Target) -> RouteText {
        RouteText {
            prefix: network.prefix.to_string(),
            route: text_of(network, target, &self.interfaces, &self.table_ids),
        }
    }

    /// Every route, shorter prefixes before those within them.
    pub fn list(&self) -> Vec<RouteText> {
        let mut routes: Vec<_> = self.routes.iter().collect();
        routes.sort_unstable_by_key(|(network, _)| **network);
        routes
            .into_iter()
            .map(|(network, target)| self.text_of(*network, target))
            .collect()
    }

    /// The route of an address in a table, and the neighbours that it leads to.
    pub fn show(&self, table: u8, address: IpAddr) -> Option<(RouteText, Vec<NeighbourText>)> {
        let (network, target) = self.route_of(table, address)?;
        let neighbour = |at: At| NeighbourText {
            interface: self.interfaces[usize::from(at.0)].name.clone(),
            address: at.1,
            mac: self.mac(at).map(|mac| mac.to_string()),
        };
        let neighbours = self.neighbours_towards(table, address);
        let neighbours = neighbours.into_iter().map(neighbour);
        Some((self.text_of(network, target), neighbours.collect()))
    }

    pub fn status(&self) -> Status {
        let (neighbours, neighbours_unknown) = self.neighbours.count();
        Status {
            routes_v4: self.routes_v4,
            routes_v6: self.routes.len() - self.routes_v4,
            neighbours,
            neighbours_unknown,
            next_hops: self.in_use.len(),
            next_hops_most: MOST_HOPS - 1,
            table_bytes: self.tables.iter().map(Table::memory_bytes).sum(),
            kernel: self.followed,
        }
    }

    /// Count of changes of routes, which may be read while they are made.
    pub fn changes(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.changes)
    }

    /// Adds a route, or lets the one of its prefix lead elsewhere.
    ///
    /// # Errors
    /// When there is no room; nothing has changed then.
    pub fn set(&mut self, network: impl Into<Network>, target: Target) -> Result<(), Refused> {
        let network = network.into();
        let leads_to_port = matches!(target, Target::Connected(_));
        let hop = self.take(&target)?;
        if let Err(e) = self.write(network, Some(hop)) {
            self.give_back(&target);
            return Err(e);
        }
        let (is_change, before) = match self.routes.entry(network) {
            Entry::Vacant(entry) => {
                entry.insert(target);
                (true, None)
            }
            Entry::Occupied(mut entry) => {
                let is_change = *entry.get() != target;
                (is_change, Some(entry.insert(target)))
            }
        };
        let mut led_to_port = false;
        match before {
            Some(before) => {
                led_to_port = matches!(before, Target::Connected(_));
                self.give_back(&before);
            }
            // A station that was there has it in its route's place.
            None => {
                self.routes_v4 += usize::from(network.is_v4());
                self.drop_station(network);
            }
        }
        if is_change {
            self.settle_stations(network, leads_to_port || led_to_port);
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Takes a route away; whether there was one.
    ///
    /// # Errors
    /// When there is no room for what comes in its place; nothing has changed then.
    pub fn remove(&mut self, network: impl Into<Network>) -> Result<bool, Refused> {
        let network = network.into();
        if !self.routes.contains_key(&network) {
            return Ok(false);
        }
        self.write(network, None)?;
        if let Some(before) = self.routes.remove(&network) {
            self.routes_v4 -= usize::from(network.is_v4());
            self.give_back(&before);
            self.settle_stations(network, matches!(before, Target::Connected(_)));
        }
        self.changes.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// The longest route of a table that an address is in.
    pub fn route_of(&self, table: u8, address: IpAddr) -> Option<(Network, &Target)> {
        let Table { v4, v6 } = self.tables.get(usize::from(table))?;
        let mut prefix = match address {
            IpAddr::V4(address) => Prefix::V4(v4.rib().lookup(address.into())?.0),
            IpAddr::V6(address) => Prefix::V6(v6.rib().lookup(address.into())?.0),
        };
        loop {
            let network = Network { table, prefix };
            if let Some(target) = self.routes.get(&network) {
                return Some((network, target));
            }
            // That of a station, which is in the network of its port.
            prefix = self.parent(network)?;
        }
    }

    /// The longest prefix of a table that covers another one, a station's or a route's.
    fn parent(&self, Network { table, prefix }: Network) -> Option<Prefix> {
        let Table { v4, v6 } = self.tables.get(usize::from(table))?;
        Some(match prefix {
            Prefix::V4(it) => Prefix::V4(v4.rib().covering(it)?.0),
            Prefix::V6(it) => Prefix::V6(v6.rib().covering(it)?.0),
        })
    }

    /// The neighbours that packets for an address may go to, one of them known or not.
    pub fn neighbours_towards(&self, table: u8, address: IpAddr) -> Vec<At> {
        match self.route_of(table, address) {
            Some((_, Target::Connected(port))) => vec![(*port, address)],
            Some((_, Target::Neighbours(all))) => all.iter().map(|way| way.at).collect(),
            _ => Vec::new(),
        }
    }

    /// [`Neighbours::want`].
    pub fn want(&mut self, at: At, frame: (u8, &[u8]), now: Instant) -> Wanted {
        self.neighbours.want(at, frame, now)
    }

    /// The MAC address of a neighbour that is known.
    pub fn mac(&self, at: At) -> Option<Mac> {
        self.neighbours.mac(at)
    }

    /// Takes note of a neighbour's MAC address; packets that have waited for it.
    pub fn learn(&mut self, at: At, mac: Mac, asks_us: bool, now: Instant) -> Vec<Waiting> {
        let addresses = self.addresses.get(usize::from(at.0));
        let is_behind = addresses.is_some_and(|it| is_link_local(at.1) || it.are_near(at.1));
        let may_be_new = asks_us && is_behind;
        let learnt = self.neighbours.learn(at, mac, may_be_new, now);
        self.found(at, mac, learnt)
    }

    /// Takes note of what the kernel says of a neighbour: its MAC address, or that it has none any more.
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

    /// Leads packets to a neighbour of which something was learnt; those that have waited for it.
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

    /// Leads no packets to a neighbour any more.
    fn lose(&mut self, at: At) {
        self.lead_to(at, Hop::Unresolved);
        self.drop_station(self.station(at));
    }

    /// Packets that can go now, with the neighbours that they go to.
    pub fn take_released(&mut self) -> Vec<(At, Mac, Waiting)> {
        std::mem::take(&mut self.released)
    }

    /// Forgets the neighbours behind a port whose link is cut, so that flows that have another next hop take it.
    pub fn cut_off(&mut self, port: u8) {
        let (known, waited) = self.neighbours.cut_off(port);
        for at in known {
            self.lose(at);
        }
        self.stranded.extend(waited);
    }

    /// Has neighbours behind a port that is no longer cut off asked for at once.
    pub fn join(&mut self, port: u8, now: Instant) {
        self.neighbours.join(port, now);
        self.next_look = now;
    }

    /// Takes note of the state of the picture of the kernel.
    pub fn set_kernel_status(&mut self, status: KernelStatus) {
        self.followed = Some(status);
    }

    /// Forgets a neighbour, as if it had not answered.
    #[cfg(test)]
    pub fn forget(&mut self, at: At) {
        self.neighbours.forget(at);
        self.lose(at);
    }

    /// What is due by now: whom to ask, and packets that have waited in vain.
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

    /// Has neighbours that routes lead to asked for before packets come.
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

    /// Lets packets of a neighbour go this way from now on.
    fn lead_to(&mut self, at: At, hop: Hop) {
        if let Some(in_use) = self.in_use.get(&Key::Neighbour(at)) {
            self.hops.set(in_use.number, hop);
        }
        let is_there = matches!(hop, Hop::Forward { .. });
        for (members, (number, group)) in &mut self.groups {
            if let Some(member) = members.iter().position(|member| member.at == at) {
                group.set(member, is_there);
                write_group(&self.hops, *number, group, members, &self.in_use);
            }
        }
    }

    /// Gives a station of a network behind a port a route of its own.
    fn add_station(&mut self, at: At) {
        let network = self.station(at);
        let route = self.route_of(network.table, at.1);
        let is_near = matches!(route, Some((_, Target::Connected(port))) if *port == at.0);
        if !is_near || self.stations.contains_key(&at) || self.routes.contains_key(&network) {
            return;
        }
        // Without room its packets go on by the slow path.
        let Ok(hop) = self.take_key(Key::Neighbour(at)) else {
            return;
        };
        match self.write(network, Some(hop)) {
            Ok(()) => drop(self.stations.insert(at, ())),
            Err(_) => self.give_back_key(&Key::Neighbour(at)),
        }
    }

    /// Gives the known neighbours in a network whose route has changed routes of their own, or takes them away: they have one only
    /// where the longest route leads to their port. `of_port`: whether the route is, or was, that of a port's network; others
    /// matter only inside of one.
    fn settle_stations(&mut self, network: Network, of_port: bool) {
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

    /// What may be known of an address behind each of the interfaces that have their routes in a table.
    fn neighbours_at(&self, table: u8, address: IpAddr) -> impl Iterator<Item = At> + '_ {
        let interfaces = self.interfaces.iter().enumerate();
        let of_table = interfaces.filter(move |(_, interface)| interface.table == table);
        of_table.map(move |(number, _)| (number as u8, address))
    }

    /// Takes the route of a station away, if the network is one; a route that is asked for stays.
    fn drop_station(&mut self, network: Network) {
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

    /// Writes where a network leads into the tables; none takes it out of them. In the kernel there is the main table only.
    fn write(&mut self, network: Network, hop: Option<NextHop>) -> Result<(), Refused> {
        let Network { table, prefix } = network;
        let Some(table) = self.tables.get_mut(usize::from(table)) else {
            return Ok(());
        };
        let Some(kernel) = self.kernel.as_ref().filter(|_| network.table == 0) else {
            return table.write(prefix, hop);
        };
        match prefix {
            Prefix::V4(prefix_v4) => {
                table.write(prefix, hop)?;
                copy_v4(kernel, table.v4.fib(), prefix_v4);
                Ok(())
            }
            Prefix::V6(prefix_v6) => {
                set_v6(kernel, prefix_v6, hop)?;
                let written = table.write(prefix, hop);
                if written.is_err() {
                    set_v6(kernel, prefix_v6, table.v6.rib().get(prefix_v6))?;
                }
                written
            }
        }
    }

    /// The next hop of a target, which has one use more.
    fn take(&mut self, target: &Target) -> Result<NextHop, Refused> {
        self.take_key(key(target))
    }

    fn take_key(&mut self, key: Key) -> Result<NextHop, Refused> {
        if let Some(in_use) = self.in_use.get_mut(&key) {
            in_use.uses += 1;
            return Ok(in_use.number);
        }
        let number = self.free.pop().ok_or(Refused::TooManyHops(MOST_HOPS - 1))?;
        let hop = match &key {
            Key::Neighbour((port, _)) => match self.known(&key) {
                Some(mac) => Hop::Forward { port: *port, mac },
                None => Hop::Unresolved,
            },
            Key::Connected => Hop::Unresolved,
            Key::Local => Hop::Local,
            Key::Blackhole => Hop::Blackhole,
            Key::Unreachable => Hop::Unreachable,
            Key::Prohibited => Hop::Prohibited,
            Key::Group(members) => match self.take_group(members) {
                Ok(group) => Hop::Group(group),
                Err(e) => {
                    self.free.push(number);
                    return Err(e);
                }
            },
        };
        self.hops.set(number, hop);
        let before = self.sent_by(number);
        self.in_use.insert(
            key,
            InUse {
                number,
                uses: 1,
                before,
            },
        );
        Ok(number)
    }

    fn known(&self, key: &Key) -> Option<Mac> {
        match key {
            Key::Neighbour(at) => self.neighbours.mac(*at),
            _ => None,
        }
    }

    fn take_group(&mut self, members: &[Way]) -> Result<u8, Refused> {
        let number = self
            .free_groups
            .pop()
            .ok_or(Refused::TooManyGroups(MOST_GROUPS))?;
        for (taken, member) in members.iter().enumerate() {
            if let Err(e) = self.take_key(Key::Neighbour(member.at)) {
                for member in &members[..taken] {
                    self.give_back_key(&Key::Neighbour(member.at));
                }
                self.free_groups.push(number);
                return Err(e);
            }
        }
        let members_of = members
            .iter()
            .map(|way| (self.neighbours.mac(way.at).is_some(), way.weight));
        let group = Group::new(members_of);
        write_group(&self.hops, number, &group, members, &self.in_use);
        self.groups.insert(members.to_vec(), (number, group));
        Ok(number)
    }

    fn give_back(&mut self, target: &Target) {
        self.give_back_key(&key(target));
    }

    fn give_back_key(&mut self, key: &Key) {
        let Some(in_use) = self.in_use.get_mut(key) else {
            return;
        };
        in_use.uses -= 1;
        if in_use.uses > 0 {
            return;
        }
        let number = in_use.number;
        self.in_use.remove(key);
        self.left.push(number);
        if let Key::Group(members) = key {
            for member in members {
                self.give_back_key(&Key::Neighbour(member.at));
            }
        }
    }

    /// Uses memory again that no worker looks into any more: asks them to move on, and looks later whether they have.
    fn move_on(&mut self, now: Instant) {
        self.workers.retain(|worker| !worker.is_abandoned());
        if let Some(retiring) = self.retiring.take() {
            let is_early = self.kernel.is_some() && now < retiring.since + LONGEST_RUN;
            if is_early
                || !self
                    .workers
                    .iter_mut()
                    .all(|worker| worker.settle().is_ok())
            {
                self.retiring = Some(retiring);
                return;
            }
            for (table, (v4, v6)) in self.tables.iter_mut().zip(&retiring.tables) {
                table.v4.quiesced(*v4);
                table.v6.quiesced(*v6);
            }
            self.free.extend(retiring.hops);
            self.free_unused_groups();
        }
        if self.left.is_empty() && !self.tables.iter().any(Table::has_retired) {
            return;
        }
        self.retiring = Some(Retiring {
            tables: self
                .tables
                .iter()
                .map(|table| (table.v4.generation(), table.v6.generation()))
                .collect(),
            hops: std::mem::take(&mut self.left),
            since: now,
        });
        for worker in &mut self.workers {
            worker.send(&[()]);
        }
    }

    fn free_unused_groups(&mut self) {
        let in_use = &self.in_use;
        let free = &mut self.free_groups;
        self.groups.retain(|members, (number, _)| {
            let is_used = in_use.contains_key(&Key::Group(members.clone()));
            if !is_used {
                free.push(*number);
            }
            is_used
        });
    }
}

fn key(target: &Target) -> Key {
    match target {
        Target::Neighbours(all) => match all.as_slice() {
            [one] => Key::Neighbour(one.at),
            all => {
                let mut all = all.to_vec();
                all.sort_unstable();
                all.dedup_by(|way, before| {
                    let is_same = way.at == before.at;
                    if is_same {
                        before.weight = before.weight.saturating_add(way.weight);
                    }
                    is_same
                });
                let common = all.iter().fold(0, |common, way| gcd(common, way.weight));
                all.iter_mut().for_each(|way| way.weight /= common.max(1));
                match all.as_slice() {
                    [one] => Key::Neighbour(one.at),
                    _ => Key::Group(all),
                }
            }
        },
        Target::Connected(_) => Key::Connected,
        Target::Local => Key::Local,
        Target::Blackhole => Key::Blackhole,
        Target::Unreachable => Key::Unreachable,
        Target::Prohibited => Key::Prohibited,
    }
}

/// Greatest common divisor; that of 0 and a number is the number.
fn gcd(a: u16, b: u16) -> u16 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Writes which next hop each share of a group's flows has.
fn write_group(
    hops: &Hops,
    number: u8,
    group: &Group,
    members: &[Way],
    in_use: &HashMap<Key, InUse, Seeded>,
) {
    for (bucket, member) in group.buckets().iter().enumerate() {
        let at = members.get(usize::from(*member));
        let found = at.and_then(|way| in_use.get(&Key::Neighbour(way.at)));
        hops.set_bucket(number, bucket, found.map_or(NextHop::NONE, |it| it.number));
    }
}
