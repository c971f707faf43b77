//! Searches for the limits of a control loop: the largest delay, jitter, loss, loss burst and push with which the plant
//! still balances.
//!
//! Gallenmüller's dissertation (section 6.1) calls this search the challenge, and calls the metrics of a push
//! "disturbance indicators". It defines both and measures neither. Each seed determines the sensor errors and the
//! network behaviour of a search of its own. Confidence intervals are those of the median over the seeds.

use crate::kpi::{Recovered, recovered};
use crate::model::ModelError;
use crate::simulation::{Scenario, simulate};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use taut_measure::{Interval, median_interval};

/// The quantity that a search increases until the plant falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Axis {
    /// Constant delay, the sum of both directions, ms.
    Delay,
    /// Largest random additional delay, the sum of both directions, drawn uniformly, ms.
    Jitter,
    /// Percentage of the exchanges that are lost, each independently at random.
    Loss,
    /// Number of consecutive exchanges that are lost in each burst; a burst begins every 60 exchanges.
    Burst,
    /// Strength of one push: the sudden change of the balanced state's rate, in the unit of the plant's results per
    /// second.
    Push,
}

impl Axis {
    /// All quantities that can be searched.
    pub const ALL: [Self; 5] = [
        Self::Delay,
        Self::Jitter,
        Self::Loss,
        Self::Burst,
        Self::Push,
    ];

    /// Returns the largest value that a search tries for a plant with the given sampling period, and the resolution of
    /// the search.
    fn range(self, period_ns: u64) -> (f64, f64) {
        match self {
            Self::Delay | Self::Jitter => {
                // The robot's range ends at one second; the range of slower plants is proportionally longer.
                let seconds = (period_ns as f64 / 35e6).ceil();
                (seconds * 1000.0, seconds * 0.5)
            }
            Self::Loss => (100.0, 0.5),
            Self::Burst => (50.0, 1.0),
            Self::Push => (1000.0, 1.0),
        }
    }

    /// Returns the unit of the values; for a push it is the unit of the plant's results per second.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Delay | Self::Jitter => "ms",
            Self::Loss => "%",
            Self::Burst => "rounds",
            Self::Push => "per second",
        }
    }

    /// Returns a copy of `scenario` in which this quantity is increased by `value`.
    fn applied(self, scenario: &Scenario, value: f64) -> Scenario {
        let mut scenario = scenario.clone();
        let each_ns = (value / 2.0 * 1e6) as u64;
        let link = &mut scenario.link;
        match self {
            Self::Delay => link.delay_ns += each_ns,
            Self::Jitter => link.jitter_ns += each_ns,
            Self::Loss => link.loss = value / 100.0,
            Self::Burst => {
                link.burst = value as u32;
                link.every = if value < 1.0 { 0 } else { BETWEEN_BURSTS };
            }
            Self::Push => {
                let at_ns = scenario.model.period_ns() * PUSH_AFTER_PERIODS;
                scenario.push = Some((at_ns, value));
            }
        }
        scenario
    }
}

/// Number of exchanges from the beginning of a burst to the beginning of the next.
const BETWEEN_BURSTS: u32 = 60;
/// Number of periods before a push, in which the loop settles.
const PUSH_AFTER_PERIODS: u64 = 100;
/// The first value that a search tries, in multiples of the search's resolution. The search then doubles the value.
const FIRST_STEPS: f64 = 4.0;
/// Probability with which intervals cover the median.
const CONFIDENCE: f64 = 0.95;
/// Largest deviation from balance at which a pushed plant counts as recovered, as a fraction of the deviation at which
/// it falls: for the robot, one degree.
const BAND: f64 = 1.0 / 45.0;

