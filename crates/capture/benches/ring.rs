//! Measures the cost of storing a packet in a capture's ring, and the time until readers get the packet. Batches have
//! 32 packets, which are stored completely. Zero, one or two readers run on the other core, or two producers run. The
//! time from the arrival to a reader is also measured with buckets that are published as a whole, as in Gallenmüller
//! 2021. For comparison, the same bytes are copied into as much memory. The command is `cargo bench -p taut-capture
//! --bench ring`; append `-- 4 5` to use these CPUs instead of 0 and 1.
#![allow(clippy::unwrap_used)]

use rustix::thread::{CpuSet, sched_setaffinity};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_capture::record::Facts;
use taut_capture::ring::{BUCKET_BYTES, Ring, Start};
use taut_sys::{Clock, ticks};

const REPETITIONS: usize = 15;
const RING_BYTES: u64 = 512 << 20;
const BATCH: usize = 32;
const PACKETS: usize = 4_000_000;
const LENGTHS: [usize; 4] = [64, 128, 512, 1518];

/// Pins the calling thread to the first (`which` is 0) or the second of the two CPUs.
fn pin(which: usize) {
    let numbers = std::env::args().filter_map(|it| it.parse::<usize>().ok());
    let cpu = numbers.chain([0, 1]).nth(which).unwrap();
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    sched_setaffinity(None, &cpus).unwrap();
}

/// Returns the number of packets of `len` bytes that one producer stores: enough to fill the ring one and a half times,
/// up to four million.
fn packets(len: usize) -> usize {
    (RING_BYTES as usize * 3 / 2 / (len + 16)).min(PACKETS)
}

/// Stores packets of `len` bytes in the ring; returns the cycles per packet.
fn produce(ring: &Arc<Ring>, len: usize, port: u8) -> f64 {
    let frames: Vec<_> = (0..BATCH).map(|at| vec![at as u8; len]).collect();
    let mut producer = ring.producer(65_535);
    let mut facts = Facts {
        wire_bytes: len as u32,
        port,
        ..Facts::default()
    };
    let batches = packets(len) / BATCH;
    let begun = ticks();
    for batch in 0..batches {
        facts.time_ns = batch as u64 + 1;
        for frame in &frames {
            producer.put(facts, frame);
        }
        producer.publish();
    }
    (ticks() - begun) as f64 / (batches * BATCH) as f64
}

