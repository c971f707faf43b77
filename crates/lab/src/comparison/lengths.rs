//! How long each part of a run takes in each mode.

use crate::device::Device;
use std::time::Duration;
use taut_measure::SearchSettings;
use taut_results::{Mode, Transport};

/// Lengths of one mode.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Lengths {
    /// Before the run, once for the calibration of the clock and once for a look at what the machine takes from both cores. Short
    /// where runs are, as an experiment has many.
    pub(super) before: Duration,
    /// At the constant rate, not recorded, so that caches and page tables are as they will stay.
    pub(super) warm_up: Duration,
    /// At the constant rate, every packet recorded.
    pub(super) constant_rate: Duration,
    /// Each trial of the sweep.
    pub(super) trial: Duration,
    /// Step from one rate of the sweep to the next.
    factor: f64,
    /// Halvings between the highest loss-free rate and the lowest lossy one.
    bisections: u32,
}

impl Lengths {
    /// Short by default: many short repetitions rather than few long ones, as repetitions are what intervals come from.
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
                warm_up: ms(50),
                constant_rate: ms(600),
                trial: ms(30),
                factor: 1.7,
                bisections: 3,
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

    /// The rates of the sweep.
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
