//! The router's copy of the kernel's routes, addresses and neighbours. It follows the changes that `ip route`, BIRD or
//! FRR make in the kernel. (RFC 3549.)
//!
//! A thread receives the notifications ([`Follower`]); code without sockets derives the changes of the router
//! ([`Mirror`]). The kernel may lose notifications, or change routes without one, such as when an interface goes down.
//! Then the thread requests everything again (a full request), and entries that no longer exist are removed.

use super::control::Control;
use super::prefix::{Network, Prefix};
use super::status::KernelStatus;
use super::taps::Taps;
use super::text::{Target, Way};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use taut_function::mix::Seeded;
use taut_port::PortError;
use taut_sys::{
    Heard, KernelFact, KernelRoute, KernelRouteKind, KernelRoutes, LOCAL_TABLE, spawn_background,
};
use taut_wire::Mac;

/// The longest time for which the thread waits for changes before it checks whether it has to end.
const LISTEN: Duration = Duration::from_millis(100);
/// The delay between an event and the full request (for all routes, addresses and neighbours) that it causes, because
/// more such events may follow.
const SETTLE: Duration = Duration::from_millis(50);
/// The number of notifications that are applied under one lock; the slow path may have to wait for the lock.
const TOGETHER: usize = 256;

/// The sleep of the thread after a few changes, because more may follow: each wakeup of the thread costs as much as
/// several routes.
const REST: Duration = Duration::from_millis(1);

/// The order of routes for one prefix: routes of the local table precede others, then lower metrics precede higher
/// ones.
type Rank = (bool, u32);

fn rank(route: &KernelRoute) -> Rank {
    (route.table != LOCAL_TABLE, route.metric)
}

/// The kernel's routes for one prefix. The target of the best of them is in the router's tables.
#[derive(Debug)]
struct Known {
    rank: Rank,
    /// The routes for the prefix except the best one, in order of preference.
    others: Vec<(Rank, Target)>,
    /// The number of the last full request (for all routes, addresses and neighbours) whose reply included the prefix.
    told: u64,
}

/// The routes, addresses and neighbours received from the kernel.
#[derive(Debug, Default)]
pub(super) struct Mirror {
    known: HashMap<Network, Known, Seeded>,
    /// The number of full requests (for all routes, addresses and neighbours) since the start, which is also the number
    /// of the latest one.
    asking: u64,
    /// True while the received messages are the reply to a full request, and not notifications of changes.
    is_told_all: bool,
    /// The time at which a request for all routes, addresses and neighbours is due; none if none is due.
    pub wants_all: Option<Instant>,
    pub status: KernelStatus,
}

impl Mirror {
    /// Begins a full request: a request for all routes, addresses and neighbours of the kernel.
    pub fn begin(&mut self) {
        self.asking += 1;
        self.is_told_all = true;
        self.status.asked_for_all += 1;
        self.wants_all = None;
    }

    /// Ends a request for all routes, addresses and neighbours whose reply may be incomplete; schedules another request
    /// after [`SETTLE`].
    pub fn end_in_part(&mut self, now: Instant) {
        self.is_told_all = false;
        self.wants_all.get_or_insert(now);
    }

    /// Ends a request for all routes, addresses and neighbours: routes that its reply did not include are removed.
    pub fn end(&mut self, control: &mut Control) {
        self.is_told_all = false;
        let asking = self.asking;
        let gone: Vec<Network> = self
            .known
            .iter()
            .filter(|(_, known)| known.told != asking)
            .map(|(network, _)| *network)
            .collect();
        for network in gone {
            self.known.remove(&network);
            let _ = control.remove(network);
        }
        self.status.routes = self.known.len();
    }

