//! Synthetic full tables: as many prefixes of each length as a core router of the Internet has, at seeded positions.
//!
//! The published figures (G. Huston's table statistics, AS131072, 4 December 2024) are 221,747 IPv6 prefixes with a
//! mean length of 42.94 bits, 56 % of them within another one. For 2024, they are about a million IPv4 prefixes, and 46
//! % of the IPv6 prefixes with a length of 48 bits. The counts of each length are not copied from a table: they are
//! common knowledge, rounded (about 60 % /24, then /22 and /23), and adjusted to those figures. The positions of
//! prefixes are synthetic: IPv6 prefixes are within separate allocations, few of which have many prefixes.

use fastrand::Rng;

use crate::{Address, NextHop, Prefix, Rib};

/// Number of IPv4 prefixes by length. Prefixes longer than /24 are the router's own routes, which it does not announce.
pub const LENGTHS_V4: [(u8, u32); 25] = [
    (8, 16),
    (9, 13),
    (10, 40),
    (11, 110),
    (12, 300),
    (13, 600),
    (14, 1_200),
    (15, 2_100),
    (16, 13_500),
    (17, 8_400),
    (18, 14_000),
    (19, 25_500),
    (20, 45_000),
    (21, 53_000),
    (22, 112_000),
    (23, 104_000),
    (24, 618_000),
    (25, 200),
    (26, 200),
    (27, 200),
    (28, 200),
    (29, 300),
    (30, 400),
    (31, 100),
    (32, 600),
];

/// Number of IPv6 prefixes by length.
pub const LENGTHS_V6: [(u8, u32); 29] = [
    (20, 20),
    (21, 10),
    (22, 30),
    (23, 20),
    (24, 60),
    (25, 30),
    (26, 60),
    (27, 80),
    (28, 400),
    (29, 6_000),
    (30, 1_000),
    (31, 600),
    (32, 27_000),
    (33, 3_200),
    (34, 2_600),
    (35, 1_300),
    (36, 9_500),
    (37, 1_300),
    (38, 2_400),
    (39, 1_300),
    (40, 20_000),
    (41, 1_000),
    (42, 3_600),
    (43, 1_500),
    (44, 22_000),
    (45, 2_600),
    (46, 6_500),
    (47, 6_000),
    (48, 101_000),
];

/// First bytes of private and loopback networks, which have no routes in a core router.
const NOT_ROUTED_V4: [u32; 2] = [10, 127];
/// Range from which the first bytes of networks are drawn. It excludes "this network" (0) and multicast and above (from
/// 224).
const FIRST_OCTETS: std::ops::Range<u32> = 1..224;

/// First 12 bits of the ranges that the five registries allocate from.
const REGISTRIES: [u128; 5] = [0x240, 0x260, 0x280, 0x2a0, 0x2c0];
/// Number of allocations that contain routes; each is a separate /29.
const ALLOCATIONS: usize = 33_000;

/// Makes a full IPv4 table from `seed`, with `hops` different next hops.
pub fn full_table_v4(seed: u64, hops: u16) -> Rib<u32> {
    let mut random = Rng::with_seed(seed);
    let mut rib = Rib::new();
    let mut aggregates: Vec<Prefix<u32>> = Vec::new();
    for (length, count) in LENGTHS_V4 {
        let shorter = aggregates.len();
        fill(&mut rib, &mut random, (length, count, hops), |random| {
            // Half of the long prefixes are within a shorter prefix.
            if length > 20 && (length > 24 || random.bool()) {
                let around = aggregates[random.usize(..shorter)];
                return around.network() | (random.u32(..) & !u32::MAX.first(around.length()));
            }
            loop {
                let address = random.u32(..);
                let octet = address >> 24;
                if FIRST_OCTETS.contains(&octet) && !NOT_ROUTED_V4.contains(&octet) {
                    return address;
                }
            }
        });
        if (16..=24).contains(&length) {
            let added = rib.iter().map(|(prefix, _)| prefix);
            aggregates.extend(added.filter(|it| it.length() == length));
        }
    }
    rib
}

