//! The lengths and repetitions of all trials, and their rates.

use std::time::Duration;
use taut_bench::framework::Transport;
use taut_results::Mode;

/// The lengths and repetitions of trials in one mode.
#[derive(Debug, Clone)]
pub(super) struct Lengths {
    /// Number of interleaved repetitions.
    pub(super) repetitions: u32,
    /// Length of each trial, without its warm-up.
    pub(super) trial: Duration,
}

impl Lengths {
    /// Returns the lengths and repetitions of a mode. A quick benchmark takes less than a minute, the default some
    /// minutes.
    pub(super) fn of(mode: Mode) -> Self {
        match mode {
            Mode::Quick => Self {
                repetitions: 2,
                trial: Duration::from_millis(200),
            },
            Mode::Default | Mode::Full => Self {
                repetitions: 6,
                trial: Duration::from_secs(1),
            },
        }
    }

    /// Returns the approximate duration of one trial.
    pub(super) fn estimate(&self, transport: Transport) -> Duration {
        let set_up = match transport {
            Transport::Veth => 600,
            _ => 450,
        };
        self.trial + Duration::from_millis(set_up)
    }
}

/// Rates of the reference (Gallenmüller 2021), and lower rates for slower transports, packets per second.
const RATES_PPS: [[f64; 3]; 4] = [
    [1e6, 2e6, 4e6],
    [100e3, 200e3, 400e3],
    [10e3, 50e3, 100e3],
    [1e3, 5e3, 10e3],
];

/// Highest requested rate, as a fraction of the highest rate of the slowest generator.
const ASKED_SHARE: f64 = 0.8;

/// Returns the rates for the comparison of precision: the highest triple that every pacing generator reaches, or the
/// lowest triple if a generator reaches none. `slowest_pps` is the highest rate of the slowest generator.
pub(super) fn rates(slowest_pps: f64) -> [f64; 3] {
    let [.., lowest] = RATES_PPS;
    let held = |rates: &&[f64; 3]| rates[2] <= slowest_pps * ASKED_SHARE;
    RATES_PPS.iter().find(held).copied().unwrap_or(lowest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_derive_from_the_rate_of_the_slowest_generator() {
        assert_eq!(rates(6e6), [1e6, 2e6, 4e6]);
        assert_eq!(rates(4.5e6), [100e3, 200e3, 400e3]);
        assert_eq!(rates(180e3), [10e3, 50e3, 100e3]);
        assert_eq!(rates(0.0), [1e3, 5e3, 10e3]);
    }
}
