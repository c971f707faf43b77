//! Tests that compare an IPv6 table with the master copy of its routes.
#![allow(clippy::unwrap_used)]

use super::fib::Entry;
use super::*;
use crate::random::Changes;
use crate::{NextHop, Prefix, PrefixV6, Rib};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const ROOM: Capacity = Capacity {
    nodes: 300,
    lines: 2_000,
};

fn prefix(text: &str) -> PrefixV6 {
    text.parse().unwrap()
}

fn hop(number: u32) -> NextHop {
    NextHop::new(number).unwrap()
}

/// Checks the look-ups of the first and last address of each route, and of the addresses next to them.
fn agrees(table: &Table) {
    let ends = table.rib.iter().flat_map(|(prefix, _)| {
        let (first, last) = (prefix.network(), prefix.last());
        [first, last, first.wrapping_sub(1), last.wrapping_add(1)]
    });
    agrees_at(table, &ends.collect::<Vec<_>>());
}

fn agrees_at(table: &Table, addresses: &[u128]) {
    let bytes: Vec<[u8; 16]> = addresses.iter().map(|it| it.to_be_bytes()).collect();
    let mut hops = vec![hop(9); bytes.len()];
    table.fib.lookup_batch(&bytes, &mut hops);
    // Look-ups without vector instructions must have the same results.
    for (bytes, hops) in bytes.as_chunks().0.iter().zip(hops.as_chunks().0) {
        let mut plain = [hop(9); 8];
        table.fib.look_up_plainly(bytes, &mut plain);
        assert_eq!(&plain, hops);
    }
    for ((address, bytes), found) in addresses.iter().zip(bytes).zip(hops) {
        let right = table.rib.lookup(*address);
        let right = right.map_or(NextHop::NONE, |(_, hop)| hop);
        let single = table.fib.lookup(bytes);
        assert_eq!(
            (found, single),
            (right, right),
            "{}",
            Prefix::of(*address, 128)
        );
    }
}

/// Checks that every node and line that is neither free nor retired is reachable from the first level, once.
fn nothing_is_lost(table: &Table) {
    let mut used = Capacity::default();
    let mut reached = vec![];
    let of_first = table.fib.first.iter().map(|it| it.load(Ordering::Relaxed));
    reached.extend(of_first.map(Entry::of_bits));
    while let Some(entry) = reached.pop() {
        let below: Vec<&AtomicU32> = match entry {
            Entry::Hop(_) => continue,
            Entry::Node(node) => {
                used.nodes += 1;
                table.fib.node(node).iter().collect()
            }
            Entry::Line(line) => {
                used.lines += 1;
                let places = 0..table.ranges_of(line);
                places.map(|place| table.fib.range(line, place)).collect()
            }
        };
        let below = below.into_iter().map(|it| it.load(Ordering::Relaxed));
        reached.extend(below.map(Entry::of_bits));
    }
    let free = table.free();
    assert_eq!(table.retired.len(), 0);
    assert_eq!(
        used.nodes + free.nodes,
        table.fib.nodes.len() / NODE_ENTRIES
    );
    assert_eq!(
        used.lines + free.lines,
        table.fib.lines.len() / LINE_ENTRIES
    );
}

#[test]
fn empty_tables_match_no_address_and_default_routes_match_all() {
    let mut table = Table::new(Capacity::default());
    agrees_at(&table, &[0, 1, u128::MAX, 0x2001 << 112]);
    table.insert(PrefixV6::ALL, hop(3)).unwrap();
    agrees_at(&table, &[0, 1, u128::MAX, 0x2001 << 112]);
    assert_eq!(table.remove(PrefixV6::ALL), Ok(Some(hop(3))));
    agrees_at(&table, &[0, u128::MAX]);
}

#[test]
fn a_full_table_refuses_a_route_and_stays_unchanged() {
    let mut table = Table::new(Capacity { nodes: 0, lines: 2 });
    table.insert(prefix("2001:db8::/32"), hop(1)).unwrap();
    table.insert(prefix("2001:db8:1::/48"), hop(2)).unwrap();
    let refused = table.insert(prefix("2001:db8:2::/48"), hop(3)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the IPv6 table is full: 0 nodes and 0 lines of 128 bytes are free, and the routes need 0 and 1; load fewer routes"
    );
    assert_eq!(table.rib.len(), 2);
    agrees(&table);
    table.insert(prefix("2001:db8:1::/48"), hop(4)).unwrap();
    table.quiesced(table.generation());
    table.insert(prefix("2001:db8:2::/48"), hop(3)).unwrap();
    agrees(&table);
}

#[test]
fn changing_a_default_route_preserves_all_other_ipv6_routes() {
    let mut changes = Changes::new(3);
    let rib: Rib<u128> = std::iter::repeat_with(|| changes.route_v6())
        .take(5_000)
        .collect();
    let mut room = Capacity::of(&rib);
    room.lines += 32;
    let mut table = Table::new(room);
    table.extend(&rib).unwrap();
    for number in 1..=3 {
        table.insert(PrefixV6::ALL, hop(number)).unwrap();
        table.quiesced(table.generation());
        agrees(&table);
    }
}

