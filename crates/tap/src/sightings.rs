//! Sightings: a tap's observations of packets.

use super::report::RelayReport;
use taut_xdp::wire_tap::{Missed, Sighting, WireTap};

/// A source of sightings.
pub trait Sightings {
    /// Calls `each` for the sightings since the last call, in order.
    fn take(&mut self, each: impl FnMut(Sighting));

    /// Returns the counts of missed sightings.
    fn missed(&self) -> Missed;

    /// Stops the source; returns the statistics of its relay, if it has one.
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
