//! Loads an XDP program and attaches it to an interface by a `bpf_link` that only this process has open. The attachment
//! ends with the process, however the process ends.

use crate::Mode;
use libbpf_rs::{MapCore, Object, ObjectBuilder, OpenObject, PrintLevel};
use rustix::thread::{CapabilitySet, MembarrierCommand, capabilities, membarrier};
use std::cell::RefCell;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;
use taut_sys::Error;

/// Time after which every CPU has finished running a replaced program, for kernels on which the process cannot wait for
/// the CPUs.
const LONGEST_RUN: Duration = Duration::from_millis(50);

/// The compiled program that passes frames to AF_XDP sockets (`ebpf/xdp_to_socket.bpf.c`); the `af_xdp` ports define
/// the program's constants.
pub const TO_SOCKET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/xdp_to_socket.bpf.o"));

/// Opens a compiled object, writes its constants (into the program's only `const volatile` variable), and loads it.
///
/// # Errors
/// The kernel rejects the program; the error names `what`.
pub fn load(what: &str, object: &[u8], constants: &[u8]) -> Result<Object, Error> {
    load_adjusted(what, object, constants, |_| Ok(()))
}

/// Loads an object like [`load`], after `adjust` has changed it.
///
/// # Errors
/// The errors are those of [`load`] and of `adjust`.
pub(crate) fn load_adjusted(
    what: &str,
    object: &[u8],
    constants: &[u8],
    adjust: impl FnOnce(&mut OpenObject) -> libbpf_rs::Result<()>,
) -> Result<Object, Error> {
    // Messages of libbpf are returned in the error; its lines on stderr would repeat them.
    libbpf_rs::set_print(Some((PrintLevel::Warn, |_, line| {
        SAID.with_borrow_mut(|said| said.push_str(&line));
    })));
    SAID.take();
    let open = || -> Result<OpenObject, io::Error> {
        let mut open = ObjectBuilder::default()
            .open_memory(object)
            .map_err(as_io)?;
        if !constants.is_empty() {
            let mut maps = open.maps_mut();
            let mut map = maps
                .find(|map| map.name().to_string_lossy().ends_with(".rodata"))
                .ok_or_else(|| io::Error::other("the program has no constants"))?;
            map.initial_value_mut()
                .and_then(|values| values.get_mut(..constants.len()))
                .ok_or_else(|| io::Error::other("the program has fewer constants"))?
                .copy_from_slice(constants);
        }
        adjust(&mut open).map_err(as_io)?;
        Ok(open)
    };
    open()
        .and_then(|open| open.load().map_err(as_io))
        .map_err(|e| {
            let what = format!("{what}: loading the program");
            match verdict(&SAID.take()) {
                Some(verdict) if !may_have_any_program() => Error::missing(
                    what,
                    format!(
                        "CAP_PERFMON as well (run with sudo, or add cap_perfmon to setcap): without it the kernel's \
                        verifier rejects operations allowed to root, and reports: {verdict}"
                    ),
                ),
                Some(verdict) => Error::missing(
                    what,
                    format!(
                        "a kernel whose verifier takes it: a newer one than this ({}), which reports: {verdict}",
                        release()
                    ),
                ),
                None => refused(what, e),
            }
        })
}

/// Returns true if the verifier accepts the same programs from this process as from root.
fn may_have_any_program() -> bool {
    let root = CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN;
    // If the capabilities are unknown, the verifier's own message is more useful.
    capabilities(None).map_or(true, |own| own.effective.intersects(root))
}

