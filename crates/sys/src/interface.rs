//! A network interface as seen by packet sockets: its index, its MTU, and whether it is up.

use crate::Error;
use rustix::fd::{AsFd, AsRawFd};
use std::io;

/// The bytes of an Ethernet header, which the interface's MTU does not include.
pub const ETHERNET_HEADER_BYTES: usize = 14;

/// The bytes of one VLAN tag, which the interface's MTU does not include.
pub const VLAN_TAG_BYTES: usize = 4;

/// The EtherTypes of a VLAN tag: 802.1Q and 802.1ad.
const VLAN_TYPES: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];

/// The state of an interface in the kernel at the time of the lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interface {
    /// Index of the interface in the kernel. A new interface of the same name has another index.
    pub index: u32,
    /// Maximum payload of a frame (MTU) in bytes.
    pub mtu_bytes: usize,
    /// True if the interface is switched on (`ip link set NAME up`).
    pub up: bool,
    /// True if the interface has a carrier: it is connected to a peer interface that is up.
    pub running: bool,
}

impl Interface {
    /// Looks `name` up in the network namespace of `socket`.
    ///
    /// # Errors
    /// The kernel's error, `ENODEV` if there is no interface of that name.
    pub fn find(socket: impl AsFd, name: &str) -> io::Result<Self> {
        let socket = socket.as_fd();
        let index = rustix::net::netdevice::name_to_index(socket, name)?;
        let mtu = request(socket, name, libc::SIOCGIFMTU)?;
        let flags = request(socket, name, libc::SIOCGIFFLAGS)?;
        // SAFETY: the kernel filled in the member that each request is about.
        let (mtu, flags) = unsafe { (mtu.ifr_ifru.ifru_mtu, i32::from(flags.ifr_ifru.ifru_flags)) };
        Ok(Self {
            index,
            mtu_bytes: usize::try_from(mtu).unwrap_or(0),
            up: flags & libc::IFF_UP != 0,
            running: flags & libc::IFF_RUNNING != 0,
        })
    }

    /// Checks that frames can pass the interface: it is up and has a carrier.
    ///
    /// # Errors
    /// The error says why frames cannot pass, and how to fix that.
    pub fn passes(&self, name: &str) -> Result<(), String> {
        if !self.up {
            Err(format!("{name} is down: ip link set {name} up"))
        } else if !self.running {
            Err(format!("{name} has no carrier: is its other end up?"))
        } else {
            Ok(())
        }
    }
}

/// Makes one `SIOCGIF...` request about the interface `name`.
fn request(socket: impl AsFd, name: &str, which: libc::Ioctl) -> io::Result<libc::ifreq> {
    // SAFETY: these requests read and write one `ifreq`.
    unsafe { request_with(socket, name, which, |_| {}) }
}

/// Makes one request about the interface `name`; `fill` sets fields of the request other than the name.
///
/// # Errors
/// The kernel's error.
///
/// # Safety
/// The kernel has to read and write one `ifreq`, and nothing else, for `which`.
pub unsafe fn request_with(
    socket: impl AsFd,
    name: &str,
    which: libc::Ioctl,
    fill: impl FnOnce(&mut libc::ifreq),
) -> io::Result<libc::ifreq> {
    // SAFETY: an `ifreq` is plain data; all zeroes is a valid one.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    fill(&mut request);
    // SAFETY: the descriptor is open; the caller guarantees what the kernel reads and writes.
    if unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), which, &mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(request)
}

/// Switches the network interface `name` on, as `ip link set NAME up` does.
///
/// # Errors
/// The kernel's error: `ENODEV` if there is no interface of that name, `EPERM` without CAP_NET_ADMIN.
pub fn switch_on(name: &str) -> io::Result<()> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    let now = request(&socket, name, libc::SIOCGIFFLAGS)?;
    // SAFETY: this is the member that the kernel filled in.
    let flags = unsafe { now.ifr_ifru.ifru_flags } | libc::IFF_UP as libc::c_short;
    // SAFETY: the kernel reads one `ifreq`.
    unsafe {
        request_with(
            &socket,
            name,
            libc::SIOCSIFFLAGS as libc::Ioctl,
            |request| {
                request.ifr_ifru.ifru_flags = flags;
            },
        )
    }
    .map(|_| ())
}

