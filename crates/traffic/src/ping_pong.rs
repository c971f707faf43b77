//! Round trip of a cache line that two cores pass back and forth: the lower bound of every latency between them.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use taut_sys::{Clock, ticks};

/// Number of round trips that are timed together, so that the time for reading the clock is negligible.
const BLOCK: u64 = 64;

/// Longest time of a measurement, ns. Two threads that share a core wait for the scheduler at each round trip: the
/// measurement then ends with the round trips measured by then.
const LONGEST_NS: f64 = 500e6;

/// Round trip of a cache line between two cores.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PingPong {
    /// Median, over the blocks of 64 round trips, of the mean round trip in a block, ns.
    pub p50_ns: f64,
    /// Number of measured round trips.
    pub count: u64,
}

/// A value that is alone in its cache line and in the neighbouring line, which prefetchers load together with the
/// first.
#[repr(align(128))]
struct Line(AtomicU64);

/// Measures `blocks` blocks of 64 round trips between the calling thread and a second thread, which first runs
/// `pin_other`. After half a second it stops early, with at least one block.
pub fn ping_pong(clock: &Clock, blocks: usize, pin_other: impl FnOnce() + Send) -> PingPong {
    let (ping, pong) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let stop = AtomicBool::new(false);
    let mut block_ticks = Vec::with_capacity(blocks);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin_other();
            let mut last = 0;
            while !stop.load(Ordering::Relaxed) {
                let value = ping.0.load(Ordering::Acquire);
                if value != last {
                    pong.0.store(value, Ordering::Release);
                    last = value;
                }
            }
        });
        let mut value = 0;
        let end = ticks() + clock.to_ticks(LONGEST_NS) as u64;
        for _ in 0..blocks {
            let begun = ticks();
            if begun > end {
                break;
            }
            for _ in 0..BLOCK {
                value += 1;
                ping.0.store(value, Ordering::Release);
                while pong.0.load(Ordering::Acquire) != value {
                    std::hint::spin_loop();
                }
            }
            block_ticks.push(ticks() - begun);
        }
        stop.store(true, Ordering::Relaxed);
    });
    block_ticks.sort_unstable();
    let median = block_ticks.get(block_ticks.len() / 2).copied().unwrap_or(0);
    PingPong {
        p50_ns: clock.to_ns(median) / BLOCK as f64,
        count: block_ticks.len() as u64 * BLOCK,
    }
}