#[test]
fn large_tables_agree_with_the_rib_after_random_changes() {
    let mut changes = Changes::new(6);
    let rib: Rib<u128> = std::iter::repeat_with(|| changes.route_v6())
        .take(150_000)
        .collect();
    let mut room = Capacity::of(&rib);
    room.nodes += 2_000;
    room.lines += 20_000;
    let mut table = Table::new(room);
    table.extend(&rib).unwrap();
    nothing_is_lost(&table);
    for (number, (prefix, _)) in rib.iter().step_by(10).enumerate() {
        match number % 3 {
            0 => _ = table.remove(prefix).unwrap(),
            1 => _ = table.insert(prefix, changes.hop()).unwrap(),
            _ => {
                let (prefix, hop) = changes.route_v6();
                _ = table.insert(prefix, hop).unwrap();
                table.quiesced(table.generation());
            }
        }
    }
    table.quiesced(table.generation());
    nothing_is_lost(&table);
    agrees(&table);
    let random =
        std::iter::repeat_with(|| changes.route_v6().0.network() | changes.random.u128(..) >> 48);
    agrees_at(&table, &random.take(150_000).collect::<Vec<_>>());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Few bits of the address vary, at positions that make routes dense in some places and sparse in others.
    #[test]
    fn every_lookup_agrees_with_the_rib_after_each_change(
        steps in proptest::collection::vec((any::<u128>(), 0_u8..=128, 0_u32..5), 1..150),
        varies in prop_oneof![
            Just(0xffff << 96), Just(0xf00f_00f0 << 84), Just(0x3f_u128), Just(0x3_0000_0000_0000_0001_8003),
            Just(u128::MAX << 120), Just(0xff << 56),
        ],
        ones: bool,
    ) {
        let mut table = Table::new(ROOM);
        for (address, length, number) in steps {
            let address = address & varies | if ones { !varies } else { 0x2001 << 112 & !varies };
            // The lengths are around the varying bits.
            let length = if length & 1 == 0 { length } else { varies.leading_zeros() as u8 + length % 33 };
            let prefix = PrefixV6::of(address, length.min(128));
            match NextHop::new(number) {
                Err(_) => _ = table.remove(prefix).unwrap(),
                Ok(hop) => _ = table.insert(prefix, hop).unwrap(),
            }
            table.quiesced(table.generation());
            agrees(&table);
        }
        nothing_is_lost(&table);
    }
}

/// The updater alternates between two results for each address, with nodes and lines that are allocated, freed and
/// reused.
#[test]
fn concurrent_lookups_return_only_the_old_or_new_next_hop() {
    let mut table = Table::new(ROOM);
    table.insert(prefix("2001:db8::/32"), hop(1)).unwrap();
    let base = prefix("2001:db8::/32").network();
    let (stop, fib) = (AtomicBool::new(false), Arc::clone(&table.fib));
    let (ask, asked) = std::sync::mpsc::channel::<()>();
    let (tell, told) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let stop = &stop;
        let reader = scope.spawn(move || {
            // Address i is in /48 number i; the odd ones alternate between 1, 2 and 3.
            let address = |i: u128| (base | i << 80).to_be_bytes();
            let addresses: Vec<[u8; 16]> = (0..64).map(address).collect();
            let (mut hops, mut seen) = (vec![NextHop::NONE; 64], [0_u64; 4]);
            while !stop.load(Ordering::Relaxed) {
                fib.lookup_batch(&addresses, &mut hops);
                for (i, hop) in hops.iter().enumerate() {
                    let may = if i % 2 == 1 { 1..=3 } else { 1..=1 };
                    assert!(may.contains(&hop.index()), "{i} {hop:?}");
                    seen[hop.index()] += 1;
                }
                if asked.try_recv().is_ok() {
                    tell.send(()).unwrap();
                }
            }
            seen
        });
        let mut random = fastrand::Rng::with_seed(8);
        for _ in 0..3_000 {
            let odd = random.u128(..32) * 2 + 1;
            let odd = PrefixV6::of(base | odd << 80, 48);
            match random.u32(..3) {
                0 => _ = table.remove(odd).unwrap(),
                number => _ = table.insert(odd, hop(number + 1)).unwrap(),
            }
            let generation = table.generation();
            ask.send(()).unwrap();
            told.recv().unwrap();
            table.quiesced(generation);
        }
        stop.store(true, Ordering::Relaxed);
        let seen = reader.join().unwrap();
        assert!(seen[1] > 0 && seen[0] == 0, "{seen:?}");
    });
    nothing_is_lost(&table);
    agrees(&table);
}
