//! Measures network coding. The computation of repairs is compared with ISA-L's erasure code, interleaved, for the same
//! numbers of source symbols and repairs. Each step of the encoder and the decoder is measured per source packet of
//! 1400 bytes. `cargo bench -p taut-code`
#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use taut_code::{Combination, Decoder, Encoder, Recoder, Scheme, kernel};
use taut_measure::ratio_interval;

const PAIRS: usize = 9;
const DURATION: Duration = Duration::from_millis(300);
const BYTES: usize = 1400;

/// Returns the time per round in the fastest block of rounds, ns: interruptions only make a block slower.
fn fastest(rounds: u32, mut round: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    let begun = Instant::now();
    while begun.elapsed() < DURATION {
        let start = Instant::now();
        (0..rounds).for_each(|_| round());
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(rounds));
    }
    best
}

fn symbols(count: usize) -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(1);
    (0..count)
        .map(|_| {
            std::iter::repeat_with(|| random.u8(..))
                .take(BYTES)
                .collect()
        })
        .collect()
}

/// Returns the time that this crate takes to compute all repairs of all source symbols, ns.
fn ours(sources: usize, repairs: usize) -> f64 {
    let symbols = symbols(sources);
    let symbols: Vec<&[u8]> = symbols.iter().map(Vec::as_slice).collect();
    let mut random = fastrand::Rng::with_seed(2);
    let mut rows = vec![vec![0; sources]; repairs];
    let mut sums = vec![vec![0; BYTES]; repairs];
    fastest(64, || {
        // Each round has new coefficients, as in network coding.
        rows.iter_mut().for_each(|row| row[0] = random.u8(1..));
        let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
        let mut sums: Vec<&mut [u8]> = sums.iter_mut().map(Vec::as_mut_slice).collect();
        kernel::combine(&mut sums, &rows, &symbols);
        black_box(&sums);
    })
}

/// Compiles the program that measures ISA-L, and returns its path; none if it cannot be compiled on this machine.
fn isal() -> Option<PathBuf> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/isal.c");
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("isal");
    let built = Command::new("cc")
        .args(["-O3", "-march=native", source, "-lisal", "-o"])
        .arg(&program)
        .status();
    built
        .is_ok_and(|status| status.success())
        .then_some(program)
}

fn theirs(program: &PathBuf, sources: usize, repairs: usize) -> f64 {
    let output = Command::new(program)
        .args([sources, repairs, BYTES].map(|n| n.to_string()))
        .arg(DURATION.as_secs_f64().to_string())
        .output()
        .unwrap();
    String::from_utf8(output.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

fn beside_isal() {
    let Some(program) = isal() else {
        println!("ISA-L: no data: needs cc and libisal-dev");
        return;
    };
    println!("all repairs of all source symbols of {BYTES} bytes, ns (median of {PAIRS} pairs)");
    for (sources, repairs) in [(32, 8), (8, 1), (8, 2), (10, 4), (64, 16)] {
        let (mut a, mut b): (Vec<f64>, Vec<f64>) = (0..PAIRS)
            .map(|_| (ours(sources, repairs), theirs(&program, sources, repairs)))
            .unzip();
        let ratio = ratio_interval(&b, &a, 0.95).unwrap();
        a.sort_by(f64::total_cmp);
        b.sort_by(f64::total_cmp);
        println!(
            "  {sources} sources, {repairs} repairs: taut {:.0}, ISA-L {:.0}; rate of taut over ISA-L {:.2} ({})",
            a[PAIRS / 2],
            b[PAIRS / 2],
            ratio.median.point,
            ratio.median.words(|value| format!("{value:.2}"))
        );
    }
    let _ = std::fs::remove_file(program);
}

/// Measures encoder and decoder per source packet, ns; every `lost`-th source packet is lost before the decoder.
fn streams() {
    println!("per source packet of {BYTES} bytes, 25 % redundancy, ns");
    let all = symbols(256);
    for (name, scheme) in [
        (
            "window of 8",
            Scheme::Window {
                symbols: 8,
                redundancy: 0.25,
            },
        ),
        (
            "block of 32",
            Scheme::Block {
                symbols: 32,
                redundancy: 0.25,
            },
        ),
    ] {
        let mut encoder = Encoder::new(scheme, BYTES, 1.0, 1).unwrap();
        let mut next = 0;
        let encoding = fastest(640, || {
            encoder.push(&all[next % 256]);
            while let Some(repair) = encoder.next_repair() {
                black_box(repair.sum);
            }
            next += 1;
        });
        // The packets of an encoder are passed to the recoder, which makes a combination after every four source
        // packets.
        let mut recoder = Recoder::new(BYTES, 8, 1);
        let mut next = 0_u64;
        let recoding = fastest(640, || {
            recoder
                .push_source(next, &all[next as usize % 256])
                .unwrap();
            if next % 4 == 3 {
                black_box(recoder.combine());
            }
            next += 1;
        });
        let mut repairs = Vec::new();
        let mut encoder = Encoder::new(scheme, BYTES, 1.0, 1).unwrap();
        for number in 0..6400_usize {
            encoder.push(&all[number % 256]);
            while let Some(it) = encoder.next_repair() {
                repairs.push((number, it.first, it.coefficients.to_vec(), it.sum.to_vec()));
            }
        }
        let decoding = |lost: usize| {
            let mut recovered = 0;
            let time = fastest(1, || {
                recovered = 0;
                let mut decoder = Decoder::new(BYTES, 128);
                let mut repairs = repairs.iter().peekable();
                for number in 0..6400_usize {
                    if number == 0 || number % lost != 0 {
                        let symbol = &all[number % 256];
                        let _ = decoder.source(number as u64, symbol, |_, _| recovered += 1);
                    }
                    while let Some((_, first, coefficients, sum)) =
                        repairs.next_if(|it| it.0 == number)
                    {
                        let combination = Combination {
                            first: *first,
                            coefficients,
                            sum,
                        };
                        let _ = decoder.combination(&combination, |_, _| recovered += 1);
                    }
                }
            });
            (time / 6400.0, recovered)
        };
        let (sound, _) = decoding(usize::MAX);
        let (lossy, recovered) = decoding(10);
        println!(
            "  {name}: encoding {encoding:.0}; recoding of eight {recoding:.0}; decoding {sound:.0}, with every tenth packet lost {lossy:.0} ({recovered} of 639 recovered)"
        );
    }
}

fn main() {
    println!("kernel: {}", kernel::name());
    streams();
    beside_isal();
}
