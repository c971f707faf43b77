//! Time as queues and idle workers see it: the machine's, or one that a test makes up.

use std::time::Duration;

/// Source of time for what is not called for every packet or batch, where a call through a pointer costs nothing that counts. The
/// worker's loop reads the processor's counter itself, and hands the rules on its way what it read.
#[derive(Clone, Copy)]
pub(crate) struct Time {
    /// Returns the ticks of now.
    pub(crate) now: fn() -> u64,
    /// Sleeps so long, or longer.
    pub(crate) sleep: fn(Duration),
    /// Lets others run who want the core.
    pub(crate) make_way: fn(),
}

impl Default for Time {
    /// Returns the machine's time.
    fn default() -> Self {
        Self {
            now: taut_sys::ticks,
            sleep: std::thread::sleep,
            make_way: std::thread::yield_now,
        }
    }
}

/// Time in which nothing happens but what a test says, one tick a nanosecond, for each thread its own.
#[cfg(test)]
pub(crate) mod made_up {
    use super::Time;
    use std::cell::Cell;
    use std::time::Duration;
    use taut_sys::Clock;

    /// The clock of that time.
    pub(crate) const CLOCK: Clock = Clock {
        hz: 1e9,
        error_ppm: 0.0,
    };

    thread_local! {
        static NOW: Cell<u64> = const { Cell::new(0) };
        static LATE_NS: Cell<u64> = const { Cell::new(0) };
    }

    /// Returns the time.
    pub(crate) fn time() -> Time {
        Time {
            now: || NOW.get(),
            sleep: |asked| pass(asked + Duration::from_nanos(LATE_NS.get())),
            make_way: || {},
        }
    }

    /// Lets time pass.
    pub(crate) fn pass(by: Duration) {
        NOW.set(NOW.get() + by.as_nanos() as u64);
    }

    /// Has sleeps end so much later than they were to.
    pub(crate) fn wake_late(by: Duration) {
        LATE_NS.set(by.as_nanos() as u64);
    }
}
