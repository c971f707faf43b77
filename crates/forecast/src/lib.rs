//! Evaluates models for this machine, or for a machine that a file describes. The models give the machine's packet rate
//! and bottleneck, the latency of packets, and the cores that a chain needs. This crate also fits models to
//! measurements.
//!
//! The types to know:
//!
//! - [`Described`]: the known properties of a machine, from sysfs, a file, or options.
//! - [`Table`]: measured runs of a benchmark, an experiment, or any CSV file; [`fit`] fits a model to them.
//! - [`Asked`] and [`Latency`]: the latency of packets on a core at a given rate; [`Recorded`]: recorded interruptions
//!   of the core.
//! - [`accesses()`]: the cost of random accesses here, compared with the access model.
//! - [`Latencies`]: the latencies of a measured device.
//! - [`tipping_point`]: the highest rate of a function, from the latency of lonely packets.
//! - [`capacity()`]: the cost of packet inspection here, and the highest rate that follows.
//! - [`plan`]: cores, batch and flush policy for a rate and a latency bound.
//!
//! `taut_model` contains the models themselves, without access to files or to the machine. `taut model` parses its
//! arguments, calls this crate, and prints the results.
//!
//! Begin with `machine.rs`, then `fitting.rs`, then `plan.rs`.

#![forbid(unsafe_code)]

mod accesses;
mod capacity;
mod error;
mod fitting;
mod latency;
mod machine;
mod model_file;
mod overload;
mod picture;
mod plan;
mod recording;
mod table;

pub use accesses::{Access, Accesses, Fitted as FittedLevel, LevelError, accesses};
pub use capacity::{Alone, AtLoad, Capacity, Inspection, OfTraffic, capacity};
pub use error::ForecastError;
pub use fitting::{Fitted, What, fit};
pub use latency::{Asked, Latency, Quantile};
pub use machine::{CostsFile, Described, bit_rate};
pub use model_file::{keep, load};
pub use overload::{Latencies, Taken, TippingPoint, tipping_point};
pub use picture::bars;
pub use plan::{Bound, Choice, Demand, Plan, plan};
pub use recording::Recorded;
pub use table::{Row, Table};
