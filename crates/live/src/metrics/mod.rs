//! Counters and distributions for monitoring systems: their text format, and the endpoint that serves it.

mod capture;
mod chain;
mod endpoint;
mod exposition;
mod forwarder;
mod functions;
mod generator;

pub use capture::capture_metrics;
pub use chain::{SegmentView, chain_metrics};
pub use endpoint::Endpoint;
pub use exposition::{Exposition, Kind};
pub use forwarder::forwarder_metrics;
pub use generator::generator_metrics;
