//! The measurements of a switch: their points, and the lengths and repetitions of their trials.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use taut_results::Mode;

/// Names of the measurements, as used by `--only`.
pub const MEASUREMENTS: [&str; 6] = ["hops", "rules", "qos", "insertion", "amplify", "actions"];

/// The kind of match that all rules of a point have.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Matching {
    /// No rules: a forwarder between two ports.
    Plain,
    /// Each rule matches one address.
    Exact,
    /// Rules match networks of 256 addresses down to single addresses, without gaps.
    Prefix,
}

/// The order of the priorities of rules that are added one after another.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Each rule has a higher priority than the rule added before.
    Increasing,
    /// Each rule has a lower priority than the rule added before.
    Decreasing,
    /// All rules have the same priority.
    Equal,
}

/// The actions of a rule on packets in addition to forwarding.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Does {
    /// The rule only forwards the packets.
    Output,
    /// A meter measures the packets' rate, and drops none.
    Meter,
    /// The packets' class (DSCP) is set.
    SetClass,
    /// The packets' destination address is set.
    SetAddress,
    /// A VLAN tag is pushed onto the packets and popped again.
    Tag,
    /// A group with one bucket sends the packets.
    GroupAll,
    /// A group selects one of two buckets by flow.
    GroupSelect,
    /// A group of two buckets selects the first bucket that has a port whose link is up.
    GroupFailover,
}

impl Does {
    /// All actions, the simplest first.
    pub const ALL: [Self; 8] = [
        Self::Output,
        Self::Meter,
        Self::SetClass,
        Self::SetAddress,
        Self::Tag,
        Self::GroupAll,
        Self::GroupSelect,
        Self::GroupFailover,
    ];
}

/// A point of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Latency of packets that pass through a number of cables.
    Hops {
        /// Number of cables between the switch's own ports that packets pass through.
        loops: u32,
    },
    /// Rate and latency with a number of rules.
    Rules {
        /// The kind of match that the rules have.
        matching: Matching,
        /// Number of rules in the switch.
        rules: u32,
    },
    /// Latency of real-time packets with background traffic.
    Qos {
        /// Background load in percent of the return port's capacity.
        load_percent: u32,
        /// True if real-time packets have a queue of strict priority.
        priority: bool,
    },
    /// Time until rules are in effect.
    Insertion {
        /// Priorities of the rules that are added.
        order: Order,
    },
    /// Throughput of one stream that is sent through all ports.
    Amplify {
        /// Number of cables between the switch's own ports, each of which returns two copies.
        cables: u32,
    },
    /// Rate and latency of a rule with an action.
    Actions {
        /// The rule's action in addition to forwarding.
        does: Does,
    },
}

/// Returns the name of a unit variant as in JSON.
fn name(of: &impl Serialize) -> String {
    match serde_json::to_value(of) {
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    }
}

impl Part {
    /// Returns the name of the measurement.
    pub fn measurement(self) -> &'static str {
        match self {
            Self::Hops { .. } => "hops",
            Self::Rules { .. } => "rules",
            Self::Qos { .. } => "qos",
            Self::Insertion { .. } => "insertion",
            Self::Amplify { .. } => "amplify",
            Self::Actions { .. } => "actions",
        }
    }

    /// Returns the name of the measurement point in file names and in the report, such as `exact-1000`.
    pub fn point(self) -> String {
        match self {
            Self::Hops { loops } => format!("{loops}"),
            Self::Rules { matching, rules } => format!("{}-{rules}", name(&matching)),
            Self::Qos {
                load_percent,
                priority,
            } => {
                let priority = if priority { "priority" } else { "together" };
                format!("{load_percent}-{priority}")
            }
            Self::Insertion { order } => name(&order),
            Self::Amplify { cables } => format!("{cables}"),
            Self::Actions { does } => name(&does),
        }
    }
}

/// The lengths and repetitions of a switch's measurements.
#[derive(Debug, Clone)]
pub struct Lengths {
    /// Number of interleaved repetitions.
    pub repetitions: u32,
    /// Length of a trial, without its warm-up.
    pub trial: Duration,
    loops: Vec<u32>,
    rules: Vec<u32>,
    loads_percent: Vec<u32>,
    cables: Vec<u32>,
    /// Number of rules that are added one after another.
    pub insertions: u32,
    /// Number of times that one rule is added, modified and deleted while its packets are observed.
    pub on_wire: u32,
}

