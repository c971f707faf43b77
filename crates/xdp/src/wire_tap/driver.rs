//! The wiretap's programs in the kernel, and the ring through which they report observations of packets.

use super::{Missed, Sighting};
use crate::program::{as_io, load_adjusted, map, namespace_of};
use libbpf_rs::{Link, MapCore, MapFlags, Object, RingBuffer, RingBufferBuilder};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::cell::RefCell;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use taut_sys::Error;
use taut_sys::interface::{self, Interface};

/// The object file that build.rs compiles from `ebpf/wire_tap.bpf.c`.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/wire_tap.bpf.o"));

/// Size of `struct sighting` in `ebpf/wire_tap.bpf.c`.
const SIGHTING_BYTES: usize = 24;

/// Observes the links of one or two veth interfaces. Dropping it removes the programs from the kernel.
pub struct WireTap {
    object: Object,
    ring: RingBuffer<'static>,
    taken: Rc<RefCell<Vec<Sighting>>>,
    interfaces: Vec<String>,
    /// Number of frames that had crossed the links before the programs were attached.
    crossed_before: u64,
    _links: Vec<Link>,
}

impl std::fmt::Debug for WireTap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("WireTap").field(&self.missed()).finish()
    }
}

impl WireTap {
    /// Starts to observe these interfaces of the calling thread's network namespace. Observations wait in a ring of
    /// `ring_bytes` bytes ([`super::ring_bytes`]) until [`WireTap::take`] reads them.
    ///
    /// # Errors
    /// There are no or more than two interfaces, one does not exist or is not part of a veth pair, or the machine lacks
    /// a requirement.
    pub fn start(interfaces: &[String], ring_bytes: u32) -> Result<Self, Error> {
        let what = "watching wires";
        let failed = |e| Error::system(what, e);
        let [first, second] = ends_of(interfaces)?;
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(|e| Error::system(what, e))?;
        let indices = [index_of(&socket, first)?, index_of(&socket, second)?];
        if !fs::exists("/sys/kernel/btf/vmlinux").unwrap_or(false) {
            let needs = "a kernel that describes its structures (CONFIG_DEBUG_INFO_BTF)";
            return Err(Error::missing(what, needs));
        }
        let mut constants = Vec::new();
        constants.extend(namespace_of(&socket).map_err(failed)?.to_ne_bytes());
        indices
            .iter()
            .for_each(|index| constants.extend(index.to_ne_bytes()));
        let object = load_adjusted(what, OBJECT, &constants, |open| {
            open.maps_mut()
                .filter(|map| map.name() == "sightings")
                .try_for_each(|mut map| map.set_max_entries(ring_bytes))
        })
        .map_err(too_old)?;
        let taken = Rc::<RefCell<Vec<Sighting>>>::default();
        let ring = ring_of(&object, &taken).map_err(failed)?;
        let links = object
            .progs_mut()
            .map(|program| program.attach().map_err(as_io))
            .collect::<io::Result<Vec<_>>>()
            .map_err(failed)?;
        Ok(Self {
            crossed_before: frames_of(interfaces),
            interfaces: interfaces.to_vec(),
            object,
            ring,
            taken,
            _links: links,
        })
    }

    /// Passes the observations since the last call to `each`, in order.
    pub fn take(&mut self, mut each: impl FnMut(Sighting)) {
        // Reading the ring fails only if the callback fails.
        let _ = self.ring.consume();
        self.taken.borrow_mut().drain(..).for_each(&mut each);
    }

    /// Returns the numbers of missed observations and frames. Call it in the network namespace in which the wiretap
    /// started, while no frames are sent.
    pub fn missed(&self) -> Missed {
        let crossed = self.crossed_before + self.counter(0);
        Missed {
            ring_full: self.counter(1),
            unseen: frames_of(&self.interfaces).saturating_sub(crossed),
        }
    }

