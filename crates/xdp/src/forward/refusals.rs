//! Counts frames that an XDP program passed to an egress interface and that the interface refused. The kernel reports
//! refused frames at two trace points.

use crate::program::{as_io, load, map, namespace_of};
use libbpf_rs::{Link, MapCore, MapFlags, Object};
use rustix::fd::AsFd;
use std::io;
use taut_sys::Error;

/// The object file that build.rs compiles from `ebpf/xdp_refused.bpf.c`.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/xdp_refused.bpf.o"));

/// The programs at the trace points and their counters.
pub(super) struct Refused {
    object: Object,
    /// Cookie of the network namespace of the interfaces.
    namespace: u64,
    ways: Vec<[u8; 16]>,
    _links: Vec<Link>,
}

impl Refused {
    /// Attaches the programs, to count for interfaces in the network namespace of `socket`. Counting begins with
    /// [`Refused::watch`].
    pub(super) fn start(socket: impl AsFd) -> Result<Self, Error> {
        let what = "counting refused frames";
        let failed = |e| Error::system(what, e);
        let namespace = namespace_of(socket).map_err(failed)?;
        let object = load(what, OBJECT, &[])?;
        let links = object
            .progs_mut()
            .map(|program| program.attach().map_err(as_io))
            .collect::<io::Result<Vec<_>>>()
            .map_err(failed)?;
        Ok(Self {
            object,
            namespace,
            ways: Vec::new(),
            _links: links,
        })
    }

    /// Starts counting the refused frames from interface `from` to interface `to`, both kernel indices. `map_id` is the
    /// kernel id of the map in which the XDP program looks up the egress interface.
    pub(super) fn watch(&mut self, from: u32, to: u32, map_id: u32) -> io::Result<()> {
        for way in [way(self.namespace, from, to), way(0, map_id, 0)] {
            if !self.ways.contains(&way) {
                map(&self.object, "refused")?
                    .update(&way, &0_u64.to_ne_bytes(), MapFlags::ANY)
                    .map_err(as_io)?;
                self.ways.push(way);
            }
        }
        Ok(())
    }

    /// Returns the number of refused frames since the start, on all watched pairs of interfaces.
    pub(super) fn frames(&self) -> u64 {
        let Ok(refused) = map(&self.object, "refused") else {
            return 0;
        };
        self.ways
            .iter()
            .filter_map(|way| refused.lookup(way, MapFlags::ANY).ok().flatten())
            .filter_map(|bytes| Some(u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?)))
            .sum()
    }
}

/// Returns the bytes of `struct way` in ebpf/xdp_refused.bpf.c: network namespace, ingress and egress interface.
fn way(namespace: u64, from: u32, to: u32) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&namespace.to_ne_bytes());
    key[8..12].copy_from_slice(&from.to_ne_bytes());
    key[12..].copy_from_slice(&to.to_ne_bytes());
    key
}
