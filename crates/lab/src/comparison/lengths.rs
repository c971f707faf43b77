//! How long each part takes in each mode.

use crate::device::{Device, DeviceKind};
use std::time::Duration;
use taut_measure::SearchSettings;
use taut_results::{Mode, Transport};

/// Lengths of one mode.
#[derive(Debug, Clone, PartialEq)]
pub struct Lengths {
    /// Interleaved repetitions of all devices.
    pub repetitions: u32,
    /// At the constant rate, not recorded, so that caches and page tables are as they will stay.
    pub warm_up: Duration,
    /// At the constant rate, every packet recorded.
    pub constant_rate: Duration,
    /// Each trial of the sweep.
    pub trial: Duration,
    /// Step from one rate of the sweep to the next.
    factor: f64,
    /// Halvings between the highest loss-free rate and the lowest lossy one.
    bisections: u32,
}

impl Lengths {
    /// Quick: under 40 s; full: minutes per device and repetition; in between as often and as long at the constant
    /// rate as it is told. Many short repetitions rather than few long ones: repetitions are what intervals come from.
    pub fn of(mode: Mode, repetitions: u32, constant_rate: Duration) -> Self {
        let ms = Duration::from_millis;
        match mode {
            Mode::Quick => Self {
                repetitions: 2,
                warm_up: ms(20),
                constant_rate: ms(300),
                trial: ms(20),
                factor: 2.2,
                bisections: 2,
            },
            Mode::Default => Self {
                repetitions,
                warm_up: ms(50),
                constant_rate,
                trial: ms(30),
                factor: 1.7,
                bisections: 3,
            },
            Mode::Full => Self {
                repetitions: 10,
                warm_up: ms(500),
                constant_rate: ms(60_000),
                trial: ms(5_000),
                factor: 1.4,
                bisections: 5,
            },
        }
    }

    /// The rates of the sweep.
    pub fn search(&self, device: &Device) -> SearchSettings {
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

    /// About how long one repetition of a device takes.
    pub fn estimate(&self, device: &Device) -> Duration {
        let search = self.search(device);
        // Devices here saturate at around a third of the ladder's range; failed trials are repeated.
        let rungs = (search.max_pps / search.start_pps).ln() / self.factor.ln() * 0.75;
        let trials = rungs + 4.0 + 2.0 * f64::from(self.bisections);
        let set_up = Duration::from_millis(match (device.kind, device.transport()) {
            // Programs that take a second to come up.
            (DeviceKind::Baseline(_), _) => 2_000,
            (_, Transport::Memif | Transport::Vhost) => 150,
            (_, Transport::Veth) => 500,
        });
        set_up
            + self.warm_up
            + self.constant_rate
            + (self.trial + Duration::from_millis(20)).mul_f64(trials)
    }
}
