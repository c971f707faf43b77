//! A tap interface of the kernel: see `Documentation/networking/tuntap.rst` of the kernel, and netdevice(7) for its
//! settings.

use crate::PortError;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{CapabilitySet, capabilities};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use taut_sys::interface::request_with;

const DEVICE: &str = "/dev/net/tun";

/// The request `_IOW('T', 226, int)` of linux/if_tun.h.
const TUNSETCARRIER: libc::Ioctl = 0x4004_54e2;

/// The maximum length of an interface name in the kernel, bytes.
const LONGEST_NAME_BYTES: usize = 15;

/// The settings of a new interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) mac: Option<[u8; 6]>,
    /// IPv4 address of the interface, and prefix length of its network in bits; None for no address.
    pub(super) address: Option<(Ipv4Addr, u32)>,
    pub(super) mtu_bytes: u32,
    /// Maximum number of frames in the kernel's queue.
    pub(super) queue_frames: u32,
    /// True if several threads share the interface, each with a queue of its own.
    pub(super) has_queues: bool,
}

impl Settings {
    fn flags(&self) -> libc::c_int {
        let several = if self.has_queues {
            libc::IFF_MULTI_QUEUE
        } else {
            0
        };
        libc::IFF_TAP | libc::IFF_NO_PI | several
    }
}

/// A tap interface, or one of its queues. The interface is deleted with its last queue.
#[derive(Debug)]
pub(super) struct Device {
    /// File that frames are read from and written to.
    file: OwnedFd,
    /// Socket for requests about the interface, in the network namespace in which it was made.
    lookup: OwnedFd,
}

/// Returns true for a valid interface name; with `%` the kernel would insert a number.
pub fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= LONGEST_NAME_BYTES
        && !matches!(name, "." | ".." | "all" | "default")
        && name
            .bytes()
            .all(|b| b.is_ascii_graphic() && !b"/:%".contains(&b))
}

/// Opens the device that makes interfaces.
fn open_device(what: &str) -> Result<OwnedFd, PortError> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    open(DEVICE, flags, Mode::empty()).map_err(|error| match error {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => PortError::missing(
            what,
            format!("{DEVICE} (modprobe tun; in a container: --device {DEVICE})"),
        ),
        Errno::ACCESS | Errno::PERM => no_permission(what),
        _ => PortError::system(format!("{what}: {DEVICE}"), error),
    })
}

/// Opens the socket for requests about interfaces.
fn lookup(what: &str) -> Result<OwnedFd, PortError> {
    let (family, kind) = (AddressFamily::INET, SocketType::DGRAM);
    socket_with(family, kind, SocketFlags::CLOEXEC, None).map_err(|e| PortError::system(what, e))
}

fn no_permission(what: &str) -> PortError {
    PortError::missing(what, "root or CAP_NET_ADMIN (run with sudo)")
}

/// Checks that this process may make interfaces.
pub(super) fn probe() -> Result<String, PortError> {
    let what = "tap interfaces";
    open_device(what)?;
    let may =
        capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN));
    if !may {
        return Err(no_permission(what));
    }
    Ok("tap interfaces can be made".to_string())
}

impl Device {
    /// Makes the interface `name` with the given settings, and switches it on.
    pub(super) fn create(what: &str, name: &str, settings: &Settings) -> Result<Self, PortError> {
        let device = Self {
            file: open_device(what)?,
            lookup: lookup(what)?,
        };
        // Exclusive, so that an existing interface of this name is not taken over.
        let flags = settings.flags() | libc::IFF_TUN_EXCL;
        device
            .attach(name, flags)
            .map_err(|error| match error.raw_os_error() {
                Some(libc::EBUSY | libc::EEXIST | libc::EINVAL) => PortError::missing(
                    what,
                    format!("a name that no interface has; {name} is taken (see: ip link)"),
                ),
                Some(libc::EPERM | libc::EACCES) => no_permission(what),
                _ => PortError::system(what, error),
            })?;
        device
            .configure(name, settings)
            .map_err(|(doing, error)| PortError::system(format!("{what}: {doing}"), error))?;
        Ok(device)
    }

    /// Opens another queue of an interface with several queues. The kernel assigns to it the flows that were last sent
    /// through it.
    pub(super) fn queue(what: &str, name: &str, settings: &Settings) -> Result<Self, PortError> {
        let another = Self {
            file: open_device(what)?,
            lookup: lookup(what)?,
        };
        let attached = another.attach(name, settings.flags());
        attached.map_err(|e| PortError::system(what, e))?;
        Ok(another)
    }

