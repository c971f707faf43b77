//! Counts of the mappings that each inside address has, for a limit of them (RFC 6888 REQ-4).
//! Exact, of a fixed size, and never moved: the version in the kernel (crates/xdp/ebpf/function/nat.h) is the same array, a lock
//! to each bucket.

use crate::mix::mix;

/// Hosts of a bucket. Numbers as in crates/xdp/ebpf/function/nat.h.
const HOSTS: usize = 15;

/// An inside address that has mappings; a count of 0 is an empty place.
#[derive(Debug, Clone, Copy, Default)]
struct Host {
    address: u32,
    count: u32,
}

/// Counts by inside address.
pub(super) struct Hosts {
    buckets: Vec<[Host; HOSTS]>,
    seed: u64,
    limit: u32,
}

/// Buckets that hosts with so many mappings together lie in: four of them to a bucket at most, even if each mapping is of another
/// host, so that one in a hundred thousand is full then.
pub(super) fn buckets(mappings: usize) -> usize {
    mappings.div_ceil(4).next_power_of_two()
}

/// Reason why a host is refused another mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoMore {
    /// The host has as many as it may.
    Limit,
    /// There is no place to count them at.
    Room,
}

impl Hosts {
    /// Makes counts for so many mappings, of which a host has up to `limit`.
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

    /// Counts one mapping more.
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

    /// Counts one mapping less, of a host that has one.
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
    fn counts_are_exact_whatever_comes_and_goes() {
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
    fn as_many_hosts_as_there_are_mappings_find_a_place() {
        for seed in 0..20 {
            let mut hosts = Hosts::new(4096, 1, seed);
            for address in 0..4096 {
                assert_eq!(hosts.add(address), Ok(()));
                assert_eq!(hosts.add(address), Err(NoMore::Limit));
            }
        }
    }

    #[test]
    fn a_full_bucket_refuses_another_host_until_one_has_none_left() {
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
