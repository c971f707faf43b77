//! The results of the measurements: one for each combination of switch, point and repetition.

use super::device::Switch;
use super::part::Part;
use serde::{Deserialize, Serialize};
use taut_bench::benchmark::Failed;
use taut_measure::{Limit, Summary};
use taut_traffic::{Summaries, Tally};

/// The result of one switch at one point of a measurement, in one repetition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The switch that was measured.
    pub switch: Switch,
    /// The point of the measurement.
    pub part: Part,
    /// Number of the repetition, from 1.
    pub repetition: u32,
    /// The observations of the trial.
    pub seen: Seen,
}

/// The observations of one trial at a measurement point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Seen {
    /// Only latency was measured.
    Latency(Latency),
    /// The highest rate, and latency at a lower rate.
    Rate {
        /// Received packets per second at the highest offered rate.
        pps: f64,
        /// The part that limited the rate, such as the generator; none in results that do not contain it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limited_by: Option<Limit>,
        /// Latency at 100 kpkt/s.
        latency: Latency,
        /// Time until all rules are added, divided by their number, ns; none if no rules were added.
        rule_ns: Option<f64>,
    },
    /// Latency of real-time and background packets.
    Classes {
        /// Latency of real-time packets.
        real_time: Latency,
        /// Latency of background packets, if any were sent and came back.
        background: Option<Latency>,
    },
    /// Times until changes of rules are in effect, ns.
    Insertion {
        /// Times from the message to the reply to its barrier, by rule: added, modified and deleted rules.
        barrier_ns: [Vec<f64>; 3],
        /// Times from adding the rule to the first packet that obeys it.
        made: OnWire,
        /// Times from modifying the rule to the first packet that obeys the change.
        modified: OnWire,
        /// Times from deleting the rule to the last packet that obeys it.
        deleted: OnWire,
        /// Number of changes whose effect on packets was not observed before the next change.
        unseen: u32,
    },
    /// The results of one stream through all ports, at a low rate and at the highest rate.
    Amplified {
        /// Number of copies that the rule makes of a packet.
        copies: u32,
        /// Results at the low rate of 10 kpkt/s.
        easy: Amplified,
        /// Results at the highest rate of the generator's port.
        most: Amplified,
    },
}

/// Times from the messages that change a rule until the changes take effect, ns: one for each change.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OnWire {
    /// For each change, the time from the message until packets show the effect.
    pub wire_ns: Vec<f64>,
    /// For each change, the time from the message until the barrier reply.
    pub barrier_ns: Vec<f64>,
}

/// Latency of a stream's packets, and its loss ratio.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Latency of the packets that came back.
    pub latency: Summary,
    /// Fraction of the sent packets that did not come back.
    pub lost: f64,
}

/// The results of a stream that the switch sent through all of its ports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Amplified {
    /// Packets per second that the switch received from the generator.
    pub in_pps: f64,
    /// Packets per second that the switch sent through all its ports.
    pub out_pps: f64,
    /// Ratio of the packets that came back to the sent packets: the number of copies per packet.
    pub fold: f64,
    /// Loss ratio at each cable end or link, in the order of the ports; empty if the switch has no counters for
    /// packets.
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
