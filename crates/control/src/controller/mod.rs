//! Controllers compute inputs from a plant's report: the current inputs, and predicted inputs for the next ten periods.
//!
//! NCSbench's controller (Gallenmüller, dissertation, section 6.2) applies its gain to the states at the reading,
//! although the inputs are applied 30 ms later. It also sends predicted inputs for the next ten periods, which the
//! plant uses if later commands are lost. The other strategies compute inputs for the time at which they will be
//! applied; they measure this delay from the plant's reports.

mod estimate;
mod gains;
mod riccati;
mod swing;

pub use estimate::{Filter, PULL_S};
pub use gains::{gain_for_delay, gain_of};
pub use riccati::{Cost, filter_gain, gain, riccati, sampled_gain};

use crate::model::{Inputs, MOST_INPUTS, Model, ModelError};
use crate::protocol::{Command, Report, SLOTS};
use crate::steps::{Steps, eigenvalues};
use estimate::Estimator;
use nalgebra::{DMatrix, DVector};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use swing::SwingUp;

/// The states from which the controller computes inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// The gain is applied to the states at the reading, without regard to the delay.
    Fixed,
    /// The gain is applied to the states predicted for the time at which the inputs take effect.
    #[default]
    Compensated,
    /// Gains depend on the measured delay. They apply to the states predicted as many whole periods ahead as the delay
    /// contains, and to the inputs that are in force until the new inputs take effect.
    Scheduled,
    /// A Smith predictor (Smith 1957): the gain is applied to a model of the plant without the delay. It suits plants
    /// that are stable by themselves or only drift.
    Smith,
}

/// Faults of NCSbench's controller and robot that weaken the compensation of the delay. They are off by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Current inputs are computed from measured states; predicted states are used for the predicted inputs only.
    pub undelayed_state: bool,
    /// The first prediction that is applied repeats the current inputs, so each later prediction is applied a period
    /// late. This is a fault of the robot's software.
    pub repeated_slot: bool,
    /// Predictions continue from the clipped inputs that are sent, not from the inputs that the motors apply.
    pub clipped_scalars: bool,
}

impl Faults {
    /// All faults of the published controller, NCSbench.
    pub const ORIGINAL: Self = Self {
        undelayed_state: true,
        repeated_slot: true,
        clipped_scalars: true,
    };
}

/// Settings of a controller.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Settings {
    /// The states from which the controller computes inputs.
    pub strategy: Strategy,
    /// The filter that estimates the states.
    pub filter: Filter,
    /// The faults of NCSbench that are reproduced.
    pub faults: Faults,
    /// Delay from reading the sensors to applying the inputs that is assumed until the delay is measured, ns.
    pub expected_delay_ns: u64,
    /// True if the plant lies on the ground at first and is lifted before control begins, as NCSbench's robot is.
    pub lifted: bool,
}

/// The target delay and strategy of a controller while its transport reports that the usual target delay cannot be met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LatePlan {
    /// Target delay of each direction while the usual target delay cannot be met, ns.
    pub target_ns: u64,
    /// The states from which the controller computes inputs while the usual target delay cannot be met.
    pub strategy: Strategy,
    /// Delay from reading the sensors to applying the inputs, ns, that is assumed from the transport's notice until the
    /// delay is measured.
    pub delay_ns: u64,
}

/// Switches a controller between its usual strategy and that of a [`LatePlan`], as the transport's notices demand.
#[derive(Debug, Clone, Copy)]
pub struct Switch {
    usual: Strategy,
    usual_ns: u64,
    late: LatePlan,
    is_late: bool,
}

impl Switch {
    /// Makes a switch whose usual strategy and delay are those of `usual`.
    pub fn new(usual: &Settings, late: LatePlan) -> Self {
        Self {
            usual: usual.strategy,
            usual_ns: usual.expected_delay_ns,
            late,
            is_late: false,
        }
    }

