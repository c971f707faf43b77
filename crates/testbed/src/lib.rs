//! The controller of a laboratory as a service: many users share nodes by a calendar and a queue, and submit, watch and
//! fetch experiments over HTTP. (pos: Gallenmüller et al., "The pos framework", CoNEXT 2021.)
//!
//! The types to know:
//!
//! - [`calendar::Calendar`] and [`queue::plan`]: who has which nodes when, and when each waiting experiment can start.
//!   Both are pure.
//! - [`Lab`]: the laboratory. Each request of a user is one transaction of its database, which is on disk before the
//!   reply.
//! - [`Schedule`]: the thread that starts and ends experiments.
//! - [`serve`]: the service over HTTP, with its page and its description ([`openapi`]).
//! - [`Client`]: the other side, for the command line.
//!
//! # What survives
//!
//! Requests and the schedule change only the database (`store.rs`), which SQLite writes ahead. An experiment is
//! `running` there before its process exists, and its process (`process.rs`) outlives the service: `taut experiment run`
//! with a lock as its standard input, which tells a later service whether the process still exists. Outcomes are read
//! from the results folder. The service can be killed at any time; the next one goes on.
//!
//! Begin with `lab.rs`, then `schedule.rs`.

#![forbid(unsafe_code)]

pub mod api;
pub mod calendar;
mod client;
mod error;
pub mod file;
mod lab;
mod process;
pub mod queue;
mod schedule;
mod service;
mod slurm;
mod store;
mod submission;
mod time;
mod token;

pub use client::{Client, ClientError};
pub use error::{LabError, ValueError};
pub use file::LabFile;
pub use lab::{Asking, Lab};
pub use schedule::Schedule;
pub use service::{MOST_BODY_BYTES, answer_to, openapi, serve};
pub use time::{Seconds, parse as parse_time, text as time_text};
pub use token::{TokenHash, new_token};
