//! The control plane of a router: its routes, their next hops, and the known neighbours. It owns the tables in which
//! workers look up destinations (`taut-lpm`), and the entries of all next hops ([`Hops`]). `next_hops.rs` shares and
//! reuses next hops, and `neighbour_routes.rs` handles neighbours.

mod key;
mod neighbour_routes;
mod next_hops;
mod table;

use super::group::Group;
use super::hop::{Hops, MOST_GROUPS, MOST_HOPS, Used};
use super::in_kernel::{Kernel, copy_v4, set_v6};
use super::interface::{Addresses, Interface};
use super::neighbours::{At, Neighbours, Waiting};
use super::prefix::{Network, Prefix};
use super::refusal::Refused;
use super::settings::Checked;
use super::status::{KernelStatus, NeighbourText, RouteText, Status};
use super::text::{Asked, Target, Way, text_of};
use key::{InUse, Key, key};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use table::Table;
use taut_function::changes::Sender;
use taut_function::mix::Seeded;
use taut_lpm::{NextHop, PrefixV4, Rib, v4, v6};
use taut_wire::Mac;
use taut_xdp::router::KernelRouter;

/// The spare memory of an IPv6 lookup table for later routes, in nodes (1 KiB each) and lines (128 bytes each). It is
/// sufficient for a full table of the Internet, which takes about 13,000 nodes and 73,000 lines, and for most of a
/// second one.
const SPARE_NODES: usize = 1 << 15;
const SPARE_LINES: usize = 1 << 17;

/// Next hops and other memory that a change of routes has retired, stored until no worker uses them.
#[derive(Debug)]
struct Retiring {
    /// The version numbers of the IPv4 FIB and the IPv6 FIB of each table when the grace period was requested from the
    /// workers. Memory that was retired before the request can be reused once all workers have confirmed it.
    tables: Vec<(u64, u64)>,
    hops: Vec<NextHop>,
    since: Instant,
}

/// The IPv4 and the IPv6 FIB of each table, in which workers look up destinations. The table's number is its index.
pub(super) type Fibs = Vec<(Arc<v4::Fib>, Arc<v6::Fib>)>;

#[derive(Debug)]
pub(super) struct Control {
    interfaces: Arc<[Interface]>,
    /// The router's own addresses on each interface.
    addresses: Vec<Addresses>,
    /// True if all routes come from the kernel.
    are_kernels: bool,
    tables: Vec<Table>,
    /// The kernel's number of each table, which the text of a route has after `table`.
    table_ids: Arc<[u32]>,
    hops: Arc<Hops>,
    in_use: HashMap<Key, InUse, Seeded>,
    groups: HashMap<Vec<Way>, (u8, Group)>,
    free_groups: Vec<u8>,
    free: Vec<NextHop>,
    /// The next hops that lost their last route after the latest request for a grace period.
    left: Vec<NextHop>,
    retiring: Option<Retiring>,
    /// The routes of all tables and their targets, without the host routes of neighbours.
    routes: HashMap<Network, Target, Seeded>,
    /// The number of IPv4 routes in `routes`, stored because counting a million takes long.
    routes_v4: usize,
    /// The neighbours that have a host route of their own because their address is in the network of one of the
    /// router's interfaces.
    stations: HashMap<At, ()>,
    neighbours: Neighbours,
    /// Packets that waited for the MAC addresses of neighbours behind an interface whose link has failed, until the
    /// next `tick` returns them.
    stranded: Vec<Waiting>,
    /// Packets that can leave because the kernel has resolved their neighbour, each with the neighbour and its MAC
    /// address.
    released: Vec<(At, Mac, Waiting)>,
    /// The sync status of the kernel's routes; none if routes do not come from the kernel.
    followed: Option<KernelStatus>,
    next_look: Instant,
    /// The number of added, changed and removed routes since the router started.
    changes: Arc<AtomicU64>,
    workers: Vec<Sender<()>>,
    /// For each worker, the numbers of packets that it sent by each next hop.
    used: Vec<Used>,
    /// The maps of the XDP programs that use the same routes; none if the kernel forwards no packets.
    kernel: Kernel,
}

impl Control {
    /// Creates the control plane with the routes of the interfaces and the configured routes.
    ///
    /// # Errors
    /// Fails if there are too many routes.
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

