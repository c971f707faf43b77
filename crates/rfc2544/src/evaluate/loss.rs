//! The loss ratio of a frame size over the offered rate.

use super::{mean, side_by_side};
use crate::results::{Counts, Measured, Unit};
use schemars::JsonSchema;
use serde::Serialize;

/// Loss at one offered rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct LossRow {
    /// Offered rate, packets per second.
    pub offered_pps: f64,
    /// Lowest, median and highest loss ratio over the repetitions.
    pub loss: [f64; 3],
    /// True if the generator fell behind in at least one repetition.
    pub generator_behind: bool,
}

pub(super) fn loss(units: &[&Unit]) -> Vec<LossRow> {
    let repetitions: Vec<&Vec<Counts>> = units
        .iter()
        .filter_map(|unit| match &unit.measured {
            Measured::Loss { points } => Some(points),
            _ => None,
        })
        .collect();
    side_by_side(&repetitions)
        .iter()
        .map(|at| {
            let mut losses: Vec<f64> = at.iter().map(|c| c.loss()).collect();
            losses.sort_by(f64::total_cmp);
            LossRow {
                offered_pps: mean(&at.iter().map(|c| c.offered_pps).collect::<Vec<_>>()),
                loss: [
                    losses[0],
                    losses[losses.len() / 2],
                    losses[losses.len() - 1],
                ],
                generator_behind: at.iter().any(|c| c.unsent > 0),
            }
        })
        .collect()
}
