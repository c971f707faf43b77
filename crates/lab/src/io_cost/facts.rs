//! What `io.json` says besides the head of every benchmark.

use super::IoCost;
use super::framework::Framework;
use crate::benchmark::definition;
use serde::{Deserialize, Serialize};
use taut_function::burn::BurnError;
use taut_host::machine::Cache;
use taut_sys::{Event, EventCounters};

/// A results folder read back.
pub type Results = definition::Results<IoCost>;

/// What only this benchmark says in its head.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Steps per packet through a list.
    pub steps: u32,
    /// Frame size in bytes, frame check sequence included.
    pub frame_size_bytes: u32,
    /// Caches of the first CPU.
    pub caches: Vec<Cache>,
    /// Frameworks in the order of the report.
    pub frameworks: Vec<Framework>,
    /// How exactly the load is what it says.
    pub burn_errors: Vec<BurnError>,
    /// What the processor counted in the threads that handled packets, or why nothing.
    pub hardware_counters: HardwareCounters,
}

/// What the processor counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HardwareCounters {
    /// These events.
    Counted {
        /// In the order of the tables.
        events: Vec<Event>,
        /// Whether what the kernel did in those threads is in it.
        with_kernel: bool,
    },
    /// Nothing, and why.
    NoData(String),
}

impl Default for HardwareCounters {
    fn default() -> Self {
        Self::NoData("not looked for yet".to_string())
    }
}

impl HardwareCounters {
    /// What the calling thread finds.
    pub(super) fn probe() -> Self {
        let found = EventCounters::open(None, &Event::HARDWARE)
            .and_then(|counters| counters.read().map(|_| counters));
        match found {
            Ok(counters) => Self::Counted {
                events: counters.events().collect(),
                with_kernel: counters.counts_kernel(),
            },
            Err(taut_sys::Error::Missing { needs, .. }) => Self::NoData(format!("needs {needs}")),
            Err(e) => Self::NoData(e.to_string()),
        }
    }

    /// In a sentence without its end.
    pub fn in_words(&self) -> String {
        match self {
            Self::Counted {
                events,
                with_kernel,
            } => {
                let labels: Vec<_> = events.iter().map(|e| e.label()).collect();
                let kernel = if *with_kernel {
                    "with"
                } else {
                    "without (it takes root or CAP_PERFMON)"
                };
                format!(
                    "{} of the forwarder's thread, {kernel} what the kernel did in it",
                    labels.join(", ")
                )
            }
            Self::NoData(why) => format!("no data: no hardware counters here ({why})"),
        }
    }
}
