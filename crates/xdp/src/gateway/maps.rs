//! The maps that the gateway's programs of all directions share; one of them has the counters of packets by outcome.

use super::constants::constants;
use super::{GatewaySettings, KernelBearer, MOST_CLOSED, MOST_OWN};
use crate::forward::HeaderChange;
use crate::program::{as_io, load_adjusted, refused};
use crate::upcall::UpcallPrograms;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use taut_sys::Error;

/// The object file that build.rs compiles from `ebpf/xdp_gateway.bpf.c`.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/xdp_gateway.bpf.o"));

const WHAT: &str = "a gateway in the kernel";
/// Number of path indices, which have 16 bits.
const PATHS: u32 = 1 << 16;
/// Size of `struct path` in the XDP program: two addresses, IP version, port.
const PATH_BYTES: usize = 40;
/// Offset of the port in `struct path`.
const PATH_PORT: usize = 36;
/// Size of `struct outcomes` in the XDP program, one count for each outcome.
const OUTCOMES_BYTES: u32 = 28 * 8;
/// Size of `struct meter` in the XDP program: the time of the next packet, and the cost of a byte.
const METER_BYTES: usize = 16;
/// Offset of the cost of a byte in `struct meter`.
const METER_COST: usize = 8;
/// Size in bytes of the ring in which frames of one direction wait for the process: space for 512 frames.
const UP_BYTES: u32 = 2 << 20;

/// The gateway's maps in the kernel, which frees them when no program and no process uses them any more.
#[derive(Debug)]
pub struct KernelGateway {
    settings: GatewaySettings,
    bearers: MapHandle,
    paths: MapHandle,
    /// Source addresses that the packets of a bearer are checked for, by index from 1.
    sources: MapHandle,
    /// Indices of each bearer's two meters, by the key of the bearer.
    metered: MapHandle,
    meters: MapHandle,
    outcomes: MapHandle,
    /// Rings through which programs pass frames up to the process, one per direction.
    up: Vec<MapHandle>,
}

impl KernelGateway {
    /// Makes maps for `ports` ports, without bearers.
    ///
    /// # Errors
    /// There are more own addresses than the XDP programs support, or the machine lacks a requirement.
    pub fn new(settings: GatewaySettings, ports: usize) -> Result<Self, Error> {
        let v4 = settings.own.iter().filter(|a| a.is_ipv4()).count();
        if v4.max(settings.own.len() - v4) > MOST_OWN || settings.closed.len() > MOST_CLOSED {
            let text = format!("at most {MOST_OWN} addresses of each IP version");
            return Err(Error::system(WHAT, io::Error::other(text)));
        }
        let make_with = |map_flags, kind, name: &str, key_bytes, value_bytes, entries| {
            let options = libbpf_sys::bpf_map_create_opts {
                sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
                map_flags,
                ..Default::default()
            };
            MapHandle::create(kind, Some(name), key_bytes, value_bytes, entries, &options)
                .map_err(|e| refused(format!("{WHAT}: making the map of {name}"), as_io(e)))
        };
        let make = |kind, name, key_bytes, value_bytes, entries| {
            make_with(0, kind, name, key_bytes, value_bytes, entries)
        };
        let room = settings.bearers as u32;
        // Number 0 means no meter.
        let meters = settings.meters as u32 + 1;
        let metered = room.min(meters);
        // Memory is allocated per entry, because only bearers with meters have an entry.
        let on_demand = libbpf_sys::BPF_F_NO_PREALLOC;
        let up = (0..ports).map(|_| make(MapType::RingBuf, "up", 0, 0, UP_BYTES));
        Ok(Self {
            bearers: make(MapType::Hash, "bearers", 8, 8, room)?,
            paths: make(MapType::Array, "paths", 4, PATH_BYTES as u32, PATHS)?,
            sources: make(
                MapType::Array,
                "sources",
                4,
                12,
                settings.checked as u32 + 1,
            )?,
            metered: make_with(on_demand, MapType::Hash, "metered", 8, 8, metered)?,
            meters: make(MapType::Array, "meters", 4, METER_BYTES as u32, meters)?,
            outcomes: make(MapType::PercpuArray, "outcomes", 4, OUTCOMES_BYTES, 1)?,
            up: up.collect::<Result<_, _>>()?,
            settings,
        })
    }

    /// Adds a bearer, or replaces the bearer with the same key.
    ///
    /// # Errors
    /// The kernel reports an error.
    pub fn set(&self, key: u64, bearer: KernelBearer) -> io::Result<()> {
        let mut value = [0; 8];
        value[..4].copy_from_slice(&bearer.teid.to_ne_bytes());
        value[4..6].copy_from_slice(&bearer.path.to_ne_bytes());
        value[6] = bearer.qfi;
        value[7] = bearer.action;
        self.bearers
            .update(&key.to_ne_bytes(), &value, MapFlags::ANY)
            .map_err(as_io)
    }

