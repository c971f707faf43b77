//! Tables with many rules, and traffic that matches all of them.

use super::openflow::{Action, Asked, Rule};
use super::part::Matching;
use std::net::Ipv4Addr;
use taut_traffic::Traffic;

/// The first destination address of the rules.
const FIRST: u32 = u32::from_be_bytes([10, 0, 0, 0]);

/// Number of networks that together cover [`ADDRESSES`] addresses without a gap: networks of 256, 128, and so on down
/// to 1 address, and a second network of 1 address.
const NETWORKS: u32 = 10;
/// Number of addresses that the [`NETWORKS`] networks cover together.
const ADDRESSES: u32 = 512;

/// Returns the network that rule `number` matches: its first address, counted from [`FIRST`], and the prefix length.
fn network(matching: Matching, number: u32) -> (u32, u8) {
    match matching {
        Matching::Plain | Matching::Exact => (number, 32),
        Matching::Prefix => {
            let (block, place) = (number / NETWORKS, number % NETWORKS);
            let before = if place == NETWORKS - 1 {
                ADDRESSES - 1
            } else {
                ADDRESSES - (ADDRESSES >> place)
            };
            (block * ADDRESSES + before, (24 + place).min(32) as u8)
        }
    }
}

/// Returns rule `number`, counted from 0, which forwards matching packets from one port to another. Longer prefixes
/// have priority.
pub(super) fn rule(matching: Matching, number: u32, [from, to]: [u32; 2]) -> Rule {
    let (first, length) = network(matching, number);
    Rule {
        priority: 100 + u16::from(length),
        cookie: u64::from(number),
        asked: Asked {
            in_port: Some(from),
            ip_dst: Some((Ipv4Addr::from_bits(FIRST + first), length)),
            udp_dst: None,
        },
        meter: None,
        actions: vec![Action::Output(to)],
    }
}

/// Returns packets to random addresses among all that `rules` rules match.
pub(super) fn traffic(matching: Matching, rules: u32) -> Result<Traffic, String> {
    let (last, length) = network(matching, rules.saturating_sub(1));
    let last = FIRST + last + ((1 << (32 - length)) - 1);
    let (first, last) = (Ipv4Addr::from_bits(FIRST), Ipv4Addr::from_bits(last));
    let addresses = match first == last {
        true => first.to_string(),
        false => format!("{first}-{last} random"),
    };
    Traffic::of_settings(&[("size", "64"), ("dst_ip", &addresses)])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn prefixes_leave_no_gap_and_do_not_overlap() {
        let mut next = 0;
        for number in 0..3 * NETWORKS {
            let (first, length) = network(Matching::Prefix, number);
            assert_eq!(first, next, "rule {number}");
            let size = 1_u32 << (32 - length);
            assert_eq!(first % size, 0, "rule {number}");
            next = first + size;
        }
        assert_eq!(next, 3 * ADDRESSES);
    }

    #[test]
    fn traffic_settings_are_valid_for_any_number_of_rules() {
        for (matching, rules) in [
            (Matching::Plain, 0),
            (Matching::Exact, 1),
            (Matching::Exact, 1_000_000),
            (Matching::Prefix, 1),
            (Matching::Prefix, 1_000_000),
        ] {
            traffic(matching, rules).unwrap();
        }
        let rule = rule(Matching::Exact, 258, [1, 2]);
        assert_eq!(rule.asked.ip_dst, Some((Ipv4Addr::new(10, 0, 1, 2), 32)));
    }
}
