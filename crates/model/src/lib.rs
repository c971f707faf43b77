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
//! Begin with `attribution.rs`; `ticks.rs` and `aliasing.rs` stand for themselves.

#![forbid(unsafe_code)]

pub mod aliasing;
pub mod attribution;
pub mod ticks;

pub use aliasing::{Beat, Hit, Interrupt, Scene};
pub use attribution::{Attribution, Cause, Core, Gap};
pub use ticks::{Ticks, find_ticks};
