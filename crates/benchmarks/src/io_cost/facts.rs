//! The fields of `io.json` in addition to those of every benchmark.

use super::IoCost;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use taut_bench::framework::Framework;
use taut_functions::burn::BurnError;
use taut_host::machine::Cache;
use taut_sys::{Event, EventCounters};

/// The contents of a results folder, read from disk.
pub type Results = taut_bench::benchmark::Results<IoCost>;

/// The fields of the manifest that only this benchmark has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Steps that each packet takes through a linked list in memory.
    pub steps: u32,
    /// Frame size in bytes, frame check sequence included.
    pub frame_size_bytes: u32,
    /// Caches of the first CPU.
    pub caches: Vec<Cache>,
    /// Frameworks in the order of the report.
    pub frameworks: Vec<Framework>,
    /// Measured deviations of the burnt cycles from the requested ones, by load and batch size.
    pub burn_errors: Vec<BurnError>,
    /// Hardware events of the threads that handled packets, or the reason why none were counted.
    pub hardware_counters: HardwareCounters,
}

/// The hardware events that were counted, or the reason why none were counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HardwareCounters {
    /// Hardware events were counted.
    Counted {
        /// The events in the order of the tables.
        events: Vec<Event>,
        /// True if the counts include the kernel's work in the threads that handled packets.
        with_kernel: bool,
    },
    /// No hardware events were counted; the value is the reason.
    NoData(String),
}

impl Default for HardwareCounters {
    fn default() -> Self {
        Self::NoData("not looked for yet".to_string())
    }
}

impl HardwareCounters {
    /// Tests which counters the calling thread can use.
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

    /// Describes the counted events in a sentence without its full stop.
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
