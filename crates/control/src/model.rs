//! A plant as the linear model that controllers are designed for: x' = A x + B u, with sensors, limits and weights.

use nalgebra::{DMatrix, DVector};

/// Largest number of inputs of a plant: as many voltages as NCSbench's messages carry per period.
pub const MOST_INPUTS: usize = 2;
/// Largest number of sensors of a plant.
pub const MOST_SENSORS: usize = 6;
/// Largest number of states of a plant, without the integral.
pub const MOST_STATES: usize = 12;

/// Inputs of a plant; entries beyond its number of inputs are 0.
pub type Inputs = [f64; MOST_INPUTS];
/// Readings of the sensors of a plant; entries beyond its number of sensors are 0.
pub type Readings = [f64; MOST_SENSORS];

/// A sensor: a weighted sum of states, with the sensor's rounding, noise and offset.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sensor {
    /// Name of the sensor in error messages.
    pub name: String,
    /// Weight of each state in the reading.
    pub row: Vec<f64>,
    /// Smallest step of a reading, in the reading's unit; 0 if readings are not rounded.
    #[serde(default)]
    pub resolution: f64,
    /// Standard deviation of the noise of a reading, before it is rounded.
    #[serde(default)]
    pub noise: f64,
    /// Standard deviation of the sensor's constant offset, which is drawn once per run.
    #[serde(default)]
    pub bias: f64,
}

/// The parts of a [`Model`]. [`Model::new`] checks lengths and values.
#[derive(Debug, Clone, PartialEq)]
pub struct Parts {
    /// Name of the plant.
    pub name: String,
    /// Names of the states.
    pub states: Vec<String>,
    /// Rows of A in x' = A x + B u, 1/s.
    pub a: Vec<Vec<f64>>,
    /// Rows of B in x' = A x + B u.
    pub b: Vec<Vec<f64>>,
    /// The sensors of the plant.
    pub sensors: Vec<Sensor>,
    /// Index of the state whose integral the controller also weighs; `None` for no integral.
    pub integral: Option<usize>,
    /// Index of the state that has to stay within `bound`, the balanced state.
    pub balance: usize,
    /// Magnitude of the balanced state beyond which the plant has fallen.
    pub bound: f64,
    /// Index of the state that measures the plant's distance from its start.
    pub travel: usize,
    /// Factors from the states `balance` and `travel` to the values in results, such as degrees per radian.
    pub scale: [f64; 2],
    /// Units of `balance` and `travel` in results.
    pub units: [String; 2],
    /// Initial states.
    pub start: Vec<f64>,
    /// Greatest magnitude of an input.
    pub limit: f64,
    /// Smallest step of an input; 0 if inputs are not rounded.
    pub step: f64,
    /// Sampling period, ns.
    pub period_ns: u64,
    /// Weights of the states in the controller's quadratic cost. If there is an integral, its weight is the first.
    pub weights: Vec<f64>,
    /// The weight of each control input in the quadratic cost.
    pub input_weight: f64,
}

/// Reason why a plant or a controller cannot be made.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// A list or matrix is too long or too short.
    #[error("{what}: has {found}, needs {needed}")]
    Shape {
        /// Name of the list or matrix.
        what: String,
        /// Actual length of the list or matrix.
        found: usize,
        /// The required length, in words.
        needed: String,
    },
    /// A value is invalid.
    #[error("{what}: {found}: expected {needed}")]
    Value {
        /// Name of the invalid value.
        what: String,
        /// The invalid value that was found.
        found: f64,
        /// The valid values, in words.
        needed: &'static str,
    },
    /// No gain makes the plant stable.
    #[error(
        "{plant}: no gain stabilizes this plant at this period: its inputs do not reach every unstable state (matrices a and b), \
         or the weight of an unstable state is 0"
    )]
    NotControllable {
        /// Name of the plant.
        plant: String,
    },
    /// The sensors do not observe the states.
    #[error(
        "{plant}: no sensor observes an unstable state: add a sensor, or a factor for that state in a sensor's row"
    )]
    NotObservable {
        /// Name of the plant.
        plant: String,
    },
    /// The request is only valid for some plants.
    #[error("{what}: does not fit plant {plant}: {reason}")]
    NotForPlant {
        /// The request that this plant does not support.
        what: &'static str,
        /// Name of the plant.
        plant: String,
        /// Reason why the plant does not support the request, and what to do instead.
        reason: &'static str,
    },
}

