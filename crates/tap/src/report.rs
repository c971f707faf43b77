//! What a tap found, as `taut tap --json` prints it.

use serde::{Deserialize, Serialize};
use taut_capture::matching::Counts;
use taut_measure::{CrossingAccount, Interval, Summary};
use taut_port::PortCounters;
use taut_results::Origin;
use taut_xdp::wire_tap::Missed;

/// Everything that a tap found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TapReport {
    /// The interfaces watched, or the sides of a tap in line: A, B.
    pub interfaces: Vec<String>,
    /// By interface that packets entered through.
    pub directions: Vec<DirectionReport>,
    /// Packets seen leaving only: inside before the tap was there, inside for over half a second, or let in by a
    /// way that the tap does not see.
    pub only_left: u64,
    /// What the tap missed: packets among it count as lost, or not at all.
    pub missed: Missed,
    /// What a tap in line did; none of one that only watches.
    pub relay: Option<RelayReport>,
    /// Packets in the sample files; none without a folder.
    pub samples: Option<u64>,
    /// How packets were told apart by what they hold; none of a tap that goes by stamps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matching: Option<MatchReport>,
}

/// Packets that entered through one interface.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DirectionReport {
    /// Where they entered.
    pub from: String,
    /// Where most of them left.
    pub to: Option<String>,
    /// All of them.
    #[serde(flatten)]
    pub all: Account,
    /// By flow number of their stamps: trial of the generator times 16, plus stream.
    pub flows: Vec<FlowReport>,
}

/// Packets of one flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowReport {
    /// Its number.
    pub flow: u16,
    /// Its packets.
    #[serde(flatten)]
    pub all: Account,
    /// Sequence numbers of the first hundred that were lost.
    pub lost_sequences: Vec<u64>,
}

/// Frames at both places that were not matched, by why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PlaceCounts {
    /// Left out by the filter.
    pub filtered: u64,
    /// Not to be told apart: they lie about their length, or too little of them was kept.
    pub unidentified: u64,
}

/// Packet that took long, or was lost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Delayed {
    /// Where it came from.
    pub from: String,
    /// Its number among those seen there, from 0.
    pub sequence: u64,
    /// When it was seen there, ns since 1970.
    pub time_ns: u64,
    /// How long it took, ns; none of a lost one.
    pub delay_ns: Option<u64>,
}

/// How packets were matched by what they hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MatchReport {
    /// Packets by what became of them.
    #[serde(flatten)]
    pub counts: Counts,
    /// Frames that took no part.
    #[serde(flatten)]
    pub others: PlaceCounts,
    /// How long after the first place a packet could be seen at the other, ns.
    pub within_ns: u64,
    /// Median of the delays and its interval, by the place that packets came from.
    pub median_ns: Vec<Option<Interval>>,
    /// The slowest packets, the slowest first.
    pub slowest: Vec<Delayed>,
    /// The first packets that were lost.
    pub lost_packets: Vec<Delayed>,
    /// How all of it came about.
    #[serde(flatten)]
    pub origin: Origin,
}

/// What a tap in line did beside seeing, as `taut tap --json` prints it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RelayReport {
    /// The core that it ran on; none if it was not asked to stay on one.
    pub core: Option<usize>,
    /// Packets that the device had no room for; they do not count as entered.
    pub refused: u64,
    /// Packets that left the device and that the generator had no room for; they count as left.
    pub undelivered: u64,
    /// Its ports: the generator's and the device's of side A, then of side B.
    pub ports: Vec<RelayPort>,
}

/// One port of a tap in line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RelayPort {
    /// As given.
    pub port: String,
    /// What passed through it and what was lost in it.
    #[serde(flatten)]
    pub counters: PortCounters,
}

/// A number of packets that entered the device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// How many.
    pub entered: u64,
    /// Those that left.
    pub left: u64,
    /// Those that did not.
    pub lost: u64,
    /// Those that left more often than they entered.
    pub duplicate: u64,
    /// Those overtaken inside.
    pub reordered: u64,
    /// From entering to leaving; none if none left.
    pub latency_ns: Option<Summary>,
}

impl From<&CrossingAccount> for Account {
    fn from(account: &CrossingAccount) -> Self {
        Self {
            entered: account.entered,
            left: account.left(),
            lost: account.lost,
            duplicate: account.duplicate,
            reordered: account.reordered,
            latency_ns: Summary::from_histogram(&account.latency),
        }
    }
}

impl TapReport {
    /// Whether not one packet was seen inside.
    pub fn is_empty(&self) -> bool {
        self.directions.iter().all(|d| d.all.entered == 0)
    }
}
