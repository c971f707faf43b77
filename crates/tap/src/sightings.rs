//! Sightings: what a tap hands over of the packets that it sees.

use super::report::RelayReport;
use taut_xdp::wire_tap::{Missed, Sighting, WireTap};

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