    /// Applies a route, address or neighbour that the kernel has sent. `interface` maps the kernel's interface number
    /// to the router's.
    pub fn take(
        &mut self,
        fact: KernelFact,
        interface: impl Fn(u32) -> Option<u8>,
        control: &mut Control,
        now: Instant,
    ) {
        self.status.changes += 1;
        match fact {
            KernelFact::Route(route) => {
                if let Some((network, target)) = meaning(&route, &interface, control) {
                    match target {
                        Some(target) => self.set(network, &route, target, control),
                        // The route exists, but has no target.
                        None => self.remove(network, rank(&route), None, control),
                    }
                }
            }
            KernelFact::RouteGone(route) => {
                if let Some((network, target)) = meaning(&route, &interface, control) {
                    self.remove(network, rank(&route), target.as_ref(), control);
                }
            }
            KernelFact::Neighbour {
                interface: number,
                address,
                mac,
                is_fixed,
            } => {
                if let Some(interface) = interface(number) {
                    let mac = mac.map(Mac).filter(|mac| *mac != Mac::default());
                    control.hear_of((interface, address), mac, is_fixed, now);
                }
            }
            KernelFact::Address {
                interface: number,
                address,
                is_there,
            } => {
                if let Some(interface) = interface(number) {
                    control.set_address(interface, address, is_there);
                }
                if !is_there {
                    self.wants_all.get_or_insert(now);
                }
            }
            KernelFact::Interface | KernelFact::NextHopObject => {
                self.wants_all.get_or_insert(now);
            }
        }
        self.status.routes = self.known.len();
    }

    fn set(
        &mut self,
        network: Network,
        route: &KernelRoute,
        target: Target,
        control: &mut Control,
    ) {
        let asking = self.asking;
        let known = match self.known.entry(network) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                match control.set(network, target) {
                    Ok(()) => {
                        place.insert(Known {
                            rank: rank(route),
                            others: Vec::new(),
                            told: asking,
                        });
                    }
                    Err(_) => self.status.refused += 1,
                }
                return;
            }
        };
        // With the first route for the prefix in a full request, the other routes for the prefix are cleared: the reply
        // has to include them again.
        if std::mem::replace(&mut known.told, asking) != asking && self.is_told_all {
            known.others.clear();
            known.rank = rank(route);
            self.status.refused += u64::from(control.set(network, target).is_err());
            return;
        }
        let is_beside = route.is_appended && matches!(network.prefix, Prefix::V4(_));
        if rank(route) == known.rank && !is_beside {
            self.status.refused += u64::from(control.set(network, target).is_err());
        } else if rank(route) < known.rank {
            let Some(before) = control.get(network).cloned() else {
                return;
            };
            if control.set(network, target).is_err() {
                self.status.refused += 1;
                return;
            }
            known.others.insert(0, (known.rank, before));
            known.rank = rank(route);
        } else {
            let others = &mut known.others;
            match others.iter_mut().find(|(other, _)| *other == rank(route)) {
                Some(other) if !is_beside => other.1 = target,
                _ => {
                    let at = others.partition_point(|(other, _)| *other <= rank(route));
                    others.insert(at, (rank(route), target));
                }
            }
        }
    }

    /// Removes the route with this rank for a prefix, or only some of the route's next hops.
    fn remove(
        &mut self,
        network: Network,
        ranked: Rank,
        gone: Option<&Target>,
        control: &mut Control,
    ) {
        let Some(known) = self.known.get_mut(&network) else {
            return;
        };
        // The kernel reports each removed next hop of an IPv6 route separately.
        let left = |target: &Target| match (network.prefix, target, gone) {
            (Prefix::V6(_), Target::Neighbours(all), Some(Target::Neighbours(gone))) => {
                let left: Vec<_> = all
                    .iter()
                    .filter(|way| gone.iter().all(|it| it.at != way.at))
                    .copied()
                    .collect();
                (!left.is_empty() && left.len() < all.len()).then_some(Target::Neighbours(left))
            }
            _ => None,
        };
        // If several routes have this rank, the one with the given target is removed.
        let twins = known
            .others
            .iter()
            .filter(|(other, _)| *other == ranked)
            .count();
        let is_first = |target: Option<&Target>| gone.is_none() || twins == 0 || target == gone;
        if ranked == known.rank && is_first(control.get(network)) {
            if let Some(left) = control.get(network).and_then(left) {
                self.status.refused += u64::from(control.set(network, left).is_err());
                return;
            }
            if known.others.is_empty() {
                self.known.remove(&network);
                // If there is no space for the replacement of a route, the route stays until the next full request.
                if control.remove(network).is_err() {
                    self.status.refused += 1;
                }
                return;
            }
            let (next_rank, next) = known.others.remove(0);
            known.rank = next_rank;
            self.status.refused += u64::from(control.set(network, next).is_err());
            return;
        }
        let mut others = known.others.iter();
        let exact = others.position(|(other, target)| *other == ranked && Some(target) == gone);
        let at = exact.or_else(|| known.others.iter().position(|(other, _)| *other == ranked));
        if let Some(at) = at {
            match left(&known.others[at].1) {
                Some(left) => known.others[at].1 = left,
                None => drop(known.others.remove(at)),
            }
        }
    }
}

