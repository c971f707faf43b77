//! Terms of a model, in the form that a model file holds: a coefficient times powers and other functions of a run's
//! variables.

use super::ModelError;
use crate::access::Edge;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The variables of a run by name, each in the unit that its name states.
pub type Variables = BTreeMap<String, f64>;

/// One factor of a term.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    tag = "kind",
    rename_all = "kebab-case",
    rename_all_fields = "snake_case",
    deny_unknown_fields
)]
pub enum Factor {
    /// A power of a variable: `variable^power`.
    Power {
        /// Name of the variable.
        variable: String,
        /// Exponent of the variable.
        power: f64,
    },
    /// The share of random accesses that a level of memory serves (see [`crate::access`]).
    Level {
        /// Name of the variable that holds the size of the structure, bytes.
        variable: String,
        /// The upper edge of the previous, faster level of memory.
        from: Edge,
        /// The upper edge of this level of memory.
        to: Edge,
    },
}

impl Factor {
    /// Returns the factor `variable^power`.
    pub fn power(variable: &str, power: f64) -> Self {
        let variable = variable.to_owned();
        Self::Power { variable, power }
    }

    /// Returns the name of the variable that the factor depends on.
    pub fn variable(&self) -> &str {
        match self {
            Self::Power { variable, .. } | Self::Level { variable, .. } => variable,
        }
    }

    fn value(&self, variables: &Variables) -> Result<f64, ModelError> {
        let name = self.variable();
        let Some(&at) = variables.get(name) else {
            return Err(ModelError::Missing(name.to_owned()));
        };
        let value = match self {
            Self::Power { power, .. } => at.powf(*power),
            Self::Level { from, to, .. } => to.within(at) - from.within(at),
        };
        if value.is_finite() {
            return Ok(value);
        }
        Err(ModelError::NoValue {
            variable: name.to_owned(),
            asked: at,
        })
    }
}

/// A term of a model without its coefficient.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Name of the term.
    pub name: String,
    /// Unit of the term's coefficient.
    pub unit: String,
    /// The factors by which the coefficient is multiplied; empty for a constant.
    #[serde(default)]
    pub factors: Vec<Factor>,
}

impl Shape {
    /// Returns a term with a name, the unit of its coefficient, and its factors.
    pub fn new(name: &str, unit: &str, factors: Vec<Factor>) -> Self {
        Self {
            name: name.to_owned(),
            unit: unit.to_owned(),
            factors,
        }
    }

    /// Returns the product of the factors, evaluated for a run.
    ///
    /// # Errors
    /// [`ModelError::Missing`] if a variable is missing, [`ModelError::NoValue`] if the product is not finite.
    pub fn value(&self, variables: &Variables) -> Result<f64, ModelError> {
        let factors = self.factors.iter().map(|factor| factor.value(variables));
        factors.product()
    }
}
