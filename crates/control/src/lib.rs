//! Control over a network: a plant that falls unless it is balanced, its controller, and what delay and loss between them do.
//!
//! The types to know:
//!
//! - [`Model`]: a plant as matrices, with sensors, limits and weights; [`plant::Plant`] is one that moves.
//! - [`Station`]: the plant's side of the loop, which reads, and applies what arrives in time.
//! - [`Controller`]: what to apply, now and if nothing arrives, from what the plant reports.
//! - [`Format`]: the messages between both, NCSbench's and ours.
//! - [`Kpis`]: what a run comes to. [`simulate`] makes one in virtual time.
//!
//! Neither side reads a clock or a socket: they are told what time it is and what has come. So the real loop over sockets
//! (`taut_traffic::control`) and the virtual one (`simulation.rs`) are the same code.
//!
//! Begin with `plant/robot.rs`, then `station.rs`, `controller/mod.rs` and `simulation.rs`. What is published, and what was
//! found wrong in it, stands where it is used: NCSbench (`tum-lkn/NCSbench`, MIT) and chapter 6 of Gallenmüller's dissertation
//! (2021). No I/O.

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
pub use kpi::Kpis;
pub use link::{Link, LinkSettings};
pub use model::{Model, ModelError};
pub use protocol::{Command, Format, Message, Report, Shape, Stage, Stamps};
pub use simulation::{Scenario, Simulated, simulate};
pub use station::{Record, Standing, Station};
