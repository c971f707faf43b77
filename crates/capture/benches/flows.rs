//! Measures packets per second of a flow table on one core, for 1000 to ten million flows, all of which fit into the
//! table. Flows are drawn uniformly or by Zipf's law. Packets are passed as parsed flows, and as frames whose headers
//! are parsed as well. A `HashMap` of the standard library is measured for comparison. `cargo bench -p taut-capture
//! --bench flows`.
//!
//! Published rates exist for FlowScope's flow tracker with four threads (artifact of Gallenmüller 2021, which contains
//! a later version of FlowScope). They are 13.3, 14.1, 14.5, 9.05 and 8.62 million packets per second for 1000, 10,000,
//! 100,000, one million and ten million flows.
#![allow(clippy::unwrap_used)]

use rustix::thread::{CpuSet, sched_setaffinity};
use std::collections::HashMap;
use std::time::Duration;
use taut_capture::flow::Flow;
use taut_capture::flows::{Flows, Seen};
use taut_capture::record::{Facts, Record};
use taut_sys::{Clock, ticks};

const REPETITIONS: usize = 15;
/// Number of packets of one repetition: a third each for parsed flows, for frames, and for the `HashMap`.
const PACKETS: usize = 6_000_000;
/// Numbers of flows, each with FlowScope's published rate with four threads, millions of packets per second.
const COUNTS: [(usize, f64); 5] = [
    (1_000, 13.3),
    (10_000, 14.1),
    (100_000, 14.5),
    (1_000_000, 9.05),
    (10_000_000, 8.62),
];

fn pin(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).unwrap();
}

/// Returns, for each packet, the index of the flow that was drawn for it: by Zipf's law if `by_zipf` is true, otherwise
/// uniformly.
fn drawn(flows: usize, by_zipf: bool, random: &mut fastrand::Rng) -> Vec<u32> {
    let mut sums = Vec::new();
    if by_zipf {
        let mut sum = 0.0;
        for rank in 1..=flows {
            sum += 1.0 / rank as f64;
            sums.push(sum);
        }
    }
    let draw = |_| match sums.last() {
        Some(all) => {
            let at = random.f64() * all;
            sums.partition_point(|it| *it < at).min(flows - 1) as u32
        }
        None => random.u32(..flows as u32),
    };
    (0..PACKETS).map(draw).collect()
}

/// Writes a frame of 64 bytes of flow number `flow`, as a NIC would have written it.
fn write_frame(frame: &mut [u8; 64], flow: u32) {
    *frame = [0; 64];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&46_u16.to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 6]);
    frame[26..30].copy_from_slice(&flow.to_be_bytes());
    frame[30..34].copy_from_slice(&[10, 0, 0, 1]);
    frame[34..38].copy_from_slice(&[0x9c, 0x40, 0, 80]);
    frame[46..48].copy_from_slice(&[0x50, 0x10]);
}

fn flow(number: u32) -> Flow {
    let mut frame = [0; 64];
    write_frame(&mut frame, number);
    seen(&frame, 0).flow
}

#[inline(always)]
fn seen(frame: &[u8; 64], time_ns: u64) -> Seen {
    let facts = Facts {
        time_ns,
        wire_bytes: 64,
        ..Facts::default()
    };
    Seen::of(&Record { facts, frame }).unwrap()
}

/// Formats the median of `values` with the first and third quartile.
fn shown(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
    format!("{:6.2} ({:.2} to {:.2})", at(0.5), at(0.25), at(0.75))
}

fn main() {
    pin(0);
    let clock = Clock::calibrate(Duration::from_millis(100));
    println!("million packets per second on one core, median of {REPETITIONS} and the middle half");
    let mut random = fastrand::Rng::with_seed(1);
    for (count, published) in COUNTS {
        let keys: Vec<_> = (0..count as u32).map(flow).collect();
        for (name, by_zipf) in [("uniform", false), ("Zipf", true)] {
            let numbers = drawn(count, by_zipf, &mut random);
            let mut flows = Flows::new(count);
            let mut time_ns = 1_000_000_000;
            let seen_of = |flow: Flow, time_ns| Seen {
                flow,
                tcp_flags: 16,
                bytes: 64,
                time_ns,
            };
            for key in &keys {
                flows.see(seen_of(*key, time_ns));
            }
            let mut results = vec![Vec::new(); 3];
            let mut map: HashMap<Flow, (u64, u64, u64)> = HashMap::with_capacity(count);
            for key in &keys {
                map.insert(*key, (0, 0, 0));
            }
            // Flows and frames of a batch are in the cache, as those of a freshly written ring are.
            let mut batch = vec![keys[0]; 4096];
            let mut frames = vec![[0; 64]; 4096];
            for _ in 0..REPETITIONS {
                // Each of the three measurements uses packets of its own, so that none finds data in the cache that
                // another has loaded.
                let mut spent = [(0, 0); 3];
                for (number, part) in numbers.chunks(4096).enumerate() {
                    for ((number, flow), frame) in part.iter().zip(&mut batch).zip(&mut frames) {
                        *flow = keys[*number as usize];
                        write_frame(frame, *number);
                    }
                    let begun = ticks();
                    match number % 3 {
                        0 => {
                            for flow in &batch[..part.len()] {
                                time_ns += 70;
                                flows.see(seen_of(*flow, time_ns));
                            }
                            flows.settle();
                        }
                        1 => {
                            for frame in &frames[..part.len()] {
                                time_ns += 70;
                                flows.see(seen(frame, time_ns));
                            }
                            flows.settle();
                        }
                        _ => {
                            for flow in &batch[..part.len()] {
                                time_ns += 70;
                                let it = map.entry(*flow).or_default();
                                *it = (it.0 + 1, it.1 + 64, time_ns);
                            }
                        }
                    }
                    let spent = &mut spent[number % 3];
                    *spent = (spent.0 + part.len(), spent.1 + ticks() - begun);
                }
                for (result, (packets, ticks)) in results.iter_mut().zip(spent) {
                    result.push(packets as f64 / clock.to_ns(ticks) * 1e3);
                }
            }
            let [known, read, in_map] = results.try_into().unwrap();
            let begun = ticks();
            let top = flows.top(10, time_ns);
            let answer_us = clock.to_ns(ticks() - begun) / 1e3;
            println!(
                "{count:8} flows, {name:7}: flows {}; frames {}; map {}; published {published} (4 threads); {} known, {} forgotten; \
                 the {} with most in {answer_us:.0} us",
                shown(known),
                shown(read),
                shown(in_map),
                flows.known(),
                flows.forgotten(),
                top.by_bytes.len()
            );
        }
    }
}
