//! The table that assigns outside ports to inside ports. A mapping is stored at the index of its outside port; a hash
//! table finds it by its inside endpoint. All memory is allocated at the start.

use super::connection::Connection;
use super::hosts::{Hosts, NoMore};
use super::parser::{Class, Endpoint};
use std::time::Duration;
use taut_function::Member;
use taut_function::mix::mix;

/// The number of ports that are tried for a new mapping.
pub(super) const TRIES: u64 = 64;
/// The number of slots that a sweep checks for expired mappings.
pub(super) const SWEPT: usize = 64;
/// The limit on the overdue sweeps that run when a new flow arrives.
pub(super) const MOST_SWEEPS: u64 = 4;
/// The time in which sweeps visit every slot once, provided that new flows arrive often enough to run each due sweep.
const REVOLUTION: Duration = Duration::from_secs(4);
const PORTS: usize = 1 << 16;

/// The times without packets from inside after which mappings end, in the unit of the arguments `now` of [`Table`].
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Timeouts {
    pub udp: u64,
    pub tcp: u64,
    pub tcp_closing: u64,
    pub icmp: u64,
    /// The time from one sweep to the next, in the unit of the arguments `now` of [`Table`].
    pub sweep: u64,
}

/// A mapping, at the slot of its outside port.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mapping {
    /// The key of the inside endpoint; 0 if the slot has no mapping.
    pub inside: u64,
    pub last_used: u64,
    pub connection: Connection,
}

impl Mapping {
    pub fn endpoint(&self) -> Endpoint {
        ((self.inside >> 16) as u32, self.inside as u16)
    }
}

/// Returns the key of an inside endpoint. A key is never 0.
pub(super) fn key(class: Class, (address, port): Endpoint) -> u64 {
    (class as u64 + 1) << 48 | u64::from(address) << 16 | u64::from(port)
}

/// The reason why a new flow gets no mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    NoPort,
    Full,
    HostFull,
}

/// The settings by which outside ports are chosen.
#[derive(Debug, Clone)]
pub(super) struct Choice {
    pub addresses: Vec<u32>,
    pub first_port: u16,
    pub last_port: u16,
    pub seed: u64,
    /// The index of this worker's table among those of all workers. Each table has ports and hosts of its own.
    pub member: Member,
}

impl Choice {
    /// Returns the index of the worker that owns an inside host.
    pub fn home_of_host(&self, address: u32) -> usize {
        let hash = mix(self.seed.rotate_left(32), u64::from(address));
        below(hash, self.member.of as u64) as usize
    }

    /// Returns the index of the worker that owns an outside port, except for static mappings. An even port and the next
    /// odd port belong to the same worker, so that each worker has even and odd ports.
    pub fn home_of_port(&self, port: u16) -> usize {
        usize::from(port >> 1) % self.member.of
    }

    /// Returns the index of an outside address in the settings; none for any other address.
    pub fn number(&self, address: u32) -> Option<usize> {
        self.addresses.iter().position(|it| *it == address)
    }

    /// Returns the slot of an outside endpoint in the table of mappings.
    pub fn slot(&self, class: Class, number: usize, port: u16) -> u32 {
        let block = class as usize * self.addresses.len() + number;
        (block * PORTS + usize::from(port)) as u32
    }

    /// Returns the outside endpoint to which a slot of the table belongs.
    pub fn endpoint(&self, slot: u32) -> Endpoint {
        let number = slot as usize / PORTS % self.addresses.len();
        (self.addresses[number], slot as u16)
    }

    pub fn slots(&self) -> usize {
        3 * self.addresses.len() * PORTS
    }

    /// Returns the time from one sweep to the next.
    pub fn sweep_interval(&self) -> Duration {
        REVOLUTION / (self.slots() / SWEPT) as u32
    }