    /// Makes a controller follow the notices: `is_late` is true while the usual target delay is out of reach.
    pub fn follow(&mut self, controller: &mut Controller, is_late: bool) {
        if is_late == self.is_late {
            return;
        }
        self.is_late = is_late;
        if is_late {
            self.usual_ns = controller.delay_ns();
            controller.choose(self.late.strategy, self.late.delay_ns);
        } else {
            controller.choose(self.usual, self.usual_ns);
        }
    }
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

/// Weight of a newly measured delay in the smoothed delay.
const DELAY_SHARE: f64 = 0.2;
/// Longest supported delay, in periods; the controller stores sent inputs for this time.
const MOST_PERIODS: u64 = 64;
/// Number of steps per period to which delays are rounded, and thus the largest number of gains.
const DELAY_STEPS: u64 = 32;
/// Largest real part of the poles of a plant that counts as only drifting, 1/s.
const DRIFTS: f64 = 1e-6;

/// A controller of one plant.
#[derive(Debug, Clone)]
pub struct Controller {
    model: Model,
    settings: Settings,
    estimator: Estimator,
    /// The part that erects a plant that begins down; `None` for all other plants.
    swing: Option<SwingUp>,
    steps: Steps,
    /// Matrices A and B of the plant for a step of one sampling period; the ten predictions use them.
    period: (DMatrix<f64>, DMatrix<f64>),
    gain: DMatrix<f64>,
    scheduled: BTreeMap<u64, DMatrix<f64>>,
    /// Sent commands: their sequence numbers, and the inputs as the motors apply them.
    sent: VecDeque<(u64, Inputs)>,
    smith: VecDeque<DVector<f64>>,
    last: Option<(u64, u64)>,
    delay_ns: f64,
}

impl Controller {
    /// Makes a controller for a plant.
    ///
    /// # Errors
    /// The plant cannot be controlled or observed, or does not support the filter or strategy.
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
            swing: SwingUp::new(model),
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

    /// Returns the smoothed delay from reading the sensors to applying the inputs, ns.
    pub fn delay_ns(&self) -> u64 {
        let most = MOST_PERIODS * self.model.period_ns();
        // The delay is positive and bounded, so the conversion only drops the fraction.
        (self.delay_ns.max(0.0) as u64).min(most)
    }

    /// Raises the assumed delay from reading to applying to at least `delay_ns`, until measurements replace it. Callers
    /// do this when they know that the delay is longer than in the sampling periods measured until now.
    pub fn reckon_with(&mut self, delay_ns: u64) {
        let most = MOST_PERIODS * self.model.period_ns();
        self.delay_ns = self.delay_ns.max(delay_ns.min(most) as f64);
    }

    /// Chooses another strategy, for a connection whose delay from reading to applying has become `delay_ns`.
    /// Measurements replace that delay. A Smith predictor cannot be chosen later: the strategy then stays.
    pub fn choose(&mut self, strategy: Strategy, delay_ns: u64) {
        if strategy != Strategy::Smith {
            self.settings.strategy = strategy;
        }
        self.delay_ns = delay_ns.min(MOST_PERIODS * self.model.period_ns()) as f64;
    }

