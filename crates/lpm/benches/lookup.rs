//! Cost of a look-up: this crate's tables and DPDK's (rte_lpm, rte_fib, rte_lpm6, rte_fib6), interleaved, over the same
//! routes and addresses. `cargo bench -p taut-lpm --bench lookup`
//!
//! Options: `-- huge` puts DPDK's tables on 2-MiB pages; this crate's tables use such pages in any case if the kernel
//! has some. `-- v4` or `-- v6` selects one family. `only=PART` selects the tables whose names contain PART, and
//! `peer=PART` selects the peers likewise, because all of DPDK's IPv6 tables together take more than 512 MiB.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use taut_lpm::{Address, NextHop, Prefix, PrefixV4, PrefixV6, Rib, synthetic, v4, v6};
use taut_measure::{median_interval, ratio_interval};
use taut_sys::ticks;

const PAIRS: usize = 9;
const ADDRESSES: usize = 1 << 20;
const BURST: usize = 64;
const TURN: Duration = Duration::from_millis(80);
/// The minimum number of measured passes in each turn of a table. An unmeasured pass at the start of the turn brings
/// the table back into the caches.
const PASSES: usize = 3;
const PATTERNS: [&str; 2] = ["random", "Zipf"];
const PEERS_V4: [&str; 5] = [
    "rte_lpm_lookup",
    "rte_lpm_lookup_bulk",
    "rte_lpm_lookupx4",
    "rte_fib_scalar",
    "rte_fib_vector",
];

const PEERS_V6: [&str; 3] = ["rte_lpm6_lookup_bulk", "rte_fib6_scalar", "rte_fib6_vector"];

/// A process with DPDK's tables, which looks up addresses on command.
struct Peer {
    process: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

struct Answer {
    cycles: f64,
    sum: u64,
    bytes: usize,
}

impl Peer {
    fn build(folder: &Path) -> Option<PathBuf> {
        let flags = Command::new("pkg-config")
            .args(["--cflags", "--libs", "libdpdk"])
            .output()
            .ok()?;
        let flags = String::from_utf8(flags.stdout).ok()?;
        let source = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../benches/peers/lpm/lookup.c"
        );
        let program = folder.join("lookup");
        let built = Command::new("cc")
            .args(["-O3", source, "-o"])
            .arg(&program)
            .args(flags.split_whitespace())
            .arg("-march=native")
            .status();
        built.is_ok_and(|it| it.success()).then_some(program)
    }

    fn start(program: &Path, input: &Path, on_huge_pages: bool) -> Self {
        let mut command = Command::new(program);
        command.arg(input).args([
            "--no-pci",
            "--no-telemetry",
            "--log-level=error",
            "--force-max-simd-bitwidth=512",
            "-l",
            "1",
        ]);
        if on_huge_pages {
            command.args(["--in-memory", "-m", "400"]);
        } else {
            command.args(["--no-huge", "-m", "3072"]);
        }
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            ask: process.stdin.take().unwrap(),
            answers: BufReader::new(process.stdout.take().unwrap()),
            process,
        }
    }

    fn measure(&mut self, subject: &str, pattern: usize) -> Option<Answer> {
        writeln!(self.ask, "{subject} {pattern}").ok()?;
        self.ask.flush().ok()?;
        loop {
            let mut line = String::new();
            if self.answers.read_line(&mut line).ok()? == 0 || line.starts_with("no data") {
                return None;
            }
            let mut numbers = line.split_whitespace();
            let mut next = || numbers.next()?.parse::<f64>().ok();
            // DPDK may print lines of its own.
            if let (Some(cycles), Some(sum), Some(bytes)) = (next(), next(), next()) {
                return Some(Answer {
                    cycles,
                    sum: sum as u64,
                    bytes: bytes as usize,
                });
            }
        }
    }

    fn end(mut self) {
        drop(self.ask);
        let _ = self.process.wait();
    }
}

/// The routes of a table, and the addresses that this crate's table and the peer look up in each pattern.
struct Case<A: Address> {
    name: String,
    rib: Rib<A>,
    /// Number of blocks for the second and later levels of the table in the peer process.
    blocks: usize,
    addresses: [Vec<A>; 2],
}

/// An address family whose routes and addresses the peer accepts.
trait Family: Address {
    const NUMBER: u32;
    type Wire: Copy + AsRef<[u8]>;
    fn network(self) -> [u8; 16];
    fn key(self) -> Self::Wire;
    /// Returns a random address within the prefix.
    fn inside(prefix: Prefix<Self>, random: &mut fastrand::Rng) -> Self;
}