    /// Returns the slots to try for an inside endpoint, in order. All have the outside address assigned to the inside
    /// address, and the parity of the inside port (RFC 4787 section 4: paired pooling, parity).
    fn candidates(&self, class: Class, inside: u64) -> impl Iterator<Item = u32> {
        let address = u64::from((inside >> 16) as u32);
        let number = below(mix(self.seed, address), self.addresses.len() as u64) as usize;
        let first = u64::from(self.first_port);
        let first = first + ((first ^ inside) & 1);
        let last = u64::from(self.last_port);
        // This is the first port that belongs to this worker. It has the parity of the inside port, because a worker
        // owns pairs of an even and an odd port.
        let of = self.member.of as u64;
        let behind = (self.member.number as u64 + of - first / 2 % of) % of;
        let (first, step) = (first + 2 * behind, 2 * of);
        let count = (last + step).saturating_sub(first) / step;
        let start = mix(self.seed, inside);
        let base = self.slot(class, number, 0);
        let tries = if count == 0 { 0 } else { TRIES };
        (0..tries).map(move |j| base + (first + step * below(mix(start, j), count)) as u32)
    }
}

/// Maps a hash to a number from 0 to `count` - 1.
fn below(hash: u64, count: u64) -> u64 {
    ((hash >> 32) * count) >> 32
}

/// An entry of the hash table: the slot of the mapping of an inside endpoint.
#[derive(Clone, Copy, Default)]
struct Entry {
    inside: u64,
    slot: u32,
}

pub(super) struct Table {
    pub choice: Choice,
    timeouts: Timeouts,
    mappings: Vec<Mapping>,
    /// The hash table, with open addressing, at most half full.
    entries: Vec<Entry>,
    hosts: Hosts,
    count: usize,
    most: usize,
    /// The slot at which the last sweep ended.
    hand: usize,
    /// The time up to which sweeps have run, in the unit of the argument `now` of the methods.
    swept: u64,
}

impl Table {
    pub fn new(choice: Choice, timeouts: Timeouts, most: usize, per_host: u32) -> Self {
        Self {
            hosts: Hosts::new(most, per_host, choice.seed),
            mappings: vec![Mapping::default(); choice.slots()],
            entries: vec![Entry::default(); (2 * most).next_power_of_two()],
            choice,
            timeouts,
            count: 0,
            most,
            hand: 0,
            swept: 0,
        }
    }

    pub fn mapping(&self, slot: u32) -> &Mapping {
        &self.mappings[slot as usize]
    }

    pub fn mapping_mut(&mut self, slot: u32) -> &mut Mapping {
        &mut self.mappings[slot as usize]
    }

    #[inline]
    fn home(&self, inside: u64) -> usize {
        mix(self.choice.seed, inside) as usize & (self.entries.len() - 1)
    }

    /// Returns the slot of the mapping of an inside endpoint; none if the endpoint has no mapping.
    #[inline]
    pub fn find(&self, inside: u64) -> Option<u32> {
        let mut at = self.home(inside);
        loop {
            let entry = self.entries[at];
            if entry.inside == inside {
                return Some(entry.slot);
            }
            if entry.inside == 0 {
                return None;
            }
            at = (at + 1) & (self.entries.len() - 1);
        }
    }

    fn timeout(&self, mapping: &Mapping) -> u64 {
        match mapping.inside >> 48 {
            1 => self.timeouts.udp,
            2 if mapping.connection.is_open() => self.timeouts.tcp,
            2 => self.timeouts.tcp_closing,
            _ => self.timeouts.icmp,
        }
    }

    /// Returns true if a mapping exists and has not timed out.
    pub fn is_live(&self, slot: u32, now: u64) -> bool {
        let mapping = self.mapping(slot);
        mapping.inside != 0
            && (mapping.connection.is_static()
                || now.saturating_sub(mapping.last_used) <= self.timeout(mapping))
    }

    /// Creates a mapping for an inside endpoint that has none.
    pub fn make(&mut self, class: Class, inside: u64, now: u64) -> Result<u32, Refused> {
        self.sweep(now);
        if self.count >= self.most {
            return Err(Refused::Full);
        }
        let host = (inside >> 16) as u32;
        self.hosts.add(host).map_err(|no_more| match no_more {
            NoMore::Limit => Refused::HostFull,
            NoMore::Room => Refused::Full,
        })?;
        let mut candidates = self.choice.candidates(class, inside);
        let Some(slot) = candidates.find(|slot| !self.is_live(*slot, now)) else {
            drop(candidates);
            self.hosts.remove(host);
            return Err(Refused::NoPort);
        };
        drop(candidates);
        self.end(slot);
        self.put(slot, inside, now, Connection::default());
        Ok(slot)
    }