/// Returns the network and the target of a route from the kernel. The target is none for a unicast route without a next
/// hop; the result is none if the route does not concern the router.
fn meaning(
    route: &KernelRoute,
    interface: impl Fn(u32) -> Option<u8>,
    control: &Control,
) -> Option<(Network, Option<Target>)> {
    let table = match route.table {
        // Local addresses are put into the table in which packets of their interface are looked up.
        LOCAL_TABLE => {
            let own = route
                .next_hops
                .iter()
                .find_map(|hop| interface(hop.interface));
            own.map_or(0, |own| control.table_of(own))
        }
        id => control.table_ids().iter().position(|other| *other == id)? as u8,
    };
    let (address, length) = route.to;
    let is_on_each_link =
        |address: IpAddr| super::interface::is_link_local(address) && address.is_ipv6();
    if address.is_multicast() || is_on_each_link(address) || address.is_loopback() {
        return None;
    }
    let prefix = Prefix::of(address, length);
    let target = match route.kind {
        KernelRouteKind::Local => Some(Target::Local),
        KernelRouteKind::Blackhole => Some(Target::Blackhole),
        KernelRouteKind::Unreachable => Some(Target::Unreachable),
        KernelRouteKind::Prohibit => Some(Target::Prohibited),
        KernelRouteKind::Unicast => {
            let hops = route.next_hops.iter();
            let mut ours = hops.filter_map(|hop| Some((interface(hop.interface)?, hop)));
            let neighbours = ours.clone().filter_map(|(port, hop)| {
                let at = (port, hop.via?);
                let weight = hop.weight;
                Some(Way { at, weight })
            });
            let neighbours: Vec<Way> = neighbours.collect();
            match (ours.next(), route.next_hops.is_empty()) {
                (_, true) => None,
                (Some(_), _) if !neighbours.is_empty() => Some(Target::Neighbours(neighbours)),
                (Some((port, _)), _) => Some(Target::Connected(port)),
                // The route's interface is not a port, so the kernel handles the packets.
                (None, _) => Some(Target::Local),
            }
        }
    };
    Some((Network { table, prefix }, target))
}

/// The thread that receives the kernel's notifications of changes. Dropping this value ends the thread.
#[derive(Debug)]
pub(super) struct Follower {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Starts a thread that copies the routes of the Linux kernel and follows their changes.
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub fn start(
        kernel: KernelRoutes,
        taps: &Arc<Taps>,
        control: &Arc<Mutex<Control>>,
    ) -> Result<Self, PortError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, taps, control) = (Arc::clone(&stop), Arc::clone(taps), Arc::clone(control));
        let thread = spawn_background("kernel-routes", move || {
            follow(kernel, |number| taps.interface(number), &control, &stopped);
        })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(control: &Mutex<Control>) -> MutexGuard<'_, Control> {
    control.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Follows the kernel's routes until it is stopped. `interface` maps the kernel's interface number to the router's.
