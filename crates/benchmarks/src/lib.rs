//! The benchmarks of several subjects: `taut bench io`, `generator`, `costs`, `switch` and `functions`.
//!
//! [`io_cost`], [`generators`], [`costs`], [`switch_bench`] and, for `taut tune`, [`ablation`] and
//! [`fit`] implement [`taut_bench::benchmark::Benchmark`] and do not depend on each other; [`parallel`] measures functions in memory. Start with `io_cost/mod.rs`.

#![forbid(unsafe_code)]

pub mod ablation;
pub mod costs;
pub mod fit;
pub mod generators;
pub mod io_cost;
pub mod parallel;
pub mod switch_bench;
mod tail;

#[cfg(test)]
mod made_up;
#[cfg(test)]
#[path = "../../bench/testing/manifest.rs"]
mod manifest;
#[cfg(test)]
#[path = "../../bench/testing/strangers.rs"]
mod strangers;
