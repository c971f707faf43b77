//! Models of what disturbs a measurement: which interruption a spike is due to, which interruptions are a timer's
//! ticks, and what periodic interrupts do to periodic traffic. Pure functions, no I/O. Times in ns after a common start.

#![forbid(unsafe_code)]

pub mod aliasing;
pub mod attribution;
pub mod ticks;

pub use aliasing::{Beat, Hit, Interrupt, Scene};
pub use attribution::{Attribution, Cause, Core, Gap};
pub use ticks::{Ticks, find_ticks};
