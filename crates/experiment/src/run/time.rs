//! Time as an experiment sees it: the machine's, or one that a test makes up.

use std::time::{Duration, Instant};

/// Source of time.
#[derive(Clone, Copy)]
pub(crate) struct Time {
    now: fn() -> Instant,
    sleep: fn(Duration),
}

impl Default for Time {
    /// Returns the machine's time.
    fn default() -> Self {
        Self {
            now: Instant::now,
            sleep: std::thread::sleep,
        }
    }
}

impl Time {
    pub(crate) fn now(self) -> Instant {
        (self.now)()
    }

    /// Returns how long ago a moment was.
    pub(crate) fn since(self, moment: Instant) -> Duration {
        self.now().saturating_duration_since(moment)
    }

    pub(crate) fn sleep(self, time: Duration) {
        (self.sleep)(time);
    }
}

/// Time that passes only where somebody sleeps or a test says so, for each thread its own.
#[cfg(test)]
pub(crate) mod made_up {
    use super::Time;
    use std::cell::Cell;
    use std::sync::LazyLock;
    use std::time::{Duration, Instant};

    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

    thread_local! {
        static PASSED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    /// Returns the time.
    pub(crate) fn time() -> Time {
        Time {
            now: || *BEGAN + PASSED.get(),
            sleep: pass,
        }
    }

    /// Returns how much of it has passed on this thread.
    pub(crate) fn passed() -> Duration {
        PASSED.get()
    }

    /// Lets time pass.
    pub(crate) fn pass(by: Duration) {
        PASSED.set(PASSED.get() + by);
    }
}
