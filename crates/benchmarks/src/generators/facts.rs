//! The fields of `generators.json` in addition to those of every benchmark.

use super::Generators;
use super::contender::Contender;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use taut_bench::framework::Transport;

/// The contents of a results folder, read from disk.
pub type Results = taut_bench::benchmark::Results<Generators>;

/// The fields of the manifest that only this benchmark has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Rates for the comparison of precision over each transport.
    pub rates: Vec<Rates>,
    /// Generators in the order of the report.
    pub generators: Vec<Contender>,
}

/// The rates at which generators over one transport are compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rates {
    /// The transport for which the rates apply.
    pub transport: Transport,
    /// The rates, packets per second.
    pub pps: Vec<f64>,
    /// The reason for the choice of these rates.
    pub why: String,
}