    /// Returns the command for a report. Returns `None` while NCSbench's robot is being lifted from the ground, and for
    /// a report that is not newer than the last one.
    pub fn command(&mut self, report: &Report) -> Option<Command> {
        let period_ns = self.model.period_ns();
        let elapsed_ns = match self.last {
            Some((sequence, read_ns)) => {
                let periods = report.sequence.checked_sub(sequence).filter(|it| *it > 0)?;
                // Timestamps that go backwards or jump are ignored.
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
        let x = match self.swing.take() {
            Some(mut swing) if !swing.is_done() => {
                let states = swing.update(&self.model, report, elapsed_ns);
                let command = self.swing_up(&mut swing, report, &states);
                self.swing = Some(swing);
                if let Some(command) = command {
                    return Some(command);
                }
                self.estimator.start(&self.model, report, &states)
            }
            swing => {
                self.swing = swing;
                self.estimator.update(&self.model, report, elapsed_ns)?
            }
        };
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
        self.remember(&command);
        Some(command)
    }

    /// Stores the inputs of a command that is sent, as the motors apply them.
    fn remember(&mut self, command: &Command) {
        let applied = self.model.actuated(&command.inputs[0]);
        self.sent.push_back((command.sequence, applied));
        let is_old = |(sequence, _): &(u64, Inputs)| sequence + MOST_PERIODS < command.sequence;
        while self.sent.front().is_some_and(is_old) {
            self.sent.pop_front();
        }
    }

    /// Returns the command that erects a plant in the given states at the report's reading; `None` if the balancing
    /// controller takes over.
    fn swing_up(
        &mut self,
        swing: &mut SwingUp,
        report: &Report,
        states: &DVector<f64>,
    ) -> Option<Command> {
        let body = swing.clone();
        let advance = |x: &mut DVector<f64>, inputs: &Inputs, ns| body.advance(x, inputs, ns);
        let mut x = self.ahead_by(report, states, self.delay_ns(), advance);
        let Some(mut inputs) = swing.inputs(&self.model, &x) else {
            swing.end();
            return None;
        };
        let mut command = Command {
            sequence: report.sequence,
            time_ns: 0,
            inputs: [inputs; SLOTS],
        };
        let mut later = swing.clone();
        let integral = usize::from(self.model.parts().integral.is_some());
        for slot in 1..SLOTS {
            advance(
                &mut x,
                &self.model.actuated(&inputs),
                self.model.period_ns(),
            );
            inputs = later
                .inputs(&self.model, &x)
                .unwrap_or_else(|| self.inputs(&x.clone().insert_rows(0, integral, 0.0)));
            command.inputs[slot] = inputs;
        }
        self.remember(&command);
        Some(command)
    }

    /// Updates the smoothed delay by the time from reading to applying in the last sampling period.
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

    /// Returns the inputs -K x, clipped to the limits.
    fn inputs(&self, x: &DVector<f64>) -> Inputs {
        self.limited(&(&self.gain * x))
    }

    /// Returns the negative of `product`, clipped to the limits; it is not rounded to the steps of the motors.
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

    /// Returns the states predicted for `ahead_ns` after the report, from the inputs in force and the inputs that were
    /// sent and not yet applied.
    fn ahead(&self, report: &Report, x: &DVector<f64>, ahead_ns: u64) -> DVector<f64> {
        self.ahead_by(report, x, ahead_ns, |x, inputs, ns| {
            self.steps.advance(x, inputs, ns);
        })
    }

    /// Returns the states predicted for `ahead_ns` after the report; the function `advance` advances states while
    /// inputs stay constant.
    fn ahead_by(
        &self,
        report: &Report,
        x: &DVector<f64>,
        ahead_ns: u64,
        advance: impl Fn(&mut DVector<f64>, &Inputs, u64),
    ) -> DVector<f64> {
        let (mut x, mut now_ns, mut inputs) = (x.clone(), 0, report.applied);
        let period_ns = self.model.period_ns();
        let in_force = report.previous.as_ref().map_or(0, |round| round.sequence);
        for (sequence, sent) in &self.sent {
            let ago_ns = (report.sequence - sequence) * period_ns;
            // Inputs in transit are assumed to have the same delay from reading to applying as earlier inputs.
            let at_ns = self.delay_ns().saturating_sub(ago_ns);
            if *sequence <= in_force || at_ns == 0 || at_ns > ahead_ns {
                continue;
            }
            advance(&mut x, &inputs, at_ns - now_ns);
            (now_ns, inputs) = (at_ns, *sent);
        }
        advance(&mut x, &inputs, ahead_ns - now_ns);
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
            // If no gain exists for this delay, the current gain stays.
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
        // The model without the delay gets each input immediately; the predictor needs its states at this time and one
        // delay earlier.
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

    /// Fills in the predicted inputs for the next periods, which the plant uses if it receives no newer command.
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