impl Family for u32 {
    const NUMBER: u32 = 4;
    type Wire = [u8; 4];
    fn network(self) -> [u8; 16] {
        (u128::from(self) << 96).to_be_bytes()
    }
    fn key(self) -> [u8; 4] {
        self.to_le_bytes()
    }
    fn inside(prefix: Prefix<Self>, random: &mut fastrand::Rng) -> Self {
        prefix.network() | (random.u32(..) & Self::ZERO.last(prefix.length()))
    }
}

impl Family for u128 {
    const NUMBER: u32 = 6;
    type Wire = [u8; 16];
    fn network(self) -> [u8; 16] {
        self.to_be_bytes()
    }
    fn key(self) -> [u8; 16] {
        self.to_be_bytes()
    }
    fn inside(prefix: Prefix<Self>, random: &mut fastrand::Rng) -> Self {
        prefix.network() | (random.u128(..) & Self::ZERO.last(prefix.length()))
    }
}

impl<A: Family> Case<A> {
    /// Makes a case with two patterns of destinations in the table's prefixes. In the first, all prefixes are equally
    /// likely, with random addresses. In the second, prefix number n has a probability proportional to 1/n, and a
    /// prefix always has the same address.
    fn new(name: &str, rib: Rib<A>, prefixes: &[Prefix<A>], blocks: usize) -> Self {
        let mut random = fastrand::Rng::with_seed(7);
        let mut order: Vec<Prefix<A>> = prefixes.to_vec();
        random.shuffle(&mut order);
        let spread: Vec<A> = (0..ADDRESSES)
            .map(|_| A::inside(order[random.usize(..order.len())], &mut random))
            .collect();
        let zipf = (0..ADDRESSES)
            .map(|_| {
                let rank = (order.len() as f64).powf(random.f64()) as usize;
                let rank = rank.min(order.len()) - usize::from(rank > 0);
                A::inside(order[rank], &mut fastrand::Rng::with_seed(rank as u64))
            })
            .collect();
        Self {
            name: name.to_owned(),
            rib,
            blocks,
            addresses: [spread, zipf],
        }
    }

    fn write(&self, path: &Path) {
        let mut bytes = Vec::new();
        let head = [
            A::NUMBER,
            self.rib.len() as u32,
            ADDRESSES as u32,
            self.blocks as u32,
        ];
        head.iter().for_each(|it| bytes.extend(it.to_ne_bytes()));
        for (prefix, hop) in self.rib.iter() {
            bytes.extend(prefix.network().network());
            bytes.extend([prefix.length(), 0]);
            bytes.extend((hop.index() as u16).to_ne_bytes());
        }
        for address in self.addresses.iter().flatten() {
            bytes.extend(address.key().as_ref());
        }
        std::fs::write(path, bytes).unwrap();
    }

