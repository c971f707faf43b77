//! A measurement of traffic, as `taut generate` makes one: set up, run, summed up, kept in a folder, told to people, and held
//! to a limit.
//!
//! [`Measurement`] is what is asked for, [`Outcome`] what the generator's thread brings back. [`Account`] makes a
//! [`TrafficSummary`] of it, the one type behind `--json`, `summary.json` and the report. [`measured`] is what stands around
//! every measured trial of taut: energy, activity and interruptions before and after.

mod account;
mod measured;
mod run;
mod summary;
mod text;
mod together;
mod verdict;

pub use account::{Account, Recorded};
pub use measured::{Meanwhile, Watched, measured};
pub use run::{Measurement, Outcome, Setup, measure_flood};
pub use summary::{
    Kept, KernelStamps, MeasuredDevice, StreamSummary, TakenAway, TrafficSummary, Versions,
};
pub use text::{FloodSummary, port_losses};
pub use together::measure_flood_together;
pub use verdict::LimitMissed;
