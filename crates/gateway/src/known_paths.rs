//! A worker's list of tunnel paths, which is looked up by path number. An IPv4 path takes 16 bytes, so that the paths
//! of many peers stay in the cache next to the table.

use super::Path;
use super::parser::Own;
use super::peers::Peers;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The limit on the number of paths: all 16-bit numbers except 0.
const MOST_PATHS: usize = u16::MAX as usize;
/// The value of `port` that means that no packet has been sent on the path.
const NOWHERE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    V4(Ipv4Addr, Ipv4Addr),
    /// The addresses are IPv6; they are stored at the same index in the list `v6`.
    V6,
    None,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    ends: Ends,
    /// The egress port of the last packet that this worker sent on the path.
    port: u32,
}

#[derive(Debug)]
pub(super) struct KnownPaths {
    /// The paths; the index of a path is its number minus 1.
    known: Vec<Known>,
    v6: Vec<(Ipv6Addr, Ipv6Addr)>,
    /// The path numbers by addresses, for frames that arrive from peers.
    numbers: HashMap<Path, u16>,
    /// The ports and MAC addresses of the peers, shared by all workers.
    pub peers: Peers,
}

impl KnownPaths {
    /// Creates an empty list, with memory for all possible paths.
    pub fn new(own: &Own, peers: Peers) -> Self {
        let v6 = if own.v6().is_some() { MOST_PATHS } else { 0 };
        Self {
            known: Vec::with_capacity(MOST_PATHS),
            v6: vec![(Ipv6Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED); v6],
            numbers: HashMap::with_capacity(MOST_PATHS),
            peers,
        }
    }

    /// Assigns `path` to `number`. If the number already has that path, the path's state stays: this happens when an
    /// end marker is sent on a path in use.
    pub fn set(&mut self, number: u16, path: Path) {
        let Some(place) = usize::from(number).checked_sub(1) else {
            debug_assert!(false, "0 is the number of no path");
            return;
        };
        let before = self.path(place);
        if before == Some(path) {
            return;
        }
        if let Some(before) = before {
            self.peers.forget(number);
            if self.numbers.get(&before) == Some(&number) {
                self.numbers.remove(&before);
            }
        }
        let ends = match (path.local, path.remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => Ends::V4(local, remote),
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                let own_is_v6 = self.v6.get_mut(place);
                debug_assert!(own_is_v6.is_some(), "whoever decides knows the addresses");
                if let Some(v6) = own_is_v6 {
                    *v6 = (local, remote);
                }
                Ends::V6
            }
            _ => Ends::None,
        };
        while self.known.len() <= place {
            // The memory for all possible paths was allocated before.
            self.known.push(Known {
                ends: Ends::None,
                port: NOWHERE,
            });
        }
        self.known[place] = Known {
            ends,
            port: NOWHERE,
        };
        // The memory for the path's number was allocated before as well.
        self.numbers.insert(path, number);
    }

    /// Returns the path with the given number, and records `to_port` as its egress port; none if the number has no
    /// path.
    #[inline(always)]
    pub fn take(&mut self, number: u16, to_port: usize) -> Option<Path> {
        let place = usize::from(number).wrapping_sub(1);
        let known = self.known.get_mut(place)?;
        if known.port != to_port as u32 {
            known.port = to_port as u32;
            self.peers.leaves(number, to_port);
        }
        self.path(place)
    }

    /// Returns the path with the given number; none if the number has no path.
    #[inline]
    pub fn get(&self, number: u16) -> Option<Path> {
        self.path(usize::from(number).wrapping_sub(1))
    }

    /// Returns the number of the path with the given outer addresses; none if there is no such path.
    pub fn number(&self, path: &Path) -> Option<u16> {
        self.numbers.get(path).copied()
    }

    #[inline(always)]
    fn path(&self, place: usize) -> Option<Path> {
        match self.known.get(place)?.ends {
            Ends::V4(local, remote) => Some(Path {
                local: local.into(),
                remote: remote.into(),
            }),
            Ends::V6 => self.v6.get(place).map(|(local, remote)| Path {
                local: (*local).into(),
                remote: (*remote).into(),
            }),
            Ends::None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn path(local: &str, remote: &str) -> Path {
        Path {
            local: local.parse().unwrap(),
            remote: remote.parse().unwrap(),
        }
    }

    #[test]
    fn four_paths_fill_a_cache_line() {
        assert_eq!(size_of::<Known>(), 16);
    }

    #[test]
    fn paths_are_found_by_their_index_or_by_their_endpoints() {
        let (v4, v6) = (
            path("192.0.2.1", "192.0.2.9"),
            path("2001:db8::1", "2001:db8::9"),
        );
        let own = Own::new(&[v4.local, v6.local]);
        let mut paths = KnownPaths::new(&own, Peers::new());
        assert_eq!((paths.take(3, 0), paths.get(0)), (None, None));
        paths.set(3, v4);
        paths.set(u16::MAX, v6);
        assert_eq!((paths.get(1), paths.get(3)), (None, Some(v4)));
        assert_eq!(
            (paths.number(&v4), paths.number(&v6)),
            (Some(3), Some(u16::MAX))
        );
        assert_eq!(paths.peers.left(3), None);
        assert_eq!(paths.take(3, 0), Some(v4));
        // The same path is set again after packets have left through port 0.
        paths.set(3, v4);
        assert_eq!((paths.get(3), paths.peers.left(3)), (Some(v4), Some(0)));
        // Another path gets the number of the old path, and the old path later gets another number.
        paths.set(3, v6);
        assert_eq!((paths.get(3), paths.peers.left(3)), (Some(v6), None));
        assert_eq!((paths.number(&v4), paths.number(&v6)), (None, Some(3)));
        paths.set(4, v4);
        paths.set(u16::MAX, v4);
        assert_eq!(
            (paths.number(&v4), paths.number(&v6)),
            (Some(u16::MAX), Some(3))
        );
        assert_eq!(paths.take(u16::MAX, 1), Some(v4));
    }
}
