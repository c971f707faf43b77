//! How many points, and how long each is measured.

use std::time::Duration;
use taut_results::Mode;

/// Workers publish their account so often, and a slice is to see it once.
const PUBLISHED: Duration = Duration::from_millis(100);

/// Lengths of one mode.
#[derive(Debug, Clone)]
pub struct Lengths {
    /// Design points of each kind of port.
    pub points: usize,
    /// Slices of a run that count.
    pub slices: u32,
    /// Length of a slice.
    pub slice: Duration,
}

impl Lengths {
    /// Quick: about 30 s; default: about 3 minutes; full: about 10.
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

    /// Takes runs of this length instead of the mode's, in slices no shorter than the worker's account is published.
    pub fn set_trial(&mut self, trial: Duration) {
        let slices = trial.as_secs_f64() / PUBLISHED.as_secs_f64();
        self.slices = (slices.round() as u32).max(1);
    }

    /// What of a run counts.
    pub fn trial(&self) -> Duration {
        self.slice * self.slices
    }

    /// About how long a run takes: the slices and their warm-ups, the start, and making the load exact.
    pub fn estimate(&self) -> Duration {
        (self.slice + Duration::from_millis(15)) * (self.slices + 2) + Duration::from_millis(60)
    }
}