    /// Returns one of the programs' counters, summed over all CPUs.
    fn counter(&self, which: u32) -> u64 {
        let of_cpus = map(&self.object, "counters")
            .and_then(|counters| {
                counters
                    .lookup_percpu(&which.to_ne_bytes(), MapFlags::ANY)
                    .map_err(as_io)
            })
            .ok()
            .flatten()
            .unwrap_or_default();
        of_cpus
            .iter()
            .filter_map(|bytes| Some(u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?)))
            .sum()
    }
}

/// Returns the interfaces at both ends of the device, which may be the same one.
fn ends_of(interfaces: &[String]) -> Result<[&str; 2], Error> {
    match interfaces {
        [only] => Ok([only, only]),
        [first, second] if first != second => Ok([first, second]),
        [first, _] => Err(wrong(first, "given twice")),
        _ => Err(wrong(
            &interfaces.join(" "),
            "expected one or two interfaces of the device",
        )),
    }
}

/// Returns the index of an interface, which must be part of a veth pair.
fn index_of(socket: &OwnedFd, name: &str) -> Result<u32, Error> {
    let found = Interface::find(socket, name)
        .map_err(|e| interface::cannot_find(&format!("watching {name}"), name, e))?;
    match interface::driver(socket, name).as_deref() {
        Ok("veth") => Ok(found.index),
        driver => Err(Error::missing(
            format!("watching {name}"),
            format!(
                "an end of a veth pair, and this is an interface of driver {}",
                driver.unwrap_or("unknown")
            ),
        )),
    }
}

/// Returns the number of frames received and sent by the given interfaces of the calling thread's namespace since they
/// were created.
fn frames_of(interfaces: &[String]) -> u64 {
    let table = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let rows = table.lines().filter_map(|row| row.split_once(':'));
    rows.filter(|(name, _)| interfaces.iter().any(|i| i == name.trim()))
        .flat_map(|(_, numbers)| {
            let columns: Vec<&str> = numbers.split_whitespace().collect();
            // The columns are packets received and packets sent.
            [1, 9].map(|column| columns.get(column)?.parse::<u64>().ok())
        })
        .flatten()
        .sum()
}

/// Returns the error for interfaces that cannot be observed.
fn wrong(interfaces: &str, reason: &str) -> Error {
    let reason = io::Error::new(io::ErrorKind::InvalidInput, reason);
    Error::system(format!("port \"{interfaces}\""), reason)
}

/// Converts an error to the message that the kernel is too old, which is the usual reason. Errors about missing
/// privileges stay unchanged.
fn too_old(error: Error) -> Error {
    if error.is_missing() {
        return error;
    }
    let needs = format!("Linux 6.11 or later, whose trace points show frames whole ({error})");
    Error::missing("watching wires", needs)
}

fn ring_of(object: &Object, taken: &Rc<RefCell<Vec<Sighting>>>) -> io::Result<RingBuffer<'static>> {
    let sightings = map(object, "sightings")?;
    let taken = Rc::clone(taken);
    let mut builder = RingBufferBuilder::new();
    builder
        .add(&sightings, move |bytes| {
            taken.borrow_mut().extend(read(bytes));
            0
        })
        .map_err(as_io)?;
    builder.build().map_err(as_io)
}

/// Parses a record of the ring, `struct sighting` of the program; None if the record is too short.
fn read(bytes: &[u8]) -> Option<Sighting> {
    let bytes: &[u8; SIGHTING_BYTES] = bytes.first_chunk()?;
    let (time, rest) = bytes.split_first_chunk()?;
    let (sequence, rest) = rest.split_first_chunk()?;
    let [f0, f1, side, leaving, ..] = *rest else {
        return None;
    };
    Some(Sighting {
        time_ns: u64::from_ne_bytes(*time),
        sequence: u64::from_ne_bytes(*sequence),
        flow: u16::from_ne_bytes([f0, f1]),
        side: usize::from(side),
        leaving: leaving != 0,
    })
}
