//! A router without sockets and clocks, which runs only when its caller calls it. Fuzz targets use it to check that the
//! tables agree with the routes after any input.

use super::Router;
use super::control::Control;
use super::fast::OUTCOMES;
use super::hop::Hop;
use super::prefix::Network;
use super::server::Served;
use super::settings::Settings;
use super::text::Target;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use taut_function::control_socket::{Decides, Loading};
use taut_function::{Context, Function, Handler, Punted, settings};
use taut_port::{Batch, Mark};

/// A router of one worker: its data plane, its slow path, and its control plane.
pub struct Detached {
    router: Router,
    handler: Box<dyn Handler>,
    control: Arc<Mutex<Control>>,
    now: Instant,
    ticks: u64,
}

impl std::fmt::Debug for Detached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Detached").finish_non_exhaustive()
    }
}

impl Detached {
    /// Creates a router from the function's settings. A control socket that the settings name is not opened, and the
    /// kernel is not involved.
    ///
    /// # Errors
    /// Returns the error in the settings, or the name of the requirement that the machine lacks.
    pub fn new(table: toml::Table) -> Result<Self, String> {
        let checked = settings::<Settings>(table).and_then(Settings::check);
        let mut checked = checked.map_err(|e| e.0)?;
        checked.control = None;
        checked.are_kernels = false;
        checked.interfaces = checked
            .interfaces
            .iter()
            .cloned()
            .map(|it| super::interface::Interface { tap: None, ..it })
            .collect();
        let mut router = Router::new(checked);
        router.prepare().map_err(|e| e.to_string())?;
        let handler = router.handler().ok_or("no slow path")?;
        let control = router.deciding.as_ref().map(|it| Arc::clone(&it.control));
        Ok(Self {
            router,
            handler,
            control: control.ok_or("nobody decides")?,
            now: Instant::now(),
            ticks: 0,
        })
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes all routes except those of the interfaces, and forgets all neighbours.
    ///
    /// # Errors
    /// Returns a description of the route that cannot be removed.
    pub fn clear(&mut self) -> Result<(), String> {
        let mut control = self.control();
        for network in control.added() {
            control.remove(network).map_err(|e| e.to_string())?;
        }
        for port in 0..self.router.checked.interfaces.len() {
            control.cut_off(port as u8);
        }
        Ok(())
    }

    /// Processes a batch that arrived at a port, including the packets that are punted to the slow path. Returns the
    /// number of frames that the slow path sent.
    ///
    /// # Errors
    /// Fails if a packet was not counted exactly once.
    pub fn pass(&mut self, from_port: usize, batch: &mut Batch) -> Result<usize, String> {
        let counted = |router: &Router| {
            let outcomes = router.outcomes().into_iter();
            let of_worker = outcomes.filter(|(name, _)| OUTCOMES.contains(name));
            of_worker.map(|(_, count)| count).sum::<u64>()
        };
        let before = counted(&self.router);
        self.ticks += 1 << 30;
        let context = Context {
            now_ticks: self.ticks,
            from_port,
            to_port: from_port ^ 1,
            ports: self.router.checked.interfaces.len(),
        };
        self.router.process(batch, &context);
        let mut sent = 0;
        for index in 0..batch.len() {
            if let Some(Mark::Punted(cause)) = batch.mark(index) {
                let punted = Punted {
                    frame: batch.packets()[index].bytes(),
                    from_port,
                    cause,
                };
                self.handler.handle(&punted, &mut |_, frame: &[u8]| {
                    sent += usize::from(!frame.is_empty());
                    true
                });
            }
        }
        match counted(&self.router) - before {
            all if all == batch.len() as u64 => Ok(sent),
            counted => Err(format!("{counted} counted of {} packets", batch.len())),
        }
    }

    /// Sends a request as over the control socket; returns the reply.
    pub fn ask(&self, line: &[u8]) -> Vec<u8> {
        let mut output = Vec::new();
        let loading = Loading::default();
        // An error only means that the client would be disconnected.
        let served = Served(Arc::clone(&self.control));
        let _ = served.answer(line, &mut std::io::empty(), &mut output, &loading);
        output
    }

    /// Advances the router's virtual time.
    pub fn later(&mut self, time: Duration) {
        self.now += time;
        let now = self.now;
        self.control().tick(now);
    }

    /// Checks that a lookup of `address` in the tables gives the target of the longest route that contains it.
    ///
    /// # Errors
    /// Returns a description of the difference between the lookup and the route.
    pub fn check(&self, address: IpAddr) -> Result<(), String> {
        let control = self.control();
        let (fibs, hops) = control.tables();
        let (v4, v6) = &fibs[0];
        let hop = hops.get(match address {
            IpAddr::V4(address) => v4.lookup(address.into()),
            IpAddr::V6(address) => v6.lookup(address.octets()),
        });
        let route = control.route_of(0, address);
        let is_right = match route.map(|(_, target)| target) {
            None => hop == Hop::NoRoute,
            Some(Target::Local) => hop == Hop::Local,
            Some(Target::Blackhole) => hop == Hop::Blackhole,
            Some(Target::Unreachable) => hop == Hop::Unreachable,
            Some(Target::Prohibited) => hop == Hop::Prohibited,
            Some(Target::Connected(port)) => match control.mac((*port, address)) {
                Some(mac) => hop == Hop::Forward { port: *port, mac } || hop == Hop::Unresolved,
                None => hop == Hop::Unresolved,
            },
            Some(Target::Neighbours(_)) => {
                matches!(hop, Hop::Forward { .. } | Hop::Unresolved | Hop::Group(_))
            }
        };
        match is_right {
            true => Ok(()),
            false => Err(format!("{address}: {hop:?}, and the route is {route:?}")),
        }
    }
}

impl Control {
    /// Returns the prefixes of the routes that do not belong to an interface, in order.
    fn added(&self) -> Vec<Network> {
        let all = self.networks().filter(|network| {
            let is_own = matches!(self.get(*network), Some(Target::Local));
            !is_own && !self.is_network_of_interface(*network)
        });
        let mut all: Vec<_> = all.collect();
        all.sort_unstable();
        all
    }
}
