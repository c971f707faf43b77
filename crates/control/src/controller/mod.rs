//! Controllers: inputs from what a plant reports, for now and for ten periods to come.
//!
//! NCSbench's (Gallenmüller, dissertation, section 6.2) weighs the states as they were read, although what comes of it is
//! applied 30 ms later, and sends along what it would say in ten periods to come if it heard no more. The others say for the
//! moment at which they will be applied, by what the plant reports of the last round.

mod estimate;
mod gains;
mod riccati;

pub use estimate::{Filter, PULL_S};
pub use gains::{gain_for_delay, gain_of};
pub use riccati::{Cost, filter_gain, gain, riccati, sampled_gain};

use crate::model::{Inputs, MOST_INPUTS, Model, ModelError};
use crate::protocol::{Command, Report, SLOTS};
use crate::steps::{Steps, eigenvalues};
use estimate::Estimator;
use nalgebra::{DMatrix, DVector};
use std::collections::{BTreeMap, VecDeque};

/// What inputs are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// The gain on the states as they were read, whatever the delay.
    Fixed,
    /// The gain on the states as they will be when the inputs are applied.
    #[default]
    Compensated,
    /// Gains for the measured delay: the states some whole periods ahead, and the inputs that hold until then.
    Scheduled,
    /// A Smith predictor (Smith 1957): the model without the delay in place of the plant. For plants that are stable by
    /// themselves or only drift.
    Smith,
}

/// What NCSbench's controller and robot do that makes its compensation of the delay less than it could be. Off unless asked
/// for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Inputs for now are made of the states as they were read; where they will be, is computed and only used for the
    /// predictions.
    pub undelayed_state: bool,
    /// The first prediction that is applied repeats the current inputs, and each later one comes a period late. This one
    /// is of the robot's side.
    pub repeated_slot: bool,
    /// Predictions go on from the clipped numbers that are sent, not from what the motors make of them.
    pub clipped_scalars: bool,
}

impl Faults {
    /// All of them, as the original has them.
    pub const ORIGINAL: Self = Self {
        undelayed_state: true,
        repeated_slot: true,
        clipped_scalars: true,
    };
}

/// How a controller works.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Settings {
    /// What inputs are made of.
    pub strategy: Strategy,
    /// How states are found.
    pub filter: Filter,
    /// Faults of the original.
    pub faults: Faults,
    /// Delay from reading to applying that is assumed until one is measured, ns.
    pub expected_delay_ns: u64,
    /// Whether the plant is lifted first, as NCSbench's robot is.
    pub lifted: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            strategy: Strategy::default(),
            filter: Filter::default(),
            faults: Faults::default(),
            expected_delay_ns: crate::station::APPLY_NS,
            lifted: false,
        }
    }
}

/// Share of a new measurement in the delay that is reckoned with.
const DELAY_SHARE: f64 = 0.2;
/// Longest delay that is reckoned with, in periods: what is sent is remembered as long.
const MOST_PERIODS: u64 = 64;
/// Delays are told apart in steps of a period's this part, so that there are as many gains at most.
const DELAY_STEPS: u64 = 32;
/// Greatest real part of a pole, 1/s, of a plant that only drifts.
const DRIFTS: f64 = 1e-6;

/// A controller of one plant.
#[derive(Debug, Clone)]
pub struct Controller {
    model: Model,
    settings: Settings,
    estimator: Estimator,
    steps: Steps,
    /// A whole period, which predictions take ten of.
    period: (DMatrix<f64>, DMatrix<f64>),
    gain: DMatrix<f64>,
    scheduled: BTreeMap<u64, DMatrix<f64>>,
    /// What was sent: sequence and inputs, as the motors will have them.
    sent: VecDeque<(u64, Inputs)>,
    smith: VecDeque<DVector<f64>>,
    last: Option<(u64, u64)>,
    delay_ns: f64,
}

