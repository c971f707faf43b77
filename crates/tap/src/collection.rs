//! The packets that a wiretap has collected: summarised, and optionally written into a folder.

use super::files::TapFolder;
use super::report::{DirectionReport, FlowReport, TapReport};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};
use taut_measure::{Crossed, CrossingAccount};
use taut_results::ResultsError;
use taut_xdp::wire_tap::Missed;

/// Limit on the number of flows per ingress side with statistics of their own; further flows are only in the totals.
const FLOWS: usize = 100;

/// Limit on the stored numbers of a flow's lost packets.
const LOST_NUMBERS: usize = 100;

/// Packets of one flow that entered the device through one side.
#[derive(Debug, Clone, Default)]
struct Flow {
    account: CrossingAccount,
    lost: Vec<u64>,
}

/// Packets that are summarised, and optionally written into a folder.
pub(super) struct Collected {
    pub interfaces: Vec<String>,
    /// Statistics by the side through which packets entered.
    pub sides: Vec<CrossingAccount>,
    /// Number of packets by the two sides through which they entered and left the device.
    ways: BTreeMap<(usize, usize), u64>,
    flows: BTreeMap<(usize, u16), Flow>,
    pub folder: Option<TapFolder>,
    begun: SystemTime,
    first_ns: Option<u64>,
    pub last_ns: u64,
}

impl Collected {
    pub fn new(interfaces: &[String], folder: Option<TapFolder>) -> Self {
        Self {
            interfaces: interfaces.to_vec(),
            sides: vec![CrossingAccount::default(); interfaces.len()],
            ways: BTreeMap::new(),
            flows: BTreeMap::new(),
            folder,
            begun: SystemTime::now(),
            first_ns: None,
            last_ns: 0,
        }
    }

    pub fn see(&mut self, time_ns: u64) {
        self.first_ns.get_or_insert(time_ns);
        self.last_ns = time_ns.max(self.last_ns);
    }

    pub fn add(&mut self, packet: &Crossed) {
        let Some(side) = self.sides.get_mut(packet.side) else {
            return;
        };
        side.add(packet);
        if let Some((out, _)) = packet.left {
            *self.ways.entry((packet.side, out)).or_default() += 1;
        }
        let key = (packet.side, packet.flow);
        if self.flows.len() >= FLOWS && !self.flows.contains_key(&key) {
            return;
        }
        let flow = self.flows.entry(key).or_default();
        flow.account.add(packet);
        if packet.left.is_none() && flow.lost.len() < LOST_NUMBERS {
            flow.lost.push(packet.sequence);
        }
        if let Some(folder) = &mut self.folder {
            folder.write(
                packet,
                &self.interfaces[packet.side],
                self.first_ns.unwrap_or(0),
            );
        }
    }

    /// Closes the folder's files; the report is complete even if that fails.
    pub fn finish(mut self, mut report: TapReport) -> (TapReport, Result<(), ResultsError>) {
        let mut written = Ok(());
        if let Some(folder) = self.folder.take() {
            let seconds =
                Duration::from_nanos(self.last_ns - self.first_ns.unwrap_or(self.last_ns));
            let sides = self.interfaces.iter().zip(&self.sides);
            let (kept, result) = folder.finish(sides, self.begun, seconds, &mut report);
            report.samples = Some(kept);
            written = result;
        }
        (report, written)
    }

    /// Returns the report of the packets that were collected until now. `only_left` is the number of packets that left
    /// without an observation of their entry; `missed` counts observations that the wiretap missed.
    pub fn report(&self, only_left: u64, missed: Missed) -> TapReport {
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
