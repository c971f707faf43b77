//! The maps that the programs of all interfaces share, and what they count.

use super::words::Words;
use super::{MOST_INTERFACES, RouterSettings};
use crate::forward::HeaderChange;
use crate::functions::DryRun;
use crate::program::{as_io, load_adjusted, refused};
use crate::upcall::UpcallPrograms;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use taut_sys::Error;

/// Compiled from `ebpf/xdp_router.bpf.c` by build.rs.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/xdp_router.bpf.o"));

const WHAT: &str = "a router in the kernel";
/// Routes of each family that the kernel takes; memory is taken as they come.
const MOST_V4: u32 = 1 << 21;
const MOST_V6: u32 = 1 << 20;
/// Length of a prefix in front of its address.
const LENGTH_BYTES: usize = 4;
/// `struct outcomes` there: a count for each.
const OUTCOMES_BYTES: u32 = 10 * 8;
/// Size of the ring for frames of one interface that wait for the process: 512 of them.
const UP_BYTES: u32 = 2 << 20;

/// The router's maps in the kernel; gone with the last program and process that has them open.
#[derive(Debug)]
pub struct KernelRouter {
    settings: RouterSettings,
    ports: usize,
    routes_v4: MapHandle,
    routes_v6: MapHandle,
    hops: MapHandle,
    hop_words: Words,
    shares: MapHandle,
    share_words: Words,
    outcomes: MapHandle,
    /// Ring, by port, through which its program hands frames up.
    up: Vec<MapHandle>,
}

impl KernelRouter {
    /// Maps for that many ports, with no routes in them.
    ///
    /// # Errors
    /// For more interfaces or ports than the programs know; for what the machine lacks.
    pub fn new(settings: RouterSettings, ports: usize) -> Result<Self, Error> {
        if settings.interfaces.len().max(ports) > MOST_INTERFACES {
            let text = format!("{MOST_INTERFACES} ports at most");
            return Err(Error::system(WHAT, io::Error::other(text)));
        }
        let make = |kind, flags, name: &str, (key, value): (usize, usize), entries| {
            let options = libbpf_sys::bpf_map_create_opts {
                sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
                map_flags: flags,
                ..Default::default()
            };
            MapHandle::create(
                kind,
                Some(name),
                key as u32,
                value as u32,
                entries,
                &options,
            )
            .map_err(|e| refused(format!("{WHAT}: making the map of {name}"), as_io(e)))
        };
        let routes = |name, address_bytes, most| {
            let bytes = (LENGTH_BYTES + address_bytes, size_of::<u32>());
            make(
                MapType::LpmTrie,
                libbpf_sys::BPF_F_NO_PREALLOC,
                name,
                bytes,
                most,
            )
        };
        let words = |name, count: usize| {
            let bytes = (size_of::<u32>(), size_of::<u64>());
            let flags = libbpf_sys::BPF_F_MMAPABLE;
            let map = make(MapType::Array, flags, name, bytes, count as u32)?;
            let words = Words::of(&map, count)
                .map_err(|e| Error::system(format!("{WHAT}: mapping the map of {name}"), e))?;
            Ok::<_, Error>((map, words))
        };
        let (hops, hop_words) = words("hops", settings.hops)?;
        let (shares, share_words) = words("shares", settings.shares)?;
        let counts = (size_of::<u32>(), OUTCOMES_BYTES as usize);
        let up = (0..ports).map(|_| make(MapType::RingBuf, 0, "up", (0, 0), UP_BYTES));
        Ok(Self {
            routes_v4: routes("routes_v4", 4, MOST_V4)?,
            routes_v6: routes("routes_v6", 16, MOST_V6)?,
            hops,
            hop_words,
            shares,
            share_words,
            outcomes: make(MapType::PercpuArray, 0, "outcomes", counts, 1)?,
            up: up.collect::<Result<_, _>>()?,
            settings,
            ports,
        })
    }

    /// Lets the route of a prefix, which is the address and the number of its bits that count, lead to the next hop of that
    /// number; none takes the route out.
    ///
    /// # Errors
    /// When there is no room; else the kernel's answer. Nothing has changed then.
    pub fn lead(&self, address: IpAddr, length: u8, hop: Option<u32>) -> io::Result<()> {
        let mut key = u32::from(length).to_ne_bytes().to_vec();
        let (routes, most) = match address {
            IpAddr::V4(address) => {
                key.extend(address.octets());
                (&self.routes_v4, MOST_V4)
            }
            IpAddr::V6(address) => {
                key.extend(address.octets());
                (&self.routes_v6, MOST_V6)
            }
        };
        match hop {
            Some(hop) => {
                let put = routes.update(&key, &hop.to_ne_bytes(), MapFlags::ANY);
                put.map_err(as_io).map_err(|e| {
                    io::Error::other(format!("no room for the route, with {most} at most: {e}"))
                })
            }
            // One that is not there has been taken out.
            None => match routes.delete(&key) {
                Err(e) if e.kind() == libbpf_rs::ErrorKind::NotFound => Ok(()),
                taken => taken.map_err(as_io),
            },
        }
    }

    /// Says what becomes of packets of the next hop of that number, as a word (crates/function/src/route/hop.rs).
    pub fn set_hop(&self, number: usize, word: u64) {
        self.hop_words.set(number, word);
    }

    /// Gives a share of the flows of a group, numbered through all groups, the next hop of that number.
    pub fn set_share(&self, share: usize, number: usize) {
        self.share_words.set(share, number as u64);
    }

    /// Packets by what became of them, those handed up not among them.
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

    /// The program of frames that come in through a port, without an interface.
    ///
    /// # Errors
    /// What the machine lacks.
    pub fn dry_run(&self, from: usize) -> Result<DryRun, Error> {
        DryRun::new(self.load_for(WHAT, from)?, self.ports)
    }

    fn load_for(&self, what: &str, from: usize) -> Result<Object, Error> {
        let interfaces = &self.settings.interfaces;
        let mut constants = Vec::new();
        constants.extend((interfaces.len() as u32).to_ne_bytes());
        constants.extend((from as u32).to_ne_bytes());
        for interface in interfaces {
            constants.extend(interface.mac);
            constants.extend(interface.mtu.to_ne_bytes());
        }
        load_adjusted(what, OBJECT, &constants, |open| {
            for mut map in open.maps_mut() {
                let shared = match map.name().to_string_lossy().as_ref() {
                    "routes_v4" => &self.routes_v4,
                    "routes_v6" => &self.routes_v6,
                    "hops" => &self.hops,
                    "shares" => &self.shares,
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
