//! Lines of JSON that `taut forward --json` prints, and lines that it reads with `--control`. Writers and readers share
//! these types.

use crate::{CountersView, Place, QueueCounters, Stage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use taut_function::{Catalog, Count};
use taut_port::PortCounters;

/// One line of the standard output of `taut forward --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// Event that the line reports.
    #[serde(flatten)]
    pub event: Event,
    /// Index of the chain file to which the line refers; None for the first chain file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<usize>,
}

/// An event of a running chain that `taut forward --json` reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// The chain forwards packets.
    Started(Started),
    /// The link of a port has gone up or down.
    Link {
        /// Spec of the port, as written in the chain.
        port: String,
        /// Reason why the link is down; none if it is up.
        down: Option<String>,
    },
    /// One second has passed; the value has its counts.
    Second(Second),
    /// The reply to a request for counters.
    Counters {
        /// Counters since the start of the chain.
        counters: CountersView,
        /// Counters of the ports since the start, in the order of the chain.
        ports: Vec<PortCounters>,
    },
    /// Functions have been replaced.
    Updated {
        /// Number of functions that stay, because their settings are unchanged.
        kept: usize,
        /// Number of functions that are new.
        made: usize,
        /// Longest time in which a worker did not poll its ports, us.
        pause_us: f64,
    },
    /// A worker has joined the running ones.
    Joined {
        /// Core on which the worker runs.
        core: usize,
    },
    /// A line of standard input ([`Order`]) was rejected.
    Refused {
        /// Reason why the request was rejected.
        reason: String,
    },
    /// All input files have been read and their packets sent; the ports stay open until standard input closes.
    Done {
        /// Counters since the start of the chain.
        counters: CountersView,
        /// Counters of the ports since the start, in the order of the chain.
        ports: Vec<PortCounters>,
    },
    /// The chain has ended.
    Summary(Box<Summary>),
}

impl From<Event> for Report {
    /// Makes a report about the only chain file, which therefore has no index of the file.
    fn from(event: Event) -> Self {
        Self {
            event,
            worker: None,
        }
    }
}

/// The way in which a started chain forwards packets.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Started {
    /// Place where packets are forwarded, if it is the kernel; None if workers forward them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    /// For each direction, a description for display of how the kernel forwards packets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub directions: Vec<String>,
    /// Flush policy of the workers; None if the kernel forwards packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flush: Option<String>,
    /// Waiting policy of the workers; None if the kernel forwards packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<String>,
    /// Core of the only worker; None if no core is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<usize>,
    /// Number of workers; None if there is only one, or if the kernel forwards packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<usize>,
    /// Cores of the workers; empty if there is only one worker.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cores: Vec<usize>,
}

/// Counts of one second of a running chain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Second {
    /// Index of the second since the start, from 1.
    pub second: u32,
    /// Counters of this second.
    pub counters: CountersView,
    /// Fractions of the second in which workers were busy, asleep and interrupted; None if the kernel forwards packets.
    #[serde(flatten)]
    pub shares: Option<Shares>,
    /// Counters of each worker, if there are several; otherwise empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<CountersView>,
    /// Counts since the start, for the functions that report while they run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<Count>,
}

/// Fractions of the workers' time, 0 to 1, and the mean size of bursts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Shares {
    /// Mean number of packets per received burst.
    pub average_batch: f64,
    /// Fraction of the worker's time spent on packets.
    pub busy: f64,
    /// Fraction of the worker's time spent asleep.
    pub asleep: f64,
    /// Fraction of the worker's time spent in interruptions.
    pub interrupted: f64,
}

impl Shares {
    /// Computes the fractions from the counters of one worker, or the summed counters of several.
    pub fn of(counters: &CountersView) -> Self {
        Self {
            average_batch: counters.average_batch(),
            busy: counters.busy(),
            asleep: counters.asleep(),
            interrupted: counters.interrupted(),
        }
    }
}

/// Counts of a chain from its start to its end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Time from the start to the end, s.
    pub seconds: f64,
    /// Counters of the whole run.
    pub counters: CountersView,
    /// Packets dropped for any reason.
    pub dropped: u64,
    /// Fractions of the time in which workers were busy, asleep and interrupted; None if the kernel forwards packets.
    #[serde(flatten)]
    pub shares: Option<Shares>,
    /// Numbers of packets by outcome, summed over the functions that distinguish outcomes.
    #[serde(default)]
    pub outcomes: BTreeMap<String, u64>,
    /// Numbers of packets by function and outcome, since each function started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<Count>,
    /// Cycles of the workers per sent packet, in iterations with packets; None if the kernel forwards packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_ticks_per_packet: Option<f64>,
    /// Rate of the time-stamp counter that counts the cycles, Hz; None if the kernel forwards packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tsc_hz: Option<f64>,
    /// Counts at each port, in the order of the chain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<AtPort>,
    /// Counters of each worker, if there are several; otherwise empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<CountersView>,
    /// Names of auxiliary threads that died (panicked).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub died: Vec<String>,
}