/// Describes the XDP program that is attached to the interface `name`, and how to remove it.
fn held_by(id: u32, name: &str) -> String {
    let line = format!("prog_id:\t{id}\n");
    let holds = |process: &Path| {
        let files = fs::read_dir(process.join("fdinfo"))
            .into_iter()
            .flatten()
            .flatten();
        files
            .filter_map(|file| fs::read_to_string(file.path()).ok())
            .any(|text| text.contains("link_type:") && text.contains(&line))
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let holder = processes
        .map(|process| process.path())
        .filter(|path| {
            let number = path.file_name().and_then(|name| name.to_str());
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        })
        .find(|path| holds(path));
    match holder {
        Some(path) => {
            let program = fs::read_to_string(path.join("comm")).unwrap_or_default();
            let number = path.file_name().unwrap_or_default().to_string_lossy();
            format!(
                "process {number} ({}) has attached it: stop that process",
                program.trim()
            )
        }
        None => format!("if no other program needs it: ip link set {name} xdp off"),
    }
}

thread_local! {
    /// Messages of libbpf on this thread since the last program load began.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Returns the release of the running kernel.
fn release() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease");
    release.map_or_else(
        |_| "of unknown release".to_string(),
        |it| format!("Linux {}", it.trim()),
    )
}

/// Returns the reason why the kernel's verifier rejects a program: the last line of the verifier's log before the
/// statistics. Returns None if `said`, the messages of libbpf, contains no such log.
fn verdict(said: &str) -> Option<&str> {
    let (_, log) = said.split_once("BEGIN PROG LOAD LOG")?;
    let (log, _) = log.split_once("\nprocessed ")?;
    log.lines().next_back().map(str::trim)
}

/// Returns the map called `name`.
///
/// # Errors
/// There is no such map.
pub fn map<'a>(object: &'a Object, name: &str) -> io::Result<libbpf_rs::Map<'a>> {
    let mut maps = object.maps();
    maps.find(|map| map.name() == name)
        .ok_or_else(|| io::Error::other(format!("the XDP program has no map \"{name}\"")))
}

/// Makes an object that is not loaded yet use maps of a loaded object, so that the new program continues with their
/// contents.
///
/// # Errors
/// A map does not exist, or has another type.
pub(crate) fn share_maps(
    open: &mut OpenObject,
    with: &Object,
    names: &[&str],
) -> libbpf_rs::Result<()> {
    for mut own in open.maps_mut() {
        let name = own.name().to_string_lossy().into_owned();
        if names.contains(&name.as_str()) {
            let shared = map(with, &name).map_err(libbpf_rs::Error::from)?;
            own.reuse_fd(shared.as_fd())?;
        }
    }
    Ok(())
}

/// Waits until no CPU runs a replaced program any more.
pub(crate) fn wait_for_replaced() {
    // The kernel frees programs by RCU, and this call waits for RCU as well.
    if membarrier(MembarrierCommand::Global).is_err() {
        // The call fails if CPUs run without a timer tick. A sleep suffices then, because programs run for
        // microseconds.
        std::thread::sleep(LONGEST_RUN);
    }
}

/// A program attached to an interface; dropping the value detaches the program.
#[derive(Debug)]
pub struct Attachment {
    link: OwnedFd,
    /// The mode in which the XDP program is attached.
    pub mode: Mode,
}

impl Attachment {
    /// Attaches the object's only program to the interface `name` with the given index, in the first of `modes` that
    /// works.
    ///
    /// # Errors
    /// No mode works; the error is that of the last mode.
    pub fn new(
        what: &str,
        object: &Object,
        name: &str,
        interface: u32,
        modes: &[Mode],
    ) -> Result<Self, Error> {
        let mut failure = io::Error::from(io::ErrorKind::Unsupported);
        for &mode in modes {
            match link(object, interface, mode) {
                Ok(link) => return Ok(Self { link, mode }),
                Err(error) => failure = error,
            }
            if let Some(id) = attached(interface) {
                return Err(Error::missing(
                    what,
                    format!(
                        "an interface without an XDP program, and {name} has one (id {id}); {}",
                        held_by(id, name)
                    ),
                ));
            }
        }
        Err(not_attached(what, name, failure))
    }

    /// Replaces the current program by the object's only program; each frame is processed by one of the two.
    ///
    /// # Errors
    /// The kernel reports an error, `ENOLINK` if the interface does not exist; the current program continues.
    pub(crate) fn replace(&self, object: &Object) -> io::Result<()> {
        let program = only_program(object)?;
        // SAFETY: both descriptors are open, and the pointer to options may be null.
        let answer = unsafe {
            libbpf_sys::bpf_link_update(
                self.link.as_raw_fd(),
                program.as_fd().as_raw_fd(),
                std::ptr::null(),
            )
        };
        match answer {
            0.. => Ok(()),
            _ => Err(io::Error::from_raw_os_error(-answer)),
        }
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // Closing the link detaches the program too, but not while a process that was just forked also has the link
        // open.
        // SAFETY: the call needs only a descriptor, and the descriptor is open.
        unsafe { libbpf_sys::bpf_link_detach(self.link.as_raw_fd()) };
    }
}

