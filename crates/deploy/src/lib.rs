//! A chain of functions spread over threads, processes, namespaces or machines: what it is made of, and who keeps it up.

#![forbid(unsafe_code)]

mod error;
mod segment;

pub use error::DeployError;
pub use segment::{Segment, Wires, segments, split};
