//! What is measured of a switch: measurements, their points, and how long and how often.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use taut_results::Mode;

/// Measurements, by the names that `--only` takes.
pub const MEASUREMENTS: [&str; 6] = ["hops", "rules", "qos", "insertion", "amplify", "actions"];

/// How rules are asked of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Matching {
    /// There are no rules: a forwarder between two ports.
    Plain,
    /// Each rule asks for one address.
    Exact,
    /// Rules ask for networks of 256 addresses down to single ones, which leave no gap.
    Prefix,
}

/// Priorities of rules that are made one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Each one above those before.
    Increasing,
    /// Each one below those before.
    Decreasing,
    /// All the same.
    Equal,
}

/// What is done to packets besides sending them on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Does {
    /// Nothing.
    Output,
    /// A meter counts them, and drops none.
    Meter,
    /// Their class (DSCP) is set.
    SetClass,
    /// Their destination address is set.
    SetAddress,
    /// A VLAN tag is pushed and popped.
    Tag,
    /// A group of one bucket sends them.
    GroupAll,
    /// A group picks one of two buckets by their flow.
    GroupSelect,
    /// A group picks the first of two buckets whose port is up.
    GroupFailover,
}

impl Does {
    /// Everything that can be done, the least first.
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
    /// Latency of packets that go through so many cables on their way.
    Hops {
        /// Cables.
        loops: u32,
    },
    /// Rate and latency with so many rules.
    Rules {
        /// How they are asked.
        matching: Matching,
        /// How many there are.
        rules: u32,
    },
    /// Latency of real-time packets beside background traffic.
    Qos {
        /// Background, as a share of what the return port carries, percent.
        load_percent: u32,
        /// Whether real-time packets have a queue of strict priority.
        priority: bool,
    },
    /// Time until rules are in force.
    Insertion {
        /// Their priorities.
        order: Order,
    },
    /// One stream sent through all ports.
    Amplify {
        /// Cables, each of which brings two copies back.
        cables: u32,
    },
    /// Rate and latency where a rule does this.
    Actions {
        /// What it does.
        does: Does,
    },
}

/// The name of a unit variant, as it stands in JSON.
fn name(of: &impl Serialize) -> String {
    match serde_json::to_value(of) {
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    }
}

impl Part {
    /// Name of its measurement.
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

    /// Name of the point, for files and people: `exact-1000`.
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

/// How long and how often everything is measured.
#[derive(Debug, Clone)]
pub struct Lengths {
    /// Interleaved repetitions of everything.
    pub repetitions: u32,
    /// What counts of a stretch of traffic.
    pub trial: Duration,
    loops: Vec<u32>,
    rules: Vec<u32>,
    loads_percent: Vec<u32>,
    cables: Vec<u32>,
    /// Rules that are made one after the other.
    pub insertions: u32,
    /// Rules of which the first packet is waited for.
    pub on_wire: u32,
}

impl Lengths {
    /// Quick: half a minute; default: under a minute; full: about an hour.
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

    /// The most cables that packets go through: so many are there with every number of loops, so that ports without packets, which are
    /// looked at as well, are no part of the slope.
    pub fn most_loops(&self) -> u32 {
        self.loops.iter().copied().max().unwrap_or(0)
    }

    /// Has no point want more cables than there are: for loops, and to multiply a stream by.
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

    /// The points of the measurements of these names.
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

    /// About how long a point takes, but for the switch's own start.
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
    fn points_have_names_of_their_own_and_belong_to_measurements_that_there_are() {
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
    fn points_want_no_more_cables_than_there_are() {
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
    fn one_measurement_alone_is_its_points() {
        let lengths = Lengths::of(Mode::Quick);
        let hops = lengths.parts(|name| name == "hops");
        assert_eq!(hops.len(), 5);
        assert_eq!(lengths.most_loops(), 6);
        assert_eq!(hops.last().map(|part| part.point()), Some("6".to_string()));
    }
}
