//! The identity of a next hop. Routes with the same target have the same identity and share one next hop, which counts
//! the routes that use it.

use crate::neighbours::At;
use crate::text::{Target, Way};
use taut_lpm::NextHop;

/// The identity of a next hop.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Neighbour(At),
    /// The shared next hop of packets to unresolved hosts of a connected network.
    Connected,
    /// Several neighbours in order, none of them twice, with weights without a common factor.
    Group(Vec<Way>),
    Local,
    Blackhole,
    Unreachable,
    Prohibited,
}

/// A next hop in use, and the number of routes that use it.
#[derive(Debug)]
pub(super) struct InUse {
    pub(super) number: NextHop,
    pub(super) uses: usize,
    /// The number of packets that workers sent by earlier next hops with this `number`.
    pub(super) before: u64,
}

pub(super) fn key(target: &Target) -> Key {
    match target {
        Target::Neighbours(all) => match all.as_slice() {
            [one] => Key::Neighbour(one.at),
            all => {
                let mut all = all.to_vec();
                all.sort_unstable();
                all.dedup_by(|way, before| {
                    let is_same = way.at == before.at;
                    if is_same {
                        before.weight = before.weight.saturating_add(way.weight);
                    }
                    is_same
                });
                let common = all.iter().fold(0, |common, way| gcd(common, way.weight));
                all.iter_mut().for_each(|way| way.weight /= common.max(1));
                match all.as_slice() {
                    [one] => Key::Neighbour(one.at),
                    _ => Key::Group(all),
                }
            }
        },
        Target::Connected(_) => Key::Connected,
        Target::Local => Key::Local,
        Target::Blackhole => Key::Blackhole,
        Target::Unreachable => Key::Unreachable,
        Target::Prohibited => Key::Prohibited,
    }
}

/// Returns the greatest common divisor of `a` and `b`. If `b` is 0, the result is `a`.
fn gcd(a: u16, b: u16) -> u16 {
    if b == 0 { a } else { gcd(b, a % b) }
}
