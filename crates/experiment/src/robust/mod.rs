//! Robustness of an experiment: each of its variables and fixed settings is perturbed, one at a time and in pairs, and
//! each claim is judged under every perturbation. (Gallenmüller, dissertation, TU München 2021, section 2.3.)
//!
//! The perturbations are values of a further loop variable, [`PERTURBATION`], so that plan, runs, archive and
//! replication need no special case. A run keeps the loop values of the file, so that claims and figures find the run
//! by them; only the values in its commands are perturbed. `choose.rs` selects the perturbations, `spread.rs` makes
//! their combinations, and `judged.rs` computes the verdicts.

mod choose;
mod judged;
mod margin;
mod options;
mod scale;
mod spread;

pub use choose::{RobustPlan, choose};
pub use judged::{JudgedClaim, Outcome, Robustness, Tested};
pub use margin::Margin;
pub(crate) use options::{SettingOption, check_robust, replace_options};

use crate::definition::{Order, Scalar};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The loop variable whose value is the name of a run's perturbation.
pub(crate) const PERTURBATION: &str = "perturbation";
/// The value of [`PERTURBATION`] in unperturbed runs.
pub(crate) const BASELINE: &str = "none";
/// The hidden variable that is added to the seeds in commands.
pub(crate) const SEED_OFFSET: &str = "robust_seed";
/// The hidden variable that defines whether idle cores poll.
pub(crate) const AWAKE: &str = "robust_awake";
/// The name of the setting `awake` in a list of perturbed settings.
pub(crate) const AWAKE_SETTING: &str = "awake";

/// The perturbations of an experiment, as recorded with its results.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Robust {
    /// Seed with which the pairs of perturbations were drawn.
    pub seed: u64,
    /// Maximum duration of all runs that the user allowed, s.
    pub within_s: f64,
    /// Perturbations of the plan, in its order: first single ones, then pairs.
    pub points: Vec<Point>,
    /// Perturbations that were skipped, each with the reason.
    #[serde(default)]
    pub left_out: Vec<String>,
}

/// A perturbation of the experiment: one change, or a pair of changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// Name of the perturbation, such as `rate × 2`.
    pub name: String,
    /// The changes that the perturbation makes together: one or two.
    pub changes: Vec<Perturbation>,
}

/// A change of one variable or setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Perturbation {
    /// All values of the variable are multiplied by a factor.
    Scale {
        /// Name of the variable, or an option of the commands with its value, such as `--size 64`.
        variable: String,
        /// The factor by which the values are multiplied.
        times: f64,
    },
    /// The variable has another value than in the experiment file.
    Value {
        /// Name of the variable, or an option of the commands with its value.
        variable: String,
        /// The changed value of the variable.
        value: Scalar,
    },
    /// Only the random seeds differ; a claim that flips is therefore not repeatable.
    Seed,
    /// The runs are made in another order.
    Order {
        /// The changed order of the runs.
        order: Order,
    },
    /// The number of repetitions differs. A lower number uses the first runs of the baseline.
    Repetitions {
        /// The changed number of repetitions.
        repetitions: u32,
    },
}

impl Perturbation {
    /// Returns the name of the changed variable or setting.
    pub fn variable(&self) -> &str {
        match self {
            Self::Scale { variable, .. } | Self::Value { variable, .. } => variable,
            Self::Seed => "seed",
            Self::Order { .. } => "order",
            Self::Repetitions { .. } => "repetitions",
        }
    }
}

impl std::fmt::Display for Perturbation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Scale { variable, times } => write!(f, "{variable} × {times}"),
            Self::Value { variable, value } => match variable.split_once(' ') {
                // The name of an option contains its former value, which is not printed.
                Some((option, _)) => write!(f, "{option} {value}"),
                None => write!(f, "{variable} = {value}"),
            },
            Self::Seed => f.write_str("other seeds"),
            Self::Order { order } => write!(f, "order {}", order.name()),
            Self::Repetitions { repetitions: 1 } => f.write_str("1 repetition"),
            Self::Repetitions { repetitions } => write!(f, "{repetitions} repetitions"),
        }
    }
}

impl Point {
    /// Makes a perturbation of the given changes; its name is the list of their names.
    pub(crate) fn of(changes: Vec<Perturbation>) -> Self {
        let names: Vec<String> = changes.iter().map(ToString::to_string).collect();
        Self {
            name: names.join(", "),
            changes,
        }
    }

    /// Returns true if the perturbation changes two variables or settings.
    pub fn is_pair(&self) -> bool {
        self.changes.len() > 1
    }

    /// Returns the order of the perturbation's runs; `None` if it is the order in the experiment file.
    pub(crate) fn order(&self) -> Option<Order> {
        self.changes.iter().find_map(|change| match change {
            Perturbation::Order { order } => Some(*order),
            _ => None,
        })
    }

    /// Returns the number of repetitions of the perturbation; `None` if it is the number in the experiment file.
    pub(crate) fn repetitions(&self) -> Option<u32> {
        self.changes.iter().find_map(|change| match change {
            Perturbation::Repetitions { repetitions } => Some(*repetitions),
            _ => None,
        })
    }

    /// Returns the number of the baseline's repetitions that the perturbation uses; `None` if the perturbation has runs
    /// of its own.
    pub(crate) fn of_baseline(&self, repetitions: u32) -> Option<u32> {
        let fewer = self.repetitions().filter(|wanted| *wanted <= repetitions);
        fewer.filter(|_| self.changes.len() == 1)
    }
}

/// Combinations of loop variables whose runs are planned together.
pub(crate) struct Block {
    /// Indices of the block's combinations.
    pub(crate) variants: Vec<usize>,
    /// Order of the block's runs.
    pub(crate) order: Order,
    /// Number of runs of each combination.
    pub(crate) repetitions: u32,
}

#[cfg(test)]
mod tests;