/// Returns the name of the driver of interface `name`, as ethtool prints it.
///
/// # Errors
/// The kernel's error; some drivers have no name.
pub fn driver(socket: impl AsFd, name: &str) -> io::Result<String> {
    /// The request codes `ETHTOOL_GDRVINFO` (linux/ethtool.h) and `SIOCETHTOOL` (linux/sockios.h).
    const GET_DRIVER_INFO: u32 = 3;
    const ETHTOOL: libc::Ioctl = 0x8946;
    /// The structure `struct ethtool_drvinfo`: the command, the driver's name of 32 bytes, and more.
    #[repr(C)]
    struct DriverInfo {
        question: u32,
        name: [u8; 32],
        rest: [u8; 160],
    }
    let mut info = DriverInfo {
        question: GET_DRIVER_INFO,
        name: [0; 32],
        rest: [0; 160],
    };
    // SAFETY: for this request the kernel writes one such structure, which outlives the call.
    unsafe {
        request_with(socket, name, ETHTOOL, |request| {
            request.ifr_ifru.ifru_data = (&raw mut info).cast();
        })?;
    }
    let name = info.name.split(|byte| *byte == 0).next();
    Ok(String::from_utf8_lossy(name.unwrap_or_default()).into_owned())
}

/// Returns the error text for an open port whose interface cannot be looked up any more.
pub fn lost(name: &str, error: &io::Error) -> String {
    if error.raw_os_error() == Some(libc::ENODEV) {
        format!("interface {name} was deleted")
    } else {
        format!("interface {name}: {error}")
    }
}

/// Explains why there is no port or program on interface `name`, from the kernel's error for the lookup.
pub fn cannot_find(what: &str, name: &str, error: io::Error) -> Error {
    if error.raw_os_error() == Some(libc::ENODEV) {
        Error::missing(
            what,
            format!("an interface \"{name}\"; list those here with: ip link"),
        )
    } else {
        Error::system(what, error)
    }
}

/// Explains why a packet socket could not be made.
pub fn cannot_make_socket(what: impl Into<String>, kind: &str, error: rustix::io::Errno) -> Error {
    use rustix::io::Errno;
    match error {
        Errno::PERM | Errno::ACCESS => Error::missing(what, "root or CAP_NET_RAW (run with sudo)"),
        Errno::AFNOSUPPORT => Error::missing(what, format!("a kernel with {kind}")),
        _ => Error::system(what, error),
    }
}

/// Returns true if an interface with this MTU accepts the frame; Ethernet header and VLAN tag do not count towards the
/// MTU.
#[inline(always)]
pub fn fits(frame: &[u8], mtu_bytes: usize) -> bool {
    let longest = mtu_bytes + ETHERNET_HEADER_BYTES;
    frame.len() <= longest || (frame.len() <= longest + VLAN_TAG_BYTES && has_vlan_tag(frame))
}

#[cold]
fn has_vlan_tag(frame: &[u8]) -> bool {
    frame
        .get(12..14)
        .is_some_and(|kind| VLAN_TYPES.iter().any(|vlan| kind == vlan))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_vlan_tag_may_exceed_the_mtu() {
        let mut frame = vec![0; 1518];
        assert!(fits(&frame[..1514], 1500));
        assert!(!fits(&frame[..1515], 1500));
        frame[12..14].copy_from_slice(&[0x81, 0x00]);
        assert!(fits(&frame, 1500));
        frame.push(0);
        assert!(!fits(&frame, 1500));
    }

    #[test]
    fn enabling_an_unknown_interface_fails() {
        let error = switch_on("taut-no-such").expect_err("no such interface");
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn interface_names_longer_than_the_kernel_limit_are_not_found() {
        let (socket, _) = std::os::unix::net::UnixStream::pair().expect("a socket pair");
        let error = Interface::find(&socket, &"x".repeat(40)).expect_err("too long");
        assert_eq!(lost("x", &error), "interface x was deleted");
    }
}