pub(super) fn follow(
    mut kernel: KernelRoutes,
    interface: impl Fn(u32) -> Option<u8>,
    control: &Mutex<Control>,
    stop: &AtomicBool,
) {
    let mut mirror = Mirror {
        wants_all: Some(Instant::now()),
        ..Mirror::default()
    };
    let mut facts = Vec::with_capacity(TOGETHER);
    let take = |mirror: &mut Mirror, facts: &mut Vec<KernelFact>| {
        if facts.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut control = lock(control);
        for fact in facts.drain(..) {
            mirror.take(fact, &interface, &mut control, now);
        }
        control.set_kernel_status(mirror.status);
    };
    while !stop.load(Ordering::Relaxed) {
        if mirror
            .wants_all
            .is_some_and(|since| since.elapsed() >= SETTLE || mirror.asking == 0)
        {
            mirror.begin();
            let asked = kernel.ask(|fact| {
                facts.push(fact);
                if facts.len() >= TOGETHER {
                    take(&mut mirror, &mut facts);
                }
            });
            take(&mut mirror, &mut facts);
            match asked {
                Ok(true) => {
                    let mut control = lock(control);
                    mirror.end(&mut control);
                    control.set_kernel_status(mirror.status);
                }
                Ok(false) | Err(_) => mirror.end_in_part(Instant::now()),
            }
        }
        let heard = kernel.listen(LISTEN.min(patience(&mirror)), |fact| facts.push(fact));
        let are_few = facts.len() < TOGETHER;
        take(&mut mirror, &mut facts);
        match heard {
            Ok(Heard::Some) if are_few => std::thread::sleep(REST),
            Ok(Heard::Overrun) => {
                mirror.status.overruns += 1;
                mirror.wants_all.get_or_insert(Instant::now());
            }
            Ok(Heard::Nothing | Heard::Some) => {}
            // If the socket fails permanently, this loop would otherwise occupy a core.
            Err(_) => std::thread::sleep(LISTEN),
        }
    }
}

