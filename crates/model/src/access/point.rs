//! A point that the access model is fitted to.

use super::STRUCTURE;
use crate::model_file::Run;

/// A measured cost of random accesses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Size of the structure, bytes.
    pub bytes: f64,
    /// Cycles of one access, including the loop around it.
    pub cycles: f64,
    /// Standard deviation of repeated measurements, as a share of the cycles. Points with less scatter get more weight:
    /// without weights, the large scatter of memory would hide the steps of the caches. If the value is `None` for any
    /// point, the relative errors of all points count equally.
    pub scatter: Option<f64>,
}

impl From<Point> for Run {
    fn from(point: Point) -> Self {
        Self {
            variables: [(STRUCTURE.to_owned(), point.bytes)].into(),
            response: point.cycles,
        }
    }
}
