//! CoDel: bounds the standing queue by dropping packets at its front at an increasing rate while they wait too long
//! (RFC 8289, section 5).

/// The state of CoDel for one queue. All times are cycles of [`taut_sys::ticks`].
#[derive(Debug)]
pub(crate) struct Codel {
    target: u64,
    interval: u64,
    /// Time, cycles, from which on packets may be dropped: an interval after their waiting time first reached the
    /// target. None while the waiting time is below the target or the queue is short.
    above_until: Option<u64>,
    is_dropping: bool,
    /// Earliest time, cycles, of the next drop in the dropping state.
    drop_next: u64,
    /// Number that CoDel increments with each drop, and that determines the time until the next drop. `last_count` is
    /// its value at the start of the current or latest dropping state.
    count: u64,
    last_count: u64,
}

impl Codel {
    pub(crate) fn new(target: u64, interval: u64) -> Self {
        Self {
            target,
            interval,
            above_until: None,
            is_dropping: false,
            drop_next: 0,
            count: 0,
            last_count: 0,
        }
    }

    /// Returns true if the packet at the front, which has waited for `waited` cycles, must be dropped. `is_little`
    /// means that the queue has no more bytes than one large packet.
    pub(crate) fn drops(&mut self, waited: u64, now: u64, is_little: bool) -> bool {
        let too_long = self.waits_too_long(waited, now, is_little);
        if self.is_dropping {
            self.is_dropping = too_long;
            let drops = too_long && now >= self.drop_next;
            if drops {
                self.count += 1;
                self.drop_next = self.next_after(self.drop_next);
            }
            return drops;
        }
        if too_long {
            self.is_dropping = true;
            // The last dropping state ended a short time ago, so start at about the drop rate that was sufficient then.
            let since = self.count - self.last_count;
            let is_recent = now.saturating_sub(self.drop_next) < 16 * self.interval;
            self.count = if since > 1 && is_recent { since } else { 1 };
            self.last_count = self.count;
            self.drop_next = self.next_after(now);
        }
        too_long
    }

    /// Returns true if the waiting time has stayed at or above the target for at least an interval.
    fn waits_too_long(&mut self, waited: u64, now: u64, is_little: bool) -> bool {
        if waited < self.target || is_little {
            self.above_until = None;
            return false;
        }
        now >= *self.above_until.get_or_insert(now + self.interval)
    }

    /// Returns the time of the next drop, cycles: `now` plus the interval divided by the square root of `count` (RFC
    /// 8289, section 5).
    fn next_after(&self, now: u64) -> u64 {
        now + (self.interval as f64 / (self.count as f64).sqrt()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const MS: u64 = 1_000;

    /// Simulates a queue whose packets arrive every `every` us and leave every 100 us. Returns how many packets were
    /// dropped, and the waiting times in us of those that left in the second half of the time.
    fn run(every: u64, codel: bool) -> (usize, Vec<u64>) {
        let mut state = Codel::new(5 * MS, 100 * MS);
        let (mut queue, mut dropped, mut waits) = (VecDeque::new(), 0, Vec::new());
        let end = 20_000 * MS;
        for now in 1..end {
            if now % every == 0 {
                queue.push_back(now);
            }
            if now % 100 == 0 {
                while let Some(came) = queue.pop_front() {
                    if codel && state.drops(now - came, now, queue.is_empty()) {
                        dropped += 1;
                        continue;
                    }
                    if now > end / 2 {
                        waits.push(now - came);
                    }
                    break;
                }
            }
        }
        (dropped, waits)
    }

    #[test]
    fn codel_drops_nothing_without_a_standing_queue() {
        assert_eq!(run(100, true).0, 0);
        assert_eq!(run(110, true).0, 0);
    }

    #[test]
    fn a_standing_queue_is_reduced_to_its_target() {
        // A load of 1% more than the capacity.
        let (none, long) = run(99, false);
        assert_eq!(none, 0);
        assert!(long.iter().all(|wait| *wait > 80 * MS));
        let (dropped, mut waits) = run(99, true);
        waits.sort_unstable();
        let median = waits[waits.len() / 2];
        assert!(median < 10 * MS, "{median}");
        assert!((1_500..4_000).contains(&dropped), "{dropped}");
    }

    #[test]
    fn a_burst_passes_and_the_last_packet_is_never_dropped() {
        let mut state = Codel::new(5 * MS, 100 * MS);
        // The waiting time is above the target, but for less than an interval.
        assert!((0..99).all(|ms| !state.drops(50 * MS, ms * MS, false)));
        assert!(!state.drops(MS, 99 * MS, false));
        assert!((100..199).all(|ms| !state.drops(50 * MS, ms * MS, false)));
        assert!((0..10_000).all(|ms| !state.drops(50 * MS, ms * MS, true)));
    }
}