    /// Stores a mapping in a free slot. The caller has already counted it for the limit of its host.
    pub fn put(&mut self, slot: u32, inside: u64, now: u64, connection: Connection) {
        *self.mapping_mut(slot) = Mapping {
            inside,
            last_used: now,
            connection,
        };
        let mut at = self.home(inside);
        while self.entries[at].inside != 0 {
            at = (at + 1) & (self.entries.len() - 1);
        }
        self.entries[at] = Entry { inside, slot };
        self.count += 1;
    }

    /// Ends the mapping in a slot, if there is one; static ones never end.
    fn end(&mut self, slot: u32) {
        let inside = std::mem::take(&mut self.mapping_mut(slot).inside);
        if inside == 0 {
            return;
        }
        let mask = self.entries.len() - 1;
        let mut hole = self.home(inside);
        while self.entries[hole].inside != inside {
            hole = (hole + 1) & mask;
        }
        // Displaced entries move up, so that no search ends too early.
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let entry = self.entries[at];
            if entry.inside == 0 {
                break;
            }
            let from_home = at.wrapping_sub(self.home(entry.inside)) & mask;
            if from_home >= at.wrapping_sub(hole) & mask {
                self.entries[hole] = entry;
                hole = at;
            }
        }
        self.entries[hole] = Entry::default();
        self.count -= 1;
        self.hosts.remove((inside >> 16) as u32);
    }

    /// Ends expired mappings among the next slots, as many as the time since the last sweep requires. The cost thus
    /// depends on the elapsed time, not on the number of new flows. Returns the number of checked slots.
    fn sweep(&mut self, now: u64) -> usize {
        let interval = self.timeouts.sweep.max(1);
        let due = now.saturating_sub(self.swept) / interval;
        self.swept = if due < MOST_SWEEPS {
            self.swept + due * interval
        } else {
            now
        };
        let places = due.min(MOST_SWEEPS) as usize * SWEPT;
        for _ in 0..places {
            let slot = self.hand as u32;
            self.hand = (self.hand + 1) % self.mappings.len();
            if self.mapping(slot).inside != 0 && !self.is_live(slot, now) {
                self.end(slot);
            }
        }
        places
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::connection::state;
    use super::*;
    use std::collections::HashMap;

    fn table(most: usize, ports: (u16, u16)) -> Table {
        let choice = Choice {
            addresses: vec![1, 2],
            first_port: ports.0,
            last_port: ports.1,
            seed: 5,
            member: Member::default(),
        };
        let timeouts = Timeouts {
            udp: 100,
            tcp: 1000,
            tcp_closing: 50,
            icmp: 10,
            sweep: 1,
        };
        Table::new(choice, timeouts, most, 100)
    }

    #[test]
    fn mappings_are_found_until_removed_despite_changes_to_other_mappings() {
        let mut table = table(500, (1024, 65535));
        let mut random = fastrand::Rng::with_seed(1);
        let mut known: HashMap<u64, u32> = HashMap::new();
        for now in 0..20_000 {
            let inside = key(Class::Udp, (random.u32(..600), 9));
            match table.find(inside) {
                Some(slot) => {
                    assert_eq!(known[&inside], slot);
                    if random.bool() {
                        table.end(slot);
                        known.remove(&inside);
                    }
                }
                None => {
                    assert!(!known.contains_key(&inside));
                    // The unit of time is chosen so that nothing times out.
                    match table.make(Class::Udp, inside, now / 1000) {
                        Ok(slot) => assert_eq!(known.insert(inside, slot), None),
                        Err(refused) => {
                            assert_eq!((refused, known.len()), (Refused::Full, 500));
                        }
                    }
                }
            }
            assert_eq!(table.count, known.len());
        }
        let mut slots: Vec<_> = known.values().collect();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), known.len());
    }

    #[test]
    fn nat_preserves_port_parity_and_one_outside_address_per_host() {
        let mut table = table(1000, (4000, 4999));
        let mut addresses = HashMap::new();
        for host in 0..40 {
            for port in 7..13 {
                let inside = key(Class::Tcp, (host, port));
                let slot = table.make(Class::Tcp, inside, 0).unwrap();
                let (address, outside) = table.choice.endpoint(slot);
                assert!((4000..=4999).contains(&outside));
                assert_eq!(outside % 2, port % 2);
                assert_eq!(*addresses.entry(host).or_insert(address), address);
            }
        }
        assert!(addresses.values().any(|it| *it == 1) && addresses.values().any(|it| *it == 2));
    }

    #[test]
    fn timed_out_mappings_free_ports_and_slots_for_new_mappings() {
        let mut ports = table(1000, (10, 11));
        let inside = |n| key(Class::Udp, (7, n));
        let first = ports.make(Class::Udp, inside(2), 0).unwrap();
        assert_eq!(ports.make(Class::Udp, inside(4), 100), Err(Refused::NoPort));
        assert_eq!(ports.make(Class::Udp, inside(4), 101), Ok(first));
        assert_eq!(ports.find(inside(2)), None);
        let mut places = table(1, (1024, 2048));
        places
            .make(Class::Icmp, key(Class::Icmp, (7, 1)), 0)
            .unwrap();
        // A sweep needs several calls to visit all slots.
        let mut tries = 0..10_000;
        assert_eq!(places.make(Class::Udp, inside(2), 10), Err(Refused::Full));
        assert!(tries.any(|n| places.make(Class::Udp, inside(2), 11 + n).is_ok()));
    }

    #[test]
    fn established_tcp_mappings_live_long_and_static_mappings_forever() {
        let mut table = table(10, (1024, 2048));
        let slot = table.make(Class::Tcp, key(Class::Tcp, (7, 1)), 0).unwrap();
        assert!(table.is_live(slot, 50) && !table.is_live(slot, 51));
        table.mapping_mut(slot).connection = Connection::of(state::OPEN);
        assert!(table.is_live(slot, 1000) && !table.is_live(slot, 1001));
        for done in [state::FINISHED, state::RESET] {
            table.mapping_mut(slot).connection = Connection::of(state::OPEN | done);
            assert!(table.is_live(slot, 50) && !table.is_live(slot, 51));
        }
        table.mapping_mut(slot).connection = Connection::of(state::STATIC);
        assert!(table.is_live(slot, u64::MAX));
    }

    #[test]
    fn a_flood_does_not_accelerate_the_sweep_of_full_tables() {
        let mut table = table(1000, (1024, 65535));
        let second = 1_000_000_000;
        table.timeouts.udp = 300 * second;
        table.timeouts.sweep = table.choice.sweep_interval().as_nanos() as u64;
        let start = 1000 * second;
        let inside = |n: u32| key(Class::Udp, (n, 9));
        (0..1000).for_each(|n| {
            table.make(Class::Udp, inside(n), start).unwrap();
        });
        let slots = table.choice.slots();
        let mut looked_at = 0;
        // A hundred thousand flows a second arrive for four seconds, and then everything has timed out.
        for n in 0..400_000 {
            let now = start + u64::from(n) * 10_000;
            let places = table.sweep(now);
            assert!(places <= SWEPT * MOST_SWEEPS as usize);
            looked_at += places;
            if n % 100 == 0 {
                let made = table.make(Class::Udp, inside(1000 + n), now);
                assert_eq!(made, Err(Refused::Full));
            }
        }
        assert!(
            looked_at <= slots && looked_at > slots * 9 / 10,
            "{looked_at}"
        );
        // All space is free again after one revolution, however few flows arrive.
        let late = start + 400 * second;
        let due = table.timeouts.sweep * MOST_SWEEPS;
        (0..=slots as u64 / 256).for_each(|n| {
            table.sweep(late + n * due);
        });
        assert_eq!(table.count, 0);
    }
}
