//! Experiments as code: one file describes the commands on each machine, and the evaluation of the results. (The pos
//! workflow: Gallenmüller, dissertation, TU München 2021, chapter 2.)
//!
//! The types to know:
//!
//! - [`definition::Definition`]: the file as plain data.
//! - [`Experiment`]: the file, read and checked, with one [`Variant`] for each combination of its variables.
//! - [`folder::Folder`]: the results. A run's folder gets its final name only when the run is complete.
//!
//! [`open()`] finds an experiment, [`Experiment::plan`] lists its runs, and [`run()`] makes those that are missing. For
//! each run it prepares the nodes (`node/`), lets [`agent::step`] run the commands there, and stores the results.
//! [`evaluate::evaluate`] reads the folder and makes tables, figures, verdicts and the page. [`compare`] compares two
//! folders, and [`publish`] makes a folder that others can read and run again.
//!
//! Begin with `definition.rs`, then `run/one_run.rs`, which describes the course of a run. Its tests run on a fake
//! node, in virtual time (`run/fake.rs`).
//!
//! # Runs
//!
//! The tables `[device]`, `[traffic]` and `[measure]` of a file expand to commands (`measurement.rs`), so a person can
//! type the commands of every run. A node (`node/`) defines how a command reaches a machine and how files return. On
//! the machine, the agent `taut node step` (`agent.rs`) runs the command. The agent ends when its standard input
//! closes, and kills all processes that the command started, so no process outlives the experiment on any machine.
//!
//! The index of a results folder has one line per run, so that ten thousand runs are listed without reading their
//! folders. Evaluation (`evaluate/`) reads the index and histogram logs, but never loads all samples.

#![forbid(unsafe_code)]

pub mod agent;
mod attachments;
mod boot;
mod build;
mod changes;
mod check;
pub mod claim;
mod clock;
pub mod compare;
mod comparison;
mod copying;
mod counters;
pub mod definition;
mod duration;
mod error;
pub mod evaluate;
mod experiment;
mod firmware;
pub mod folder;
pub mod gate;
mod limit;
mod links;
mod measurement;
mod metrics;
mod mistakes;
mod name;
mod node;
mod open;
mod page;
mod plan;
pub mod publish;
mod reach;
mod replicate;
mod replication;
mod robust;
mod role;
mod run;
mod secrets;
mod seed;
mod variables;
mod wants;

pub use boot::BootFiles;
pub use build::Build;
pub use changes::Changes;
pub use check::{Check, PlannedCommand};
pub use clock::{
    ClockError, ClockMethod, ClockOrder, ClockReading, ClockRecord, keep_clock, parse_readings,
};
pub use comparison::{compare_devices, is_comparison, read_comparison};
pub use counters::Counter;
pub use error::ExperimentError;
pub use experiment::{Experiment, Variant};
pub use folder::list;
pub use limit::Limit;
pub use links::{
    InterfaceState, LinkEndText, LinkReport, NeighbourReport, ProbeRequest, ProvenLink, Sighting,
    Wire, WireRequest, Wires, find_wires, probe_links,
};
pub use node::{ask_slurm, check_machine_is_free};
pub use open::{
    FORMER, TEMPLATE, fresh_folder, name_of, open, open_reference, reference, renamed, schema,
};
pub use page::write_comparison;
pub use plan::PlannedRun;
pub use reach::Reached as ReachedNode;
pub use replicate::{Reached, Replication, Results};
pub use replication::{Replicated, ReplicationReport};
pub use robust::{
    JudgedClaim, Margin, Outcome, Perturbation, Point, Robust, RobustPlan, Robustness, Tested,
    choose as choose_perturbations,
};
pub use run::{Request, run, run_allocated};
pub use variables::Values;
