//! The settings of network coding.

use super::symbol;
use serde::Deserialize;
use std::time::Duration;
use taut_code::{Encoder, Scheme};
use taut_function::SettingsError;
use taut_settings::duration;

/// The shortest history of a decoder, in source packets.
const LEAST_SPAN: usize = 64;

/// The limit on egress ports. Each egress port has its own encoder, decoder or recoder.
pub(super) const DIRECTIONS: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Code {
    Window,
    Block,
}

/// The order in which decoded packets leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Order {
    AsDecoded,
    InOrder,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Settings {
    /// The egress ports through which packets leave coded.
    pub encode: Vec<usize>,
    /// True if coded packets that pass are recoded, in all directions.
    pub recode: bool,
    pub code: Code,
    pub symbols: Option<usize>,
    pub redundancy: f64,
    pub density: f64,
    pub span: Option<usize>,
    pub payload: usize,
    pub flush: String,
    pub order: Order,
    pub patience: String,
    pub seed: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            encode: Vec::new(),
            recode: false,
            code: Code::Window,
            symbols: None,
            redundancy: 0.25,
            density: 1.0,
            span: None,
            payload: 1400,
            flush: "2ms".to_string(),
            order: Order::AsDecoded,
            patience: "20ms".to_string(),
            seed: None,
        }
    }
}

impl Settings {
    pub fn symbols(&self) -> usize {
        self.symbols.unwrap_or(match self.code {
            Code::Window => 8,
            Code::Block => 32,
        })
    }

    pub fn scheme(&self) -> Scheme {
        let (symbols, redundancy) = (self.symbols(), self.redundancy);
        match self.code {
            Code::Window => Scheme::Window {
                symbols,
                redundancy,
            },
            Code::Block => Scheme::Block {
                symbols,
                redundancy,
            },
        }
    }

    pub fn symbol_bytes(&self) -> usize {
        symbol::HEAD_BYTES + self.payload
    }

    pub fn span(&self) -> usize {
        self.span.unwrap_or(LEAST_SPAN.max(4 * self.symbols()))
    }

    /// Returns the time for which decoded packets wait for earlier packets; none if packets do not leave in order.
    pub fn patience(&self) -> Option<Duration> {
        duration(&self.patience).filter(|_| self.order == Order::InOrder)
    }

    pub fn check(&self) -> Result<(), SettingsError> {
        let wrong = |text: String| Err(SettingsError(text));
        Encoder::new(self.scheme(), 1, 1.0, 0).map_err(|e| SettingsError(e.to_string()))?;
        if self.recode && !self.encode.is_empty() {
            return wrong(
                "encode and recode: a node either terminates the code or recodes; leave one out"
                    .into(),
            );
        }
        if self.recode && self.order == Order::InOrder {
            return wrong("order = \"in-order\": packets are reordered by the decoder; leave it out with recode".into());
        }
        if duration(&self.patience).is_none() {
            let patience = &self.patience;
            return wrong(format!(
                "patience = \"{patience}\": expected a time, such as 20ms"
            ));
        }
        if let Some(port) = self.encode.iter().find(|port| **port >= DIRECTIONS) {
            return wrong(format!(
                "encode = [{port}]: ports are numbered from 0 to {}",
                DIRECTIONS - 1
            ));
        }
        if !(self.density > 0.0 && self.density <= 1.0) {
            let density = self.density;
            return wrong(format!(
                "density = {density}: expected a share of the coefficients, up to 1"
            ));
        }
        if !(1..=8192).contains(&self.payload) {
            return wrong(format!(
                "payload = {}: expected 1 to 8192 bytes",
                self.payload
            ));
        }
        let (span, symbols) = (self.span(), self.symbols());
        if !(symbols..=1024).contains(&span) {
            return wrong(format!(
                "span = {span}: expected {symbols} (what a repair covers) to 1024 packets"
            ));
        }
        Ok(())
    }
}
