//! The maps that the router's programs of all interfaces share; one of them has the counters of packets by outcome.

use super::map_memory::{Atomic, Mapped};
use super::{MOST_INTERFACES, RouterSettings};
use crate::forward::HeaderChange;
use crate::functions::DryRun;
use crate::program::{as_io, load_adjusted, refused};
use crate::upcall::UpcallPrograms;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object};
use std::io;
use std::net::Ipv6Addr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use taut_sys::Error;

/// The object file that build.rs compiles from `ebpf/xdp_router.bpf.c`.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/xdp_router.bpf.o"));

const WHAT: &str = "a router in the kernel";
/// Maximum number of IPv6 routes in the kernel; memory is allocated per route.
const MOST_V6: u32 = 1 << 20;
/// Length in bytes of the prefix length, which precedes the address in a key.
const LENGTH_BYTES: usize = 4;
/// The number of table entries in each value of the IPv4 maps. The map of the first level has [`FIRST_V4`] values, and
/// thus one entry for each of the 2^24 values of the first 24 address bits.
const ENTRIES: usize = 1 << 8;
const FIRST_V4: usize = 1 << 16;
/// Size of `struct outcomes` in the XDP program, one count for each outcome.
const OUTCOMES_BYTES: u32 = 10 * 8;
/// Size in bytes of the ring in which frames of one interface wait for the process: space for 512 frames.
const UP_BYTES: u32 = 2 << 20;

/// A map, and its integers as mapped into this process's memory.
#[derive(Debug)]
struct Shown<A: Atomic> {
    map: MapHandle,
    numbers: Mapped<A>,
}

/// The router's maps in the kernel, which frees them when no program and no process uses them any more.
#[derive(Debug)]
pub struct KernelRouter {
    settings: RouterSettings,
    ports: usize,
    first_v4: Shown<AtomicU16>,
    blocks_v4: Shown<AtomicU16>,
    routes_v6: MapHandle,
    hops: Shown<AtomicU64>,
    shares: Shown<AtomicU64>,
    outcomes: MapHandle,
    /// Rings through which programs pass frames up to the process, one per port.
    up: Vec<MapHandle>,
}

impl KernelRouter {
    /// Makes maps for `ports` ports, without routes.
    ///
    /// # Errors
    /// There are more interfaces or ports than the XDP programs support, or the machine lacks a requirement.
    pub fn new(settings: RouterSettings, ports: usize) -> Result<Self, Error> {
        if settings.interfaces.len().max(ports) > MOST_INTERFACES {
            let text = format!("at most {MOST_INTERFACES} ports");
            return Err(Error::system(WHAT, io::Error::other(text)));
        }
        let counts = (size_of::<u32>(), OUTCOMES_BYTES as usize);
        let up = (0..ports).map(|_| make(MapType::RingBuf, 0, "up", (0, 0), UP_BYTES));
        let route_v6 = (LENGTH_BYTES + size_of::<Ipv6Addr>(), size_of::<u32>());
        let on_demand = libbpf_sys::BPF_F_NO_PREALLOC;
        Ok(Self {
            first_v4: shown("first_v4", ENTRIES, FIRST_V4)?,
            blocks_v4: shown("blocks_v4", ENTRIES, settings.blocks_v4)?,
            routes_v6: make(MapType::LpmTrie, on_demand, "routes_v6", route_v6, MOST_V6)?,
            hops: shown("hops", 1, settings.hops)?,
            shares: shown("shares", 1, settings.shares)?,
            outcomes: make(MapType::PercpuArray, 0, "outcomes", counts, 1)?,
            up: up.collect::<Result<_, _>>()?,
            settings,
            ports,
        })
    }

    /// Sets the entry for all IPv4 addresses with the given first 24 bits: the next hop, or, with bit 15 set, the block
    /// with the entries for the last byte.
    pub fn set_first_v4(&self, index: usize, bits: u16) {
        set_entry(&self.first_v4.numbers, index, bits);
    }

    /// Sets one next hop in a block. A block has an entry for each address of a /24 network, and `last` is the last byte
    /// of the address.
    pub fn set_in_block_v4(&self, block: usize, last: usize, bits: u16) {
        set_entry(&self.blocks_v4.numbers, block * ENTRIES + last, bits);
    }

    /// Sets the next hop of the IPv6 route to the prefix `address`/`length`; none removes the route.
    ///
    /// # Errors
    /// The map is full; other errors are the kernel's. After an error, the map is unchanged.
    pub fn set_v6(&self, address: Ipv6Addr, length: u8, hop: Option<u32>) -> io::Result<()> {
        let mut key = u32::from(length).to_ne_bytes().to_vec();
        key.extend(address.octets());
        match hop {
            Some(hop) => {
                let value = hop.to_ne_bytes();
                let put = self.routes_v6.update(&key, &value, MapFlags::ANY);
                put.map_err(as_io).map_err(|e| {
                    io::Error::other(format!(
                        "the route table is full, with at most {MOST_V6} routes: {e}"
                    ))
                })
            }
            // Removing a route that does not exist is no error.
            None => match self.routes_v6.delete(&key) {
                Err(e) if e.kind() == libbpf_rs::ErrorKind::NotFound => Ok(()),
                taken => taken.map_err(as_io),
            },
        }
    }

