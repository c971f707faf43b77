//! A chain of functions spread over threads, processes, namespaces or machines: what it is made of, and who keeps it up.

#![forbid(unsafe_code)]

mod classify;
mod control;
mod deployment;
mod ends;
mod error;
mod estimate;
pub mod manifest;
mod measure;
mod named;
mod process;
pub mod run_folder;
mod segment;
mod status;
pub mod vm;

pub use classify::{Placed, classify};
pub use control::{Request, ask, down, sweep};
pub use deployment::{Deployment, name_of, placement_text};
pub use error::DeployError;
pub use estimate::{
    Basis, Estimate, FunctionRow, Holds, Part, Rate, RoundTrip, Settings, estimate,
};
pub use measure::{BothWays, Cost, Measured};
pub use segment::{Segment, Wires, segments, split};
pub use status::{Condition, SegmentStatus, Status};
