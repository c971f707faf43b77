//! A rate limit on actions, such as sending ICMP errors: a burst of actions, and then a minimum interval between them.

/// A token bucket. The caller supplies the time, in any unit.
#[derive(Debug)]
pub struct Budget {
    left: u64,
    at_once: u64,
    /// The time between two tokens, in units of the caller's clock.
    apart: u64,
    /// The time up to which tokens have been added, by the caller's clock.
    since: u64,
}

impl Budget {
    /// Creates a full bucket of `at_once` tokens, which gains one token each time that `apart` has passed. `now` is the
    /// time by the caller's clock.
    pub fn new(at_once: u64, apart: u64, now: u64) -> Self {
        Self {
            left: at_once,
            at_once,
            apart: apart.max(1),
            since: now,
        }
    }

    /// Removes a token from the bucket at the time `now`; returns false if the bucket is empty.
    pub fn admits(&mut self, now: u64) -> bool {
        let earned = now.saturating_sub(self.since) / self.apart;
        if earned > 0 {
            self.left = self.left.saturating_add(earned).min(self.at_once);
            self.since += earned * self.apart;
        }
        let admits = self.left > 0;
        self.left -= u64::from(admits);
        admits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_admits_a_burst_and_then_a_steady_rate() {
        let mut budget = Budget::new(50, 10, 1_000);
        let mut admitted = |now: u64| (0..1000).filter(|_| budget.admits(now)).count();
        assert_eq!(admitted(1_000), 50);
        // Time that is too short for one more token counts towards the next token.
        assert_eq!([1_009, 1_039, 1_040].map(&mut admitted), [0, 3, 1]);
        assert_eq!(admitted(100_000), 50);
        // A clock that runs backwards adds no tokens.
        assert_eq!(admitted(0), 0);
        assert_eq!(admitted(u64::MAX), 50);
    }
}
