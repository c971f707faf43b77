//! Estimates states from readings: the filter of NCSbench, a pitch filter of our own, and a Kalman filter for any
//! plant.

use super::riccati::filter_gain;
use crate::model::{Inputs, MOST_INPUTS, Model, ModelError};
use crate::plant::{AXLE_M, WHEEL_RADIUS_M};
use crate::protocol::Report;
use crate::steps::Steps;
use nalgebra::{DMatrix, DVector};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The filter that estimates the states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Filter {
    /// NCSbench's filter: it integrates the gyroscope's rate by rectangles over the fixed sampling period, and computes
    /// other rates as differences.
    Original,
    /// Integrates the pitch by trapezoids over the elapsed time, and decays it towards 0 with the time constant
    /// [`PULL_S`].
    Pitch,
    /// A steady-state Kalman filter; the offset of the first sensor is one of its states.
    #[default]
    Kalman,
}

/// Pitch of the robot while it lies on the ground, rad. NCSbench's controller starts its integration at this pitch.
const LYING_RAD: f64 = -1.0325;
/// Weight of a new reading in the estimate of the gyroscope's offset, once the robot has been upright (NCSbench).
const OFFSET_SHARE: f64 = 0.0015;
/// Time constant of the pitch filter's decay towards 0: a robot that balances is upright on average. It is long
/// compared with the slowest mode of the loop, which takes 2.3 s.
pub const PULL_S: f64 = 10.0;
/// Standard deviation of the input disturbance in a Kalman filter's model, as a fraction of the input limit.
const DISTURBED: f64 = 0.05;
/// Drift of a sensor's offset in a second, as a fraction of the offset's standard deviation. If that standard deviation
/// is 0, the filter has no state for the offset.
const WANDER: f64 = 0.02;

/// An estimator of the states.
#[derive(Debug, Clone)]
pub(super) enum Estimator {
    Reckoning(Reckoning),
    Kalman(Box<Kalman>),
}

impl Estimator {
    /// Makes an estimator; `lying` is true for plants that lie on the ground at first and are then lifted, as
    /// NCSbench's robot is.
    pub(super) fn new(model: &Model, filter: Filter, lying: bool) -> Result<Self, ModelError> {
        let no_robot = model.name() != "robot";
        match filter {
            Filter::Kalman => Ok(Self::Kalman(Box::new(Kalman::new(model, lying)?))),
            _ if no_robot => Err(ModelError::NotForPlant {
                what: "the filters original and pitch",
                plant: model.name().to_owned(),
                reason: "they are for gyroscope and encoders of the robot; use the filter kalman",
            }),
            _ => Ok(Self::Reckoning(Reckoning::new(
                filter == Filter::Original,
                lying,
            ))),
        }
    }

    /// Processes a report and returns the estimated states; the integral is the first of them if the model has one.
    /// Returns `None` while the plant is being lifted.
    pub(super) fn update(
        &mut self,
        model: &Model,
        report: &Report,
        elapsed_ns: u64,
    ) -> Option<DVector<f64>> {
        match self {
            Self::Reckoning(reckoning) => reckoning.update(model, report, elapsed_ns),
            Self::Kalman(kalman) => kalman.update(model, report, elapsed_ns),
        }
    }
}

impl Estimator {
    /// Begins with known states at the reading of a report, and returns them; the integral, 0, is the first of them if
    /// the model has one.
    pub(super) fn start(
        &mut self,
        model: &Model,
        report: &Report,
        states: &DVector<f64>,
    ) -> DVector<f64> {
        // Only a Kalman filter is made for plants that begin down.
        if let Self::Kalman(kalman) = self {
            kalman.x.rows_mut(0, states.len()).copy_from(states);
            if kalman.x.len() > states.len() {
                kalman.x[states.len()] = report.offset;
            }
            (kalman.applied, kalman.last_read_ns) = (report.applied, Some(report.read_ns));
        }
        let integral = usize::from(model.parts().integral.is_some());
        states.clone().insert_rows(0, integral, 0.0)
    }
}

/// An estimator that integrates the gyroscope's rate to the pitch, and computes wheel angles and yaw from the encoders.
#[derive(Debug, Clone)]
pub(super) struct Reckoning {
    original: bool,
    /// Offset of the gyroscope, degrees/s; initially the offset in the first report.
    offset: Option<f64>,
    upright: bool,
    rate: f64,
    theta: f64,
    phi: f64,
    phi_integral: f64,
    gamma: f64,
}

impl Reckoning {
    fn new(original: bool, lying: bool) -> Self {
        Self {
            original,
            offset: None,
            upright: !lying,
            rate: 0.0,
            theta: if lying { LYING_RAD } else { 0.0 },
            phi: 0.0,
            phi_integral: 0.0,
            gamma: 0.0,
        }
    }

