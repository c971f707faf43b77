//! What the machine takes from a busy loop: the noise under every tail that is measured on it.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use taut_port::{Clock, ticks};

/// Gaps longer than this are somebody else's: an iteration of the loop takes some nanoseconds.
const SHORTEST_NS: f64 = 1_000.0;

/// How often and for how long a loop that does nothing but read the clock was interrupted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Interruptions {
    /// Length of the observation, s.
    pub seconds: f64,
    /// Gaps longer than 1 µs.
    pub over_1_us: u64,
    /// Gaps longer than 10 µs.
    pub over_10_us: u64,
    /// Gaps longer than 100 µs.
    pub over_100_us: u64,
    /// Gaps longer than 1 ms.
    pub over_1_ms: u64,
    /// Longest gap, ns.
    pub longest_ns: f64,
    /// Share of the time that went into gaps longer than 1 µs, 0 to 1.
    pub share: f64,
}

/// Watches the calling thread's core for `duration` with a busy loop.
pub fn interruptions(clock: &Clock, duration: Duration) -> Interruptions {
    let mut found = Interruptions {
        seconds: duration.as_secs_f64(),
        ..Interruptions::default()
    };
    let shortest_ticks = clock.to_ticks(SHORTEST_NS) as u64;
    let start = ticks();
    let end = start + clock.to_ticks(duration.as_nanos() as f64) as u64;
    let (mut last, mut lost_ns) = (start, 0.0);
    while last < end {
        let now = ticks();
        if now - last > shortest_ticks {
            let gap_ns = clock.to_ns(now - last);
            lost_ns += gap_ns;
            found.over_1_us += 1;
            found.over_10_us += u64::from(gap_ns > 1e4);
            found.over_100_us += u64::from(gap_ns > 1e5);
            found.over_1_ms += u64::from(gap_ns > 1e6);
            found.longest_ns = found.longest_ns.max(gap_ns);
        }
        last = now;
    }
    found.share = lost_ns / clock.to_ns(last - start).max(1.0);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_gaps_are_counted_among_the_shorter_ones() {
        let clock = Clock::calibrate(Duration::from_millis(2));
        let found = interruptions(&clock, Duration::from_millis(20));
        assert!(found.over_1_us >= found.over_10_us && found.over_10_us >= found.over_100_us);
        assert!(found.over_100_us >= found.over_1_ms);
        assert!((0.0..=1.0).contains(&found.share));
        assert_eq!(found.over_1_us == 0, found.longest_ns == 0.0);
    }
}