    /// Removes a bearer from the gateway's maps in the kernel.
    ///
    /// # Errors
    /// The kernel reports an error, also if there is no such bearer.
    pub fn remove(&self, key: u64) -> io::Result<()> {
        self.bearers.delete(&key.to_ne_bytes()).map_err(as_io)
    }

    /// Sets the two meters of a bearer, by their indices from 1; 0 means no meter.
    ///
    /// # Errors
    /// The kernel reports an error.
    pub fn meter(&self, key: u64, [first, second]: [u32; 2]) -> io::Result<()> {
        let mut value = [0; 8];
        value[..4].copy_from_slice(&first.to_ne_bytes());
        value[4..].copy_from_slice(&second.to_ne_bytes());
        self.metered
            .update(&key.to_ne_bytes(), &value, MapFlags::ANY)
            .map_err(as_io)
    }

    /// Removes the meters of a bearer from the gateway's maps in the kernel.
    ///
    /// # Errors
    /// The kernel reports an error, also if the bearer has no meters.
    pub fn unmeter(&self, key: u64) -> io::Result<()> {
        self.metered.delete(&key.to_ne_bytes()).map_err(as_io)
    }

    /// Restarts a meter with `cost`, the time per byte in units of 2^-20 ns.
    ///
    /// # Errors
    /// The kernel reports an error.
    pub fn set_meter(&self, number: u32, cost: u64) -> io::Result<()> {
        let mut value = [0; METER_BYTES];
        value[METER_COST..].copy_from_slice(&cost.to_ne_bytes());
        self.meters
            .update(&number.to_ne_bytes(), &value, MapFlags::ANY)
            .map_err(as_io)
    }

    /// Sets the addresses of the path with the given index, before any bearer uses the path.
    ///
    /// # Errors
    /// The kernel reports an error.
    pub fn set_path(&self, number: u16, local: IpAddr, remote: IpAddr) -> io::Result<()> {
        let mut value = [0; PATH_BYTES];
        let version = match (local, remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                value[..4].copy_from_slice(&local.octets());
                value[16..20].copy_from_slice(&remote.octets());
                4_u32
            }
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                value[..16].copy_from_slice(&local.octets());
                value[16..32].copy_from_slice(&remote.octets());
                6
            }
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        value[32..PATH_PORT].copy_from_slice(&version.to_ne_bytes());
        let key = u32::from(number).to_ne_bytes();
        let before = self.paths.lookup(&key, MapFlags::ANY).map_err(as_io)?;
        if before.is_some_and(|before| before[..PATH_PORT] == value[..PATH_PORT]) {
            // The addresses are unchanged, so the path keeps the port through which its packets last left.
            return Ok(());
        }
        let put = self.paths.update(&key, &value, MapFlags::ANY);
        put.map_err(as_io)
    }

    /// Sets the source addresses with this index, before any bearer uses them: an IPv4 address and the first 64 bits of
    /// IPv6 addresses, 0 for none.
    ///
    /// # Errors
    /// The kernel reports an error.
    pub fn set_sources(&self, number: u32, v4: u32, v6: u64) -> io::Result<()> {
        let mut value = [0; 12];
        value[..4].copy_from_slice(&v4.to_be_bytes());
        value[4..].copy_from_slice(&v6.to_be_bytes());
        self.sources
            .update(&number.to_ne_bytes(), &value, MapFlags::ANY)
            .map_err(as_io)
    }

    /// Returns the index of the port through which packets of a path last left, if there were any.
    pub fn port_of(&self, number: u16) -> Option<usize> {
        let key = u32::from(number).to_ne_bytes();
        let value = self.paths.lookup(&key, MapFlags::ANY).ok()??;
        let port = u32::from_ne_bytes(value.get(PATH_PORT..PATH_BYTES)?.try_into().ok()?);
        (port as usize).checked_sub(1)
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
}

impl UpcallPrograms for KernelGateway {
    fn load(
        &self,
        what: &str,
        change: HeaderChange,
        (from, to): (usize, usize),
    ) -> Result<Object, Error> {
        let constants = constants(&self.settings, change, (from, to));
        load_adjusted(what, OBJECT, &constants, |open| {
            for mut map in open.maps_mut() {
                let shared = match map.name().to_string_lossy().as_ref() {
                    "bearers" => &self.bearers,
                    "paths" => &self.paths,
                    "sources" => &self.sources,
                    "metered" => &self.metered,
                    "meters" => &self.meters,
                    "outcomes" => &self.outcomes,
                    "up" => &self.up[from],
                    _ => continue,
                };
                map.reuse_fd(shared.as_fd())?;
            }
            Ok(())
        })
    }

    fn ring(&self, from: usize) -> &MapHandle {
        &self.up[from]
    }
}
