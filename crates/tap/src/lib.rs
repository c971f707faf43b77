//! A device seen from its wires: sightings of a tap brought together, summed up and kept.
//!
//! The types to know:
//!
//! - [`Tapped`]: what packets with stamps do on their way through a device, from the [`Sightings`] of a tap: a [`taut_xdp::wire_tap::WireTap`]
//!   on its interfaces, or a [`RunningTap`] in line.
//! - [`Matched`]: the same for packets without stamps, told apart by what they hold, as a [`PlacedTap`] sees them at two places or a
//!   [`RecordedTap`] reads them from two captures.
//! - [`TapReport`]: what either found; [`TapFolder`] keeps every packet.
//!
//! A crate of its own, as it works on every packet beside what is measured: what reads its folders and draws is in `lab`.
//!
//! Begin with `lib.rs`, then `matched.rs`, then `placed.rs`.

#![forbid(unsafe_code)]

mod files;
mod inline;
mod inside;
mod layers;
mod matched;
mod placed;
mod recorded;
mod report;
mod thread;

pub use files::TapFolder;
pub use inline::{InlineError, RelayPort, RelayReport, RunningTap};
pub use inside::{Inside, TrialTap};
pub use layers::{LayeredWay, LayersError, LayersReport, layers};
pub use matched::{Delayed, MatchReport, Matched, PlaceCounts};
pub use placed::{PlacedTap, Seen};
pub use recorded::{RecordedTap, RecordingError};
pub use report::{DirectionReport, FlowReport, TapReport};

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};
use taut_measure::{Crossed, CrossingAccount, Crossings};
use taut_results::ResultsError;
use taut_xdp::wire_tap::{Missed, Sighting, WireTap};

/// How long after it entered a packet may leave.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// Flows, by side, that are accounted for one by one; more are only in the sums.
const FLOWS: usize = 100;

/// Lost packets of a flow whose numbers are kept.
const LOST_NUMBERS: usize = 100;

/// Which ends of the wires are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// The device's: what leaves them leaves the device.
    Device,
    /// The generator's, across the wires: what leaves them enters the device.
    Generator,
}

/// What sees packets.
pub trait Sightings {
    /// Hands over what was seen since the last call, in the order of seeing.
    fn take(&mut self, each: impl FnMut(Sighting));

    /// What was missed so far.
    fn missed(&self) -> Missed;

    /// Sees no more; what it did beside seeing, if anything.
    fn end(&mut self) -> Option<RelayReport> {
        None
    }
}

impl Sightings for WireTap {
    fn take(&mut self, each: impl FnMut(Sighting)) {
        WireTap::take(self, each);
    }

    fn missed(&self) -> Missed {
        WireTap::missed(self)
    }
}

/// Packets of one flow that entered through one side.
#[derive(Debug, Clone, Default)]
struct Flow {
    account: CrossingAccount,
    lost: Vec<u64>,
}

/// Packets summed up, and written into a folder if there is one.
struct Collected {
    interfaces: Vec<String>,
    /// By side that packets entered through.
    sides: Vec<CrossingAccount>,
    /// By the sides entered and left through.
    ways: BTreeMap<(usize, usize), u64>,
    flows: BTreeMap<(usize, u16), Flow>,
    folder: Option<TapFolder>,
    begun: SystemTime,
    first_ns: Option<u64>,
    last_ns: u64,
}

impl Collected {
    fn new(interfaces: &[String], folder: Option<TapFolder>) -> Self {
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

    fn see(&mut self, time_ns: u64) {
        self.first_ns.get_or_insert(time_ns);
        self.last_ns = time_ns.max(self.last_ns);
    }

    fn add(&mut self, packet: &Crossed) {
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

    /// Closes the folder's files; what is in the report is complete all the same.
    fn finish(mut self, mut report: TapReport) -> (TapReport, Result<(), ResultsError>) {
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
}

/// What packets do on their way through a device, collected until [`Tapped::finish`].
pub struct Tapped<S> {
    tap: S,
    ends: Ends,
    crossings: Crossings,
    collected: Collected,
    /// Whether packets that enter still count.
    open: bool,
}

impl<S: Sightings> Tapped<S> {
    /// Collects what `tap` sees on `interfaces`; every packet goes into `folder`, if there is one.
    pub fn new(tap: S, interfaces: &[String], ends: Ends, folder: Option<TapFolder>) -> Self {
        Self {
            tap,
            ends,
            crossings: Crossings::new(PATIENCE.as_nanos() as u64),
            collected: Collected::new(interfaces, folder),
            open: true,
        }
    }

    /// Takes in what was seen since the last call: ten times a second is enough for 2 million packets a second.
    pub fn collect(&mut self) {
        let Self {
            tap,
            ends,
            crossings,
            collected,
            open,
        } = self;
        tap.take(|seen: Sighting| {
            collected.see(seen.time_ns);
            if seen.leaving == (*ends == Ends::Device) {
                crossings.left(seen.side, seen.flow, seen.sequence, seen.time_ns);
            } else if *open {
                crossings.entered(seen.side, seen.flow, seen.sequence, seen.time_ns);
            }
        });
        let mut settled = Vec::new();
        self.crossings
            .settle(self.collected.last_ns, |packet| settled.push(packet));
        settled.iter().for_each(|packet| self.collected.add(packet));
    }

    /// Packets that enter from now on do not count; those inside still may leave, for [`PATIENCE`].
    pub fn close_entrance(&mut self) {
        self.collect();
        self.open = false;
    }

    /// What entered through the first interface, summed up, and what the tap missed.
    pub fn into_account(mut self) -> (CrossingAccount, Missed) {
        self.drain();
        let missed = self.tap.missed();
        (self.collected.sides.swap_remove(0), missed)
    }

    fn drain(&mut self) {
        self.collect();
        let mut settled = Vec::new();
        self.crossings.finish(|packet| settled.push(packet));
        settled.iter().for_each(|packet| self.collected.add(packet));
    }

    /// Sums everything up, and closes the folder's files.
    ///
    /// # Errors
    /// When a file could not be written; what is in the report is complete all the same.
    pub fn finish(mut self) -> (TapReport, Result<(), ResultsError>) {
        let relay = self.tap.end();
        self.drain();
        let missed = self.tap.missed();
        let mut report = self.collected.report(self.crossings.only_left, missed);
        report.relay = relay;
        self.collected.finish(report)
    }
}