/// A plant as a linear model whose shapes match and whose values are finite.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    parts: Parts,
    a: DMatrix<f64>,
    b: DMatrix<f64>,
    c: DMatrix<f64>,
}

impl Model {
    /// Checks the parts of a plant and makes the model from them.
    ///
    /// # Errors
    /// A shape or a value is invalid.
    pub fn new(parts: Parts) -> Result<Self, ModelError> {
        let states = parts.states.len();
        length("states", states, 1..=MOST_STATES)?;
        let a = matrix("a", &parts.a, states, states)?;
        let inputs = parts.b.first().map_or(0, Vec::len);
        length("columns of b", inputs, 1..=MOST_INPUTS)?;
        let b = matrix("b", &parts.b, states, inputs)?;
        length("sensors", parts.sensors.len(), 1..=MOST_SENSORS)?;
        let rows: Vec<Vec<f64>> = parts.sensors.iter().map(|it| it.row.clone()).collect();
        let c = matrix("row of a sensor", &rows, rows.len(), states)?;
        for sensor in &parts.sensors {
            not_negative("resolution", sensor.resolution)?;
            not_negative("noise", sensor.noise)?;
            not_negative("bias", sensor.bias)?;
        }
        for (what, index) in [("balance", parts.balance), ("travel", parts.travel)]
            .into_iter()
            .chain(parts.integral.map(|index| ("integral", index)))
        {
            exactly(what, usize::from(index < states), 1, "a state of the plant")?;
        }
        exactly("start", parts.start.len(), states, "one for each state")?;
        for value in &parts.start {
            finite("start", *value)?;
        }
        let weighed = states + usize::from(parts.integral.is_some());
        let needed = "one for each state, before them one for the integral if there is one";
        exactly("weights", parts.weights.len(), weighed, needed)?;
        for value in &parts.weights {
            not_negative("weights", *value)?;
        }
        positive("bound", parts.bound)?;
        positive("limit", parts.limit)?;
        not_negative("step", parts.step)?;
        positive("input_weight", parts.input_weight)?;
        let period_s = parts.period_ns as f64 * 1e-9;
        if !(100_000..=10_000_000_000).contains(&parts.period_ns) {
            return Err(ModelError::Value {
                what: "period".to_owned(),
                found: period_s,
                needed: "0.0001 to 10 seconds",
            });
        }
        Ok(Self { parts, a, b, c })
    }

    /// Returns the parts of the model.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Returns the name of the plant.
    pub fn name(&self) -> &str {
        &self.parts.name
    }

    /// Returns the state matrix A, 1/s.
    pub fn a(&self) -> &DMatrix<f64> {
        &self.a
    }

    /// Returns the input matrix B.
    pub fn b(&self) -> &DMatrix<f64> {
        &self.b
    }

    /// Returns the sensors' weights as a matrix, a row for each sensor (C in y = C x).
    pub fn c(&self) -> &DMatrix<f64> {
        &self.c
    }

    /// Returns the number of states.
    pub fn states(&self) -> usize {
        self.a.nrows()
    }

    /// Returns the number of inputs.
    pub fn inputs(&self) -> usize {
        self.b.ncols()
    }

    /// Returns the sampling period, ns.
    pub fn period_ns(&self) -> u64 {
        self.parts.period_ns
    }

    /// Returns the initial states.
    pub fn start(&self) -> DVector<f64> {
        DVector::from_column_slice(&self.parts.start)
    }

