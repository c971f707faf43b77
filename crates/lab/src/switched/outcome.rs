//! The results of the combinations that were measured.

use super::device::Switch;
use super::part::Part;
use crate::benchmark::rig::Failed;
use serde::{Deserialize, Serialize};
use taut_measure::Summary;
use taut_traffic::{Summaries, Tally};

/// What came of a point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Which switch.
    pub switch: Switch,
    /// Which point.
    pub part: Part,
    /// From 1.
    pub repetition: u32,
    /// What was seen.
    pub seen: Seen,
}

/// What was seen at a point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Seen {
    /// Latency alone.
    Latency(Latency),
    /// The highest rate, and latency at a lower one.
    Rate {
        /// Packets a second that came through when as many as possible were offered.
        pps: f64,
        /// Latency of 100 kpkt/s.
        latency: Latency,
        /// Time that a rule took when all were made together, ns.
        rule_ns: Option<f64>,
    },
    /// Latency of both classes.
    Classes {
        /// Of real-time packets.
        real_time: Latency,
        /// Of background packets, if any were sent and came.
        background: Option<Latency>,
    },
    /// Times until rules were in force, ns.
    Insertion {
        /// From the message to the answer of the barrier behind it, rule by rule: rules that are made, that get other actions, and that
        /// are taken out.
        barrier_ns: [Vec<f64>; 3],
        /// Of a rule that packets come for, until the first packet that obeys it.
        made: OnWire,
        /// The same when it gets other actions.
        modified: OnWire,
        /// When it is taken out, until the last packet that obeys it.
        deleted: OnWire,
        /// Changes that no packet showed while it was waited for.
        unseen: u32,
    },
    /// What became of one stream that was sent through all ports: at a rate that is easy, and at the highest.
    Amplified {
        /// Copies that the rule makes of a packet.
        copies: u32,
        /// At 10 kpkt/s.
        easy: Amplified,
        /// As many as the generator's port takes.
        most: Amplified,
    },
}

/// Times from a message until the switch goes by it, change by change, ns.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OnWire {
    /// As packets show it.
    pub wire_ns: Vec<f64>,
    /// Until the barrier behind it is answered, of the same changes.
    pub barrier_ns: Vec<f64>,
}

/// Latency of all packets of a stream, and how many did not come.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Latency of those that came.
    pub latency: Summary,
    /// Share of those sent that did not come.
    pub lost: f64,
}

/// A stream that went through all ports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Amplified {
    /// Packets a second that came into the switch from the generator.
    pub in_pps: f64,
    /// Packets a second that left it through all of its ports.
    pub out_pps: f64,
    /// Packets that came back for each that was sent.
    pub fold: f64,
    /// Share of the copies that did not come out of each cable's ends or each link, in the order of the ports; none where nobody counts
    /// them.
    pub lost: Vec<f64>,
}

impl Latency {
    pub(super) fn of(tally: &Tally, record: &Summaries) -> Result<Self, Failed> {
        if tally.stopped {
            return Err(Failed::Stopped);
        }
        let latency = Summary::from_histogram(&record.latency);
        let latency = latency.ok_or_else(|| Failed::Broken("no packet came back".to_string()))?;
        let lost = record.sequence.finish(tally.sent).lost;
        Ok(Self {
            latency,
            lost: lost as f64 / tally.sent.max(1) as f64,
        })
    }
}
