//! Results folders, figures, reports and comparisons; what a running measurement shows.

pub mod comparison;
pub mod evaluate;
pub mod figure;
pub mod live;
pub mod metrics;
pub mod quantity;
pub mod report;
pub mod results;

#[cfg(test)]
mod synthetic;
