//! How long and how often everything is tried, and at which rates.

use crate::io_cost::Transport;
use std::time::Duration;
use taut_results::Mode;

/// Lengths of one mode.
#[derive(Debug, Clone)]
pub(super) struct Lengths {
    /// Interleaved repetitions of everything.
    pub(super) repetitions: u32,
    /// What each trial takes in.
    pub(super) trial: Duration,
}

impl Lengths {
    /// Quick: under a minute; default: minutes.
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

    /// About how long one trial takes.
    pub(super) fn estimate(&self, transport: Transport) -> Duration {
        let set_up = match transport {
            Transport::Veth => 600,
            _ => 450,
        };
        self.trial + Duration::from_millis(set_up)
    }
}

/// Rates of the reference, and lower ones for transports that carry less.
const RATES_PPS: [[f64; 3]; 4] = [
    [1e6, 2e6, 4e6],
    [100e3, 200e3, 400e3],
    [10e3, 50e3, 100e3],
    [1e3, 5e3, 10e3],
];

/// Of what the slowest generator sends at most, what is asked at most.
const ASKED_SHARE: f64 = 0.8;

/// The rates at which precision is compared: the highest triple that every generator that can be asked for
/// a rate can hold.
pub(super) fn rates(slowest_pps: f64) -> [f64; 3] {
    let [.., lowest] = RATES_PPS;
    let held = |rates: &&[f64; 3]| rates[2] <= slowest_pps * ASKED_SHARE;
    RATES_PPS.iter().find(held).copied().unwrap_or(lowest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_that_the_slowest_can_hold() {
        assert_eq!(rates(6e6), [1e6, 2e6, 4e6]);
        assert_eq!(rates(4.5e6), [100e3, 200e3, 400e3]);
        assert_eq!(rates(180e3), [10e3, 50e3, 100e3]);
        assert_eq!(rates(0.0), [1e3, 5e3, 10e3]);
    }
}
