//! The settings of network address translation in the kernel, and the maps that all directions share.

use super::KernelNat;
use crate::program::{as_io, map};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, OpenMapMut};
use std::io;
use std::os::fd::AsFd;

/// Maximum number of outside addresses of NAT in the XDP program.
const ADDRESSES: usize = 16;
/// Size of `struct nat_settings` in the XDP program.
pub(super) const SETTINGS_BYTES: usize = 72 + 4 * ADDRESSES;
/// Size of `struct mapping` in the XDP program.
const MAPPING_BYTES: usize = 32;
/// Size of `struct hand` in the XDP program.
const HAND_BYTES: usize = 24;
/// State `STATIC` of a mapping in the XDP program.
const STATIC: u32 = 32;
/// Slots per outside address: ports of UDP, ports of TCP, and identifiers of ICMP.
const PLACES: u32 = 3 << 16;
const NAMES: [&str; 4] = ["nat_mappings", "nat_inside", "nat_hand", "nat_hosts"];

/// Returns the bytes of `struct nat_settings` in the XDP program.
pub(super) fn constants(nat: &KernelNat) -> Vec<u8> {
    let times = [nat.udp, nat.tcp, nat.tcp_closing, nat.icmp, nat.sweep];
    let numbers = [
        nat.mappings as u32,
        nat.mappings_per_host,
        nat.host_buckets as u32,
        nat.addresses.len() as u32,
    ];
    let mut bytes = nat.seed.to_ne_bytes().to_vec();
    bytes.extend(
        times
            .iter()
            .flat_map(|it| (it.as_nanos() as u64).to_ne_bytes()),
    );
    bytes.extend(numbers.iter().flat_map(|it| it.to_ne_bytes()));
    bytes.extend(nat.ports.0.to_ne_bytes());
    bytes.extend(nat.ports.1.to_ne_bytes());
    let mut addresses = nat.addresses.clone();
    addresses.resize(ADDRESSES, 0);
    bytes.extend(addresses.iter().flat_map(|it| it.to_ne_bytes()));
    bytes
}

/// The NAT maps, which the first loaded program creates and later programs share. (The locks in the maps need type
/// information (BTF), which only a program's own object has.)
#[derive(Debug)]
pub(super) struct Shared([MapHandle; 4]);

impl Shared {
    /// Opens the NAT maps of an object that was just loaded, and adds the permanent mappings.
    pub fn of(object: &Object, nat: &KernelNat) -> io::Result<Self> {
        let handle = |name| MapHandle::try_from(&map(object, name)?).map_err(as_io);
        let [mappings, inside, hand, hosts] = NAMES;
        let shared = Self([
            handle(mappings)?,
            handle(inside)?,
            handle(hand)?,
            handle(hosts)?,
        ]);
        for (slot, key) in &nat.forwards {
            let mut mapping = [0; MAPPING_BYTES];
            mapping[..8].copy_from_slice(&key.to_ne_bytes());
            mapping[20..24].copy_from_slice(&STATIC.to_ne_bytes());
            let slot = slot.to_ne_bytes();
            let [mappings, inside, ..] = &shared.0;
            mappings
                .update(&slot, &mapping, MapFlags::ANY)
                .and_then(|()| inside.update(&key.to_ne_bytes(), &slot, MapFlags::ANY))
                .map_err(as_io)?;
        }
        let mut hand = [0; HAND_BYTES];
        hand[16..20].copy_from_slice(&(nat.forwards.len() as u32).to_ne_bytes());
        shared.0[2]
            .update(&[0; 4], &hand, MapFlags::ANY)
            .map_err(as_io)?;
        Ok(shared)
    }
}

/// Prepares a map of an object that is not loaded yet: sets the map's size, or replaces the map by the same map of an
/// earlier object.
pub(super) fn adjust(
    map: &mut OpenMapMut<'_>,
    nat: &KernelNat,
    shared: Option<&Shared>,
) -> libbpf_rs::Result<()> {
    let name = map.name().to_string_lossy().into_owned();
    let Some(index) = NAMES.iter().position(|it| *it == name) else {
        return Ok(());
    };
    match shared {
        Some(Shared(maps)) => map.reuse_fd(maps[index].as_fd()),
        None if index == 0 => map.set_max_entries(PLACES * nat.addresses.len() as u32),
        None if index == 1 => map.set_max_entries(nat.mappings as u32),
        None if index == 3 => map.set_max_entries(nat.host_buckets as u32),
        None => Ok(()),
    }
}
