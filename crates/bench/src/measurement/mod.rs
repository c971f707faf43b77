//! A measurement of traffic, as performed by `taut generate`: set-up, run, summary, results folder, terminal text, and
//! check of a limit.
//!
//! [`Measurement`] is the request, and [`Outcome`] is the result of the generator's thread. [`Account`] summarises it
//! in a [`TrafficSummary`], the one type for `--json`, `summary.json` and the report. [`measured`] surrounds every
//! measured trial of taut: it records energy, activity and interruptions.

mod account;
mod observations;
mod run;
mod summary;
mod text;
mod together;
mod verdict;

pub use account::{Account, Recorded};
pub use observations::{Meanwhile, Watched, measured};
pub use run::{Measurement, Outcome, Setup, measure_flood};
pub use summary::{
    Budget, Kept, KernelStamps, MeasuredDevice, StreamSummary, Streams, TakenAway, TrafficSummary,
    Versions,
};
pub use text::{FloodSummary, port_losses};
pub use together::measure_flood_together;
pub use verdict::LimitMissed;
