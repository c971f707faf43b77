//! ROUTE: a router of IPv4 and IPv6 over all ports of the chain. (RFC 1812, RFC 8200; architecture: Gallenmüller 2021,
//! section 5.3.)
//!
//! The worker looks up the destinations of a batch together (`taut-lpm`), decrements hop limits, and sets the addresses
//! of the next link (`fast.rs`). Rare packets go to the slow path (`slow.rs`). The control plane owns the routes of all
//! workers (`control.rs`) and changes the tables while workers read them. If routes come from the kernel, a thread
//! follows them (`follow.rs`), and packets for the router itself go to the kernel's own interfaces (`taps.rs`).
//!
//! # Design
//!
//! The router looks up the destinations of a batch together in the tables of `taut-lpm`, which the control plane
//! changes in place. The result is the number of a next hop. The next hop is one word (`hop.rs`): egress port and MAC
//! address, slow path, or drop. If a neighbour changes its MAC address, one store thus suffices, however many routes
//! lead to the neighbour. A neighbour has a host route, so that every packet needs only one lookup. ECMP divides the
//! flows of a route by a table of 64 entries (`group.rs`). The number of a next hop and the memory of a table are
//! reused only after every worker has finished a batch. The neighbour table uses no clock and no sockets
//! (`neighbours.rs`), so tests run its timers in virtual time.
//!
//! If the kernel owns the routes, a thread receives changes by netlink and passes them to the control plane
//! (`follow.rs`). The thread subscribes before it reads all routes, so it misses no change; after an overrun it reads
//! all routes again. Packets for the router itself go from the slow path to a kernel interface per port (`taps.rs`),
//! where routing daemons send and receive.

#![forbid(unsafe_code)]

mod control;
mod convert;
mod fast;
mod follow;
mod group;
mod hop;
pub mod host;
mod in_kernel;
mod interface;
mod neighbours;
mod prefix;
mod refusal;
mod server;
mod settings;
mod slow;
mod standalone;
mod status;
mod taps;
#[cfg(test)]
mod tests;
mod text;

pub use convert::{ConvertError, Converted, convert};
pub use server::{Answer, Request};
pub use standalone::Detached;
pub use status::{KernelStatus, NeighbourText, RouteText, Status};
pub use taut_function::control_socket::MOST_FILE_BYTES;

use control::Control;
use fast::{OUTCOMES, Plane};
use follow::Follower;
use hop::unused;
use in_kernel::Kernel;
use server::Served;
use settings::{Checked, Settings};
use slow::{Counts, SlowPath};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use taps::Taps;
use taut_function::changes::changes;
use taut_function::control_socket::ControlSocket;
use taut_function::{
    Class, Context, EmptyBatches, Entry, Function, Handler, KernelVersion, Member, Needs,
    SettingsError, Shared, Spread, says_dropped, settings,
};
use taut_port::{Batch, PoolHandle, PortError};
use taut_sys::{Alarm, Clock};

/// The entry of function ROUTE in the list of functions.
pub const ENTRY: Entry = Entry {
    name: "route",
    summary: "is a router of IPv4 and IPv6 over any number of ports",
    class: Class::Basic,
    ports: None,
    settings: SETTINGS,
    files: settings::route_files,
    build: |table| {
        let checked = settings::<Settings>(table)?.check()?;
        Ok(Box::new(Router::new(checked)) as Box<dyn Function>)
    },
    in_kernel: KernelVersion::Upcall(in_kernel::UPCALL),
};

/// The descriptions of the settings, for `taut functions` and the pages of docs/reference.
const SETTINGS: &[taut_function::Setting] = &[
    (
        "interface",
        "required",
        "one table for each port of the chain, in order, or for each VLAN on one; packets that arrive without an \
         interface are dropped",
    ),
    (
        "routes",
        "none",
        "file of routes, in addition to the networks of the interfaces; or `\"kernel\"`: the kernel's routes and \
         no others",
    ),
    (
        "netns",
        "that of the command",
        "network namespace of the kernel interfaces, by its name in `ip netns`",
    ),
    (
        "control",
        "none",
        "path of a socket through which `taut route` reads and changes the routes",
    ),
];

/// The number of buffers in a worker's pool. A packet that gets a VLAN tag but has no headroom for the tag is copied
/// into such a buffer.
const SLOTS_FOR_TAGS: u32 = 2048;

/// The state that the routers of all workers share.
#[derive(Clone)]
struct Deciding {
    control: Arc<Mutex<Control>>,
    changes: Arc<AtomicU64>,
    /// The kernel's interfaces that receive packets for the router itself; none if the settings name none.
    taps: Option<Arc<Taps>>,
    _follower: Option<Arc<Follower>>,
    _socket: Option<Arc<ControlSocket>>,
}

struct Router {
    checked: Checked,
    shared: Shared,
    deciding: Option<Deciding>,
    plane: Option<Plane>,
    counts: Arc<Counts>,
    /// True for the function of the first worker, whose slow path reads the packets that the kernel sends.
    is_first: bool,
    /// The maps of the XDP programs; none if the kernel forwards no packets.
    kernel: Kernel,
}

impl Router {
    fn new(checked: Checked) -> Self {
        Self {
            checked,
            shared: Shared::default(),
            deciding: None,
            plane: None,
            counts: Arc::default(),
            is_first: false,
            kernel: None,
        }
    }
}

