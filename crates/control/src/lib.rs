//! Control over a network: a plant that falls unless it is balanced, its controller, and the effects of delay and loss
//! between them.
//!
//! The types to know:
//!
//! - [`Model`]: a plant as matrices, with sensors, limits and weights; [`plant::Plant`] simulates one.
//! - [`Station`]: the plant's side of the loop, which reads sensors and applies commands that arrive before the
//!   deadline.
//! - [`Controller`]: computes inputs from the plant's reports: current inputs, and predictions for lost commands.
//! - [`Format`]: the formats of the messages between plant and controller, NCSbench's and taut's own.
//! - [`Kpis`]: the indicators of a run. [`simulate`] produces a run in virtual time.
//!
//! A *round* is one sampling period: the plant reads its sensors and sends a report, the controller replies with a
//! command, and the plant applies the inputs in the command. The *bound* is the latest time after the reading at which
//! the command may arrive. The *balanced state* is the state that control keeps near 0, such as the pitch of the robot.
//! Neither side reads a clock or a socket: the caller passes the time and the received messages. The real loop over
//! sockets (`taut_traffic::control`) and the virtual one (`simulation.rs`) therefore share their code.
//!
//! Begin with `plant/robot.rs`, then `station.rs`, `controller/mod.rs` and `simulation.rs`. Published values and their
//! errors are documented where they are used; the sources are NCSbench (`tum-lkn/NCSbench`, MIT) and chapter 6 of
//! Gallenmüller's dissertation (2021). The crate does no I/O.

#![forbid(unsafe_code)]

pub mod challenge;
pub mod controller;
pub mod kpi;
pub mod link;
pub mod model;
pub mod plant;
pub mod protocol;
pub mod simulation;
pub mod station;
pub mod steps;

pub use controller::Controller;
pub use kpi::{InFlight, Kpis};
pub use link::{Link, LinkSettings};
pub use model::{Model, ModelError};
pub use protocol::{Command, Format, Message, Report, Shape, Stage, Stamps};
pub use simulation::{Scenario, Simulated, simulate};
pub use station::{Record, Standing, Station};
