//! Measures a device from its links: matches the observations of a wiretap, summarises and stores them.
//!
//! A *sighting* is one observation of a packet by a wiretap. A *stamp* is the timestamp record that the load generator
//! writes into a packet: flow, sequence number and send time.
//!
//! The types to know:
//!
//! - [`Tapped`]: the paths of packets with timestamp records through a device, from the [`Sightings`] of a wiretap: a
//!   [`taut_xdp::wire_tap::WireTap`] on its interfaces, or a [`RunningTap`] in line.
//! - [`Matched`]: the same for packets without timestamp records, identified by their content. A [`PlacedTap`] receives
//!   them at two places, or a [`RecordedTap`] reads them from two captures.
//! - [`TapReport`]: the results of either; [`TapFolder`] stores every packet.
//!
//! This is a crate of its own because it works on every packet during a measurement; `lab` reads its folders and draws
//! figures.
//!
//! Begin with `lib.rs`, then `content_match.rs`, then `two_places.rs`.
//!
//! # Two ways to see packets
//!
//! On veth links, programs at trace points of the kernel observe the packets ([`taut_xdp::wire_tap`]). On other ports
//! `taut_traffic::InlineTap` relays the packets and writes its observations into a lock-free ring. All later steps are
//! the same: `taut_measure::Crossings` matches the two observations of a packet.

#![forbid(unsafe_code)]

mod capture_pair;
mod collection;
mod content_match;
mod error;
mod files;
mod inline;
mod inside;
mod layers;
mod report;
mod sightings;
mod thread;
mod two_places;

pub use capture_pair::{RecordedTap, RecordingError};
pub use content_match::Matched;
pub use error::InlineError;
pub use files::TapFolder;
pub use inline::RunningTap;
pub use inside::{Inside, TrialTap};
pub use layers::{LayeredWay, LayersError, LayersReport, layers};
pub use report::{
    Delayed, DirectionReport, FlowReport, MatchReport, PlaceCounts, RelayPort, RelayReport,
    TapReport,
};
pub use sightings::Sightings;
pub use two_places::{PlacedTap, Seen};

use collection::Collected;
use std::time::Duration;
use taut_measure::{CrossingAccount, Crossings};
use taut_results::ResultsError;
use taut_xdp::wire_tap::{Missed, Sighting};

/// Time within which a packet must leave the device after it entered.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// The ends of the links at which packets are observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// The device's ends of its links: packets sent from there leave the device.
    Device,
    /// The generator's ends of the device's links: packets sent from there enter the device.
    Generator,
}

/// The paths of packets through a device, collected until [`Tapped::finish`].
pub struct Tapped<S> {
    tap: S,
    ends: Ends,
    crossings: Crossings,
    collected: Collected,
    /// True while packets that enter are counted.
    open: bool,
}

impl<S: Sightings> Tapped<S> {
    /// Collects the observations of `tap` on `interfaces`; every packet is written into `folder`, if there is one.
    pub fn new(tap: S, interfaces: &[String], ends: Ends, folder: Option<TapFolder>) -> Self {
        Self {
            tap,
            ends,
            crossings: Crossings::new(PATIENCE.as_nanos() as u64),
            collected: Collected::new(interfaces, folder),
            open: true,
        }
    }

    /// Processes the observations since the last call: ten calls a second are enough for 2 million packets a second.
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

    /// Ignores packets that enter the device from now on; those inside may still leave, for [`PATIENCE`].
    pub fn close_entrance(&mut self) {
        self.collect();
        self.open = false;
    }

    /// Returns the summary of the packets that entered through the first interface, and the counts of observations that
    /// the wiretap missed.
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

    /// Completes the summary, and closes the folder's files.
    ///
    /// # Errors
    /// A file could not be written; the report is complete nevertheless.
    pub fn finish(mut self) -> (TapReport, Result<(), ResultsError>) {
        let relay = self.tap.end();
        self.drain();
        let missed = self.tap.missed();
        let mut report = self.collected.report(self.crossings.only_left, missed);
        report.relay = relay;
        self.collected.finish(report)
    }
}
