//! The source of time for queues and idle workers: the machine's clock, or a virtual clock in tests.

use std::time::Duration;

/// A source of time for code that does not run for every packet or batch, so that calls through a pointer are cheap
/// enough. The worker's loop reads the TSC itself, and passes the value to code on its path.
#[derive(Clone, Copy)]
pub(crate) struct Time {
    /// Returns the current time, cycles.
    pub(crate) now: fn() -> u64,
    /// Sleeps for at least the given time.
    pub(crate) sleep: fn(Duration),
    /// Yields the core to other tasks.
    pub(crate) make_way: fn(),
}

impl Default for Time {
    /// Returns the source of time that reads the machine's clock.
    fn default() -> Self {
        Self {
            now: taut_sys::ticks,
            sleep: std::thread::sleep,
            make_way: std::thread::yield_now,
        }
    }
}

/// A virtual time that only a test advances. It has one cycle per nanosecond, and each thread has its own.
#[cfg(test)]
pub(crate) mod made_up {
    use super::Time;
    use std::cell::Cell;
    use std::time::Duration;
    use taut_sys::Clock;

    /// The clock of the virtual time.
    pub(crate) const CLOCK: Clock = Clock {
        hz: 1e9,
        error_ppm: 0.0,
    };

    thread_local! {
        static NOW: Cell<u64> = const { Cell::new(0) };
        static LATE_NS: Cell<u64> = const { Cell::new(0) };
    }

    /// Returns the virtual time source.
    pub(crate) fn time() -> Time {
        Time {
            now: || NOW.get(),
            sleep: |asked| pass(asked + Duration::from_nanos(LATE_NS.get())),
            make_way: || {},
        }
    }

    /// Advances the virtual time.
    pub(crate) fn pass(by: Duration) {
        NOW.set(NOW.get() + by.as_nanos() as u64);
    }

    /// Makes sleeps in virtual time end later than requested, by the time `by`.
    pub(crate) fn wake_late(by: Duration) {
        LATE_NS.set(by.as_nanos() as u64);
    }
}
