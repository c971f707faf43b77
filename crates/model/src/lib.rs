//! Models of what disturbs a measurement: which interruption a spike is due to, which interruptions are a timer's
//! ticks, and what periodic interrupts do to periodic traffic. Pure functions, no I/O. Times in ns after a common
//! start.
//!
//! The types to know:
//!
//! - [`Gap`]: a time in which a core was taken away.
//! - [`Attribution`]: tells for packets, in order of sending, which gap of which [`Core`] made each late, as a
//!   [`Cause`].
//! - [`Scene`]: packets at a constant rate and [`Interrupt`]s, to be simulated.
//!
//! A measurement notes gaps of generator and device by one clock. [`find_ticks`] tells which of them lie on the grid of
//! a timer ([`Ticks`]), [`Attribution`] goes through the late packets. The report and `taut generate` show the sums by
//! cause. `taut tune aliasing` simulates a [`Scene`], and says of each interrupt how it beats against the packets
//! ([`Beat`]).
//!
//! And models that predict: how many packets a machine carries, what stops it, and how sure that is. None of them
//! gives a bare number: an [`Estimate`] has its interval, a [`Prediction`] also the errors that the model is known to
//! make and what it was asked outside of.
//!
//! - [`resource`]: the rate of a machine and what binds it, from the cycles of a packet; [`scale`]: over many machines.
//! - [`access`], [`chain`]: those cycles, from the sizes of structures and from the functions of a chain.
//!   [`io_costs`]: what ports cost on a machine, as it was measured there.
//! - [`hops`]: what a pass through a switch takes, from latency over how often packets go through it.
//! - [`overload`]: the highest rate, from the latency of single packets.
//! - [`queueing`]: latency, loss and the highest rate of a polling processor ([`queueing::Processor`]), in closed form or by
//!   simulation; [`link`]: how long packets take on wires, in glass and in the air.
//! - [`fit`], [`model_file`]: fits to measured runs, and the files that keep them.
//! - [`published`]: all of these held to figures that others have published.
//!
//! Of these, begin with `estimate.rs`, then `resource/mod.rs`, `model_file/mod.rs` and `queueing/simulate.rs`. Of what
//! disturbs, begin with `attribution.rs`; `ticks.rs` and `aliasing.rs` stand for themselves.

#![forbid(unsafe_code)]

pub mod access;
pub mod aliasing;
pub mod attribution;
pub mod chain;
pub mod estimate;
pub mod fit;
pub mod hops;
pub mod io_costs;
pub mod link;
pub mod model_file;
pub mod overload;
pub mod published;
pub mod queueing;
pub mod resource;
pub mod scale;
pub mod ticks;

pub use aliasing::{Beat, Hit, Interrupt, Scene};
pub use attribution::{Attribution, Cause, Core, Gap};
pub use estimate::{Errors, Estimate, Prediction};
pub use ticks::{Ticks, find_ticks};
