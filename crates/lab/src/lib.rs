//! Results folders, figures, reports and comparisons; what a running measurement shows.

pub mod benchmark;
pub mod comparison;
pub mod device;
pub mod evaluate;
pub mod figure;
pub mod generators;
pub mod io_cost;
pub mod live;
pub mod metrics;
pub mod parallel;
pub mod probed;
pub mod quantity;
pub mod report;
pub mod results;
pub mod rfc2544;
pub mod table;
pub mod tapped;

#[cfg(test)]
mod synthetic;
