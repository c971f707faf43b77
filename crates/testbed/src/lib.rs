//! The controller of a laboratory as a service: many users share nodes by a calendar and a queue, and submit, watch and
//! fetch experiments over HTTP. (pos: Gallenmüller et al., "The pos framework", CoNEXT 2021.)
//!
//! The types to know:
//!
//! - [`calendar::Calendar`] and [`queue::plan`]: the reservations of nodes, and the time at which each waiting
//!   experiment can start. Both are free of I/O.
//! - [`Lab`]: the laboratory. Each request of a user is one transaction of its database, which is on disk before the
//!   reply.
//! - [`Schedule`]: the thread that starts and ends experiments.
//! - [`serve`]: the service over HTTP, with its page and its description ([`openapi`]).
//! - [`Client`]: the client of the service, for the command line.
//!
//! # What survives
//!
//! Requests and the schedule change only the database (`store.rs`), which is in SQLite with a write-ahead log. The
//! database records an experiment as `running` before the experiment's process exists. The process (`process.rs`) is
//! `taut experiment run`, and outlives the service. Its standard input is a locked file, by which a later service
//! detects whether the process still exists. Outcomes are read from the results folder. The service can be killed at
//! any time; the next service continues its work.
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
