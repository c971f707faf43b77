//! Ethernet: the time that a frame occupies the wire, and the line rate in frames per second. IEEE 802.3, clauses 3.1
//! (packet format) and 4.4.2 (interpacket gap, minimum and maximum frame).

use super::LinkError;
use crate::estimate::positive;

/// Preamble and start of frame delimiter (8), and the gap between two frames (12), bytes.
pub const OVERHEAD_BYTES: u32 = 20;
/// Shortest frame with its check sequence, bytes: shorter frames are padded to it.
pub const SHORTEST_FRAME_BYTES: u32 = 64;
/// Longest accepted frame with its check sequence, a jumbo frame with two VLAN tags, bytes.
pub const LONGEST_FRAME_BYTES: u32 = 9_026;

/// An Ethernet link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ethernet {
    bits_per_ns: f64,
}

impl Ethernet {
    /// Returns a link of `gbit_per_s`.
    ///
    /// # Errors
    /// The rate is not a finite number above zero.
    pub fn new(gbit_per_s: f64) -> Result<Self, LinkError> {
        Ok(Self {
            bits_per_ns: positive("a link's rate", gbit_per_s)?,
        })
    }

    /// Returns the time that a frame of `frame_bytes`, with its check sequence, occupies the link, ns. Preamble and gap
    /// are included, and short frames are padded.
    ///
    /// # Errors
    /// The frame is longer than a jumbo frame.
    pub fn occupied_ns(&self, frame_bytes: u32) -> Result<f64, LinkError> {
        Ok(f64::from((on_the_wire(frame_bytes)? + OVERHEAD_BYTES) * 8) / self.bits_per_ns)
    }

    /// Returns the time from the first bit of a frame to its last, ns, with preamble and without gap: it is the delay
    /// of a store-and-forward device.
    ///
    /// # Errors
    /// The frame is longer than a jumbo frame.
    pub fn serialisation_ns(&self, frame_bytes: u32) -> Result<f64, LinkError> {
        const PREAMBLE_BYTES: u32 = 8;
        Ok(f64::from((on_the_wire(frame_bytes)? + PREAMBLE_BYTES) * 8) / self.bits_per_ns)
    }

    /// Returns the number of frames of `frame_bytes` per second at line rate.
    ///
    /// # Errors
    /// The frame is longer than a jumbo frame.
    pub fn line_rate_pps(&self, frame_bytes: u32) -> Result<f64, LinkError> {
        Ok(1e9 / self.occupied_ns(frame_bytes)?)
    }
}

fn on_the_wire(frame_bytes: u32) -> Result<u32, LinkError> {
    if frame_bytes > LONGEST_FRAME_BYTES {
        return Err(LinkError::TooLong {
            bytes: frame_bytes,
            most: LONGEST_FRAME_BYTES,
        });
    }
    Ok(frame_bytes.max(SHORTEST_FRAME_BYTES))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ethernet_line_rates_equal_the_published_rates() {
        // Gallenmüller's dissertation, table 4.1: Mpkt/s at 64 bytes.
        for (gbit, wanted) in [(10.0, 14.88), (40.0, 59.52), (100.0, 148.81)] {
            let rate = Ethernet::new(gbit).unwrap().line_rate_pps(64).unwrap() / 1e6;
            assert!((rate - wanted).abs() < 0.005, "{rate}");
        }
        // Full frames of gigabit Ethernet: 10^9 / (1,538 x 8).
        let rate = Ethernet::new(1.0).unwrap().line_rate_pps(1_518).unwrap();
        assert_eq!(rate.floor(), 81_274.0);
    }

    #[test]
    fn short_frames_are_padded_and_oversized_frames_are_refused() {
        let link = Ethernet::new(10.0).unwrap();
        assert_eq!(link.occupied_ns(1), link.occupied_ns(64));
        assert!((link.occupied_ns(64).unwrap() - 67.2).abs() < 1e-9);
        assert!((link.serialisation_ns(64).unwrap() - 57.6).abs() < 1e-9);
        assert!(link.occupied_ns(9_027).is_err());
    }

    #[test]
    fn a_link_without_a_rate_is_refused() {
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Ethernet::new(bad).is_err());
        }
    }
}