    /// Runs this crate's table and the peers, interleaved; `ours` looks up all addresses of a pattern and returns the
    /// sum of the next hops.
    fn compare(
        &self,
        peers: &[&str],
        bytes: usize,
        (program, huge): (Option<&Path>, bool),
        mut ours: impl FnMut(usize) -> u64,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let input = folder.path().join("input");
        self.write(&input);
        let peers: Vec<_> = peers.iter().filter(|it| is_asked("peer=", it)).collect();
        let mut peer = program.map(|program| Peer::start(program, &input, huge));
        for (pattern, name) in PATTERNS.iter().enumerate() {
            let mut own = Vec::new();
            let mut others: Vec<Vec<f64>> = vec![Vec::new(); peers.len()];
            let mut memory = vec![0; peers.len()];
            for _ in 0..PAIRS {
                let (cycles, sum) = fastest(|| ours(pattern));
                own.push(cycles);
                for (place, subject) in peers.iter().enumerate() {
                    let Some(peer) = &mut peer else { continue };
                    if let Some(answer) = peer.measure(subject, pattern) {
                        assert_eq!(answer.sum, sum, "{subject} disagrees over {}", self.name);
                        others[place].push(answer.cycles);
                        memory[place] = answer.bytes;
                    }
                }
            }
            let own_median = median_interval(&own, 0.95).unwrap();
            println!(
                "{}, {name}: taut {:.2} cycles ({:.2} to {:.2}), {:.1} MiB",
                self.name,
                own_median.point,
                own.iter().copied().fold(f64::MAX, f64::min),
                own.iter().copied().fold(0.0, f64::max),
                mib(bytes)
            );
            for (place, subject) in peers.iter().enumerate() {
                let theirs = &others[place];
                let Some(ratio) = ratio_interval(theirs, &own, 0.95) else {
                    println!("    {subject}: no data");
                    continue;
                };
                println!(
                    "    {subject}: {:.2} cycles, {:.1} MiB; taut is {:.2} times as fast ({})",
                    median_interval(theirs, 0.95).unwrap().point,
                    mib(memory[place]),
                    ratio.median.point,
                    ratio.median.words(|value| format!("{value:.2}"))
                );
            }
        }
        if let Some(peer) = peer {
            peer.end();
        }
    }
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Returns the time of the fastest pass of a turn, in cycles per look-up, and the result of that pass.
fn fastest(mut pass: impl FnMut() -> u64) -> (f64, u64) {
    let mut sum = pass();
    let (begun, mut best, mut passes) = (Instant::now(), u64::MAX, 0);
    while passes < PASSES || begun.elapsed() < TURN {
        passes += 1;
        let start = ticks();
        sum = pass();
        best = best.min(ticks() - start);
    }
    (best as f64 / ADDRESSES as f64, sum)
}

/// Returns the sum of the next hops, by the same instructions as in the peer.
#[inline(always)]
fn sum_of(hops: &[NextHop; BURST]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        use taut_sys::lanes::{OnLanes, Wide};
        struct Sum<'a>(&'a [NextHop; BURST]);
        impl OnLanes for Sum<'_> {
            type Output = u64;
            #[inline(always)]
            fn run(self, _: Wide) -> u64 {
                self.0.iter().map(|hop| hop.index() as u64).sum()
            }
        }
        if let Some(wide) = Wide::found() {
            return wide.run(Sum(hops));
        }
    }
    hops.iter().map(|hop| hop.index() as u64).sum()
}

/// Returns true if `name` contains the PART of an argument `key=PART`, or if there is no such argument.
fn is_asked(key: &str, name: &str) -> bool {
    let asked = std::env::args().find_map(|it| it.strip_prefix(key).map(str::to_owned));
    asked.is_none_or(|part| name.contains(&part))
}

fn hop(number: usize) -> NextHop {
    NextHop::new(1 + (number % 64) as u32).unwrap()
}

fn v4_cases() -> Vec<Case<u32>> {
    let mut cases = Vec::new();
    let all = [PrefixV4::ALL];
    let one: Rib<u32> = [(all[0], hop(5))].into_iter().collect();
    cases.push(Case::new("IPv4, 1 route", one, &all, 0));
    for bits in [16, 20, 22, 24] {
        // All /24 networks of a /16 lead to the same next hop, so they are given as one route: the entries are the same
        // as for /24 routes. The routes begin at 16.0.0.0 unless they cover all addresses.
        let first = if bits < 24 { 16 << 24 } else { 0 };
        let route = |i: usize| (PrefixV4::of(first + ((i << 16) as u32), 16), hop(i * 7));
        let rib: Rib<u32> = (0..1_usize << (bits - 8)).map(route).collect();
        let prefixes: Vec<PrefixV4> = rib.iter().map(|(prefix, _)| prefix).collect();
        let name = format!("IPv4, 2^{bits} /24");
        cases.push(Case::new(&name, rib, &prefixes, 0));
    }
    let rib = synthetic::full_table_v4(1, 64);
    let prefixes: Vec<PrefixV4> = rib.iter().map(|(prefix, _)| prefix).collect();
    let longer = prefixes.iter().filter(|it| it.length() > 24);
    let blocks: BTreeSet<u32> = longer.map(|it| it.network() >> 8).collect();
    let name = format!("IPv4, full table of {}", rib.len());
    cases.push(Case::new(&name, rib, &prefixes, blocks.len()));
    cases
}