impl Controller {
    /// Makes a controller for a plant.
    ///
    /// # Errors
    /// The plant cannot be controlled or observed, or does not go with filter or strategy.
    pub fn new(model: &Model, settings: Settings) -> Result<Self, ModelError> {
        let (a, b) = model.with_integral();
        if settings.strategy == Strategy::Smith {
            let poles = eigenvalues(model.a());
            if poles.is_none_or(|poles| poles.iter().any(|[re, _]| *re > DRIFTS)) {
                return Err(ModelError::NotForPlant {
                    what: "a Smith predictor",
                    plant: model.name().to_owned(),
                    reason: "it is unstable, and the predictor's own model would run away; use compensated or scheduled",
                });
            }
        }
        let gain = gain_of(model)?;
        let steps = Steps::new(&a, &b);
        Ok(Self {
            estimator: Estimator::new(model, settings.filter, settings.lifted)?,
            period: steps.matrices(model.period_ns()),
            steps,
            gain,
            scheduled: BTreeMap::new(),
            sent: VecDeque::new(),
            smith: VecDeque::new(),
            last: None,
            delay_ns: settings.expected_delay_ns as f64,
            model: model.clone(),
            settings,
        })
    }

    /// The delay from reading to applying that is reckoned with, ns.
    pub fn delay_ns(&self) -> u64 {
        let most = MOST_PERIODS * self.model.period_ns();
        // It is positive and bounded, so nothing is cut but the fraction.
        (self.delay_ns.max(0.0) as u64).min(most)
    }

    /// Reckons with at least this delay from reading to applying, ns, until measurements say otherwise: somebody knows that delays
    /// are longer than those of the rounds that were closed.
    pub fn reckon_with(&mut self, delay_ns: u64) {
        let most = MOST_PERIODS * self.model.period_ns();
        self.delay_ns = self.delay_ns.max(delay_ns.min(most) as f64);
    }

    /// Says what is to be applied. None while the plant is being lifted, and for a report that is not newer than the last.
    pub fn command(&mut self, report: &Report) -> Option<Command> {
        let period_ns = self.model.period_ns();
        let elapsed_ns = match self.last {
            Some((sequence, read_ns)) => {
                let periods = report.sequence.checked_sub(sequence).filter(|it| *it > 0)?;
                // Stamps that go backwards or jump are not believed.
                let by_stamps = report.read_ns.checked_sub(read_ns);
                let nominal = periods.saturating_mul(period_ns);
                by_stamps
                    .filter(|ns| *ns > nominal / 2 && *ns / 2 < nominal)
                    .unwrap_or(nominal.min(MOST_PERIODS * period_ns))
            }
            None => period_ns,
        };
        self.last = Some((report.sequence, report.read_ns));
        self.measure(report);
        let x = self.estimator.update(&self.model, report, elapsed_ns)?;
        let inputs = match self.settings.strategy {
            Strategy::Fixed => self.inputs(&x),
            Strategy::Compensated if self.settings.faults.undelayed_state => self.inputs(&x),
            Strategy::Compensated => {
                let ahead = self.ahead(report, &x, self.delay_ns());
                self.inputs(&ahead)
            }
            Strategy::Scheduled => self.scheduled(report, &x),
            Strategy::Smith => self.smith(&x),
        };
        let mut command = Command {
            sequence: report.sequence,
            time_ns: 0,
            inputs: [inputs; SLOTS],
        };
        self.predict(report, &x, &mut command);
        let applied = self.model.actuated(&inputs);
        self.sent.push_back((report.sequence, applied));
        while self
            .sent
            .front()
            .is_some_and(|(sequence, _)| sequence + MOST_PERIODS < report.sequence)
        {
            self.sent.pop_front();
        }
        Some(command)
    }

    /// Learns how long the last round has taken from reading to applying.
    fn measure(&mut self, report: &Report) {
        let Some(round) = &report.previous else {
            return;
        };
        let Some(delay_ns) = round
            .applied_ns
            .and_then(|applied_ns| applied_ns.checked_sub(round.read_ns))
        else {
            return;
        };
        let most = (MOST_PERIODS * self.model.period_ns()) as f64;
        self.delay_ns += DELAY_SHARE * ((delay_ns as f64).min(most) - self.delay_ns);
    }

    /// -K x, within the limits.
    fn inputs(&self, x: &DVector<f64>) -> Inputs {
        self.limited(&(&self.gain * x))
    }

    /// The negative of what a gain gives, within the limits; what motors make of it is theirs.
    fn limited(&self, product: &DVector<f64>) -> Inputs {
        let limit = self.model.parts().limit;
        let mut inputs = [0.0; MOST_INPUTS];
        for (input, value) in inputs.iter_mut().zip(product.iter()) {
            *input = if value.is_finite() {
                (-value).clamp(-limit, limit)
            } else {
                0.0
            };
        }
        inputs
    }

