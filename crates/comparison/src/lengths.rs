//! The length of each part of a run, by mode.

use std::time::Duration;
use taut_bench::device::Device;
use taut_measure::SearchSettings;
use taut_results::{Mode, Transport};

/// The lengths of the parts of a run, in one mode.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Lengths {
    /// Length of the clock calibration, and of the noise measurement on both cores, before the run. It is short in
    /// modes with short runs, because an experiment consists of many runs.
    pub(super) before: Duration,
    /// Length of the warm-up at the constant rate, which brings caches and page tables into their steady state.
    pub(super) warm_up: Duration,
    /// Length of the trial at the constant rate; every packet is recorded.
    pub(super) constant_rate: Duration,
    /// Length of each trial of the sweep.
    pub(super) trial: Duration,
    /// Ratio of successive rates of the sweep.
    factor: f64,
    /// Number of bisections between the highest loss-free rate and the lowest rate with loss.
    bisections: u32,
}

impl Lengths {
    /// Returns the lengths of a mode. Repetitions are short by default, because many short ones give better intervals
    /// than few long ones.
    pub(super) fn of(mode: Mode) -> Self {
        let ms = Duration::from_millis;
        match mode {
            Mode::Quick => Self {
                before: ms(30),
                warm_up: ms(20),
                constant_rate: ms(300),
                trial: ms(20),
                factor: 2.2,
                bisections: 2,
            },
            Mode::Default => Self {
                before: ms(50),
                warm_up: ms(30),
                constant_rate: ms(400),
                trial: ms(25),
                factor: 2.0,
                bisections: 4,
            },
            Mode::Full => Self {
                before: ms(1_000),
                warm_up: ms(500),
                constant_rate: ms(60_000),
                trial: ms(5_000),
                factor: 1.4,
                bisections: 5,
            },
        }
    }

    /// Returns the settings of the sweep over offered rates for this device.
    pub(super) fn search(&self, device: &Device) -> SearchSettings {
        let (start_pps, max_pps) = match device.transport() {
            Transport::Memif | Transport::Vhost => (250_000.0, 60e6),
            Transport::Veth => (25_000.0, 10e6),
        };
        SearchSettings {
            start_pps,
            factor: self.factor,
            max_pps,
            lossy_trials_after_first: 1,
            bisections: self.bisections,
        }
    }
}