fn v4(program: Option<&Path>, huge: bool) {
    for case in v4_cases()
        .into_iter()
        .filter(|case| is_asked("only=", &case.name))
    {
        let mut table = v4::Table::new(case.blocks + 16).unwrap();
        let begun = Instant::now();
        table.extend(&case.rib).unwrap();
        println!("  built in {:.0} ms", begun.elapsed().as_secs_f64() * 1e3);
        let fib = Arc::clone(table.fib());
        case.compare(&PEERS_V4, fib.memory_bytes(), (program, huge), |pattern| {
            let (mut sum, mut hops) = (0, [NextHop::NONE; BURST]);
            for addresses in case.addresses[pattern].chunks_exact(BURST) {
                fib.lookup_batch(addresses, &mut hops);
                sum += sum_of(&hops);
            }
            sum
        });
        // The addresses are looked up one after the other, as in a function without batches.
        for (pattern, name) in PATTERNS.iter().enumerate() {
            let (cycles, _) = fastest(|| {
                let addresses = case.addresses[pattern].iter();
                addresses
                    .map(|address| fib.lookup(*address).index() as u64)
                    .sum()
            });
            println!("    {name}, one by one: {cycles:.2} cycles");
        }
    }
}

fn v6_cases() -> Vec<Case<u128>> {
    // The prefix is the range allocated for unicast; rte_lpm6 has no default route.
    let unicast = PrefixV6::of(0x2000 << 112, 3);
    let one: Rib<u128> = [(unicast, hop(5))].into_iter().collect();
    let case = Case::new("IPv6, 1 route", one, &[unicast], 0);
    let mut cases = vec![case];
    // Consecutive /48 of one network.
    let base = 0x2001_0db8 << 96;
    let route = |i: usize| (PrefixV6::of(base | (i as u128) << 80, 48), hop(i * 7));
    let dense: Rib<u128> = (0..1 << 16).map(route).collect();
    // Links between the routers of that network, each in its own /64.
    let link = |i: usize| (PrefixV6::of(base | (i as u128) << 64, 126), hop(i * 7));
    let links: Rib<u128> = (0..1 << 12).map(link).collect();
    for (name, rib) in [
        ("2^16 /48", dense),
        ("2^12 /126", links),
        ("full table", synthetic::full_table_v6(1, 64)),
    ] {
        let prefixes: Vec<PrefixV6> = rib.iter().map(|(prefix, _)| prefix).collect();
        let steps = prefixes.iter().flat_map(|it| {
            let depths = (24..it.length()).step_by(8);
            depths.map(|depth| PrefixV6::of(it.network(), depth))
        });
        let blocks = steps.collect::<BTreeSet<_>>().len();
        let name = format!("IPv6, {name} of {}", rib.len());
        cases.push(Case::new(&name, rib, &prefixes, blocks));
    }
    cases
}

fn v6(program: Option<&Path>, huge: bool) {
    for case in v6_cases()
        .into_iter()
        .filter(|case| is_asked("only=", &case.name))
    {
        let mut room = v6::Capacity::of(&case.rib);
        println!("  {} nodes, {} lines", room.nodes, room.lines);
        room.lines += 1_000;
        let mut table = v6::Table::new(room);
        let begun = Instant::now();
        table.extend(&case.rib).unwrap();
        println!("  built in {:.0} ms", begun.elapsed().as_secs_f64() * 1e3);
        let fib = Arc::clone(table.fib());
        let bytes = |addresses: &Vec<u128>| -> Vec<[u8; 16]> {
            addresses.iter().map(|it| it.to_be_bytes()).collect()
        };
        let addresses = case.addresses.each_ref().map(bytes);
        case.compare(&PEERS_V6, fib.memory_bytes(), (program, huge), |pattern| {
            let (mut sum, mut hops) = (0, [NextHop::NONE; BURST]);
            for addresses in addresses[pattern].chunks_exact(BURST) {
                fib.lookup_batch(addresses, &mut hops);
                sum += sum_of(&hops);
            }
            sum
        });
        for (pattern, name) in PATTERNS.iter().enumerate() {
            let (cycles, _) = fastest(|| {
                let addresses = addresses[pattern].iter();
                addresses
                    .map(|address| fib.lookup(*address).index() as u64)
                    .sum()
            });
            println!("    {name}, one by one: {cycles:.2} cycles");
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let has = |word: &str| arguments.iter().any(|it| it == word);
    let folder = tempfile::tempdir().unwrap();
    let program = Peer::build(folder.path());
    if program.is_none() {
        println!("DPDK: no data: needs cc, pkg-config and libdpdk-dev");
    }
    if !has("v6") {
        v4(program.as_deref(), has("huge"));
    }
    if !has("v4") {
        v6(program.as_deref(), has("huge"));
    }
}
