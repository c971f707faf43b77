//! One variant of the access model's fit, and its result. Variants differ in which shares and steepness are free, and
//! in whether translation misses are a term.

use super::edge::Edge;
use super::error::{LevelErrors, errors_by_level};
use super::point::Point;
use super::{Hierarchy, STRUCTURE};
use crate::estimate::ErrorBasis;
use crate::fit::{Coefficient, Design, FitError, LinearFit, Spread, least_squares};
use crate::model_file::{Fitting, Kind, Method, Variable};
use nalgebra::{DMatrix, DVector};

/// Range of shares in the search. At the lower limit a structure gets hardly any of a cache, at the upper one more than
/// its nominal size.
const SHARES: (f64, f64) = (0.02, 1.3);
/// Range of the steepness in the search; 1 is for independent accesses.
const STEEPNESS: (f64, f64) = (1.0, 16.0);
/// Number of equal steps, on a logarithmic scale, into which the search of a parameter divides the parameter's range.
const PLACES: usize = 22;
/// Number of passes of a search. Each later pass covers only the range around the best value of the pass before.
const REFINEMENTS: usize = 3;
/// Maximum number of search rounds; a round searches each parameter once.
const ROUNDS: usize = 8;
/// Fraction by which a round must reduce the sum of squares for another round to run.
const NEAR: f64 = 1e-3;
/// Maximum number of steps of the Gauss-Newton method.
const STEPS: usize = 40;
/// Smallest fraction of a Gauss-Newton step that is tried.
const SHORTEST: f64 = 1.0 / 64.0;
/// Fraction of the sum of squares: the Gauss-Newton method ends when a step reduces the sum by less.
const SETTLED: f64 = 1e-9;
/// Relative change of a parameter for the numeric derivative of the model.
const STEP: f64 = 1e-3;

/// The caches for which a parameter (share or steepness) is fitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Free {
    /// No cache: the parameter is 1 for all caches.
    None,
    /// All caches have one parameter in common.
    Common,
    /// Each cache has its own parameter.
    Each,
}

impl Free {
    pub const CHOICES: [Self; 3] = [Self::None, Self::Common, Self::Each];

    fn count(self, levels: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Common => 1,
            Self::Each => levels,
        }
    }

    /// Returns the parameter of a level, from the list of fitted parameters.
    fn of(self, level: usize, fitted: &[f64]) -> f64 {
        match self {
            Self::None => 1.0,
            Self::Common => fitted[0],
            Self::Each => fitted[level],
        }
    }
}

/// A fitted access model.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessFit {
    /// Caches with their fitted shares and latencies. The loop around an access is part of the latencies. A cache whose
    /// effect is not visible in the points is missing.
    pub hierarchy: Hierarchy,
    /// Latency of each cache and of memory, cycles, and the cost of a translation miss if BIC includes this term.
    pub latencies: Vec<Coefficient>,
    /// Fitted shares, each with the name of its cache; a share common to all caches is called `caches`. Empty if the
    /// nominal shares suffice.
    pub shares: Vec<Coefficient>,
    /// Steepness at the edges of the caches, with names as in `shares`. Empty if it is 1.
    pub steepness: Vec<Coefficient>,
    /// BIC of the fit; free shares and steepness count as parameters.
    pub bic: f64,
    /// Errors by level, on the fitted points themselves.
    pub errors: Vec<LevelErrors>,
}

impl AccessFit {
    /// Returns the settings with which [`Fitting::fit`] finds the same latencies again, with the fitted shares as
    /// constants. The intervals of the refitted latencies take the shares as exact; the intervals in this [`AccessFit`]
    /// include the uncertainty of the shares.
    pub fn fitting(&self, confidence: f64) -> Fitting {
        let variable = |name: &str, unit: &str| Variable {
            name: name.to_owned(),
            unit: unit.to_owned(),
        };
        Fitting {
            kind: Kind::Access,
            response: variable("cycles", "cycles/access"),
            variables: vec![variable(STRUCTURE, "bytes")],
            sets: vec![self.hierarchy.shapes()],
            method: Method::LeastSquares,
            spread: Spread::Relative,
            confidence,
        }
    }
}

