//! The kernel's interfaces beside the router's: by them daemons of the host speak at the router's addresses, and the kernel
//! knows which port a route leads to.

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

/// Folder of the names of network namespaces, as `ip netns` keeps them.
const NAMESPACES: &str = "/run/netns";
/// Frames that are taken from the kernel at a time.
const AT_A_TIME: usize = 64;
/// Longest frame of the longest MTU, with a tag.
const LONGEST_FRAME_BYTES: usize = 9018;

/// The interfaces; they go away with this.
#[derive(Debug)]
pub(super) struct Taps {
    /// By number of the router's interface.
    all: Vec<Option<Tap>>,
    /// Number of the router's interface by the kernel's.
    numbers: HashMap<u32, u8>,
}

impl Taps {
    /// Makes those that the settings name, gives them the router's addresses, and begins to listen to the kernel of their
    /// namespace. None if they name none.
    ///
    /// # Errors
    /// Without the right to, when a name is taken, or when there is no such namespace.
    pub fn make(checked: &Checked) -> Result<Option<(Self, KernelRoutes)>, PortError> {
        if checked.interfaces.iter().all(|it| it.tap.is_none()) {
            return Ok(None);
        }
        let Some(namespace) = &checked.namespace else {
            return make(&checked.interfaces).map(Some);
        };
        let what = format!("function \"route\": netns {namespace}");
        // A thread of its own enters the namespace, and what it makes there stays there.
        let made = std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                enter(namespace).map_err(|e| PortError::system(what.clone(), e))?;
                make(&checked.interfaces).map(Some)
            });
            inside.join()
        });
        made.unwrap_or_else(|_| {
            let dead = std::io::Error::other("the thread that entered it died");
            Err(PortError::system(what, dead))
        })
    }

    /// Number of the router's interface that the kernel has this number for.
    pub fn interface(&self, kernels: u32) -> Option<u8> {
        self.numbers.get(&kernels).copied()
    }

    pub fn has(&self, interface: usize) -> bool {
        self.all.get(interface).is_some_and(Option::is_some)
    }

    /// Hands the kernel a frame that came in through an interface. False if it does not take it.
    pub fn send(&self, interface: usize, frame: &[u8]) -> bool {
        let tap = self.all.get(interface).and_then(Option::as_ref);
        tap.is_some_and(|tap| tap.send(frame))
    }

    /// Takes frames that the kernel sends, with the numbers of their interfaces; whether there were any.
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

    /// Tells the kernel whether the link behind an interface is there.
    pub fn set_carrier(&self, interface: usize, is_there: bool) {
        if let Some(Some(tap)) = self.all.get(interface) {
            tap.set_carrier(is_there);
        }
    }
}

/// Takes the calling thread into a network namespace.
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
            // The link-local one it makes itself, and may have made already.
            if !super::interface::is_link_local(address.0) {
                kernel.add_address(kernels, *address).map_err(of_tap)?;
            }
        }
        taps.numbers.insert(kernels, number as u8);
        taps.all.push(Some(tap));
    }
    Ok((taps, kernel))
}
