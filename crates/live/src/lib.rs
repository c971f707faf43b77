//! The live views of `taut forward`, `generate`, `capture` and `control` for people and monitoring systems.
//!
//! The types to know:
//!
//! - [`Dashboard`]: switches a terminal to the dashboard, draws a [`View`] of the generator's streams, a
//!   [`CaptureView`] or a [`ControlView`], and returns the actions of keys ([`Asked`]).
//! - [`http::Server`]: replies to short requests over HTTP, a few at a time.
//! - [`http_client::Url`]: sends a request to such a server.
//! - [`metrics::Endpoint`]: an HTTP server that replies to `GET /metrics`.
//! - [`metrics::Exposition`]: counters and distributions as OpenMetrics text.
//!
//! The code that runs a measurement calls these types. [`Dashboard::show`] and [`metrics::generator_metrics`] get
//! streams as `taut_traffic` publishes them, [`metrics::forwarder_metrics`] gets the counters that a worker publishes.
//! No packet loop calls this crate. The plots of reports are drawn by `taut-figure`.
//!
//! Begin with `dashboard.rs`, then `http.rs`.

#![forbid(unsafe_code)]

mod capture;
mod control;
mod dashboard;
mod draw;
pub mod http;
pub mod http_client;
pub mod metrics;

pub use capture::CaptureView;
pub use control::ControlView;
pub use dashboard::{Asked, Dashboard};
pub use draw::View;
