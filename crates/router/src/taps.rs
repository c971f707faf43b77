//! The kernel's interfaces (taps), one for each interface of the router. Through them, daemons of the host use the
//! router's addresses, and the kernel knows the port of a route.

use super::interface::Interface;
use super::settings::Checked;
use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::Path;
use taut_port::PortError;
use taut_port::tap::Tap;
use taut_sys::{Alarm, KernelRoutes};

/// The folder in which `ip netns` stores the names of network namespaces.
const NAMESPACES: &str = "/run/netns";
/// The number of frames that are read from each kernel interface in one call.
const AT_A_TIME: usize = 64;
/// The length of the longest frame at the maximum MTU, with a VLAN tag, in bytes.
const LONGEST_FRAME_BYTES: usize = 9018;

/// The kernel's interfaces, which are deleted when this value is dropped.
#[derive(Debug)]
pub(super) struct Taps {
    /// The kernel's interface for each interface of the router, by the router's interface number.
    all: Vec<Option<Tap>>,
    /// The number of the router's interface, by the kernel's interface number.
    numbers: HashMap<u32, u8>,
}

impl Taps {
    /// Creates the kernel interfaces that the settings name, assigns the router's addresses to them, and begins to
    /// receive the kernel's notifications in their namespace. Returns none if the settings name no interface.
    ///
    /// # Errors
    /// Fails if the process lacks the privilege, if the name of an interface is taken, or if the namespace does not
    /// exist.
    pub fn make(checked: &Checked) -> Result<Option<(Self, KernelRoutes)>, PortError> {
        if checked.interfaces.iter().all(|it| it.tap.is_none()) {
            return Ok(None);
        }
        let Some(namespace) = &checked.namespace else {
            return make(&checked.interfaces).map(Some);
        };
        let what = format!("function \"route\": netns {namespace}");
        // A separate thread enters the namespace. The interfaces that it creates stay there after the thread has ended.
        let made = std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                enter(namespace).map_err(|e| PortError::system(what.clone(), e))?;
                make(&checked.interfaces).map(Some)
            });
            inside.join()
        });
        made.unwrap_or_else(|_| {
            let dead =
                std::io::Error::other("the thread that creates interfaces in this namespace died");
            Err(PortError::system(what, dead))
        })
    }

    /// Returns the number of the router's interface that belongs to the kernel's interface `kernels`.
    pub fn interface(&self, kernels: u32) -> Option<u8> {
        self.numbers.get(&kernels).copied()
    }

    pub fn has(&self, interface: usize) -> bool {
        self.all.get(interface).is_some_and(Option::is_some)
    }

    /// Passes a frame that arrived at an interface of the router to the kernel. Returns false if the kernel refuses the
    /// frame.
    pub fn send(&self, interface: usize, frame: &[u8]) -> bool {
        let tap = self.all.get(interface).and_then(Option::as_ref);
        tap.is_some_and(|tap| tap.send(frame))
    }

    /// Passes to `each` the frames that the kernel sends, with the numbers of the router's interfaces; returns true if
    /// there were any.
    pub fn receive(&self, room: &mut Vec<u8>, mut each: impl FnMut(usize, &[u8])) -> bool {
        room.resize(LONGEST_FRAME_BYTES, 0);
        let mut taken = 0;
        for (interface, tap) in self.all.iter().enumerate() {
            let Some(tap) = tap else { continue };
            let mut of_it = 0;
            while of_it < AT_A_TIME
                && let Some(frame) = tap.receive(room)
            {
                each(interface, frame);
                of_it += 1;
            }
            taken += of_it;
        }
        taken > 0
    }

    pub fn arm(&self, alarm: &mut Alarm) {
        self.all.iter().flatten().for_each(|tap| tap.arm(alarm));
    }

    /// Sets the link state (carrier) of the kernel's interface that belongs to an interface of the router.
    pub fn set_carrier(&self, interface: usize, is_there: bool) {
        if let Some(Some(tap)) = self.all.get(interface) {
            tap.set_carrier(is_there);
        }
    }
}

/// Moves the calling thread into a network namespace.
pub(super) fn enter(namespace: &str) -> rustix::io::Result<()> {
    let path = Path::new(NAMESPACES).join(namespace);
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
}

fn make(interfaces: &[Interface]) -> Result<(Taps, KernelRoutes), PortError> {
    let what = "function \"route\": the kernel's routes (netlink)";
    let mut kernel = KernelRoutes::open().map_err(|e| PortError::system(what, e))?;
    let mut taps = Taps {
        all: Vec::new(),
        numbers: HashMap::new(),
    };
    for (number, interface) in interfaces.iter().enumerate() {
        let Some(name) = &interface.tap else {
            taps.all.push(None);
            continue;
        };
        let tap = Tap::create(name, interface.mac.0, interface.mtu)?;
        let of_tap = |e| PortError::system(format!("function \"route\": tap {name}"), e);
        let kernels = tap.number(name).map_err(of_tap)?;
        for address in interface.addresses.with_lengths() {
            // The kernel creates the link-local address itself, and may have done so already.
            if !super::interface::is_link_local(address.0) {
                kernel.add_address(kernels, *address).map_err(of_tap)?;
            }
        }
        taps.numbers.insert(kernels, number as u8);
        taps.all.push(Some(tap));
    }
    Ok((taps, kernel))
}
