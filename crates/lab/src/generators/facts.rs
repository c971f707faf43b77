//! What `generators.json` says besides the head of every benchmark.

use super::Generators;
use super::contender::Contender;
use crate::benchmark::definition;
use crate::io_cost::Transport;
use serde::{Deserialize, Serialize};

/// A results folder read back.
pub type Results = definition::Results<Generators>;

/// What only this benchmark says in its head.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Rates at which precision was compared over each transport, packets per second.
    pub rates: Vec<Rates>,
    /// Generators in the order of the report.
    pub generators: Vec<Contender>,
}

/// The rates over a transport.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Over what.
    pub transport: Transport,
    /// Packets per second.
    pub pps: Vec<f64>,
    /// Why these.
    pub why: String,
}
