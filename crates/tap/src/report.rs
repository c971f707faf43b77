//! The report of a wiretap, as `taut tap --json` prints it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use taut_capture::matching::Counts;
use taut_measure::{CrossingAccount, Interval, Summary};
use taut_port::PortCounters;
use taut_results::Origin;
use taut_xdp::wire_tap::Missed;

/// The results of a wiretap.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TapReport {
    /// The interfaces watched, or the sides of the device for an inline wiretap: A, B.
    pub interfaces: Vec<String>,
    /// Results by the interface through which packets entered.
    pub directions: Vec<DirectionReport>,
    /// Packets observed only when they left the device: they entered before the wiretap started, were inside for over
    /// half a second, or entered on another path.
    pub only_left: u64,
    /// Numbers of packets that the wiretap missed when they entered or left. Such a packet counts as lost, or not at
    /// all.
    pub missed: Missed,
    /// Statistics of an inline wiretap; none for a wiretap that only observes.
    pub relay: Option<RelayReport>,
    /// Packets in the sample files; none without a folder.
    pub samples: Option<u64>,
    /// The matching by content; none for a wiretap that uses timestamp records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matching: Option<MatchReport>,
}

/// Packets that entered through one interface.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DirectionReport {
    /// The interface, or the side of the device, through which the packets entered.
    pub from: String,
    /// The interface, or the side of the device, through which most of these packets left; none if no packet left.
    pub to: Option<String>,
    /// Statistics of all packets that entered through the interface.
    #[serde(flatten)]
    pub all: Account,
    /// Statistics by flow. The flow number in a packet's timestamp record is the generator's trial times 16, plus the
    /// stream.
    pub flows: Vec<FlowReport>,
}

/// Packets of one flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlowReport {
    /// Flow number in the packets' timestamp records: the generator's trial times 16, plus the stream.
    pub flow: u16,
    /// Statistics of the flow's packets.
    #[serde(flatten)]
    pub all: Account,
    /// Sequence numbers of the first hundred lost packets.
    pub lost_sequences: Vec<u64>,
}

/// Frames at both places that were not matched, by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PlaceCounts {
    /// Frames that do not match the filter expression.
    pub filtered: u64,
    /// Frames that cannot be identified: their length field is wrong, or too little of them was captured.
    pub unidentified: u64,
}

/// A packet that was slow or lost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Delayed {
    /// Name of the place at which the packet was observed first.
    pub from: String,
    /// Index among the packets observed at the place `from`, from 0.
    pub sequence: u64,
    /// Time at which the packet was at the place `from`, ns since 1970.
    pub time_ns: u64,
    /// Delay to the other place, ns; none for a lost packet.
    pub delay_ns: Option<u64>,
}

/// The matching of packets by their content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MatchReport {
    /// Numbers of packets by the result of matching them.
    #[serde(flatten)]
    pub counts: Counts,
    /// Frames at both places that were not matched.
    #[serde(flatten)]
    pub others: PlaceCounts,
    /// Time within which a packet must arrive at the other place, ns.
    pub within_ns: u64,
    /// Median delay with its confidence interval, for the packets from each place; none for too few packets.
    pub median_ns: Vec<Option<Interval>>,
    /// The slowest packets, in descending order of delay.
    pub slowest: Vec<Delayed>,
    /// The first packets that were lost.
    pub lost_packets: Vec<Delayed>,
    /// Start, command line and software versions of the measurement.
    #[serde(flatten)]
    pub origin: Origin,
}

/// The relay statistics of an inline wiretap, as `taut tap --json` prints them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RelayReport {
    /// The core of the relay's thread; none if none was requested.
    pub core: Option<usize>,
    /// Packets that did not fit into the device's ring; they do not count as entered.
    pub refused: u64,
    /// Packets that left the device and did not fit into the generator's ring; they count as left.
    pub undelivered: u64,
    /// Ports of the wiretap: the generator's and the device's port of side A, then the same of side B.
    pub ports: Vec<RelayPort>,
}

/// One port of an inline wiretap.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RelayPort {
    /// Port as `BACKEND:TARGET`.
    pub port: String,
    /// Counters of the port.
    #[serde(flatten)]
    pub counters: PortCounters,
}

/// Statistics of packets that entered the device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Account {
    /// Packets that entered the device.
    pub entered: u64,
    /// Packets that left the device.
    pub left: u64,
    /// Packets that entered the device and did not leave it.
    pub lost: u64,
    /// Packets that left more often than they entered.
    pub duplicate: u64,
    /// Packets that were reordered inside the device.
    pub reordered: u64,
    /// Latency from entering to leaving; none if no packet left.
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
    /// Returns true if no packet entered.
    pub fn is_empty(&self) -> bool {
        self.directions.iter().all(|d| d.all.entered == 0)
    }
}