    /// Where the states will be this much after the report: by the inputs in force, and by those on their way.
    fn ahead(&self, report: &Report, x: &DVector<f64>, ahead_ns: u64) -> DVector<f64> {
        let (mut x, mut now_ns, mut inputs) = (x.clone(), 0, report.applied);
        let period_ns = self.model.period_ns();
        let in_force = report.previous.as_ref().map_or(0, |round| round.sequence);
        for (sequence, sent) in &self.sent {
            let ago_ns = (report.sequence - sequence) * period_ns;
            // Inputs that are on their way are applied as long after their reading as others were.
            let at_ns = self.delay_ns().saturating_sub(ago_ns);
            if *sequence <= in_force || at_ns == 0 || at_ns > ahead_ns {
                continue;
            }
            self.steps.advance(&mut x, &inputs, at_ns - now_ns);
            (now_ns, inputs) = (at_ns, *sent);
        }
        self.steps.advance(&mut x, &inputs, ahead_ns - now_ns);
        x
    }

    fn scheduled(&mut self, report: &Report, x: &DVector<f64>) -> Inputs {
        let period_ns = self.model.period_ns();
        let step_ns = (period_ns / DELAY_STEPS).max(1);
        let (whole_ns, rest_ns) = (
            self.delay_ns() / period_ns * period_ns,
            self.delay_ns() % period_ns / step_ns * step_ns,
        );
        let x = self.ahead(report, x, whole_ns);
        if !self.scheduled.contains_key(&rest_ns) {
            // A plant that has a gain without delay has one within a period, or keeps the one that it has.
            let gain = gain_for_delay(&self.model, rest_ns);
            let plain = || {
                self.gain
                    .clone()
                    .resize_horizontally(x.len() + self.model.inputs(), 0.0)
            };
            let gain = gain.unwrap_or_else(|_| plain());
            self.scheduled.insert(rest_ns, gain);
        }
        let held = self.sent.back().map_or(report.applied, |(_, sent)| *sent);
        let mut both = x
            .clone()
            .resize_vertically(x.len() + self.model.inputs(), 0.0);
        for input in 0..self.model.inputs() {
            both[x.len() + input] = held[input];
        }
        self.limited(&(&self.scheduled[&rest_ns] * both))
    }

    fn smith(&mut self, x: &DVector<f64>) -> Inputs {
        let period_ns = self.model.period_ns();
        // The model without the delay, which had each input at once, and the same model as long ago as the delay is.
        let mut now = self.smith.back().unwrap_or(x).clone();
        if let Some((_, sent)) = self.sent.back() {
            self.steps.advance(&mut now, sent, period_ns);
        }
        self.smith.push_back(now.clone());
        if self.smith.len() as u64 > MOST_PERIODS + 2 {
            self.smith.pop_front();
        }
        let back = (self.delay_ns().div_ceil(period_ns) as usize).min(self.smith.len() - 1);
        let mut delayed = self.smith[self.smith.len() - 1 - back].clone();
        let inputs = self
            .sent
            .len()
            .checked_sub(back)
            .and_then(|at| self.sent.get(at));
        let rest_ns = back as u64 * period_ns - self.delay_ns().min(back as u64 * period_ns);
        if let Some((_, sent)) = inputs {
            self.steps.advance(&mut delayed, sent, rest_ns);
        }
        self.inputs(&(x + now - delayed))
    }

    /// Fills in what is to be applied in the periods to come if nothing newer arrives.
    fn predict(&self, report: &Report, x: &DVector<f64>, command: &mut Command) {
        let mut x = self.ahead(report, x, self.delay_ns());
        let mut inputs = command.inputs[0];
        for slot in 1..SLOTS {
            let simulated = if self.settings.faults.clipped_scalars {
                inputs
            } else {
                self.model.actuated(&inputs)
            };
            let (a, b) = &self.period;
            let simulated = DVector::from_column_slice(&simulated[..b.ncols()]);
            x = a * x + b * simulated;
            inputs = self.inputs(&x);
            command.inputs[slot] = inputs;
        }
    }
}
