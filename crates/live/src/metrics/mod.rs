//! Counters and distributions for monitoring systems: their text form, and the endpoint that gives it out.

mod endpoint;
mod exposition;
mod forwarder;
mod generator;

pub use endpoint::{Endpoint, EndpointError};
pub use exposition::{Exposition, Kind};
pub use forwarder::forwarder_metrics;
pub use generator::generator_metrics;
