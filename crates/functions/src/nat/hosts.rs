//! Counts the mappings of each inside address, to limit them (RFC 6888 REQ-4). The table is exact and of a fixed size,
//! and entries never move. The XDP version (crates/xdp/ebpf/function/nat.h) has the same array, with a lock for each
//! bucket.

use taut_function::mix::mix;

/// The number of hosts in a bucket, the same as in crates/xdp/ebpf/function/nat.h.
const HOSTS: usize = 15;

/// An inside address and the number of its mappings; a number of 0 marks an empty entry.
#[derive(Debug, Clone, Copy, Default)]
struct Host {
    address: u32,
    count: u32,
}

/// The number of mappings of each inside address.
pub(super) struct Hosts {
    buckets: Vec<[Host; HOSTS]>,
    seed: u64,
    limit: u32,
}

/// Returns the number of buckets for hosts with `mappings` mappings in total. A bucket gets at most four hosts on
/// average, even if each mapping belongs to another host. One bucket in a hundred thousand is then full.
pub(super) fn buckets(mappings: usize) -> usize {
    mappings.div_ceil(4).next_power_of_two()
}

/// The reason why a host is refused another mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoMore {
    /// The host has reached its limit of mappings.
    Limit,
    /// The table of hosts has no free entry for the host.
    Room,
}

impl Hosts {
    /// Creates the counts for at most `mappings` mappings, of which a host may have up to `limit`.
    pub fn new(mappings: usize, limit: u32, seed: u64) -> Self {
        Self {
            buckets: vec![[Host::default(); HOSTS]; buckets(mappings)],
            seed,
            limit,
        }
    }

    fn bucket(&mut self, address: u32) -> &mut [Host; HOSTS] {
        let hash = mix(!self.seed, u64::from(address));
        let at = hash as usize & (self.buckets.len() - 1);
        &mut self.buckets[at]
    }

    /// Counts one more mapping of an inside address.
    pub fn add(&mut self, address: u32) -> Result<(), NoMore> {
        let limit = self.limit;
        let bucket = self.bucket(address);
        let its = |it: &Host| it.count != 0 && it.address == address;
        let at = bucket.iter().position(its);
        let at = at.or_else(|| bucket.iter().position(|it| it.count == 0));
        let host = &mut bucket[at.ok_or(NoMore::Room)?];
        if host.count == limit {
            return Err(NoMore::Limit);
        }
        host.address = address;
        host.count += 1;
        Ok(())
    }

    /// Counts one mapping less of an inside address that has at least one.
    pub fn remove(&mut self, address: u32) {
        let bucket = self.bucket(address);
        let its = |it: &&mut Host| it.count != 0 && it.address == address;
        if let Some(host) = bucket.iter_mut().find(its) {
            host.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn host_counts_are_exact_after_random_additions_and_removals() {
        let mut hosts = Hosts::new(1000, 20, 3);
        let mut random = fastrand::Rng::with_seed(1);
        let mut counts: HashMap<u32, u32> = HashMap::new();
        for _ in 0..100_000 {
            let address = random.u32(..200);
            let count = counts.entry(address).or_default();
            if random.u8(..) < 140 {
                let added = hosts.add(address);
                assert_eq!(added.is_err(), *count == 20);
                *count += u32::from(added.is_ok());
            } else if *count > 0 {
                hosts.remove(address);
                *count -= 1;
            }
        }
    }

    #[test]
    fn the_host_table_has_one_slot_per_possible_mapping() {
        for seed in 0..20 {
            let mut hosts = Hosts::new(4096, 1, seed);
            for address in 0..4096 {
                assert_eq!(hosts.add(address), Ok(()));
                assert_eq!(hosts.add(address), Err(NoMore::Limit));
            }
        }
    }

    #[test]
    fn a_full_bucket_refuses_hosts_until_one_is_removed() {
        let mut hosts = Hosts::new(1, 2, 0);
        for address in 0..15 {
            hosts.add(address).unwrap();
        }
        assert_eq!(hosts.add(15), Err(NoMore::Room));
        assert_eq!(hosts.add(14), Ok(()));
        hosts.remove(3);
        assert_eq!(hosts.add(15), Ok(()));
    }
}
