//! Runs a chain of functions over threads, processes, namespaces or machines, in segments under a supervisor.
//!
//! The types to know:
//!
//! - [`Segment`]: a part of the chain whose functions share a worker, as a chain file of its own.
//! - [`Deployment`]: a running chain, and its supervisor.
//! - [`Estimate`]: the cost of a chain before it runs.
//!
//! For `taut chain up`, the pure function [`segments`] splits the chain. [`Deployment::up`] then creates the links
//! (`ends.rs`) and starts `taut forward` for each segment (`process.rs`). [`Deployment::keep_up`] reads the messages of
//! the processes, restarts those that die, and serves the control socket, to which [`ask`] and [`down`] connect.
//!
//! `taut chain plan` calls [`estimate()`]. [`classify()`] chooses the place of each function, `measure.rs` measures the
//! function's cost on this machine, and the models of `taut_model` derive rate and round trip. [`vm`] runs a chain in a
//! virtual machine; [`manifest`] describes a chain for Kubernetes and OpenStack.
//!
//! Begin with `segment.rs`, then `deployment.rs`.
//!
//! # Processes
//!
//! Each segment is a chain file that `taut forward` runs, so a person can type everything that runs. The supervisor
//! reads the JSON lines of the processes (`taut_engine::Report`), restarts a process that exits, and counts the packets
//! lost until then (`deployment/gap.rs`). It writes changed functions to the standard input of the processes
//! (`deployment/update.rs`). A process ends when its standard input closes, so it does not outlive a killed supervisor.
//! Names of namespaces and links contain the process number of the supervisor, and the next supervisor deletes stale
//! ones. The name of a chain and the claim of a machine are locks in the user's run folder. A segment that has read its
//! input file keeps its ports open until the next segment has received everything (`deployment/drain.rs`).
//!
//! # Virtual machines
//!
//! A virtual machine ([`vm`]) has no disk. Its kernel unpacks an archive of the taut binary, its libraries and a chain
//! file, and starts taut as the first program, which runs `taut forward`. Two virtio serial lines are the standard
//! input and output of that program, so the supervisor treats a virtual machine like a process. Virtual machines are
//! connected by a private Open vSwitch.

#![forbid(unsafe_code)]

mod classify;
mod control;
mod deployment;
mod ends;
mod error;
mod estimate;
mod function_files;
mod lines;
pub mod manifest;
mod measure;
mod origin;
mod process;
pub mod run_folder;
mod segment;
mod status;
pub mod vm;
mod walk;
mod wires;

pub use classify::{Placed, classify};
pub use control::{Request, ask, down, sweep};
pub use deployment::{Deployment, name_of, placement_text};
pub use error::DeployError;
pub use estimate::{
    Basis, Estimate, FunctionRow, Holds, Part, Rate, RoundTrip, Settings, estimate,
};
pub use measure::{BothWays, Cost, Measured};
pub use origin::origin;
pub use segment::{Segment, segments, split};
pub use status::{Condition, SegmentStatus, Status};
pub use walk::{AccessCost, access_costs};
pub use wires::Wires;
