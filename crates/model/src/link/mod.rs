//! Links: the time that a packet takes from sender to receiver through wire, glass or air, or in a wireless network.
//! IEEE 802.3, 802.11; Gallenmüller's dissertation, section 6.4; CALVIN (Xiang et al., IEEE JSAC 2019), figure 2.
//!
//! Each file is independent: [`ethernet`], [`propagation`], [`phy`] and [`wlan`] for one station, [`bianchi`] for
//! several, [`medium`] for a medium shared packet by packet, and [`budget`], which divides an end-to-end target. Times
//! are in us, as in the papers, except for the ns of [`ethernet`] and [`medium`].

pub mod bianchi;
pub mod budget;
pub mod ethernet;
pub mod medium;
pub mod phy;
pub mod propagation;
pub mod wlan;

use crate::estimate::WrongValue;

/// Reason why a link cannot be described.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LinkError {
    /// A value that is not a number, or invalid for its quantity.
    #[error(transparent)]
    Value(#[from] WrongValue),
    /// A count that must be at least one is zero.
    #[error("{what} must be at least 1")]
    Empty {
        /// Name of the count.
        what: &'static str,
    },
    /// The frame is too long for the link.
    #[error("a frame of {bytes} bytes is too long: the maximum is {most}")]
    TooLong {
        /// Length of the frame, bytes.
        bytes: u32,
        /// Greatest allowed length, bytes.
        most: u32,
    },
    /// The standard does not define this rate or mode.
    #[error("{standard} has no {what}")]
    NotInStandard {
        /// Name of the standard.
        standard: &'static str,
        /// The missing rate or mode.
        what: &'static str,
    },
}