/// Measures [`produce`] with readers on the other core; returns the cycles per packet, and the number of packets that
/// were overwritten before a reader read them.
fn with_readers(ring: &Arc<Ring>, len: usize, readers: usize) -> (f64, u64) {
    let done = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..readers)
        .map(|_| {
            let (ring, done) = (Arc::clone(ring), Arc::clone(&done));
            let mut reader = ring.reader(Start::Now);
            std::thread::spawn(move || {
                pin(1);
                let mut bytes = 0;
                while !done.load(Ordering::Relaxed) {
                    let read = reader.read(u64::MAX, 4096, |it| bytes += u64::from(it.frame[0]));
                    // Reading without a pause would move the cache line into which the producer publishes away from the
                    // producer's core.
                    for _ in read..64 {
                        std::hint::spin_loop();
                    }
                }
                std::hint::black_box(bytes);
                reader.missed()
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(2));
    let cost = produce(ring, len, 0);
    done.store(true, Ordering::Relaxed);
    (cost, threads.into_iter().map(|it| it.join().unwrap()).sum())
}

/// Measures [`produce`] while a thread on the other core reads memory of its own without a pause. Such a thread has a
/// cost even without shared data, because the other core may be a hyperthread of the same core.
fn with_other_work(ring: &Arc<Ring>, len: usize) -> f64 {
    let done = Arc::new(AtomicBool::new(false));
    let thread = {
        let done = Arc::clone(&done);
        std::thread::spawn(move || {
            pin(1);
            let memory = vec![1_u8; 64 << 10];
            let mut sum = 0_u64;
            while !done.load(Ordering::Relaxed) {
                for frame in memory.chunks(80) {
                    sum += u64::from(std::hint::black_box(frame)[0]);
                }
            }
            std::hint::black_box(sum);
        })
    };
    std::thread::sleep(Duration::from_millis(2));
    let cost = produce(ring, len, 0);
    done.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    cost
}

/// Returns the total rate of two producers, each of which has a core of its own, divided by the rate of one producer
/// alone.
fn two_producers(ring: &Arc<Ring>, len: usize) -> f64 {
    let one = 1.0 / produce(ring, len, 0);
    let other = {
        let ring = Arc::clone(ring);
        std::thread::spawn(move || {
            pin(1);
            1.0 / produce(&ring, len, 1)
        })
    };
    let two = 1.0 / produce(ring, len, 0);
    (two + other.join().unwrap()) / one
}

/// Returns the cycles per packet to copy frames of `len` bytes into `memory`, without a ring.
fn copied(memory: &mut [u8], len: usize) -> f64 {
    let frames: Vec<_> = (0..BATCH).map(|at| vec![at as u8; len]).collect();
    let count = packets(len);
    let size = len.next_multiple_of(8) + 16;
    let mut at = 0;
    let begun = ticks();
    for number in 0..count {
        if at + size > memory.len() {
            at = 0;
        }
        memory[at + 16..at + 16 + len].copy_from_slice(&frames[number % BATCH]);
        at += size;
    }
    (ticks() - begun) as f64 / count as f64
}

/// Returns two times that begin with a packet's timestamp, ns: until the packet is readable on the other core, and
/// until the reader has received the packet. The reader gets the first packet of a batch; a batch of 32 arrives every
/// 32 µs.
fn until_readable(clock: &Clock, classic: bool) -> [Vec<f64>; 2] {
    // In this measurement, the times in the ring are cycles instead of nanoseconds.
    let hold = Duration::from_nanos(clock.to_ticks(0.3e9) as u64);
    let ring = match classic {
        true => Ring::classic(RING_BYTES, 0, BUCKET_BYTES, hold),
        false => Ring::new(RING_BYTES, 0, BUCKET_BYTES),
    };
    let ring = ring.unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let reader = {
        let (ring, done) = (Arc::clone(&ring), Arc::clone(&done));
        let clock = *clock;
        std::thread::spawn(move || {
            pin(1);
            let mut reader = ring.reader(Start::Now);
            let mut waits = [(); 2].map(|()| Vec::with_capacity(4_000_000));
            while !done.load(Ordering::Relaxed) {
                let mut seen = None;
                reader.read(u64::MAX, BATCH, |it| {
                    let now = ticks();
                    let seen = *seen.get_or_insert(now);
                    for (waits, at) in waits.iter_mut().zip([seen, now]) {
                        waits.push(clock.to_ns(at - it.facts.time_ns));
                    }
                });
            }
            waits
        })
    };
    let frame = [1; 64];
    let mut producer = ring.producer(64);
    let step = clock.to_ticks(32_000.0) as u64;
    let mut next = ticks() + step;
    for _ in 0..60_000 {
        while ticks() < next {
            std::hint::spin_loop();
        }
        next += step;
        let now = ticks();
        let facts = Facts {
            time_ns: now,
            wire_bytes: 64,
            ..Facts::default()
        };
        for _ in 0..BATCH {
            producer.put(facts, &frame);
        }
        producer.publish();
        producer.hand_over(now);
    }
    std::thread::sleep(Duration::from_millis(50));
    done.store(true, Ordering::Relaxed);
    let mut waits = reader.join().unwrap();
    waits.iter_mut().for_each(|it| it.sort_by(f64::total_cmp));
    waits
}

/// Formats the median of `values` with the first and third quartile.
fn shown(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
    format!("{:7.1} ({:.1} to {:.1})", at(0.5), at(0.25), at(0.75))
}

fn main() {
    pin(0);
    let clock = Clock::calibrate(Duration::from_millis(100));
    println!(
        "ticks per packet, median of {REPETITIONS} and the middle half; {:.2} GHz; a ring of {} MiB",
        clock.hz / 1e9,
        RING_BYTES >> 20
    );
    let ring = Ring::new(RING_BYTES, 0, BUCKET_BYTES).unwrap();
    let mut memory = vec![1; RING_BYTES as usize];
    for len in LENGTHS {
        let mut costs = vec![Vec::new(); 6];
        let mut ratios = Vec::new();
        let mut missed = [0; 2];
        for _ in 0..REPETITIONS {
            costs[0].push(copied(&mut memory, len));
            let alone = produce(&ring, len, 0);
            costs[1].push(alone);
            for readers in 1..=2 {
                let (cost, lost) = with_readers(&ring, len, readers);
                costs[1 + readers].push(cost);
                missed[readers - 1] += lost;
                if readers == 1 {
                    ratios.push(cost / alone);
                }
            }
            costs[4].push(two_producers(&ring, len));
            costs[5].push(with_other_work(&ring, len));
        }
        let gbytes = clock.hz / 1e9 * (len + 16) as f64;
        let mut alone = costs[1].clone();
        alone.sort_by(f64::total_cmp);
        println!("{len} bytes");
        println!("  a copy of the bytes    {}", shown(costs[0].clone()));
        println!(
            "  into the ring          {}   {:.1} GB/s",
            shown(costs[1].clone()),
            gbytes / alone[alone.len() / 2]
        );
        println!("  beside other work      {}", shown(costs[5].clone()));
        println!(
            "  with one reader        {}   ratio {}, {} missed",
            shown(costs[2].clone()),
            shown(ratios),
            missed[0]
        );
        println!(
            "  with two readers       {}   {} missed",
            shown(costs[3].clone()),
            missed[1]
        );
        println!("  two producers over one {}", shown(costs[4].clone()));
    }
    for (name, classic) in [("published at once", false), ("handed over whole", true)] {
        let [readable, read] = until_readable(&clock, classic);
        for (what, waits) in [("it can be read", readable), ("a reader has it", read)] {
            let at = |share: f64| waits[((waits.len() - 1) as f64 * share) as usize] / 1e3;
            println!(
                "until {what}, {name}: p50 {:.2} us, p99 {:.2} us, p99.9 {:.2} us, most {:.2} us, n = {}",
                at(0.5),
                at(0.99),
                at(0.999),
                at(1.0),
                waits.len()
            );
        }
    }
}
