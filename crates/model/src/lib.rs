//! Models of disturbances of a measurement: the interruption that caused a latency spike, the interruptions that are
//! ticks of a timer, and the effect of periodic interrupts on periodic traffic. Pure functions, no I/O. Times are in ns
//! from a common start.
//!
//! The types to know:
//!
//! - [`Gap`]: a period in which a core was interrupted.
//! - [`Attribution`]: finds the [`Cause`] of each late packet: a gap of one [`Core`]. It takes packets in the order of
//!   sending.
//! - [`Scene`]: packets at a constant rate and periodic [`Interrupt`]s on one core, as input of a simulation.
//!
//! A measurement records gaps of generator and device on one clock. [`find_ticks`] marks those on the grid of a timer
//! ([`Ticks`]), and [`Attribution`] processes the late packets. The report and `taut generate` print the sums by cause.
//! `taut tune aliasing` simulates a [`Scene`], and prints how each interrupt beats against the packets ([`Beat`]).
//!
//! Other models predict the packet rate of a machine, its bottleneck, and the uncertainty of both. None of them returns
//! a bare number: an [`Estimate`] has an interval. A [`Prediction`] also has the model's known errors and the variables
//! outside the range of the fit.
//!
//! - [`resource`]: the rate of a machine and its bottleneck, from the cycles of a packet; [`scale`]: the same for many
//!   machines.
//! - [`access`], [`chain`]: the cycles of a packet, from the sizes of structures and from the functions of a chain.
//! - [`io_costs`]: the measured costs of a machine's ports.
//! - [`hops`]: the latency of one pass through a switch, fitted to latencies measured with different numbers of passes.
//! - [`combined`]: rate and latency of a fast front before a server, which gets a share of the packets.
//! - [`overload`]: the highest rate, from the latency of single packets.
//! - [`queueing`]: latency, loss and the highest rate of a polling processor ([`queueing::Processor`]), in closed form
//!   or by simulation; [`link`]: how long packets take on wires, in glass and in the air.
//! - [`fit`], [`model_file`]: fits to measured runs, and the files that hold them.
//! - [`published`]: predictions of all these models, compared with published figures.
//!
//! Among the predicting models, begin with `estimate.rs`, then `resource/mod.rs`, `model_file/mod.rs` and
//! `queueing/simulate.rs`. For disturbances, begin with `attribution.rs`; `ticks.rs` and `aliasing.rs` are independent.

#![forbid(unsafe_code)]

pub mod access;
pub mod aliasing;
pub mod attribution;
pub mod chain;
pub mod combined;
pub mod estimate;
pub mod fit;
pub mod hops;
pub mod io_costs;
pub mod link;
pub mod model_file;
pub mod overload;
pub mod placement;
pub mod published;
pub mod queueing;
pub mod resource;
pub mod scale;
pub mod ticks;

pub use aliasing::{Beat, Hit, Interrupt, Scene};
pub use attribution::{Attribution, Cause, Core, Gap};
pub use estimate::{Errors, Estimate, Prediction};
pub use ticks::{Ticks, find_ticks};
