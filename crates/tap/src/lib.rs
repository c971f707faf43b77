//! A device seen from its wires: sightings of a tap brought together, summed up and kept.
//!
//! The types to know:
//!
//! - [`Tapped`]: what packets with stamps do on their way through a device, from the [`Sightings`] of a tap: a
//!   [`taut_xdp::wire_tap::WireTap`] on its interfaces, or a [`RunningTap`] in line.
//! - [`Matched`]: the same for packets without stamps, told apart by what they hold, as a [`PlacedTap`] sees them at two places or a
//!   [`RecordedTap`] reads them from two captures.
//! - [`TapReport`]: what either found; [`TapFolder`] keeps every packet.
//!
//! A crate of its own, as it works on every packet beside what is measured: what reads its folders and draws is in `lab`.
//!
//! Begin with `lib.rs`, then `matched.rs`, then `placed.rs`.
//!
//! # Two ways to see packets
//!
//! On veth links, programs at trace points of the kernel see the packets ([`taut_xdp::wire_tap`]). On other ports
//! `taut_traffic::InlineTap` relays the packets and writes the sightings into a ring without locks. Everything after
//! that is the same: `taut_measure::Crossings` matches the two sightings of a packet.

#![forbid(unsafe_code)]

mod collection;
mod error;
mod files;
mod inline;
mod inside;
mod layers;
mod matched;
mod placed;
mod recorded;
mod report;
mod sightings;
mod thread;

pub use error::InlineError;
pub use files::TapFolder;
pub use inline::RunningTap;
pub use inside::{Inside, TrialTap};
pub use layers::{LayeredWay, LayersError, LayersReport, layers};
pub use matched::Matched;
pub use placed::{PlacedTap, Seen};
pub use recorded::{RecordedTap, RecordingError};
pub use report::{
    Delayed, DirectionReport, FlowReport, MatchReport, PlaceCounts, RelayPort, RelayReport,
    TapReport,
};
pub use sightings::Sightings;

use collection::Collected;
use std::time::Duration;
use taut_measure::{CrossingAccount, Crossings};
use taut_results::ResultsError;
use taut_xdp::wire_tap::{Missed, Sighting};

/// How long after it entered a packet may leave.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// Which ends of the wires are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// The device's: what leaves them leaves the device.
    Device,
    /// The generator's, across the wires: what leaves them enters the device.
    Generator,
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