fn patience(mirror: &Mirror) -> Duration {
    match mirror.wants_all {
        Some(since) => SETTLE.saturating_sub(since.elapsed()),
        None => LISTEN,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::Settings;
    use super::*;
    use taut_sys::{KernelNextHop, MAIN_TABLE};

    /// The kernel's numbers of the two interfaces of the tested router.
    const LAN: u32 = 10;
    const WAN: u32 = 11;

    fn interface(kernels: u32) -> Option<u8> {
        (LAN..=WAN)
            .contains(&kernels)
            .then(|| (kernels - LAN) as u8)
    }

    struct Pair {
        mirror: Mirror,
        control: Control,
    }

    impl Pair {
        fn new() -> Self {
            let interface = |name, mac| {
                format!("[[interface]]\nname = \"{name}\"\nmac = \"02:00:00:00:00:0{mac}\"\n")
            };
            let text = format!(
                "routes = \"kernel\"\n{}{}",
                interface("lan", 'a'),
                interface("wan", 'b')
            );
            let settings: Settings = toml::from_str(&text).unwrap();
            let checked = settings.check().unwrap();
            Self {
                mirror: Mirror::default(),
                control: Control::new(&checked, Instant::now()).unwrap(),
            }
        }

        fn hear(&mut self, fact: KernelFact) {
            self.mirror
                .take(fact, interface, &mut self.control, Instant::now());
        }

        fn routes(&self) -> Vec<String> {
            self.control
                .list()
                .into_iter()
                .map(|route| route.route)
                .collect()
        }
    }

    fn route(to: &str, metric: u32, hops: &[(u32, &str)]) -> KernelRoute {
        let (address, length) = to.split_once('/').unwrap();
        KernelRoute {
            table: MAIN_TABLE,
            to: (address.parse().unwrap(), length.parse().unwrap()),
            metric,
            kind: KernelRouteKind::Unicast,
            next_hops: hops
                .iter()
                .map(|(interface, via)| KernelNextHop {
                    interface: *interface,
                    via: via.parse().ok(),
                    weight: 1,
                })
                .collect(),
            is_appended: false,
        }
    }

    #[test]
    fn deleting_the_best_route_activates_the_next_best_route() {
        let mut pair = Pair::new();
        let good = route("10.1.0.0/16", 10, &[(LAN, "10.0.0.2")]);
        let worse = route("10.1.0.0/16", 20, &[(WAN, "10.0.1.2")]);
        let replaced = route("10.1.0.0/16", 20, &[(WAN, "10.0.1.9")]);
        pair.hear(KernelFact::Route(worse));
        assert_eq!(pair.routes(), ["10.1.0.0/16 via 10.0.1.2 dev wan"]);
        pair.hear(KernelFact::Route(good.clone()));
        pair.hear(KernelFact::Route(replaced.clone()));
        assert_eq!(pair.routes(), ["10.1.0.0/16 via 10.0.0.2 dev lan"]);
        pair.hear(KernelFact::RouteGone(good.clone()));
        assert_eq!(pair.routes(), ["10.1.0.0/16 via 10.0.1.9 dev wan"]);
        // One route was removed before, and the other one never existed.
        pair.hear(KernelFact::RouteGone(good));
        assert_eq!(pair.routes().len(), 1);
        pair.hear(KernelFact::RouteGone(replaced.clone()));
        pair.hear(KernelFact::RouteGone(replaced));
        assert_eq!(pair.routes(), [""; 0]);
        assert_eq!(pair.mirror.status.routes, 0);
    }

    #[test]
    fn own_addresses_take_precedence_over_routes_of_a_daemon() {
        let mut pair = Pair::new();
        let local = KernelRoute {
            table: LOCAL_TABLE,
            kind: KernelRouteKind::Local,
            ..route("10.0.1.1/32", 0, &[(WAN, "")])
        };
        let said = route("10.0.1.1/32", 0, &[(WAN, "")]);
        for order in [[&local, &said], [&said, &local]] {
            for route in order {
                pair.hear(KernelFact::Route(route.clone()));
            }
            assert_eq!(pair.routes(), ["local 10.0.1.1/32"]);
            // A change arrives during a full request.
            pair.mirror.begin();
            pair.mirror.end_in_part(Instant::now());
            pair.hear(KernelFact::Route(said.clone()));
            assert_eq!(pair.routes(), ["local 10.0.1.1/32"]);
        }
        pair.hear(KernelFact::RouteGone(local));
        assert_eq!(pair.routes(), ["10.0.1.1/32 dev wan"]);
    }

    #[test]
    fn a_resync_deletes_routes_that_are_not_repeated() {
        let mut pair = Pair::new();
        let stays = route("10.1.0.0/16", 10, &[(LAN, "10.0.0.2")]);
        for there in [
            &stays,
            &route("10.2.0.0/16", 0, &[(LAN, "10.0.0.2")]),
            &route("10.1.0.0/16", 20, &[(WAN, "10.0.1.2")]),
        ] {
            pair.hear(KernelFact::Route(there.clone()));
        }
        pair.mirror.begin();
        pair.hear(KernelFact::Route(stays.clone()));
        pair.mirror.end(&mut pair.control);
        assert_eq!(pair.routes(), ["10.1.0.0/16 via 10.0.0.2 dev lan"]);
        // The full request did not include the route of lower preference either.
        pair.hear(KernelFact::RouteGone(stays));
        assert_eq!(pair.routes(), [""; 0]);
    }

    #[test]
    fn deleting_the_first_ipv6_next_hop_preserves_the_second() {
        let mut pair = Pair::new();
        let both = route("2001:db8::/32", 0, &[(LAN, "fd00::2"), (WAN, "fd01::2")]);
        pair.hear(KernelFact::Route(both));
        let one = route("2001:db8::/32", 0, &[(LAN, "fd00::2")]);
        pair.hear(KernelFact::RouteGone(one));
        assert_eq!(pair.routes(), ["2001:db8::/32 via fd01::2 dev wan"]);
        let other = route("2001:db8::/32", 0, &[(WAN, "fd01::2")]);
        pair.hear(KernelFact::RouteGone(other));
        assert_eq!(pair.routes(), [""; 0]);
        // IPv4: a second route of the same metric follows the first.
        let first = route("10.1.0.0/16", 0, &[(LAN, "10.0.0.2")]);
        let second = KernelRoute {
            is_appended: true,
            ..route("10.1.0.0/16", 0, &[(WAN, "10.0.1.2")])
        };
        pair.hear(KernelFact::Route(first.clone()));
        pair.hear(KernelFact::Route(second.clone()));
        assert_eq!(pair.routes(), ["10.1.0.0/16 via 10.0.0.2 dev lan"]);
        pair.hear(KernelFact::RouteGone(second.clone()));
        assert_eq!(pair.routes(), ["10.1.0.0/16 via 10.0.0.2 dev lan"]);
        pair.hear(KernelFact::Route(second));
        pair.hear(KernelFact::RouteGone(first));
        assert_eq!(pair.routes(), ["10.1.0.0/16 via 10.0.1.2 dev wan"]);
    }

    #[test]
    fn routes_through_interfaces_without_ports_are_left_to_linux() {
        let mut pair = Pair::new();
        pair.hear(KernelFact::Route(route(
            "0.0.0.0/0",
            0,
            &[(99, "192.0.2.1")],
        )));
        pair.hear(KernelFact::Route(route("10.9.0.0/16", 0, &[])));
        pair.hear(KernelFact::Route(route("fe80::/64", 256, &[(LAN, "")])));
        pair.hear(KernelFact::Route(route(
            "10.8.0.0/16",
            0,
            &[(99, "192.0.2.1"), (LAN, "fd00::2")],
        )));
        let elsewhere = KernelRoute {
            table: 100,
            ..route("10.7.0.0/16", 0, &[(LAN, "10.0.0.2")])
        };
        pair.hear(KernelFact::Route(elsewhere));
        assert_eq!(
            pair.routes(),
            ["local 0.0.0.0/0", "10.8.0.0/16 via fd00::2 dev lan"]
        );
    }

    #[test]
    fn permanent_kernel_neighbours_never_expire_and_interface_addresses_are_used() {
        let mut pair = Pair::new();
        let mac = Mac([2, 0, 0, 0, 0, 7]);
        let neighbour = |mac: Option<Mac>| KernelFact::Neighbour {
            interface: WAN,
            address: "10.0.1.2".parse().unwrap(),
            mac: mac.map(|mac| mac.0),
            is_fixed: true,
        };
        pair.hear(KernelFact::Route(route(
            "10.1.0.0/16",
            0,
            &[(WAN, "10.0.1.2")],
        )));
        pair.hear(neighbour(Some(mac)));
        let at = (1, "10.0.1.2".parse().unwrap());
        assert_eq!(pair.control.mac(at), Some(mac));
        let later = Instant::now() + Duration::from_secs(86_400);
        assert!(pair.control.tick(later).is_empty());
        pair.hear(neighbour(None));
        assert_eq!(pair.control.mac(at), None);
        let address = ("10.0.1.1".parse().unwrap(), 24);
        let there = |is_there| KernelFact::Address {
            interface: WAN,
            address,
            is_there,
        };
        pair.hear(there(true));
        let to = "10.0.1.77".parse().unwrap();
        assert_eq!(pair.control.address_towards(1, to), Some(address.0));
        pair.hear(there(false));
        assert_eq!(pair.control.address_towards(1, to), None);
        assert!(pair.mirror.wants_all.is_some());
    }
}