/// The limit that was found for one quantity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Found {
    /// The quantity whose limit was searched, such as the delay.
    pub axis: Axis,
    /// Unit of `values`.
    pub unit: String,
    /// Largest value with which the plant balanced, one per seed; -1 if the plant fell even with the value 0.
    pub values: Vec<f64>,
    /// Median of `values`, with its confidence interval; `None` with too few seeds for an interval.
    pub largest: Option<Interval>,
    /// True if the plant balanced for all seeds with the largest value that was tried: the limit may be higher.
    pub at_least: bool,
    /// Time to recover from half of the largest push, s, one per seed; empty for other quantities.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recovery_s: Vec<f64>,
    /// Energy of the recovery from half of the largest push, one per seed: the time integral of the inputs' square,
    /// minus that of the same run without a push.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recovery_energy: Vec<f64>,
}

impl Found {
    /// Adds the results of a search for the same quantity with other seeds.
    pub fn with(mut self, other: Self) -> Self {
        self.values.extend(other.values);
        self.recovery_s.extend(other.recovery_s);
        self.recovery_energy.extend(other.recovery_energy);
        self.at_least &= other.at_least;
        self.largest = median_interval(&self.values, CONFIDENCE);
        self
    }
}

/// Searches, for each seed, the largest value with which the plant of a scenario balances until the run ends.
///
/// # Errors
/// The controller does not support this plant.
pub fn largest(scenario: &Scenario, axis: Axis, seeds: &[u64]) -> Result<Found, ModelError> {
    let (most, step) = axis.range(scenario.model.period_ns());
    let mut found = Found {
        axis,
        unit: axis.unit().to_owned(),
        values: Vec::new(),
        largest: None,
        at_least: !seeds.is_empty(),
        recovery_s: Vec::new(),
        recovery_energy: Vec::new(),
    };
    for seed in seeds {
        let mut scenario = scenario.clone();
        scenario.seed = *seed;
        let balances = |value: f64| -> Result<bool, ModelError> {
            let run = simulate(&axis.applied(&scenario, value))?;
            Ok(run.fallen_ns.is_none() && !run.records.is_empty())
        };
        let value = search(most, step, balances)?;
        found.at_least &= value >= most;
        found.values.push(value);
        if axis == Axis::Push && value > 0.0 {
            let half = value / 2.0;
            let pushed = axis.applied(&scenario, half);
            let (with, without) = (simulate(&pushed)?, simulate(&scenario)?);
            let band = {
                let parts = scenario.model.parts();
                BAND * parts.bound * parts.scale[0]
            };
            // A simulation begins at 1 ms, because a timestamp of 0 means unknown.
            let push_ns = pushed.push.map_or(0, |(ns, _)| ns + 1_000_000);
            if let Some(Recovered { seconds, .. }) = recovered(&with.records, push_ns, band) {
                found.recovery_s.push(seconds);
                found.recovery_energy.push(with.energy - without.energy);
            }
        }
    }
    found.largest = median_interval(&found.values, CONFIDENCE);
    Ok(found)
}

/// Returns the largest multiple of `step` up to `most` for which `holds` is true; -1 if it is false at 0. `holds` must
/// be true for all smaller values and false for all larger ones.
fn search<E>(
    most: f64,
    step: f64,
    mut holds: impl FnMut(f64) -> Result<bool, E>,
) -> Result<f64, E> {
    if !holds(0.0)? {
        return Ok(-1.0);
    }
    let (mut good, mut next) = (0.0, FIRST_STEPS);
    let steps = most / step;
    let mut bad = loop {
        let tried = f64::min(next, steps);
        if !holds(tried * step)? {
            break tried;
        }
        good = tried;
        if tried >= steps {
            return Ok(most);
        }
        next *= 2.0;
    };
    while bad - good > 1.0 {
        let middle = ((good + bad) / 2.0).floor();
        if holds(middle * step)? {
            good = middle;
        } else {
            bad = middle;
        }
    }
    Ok(good * step)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_search_finds_the_largest_value_that_satisfies_its_condition() {
        for limit in [0.0, 0.5, 2.0, 7.5, 99.5, 100.0] {
            let found = search(100.0, 0.5, |value| Ok::<_, ()>(value <= limit)).unwrap();
            assert_eq!(found, limit);
        }
        assert_eq!(search(100.0, 0.5, |_| Ok::<_, ()>(false)).unwrap(), -1.0);
    }
}
