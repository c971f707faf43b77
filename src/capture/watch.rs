//! What others see of a capture that runs here: its state, and the metrics made of it.

use super::ask::Asking;
use super::run::Ports;
use crate::exit::Failure;
use crate::terminal::watch::serve_metrics;
use std::sync::{Arc, OnceLock};
use taut_capture::capture::Status;
use taut_engine::{Chain, Exchange};
use taut_live::metrics::{Endpoint, Exposition, capture_metrics};

/// A capture that runs, or is about to.
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

    /// Says that it runs.
    pub fn runs(&self, exchange: Arc<Exchange>) {
        // It begins once.
        let _ = self.exchange.set(exchange);
    }

    /// What is captured.
    pub fn title(&self) -> String {
        let ports: Vec<_> = self.chain.ports.iter().map(|it| it.text()).collect();
        format!("taut capture {}", ports.join(" "))
    }

    /// Its state, and that of its ports.
    pub fn look(&self) -> Result<(Status, Ports), Failure> {
        let Some(exchange) = self.exchange.get() else {
            return Err(Failure::Missing("the capture has not begun".to_string()));
        };
        let status = self.asking.status()?;
        Ok((status, Ports::of(&self.chain, exchange)))
    }
}

/// Gives out metrics, if they are asked for; none before it runs, and when it ends.
pub fn metrics(address: Option<&str>, watched: &Arc<Watched>) -> Result<Option<Endpoint>, Failure> {
    let watched = Arc::clone(watched);
    serve_metrics(address, move || match watched.look() {
        Ok((status, ports)) => capture_metrics(&status, &ports.each),
        Err(_) => Exposition::new().finish(),
    })
}