    /// Fills the empty tables with the initial routes `asked`. While no worker reads the tables, adding a route costs
    /// less than later.
    fn begin(&mut self, asked: &[Asked]) -> Result<(), Refused> {
        for (network, target) in self.own_routes() {
            self.routes.insert(network, target);
        }
        for route in asked {
            // The routes of the interfaces cannot be removed.
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
            // During a large change, old and new memory exist side by side.
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
        // The kernel itself creates the routes of its interfaces.
        let all = self.addresses.iter().zip(&*self.interfaces).enumerate();
        for (number, (addresses, Interface { table, .. })) in all.filter(|_| !self.are_kernels) {
            let table = *table;
            let network = |prefix| Network { table, prefix };
            let networks = addresses.networks();
            routes.extend(networks.map(|it| (network(it), Target::Connected(number as u8))));
            let own = addresses.own();
            routes.extend(own.map(|address| (network(Prefix::host(address)), Target::Local)));
        }
        // The routes of addresses follow the routes of networks, because a network may consist of a single address.
        routes
    }

    /// Returns the FIBs in which a worker looks up destinations, and the entries of all next hops.
    pub fn tables(&self) -> (Fibs, Arc<Hops>) {
        let fibs = |table: &Table| (Arc::clone(table.v4.fib()), Arc::clone(table.v6.fib()));
        let fibs = self.tables.iter().map(fibs).collect();
        (fibs, Arc::clone(&self.hops))
    }

    /// Copies all routes, and every later change, to the XDP programs.
    ///
    /// # Errors
    /// Fails if the programs' tables are too small.
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

    /// Adds a worker to those that must confirm each grace period before memory is reused.
    pub fn add_worker(&mut self, mut sender: Sender<()>, used: Used) {
        sender.patience = Duration::ZERO;
        self.workers.push(sender);
        self.used.push(used);
    }

    /// Returns the number of packets that all workers have sent by the next hop `number`.
    fn sent_by(&self, number: NextHop) -> u64 {
        let of_worker = |used: &Used| {
            used.get(number.index())
                .map(|it| it.load(Ordering::Relaxed))
        };
        self.used.iter().filter_map(of_worker).sum()
    }

    /// Returns the number of packets that workers have sent by the next hop of the route to an address. Packets of
    /// other routes with that next hop are included. Returns none if XDP programs send most packets.
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

    /// Returns the routes that contain `address` and are less specific than the route in use for it, longest prefix
    /// first.
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

    /// Returns the kernel's number of each table, which the text of a route has after `table`.
    pub fn table_ids(&self) -> Arc<[u32]> {
        Arc::clone(&self.table_ids)
    }

    /// Returns the number of the table in which packets from an interface are looked up.
    pub fn table_of(&self, interface: u8) -> u8 {
        let interface = self.interfaces.get(usize::from(interface));
        interface.map_or(0, |it| it.table)
    }

    /// Returns the host prefix of a neighbour, in the table of its interface.
    fn station(&self, at: At) -> Network {
        Network {
            table: self.table_of(at.0),
            prefix: Prefix::host(at.1),
        }
    }

    /// Returns the target of the route of exactly this prefix, if there is one.
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

    /// Returns true if the routes come from the kernel.
    pub fn are_kernels(&self) -> bool {
        self.are_kernels
    }

    /// Returns the address of the router itself on an interface that is suitable as the source of packets to `to`.
    pub fn address_towards(&self, interface: u8, to: IpAddr) -> Option<IpAddr> {
        self.addresses.get(usize::from(interface))?.towards(to)
    }

    /// Returns true if an address belongs to the router itself on an interface.
    pub fn is_own(&self, interface: u8, address: IpAddr) -> bool {
        let addresses = self.addresses.get(usize::from(interface));
        addresses.is_some_and(|it| it.contains(address))
    }

    /// Records that an interface has gained or lost an address.
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

    /// Returns every route of the router as text; a prefix precedes the longer prefixes that it contains.
    pub fn list(&self) -> Vec<RouteText> {
        let mut routes: Vec<_> = self.routes.iter().collect();
        routes.sort_unstable_by_key(|(network, _)| **network);
        routes
            .into_iter()
            .map(|(network, target)| self.text_of(*network, target))
            .collect()
    }

    /// Returns the route of an address in a table, and the route's neighbours.
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

    /// Returns the counter of route changes, which may be read concurrently.
    pub fn changes(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.changes)
    }

    /// Adds a route, or changes the target of the existing route of that prefix.
    ///
    /// # Errors
    /// Fails if there is not enough space in the tables; no route has changed then.
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
            // If the neighbour has a host route, the configured route takes its place.
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

    /// Removes the route of a prefix; returns true if it existed.
    ///
    /// # Errors
    /// Fails if there is not enough space for the next hop that packets of the removed route get; no route has changed
    /// then.
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

    /// Returns the route of a table with the longest prefix that contains an address.
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
            // The entry is the host route of a neighbour, so the search continues in the network of its port.
            prefix = self.parent(network)?;
        }
    }

    /// Returns the longest prefix in the table that contains the given prefix and is shorter than it.
    fn parent(&self, Network { table, prefix }: Network) -> Option<Prefix> {
        let Table { v4, v6 } = self.tables.get(usize::from(table))?;
        Some(match prefix {
            Prefix::V4(it) => Prefix::V4(v4.rib().covering(it)?.0),
            Prefix::V6(it) => Prefix::V6(v6.rib().covering(it)?.0),
        })
    }

    /// Returns the neighbours to which packets for an address may be sent, whether their MAC addresses are known or
    /// not.
    pub fn neighbours_towards(&self, table: u8, address: IpAddr) -> Vec<At> {
        match self.route_of(table, address) {
            Some((_, Target::Connected(port))) => vec![(*port, address)],
            Some((_, Target::Neighbours(all))) => all.iter().map(|way| way.at).collect(),
            _ => Vec::new(),
        }
    }

    /// Records the sync status of the kernel's routes.
    pub fn set_kernel_status(&mut self, status: KernelStatus) {
        self.followed = Some(status);
    }

    /// Writes the next hop of a prefix into the lookup tables; none removes the prefix. The XDP programs get a copy
    /// only of the main table.
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
}