    fn attach(&self, name: &str, flags: libc::c_int) -> io::Result<()> {
        self.set(self.file.as_fd(), name, libc::TUNSETIFF, |request| {
            request.ifr_ifru.ifru_flags = flags as libc::c_short;
        })
    }

    fn set(
        &self,
        to: BorrowedFd<'_>,
        name: &str,
        which: libc::Ioctl,
        fill: impl FnOnce(&mut libc::ifreq),
    ) -> io::Result<()> {
        // SAFETY: this function is only called with requests that take one `ifreq`.
        unsafe { request_with(to, name, which, fill) }.map(|_| ())
    }

    fn configure(&self, name: &str, settings: &Settings) -> Result<(), (&'static str, io::Error)> {
        let set = |doing, which: libc::c_ulong, fill: &dyn Fn(&mut libc::ifreq)| {
            self.set(self.lookup.as_fd(), name, which as libc::Ioctl, fill)
                .map_err(|error| (doing, error))
        };
        if let Some(mac) = settings.mac {
            set("setting mac", libc::SIOCSIFHWADDR, &|request| {
                let mut address = socket_address(libc::ARPHRD_ETHER);
                for (to, from) in address.sa_data.iter_mut().zip(mac) {
                    *to = from as libc::c_char;
                }
                request.ifr_ifru.ifru_hwaddr = address;
            })?;
        }
        set("setting mtu", libc::SIOCSIFMTU, &|request| {
            request.ifr_ifru.ifru_mtu = settings.mtu_bytes as libc::c_int;
        })?;
        set("setting queue", libc::SIOCSIFTXQLEN, &|request| {
            // `ifr_mtu` and `ifr_qlen` are the same field of the union.
            request.ifr_ifru.ifru_mtu = settings.queue_frames as libc::c_int;
        })?;
        if let Some((address, prefix_bits)) = settings.address {
            set("setting address", libc::SIOCSIFADDR, &|request| {
                request.ifr_ifru.ifru_addr = ipv4(address);
            })?;
            let mask = u32::MAX.checked_shl(32 - prefix_bits).unwrap_or(0);
            set("setting address", libc::SIOCSIFNETMASK, &|request| {
                request.ifr_ifru.ifru_netmask = ipv4(Ipv4Addr::from_bits(mask));
            })?;
        }
        set("switching it on", libc::SIOCSIFFLAGS, &|request| {
            request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        })
    }

    /// Sets the carrier state of the interface. Kernels before 5.0 do not support the request, so that the carrier is
    /// always on.
    pub(super) fn set_carrier(&self, is_there: bool) {
        let carrier = libc::c_int::from(is_there);
        // SAFETY: the request reads one `int`.
        let _ = unsafe { libc::ioctl(self.file.as_raw_fd(), TUNSETCARRIER, &raw const carrier) };
    }

    /// Returns a socket in the network namespace in which the interface was made.
    pub(super) fn lookup(&self) -> BorrowedFd<'_> {
        self.lookup.as_fd()
    }

    /// Returns the file that frames are read from and written to; it never blocks.
    #[inline(always)]
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns true if the interface still exists, whatever its current name and namespace.
    pub(super) fn exists(&self) -> bool {
        // SAFETY: an `ifreq` is plain data, and this request writes one.
        unsafe {
            let mut request: libc::ifreq = std::mem::zeroed();
            libc::ioctl(self.file.as_raw_fd(), libc::TUNGETIFF, &mut request) == 0
        }
    }
}

fn socket_address(family: u16) -> libc::sockaddr {
    libc::sockaddr {
        sa_family: family,
        sa_data: [0; 14],
    }
}

/// Encodes an IPv4 address as a `sockaddr` for a request: the address follows the family and the port.
fn ipv4(address: Ipv4Addr) -> libc::sockaddr {
    let mut to = socket_address(libc::AF_INET as u16);
    for (to, from) in to.sa_data[2..].iter_mut().zip(address.octets()) {
        *to = from as libc::c_char;
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names_that_the_kernel_changes_or_refuses_are_invalid() {
        for good in ["tap0", "a", "taut-west.15xyz"] {
            assert!(is_name(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "tap%d",
            "a/b",
            "a b",
            "a:1",
            "sixteen-letters-",
            "µ",
        ] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
