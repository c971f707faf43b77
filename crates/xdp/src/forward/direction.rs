//! One direction of forwarding: the XDP program on the ingress interface, and its counters.

use super::{HeaderChange, KernelCounters, KernelProgram};
use crate::Mode;
use crate::program::{Attachment, as_io, load_adjusted, map, share_maps};
use libbpf_rs::{MapCore, MapFlags, Object, OpenObject};
use std::io;
use taut_sys::Error;

/// The object file that build.rs compiles from `ebpf/xdp_forward.bpf.c`.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/xdp_forward.bpf.o"));

/// The only key in the map of counters.
const KEY: [u8; 4] = [0; 4];

/// The names of the maps that a new program takes over from the old one: the egress interfaces, and the counters.
const KEPT: [&str; 2] = ["out", "counted"];

/// A loaded XDP program and its attachment to the ingress interface. The counters of the program continue if the
/// interface is deleted.
pub(super) struct Direction {
    object: Object,
    attachment: Option<Attachment>,
    /// Kernel id of the map that contains the egress interfaces.
    pub(super) map_id: u32,
}

impl Direction {
    /// Loads the XDP program for frames from one port to another; the ports are given by their indices.
    pub(super) fn new(
        what: &str,
        program: KernelProgram<'_>,
        way: (usize, usize),
    ) -> Result<Self, Error> {
        let object = load(what, program, way, |_| Ok(()))?;
        let map_id = map(&object, "out")
            .and_then(|out| out.info().map_err(as_io))
            .map(|info| info.info.id)
            .map_err(|e| Error::system(what, e))?;
        Ok(Self {
            object,
            attachment: None,
            map_id,
        })
    }

    /// Loads another program for the same frames, to replace the current one. The new program continues the current
    /// program's counters.
    pub(super) fn load_next(
        &self,
        what: &str,
        program: KernelProgram<'_>,
        way: (usize, usize),
    ) -> Result<Object, Error> {
        load(what, program, way, |open| {
            share_maps(open, &self.object, &KEPT)
        })
    }

    /// Exchanges the current program and the XDP program in `object`: the new program runs, and `object` gets the
    /// replaced program. No frame is lost.
    pub(super) fn swap(&mut self, object: &mut Object) -> io::Result<()> {
        match self.attachment.as_ref().map(|it| it.replace(object)) {
            // The interface does not exist; `links` will attach the new program.
            Some(Err(e)) if e.raw_os_error() == Some(libc::ENOLINK) => self.attachment = None,
            Some(Err(e)) => return Err(e),
            Some(Ok(())) | None => {}
        }
        std::mem::swap(&mut self.object, object);
        Ok(())
    }

    /// Sets the egress interface with the index `exit` among those of the direction; `interface` is its kernel index.
    pub(super) fn leave_through(&self, exit: usize, interface: u32) -> io::Result<()> {
        let key = (exit as u32).to_ne_bytes();
        map(&self.object, "out")?
            .update(&key, &interface.to_ne_bytes(), MapFlags::ANY)
            .map_err(as_io)
    }

    /// Attaches the XDP program to the interface called `name`, with the given index.
    pub(super) fn attach(
        &mut self,
        what: &str,
        name: &str,
        interface: u32,
        modes: &[Mode],
    ) -> Result<(), Error> {
        // The old attachment is removed first, as it may conflict with the new one.
        self.attachment = None;
        let attached = Attachment::new(what, &self.object, name, interface, modes)?;
        self.attachment = Some(attached);
        Ok(())
    }

    pub(super) fn detach(&mut self) {
        self.attachment = None;
    }

    /// Returns the mode of the XDP program; none while its interface does not exist.
    pub(super) fn mode(&self) -> Option<Mode> {
        self.attachment.as_ref().map(|a| a.mode)
    }

    /// Returns the numbers of packets and bytes that left through the egress interface with the index `exit` among
    /// those of the direction. Only programs that choose among several egress interfaces have these counters.
    pub(super) fn left_through(&self, exit: usize) -> (u64, u64) {
        let key = (exit as u32).to_ne_bytes();
        let cpus = map(&self.object, "left")
            .and_then(|left| left.lookup_percpu(&key, MapFlags::ANY).map_err(as_io));
        let mut sums = (0, 0);
        for cpu in cpus.ok().flatten().unwrap_or_default() {
            if let ([packets, bytes], _) = cpu.as_chunks() {
                sums.0 += u64::from_ne_bytes(*packets);
                sums.1 += u64::from_ne_bytes(*bytes);
            }
        }
        sums
    }

    /// Adds the counters of this direction to `sum`. Frames that the egress interface refused after the XDP program had
    /// passed them on still count as sent.
    pub(super) fn add_to(&self, sum: &mut KernelCounters) {
        let cpus = map(&self.object, "counted")
            .and_then(|counted| counted.lookup_percpu(&KEY, MapFlags::ANY).map_err(as_io));
        for cpu in cpus.ok().flatten().unwrap_or_default() {
            let mut words = cpu
                .chunks_exact(8)
                .map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
            // In the order of `struct counters` in ebpf/forwarding.h.
            let [
                rx_packets,
                rx_bytes,
                too_short,
                nowhere,
                dropped_bytes,
                dropped,
                handed_up,
                added_bytes,
                too_long,
            ] = std::array::from_fn(|_| words.next().unwrap_or(0));
            sum.rx_packets += rx_packets;
            sum.rx_bytes += rx_bytes;
            sum.too_short += too_short;
            sum.refused += nowhere;
            sum.dropped += dropped;
            sum.handed_up += handed_up;
            sum.too_long += too_long;
            // The counters are read while the program runs, so they may be inconsistent by a frame.
            let kept = too_short + too_long + nowhere + dropped + handed_up;
            sum.tx_packets += rx_packets.saturating_sub(kept);
            sum.tx_bytes += (rx_bytes + added_bytes).saturating_sub(dropped_bytes);
        }
    }
}

fn load(
    what: &str,
    program: KernelProgram<'_>,
    (from, to): (usize, usize),
    adjust: impl FnOnce(&mut OpenObject) -> libbpf_rs::Result<()>,
) -> Result<Object, Error> {
    let change = |changes: &[HeaderChange]| changes.get(to).copied().unwrap_or(HeaderChange::NONE);
    match program {
        KernelProgram::Headers(changes) => {
            load_adjusted(what, OBJECT, &change(changes).constants(), adjust)
        }
        KernelProgram::Upcall(programs, changes) => {
            programs.load(what, change(changes), (from, to))
        }
        KernelProgram::Functions(functions) => functions.load(what, to, adjust),
    }
}
