//! What people and monitoring systems see of `taut forward`, `taut generate`, `taut capture` and `taut control` while they run.
//!
//! The types to know:
//!
//! - [`Dashboard`]: takes a terminal, draws a [`View`] of the generator's streams, a [`CaptureView`] or a
//!   [`ControlView`], says what keys have [`Asked`] for.
//! - [`http::Server`]: answers short requests over HTTP, a few at a time.
//! - [`metrics::Endpoint`]: has it answer `GET /metrics`.
//! - [`metrics::Exposition`]: counters and distributions as OpenMetrics text.
//!
//! Whoever runs a measurement calls all of it: [`Dashboard::show`] and [`metrics::generator_metrics`] with streams as
//! `taut_traffic` shows them to others, [`metrics::forwarder_metrics`] with the counters that a worker publishes. No loop
//! that packets pass through sees anything of it, and nothing here draws figures.
//!
//! Begin with `dashboard.rs`, then `http.rs`.

#![forbid(unsafe_code)]

mod capture;
mod control;
mod dashboard;
mod draw;
pub mod http;
pub mod metrics;

pub use capture::CaptureView;
pub use control::ControlView;
pub use dashboard::{Asked, Dashboard};
pub use draw::View;