pub(super) struct Trial<'a> {
    /// The hierarchy before the fit: a structure gets all of each cache, and accesses are independent.
    pub nominal: &'a Hierarchy,
    pub points: &'a [Point],
    /// The weight of each point's squared relative error.
    pub weights: &'a [f64],
    pub shares: Free,
    pub steepness: Free,
    /// True if translation misses are terms.
    pub translations: bool,
}

impl Trial<'_> {
    pub fn fit(&self, confidence: f64) -> Result<AccessFit, FitError> {
        let ranges = self.ranges();
        let terms = self.names().len() + ranges.len();
        if self.points.len() < terms + 3 {
            return Err(FitError::TooFewToChoose {
                rows: self.points.len(),
                terms,
            });
        }
        let start = |index: usize| {
            if index < self.free_shares() {
                0.85
            } else {
                1.0
            }
        };
        let mut parameters: Vec<f64> = (0..ranges.len()).map(start).collect();
        let mut least = self.squares(&parameters);
        for _ in 0..ROUNDS {
            let before = least;
            for (index, range) in ranges.iter().enumerate() {
                least = self.search(&mut parameters, index, *range, least);
            }
            if least >= before * (1.0 - NEAR) {
                break;
            }
        }
        self.descend(&mut parameters, &ranges, least, confidence)?;
        let linear = least_squares(&self.design(&parameters)?, confidence)?;
        self.finish(&parameters, &linear, confidence)
    }

    fn free_shares(&self) -> usize {
        self.shares.count(self.nominal.levels.len())
    }

    /// Returns the search ranges of the parameters: of all shares, then of all steepness values.
    fn ranges(&self) -> Vec<(f64, f64)> {
        let mut ranges = vec![SHARES; self.free_shares()];
        let steepness = self.steepness.count(self.nominal.levels.len());
        ranges.extend(vec![STEEPNESS; steepness]);
        ranges
    }

    /// Searches the best value of one parameter, and returns the sum of squares at this value.
    fn search(
        &self,
        parameters: &mut [f64],
        index: usize,
        range: (f64, f64),
        mut least: f64,
    ) -> f64 {
        let (mut low, mut high) = range;
        for _ in 0..REFINEMENTS {
            let step = (high / low).powf(1.0 / PLACES as f64);
            for place in 0..=PLACES {
                let before = parameters[index];
                parameters[index] = low * step.powi(place as i32);
                let squares = self.squares(parameters);
                if squares < least {
                    least = squares;
                } else {
                    parameters[index] = before;
                }
            }
            low = (parameters[index] / step).max(range.0);
            high = (parameters[index] * step).min(range.1);
        }
        least
    }

    /// Improves parameters near the optimum by Gauss-Newton steps within the ranges. A search of one parameter after
    /// the other does not suffice, because shares and steepness depend on each other.
    fn descend(
        &self,
        parameters: &mut Vec<f64>,
        ranges: &[(f64, f64)],
        mut least: f64,
        confidence: f64,
    ) -> Result<(), FitError> {
        if parameters.is_empty() {
            return Ok(());
        }
        for _ in 0..STEPS {
            let linear = least_squares(&self.design(parameters)?, confidence)?;
            let latencies: Vec<f64> = linear.coefficients.iter().map(|c| c.value).collect();
            let towards = self
                .together(parameters, &latencies, confidence)?
                .coefficients;
            let towards = &towards[latencies.len()..];
            let mut length = 1.0;
            let gained = loop {
                let step = parameters.iter().zip(towards).zip(ranges);
                let step = step.map(|((from, to), range)| {
                    (from + length * (to.value - from)).clamp(range.0, range.1)
                });
                let step: Vec<f64> = step.collect();
                let squares = self.squares(&step);
                if squares < least {
                    let gained = 1.0 - squares / least;
                    (*parameters, least) = (step, squares);
                    break gained;
                }
                length /= 2.0;
                if length < SHORTEST {
                    break 0.0;
                }
            };
            if gained <= SETTLED {
                break;
            }
        }
        Ok(())
    }

    /// Returns the weighted sum of squared relative errors with the best latencies; infinity if the points do not
    /// distinguish the levels. It uses normal equations because the search calls it often; the final fit uses QR.
    fn squares(&self, parameters: &[f64]) -> f64 {
        let columns = self.columns(parameters);
        let relative = |row: usize, column: usize| {
            columns[column][row] / self.points[row].cycles * self.weights[row].sqrt()
        };
        let terms = DMatrix::from_fn(self.points.len(), columns.len(), relative);
        let measured =
            DVector::from_iterator(self.points.len(), self.weights.iter().map(|w| w.sqrt()));
        let solved = terms.tr_mul(&terms).cholesky();
        solved.map_or(f64::INFINITY, |gram| {
            let latencies = gram.solve(&terms.tr_mul(&measured));
            (measured - terms * latencies).norm_squared()
        })
    }

    /// Returns the nominal hierarchy with the given shares and steepness values.
    fn hierarchy(&self, parameters: &[f64]) -> Hierarchy {
        let (shares, steepness) = parameters.split_at(self.free_shares());
        let mut hierarchy = self.nominal.clone();
        for (index, level) in hierarchy.levels.iter_mut().enumerate() {
            level.share = self.shares.of(index, shares);
            level.steepness = self.steepness.of(index, steepness);
        }
        hierarchy
    }

    /// Returns a column for each term: at each point, the share of accesses that have the term's latency.
    fn columns(&self, parameters: &[f64]) -> Vec<Vec<f64>> {
        let within = |edge: Edge| -> Vec<f64> {
            self.points
                .iter()
                .map(|point| edge.within(point.bytes))
                .collect()
        };
        let mut columns = Vec::new();
        let mut before = vec![0.0; self.points.len()];
        for edge in self
            .hierarchy(parameters)
            .edges()
            .into_iter()
            .chain([Edge::ALL])
        {
            let here = within(edge);
            columns.push(
                here.iter()
                    .zip(&before)
                    .map(|(here, before)| here - before)
                    .collect(),
            );
            before = here;
        }
        if self.translations {
            for translation in &self.nominal.translations {
                let known = within(Edge::new(translation.reach_bytes()));
                columns.push(known.iter().map(|known| 1.0 - known).collect());
            }
        }
        columns
    }

    fn names(&self) -> Vec<String> {
        let caches = self.nominal.levels.iter().map(|level| level.name.clone());
        let mut names: Vec<String> = caches.chain(["memory".to_owned()]).collect();
        if self.translations {
            let buffers = 1..=self.nominal.translations.len();
            names.extend(buffers.map(|number| format!("translation {number}")));
        }
        names
    }

    /// Returns the name of the cache to which each parameter belongs, first for the shares, then for the steepness
    /// values.
    fn parameter_names(&self) -> Vec<String> {
        let of = |free: Free| match free {
            Free::None => Vec::new(),
            Free::Common => vec!["caches".to_owned()],
            Free::Each => self
                .nominal
                .levels
                .iter()
                .map(|level| level.name.clone())
                .collect(),
        };
        [of(self.shares), of(self.steepness)].concat()
    }

    fn design(&self, parameters: &[f64]) -> Result<Design, FitError> {
        let columns = self.columns(parameters);
        let row = |index: usize| columns.iter().map(|column| column[index]).collect();
        let rows: Vec<Vec<f64>> = (0..self.points.len()).map(row).collect();
        let measured: Vec<f64> = self.points.iter().map(|point| point.cycles).collect();
        let names = self.names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        Design::new(&names, &rows, &measured, Spread::Relative)?.weighted(self.weights)
    }

    fn finish(
        &self,
        parameters: &[f64],
        linear: &LinearFit,
        confidence: f64,
    ) -> Result<AccessFit, FitError> {
        let singular = || FitError::Singular {
            terms: self.names().join(", "),
        };
        let latencies: Vec<f64> = linear.coefficients.iter().map(|c| c.value).collect();
        let levels = self.nominal.levels.len();
        let mut together = self
            .together(parameters, &latencies, confidence)?
            .coefficients;
        // A level that is not slower than the previous one, within its interval, cannot be distinguished from it.
        let ascending = together[..=levels]
            .windows(2)
            .all(|pair| pair[0].value < pair[1].low);
        if !ascending || latencies.iter().any(|latency| *latency <= 0.0) {
            return Err(singular());
        }
        let mut hierarchy = self.hierarchy(parameters);
        hierarchy.loader_cycles = 0.0;
        for (level, latency) in hierarchy.levels.iter_mut().zip(&latencies) {
            level.latency_cycles = *latency;
        }
        hierarchy.memory_cycles = latencies[levels];
        let missed = &latencies[levels + 1..];
        hierarchy.translations.truncate(missed.len());
        for (translation, miss_cycles) in hierarchy.translations.iter_mut().zip(missed) {
            translation.miss_cycles = *miss_cycles;
        }
        let mut others = together.split_off(latencies.len());
        // The linear fit knows no ranges and may find a value outside of them, so the interval is moved to the value
        // that the search found.
        for (other, found) in others.iter_mut().zip(parameters) {
            let beyond = found - other.value;
            other.value = *found;
            (other.low, other.high) = (other.low + beyond, other.high + beyond);
        }
        let criteria = linear.criteria.ok_or_else(singular)?;
        let bic = criteria.bic + others.len() as f64 * (self.points.len() as f64).ln();
        let steepness = others.split_off(self.free_shares());
        Ok(AccessFit {
            errors: errors_by_level(&hierarchy, self.points, ErrorBasis::InSample)?,
            hierarchy,
            latencies: together,
            shares: others,
            steepness,
            bic,
        })
    }

    /// Fits latencies and parameters together, with the model linearised at the best values. The interval of a latency
    /// thus includes the uncertainty of the parameters, and vice versa.
    fn together(
        &self,
        parameters: &[f64],
        latencies: &[f64],
        confidence: f64,
    ) -> Result<LinearFit, FitError> {
        let model = |parameters: &[f64]| -> Vec<f64> {
            let columns = self.columns(parameters);
            let at = |index: usize| {
                columns
                    .iter()
                    .zip(latencies)
                    .map(|(c, l)| c[index] * l)
                    .sum()
            };
            (0..self.points.len()).map(at).collect()
        };
        let mut slopes = self.columns(parameters);
        let mut values = latencies.to_vec();
        for (index, parameter) in parameters.iter().enumerate() {
            let step = STEP * parameter;
            let stepped = |step: f64| {
                let mut parameters = parameters.to_vec();
                parameters[index] += step;
                model(&parameters)
            };
            let slope = stepped(step).into_iter().zip(stepped(-step));
            slopes.push(slope.map(|(up, down)| (up - down) / (2.0 * step)).collect());
            values.push(*parameter);
        }
        let names = [self.names(), self.parameter_names()].concat();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (mut rows, mut responses) = (Vec::new(), Vec::new());
        for ((index, point), predicted) in self.points.iter().enumerate().zip(model(parameters)) {
            let relative = |slope: &Vec<f64>| slope[index] / point.cycles;
            let row: Vec<f64> = slopes.iter().map(relative).collect();
            let along: f64 = row
                .iter()
                .zip(&values)
                .map(|(slope, value)| slope * value)
                .sum();
            responses.push((point.cycles - predicted) / point.cycles + along);
            rows.push(row);
        }
        let design =
            Design::new(&names, &rows, &responses, Spread::Absolute)?.weighted(self.weights)?;
        least_squares(&design, confidence)
    }
}
