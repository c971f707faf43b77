//! The cost of searching for all patterns of a group of rules, with the automaton of the `aho-corasick` crate and with
//! Vectorscan in alternation. Payloads have three lengths and contain no pattern, one pattern, or only beginnings of
//! patterns. `cargo bench -p taut-inspect --bench search`.
#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use taut_inspect::search::{Matcher, Scratch, Search};
use taut_measure::{median_interval, ratio_interval};
use taut_sys::{Clock, ticks};

const PAIRS: usize = 15;
/// Number of bytes that are searched in one measurement.
const BYTES: usize = 4 << 20;
const PATTERNS: [usize; 4] = [1, 30, 300, 10_000];
const LENGTHS: [usize; 3] = [22, 470, 1460];
const KINDS: [&str; 3] = ["none in it", "one in it", "beginnings"];

/// Returns `count` patterns like the words in real rules: letters and digits, 6 to 14 bytes long.
fn patterns(count: usize) -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(1);
    let each = (0..count).map(|number| {
        let word: String = (0..random.usize(2..10))
            .map(|_| random.lowercase())
            .collect();
        format!("{word}{number:04x}").into_bytes()
    });
    each.collect()
}

/// Returns payloads of length `len`: web page text as `taut ips sample --traffic` sends it. With `kind` 0 a payload
/// contains no pattern, with 1 one pattern, otherwise only beginnings of a pattern.
fn payloads(len: usize, kind: usize, patterns: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(2);
    let text = b"<p>What is written here is of no importance, but it looks like text.</p>\r\nAccept: text/html\r\n";
    let each = (0..64).map(|number| {
        let mut payload: Vec<u8> = text
            .iter()
            .copied()
            .cycle()
            .skip(7 * number)
            .take(len)
            .collect();
        let pattern = &patterns[random.usize(..patterns.len())];
        match kind {
            0 => {}
            1 => {
                let at = random.usize(..=len - pattern.len());
                payload[at..at + pattern.len()].copy_from_slice(pattern);
            }
            _ => {
                let begin = &pattern[..pattern.len() - 1];
                for chunk in payload.chunks_exact_mut(begin.len()) {
                    chunk.copy_from_slice(begin);
                }
            }
        }
        payload
    });
    each.collect()
}

/// Searches the payloads; returns the mean cycles per payload and the total number of pattern occurrences found.
fn turn(search: &Search, scratch: &mut Scratch, payloads: &[Vec<u8>]) -> (f64, usize) {
    let mut found = 0;
    let looks = (BYTES / payloads[0].len()).min(50_000);
    let begun = ticks();
    for payload in payloads.iter().cycle().take(looks) {
        let each = &mut |pattern, end| {
            black_box((pattern, end));
            found += 1;
        };
        assert!(search.find(scratch, black_box(payload), each));
    }
    ((ticks() - begun) as f64 / looks as f64, found)
}

fn main() {
    let clock = Clock::calibrate(std::time::Duration::from_millis(50));
    println!(
        "patterns  bytes  payload      aho-corasick ns   Vectorscan ns     Vectorscan over aho-corasick"
    );
    for count in PATTERNS {
        let patterns = patterns(count);
        let searches = match Search::new(&patterns, Matcher::Vectorscan) {
            Ok(other) => [Search::new(&patterns, Matcher::AhoCorasick).unwrap(), other],
            Err(reason) => return println!("skipped: {reason}"),
        };
        let mut scratch = Scratch::new(searches.iter());
        for len in LENGTHS {
            for (kind, name) in KINDS.into_iter().enumerate() {
                let payloads = payloads(len, kind, &patterns);
                let mut ns = [Vec::new(), Vec::new()];
                for pair in 0..PAIRS {
                    // The order of the two implementations alternates.
                    let order = if pair % 2 == 0 { [0, 1] } else { [1, 0] };
                    let found = order.map(|which| {
                        let (taken, found) = turn(&searches[which], &mut scratch, &payloads);
                        ns[which].push(taken / clock.to_ticks(1.0));
                        found
                    });
                    assert_eq!(found[0], found[1]);
                }
                let of = |values: &[f64]| {
                    let it = median_interval(values, 0.95).unwrap();
                    format!("{:.0} ({:.0} to {:.0})", it.point, it.low, it.high)
                };
                let ratio = ratio_interval(&ns[1], &ns[0], 0.95).unwrap();
                println!(
                    "{count:>8}  {len:>5}  {name:<11}  {:<17} {:<17} {:.2} ({:.2} to {:.2})",
                    of(&ns[0]),
                    of(&ns[1]),
                    ratio.median.point,
                    ratio.min,
                    ratio.max
                );
            }
        }
    }
}