    /// Returns the matrices A and B; the integral state, if there is one, is the first state.
    pub fn with_integral(&self) -> (DMatrix<f64>, DMatrix<f64>) {
        let Some(of) = self.parts.integral else {
            return (self.a.clone(), self.b.clone());
        };
        let mut a = self.a.clone().insert_row(0, 0.0).insert_column(0, 0.0);
        a[(0, of + 1)] = 1.0;
        (a, self.b.clone().insert_row(0, 0.0))
    }

    /// Returns the index of the state that is the rate of the balanced state: the other state whose coefficient in the
    /// balanced state's row of A has the greatest magnitude. Returns `None` if no such coefficient differs from 0.
    pub(crate) fn rate_of_balance(&self) -> Option<usize> {
        let row = self.a.row(self.parts.balance);
        let others = (0..self.states()).filter(|state| *state != self.parts.balance);
        let most = others.max_by(|one, other| row[*one].abs().total_cmp(&row[*other].abs()))?;
        (row[most] != 0.0).then_some(most)
    }

    /// Returns the same plant with another sampling period.
    ///
    /// # Errors
    /// The period is out of range.
    pub fn with_period_ns(&self, period_ns: u64) -> Result<Self, ModelError> {
        let mut parts = self.parts.clone();
        parts.period_ns = period_ns;
        Self::new(parts)
    }

    /// Returns the inputs as an actuator applies them: clipped to the limit and rounded to whole steps; NaN becomes 0.
    pub fn actuated(&self, inputs: &Inputs) -> Inputs {
        let (limit, step) = (self.parts.limit, self.parts.step);
        inputs.map(|input| {
            let within = if input.is_finite() {
                input.clamp(-limit, limit)
            } else {
                0.0
            };
            if step > 0.0 {
                (within / step).round() * step
            } else {
                within
            }
        })
    }
}

fn matrix(
    what: &str,
    rows: &[Vec<f64>],
    height: usize,
    width: usize,
) -> Result<DMatrix<f64>, ModelError> {
    exactly(what, rows.len(), height, "a row for each state")?;
    for row in rows {
        exactly(what, row.len(), width, "as many numbers in each row")?;
        for value in row {
            finite(what, *value)?;
        }
    }
    Ok(DMatrix::from_fn(height, width, |row, column| {
        rows[row][column]
    }))
}

fn length(
    what: &str,
    found: usize,
    range: std::ops::RangeInclusive<usize>,
) -> Result<(), ModelError> {
    if range.contains(&found) {
        return Ok(());
    }
    Err(ModelError::Shape {
        what: what.to_owned(),
        found,
        needed: format!("{} to {}", range.start(), range.end()),
    })
}

fn exactly(what: &str, found: usize, needed: usize, words: &str) -> Result<(), ModelError> {
    if found == needed {
        return Ok(());
    }
    Err(ModelError::Shape {
        what: what.to_owned(),
        found,
        needed: format!("{needed}: {words}"),
    })
}

fn value(what: &str, found: f64, right: bool, needed: &'static str) -> Result<(), ModelError> {
    if right {
        return Ok(());
    }
    Err(ModelError::Value {
        what: what.to_owned(),
        found,
        needed,
    })
}

/// Magnitude above which values of a plant are rejected, because computations with them would overflow.
const MOST: f64 = 1e9;

fn finite(what: &str, found: f64) -> Result<(), ModelError> {
    let right = found.abs() <= MOST;
    value(what, found, right, "a number of magnitude at most 1e9")
}

fn not_negative(what: &str, found: f64) -> Result<(), ModelError> {
    let right = (0.0..=MOST).contains(&found);
    value(what, found, right, "a number from 0 to 1e9")
}

fn positive(what: &str, found: f64) -> Result<(), ModelError> {
    let right = (1e-9..=MOST).contains(&found);
    value(what, found, right, "a number from 1e-9 to 1e9")
}
