//! The disturbance of a measurement: how many packets other programs, or missing packets, may have affected.

use super::Device;
use serde::Deserialize;
use taut_bench::evaluate::share_of;
use taut_host::SystemActivity;
use taut_measure::{Interval, LEAST_PAIRS, disturbed_share, median, quantity};
use taut_results::{CbrResult, MOST_TAKEN, Run, taken_text};

/// Minimum fraction of the scheduled packets that must come back for a comparison of means and rates.
const LEAST_RECEIVED: f64 = 0.97;

/// The disturbance of one repetition at the constant rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Disturbance {
    /// Largest fraction of the time of a core that other programs took, 0..1. It is the larger one of two values. A
    /// busy loop measured the first one before the run. The second one is the time of the interruptions that were
    /// logged during the run, limited to the processor time of other programs.
    pub taken: f64,
    /// Fraction of the scheduled packets that did not come back, 0..1.
    pub missing: f64,
}

impl Disturbance {
    pub(super) fn of(run: &Run, cbr: &CbrResult) -> Self {
        let seconds = cbr.sent as f64 / cbr.sent_pps;
        let logs = run.interruptions.iter();
        let cores = logs.flat_map(|of| std::iter::once(&of.generator).chain(&of.device));
        let activity = SystemActivity::deserialize(&cbr.activity);
        let most = activity.map_or(0.0, |activity| activity.most_taken());
        let shares = cores.map(|core| share_of(core, seconds).min(most));
        let received = cbr.received_pps / cbr.offered_pps;
        let missing = if received.is_finite() {
            1.0 - received
        } else {
            1.0
        };
        Self {
            taken: shares.chain(run.taken).fold(0.0_f64, f64::max).min(1.0),
            missing: missing.clamp(0.0, 1.0),
        }
    }

    /// Returns the largest fraction of the packets whose latency may be wrong or unknown, 0..1.
    pub fn disturbed(self) -> f64 {
        disturbed_share(self.taken, self.missing)
    }
}

impl Device {
    /// Returns the fraction of a core's time that other programs took while the device was measured, 0..1: the median
    /// over the repetitions, 0 without repetitions.
    pub fn taken(&self) -> f64 {
        let taken: Vec<f64> = self.disturbances.values().map(|it| it.taken).collect();
        median(&taken).unwrap_or_default()
    }

    /// Describes the fraction of a core's time that other programs took, and names the programs that used the most.
    fn taken_text(&self) -> String {
        taken_text(self.taken(), &self.busiest())
    }

    /// Returns the names of up to two other programs that used noticeable processor time at the constant rate.
    fn busiest(&self) -> Vec<String> {
        // Results of versions before 0.3 name no other programs.
        let activities = self
            .cbr
            .values()
            .filter_map(|cbr| SystemActivity::deserialize(&cbr.activity).ok());
        let all = activities.reduce(SystemActivity::join);
        all.map_or_else(Vec::new, |all| all.busiest())
    }

    /// Returns the reason why means, maxima and rates of this device are not comparable: other programs took too much
    /// time of a core, or too few packets came back. Returns `None` if neither is the case.
    pub fn disturbance(&self) -> Option<String> {
        if self.taken() > MOST_TAKEN {
            return Some(self.taken_text());
        }
        let missing: Vec<f64> = self.disturbances.values().map(|it| it.missing).collect();
        let missing = median(&missing)?;
        (missing > 1.0 - LEAST_RECEIVED).then(|| {
            format!(
                "{} of the offered packets did not come back",
                quantity::share(missing)
            )
        })
    }
}

/// Returns the reason why the ratio of two devices is not reported; `None` if it is reported. A ratio needs an interval
/// that excludes 1 or is narrow. Except for quantiles with bounds (`is_robust`), it also needs two undisturbed devices.
pub(super) fn withheld(
    found: &Interval,
    is_robust: bool,
    over: &Device,
    under: &Device,
) -> Option<String> {
    let of_device = |device: &Device| {
        let reason = device.disturbance()?;
        Some(format!("{reason} while {} was measured", device.info.id))
    };
    if !is_robust && let Some(reason) = of_device(over).or_else(|| of_device(under)) {
        return Some(reason);
    }
    if found.says_something() {
        return None;
    }
    if found.count < LEAST_PAIRS {
        return Some("a ratio needs three repetitions of both devices".to_owned());
    }
    let busier = if over.taken() > under.taken() {
        over
    } else {
        under
    };
    let bounds = if found.low > 1e-3 && found.high < 1e3 {
        found.ends(quantity::ratio)
    } else {
        "any size".to_owned()
    };
    Some(if is_robust && busier.taken() > MOST_TAKEN / 10.0 {
        format!("{}, so it may be {bounds}", busier.taken_text())
    } else {
        format!("the repetitions differ too much: {bounds}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_time_and_missing_packets_disturb_a_measurement() {
        let of = |taken, missing| Disturbance { taken, missing }.disturbed();
        assert_eq!(of(0.02, 0.04), 0.08);
        assert_eq!(of(0.9, 0.4), 1.0);
    }
}
