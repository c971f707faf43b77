//! Access to a running capture for other programs: its state and its metrics.

use super::ask::Asking;
use super::run::Ports;
use crate::exit::Failure;
use crate::terminal::watch::serve_metrics;
use std::sync::{Arc, OnceLock};
use taut_capture::capture::Status;
use taut_engine::{Chain, Exchange};
use taut_live::metrics::{Endpoint, Exposition, capture_metrics};

/// A capture that runs or is about to start.
pub struct Watched {
    pub asking: Asking,
    chain: Arc<Chain>,
    exchange: OnceLock<Arc<Exchange>>,
}

impl Watched {
    pub fn new(asking: Asking, chain: Arc<Chain>) -> Self {
        let exchange = OnceLock::new();
        Self {
            asking,
            chain,
            exchange,
        }
    }

    /// Records that the capture runs; `exchange` gives access to its worker.
    pub fn runs(&self, exchange: Arc<Exchange>) {
        // The capture starts only once.
        let _ = self.exchange.set(exchange);
    }

    /// Returns a title: the ports that are captured.
    pub fn title(&self) -> String {
        let ports: Vec<_> = self.chain.ports.iter().map(|it| it.text()).collect();
        format!("taut capture {}", ports.join(" "))
    }

    /// Returns the state of the capture and of its ports.
    pub fn look(&self) -> Result<(Status, Ports), Failure> {
        let Some(exchange) = self.exchange.get() else {
            return Err(Failure::Missing("the capture has not started".to_string()));
        };
        let status = self.asking.status()?;
        Ok((status, Ports::of(&self.chain, exchange)))
    }
}

/// Serves metrics, if an address is given; there are no metrics before the capture runs and after it ends.
pub fn metrics(address: Option<&str>, watched: &Arc<Watched>) -> Result<Option<Endpoint>, Failure> {
    let watched = Arc::clone(watched);
    serve_metrics(address, move || match watched.look() {
        Ok((status, ports)) => capture_metrics(&status, &ports.each),
        Err(_) => Exposition::new().finish(),
    })
}
