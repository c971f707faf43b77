//! Matching: packets seen at two places are matched by their content. This gives the delay and the losses of any device
//! between the places for traffic without timestamps. (MoonSniff does so by a part of each packet.)
//!
//! [`Identify`] computes an [`Identity`] from the bytes that a forwarding device does not change. A [`Matcher`] accepts
//! identities and times of both places, and reports the delay of each packet, or that it was lost.

mod identity;
mod matcher;

pub use identity::{IDENTITY_BYTES, Identify, Identity, Ignore};
pub use matcher::{Counts, Matcher, Outcome, Settings};
