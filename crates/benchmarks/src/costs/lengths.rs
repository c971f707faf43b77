//! The number of design points, and how long each is measured.

use std::time::Duration;
use taut_results::Mode;

/// Interval at which workers publish their counters. A slice must contain at least one publication.
const PUBLISHED: Duration = Duration::from_millis(100);

/// The number of points and the lengths of runs in one mode.
#[derive(Debug, Clone)]
pub struct Lengths {
    /// Number of design points for each kind of port.
    pub points: usize,
    /// Number of slices of a run that are evaluated.
    pub slices: u32,
    /// Length of a slice, over which a worker's counters are compared.
    pub slice: Duration,
}

impl Lengths {
    /// Returns the lengths of a mode. A quick benchmark takes about 30 s, the default about 3 minutes, a full one about
    /// 10.
    pub fn of(mode: Mode) -> Self {
        let (points, slices) = match mode {
            Mode::Quick => (16, 3),
            Mode::Default => (36, 9),
            Mode::Full => (80, 15),
        };
        Self {
            points,
            slices,
            slice: PUBLISHED,
        }
    }

    /// Sets the length of runs, rounded to at least one slice. A slice stays as long as the interval at which the
    /// worker publishes its counters.
    pub fn set_trial(&mut self, trial: Duration) {
        let slices = trial.as_secs_f64() / PUBLISHED.as_secs_f64();
        self.slices = (slices.round() as u32).max(1);
    }

    /// Returns the length of the evaluated part of a run.
    pub fn trial(&self) -> Duration {
        self.slice * self.slices
    }

    /// Returns the approximate duration of a run: slices with warm-ups, the start, and the calibration of the load.
    pub fn estimate(&self) -> Duration {
        (self.slice + Duration::from_millis(15)) * (self.slices + 2) + Duration::from_millis(60)
    }
}