/// Describes why no mode worked, from the kernel's error for the last mode.
fn not_attached(what: &str, name: &str, error: io::Error) -> Error {
    let needs = match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => {
            format!("a driver of {name} with XDP, or mode=generic, which works with every driver")
        }
        // Native programs only get frames in one piece of memory.
        Some(libc::ERANGE | libc::E2BIG) => format!(
            "a smaller MTU on {name} (on veth: on its other end) for XDP in the driver (ip link set {name} \
             mtu 1500), or mode=generic"
        ),
        Some(libc::EINVAL) => format!(
            "{name} configured as its driver requires for XDP: mostly a smaller MTU, or LRO off (ethtool -K {name} lro \
             off); the kernel's log may have details (dmesg)"
        ),
        Some(libc::ENOSPC) => format!(
            "at least as many receive queues on {name} as its other end has transmit queues (ethtool -L), \
             or mode=generic"
        ),
        _ => return refused(format!("{what}: attaching the XDP program"), error),
    };
    Error::missing(what, needs)
}

/// Returns the kernel's error in an error of libbpf.
pub fn as_io(error: libbpf_rs::Error) -> io::Error {
    let kind = match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
        libbpf_rs::ErrorKind::Unsupported => io::ErrorKind::Unsupported,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error.to_string())
}

/// Describes why the kernel rejects a program.
pub(crate) fn refused(what: String, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Error::missing(
            what,
            "root, or CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN and CAP_NET_RAW (run with sudo)",
        ),
        io::ErrorKind::Unsupported => Error::missing(what, "a kernel with XDP"),
        _ => Error::system(what, error),
    }
}

/// Attaches the object's program to the interface; the program stays attached while the returned descriptor is open.
fn link(object: &Object, interface: u32, mode: Mode) -> io::Result<OwnedFd> {
    let program = only_program(object)?;
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        flags: mode.flags(),
        ..Default::default()
    };
    // SAFETY: the program is loaded, and the options contain their own size.
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
    // SAFETY: the kernel has just returned this descriptor, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(answer) })
}

fn only_program(object: &Object) -> io::Result<libbpf_rs::Program<'_>> {
    let program = object.progs().next();
    program.ok_or_else(|| io::Error::other("the object has no program"))
}

/// Returns the kernel's identifier of the XDP program on an interface, if there is one.
fn attached(interface: u32) -> Option<u32> {
    let mut id = 0;
    // SAFETY: the call writes one number.
    let answer = unsafe { libbpf_sys::bpf_xdp_query_id(interface as i32, 0, &raw mut id) };
    (answer == 0 && id != 0).then_some(id)
}

/// Returns true if the interface's driver sends frames that XDP programs redirect to it, and false if it does not.
/// Returns none if the kernel does not report it (before Linux 6.3).
pub(crate) fn takes_redirected(interface: u32) -> Option<bool> {
    /// `NETDEV_XDP_ACT_NDO_XMIT` of linux/netdev.h.
    const SENDS_REDIRECTED: u64 = 1 << 2;
    let mut options = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: the options contain their own size, and the call writes no more than that.
    let answer = unsafe { libbpf_sys::bpf_xdp_query(interface as i32, 0, &raw mut options) };
    (answer == 0 && options.feature_flags != 0)
        .then_some(options.feature_flags & SENDS_REDIRECTED != 0)
}

/// Returns the cookie by which the kernel identifies the network namespace of `socket`.
pub(crate) fn namespace_of(socket: impl AsFd) -> io::Result<u64> {
    /// Socket option `SO_NETNS_COOKIE` of asm-generic/socket.h.
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let mut cookie = 0_u64;
    let mut len = size_of::<u64>() as u32;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of the buffer.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(cookie)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_for_refusal_is_extracted_from_the_verifier_log() {
        let said = "libbpf: prog 'x': BPF program load failed: Permission denied\n\
                    libbpf: prog 'x': -- BEGIN PROG LOAD LOG --\n\
                    0: R1=ctx() R10=fp0\n1: (85) call bpf_xdp_load_bytes#189\n\
                    R4 min value is negative, either use unsigned or 'var &= const'\n\
                    processed 351 insns (limit 1000000)\n-- END PROG LOAD LOG --\n";
        assert_eq!(
            verdict(said),
            Some("R4 min value is negative, either use unsigned or 'var &= const'")
        );
        assert_eq!(
            verdict("libbpf: Error in bpf_object__probe_loading(): EPERM\n"),
            None
        );
    }
}
