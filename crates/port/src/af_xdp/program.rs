//! The XDP program in front of the sockets: loaded, attached to one interface, and gone with the
//! process that attached it, however that ends (a `bpf_link` held open only here).

use crate::PortError;
use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Compiled from `ebpf/xdp_to_socket.bpf.c` by build.rs.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/xdp_to_socket.bpf.o"));

/// Where in the kernel the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// In the interface's driver, before the kernel makes its own packet structure.
    Native,
    /// After that: works for every driver, slower.
    Generic,
}

impl Mode {
    /// `XDP_FLAGS_..._MODE` of linux/if_link.h.
    fn flags(self) -> u32 {
        match self {
            Self::Native => 1 << 2,
            Self::Generic => 1 << 1,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}

/// A loaded program, attached to one interface.
pub(super) struct Program {
    link: OwnedFd,
    object: Object,
    pub(super) mode: Mode,
}

impl Program {
    /// Loads the program without attaching it, to see whether that is allowed.
    pub(super) fn probe() -> Result<(), PortError> {
        load("loading an XDP program").map(drop)
    }

    /// Attaches the program to the interface with this index, in the first of `modes` that works.
    pub(super) fn attach(
        what: &str,
        name: &str,
        interface: u32,
        modes: &[Mode],
    ) -> Result<Self, PortError> {
        let object = load(what)?;
        let mut failure = io::Error::from(io::ErrorKind::Unsupported);
        for &mode in modes {
            match link(&object, interface, mode) {
                Ok(link) => {
                    return Ok(Self { link, object, mode });
                }
                Err(error) => failure = error,
            }
            if let Some(id) = attached(interface) {
                return Err(PortError::missing(
                    what,
                    format!(
                        "an interface without an XDP program, and {name} has one (id {id}): end what \
                         attached it (bpftool prog show id {id}), or: ip link set {name} xdp off"
                    ),
                ));
            }
        }
        Err(refused(
            format!("{what}: attaching the XDP program"),
            failure,
        ))
    }

    /// Sends what arrives at a receive queue to a socket, which must be bound to that queue.
    pub(super) fn redirect(&self, queue: u32, socket: impl AsFd) -> io::Result<()> {
        let descriptor = socket.as_fd().as_raw_fd();
        let map = self.object.maps().find(|map| map.name() == "sockets");
        let map = map.ok_or_else(|| io::Error::other("the XDP program has no map of sockets"))?;
        map.update(
            &queue.to_ne_bytes(),
            &descriptor.to_ne_bytes(),
            MapFlags::ANY,
        )
        .map_err(as_io)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Closing the link does this too, but not while a process just forked has it open as well.
        // SAFETY: the call takes a descriptor, which is open.
        unsafe { libbpf_sys::bpf_link_detach(self.link.as_raw_fd()) };
    }
}

fn load(what: &str) -> Result<Object, PortError> {
    // What libbpf has to say comes back as the error; its lines on stderr say it twice.
    libbpf_rs::set_print(None);
    ObjectBuilder::default()
        .open_memory(OBJECT)
        .and_then(libbpf_rs::OpenObject::load)
        .map_err(|e| refused(format!("{what}: loading the XDP program"), as_io(e)))
}

/// A failure of libbpf as the kernel's answer behind it.
fn as_io(error: libbpf_rs::Error) -> io::Error {
    let kind = match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
        libbpf_rs::ErrorKind::Unsupported => io::ErrorKind::Unsupported,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error.to_string())
}

fn refused(what: String, error: io::Error) -> PortError {
    match error.kind() {
        io::ErrorKind::PermissionDenied => PortError::missing(
            what,
            "root, or CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW (run with sudo)",
        ),
        io::ErrorKind::Unsupported => PortError::missing(what, "a kernel with XDP"),
        _ => PortError::system(what, error),
    }
}

/// Ties the program to the interface for as long as the descriptor is open.
fn link(object: &Object, interface: u32, mode: Mode) -> io::Result<OwnedFd> {
    let program = object.progs().next();
    let program = program.ok_or_else(|| io::Error::other("the object has no program"))?;
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        flags: mode.flags(),
        ..Default::default()
    };
    // SAFETY: the program is loaded, and the options say their own size.
    let answer = unsafe {
        libbpf_sys::bpf_link_create(
            program.as_fd().as_raw_fd(),
            interface as i32,
            libbpf_sys::BPF_XDP,
            &raw const options,
        )
    };
    if answer < 0 {
        return Err(io::Error::from_raw_os_error(-answer));
    }
    // SAFETY: a fresh descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(answer) })
}

/// Number of the XDP program on an interface, if there is one.
fn attached(interface: u32) -> Option<u32> {
    let mut id = 0;
    // SAFETY: the call writes one number.
    let answer = unsafe { libbpf_sys::bpf_xdp_query_id(interface as i32, 0, &raw mut id) };
    (answer == 0 && id != 0).then_some(id)
}
