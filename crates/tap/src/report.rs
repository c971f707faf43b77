//! What a tap found, as `taut tap --json` prints it.

use super::{Collected, MatchReport, RelayReport};
use serde::{Deserialize, Serialize};
use taut_measure::{CrossingAccount, Summary};
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

impl Collected {
    /// Sums up what was seen so far.
    pub(super) fn report(&self, only_left: u64, missed: Missed) -> TapReport {
        let direction = |(side, account): (usize, &CrossingAccount)| {
            let ways = self.ways.iter().filter(|((from, _), _)| *from == side);
            let most = ways.max_by_key(|(_, packets)| **packets);
            let flows = self.flows.iter().filter(|((from, _), _)| *from == side);
            DirectionReport {
                from: self.interfaces[side].clone(),
                to: most.map(|((_, to), _)| self.interfaces[*to].clone()),
                all: account.into(),
                flows: flows
                    .map(|((_, number), flow)| FlowReport {
                        flow: *number,
                        all: (&flow.account).into(),
                        lost_sequences: flow.lost.clone(),
                    })
                    .collect(),
            }
        };
        TapReport {
            interfaces: self.interfaces.clone(),
            directions: self.sides.iter().enumerate().map(direction).collect(),
            only_left,
            missed,
            relay: None,
            samples: None,
            matching: None,
        }
    }
}
