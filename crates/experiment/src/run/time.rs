//! Time source of an experiment: the machine's clock, or virtual time in tests.

use std::time::{Duration, Instant};

/// A source of time: the machine's clock or virtual time.
#[derive(Clone, Copy)]
pub(crate) struct Time {
    now: fn() -> Instant,
    sleep: fn(Duration),
}

impl Default for Time {
    /// Returns the time source that reads the machine's clock.
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

    /// Returns the time that has passed since `moment`.
    pub(crate) fn since(self, moment: Instant) -> Duration {
        self.now().saturating_duration_since(moment)
    }

    pub(crate) fn sleep(self, time: Duration) {
        (self.sleep)(time);
    }
}

/// A virtual clock. It is separate for each thread, and advances only when the thread sleeps or a test advances it.
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

    /// Returns the virtual time source.
    pub(crate) fn time() -> Time {
        Time {
            now: || *BEGAN + PASSED.get(),
            sleep: pass,
        }
    }

    /// Returns the virtual time that has passed on this thread.
    pub(crate) fn passed() -> Duration {
        PASSED.get()
    }

    /// Advances the virtual time of this thread.
    pub(crate) fn pass(by: Duration) {
        PASSED.set(PASSED.get() + by);
    }
}