impl Lengths {
    /// Returns the lengths and repetitions of a mode. A quick benchmark takes half a minute, the default less than a
    /// minute, a full one about an hour.
    pub fn of(mode: Mode) -> Self {
        let rules = [1, 1_000, 100_000];
        match mode {
            Mode::Quick => Self {
                repetitions: 1,
                trial: Duration::from_millis(50),
                loops: vec![0, 1, 2, 4, 6],
                rules: rules.to_vec(),
                loads_percent: vec![0, 300],
                cables: vec![1, 4],
                insertions: 100,
                on_wire: 5,
            },
            Mode::Default => Self {
                repetitions: 2,
                trial: Duration::from_millis(100),
                loops: vec![0, 1, 2, 3, 4, 6, 8],
                rules: rules.to_vec(),
                loads_percent: vec![0, 50, 300],
                cables: vec![1, 4, 23],
                insertions: 200,
                on_wire: 10,
            },
            Mode::Full => Self {
                repetitions: 10,
                trial: Duration::from_secs(1),
                loops: (0..=20).collect(),
                rules: [&rules[..], &[1_000_000]].concat(),
                loads_percent: vec![0, 25, 50, 75, 90, 110, 150, 200, 300],
                cables: vec![1, 2, 4, 8, 16, 23],
                insertions: 10_000,
                on_wire: 100,
            },
        }
    }

    /// Returns the highest number of loops; a loop is one cable. All these cables are also connected when packets pass
    /// fewer loops: a switch polls unused ports too, which must not affect the slope of the latency over loops.
    pub fn most_loops(&self) -> u32 {
        self.loops.iter().copied().max().unwrap_or(0)
    }

    /// Limits the numbers of cables of all points to the cables that exist: `for_loops` for loops, and `multiplied` for
    /// the multiplication of a stream.
    pub fn keep_to(&mut self, for_loops: u32, multiplied: u32) {
        for (points, most, least) in [
            (&mut self.loops, for_loops, 0),
            (&mut self.cables, multiplied, 1),
        ] {
            points.iter_mut().for_each(|it| *it = (*it).min(most));
            points.dedup();
            points.retain(|it| *it >= least);
        }
    }

    /// Returns the points of the measurements whose names `is_wanted` accepts.
    pub fn parts(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        parts.extend(self.loops.iter().map(|&loops| Part::Hops { loops }));
        parts.push(Part::Rules {
            matching: Matching::Plain,
            rules: 0,
        });
        for &rules in &self.rules {
            for matching in [Matching::Exact, Matching::Prefix] {
                parts.push(Part::Rules { matching, rules });
            }
        }
        for &load_percent in &self.loads_percent {
            for priority in [true, false] {
                parts.push(Part::Qos {
                    load_percent,
                    priority,
                });
            }
        }
        let orders = [Order::Increasing, Order::Decreasing, Order::Equal];
        parts.extend(orders.map(|order| Part::Insertion { order }));
        parts.extend(self.cables.iter().map(|&cables| Part::Amplify { cables }));
        parts.extend(Does::ALL.map(|does| Part::Actions { does }));
        parts.retain(|part| is_wanted(part.measurement()));
        parts
    }

    /// Returns the approximate duration of a point, without the start of the switch.
    pub fn estimate(&self, part: Part) -> Duration {
        let milliseconds = Duration::from_millis;
        match part {
            Part::Hops { .. } | Part::Amplify { .. } => self.trial * 2,
            Part::Rules { rules, .. } => self.trial * 3 + milliseconds(u64::from(rules) / 20),
            Part::Qos { .. } => self.trial * 2 + milliseconds(100),
            Part::Insertion { .. } => {
                milliseconds(u64::from(self.insertions) / 2 + 80 * u64::from(self.on_wire))
            }
            Part::Actions { .. } => self.trial * 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn combinations_have_unique_names_and_cover_all_measurements() {
        for mode in [Mode::Quick, Mode::Default, Mode::Full] {
            let parts = Lengths::of(mode).parts(|_| true);
            let names: BTreeSet<String> = parts
                .iter()
                .map(|part| format!("{}-{}", part.measurement(), part.point()))
                .collect();
            assert_eq!(names.len(), parts.len());
            assert!(names.iter().all(|name| !name.ends_with('-')), "{names:?}");
            let known: BTreeSet<&str> = parts.iter().map(|part| part.measurement()).collect();
            assert_eq!(known, MEASUREMENTS.into_iter().collect());
        }
    }

    #[test]
    fn measurement_points_need_no_more_cables_than_available() {
        let mut lengths = Lengths::of(Mode::Default);
        lengths.keep_to(5, 2);
        let points = |name: &'static str| -> Vec<String> {
            let parts = lengths.parts(|it| it == name).into_iter();
            parts.map(|part| part.point()).collect()
        };
        assert_eq!(points("hops"), ["0", "1", "2", "3", "4", "5"]);
        assert_eq!(points("amplify"), ["1", "2"]);
        lengths.keep_to(0, 0);
        assert_eq!(lengths.parts(|it| it == "amplify"), []);
        assert_eq!(lengths.parts(|it| it == "hops").len(), 1);
    }

    #[test]
    fn one_selected_measurement_has_only_its_own_points() {
        let lengths = Lengths::of(Mode::Quick);
        let hops = lengths.parts(|name| name == "hops");
        assert_eq!(hops.len(), 5);
        assert_eq!(lengths.most_loops(), 6);
        assert_eq!(hops.last().map(|part| part.point()), Some("6".to_string()));
    }
}
