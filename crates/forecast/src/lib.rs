//! Models asked about this machine, or one of a file: what it carries and why not more, how long packets will take, how many cores
//! a chain needs. And models fitted to what was measured.
//!
//! The types to know:
//!
//! - [`Described`]: a machine as far as it is known, from sysfs, a file, or options.
//! - [`Table`]: runs that were measured, of a benchmark, an experiment, or any CSV file; [`fit`] makes a model of them.
//! - [`Asked`] and [`Latency`]: how long packets take on a core that is given so many of them; [`Recorded`]: what took it away.
//! - [`accesses()`]: what random accesses cost here, beside the access model.
//! - [`tipping_point`]: the highest rate of a function, from the latency of lonely packets.
//! - [`capacity()`]: what the inspection of packets costs here, and the highest rate that follows.
//! - [`plan`]: cores, batch and flush policy for a rate and a latency bound.
//!
//! The models themselves are in `taut_model`, which knows neither files nor machines; `taut model` parses, calls this, and prints.
//!
//! Begin with `machine.rs`, then `fitting.rs`, then `plan.rs`.

#![forbid(unsafe_code)]

mod accesses;
mod capacity;
mod error;
mod fitting;
mod kept;
mod latency;
mod machine;
mod overload;
mod picture;
mod plan;
mod recorded;
mod table;

pub use accesses::{Access, Accesses, Fitted as FittedLevel, LevelError, accesses};
pub use capacity::{Alone, AtLoad, Capacity, Inspection, OfTraffic, capacity};
pub use error::ForecastError;
pub use fitting::{Fitted, What, fit};
pub use kept::{keep, load};
pub use latency::{Asked, Latency, Quantile};
pub use machine::{CostsFile, Described, bit_rate};
pub use overload::{Latencies, Taken, TippingPoint, tipping_point};
pub use picture::bars;
pub use plan::{Bound, Choice, Demand, Plan, plan};
pub use recorded::Recorded;
pub use table::{Row, Table};