/// Makes a full IPv6 table from `seed`, with `hops` different next hops.
pub fn full_table_v6(seed: u64, hops: u16) -> Rib<u128> {
    let mut random = Rng::with_seed(seed);
    let mut allocation = || {
        let registry = REGISTRIES[random.usize(..REGISTRIES.len())];
        let within = random.u128(..1 << 3) << 13 | random.u128(..1 << 13);
        registry << 116 | within << 99
    };
    let allocations: Vec<u128> = (0..ALLOCATIONS).map(|_| allocation()).collect();
    let mut rib = Rib::new();
    for (length, count) in LENGTHS_V6 {
        fill(&mut rib, &mut random, (length, count, hops), |random| {
            // The square of the random number gives a few allocations hundreds of prefixes, and many allocations only
            // one.
            let share = random.f64();
            let share = if length > 32 { share * share } else { share };
            let allocation = allocations[(share * ALLOCATIONS as f64) as usize];
            // The prefixes of an allocation are either close together at its start, or spread over it.
            let bits = random.u128(..) & (u128::MAX >> 29);
            let few = random.u32(..=8);
            let low = random.u128(..1 << few) << (128 - u32::from(length));
            let rest = if random.bool() { bits } else { low };
            // Most allocations use only the first /32 of their /29.
            let used = if random.u8(..4) == 0 { 29 } else { 32 };
            allocation | (rest & (u128::MAX >> used))
        });
    }
    rib
}

/// Adds `count` prefixes of `length` bits; a prefix that already exists is drawn again.
fn fill<A: Address>(
    rib: &mut Rib<A>,
    random: &mut Rng,
    (length, count, hops): (u8, u32, u16),
    mut place: impl FnMut(&mut Rng) -> A,
) {
    let most = hops.clamp(1, NextHop::MOST as u16);
    let wanted = rib.len() + count as usize;
    while rib.len() < wanted {
        let prefix = Prefix::of(place(random), length);
        rib.insert(prefix, NextHop::of_bits(random.u16(1..=most)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths<A: Address>(rib: &Rib<A>) -> Vec<u32> {
        let mut count = vec![0; 129];
        rib.iter()
            .for_each(|(prefix, _)| count[usize::from(prefix.length())] += 1);
        count
    }

    #[test]
    fn full_synthetic_tables_have_published_prefix_lengths_and_are_reproducible() {
        let v4 = full_table_v4(1, 64);
        assert_eq!(v4.len(), 999_979);
        let counted = lengths(&v4);
        assert!(
            LENGTHS_V4
                .iter()
                .all(|(length, count)| counted[usize::from(*length)] == *count)
        );
        let within = v4
            .iter()
            .filter(|(prefix, _)| v4.covering(*prefix).is_some())
            .count();
        let share = within as f64 / v4.len() as f64;
        assert!(
            (0.4..0.8).contains(&share),
            "{share} are within another one"
        );
        assert!(v4.iter().eq(full_table_v4(1, 64).iter()));
        assert!(!v4.iter().eq(full_table_v4(2, 64).iter()));
    }

    #[test]
    fn synthetic_ipv6_prefixes_have_the_published_mean_length() {
        let v6 = full_table_v6(1, 64);
        assert!((215_000..225_000).contains(&v6.len()), "{}", v6.len());
        let bits: u64 = v6
            .iter()
            .map(|(prefix, _)| u64::from(prefix.length()))
            .sum();
        let mean = bits as f64 / v6.len() as f64;
        // AS131072's table of 4 December 2024: 42.9447.
        assert!((mean - 42.9447).abs() < 0.5, "{mean}");
        let specifics = v6
            .iter()
            .filter(|(prefix, _)| v6.covering(*prefix).is_some())
            .count();
        let share = specifics as f64 / v6.len() as f64;
        // The published fraction is 0.563.
        assert!((0.45..0.7).contains(&share), "{share}");
    }
}
