//! How long a cache line takes from one core to the other and back: what two cores that hand packets over pay for every line
//! that both write. In a virtual machine it changes whenever the hypervisor moves a core.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use taut_measure::median;
use taut_sys::ticks;

/// Round trips that are timed together, and how often: about a millisecond in all.
const TRIPS: u64 = 100;
const BLOCKS: usize = 31;

/// A turn that does not come within so many looks was lost with its core; the block counts as disturbed by its length alone.
const LOOKS: u32 = 1 << 22;

/// A number on cache lines of its own: neighbours are fetched in pairs.
#[repr(align(128))]
struct Line(AtomicU64);

/// Returns the ticks that a line takes from the calling thread's core to `core` and back, the median of some blocks. None if
/// a thread cannot be had or pinned there, and if the other core did not answer.
pub fn round_trip_ticks(core: usize) -> Option<f64> {
    let (line, is_there) = (Line(AtomicU64::new(0)), AtomicBool::new(false));
    let turns = TRIPS * BLOCKS as u64;
    thread::scope(|scope| {
        let other = thread::Builder::new().name("line".to_owned());
        let answers = || {
            crate::pin_current_thread(core).ok()?;
            is_there.store(true, Ordering::Relaxed);
            (0..turns).try_for_each(|turn| pass_on(&line, 2 * turn + 1))
        };
        let other = other.spawn_scoped(scope, answers).ok()?;
        // A thread that cannot be pinned is gone at once.
        while !is_there.load(Ordering::Relaxed) && !other.is_finished() {
            thread::yield_now();
        }
        let mut blocks = Vec::with_capacity(BLOCKS);
        for block in 0..BLOCKS as u64 {
            let begun = ticks();
            for turn in block * TRIPS..(block + 1) * TRIPS {
                pass_on(&line, 2 * turn)?;
            }
            blocks.push(ticks().wrapping_sub(begun) as f64 / TRIPS as f64);
        }
        median(&blocks)
    })
}

/// Waits until the line says `number`, and makes it the next one.
fn pass_on(line: &Line, number: u64) -> Option<()> {
    for _ in 0..LOOKS {
        // The number is all that is shared: nothing else has to be seen before or after it.
        if line.0.load(Ordering::Relaxed) == number {
            line.0.store(number + 1, Ordering::Relaxed);
            return Some(());
        }
        std::hint::spin_loop();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_comes_back_from_a_core_that_there_is_and_none_from_others() {
        let cores: Vec<usize> = crate::allowed_cpus().into_iter().collect();
        assert_eq!(round_trip_ticks(usize::MAX), None);
        if let [here, other, ..] = cores[..] {
            crate::pin_current_thread(here).unwrap_or(());
            let trip = round_trip_ticks(other);
            assert!(trip.is_none_or(|trip| trip > 1.0), "{trip:?}");
        }
    }
}