impl Function for Router {
    fn process(&mut self, batch: &mut Batch, context: &Context) {
        if let Some(plane) = &mut self.plane {
            plane.process(batch, context);
        }
    }

    fn needs(&self) -> Needs {
        Needs {
            spread: Spread::Any,
            // In a call without packets, the worker reads no table and can therefore confirm a grace period.
            empty_batches: EmptyBatches::Wakes,
            chooses_ports: true,
            ..Needs::default()
        }
    }

    fn arm(&mut self, alarm: &mut Alarm) -> bool {
        let plane = self.plane.as_ref();
        plane.is_none_or(|plane| plane.receiver.arm(alarm))
    }

    fn disarm(&mut self) {
        if let Some(plane) = &self.plane {
            plane.receiver.disarm();
        }
    }

    fn join(&mut self, _: Member, shared: &Shared) -> Result<(), SettingsError> {
        self.shared = shared.clone();
        self.kernel = shared.lock(|kernel: &mut Kernel| kernel.clone());
        Ok(())
    }

    fn prepare(&mut self) -> Result<(), PortError> {
        let checked = &self.checked;
        let mut is_first = false;
        let deciding = self.shared.found_or_made(|| {
            let made = Control::new(checked, Instant::now()).and_then(|mut control| {
                if let Some(kernel) = &self.kernel {
                    control.mirror(Arc::clone(kernel))?;
                }
                Ok(control)
            });
            let control = made.map_err(|e| {
                let reason = std::io::Error::other(e.to_string());
                PortError::system("function \"route\": cannot make the routing tables", reason)
            })?;
            let changes = control.changes();
            let control = Arc::new(Mutex::new(control));
            let (mut taps, mut follower) = (None, None);
            if let Some((made, kernel)) = Taps::make(checked)? {
                let made = Arc::new(made);
                if checked.are_kernels {
                    follower = Some(Arc::new(Follower::start(kernel, &made, &control)?));
                }
                taps = Some(made);
            }
            let served = Arc::new(Served(Arc::clone(&control)));
            let socket = ControlSocket::start_at("route", checked.control.as_ref(), &served)?;
            is_first = true;
            Ok::<_, PortError>(Deciding {
                control,
                changes,
                taps,
                _follower: follower,
                _socket: socket.map(Arc::new),
            })
        })?;
        let (sender, receiver) = changes(1)?;
        let mut control = deciding
            .control
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let used = unused();
        control.add_worker(sender, Arc::clone(&used));
        let clock = Clock::calibrate(Duration::from_millis(2));
        let has_tags = checked.interfaces.iter().any(|it| it.vlan.is_some());
        let pool = has_tags.then(|| PoolHandle::new(SLOTS_FOR_TAGS, false));
        let pool = pool.transpose()?;
        self.plane = Some(Plane::new(
            &checked.interfaces,
            control.tables(),
            used,
            pool,
            receiver,
            &clock,
        ));
        drop(control);
        self.deciding = Some(deciding);
        self.is_first = is_first;
        Ok(())
    }

    fn handler(&mut self) -> Option<Box<dyn Handler>> {
        let Deciding { control, taps, .. } = self.deciding.as_ref()?;
        let slow = SlowPath::new(&self.checked.interfaces, control, &self.counts);
        Some(Box::new(slow.with_taps(taps.as_ref(), self.is_first)))
    }

    fn link_changed(&mut self, port: usize, is_up: bool) {
        let Some(Deciding { control, taps, .. }) = &self.deciding else {
            return;
        };
        for (number, interface) in self.checked.interfaces.iter().enumerate() {
            if usize::from(interface.port) != port {
                continue;
            }
            if let Some(taps) = taps {
                taps.set_carrier(number, is_up);
            }
            let mut control = control.lock().unwrap_or_else(PoisonError::into_inner);
            match is_up {
                true => control.join(number as u8, Instant::now()),
                false => control.cut_off(number as u8),
            }
        }
    }

    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        let counts = self
            .plane
            .as_ref()
            .map_or([0; OUTCOMES.len()], |it| it.counts);
        let in_kernel = self.kernel.as_ref().map(|kernel| kernel.outcomes());
        let in_kernel = in_kernel.into_iter().flatten().chain(std::iter::repeat(0));
        let counts = counts.into_iter().zip(in_kernel).map(|(a, b)| a + b);
        let mut outcomes: Vec<_> = OUTCOMES.into_iter().zip(counts).collect();
        outcomes.extend(self.counts.outcomes());
        outcomes
    }

    fn drops(&self, outcome: &str) -> bool {
        says_dropped(outcome) || slow::DROPS.contains(&outcome)
    }

    /// Returns the count with the given name: the number of packets with an [`Outcome`](fast::Outcome), or
    /// `route_changes`, which only the first worker has. None for other names.
    fn count_of(&self, name: &str) -> Option<u64> {
        if name == "route_changes" {
            let deciding = self.deciding.as_ref().filter(|_| self.is_first)?;
            return Some(deciding.changes.load(Ordering::Relaxed));
        }
        let outcomes = self.outcomes();
        outcomes.iter().find(|it| it.0 == name).map(|it| it.1)
    }
}
