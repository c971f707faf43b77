//! Tests that compare an IPv4 table with the master copy of its routes.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::random::Changes;
use crate::{NextHop, PrefixV4, Rib};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn prefix(text: &str) -> PrefixV4 {
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
    let addresses: Vec<u32> = ends.collect();
    let mut hops = vec![hop(9); addresses.len()];
    table.fib.lookup_batch(&addresses, &mut hops);
    // Look-ups without vector instructions must have the same results.
    let mut plain = vec![hop(9); addresses.len()];
    table.fib.look_up_plainly(&addresses, &mut plain);
    assert!(plain == hops);
    for (address, found) in addresses.into_iter().zip(hops) {
        let right = table.rib.lookup(address);
        let right = right.map_or(NextHop::NONE, |(_, hop)| hop);
        assert_eq!((found, table.fib.lookup(address)), (right, right));
    }
}

#[test]
fn a_table_uses_32_mib_plus_512_bytes_per_block() {
    let table = Table::new(4).unwrap();
    assert_eq!(table.fib.memory_bytes(), (32 << 20) + 4 * 512);
}

#[test]
fn a_table_of_too_many_blocks_is_refused() {
    let many = Table::new(MOST_BLOCKS + 1).unwrap_err().to_string();
    assert!(many.contains("at most 32768 blocks"), "{many}");
}

#[test]
fn a_full_table_refuses_a_block_and_stays_unchanged() {
    let mut table = Table::new(1).unwrap();
    table.insert(prefix("10.0.0.0/25"), hop(1)).unwrap();
    table.insert(prefix("10.0.0.7/32"), hop(2)).unwrap();
    let refused = table.insert(prefix("10.0.1.0/25"), hop(3));
    assert_eq!(refused, Err(Refused::Full(1)));
    assert_eq!(table.rib.len(), 2);
    table.insert(prefix("10.0.1.0/24"), hop(3)).unwrap();
    agrees(&table);
}

#[test]
fn a_block_is_reused_only_after_the_grace_period() {
    let mut table = Table::new(1).unwrap();
    table.insert(prefix("10.0.0.0/25"), hop(1)).unwrap();
    let before = table.generation();
    assert_eq!(table.remove(prefix("10.0.0.0/25")), Some(hop(1)));
    assert_eq!((table.free_blocks(), table.retired_blocks()), (0, 1));
    assert!(table.insert(prefix("10.0.1.0/25"), hop(2)).is_err());
    table.quiesced(before);
    assert!(table.insert(prefix("10.0.1.0/25"), hop(2)).is_err());
    table.quiesced(table.generation());
    table.insert(prefix("10.0.1.0/25"), hop(2)).unwrap();
    agrees(&table);
}

#[test]
fn large_tables_agree_with_the_rib_after_random_changes() {
    let mut table = Table::new(MOST_BLOCKS).unwrap();
    let mut changes = Changes::new(4);
    let rib: Rib<u32> = std::iter::repeat_with(|| changes.route_v4())
        .take(300_000)
        .collect();
    table.extend(&rib).unwrap();
    agrees(&table);
    for (number, (prefix, _)) in rib.iter().enumerate() {
        match number % 4 {
            0 => _ = table.remove(prefix).unwrap(),
            1 => _ = table.insert(prefix, changes.hop()).unwrap(),
            2 => {
                let (prefix, hop) = changes.route_v4();
                // The table may have no free block.
                _ = table.insert(prefix, hop);
            }
            _ => table.quiesced(table.generation()),
        }
    }
    agrees(&table);
    let random: Vec<u32> = std::iter::repeat_with(|| changes.random.u32(..))
        .take(300_000)
        .collect();
    let mut hops = vec![hop(9); random.len()];
    table.fib.lookup_batch(&random, &mut hops);
    for (address, found) in random.into_iter().zip(hops) {
        let right = table.rib.lookup(address);
        assert_eq!(found, right.map_or(NextHop::NONE, |(_, hop)| hop));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Prefixes are in two neighbouring /23, and around the last address; blocks are few.
    #[test]
    fn every_lookup_agrees_with_the_rib_after_each_change(
        steps in proptest::collection::vec((any::<u32>(), 0_u8..=32, 0_u32..5), 1..120), at_end: bool,
    ) {
        let base = if at_end { 0xffff_fc00 } else { 0x0a00_0000 };
        let mut table = Table::new(3).unwrap();
        for (address, length, number) in steps {
            let prefix = PrefixV4::of(base | (address & 0x3ff), length);
            match NextHop::new(number) {
                Err(_) => _ = table.remove(prefix),
                Ok(hop) => _ = table.insert(prefix, hop),
            }
            if address >> 30 == 0 {
                table.quiesced(table.generation());
            }
            agrees(&table);
        }
        for address in base..=base + 0x3ff {
            let right = table.rib.lookup(address);
            prop_assert_eq!(table.fib.lookup(address), right.map_or(NextHop::NONE, |(_, hop)| hop));
        }
        let used = 3 - table.free_blocks() - table.retired_blocks();
        let longer = table.rib.iter().filter(|(it, _)| it.length() > 24);
        let slots: std::collections::BTreeSet<u32> = longer.map(|(it, _)| it.network() >> 8).collect();
        prop_assert_eq!(used, slots.len());
    }
}

/// The updater alternates between two results for each address, with blocks that are allocated, freed and reused.
#[test]
fn concurrent_lookups_return_only_the_old_or_new_next_hop() {
    let mut table = Table::new(2).unwrap();
    table.insert(prefix("10.0.0.0/23"), hop(1)).unwrap();
    let (stop, fib) = (AtomicBool::new(false), Arc::clone(&table.fib));
    let (ask, asked) = std::sync::mpsc::channel::<()>();
    let (tell, told) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let stop = &stop;
        let reader = scope.spawn(move || {
            let addresses: Vec<u32> = (0x0a00_0000..0x0a00_0200).collect();
            let (mut hops, mut seen) = (vec![NextHop::NONE; 512], [0_u64; 4]);
            while !stop.load(Ordering::Relaxed) {
                fib.lookup_batch(&addresses, &mut hops);
                for (address, hop) in addresses.iter().zip(&hops) {
                    // The first half of each /24 alternates between 1, 2 and 3, the other half stays.
                    let may = if address & 0x80 == 0 { 1..=3 } else { 1..=1 };
                    assert!(may.contains(&hop.index()), "{address:x} {hop:?}");
                    seen[hop.index()] += 1;
                }
                if asked.try_recv().is_ok() {
                    tell.send(()).unwrap();
                }
            }
            seen
        });
        for round in 0..2_000_u32 {
            let half = prefix(["10.0.0.0/25", "10.0.1.0/25"][round as usize % 2]);
            table.insert(half, hop(2 + round / 2 % 2)).unwrap();
            std::hint::spin_loop();
            table.remove(half).unwrap();
            let generation = table.generation();
            ask.send(()).unwrap();
            told.recv().unwrap();
            table.quiesced(generation);
        }
        stop.store(true, Ordering::Relaxed);
        let seen = reader.join().unwrap();
        assert!(seen[1] > 0 && seen[0] == 0, "{seen:?}");
    });
}