    fn update(&mut self, model: &Model, report: &Report, elapsed_ns: u64) -> Option<DVector<f64>> {
        let [gyro, left, right, ..] = report.readings;
        let period_s = model.period_ns() as f64 * 1e-9;
        let elapsed_s = elapsed_ns as f64 * 1e-9;
        let offset = *self.offset.get_or_insert(report.offset);
        let rate = (gyro - offset).to_radians();
        let step_s = if self.original { period_s } else { elapsed_s };
        self.theta += if self.original {
            rate * step_s
        } else {
            (rate + self.rate) / 2.0 * step_s
        };
        self.rate = rate;
        self.upright |= self.theta > 0.0;
        if self.upright {
            if !self.original {
                self.theta -= self.theta * (step_s / PULL_S).min(1.0);
            }
            self.offset = Some((1.0 - OFFSET_SHARE) * offset + OFFSET_SHARE * gyro);
        }
        let phi = ((left + right) / 2.0).to_radians() + self.theta;
        let phi_rate = (phi - self.phi) / step_s;
        self.phi = phi;
        self.phi_integral += phi * step_s;
        let gamma = (right - left).to_radians() * WHEEL_RADIUS_M / AXLE_M;
        let gamma_rate = (gamma - self.gamma) / step_s;
        self.gamma = gamma;
        self.upright.then(|| {
            DVector::from_column_slice(&[
                self.phi_integral,
                phi,
                self.theta,
                phi_rate,
                rate,
                gamma,
                gamma_rate,
                // The gyroscope's lag state equals its reading.
                rate,
            ])
        })
    }
}

/// A steady-state Kalman filter over the states of the plant and the offset of its first sensor.
#[derive(Debug, Clone)]
pub(super) struct Kalman {
    steps: Steps,
    gain: DMatrix<f64>,
    c: DMatrix<f64>,
    x: DVector<f64>,
    integral: f64,
    applied: Inputs,
    last_read_ns: Option<u64>,
    /// NCSbench's filter, which detects the end of the lifting; `None` for plants that are not lifted.
    lifting: Option<Reckoning>,
}

impl Kalman {
    fn new(model: &Model, lying: bool) -> Result<Self, ModelError> {
        let parts = model.parts();
        let (states, sensors) = (model.states(), parts.sensors.len());
        let period_s = parts.period_ns as f64 * 1e-9;
        let biased = parts.sensors[0].bias > 0.0;
        let all = states + usize::from(biased);
        let (mut a, mut b) = (model.a().clone(), model.b().clone());
        let mut c = model.c().clone();
        if biased {
            a = a.insert_row(states, 0.0).insert_column(states, 0.0);
            b = b.insert_row(states, 0.0);
            c = c.insert_column(states, 0.0);
            c[(0, states)] = 1.0;
        }
        let steps = Steps::new(&a, &b);
        let (ad, bd) = steps.matrices(parts.period_ns);
        let disturbed = (DISTURBED * parts.limit).powi(2);
        let mut q = &bd * bd.transpose() * disturbed;
        for state in 0..states {
            // Every state gets a small variance for the errors of the model.
            q[(state, state)] += 1e-9;
        }
        if biased {
            q[(states, states)] = (WANDER * parts.sensors[0].bias).powi(2) * period_s;
        }
        let r = DMatrix::from_fn(sensors, sensors, |row, column| {
            let sensor = &parts.sensors[row];
            // Rounding adds the variance of a uniform error; an exact sensor gets a small variance, so that the
            // equation has a solution.
            let variance = sensor.noise.powi(2) + sensor.resolution.powi(2) / 12.0;
            if row == column {
                variance.max(1e-9)
            } else {
                0.0
            }
        });
        let gain = filter_gain(&ad, &c, &q, &r).ok_or_else(|| ModelError::NotObservable {
            plant: model.name().to_owned(),
        })?;
        Ok(Self {
            steps,
            gain,
            c,
            x: DVector::zeros(all),
            integral: 0.0,
            applied: [0.0; MOST_INPUTS],
            last_read_ns: None,
            lifting: lying.then(|| Reckoning::new(true, true)),
        })
    }

    fn update(&mut self, model: &Model, report: &Report, elapsed_ns: u64) -> Option<DVector<f64>> {
        if let Some(lifting) = &mut self.lifting {
            lifting.update(model, report, elapsed_ns)?;
            self.lifting = None;
        }
        let first = self.last_read_ns.is_none();
        if first {
            // The initial state is the position that the readings show, with all rates 0.
            if self.x.len() > model.states() {
                self.x[model.states()] = report.offset;
            }
        } else {
            // The inputs in force were applied either between the two readings or before both.
            let applied_ns = report.previous.as_ref().and_then(|it| it.applied_ns);
            let old_ns = match (self.last_read_ns, applied_ns) {
                (Some(read_ns), Some(applied_ns)) => {
                    applied_ns.saturating_sub(read_ns).min(elapsed_ns)
                }
                _ => 0,
            };
            self.steps.advance(&mut self.x, &self.applied, old_ns);
            self.steps
                .advance(&mut self.x, &report.applied, elapsed_ns - old_ns);
        }
        self.applied = report.applied;
        self.last_read_ns = Some(report.read_ns);
        let sensors = self.c.nrows();
        let readings = DVector::from_column_slice(&report.readings[..sensors]);
        let innovation = readings - &self.c * &self.x;
        self.x += &self.gain * innovation;
        let states = model.states();
        let Some(of) = model.parts().integral else {
            return Some(self.x.rows(0, states).into_owned());
        };
        self.integral += self.x[of] * elapsed_ns as f64 * 1e-9;
        let mut all = DVector::zeros(states + 1);
        all[0] = self.integral;
        all.rows_mut(1, states).copy_from(&self.x.rows(0, states));
        Some(all)
    }
}