    /// Sets the entry of the next hop with the given index, as a word (crates/router/src/hop.rs).
    pub fn set_hop(&self, number: usize, word: u64) {
        if let Some(it) = self.hops.numbers.get(number) {
            it.store(word, Ordering::Release);
        }
    }

    /// Sets the next hop of one share (hash bucket) of an ECMP group's flows. Share indices count through all groups.
    pub fn set_share(&self, share: usize, number: usize) {
        if let Some(it) = self.shares.numbers.get(share) {
            it.store(number as u64, Ordering::Release);
        }
    }

    /// Returns the number of packets with each outcome, without packets that were passed up.
    pub fn outcomes(&self) -> Vec<u64> {
        let cpus = self.outcomes.lookup_percpu(&[0; 4], MapFlags::ANY);
        let mut sums = vec![0; OUTCOMES_BYTES as usize / 8];
        for cpu in cpus.ok().flatten().unwrap_or_default() {
            for (sum, count) in sums.iter_mut().zip(cpu.chunks_exact(8)) {
                *sum += u64::from_ne_bytes(count.try_into().unwrap_or_default());
            }
        }
        sums
    }

    /// Loads the XDP program for frames that enter through a port, without attaching it to an interface.
    ///
    /// # Errors
    /// The machine lacks a requirement of the XDP program.
    pub fn dry_run(&self, from: usize) -> Result<DryRun, Error> {
        DryRun::new(self.load_for(WHAT, from)?, self.ports)
    }

    fn load_for(&self, what: &str, from: usize) -> Result<Object, Error> {
        let interfaces = &self.settings.interfaces;
        let mut constants = Vec::new();
        constants.extend((interfaces.len() as u32).to_ne_bytes());
        constants.extend((from as u32).to_ne_bytes());
        constants.extend(self.settings.flow_seed.to_ne_bytes());
        for interface in interfaces {
            constants.extend(interface.mac);
            constants.extend(interface.mtu.to_ne_bytes());
            constants.extend(u16::from(interface.listens).to_ne_bytes());
        }
        load_adjusted(what, OBJECT, &constants, |open| {
            for mut map in open.maps_mut() {
                let shared = match map.name().to_string_lossy().as_ref() {
                    "first_v4" => &self.first_v4.map,
                    "blocks_v4" => &self.blocks_v4.map,
                    "routes_v6" => &self.routes_v6,
                    "hops" => &self.hops.map,
                    "shares" => &self.shares.map,
                    "outcomes" => &self.outcomes,
                    "up" => &self.up[from],
                    _ => continue,
                };
                map.reuse_fd(shared.as_fd())?;
            }
            Ok(())
        })
    }
}

impl UpcallPrograms for KernelRouter {
    fn load(
        &self,
        what: &str,
        _: HeaderChange,
        (from, _): (usize, usize),
    ) -> Result<Object, Error> {
        self.load_for(what, from)
    }

    fn ring(&self, from: usize) -> &MapHandle {
        &self.up[from]
    }

    fn sends(&self) -> bool {
        true
    }
}

/// Makes a map with keys and values of the given sizes.
fn make(
    kind: MapType,
    map_flags: u32,
    name: &str,
    (key, value): (usize, usize),
    entries: u32,
) -> Result<MapHandle, Error> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        map_flags,
        ..Default::default()
    };
    let (key, value) = (key as u32, value as u32);
    MapHandle::create(kind, Some(name), key, value, entries, &options)
        .map_err(|e| refused(format!("{WHAT}: making the map of {name}"), as_io(e)))
}

/// Makes an array of `values` values with `numbers` integers each, mapped into this process's memory.
fn shown<A: Atomic>(name: &str, numbers: usize, values: usize) -> Result<Shown<A>, Error> {
    let bytes = (size_of::<u32>(), numbers * size_of::<A>());
    let flags = libbpf_sys::BPF_F_MMAPABLE;
    let map = make(MapType::Array, flags, name, bytes, values as u32)?;
    let numbers = Mapped::of(&map, numbers * values)
        .map_err(|e| Error::system(format!("{WHAT}: mapping the map of {name}"), e))?;
    Ok(Shown { map, numbers })
}

/// Writes an entry only if its value changes: most values stay the same, and programs on all CPUs read the entries.
fn set_entry(entries: &Mapped<AtomicU16>, index: usize, bits: u16) {
    if let Some(it) = entries.get(index)
        && it.load(Ordering::Relaxed) != bits
    {
        // Release ordering: a reader that finds the index of a block also sees the block's entries.
        it.store(bits, Ordering::Release);
    }
}