/// Counts of packets at one port of the chain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AtPort {
    /// Spec of the port, as written in the chain.
    pub port: String,
    /// Counters of the port's packets.
    #[serde(flatten)]
    pub counters: PortCounters,
    /// Counters of the port's queues, the highest priority last; none without queues.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<QueueCounters>,
}

/// One line of the standard input of `taut forward --control`: new functions, as in a chain file, or a request for one
/// more worker. A line with neither requests the counters.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// Index of the chain file to which the line applies, from 0; it may be omitted if there is only one file.
    #[serde(default)]
    pub worker: usize,
    /// Functions that replace the present ones; None keeps the functions. Without new functions and without a further
    /// worker, the line requests the counters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub functions: Option<Vec<Stage>>,
    /// True if one more worker shall join.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub add_worker: bool,
}

impl Order {
    /// Parses a line of JSON; `catalog` has the functions that the line may name.
    ///
    /// # Errors
    /// Fails if the line is no JSON object with the keys of an [`Order`].
    pub fn parse(line: &str, catalog: Catalog) -> Result<Self, serde_json::Error> {
        let mut order: Self = serde_json::from_str(line)?;
        for stage in order.functions.iter_mut().flatten() {
            stage.catalog = catalog;
        }
        Ok(order)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_function::CountKind;
    use taut_functions::FUNCTIONS;

    #[test]
    fn a_written_report_line_parses_to_the_same_event() {
        let counters = CountersView {
            rx_packets: u64::MAX,
            busy_ticks: 3,
            ..CountersView::default()
        };
        let ports = vec![PortCounters::default(); 2];
        let shares = Some(Shares::of(&counters));
        let events = [
            Event::Started(Started {
                place: Some(Place::Kernel),
                ..Started::default()
            }),
            Event::Link {
                port: "null:".to_string(),
                down: None,
            },
            Event::Second(Second {
                second: 1,
                counters,
                shares,
                workers: vec![counters; 2],
                functions: vec![Count {
                    function: "ips".to_string(),
                    kind: CountKind::Rule,
                    name: "1:7".to_string(),
                    about: String::new(),
                    count: 3,
                }],
            }),
            Event::Counters {
                counters,
                ports: ports.clone(),
            },
            Event::Updated {
                kept: 1,
                made: 2,
                pause_us: 0.5,
            },
            Event::Refused {
                reason: "no".to_string(),
            },
            Event::Done { counters, ports },
            Event::Summary(Box::new(Summary {
                seconds: 1.0,
                counters,
                shares,
                outcomes: BTreeMap::from([("relayed".to_string(), 7)]),
                ports: vec![AtPort {
                    port: "null:".to_string(),
                    counters: PortCounters::default(),
                    queues: vec![QueueCounters::default()],
                }],
                ..Summary::default()
            })),
            Event::Summary(Box::default()),
        ];
        for event in events {
            for worker in [None, Some(3)] {
                let event = event.clone();
                let report = Report { event, worker };
                let line = serde_json::to_string(&report).unwrap();
                assert_eq!(
                    serde_json::from_str::<Report>(&line).unwrap(),
                    report,
                    "{line}"
                );
            }
        }
    }

    #[test]
    fn update_requests_to_a_worker_parse_and_serialise_unchanged() {
        let read = |text: &str| Order::parse(text, FUNCTIONS);
        assert_eq!(read("{}").unwrap(), Order::default());
        let order =
            read("{\"worker\": 1, \"functions\": [{\"name\": \"xor\", \"key\": 7}]}").unwrap();
        assert_eq!(order.worker, 1);
        let written = serde_json::to_string(&order).unwrap();
        assert_eq!(read(&written).unwrap(), order);
        let stage = &order.functions.unwrap()[0];
        assert_eq!(
            (&*stage.name, stage.settings["key"].as_integer()),
            ("xor", Some(7))
        );
        assert!(read("{\"function\": []}").is_err());
    }
}
