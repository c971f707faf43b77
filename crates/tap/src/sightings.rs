//! The observations of packets by a wiretap, called sightings.

use super::report::RelayReport;
use taut_xdp::wire_tap::{Missed, Sighting, WireTap};

/// A source of a wiretap's observations of packets.
pub trait Sightings {
    /// Calls `each` for the observations since the last call, in order.
    fn take(&mut self, each: impl FnMut(Sighting));

    /// Returns the counts of observations that the source missed.
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
