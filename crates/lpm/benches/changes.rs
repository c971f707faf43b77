//! Cost of route changes in full tables of a million and 220,000 routes: deleting a random route and adding it again.
//! `cargo bench -p taut-lpm --bench changes`
#![allow(clippy::unwrap_used)]

use std::time::Instant;
use taut_lpm::{Address, Prefix, PrefixV6, Rib, Route, synthetic, v4, v6};
use taut_measure::median_interval;

const REPETITIONS: usize = 9;
const CHANGES: usize = 20_000;

/// Prints the time per change in ns; `change` deletes one route and adds it again.
fn measure<A: Address>(name: &str, rib: &Rib<A>, mut change: impl FnMut(Route<A>)) {
    let routes: Vec<Route<A>> = rib.iter().collect();
    let mut random = fastrand::Rng::with_seed(5);
    let mut worst = (0.0, Prefix::ALL);
    let each: Vec<f64> = (0..REPETITIONS)
        .map(|_| {
            let begun = Instant::now();
            for _ in 0..CHANGES / 2 {
                let route = routes[random.usize(..routes.len())];
                let start = Instant::now();
                change(route);
                let took_us = start.elapsed().as_nanos() as f64 / 1e3;
                if took_us > worst.0 {
                    worst = (took_us, route.0);
                }
            }
            begun.elapsed().as_nanos() as f64 / CHANGES as f64
        })
        .collect();
    let found = median_interval(&each, 0.95).unwrap();
    println!(
        "{name} of {}: {:.0} ns for a change ({}), the longest pair {:.0} us ({})",
        routes.len(),
        found.point,
        found.words(|value| format!("{value:.0}")),
        worst.0,
        worst.1
    );
}

fn main() {
    let rib = synthetic::full_table_v4(1, 64);
    let mut table = v4::Table::new(v4::MOST_BLOCKS).unwrap();
    table.extend(&rib).unwrap();
    measure("IPv4", &rib, |(prefix, hop)| {
        table.remove(prefix).unwrap();
        table.insert(prefix, hop).unwrap();
        table.quiesced(table.generation());
    });
    let rib = synthetic::full_table_v6(1, 64);
    let mut room = v6::Capacity::of(&rib);
    room.nodes += 1_000;
    room.lines += 10_000;
    let mut table = v6::Table::new(room);
    table.extend(&rib).unwrap();
    measure("IPv6", &rib, |(prefix, hop)| {
        table.remove(prefix).unwrap();
        table.insert(prefix, hop).unwrap();
        table.quiesced(table.generation());
    });
    let begun = Instant::now();
    let hop = rib.iter().next().unwrap().1;
    table.insert(PrefixV6::ALL, hop).unwrap();
    let took_ms = begun.elapsed().as_secs_f64() * 1e3;
    println!("IPv6, a default route: {took_ms:.0} ms");
}
